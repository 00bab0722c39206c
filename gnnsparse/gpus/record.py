"""The record of a GPU: what its numbers are called, and reading, checking, finding and writing one."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NoReturn

import platformdirs

from gnnsparse.cuda_path import Device
from gnnsparse.environment import write_json
from gnnsparse.errors import bad_value
from gnnsparse.plain import PlainError, from_plain, to_plain

__all__ = [
    "AttentionRates", "CsrRates", "GpuRecord", "MemoryRates", "PanelRates", "PanelRow", "PanelVariant",
    "RecordError", "WindowRates", "load_record", "record_for", "records", "save_record", "user_folder",
    "using",
]  # fmt: skip

#: The record that a GPU takes which resembles several of them equally.
_DEFAULT = "NVIDIA H200"


class RecordError(ValueError):
    """A file holds no valid record of a GPU; the message names the file, the entry, and what is accepted."""


@dataclass(frozen=True)
class MemoryRates:
    """Rates of a GPU's memory.

    Attributes:
        l2: pairs (bytes of X in use at a time, TB/s at which its random rows come out of L2), by rising size.
        resident_bytes: a slice of X of this size stays in L2 beside what else passes through.
        pass_start_us, pass_tbs: a pass over X that reads and writes it: microseconds of its start, TB/s.
        dram_tbs: TB/s of a large copy, bytes read and written; with `gather_tbs` the ceiling of the
            benchmarks' modelled floor.
        gather_tbs: TB/s of random rows of 256 bytes out of an X of 45 MB.
    """

    l2: tuple[tuple[float, float], ...]
    resident_bytes: int
    pass_start_us: float
    pass_tbs: float
    dram_tbs: float
    gather_tbs: float


@dataclass(frozen=True)
class CsrRates:
    """Costs and thresholds of the csr kernel.

    Attributes:
        start_us: microseconds that a warp waits at its start.
        batch_us: for each batch of 8 nonzeros.
        row_us, slice_us: microseconds of the whole GPU for each row, and for each slice of 128 bytes of it.
        group_row_us: for each row in a group of short rows.
        row_gather, group_gather: by arithmetic ("half", "tf32", "fp32") what the gather takes, in units of
            its time by the rate of L2: of rows by themselves, and of rows in groups.
        sddmm: what SDDMM takes, in units of SpMM's time.
        warps: warps on a multiprocessor that share out a small matrix.
        group_degree: rows go in groups below this mean number of nonzeros.
        group_nnz: nonzeros of a group.
        slice_degree: from this mean on, where X does not stay in L2, a warp takes one slice of X.
        parallel_degree: a row's nonzeros are taken side by side by k lanes from k / 2 times this mean on.
        prescale_degree: from this mean on X is weighed in a pass of its own.
    """

    start_us: float
    batch_us: float
    row_us: float
    slice_us: float
    group_row_us: float
    row_gather: Mapping[str, float]
    group_gather: Mapping[str, float]
    sddmm: float
    warps: int
    group_degree: float
    group_nnz: int
    slice_degree: float
    parallel_degree: float
    prescale_degree: float


@dataclass(frozen=True)
class WindowRates:
    """Costs of the window kernel, beside the csr kernel's on the problem.

    Attributes:
        spmm: what a gathered row costs SpMM, in units of the csr kernel's.
        sddmm: what SDDMM takes, in units of the csr kernel's time.
    """

    spmm: float
    sddmm: float


@dataclass(frozen=True)
class PanelVariant:
    """What one arithmetic or storage costs panels, in units of the plain 16-bit kernel of their height.

    Attributes:
        gather: of the gather's time by the rate of L2.
        busy: factor on `warp_us`, `slice_us` and `tile_us`.
    """

    gather: float
    busy: float


@dataclass(frozen=True)
class PanelRow:
    """Costs of panels of one height, in microseconds.

    Attributes:
        warp_us, slice_us, tile_us: what the whole GPU is busy with a warp, with each slice of X that it
            takes, and with each K tile of a slice, beside the gather.
        wait_us, slice_wait_us, tile_wait_us: what one warp, alone on the GPU, waits for at its start, for
            each slice, and for each K tile of a slice.
        round: part of a mean warp's wait that each further round of warps adds.
        variants: by arithmetic and storage: "half" (16 bits), "tf32", "tf32_rounded" (X rounded before the
            product), "fp32", "half_stored" (a stored value of 16 bits for each nonzero).
    """

    warp_us: float
    slice_us: float
    tile_us: float
    wait_us: float
    slice_wait_us: float
    tile_wait_us: float
    round: float
    variants: Mapping[str, PanelVariant]


@dataclass(frozen=True)
class PanelRates:
    """Costs of the panel kernel.

    Attributes:
        warps: warps on a multiprocessor that share out a small matrix.
        power: bounds are added as powers of this exponent.
        slice_in_use: how much more of X is in use for each further slice that a warp takes.
        add_us, add_part_us: the kernel that adds up cut panels: its start, and for each part of 16 rows and
            one slice.
        prefetch: panels ahead that a warp asks L2 for, for each multiprocessor.
        heights: costs by the height of a panel.
    """

    warps: int
    power: float
    slice_in_use: float
    add_us: float
    add_part_us: float
    prefetch: int
    heights: Mapping[int, PanelRow]


@dataclass(frozen=True)
class AttentionRates:
    """Thresholds of fused attention.

    Attributes:
        prefetch: panels ahead that a warp asks L2 for, for each multiprocessor.
        tall_nnz: nonzeros for each column slot of 16-row panels from which tall panels are looked at.
        tall_slots: tall panels may have this many times the column slots that as many rows have on average.
        tall_blocks: tall panels that run on a multiprocessor at a time.
        fused_backward_slots: the backward pass in one pays where the transpose has this many times the column
            slots.
        partials_memory: share of the GPU's memory that its partial sums of dK and dV may take.
    """

    prefetch: int
    tall_nnz: float
    tall_slots: float
    tall_blocks: int
    fused_backward_slots: float
    partials_memory: float


@dataclass(frozen=True)
class GpuRecord:
    """What was measured on one kind of GPU.

    Attributes:
        name: as the driver gives it.
        capability: compute capability (major, minor).
        multiprocessors, memory_bytes, l2_bytes: of the GPU.
        fitted: where the numbers come from: date, commit, versions, cases, and how far the model is off.
        memory, csr, window, panel, attention: the numbers.
    """

    name: str
    capability: tuple[int, int]
    multiprocessors: int
    memory_bytes: int
    l2_bytes: int
    fitted: Mapping[str, Any]
    memory: MemoryRates
    csr: CsrRates
    window: WindowRates
    panel: PanelRates
    attention: AttentionRates


def _reject(where: str, problem: str) -> NoReturn:
    raise RecordError(f"{where}: {problem}")


def _check(record: GpuRecord, where: str) -> GpuRecord:
    """Refuses what the models could not compute with."""
    sizes = [size for size, _ in record.memory.l2]
    if len(sizes) < 2 or sizes != sorted(set(sizes)) or sizes[0] != 0:
        _reject(f"{where}.memory.l2", f"has sizes {sizes}; accepted: two or more, rising, from 0 on")
    rates = {
        "multiprocessors": record.multiprocessors,
        "memory.l2": min(rate for _, rate in record.memory.l2),
        "memory.pass_tbs": record.memory.pass_tbs,
        "memory.dram_tbs": record.memory.dram_tbs,
        "memory.gather_tbs": record.memory.gather_tbs,
        "csr.warps": record.csr.warps,
        "csr.group_nnz": record.csr.group_nnz,
        "panel.warps": record.panel.warps,
        "panel.power": record.panel.power,
        "attention.tall_blocks": record.attention.tall_blocks,
    }
    for name, value in rates.items():
        if value <= 0:
            _reject(f"{where}.{name}", f"got {value}; accepted: above 0")
    if 16 not in record.panel.heights:
        _reject(f"{where}.panel.heights", "has no row 16; accepted: 16, and others beside it")
    for name, given in (("row_gather", record.csr.row_gather), ("group_gather", record.csr.group_gather)):
        if not {"half", "tf32", "fp32"} <= set(given):
            _reject(f"{where}.csr.{name}", f"has {', '.join(given)}; accepted: half, tf32 and fp32")
    for height, row in record.panel.heights.items():
        if "half" not in row.variants:
            _reject(f"{where}.panel.heights.{height}.variants", "has no half; accepted: half, and others")
    return record


def _read(content: Any, where: str) -> GpuRecord:
    try:
        record: GpuRecord = from_plain(GpuRecord, content, where)
    except PlainError as error:
        raise RecordError(str(error)) from error
    return _check(record, where)


def load_record(path: Path) -> GpuRecord:
    """Reads a record.

    Raises:
        RecordError: the file can't be read or holds no valid record.
    """
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise RecordError(f"{path}: {error}") from error
    return _read(content, str(path))


def save_record(record: GpuRecord, path: Path) -> None:
    """Writes a record, whole or not at all.

    Raises:
        RecordError: `record` is not valid; nothing is written.
    """
    content = to_plain(record)
    _read(json.loads(json.dumps(content)), record.name)
    write_json(path, content)
    _read_all.cache_clear()
    _find.cache_clear()


def user_folder() -> Path:
    """Where the user's own records are: GNNSPARSE_GPU_RECORDS, or a folder of the user's data."""
    chosen = os.environ.get("GNNSPARSE_GPU_RECORDS")
    return Path(chosen) if chosen else Path(platformdirs.user_data_dir("gnnsparse")) / "gpus"


@lru_cache(maxsize=8)
def _read_all(user: Path) -> tuple[GpuRecord, ...]:
    found: dict[str, GpuRecord] = {}
    for folder in (Path(__file__).parent, user):
        for file in sorted(folder.glob("*.json")) if folder.is_dir() else ():
            record = load_record(file)
            found[record.name] = record
    return tuple(found.values())


def records() -> tuple[GpuRecord, ...]:
    """All records, by name: this package's, and the user's own, which win. Read once in a process.

    Raises:
        RecordError: a file in one of the folders holds no valid record.
    """
    return _read_all(user_folder())


def _distance(record: GpuRecord, device: Device) -> tuple[float, ...]:
    def ratio(one: int, other: int) -> float:
        return abs(math.log(one / other)) if one > 0 and other > 0 else 0.0

    major, minor = (abs(a - b) for a, b in zip(record.capability, device.capability, strict=True))
    sizes = ratio(record.multiprocessors, device.multiprocessors) + ratio(record.l2_bytes, device.l2)
    sizes += ratio(record.memory_bytes, device.memory)
    return major, minor, sizes, record.name != _DEFAULT


@lru_cache(maxsize=64)
def _find(device: Device, known: tuple[str, ...], user: Path) -> GpuRecord:
    by_name = {record.name: record for record in _read_all(user)}
    if not known:
        bad_value("device", "there is no record of any GPU")
    return by_name.get(device.name) or min(by_name.values(), key=lambda record: _distance(record, device))


_in_use: GpuRecord | None = None


@contextmanager
def using(record: GpuRecord) -> Iterator[None]:
    """Makes a record that of every GPU, for plans that are made inside."""
    global _in_use
    before, _in_use = _in_use, record
    try:
        yield
    finally:
        _in_use = before


def record_for(device: Device) -> GpuRecord:
    """The record of a GPU: its own, or that of the GPU it resembles most.

    Resemblance is judged by compute capability first, then by multiprocessors, L2 and memory.

    Raises:
        RecordError: a file in one of the folders holds no valid record.
    """
    if _in_use is not None:
        return _in_use
    user = user_folder()
    return _find(device, tuple(record.name for record in _read_all(user)), user)
