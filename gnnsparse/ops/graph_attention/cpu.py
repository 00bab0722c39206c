"""Graph attention on the CPU by plain torch, until native kernels stand in for it."""

from __future__ import annotations

import torch

from gnnsparse.ops.graph_attention import chain
from gnnsparse.ops.graph_attention.call import Arrays, GraphCall, Result

__all__ = ["backward", "forward", "weights"]


def forward(call: GraphCall) -> Result:
    """Computes the results."""
    with torch.no_grad():
        return chain.forward(call)[0]


def weights(call: GraphCall, result: Result) -> torch.Tensor:
    """Computes the weights after dropout, float32 [nnz, H]."""
    with torch.no_grad():
        return chain.weights(call)


def backward(
    call: GraphCall, result: Result, grad_out: torch.Tensor, grad_mapped: torch.Tensor | None,
    grad_weights: torch.Tensor | None, needs: tuple[bool, ...],
) -> Arrays:  # fmt: skip
    """Computes the gradients that are needed; the others are None."""
    with torch.enable_grad():
        leaves = Arrays(
            *(
                None if x is None else x.detach().requires_grad_(need)
                for x, need in zip(call.arrays, needs, strict=True)
            )
        )
        again, weights = chain.forward(call.with_arrays(leaves))
    pairs = [(again.out, grad_out), (again.mapped, grad_mapped), (weights, grad_weights)]
    outputs, given = (
        [y for y, g in pairs if y is not None and g is not None],
        [g for _, g in pairs if g is not None],
    )
    wanted = [x for x in leaves if x is not None and x.requires_grad]
    grads = torch.autograd.grad(outputs, wanted, given, allow_unused=True)
    found = iter(grads)
    return Arrays(*(next(found) if need else None for need in needs))
