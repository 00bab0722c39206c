"""Types of the native module. Addresses, sizes and streams are plain integers."""

has_cuda: bool
cuda_architectures: str

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
    def attach(self, *addresses: int) -> None: ...

class Segments:
    def __init__(self, data: int, count: int, row_offsets: int) -> None: ...

class Heads:
    def __init__(self, data: int, batch: int, head: int, row: int, dtype: int) -> None: ...

class Slots:
    def __init__(self, data: int, batch: int, head: int, dtype: int) -> None: ...

class Attention:
    def __init__(
        self,
        q: Heads,
        k: Heads,
        v: Heads,
        bias: Slots,
        batches: int,
        heads: int,
        d: int,
        dv: int,
        scale: float,
        is_causal: bool,
        dropout_p: float,
        seed: int,
        precision: int,
    ) -> None: ...

def first_out_of_range(data: int, wide: bool, count: int, limit: int, threads: int) -> int: ...
def first_decreasing(data: int, wide: bool, count: int, threads: int) -> int: ...
def is_canonical(indptr: int, indices: int, wide: bool, rows: int, nnz: int, threads: int) -> bool: ...
def coo_to_csr(*arguments: int) -> int: ...
def transpose(a: Csr, *arguments: int) -> None: ...
def permute_rows(a: Csr, *arguments: int) -> None: ...
def add_self_loops(a: Csr, *arguments: int) -> None: ...
def count_columns(a: Csr, order: int, height: int, counts: int, threads: int) -> None: ...
def community_order(a: Csr, rounds: int, resolution: float, order: int, threads: int) -> None: ...
def count_panels(a: Csr, format: Blocked, *arguments: int) -> None: ...
def fill_blocked(a: Csr, format: Blocked, *arguments: int) -> None: ...
def count_entries(banks: int, stages: int, counts: int) -> None: ...
def fill_entries(a: Csr, format: Blocked, *arguments: int) -> None: ...
def split_short_rows(a: Csr, *arguments: int) -> tuple[int, int]: ...
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
    grad: Heads,
    delta: int,
    dq: Heads,
    dbias: Slots,
    threads: int,
) -> None: ...
def cpu_attention_column_grads(
    problem: Attention,
    a: Csr,
    row_ids: int,
    one_head: bool,
    slot_map: int,
    wide_map: bool,
    lse: int,
    grad: Heads,
    delta: int,
    dk: Heads,
    dv: Heads,
    threads: int,
) -> None: ...
def philox4x32(counter: tuple[int, int, int, int], seed: int) -> tuple[int, int, int, int]: ...
def cpu_round_tf32(source: int, out: int, count: int, threads: int) -> None: ...
def cpu_isa() -> str: ...
def set_cpu_isa(name: str) -> bool: ...

# In builds with has_cuda alone. The preprocessing functions return the scratch bytes they need.
def cuda_coo_to_csr(*arguments: int) -> int: ...
def cuda_transpose(a: Csr, *arguments: int) -> int: ...
def cuda_count_panels(a: Csr, *arguments: int) -> int: ...
def cuda_fill_blocked(a: Csr, format: Blocked, *arguments: int) -> None: ...
def cuda_count_entries(banks: int, stages: int, counts: int, stream: int) -> None: ...
def cuda_fill_entries(a: Csr, format: Blocked, *arguments: int) -> None: ...
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
    row_ids: int,
    values: int,
    row_scale: int,
    segments: Segments,
    cuts: int,
    cut_count: int,
    row_limit: int,
    groups: int,
    group_count: int,
    lanes: int,
    row_lanes: int,
    x: Dense,
    y: Dense,
    n: int,
    partial: int,
    precision: int,
    stream: int,
) -> None: ...
def cuda_sddmm_csr(
    a: Csr,
    row_ids: int,
    segments: Segments,
    row_limit: int,
    lanes: int,
    row_lanes: int,
    q: Dense,
    k: Dense,
    out: int,
    out_dtype: int,
    d: int,
    precision: int,
    stream: int,
) -> None: ...
def cuda_sddmm_panel(
    a: Blocked,
    items: Segments,
    indptr: int,
    row_ids: int,
    q: Dense,
    k: Dense,
    out: int,
    out_dtype: int,
    d: int,
    precision: int,
    stream: int,
) -> None: ...
def cuda_spmm_panel(
    a: Blocked,
    segments: Segments,
    cuts: int,
    cut_count: int,
    row_ids: int,
    row_scale: int,
    x: Dense,
    y: Dense,
    n: int,
    slices: int,
    partial: int,
    precision: int,
    stream: int,
) -> None: ...
def cuda_spmm_window(
    a: Blocked,
    segments: Segments,
    cuts: int,
    cut_count: int,
    indptr: int,
    edge_values: int,
    row_ids: int,
    row_scale: int,
    x: Dense,
    y: Dense,
    n: int,
    partial: int,
    precision: int,
    stream: int,
) -> None: ...
def cuda_sddmm_window(
    a: Blocked,
    segments: Segments,
    indptr: int,
    row_ids: int,
    q: Dense,
    k: Dense,
    out: int,
    out_dtype: int,
    d: int,
    precision: int,
    stream: int,
) -> None: ...
def cuda_gather_floor(columns: int, count: int, x: Dense, n: int, out: int, stream: int) -> None: ...
def cuda_attention_panel(
    problem: Attention,
    a: Blocked,
    items: Segments,
    indptr: int,
    row_ids: int,
    cuts: int,
    cut_count: int,
    partials: int,
    partial: int,
    out: Heads,
    lse: int,
    stream: int,
) -> None: ...
def cuda_attention_panel_rows(
    problem: Attention,
    a: Blocked,
    items: Segments,
    indptr: int,
    row_ids: int,
    cuts: int,
    cut_count: int,
    partials: int,
    partial: int,
    grad: Heads,
    out: Heads,
    lse: int,
    facts: int,
    dq: Heads,
    dbias: Slots,
    stream: int,
) -> None: ...
def cuda_attention_panel_columns(
    problem: Attention,
    a: Blocked,
    items: Segments,
    indptr: int,
    row_ids: int,
    cuts: int,
    cut_count: int,
    partials: int,
    partial: int,
    slot_map: int,
    wide_map: bool,
    grad: Heads,
    facts: int,
    dk: Heads,
    dv: Heads,
    stream: int,
) -> None: ...
def cuda_attention_panel_once(
    problem: Attention,
    a: Blocked,
    items: Segments,
    indptr: int,
    row_ids: int,
    cuts: int,
    cut_count: int,
    partials: int,
    partial: int,
    grad: Heads,
    out: Heads,
    lse: int,
    facts: int,
    dq: Heads,
    dbias: Slots,
    addends: int,
    heads: int,
    count: int,
    place_of_slot: int,
    column_starts: int,
    dk: Heads,
    dv: Heads,
    stream: int,
) -> None: ...
def cuda_softmax(
    a: Csr, long_rows: int, count: int, row_limit: int, scores: int, out: int, stream: int
) -> None: ...
def cuda_softmax_grad(
    a: Csr, long_rows: int, count: int, row_limit: int, weights: int, grad: int, out: int, stream: int
) -> None: ...
