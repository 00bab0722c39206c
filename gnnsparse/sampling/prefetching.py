"""prefetch, which makes the batches of the next steps while a step runs.

It stands alone because it takes any iterable: no sampler is needed to use or to test it.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

import torch

from gnnsparse.errors import check_integer
from gnnsparse.runtime.device import path
from gnnsparse.runtime.memo import tensors_of

__all__ = ["prefetch"]

_T = TypeVar("_T")
_END = object()


def prefetch(batches: Iterable[_T], depth: int = 2, device: torch.device | str = "cpu") -> Iterator[_T]:
    """Yield the batches of an iterable, which a thread takes from it ahead of time.

    The order is that of the iterable, and an error that it raises is raised here in its place. On a GPU the
    thread has a stream of its own: a batch is made on it while the stream of the caller computes, which waits
    for the batch on the device. The host waits for sizes in that thread alone.

    Args:
        batches: the iterable.
        depth: batches that are ready at most; 0: the caller makes them, without a thread.
        device: the device of the batches.

    Yields:
        The batches. On a GPU the tensors in them, also in dataclasses, lists and tuples, may be used on the
        stream that is current when they are yielded.

    Raises:
        TypeError: `depth` is no integer.
        ValueError: `depth` is below 0.
    """
    check_integer("depth", depth, 0, "an integer, 0 or more")
    device = torch.device(device)
    return iter(batches) if depth == 0 else _ahead(batches, depth, device)


def _ahead(batches: Iterable[_T], depth: int, device: torch.device) -> Iterator[_T]:
    ready: queue.Queue[Any] = queue.Queue(depth)
    stopped = threading.Event()
    worker = _Worker(batches, ready, stopped, device)
    worker.start()
    try:
        while (made := ready.get()) is not _END:
            batch, event, problem = made
            if problem is not None:
                raise problem
            if event is not None:
                stream = torch.cuda.current_stream(device)
                stream.wait_event(event)
                path().record_use(tensors_of(batch), stream.cuda_stream)
            yield batch
    finally:
        stopped.set()
        with contextlib.suppress(queue.Empty):
            while True:  # the thread may wait for room
                ready.get_nowait()
        worker.join()


class _Worker(threading.Thread):
    """The thread that takes batches from an iterable and puts them into a queue."""

    def __init__(
        self,
        batches: Iterable[Any],
        ready: queue.Queue[Any],
        stopped: threading.Event,
        device: torch.device,
    ) -> None:
        super().__init__(name="gnnsparse-prefetch", daemon=True)
        self._batches, self._ready, self._stopped, self._device = batches, ready, stopped, device
        # What batches are made of may still be on its way on the stream of the caller.
        self._begin = torch.cuda.current_stream(device).record_event() if device.type == "cuda" else None

    def run(self) -> None:
        """Put (batch, event or None, None) for each batch, (None, None, error) for an error, and _END."""
        try:
            with self._stream() as stream:
                for batch in self._batches:
                    event = None if stream is None else stream.record_event()
                    if not self._put((batch, event, None)):
                        return
        except BaseException as problem:  # the caller raises it
            self._put((None, None, problem))
        else:
            self._put(_END)

    @contextlib.contextmanager
    def _stream(self) -> Iterator[Any]:
        if self._begin is None:
            yield None
            return
        stream = torch.cuda.Stream(self._device)
        stream.wait_event(self._begin)
        with torch.cuda.stream(stream):
            yield stream

    def _put(self, item: Any) -> bool:
        """Put an item into the queue when there is room; False if nobody wants it any more."""
        while not self._stopped.is_set():
            with contextlib.suppress(queue.Full):
                self._ready.put(item, timeout=0.05)
                return True
        return False
