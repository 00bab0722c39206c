"""benchmarks.train_step compares models that compute the same: on a CPU and a small graph here."""

from __future__ import annotations

import pytest
import torch

from gnnsparse.data import graph_like
from gnnsparse.data.optional import import_optional
from gnnsparse.testing import assert_accurate

try:
    import_optional("torch_geometric", "this comparison")
except ImportError as missing:
    pytest.skip(str(missing), allow_module_level=True)

from benchmarks import train_step


@pytest.mark.parametrize("model", train_step.SIZES)
def test_losses_agree(model: str) -> None:
    graph = graph_like("arxiv_like", scale=0.01)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(graph.num_rows, train_step.FEATURES, generator=generator)
    y = torch.randint(0, train_step.CLASSES, (graph.num_rows,), generator=generator)
    train = torch.rand(graph.num_rows, generator=generator) < 0.66

    def losses(name: str, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        torch.manual_seed(0)
        built, adj, _, _ = train_step.make_model(model, name, graph)
        adj = adj.to(dtype) if isinstance(adj, torch.Tensor) and adj.is_floating_point() else adj
        step = train_step.make_step(built.to(dtype), adj, x.to(dtype), y, train, None)
        return torch.stack([step() for _ in range(4)])

    got, peer = losses("gnnsparse fp32"), train_step.PEERS[model][0]
    assert_accurate(got, losses(peer), losses(peer, torch.float64))
    assert got[-1] < got[0]
