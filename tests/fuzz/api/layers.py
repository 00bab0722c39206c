"""The layers of gnnsparse.nn with valid arguments, against dense formulas in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

import gnnsparse
from gnnsparse import nn as layers
from gnnsparse.testing import in_float64
from tests.fuzz.api.env import Env, check_close, check_equal, floor_of
from tests.fuzz.api.graphs import Truth, draw_truth
from tests.fuzz.common import Draw, Trial
from tests.helpers import ROUNDING

PRECISIONS = ("fp32", "fp16", "bf16", "tf32")


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


def _loops(truth: Truth, weights: torch.Tensor, loop: float) -> torch.Tensor:
    """A as a dense matrix whose diagonal is the last self-loop of each node, or else `loop`."""
    is_loop = truth.row == truth.col
    matrix = Truth(truth.rows, truth.cols, truth.row[~is_loop], truth.col[~is_loop], None).spread(
        weights[~is_loop]
    )
    diagonal = torch.full((truth.rows,), loop, dtype=weights.dtype)
    for node, weight in zip(truth.row[is_loop].tolist(), weights[is_loop], strict=True):
        diagonal[node] = weight
    return matrix + torch.diag(diagonal)


def gcn_conv(trial: Trial) -> None:
    draw = trial.draw
    truth = draw_truth(draw, square=True)
    precision = draw.choice(PRECISIONS)
    normalize = draw.choice((True, True, False))
    add = normalize and draw.choice((True, True, False))
    improved = add and draw.chance(0.3)
    sizes = draw.integer(1, 9), draw.integer(1, 9)
    torch.manual_seed(draw.seed())
    bias, cached = draw.chance(0.7), draw.chance(0.3)
    conv = trial.call(
        "GCNConv()",
        lambda: layers.GCNConv(*sizes, improved, cached, add, normalize, bias, precision=precision),
    )
    x = torch.randn(truth.rows, sizes[0])
    edges = torch.stack([truth.col, truth.row])
    weight = torch.rand(truth.edges) + 0.1 if draw.chance(0.4) else None
    label = f"GCNConv {truth.rows} {precision} normalize={normalize} loops={add} weight={weight is not None}"

    def formula(dtype: torch.dtype) -> torch.Tensor:
        weights = torch.ones(truth.edges, dtype=dtype) if weight is None else weight.to(dtype)
        loop = 2.0 if improved and weight is not None else 1.0
        matrix = _loops(truth, weights, loop) if add else truth.spread(weights)
        if normalize:
            sums = matrix.sum(1)
            scale = torch.where(sums > 0, sums.clamp(min=1e-30).rsqrt(), 0.0)
            matrix = scale[:, None] * matrix * scale
        out = matrix @ x.to(dtype) @ conv.lin.weight.to(dtype).T
        return out.detach() if conv.bias is None else (out + conv.bias.to(dtype)).detach()

    for _ in range(2):  # the second call finds the operand of the first
        y = trial.call(label, lambda: conv(x, edges, weight))
        size = float(formula(torch.float64).abs().max()) if y.numel() else 0.0
        _judge(trial, label, y, formula, precision, size)
    if draw.chance(0.3):
        trial.call(label + " backward", lambda: y.sum().backward())


def agnn_conv(trial: Trial) -> None:
    draw = trial.draw
    truth = draw_truth(draw, square=True)
    precision, add = draw.choice(PRECISIONS), draw.choice((True, False))
    torch.manual_seed(draw.seed())
    conv = layers.AGNNConv(draw.choice((True, False)), add, precision=precision)
    x = torch.randn(truth.rows, draw.integer(1, 9))
    edges = torch.stack([truth.col, truth.row])
    counts = (
        _loops(truth, torch.ones(truth.edges, dtype=torch.float64), 1.0)
        if add
        else truth.spread(torch.ones(truth.edges, dtype=torch.float64))
    )
    label = f"AGNNConv {truth.rows} {precision} loops={add}"
    y = trial.call(label, lambda: conv(x, edges))

    def formula(dtype: torch.dtype) -> torch.Tensor:
        unit = torch.nn.functional.normalize(x.to(dtype))
        scores = unit @ unit.T + counts.to(dtype).log()
        return torch.nan_to_num(scores.softmax(1)) @ x.to(dtype)

    _judge(trial, label, y, formula, precision, float(x.abs().max()) if x.numel() else 0.0)
    if draw.chance(0.3) and conv.requires_grad:
        trial.call(label + " backward", lambda: y.sum().backward())


def aggregation_conv(trial: Trial) -> None:
    """SAGEConv, GraphConv and GINConv on edges of two kinds of nodes, against dense reductions."""
    draw = trial.draw
    truth = draw_truth(draw)
    precision, reduce = draw.choice(PRECISIONS), draw.choice(("sum", "mean", "max", "min"))
    kind = draw.choice(("sage", "graph", "gin"))
    reduce = "sum" if kind == "gin" else reduce
    sizes, out = (draw.integer(1, 9), draw.integer(1, 9)), draw.integer(1, 9)
    sizes = (sizes[0], sizes[0]) if kind == "gin" else sizes
    torch.manual_seed(draw.seed())
    make: dict[str, Callable[[], Any]] = {
        "sage": lambda: layers.SAGEConv(sizes, out, reduce, precision=precision),
        "graph": lambda: layers.GraphConv(sizes, out, reduce, precision=precision),
        "gin": lambda: layers.GINConv(torch.nn.Linear(sizes[0], out), 0.5, precision=precision),
    }
    conv = trial.call(f"{kind}()", make[kind])
    x = torch.randn(truth.cols, sizes[0]), torch.randn(truth.rows, sizes[1])
    edges = torch.stack([truth.col, truth.row])
    label = f"{conv} {truth.rows}x{truth.cols} {precision} {reduce}"
    y = trial.call(label, lambda: conv(x, edges))

    def formula(dtype: torch.dtype) -> torch.Tensor:
        source, target = (t.to(dtype) for t in x)
        counts = truth.spread(torch.ones(truth.edges, dtype=dtype))
        some = (counts.sum(1) > 0)[:, None]
        if reduce in ("sum", "mean"):
            found = counts @ source
            found = found / counts.sum(1).clamp(min=1)[:, None] if reduce == "mean" else found
        else:
            sign = 1 if reduce == "max" else -1
            far = (
                (sign * source).expand(truth.rows, *source.shape).masked_fill((counts == 0)[..., None], -1e30)
            )
            found = sign * far.amax(1) if truth.cols else source.new_zeros(truth.rows, source.shape[1])
            found = torch.where(some, found, 0.0)
        if kind == "gin":
            out = (found + 1.5 * target) @ conv.nn.weight.to(dtype).T + conv.nn.bias.to(dtype)
            return out.detach()
        near, own = (conv.lin_l, conv.lin_r) if kind == "sage" else (conv.lin_rel, conv.lin_root)
        out = found @ near.weight.to(dtype).T + near.bias.to(dtype) + target @ own.weight.to(dtype).T
        return out.detach()

    size = float(x[0].abs().max()) if x[0].numel() else 0.0
    _judge(trial, label, y, formula, precision, size)
    if draw.chance(0.3):
        trial.call(label + " backward", lambda: y.sum().backward())


def attention_conv(trial: Trial) -> None:
    """GATConv, GATv2Conv and TransformerConv, against dense formulas for each head."""
    draw = trial.draw
    truth = draw_truth(draw, square=True)
    precision, kind = draw.choice(PRECISIONS), draw.choice(("GATConv", "GATv2Conv", "TransformerConv"))
    width, out, heads = draw.integer(1, 6), draw.integer(1, 6), draw.choice((1, 2, 3))
    options: dict[str, Any] = {"heads": heads, "concat": draw.chance(0.5), "precision": precision}
    add = kind != "TransformerConv" and draw.chance(0.6)
    options |= {} if kind == "TransformerConv" else {"add_self_loops": add}
    torch.manual_seed(draw.seed())
    conv: Any = trial.call(f"{kind}()", lambda: getattr(layers, kind)(width, out, **options))
    x = torch.randn(truth.rows, width)
    edges = torch.stack([truth.col, truth.row])
    counts = truth.spread(torch.ones(truth.edges, dtype=torch.float64))
    if add:
        counts = counts - torch.diag(counts.diagonal()) + torch.eye(truth.rows, dtype=torch.float64)
    label = f"{conv} {truth.rows} {precision} loops={add}"
    y = trial.call(label, lambda: conv(x, edges))

    def formula(dtype: torch.dtype) -> torch.Tensor:
        wide = x.to(dtype)

        def mapped(linear: Any) -> torch.Tensor:
            bias = 0 if linear.bias is None else linear.bias.to(dtype)
            return (wide @ linear.weight.to(dtype).T + bias).unflatten(1, (heads, -1))

        if kind == "GATConv":
            v = mapped(conv.lin)
            parts = [(v * att.to(dtype)).sum(-1) for att in (conv.att_dst, conv.att_src)]
            scores = torch.nn.functional.leaky_relu(parts[0][:, None] + parts[1][None], 0.2)
        elif kind == "GATv2Conv":
            v = mapped(conv.lin_l)
            sums = torch.nn.functional.leaky_relu(mapped(conv.lin_r)[:, None] + v[None], 0.2)
            scores = (sums * conv.att.to(dtype)).sum(-1)
        else:
            v = mapped(conv.lin_value)
            q, k = mapped(conv.lin_query), mapped(conv.lin_key)
            scores = torch.einsum("ihd,jhd->ijh", q, k) / out**0.5
        weights = torch.nan_to_num((scores + counts.to(dtype).log()[..., None]).softmax(1))
        found = torch.einsum("ijh,jhd->ihd", weights, v)
        found = found.flatten(1) if options["concat"] else found.mean(1)
        if kind == "TransformerConv":
            return (found + wide @ conv.lin_skip.weight.to(dtype).T + conv.lin_skip.bias.to(dtype)).detach()
        return (found + conv.bias.to(dtype)).detach()

    size = float(x.abs().max()) if x.numel() else 0.0
    _judge(trial, label, y, formula, precision, size)
    if draw.chance(0.3):
        trial.call(label + " backward", lambda: y.sum().backward())


def sparse_linear(trial: Trial) -> None:
    draw = trial.draw
    precision = draw.choice(PRECISIONS)
    torch.manual_seed(draw.seed())
    if draw.chance(0.5):
        dense = torch.nn.Linear(draw.integer(1, 20), draw.integer(1, 20), bias=draw.chance(0.5))
        sparsity, vector = draw.choice((0.5, 0.0, 0.9, 1.0)), draw.choice((1, 8, 16))
        layer = trial.call(
            "SparseLinear.from_dense",
            lambda: layers.SparseLinear.from_dense(dense, sparsity, vector, precision=precision),
        )
    else:
        truth = draw_truth(draw)
        graph = gnnsparse.masks.from_dense(truth.pattern())
        bias = draw.chance(0.5)
        layer = trial.call("SparseLinear()", lambda: layers.SparseLinear(graph, bias, precision=precision))
    lead = draw.choice(((3,), (), (2, 3), (0,)))
    x = torch.randn(*lead, layer.in_features)
    label = f"SparseLinear {layer.out_features}x{layer.in_features} {precision} {lead}"
    y = trial.call(label, lambda: layer(x))
    weight = trial.call("to_dense", layer.to_dense).detach()

    def formula(dtype: torch.dtype) -> torch.Tensor:
        out = x.to(dtype) @ weight.to(dtype).T
        return out if layer.bias is None else out + layer.bias.detach().to(dtype)

    _judge(trial, label, y, formula, precision, 1.0)
    state = layer.state_dict()
    trial.call("load_state_dict", lambda: layer.load_state_dict(state))
    check_equal(trial, label + " again", trial.call(label, lambda: layer(x)), y)


def _pattern(draw: Draw, n: int, precision: str) -> tuple[Any, torch.Tensor]:
    mask = torch.rand(n, n, generator=torch.Generator().manual_seed(draw.seed())) < 0.5
    mask |= torch.eye(n, dtype=torch.bool)  # torch gives NaN for rows without keys
    return gnnsparse.prepare(gnnsparse.masks.from_dense(mask), precision=precision, cache=False), mask


def sparse_attention(trial: Trial) -> None:
    """SparseAttention and TransformerEncoderLayer against torch's layers with a dense mask."""
    draw = trial.draw
    n, heads = draw.integer(1, 12), draw.choice((1, 2, 4))
    width, batch = heads * draw.integer(1, 5), draw.integer(1, 3)
    precision = draw.choice(PRECISIONS)
    torch.manual_seed(draw.seed())
    pattern, mask = _pattern(draw, n, precision)
    padding = torch.zeros(batch, n, dtype=torch.bool)
    if draw.chance(0.3):
        padding[:, 1:] = torch.rand(batch, n - 1) < 0.3
        if not bool((mask & ~padding[:, None]).any(-1).all()):
            padding[:] = False
    x = torch.randn(batch, n, width)
    label = f"{heads} heads {width} n={n} {precision}"
    options: dict[str, Any] = {"batch_first": True, "bias": draw.chance(0.7)}
    # The pattern is an operand of the call, the layer's own, or a mask.
    way = draw.choice(("operand", "own", "mask", "float mask"))
    own: dict[str, Any] = {"precision": precision}
    if way == "own":
        own |= {"pattern": draw.choice((gnnsparse.masks.from_dense(mask), pattern))}
    dense = ~mask if way == "mask" else torch.zeros(n, n).masked_fill(~mask, float("-inf"))
    label = f"{way} {label}"
    if draw.chance(0.5):
        ours: Any = layers.SparseAttention(width, heads, **own, **options)
        theirs: Any = torch.nn.MultiheadAttention(width, heads, **options)
        call: Callable[[], Any] = lambda: ours(x, x, x, padding, attn_mask=dense)[0]  # noqa: E731
        if way == "operand":
            call = lambda: ours(x, x, x, pattern, padding)  # noqa: E731
        elif way == "own":
            call = lambda: ours(x, x, x, padding, False)[0]  # noqa: E731
    else:
        options |= {"dim_feedforward": 8, "dropout": 0.0, "norm_first": draw.chance(0.5)}
        ours = layers.TransformerEncoderLayer(width, heads, **own, **options)
        theirs = torch.nn.TransformerEncoderLayer(width, heads, **options)
        given = {"operand": pattern, "own": None}.get(way, dense)
        call = lambda: ours(x, given, padding)  # noqa: E731
    y = trial.call(f"{type(ours).__name__} {label}", call)
    theirs.load_state_dict(ours.state_dict())

    def formula(dtype: torch.dtype) -> torch.Tensor:
        def run() -> torch.Tensor:
            wide = x.to(dtype)
            if isinstance(theirs, torch.nn.MultiheadAttention):
                return theirs(wide, wide, wide, padding, need_weights=False, attn_mask=~mask)[0].detach()
            return theirs(wide, ~mask, padding).detach()

        if dtype == torch.float64:
            with in_float64(theirs):
                return run()
        return run()

    _judge(trial, label, y, formula, precision, 4.0)
    if draw.chance(0.3):
        trial.call(label + " backward", lambda: y.sum().backward())


def operand_in_layers(trial: Trial, env: Env, grads: bool) -> None:
    """Layers that take an operand use it as it is, or say why they do not."""
    draw, a = trial.draw, env.a
    torch.manual_seed(draw.seed())
    x = torch.randn(a.shape[1], 4)
    conv: Any = draw.choice(
        (
            lambda: layers.GCNConv(4, 3), lambda: layers.AGNNConv(), lambda: layers.SAGEConv(4, 3),
            lambda: layers.GraphConv(4, 3, "max"), lambda: layers.GINConv(torch.nn.Linear(4, 3)),
            lambda: layers.GATConv(4, 3), lambda: layers.TransformerConv(4, 3),
        )
    )()  # fmt: skip
    y = trial.attempt(f"{conv} with {env.name}", lambda: conv(x, a))
    trial.check(y is None or y.shape[0] == a.shape[0], "rows")


LAYERS = (gcn_conv, agnn_conv, aggregation_conv, attention_conv, sparse_linear, sparse_attention)
__all__ = ["LAYERS", "ROUNDING", "operand_in_layers"]
