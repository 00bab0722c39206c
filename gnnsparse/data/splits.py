"""Splits of the nodes of data sets that come without one."""

from __future__ import annotations

import numpy as np
import torch

__all__ = ["Masks", "random_split", "split_by_class", "split_generator"]

#: Training, validation and test nodes: bool [N] each, without overlap.
Masks = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def split_generator(split: int, seed: int = 0) -> torch.Generator:
    """The random numbers of a split: other pairs (split, seed) have unrelated ones."""
    state = np.random.SeedSequence([seed, split]).generate_state(2, np.uint32)
    return torch.Generator().manual_seed(int(state[0]) << 31 | int(state[1]) >> 1)


def _masks(nodes: int, train: torch.Tensor, val: torch.Tensor) -> Masks:
    """Masks from the ids of training and validation nodes; the rest is for testing."""
    train_mask = torch.zeros(nodes, dtype=torch.bool)
    val_mask = torch.zeros(nodes, dtype=torch.bool)
    train_mask[train] = True
    val_mask[val] = True
    return train_mask, val_mask, ~(train_mask | val_mask)


def split_by_class(y: torch.Tensor, split: int, train: int, val: int) -> Masks:
    """`train` and `val` random nodes of each class, the rest for testing.

    Of a class too small for them a third is kept for testing, and the rest is shared out in the same
    proportion.

    Args:
        y: int64 [N], the classes.
        split: which of the endless number of splits.
        train: training nodes of a class.
        val: validation nodes of a class.
    """
    generator = split_generator(split)
    chosen_train, chosen_val = [], []
    for label in range(int(y.max()) + 1):
        nodes = (y == label).nonzero().flatten()
        nodes = nodes[torch.randperm(nodes.numel(), generator=generator)]
        shrink = min(1.0, nodes.numel() / (1.5 * (train + val)))  # a third of a small class is for testing
        first = max(1, int(train * shrink))
        chosen_train.append(nodes[:first])
        chosen_val.append(nodes[first : first + int(val * shrink)])
    return _masks(y.numel(), torch.cat(chosen_train), torch.cat(chosen_val))


def random_split(nodes: int, generator: torch.Generator, train: float, val: float) -> Masks:
    """Random nodes, with the given shares for training and validation, the rest for testing."""
    order = torch.randperm(nodes, generator=generator)
    first = max(1, round(nodes * train))
    second = first + max(1, round(nodes * val))
    return _masks(nodes, order[:first], order[first:second])
