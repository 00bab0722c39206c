"""Handles: the integers that stand for operands in custom ops and in programs that are saved."""

from __future__ import annotations

import secrets
import weakref
from typing import Any

from gnnsparse.runtime.memo import ForkLock

__all__ = ["find", "held", "register"]

_held: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
_lock = ForkLock()


def register(operand: Any, wanted: int | None = None) -> int:
    """Gives an operand a handle that no operand has, here or in another process, and returns it.

    A saved program may carry a handle into another process. There it must not stand for another operand,
    which handles counted from 0 would do.

    Args:
        operand: an object, to which a weak reference is kept.
        wanted: the handle that the operand had in the process that pickled it. It gets it back unless
            another operand has it, which is the same one on another device.
    """
    with _lock:
        handle = secrets.randbits(63) if wanted is None else wanted
        while handle in _held:
            handle = secrets.randbits(63)
        _held[handle] = operand
    return handle


def held(handle: int | None) -> Any:
    """Returns the operand of a handle, or None if there is none in this process."""
    return None if handle is None else _held.get(handle)


def find(handle: int) -> Any:
    """Returns the operand of a handle.

    Raises:
        RuntimeError: there is none in this process.
    """
    try:
        return _held[handle]
    except KeyError:
        raise RuntimeError(
            f"operand {handle} no longer exists, or was made in another process; accepted: an operand of "
            "which a reference is kept, or that was read from a pickle of the one that was traced"
        ) from None
