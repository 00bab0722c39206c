"""Transforms of torch.func against the reference in float64, and that against differences."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch.autograd import forward_ad
from torch.utils import _pytree as pytree

import gnnsparse
from gnnsparse import SparseOperand
from gnnsparse.testing import assert_all_accurate, random_graph
from tests.helpers import make

# torch warns about itself.
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")

Function = Callable[..., torch.Tensor]
Arguments = tuple[torch.Tensor, ...]
func = torch.func
ROWS, COLS, WIDTH = 12, 9, 5
REDUCTIONS = ("mean", "max", "min")


def cases(a: SparseOperand, impl: str) -> dict[str, tuple[Function, tuple[Any, ...]]]:
    """Returns the operations with the shapes of their arguments, by name."""
    x, values, q = (COLS, WIDTH), (a.nnz,), (ROWS, WIDTH)
    by_head = {"x": (COLS, 2, 3), "q": (ROWS, 2, 3), "values": (a.nnz, 2)}

    def attention(fused: bool | None) -> Function:
        return lambda q, k, v, b: gnnsparse.attention(a, q, k, v, bias=b, impl=impl, fused=fused)

    def many(x: torch.Tensor) -> torch.Tensor:
        return a @ x if impl == "auto" else torch.stack([gnnsparse.spmm(a, one, impl=impl) for one in x])

    def layer(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        weights = gnnsparse.edge_softmax(a, gnnsparse.sddmm(a, q, k, impl=impl), impl=impl)
        return gnnsparse.spmm(a, v, weights, impl=impl)

    reduced = {
        reduce: (partial(gnnsparse.spmm, a, impl=impl, reduce=reduce), (x, values)) for reduce in REDUCTIONS
    }
    return {
        "spmm": (lambda x, v: gnnsparse.spmm(a, x, v, impl=impl), (x, values)),
        "batch": (many, ((2, COLS, 3),)),
        "own": (lambda x: gnnsparse.spmm(a, x, impl=impl), (x,)),
        "sddmm": (lambda q, k: gnnsparse.sddmm(a, q, k, impl=impl), (q, x)),
        "softmax": (lambda s: gnnsparse.edge_softmax(a, s, impl=impl), (values,)),
        "attention": (attention(None), (q, x, (COLS, 4), values)),
        "unfused": (attention(False), (q, x, (COLS, 4), values)),
        "attention of heads": (attention(None), ((2, *q), (2, *x), (2, COLS, 4), values)),
        **reduced,
        "layer": (layer, (q, x, x)),
        "layer of heads": (layer, (by_head["q"], by_head["x"], by_head["x"])),
        **{f"{name} of heads": (f, (by_head["x"], by_head["values"])) for name, (f, _) in reduced.items()},
    }


NAMES = ("spmm", "own", "sddmm", "softmax", "attention", "unfused")
OF_HEADS = ("attention of heads", "layer of heads", *(f"{reduce} of heads" for reduce in REDUCTIONS))


@pytest.fixture
def operand(device: str) -> SparseOperand:
    return make(random_graph(ROWS, COLS, 0.3, seed=1), device)


def tensors(shapes: tuple[Any, ...], device: str, seed: int) -> Arguments:
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(shape, generator=generator).to(device) for shape in shapes)


def like(arguments: Arguments) -> Arguments:
    """Returns tangents, or a gradient, which are the same numbers in every dtype."""
    shapes = tuple(t.shape for t in arguments)
    return tuple(t.to(a) for t, a in zip(tensors(shapes, "cpu", 7), arguments, strict=True))


def every(arguments: Arguments) -> tuple[int, ...]:
    return tuple(range(len(arguments)))


def cubed(f: Function) -> Function:
    return lambda *arguments: (f(*arguments) ** 3).sum()


def batch(arguments: Arguments, dim: int) -> Arguments:
    return tuple(torch.stack([t, 2 * t, t - 1], dim) for t in arguments)


def vmap_of(f: Function, arguments: Arguments, count: int) -> Any:
    in_dims = (*(1,) * count, *(None,) * (len(arguments) - count))
    return torch.vmap(f, in_dims)(*batch(arguments[:count], 1), *arguments[count:])


def pulled_back(f: Function, arguments: Arguments) -> Any:
    out, pull = func.vjp(f, *arguments)
    return pull(*like((out,)))


def twice_pulled_back(f: Function, arguments: Arguments) -> Any:
    leaves = [t.clone().requires_grad_() for t in arguments]
    out, pull = func.vjp(cubed(f), *leaves)
    return torch.autograd.grad(sum(g.square().sum() for g in pull(torch.ones_like(out))), leaves)


TRANSFORMS: dict[str, Callable[[Function, Arguments], Any]] = {
    "grad": lambda f, a: func.grad(cubed(f), every(a))(*a),
    "vjp": pulled_back,
    "vjp, and autograd outside": twice_pulled_back,
    "jacrev": lambda f, a: func.jacrev(f, every(a))(*a),
    "jacrev of jacrev": lambda f, a: func.jacrev(func.jacrev(cubed(f)))(*a),
    "vmap": lambda f, a: torch.vmap(f, in_dims=-1)(*batch(a, -1)),
    "vmap of the first": lambda f, a: vmap_of(f, a, 1),
    "vmap of the last": lambda f, a: torch.vmap(f, (*(None,) * (len(a) - 1), 0))(*a[:-1], *batch(a[-1:], 0)),
    "vmap of all but the last": lambda f, a: vmap_of(f, a, max(len(a) - 1, 1)),
    "vmap of vmap": lambda f, a: torch.vmap(torch.vmap(f))(*batch(batch(a, 0), 0)),
    "vmap of grad": lambda f, a: torch.vmap(func.grad(cubed(f), every(a)))(*batch(a, 0)),
    "grad of vmap": lambda f, a: func.grad(cubed(torch.vmap(f)), every(a))(*batch(a, 0)),
}


@pytest.mark.parametrize("name", [*NAMES, *REDUCTIONS, "batch", "layer", *OF_HEADS])
@pytest.mark.parametrize("transform", TRANSFORMS)
def test_an_operation_composes(operand: SparseOperand, device: str, name: str, transform: str) -> None:
    f, shapes = cases(operand, "auto")[name]
    reference, _ = cases(operand, "reference")[name]
    arguments, run = tensors(shapes, device, 3), TRANSFORMS[transform]
    got, plain = (pytree.tree_leaves(run(g, arguments)) for g in (f, reference))
    exact = pytree.tree_leaves(run(reference, tuple(t.double() for t in arguments)))
    assert [t.shape for t in got] == [t.shape for t in exact]
    # Derivatives of a cube add terms that cancel, in an order of their own: some roundings of float32.
    assert_all_accurate(got, plain, exact, floor=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_gradcheck_of_the_reference(operand: SparseOperand, device: str, name: str) -> None:
    f, shapes = cases(operand, "reference")[name]
    arguments = [t.double().requires_grad_() for t in tensors(shapes, device, 5)]
    # On a GPU torch adds in any order.
    assert torch.autograd.gradcheck(f, arguments, nondet_tol=1e-12)
    assert torch.autograd.gradgradcheck(f, arguments, nondet_tol=1e-12)


@pytest.mark.parametrize("precision", ["fp32", "tf32", "fp16", "bf16", "int8", "fp8"])
def test_vmap_rounds_as_the_products_do(device: str, precision: str) -> None:
    """Entries of a batch, each of another size, are scaled to 8 bits as they would be in a loop."""
    a = make(random_graph(ROWS, COLS, 0.3, seed=1), device, precision=precision)
    sizes = torch.tensor([1e-3, 1.0, 50.0, 1e4], device=device)
    batch = torch.randn(4, COLS, WIDTH, device=device) * sizes[:, None, None]
    close = {"rtol": 0, "atol": 0} if device == "cpu" else {"rtol": 1e-5, "atol": 1e-5}
    for impl in ("auto", "reference"):
        f = partial(gnnsparse.spmm, a, impl=impl)
        # The reference adds in any order on a GPU.
        got, want = torch.vmap(f)(batch), torch.stack([f(x) for x in batch])
        torch.testing.assert_close(got / sizes[:, None, None], want / sizes[:, None, None], **close)


@pytest.mark.parametrize("name", ["spmm", "own", "max", "sddmm", "softmax"])
def test_forward_mode_and_batches_of_gradients_are_refused(
    operand: SparseOperand, device: str, name: str
) -> None:
    """They would be lost without a word, or read by a kernel as if they were one tensor."""
    f, shapes = cases(operand, "auto")[name]
    arguments = tensors(shapes, device, 3)
    tangent = pytest.raises(NotImplementedError, match=r"^gnnsparse\.\w+: got a tensor with a tangent")
    with tangent:
        func.jvp(f, arguments, like(arguments))
    with tangent:
        func.jacfwd(f)(*arguments)
    for first in (arguments[0], arguments[0].clone().requires_grad_()):
        with forward_ad.dual_level(), tangent:
            f(forward_ad.make_dual(first, first.cos()), *arguments[1:])
    leaves = [t.clone().requires_grad_() for t in arguments]
    out = f(*leaves)
    with pytest.raises(NotImplementedError, match=r"^gnnsparse\.\w+: got a batch of gradients"):
        torch.autograd.grad(out, leaves, batch(like((out,)), 0)[0], is_grads_batched=True)


def test_no_fused_kernel_is_promised_inside_a_transform(operand: SparseOperand, device: str) -> None:
    q, k, v = (torch.randn(2, n, WIDTH, device=device) for n in (ROWS, COLS, COLS))
    with pytest.raises(ValueError, match="fused: got True inside a transform"):
        torch.vmap(lambda q, k, v: gnnsparse.attention(operand, q, k, v, fused=True))(q, k, v)


@pytest.mark.parametrize("randomness", ["same", "different"])
def test_vmap_of_dropout(operand: SparseOperand, device: str, randomness: str) -> None:
    one = [torch.randn(n, WIDTH, device=device) for n in (ROWS, COLS, COLS)]
    three = [t.expand(3, -1, -1) for t in one]

    def f(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return gnnsparse.attention(operand, q, k, v, dropout_p=0.5)

    got = torch.vmap(f, randomness=randomness)(*three)
    assert all(torch.equal(got[0], other) == (randomness == "same") for other in got[1:])
    with pytest.raises(RuntimeError, match="randomness"):
        torch.vmap(f)(*three)


def test_what_is_kept_inside_a_transform_serves_calls_outside(device: str) -> None:
    graph = random_graph(ROWS, ROWS, 0.3, seed=2)
    x = torch.randn(ROWS, WIDTH, device=device)
    fresh = make(graph, device, values="gcn")
    used = make(graph, device, values="gcn")
    v = torch.randn(used.nnz, device=device)

    def everything(a: SparseOperand, x: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        y = a @ x + gnnsparse.spmm(a, x, a.T.transpose_values(a.transpose_values(v)))
        y = y + gnnsparse.spmm(a.T, x) + gnnsparse.spmm(a, x, a.from_coo_order(a.to_coo_order(v)))
        y = y + gnnsparse.attention(a, x, x, x, bias=v)
        return gnnsparse.spmm(a, y, gnnsparse.edge_softmax(a, gnnsparse.sddmm(a, x, y)))

    func.grad(lambda x: everything(used, x, v).sum())(x)
    torch.vmap(lambda x: everything(used, x, v))(x[None])
    assert torch.equal(everything(used, x, v), everything(fresh, x, v))


def test_an_operand_can_be_prepared_inside_a_transform(device: str) -> None:
    index = torch.randint(0, ROWS, (2, 40), device=device)
    weight, x = torch.rand(40, device=device), torch.randn(ROWS, WIDTH, device=device)
    kept: list[SparseOperand] = []

    def f(x: torch.Tensor) -> torch.Tensor:
        edges = index + torch.zeros_like(index)  # made inside, so that the transform wraps it
        kept.append(gnnsparse.prepare(edges, num_nodes=ROWS, values=weight, cache=False))
        return (kept[-1] @ x).sum()

    got = func.grad(f)(x)
    a = gnnsparse.prepare(index, num_nodes=ROWS, values=weight, cache=False)
    assert torch.equal(got, a.T @ torch.ones_like(x))
    assert torch.equal(kept[0] @ x, a @ x)


def test_graphs_that_vmap_maps_over_are_refused() -> None:
    index, x = torch.randint(0, ROWS, (3, 2, 40)), torch.randn(ROWS, WIDTH)
    with pytest.raises(ValueError, match=r"^edge_index: got a tensor that torch\.vmap maps over"):
        torch.vmap(lambda e: gnnsparse.prepare(e, num_nodes=ROWS, cache=False) @ x)(index)


def test_operators_refuse_a_tangent_instead_of_losing_it(operand: SparseOperand, device: str) -> None:
    x = torch.randn(COLS, WIDTH, device=device)
    ops = torch.ops.gnnsparse
    refused = pytest.raises(NotImplementedError, match=r"^torch\.ops\.gnnsparse\.spmm: got")

    def f(x: torch.Tensor) -> torch.Tensor:
        return ops.spmm(x, None, operand.handle)

    with refused:
        func.jvp(f, (x,), (x,))
    with refused:
        func.grad(lambda x: f(x).sum())(x)
    for leaf in (x, x.clone().requires_grad_()):
        with forward_ad.dual_level(), refused:
            f(forward_ad.make_dual(leaf, x))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # torch's compiler warns about itself
def test_transforms_inside_torch_compile(operand: SparseOperand, device: str) -> None:
    (x,) = tensors(((COLS, WIDTH),), device, 3)
    torch._dynamo.reset()
    g = torch.compile(func.grad(lambda x: (operand @ x).sum()), backend="aot_eager")
    assert torch.equal(g(x), operand.T @ torch.ones(ROWS, WIDTH, device=device))
