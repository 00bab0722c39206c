"""build_graph: the graph that is made in memory, whatever the chunks and the memory; what it refuses."""

from __future__ import annotations

import io
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gnnsparse.data import build_graph, graph_info, open_graph
from gnnsparse.data.large.build import Spiller
from tests.large import LEAST, assert_same, expected, random_edges


def cut(edges: np.ndarray, places: list[float]) -> list[np.ndarray]:
    """Chunks that end at some shares of the edges; equal ones make empty chunks."""
    return np.split(edges, sorted(int(place * edges.shape[1]) for place in places), axis=1)


def once(chunks: list[Any]) -> Iterator[Any]:
    yield from chunks


@given(
    nodes=st.sampled_from([0, 1, 2, 3, 40, 700, 100_000]),
    count=st.sampled_from([0, 1, 30, 3000, 20_000]),
    hub=st.sampled_from([0.0, 0.0, 0.7]),
    places=st.lists(st.floats(0, 1), max_size=6),
    symmetric=st.booleans(),
    repeatable=st.booleans(),
    small=st.booleans(),
    as_tensor=st.booleans(),
    seed=st.integers(0, 2**20),
)
def test_the_graph_is_that_of_the_edges_in_memory(
    nodes: int, count: int, hub: float, places: list[float], symmetric: bool, repeatable: bool, small: bool,
    as_tensor: bool, seed: int,
) -> None:  # fmt: skip
    edges = random_edges(nodes, count, seed, hub)
    chunks: list[Any] = [chunk.astype(np.int32) if small else chunk for chunk in cut(edges, places)]
    chunks = [torch.from_numpy(np.array(chunk)) for chunk in chunks] if as_tensor else chunks
    with tempfile.TemporaryDirectory() as folder:
        made = build_graph(
            chunks if repeatable else once(chunks), Path(folder, "g"), nodes, symmetric=symmetric,
            memory=LEAST,
        )  # fmt: skip
        assert [path.name for path in Path(folder).iterdir()] == ["g"]
        graph, wanted = open_graph(made.folder), expected(edges, nodes, symmetric=symmetric)
        assert_same(graph, wanted)
        assert (made.num_nodes, made.nnz, made.num_edges) == (nodes, wanted.nnz, edges.shape[1])
        assert graph_info(made.folder) == made


@pytest.fixture
def splits(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many keys the buckets had that were split."""
    found: list[int] = []
    split = Spiller._split
    monkeypatch.setattr(Spiller, "_split", lambda self, b: (found.append(b.count), split(self, b))[1])
    return found


@pytest.mark.parametrize("repeatable", [True, False])
@pytest.mark.parametrize("symmetric", [True, False])
def test_a_row_of_more_edges_than_fit_is_cut(
    repeatable: bool, symmetric: bool, tmp_path: Path, splits: list[int]
) -> None:
    edges = random_edges(50_000, 60_000, hub=0.9)
    cuts = cut(edges, [0.3, 0.6])
    chunks = cuts if repeatable else once(cuts)
    build_graph(chunks, tmp_path / "g", 50_000, symmetric=symmetric, memory=LEAST)
    assert_same(open_graph(tmp_path / "g"), expected(edges, 50_000, symmetric=symmetric))
    assert max(splits) > 50_000


def test_edges_that_are_counted_fit_at_once(tmp_path: Path, splits: list[int]) -> None:
    """Degrees fall with the number of the node: ranges of equal rows would not be of equal edges."""
    edges = (random_edges(10_000, 80_000) ** 3) // 10_000**2
    build_graph(edges, tmp_path / "counted", 10_000, memory=LEAST)
    assert splits == []
    build_graph(once([edges]), tmp_path / "once", 10_000, memory=LEAST)
    assert splits
    for name in ("counted", "once"):
        assert_same(open_graph(tmp_path / name), expected(edges, 10_000))


def test_one_edge_many_times(tmp_path: Path) -> None:
    """No range can divide them; with 2^31 - 1 nodes keys need 62 bits, and the whole graph 16 GB."""
    edges = np.full((2, 30_000), 2)
    assert build_graph(edges, tmp_path / "g", 3, memory=LEAST).nnz == 1
    assert_same(open_graph(tmp_path / "g"), expected(edges, 3))
    nodes = 2**31 - 1
    counted, key = Spiller(tmp_path, LEAST), np.array([nodes**2 - 1])
    parts = [np.repeat(key, 200) for _ in range(150)]
    buckets = counted.distribute(lambda: parts, 0, nodes**2, count_first=False, step=nodes)
    assert [(keys.tolist(), count) for keys, count in counted.sorted(buckets)] == [(key.tolist(), 30_000)]


def test_every_form_of_edges(tmp_path: Path) -> None:
    edges = random_edges(300, 4000)
    np.save(tmp_path / "e.npy", edges)
    np.save(tmp_path / "small.npy", edges.astype(np.int32))
    np.save(tmp_path / "fortran.npy", np.asfortranarray(edges))
    forms: dict[str, Any] = {
        "path": tmp_path / "e.npy",
        "text": str(tmp_path / "small.npy"),
        "fortran": tmp_path / "fortran.npy",
        "mapped": np.load(tmp_path / "e.npy", mmap_mode="r"),
        "tensor": torch.from_numpy(edges),
        "columns": torch.from_numpy(np.ascontiguousarray(edges.T)).T,
        "gradient-free": torch.from_numpy(edges).to(torch.int32),
        "tuple": (edges[:, :5], torch.from_numpy(edges[:, 5:])),
        "map": map(np.asarray, [edges]),
    }
    for name, given_edges in forms.items():
        build_graph(given_edges, tmp_path / name, 300, memory=LEAST)
        assert_same(open_graph(tmp_path / name), expected(edges, 300))
    for none in ([], iter([])):
        made = build_graph(none, tmp_path / "none", 3_000_000, symmetric=True, overwrite=True)
        assert_same(open_graph(made.folder), expected(edges[:, :0], 3_000_000))


KINDS = "int32 or int64"
#: Wrong in a part that is not the first one.
LATE = np.where(np.arange(5000) == 4321, [[7], [0]], 0)
WRONG_EDGES: list[tuple[Any, type[Exception], str]] = [
    (None, TypeError, rf"^edges: got NoneType; accepted: .*{KINDS}: a tensor, an array, the path"),
    (b"edges.npy", TypeError, "^edges: got bytes; accepted"),
    ([[0, 1], [1, 2]], TypeError, rf"^edges\[0\]: got list; accepted: .*{KINDS}"),
    (np.zeros((2, 3)), TypeError, rf"^edges: got dtype float64; accepted: .*{KINDS}"),
    (np.zeros((2, 3), ">i8"), TypeError, "^edges: got dtype >i8; accepted"),
    (torch.zeros(2, 3), TypeError, "^edges: got a tensor of dtype torch.float32; accepted"),
    (torch.zeros(2, 3, dtype=torch.int64).to_sparse(), TypeError, "^edges: got a tensor .*layout"),
    (np.zeros((3, 2), np.int64), ValueError, rf"^edges: has shape \(3, 2\); accepted: .*{KINDS}"),
    (LATE, ValueError, r"^edges: element \[0, 4321\] is 7; accepted: 0 to 6"),
    (torch.tensor([[0], [7]]), ValueError, r"^edges: element \[1, 0\] is 7; accepted: 0 to 6, as num_n"),
    (np.array([[0, -1], [1, 1]]), ValueError, r"^edges: element \[0, 1\] is -1; accepted: 0 to 6"),
    ([np.zeros((2, 3), np.int64), np.zeros((2, 3))], TypeError, r"^edges\[1\]: got dtype float64"),
    (iter([np.zeros((2, 0), np.int64), torch.full((2, 3), 9)]), ValueError, r"^edges\[1\]: element"),
]


@pytest.mark.parametrize(
    ("name", "value", "error", "message"),
    [
        *(("edges", *case) for case in WRONG_EDGES),
        ("num_nodes", 0, ValueError, r"^edges: element \[0, 0\] is 0; accepted: nothing"),
        ("num_nodes", -1, ValueError, "^num_nodes: got -1; accepted: 0 to 2"),
        ("num_nodes", 2**31, ValueError, "^num_nodes: got 2147483648; accepted: 0 to 2"),
        ("num_nodes", 1.5, TypeError, "^num_nodes: got float; accepted"),
        ("symmetric", 1, TypeError, "^symmetric: got int; accepted: True or False"),
        ("overwrite", "yes", TypeError, "^overwrite: got str; accepted: True or False"),
        ("memory", 65_535, ValueError, "^memory: got 65535; accepted: a number of bytes, at least 65536"),
        ("memory", 1e9, TypeError, "^memory: got float; accepted"),
        ("about", None, TypeError, "^about: got NoneType; accepted: a text"),
        ("folder", "", ValueError, "^folder: got ''; accepted: the path of a folder"),
        ("folder", "a\0b", ValueError, "^folder: got .*; accepted: the path of a folder"),
    ],
)
def test_wrong_arguments_are_named(
    name: str, value: Any, error: type[Exception], message: str, tmp_path: Path
) -> None:
    edges, folder = np.zeros((2, 3), np.int64), tmp_path / "g"
    arguments = {"edges": edges, "folder": folder, "num_nodes": 7, "memory": LEAST, name: value}
    with pytest.raises(error, match=message):
        build_graph(**arguments)
    assert list(tmp_path.iterdir()) == []


def file_of(edges: np.ndarray, save: Callable[..., None] = np.save) -> bytes:
    save(stream := io.BytesIO(), edges)
    return stream.getvalue()


SMALL = random_edges(9, 50)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "e.npy.*no whole array of the npy format"),
        (file_of(SMALL)[:-8], r"e.npy.*mmap length is greater"),
        (file_of(SMALL * 1.0), "e.npy.*is of type float64; accepted: int32 or int64"),
        (file_of(SMALL.astype(object)), "e.npy.*Python objects in dtype"),
        (file_of(SMALL.reshape(-1)), r"e.npy.*has shape \(100,\); accepted: \(any, any\)"),
        (file_of(SMALL.T), r"^edges: has shape \(50, 2\); accepted"),
        (file_of(SMALL, np.savez), "e.npy.*no whole array of the npy format"),
    ],
    ids=range(7),
)
def test_wrong_files_are_named(content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "e.npy").write_bytes(content)
    with pytest.raises(ValueError, match=message):
        build_graph(tmp_path / "e.npy", tmp_path / "g", 9)
    with pytest.raises(FileNotFoundError, match=r"nothing\.npy"):
        build_graph(tmp_path / "nothing.npy", tmp_path / "g", 9)
    assert [path.name for path in tmp_path.iterdir()] == ["e.npy"]


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("repeatable", [True, False])
def test_the_disk_is_what_the_documentation_says(symmetric: bool, repeatable: bool, tmp_path: Path) -> None:
    nodes, edges, memory = 5000, random_edges(5000, 60_000), 1 << 18
    taken = []

    def look(*_: Any) -> None:
        files = [path for path in (tmp_path / "g.part").rglob("*") if path.is_file()]
        taken.append(sum(path.stat().st_size for path in files))

    given_edges = [edges] if repeatable else once([edges])
    options: dict[str, Any] = {"symmetric": symmetric, "memory": memory, "progress": look}
    made = build_graph(given_edges, tmp_path / "g", nodes, **options)
    most = 8 * (1 + symmetric) * 60_000 + 8 * nodes + memory / 2
    assert 0.9 * most < max(taken) + memory / 2 < most + memory / 2
    assert made.nbytes < 4 * made.nnz + 8 * nodes + 1000
    assert taken[-1] < made.nbytes + memory / 2, "what was sorted is removed"


def test_progress_counts_every_edge(tmp_path: Path) -> None:
    edges, told = random_edges(100, 3000), []
    build_graph(edges, tmp_path / "g", 100, memory=LEAST, progress=lambda *done: told.append(done))
    assert [what for what, done, total in told if done == total] == ["count", "distribute", "sort"]
    assert {total for what, _, total in told} == {3000}
    told.clear()
    options: dict[str, Any] = {"memory": LEAST, "progress": lambda *done: told.append(done)}
    build_graph(once([edges]), tmp_path / "h", 100, symmetric=True, **options)
    assert [done for done in told if done[0] == "distribute"][-1] == ("distribute", 3000, None)
    assert told[-1] == ("sort", 6000, 6000)
