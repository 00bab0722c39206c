"""The softmax over edges on NVIDIA GPUs. Work is queued on the caller's current stream; nothing waits."""

from __future__ import annotations

import torch

from gnnsparse.csr import address
from gnnsparse.cuda_path import path
from gnnsparse.kernel_cache import KernelCache

__all__ = ["edge_softmax", "edge_softmax_grad"]

#: Rows with more nonzeros are taken by a whole block.
_ROW_LIMIT = 1024


def edge_softmax(kernels: KernelCache, scores: torch.Tensor) -> torch.Tensor:
    """See gnnsparse.edge_softmax. Every argument has been checked."""
    scores32 = scores.float().contiguous()
    out = torch.empty_like(scores32)
    work, gpu = kernels.row_work(_ROW_LIMIT), path()
    with gpu.current(scores.device):
        gpu.native.cuda_softmax(
            kernels.csr.view, work.view, _ROW_LIMIT, address(scores32), address(out),
            gpu.stream(scores.device),
        )  # fmt: skip
    return out.to(scores.dtype)


def edge_softmax_grad(kernels: KernelCache, weights: torch.Tensor, grad: torch.Tensor) -> torch.Tensor:
    """Gradient of the scores, [nnz], from the softmax [nnz] and its gradient."""
    weights32, grad32 = weights.float().contiguous(), grad.float().contiguous()
    out = torch.empty_like(grad32)
    work, gpu = kernels.row_work(_ROW_LIMIT), path()
    with gpu.current(grad.device):
        gpu.native.cuda_softmax_grad(
            kernels.csr.view, work.view, _ROW_LIMIT, address(weights32), address(grad32), address(out),
            gpu.stream(grad.device),
        )  # fmt: skip
    return out.to(weights.dtype)
