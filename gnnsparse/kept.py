"""Values that are made once and kept, safe to ask for from several threads and CUDA streams."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar, cast

import torch

from gnnsparse.cuda_path import path

__all__ = ["Kept", "Key"]

_T = TypeVar("_T")


class Key(Generic[_T]):
    """The name of something that is kept, of type `_T`. Keys are frozen dataclasses, one class a kind."""


class Kept:
    """Values that are made once for each key, under a lock, and kept.

    An address that a kernel is given stays valid: what is kept is neither replaced nor dropped, but for
    plans and what is bound to them.

    Args:
        lock: shared by all that may ask one another, so that no two threads wait for each other.
        device: where values are made. On a GPU they are complete before another stream can see them.
    """

    def __init__(self, lock: threading.RLock, device: torch.device) -> None:
        self.lock, self._device = lock, device
        self._values: dict[Hashable, Any] = {}

    def get(self, key: Key[_T], make: Callable[[], _T]) -> _T:
        """The value of a key; `make` is called where there is none yet.

        Raises:
            RuntimeError: it has to be made while a CUDA graph is captured.
        """
        try:
            return cast(_T, self._values[key])
        except KeyError:
            pass
        with self.lock:
            if key not in self._values:
                on_gpu = path().takes(self._device)
                if on_gpu and path().is_capturing():
                    raise RuntimeError(
                        "the plan of this product is not made yet: run it once before capturing a CUDA graph"
                    )
                made = make()
                if on_gpu:
                    path().finish(self._device)
                self._values[key] = made
            return cast(_T, self._values[key])

    def put(self, key: Key[_T], value: _T) -> None:
        """Makes a value the one of a key."""
        with self.lock:
            self._values[key] = value

    def drop(self, which: Callable[[Any], bool]) -> None:
        """Forgets the values of some keys."""
        with self.lock:
            for key in [key for key in self._values if which(key)]:
                del self._values[key]

    def values_of(self, kind: type[_T]) -> list[_T]:
        """What is kept of one type."""
        with self.lock:
            return [value for value in self._values.values() if isinstance(value, kind)]

    def copy(self) -> Kept:
        """What is kept now; what comes later is apart."""
        with self.lock:
            other = Kept(self.lock, self._device)
            other._values = dict(self._values)
            return other
