"""FeatureStore: features of nodes where they fit, and their rows for each batch on the device."""

from __future__ import annotations

import os
import warnings
import weakref
from typing import Any, NamedTuple

import numpy as np
import torch

from gnnsparse.errors import (
    available_memory,
    bad_type,
    bad_value,
    check_choice,
    check_number,
    check_tensor,
    device_of,
)
from gnnsparse.runtime.device import path
from gnnsparse.runtime.memo import Streams

#: Values of the argument `placement`.
PLACEMENTS = ("auto", "device", "pinned", "host")

#: Of a GPU's free memory, what features may take, so that a step has room; and the copies of the most used
#: rows, where the others are in pinned memory.
_DEVICE_FRACTION, _CACHE_FRACTION = 0.5, 0.25
#: Of the host's free memory, what features may take that the system can't move to disk.
_HOST_FRACTION = 0.5


class Room(NamedTuple):
    """The bytes of memory that are free on the GPU, None if the device is the CPU, and of the host."""

    device: int | None
    host: int


class Choice(NamedTuple):
    """A placement, and why it was chosen."""

    placement: str
    reason: str


def _size(count: int) -> str:
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= scale:
            return f"{count / scale:.1f} {unit}"
    return f"{count} bytes"


def choose(rows: int, row_bytes: int, room: Room, *, in_file: bool) -> Choice:
    """Choose the fastest placement that leaves room for the rest, of features in memory or `in_file`."""
    needed = rows * row_bytes
    what = f"{rows} rows of {row_bytes} bytes, {_size(needed)},"
    if room.device is None:
        if not in_file:
            return Choice("device", f"{what} are in the memory of the device, the CPU, already")
        fits = needed <= _HOST_FRACTION * room.host
        verb, placement = ("are", "device") if fits else ("are not", "host")
        limit = f"{_HOST_FRACTION:.0%} of the {_size(room.host)} that are free"
        return Choice(placement, f"{what} {verb} at most {limit} in memory; their file can stay on disk")
    limit = f"{_DEVICE_FRACTION:.0%} of the {_size(room.device)} that are free on the GPU"
    if needed <= _DEVICE_FRACTION * room.device:
        return Choice("device", f"{what} are at most {limit}")
    taken = 1 << max(needed - 1, 0).bit_length()  # torch pins a power of two
    of_host = f"{_HOST_FRACTION:.0%} of the {_size(room.host)} that are free on the host"
    if taken <= _HOST_FRACTION * room.host:
        return Choice("pinned", f"{what} are more than {limit}, and at most {of_host} when they are pinned")
    where = "their file is" if in_file else "they are"
    reason = f"{what} are more than {limit}, and more than {of_host} when they are pinned"
    return Choice("host", f"{reason}; {where} on the host")


def cached_rows(rows: int, row_bytes: int, fraction: float, room: Room) -> int:
    """Return the number of rows of which the GPU has copies: a fraction, or what its free memory holds."""
    fits = int(_CACHE_FRACTION * (room.device or 0)) // max(row_bytes, 1)
    return min(int(fraction * rows), fits)


#: Values of the argument `dtype`, and the dtypes that rows come out in.
FEATURE_DTYPES = {
    "fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16, "fp8": torch.float16,
}  # fmt: skip
_NAMES = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16"}
#: The largest number of e4m3, and of float16, which rows stored in 8 bits come out in.
_LARGEST, _LARGEST_HALF = 448.0, 65504.0
#: Rows whose largest magnitude is below this have steps as if it were this large.
_LEAST_PEAK = 2.0**-100
#: Bytes of the vectors that a GPU loads.
_VECTOR = 16
#: Bytes of features that are converted at a time, which bounds the scratch memory.
_PART_BYTES = 2**26


def _read_features(x: Any) -> tuple[torch.Tensor, bool]:
    """Return `x` as a tensor, and whether it lies over a memory-mapped file, which is not read."""
    accepted = "[rows, features], float32, float16 or bfloat16, or the path of a .npy file"
    in_file = False
    if isinstance(x, (str, os.PathLike)):
        try:
            x = np.load(x, mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError, EOFError) as error:
            reason = " ".join(str(error).split())[:200]
            bad_value("x", f"{x} can't be mapped ({reason}); accepted: a .npy file of one array")
    if isinstance(x, np.ndarray):
        in_file = isinstance(x, np.memmap)
        if x.dtype not in (np.float32, np.float16):
            raise TypeError(f"x: got an array of dtype {x.dtype}; accepted: {accepted}")
        if any(stride < 0 for stride in x.strides):  # torch has none
            bad_value("x", "is an array with a reversed axis; accepted: one without, as of numpy's copy()")
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*not writable", UserWarning)  # nothing writes to it
            x = torch.from_numpy(x)
    if not isinstance(x, torch.Tensor) or x.layout != torch.strided or x.dtype not in _NAMES:
        bad_type("x", x, accepted)
    if x.dim() != 2 or x.shape[1] == 0:
        bad_value("x", f"has shape {tuple(x.shape)}; accepted: (rows, features), with features")
    return x.detach(), in_file


class _RowFormat:
    """How a row of some features is stored as bytes, by the name of one of FEATURE_DTYPES.

    In "fp8" it is e4m3 numbers with a float32 scale behind them, the row's largest magnitude over 448, padded
    to whole vectors of a GPU; in the others it is its numbers.
    """

    def __init__(self, name: str, features: int) -> None:
        self.name, self.features, self.dtype = name, features, FEATURE_DTYPES[name]
        self._scale_at = -(-features // 4) * 4
        vectors = -(-(self._scale_at + 4) // _VECTOR)
        self.row_bytes = vectors * _VECTOR if name == "fp8" else features * self.dtype.itemsize
        self.rows_at_a_time = max(1, _PART_BYTES // (4 * features))

    def encode(self, x: torch.Tensor) -> torch.Tensor:
        """Return rows as bytes, uint8 [rows, row_bytes]; those of `x` itself if it has the dtype."""
        if self.name != "fp8":
            return x.to(self.dtype).contiguous().view(torch.uint8)
        wide = x.float()
        peak = wide.abs().amax(1, keepdim=True)
        if peak.numel() and not float(peak.max()) <= _LARGEST_HALF:
            bad_value("x", f"has {float(peak.max())}; accepted with dtype='fp8': finite, at most 65504")
        scale = peak.clamp(min=_LEAST_PEAK) / _LARGEST
        codes = (wide / scale).clamp(-_LARGEST, _LARGEST).to(torch.float8_e4m3fn)
        out = torch.zeros(x.shape[0], self.row_bytes, dtype=torch.uint8, device=x.device)
        out[:, : self.features] = codes.view(torch.uint8)
        out[:, self._scale_at : self._scale_at + 4] = scale.view(torch.uint8)
        return out

    def decode(self, rows: torch.Tensor) -> torch.Tensor:
        """Return what bytes stand for, [rows, features]; the inverse of `encode` but for its rounding."""
        if self.name != "fp8":
            return rows.view(self.dtype)
        codes = rows[:, : self.features].view(torch.float8_e4m3fn).float()
        scale = rows[:, self._scale_at : self._scale_at + 4].contiguous().view(torch.float32)
        return (codes * scale).to(self.dtype)


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
        cache_share: the fraction of all rows that are copied at most; a quarter of the GPU's free memory is
            the most they take.

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
        given, in_file = _read_features(x)
        check_choice("placement", placement, PLACEMENTS)
        wanted = given.device if device is None else device_of("device", device)
        self.device = torch.empty(0, dtype=torch.uint8, device=wanted).device  # with its index
        self.shape = (given.shape[0], given.shape[1])
        name = _NAMES[given.dtype] if dtype is None else check_choice("dtype", dtype, tuple(FEATURE_DTYPES))
        self._format = _RowFormat(name, given.shape[1])
        accepted, rows = "a number from 0 to 1", given.shape[0]
        if not 0 <= check_number("cache_share", cache_share, accepted) <= 1:
            bad_value("cache_share", f"got {cache_share}; accepted: {accepted}")
        if uses is not None:
            if not isinstance(uses, torch.Tensor) or uses.dtype.is_complex or uses.dtype == torch.bool:
                bad_type("uses", uses, f"numbers [{rows}]")
            if uses.shape != (rows,):
                got = f"has shape {tuple(uses.shape)}"
                bad_value("uses", f"{got}; accepted: ({rows},), a number for each row")
            uses = uses.detach().cpu()
        on_gpu = path().takes(self.device)
        room = Room(path().free_memory(self.device) if on_gpu else None, available_memory().free)
        self._choice = self._choose(placement, given, in_file, room)
        self.placement, self.dtype = self._choice.placement, self._format.dtype
        self._streams = Streams(self.device)
        self._source = given if self.placement == "host" else None
        self._rows: torch.Tensor | None = None
        self._copies: torch.Tensor | None = None
        self._place: torch.Tensor | None = None
        self._used_fraction: float | None = None
        self.cached_rows = 0
        if self.placement != "host":
            self._rows = self._store(given, in_file)
        if self.placement == "pinned" and uses is not None:
            self._copy_most_used(uses, cached_rows(rows, self._format.row_bytes, cache_share, room))
        if on_gpu:
            path().finish(self.device)  # other streams gather what was copied on this one
            arrays = [t for t in (self._rows, self._copies, self._place) if t is not None]
            pinned = self.placement == "pinned"
            weakref.finalize(self, _release, self._streams, arrays, self.device, pinned).atexit = False

    def _choose(self, placement: str, x: torch.Tensor, in_file: bool, room: Room) -> Choice:
        if placement == "pinned" and room.device is None:
            bad_value("placement", "got 'pinned' on the CPU; accepted: auto, device, host")
        if placement == "host" and x.device.type != "cpu":
            bad_value("placement", f"got 'host' with x on {x.device}; accepted: x on the CPU")
        if placement != "auto":
            choice = Choice(placement, "it was asked for")
        elif x.device == self.device and x.device.type != "cpu":
            choice = Choice("device", "they are there already")
        else:
            choice = choose(self.shape[0], self._format.row_bytes, room, in_file=in_file)
        if choice.placement == "host" and self._format.name == "fp8":
            got = f"got 'fp8' with placement 'host' ({choice.reason})"
            bad_value("dtype", f"{got}; accepted: fp32, fp16, bf16")
        return choice

    def _store(self, x: torch.Tensor, in_file: bool) -> torch.Tensor:
        """Return the rows as bytes where they are to be; those of `x` itself if they are there already."""
        pinned = self.placement == "pinned"
        there = x.device == self.device and not pinned and not in_file
        if there and self._format.dtype == x.dtype and self._format.name != "fp8" and x.is_contiguous():
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

    def _copy_most_used(self, uses: torch.Tensor, count: int) -> None:
        assert self._rows is not None
        if count == 0:
            return
        most = torch.argsort(uses, descending=True, stable=True)[:count]
        place = torch.full((uses.numel(),), -1, dtype=torch.int32, device="cpu")
        place[most] = torch.arange(count, dtype=torch.int32, device="cpu")
        self._place = place.to(self.device)
        copies = torch.empty(count, self._format.row_bytes, dtype=torch.uint8, device=self.device)
        step = self._format.rows_at_a_time
        for first in range(0, count, step):
            copies[first : first + step] = self._rows.index_select(0, most[first : first + step])
        total = float(uses.double().sum())
        self._used_fraction = float(uses[most].double().sum()) / total if total > 0 else None
        self._copies, self.cached_rows = copies, count

    @property
    def device_bytes(self) -> int:
        """Bytes that the store takes in the memory of a GPU."""
        if not path().takes(self.device):
            return 0
        rows = self._rows if self.placement == "device" else None
        return sum(t.nbytes for t in (rows, self._copies, self._place) if t is not None)

    def gather(self, rows: torch.Tensor) -> torch.Tensor:
        """Return some rows.

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
                self._rows, self._copies, self._place, rows.contiguous(), out, self._format.row_bytes,
                self._streams.current(),
            )  # fmt: skip
        return self._format.decode(out)

    def _from_host(self, rows: torch.Tensor) -> torch.Tensor:
        assert self._source is not None
        if not path().takes(self.device):
            return self._source.index_select(0, rows).to(self.dtype)
        # torch keeps pinned memory that is freed until the copy from it is done.
        staged = path().pinned_memory(rows.numel() * self.shape[1] * self._source.dtype.itemsize)
        into = staged.view(self._source.dtype).view(rows.numel(), self.shape[1])
        torch.index_select(self._source, 0, rows.cpu(), out=into)
        return into.to(self.device, non_blocking=True).to(self.dtype)

    def whole(self) -> torch.Tensor:
        """Return all rows on the device, [rows, features]: with "device" the memory itself, else a copy."""
        if self._rows is None:
            assert self._source is not None
            return self._source.to(self.device, self.dtype)
        return self._format.decode(self._rows.to(self.device))

    def explain(self) -> str:
        """Return where the features are and why, and what of them the GPU keeps, as lines of text."""
        rows, features = self.shape
        lines = [
            f"features: {rows} x {features} in {self._format.name}, {_size(rows * self._format.row_bytes)}",
            f"placement: {self.placement}, as {self._choice.reason}",
        ]
        if self.placement == "pinned":
            fraction = "" if self._used_fraction is None else f", with {self._used_fraction:.1%} of the uses"
            lines.append(f"copies on the GPU: {self.cached_rows} of the rows{fraction}")
        return "\n".join(lines)

    def __repr__(self) -> str:
        rows, features = self.shape
        return (
            f"FeatureStore({rows} x {features}, {self._format.name}, placement={self.placement}, "
            f"device={self.device})"
        )


def _release(streams: Streams, arrays: list[torch.Tensor], device: torch.device, pinned: bool) -> None:
    """Keep arrays until what reads them is done: torch does not know which kernels read pinned memory."""
    streams.keep_until_done(arrays)
    if pinned:
        path().finish_all(device)
