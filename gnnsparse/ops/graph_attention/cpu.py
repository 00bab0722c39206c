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
    return chain.backward(call, grad_out, grad_mapped, grad_weights, needs)
