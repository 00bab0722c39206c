"""The CUDA source, run on the CPU, on samples in static buffers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from gnnsparse import SparseGraph, SparseOperand
from gnnsparse.nn.padded_norm import ignoring_padding
from gnnsparse.sampling import NeighborSampler
from gnnsparse.sampling.blocks import ROW_LIMIT
from gnnsparse.train.sampled import StaticBlocks, bounds_of
from models import MODELS
from tests import emulated

NODES, SEEDS = 900, 200
MODELS_ON_SAMPLES = ["graphsage", "gcn", "gin", "gat", "gatv2", "agnn", "graph_transformer"]


def graph(hub: bool) -> SparseGraph:
    edges = torch.randint(NODES, (2, 5000), generator=torch.Generator().manual_seed(1))
    if hub:  # a node that all draw
        edges = torch.cat([edges, torch.stack([torch.full((NODES,), 7), torch.arange(NODES)])], 1)
    return SparseGraph.from_edge_index(edges, NODES)


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize(
    ("name", "hub"), [*((name, False) for name in MODELS_ON_SAMPLES), ("graphsage", True), ("gat", True)]
)
def test_a_static_step_is_a_step_and_waits_for_nothing(
    name: str, hub: bool, precision: str, late: Any
) -> None:
    """Also with a column of more nonzeros than rows that are cut have: here it is kept whole."""
    torch.manual_seed(0)
    x = torch.randn(NODES, 20)
    model = MODELS[name].build(20, out_channels=3, hidden_channels=24, dropout=0.0, norm="batch")
    if name == "gin":  # a buffer on a CPU is read on the host
        model = MODELS[name].build(20, out_channels=3, hidden_channels=24, dropout=0.0, train_eps=True)

    def gradients(nodes: torch.Tensor, adjs: Sequence[SparseOperand], *paddings: Any) -> torch.Tensor:
        model.zero_grad()
        with ignoring_padding(model, *paddings):
            out = model(x[nodes.long()], list(adjs))[:SEEDS]
        out.logsumexp(1).sum().backward()
        return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])

    batches = torch.randperm(NODES, generator=torch.Generator().manual_seed(2))[: 3 * SEEDS].split(SEEDS)
    with emulated.running(late) as path:
        sampler = NeighborSampler(
            graph(hub), [300, 300] if hub else [8, 4], values=MODELS[name].values, precision=precision, seed=3
        )
        samples = [sampler.draw(seeds, step) for step, seeds in enumerate(batches)]
        static = StaticBlocks(sampler, bounds_of(samples, NODES, sampler.most_edges), samples[0][0])
        longest = max(int(block.transposed.degrees.max()) for block in samples[0])
        assert (longest > ROW_LIMIT) == hub
        launched = []
        for blocks in samples:
            assert static.takes(blocks)
            want = gradients(blocks[0].sources, sampler.operands(blocks))
            static.load(blocks)
            path.waits, before = 0, set(path.called)
            path.called.clear()
            with emulated.NotingWaits() as noted:
                static.assemble()
                found = gradients(static.nodes, static.adjs, *static.paddings)
            assert (path.waits, noted.found) == (0, [])
            launched.append(set(path.called))
            path.called |= before
            rounding = 1e-4 if precision == "fp32" else 1e-2
            torch.testing.assert_close(found, want, rtol=rounding, atol=rounding * float(want.abs().max()))
        assert launched[0] >= launched[1] == launched[2]
        assert launched[1]
