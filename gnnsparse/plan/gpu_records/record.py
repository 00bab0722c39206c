"""The record of a GPU: the names of its numbers, and functions that read, check, find and write records.

notes/gpu-records.md says what each number means.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from operator import attrgetter
from pathlib import Path
from typing import Any, NoReturn

import platformdirs

from gnnsparse.runtime.device import Device
from gnnsparse.runtime.environment import write_json
from gnnsparse.runtime.safe_io import read_json
from gnnsparse.runtime.serialization import PlainError, from_plain, to_plain

#: The record used for a GPU that resembles several of them equally.
_DEFAULT = "NVIDIA H200"
#: Numbers that the models divide by, take a root or a power of.
_POSITIVE = (
    "multiprocessors", "memory.pass_tbs", "memory.dram_tbs", "csr.warps",
    "csr.group_nnz", "csr.narrow_warps", "panel.warps", "panel.power", "attention.tall_blocks",
    "attention.tall_tiles", "attention.row_limit",
)  # fmt: skip


class RecordError(ValueError):
    """A file is no valid record of a GPU; the message names the file, the entry, and what is accepted."""


@dataclass(frozen=True)
class MemoryRates:
    """Rates of a GPU's memory."""

    l2: tuple[tuple[float, float], ...]
    resident_bytes: int
    pass_start_us: float
    pass_tbs: float
    dram_tbs: float
    odd_row_passes: float
    unpacked_bytes: int


@dataclass(frozen=True)
class CsrRates:
    """Costs and thresholds of the kernels over CSR rows."""

    start_us: float
    batch_us: float
    row_us: float
    slice_us: float
    group_row_us: float
    nnz_us: float
    row_gather: Mapping[str, float]
    group_gather: Mapping[str, float]
    near: float
    sddmm: float
    warps: int
    group_degree: float
    group_nnz: int
    slice_degree: float
    parallel_degree: float
    prescale_degree: float
    row_limits: tuple[int, int]
    short_row_limit: int
    least_group: int
    shared_by: tuple[float, float]
    narrow_columns: int
    narrow_degree: int
    narrow_groups: tuple[int, int]
    narrow_warps: int
    softmax_limit: int


@dataclass(frozen=True)
class WindowRates:
    """Costs of the window kernel, in units of the csr kernel's for an equal problem."""

    spmm: float
    sddmm: float


@dataclass(frozen=True)
class PanelVariant:
    """Costs of an arithmetic and storage of panels, those of 16-bit panels without values being 1."""

    gather: float
    busy: float


@dataclass(frozen=True)
class PanelRow:
    """Costs of panels of one height, in microseconds, and of its variants (`panel_variant`)."""

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
    """Costs and thresholds of the panel kernel."""

    warps: int
    power: float
    slice_in_use: float
    add_us: float
    add_part_us: float
    prefetch: int
    line_reads: int
    sector_reads: int
    half_reads: int
    half_slices: int
    hindered_pair: float
    heights: Mapping[int, PanelRow]


@dataclass(frozen=True)
class TileRates:
    """Microseconds of a full and of a partial 128 x 128 tile of one head, of q and v with 64 features."""

    forward: tuple[float, float]
    backward: tuple[float, float]


@dataclass(frozen=True)
class AttentionRates:
    """Thresholds of fused attention."""

    prefetch: int
    tall_nnz: float
    tall_slots: float
    tall_blocks: int
    tall_tiles: int
    fused_backward_slots: float
    partials_memory: float
    slot: tuple[float, float, float]
    csr: tuple[float, float, float]
    row_limit: int
    tiles: Mapping[str, TileRates]


@dataclass(frozen=True)
class ConversionRates:
    """Microseconds by which a call of a PyG layer decides whether to convert its graph (interop/pyg)."""

    graph_us: float
    edge_us: float
    saved_us: float
    saved_edge_us: float
    saved_feature_us: float


@dataclass(frozen=True)
class GpuRecord:
    """The record of one kind of GPU.

    Attributes:
        name: the GPU's name as the driver gives it.
        capability: compute capability (major, minor).
        multiprocessors, memory_bytes, l2_bytes: number of multiprocessors, bytes of memory and of L2.
        fitted: the origin of the numbers: date, commit, versions, cases, and how far the model is off.
        memory, csr, window, panel, attention, conversion: rates, costs and thresholds.
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
    conversion: ConversionRates


def _reject(where: str, problem: str) -> NoReturn:
    raise RecordError(f"{where}: {problem}")


def _check(record: GpuRecord, where: str) -> GpuRecord:
    """Raise RecordError for numbers that the models can't compute with; returns the record."""
    sizes = [size for size, _ in record.memory.l2]
    if len(sizes) < 2 or sizes != sorted(set(sizes)) or sizes[0] != 0:
        _reject(f"{where}.memory.l2", f"has sizes {sizes}; accepted: two or more, rising, from 0 on")
    if min(rate for _, rate in record.memory.l2) <= 0:
        _reject(f"{where}.memory.l2", "has a rate of 0; accepted: above 0")
    if not 0 <= record.csr.near <= 1:
        _reject(f"{where}.csr.near", f"got {record.csr.near}; accepted: from 0 to 1")
    for name in _POSITIVE:
        value = attrgetter(name)(record)
        if (min(value) if isinstance(value, tuple) else value) <= 0:
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
    if isinstance(content, dict) and isinstance(rates := content.get("attention"), dict):
        rates.setdefault("tiles", {})  # records that users made before there were such
    try:
        record: GpuRecord = from_plain(GpuRecord, content, where)
    except PlainError as error:
        raise RecordError(str(error)) from error
    return _check(record, where)


def load_record(path: Path) -> GpuRecord:
    """Read a record from a JSON file.

    Raises:
        RecordError: the file can't be read or holds no valid record.
    """
    try:
        content = read_json(path)
    except (OSError, ValueError) as error:
        raise RecordError(f"{path}: {error}" if isinstance(error, OSError) else str(error)) from error
    return _read(content, str(path))


def save_record(record: GpuRecord, path: Path) -> None:
    """Write a record to a JSON file atomically.

    Raises:
        RecordError: `record` is not valid; nothing is written.
    """
    content = to_plain(record)
    _read(json.loads(json.dumps(content)), record.name)
    write_json(path, content)
    _read_all.cache_clear()


def user_folder() -> Path:
    """Return the folder of the user's records: GNNSPARSE_GPU_RECORDS, or one in the user's data folder."""
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
    """Return all records: this package's and the user's; of two with one name, the user's.

    Files are read in the first call of a process only.

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


_in_use: GpuRecord | None = None


@contextmanager
def using(record: GpuRecord) -> Iterator[None]:
    """Make `record_for` return `record` for every GPU inside a `with` block, for plans chosen there."""
    global _in_use
    before, _in_use = _in_use, record
    try:
        yield
    finally:
        _in_use = before


def record_for(device: Device) -> GpuRecord:
    """Return the record of a GPU: its own, or that of the GPU which it resembles most.

    Resemblance is judged by compute capability first, then by multiprocessors, L2 and memory.

    Raises:
        RecordError: a file in one of the folders holds no valid record.
    """
    if _in_use is not None:
        return _in_use
    known = records()
    own = next((record for record in known if record.name == device.name), None)
    return own or min(known, key=lambda record: _distance(record, device))
