"""Products, the softmax and attention with valid arguments, against float64; and their gradients."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any

import torch

import gnnsparse
from gnnsparse.nn import InteractionBlock
from gnnsparse.ops.edges.schema import edges_of
from gnnsparse.ops.edges.trace import side_of
from gnnsparse.runtime.device import path
from tests.fuzz.api import env as tools
from tests.fuzz.api.env import Env, check_close, check_equal, draw_dense, floor_of, root
from tests.fuzz.common import Draw, Trial
from tests.nn.test_interaction import plain as networks
from tests.ops import attention_oracle as oracle
from tests.ops.edge_messages import MESSAGES, REDUCTIONS, arguments_of, plain

OPS = torch.ops.gnnsparse


def _judge(
    trial: Trial, env: Env, label: str, y: torch.Tensor, leaves: list[torch.Tensor],
    dense: Callable[..., torch.Tensor], *others: torch.Tensor,
) -> None:  # fmt: skip
    """Compares a product, which is linear in each of the `leaves`, and its gradients with dense ones.

    `dense` takes A, or the squared sizes of its elements; the dtypes of `others` may round gradients.
    """
    given = [t.detach() for t in leaves]
    runs = [
        (env.rounded(env.dense.matrix), [env.rounded(t) for t in given]),
        (env.dense.matrix, [t.double() for t in given]),
        (env.dense.size.square(), [t.double().square() for t in given]),
    ]
    for _, tensors in runs:
        for tensor, leaf in zip(tensors, leaves, strict=True):
            tensor.requires_grad_(leaf.requires_grad)
    outs = [dense(matrix, *tensors) for matrix, tensors in runs]
    plain, exact, squares = (out.detach() for out in outs)
    check_close(trial, label, y, plain.to(y.dtype), exact, floor_of(env.precision, y.dtype), root(squares))
    if not y.requires_grad:
        return
    label += " gradient"
    probe = torch.randn(y.shape, generator=torch.Generator().manual_seed(1)).to(y.dtype)
    probes = env.rounded(probe), probe.double(), probe.double().square()
    found = trial.call(label, lambda: tools.gradients(y, leaves, probe))
    grads = [tools.gradients(out, run[1], p) for out, run, p in zip(outs, runs, probes, strict=True)]
    for got, plain, exact, squares in zip(found, *grads, strict=True):
        floor = max(floor_of(env.precision, t.dtype) for t in (got, y, *others))
        check_close(trial, label, got, plain.to(y.dtype).to(got.dtype), exact, floor, root(squares))


def spmm(trial: Trial, env: Env, grads: bool) -> None:
    """`A @ x` in all spellings, with A's weights or with edge values."""
    draw, a = trial.draw, env.a
    vector = draw.chance(0.1)
    width = 1 if vector else draw.choice(tools.WIDTHS)
    x = draw_dense(draw, a.shape[1], width)
    values = draw_dense(draw, a.nnz) if draw.chance(0.4) else None
    needs = (grads and draw.chance(0.5), grads and draw.chance(0.5))
    given = [x] if values is None else [x, values]
    leaves = tools.leaves_of(given, needs[: len(given)])
    arguments: list[Any] = [leaves[0][:, 0] if vector else leaves[0], *leaves[1:]]
    label = f"spmm {env.name} {x.dtype} n={width} values={None if values is None else values.dtype}"
    spelling, run = _spell_spmm(draw, env, arguments)
    y = trial.call(f"{label} {spelling}", run)
    trial.check(y.dtype == x.dtype, f"{label}: dtype {y.dtype}")
    y = y[:, None] if vector else y
    # `a.plan` is for rows in the operand's dtype; a GPU reads others in theirs, by a plan of their own.
    may_differ = spelling == "reference" or (spelling == "plan" and path().takes(a.device))
    if not may_differ and draw.chance(0.2):
        again = trial.call(label, lambda: gnnsparse.spmm(a, *arguments))
        check_equal(trial, f"{label} again", again.reshape(y.shape), y)
    if values is None:
        _judge(trial, env, label, y, leaves, lambda matrix, x: matrix @ x)
    else:
        _judge(trial, env, label, y, leaves, lambda matrix, x, values: env.spread(values) @ x)


def _spell_spmm(draw: Draw, env: Env, arguments: list[Any]) -> tuple[str, Callable[[], Any]]:
    """A random way to write the product: its name, and a function that runs it."""
    a, x, plain = env.a, arguments[0], len(arguments) == 1
    kind = draw.choice(("call", "operator", "matmul", "plan", "cpu", "reference", "registered"))
    if kind == "operator" and plain:
        return kind, lambda: a @ x
    if kind == "matmul" and plain:
        return kind, lambda: torch.matmul(a, x)  # type: ignore[call-overload]
    if kind == "plan" and x.dim() == 2 and x.shape[1]:
        return kind, lambda: gnnsparse.spmm(a, *arguments, plan=a.plan(x.shape[1], edge_values=not plain))
    if kind in ("cpu", "reference"):
        return kind, lambda: gnnsparse.spmm(a, *arguments, impl=kind)
    if kind == "registered" and x.dim() == 2:
        return kind, lambda: OPS.spmm(x, None if plain else arguments[1], a.handle)
    return "call", lambda: gnnsparse.spmm(a, *arguments)


def sddmm(trial: Trial, env: Env, grads: bool) -> None:
    draw, a = trial.draw, env.a
    d = draw.choice(tools.WIDTHS)
    q, k = draw_dense(draw, a.shape[0], d), draw_dense(draw, a.shape[1], d)
    leaves = tools.leaves_of([q, k], (grads and draw.chance(0.5), grads and draw.chance(0.5)))
    label = f"sddmm {env.name} {q.dtype} {k.dtype} d={d}"
    kind = draw.choice(("auto", "cpu", "reference", "registered"))
    run = {"registered": lambda: OPS.sddmm(*leaves, a.handle)}
    scores = trial.call(label, run.get(kind, lambda: gnnsparse.sddmm(a, *leaves, impl=kind)))
    trial.check(scores.dtype == q.dtype, f"{label}: dtype {scores.dtype}")
    _judge(trial, env, label, scores, leaves, lambda _, q, k: env.at_nonzeros(q @ k.T), q, k)


def heads(trial: Trial, env: Env, grads: bool) -> None:
    """Products of several heads, and every reduction, beside the reference implementation in float64."""
    draw, a = trial.draw, env.a
    count, d = draw.choice((1, 2, 3, 8, 17, 0)), draw.choice((1, 5, 8, 16, 20, 0))
    kind = draw.choice(("shared", "own", "of heads"))
    reduce = draw.choice(("sum", "mean", "max", "min"))

    def of(rows: int, *sizes: int, dtype: torch.dtype) -> torch.Tensor:
        # Small multiples of a quarter: products are exact, and what wins a maximum wins it in float64.
        generator = torch.Generator().manual_seed(draw.seed())
        x = torch.randint(-8, 9, (rows, *sizes), generator=generator).float() / 4
        return tools.draw_strided(draw, x.to(dtype))

    dtype = draw.choice(tools.FLOATS)
    x, q = of(a.shape[1], count, d, dtype=dtype), of(a.shape[0], count, d, dtype=dtype)
    given = [x]
    if kind != "own" or reduce in ("max", "min"):  # A's weights are rounded, and a maximum of them may differ
        given.append(of(a.nnz, *([count] if kind == "of heads" else []), dtype=dtype))
    calls: list[tuple[str, Callable[..., torch.Tensor], list[torch.Tensor]]] = [
        (f"spmm {reduce}", functools.partial(gnnsparse.spmm, a, reduce=reduce), given),
        ("sddmm", functools.partial(gnnsparse.sddmm, a), [q, x]),
        ("edge_softmax", functools.partial(gnnsparse.edge_softmax, a), [of(a.nnz, count, dtype=dtype)]),
    ]
    for name, function, arguments in calls:
        label = f"{name} {env.name} {dtype} heads={count} d={d} values={kind}"
        leaves = tools.leaves_of(arguments, [grads] * len(arguments))
        y = trial.call(label, functools.partial(function, *leaves))
        wide = [t.detach().double().requires_grad_(grads) for t in arguments]
        exact, sizes = function(*wide, impl="reference"), function(*(t.abs() for t in wide), impl="reference")
        floor = floor_of(env.precision, dtype, 16)
        check_close(trial, label, y, exact.detach().to(dtype), exact, floor, sizes)
        if y.requires_grad and name != "edge_softmax":
            generator = torch.Generator().manual_seed(1)
            probe = (torch.randint(-8, 9, y.shape, generator=generator).float() / 4).to(y.dtype)
            found = trial.call(label + " gradient", functools.partial(tools.gradients, y, leaves, probe))
            wanted = torch.autograd.grad(exact, wide, probe.double())
            for got, right in zip(found, wanted, strict=True):
                size = right.abs() + right.detach().abs().amax() if right.numel() else right
                check_close(trial, label + " gradient", got, right.to(got.dtype), right, floor, size)


def edge_softmax(trial: Trial, env: Env, grads: bool) -> None:
    draw, a = trial.draw, env.a
    scores = draw_dense(draw, a.nnz)
    if draw.chance(0.3) and a.nnz:
        dropped = torch.rand(a.nnz, generator=torch.Generator().manual_seed(draw.seed())) < 0.4
        scores = scores.masked_fill(dropped, -torch.inf)
    (leaf,) = tools.leaves_of([scores], (grads and draw.chance(0.6),))
    label = f"edge_softmax {env.name} {scores.dtype}"
    kind = draw.choice(("auto", "cpu", "reference", "registered"))
    run = {"registered": lambda: OPS.edge_softmax(leaf, a.handle)}
    weights = trial.call(label, run.get(kind, lambda: gnnsparse.edge_softmax(a, leaf, impl=kind)))
    floor = floor_of("fp32", scores.dtype, 16)
    plain_scores = scores.detach().clone()
    simple = plain_scores.float().requires_grad_()
    right = plain_scores.double().requires_grad_()
    plain, exact = (gnnsparse.edge_softmax(a, s, impl="reference") for s in (simple, right))
    check_close(trial, label, weights, plain.to(scores.dtype), exact, floor)
    if not weights.requires_grad:
        return
    probe = torch.randn(a.nnz, generator=torch.Generator().manual_seed(3)).to(scores.dtype)
    (found,) = trial.call(label + " gradient", lambda: tools.gradients(weights, [leaf], probe))
    (wanted,) = torch.autograd.grad(exact, right, probe.double())
    (near,) = torch.autograd.grad(plain, simple, probe.float())
    # The two terms of the gradient cancel where one weight is nearly the whole row.
    scale = exact.detach() * probe.double().abs()
    check_close(trial, label + " gradient", found, near, wanted, floor, scale)


def attention(trial: Trial, env: Env, grads: bool) -> None:
    """Attention and all its gradients, with a bias, a causal mask and dropout, against dense attention."""
    draw, a = trial.draw, env.a
    lead = draw.choice(((1, 1), (1, 2), (2, 1), (2, 3)))
    d, dv = draw.choice((4, 1, 8, 16, 17, 0)), draw.choice((4, 1, 8, 17, 0))
    dtype = draw.choice(tools.FLOATS)
    bias = draw.choice((None, None, (1, 1), lead))
    generator = torch.Generator().manual_seed(draw.seed())
    sizes = ((a.shape[0], d), (a.shape[1], d), (a.shape[1], dv), (a.shape[0], dv))
    q, k, v, grad = (torch.randn(*lead, *size, generator=generator).to(dtype) for size in sizes)
    strided = [tools.draw_strided(draw, x) for x in (q, k, v)]
    case = oracle.Case(
        *(x.clone() if x.is_inference() else x for x in strided),
        grad,
        None if bias is None else torch.randn(*bias, a.nnz, generator=generator),
        scale=draw.choice((None, 1.0, 0.3)),
        dropout_p=draw.choice((0.0, 0.0, 0.5)),
        is_causal=draw.chance(0.3),
    )
    label = f"attention {env.name} {dtype} lead={lead} d={d} dv={dv} bias={bias}"
    how: dict[str, Any] = draw.choice(({}, {"fused": False}, {"impl": "cpu"}, {"impl": "reference"}))
    exact, plain = oracle.exact(env.a, case), oracle.plain(env.a, case)
    # Gradients differ by the rounding of the output, of which the backward pass makes use.
    floor = 4 * oracle.few_roundings(env.a, case)
    if grads:
        with torch.inference_mode(False):
            found = trial.call(label, lambda: oracle.run(env.a, case, **how))
    else:
        torch.manual_seed(oracle.SEED)
        options = {n: getattr(case, n) for n in ("bias", "scale", "dropout_p", "is_causal")}
        out = trial.call(label, lambda: gnnsparse.attention(a, case.q, case.k, case.v, **options, **how))
        found, plain, exact = [out], plain[:1], exact[:1]
    for name, got, simple, right in zip(["out", "q", "k", "v", "bias"], found, plain, exact, strict=False):
        scale = _attention_scale(case, right, name)
        check_close(trial, f"{label} {how} {name}", got, simple, right, floor, scale)


def _attention_scale(case: oracle.Case, right: torch.Tensor, name: str) -> torch.Tensor:
    """How large the terms of a result are, at most, where gradients of the softmax cancel."""
    sizes = [
        float(x.double().abs().amax()) if x.numel() else 0.0 for x in (case.q, case.k, case.v, case.grad)
    ]
    q, k, v, grad = sizes
    d, dv = case.q.shape[-1], max(case.v.shape[-1], 1)
    inner = 2 * grad * v * dv**0.5
    of = {"out": v, "v": grad, "bias": inner, "q": inner * k * case.factor, "k": inner * q * case.factor}
    return torch.full_like(right, of[name] if d or name in ("out", "v", "bias") else 1.0)


def special_values(trial: Trial, env: Env, grads: bool) -> None:
    """A NaN or an infinity in X reaches exactly the rows that have an edge to it."""
    draw, a = trial.draw, env.a
    if min(a.shape) == 0:
        return
    x = torch.randn(a.shape[1], 5, generator=torch.Generator().manual_seed(draw.seed()))
    at = draw.below(a.shape[1])
    x[at, 2] = draw.choice((torch.nan, torch.inf))
    label = f"special {env.name}"
    values = torch.ones(a.nnz)
    y = trial.call(label, lambda: gnnsparse.spmm(a, x, values))
    reached = env.dense.pattern[:, at]
    trial.check(torch.equal(~torch.isfinite(y[:, 2]), reached), f"{label}: rows that are not finite differ")
    rest = torch.cat([y[:, :2], y[:, 3:]], 1)
    trial.check(bool(torch.isfinite(rest).all()), f"{label}: other columns are not finite")


def edge_functions(trial: Trial, env: Env, grads: bool) -> None:
    """A message of random arguments, reduced in a random way, beside the same on plain tensors."""
    draw, a = trial.draw, env.a
    has_loops, reduce = a.added_loops is not None, draw.choice(REDUCTIONS[:-1])
    messages = [
        m for m, given in MESSAGES.items() if not (has_loops and any(n.endswith("_ij") for n in given))
    ]
    message, width = draw.choice(messages), draw.choice(tools.WIDTHS[:-3])
    torch.manual_seed(draw.seed())
    given = arguments_of(message, a, width, draw.choice(tools.FLOATS))
    given = {name: x.detach().requires_grad_(grads and x.is_floating_point()) for name, x in given.items()}
    label = f"aggregate_edges {env.name} {message.__name__} {reduce} F={width}"
    y = trial.call(label, lambda: gnnsparse.aggregate_edges(a, message, reduce=reduce, **given))
    edges, wanted = edges_of(a), []
    for dtype in (torch.float32, torch.float64):
        # What has F features is rounded to the operand's storage type.
        rows = {
            n: x.detach().to(a.precision.storage) if _is_rounded(n, x) else x.detach()
            for n, x in given.items()
        }
        rows = {n: x.to(dtype) if x.is_floating_point() else x for n, x in rows.items()}
        index = torch.stack([edges.source, edges.target])
        wanted.append(plain(message, index, a.shape[0], reduce, rows))
    trial.check(y.shape == wanted[1].shape, f"{label}: shape {tuple(y.shape)}")
    if reduce not in ("var", "std") and y.numel():  # these cancel
        scale = wanted[1].abs().max().expand(y.shape)
        floor = floor_of(env.precision, y.dtype, 32)
        check_close(trial, label, y, wanted[0].to(y.dtype), wanted[1], floor, scale)
    if y.requires_grad and y.numel():
        leaves = [x for x in given.values() if x.requires_grad]
        found = trial.call(
            f"{label} gradient", lambda: torch.autograd.grad(y.sum(), leaves, allow_unused=True)
        )
        for x, grad in zip(leaves, found, strict=True):
            trial.check(grad is None or (grad.shape == x.shape and grad.dtype == x.dtype), f"{label}: {grad}")


def _is_rounded(name: str, x: torch.Tensor) -> bool:
    has_rows = side_of(name) != "shared" and name != "a_ij"
    return has_rows and x.is_floating_point() and x.dim() > 1 and x.shape[1] > 1


def _interaction(draw: Draw, widths: tuple[int, int], dtype: torch.dtype) -> tuple[InteractionBlock, str]:
    """A block with random options, some of whose modules are watched or computed, and what it is called."""
    torch.manual_seed(draw.seed())
    sizes = [draw.choice((4, 6, 8, 16, 24, 33)) for _ in range(2)]
    layer = InteractionBlock(
        widths, *sizes, num_layers=draw.choice((2, 2, 3)), act=draw.choice(("silu", "gelu", "relu")),
        norm=draw.chance(0.5), recompute=draw.chance(0.7),
    )  # fmt: skip
    change = draw.choice(("as it is",) * 3 + ("hook", "weight norm", "module"))
    if change == "hook":
        draw.choice(list(layer.edge_mlp)).register_forward_hook(lambda module, x, y: 0.5 * y)
    elif change == "weight norm":
        torch.nn.utils.parametrizations.weight_norm(layer.edge_mlp[draw.choice((0, 2))])
    elif change == "module":
        layer.edge_mlp[1] = torch.nn.Tanh()
    return layer.to(dtype), f"{layer} {sizes} {len(layer.edge_mlp)} {change}"


def interactions(trial: Trial, env: Env, grads: bool) -> None:
    """An InteractionBlock beside the networks of concatenated features."""
    draw, a = trial.draw, env.a
    if a.added_loops is not None:
        return
    is_pair = a.shape[0] != a.shape[1] or draw.chance(0.3)
    is_autocast = trial.mode is tools.MODES["autocast"]
    # Autocast of a CPU takes no float16: torch.cat and layer norms raise.
    dtype = draw.choice((torch.float32, torch.bfloat16) if is_autocast else tools.FLOATS)
    widths = [draw.choice((1, 4, 5, 8, 16)) for _ in range(2)]
    layer, name = _interaction(draw, (widths[0], widths[is_pair]), dtype)
    x = [draw_dense(draw, a.shape[1 - i], widths[i], dtype=dtype) for i in range(1 + is_pair)]
    inputs = tools.leaves_of(
        [*x, draw_dense(draw, a.num_edges, layer.edge_dim, dtype=dtype)], [grads] * (2 + is_pair)
    )
    label = f"InteractionBlock {env.name} {name} {dtype}"
    found = trial.call(label, lambda: layer(tuple(inputs[:2]) if is_pair else inputs[0], a, inputs[-1]))
    edges = edges_of(a)
    index, runs = torch.stack([edges.source, edges.target]), []
    for to in (torch.float32, torch.float64):
        given = [t.detach().to(to).requires_grad_(grads) for t in inputs]
        wide = copy.deepcopy(layer).to(to)
        runs.append((given, networks(wide, tuple(given[:2]) if is_pair else given[0], index, given[-1])))
    floor = floor_of(env.precision, torch.bfloat16 if is_autocast else dtype, 64)

    def judge(what: str, got: Any, simple: torch.Tensor, right: torch.Tensor) -> None:
        scale = right.detach().abs().max().clamp(min=1).expand(right.shape) if right.numel() else None
        check_close(trial, f"{label} {what}", got, simple.to(got.dtype), right, floor, scale)

    for what, got, simple, right in zip(("x", "edges"), found, runs[0][1], runs[1][1], strict=True):
        judge(what, got, simple, right)
    if not grads or layer.act == "relu":  # whose slope is another where a rounded number is below 0
        return
    probes = [torch.randn(y.shape, generator=torch.Generator().manual_seed(1)).to(dtype) for y in found]

    def gradients(results: Any, leaves: list[torch.Tensor]) -> Any:
        return torch.autograd.grad(
            results, leaves, [p.to(y.dtype) for p, y in zip(probes, results, strict=True)]
        )

    got = trial.call(f"{label} gradient", lambda: gradients(found, inputs))
    for one, simple, right in zip(got, *(gradients(y, given) for given, y in runs), strict=True):
        judge("gradient", one, simple, right)
