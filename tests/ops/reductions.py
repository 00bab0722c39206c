"""Dense arguments with heads for tests: on a grid, where every precision multiplies without an error."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

import gnnsparse
from gnnsparse.testing import assert_accurate
from tests.helpers import ROUNDING


def on_grid(*shape: int, seed: int = 0, step: float = 0.25, most: int = 8) -> torch.Tensor:
    """Multiples of `step`, few of them: products are exact, and one nonzero wins in every precision."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-most, most + 1, shape, generator=generator).float() * step


def compare(
    function: Any, a: gnnsparse.SparseOperand, inputs: Sequence[torch.Tensor], **options: Any
) -> None:
    """A function of gnnsparse and its gradients, of a result on a grid, beside its reference in float64."""
    semantic = {name: value for name, value in options.items() if name == "reduce"}

    def run(
        dtype: torch.dtype | None, change: Any = torch.Tensor.detach, of_inputs: bool = True, **how: Any
    ) -> list[torch.Tensor]:
        given = [x if dtype is None else x.to(dtype) for x in inputs]
        given = [change(x) if of_inputs else x for x in given]
        leaves = [x.detach().to(a.device).requires_grad_() for x in given]
        result = function(a, *leaves, **semantic, **how)
        probe = change(on_grid(*result.shape, seed=99)).to(result)
        return [result.detach(), *torch.autograd.grad(result, leaves, probe)]

    got = run(None, **{name: value for name, value in options.items() if name not in semantic})
    plain, exact = (run(dtype, impl="reference") for dtype in (None, torch.float64))
    assert [x.dtype for x in got] == [x.dtype for x in plain]
    # Sums that cancel: at least the size of their terms. A maximum of exact products has no error at all.
    sizes: list[torch.Tensor | None] = [None] * len(got)
    if function is gnnsparse.edge_softmax:
        # The gradient is p (g - s), s the sum of p g over a row: its terms have the size p |g| + p s of |g|.
        weights, of_sizes = run(torch.float64, torch.abs, of_inputs=False, impl="reference")
        g = on_grid(*weights.shape, seed=99).to(weights).abs()
        sizes = [weights, 2 * weights * g - of_sizes]
    elif semantic.get("reduce", "sum") in ("sum", "mean"):
        sizes = list(run(torch.float64, torch.abs, impl="reference"))
    for one, size in zip(zip(got, plain, exact, strict=True), sizes, strict=True):
        # What a product rounds and the reference's gradients do not: the gradient, and one operand.
        floor = max(4 * torch.finfo(one[0].dtype).eps, 2 * ROUNDING[a.precision], 1e-6)
        assert_accurate(*one, floor=floor, scale=size)
