"""Random splits of the nodes of data sets that have no published split."""

from __future__ import annotations

import numpy as np
import torch

#: Training, validation and test nodes: bool [N] each, without overlap.
Masks = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def split_generator(split: int, seed: int = 0) -> torch.Generator:
    """Return a generator for a split; different pairs (split, seed) get independent random numbers."""
    state = np.random.SeedSequence([seed, split]).generate_state(2, np.uint32)
    return torch.Generator().manual_seed(int(state[0]) << 31 | int(state[1]) >> 1)


def _masks(nodes: int, train: torch.Tensor, val: torch.Tensor) -> Masks:
    """Make masks of the ids of training and validation nodes; all other nodes are test nodes."""
    masks = torch.zeros(2, nodes, dtype=torch.bool)
    masks[0, train] = masks[1, val] = True
    return masks[0], masks[1], ~masks.any(dim=0)


def split_by_class(y: torch.Tensor, split: int, train: int, val: int) -> Masks:
    """Draw `train` and `val` nodes of each class of y, int64 [N], or fewer; all others are test nodes."""
    generator = split_generator(split)
    chosen_train, chosen_val = [], []
    for label in range(int(y.max()) + 1):
        nodes = (y == label).nonzero().flatten()
        nodes = nodes[torch.randperm(nodes.numel(), generator=generator)]
        shrink = min(1.0, nodes.numel() / (1.5 * (train + val)))  # leaves a third of a small class
        first = max(1, int(train * shrink))
        chosen_train.append(nodes[:first])
        chosen_val.append(nodes[first : first + int(val * shrink)])
    return _masks(y.numel(), torch.cat(chosen_train), torch.cat(chosen_val))


def random_split(nodes: int, generator: torch.Generator, train: float, val: float) -> Masks:
    """Draw fractions `train` and `val` of the nodes for training and validation, the others for the test."""
    order = torch.randperm(nodes, generator=generator)
    first = max(1, round(nodes * train))
    second = first + max(1, round(nodes * val))
    return _masks(nodes, order[:first], order[first:second])


def stratified_split(y: torch.Tensor, generator: torch.Generator, train: float, val: float) -> Masks:
    """Draw fractions of the nodes of each class of y, int64 [N], up to rounding, see `random_split`."""
    order = torch.randperm(y.numel(), generator=generator)
    order = order[y[order].argsort(stable=True)]
    counts = y.bincount()
    rank = torch.arange(y.numel()) - (counts.cumsum(0) - counts).repeat_interleave(counts)
    size = counts.repeat_interleave(counts)
    # A class of one node would always be a training node if all classes were cut at the same place.
    cut = torch.rand(counts.numel(), generator=generator, dtype=torch.float64).repeat_interleave(counts)
    place = (rank + cut) / size
    return _masks(y.numel(), order[place < train], order[(place >= train) & (place < train + val)])


def split_by_time(times: torch.Tensor, train: float, val: float) -> Masks:
    """Take the earliest nodes, by times real [N], for training; those of the same time are in one part."""
    moments, counts = times.unique(return_counts=True)
    before = torch.cat([counts.new_zeros(1), counts.cumsum(0)])  # nodes before each moment
    last = max(moments.numel() - 2, 0)
    nearest = [int((before - part * times.numel()).abs().argmin()) for part in (train, train + val)]
    first = min(max(nearest[0], 1), max(last, 1))
    second = min(max(nearest[1], first + 1), last + 1)
    rank = torch.searchsorted(moments, times)
    return rank < first, (rank >= first) & (rank < second), rank >= second
