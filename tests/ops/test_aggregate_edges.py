"""gnnsparse.aggregate_edges against the same messages on plain tensors, and what it refuses."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812

import gnnsparse
from gnnsparse import SparseGraph
from gnnsparse.ops.edges.api import _spread
from gnnsparse.testing import assert_all_accurate, with_gradients
from tests.helpers import PRECISIONS
from tests.ops.edge_messages import MESSAGES, REDUCTIONS, Arguments, arguments_of, gated, gine, plain


def graph(targets: int, sources: int, edges: int, device: str, precision: str = "fp32") -> Any:
    """An operand, and int64 (source, target) of its edges: some are repeated, and some targets have none."""
    source = torch.randint(0, max(sources, 1), (edges,))
    target = torch.randint(0, max(targets - 2, 1), (edges,))
    if edges:
        source[: edges // 8], target[: edges // 8] = source[0], target[0]
    edge_index = torch.stack([source, target])
    made = SparseGraph.from_edge_index(edge_index, (sources, targets))
    return gnnsparse.prepare(made, precision=precision, cache=False).to(device), edge_index


def compared(message: Callable[..., Any], a: Any, edges: torch.Tensor, reduce: str, given: Arguments) -> None:
    """Compare results and all gradients with those of plain operations in the same dtype, and in float64."""
    names = [name for name, x in given.items() if x.is_floating_point()]
    more = {name: x for name, x in given.items() if name not in names}
    edges = edges.to(a.device)

    def of(run: Callable[..., Any], dtype: torch.dtype | None) -> list[torch.Tensor]:
        leaves = [given[name] if dtype is None else given[name].to(dtype) for name in names]
        return with_gradients(lambda *x: run(**dict(zip(names, x, strict=True)), **more), leaves)

    def theirs(**x: torch.Tensor) -> torch.Tensor:
        return plain(message, edges, a.shape[0], reduce, x)

    ours = functools.partial(gnnsparse.aggregate_edges, a, message, reduce=reduce)
    assert_all_accurate(of(ours, None), of(theirs, None), lambda: of(theirs, torch.float64))


@pytest.mark.parametrize("reduce", ["sum", "max", "none"])
@pytest.mark.parametrize("message", MESSAGES)
def test_messages(device: str, message: Callable[..., Any], reduce: str) -> None:
    torch.manual_seed(1)
    a, edges = graph(19, 23, 150, device)
    compared(message, a, edges, reduce, arguments_of(message, a, 12))


@pytest.mark.parametrize("reduce", REDUCTIONS)
def test_reductions(device: str, reduce: str) -> None:
    torch.manual_seed(2)
    a, edges = graph(30, 11, 260, device)
    compared(gated, a, edges, reduce, arguments_of(gated, a, 7))


@pytest.mark.parametrize("width", [1, 3, 33, 128, 200])
@pytest.mark.parametrize(("targets", "sources", "edges"), [(5, 1, 40), (1, 9, 30), (40, 40, 41)])
def test_sizes(device: str, width: int, targets: int, sources: int, edges: int) -> None:
    torch.manual_seed(width)
    a, index = graph(targets, sources, edges, device)
    compared(gine, a, index, "mean", arguments_of(gine, a, width))


@pytest.mark.parametrize("precision", [p for p in PRECISIONS if p != "fp32"])
@pytest.mark.parametrize("message", [gine, gated])
def test_precisions(device: str, precision: str, message: Callable[..., Any]) -> None:
    """A plain run rounds its arguments to the storage type, as operations on them do."""
    torch.manual_seed(3)
    a, edges = graph(25, 25, 200, device, precision)
    given = arguments_of(message, a, 16, a.precision.storage)
    compared(message, a, edges, "sum", given)
    assert gnnsparse.aggregate_edges(a, message, **given).dtype == a.precision.storage


@pytest.mark.parametrize("reduce", REDUCTIONS)
def test_no_edges_and_no_rows(device: str, reduce: str) -> None:
    for targets, sources in ((4, 3), (0, 3), (4, 0)):
        a, _ = graph(targets, sources, 0, device)
        given = arguments_of(gine, a, 6)
        out = gnnsparse.aggregate_edges(a, gine, reduce=reduce, **given)
        assert out.shape == (0 if reduce == "none" else targets, 6)
        assert bool((out == (torch.tensor(1e-4) if reduce == "powermean" else 0)).all())
        grads = torch.autograd.grad(out.sum(), list(given.values()))
        assert not any(grad.any() for grad in grads)


def test_several_at_once(device: str) -> None:
    """One gather computes several reductions, and several messages, one of which is of edges."""
    torch.manual_seed(4)
    a, edges = graph(20, 20, 100, device)
    x, e = (torch.randn(n, 8, device=device) for n in (20, 100))
    found = gnnsparse.aggregate_edges(
        a, lambda x_i, x_j, e_ij: x_i - x_j * e_ij, reduce=["mean", "std", "max"], x_i=x, x_j=x, e_ij=e
    )
    both = gnnsparse.aggregate_edges(
        a, lambda x_i, x_j, e_ij: (e_ij + x_i + x_j, torch.sigmoid(e_ij) * x_j), reduce=("none", "sum"),
        x_i=x, x_j=x, e_ij=e,
    )  # fmt: skip
    source, target = edges.to(device)
    for reduce, out in zip(("mean", "std", "max"), found, strict=True):
        want = plain(lambda x_i, x_j, e_ij: x_i - x_j * e_ij, edges.to(device), 20, reduce,
                     {"x_i": x, "x_j": x, "e_ij": e})  # fmt: skip
        torch.testing.assert_close(out, want, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(both[0], e + x[target] + x[source])
    want = torch.zeros_like(x).index_add(0, target, torch.sigmoid(e) * x[source])
    torch.testing.assert_close(both[1], want)


@pytest.mark.parametrize("reduce", REDUCTIONS)
def test_results_may_be_changed_in_place(device: str, reduce: str) -> None:
    """As torch.nn.ReLU(inplace=True) behind a layer does: no backward pass needs what it overwrites."""
    torch.manual_seed(7)
    a, _ = graph(9, 9, 40, device)
    x = torch.randn(9, 4, device=device, requires_grad=True)
    run = lambda: gnnsparse.aggregate_edges(a, lambda x_j: x_j.sin(), reduce=reduce, x_j=x)  # noqa: E731
    (want,) = torch.autograd.grad(run().relu().square().sum(), x)
    (found,) = torch.autograd.grad(run().relu_().square().sum(), x)
    assert torch.equal(found, want)


@pytest.mark.parametrize("reduce", ["sum", ["sum", "var"], ["sum", "std", "sum"]])
def test_sums_that_are_slopes_may_be_changed_in_place(device: str, reduce: Any) -> None:
    """What is left for the gradients of targets, of whose slopes one is a result, is not the caller's."""
    torch.manual_seed(8)
    a, _ = graph(9, 11, 40, device)
    leaves = [torch.randn(n, 4, device=device, requires_grad=True) for n in (11, 9)]

    def gradients(change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
        message = lambda x_j, y_i: x_j * y_i.exp()  # noqa: E731
        found = gnnsparse.aggregate_edges(a, message, reduce=reduce, x_j=leaves[0], y_i=leaves[1])
        found = [found] if isinstance(reduce, str) else found
        return torch.autograd.grad(sum(change(y).square().sum() for y in found), leaves)

    for found, want in zip(gradients(torch.relu_), gradients(torch.relu), strict=True):
        assert torch.equal(found, want)


@pytest.mark.parametrize("is_root", [False, True])
def test_gradients_of_a_variance_and_its_root(is_root: bool) -> None:
    """Of first and second order; in the first row is none of either, in which a root has no slope."""
    generator = torch.Generator().manual_seed(6)
    mean = torch.randn(5, 3, generator=generator, dtype=torch.float64)
    squares = 3 * (mean.square() + torch.rand(5, 3, generator=generator, dtype=torch.float64) + 0.1)
    squares[0] = 3 * mean[0].square() - 1
    counts = torch.full((5, 1), 1 / 3, dtype=torch.float64)
    leaves = [t.requires_grad_() for t in (mean, squares)]
    for check in (torch.autograd.gradcheck, torch.autograd.gradgradcheck):
        assert check(lambda *given: _spread(*given, counts, is_root), leaves)


@pytest.mark.parametrize("reduce", ["softmax", "powermean"])
@pytest.mark.parametrize("shape", [(), (1,), (9,)])
def test_temperature(device: str, shape: tuple[int, ...], reduce: str) -> None:
    torch.manual_seed(5)
    a, edges = graph(12, 14, 90, device)
    x = torch.randn(14, 9, device=device, requires_grad=True)
    temperature = (torch.rand(shape, device=device) + 0.5).requires_grad_()
    message = lambda x_j: 3.0 * x_j  # noqa: E731
    inputs = (x, temperature)
    by_torch = lambda x, t: plain(message, edges.to(device), 12, reduce, {"x_j": x}, t)  # noqa: E731

    def results(of: Callable[..., torch.Tensor], *given: torch.Tensor) -> list[torch.Tensor]:
        out = of(*given)
        return [out, *torch.autograd.grad(out.square().sum(), given)]

    found = results(
        lambda x, t: gnnsparse.aggregate_edges(a, message, reduce=reduce, temperature=t, x_j=x), *inputs
    )
    wide = [t.detach().double().requires_grad_() for t in inputs]
    assert_all_accurate(found, results(by_torch, *inputs), lambda: results(by_torch, *wide))
    number = gnnsparse.aggregate_edges(a, message, reduce=reduce, temperature=0.5, x_j=x)
    torch.testing.assert_close(number, plain(message, edges.to(device), 12, reduce, {"x_j": x}, 0.5))


@pytest.mark.parametrize("temperature", [100.0, -300.0, 8e6, 0.0, None])
@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
def test_large_exponents_of_softmax(device: str, precision: str, temperature: float | None) -> None:
    """Larger than float16 has, and rounded to bfloat16 too far apart for exp, of messages near each other.

    Wrong by no more than a few roundings of what is stored, and what float32 makes of the exponents.
    """
    torch.manual_seed(9)
    a, edges = graph(12, 14, 90, device, precision)
    dtype, message = a.precision.storage, lambda x_j, b: x_j + b
    x = 0.02 * torch.randn(14, 4, device=device)
    b = torch.tensor([700.0, -2000.0, 900.0, 0.0], device=device)
    leaves = [x.to(dtype), b if temperature != 8e6 else 0 * b]
    if temperature is None:
        leaves.append(torch.tensor([200.0, -50.0, 100.0, 0.0], device=device))

    def results(of: Callable[..., torch.Tensor], to: torch.dtype | None) -> list[torch.Tensor]:
        given = [t.detach().clone() if to is None else t.to(to) for t in leaves]
        out = of(*(t.requires_grad_() for t in given))
        probe = torch.randn(out.shape, generator=torch.Generator().manual_seed(0)).to(dtype).to(out)
        return [out.detach().to(dtype), *torch.autograd.grad(out, given, probe)]

    def ours(x: torch.Tensor, b: torch.Tensor, t: Any = temperature) -> torch.Tensor:
        return gnnsparse.aggregate_edges(a, message, reduce="softmax", temperature=t, x_j=x, b=b)

    def theirs(x: torch.Tensor, b: torch.Tensor, t: Any = temperature) -> torch.Tensor:
        return plain(message, edges.to(device), 12, "softmax", {"x_j": x, "b": b}, t)

    exact, like = results(theirs, torch.float64), results(theirs, torch.float32)
    for one, want, other in zip(results(ours, None), exact, like, strict=True):
        error, scale = (one.double() - want).abs().amax(0), want.abs().amax(0).clamp(min=1)
        allowed = 8 * torch.finfo(dtype).eps * scale + 4 * (other.double() - want).abs().amax(0)
        assert (error <= allowed).all(), (error, allowed)


def test_gradients_of_gradients(device: str) -> None:
    torch.manual_seed(6)
    a, edges = graph(10, 10, 60, device)
    given = arguments_of(gated, a, 4)
    leaves = list(given.values())

    def penalty(out: torch.Tensor) -> torch.Tensor:
        grads = torch.autograd.grad(out.square().sum(), leaves, create_graph=True)
        return sum((g.square().sum() for g in grads), start=out.new_zeros(()))

    ours = penalty(gnnsparse.aggregate_edges(a, gated, **given))
    theirs = penalty(plain(gated, edges.to(device), 10, "sum", given))
    for found, want in zip(
        torch.autograd.grad(ours, leaves), torch.autograd.grad(theirs, leaves), strict=True
    ):
        torch.testing.assert_close(found, want, rtol=1e-4, atol=1e-3)


def test_only_what_is_needed(device: str) -> None:
    """An argument without a gradient has none, and the results without one change nothing."""
    a, _ = graph(10, 10, 60, device)
    given = arguments_of(gated, a, 4)
    x = given["v_j"]
    kept = {name: t.detach() for name, t in given.items() if name != "v_j"}
    out, gates = gnnsparse.aggregate_edges(
        a, lambda k_i, q_j, v_j, e_ij: (gated(k_i, q_j, v_j, e_ij), torch.sigmoid(e_ij)), v_j=x, **kept
    )
    (grad,) = torch.autograd.grad(out.sum(), x, retain_graph=True)
    whole = torch.autograd.grad(gnnsparse.aggregate_edges(a, gated, **given).sum(), x)[0]
    torch.testing.assert_close(grad, whole)
    for again in (False, True):
        found = torch.autograd.grad(gates.sum(), x, create_graph=again, allow_unused=True, retain_graph=True)
        assert found[0] is None
    (grad,) = torch.autograd.grad(out.sum() + gates.sum(), x, create_graph=True)
    torch.testing.assert_close(grad, whole)


def test_added_loops_and_repeats(device: str) -> None:
    """Self-loops that prepare added are edges, which have no rows; repeated edges count each."""
    edges = torch.tensor([[0, 0, 1, 2, 2], [1, 1, 2, 0, 2]])
    a = gnnsparse.prepare(edges, num_nodes=3, values="gcn", cache=False).to(device)
    x = torch.randn(3, 5, device=device)
    loops = torch.cat([edges, torch.tensor([[0, 1], [0, 1]])], dim=1).to(device)
    for reduce in ("sum", "mean", "max"):
        out = gnnsparse.aggregate_edges(a, lambda x_j: x_j.exp(), reduce=reduce, x_j=x)
        want = plain(lambda x_j: x_j.exp(), loops, 3, reduce, {"x_j": x})
        torch.testing.assert_close(out, want)
    with pytest.raises(ValueError, match=r"^e_ij: has a row for each edge"):
        gnnsparse.aggregate_edges(
            a, lambda x_j, e_ij: x_j + e_ij, x_j=x, e_ij=torch.randn(5, 5, device=device)
        )


def test_compiled(device: str) -> None:
    torch.manual_seed(7)
    a, _ = graph(16, 16, 90, device)
    given = arguments_of(gine, a, 8)
    leaves = list(given.values())
    step = lambda **x: gnnsparse.aggregate_edges(a, gine, reduce="mean", **x) * 2  # noqa: E731
    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    found, want = compiled(**given), step(**given)  # first where nothing is known of the graph
    torch.testing.assert_close(found, want)
    grads = [torch.autograd.grad(out.sum(), leaves) for out in (found, want)]
    torch.testing.assert_close(*grads)
    other = torch.compile(  # what may change from call to call runs between what is compiled
        lambda x: gnnsparse.aggregate_edges(a, lambda x_j: x_j.tanh(), x_j=x) + 1, backend="aot_eager"
    )
    x = given["x_j"].detach()
    torch.testing.assert_close(other(x), gnnsparse.aggregate_edges(a, lambda x_j: x_j.tanh(), x_j=x) + 1)


def test_a_message_that_changes(device: str) -> None:
    """Tensors and numbers from outside are read in each call."""
    a, edges = graph(9, 9, 30, device)
    x, outside = torch.randn(9, 4, device=device), {"scale": torch.ones(4, device=device), "power": 2}
    message = lambda x_j: x_j ** outside["power"] * outside["scale"]  # noqa: E731
    before = gnnsparse.aggregate_edges(a, message, x_j=x)
    outside["scale"] = outside["scale"] * 3
    torch.testing.assert_close(gnnsparse.aggregate_edges(a, message, x_j=x), 3 * before)
    outside["power"] = 3
    want = plain(lambda x_j: 3 * x_j**3, edges.to(device), 9, "sum", {"x_j": x})
    torch.testing.assert_close(gnnsparse.aggregate_edges(a, message, x_j=x), want)


def test_vmap_and_functional_gradients(device: str) -> None:
    a, _ = graph(8, 8, 30, device)
    x = torch.randn(3, 8, 4, device=device)
    run = lambda x: gnnsparse.aggregate_edges(a, lambda x_j: x_j.tanh(), x_j=x)  # noqa: E731
    torch.testing.assert_close(torch.vmap(run)(x), torch.stack([run(one) for one in x]))
    grad = torch.func.grad(lambda x: run(x).square().sum())(x[0])
    leaf = x[0].clone().requires_grad_()
    torch.testing.assert_close(grad, torch.autograd.grad(run(leaf).square().sum(), leaf)[0])


def refusals() -> Iterator[tuple[type[Exception], str, Callable[[Any, torch.Tensor], Any]]]:
    call = gnnsparse.aggregate_edges
    ones = torch.ones
    yield (
        TypeError,
        "A: got a tensor of dtype torch.float32; accepted: a SparseOperand",
        lambda a, x: call(x, gine, x_j=x),
    )
    yield TypeError, "message: got int; accepted: a function", lambda a, x: call(a, 3, x_j=x)
    yield TypeError, "x_j: got list; accepted", lambda a, x: call(a, torch.tanh, x_j=[1])
    yield ValueError, "x_j: has shape (5, 4); accepted: (6,) or (6, features)", lambda a, x: call(
        a, lambda x_j: x_j.tanh(), x_j=ones(5, 4))  # fmt: skip
    yield (
        TypeError,
        "x_j: got a tensor of dtype torch.float64",
        lambda a, x: call(a, lambda x_j: x_j.tanh(), x_j=x.double()),
    )
    yield ValueError, "reduce: got 'prod'; accepted: sum, mean", lambda a, x: call(
        a, lambda x_j: x_j.tanh(), reduce="prod", x_j=x)  # fmt: skip
    yield TypeError, "reduce: got NoneType; accepted: one of sum, mean", lambda a, x: call(
        a, lambda x_j: x_j.tanh(), reduce=None, x_j=x)  # fmt: skip
    yield ValueError, "temperature: got 0 for a power mean; accepted: a number", lambda a, x: call(
        a, lambda x_j: x_j.tanh(), reduce="powermean", temperature=0, x_j=x)  # fmt: skip
    yield ValueError, "temperature: has 3 numbers; accepted: one, or 4, the features", lambda a, x: call(
        a, lambda x_j: x_j.tanh(), reduce="softmax", temperature=ones(3), x_j=x)  # fmt: skip
    yield ValueError, "reduce: has 2 names for 3 messages", lambda a, x: call(
        a, lambda x_j: (x_j, x_j, x_j), reduce=("sum", "max"), x_j=x)  # fmt: skip
    yield ValueError, "message: calls cumsum, which has no elementwise kernel", lambda a, x: call(
        a, lambda x_j: torch.cumsum(x_j, 1), x_j=x)  # fmt: skip
    yield AttributeError, "message: takes the attribute 'shape' of a tensor", lambda a, x: call(
        a, lambda x_j: x_j * x_j.shape[0], x_j=x)  # fmt: skip
    yield ValueError, "message: tests the value of a tensor", lambda a, x: call(
        a, lambda x_j: x_j if x_j > 0 else 2 * x_j, x_j=x)  # fmt: skip
    yield ValueError, "message: calls linear of something else than numbers of edges", lambda a, x: call(
        a, lambda x_j: F.linear(x_j, ones(4, 4)), x_j=x)  # fmt: skip
    yield ValueError, "message: puts e_ij through a weight that does not fit; ", lambda a, x: call(
        a, lambda x_j, e_ij: x_j + F.linear(e_ij, ones(4, 2)), x_j=x, e_ij=ones(9, 3))  # fmt: skip
    yield ValueError, "arguments: has none with a row for each", lambda a, x: call(a, lambda w: w, w=ones(4))
    yield ValueError, "message: mixes features of widths 4 and 3", lambda a, x: call(
        a, lambda x_j, y_i: x_j + y_i, x_j=x, y_i=ones(6, 3))  # fmt: skip


@pytest.mark.parametrize(("error", "message", "call"), list(refusals()), ids=lambda value: str(value)[:40])
def test_refused(error: type[Exception], message: str, call: Callable[[Any, torch.Tensor], Any]) -> None:
    a = gnnsparse.prepare(torch.randint(0, 6, (2, 9)), num_nodes=6, cache=False)
    with pytest.raises(error, match=f"^{re.escape(message)}"):
        call(a, torch.randn(6, 4))
