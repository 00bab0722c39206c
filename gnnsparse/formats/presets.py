"""The published formats and this project's own, as presets of the blocked format.

It stands alone: a table of what is registered, which nothing else needs to know of.
"""

from __future__ import annotations

from dataclasses import replace

from gnnsparse import _native
from gnnsparse.formats.blocked import BlockedMatrix
from gnnsparse.formats.packing import paper_bytes
from gnnsparse.formats.policy import RECORD_POLICY, TILE_POLICY, WindowPolicy
from gnnsparse.formats.registry import OPS, register_preset
from gnnsparse.formats.spec import FormatSpec
from gnnsparse.precision import ROUNDED_PRECISIONS, Precision
from gnnsparse.registry import Option

#: Bytes of an offset or an index.
_INDEX = 4

# The bytes of a matrix by the formula of each paper.


def _value_bytes(matrix: BlockedMatrix) -> int:
    return 0 if matrix.values is None else matrix.values.itemsize


def _vector_bytes(matrix: BlockedMatrix, offsets: int) -> int:
    """Offsets, and for each nonzero vector its column and its values: ME-BCRS and CVSE."""
    return _INDEX * offsets + (_INDEX + matrix.spec.window * _value_bytes(matrix)) * matrix.vectors


def _tiled_csr_bytes(matrix: BlockedMatrix) -> int:
    """Offsets, whole tiles of 8 x 16 and the Zero Index (section III-A).

    A tile has its values and the columns of its 16 column slots. The Zero Index has an offset for each row,
    and the column of every zero that is stored in a column with a nonzero.
    """
    zeros = 0 if matrix.zero_cols is None else matrix.zero_cols.numel()
    slot = _INDEX + matrix.spec.window * _value_bytes(matrix)
    return _INDEX * (matrix.panels + 1 + matrix.rows + 1 + zeros) + slot * matrix.slots


def _hrpb_bytes(matrix: BlockedMatrix) -> int:
    """The records, and beside them blockedRowPtr, activeCols and sizePtr (section 3.2, figures 4 and 5)."""
    if matrix.size_ptr is None or matrix.packed_blocks is None:
        return 0
    blocks = matrix.slots // matrix.spec.block
    packed = paper_bytes(matrix.size_ptr, matrix.packed_blocks, matrix.nnz)
    return packed + _INDEX * (matrix.panels + 1 + matrix.slots + blocks + 1)


def _rs_tile_bytes(matrix: BlockedMatrix) -> int:
    """Windows, blocks, values and the rows that are kept out (section 3.2).

    A window has its first row and an offset, a block of 8 columns its columns and 64 bits, a nonzero its
    value. A row that is kept out has its number, and for each of its nonzeros a column; row pointers are
    omitted.
    """
    blocks = matrix.slots // matrix.spec.block
    kept_out = 0 if matrix.residual is None else matrix.residual.rows + matrix.residual.nnz
    values = _value_bytes(matrix) * matrix.nnz
    return _INDEX * (2 * matrix.panels + 1 + kept_out) + (8 + _INDEX * matrix.spec.block) * blocks + values


#: The precisions of papers whose kernels have fp16 alone, with bf16 added.
_HALF = (Precision.FP16, Precision.BF16)
_ADDED = (Precision.BF16,)

#: The largest threshold of rs-tile: every row that is kept out has room for as many nonzeros as the longest
#: of them, and CUDA cores take them one by one. The paper's thresholds end at 6 (section 4.3.2).
MOST_SHORT_NNZ = 64

# The window kernel's own format: bits alone. Rank-1 weights lie beside the columns, edge values in row order.
register_preset(
    FormatSpec("window", window=8, panel=8, block=16, brick=16, encoding="bitmap", pad=16),
    source="ours",
    ops=OPS,
    precisions=ROUNDED_PRECISIONS,
    exclusive=False,
)


def _blocks_of_32_bits(spec: FormatSpec, precision: Precision, density: float) -> FormatSpec:
    """Blocks of 8 columns at 16 bits and of 4 at 32 (FlashSparse, section 3.3)."""
    return replace(spec, block=4, brick=4) if precision.storage.itemsize == 4 else spec


# No padding: the last block is narrower. Windows of 16 rows are for comparison, with `swapped` or without.
register_preset(
    FormatSpec("me-bcrs", window=8, panel=8, block=8, brick=8, encoding="dense"),
    source="FlashSparse, section 3.5",
    panels={8: 8, 16: 16},
    adapt=_blocks_of_32_bits,
    ops=OPS,
    added=_ADDED,
    paper_bytes=lambda matrix: _vector_bytes(matrix, offsets=matrix.panels),
    policy=WindowPolicy(x_load="coalesced", shuffle=False),
    # The mma is as deep as a block has columns: m16n8k8 in fp16, m16n8k4 in tf32.
    adapt_policy=lambda policy, precision: replace(policy, k=4 if precision.storage.itemsize == 4 else 8),
)


# The values of each vector are contiguous.
register_preset(
    FormatSpec("cvse", window=8, panel=8, block=1, brick=1, encoding="dense", pad=16),
    source="SSpMM, section V-A",
    panels={8: 8, 16: 16},
    choose_panel=lambda density: 16 if density >= 0.1 else 8,  # SSpMM, sections V-B and VI-F
    precisions=_HALF,
    added=_ADDED,
    paper_bytes=lambda matrix: _vector_bytes(matrix, offsets=matrix.panels + 1),
    policy=WindowPolicy(stage_a="double"),
)

# A goes through shared memory, elements of X go straight to where the operand has them (section IV-A).
register_preset(
    FormatSpec("tiled-csr", window=8, panel=8, block=16, brick=16, encoding="dense", pad=16, zero_index=True),
    source="Tiled-CSR, section III-A",
    precisions=_HALF,
    added=_ADDED,
    paper_bytes=_tiled_csr_bytes,
    policy=WindowPolicy(x_load="plain", shuffle=False, stage_a="single", grid="3d"),
)

register_preset(
    FormatSpec(
        "hrpb", window=16, panel=16, block=16, brick=4, encoding="bitmap", packed=True, pad=16,
        active_bricks=True, records=True,
    ),
    source="cuTeSpMM, section 3.2",
    panels={16: 16, 32: 16},
    precisions=(Precision.TF32,),
    paper_bytes=_hrpb_bytes,
    policy=RECORD_POLICY,
)  # fmt: skip

register_preset(
    FormatSpec(
        "rs-tile", window=8, panel=8, block=8, brick=8, encoding="bitmap", packed=True, pad=8,
        split_short_rows=True,
    ),
    source="RSH-SpMM, section 3.2",
    # Section 4.1 measures fp16; the registers of figure 7 are those of tf32.
    precisions=(Precision.FP16, Precision.TF32, Precision.BF16),
    added=_ADDED,
    paper_bytes=_rs_tile_bytes,
    policy=TILE_POLICY,
    options={
        "threshold": Option(int, 0, least=0, most=MOST_SHORT_NNZ),
        "new_columns": Option(int, 0, least=0, most=MOST_SHORT_NNZ + 1),
    },
)  # fmt: skip

# The panel kernels' formats are made from CSR when a plan first uses them. This one has bits alone, with
# rank-1 weights beside the columns.
register_preset(
    FormatSpec("panel", window=32, panel=32, block=32, brick=32, encoding="bitmap", pad=32, lane_order=True),
    source="ours",
    panels=_native.PANEL_BRICK_ROWS,
    ops=OPS,
    precisions=ROUNDED_PRECISIONS,
    exclusive=False,
    public=False,
)


def _tall_as_entries(spec: FormatSpec, precision: Precision, density: float) -> FormatSpec:
    """Panels of 32 rows store their values as entries: the nonzeros alone, each with its place."""
    if spec.panel != 32:
        return spec
    return replace(spec, encoding="entries" if precision.storage.itemsize == 2 else "word_entries")


# Panels that are one brick, of matrices that are not rank-1: values of every element, or entries.
register_preset(
    FormatSpec(
        "panel-values", window=32, panel=32, block=32, brick=32, encoding="dense", pad=32, lane_order=True
    ),
    source="ours",
    panels={rows: brick for rows, brick in _native.PANEL_BRICK_ROWS.items() if rows == brick},
    adapt=_tall_as_entries,
    precisions=ROUNDED_PRECISIONS,
    exclusive=False,
    public=False,
)
