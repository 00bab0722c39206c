"""Rank correlation of a model with measurements."""

from __future__ import annotations

from collections.abc import Sequence

from gnnsparse.errors import bad_value

__all__ = ["rank_correlation"]


def _ranks(values: Sequence[float]) -> list[float]:
    """Returns the ranks of numbers, equal ones with their mean rank."""
    order = sorted(range(len(values)), key=lambda i: values[i])
    ranks, at = [0.0] * len(values), 0
    while at < len(order):
        end = at
        while end < len(order) and values[order[end]] == values[order[at]]:
            end += 1
        for i in order[at:end]:
            ranks[i] = (at + end - 1) / 2
        at = end
    return ranks


def rank_correlation(model: Sequence[float], measured: Sequence[float]) -> float:
    """Computes Spearman's rank correlation: 1 if the model orders all cases as the measurements do.

    Raises:
        ValueError: there are fewer than two cases, their numbers differ, or one side has no two numbers that
            differ.
    """
    if len(model) != len(measured) or len(model) < 2:
        bad_value("measured", f"has {len(measured)} cases for {len(model)}; accepted: as many, from 2 on")
    x, y = _ranks(model), _ranks(measured)
    mean = (len(x) - 1) / 2
    spread = [sum((r - mean) ** 2 for r in ranks) for ranks in (x, y)]
    if 0.0 in spread:
        bad_value("measured", "has no two cases that differ, or the model has none")
    product = sum((a - mean) * (b - mean) for a, b in zip(x, y, strict=True))
    return product / (spread[0] * spread[1]) ** 0.5
