"""Errors of operations in each precision, against float64 and beside those of a plain run."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from gnnsparse import attention, graph_attention, prepare, sddmm, spmm
from gnnsparse.bench.accuracy.data import HEADS, Operands, make_operands
from gnnsparse.bench.accuracy.plain import SLOPE, PlainOperations, by_head
from gnnsparse.precision import Precision
from gnnsparse.sparse.operand import SparseOperand
from gnnsparse.testing import measure_errors

__all__ = ["OPERATIONS", "ROUNDING", "Row", "judge", "operation_rows", "outputs_of"]

Row = dict[str, Any]
#: Computes an operation of the library from an operand and the dense operands.
Operation = Callable[[SparseOperand, Operands], torch.Tensor]

#: The largest relative error of rounding one number to a precision: half the distance from 1 to the next one.
ROUNDING = {"fp32": 2.0**-24, "tf32": 2.0**-11, "fp16": 2.0**-11, "bf16": 2.0**-8}


def _graph_attention(a: SparseOperand, x: Operands) -> torch.Tensor:
    q, k = x.q[:, :HEADS], x.k[:, :HEADS]
    out: torch.Tensor = graph_attention(a, q, k, by_head(x.v), score="additive", negative_slope=SLOPE)
    return out.flatten(1)


OPERATIONS: dict[str, Operation] = {
    "spmm": lambda a, x: spmm(a, x.v),
    "sddmm": lambda a, x: sddmm(a, x.q, x.k),
    "attention": lambda a, x: attention(a, x.q, x.k, x.v),
    "graph_attention": _graph_attention,
}


def outputs_of(precision: Precision) -> tuple[torch.dtype, ...]:
    """Returns the dtypes that results of a precision are measured in: those of dense operands in training."""
    return tuple(dict.fromkeys((torch.float32, precision.storage)))


def operation_rows(
    ops: Sequence[str],
    ranges: Sequence[str],
    precisions: Sequence[str],
    seed: int,
    device: torch.device | str,
    operations: dict[str, Operation] | None = None,
) -> Iterator[Row]:
    """Measures operations on operands of each range, in each precision and with results of each dtype.

    Args:
        ops: names in OPERATIONS.
        ranges: names in RANGES.
        precisions: names of precisions.
        seed: seed of the operands.
        device: where they are computed.
        operations: what computes them; None: OPERATIONS. A test gives one that is wrong.

    Yields:
        What `judge` returns, with the keys "op", "range", "precision" and "output".
    """
    operations = operations or OPERATIONS
    for op, name in itertools.product(ops, ranges):
        operands = make_operands(op, name, seed, device)
        for precision in map(Precision, precisions):
            for dtype in outputs_of(precision):
                about = {"op": op, "range": name, "precision": precision.value}
                row = _measure(op, operations[op], operands, precision, dtype)
                yield {**about, "output": str(dtype).removeprefix("torch."), **row}


def _measure(op: str, run: Operation, operands: Operands, precision: Precision, dtype: torch.dtype) -> Row:
    a = prepare(operands.graph, precision=precision, cache=False)
    index, values = a.indices(), operands.graph.values
    assert values is not None
    given = Operands(operands.graph, *(x.to(dtype) for x in (operands.q, operands.k, operands.v)))
    try:
        actual = run(a, given)
    except Exception as error:  # a kernel that fails is a result, and the others are measured
        return _failed(f"{type(error).__name__}: {' '.join(str(error).split())}")
    # The operands that the exact result is of were not rounded: their rounding is a part of the error.
    exact = PlainOperations(operands, index, values, None)
    seen = Operands(operands.graph, *(x.float() for x in (given.q, given.k, given.v)))
    plain = PlainOperations(seen, index, values, precision).run(op).to(dtype)
    return judge(actual, plain, exact.run(op), exact.sizes(op), _truncation(op, operands, precision))


def _truncation(op: str, operands: Operands, precision: Precision) -> float:
    """The relative error of a sum that Tensor Cores truncate, which a plain run, that rounds it, has not.

    Each instruction adds at least 8 terms, and cuts what is below 2^-23 of the sum off. Kernels of fp32 add
    short sums of Tensor Cores up in float32.
    """
    if operands.q.device.type != "cuda" or precision is Precision.FP32:
        return 0.0
    longest = operands.q.shape[1] if op == "sddmm" else int(operands.graph.csr.degrees.max())
    return longest / 8 * 2.0**-23


def _most_elements(result: torch.Tensor, exact: torch.Tensor) -> float:
    """The relative error that 90 % of the elements do not exceed, without those that should be 0."""
    counted = exact != 0
    if not counted.any():
        return 0.0
    errors = ((result.double() - exact) / exact)[counted].abs()
    return float(errors.kthvalue(-(-9 * errors.numel() // 10)).values)


def _failed(problem: str) -> Row:
    names = ("error", "largest", "elements", "of_terms", "plain", "allowed", "lost", "infinite")
    return {**dict.fromkeys(names), "ok": False, "problem": problem}


def judge(
    actual: torch.Tensor,
    plain: torch.Tensor,
    exact: torch.Tensor,
    sizes: torch.Tensor,
    truncation: float = 0.0,
) -> Row:
    """Compares a result with the exact one.

    Args:
        actual: the result.
        plain: that of a plain run in its precision, of the same shape and dtype.
        exact: that in float64.
        sizes: the root of the sum of the squares of each element's terms, float64.
        truncation: a relative error that is allowed besides.

    Returns:
        A dict with these keys, of which the errors are of finite elements and None if there are none:
        "error": relative error in the Frobenius norm; "largest": largest error over the largest element;
        "elements": relative error that 90 % of the elements do not exceed; "of_terms": error relative to the
        norm of `sizes`, which does not grow where terms cancel; "plain": error of the plain run; "allowed":
        the largest `error` that the rule of gnnsparse.testing accepts; "lost": fraction of elements that are
        0 and should not be; "infinite": number of elements that are not finite; "ok": whether the rule holds
        and the plain run has as many; "problem": what is wrong, or "".
    """
    if actual.shape != plain.shape or actual.dtype != plain.dtype:
        return _failed(
            f"the result is {actual.dtype} {tuple(actual.shape)}, not {plain.dtype} {tuple(plain.shape)}"
        )
    finite = actual.isfinite() & plain.isfinite()
    unequal = int((actual.isfinite() != plain.isfinite()).sum())
    some = bool(finite.any())
    measure = functools.partial(torch.masked_select, mask=finite)
    kept, right, terms = measure(actual), measure(exact), measure(sizes)
    # Two roundings are always allowed, as in gnnsparse.bench.check.
    floor = max(torch.finfo(actual.dtype).eps, 1e-6, truncation)
    errors = measure_errors(kept, measure(plain), right, floor=floor, scale=terms)
    scale = float(terms.norm()) or 1.0
    problem = "" if errors.ok else f"error {max(errors.actual):.1e}, accepted {max(errors.allowed):.1e}"
    if unequal:
        problem = f"{unequal} elements are finite in it or in a plain run only"
    return {
        "error": errors.actual[0] if some else None,
        "largest": errors.actual[1] if some else None,
        "elements": _most_elements(kept, right) if some else None,
        "of_terms": float((kept.double() - right).norm()) / scale if some else None,
        "plain": errors.plain[0] if some else None,
        "allowed": errors.allowed[0] if some else None,
        "lost": float(((actual == 0) & (exact != 0)).double().mean()) if actual.numel() else 0.0,
        "infinite": int((~actual.isfinite()).sum()),
        "ok": not problem,
        "problem": problem,
    }  # fmt: skip
