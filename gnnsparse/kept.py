"""Values that are computed once and kept, for use from several threads and CUDA streams."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar, cast

import torch

from gnnsparse.cuda_path import path

__all__ = ["Kept", "Key"]

_T = TypeVar("_T")


class Key(Generic[_T]):
    """Key of a kept value of type `_T`. Keys are frozen dataclasses, one class for each kind of value."""


class Kept:
    """A dictionary of values, each computed once, under a lock, when its key is first asked for.

    Kernels hold addresses of kept values, so a value is neither replaced nor dropped, except for plans and
    calls bound to them.

    Args:
        lock: shared by all instances whose values are computed from one another, so that none can deadlock.
        device: where values are computed. On a GPU they are complete before another stream can see them.
    """

    def __init__(self, lock: threading.RLock, device: torch.device) -> None:
        self.lock, self._device = lock, device
        self._values: dict[Hashable, Any] = {}

    def get(self, key: Key[_T], make: Callable[[], _T]) -> _T:
        """Returns the value of a key; calls `make` for it the first time.

        Raises:
            RuntimeError: the value would have to be computed while a CUDA graph is captured.
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
                with torch.inference_mode(False):  # what is made in it could not be used in training later
                    made = make()
                if on_gpu:
                    path().finish(self._device)
                self._values[key] = made
            return cast(_T, self._values[key])

    def put(self, key: Key[_T], value: _T) -> None:
        """Sets the value of a key, and replaces the one that it had."""
        with self.lock:
            self._values[key] = value

    def drop(self, which: Callable[[Any], bool]) -> None:
        """Removes all keys for which `which` is true."""
        with self.lock:
            for key in [key for key in self._values if which(key)]:
                del self._values[key]

    def values_of(self, kind: type[_T]) -> list[_T]:
        """Returns all values of one type."""
        with self.lock:
            return [value for value in self._values.values() if isinstance(value, kind)]

    def copy(self) -> Kept:
        """Returns a copy that holds the values of now; later ones go into either copy alone."""
        with self.lock:
            other = Kept(self.lock, self._device)
            other._values = dict(self._values)
            return other
