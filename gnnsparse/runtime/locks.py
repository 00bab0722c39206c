"""Locks that a forked process finds free, and properties that are kept without any."""

from __future__ import annotations

import _thread
import functools
import os
import weakref
from typing import Any, TypeVar, overload

__all__ = ["ForkLock", "cached_property"]

_T = TypeVar("_T")
_MISSING = object()


class ForkLock(_thread.RLock):  # type: ignore[misc, name-defined, unused-ignore]
    """A reentrant lock that a process which is forked while another thread holds it finds free.

    The child of a fork has no other threads, so that a lock which one of them held would never be released
    there. What such a thread was about to keep is made again, or is there already. It is a subclass because a
    `with` block enters a lock of C without a moment at which an interrupt could leave it held.
    """

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__()
        _locks.add(self)


_locks: weakref.WeakSet[ForkLock] = weakref.WeakSet()


def _renew() -> None:
    known: list[Any] = list(_locks)
    for lock in known:
        if not lock._is_owned():
            lock._at_fork_reinit()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)


class cached_property(functools.cached_property[_T]):  # noqa: N801
    """functools.cached_property as it is from Python 3.12 on.

    Before, all objects of a class share a lock, under which values are computed: threads wait for each other,
    and a process that is forked meanwhile waits for ever. Here two threads may compute a value at once, and
    both get that of the one that is done first.
    """

    @overload
    def __get__(self, instance: None, owner: type[Any] | None = None) -> cached_property[_T]: ...

    @overload
    def __get__(self, instance: object, owner: type[Any] | None = None) -> _T: ...

    def __get__(self, instance: Any, owner: type[Any] | None = None) -> Any:
        if instance is None:
            return self
        name, values = str(self.attrname), instance.__dict__
        found = values.get(name, _MISSING)
        return values.setdefault(name, self.func(instance)) if found is _MISSING else found
