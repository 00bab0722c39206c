"""benchmarks.train_step compares models that compute the same: on a CPU and a small graph here."""

from __future__ import annotations

import pytest
import torch

from gnnsparse.data import graph_like
from gnnsparse.data.optional import import_optional

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
    losses = []
    for name in (train_step.PEERS[model][0], "gnnsparse fp32"):
        torch.manual_seed(0)
        built, adj, dtype, _ = train_step.make_model(model, name, graph)
        step = train_step.make_step(built, adj, x.to(dtype), y, train, None)
        losses.append(torch.stack([step() for _ in range(4)]))
    assert torch.allclose(*losses, rtol=1e-4)
    assert float(losses[0][-1]) < float(losses[0][0])
