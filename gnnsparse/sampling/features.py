"""FeatureStore: features of nodes where they fit, and their rows for each batch on the device."""

from __future__ import annotations

import weakref
from typing import Any

import torch

from gnnsparse.errors import bad_type, bad_value, check_choice, check_tensor, device_of
from gnnsparse.runtime.device import path
from gnnsparse.runtime.memo import Streams
from gnnsparse.sampling.feature_rows import FEATURE_DTYPES, RowFormat, Source, read_features
from gnnsparse.sampling.placement import PLACEMENTS, Choice, Room, cached_rows, choose, room_on, size

__all__ = ["FeatureStore"]


class FeatureStore:
    """Features of nodes, of which each batch takes some rows.

    On a GPU they are kept in one of three places, in the order of speed:

    - "device": the GPU's memory.
    - "pinned": pinned memory of the host, which a kernel reads over the bus, and only the rows that a batch
      takes. The GPU keeps copies of the rows that are used most, if `uses` says which these are.
    - "host": the host's memory, or a file that is memory-mapped, from which threads of the CPU gather rows
      into pinned memory. The host waits for the numbers of the rows.

    On the CPU they are in memory ("device"), or in the file ("host"). `gather` returns the same numbers from
    every place, bit for bit. A store may be used from several threads and CUDA streams.

    Args:
        x: [rows, features], float32, float16 or bfloat16: a tensor, an array, or the path of a .npy file,
            which is memory-mapped.
        placement: "device", "pinned", "host", or "auto": the first of them that leaves room.
        device: where rows come out; None: where `x` is.
        dtype: how rows are stored: "fp32", "fp16", "bf16", or "fp8": e4m3 with a float32 scale for each row,
            which comes out in float16; None: the dtype of `x`. "host" converts rows as they are gathered, and
            has no "fp8".
        uses: [rows], numbers by which rows are used: those with the largest ones are copied to the GPU, with
            "pinned". Such are `NeighborSampler.source_degrees`, or counts of some batches' nodes.
        cache_share: the share of all rows that are copied at most; a quarter of the GPU's free memory is the
            most they take.

    Attributes:
        placement: "device", "pinned" or "host".
        shape: (rows, features).
        dtype: dtype that rows come out in.
        device: where they come out.
        cached_rows: number of rows of which the GPU keeps copies.

    Raises:
        TypeError: an argument is of another type or dtype.
        ValueError: an argument is out of range, or does not go with another one.
    """

    def __init__(
        self,
        x: Any,
        placement: str = "auto",
        *,
        device: torch.device | str | None = None,
        dtype: str | None = None,
        uses: torch.Tensor | None = None,
        cache_share: float = 0.1,
    ) -> None:
        source = read_features(x)
        given = source.x
        check_choice("placement", placement, PLACEMENTS)
        wanted = given.device if device is None else device_of("device", device)
        self.device = torch.empty(0, dtype=torch.uint8, device=wanted).device  # with its index
        self.shape = (given.shape[0], given.shape[1])
        name = source.dtype_name if dtype is None else check_choice("dtype", dtype, tuple(FEATURE_DTYPES))
        self._format = RowFormat(name, given.shape[1])
        share = _check_cache_share(cache_share)
        uses = None if uses is None else _check_uses(uses, given.shape[0])
        room = room_on(self.device)
        self._choice = self._choose(placement, source, room)
        self.placement, self.dtype = self._choice.placement, self._format.dtype
        self._streams = Streams(self.device)
        self._source = given if self.placement == "host" else None
        self._rows: torch.Tensor | None = None
        self._kept: torch.Tensor | None = None
        self._place: torch.Tensor | None = None
        self._used_share: float | None = None
        self.cached_rows = 0
        if self.placement != "host":
            self._rows = self._store(source)
        if self.placement == "pinned" and uses is not None:
            self._keep(uses, cached_rows(given.shape[0], self._format.row_bytes, share, room))
        if path().takes(self.device):
            path().finish(self.device)  # other streams gather what was copied on this one
            arrays = [t for t in (self._rows, self._kept, self._place) if t is not None]
            pinned = self.placement == "pinned"
            weakref.finalize(self, _release, self._streams, arrays, self.device, pinned).atexit = False

    def _choose(self, placement: str, source: Source, room: Room) -> Choice:
        rows, on_gpu = self.shape[0], room.device is not None
        if placement == "pinned" and not on_gpu:
            bad_value("placement", "got 'pinned' on the CPU; accepted: auto, device, host")
        there = source.x.device == self.device and source.x.device.type != "cpu"
        if placement == "host" and source.x.device.type != "cpu":
            bad_value("placement", f"got 'host' with x on {source.x.device}; accepted: x on the CPU")
        if placement != "auto":
            choice = Choice(placement, "it was asked for")
        elif there:
            choice = Choice("device", "they are there already")
        else:
            choice = choose(rows, self._format.row_bytes, room, in_file=source.in_file)
        if choice.placement == "host" and self._format.name == "fp8":
            bad_value(
                "dtype", f"got 'fp8' with placement 'host' ({choice.reason}); accepted: fp32, fp16, bf16"
            )
        return choice

    def _store(self, source: Source) -> torch.Tensor:
        """Returns the rows as bytes where they are kept; those of `x` itself if they are there already."""
        x, pinned = source.x, self.placement == "pinned"
        there = x.device == self.device and not pinned and not source.in_file
        if there and self._format.name == source.dtype_name and x.is_contiguous():
            return x.view(torch.uint8)
        rows, width = x.shape[0], self._format.row_bytes
        if pinned:
            found = path().pinned_memory(rows * width).view(rows, width)
        else:
            found = torch.empty(rows, width, dtype=torch.uint8, device=self.device)
        step = self._format.rows_at_a_time
        for first in range(0, rows, step):
            found[first : first + step] = self._format.encode(x[first : first + step])
        return found

    def _keep(self, uses: torch.Tensor, count: int) -> None:
        """Copies the rows that are used most to the GPU."""
        assert self._rows is not None
        if count == 0:
            return
        most = torch.argsort(uses, descending=True, stable=True)[:count]
        place = torch.full((uses.numel(),), -1, dtype=torch.int32, device="cpu")
        place[most] = torch.arange(count, dtype=torch.int32, device="cpu")
        self._place = place.to(self.device)
        kept = torch.empty(count, self._format.row_bytes, dtype=torch.uint8, device=self.device)
        step = self._format.rows_at_a_time
        for first in range(0, count, step):
            kept[first : first + step] = self._rows.index_select(0, most[first : first + step])
        total = float(uses.double().sum())
        self._used_share = float(uses[most].double().sum()) / total if total > 0 else None
        self._kept, self.cached_rows = kept, count

    @property
    def device_bytes(self) -> int:
        """Bytes that the store takes in the memory of a GPU."""
        if not path().takes(self.device):
            return 0
        rows = self._rows if self.placement == "device" else None
        return sum(t.nbytes for t in (rows, self._kept, self._place) if t is not None)

    def gather(self, rows: torch.Tensor) -> torch.Tensor:
        """Returns some rows.

        On a GPU the work is queued on the current stream; only with "host" does the host wait for the stream.

        Args:
            rows: int64 [k] on the store's device, numbers of rows, in any order, with repeats or without. One
                out of range raises an error on the CPU, and with "host"; else it gives a row of NaN, since
                the host does not wait to see it.

        Returns:
            [k, features] on the device.

        Raises:
            TypeError: `rows` is of another type or dtype.
            ValueError: it has another shape or device.
            IndexError: a number is out of range.
        """
        check_tensor("rows", rows, dtypes=(torch.int64,), shape=(None,))
        if rows.device != self.device:
            bad_value("rows", f"is on {rows.device}; accepted: {self.device}, where rows come out")
        on_gpu = path().takes(self.device)
        if not on_gpu and self.shape[0] == 0 and rows.numel() > 0:  # for which torch has no IndexError
            raise IndexError("rows: got numbers of rows; accepted: none, as the store has no rows")
        if self._rows is None:
            return self._from_host(rows)
        if not on_gpu:
            return self._format.decode(self._rows.index_select(0, rows))
        out = torch.empty(rows.numel(), self._format.row_bytes, dtype=torch.uint8, device=self.device)
        with path().current(self.device):
            path().native.cuda_gather_rows(
                self._rows, self._kept, self._place, rows.contiguous(), out, self._format.row_bytes,
                self._streams.current(),
            )  # fmt: skip
        return self._format.decode(out)

    def _from_host(self, rows: torch.Tensor) -> torch.Tensor:
        assert self._source is not None
        if not path().takes(self.device):
            return self._source.index_select(0, rows).to(self.dtype)
        # torch keeps pinned memory that is freed until the copy from it is done.
        shape = rows.numel(), self.shape[1]
        staged = path().pinned_memory(rows.numel() * self.shape[1] * self._source.dtype.itemsize)
        into = staged.view(self._source.dtype).view(shape)
        torch.index_select(self._source, 0, rows.cpu(), out=into)
        return into.to(self.device, non_blocking=True).to(self.dtype)

    def whole(self) -> torch.Tensor:
        """Returns all rows on the device, [rows, features]: with "device" the memory itself, else a copy."""
        if self._rows is None:
            assert self._source is not None
            return self._source.to(self.device, self.dtype)
        return self._format.decode(self._rows.to(self.device))

    def explain(self) -> str:
        """Returns where the features are and why, and what of them the GPU keeps, as lines of text."""
        rows, features = self.shape
        lines = [
            f"features: {rows} x {features} in {self._format.name}, {size(rows * self._format.row_bytes)}",
            f"placement: {self.placement}, as {self._choice.reason}",
        ]
        if self.placement == "pinned":
            share = "" if self._used_share is None else f", with {self._used_share:.1%} of the uses"
            lines.append(f"copies on the GPU: {self.cached_rows} of the rows{share}")
        return "\n".join(lines)

    def __repr__(self) -> str:
        rows, features = self.shape
        return (
            f"FeatureStore({rows} x {features}, {self._format.name}, placement={self.placement}, "
            f"device={self.device})"
        )


def _check_cache_share(value: Any) -> float:
    accepted = "a number from 0 to 1"
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        bad_type("cache_share", value, accepted)
    if not 0 <= value <= 1:
        bad_value("cache_share", f"got {value}; accepted: {accepted}")
    return float(value)


def _check_uses(uses: Any, rows: int) -> torch.Tensor:
    if not isinstance(uses, torch.Tensor) or uses.dtype.is_complex or uses.dtype == torch.bool:
        bad_type("uses", uses, f"numbers [{rows}]")
    if uses.shape != (rows,):
        bad_value("uses", f"has shape {tuple(uses.shape)}; accepted: ({rows},), a number for each row")
    return uses.detach().cpu()


def _release(streams: Streams, arrays: list[torch.Tensor], device: torch.device, pinned: bool) -> None:
    """Keeps arrays until what reads them is done: torch does not know which kernels read pinned memory."""
    streams.keep_until_done(arrays)
    if pinned:
        path().finish_all(device)
