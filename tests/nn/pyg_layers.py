"""Comparison of a layer with PyG's: random graphs with all that matters, equal parameters, equal results."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import gnnsparse.nn
from gnnsparse.data.optional import import_optional

try:
    pyg: Any = import_optional("torch_geometric.nn", "this comparison")
except ImportError as missing:
    pytest.skip(str(missing), allow_module_level=True)

#: Sources and targets of the graphs. Some of either have no edges.
SQUARE, WIDE, TALL = (40, 40), (40, 25), (25, 40)


def edges(size: tuple[int, int] = SQUARE, seed: int = 0, repeats: bool = True) -> torch.Tensor:
    """Random edges between (sources, targets) with self-loops; the last nodes of both sides have none."""
    generator = torch.Generator().manual_seed(seed)
    pairs = [torch.randint(0, count - 5, (200,), generator=generator) for count in size]
    loops = torch.randperm(min(size) - 5, generator=generator)[:7].expand(2, -1)
    index = torch.cat([torch.stack(pairs), loops], dim=1).unique(dim=1)
    if repeats:
        index = torch.cat([index, index[:, ::5], loops[:, :3]], dim=1)
    return index[:, torch.randperm(index.shape[1], generator=generator)]


def pair(name: str, *sizes: Any, **options: Any) -> tuple[Any, Any]:
    """Our layer and PyG's of one name, which draw the same parameters from one seed; all are then random.

    A function among the arguments makes one.
    """
    seed = int(torch.randint(1 << 30, ()))
    layers = []
    for kinds in (gnnsparse.nn, pyg):
        torch.manual_seed(seed)
        given = (size() if callable(size) else size for size in sizes)
        layers.append(getattr(kinds, name)(*given, **options))
    ours, theirs = layers
    state = theirs.state_dict()
    assert list(ours.state_dict()) == list(state)
    assert all(torch.equal(ours.state_dict()[key], state[key]) for key in state)
    assert repr(ours) == repr(theirs)
    for parameter in theirs.parameters():
        if parameter.dim() == 1:
            torch.nn.init.normal_(parameter)  # those that are 0 or 1 at first
    ours.load_state_dict(theirs.state_dict())
    theirs.load_state_dict(ours.state_dict())
    return ours, theirs


def alike(ours: Any, theirs: Any) -> tuple[Any, Any]:
    """Two layers with parameters of the same names and shapes, which are then random and equal."""
    state = ours.state_dict()
    assert {k: v.shape for k, v in state.items()} == {k: v.shape for k, v in theirs.state_dict().items()}
    assert list(state) == list(theirs.state_dict())
    assert repr(ours) == repr(theirs)
    with torch.no_grad():
        for parameter in ours.parameters():
            parameter.normal_()
    theirs.load_state_dict(ours.state_dict())
    return ours, theirs


def loss_curve(model: Any, x: torch.Tensor, adj: Any, y: torch.Tensor, steps: int) -> torch.Tensor:
    """The losses of so many steps of Adam."""
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    curve = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x, adj), y)
        loss.backward()
        optimizer.step()
        curve.append(loss.detach())
    return torch.stack(curve)
