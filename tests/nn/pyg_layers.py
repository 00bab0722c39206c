"""Comparison of a layer with PyG's: random graphs with all that matters, equal parameters, equal results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import gnnsparse.nn
from gnnsparse.data.optional import import_optional
from gnnsparse.testing import assert_all_accurate, in_float64, with_gradients
from tests.helpers import ROUNDING

try:
    pyg: Any = import_optional("torch_geometric.nn", "this comparison")
except ImportError as missing:
    pytest.skip(str(missing), allow_module_level=True)

#: A layer rounds in each of its products and sums, about 16 times from its input to a gradient. Over the few
#: elements of a small layer these may cancel in PyG's run and not in ours.
FLOOR = 16 * ROUNDING["fp32"]
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
    """Our layer and PyG's of one name, which draw the same parameters from one seed; all are then random."""
    seed = int(torch.randint(1 << 30, ()))
    layers = []
    for kinds in (gnnsparse.nn, pyg):
        torch.manual_seed(seed)
        layers.append(getattr(kinds, name)(*sizes, **options))
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


def named(layer: Any) -> dict[str, torch.Tensor]:
    """The parameters of a layer, each once."""
    return dict(layer.named_parameters())


def assert_as_pyg(
    ours: Any,
    theirs: Any,
    call: Callable[..., torch.Tensor],
    inputs: list[torch.Tensor],
    *,
    parameters: Callable[[Any], dict[str, torch.Tensor]] = named,
    sums_cancel: bool = True,
) -> None:
    """Output and gradients are those of PyG's layer, which float64 judges beside ours.

    Where `sums_cancel` the gradients of the parameters are judged as one vector: some are sums over all edges
    of terms that cancel, the gradient of TransformerConv's lin_key.bias to 0. Else they may be as wrong as
    PyG's.
    """

    def run(layer: Any, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        found = with_gradients(lambda *x: call(layer, *x), inputs, parameters(layer).values())
        if not sums_cancel:
            return found
        count = 1 + len(inputs)
        of_parameters = [grad.flatten() for grad in found[count:]]
        return [*found[:count], torch.cat(of_parameters)] if of_parameters else found

    got, plain = run(ours, inputs), run(theirs, inputs)
    with in_float64(theirs):
        exact = run(theirs, [x.double() for x in inputs])
    assert [x.dtype for x in got] == [x.dtype for x in plain]
    assert_all_accurate(got, plain, exact, floor=FLOOR if sums_cancel else None)


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
