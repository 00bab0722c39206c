"""The softmax over edges on the CPU by the native kernels."""

from __future__ import annotations

import torch

from gnnsparse import _native
from gnnsparse.sparse.kernel_cache import KernelCache

__all__ = ["edge_softmax", "edge_softmax_grad"]


def edge_softmax(kernels: KernelCache, scores: torch.Tensor) -> torch.Tensor:
    """Computes the softmax of scores [nnz] or [nnz, heads] over the nonzeros of each row, in float32.

    Returns:
        [nnz] or [nnz, heads] in the dtype of the scores.
    """
    if scores.numel() == 0:
        return torch.empty_like(scores)
    scores32 = scores.float().contiguous()
    out, threads = torch.empty_like(scores32), torch.get_num_threads()
    if scores.dim() == 2:
        _native.cpu_softmax_heads(kernels.csr.view, scores32, scores.shape[1], out, threads)
    else:
        _native.cpu_softmax(kernels.csr.view, scores32, out, threads)
    return out.to(scores.dtype)


def edge_softmax_grad(kernels: KernelCache, weights: torch.Tensor, grad: torch.Tensor) -> torch.Tensor:
    """Computes the gradient of the scores from the softmax and its gradient, [nnz] or [nnz, heads]."""
    if grad.numel() == 0:
        return torch.empty_like(weights)
    weights32, grad32 = weights.float().contiguous(), grad.float().contiguous()
    out, threads, view = torch.empty_like(grad32), torch.get_num_threads(), kernels.csr.view
    if grad.dim() == 2:
        _native.cpu_softmax_heads_grad(view, weights32, grad32, grad.shape[1], out, threads)
    else:
        _native.cpu_softmax_grad(view, weights32, grad32, out, threads)
    return out.to(weights.dtype)
