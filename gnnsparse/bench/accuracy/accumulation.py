"""Sums in float32, which all kernels have, beside what sums in float16 would give.

The latter are emulated, because no kernel of this package offers them: term by term, as one thread adds
(`__hadd`), and in blocks of 16 whose sum is exact before it is added to a float16 accumulator, as a Tensor
Core instruction with float16 accumulators does (mma.m16n8k16.f16.f16.f16.f16).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from gnnsparse import SparseGraph, prepare, spmm

__all__ = ["SERIES", "TERMS", "accumulation_rows", "half_sums"]

Row = dict[str, Any]

#: Numbers of terms of a sum.
TERMS = (256, 1024, 4096, 16384, 65536)
#: Sums of one case, each of other numbers.
_SUMS = 32
_BLOCK = 16


def _drawn(kind: Callable[..., torch.Tensor]) -> Callable[[int, torch.Generator], torch.Tensor]:
    def make(terms: int, generator: torch.Generator) -> torch.Tensor:
        return kind(terms, _SUMS, generator=generator, dtype=torch.float32, device="cpu")

    return make


#: What makes the terms of sums, [terms, sums], by name.
SERIES: dict[str, Callable[[int, torch.Generator], torch.Tensor]] = {
    "ones": lambda terms, _: torch.ones(terms, _SUMS, dtype=torch.float32, device="cpu"),
    "uniform": _drawn(torch.rand),
    "normal": _drawn(torch.randn),
}


def half_sums(terms: torch.Tensor, block: int = 1) -> torch.Tensor:
    """Adds up terms with an accumulator of float16.

    Args:
        terms: [n, sums], float16.
        block: terms that are added up exactly before their sum is added to the accumulator and rounded.

    Returns:
        [sums], float16.
    """
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
    """Measures sums of `terms` products of float16 operands.

    Args:
        device: where the kernel runs; the emulation runs on the CPU.
        seed: seed of the terms.
        terms: numbers of terms.
        series: names in SERIES: "ones", whose sum counts; "uniform", terms in [0, 1); "normal", standard
            normal terms, which cancel to the root of their number.

    Yields:
        A dict with keys "series", "terms", and the relative errors "kernel" (spmm in fp16, result in
        float32), "half_blocks" and "half" (emulated); None where a sum is not finite. "ok" says whether the
        kernel's errors are within the bound of float32 sums in any order: terms * 2^-24 times the sum of the
        magnitudes (Higham, "Accuracy and Stability of Numerical Algorithms", 2002, section 4.2).
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
