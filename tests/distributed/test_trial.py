"""What a trial of a model leaves as it was."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from gnnsparse import spmm
from gnnsparse.distributed.trial import tried
from gnnsparse.nn import GCNConv


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = GCNConv(4, 8), torch.nn.BatchNorm1d(8, momentum=0.3)
        self.by_name = torch.nn.BatchNorm1d(8)
        self.register_buffer("average", torch.ones(8))
        self.register_buffer("seen", torch.zeros(2))

    def forward(self, x: torch.Tensor, adj: Any) -> torch.Tensor:
        x = self.norm(self.conv(x, adj))
        torch.nn.functional.batch_norm(
            x, running_mean=self.by_name.running_mean, running_var=self.by_name.running_var, training=True
        )
        self.average.mul_(0.9).add_(x.mean(0), alpha=0.1)
        self.seen[0] = 1
        self.seen += 1
        torch.add(self.seen, 1, out=self.seen)
        return x


def test_what_a_trial_changes_in_place_is_restored() -> None:
    """Statistics, averages and counts, of a model in train mode; its widths are found as before."""
    torch.manual_seed(0)
    model = Model().train()
    for step in range(2):
        before = {name: t.clone() for name, t in model.state_dict().items()}
        found = tried(lambda adj: model(torch.randn(8, 4), adj), 2, False, values="gcn")
        assert (found.widths, found.obstacle) == ([4], None)
        after = model.state_dict()
        assert all(torch.equal(after[name], t) for name, t in before.items()), step
        model(torch.randn(8, 4), torch.randint(0, 8, (2, 20)))  # which counts
        assert int(model.norm.num_batches_tracked) == step + 1


def test_a_trial_that_fails_is_restored() -> None:
    norm = torch.nn.BatchNorm1d(3)

    def trial(adj: Any) -> None:
        norm(torch.randn(adj.shape[0], 3))
        raise ValueError("for another graph")

    found = tried(trial, 2, False, precision="fp32")
    assert found.obstacle == "a trial on 8 nodes failed: ValueError: for another graph"
    assert torch.equal(norm.running_mean, torch.zeros(3))
    assert int(norm.num_batches_tracked) == 0


@pytest.mark.parametrize("change", ["squeeze_", "t_", "resize_", "requires_grad_", "inference_mode"])
def test_a_trial_may_change_more_than_numbers(change: str) -> None:
    def trial(adj: Any) -> None:
        nodes = adj.shape[1]
        with torch.inference_mode(change == "inference_mode"):
            x = torch.zeros(nodes, 4)
            match change:
                case "squeeze_":
                    x = torch.zeros(nodes, 4, 1).squeeze_(-1)
                case "t_":
                    x = torch.zeros(4, nodes).t_()
                case "resize_":
                    x = torch.zeros(0).resize_(nodes, 4).zero_()
                case "requires_grad_":
                    x = torch.zeros(1, 4).expand(nodes, 4).requires_grad_()
                case _:
                    x.add_(1)
            spmm(adj, x)

    found = tried(trial, 2, False)
    assert (found.widths, found.obstacle) == ([4], None)
