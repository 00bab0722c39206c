"""The record of a GPU: the names of its numbers, and functions that read, check, find and write records."""

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

from gnnsparse.errors import bad_value
from gnnsparse.runtime.device import Device
from gnnsparse.runtime.environment import write_json
from gnnsparse.runtime.safe_io import read_json
from gnnsparse.runtime.serialization import PlainError, from_plain, to_plain

__all__ = [
    "AttentionRates", "ConversionRates", "CsrRates", "GpuRecord", "MemoryRates", "PanelRates", "PanelRow",
    "PanelVariant", "RecordError", "WindowRates", "load_record", "record_for", "records", "save_record",
    "user_folder", "using",
]  # fmt: skip

#: The record used for a GPU that resembles several of them equally.
_DEFAULT = "NVIDIA H200"


class RecordError(ValueError):
    """A file is no valid record of a GPU; the message names the file, the entry, and what is accepted."""


@dataclass(frozen=True)
class MemoryRates:
    """Rates of a GPU's memory.

    Attributes:
        l2: pairs (bytes of the part of X that running warps read from, TB/s of random reads of its rows
            through L2), by rising size.
        resident_bytes: a slice of X of at most this size stays in L2 while a product runs.
        pass_start_us, pass_tbs: a pass that reads and writes X: microseconds of its start, and TB/s.
        dram_tbs: TB/s of a large copy, counting bytes read and written; with `gather_tbs` the ceiling of
            the benchmarks' modelled floor.
        gather_tbs: TB/s of random rows of 256 bytes read from an X of 45 MB.
        odd_row_passes: passes over the dense operands that `Problem.odd_rows_us` adds.
        unpacked_bytes: rows of at most so many bytes gain nothing by beginning at whole lines of 128 bytes:
            they touch no more of memory's parts of 64 bytes where they follow each other directly.
    """

    l2: tuple[tuple[float, float], ...]
    resident_bytes: int
    pass_start_us: float
    pass_tbs: float
    dram_tbs: float
    gather_tbs: float
    odd_row_passes: float
    unpacked_bytes: int


@dataclass(frozen=True)
class CsrRates:
    """Costs and thresholds of the csr kernel.

    Attributes:
        start_us: microseconds that a warp waits at its start.
        batch_us: microseconds that a warp waits for each batch of 8 nonzeros.
        row_us, slice_us: microseconds of the whole GPU (the cost divided among all multiprocessors) for each
            row, and for each slice of 128 bytes of a row, half of it for half a slice.
        group_row_us: replaces `row_us` for rows in groups of short rows.
        nnz_us: microseconds of the whole GPU for each nonzero, beside the gather.
        row_gather, group_gather: the time of the gather over its time by the rate of L2, for each arithmetic
            ("half", "tf32", "fp32"): for rows by themselves, and for rows in groups.
        near: cost of gathering a row of X for a nonzero near the diagonal, which L1 often holds, over the
            cost for other nonzeros; from 0 to 1.
        sddmm: the time of SDDMM over the time of SpMM.
        warps: warps on a multiprocessor among which a small matrix is divided.
        group_degree: rows are put into groups below this mean number of nonzeros a row.
        group_nnz: nonzeros of a group.
        slice_degree: from this mean number of nonzeros a row on, a warp computes one slice of X if X does
            not stay in L2.
        parallel_degree: a warp computes k nonzeros of a row at a time, k a power of two, if rows have a mean
            of at least k / 2 times this many nonzeros.
        prescale_degree: from this mean number of nonzeros a row on, X is scaled in a pass before the product.
        row_limits: bounds of CsrPlan.row_limit, which exceeds the upper one only to be twice the mean row.
        short_row_limit: the upper bound where rows of X are short.
        least_group: the least CsrPlan.group that is not 0.
        shared_by: if X stays in L2 and a column slot of 16-row panels has fewer nonzeros, panels are slower
            than this kernel where rows of X are short. The second number is for rows of two vectors, 16 bits
            or tf32, and panels without stored values.
        narrow_columns: columns of X at most for which CsrPlan.narrow is faster than vectors of 16 bytes.
        narrow_degree: from this mean number of nonzeros a row on, which gives a batch to all lanes of a row,
            it is faster for one column alone.
        narrow_groups: bounds of CsrPlan.group there.
        narrow_warps: warps on a multiprocessor among which nonzeros are divided there.
        softmax_limit: a block of threads computes the softmax of a row with more nonzeros, a few lanes of a
            warp that of others.
    """

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
    """Costs of the window kernel, in units of the csr kernel's for an equal problem.

    Attributes:
        spmm: the cost of a gathered row of X in SpMM.
        sddmm: the time of SDDMM.
    """

    spmm: float
    sddmm: float


@dataclass(frozen=True)
class PanelVariant:
    """Costs of an arithmetic and storage of panels, in units of 16-bit panels of their height without values.

    Attributes:
        gather: factor of the gather's time by the rate of L2.
        busy: factor of `warp_us`, `slice_us` and `tile_us`.
    """

    gather: float
    busy: float


@dataclass(frozen=True)
class PanelRow:
    """Costs of panels of one height, in microseconds.

    Attributes:
        warp_us, slice_us, tile_us: time of the whole GPU (the cost divided among all multiprocessors) for a
            warp, for each slice of X that it computes, and for each K tile of a slice, without the gather.
        wait_us, slice_wait_us, tile_wait_us: latency of one warp alone on the GPU: at its start, for each
            slice, and for each K tile of a slice.
        round: share of a mean warp's latency that each further round of warps adds.
        variants: costs by arithmetic and storage: "half" (16 bits), "tf32", "tf32_rounded" (X rounded before
            the product), "fp32", "int8" (X in integers, beside bits); "half_stored", "tf32_stored",
            "fp32_stored" (with a stored value for each nonzero). A storage that is missing costs what its
            arithmetic does without values, with as much more `busy` as "half_stored" has than "half". An
            arithmetic that is missing costs what "half" does.
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
        warps: warps on a multiprocessor among which a small matrix is divided.
        power: the exponent with which the model's bounds are added.
        slice_in_use: growth of the part of X that running warps read from, in slices, for each further slice
            that a warp computes.
        add_us, add_part_us: microseconds of the kernel that adds the partial sums of cut panels: its start,
            and each part of 16 rows and one slice.
        prefetch: a warp prefetches to L2 for the panel that lies this many panels further on in the work
            list, times the number of multiprocessors.
        line_reads, sector_reads: how often rows of X are read at least where a copy of X, with rows of whole
            lines or sectors of memory, takes less time than it saves: lines if a slice of X does not stay in
            L2. Rows that are not whole lines are read in one part of a line more.
        half_reads, half_slices: if a slice of X does not stay in L2, rows that begin between two vectors are
            read as they are where they are read less often and have at most so many slices.
        hindered_pair: factor on the time of panels that two warps share, where one of them has no features or
            rows of results begin between four elements.
        heights: costs by the height of a panel.
    """

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
class AttentionRates:
    """Thresholds of fused attention.

    Attributes:
        prefetch: a warp prefetches to L2 for the panel that lies this many panels further on in the work
            list, times the number of multiprocessors.
        tall_nnz: tall panels (64 rows) are considered if 16-row panels have this many nonzeros a column slot.
        tall_slots: tall panels are used if four times their column slots are at most this many times those
            of 16-row panels.
        tall_blocks: number of tall panels that run on a multiprocessor at a time.
        tall_tiles: the least limit on the K tiles of a tall panel's parts, in a matrix that fills the GPU.
        fused_backward_slots: the fused backward pass is used if 16-row panels of the transpose have at least
            this many times the column slots of A's.
        partials_memory: share of the GPU's memory that the fused backward's partial sums may take.
        slot: microseconds that a column slot of 16-row panels takes for one head in the forward pass: rows of
            at most 64 bytes, longer rows of 16-bit operands, and rows of fp32.
        csr: microseconds that the kernels over CSR rows take for a row, for a nonzero, and for 16 bytes of a
            nonzero's heads.
        row_limit: the kernels over CSR rows divide rows with more nonzeros into parts of at most so many.
        rows_per_warp: the most rows that a warp of theirs takes one after another: edge by edge, and over
            tiles.
        row_warps: warps that a multiprocessor runs at a time, about, times the rounds of work that balance
            its load: with fewer rows for each, a warp takes fewer.
        tile_heads: their passes run over tiles if there are more heads than this part of those that a warp
            takes at once.
        tile_width: forward passes do so in heads of at least so many features.
    """

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
    rows_per_warp: tuple[int, int]
    row_warps: int
    tile_heads: float
    tile_width: int


@dataclass(frozen=True)
class ConversionRates:
    """Microseconds by which a call of a PyG layer decides whether to convert its graph (interop/pyg).

    Attributes:
        graph_us, edge_us: of a conversion: for each graph, for each edge.
        saved_us, saved_edge_us, saved_feature_us: what a product with its gradient saves beside PyG's: in any
            case, for each edge, for each edge and feature.
    """

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
    """Raises RecordError for numbers that the models can't compute with; returns the record."""
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
        "attention.tall_tiles": record.attention.tall_tiles,
        "attention.row_limit": record.attention.row_limit,
        "attention.rows_per_warp": min(record.attention.rows_per_warp),
        "attention.row_warps": record.attention.row_warps,
    }
    if not 0 <= record.csr.near <= 1:
        _reject(f"{where}.csr.near", f"got {record.csr.near}; accepted: from 0 to 1")
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
    """Reads a record from a JSON file.

    Raises:
        RecordError: the file can't be read or holds no valid record.
    """
    try:
        content = read_json(path)
    except OSError as error:
        raise RecordError(f"{path}: {error}") from error
    except ValueError as error:
        raise RecordError(str(error)) from error
    return _read(content, str(path))


def save_record(record: GpuRecord, path: Path) -> None:
    """Writes a record to a JSON file atomically.

    Raises:
        RecordError: `record` is not valid; nothing is written.
    """
    content = to_plain(record)
    _read(json.loads(json.dumps(content)), record.name)
    write_json(path, content)
    _read_all.cache_clear()
    _find.cache_clear()


def user_folder() -> Path:
    """Returns the folder of the user's records: GNNSPARSE_GPU_RECORDS, or one in the user's data folder."""
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
    """Returns all records: this package's and the user's; of two with one name, the user's.

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


@lru_cache(maxsize=64)
def _find(device: Device, known: tuple[str, ...], user: Path) -> GpuRecord:
    by_name = {record.name: record for record in _read_all(user)}
    if not known:
        bad_value("device", "there is no record of any GPU")
    return by_name.get(device.name) or min(by_name.values(), key=lambda record: _distance(record, device))


_in_use: GpuRecord | None = None


@contextmanager
def using(record: GpuRecord) -> Iterator[None]:
    """Makes `record_for` return `record` for every GPU inside a `with` block, for plans chosen there."""
    global _in_use
    before, _in_use = _in_use, record
    try:
        yield
    finally:
        _in_use = before


def record_for(device: Device) -> GpuRecord:
    """Returns the record of a GPU: its own, or that of the GPU which it resembles most.

    Resemblance is judged by compute capability first, then by multiprocessors, L2 and memory.

    Raises:
        RecordError: a file in one of the folders holds no valid record.
    """
    if _in_use is not None:
        return _in_use
    user = user_folder()
    return _find(device, tuple(record.name for record in _read_all(user)), user)
