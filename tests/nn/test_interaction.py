"""InteractionBlock against networks of concatenated features."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import gnnsparse
from gnnsparse.nn import InteractionBlock
from gnnsparse.testing import assert_all_accurate, in_float64, with_gradients


def plain(layer: Any, x: Any, edge_index: torch.Tensor, edges: torch.Tensor) -> tuple[Any, Any]:
    sources, targets = x if isinstance(x, tuple) else (x, x)
    source, target = edge_index
    new = edges + layer.edge_mlp(torch.cat([edges, targets[target], sources[source]], dim=1))
    total = new.new_zeros(targets.shape[0], new.shape[1]).index_add(0, target, new)
    return targets + layer.node_mlp(torch.cat([targets, total], dim=1)), new


OPTIONS: list[dict[str, Any]] = [
    {},
    {"act": "relu", "num_layers": 3, "hidden_channels": 20, "norm": False},
    {"act": "gelu", "recompute": False},
]


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("bipartite", [False, True])
@pytest.mark.parametrize("prepared", [False, True])
def test_networks(device: str, options: dict[str, Any], bipartite: bool, prepared: bool) -> None:
    torch.manual_seed(1)
    sources, targets, edges = (9, 14, 60) if bipartite else (14, 14, 60)
    edge_index = torch.stack([torch.randint(0, sources, (edges,)), torch.randint(0, targets - 2, (edges,))])
    edge_index[:, 5] = edge_index[:, 6]
    edge_index = edge_index.to(device)
    width = (8, 6) if bipartite else 6
    layer = InteractionBlock(width, 10, **options).to(device)
    adj = gnnsparse.prepare(edge_index, num_nodes=(sources, targets), cache=False) if prepared else edge_index
    inputs = [torch.randn(targets, 6), torch.randn(edges, 10)]
    inputs += [torch.randn(sources, 8)] if bipartite else []
    inputs = [x.to(device) for x in inputs]

    def of(run: Any) -> Any:
        def both(x: torch.Tensor, e: torch.Tensor, *other: torch.Tensor) -> torch.Tensor:
            return torch.cat([y.flatten() for y in run((*other, x) if other else x, e)])

        return both

    ours = with_gradients(of(lambda x, e: layer(x, adj, e)), inputs, layer.parameters())
    theirs = with_gradients(of(lambda x, e: plain(layer, x, edge_index, e)), inputs, layer.parameters())
    with in_float64(layer) as wide:
        exact = lambda: with_gradients(  # noqa: E731
            of(lambda x, e: plain(wide, x, edge_index, e)), [x.double() for x in inputs], wide.parameters()
        )
        assert_all_accurate(ours, theirs, exact)


def test_recomputing_stores_less() -> None:
    """Between the layers nothing of the size of the edges is stored for the backward pass."""
    saved: dict[bool, int] = {}
    x, e, edges = (
        torch.randn(20, 16),
        torch.randn(500, 16, requires_grad=True),
        torch.randint(0, 20, (2, 500)),
    )
    for recompute in (True, False):
        layer, seen = InteractionBlock(16, 16, 64, recompute=recompute), []

        def keep(t: torch.Tensor, seen: list[int] = seen) -> torch.Tensor:
            seen.append(t.numel() if t.shape[:1] == (500,) else 0)
            return t

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
            layer(x, edges, e)
        saved[recompute] = sum(seen)
    assert saved[True] <= 3 * e.numel() < saved[False] / 2


class Scaled(torch.nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 3 * super().forward(x)


def _hooked(layer: Any) -> None:
    for module in layer.edge_mlp:
        module.register_forward_pre_hook(lambda _, x: (x[0] * 1.5,))
        module.register_forward_hook(lambda _module, _, y: y + 0.25)


def _normalized(layer: Any) -> None:
    torch.nn.utils.parametrizations.weight_norm(layer.edge_mlp[0])
    torch.nn.utils.parametrizations.weight_norm(layer.edge_mlp[2])


def _replaced(layer: Any) -> None:
    layer.edge_mlp[1], layer.edge_mlp[2] = torch.nn.Tanh(), Scaled(24, 16)
    layer.edge_mlp.append(torch.nn.Softplus())


def _approximate(layer: Any) -> None:
    layer.edge_mlp[1] = torch.nn.GELU(approximate="tanh")


def _monkey_patched(layer: Any) -> None:
    first = layer.edge_mlp[0]
    first.forward = lambda x: 2 * torch.nn.Linear.forward(first, x)


def _without_parameters(layer: Any) -> None:
    layer.edge_mlp[2] = torch.nn.Linear(24, 16, bias=False, device=layer.edge_mlp[0].weight.device)
    layer.edge_mlp[3] = torch.nn.LayerNorm(16, elementwise_affine=False)


def _another(layer: Any) -> None:
    layer.edge_mlp = torch.nn.Bilinear(1, 1, 1)
    layer.edge_mlp.forward = lambda x: x[:, :16] * x[:, -16:]


CHANGES = [
    _hooked, _normalized, _replaced, _approximate, _monkey_patched, _without_parameters, _another,
    lambda layer: torch.nn.utils.weight_norm(layer.edge_mlp[2]),
]  # fmt: skip


def changed(change: Any, device: str, dtype: torch.dtype) -> tuple[Any, list[torch.Tensor], torch.Tensor]:
    """Return a layer whose network of edges was changed, its inputs, and the edge_index."""
    torch.manual_seed(1)
    layer = InteractionBlock(16, 16, 24, act="gelu")
    change(layer)
    inputs = [torch.randn(14, 16), torch.randn(60, 16)]
    edge_index = torch.randint(0, 12, (2, 60)).to(device)
    return layer.to(device, dtype), [x.to(device, dtype) for x in inputs], edge_index


@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
@pytest.mark.parametrize("change", CHANGES)
def test_what_was_changed_is_called(device: str, change: Any) -> None:
    layer, inputs, edge_index = changed(change, device, torch.float32)
    flat = lambda pair: torch.cat([y.flatten() for y in pair])  # noqa: E731
    ours = with_gradients(lambda x, e: flat(layer(x, edge_index, e)), inputs)
    theirs = with_gradients(lambda x, e: flat(plain(layer, x, edge_index, e)), inputs)
    assert_all_accurate(ours, theirs, [t.double() for t in theirs])


@pytest.mark.parametrize("of_all", [False, True])
def test_hooks_run_once(of_all: bool) -> None:
    """Those of the modules and those of all modules, before and behind, and backward, with what they see."""
    layer, (x, e), edge_index = changed(lambda _: None, "cpu", torch.float32)
    modules, seen = [layer.edge_mlp, *layer.edge_mlp], []
    note = lambda module, *_: seen.append(modules.index(module)) if module in modules else None  # noqa: E731
    every = torch.nn.modules.module
    if of_all:
        handles = [
            every.register_module_forward_pre_hook(note), every.register_module_forward_hook(note),
            every.register_module_full_backward_hook(note),
        ]  # fmt: skip
    else:
        handles = [
            register(note) for module in modules for register in (
                module.register_forward_pre_hook, module.register_forward_hook,
                module.register_full_backward_hook,
            )
        ]  # fmt: skip
    try:
        layer(x.requires_grad_(), edge_index, e)[0].sum().backward()
    finally:
        for handle in handles:
            handle.remove()
    assert sorted(seen) == sorted([*range(len(modules))] * 3)


def test_refused() -> None:
    edges = torch.randint(0, 5, (2, 8))
    layer = InteractionBlock(4, 3)
    with pytest.raises(ValueError, match=r"^edge_attr: is of 7 edges; accepted: 8, all edges"):
        layer(torch.randn(5, 4), edges, torch.randn(7, 3))
    with pytest.raises(ValueError, match=r"^x: has no features of targets"):
        layer((torch.randn(5, 4), None), edges, torch.randn(8, 3))
    with pytest.raises(ValueError, match=r"^num_layers: got 1; accepted: an integer, at least 2"):
        InteractionBlock(4, 3, num_layers=1)
    with pytest.raises(ValueError, match=r"^act: got 'tanh'; accepted: silu, relu, gelu"):
        InteractionBlock(4, 3, act="tanh")
