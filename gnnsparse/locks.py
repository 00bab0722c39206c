"""Locks that a forked process finds free, and properties that are kept without any."""

from __future__ import annotations

import functools
import os
import threading
import weakref
from types import TracebackType
from typing import Any, TypeVar, overload

__all__ = ["ForkLock", "cached_property"]

_T = TypeVar("_T")
_MISSING = object()


class ForkLock:
    """A reentrant lock for `with` blocks. A process that is forked while a thread holds it finds it free.

    The child of a fork has no other threads, so that a lock which one of them held would never be released
    there. What such a thread was about to keep is made again, or is there already.
    """

    __slots__ = ("__weakref__", "_lock")

    def __init__(self) -> None:
        self._lock = threading.RLock()
        _locks.add(self)

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.release()


_locks: weakref.WeakSet[ForkLock] = weakref.WeakSet()


def _renew() -> None:
    for lock in list(_locks):
        if not lock._lock._is_owned():  # type: ignore[attr-defined]
            lock._lock = threading.RLock()


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
