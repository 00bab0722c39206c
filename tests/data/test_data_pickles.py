"""The pickles of Planetoid are read without running their code, and what they hold is checked."""

from __future__ import annotations

import collections
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from gnnsparse.data import DatasetUnavailableError, load_dataset
from tests.data.raw_files import write_planetoid
from tests.own_graphs import Evil

pytestmark = pytest.mark.usefixtures("dataset_cache")


@pytest.mark.parametrize("protocol", [2, 3, 4])
def test_pickles_of_planetoid_are_read(tmp_path: Path, protocol: int) -> None:
    graph = collections.defaultdict(list, {node: [(node + 1) % 8] for node in range(8)})
    write_planetoid(tmp_path, graph=graph, y=np.empty((0, 3), np.int32), protocol=protocol)
    data = load_dataset("cora", root=tmp_path, normalize_features=False)
    assert data.y.tolist() == [0, 1, 2, 0, 1, 0, 1, 2], "row k of ty is node test.index[k]"
    assert data.x[7].tolist() == [1, 0, 0, 0]
    assert data.graph.nnz == 8


@pytest.mark.parametrize("name", ["x", "tx", "allx", "y", "ty", "ally", "graph"])
def test_no_code_of_a_pickle_runs(tmp_path: Path, name: str) -> None:
    trace = tmp_path / "trace"
    write_planetoid(tmp_path, **{name: Evil(trace)})
    if name != "x":  # which nothing reads
        with pytest.raises(DatasetUnavailableError, match=rf"ind\.cora\.{name}: .*names (posix|nt)\.mkdir"):
            load_dataset("cora", root=tmp_path)
    else:
        load_dataset("cora", root=tmp_path)
    assert not trace.exists()


CSR = sp.csr_matrix(np.eye(5, 4, dtype=np.float32))


def allx(**parts: list[Any]) -> dict[str, sp.csr_matrix]:
    matrix = CSR.copy()
    for name, part in parts.items():
        setattr(matrix, name, np.array(part, getattr(matrix, name).dtype))
    return {"allx": matrix}


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        (allx(indices=[0, 1, 2, 10**6]), "allx: indices: element 3 is 1000000"),
        (allx(indptr=[0, 9, 2, 3, 4, 4]), "allx: indptr: decreases"),
        (allx(data=[1, np.nan, 1, 1]), "allx: values: element 1 is nan"),
        ({"allx": np.ones(3)}, "allx: .*no sparse matrix"),
        ({"allx": CSR[:4]}, "test.index: begins with node 5; accepted: 4"),
        ({"ally": np.ones((5, 3), object)}, "ally: .*has elements of type O"),
        ({"ally": np.full((5, 3), 7)}, "ally: has shape"),
        ({"ally": CSR}, "ally: is no array"),
        ({"graph": {0: [1, 10**6]}}, "graph: edges: .*1000000"),
        ({"graph": {0: [1, -1]}}, "graph: edges: .*-1"),
        ({"graph": {0: [1, 10**40]}}, "something else than integers"),
        ({"graph": {0: ["1"]}}, "something else than integers"),
        ({"graph": [1, 2]}, "something else; accepted: a dictionary"),
        ({"graph": b"\x80\x02(."}, "graph: is no pickle"),
        ({"graph": b"\x80\x02]r\xff\xff\xff\x7f."}, "graph: is something else"),
        ({"graph": b"\x80\x05\x96\xff\xff\xff\xff\xff\xff\xff\x0f."}, "graph: is no pickle"),
        ({"graph": b"(" * 100_000}, "graph: is no pickle"),
        ({"index": "7\n5\n5\n"}, "test.index: holds 2 different nodes"),
        ({"index": f"7\n5\n{10**10}\n"}, "test.index"),
        ({"index": "7\n5\nx\n"}, "test.index: has something else than numbers"),
    ],
)
def test_bad_pickles_are_named(tmp_path: Path, changes: dict[str, Any], problem: str) -> None:
    write_planetoid(tmp_path, **changes)
    with pytest.raises((DatasetUnavailableError, MemoryError), match=rf"ind\.cora\..*{problem}|{problem}"):
        load_dataset("cora", root=tmp_path)
