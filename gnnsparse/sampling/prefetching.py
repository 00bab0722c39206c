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
    # What batches are made of may still be on its way on the stream of the caller.
    begin = torch.cuda.current_stream(device).record_event() if device.type == "cuda" else None

    def put(item: Any) -> bool:
        """Put an item into the queue when there is room; False if nobody wants it any more."""
        while not stopped.is_set():
            with contextlib.suppress(queue.Full):
                ready.put(item, timeout=0.05)
                return True
        return False

    def work() -> None:
        """Put (batch, event or None, None) for each batch, (None, None, error) for an error, and _END."""
        try:
            stream = None
            if begin is not None:
                stream = torch.cuda.Stream(device)
                stream.wait_event(begin)
            with contextlib.nullcontext() if stream is None else torch.cuda.stream(stream):
                for batch in batches:
                    event = None if stream is None else stream.record_event()
                    if not put((batch, event, None)):
                        return
        except BaseException as problem:  # the caller raises it
            put((None, None, problem))
        else:
            put(_END)

    worker = threading.Thread(target=work, name="gnnsparse-prefetch", daemon=True)
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
