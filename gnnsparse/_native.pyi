"""Types of the native module. Addresses, sizes and streams are plain integers; an address of 0 is no array.

Objects hold addresses only: keep the tensors while they are used.

Signatures are written out where several functions take the same arguments: a stub has no way to share them.
"""

from typing import TypedDict

class _PrecisionTraits(TypedDict):
    code: int
    storage: str
    operands_are_stored: bool

has_cuda: bool
cuda_architectures: str

VECTOR_BYTES: int
WINDOW_K_TILE: int
PANEL_K_TILE: int
ROW_SLICE_BYTES: int
PARTIAL_COLUMNS: int
SCORE_PANEL_ROWS: int
TALL_PANEL_ROWS: int
PARTIAL_ROW_STATS: int
ROW_STATS_FLOATS: int
ENTRY_VECTOR: int
ENTRY_BYTES: int
NO_ENTRY: int
GATHER_FLOOR_WORDS: int
PANEL_BRICK_ROWS: dict[int, int]
SPMM_PANEL_BLOCKS: dict[int, tuple[int, int]]
DTYPE_CODES: dict[str, int]
ENCODING_CODES: dict[str, int]
PRECISIONS: dict[str, _PrecisionTraits]
ATTENTION_FEATURES: dict[str, int]

class Csr:
    rows: int
    cols: int
    nnz: int
    def __init__(self, indptr: int, indices: int, rows: int, cols: int, nnz: int) -> None: ...

class Dense:
    def __init__(self, data: int, stride: int, dtype: int, rounded: bool = False) -> None: ...

class Blocked:
    def __init__(
        self,
        window: int,
        panel: int,
        block: int,
        brick: int,
        lane_order: bool,
        encoding: int,
        rows: int,
        cols: int,
        panels: int,
    ) -> None: ...
    def attach(
        self,
        panel_rows: int,
        panel_ptr: int,
        columns: int,
        bitmap: int,
        brick_ptr: int,
        brick_rows: int,
        value_ptr: int,
        values: int,
        slot_scale: int,
    ) -> None: ...

class WorkList:
    def __init__(
        self,
        items: int,
        item_count: int,
        row_offsets: int,
        cuts: int,
        cut_count: int,
        partials: int,
        prefetch_distance: int,
    ) -> None: ...

class StoredRows:
    def __init__(self, indptr: int, row_ids: int, row_scale: int = 0, values: int = 0) -> None: ...

class CsrLanes:
    def __init__(
        self, lanes: int, row_lanes: int, row_limit: int, groups: int = 0, group_count: int = 0
    ) -> None: ...

class NnzIndices:
    def __init__(self, data: int, wide: bool) -> None: ...

class Edges:
    def __init__(self, row: int, col: int, wide: bool, count: int) -> None: ...

class Heads:
    def __init__(self, data: int, batch: int, head: int, row: int, dtype: int) -> None: ...

class EdgeValues:
    def __init__(self, data: int, batch: int, head: int, dtype: int) -> None: ...

class AttentionSizes:
    def __init__(self, batches: int, heads: int, d: int, dv: int) -> None: ...

class Dropout:
    def __init__(self, p: float, seed: int) -> None: ...

class Attention:
    def __init__(
        self,
        q: Heads,
        k: Heads,
        v: Heads,
        bias: EdgeValues,
        sizes: AttentionSizes,
        scale: float,
        is_causal: bool,
        dropout: Dropout,
        precision: int,
    ) -> None: ...

class AttentionRows:
    def __init__(self, out: Heads, lse: int, row_stats: int = 0) -> None: ...

class AttentionGrads:
    def __init__(self, out: Heads, dq: Heads, dk: Heads, dv: Heads, dbias: EdgeValues) -> None: ...

class DkvPartials:
    def __init__(self, data: int, heads: int, count: int, place_of_slot: int, column_starts: int) -> None: ...

def first_out_of_range(data: int, wide: bool, count: int, limit: int, threads: int) -> int: ...
def first_decreasing(data: int, wide: bool, count: int, threads: int) -> int: ...
def is_canonical(indptr: int, indices: int, wide: bool, rows: int, nnz: int, threads: int) -> bool: ...
def is_permutation(data: int, wide: bool, count: int, threads: int) -> bool: ...
def coo_to_csr(
    edges: Edges, rows: int, indptr: int, indices: int, nnz_index: NnzIndices, threads: int
) -> int: ...
def transpose(a: Csr, indptr: int, indices: int, source: NnzIndices, threads: int) -> None: ...
def permute_rows(a: Csr, order: int, indptr: int, indices: int, source: NnzIndices, threads: int) -> None: ...
def add_self_loops(
    a: Csr, indptr: int, indices: int, source: NnzIndices, count: int, threads: int
) -> None: ...
def count_columns(a: Csr, order: int, height: int, counts: int, threads: int) -> None: ...
def community_order(a: Csr, rounds: int, resolution: float, order: int, threads: int) -> None: ...
def count_panels(a: Csr, format: Blocked, columns: int, bricks: int, values: int, threads: int) -> None: ...
def fill_blocked(
    a: Csr, format: Blocked, panel_bricks: int, panel_values: int, value_index: int, threads: int
) -> None: ...
def first_unlike(a: Csr, format: Blocked, threads: int) -> int: ...
def count_entries(banks: int, k_tiles: int, counts: int) -> None: ...
def fill_entries(a: Csr, format: Blocked, banks: int, values: int, entries: int, threads: int) -> None: ...
def split_short_rows(
    a: Csr, window: int, short_nnz: int, short_columns: int, window_rows: int, residual: int
) -> tuple[int, int]: ...
def cpu_spmm(
    a: Csr,
    row_ids: int,
    values: int,
    col_scale: int,
    row_scale: int,
    x: Dense,
    y: Dense,
    n: int,
    threads: int,
) -> None: ...
def cpu_sddmm(
    a: Csr, row_ids: int, q: Dense, k: Dense, out: int, out_dtype: int, d: int, threads: int
) -> None: ...
def cpu_softmax(a: Csr, scores: int, out: int, threads: int) -> None: ...
def cpu_softmax_grad(a: Csr, weights: int, grad: int, out: int, threads: int) -> None: ...
def cpu_attention(
    problem: Attention, a: Csr, row_ids: int, one_head: bool, out: Heads, lse: int, threads: int
) -> None: ...
def cpu_attention_row_grads(
    problem: Attention,
    a: Csr,
    row_ids: int,
    one_batch: bool,
    one_head: bool,
    lse: int,
    delta: int,
    grads: AttentionGrads,
    threads: int,
) -> None: ...
def cpu_attention_column_grads(
    problem: Attention,
    a: Csr,
    row_ids: int,
    one_head: bool,
    nnz_index_map: NnzIndices,
    lse: int,
    delta: int,
    grads: AttentionGrads,
    threads: int,
) -> None: ...
def philox4x32(counter: tuple[int, int, int, int], seed: int) -> tuple[int, int, int, int]: ...
def cpu_round_tf32(source: int, out: int, count: int, threads: int) -> None: ...
def cpu_isa() -> str: ...
def set_cpu_isa(name: str) -> bool: ...

# In builds with has_cuda alone. The preprocessing functions return the scratch bytes they need.
def cuda_coo_to_csr(
    edges: Edges,
    rows: int,
    cols: int,
    indptr: int,
    indices: int,
    nnz_index: NnzIndices,
    scratch: int,
    bytes: int,
    stream: int,
) -> int: ...
def cuda_transpose(
    a: Csr, indptr: int, indices: int, source: NnzIndices, scratch: int, bytes: int, stream: int
) -> int: ...
def cuda_count_panels(
    a: Csr, height: int, columns: int, position: int, scratch: int, bytes: int, stream: int
) -> int: ...
def cuda_fill_blocked(
    a: Csr, format: Blocked, position: int, columns: int, bitmap: int, value_index: int, stream: int
) -> None: ...
def cuda_count_entries(banks: int, k_tiles: int, counts: int, stream: int) -> None: ...
def cuda_fill_entries(
    a: Csr, format: Blocked, position: int, banks: int, values: int, entries: int, stream: int
) -> None: ...
def cuda_pack(
    x: int,
    x_dtype: int,
    row_stride: int,
    column_stride: int,
    scale: int,
    rows: int,
    n: int,
    out: Dense,
    stream: int,
) -> None: ...
def cuda_spmm_csr(
    a: Csr,
    rows: StoredRows,
    work: WorkList,
    lanes: CsrLanes,
    x: Dense,
    y: Dense,
    n: int,
    partial: int,
    precision: int,
    stream: int,
) -> None: ...
def cuda_spmm_window(
    a: Blocked,
    rows: StoredRows,
    work: WorkList,
    x: Dense,
    y: Dense,
    n: int,
    partial: int,
    precision: int,
    stream: int,
) -> None: ...
def cuda_spmm_panel(
    a: Blocked,
    rows: StoredRows,
    work: WorkList,
    x: Dense,
    y: Dense,
    n: int,
    slices: int,
    partial: int,
    precision: int,
    stream: int,
) -> None: ...
def cuda_sddmm_csr(
    a: Csr,
    rows: StoredRows,
    work: WorkList,
    lanes: CsrLanes,
    q: Dense,
    k: Dense,
    out: EdgeValues,
    d: int,
    precision: int,
    stream: int,
) -> None: ...
def cuda_sddmm_panel(
    a: Blocked,
    rows: StoredRows,
    work: WorkList,
    q: Dense,
    k: Dense,
    out: EdgeValues,
    d: int,
    precision: int,
    stream: int,
) -> None: ...
def cuda_sddmm_window(
    a: Blocked,
    rows: StoredRows,
    work: WorkList,
    q: Dense,
    k: Dense,
    out: EdgeValues,
    d: int,
    precision: int,
    stream: int,
) -> None: ...
def cuda_gather_floor(columns: int, count: int, x: Dense, n: int, out: int, stream: int) -> None: ...
def cuda_attention_panel(
    problem: Attention,
    a: Blocked,
    rows: StoredRows,
    work: WorkList,
    partial: int,
    given: AttentionRows,
    stream: int,
) -> None: ...
def cuda_attention_panel_rows(
    problem: Attention,
    a: Blocked,
    rows: StoredRows,
    work: WorkList,
    partial: int,
    given: AttentionRows,
    grads: AttentionGrads,
    stream: int,
) -> None: ...
def cuda_attention_panel_columns(
    problem: Attention,
    a: Blocked,
    rows: StoredRows,
    work: WorkList,
    partial: int,
    given: AttentionRows,
    grads: AttentionGrads,
    nnz_index_map: NnzIndices,
    stream: int,
) -> None: ...
def cuda_attention_panel_fused_backward(
    problem: Attention,
    a: Blocked,
    rows: StoredRows,
    work: WorkList,
    partial: int,
    given: AttentionRows,
    grads: AttentionGrads,
    dkv_partials: DkvPartials,
    stream: int,
) -> None: ...
def cuda_softmax(a: Csr, work: WorkList, row_limit: int, scores: int, out: int, stream: int) -> None: ...
def cuda_softmax_grad(
    a: Csr, work: WorkList, row_limit: int, weights: int, grad: int, out: int, stream: int
) -> None: ...
