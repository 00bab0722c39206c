"""Gradients that are too small for float16, and what scaling of the loss saves of them.

A float16 number below 2^-24 is 0, and below 2^-14 it has less than 11 bits. Loss scaling (Micikevicius et
al., "Mixed Precision Training", ICLR 2018, section 3.2) multiplies the loss, and with it all gradients, by a
factor, and divides the gradients of the float32 parameters by it. torch's GradScaler begins with 2^16, and
halves the factor after a step in which a gradient was not finite.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from gnnsparse import SparseOperand, prepare, spmm
from gnnsparse.precision import Precision
from gnnsparse.testing import measure_errors, random_graph

__all__ = ["INITIAL_SCALE", "MAGNITUDES", "scaling_rows"]

Row = dict[str, Any]

#: Sizes of the gradient of the loss by the product, as powers of two.
MAGNITUDES = (4, 0, -8, -14, -20, -24, -28, -32)
#: The first factor of torch's GradScaler.
INITIAL_SCALE = 2.0**16
#: The factor stays between 2 to the power of minus this and of this.
_MOST = 60
_NODES, _WIDTH, _DENSITY = 256, 32, 0.05


def _gradient(case: _Case, gradient: torch.Tensor, scale: float) -> torch.Tensor:
    """The gradient of the float32 parameter of a product, whose loss is scaled, divided by the scale."""
    leaf = case.parameter.detach().clone().requires_grad_()
    y = spmm(case.operand, leaf.to(case.operand.precision.storage))
    (found,) = torch.autograd.grad((y.float() * gradient).sum() * scale, leaf)
    return found / scale


def _plain(case: _Case, gradient: torch.Tensor, scale: float) -> torch.Tensor:
    """The same by plain operations: a gradient in 16 bits, float32 sums of rounded products, 16 bits."""
    dtype = case.operand.precision.storage
    return (
        case.transposed((gradient * scale).to(dtype).float(), case.values.to(dtype).float()).to(dtype).float()
        / scale
    )


@dataclass(frozen=True, eq=False)
class _Case:
    """A product y = A x whose gradients are measured.

    Attributes:
        operand: A.
        values: the weight of each nonzero, float32 [nnz].
        parameter: x, float32.
    """

    operand: SparseOperand
    values: torch.Tensor
    parameter: torch.Tensor

    def transposed(self, gradient: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        """Computes A^T times a gradient, in the dtype of both."""
        row, column = self.operand.indices()
        out = gradient.new_zeros(self.parameter.shape)
        return out.index_add_(0, column, values[:, None] * gradient[row])


def _row(
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


def _settled(case: _Case, gradient: torch.Tensor) -> tuple[float, int]:
    """The factor that GradScaler arrives at, and the steps that it skips before: the largest that is finite.

    From its first factor it is halved after each step that overflows, and doubled after 2,000 that do not.
    """
    scale, skipped = INITIAL_SCALE, 0
    while not _gradient(case, gradient, scale).isfinite().all() and scale > 2.0**-_MOST:
        scale, skipped = scale / 2, skipped + 1
    while skipped == 0 and scale < 2.0**_MOST and _gradient(case, gradient, 2 * scale).isfinite().all():
        scale *= 2
    return scale, skipped


def scaling_rows(
    device: torch.device | str,
    seed: int,
    precisions: Sequence[str] = ("fp16", "bf16"),
    magnitudes: Sequence[int] = MAGNITUDES,
) -> Iterator[Row]:
    """Measures gradients of a product y = A x with respect to x, whose parameters are float32.

    Args:
        device: where it is computed.
        seed: seed of the graph, the parameters and the gradient.
        precisions: precisions that store dense operands in 16 bits; the others have no such gradients.
        magnitudes: the gradient of the loss by y is standard normal times 2 to the power of these.

    Yields:
        A dict for each precision, magnitude and way: "precision", "magnitude", "way" ("unscaled", and in fp16
        "scaled": by INITIAL_SCALE, and "dynamic": by the factor that GradScaler arrives at), "scale",
        "skipped" (steps that GradScaler skips until then), "error" (relative, Frobenius norm; None if an
        element is not finite), "lost" (fraction of elements that are 0 and should not be), "infinite"
        (fraction that is not finite), and "ok" (whether the error is at most twice that of plain operations).
    """
    graph = random_graph(_NODES, _NODES, _DENSITY, seed=seed)
    generator = torch.Generator("cpu").manual_seed(seed)
    on_cpu: Any = {"generator": generator, "dtype": torch.float32, "device": "cpu"}
    parameter = torch.randn(_NODES, _WIDTH, **on_cpu).to(device)
    unit = torch.randn(_NODES, _WIDTH, **on_cpu).to(device)
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
                settled, skipped = _settled(case, gradient)
                ways |= {"scaled": INITIAL_SCALE, "dynamic": settled}
            for way, scale in ways.items():
                found, plain = (make(case, gradient, scale) for make in (_gradient, _plain))
                yield {
                    "precision": precision.value, "magnitude": power, "way": way, "scale": scale,
                    "skipped": skipped if way == "dynamic" else 0,
                    **_row(found, plain, exact, scale, precision.storage),
                }  # fmt: skip
