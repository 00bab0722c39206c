"""CUDA graphs of a call, so that small products are compared by what the GPU does."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import torch

__all__ = ["CaptureError", "capture"]


class CaptureError(Exception):
    """A call can't be captured; the message says why, in one line."""


def capture(call: Callable[[], object], calls: int) -> Callable[[], None]:
    """A CUDA graph of a call made `calls` times, one after the other.

    Args:
        call: queues its work on the current stream, and has run before on this device.

    Returns:
        A function that replays the graph on the current stream.

    Raises:
        CaptureError: the call does what a capture does not allow, waiting for the GPU for one. The
            device can be used as before.
    """
    graph, pool = torch.cuda.CUDAGraph(), torch.cuda.graph_pool_handle()
    side = torch.cuda.Stream()
    try:
        # What a library makes on its first call on a stream must be there before the capture.
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            call()
        torch.cuda.current_stream().wait_stream(side)
        with torch.cuda.graph(graph, pool=pool, stream=side, capture_error_mode="thread_local"):
            for _ in range(calls):
                call()
    # Whatever another library raises in a capture, it can still be timed without.
    except Exception as error:
        _abandon(pool)
        text = str(error).strip() or type(error).__name__
        raise CaptureError(text.splitlines()[0][:200]) from error
    return graph.replay


def _abandon(pool: tuple[int, int]) -> None:
    """Undoes what a failed capture leaves: torch would go on sending new memory to the graph's pool."""
    with contextlib.suppress(RuntimeError, AttributeError):
        torch._C._cuda_endAllocateToPool(torch.cuda.current_device(), pool)
    with contextlib.suppress(RuntimeError):  # the error is told once more
        torch.cuda.synchronize()
