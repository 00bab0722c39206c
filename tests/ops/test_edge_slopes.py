"""Gradients of targets that follow from sums of the forward pass, and the passes that are left."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import gnnsparse
from gnnsparse.ops.edges import cpu
from gnnsparse.ops.edges.program import Function, Pass, column_pass, function_from, row_pass, with_slopes
from gnnsparse.testing import assert_all_accurate, with_gradients
from tests.ops import edge_passes
from tests.ops.edge_messages import plain


def left(function: Function, needs: tuple[bool, ...]) -> tuple[Function, bool, bool]:
    """Return the function with slopes, and whether its gradients need a pass over A, and over A^T."""
    found = with_slopes(function, needs)
    given = {slope.input for slope in found.slopes}
    others = tuple(needed and i not in given for i, needed in enumerate(needs))
    core = found.of(range(len(found.results)))
    return found, row_pass(core, others) is not None, column_pass(core, others) is not None


@pytest.mark.parametrize(
    ("make", "sums", "rows"),
    [
        (lambda: edge_passes._gine(8), 0, False),  # its map's gradients come with those of sources
        (edge_passes._resgated, 1, False),
        (edge_passes._extremes, 0, False),  # a maximum's slope is 1 where there is an edge
        (edge_passes._gated_gcn, 0, True),  # its new edges have gradients of their own
    ],
)  # fmt: skip
def test_passes_that_are_left(make: Callable[[], Function], sums: int, rows: bool) -> None:
    function = make()
    found, by_row, by_column = left(function, (True,) * (len(function.inputs) + 1))
    assert (len(found.sums), by_row, by_column) == (sums, rows, True)
    assert function_from(found.text).text == found.text


def test_only_targets_or_only_sources() -> None:
    """Without sources the pass over A gives everything, and without targets there is nothing to sum."""
    function = edge_passes._resgated()
    for needs, passes in (((True, False, False), (True, False)), ((False, True, False), (False, True))):
        found, *left_ = left(function, (*needs, False))
        assert (found is function, *left_) == (True, *passes)


def _std(x_i: Any, x_j: Any, x_ij: Any) -> Any:
    message = x_i - 2 * x_j + x_ij
    return message, message * message, -3.0 * message


def _products(x_i: Any, x_j: Any, y_i: Any) -> Any:
    return torch.relu(y_i * x_j + x_i)


def _squares_of_extremes(x_i: Any, x_j: Any) -> Any:
    return (x_i * x_j).exp(), x_i + x_j, 2 * x_i - x_j


CASES = [
    (_std, ["sum", "sum", "max"]), (_std, ["mean", "var", "min"]), (_products, "sum"), (_products, "std"),
    (_squares_of_extremes, ["sum", "max", "min"]), (_squares_of_extremes, ["max", "sum", "none"]),
]  # fmt: skip


@pytest.mark.parametrize(("message", "reduce"), CASES)
def test_gradients(device: str, message: Callable[..., Any], reduce: Any) -> None:
    """Against torch's operations: constants, squares, maxima and what has no such sums."""
    torch.manual_seed(0)
    edges = torch.stack([torch.randint(0, 9, (60,)), torch.randint(0, 11, (60,))])
    edges[:, :5] = edges[:, :1]
    made = gnnsparse.SparseGraph.from_edge_index(edges, (9, 14))
    a = gnnsparse.prepare(made, cache=False).to(device)
    names = message.__code__.co_varnames[: message.__code__.co_argcount]
    rows = {"_i": 14, "_j": 9, "ij": 60}
    leaves = [torch.randn(rows[name[-2:]], 6, device=device, requires_grad=True) for name in names]
    edges = edges.to(device)

    def ours(*x: torch.Tensor) -> torch.Tensor:
        found = gnnsparse.aggregate_edges(a, message, reduce=reduce, **dict(zip(names, x, strict=True)))
        return found if isinstance(reduce, str) else torch.cat(found)

    def theirs(*x: torch.Tensor) -> torch.Tensor:
        given = dict(zip(names, x, strict=True))
        if isinstance(reduce, str):
            return plain(message, edges, 14, reduce, given)
        one = [lambda k=k, **y: message(**y)[k] for k in range(len(reduce))]
        return torch.cat([plain(f, edges, 14, how, given) for f, how in zip(one, reduce, strict=True)])

    exact = lambda: with_gradients(theirs, [leaf.double() for leaf in leaves])  # noqa: E731
    assert_all_accurate(with_gradients(ours, leaves), with_gradients(theirs, leaves), exact)


def test_sums_do_not_overflow() -> None:
    """A result that fits float16 may have a slope that does not, which is a sum in float32."""
    count = 70_000
    edges = torch.stack([torch.arange(count), torch.zeros(count, dtype=torch.int64)])
    made = gnnsparse.SparseGraph.from_edge_index(edges, (count, 1))
    a = gnnsparse.prepare(made, precision="fp16", cache=False)
    x = torch.full((1, 8), 0.5, dtype=torch.float16, requires_grad=True)
    y = torch.full((count, 8), 2.0, dtype=torch.float16, requires_grad=True)
    out = gnnsparse.aggregate_edges(a, lambda x_i, y_j: (x_i - 0.5) * y_j, x_i=x, y_j=y)
    (grad,) = torch.autograd.grad(out, x, torch.full_like(out, 2.0**-10))
    assert out.eq(0).all()
    torch.testing.assert_close(grad, torch.full_like(grad, 2 * count * 2.0**-10))


def test_a_pass_is_saved(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step of a message with targets and sources takes two passes; without gradients no sum is added up."""
    runs: list[int] = []
    bind = cpu.bind

    def counted(pass_: Pass, *rest: Any) -> Any:
        run = bind(pass_, *rest)

        def counting(*tensors: Any) -> None:
            runs.append(len(pass_.outputs))
            run(*tensors)

        return counting

    monkeypatch.setattr(cpu, "bind", counted)
    edges = torch.randint(0, 8, (2, 30))
    a = gnnsparse.prepare(edges, num_nodes=8, cache=False)
    k, q = (torch.randn(8, 5, requires_grad=True) for _ in range(2))
    message = lambda k_i, q_j: torch.sigmoid(k_i + q_j)  # noqa: E731
    gnnsparse.aggregate_edges(a, message, k_i=k, q_j=q).sum().backward()
    with torch.no_grad():
        gnnsparse.aggregate_edges(a, message, k_i=k, q_j=q)
    assert runs == [2, 1, 1]
