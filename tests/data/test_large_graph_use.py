"""Graphs larger than memory in use: generated, sampled, with features in a file; what memory they take."""

from __future__ import annotations

import subprocess
import sys
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import gnnsparse
from gnnsparse import SparseGraph
from gnnsparse.data import (
    GENERATED_GRAPHS,
    build_graph,
    edges_like,
    generate_graph,
    graph_info,
    graph_like,
    open_graph,
)
from gnnsparse.data.generators import BLOCK_MODELS, Sampler
from gnnsparse.errors import MemoryLimit
from gnnsparse.sampling import NeighborSampler
from gnnsparse.testing import assert_accurate
from tests.large import LEAST, assert_same, random_edges

ROOT = Path(__file__).resolve().parents[2]
PAPERS = "papers100m_like"
#: Scales at which graphs are small.
SCALE = {
    "reddit_like": 0.01,
    "products_like": 0.002,
    "dd_like": 0.02,
    "amazon_like": 0.02,
    "arxiv_like": 0.1,
}


def test_the_sizes_are_those_of_the_published_graph() -> None:
    whole = edges_like(PAPERS)
    assert (whole.num_nodes, whole.num_edges) == (111_059_956, 1_615_685_872)
    with pytest.raises(ValueError, match=r"^name: got 'papers_like'; accepted: .*papers100m_like"):
        edges_like("papers_like")
    assert PAPERS not in GENERATED_GRAPHS, "benchmarks without a --matrix would need 100 GB"
    tenth = edges_like(PAPERS, 0.1)
    assert tenth.num_edges / tenth.num_nodes == pytest.approx(whole.num_edges / whole.num_nodes, rel=1e-5)


@pytest.mark.parametrize("name", [*SCALE, PAPERS])
def test_a_generated_graph_is_like_the_one_in_memory(name: str, tmp_path: Path) -> None:
    scale = SCALE.get(name, 0.0004)
    stream, told = edges_like(name, scale, seed=3), []
    options: dict[str, Any] = {"memory": 2**20, "progress": lambda *done: told.append(done)}
    made = generate_graph(name, tmp_path / "g", scale, seed=3, **options)
    assert {total for what, _, total in told if what == "distribute"} == {stream.num_edges}
    graph, in_memory = open_graph(made.folder), graph_like(name, scale, seed=3)
    both = torch.cat([edge for chunk in stream for edge in (chunk, chunk.flip(0))], dim=1)
    assert_same(graph, SparseGraph(SparseGraph.from_edge_index(both, stream.num_nodes).csr))
    assert made.about == f"{name}, scale {scale:g}, seed 3"
    assert graph.num_rows == in_memory.num_rows
    assert graph.nnz == pytest.approx(in_memory.nnz, rel=0.02)
    assert made.nnz == graph.nnz <= 2 * made.num_edges
    assert graph.csr.count_near(0) == 0
    ours, theirs = (one.csr.degrees.double().sort().values for one in (graph, in_memory))
    assert float((ours - theirs).abs().mean()) < 0.05 * float(theirs.mean())
    columns = [int(one.csr.count_columns(16).sum()) for one in (graph, in_memory)]
    assert columns[0] == pytest.approx(columns[1], rel=0.03)
    if (reach := BLOCK_MODELS[name].reach) is not None:
        distance = (graph.csr.row_index() - graph.csr.indices).abs()
        assert int(distance.max()) <= reach
        assert 0.3 < float((distance < 20).double().mean()) < 0.7, "communities have 16 nodes"


def test_edges_depend_on_the_seed_and_the_scale_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gnnsparse.data.large.build._GENERATED_PART", 5000)
    torch.manual_seed(1)
    stream = edges_like(PAPERS, 0.0004, seed=2)
    first, again = list(stream), list(stream)
    assert len(first) > 50
    assert {chunk.dtype for chunk in first} == {torch.int32}
    assert all(bool((chunk[0] < chunk[1]).all()) for chunk in first)
    torch.manual_seed(7)
    for other in (again, list(edges_like(PAPERS, 0.0004, seed=2))):
        assert len(other) == len(first)
        assert all(map(torch.equal, first, other))
    assert sum(chunk.shape[1] for chunk in first) == pytest.approx(stream.num_edges, rel=0.02)
    changed = [list(edges_like(PAPERS, scale, seed=seed)) for scale, seed in ((0.0004, 3), (0.0005, 2))]
    assert not any(torch.equal(first[0], chunks[0]) for chunks in changed)


def test_a_part_is_drawn_without_the_parts_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be made alone: its random numbers are its own."""
    monkeypatch.setattr("gnnsparse.data.large.build._GENERATED_PART", 5000)
    stream = edges_like("arxiv_like", 0.1)
    whole, seeds = list(stream), []
    fill = Sampler.fill

    def one_of_three(self: Sampler, *arguments: Any, **options: Any) -> torch.Tensor:
        seeds.append(self.generator.initial_seed())
        drawn = len(seeds) % 3 == 2
        return fill(self, *arguments, **options) if drawn else torch.empty(0, dtype=torch.int64)

    monkeypatch.setattr(Sampler, "fill", one_of_three)
    parts = list(stream)
    assert len(parts) == len(set(seeds)) > 15
    for number, (part, wanted) in enumerate(zip(parts, whole, strict=True)):
        assert torch.equal(part, wanted if number % 3 == 1 else wanted[:, :0])


def test_nodes_that_do_not_fit_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gnnsparse.errors.available_memory", lambda: MemoryLimit(10**9, "this test"))
    monkeypatch.setattr("gnnsparse.data.large.build.check_space", lambda *_: None)
    with pytest.raises(MemoryError, match=r"^scale: generating edges of 111059956 nodes needs 2.7 GB"):
        generate_graph(PAPERS, tmp_path / "g")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("values", [None, "mean", "gcn"])
def test_a_mapped_graph_is_sampled_and_multiplied_as_any_other(values: str | None, tmp_path: Path) -> None:
    stored = open_graph(generate_graph(PAPERS, tmp_path / "g", 0.0002).folder)
    copied = SparseGraph.from_csr(stored.csr.indptr, stored.csr.indices)
    seeds, x = torch.arange(0, stored.num_rows, 100), torch.randn(stored.num_rows, 8)
    both = (NeighborSampler(graph, [5, 5], values=values, seed=4) for graph in (stored, copied))
    samples = [sampler.sample(seeds) for sampler in both]
    for ours, theirs in zip(*(sample.blocks for sample in samples), strict=True):
        assert torch.equal(ours.sources, theirs.sources)
        assert torch.equal(ours.adj @ x[ours.sources], theirs.adj @ x[theirs.sources])
    whole = gnnsparse.prepare(stored, values=values)
    assert gnnsparse.prepare(copied, values=values).cache_hit, "equal graphs have one entry in the cache"
    reference = gnnsparse.prepare(copied, values=values, cache=False) @ x
    assert_accurate(whole @ x, reference, reference.double())


WITHIN_A_BUDGET = """
import re, resource, sys
from pathlib import Path

import numpy as np
import pytest
import torch

from gnnsparse import SparseGraph
from gnnsparse.data import build_graph, open_graph
from gnnsparse.sampling import NeighborSampler

torch.set_num_threads(1)
folder, nodes = Path(sys.argv[1]), 500_000


def within(megabytes, work):
    data = int(re.search(r"VmData:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1])
    resource.setrlimit(resource.RLIMIT_DATA, (1024 * (data + 1024 * megabytes), resource.RLIM_INFINITY))
    return work()


within(40, lambda: build_graph(folder / "edges.npy", folder / "g", nodes, memory=32 * 2**20))
graph = within(10, lambda: open_graph(folder / "g"))
seeds = torch.arange(0, nodes, 1000)
for values in (None, "mean", "gcn"):
    within(40, lambda: NeighborSampler(graph, [5, 5], values=values).sample(seeds))
edges = np.load(folder / "edges.npy", mmap_mode="r")
with pytest.raises(MemoryError, match="edges needs 0.3 GB"):
    within(200, lambda: SparseGraph.from_edge_index(edges, nodes))
resource.setrlimit(resource.RLIMIT_DATA, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
assert torch.equal(SparseGraph.from_edge_index(edges, nodes).csr.indices, graph.csr.indices)
"""


@pytest.mark.slow
def test_memory_is_bounded_by_the_budget(tmp_path: Path) -> None:
    """10 million edges, 80 MB in a file: in memory they take more than six times the budget of 32 MB."""
    edges = np.random.default_rng(0).integers(0, 500_000, (2, 10_000_000), np.int32)
    # The sampler of GCN's weights copies a graph with self-loops; generated ones have none.
    edges[1] = (edges[1] + (edges[0] == edges[1])) % 500_000
    np.save(tmp_path / "edges.npy", edges)
    subprocess.run([sys.executable, "-c", WITHIN_A_BUDGET, str(tmp_path)], check=True, cwd=ROOT)
    assert graph_info(tmp_path / "g").num_edges == 10_000_000


def test_a_chunk_is_let_go_before_the_next_one_is_made(tmp_path: Path) -> None:
    made: list[weakref.ref[np.ndarray]] = []

    def chunks() -> Iterator[np.ndarray]:
        for seed in range(20):
            assert not any(chunk() is not None for chunk in made)
            chunk = random_edges(50, 1000, seed)
            made.append(weakref.ref(chunk))
            yield chunk
            del chunk

    build_graph(chunks(), tmp_path / "g", 50, memory=LEAST)
    assert graph_info(tmp_path / "g").num_edges == 20_000
