"""Into how many parts windows are cut, so that the parts take about equally long.

Each function takes the numbers of K tiles of all windows, int64 [windows], and returns the number of parts of
each, int64 [windows], at least 1. All arithmetic is of integers, so that no rounding decides about a cut.
"""

from __future__ import annotations

import torch

__all__ = ["adaptive_parts", "limited_parts", "wave_parts"]

#: RSH-SpMM calls rows of more than 2 and of more than 4 times the mean long (figure 2). Windows above the
#: second number are cut, into parts of about the first.
_SUPER_LONG, _SHORTENED = 4, 2


def limited_parts(work: torch.Tensor, limit: int) -> torch.Tensor:
    """Returns the least numbers of parts of which none has more than `limit` nonzeros or K tiles."""
    return ((work + limit - 1) // limit).clamp(min=1)


def wave_parts(tiles: torch.Tensor, concurrent: int) -> torch.Tensor:
    """Cuts windows as cuTeSpMM does (section 5, equations 6 and 7).

    A window of b tiles has num_loads = b / AVG, AVG being the mean over all windows, and is cut into
    partition_ratio = num_loads / num_waves parts. As in the paper's example, num_waves is the number of
    windows over that of windows that run at a time, rounded up. The paper does not say how a ratio that is no
    integer is rounded: here upwards, so that no part is longer than the tiles that one place on the GPU
    computes on average in all waves.

    Args:
        tiles: int64 [windows].
        concurrent: number of windows that run at a time: multiprocessors times windows on each.
    """
    windows, total = tiles.numel(), int(tiles.sum())
    waves = -(-windows // concurrent)
    if total == 0:
        return torch.ones_like(tiles)
    parts = (tiles * windows + total * waves - 1) // (total * waves)
    return torch.minimum(parts, tiles).clamp(min=1)  # no part without a tile


def adaptive_parts(tiles: torch.Tensor, concurrent: int) -> torch.Tensor:
    """Cuts super-long windows alone, as RSH-SpMM does (section 3.3.3).

    The paper splits "based on matrix size, sparsity, and tile expansion behavior" and gives no rule. Here a
    window is super-long if its tiles, which say how far its rows expand, are more than four times the mean of
    the windows that have any (which stands for the sparsity), and more than the tiles that one place on the
    GPU computes on average (for the size: in a large matrix even a long window ends before the others do).
    Its parts have at most the larger one of twice the mean and that average.

    Args:
        tiles: int64 [windows].
        concurrent: number of windows that run at a time.
    """
    total, filled = int(tiles.sum()), int((tiles > 0).sum())
    if total == 0:
        return torch.ones_like(tiles)
    super_long = (tiles * filled > _SUPER_LONG * total) & (tiles * concurrent > total)
    limit = max(-(-_SHORTENED * total // filled), -(-total // concurrent))
    return torch.where(super_long, limited_parts(tiles, limit), 1)
