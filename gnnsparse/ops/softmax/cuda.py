"""The softmax over edges on NVIDIA GPUs, queued on the caller's current stream without waiting for it."""

from __future__ import annotations

import torch

from gnnsparse.runtime.device import path
from gnnsparse.sparse.kernel_cache import KernelCache

__all__ = ["edge_softmax", "edge_softmax_grad"]

#: A row of more nonzeros is processed by a whole block of threads instead of a few lanes of a warp.
_ROW_LIMIT = 1024


def _heads(scores: torch.Tensor) -> int:
    return scores.shape[1] if scores.dim() == 2 else 1


def edge_softmax(kernels: KernelCache, scores: torch.Tensor) -> torch.Tensor:
    """Computes the softmax of scores [nnz] or [nnz, heads] over the nonzeros of each row, in float32.

    Returns:
        [nnz] or [nnz, heads] in the dtype of the scores.
    """
    if scores.numel() == 0:
        return torch.empty_like(scores)
    scores32 = scores.float().contiguous()
    out = torch.empty_like(scores32)
    work, gpu = kernels.row_work(_ROW_LIMIT), path()
    with gpu.current(scores.device):
        gpu.native.cuda_softmax(
            kernels.csr.view, work.view, _ROW_LIMIT, scores32, _heads(scores), out, kernels.streams.current()
        )
    return out.to(scores.dtype)


def edge_softmax_grad(kernels: KernelCache, weights: torch.Tensor, grad: torch.Tensor) -> torch.Tensor:
    """Computes the gradient of the scores from the softmax and its gradient, [nnz] or [nnz, heads]."""
    if grad.numel() == 0:
        return torch.empty_like(weights)
    weights32, grad32 = weights.float().contiguous(), grad.float().contiguous()
    out = torch.empty_like(grad32)
    work, gpu = kernels.row_work(_ROW_LIMIT), path()
    with gpu.current(grad.device):
        gpu.native.cuda_softmax_grad(
            kernels.csr.view,
            work.view,
            _ROW_LIMIT,
            weights32,
            grad32,
            _heads(grad),
            out,
            kernels.streams.current(),
        )
    return out.to(weights.dtype)
