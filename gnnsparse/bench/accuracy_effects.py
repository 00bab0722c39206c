"""Effects of 16 bits beside rounded operands: sums in float16, small gradients, and overflow.

It stands alone because each experiment yields rows that are tested against known truths, without the command.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from gnnsparse import SparseGraph, SparseOperand, prepare, spmm
from gnnsparse.bench.accuracy_operations import outputs_of
from gnnsparse.bench.session import Row
from gnnsparse.precision import Precision
from gnnsparse.testing import measure_errors, random_graph

__all__ = ["accumulation_rows", "half_sums", "overflow_rows", "scaling_rows"]

#: Numbers of terms of a sum.
TERMS = (256, 1024, 4096, 16384, 65536)
#: Sums of one case, each of other numbers.
_SUMS = 32
_BLOCK = 16


_ON_CPU: Any = {"dtype": torch.float32, "device": "cpu"}
#: What makes the terms of sums, [terms, sums], by name.
SERIES: dict[str, Callable[[int, torch.Generator], torch.Tensor]] = {
    "ones": lambda terms, _: torch.ones(terms, _SUMS, **_ON_CPU),
    "uniform": lambda terms, generator: torch.rand(terms, _SUMS, generator=generator, **_ON_CPU),
    "normal": lambda terms, generator: torch.randn(terms, _SUMS, generator=generator, **_ON_CPU),
}


def half_sums(terms: torch.Tensor, block: int = 1) -> torch.Tensor:
    """Add up float16 terms [n, sums] in float16; `block` of them are added exactly before each rounding."""
    total = torch.zeros(terms.shape[1], dtype=torch.float64, device=terms.device)
    for part in terms.double().split(block):
        # An exact sum is rounded (by way of float32, as torch does); what does not fit becomes infinite.
        total = (total + part.sum(0)).half().double()
    return total.half()


def _error(result: torch.Tensor, exact: torch.Tensor) -> float | None:
    """The relative error in the Euclidean norm; None if a sum is not finite."""
    if not result.isfinite().all():
        return None
    return float((result.double() - exact).norm() / exact.norm())


def accumulation_rows(
    device: torch.device | str, seed: int, terms: Sequence[int] = TERMS, series: Sequence[str] = tuple(SERIES)
) -> Iterator[Row]:
    """Measure sums of `terms` products of float16 operands, by the kernel and with emulated accumulators.

    Errors are None where a sum is not finite. The kernel has to keep the bound of float32 sums in any order:
    terms * 2^-24 times the sum of the magnitudes (Higham, "Accuracy and Stability of Numerical Algorithms",
    2002, section 4.2).
    """
    for name, count in itertools.product(series, terms):
        generator = torch.Generator("cpu").manual_seed(seed)
        x = SERIES[name](count, generator).half()
        exact = x.double().sum(0)
        columns = torch.arange(count, dtype=torch.int64, device="cpu")
        graph = SparseGraph.from_edge_index(torch.stack([columns, torch.zeros_like(columns)]), (count, 1))
        a = prepare(graph.to(device), precision="fp16", cache=False)
        summed = spmm(a, x.float().to(device))[0].cpu()
        sequential, blocks = half_sums(x), half_sums(x, _BLOCK)
        bound = count * 2.0**-24 * x.double().abs().sum(0)
        yield {
            "series": name, "terms": count, "kernel": _error(summed, exact),
            "half_blocks": _error(blocks, exact), "half": _error(sequential, exact),
            "ok": bool(((summed.double() - exact).abs() <= bound).all()),
        }  # fmt: skip


# Gradients that are too small for float16, and what scaling of the loss saves of them.
#
# A float16 number below 2^-24 is 0, and below 2^-14 it has less than 11 bits. Loss scaling (Micikevicius et
# al., "Mixed Precision Training", ICLR 2018, section 3.2) multiplies the loss, and with it all gradients,
# by a factor, and divides the gradients of the float32 parameters by it. torch's GradScaler begins with
# 2^16, and halves the factor after a step in which a gradient was not finite.

#: Sizes of the gradient of the loss by the product, as powers of two.
MAGNITUDES = (4, 0, -8, -14, -20, -24, -28, -32)
#: The first factor of torch's GradScaler.
INITIAL_SCALE = 2.0**16
#: The factor stays between 2 to the power of minus this and of this.
_MOST = 60
_NODES, _WIDTH, _DENSITY = 256, 32, 0.05


@dataclass(frozen=True, eq=False)
class _Case:
    """A product y = A x whose gradients are measured; `values` are the weights of A's nonzeros."""

    operand: SparseOperand
    values: torch.Tensor
    parameter: torch.Tensor

    def transposed(self, gradient: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        """Compute A^T times a gradient, in the dtype of both."""
        row, column = self.operand.indices()
        out = gradient.new_zeros(self.parameter.shape)
        return out.index_add_(0, column, values[:, None] * gradient[row])

    def gradient(self, gradient: torch.Tensor, scale: float) -> torch.Tensor:
        """The gradient of the parameter by the kernels, whose loss is scaled, divided by the scale."""
        leaf = self.parameter.detach().clone().requires_grad_()
        y = spmm(self.operand, leaf.to(self.operand.precision.storage))
        (found,) = torch.autograd.grad((y.float() * gradient).sum() * scale, leaf)
        return found / scale

    def plain(self, gradient: torch.Tensor, scale: float) -> torch.Tensor:
        """The same by plain operations: a gradient in 16 bits, float32 sums of rounded products, 16 bits."""
        dtype = self.operand.precision.storage
        rounded = (gradient * scale).to(dtype).float(), self.values.to(dtype).float()
        return self.transposed(*rounded).to(dtype).float() / scale


def _gradient_row(
    found: torch.Tensor, plain: torch.Tensor, exact: torch.Tensor, scale: float, dtype: torch.dtype
) -> Row:
    finite, counted = found.isfinite(), exact != 0
    both = finite & plain.isfinite()
    errors = measure_errors(found[both], plain[both], exact[both], floor=torch.finfo(dtype).eps)
    # Near the largest number, the order of a sum decides which side of it an element is on. An infinite
    # operand may spread to the row window (docs/numerics.md), so that more elements than in a plain run are.
    near = (exact.abs() * scale / torch.finfo(dtype).max - 1).abs() < 0.01
    spread = ~finite & bool((~plain.isfinite()).any())
    return {
        "error": errors.actual[0] if bool(finite.all()) else None,
        "lost": float((counted & (found == 0)).double().sum() / counted.double().sum()),
        "infinite": float((~finite).double().mean()),
        "ok": errors.ok and bool(((finite == plain.isfinite()) | near | spread).all()),
    }


def _dynamic_scale(case: _Case, gradient: torch.Tensor) -> tuple[float, int]:
    """GradScaler's factor in the end, the largest that is finite, and the steps that it skips before."""
    scale, skipped = INITIAL_SCALE, 0
    while not case.gradient(gradient, scale).isfinite().all() and scale > 2.0**-_MOST:
        scale, skipped = scale / 2, skipped + 1
    while skipped == 0 and scale < 2.0**_MOST and case.gradient(gradient, 2 * scale).isfinite().all():
        scale *= 2
    return scale, skipped


def scaling_rows(
    device: torch.device | str,
    seed: int,
    precisions: Sequence[str] = ("fp16", "bf16"),
    magnitudes: Sequence[int] = MAGNITUDES,
) -> Iterator[Row]:
    """Measure gradients by a float32 x of y = A x in 16 bits, by the way that the loss is scaled.

    The gradient of the loss by y is standard normal times 2 to the power of each of `magnitudes`. "scaled" is
    by INITIAL_SCALE, "dynamic" by the factor that GradScaler arrives at.
    """
    graph = random_graph(_NODES, _NODES, _DENSITY, seed=seed)
    generator = torch.Generator("cpu").manual_seed(seed)
    parameter, unit = (
        torch.randn(_NODES, _WIDTH, generator=generator, **_ON_CPU).to(device) for _ in range(2)
    )
    moved = graph.to(device)
    assert moved.values is not None
    for precision in map(Precision, precisions):
        if precision.storage == torch.float32:
            continue
        case = _Case(prepare(moved, precision=precision, cache=False), moved.values, parameter)
        for power in magnitudes:
            gradient = unit * 2.0**power
            exact = case.transposed(gradient.double(), case.values.double())
            ways, skipped = {"unscaled": 1.0}, 0
            if precision is Precision.FP16:  # the range of bfloat16 is that of float32
                dynamic, skipped = _dynamic_scale(case, gradient)
                ways |= {"scaled": INITIAL_SCALE, "dynamic": dynamic}
            for way, scale in ways.items():
                found, plain = (make(gradient, scale) for make in (case.gradient, case.plain))
                yield {
                    "precision": precision.value, "magnitude": power, "way": way, "scale": scale,
                    "skipped": skipped if way == "dynamic" else 0,
                    **_gradient_row(found, plain, exact, scale, precision.storage),
                }  # fmt: skip


# Sums that exceed the largest number of a result's dtype.

#: Nonzeros of each row.
DEGREES = (1024, 4096, 8192, 16384)
#: Each term of a sum: with it a row of 8,188 nonzeros has the sum 65,504, the largest number of float16.
TERM = 8.0
_ROWS, _COLUMNS = 4, 16


def overflow_rows(
    device: torch.device | str, precisions: Sequence[str], degrees: Sequence[int] = DEGREES
) -> Iterator[Row]:
    """Measure sums and means over rows of `degrees` nonzeros whose terms are all TERM.

    A result is right if exactly the elements are infinite whose sum rounds to infinity, and the others are
    off by at most two roundings.
    """
    for degree in degrees:
        columns = torch.arange(degree, dtype=torch.int64, device="cpu").repeat(_ROWS)
        rows = torch.arange(_ROWS, dtype=torch.int64, device="cpu").repeat_interleave(degree)
        graph = SparseGraph.from_edge_index(torch.stack([columns, rows]), (degree, _ROWS)).to(device)
        for precision in map(Precision, precisions):
            a = prepare(graph, precision=precision, cache=False)
            for dtype, reduce in itertools.product(outputs_of(precision), ("sum", "mean")):
                x = torch.full((degree, _COLUMNS), TERM, dtype=dtype, device=device)
                yield {
                    "precision": precision.value, "output": str(dtype).removeprefix("torch."),
                    "reduce": reduce, "degree": degree,
                    **_overflow_row(spmm(a, x, reduce=reduce), TERM * (degree if reduce == "sum" else 1)),
                }  # fmt: skip


def _overflow_row(result: torch.Tensor, exact: float) -> Row:
    infinite = int((~result.isfinite()).sum())
    right = torch.tensor(exact, dtype=torch.float64, device="cpu").to(result.dtype)
    if right.isfinite():
        ok = bool(((result.double() - exact).abs() <= 2 * torch.finfo(result.dtype).eps * exact).all())
    else:
        ok = infinite == result.numel()
    return {
        "exact": exact,
        "result": None if infinite else float(result.flatten()[0]),
        "elements": result.numel(),
        "infinite": infinite,
        "ok": ok,
    }
