"""The softmax over edges on the CPU by the native kernels."""

from __future__ import annotations

import torch

from gnnsparse import _native
from gnnsparse.kernel_cache import KernelCache

__all__ = ["edge_softmax", "edge_softmax_grad"]


def edge_softmax(kernels: KernelCache, scores: torch.Tensor) -> torch.Tensor:
    """Computes the softmax of scores [nnz] over the nonzeros of each row, in float32.

    Returns:
        [nnz] in the dtype of the scores.
    """
    scores32 = scores.float().contiguous()
    out = torch.empty_like(scores32)
    _native.cpu_softmax(kernels.csr.view, scores32, out, torch.get_num_threads())
    return out.to(scores.dtype)


def edge_softmax_grad(kernels: KernelCache, weights: torch.Tensor, grad: torch.Tensor) -> torch.Tensor:
    """Computes the gradient of the scores, [nnz], from the softmax [nnz] and its gradient [nnz]."""
    weights32, grad32 = weights.float().contiguous(), grad.float().contiguous()
    out = torch.empty_like(grad32)
    _native.cpu_softmax_grad(kernels.csr.view, weights32, grad32, out, torch.get_num_threads())
    return out.to(weights.dtype)
