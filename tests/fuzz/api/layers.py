"""The layers of gnnsparse.nn with valid arguments, against dense formulas in float64."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable
from typing import Any

import torch

from gnnsparse import nn as layers
from gnnsparse.data.optional import import_optional
from gnnsparse.testing import in_float64
from tests.fuzz.api.env import Env, check_close, floor_of
from tests.fuzz.api.graphs import draw_truth
from tests.fuzz.common import Draw, Trial

pyg = import_optional("torch_geometric.nn", "the fuzzer")

PRECISIONS = ("fp32", "fp16", "bf16", "tf32")
GRAPH_LAYERS = (
    "GCNConv", "AGNNConv", "SAGEConv", "GraphConv", "GINConv", "GATConv", "GATv2Conv", "TransformerConv",
)  # fmt: skip


def _judge(
    trial: Trial, label: str, got: torch.Tensor, function: Callable[[torch.dtype], torch.Tensor],
    precision: str, size: float = 0.0,
) -> None:  # fmt: skip
    """Compares a layer's output with a function of the dtype that it computes in.

    A layer rounds between its products, so that many more roundings than of one product are allowed.
    """
    plain, exact = function(torch.float32), function(torch.float64)
    scale = torch.full_like(exact, size)
    check_close(trial, label, got, plain.to(got.dtype), exact, floor_of(precision, got.dtype, 64), scale)


def _options(draw: Draw, kind: str) -> tuple[tuple[Any, ...], dict[str, Any], tuple[int, int]]:
    """Random arguments and options of a layer, and the features of sources and of targets."""
    out, width, other = draw.integer(1, 9), draw.integer(1, 9), draw.integer(1, 9)
    if kind == "GCNConv":
        normalize = draw.choice((True, True, False))
        loops = normalize and draw.choice((True, True, False))
        options = {"improved": loops and draw.chance(0.3), "add_self_loops": loops}
        options |= {"normalize": normalize, "bias": draw.chance(0.7)}
        return (width, out), options, (width, width)
    if kind == "AGNNConv":
        return (draw.choice((True, False)), draw.choice((True, False))), {}, (width, width)
    if kind == "GINConv":
        return (torch.nn.Linear(width, out), 0.5), {}, (width, width)
    if kind in ("SAGEConv", "GraphConv"):
        aggr = draw.choice(("sum", "mean", "max", "min"))
        return ((width, other), out), {"aggr": aggr}, (width, other)
    options = {"heads": draw.choice((1, 2, 3)), "concat": draw.chance(0.5)}
    options |= {} if kind == "TransformerConv" else {"add_self_loops": draw.chance(0.6)}
    return (width, out), options, (width, width)


def graph_layer(trial: Trial) -> None:
    """A layer of which PyG has one with the same parameters, beside that layer in float32 and float64."""
    draw = trial.draw
    kind = draw.choice(GRAPH_LAYERS)
    is_bipartite = kind in ("SAGEConv", "GraphConv", "GINConv")
    truth = draw_truth(draw, square=not is_bipartite)
    precision = draw.choice(PRECISIONS)
    torch.manual_seed(draw.seed())
    arguments, options, widths = _options(draw, kind)
    own = {"precision": precision, **({"cached": draw.chance(0.3)} if kind == "GCNConv" else {})}
    ours: Any = trial.call(f"{kind}()", lambda: getattr(layers, kind)(*arguments, **options, **own))
    theirs = getattr(pyg, kind)(*copy.deepcopy(arguments), **options)
    theirs.load_state_dict(ours.state_dict())
    x = torch.randn(truth.cols, widths[0])
    given: Any = (x, torch.randn(truth.rows, widths[1])) if is_bipartite else x
    edges = torch.stack([truth.col, truth.row])
    weight = [torch.rand(truth.edges) + 0.1] if kind == "GCNConv" and draw.chance(0.4) else []
    label = f"{ours} {truth.rows}x{truth.cols} {precision} {options} weight={bool(weight)}"

    def formula(dtype: torch.dtype) -> torch.Tensor:
        wide: Any = tuple(t.to(dtype) for t in given) if is_bipartite else given.to(dtype)
        with in_float64(theirs) if dtype == torch.float64 else contextlib.nullcontext():
            return theirs(wide, edges, *(w.to(dtype) for w in weight)).detach()

    for _ in range(2):  # the second call finds the operand of the first
        y = trial.call(label, lambda: ours(given, edges, *weight))
        trial.check(y.shape[0] == truth.rows, f"{label}: rows")
        if y.numel():
            size = max(float(t.abs().max()) for t in (x, formula(torch.float64)) if t.numel())
            _judge(trial, label, y, formula, precision, size)
    if draw.chance(0.3) and y.requires_grad:
        trial.call(label + " backward", lambda: y.sum().backward())


def operand_in_layers(trial: Trial, env: Env, grads: bool) -> None:
    """Layers that take an operand use it as it is, or say why they do not."""
    draw, a = trial.draw, env.a
    torch.manual_seed(draw.seed())
    x = torch.randn(a.shape[1], 4)
    kind = draw.choice(GRAPH_LAYERS)
    arguments: dict[str, Any] = {
        "AGNNConv": (), "GraphConv": (4, 3, "max"), "GINConv": (torch.nn.Linear(4, 3),),
    }  # fmt: skip
    conv: Any = getattr(layers, kind)(*arguments.get(kind, (4, 3)))
    y = trial.attempt(f"{conv} with {env.name}", lambda: conv(x, a))
    trial.check(y is None or y.shape[0] == a.shape[0], "rows")
