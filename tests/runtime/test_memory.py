"""What does not fit into memory is refused at once, with the sizes, in place of a crash after minutes."""

from __future__ import annotations

import resource
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import gnnsparse
from gnnsparse import SparseGraph, errors
from gnnsparse.data import BlockModel, graph_like, load_dataset, load_matrix, load_sequences, sample_graph
from gnnsparse.errors import MemoryLimit, available_memory, check_memory
from tests import warm

EDGES = torch.tensor([[0, 1], [1, 0]])
NODES = 2**29


def limited(nbytes: int) -> None:
    """Leaves `nbytes` of address space to this process."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + nbytes, resource.getrlimit(resource.RLIMIT_AS)[1]))


@pytest.fixture
def two_gigabytes() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_AS)
    limited(2 * 10**9)
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


@pytest.mark.usefixtures("two_gigabytes")
def test_the_tightest_limit_counts() -> None:
    limit = available_memory()
    assert limit.name == "the limit on this process's address space (RLIMIT_AS)"
    assert 1.9e9 < limit.free <= 2e9
    check_memory("x", 10**9, "an array")
    with pytest.raises(
        MemoryError, match=r"^x: an array needs 3\.0 GB, and the limit .* leaves (2\.0|1\.9) GB$"
    ):
        check_memory("x", 3 * 10**9, "an array")


def test_the_machine_is_a_limit() -> None:
    with pytest.raises(
        MemoryError, match=r"x: an array needs 1000000000\.0 GB, and this .* leaves \d+\.\d GB"
    ):
        check_memory("x", 10**18, "an array")


@pytest.mark.parametrize("version", [1, 2])
def test_control_groups_are_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: int) -> None:
    """Those above the process's own count as well, and files that are held in memory do not."""
    outer = tmp_path / ("memory/jobs" if version == 1 else "jobs")
    inner = outer / "mine"
    inner.mkdir(parents=True)
    limit, used = "memory.max", "memory.current"
    if version == 1:
        limit, used = "memory.limit_in_bytes", "memory.usage_in_bytes"
    (outer / limit).write_text("5000000\n")
    (outer / used).write_text("3000000\n")
    (outer / "memory.stat").write_text("anon 1\ninactive_file 400000\nactive_file 100000\n")
    (inner / limit).write_text("max\n" if version == 2 else f"{2**63 - 4096}\n")
    (inner / used).write_text("1000\n")
    line = "4:cpu,memory:/jobs/mine\n3:cpu:/other\n" if version == 1 else "0::/jobs/mine\n"
    text = errors._text
    monkeypatch.setattr(errors, "_CGROUPS", tmp_path)
    monkeypatch.setattr(
        errors, "_text", lambda path: line if path == Path("/proc/self/cgroup") else text(path)
    )
    assert list(errors._cgroup()) == [MemoryLimit(2_500_000, "this process's control group (cgroup)")]


NEEDED = "num_nodes: preparing a matrix of"
ABSURD: dict[str, Callable[[], Any]] = {
    "num_nodes: a matrix of 536870912 rows and 2 edges": lambda: SparseGraph.from_edge_index(EDGES, NODES),
    f"{NEEDED} 536870912 rows": lambda: gnnsparse.prepare(EDGES, num_nodes=NODES),
    f"{NEEDED} 536870911 rows": lambda: gnnsparse.prepare(EDGES, num_nodes=(2, NODES - 1), values="mean"),
    f"{NEEDED} 33554432 rows":
        lambda: gnnsparse.prepare(EDGES, num_nodes=NODES // 16, reorder="degree", cache=False),
    "scale: generating 536870912 nodes and 268435456 edges":
        lambda: sample_graph(BlockModel(NODES, NODES, 0.5, 100, 0.3, 2.2, 57)),
    "scale: generating 2449029 nodes and 63060000 edges": lambda: load_dataset("products_like"),
    "max_length: 100000 sequences": lambda: load_sequences("listops", max_length=10**12),
}  # fmt: skip


@pytest.mark.usefixtures("two_gigabytes")
@pytest.mark.parametrize("problem", ABSURD)
def test_absurd_sizes_are_refused_at_once(problem: str) -> None:
    start = time.monotonic()
    with pytest.raises(MemoryError, match=f"^{problem}.* GB, and the limit .* leaves .* GB$"):
        ABSURD[problem]()
    assert time.monotonic() - start < 2


@pytest.mark.usefixtures("two_gigabytes")
def test_absurd_sizes_in_files_are_refused_at_once(tmp_path: Path) -> None:
    path = tmp_path / "m.mtx"
    path.write_text("%%MatrixMarket matrix coordinate pattern general\n2000000000 2000000000 1\n5 5\n")
    with pytest.raises(
        MemoryError, match=r"m\.mtx: rows: a matrix of 2000000000 rows and 1 elements needs 48\.0 GB"
    ):
        load_matrix(path)


@pytest.mark.slow
def test_what_fits_is_not_refused() -> None:
    """The estimates are least needs: with twice as much memory and a margin for libraries, work is done."""
    code = (
        "import torch, gnnsparse; from tests.runtime.test_memory import *;"
        "gnnsparse.prepare(EDGES, cache=False) @ torch.ones(2, 4); limited(2 * 56 * 2**22 + 10**8);"
        "gnnsparse.prepare(EDGES, num_nodes=2**22, values='gcn', cache=False)"
    )
    subprocess.run([warm.python(), "-c", code], check=True, cwd=warm.ROOT)


@pytest.mark.parametrize(
    "scale",
    [10**400, 10**5000, -(10**400), float("nan"), float("inf")],
    ids=["400", "5000", "-400", "nan", "inf"],
)
def test_scales_of_any_size_are_refused_by_name(scale: float) -> None:
    for call in (
        lambda: load_dataset("arxiv_like", scale=scale),
        lambda: load_dataset("cora", scale=scale),
        lambda: graph_like("arxiv_like", scale=scale),
        lambda: sample_graph(BlockModel(100, 100, 0.5, 10, 0.3, 2.2, 57), scale=scale),
    ):
        with pytest.raises(ValueError, match=r"^scale: got .*; accepted: a number above 0 and at most 1$"):
            call()


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda n: graph_like("arxiv_like", scale=0.1, seed=n), "seed"),
        (lambda n: SparseGraph.from_edge_index(EDGES, n), "num_nodes"),
        (lambda n: load_sequences("listops", train_size=n), "train_size"),
        (lambda n: sample_graph(BlockModel(n, 100, 0.5, 10, 0.3, 2.2, 57)), "nodes"),
    ],
)
def test_integers_of_any_size_are_refused_by_name(call: Callable[[int], Any], name: str) -> None:
    with pytest.raises(ValueError, match=rf"^(?:{name}): .*about 10\^5000"):
        call(10**5000)
