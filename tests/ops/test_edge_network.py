"""The network of an interaction block as one kernel, in the emulator and on a GPU, beside float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch

import gnnsparse
from gnnsparse.nn import InteractionBlock
from gnnsparse.ops.edges.network import Options, can_run, edge_network, reference
from gnnsparse.ops.edges.schema import edges_of
from gnnsparse.testing import in_float64
from tests.nn.test_interaction import CHANGES, changed, plain
from tests.ops.conftest import Place

TARGETS, SOURCES = 40, 23


class Case(NamedTuple):
    dtype: torch.dtype
    edge_dim: int
    hidden: int
    act: str
    norm: bool = True
    edges: int = 300
    in_order: bool = False


CASES = [
    Case(torch.float16, 64, 64, "silu", in_order=True),
    Case(torch.bfloat16, 48, 64, "gelu", edges=128),
    Case(torch.float16, 64, 24, "relu", norm=False),
    Case(torch.bfloat16, 8, 40, "silu", edges=5),
    Case(torch.float16, 128, 96, "gelu", edges=600),
    Case(torch.bfloat16, 256, 256, "silu", edges=290),
]


def operand_of(case: Case, device: str) -> gnnsparse.SparseOperand:
    """Edges of which some are repeated, targets without any, and one whose edges cross tiles."""
    index = torch.stack(
        [torch.randint(0, SOURCES, (case.edges,)), torch.randint(0, TARGETS - 3, (case.edges,))]
    )
    index[1, case.edges // 4 : case.edges // 4 * 3] = 11
    index[:, 3] = index[:, 4]
    if case.in_order:
        index = index[:, (index[1] * SOURCES + index[0]).argsort(stable=True)]
    return gnnsparse.prepare(index.to(device), num_nodes=(SOURCES, TARGETS), cache=False)


def tensors_of(case: Case, device: str) -> list[Any]:
    dim, hidden = case.edge_dim, case.hidden
    shapes = [(case.edges, dim), (TARGETS, hidden), (SOURCES, hidden), (hidden, dim), (dim, hidden)]
    made: list[Any] = [torch.randn(shape, device="cpu").to(case.dtype) for shape in shapes]
    made[3] /= dim**0.5
    made[4] /= hidden**0.5
    made += [torch.randn(dim, device="cpu") for _ in range(3)]
    return [t.to(device).requires_grad_() for t in made[: 8 if case.norm else 6]] + [None] * (
        2 - 2 * case.norm
    )


def gradients(results: Any, tensors: list[Any], grads: list[Any]) -> list[torch.Tensor]:
    kept = [r for r, g in zip(results, grads, strict=True) if g is not None]
    given = [g.to(r.dtype) for r, g in zip(results, grads, strict=True) if g is not None]
    leaves = [t for t in tensors if t is not None]
    return list(torch.autograd.grad(kept, leaves, given, retain_graph=True, allow_unused=True))


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c.dtype}-{c.edge_dim}-{c.act}".replace("torch.", ""))
def test_results_and_gradients(gpu_place: Place, case: Case) -> None:
    torch.manual_seed(case.edges)
    operand, tensors = operand_of(case, gpu_place.device), tensors_of(case, gpu_place.device)
    options = Options(case.act, 1e-5 if case.norm else None)
    assert can_run(operand, case.dtype, (case.edge_dim, case.hidden), tensors[0])
    results = edge_network(operand, options, *tensors)
    wide = [None if t is None else t.detach().double().requires_grad_() for t in tensors]
    exact = reference(edges_of(operand), options, *wide)
    like = [torch.randn(r.shape, device="cpu").to(r) for r in results]
    rounding = torch.finfo(case.dtype).eps

    def compare(found: Any, wanted: Any, times: float) -> None:
        for one, want in zip(found, wanted, strict=True):
            error = (one.double() - want).detach().abs().amax() / want.detach().abs().amax()
            assert error < times * rounding, (tuple(one.shape), float(error))

    compare(results, exact, 1)
    assert not results[1][TARGETS - 3 :].any()
    for grads in (like, [like[0], None], [None, like[1]]):
        found = gradients(results, tensors, grads)
        compare(found, gradients(exact, wide, grads), 2)
        for one, again in zip(found, gradients(results, tensors, grads), strict=True):
            assert torch.equal(one, again)
    for one, again in zip(results, edge_network(operand, options, *tensors), strict=True):
        assert torch.equal(one, again)


def between_vectors(t: torch.Tensor) -> torch.Tensor:
    found = torch.cat([t[:1].flatten()[:1], t.flatten()])[1:].view(t.shape)
    assert found.data_ptr() % 16
    return found


@pytest.mark.parametrize("view", [between_vectors, lambda t: torch._neg_view(-t)], ids=["between", "neg"])
def test_what_kernels_cannot_read_is_copied(late_place: Place, view: Callable[[Any], Any]) -> None:
    case = Case(torch.float16, 16, 8, "silu", norm=False, edges=20)
    operand, tensors = operand_of(case, late_place.device), tensors_of(case, late_place.device)
    wanted = edge_network(operand, Options("silu", None), *tensors)
    viewed = [None if t is None else view(t) for t in tensors]
    for one, want in zip(edge_network(operand, Options("silu", None), *viewed), wanted, strict=True):
        assert torch.equal(one, want)


@pytest.mark.parametrize("norm", [True, False])
def test_a_block_runs_it(late_place: Place, norm: bool) -> None:
    """In the precision of its operand, and in half precision; gradients are differentiable again."""
    torch.manual_seed(1)
    case, device = Case(torch.bfloat16, 16, 24, "silu"), late_place.device
    index = edges_of(operand_of(case, device))
    layer = InteractionBlock((8, 6), 16, 24, norm=norm).to(device)
    edge_index = torch.stack([index.source, index.target])
    inputs = [torch.randn(shape, device="cpu") for shape in ((SOURCES, 8), (TARGETS, 6), (case.edges, 16))]
    x, y, e = (t.to(device).requires_grad_() for t in inputs)
    with in_float64(layer) as wide:
        exact = plain(wide, (x.double(), y.double()), edge_index, e.double())
    layer.precision = gnnsparse.Precision.BF16
    for halves in (False, True):
        given = [t.half() if halves else t for t in (x, y, e)]
        found = (layer.half() if halves else layer)((given[0], given[1]), edge_index, given[2])
        assert late_place.ran("cuda_edge_network")
        for one, want in zip(found, exact, strict=True):
            assert one.dtype == given[2].dtype
            assert (one.double() - want).abs().amax() < 0.02 * want.abs().amax()
        (of_e,) = torch.autograd.grad(found[1].float().square().sum(), e, create_graph=True)
        (twice,) = torch.autograd.grad(of_e.square().sum(), e)
        assert twice.isfinite().all()
        assert twice.any()


@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
@pytest.mark.parametrize("change", CHANGES)
def test_no_kernel_for_what_was_changed(late_place: Place, change: Any) -> None:
    layer, (x, e), edge_index = changed(change, late_place.device, torch.float16)
    found = layer(x, edge_index, e)
    if late_place.path is not None:
        assert not late_place.ran("cuda_edge_network")
    for one, want in zip(found, plain(layer.float(), x.float(), edge_index, e.float()), strict=True):
        assert (one - want).abs().amax() < 0.02 * want.abs().amax()


@pytest.mark.parametrize("sizes", [(12, 16), (16, 264)])
def test_what_it_does_not_take(late_place: Place, sizes: tuple[int, int]) -> None:
    operand = operand_of(CASES[0], late_place.device)
    assert not can_run(operand, torch.float16, sizes)
    assert not can_run(operand, torch.float32, (16, 16))


@pytest.mark.gpu
def test_a_block_is_captured() -> None:
    """With its gradients in a CUDA graph, which gives the bits of a call."""
    torch.manual_seed(2)
    case = Case(torch.float16, 256, 256, "silu", edges=3000)
    operand, tensors = operand_of(case, "cuda"), tensors_of(case, "cuda")
    options, grads = Options("silu", 1e-5), [torch.randn_like(tensors[0]), None]

    def step() -> list[torch.Tensor]:
        results = edge_network(operand, options, *tensors)
        # Without their graph, whose nodes of the tensors belong to the stream that it was made on.
        return [*(r.detach() for r in results), *gradients(results, tensors, grads)]

    wanted, graph = step(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = step()
    graph.replay()
    for one, want in zip(found, wanted, strict=True):
        assert torch.equal(one, want)
