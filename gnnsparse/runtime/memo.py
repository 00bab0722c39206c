"""Values that are computed once and cached, for several threads, forked processes and CUDA streams."""

from __future__ import annotations

import _thread
import dataclasses
import functools
import os
import weakref
from collections.abc import Callable, Hashable, Iterator
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar, cast

import torch

from gnnsparse.runtime.device import path
from gnnsparse.runtime.functorch import outside
from gnnsparse.runtime.nvtx import ranges_are_on

_P = ParamSpec("_P")
_T = TypeVar("_T")
_MISSING = object()


class ForkLock(_thread.RLock):  # type: ignore[misc, name-defined, unused-ignore]
    """A reentrant lock that a process which is forked while another thread holds it finds free.

    The child has no other threads to release it. It is a subclass because a `with` block enters a lock of C
    without a moment at which an interrupt could leave it held.
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


if TYPE_CHECKING:
    cached_property = functools.cached_property
else:

    class cached_property(functools.cached_property):  # noqa: N801
        """functools.cached_property as from Python 3.12 on, without the lock that objects of a class share.

        A process forked while another thread holds that lock would wait for ever. Here two threads may
        compute a value at once, and both get that of the one that is done first.
        """

        def __get__(self, instance: Any, owner: Any = None) -> Any:
            if instance is None:
                return self
            name, values = self.attrname, instance.__dict__
            found = values.get(name, _MISSING)
            return values.setdefault(name, self.func(instance)) if found is _MISSING else found


class Memo:
    """A dictionary of values, each computed once, under a lock, when its key is first asked for.

    Keys are tuples, strings or frozen dataclasses. Only plans and the calls bound to them are replaced or
    dropped. The lock is shared by memos whose values are computed from one another. On a GPU a value is
    complete before another stream can see it, unless all are used on `one_stream`. With `renewable`, tensors
    are remembered with what made them, for `renew`.
    """

    def __init__(
        self, lock: ForkLock, device: torch.device, one_stream: bool = False, renewable: bool = False
    ) -> None:
        self.lock, self._device, self.one_stream = lock, device, one_stream
        self._values: dict[Hashable, Any] = {}
        self._makers: dict[Hashable, Callable[[], Any]] | None = {} if renewable else None

    def get(self, key: Hashable, make: Callable[[], _T]) -> _T:
        """Return the value of a key; the first time call `make`, which a CUDA graph's capture forbids."""
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
                with outside():
                    made = make()
                if on_gpu and not self.one_stream:
                    path().finish(self._device)
                self._values[key] = made
                if self._makers is not None and isinstance(made, torch.Tensor):
                    self._makers[key] = make
            return cast(_T, self._values[key])

    def renew(self) -> None:
        """Compute all tensors again, in their order and memory, after the arrays behind them changed."""
        with outside():
            for key, make in list((self._makers or {}).items()):
                old, new = self._values[key], make()
                if new.data_ptr() != old.data_ptr():
                    old.copy_(new)

    def find(self, key: Hashable) -> Any:
        """Return the value of a key, or None if it was not made yet. torch.compile can trace it."""
        return self._values.get(key)

    def put(self, key: Hashable, value: object) -> None:
        """Set the value of a key, and replace the one that it had."""
        with self.lock:
            self._values[key] = value

    def drop(self, which: Callable[[Any], bool]) -> None:
        """Remove all keys for which `which` is true."""
        with self.lock:
            for key in [key for key in self._values if which(key)]:
                del self._values[key]

    def values_of(self, kind: type[_T]) -> list[_T]:
        """Return all values made so far that are of one type, `object` for all."""
        with self.lock:
            return [value for value in self._values.values() if isinstance(value, kind)]

    def copy(self) -> Memo:
        """Return a copy that holds the values of now; later ones go into either copy alone."""
        with self.lock:
            other = Memo(self.lock, self._device, self.one_stream)
            other._values = dict(self._values)
            return other


def made_once(function: Callable[Concatenate[Any, _P], _T]) -> Callable[Concatenate[Any, _P], _T]:
    """Make a function of an object with a `memo` compute its value once for the same positional arguments."""
    name = f"{function.__module__}.{function.__qualname__}"

    @functools.wraps(function)
    def find(owner: Any, *arguments: Any) -> Any:
        return owner.memo.get((name, *arguments), functools.partial(function, owner, *arguments))

    return cast("Callable[Concatenate[Any, _P], _T]", find)


#: X -> A X, None or NotImplemented: see DispatchCache.
Multiplier = Callable[[Any], Any]
#: The most launches that are looked through for one that takes an X.
_MOST_LAUNCHES = 32


def _no_launch(x: Any) -> None:
    return None


_NONE: tuple[Multiplier, Multiplier] = (_no_launch, _no_launch)


class Launchable:
    """A bound product `run` on its device, and its native launch; `adds`: whether `run` can add."""

    __slots__ = ("_device", "_run", "adds", "launch", "mean")

    def __init__(
        self, device: torch.device, run: Callable[..., Any], launch: Any, mean: bool, adds: bool = False
    ) -> None:
        self._device, self._run, self.launch, self.mean, self.adds = device, run, launch, mean, adds

    def __call__(self, *arguments: torch.Tensor | bool | None) -> torch.Tensor:
        """Run the product."""
        with path().current(self._device):
            return self._run(*arguments)


class DispatchCache(dict[Any, Any]):
    """Bound calls by the form of the arguments that have passed all checks.

    A call is only taken if the memo still has it: another thread may have replaced its plan since it was
    bound. Calls that have a native launch, a `Launchable`, are collected in functions of X besides:
    `multiply` has one for sums and one for means, which returns A X, None where the call has to go the long
    way, or NotImplemented where autograd records the call. The tuple is never changed, but replaced, so that
    threads need no lock. `repeats`: whether a launch pays, which it does not for a batch on one stream.
    """

    def __init__(self, memo: Memo) -> None:
        super().__init__()
        self._memo = memo
        self.repeats = not memo.one_stream
        self._launches: tuple[list[Any], list[Any]] = [], []
        self.multiply: tuple[Multiplier, Multiplier] = _NONE

    def __setitem__(self, form: Any, call: Any) -> None:
        with self._memo.lock:
            if not any(known is call for known in self._memo.values_of(object)):
                return
            super().__setitem__(form, call)
            if isinstance(call, Launchable) and call.launch is not None and not ranges_are_on():
                self._add(call)

    def _add(self, call: Launchable) -> None:
        launches = self._launches[call.mean]
        if call.launch in launches:
            return
        if len(launches) == _MOST_LAUNCHES:  # they are looked through one by one
            launches.clear()
        launches.append(call.launch)
        made = path().native.spmm_multiplier(*launches)
        total, mean = self.multiply
        self.multiply = (total, made) if call.mean else (made, mean)

    def clear(self) -> None:
        """Forget all calls."""
        with self._memo.lock:
            super().clear()
            self._launches = [], []
            self.multiply = _NONE


class Streams:
    """The CUDA streams on which kernels were launched that read an operand's arrays.

    Memory on a GPU belongs to the stream on which it was allocated: if the operand is freed while such a
    kernel waits or runs, the other streams have to be told.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._used: set[int] = set()

    def current(self) -> int:
        """Return the handle of the current stream, on which a kernel is about to be launched."""
        stream = path().stream(self._device)
        self._used.add(stream)
        return stream

    def note(self, stream: int) -> None:
        """Note a stream on which native code is about to launch a kernel by itself."""
        self._used.add(stream)

    def keep_until_done(self, arrays: Any) -> None:
        """Keep the memory of arrays (see `tensors_of`) until all streams are done, once they are freed."""
        tensors = list(tensors_of(arrays)) if self._used else []
        for stream in self._used:
            path().record_use(tensors, stream)


def tensors_of(value: Any, seen: set[int] | None = None) -> Iterator[torch.Tensor]:
    """Yield the tensors in a value: a tensor, or dataclasses, collections and memos of values.

    Memos may hold what leads back to them: `seen` has the ids of those whose values were yielded.
    """
    seen = set() if seen is None else seen
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Memo):
        if id(value) not in seen:
            seen.add(id(value))
            yield from tensors_of(value.values_of(object), seen)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors_of(item, seen)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from tensors_of(getattr(value, field.name), seen)
