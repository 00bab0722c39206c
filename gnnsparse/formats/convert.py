"""Conversion of CSR to the blocked format, by threads on the CPU or by a radix sort and scans on a GPU."""

from __future__ import annotations

import torch

from gnnsparse import _native
from gnnsparse.errors import bad_type, bad_value
from gnnsparse.formats import BlockedMatrix, FormatSpec
from gnnsparse.formats.csr import Csr, run_cuda
from gnnsparse.formats.packing import empty_entries, pack_records
from gnnsparse.runtime.device import path

#: The largest threshold that is chosen: beyond it tiles become no denser, and the work of the CUDA cores
#: grows (RSH-SpMM, section 4.3.2).
_MOST_DEFAULT_THRESHOLD = 6


def short_row_limits(rows: int, nnz: int, spec: FormatSpec) -> tuple[int, int]:
    """Choose RSH-SpMM's thresholds (nonzeros, new columns; algorithm 1) for rows kept out of the windows.

    A row is kept out if it has at most `threshold` nonzeros and adds fewer than `new_columns` columns to the
    window that would begin with it. The paper computes both by a function that it does not give, and says
    that the first stays below a plateau at 6 (section 4.3.2): here it is a quarter of the mean number of
    nonzeros, at least 2 and at most 6. The paper contradicts itself on the second: algorithm 1 keeps out the
    rows that add few columns, sections 2.3, 3.2 and 4.3.2 those that add many. Algorithm 1 is followed, with
    more than half of the threshold, by which a row of one or two nonzeros is kept out whatever its columns,
    and a longer one only if its window has about half of its columns anyway. The format's own values come
    first.
    """
    short = spec.threshold
    if short is None:
        short = min(max(2, nnz // max(rows, 1) // 4), _MOST_DEFAULT_THRESHOLD)
    return short, max(3, short // 2 + 1) if spec.new_columns is None else spec.new_columns


def _split(csr: Csr, spec: FormatSpec) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the first row of each window, and the rows kept out; on the CPU, because the scan is serial."""
    window_rows = torch.empty(csr.rows, dtype=torch.int32, device="cpu")
    residual = torch.empty(csr.rows, dtype=torch.int32, device="cpu")
    limits = short_row_limits(csr.rows, csr.nnz, spec)
    windows, kept_out = _native.split_short_rows(csr.view, spec.window, *limits, window_rows, residual)
    return window_rows[:windows].clone(), residual[:kept_out].clone()


def _running_sum(counts: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.pad(counts.cumsum(0), (1, 0))


def _padded(counts: torch.Tensor, pad: int) -> torch.Tensor:
    return (counts + pad - 1) // pad * pad


def convert(csr: Csr, spec: FormatSpec, values: torch.Tensor | None) -> BlockedMatrix:
    """Convert a matrix to a blocked format, on the device where it is.

    `values` are [nnz] in the storage dtype for formats that store values, of the width of the entries where
    there are entries (else TypeError). MemoryError if scratch memory does not fit on the CPU.
    """
    if csr.device.type == "cpu":
        return _convert_cpu(csr, spec, values)
    if spec.packed or spec.panel != spec.window:  # these conversions have no GPU version
        host = None if values is None else values.cpu()
        return _convert_cpu(csr.to(torch.device("cpu")), spec, host).to(csr.device)
    return _convert_cuda(csr, spec, values)


def _convert_cpu(csr: Csr, spec: FormatSpec, values: torch.Tensor | None) -> BlockedMatrix:
    threads = torch.get_num_threads()
    csr.check_scratch(bytes_per_column=12 * threads)
    window_rows, residual = _split(csr, spec) if spec.split_short_rows else (None, None)
    panels = -(-csr.rows // spec.panel) if window_rows is None else window_rows.numel()
    columns_of = torch.zeros(panels, dtype=torch.int64, device="cpu")
    bricks_of = torch.zeros_like(columns_of) if spec.active_bricks else None
    values_of = torch.zeros_like(columns_of) if spec.packed else None
    empty = torch.zeros(panels + 1, dtype=torch.int64, device="cpu")
    no_columns = torch.empty(0, dtype=torch.int32, device="cpu")
    shape = BlockedMatrix(spec, csr.rows, csr.cols, csr.nnz, empty, no_columns, window_rows)
    _native.count_panels(csr.view, shape.view(), columns_of, bricks_of, values_of, threads)

    panel_ptr = _running_sum(_padded(columns_of, spec.pad))
    panel_bricks = None if bricks_of is None else _running_sum(bricks_of)
    panel_values = None if values_of is None else _running_sum(values_of)
    slots = int(panel_ptr[-1])
    out = _allocate(spec, slots, panel_bricks, torch.device("cpu"))
    value_index = torch.empty(csr.nnz, dtype=torch.int64, device="cpu") if _places_values(spec) else None
    columns = torch.empty(slots, dtype=torch.int32, device="cpu")
    target = BlockedMatrix(spec, csr.rows, csr.cols, csr.nnz, panel_ptr, columns, window_rows, **out)
    _native.fill_blocked(csr.view, target.view(), panel_bricks, panel_values, value_index, threads)
    if spec.entry_layout is not None:
        return _with_entries(target, csr, values, None)
    total = 0 if panel_values is None else int(panel_values[-1])
    return _with_values(target, csr, values, value_index, total, residual)


def count_slots(csr: Csr, spec: FormatSpec) -> torch.Tensor:
    """Count the column slots of each panel in a blocked format, int64 [panels], without converting."""
    counts = csr.count_columns(spec.panel) if csr.device.type == "cpu" else _count_cuda(csr, spec)[0]
    return _padded(counts, spec.pad)


def _count_cuda(csr: Csr, spec: FormatSpec) -> tuple[torch.Tensor, torch.Tensor]:
    """Count the distinct columns of each panel, int64 [panels], and each nonzero's place among them."""
    panels = -(-csr.rows // spec.panel)
    columns_of = torch.zeros(panels, dtype=torch.int64, device=csr.device)
    position = torch.empty(csr.nnz, dtype=torch.int32, device=csr.device)
    run_cuda(
        csr.device, lambda *ws: _native.cuda_count_panels(csr.view, spec.panel, columns_of, position, *ws)
    )
    return columns_of, position


def _convert_cuda(csr: Csr, spec: FormatSpec, values: torch.Tensor | None) -> BlockedMatrix:
    device = csr.device
    columns_of, position = _count_cuda(csr, spec)
    panel_ptr = _running_sum(_padded(columns_of, spec.pad))
    slots = int(panel_ptr[-1])
    out = _allocate(spec, slots, None, device)
    columns = torch.full((slots,), -1, dtype=torch.int32, device=device)
    value_index = torch.empty(csr.nnz, dtype=torch.int64, device=device) if _places_values(spec) else None
    target = BlockedMatrix(spec, csr.rows, csr.cols, csr.nnz, panel_ptr, columns, **out)
    with torch.cuda.device(device):
        stream = path().stream(device)
        _native.cuda_fill_blocked(csr.view, target.view(), position, value_index, stream)
    if spec.entry_layout is not None:
        return _with_entries(target, csr, values, position)
    return _with_values(target, csr, values, value_index, csr.nnz, None)


def _places_values(spec: FormatSpec) -> bool:
    """Return whether native code computes the index of each value, by which torch then stores the values."""
    return spec.stores_values and spec.entry_layout is None


def _allocate(
    spec: FormatSpec, slots: int, panel_bricks: torch.Tensor | None, device: torch.device
) -> dict[str, torch.Tensor | None]:
    """Allocate the arrays that native code fills, set to 0."""
    if spec.encoding == "dense":
        return {}
    bricks = slots // spec.brick * (spec.panel // spec.window)
    out: dict[str, torch.Tensor | None] = {}
    if panel_bricks is not None:
        bricks = int(panel_bricks[-1])
        out["brick_ptr"] = torch.zeros(slots // spec.brick + 1, dtype=torch.int64, device=device)
        out["brick_rows"] = torch.zeros(bricks, dtype=torch.int32, device=device)
    bitmap_bytes = bricks * spec.window * spec.brick // 8
    out["bitmap"] = torch.zeros(bitmap_bytes, dtype=torch.uint8, device=device)
    if spec.packed:
        out["value_ptr"] = torch.zeros(slots // spec.block + 1, dtype=torch.int64, device=device)
    return out


def _with_entries(
    bitmap_form: BlockedMatrix, csr: Csr, values: torch.Tensor | None, position: torch.Tensor | None
) -> BlockedMatrix:
    """Make the entries of a structure whose bits are in the order of packed_entries.h.

    `position` has the place of each nonzero's column in its panel, int32 [nnz], on a GPU; None on the CPU.
    """
    spec, device = bitmap_form.spec, csr.device
    layout = _native.ENTRY_LAYOUTS[spec.encoding]
    size = layout["value_bytes"]
    if values is None or bitmap_form.bitmap is None or values.dtype.itemsize != size:
        bad_type("values", values, f"the values of the nonzeros in {8 * size} bits, which {spec.name} stores")
    values = values.contiguous()
    k_tiles = bitmap_form.slots // spec.block
    counts = torch.zeros(k_tiles, dtype=torch.int64, device=device)
    bits = bitmap_form.bitmap
    if position is None:
        _native.count_entries(bits, counts)
    else:
        with torch.cuda.device(device):
            _native.cuda_count_entries(bits, counts, path().stream(device))
    value_ptr = _running_sum(_padded(counts, layout["group"]))
    entries = empty_entries(spec.encoding, int(value_ptr[-1]), device)
    arrays = {**bitmap_form.arrays, "value_ptr": value_ptr, "values": entries.view(values.dtype)}
    del arrays["bitmap"]
    made = BlockedMatrix(spec, bitmap_form.rows, bitmap_form.cols, bitmap_form.nnz, **arrays)
    if position is None:
        threads = torch.get_num_threads()
        _native.fill_entries(csr.view, made.view(), bits, values, entries, threads)
    else:
        with torch.cuda.device(device):
            _native.cuda_fill_entries(
                csr.view, made.view(), position, bits, values, entries, path().stream(device)
            )
    return made


def _with_values(
    target: BlockedMatrix,
    csr: Csr,
    values: torch.Tensor | None,
    value_index: torch.Tensor | None,
    packed: int,
    residual: torch.Tensor | None,
) -> BlockedMatrix:
    """Add the values, the rows kept out of the windows and the zero index to a converted structure."""
    arrays: dict[str, torch.Tensor] = {}
    spec = target.spec
    if value_index is not None and values is not None:
        count = target.slots * spec.window if spec.encoding == "dense" else packed
        if spec.encoding == "dense":  # by its sign a zero of the matrix differs from one that fills a block
            values = values.masked_fill(values == 0, -0.0)
        filled = torch.zeros(count, dtype=values.dtype, device=values.device)
        inside = value_index >= 0
        filled[value_index[inside]] = values[inside]
        arrays["values"] = filled
    if spec.zero_index and value_index is not None:
        arrays["zero_ptr"], arrays["zero_cols"] = _zero_index(target, csr, value_index)
    if residual is not None:
        outside, picked = csr.select_rows(residual.long())
        lengths = outside.degrees
        # Every row has room for the nonzeros of the longest one, and so needs no offset.
        width = int(lengths.max()) if outside.rows else 0
        real = (torch.arange(width, device=csr.device) < lengths[:, None]).flatten()
        arrays["residual_rows"] = residual
        no_columns = outside.indices.new_full(real.shape, -1)
        arrays["residual_cols"] = no_columns.masked_scatter(real, outside.indices)
        if values is not None:
            arrays["residual_values"] = values.new_zeros(real.shape).masked_scatter(real, values[picked])
    made = {**target.arrays, **arrays}
    if spec.records:  # what each block stores, together
        if values is None:
            bad_type("values", None, "the values of the nonzeros, which packed blocks store")
        parts = [made.pop(name) for name in ("bitmap", "brick_ptr", "brick_rows", "value_ptr", "values")]
        made["size_ptr"], made["packed_blocks"] = pack_records(*parts)
    return BlockedMatrix(spec, target.rows, target.cols, target.nnz, **made)


def _zero_index(
    target: BlockedMatrix, csr: Csr, value_index: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute Tiled-CSR's Zero Index (section III-A): offsets, int64 [rows + 1], and the zeros' columns."""
    spec, device = target.spec, csr.device
    stored = torch.zeros(target.slots * spec.window, dtype=torch.bool, device=device)
    stored[value_index] = True
    # `pad` is a multiple of `block` in this format, so that every block is full and row-major.
    zero = ~stored.reshape(-1, spec.window, spec.block)
    zero &= target.first_slots.reshape(-1, 1, spec.block)
    block, r, c = zero.nonzero(as_tuple=True)
    slot = block * spec.block + c
    panel = torch.searchsorted(target.panel_ptr, slot, right=True) - 1
    row = panel * spec.panel + r
    inside = row < target.rows
    row, slot = row[inside], slot[inside]
    order = torch.argsort(row, stable=True)
    counts = torch.bincount(row, minlength=target.rows)
    return _running_sum(counts), target.columns[slot[order]]


def value_places(csr: Csr, blocked: BlockedMatrix) -> torch.Tensor:
    """Compute for each nonzero the index of its value in the `values` of a dense format, int64 [nnz].

    A TypeError refuses other formats and those that keep rows out; a ValueError another matrix's format.
    """
    spec, device = blocked.spec, csr.device
    if spec.encoding != "dense" or spec.split_short_rows or spec.lane_order:
        bad_type("format", spec.name, "a dense format whose windows have all rows, row-major in a block")
    if csr.nnz == 0:
        return torch.empty(0, dtype=torch.int64, device=device)
    counts = blocked.panel_ptr.diff()
    panels = torch.arange(blocked.panels, dtype=torch.int64, device=device)
    # Columns ascend in a panel, so that (panel, column) ascends over all slots. The first of equals is the
    # slot with the values.
    slot_keys = torch.repeat_interleave(panels, counts) * csr.cols + blocked.columns
    rows = csr.row_index()
    panel = rows // spec.panel
    keys = panel * csr.cols + csr.indices
    slot = torch.searchsorted(slot_keys, keys)
    if bool((slot_keys[slot.clamp(max=max(blocked.slots - 1, 0))] != keys).any()):
        bad_value("columns", "of the format are not those of its nonzeros")
    first = blocked.panel_ptr[panel]
    position = slot - first
    begin = position // spec.block * spec.block
    width = (counts[panel] - begin).clamp(max=spec.block)  # the last block of a panel may be narrower
    return (first + begin) * spec.window + (rows % spec.panel) * width + (position - begin)


def place_values(blocked: BlockedMatrix, places: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Put values of the nonzeros in the places of a dense format, [slots * window], zeros as -0.0."""
    out = values.new_zeros(blocked.slots * blocked.spec.window)
    out[places] = values.masked_fill(values == 0, -0.0)
    return out
