"""Load balance: cuTeSpMM's wave-aware division by its equations, and how even a division is."""

from __future__ import annotations

import heapq

import torch

from gnnsparse.errors import bad_type, bad_value, check_integer

__all__ = ["imbalance", "wave_segments"]


def _check_work(name: str, work: torch.Tensor) -> torch.Tensor:
    if not isinstance(work, torch.Tensor) or work.is_floating_point() or work.dim() != 1:
        bad_type(name, work, "integers [panels]")
    if bool((work < 0).any()):
        bad_value(name, "has negative numbers; accepted: the blocks of each panel, from 0 on")
    return work.to(device="cpu", dtype=torch.int64)


def wave_segments(blocks: torch.Tensor, concurrent: int) -> torch.Tensor:
    """Computes into how many segments the wave-aware rule divides each panel (cuTeSpMM, equations 6 and 7).

    A panel with `num_loads` times the mean blocks is divided by `num_loads / num_waves`, where the waves are
    the panels over those that the GPU runs at a time, rounded up. A ratio of at most 1 divides nothing; other
    ratios are rounded up, which the paper leaves open.

    Args:
        blocks: int [panels], the blocks of each panel.
        concurrent: thread blocks that the GPU runs at a time: SMs times thread blocks of an SM.

    Returns:
        int64 [panels], from 1 on, and at most the blocks of the panel where it has any.

    Raises:
        TypeError: an argument is of another type.
        ValueError: a number of blocks is negative, or `concurrent` is below 1.
    """
    work = _check_work("blocks", blocks)
    check_integer("concurrent", concurrent)
    total, panels = int(work.sum()), work.numel()
    if total == 0:
        return torch.ones_like(work)
    waves = -(-panels // concurrent)
    # blocks / (total / panels) / waves, rounded up, in integers.
    ratio = -(-(work * panels) // (total * waves))
    return ratio.clamp(min=1).minimum(work.clamp(min=1))


def imbalance(work: torch.Tensor, concurrent: int, segments: torch.Tensor | None = None) -> float:
    """Computes how much longer the longest processor works than the mean: 1 is perfectly even.

    Segments are started in the order of their panels, each on the processor that is free first, as thread
    blocks are. Costs are in blocks; what segments cost in addition (partial sums) is not counted.

    Args:
        work: int [panels], the blocks of each panel.
        concurrent: thread blocks that the GPU runs at a time.
        segments: int [panels], the segments of each panel; None: one each.

    Raises:
        TypeError: an argument is of another type.
        ValueError: a number is out of range, or `segments` has another length than `work`.
    """
    work = _check_work("work", work)
    check_integer("concurrent", concurrent)
    if segments is None:
        segments = torch.ones_like(work)
    segments = _check_work("segments", segments).clamp(min=1)
    if segments.shape != work.shape:
        bad_value("segments", f"has {segments.numel()} panels; accepted: {work.numel()}, as many as `work`")
    total = int(work.sum())
    if total == 0:
        return 1.0
    of_panel = torch.repeat_interleave(torch.arange(work.numel(), device="cpu"), segments)
    place = torch.arange(of_panel.numel(), device="cpu") - (segments.cumsum(0) - segments)[of_panel]
    # Segments of one panel differ by a block at most.
    parts = work[of_panel] // segments[of_panel] + (place < work[of_panel] % segments[of_panel])
    free = [0] * min(concurrent, parts.numel())
    for part in parts.tolist():
        heapq.heapreplace(free, free[0] + part)
    return max(free) * len(free) / total
