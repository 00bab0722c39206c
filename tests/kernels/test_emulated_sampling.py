"""The CUDA source of sampling, run on the CPU: it draws and numbers what the CPU's code does, bit for bit."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gnnsparse import SparseGraph
from gnnsparse.sampling import NeighborSampler, Sample
from gnnsparse.sampling.draws import Numbering
from tests import emulated
from tests.gpu_paths import RunningPath
from tests.samplers import WAYS, sampler


def graph(nodes: int = 300, edges: int = 4000, seed: int = 0) -> SparseGraph:
    """A graph with hubs of more neighbours than a warp has lanes, and nodes without any."""
    draw = torch.Generator().manual_seed(seed)
    found = torch.randint(nodes - 20, (2, edges), generator=draw)
    found[1, : edges // 4] %= 3
    return SparseGraph.from_edge_index(found, nodes)


def make(way: str, of: SparseGraph, fanouts: list[int], **options: Any) -> NeighborSampler:
    return sampler(of, fanouts, way=way, seed=11, keep_edge_ids=True, **options)


def assert_same(mine: Sample, theirs: Sample) -> None:
    for one, two in zip(mine.blocks, theirs.blocks, strict=True):
        assert torch.equal(one.sources, two.sources)
        for a, b in (
            (one.adj.prepared.forward, two.adj.prepared.forward),
            (one.adj.prepared.backward, two.adj.prepared.backward),
        ):
            assert torch.equal(a.csr.indptr, b.csr.indptr)
            assert torch.equal(a.csr.indices, b.csr.indices)
            values, others = a.own_values(), b.own_values()
            assert (values is None and others is None) or torch.equal(values, others)  # type: ignore[arg-type]
        assert torch.equal(one.edge_ids, two.edge_ids)  # type: ignore[arg-type]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("values", [None, "mean", "gcn"])
def test_a_gpu_draws_what_the_cpu_draws(way: str, values: str | None, late: Any) -> None:
    if values == "gcn" and way.startswith("weighted"):
        pytest.skip("is refused")
    of, seeds = graph(), torch.tensor([0, 299, 17, 2, 100, 1, 64])
    on_cpu = make(way, of, [5, 40, -1], values=values).sample(seeds, step=9)
    with emulated.running(late) as path:
        assert_same(make(way, of, [5, 40, -1], values=values).sample(seeds, step=9), on_cpu)
        assert {"cuda_draw_neighbors", "cuda_gather_neighbors", "cuda_number_nodes"} <= path.called


@settings(max_examples=15)
@given(st.data())
def test_numbers_are_given_in_the_order_of_first_appearance(late: Any, data: st.DataObject) -> None:
    targets = data.draw(st.lists(st.integers(0, 40), unique=True, max_size=20))
    nodes = data.draw(st.lists(st.integers(0, 40), max_size=300))
    as_tensor = [torch.tensor(x, dtype=torch.int32) for x in (targets, nodes)]
    want: dict[int, int] = {}
    for node in targets + nodes:
        want.setdefault(node, len(want))
    with emulated.running(late):
        numbering = Numbering(41, torch.device("cpu"))
        for _ in range(2):  # the places are free again
            sources, numbers = numbering.number(*as_tensor)
            assert sources.tolist() == list(want)
            assert numbers.tolist() == [want[node] for node in nodes]


def test_a_repeated_seed_is_refused(copyless: RunningPath) -> None:
    made = make("uniform", graph(), [3])
    with pytest.raises(ValueError, match=r"seeds: element 2 is 7 once more"):
        made.sample([7, 3, 7])
    assert made.sample([7, 3]).seeds.tolist() == [7, 3]


def test_no_seeds_and_no_edges(copyless: RunningPath) -> None:
    made = make("uniform", graph(), [3, 2], values="mean")
    assert [b.adj.shape for b in made.sample(torch.empty(0, dtype=torch.int32)).blocks] == [(0, 0), (0, 0)]
    assert made.sample([299]).nodes.tolist() == [299]


def test_negatives_are_those_of_the_cpu(late: Any) -> None:
    of, pairs = graph(), torch.tensor([[0, 1], [5, 7]])
    on_cpu = make("uniform", of, [3]).sample_links(pairs, 200, step=4)
    with emulated.running(late):
        on_gpu = make("uniform", of, [3]).sample_links(pairs, 200, step=4)
        assert torch.equal(on_gpu.seeds, on_cpu.seeds)
        assert torch.equal(on_gpu.negative, on_cpu.negative)
        assert_same(on_gpu, on_cpu)
        full = SparseGraph.from_edge_index((torch.ones(5, 5) - torch.eye(5)).nonzero().T.contiguous(), 5)
        with pytest.raises(ValueError, match="graph: joins nearly all pairs"):
            make("uniform", full, [2]).sample_links([[0, 1]])
