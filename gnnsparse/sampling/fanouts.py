"""The numbers of neighbours that are drawn in each layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gnnsparse.errors import bad_type, bad_value, check_integer

__all__ = ["check_fanouts"]

_MOST_FANOUT = 2**31 - 1


def check_fanouts(name: str, fanouts: Any) -> tuple[int, ...]:
    """Returns fan-outs, positive integers or -1, as a tuple, else raises."""
    accepted = "positive integers, or -1 for all neighbours"
    if isinstance(fanouts, (str, bytes)) or not isinstance(fanouts, Sequence):
        bad_type(name, fanouts, f"a sequence of {accepted}")
    if len(fanouts) == 0:
        bad_value(name, f"is empty; accepted: {accepted}, one for each layer")
    for fanout in fanouts:
        if fanout != -1:
            check_integer(name, fanout, 1, accepted, _MOST_FANOUT)
        elif isinstance(fanout, bool) or not isinstance(fanout, int):
            bad_type(name, fanout, accepted)
    return tuple(fanouts)
