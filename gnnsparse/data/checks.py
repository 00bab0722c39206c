"""Checks of the arguments of data sets."""

from __future__ import annotations

import math
import numbers
from typing import Any

from gnnsparse.errors import bad_type, bad_value

__all__ = ["check_scale", "check_seed", "check_split"]

_MAX_SEED = 2**63 - 1


def _integer(name: str, value: Any, accepted: str) -> int:
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        bad_type(name, value, accepted)
    return int(value)


def check_seed(value: Any) -> int:
    """Returns `value` if it can be a seed, an integer from 0 to 2^63 - 1; else raises."""
    accepted = "an integer from 0 to 2^63 - 1"
    if not 0 <= _integer("seed", value, accepted) <= _MAX_SEED:
        bad_value("seed", f"got {value}; accepted: {accepted}")
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
        bad_value("split", f"got {split}; accepted: {accepted}")
    return split


def check_scale(value: Any) -> float:
    """Returns `value` if it is a number above 0 and at most 1; else raises."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        bad_type("scale", value, "a number above 0 and at most 1")
    scale = float(value)
    if not (math.isfinite(scale) and 0 < scale <= 1):
        bad_value("scale", f"got {scale:g}; accepted: a number above 0 and at most 1")
    return scale
