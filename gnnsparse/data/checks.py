"""Checks of the arguments and of the arrays of data sets."""

from __future__ import annotations

import math
import numbers
from typing import Any

import torch

from gnnsparse.errors import bad_type, bad_value, check_tensor, shown
from gnnsparse.sparse.graph import SparseGraph

__all__ = [
    "check_finite", "check_labels", "check_scale", "check_seed", "check_split", "check_square",
    "check_targets",
]  # fmt: skip

_MAX_SEED = 2**63 - 1


def _integer(name: str, value: Any, accepted: str) -> int:
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        bad_type(name, value, accepted)
    return int(value)


def check_seed(value: Any) -> int:
    """Returns `value` if it can be a seed, an integer from 0 to 2^63 - 1; else raises."""
    accepted = "an integer from 0 to 2^63 - 1"
    if not 0 <= _integer("seed", value, accepted) <= _MAX_SEED:
        bad_value("seed", f"got {shown(value)}; accepted: {accepted}")
    return int(value)


def check_split(value: Any, count: int | None) -> int:
    """Returns `value` if it is the number of a split; else raises.

    Args:
        value: the argument.
        count: number of splits, which are numbered from 0; None: there is no end of them.
    """
    accepted = "0, 1, 2, ..." if count is None else "0" if count == 1 else f"0 to {count - 1}"
    split = _integer("split", value, accepted)
    if split < 0 or (count is not None and split >= count):
        bad_value("split", f"got {shown(split)}; accepted: {accepted}")
    return split


def check_scale(value: Any) -> float:
    """Returns `value` if it is a number above 0 and at most 1; else raises."""
    accepted = "a number above 0 and at most 1"
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        bad_type("scale", value, accepted)
    number: Any = value
    if not 0 < number <= 1:  # before the conversion, for which an integer may be too large
        bad_value("scale", f"got {shown(value)}; accepted: {accepted}")
    return float(value)


def check_square(graph: Any) -> int:
    """Returns the number of nodes of `graph` if it is a square SparseGraph; else raises."""
    if not isinstance(graph, SparseGraph):
        bad_type("graph", graph, "a SparseGraph")
    nodes = graph.num_rows
    if graph.num_cols != nodes:
        bad_value("graph", f"has shape ({nodes}, {graph.num_cols}); accepted: a square one")
    return nodes


def check_finite(name: str, values: torch.Tensor) -> torch.Tensor:
    """Returns `values`, float32 of any shape, if all are finite, else raises.

    A finite sum has finite terms; only where it is not, as large numbers can overflow it, are they looked at.
    """
    if math.isfinite(float(values.sum())):
        return values
    wrong = ~torch.isfinite(values)
    if bool(wrong.any()):
        at = wrong.nonzero()[0].tolist()
        bad_value(name, f"element {at} is {float(values[tuple(at)])}; accepted: finite numbers")
    return values


def check_labels(name: str, labels: Any, nodes: int, count: int) -> None:
    """Raises if `labels` are no labels of nodes.

    Args:
        name: the argument.
        labels: int64 [nodes], a class below `count` of each node; or float32 [nodes, count] of 0 and 1.
        nodes: the number of nodes.
        count: the number of classes or labels.
    """
    if isinstance(labels, torch.Tensor) and labels.is_floating_point():
        check_tensor(name, labels, dtypes=(torch.float32,), shape=(nodes, count))
        if not bool(((labels == 0) | (labels == 1)).all()):
            bad_value(name, "holds other numbers than 0 and 1; accepted: 1 for each label that a node has")
        return
    check_tensor(name, labels, dtypes=(torch.int64,), shape=(nodes,))
    if nodes == 0:
        return
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= count:
        bad_value(name, f"holds classes {low} to {high}; accepted: 0 to {count - 1}")


def check_targets(name: str, targets: Any, items: int, count: int, *, regression: bool) -> None:
    """Raises if `targets` are no targets of nodes or graphs, of which some may be missing.

    Args:
        name: the argument.
        targets: int64 [items], a class below `count` of each item, -1 if it is missing; or float32 [items,
            count] of 0 and 1, NaN for labels that are missing; with `regression` float32 [items] (if `count`
            is 1) or [items, count], finite numbers, NaN for those that are missing.
        items: the number of nodes or graphs.
        count: the number of classes, of labels, or of numbers to predict for an item.
        regression: whether the targets are numbers to predict.
    """
    if regression:
        accepted = f"({items},) or ({items}, 1)" if count == 1 else f"({items}, {count})"
        check_tensor(name, targets, dtypes=(torch.float32,))
        if tuple(targets.shape) not in (((items,), (items, 1)) if count == 1 else ((items, count),)):
            bad_value(name, f"has shape {tuple(targets.shape)}; accepted: {accepted}")
        if bool(targets.isinf().any()):
            bad_value(name, "holds an infinite number; accepted: finite numbers, and NaN for missing ones")
    elif isinstance(targets, torch.Tensor) and targets.is_floating_point():
        check_tensor(name, targets, dtypes=(torch.float32,), shape=(items, count))
        if not bool(((targets == 0) | (targets == 1) | targets.isnan()).all()):
            bad_value(
                name,
                "holds other numbers than 0 and 1; accepted: 1 for each label that an item has, 0 for the "
                "others, NaN for missing ones (numbers to predict: metric='mae', 'mse' or 'r2')",
            )
    else:
        check_tensor(name, targets, dtypes=(torch.int64,), shape=(items,))
        low, high = (int(bound) for bound in targets.aminmax()) if items else (0, 0)
        if low < -1 or (items and high >= count):
            bad_value(
                name, f"holds classes {low} to {high}; accepted: 0 to {count - 1}, and -1 for missing ones"
            )
