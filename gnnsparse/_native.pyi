"""Types of the native module.

Arrays are tensors, whose dtypes, lengths and devices are checked where pointers to their memory are made
(native/bindings/memory.h). None is no array. Objects keep their tensors alive.

Signatures are written out where several functions take nearly the same arguments.
"""

from collections.abc import Sequence
from typing import TypedDict, overload

import torch

_Array = torch.Tensor | None

class _PrecisionTraits(TypedDict):
    code: int
    storage: str
    operands_are_stored: bool

class _EntryLayout(TypedDict):
    value_bytes: int
    bytes: int
    group: int
    no_place: int

has_cuda: bool
cuda_architectures: str

VECTOR_BYTES: int
WINDOW_K_TILE: int
PANEL_K_TILE: int
ROW_SLICE_BYTES: int
PARTIAL_COLUMNS: int
NARROW_WIDTH: int
MOST_NARROW_NNZ: int
SHORT_UNIT_ROW: int
SCORE_PANEL_ROWS: int
TALL_PANEL_ROWS: int
PARTIAL_ROW_STATS: int
ROW_STATS_FLOATS: int
DKV_SLOT_BYTES: int
DKV_STEP_SLOTS: int
DKV_PAIR_WORDS: int
DKV_STAGE_STEPS: int
DKV_SHARED_BYTES: tuple[int, int]
DKV_TILE: tuple[int, int, int]
ENTRY_LAYOUTS: dict[str, _EntryLayout]
EIGHT_BIT_PADDING: int
EIGHT_BIT_HEAD_FEATURES: int
EIGHT_BIT_ROWS: tuple[int, ...]
INTEGER_SUM_ROWS: tuple[int, ...]
ATT_GROUP_ROWS: int
GATHER_FLOOR_WORDS: int
GRAPH_ATTENTION_CHUNKS: int
GRAPH_MAPPED_HEADS: int
GRAPH_MAP_WIDTH: int
PANEL_BRICK_ROWS: dict[int, int]
SPMM_PANEL_BLOCKS: dict[int, tuple[int, int]]
ENCODING_CODES: dict[str, int]
PRECISIONS: dict[str, _PrecisionTraits]
ATTENTION_FEATURES: dict[str, int]

class Csr:
    rows: int
    cols: int
    nnz: int
    def __init__(self, indptr: torch.Tensor, indices: torch.Tensor, cols: int) -> None: ...

class Dense:
    def __init__(self, tensor: torch.Tensor, rounded: bool = False) -> None: ...

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
        nnz: int,
    ) -> None: ...
    def attach(
        self,
        panel_rows: _Array,
        panel_ptr: torch.Tensor,
        columns: torch.Tensor,
        bitmap: _Array,
        brick_ptr: _Array,
        brick_rows: _Array,
        value_ptr: _Array,
        values: _Array,
        slot_scale: _Array,
    ) -> None: ...
    def attach_zero_index(self, zero_ptr: torch.Tensor, zero_cols: torch.Tensor) -> None: ...
    def attach_records(self, size_ptr: torch.Tensor, packed_blocks: torch.Tensor) -> None: ...
    def attach_residual(self, rows: torch.Tensor, columns: torch.Tensor, values: _Array) -> None: ...

class PackedPolicy:
    def __init__(self, stage_a: int, stage_x: bool, coarsening: int, residual_with_windows: bool) -> None: ...

class WorkList:
    def __init__(
        self,
        items: _Array,
        cuts: _Array,
        partials: int,
        row_offsets: _Array = None,
        prefetch_distance: int = 0,
    ) -> None: ...

class EdgeProgram:
    def __init__(
        self,
        inputs: Sequence[str],
        sizes: Sequence[int],
        steps: Sequence[tuple[str, tuple[int, ...], float]],
        outputs: Sequence[tuple[str, int]],
    ) -> None: ...

class StoredRows:
    def __init__(
        self,
        indptr: _Array = None,
        row_ids: _Array = None,
        row_scale: _Array = None,
        values: _Array = None,
        col_scale: _Array = None,
    ) -> None: ...

class CsrLanes:
    def __init__(
        self, lanes: int, row_lanes: int, row_limit: int, groups: _Array = None, narrow: bool = False
    ) -> None: ...

class WindowPolicy:
    def __init__(
        self,
        swapped: bool,
        deep: bool,
        x_load: int,
        shuffle: bool,
        stage_a: int,
        stage_x: bool,
        coarsening: int,
        grid_3d: bool,
        zero_ptr: _Array = None,
        zero_cols: _Array = None,
    ) -> None: ...

class Edges:
    def __init__(self, row: torch.Tensor, col: torch.Tensor) -> None: ...

class Heads:
    def __init__(self, tensor: _Array = None) -> None: ...
    @staticmethod
    def of_rows(tensor: _Array, heads: int) -> Heads: ...

class EdgeValues:
    def __init__(self, tensor: _Array = None) -> None: ...

class Attention:
    def __init__(
        self,
        q: Heads,
        k: Heads,
        v: Heads,
        bias: EdgeValues,
        scale: float,
        is_causal: bool,
        dropout_p: float,
        seed: _Array,
        precision: int,
    ) -> None: ...

class QuantizedAttention:
    def __init__(
        self,
        q: Heads,
        k: torch.Tensor,
        v: torch.Tensor,
        value_scale: torch.Tensor,
        number_type: int,
        bias: EdgeValues,
        scale: float,
        is_causal: bool,
        dropout_p: float,
        seed: _Array,
    ) -> None: ...

class AttentionRows:
    def __init__(self, out: Heads, stats: torch.Tensor, row_stats: _Array = None) -> None: ...

class AttentionGrads:
    def __init__(self, out: Heads, dq: Heads, dk: Heads, dv: Heads, dbias: EdgeValues) -> None: ...

class DkvWeights:
    @overload
    def __init__(
        self,
        weights: torch.Tensor,
        heads: int,
        slot_of_entry: torch.Tensor,
        columns: torch.Tensor,
        panels: torch.Tensor,
        range_starts: torch.Tensor,
        range: int,
    ) -> None: ...
    @overload
    def __init__(
        self, weights: torch.Tensor, heads: int, entries: torch.Tensor, starts: torch.Tensor
    ) -> None: ...

class GraphAttention:
    def __init__(
        self,
        q: Heads,
        k: Heads,
        v: Heads,
        att: Heads,
        bias: Heads,
        features: Heads,
        to_keys: bool,
        to_values: bool,
        gate: Heads,
        mapped: Heads,
        mapped_q: Heads,
        score: int,
        scale: float,
        negative_slope: float,
        clamp: float,
        normalize: bool,
        is_causal: bool,
        dropout_p: float,
        seed: _Array,
        precision: int,
    ) -> None: ...

class GraphAttentionResult:
    def __init__(self, out: Heads, mapped: Heads, stats: Heads, sloped: Heads) -> None: ...

class GraphAttentionGrads:
    out: Heads
    mapped: Heads
    weights: Heads
    inner: Heads
    edges: Heads
    numbers: Heads
    bias: Heads
    q: Heads
    mapped_q: Heads
    features: Heads
    gate: Heads
    att: Heads
    k: Heads
    v: Heads
    of_mapped: Heads
    def __init__(self) -> None: ...

class GraphRows:
    def __init__(
        self,
        a: Csr,
        row_ids: _Array,
        entries: _Array,
        cuts: _Array,
        partials: int,
        side_by_side: int,
        rounds: int,
        partial: _Array,
    ) -> None: ...
    @property
    def warps(self) -> int: ...

def graph_rows_side_by_side(chunks: int, heads: int) -> int: ...
def graph_partial_floats(d: int, dv: int, de: int) -> int: ...
def first_out_of_range(values: torch.Tensor, limit: int, threads: int) -> int: ...
def first_decreasing(indptr: torch.Tensor, threads: int) -> int: ...
def is_canonical(indptr: torch.Tensor, indices: torch.Tensor, threads: int) -> bool: ...
def is_permutation(values: torch.Tensor, threads: int) -> bool: ...
def coo_to_csr(
    edges: Edges,
    rows: int,
    indptr: torch.Tensor,
    indices: torch.Tensor,
    nnz_index: torch.Tensor,
    threads: int,
) -> int: ...
def transpose(a: Csr, indptr: torch.Tensor, indices: torch.Tensor, source: _Array, threads: int) -> None: ...
def permute_rows(
    a: Csr,
    order: torch.Tensor,
    indptr: torch.Tensor,
    indices: torch.Tensor,
    source: torch.Tensor,
    threads: int,
) -> None: ...
def add_self_loops(a: Csr, indptr: torch.Tensor, indices: _Array, places: _Array, threads: int) -> None: ...
def count_columns(a: Csr, order: _Array, height: int, counts: torch.Tensor, threads: int) -> None: ...
def community_order(a: Csr, rounds: int, resolution: float, order: torch.Tensor, threads: int) -> None: ...
def shuffle_rows(
    a: Csr, height: int, width: int, threshold: float, bin: int, fill: bool, order: torch.Tensor
) -> tuple[int, int, int, int, int]: ...
def jaccard_order(
    a: Csr,
    k: int,
    alpha: float,
    tree: bool,
    two_opt: bool,
    window: int,
    isolation: bool,
    isolated: float,
    order: torch.Tensor,
    threads: int,
) -> tuple[float, float, float, float, int]: ...
def cluster_order(a: Csr, height: int, group: int, k: int, order: torch.Tensor, threads: int) -> None: ...
def count_panels(
    a: Csr, format: Blocked, columns: _Array, bricks: _Array, values: _Array, threads: int
) -> None: ...
def fill_blocked(
    a: Csr, format: Blocked, panel_bricks: _Array, panel_values: _Array, value_index: _Array, threads: int
) -> None: ...
def first_unlike(a: Csr, format: Blocked, threads: int) -> int: ...
def count_entries(banks: torch.Tensor, counts: torch.Tensor) -> None: ...
def fill_entries(
    a: Csr, format: Blocked, banks: torch.Tensor, values: torch.Tensor, entries: torch.Tensor, threads: int
) -> None: ...
def split_short_rows(
    a: Csr, window: int, short_nnz: int, short_columns: int, window_rows: torch.Tensor, residual: torch.Tensor
) -> tuple[int, int]: ...
def cpu_spmm(a: Csr, rows: StoredRows, x: torch.Tensor, y: torch.Tensor, threads: int) -> None: ...
def cpu_sddmm(
    a: Csr, row_ids: _Array, q: torch.Tensor, k: torch.Tensor, out: torch.Tensor, threads: int
) -> None: ...
def cpu_quantize(
    x: torch.Tensor,
    weights: _Array,
    out: torch.Tensor,
    scale: torch.Tensor,
    number_type: int,
    seed: int | None,
    threads: int,
) -> None: ...
def cpu_spmm_quantized(
    a: Csr,
    rows: StoredRows,
    x: torch.Tensor,
    scale: torch.Tensor,
    number_type: int,
    y: torch.Tensor,
    threads: int,
) -> None: ...
def cpu_spmm_blocked(
    a: Blocked, rows: StoredRows, x: torch.Tensor, y: torch.Tensor, threads: int
) -> None: ...
def cpu_sddmm_blocked(
    a: Blocked, row_ids: _Array, q: torch.Tensor, k: torch.Tensor, out: torch.Tensor, threads: int
) -> None: ...
def cpu_softmax(a: Csr, scores: torch.Tensor, out: torch.Tensor, threads: int) -> None: ...
def cpu_softmax_grad(
    a: Csr, weights: torch.Tensor, grad: torch.Tensor, out: torch.Tensor, threads: int
) -> None: ...
def cpu_spmm_heads(
    a: Csr,
    rows: StoredRows,
    x: torch.Tensor,
    y: torch.Tensor,
    heads: int,
    width: int,
    winners: _Array,
    threads: int,
) -> None: ...
def cpu_spmm_extreme(
    a: Csr,
    rows: StoredRows,
    x: torch.Tensor,
    y: torch.Tensor,
    heads: int,
    width: int,
    largest: bool,
    winners: torch.Tensor,
    threads: int,
) -> None: ...
def cpu_sddmm_heads(
    a: Csr,
    row_ids: _Array,
    q: torch.Tensor,
    k: torch.Tensor,
    heads: int,
    width: int,
    winners: _Array,
    out: torch.Tensor,
    threads: int,
) -> None: ...
def cpu_softmax_heads(a: Csr, scores: torch.Tensor, heads: int, out: torch.Tensor, threads: int) -> None: ...
def cpu_softmax_heads_grad(
    a: Csr, weights: torch.Tensor, grad: torch.Tensor, heads: int, out: torch.Tensor, threads: int
) -> None: ...
def cpu_edges(
    program: EdgeProgram,
    a: Csr,
    row_ids: _Array,
    edge_ids: _Array,
    num_edges: int,
    width: int,
    arguments: Sequence[torch.Tensor],
    outputs: Sequence[torch.Tensor],
    threads: int,
) -> None: ...
def cpu_attention(
    problem: Attention, a: Csr, row_ids: _Array, one_head: bool, out: Heads, stats: torch.Tensor, threads: int
) -> None: ...
def cpu_attention_row_grads(
    problem: Attention,
    a: Csr,
    row_ids: _Array,
    one_batch: bool,
    one_head: bool,
    stats: torch.Tensor,
    delta: torch.Tensor,
    grads: AttentionGrads,
    threads: int,
) -> None: ...
def cpu_attention_column_grads(
    problem: Attention,
    a: Csr,
    row_ids: _Array,
    one_head: bool,
    nnz_index_map: torch.Tensor,
    stats: torch.Tensor,
    delta: torch.Tensor,
    grads: AttentionGrads,
    threads: int,
) -> None: ...
def cpu_graph_attention(
    problem: GraphAttention, a: Csr, row_ids: _Array, result: GraphAttentionResult, threads: int
) -> None: ...
def cpu_graph_attention_rows(
    problem: GraphAttention,
    a: Csr,
    row_ids: _Array,
    result: GraphAttentionResult,
    grads: GraphAttentionGrads,
    threads: int,
) -> None: ...
def cpu_graph_attention_columns(
    problem: GraphAttention,
    a_transposed: Csr,
    row_ids: _Array,
    nnz_index_map: torch.Tensor,
    grads: GraphAttentionGrads,
    threads: int,
) -> None: ...
def philox4x32(counter: tuple[int, int, int, int], seed: int) -> tuple[int, int, int, int]: ...
def cpu_round_tf32(source: torch.Tensor, out: torch.Tensor, threads: int) -> None: ...
def cpu_isa() -> str: ...
def set_cpu_isa(name: str) -> bool: ...

# In builds with has_cuda alone. The preprocessing functions return the scratch bytes they need.
def cuda_coo_to_csr(
    edges: Edges,
    rows: int,
    cols: int,
    indptr: torch.Tensor,
    indices: torch.Tensor,
    nnz_index: torch.Tensor,
    scratch: _Array,
    stream: int,
) -> int: ...
def cuda_transpose(
    a: Csr, indptr: torch.Tensor, indices: torch.Tensor, source: torch.Tensor, scratch: _Array, stream: int
) -> int: ...
def cuda_count_panels(
    a: Csr, height: int, columns: torch.Tensor, position: torch.Tensor, scratch: _Array, stream: int
) -> int: ...
def cuda_fill_blocked(
    a: Csr, format: Blocked, position: torch.Tensor, value_index: _Array, stream: int
) -> None: ...
def cuda_count_entries(banks: torch.Tensor, counts: torch.Tensor, stream: int) -> None: ...
def cuda_fill_entries(
    a: Csr,
    format: Blocked,
    position: torch.Tensor,
    banks: torch.Tensor,
    values: torch.Tensor,
    entries: torch.Tensor,
    stream: int,
) -> None: ...
def cuda_pack(x: torch.Tensor, scale: _Array, out: Dense, stream: int) -> None: ...
def cuda_spmm_csr(
    a: Csr,
    rows: StoredRows,
    work: WorkList,
    lanes: CsrLanes,
    x: Dense,
    y: Dense,
    n: int,
    partial: _Array,
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
    partial: _Array,
    precision: int,
    stream: int,
) -> None: ...
def cuda_spmm_policy(
    a: Blocked,
    rows: StoredRows,
    work: WorkList,
    policy: WindowPolicy,
    x: Dense,
    y: Dense,
    n: int,
    partial: _Array,
    precision: int,
    stream: int,
) -> None: ...
def cuda_spmm_records(
    a: Blocked,
    rows: StoredRows,
    work: WorkList,
    policy: PackedPolicy,
    x: Dense,
    y: Dense,
    n: int,
    partial: _Array,
    precision: int,
    stream: int,
) -> None: ...

cuda_spmm_tiles = cuda_spmm_records

def cuda_quantize(
    x: torch.Tensor,
    weights: _Array,
    out: torch.Tensor,
    scale: torch.Tensor,
    peaks: torch.Tensor,
    parts: int,
    number_type: int,
    seed: int | None,
    stream: int,
) -> None: ...
def cuda_quantize_heads(
    x: torch.Tensor,
    out: torch.Tensor,
    scale: torch.Tensor,
    peaks: torch.Tensor,
    parts: int,
    number_type: int,
    stream: int,
) -> None: ...
def cuda_spmm_quantized(
    a: Blocked,
    rows: StoredRows,
    work: WorkList,
    x: torch.Tensor,
    scale: torch.Tensor,
    number_type: int,
    y: Dense,
    n: int,
    slices: int,
    partial: _Array,
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
    partial: _Array,
    precision: int,
    stream: int,
    add: bool = False,
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
def cuda_spmm_heads(
    a: Csr,
    rows: StoredRows,
    work: WorkList,
    lanes: CsrLanes,
    x: Dense,
    y: Dense,
    heads: int,
    width: int,
    winners: _Array,
    partial: _Array,
    precision: int,
    stream: int,
) -> None: ...
def cuda_spmm_extreme(
    a: Csr,
    rows: StoredRows,
    work: WorkList,
    lanes: CsrLanes,
    x: Dense,
    y: Dense,
    heads: int,
    width: int,
    largest: bool,
    winners: torch.Tensor,
    partial: _Array,
    partial_winners: _Array,
    precision: int,
    stream: int,
) -> None: ...
def cuda_sddmm_heads(
    a: Csr,
    rows: StoredRows,
    work: WorkList,
    lanes: CsrLanes,
    q: Dense,
    k: Dense,
    heads: int,
    width: int,
    winners: _Array,
    out: torch.Tensor,
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

cuda_sddmm_window = cuda_sddmm_panel

def cuda_sddmm_blocks(
    a: Blocked,
    rows: StoredRows,
    work: WorkList,
    q: Dense,
    k: Dense,
    blocks: _Array,
    out: EdgeValues,
    d: int,
    precision: int,
    stream: int,
) -> None: ...
def cuda_gather_floor(columns: torch.Tensor, x: Dense, n: int, out: torch.Tensor, stream: int) -> None: ...
def cuda_attention_panel(
    problem: Attention,
    a: Blocked,
    rows: StoredRows,
    work: WorkList,
    partial: _Array,
    given: AttentionRows,
    stream: int,
) -> None: ...
def cuda_attention_blocks(
    problem: Attention,
    row_ids: _Array,
    starts: _Array,
    tiles: _Array,
    bits: _Array,
    given: AttentionRows,
    stream: int,
) -> None: ...
def cuda_attention_blocks_backward(
    problem: Attention,
    row_ids: _Array,
    starts: _Array,
    tiles: _Array,
    bits: _Array,
    column_starts: _Array,
    column_tiles: _Array,
    given: AttentionRows,
    grads: AttentionGrads,
    stream: int,
) -> None: ...
def cuda_attention_quantized(
    problem: QuantizedAttention,
    a: Blocked,
    rows: StoredRows,
    work: WorkList,
    partial: _Array,
    given: AttentionRows,
    stream: int,
) -> None: ...
def cuda_attention_panel_rows(
    problem: Attention,
    a: Blocked,
    rows: StoredRows,
    work: WorkList,
    partial: _Array,
    given: AttentionRows,
    grads: AttentionGrads,
    stream: int,
) -> None: ...
def cuda_attention_panel_columns(
    problem: Attention,
    a: Blocked,
    rows: StoredRows,
    work: WorkList,
    partial: _Array,
    given: AttentionRows,
    grads: AttentionGrads,
    nnz_index_map: _Array,
    stream: int,
) -> None: ...
def cuda_attention_panel_fused_backward(
    problem: Attention,
    a: Blocked,
    rows: StoredRows,
    work: WorkList,
    partial: _Array,
    given: AttentionRows,
    grads: AttentionGrads,
    dkv: DkvWeights,
    stream: int,
) -> None: ...
def cuda_graph_attention(
    problem: GraphAttention, rows: GraphRows, result: GraphAttentionResult, stream: int
) -> None: ...
def cuda_graph_attention_rows(
    problem: GraphAttention,
    rows: GraphRows,
    result: GraphAttentionResult,
    grads: GraphAttentionGrads,
    stream: int,
) -> None: ...
def cuda_graph_attention_mapped(
    problem: GraphAttention, rows: GraphRows, grads: GraphAttentionGrads, stream: int
) -> None: ...
def cuda_graph_map_grad(
    x: Heads, y: Heads, other_x: Heads, other_y: Heads, to: Heads, precision: int, stream: int
) -> None: ...
def cuda_graph_attention_columns(
    problem: GraphAttention,
    rows: GraphRows,
    grads: GraphAttentionGrads,
    nnz_index_map: torch.Tensor,
    stream: int,
) -> None: ...

class EdgeKernel:
    def __init__(
        self,
        code: bytes,
        inputs: list[int],
        outputs: list[int],
        size: int,
        dtype: int,
        lanes_log: int,
        ring_bytes: int,
    ) -> None: ...

def cuda_edge_rows(
    kernel: EdgeKernel,
    a: Csr,
    row_ids: _Array,
    edge_ids: _Array,
    num_edges: int,
    work: WorkList,
    row_limit: int,
    rows_per_warp: int,
    blocks: int,
    width: int,
    arguments: list[torch.Tensor],
    outputs: list[torch.Tensor | None],
    partial: torch.Tensor,
    stream: int,
) -> None: ...

class EdgeNetwork:
    def __init__(
        self,
        precision: int,
        targets: torch.Tensor,
        sources: torch.Tensor,
        edge_ids: _Array,
        rows: int,
        cols: int,
        num_edges: int,
        edge_dim: int,
        hidden: int,
        width: int,
        blocks: int,
        act: int,
        eps: float | None,
        e: torch.Tensor,
        p: torch.Tensor,
        q: torch.Tensor,
        weights: torch.Tensor,
        vectors: torch.Tensor,
    ) -> None: ...

EDGE_NETWORK_ROWS: int
EDGE_NETWORK_SUMS: tuple[int, int]

def edge_network_width(features: int, capability: int) -> int: ...
def cuda_edge_network(
    network: EdgeNetwork, partial: torch.Tensor, new_edges: torch.Tensor, sums: torch.Tensor, stream: int
) -> None: ...
def cuda_edge_network_grad(
    network: EdgeNetwork,
    first_tile: int,
    tile_count: int,
    grad_edges: _Array,
    grad_sums: _Array,
    partial: torch.Tensor,
    hidden_rows: torch.Tensor,
    grad_out: torch.Tensor,
    grad_hidden: torch.Tensor,
    grad_e: torch.Tensor,
    grad_p: torch.Tensor,
    grad_q: torch.Tensor,
    order: torch.Tensor,
    starts: torch.Tensor,
    columns: torch.Tensor,
    scratch: torch.Tensor,
    sums: torch.Tensor,
    stream: int,
) -> None: ...
def cuda_softmax(
    a: Csr, work: WorkList, row_limit: int, scores: torch.Tensor, heads: int, out: torch.Tensor, stream: int
) -> None: ...
def cuda_softmax_grad(
    a: Csr,
    work: WorkList,
    row_limit: int,
    weights: torch.Tensor,
    grad: torch.Tensor,
    heads: int,
    out: torch.Tensor,
    stream: int,
) -> None: ...

class SampleGraph:
    def __init__(self, a: Csr, weights: _Array, running: _Array) -> None: ...

class SampleDraw:
    draws_first: bool
    replaces: bool
    def __init__(self, rule: int, fanout: int, seed: int, step: int, layer: int, loops: bool) -> None: ...

class SampleRows:
    def __init__(
        self, targets: torch.Tensor, used: _Array, windows: _Array, trees: _Array, step: _Array = None
    ) -> None: ...

class SampleNegatives:
    def __init__(self, distinct: bool, keeps_source: bool) -> None: ...

class SampleDrawn:
    def __init__(self, places: _Array, copies: _Array, keys: _Array) -> None: ...

def running_sums(a: Csr, weights: torch.Tensor, running: torch.Tensor, threads: int) -> None: ...
def draw_neighbors(
    graph: SampleGraph,
    draw: SampleDraw,
    rows: SampleRows,
    drawn: SampleDrawn,
    indptr: torch.Tensor,
    threads: int,
) -> None: ...
def gather_neighbors(
    graph: SampleGraph,
    draw: SampleDraw,
    rows: SampleRows,
    drawn: SampleDrawn,
    indptr: torch.Tensor,
    nodes: torch.Tensor,
    edges: torch.Tensor,
    copies: _Array,
    threads: int,
) -> None: ...
def number_nodes(
    targets: torch.Tensor,
    nodes: torch.Tensor,
    place: torch.Tensor,
    sources: torch.Tensor,
    numbers: torch.Tensor,
    threads: int,
) -> int: ...
def draw_negatives(
    a: Csr, draw: SampleDraw, of: SampleNegatives, pairs: torch.Tensor, threads: int
) -> int: ...
def cuda_draw_neighbors(
    graph: SampleGraph,
    draw: SampleDraw,
    rows: SampleRows,
    drawn: SampleDrawn,
    counts: torch.Tensor,
    stream: int,
) -> None: ...
def cuda_gather_neighbors(
    graph: SampleGraph,
    draw: SampleDraw,
    rows: SampleRows,
    drawn: SampleDrawn,
    indptr: torch.Tensor,
    nodes: torch.Tensor,
    edges: torch.Tensor,
    copies: _Array,
    stream: int,
) -> None: ...
def cuda_mark_first(
    targets: torch.Tensor,
    nodes: torch.Tensor,
    place: torch.Tensor,
    first: torch.Tensor,
    used: _Array,
    indptr: _Array,
    stream: int,
) -> None: ...
def cuda_number_nodes(
    targets: torch.Tensor,
    nodes: torch.Tensor,
    rank: torch.Tensor,
    place: torch.Tensor,
    sources: torch.Tensor,
    numbers: torch.Tensor,
    used: _Array,
    indptr: _Array,
    uses: _Array,
    sizes: _Array,
    stream: int,
) -> None: ...
def cuda_draw_negatives(
    a: Csr, draw: SampleDraw, of: SampleNegatives, pairs: torch.Tensor, missing: torch.Tensor, stream: int
) -> None: ...
def cuda_gather_rows(
    rows: torch.Tensor,
    kept: _Array,
    place: _Array,
    wanted: torch.Tensor,
    out: torch.Tensor,
    row_bytes: int,
    stream: int,
) -> None: ...
