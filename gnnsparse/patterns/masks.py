"""Attention patterns: which queries attend to which keys, as graphs.

Each function returns a SparseGraph whose row i holds the keys that query i attends to. It is on the CPU and
has no values; it is prepared and cached like any other graph: `gnnsparse.prepare(masks.window(4096, 128))`.
Patterns are combined with `union` and `intersection`. No function but `from_dense` and `block` handles a
dense matrix: memory is proportional to the edges. Random patterns are equal for equal seeds, and do not use
torch's global random number generator. An argument of another type is a TypeError, one out of range a
ValueError.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from gnnsparse.errors import (
    bad_type,
    bad_value,
    check_array,
    check_device,
    check_integer,
    check_memory,
    check_number,
    check_tensor,
)
from gnnsparse.formats.csr import Csr, are_in, coo_to_csr
from gnnsparse.sparse.graph import SparseGraph

__all__ = [
    "PATTERNS", "bigbird", "block", "causal", "dilated", "expander", "from_dense", "from_edges", "full",
    "global_tokens", "intersection", "random", "union", "vector_wise", "window",
]  # fmt: skip

_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
_NOT_NEGATIVE = "an integer, 0 or more"


def _length(name: str, value: Any) -> int:
    if check_integer(name, value, 0, _NOT_NEGATIVE) > 2**31 - 1:
        bad_value(name, f"got {value}; accepted: 0 to 2^31 - 1, for columns are stored as int32")
    return value


def _shape(length: Any, keys: Any) -> tuple[int, int]:
    rows = _length("length", length)
    return rows, rows if keys is None else _length("keys", keys)


def _generator(seed: Any) -> torch.Generator:
    return torch.Generator("cpu").manual_seed(check_integer("seed", seed, 0, "an integer from 0 to 2^63 - 1"))


def _runs(start: torch.Tensor, count: torch.Tensor, step: int, cols: int) -> SparseGraph:
    """Make the pattern whose row i holds `count[i]` columns: start[i], start[i] + step, ..."""
    indptr = torch.nn.functional.pad(count.cumsum(0), (1, 0))
    edges = int(indptr[-1])
    check_memory("length", 24 * edges, f"a pattern of {edges} edges")  # three integers for each at a time
    indices = torch.arange(edges, device="cpu")
    indices -= torch.repeat_interleave(indptr[:-1], count)
    indices *= step
    indices += torch.repeat_interleave(start, count)
    return SparseGraph(Csr(indptr, indices.to(torch.int32), cols))


def _from_coo(row: torch.Tensor, col: torch.Tensor, rows: int, cols: int) -> SparseGraph:
    csr, _ = coo_to_csr(row.contiguous(), col.contiguous(), rows, cols)
    return SparseGraph(csr)


def full(length: int, keys: int | None = None) -> SparseGraph:
    """Every query attends to every key: dense attention, for comparisons. Memory is O(length x keys).

    Args:
        length: queries L.
        keys: keys S; None: L.
    """
    rows, cols = _shape(length, keys)
    return _runs(
        torch.zeros(rows, dtype=torch.int64, device="cpu"), torch.full((rows,), cols, device="cpu"), 1, cols
    )


def window(length: int, radius: int, dilation: int = 1, keys: int | None = None) -> SparseGraph:
    """Query i attends to keys i - radius x dilation, ..., i - dilation, i, ..., i + radius x dilation.

    The sliding window of Longformer (Beltagy et al. 2020), dilated or not. `window(n, 0)` is the
    diagonal.

    Args:
        length: queries L.
        radius: keys on each side.
        dilation: distance between neighbouring keys.
        keys: keys S; None: L.
    """
    rows, cols = _shape(length, keys)
    radius = check_integer("radius", radius, 0, _NOT_NEGATIVE)
    dilation = check_integer("dilation", dilation)
    position = torch.arange(rows, device="cpu")
    # The keys lie at distances k x dilation, k from first to last, both clipped to the sequence.
    first = -torch.div(position, dilation, rounding_mode="floor").clamp(max=radius)
    last = torch.div(cols - 1 - position, dilation, rounding_mode="floor").clamp(max=radius)
    return _runs(position + dilation * first, (last - first + 1).clamp(min=0), dilation, cols)


def dilated(length: int, segment: int, dilation: int) -> SparseGraph:
    """Tokens of one segment attend to each other if their distance is a multiple of `dilation`.

    The dilated attention of LongNet (Ding et al. 2023), with every offset inside a segment. The dilated
    sliding window is `window(length, radius, dilation)`.

    Args:
        length: tokens L.
        segment: tokens of a segment; the last segment may be shorter.
        dilation: distance between neighbouring keys.
    """
    length = _length("length", length)
    segment, dilation = check_integer("segment", segment), check_integer("dilation", dilation)
    position = torch.arange(length, device="cpu")
    begin = position - position % segment
    end = (begin + segment).clamp(max=length)
    start = begin + (position - begin) % dilation
    return _runs(start, torch.div(end - start - 1, dilation, rounding_mode="floor") + 1, dilation, length)


def causal(length: int, keys: int | None = None) -> SparseGraph:
    """Query i attends to keys 0 to i: half of all pairs.

    To make another pattern causal, pass `is_causal=True` to `gnnsparse.attention`.

    Args:
        length: queries L.
        keys: keys S; None: L.
    """
    rows, cols = _shape(length, keys)
    last = torch.arange(1, rows + 1, device="cpu")
    return _runs(torch.zeros_like(last), last.clamp(max=cols), 1, cols)


def global_tokens(length: int, tokens: int | list[int] | torch.Tensor) -> SparseGraph:
    """Some tokens attend to all tokens, and all tokens to them (Longformer's global attention).

    Args:
        length: tokens L.
        tokens: an integer n, which stands for the first n tokens; or positions, a list or an integer tensor.

    Raises:
        TypeError: an argument is of another type.
        ValueError: a number or a position is out of range.
    """
    length = _length("length", length)
    chosen = _positions(tokens, length)
    everyone = torch.arange(length, device="cpu")
    others = torch.ones(length, dtype=torch.bool, device="cpu")
    others[chosen] = False
    rest = others.nonzero().flatten()
    row = torch.cat([chosen.repeat_interleave(length), rest.repeat_interleave(chosen.numel())])
    col = torch.cat([everyone.repeat(chosen.numel()), chosen.repeat(rest.numel())])
    return _from_coo(row, col, length, length)


def _positions(tokens: Any, length: int) -> torch.Tensor:
    accepted = f"a count up to {length}, or positions below it"
    if isinstance(tokens, bool) or not isinstance(tokens, (int, list, tuple, torch.Tensor)):
        bad_type("tokens", tokens, accepted)
    if isinstance(tokens, int):
        if not 0 <= tokens <= length:
            bad_value("tokens", f"got {tokens}; accepted: {accepted}")
        return torch.arange(tokens, device="cpu")
    if not isinstance(tokens, torch.Tensor):
        tokens = torch.from_numpy(check_array("tokens", tokens, accepted))
    if tokens.layout != torch.strided or (tokens.numel() and tokens.dtype not in _INTEGERS):
        bad_type("tokens", tokens, accepted)
    given = check_device("tokens", tokens).flatten()
    given = given.to(device="cpu", dtype=torch.int64)
    if given.numel() and not 0 <= int(given.min()) <= int(given.max()) < length:
        bad_value("tokens", f"runs from {int(given.min())} to {int(given.max())}; accepted: {accepted}")
    return given.unique()


def random(length: int, per_row: int, seed: int, keys: int | None = None) -> SparseGraph:
    """Each query attends to `per_row` different keys, drawn uniformly.

    Args:
        length: queries L.
        per_row: keys of each query, at most S.
        seed: seed of the random draw, 0 to 2^63 - 1.
        keys: keys S; None: L.
    """
    rows, cols = _shape(length, keys)
    check_integer("per_row", per_row, 0, _NOT_NEGATIVE)
    if per_row > cols:
        bad_value("per_row", f"got {per_row}; accepted: at most {cols}, the number of keys")
    return _from_sets(_random_columns(rows, cols, per_row, _generator(seed)), rows, cols)


def _from_sets(columns: torch.Tensor, rows: int, cols: int) -> SparseGraph:
    """Make the pattern whose row i holds columns[i], for ascending columns [rows, per_row]."""
    indptr = torch.arange(rows + 1, device="cpu") * columns.shape[1]
    return SparseGraph(Csr(indptr, columns.flatten().to(torch.int32), cols))


def expander(nodes: int, degree: int, *, seed: int) -> SparseGraph:
    """Each node attends to `degree` others in a random regular graph, and they to it (Exphormer).

    The graph is symmetric, without self-loops, and connected from degree 2 on. From degree 3 on it is very
    likely an expander: all eigenvalues but the first, which is the degree, are near 2 sqrt(degree - 1) or
    below, so that a few layers bring what one node knows to all (Shirzad et al. 2023, "Exphormer: Sparse
    Transformers for Graphs", section 4). It is a union of random Hamiltonian cycles (Friedman 2003), and
    beyond nodes / 2 neighbours what a union of them leaves out.

    Args:
        nodes: nodes N; N x degree must be even.
        degree: neighbours of each node, below N.
        seed: seed of the random draw, 0 to 2^63 - 1.

    Raises:
        TypeError: an argument is no integer.
        ValueError: an argument is out of range, or both numbers are odd.
    """
    nodes, generator = _length("nodes", nodes), _generator(seed)
    most = max(nodes - 1, 0)
    if check_integer("degree", degree, 0, _NOT_NEGATIVE) > most:
        bad_value("degree", f"got {degree}; accepted: at most {most}, the number of other nodes")
    if nodes * degree % 2:
        bad_value("degree", f"got {degree}; accepted: an even number, as there are {nodes} nodes")
    dense = 2 * degree > nodes
    edges = _regular_graph(nodes, most - degree if dense else degree, generator)
    row, col = torch.cat([edges, edges.flip(1)]).unbind(1)
    if not dense:
        return _from_coo(row, col, nodes, nodes)
    each = torch.arange(nodes, device="cpu")
    left_out = (torch.cat([row, each]) * nodes + torch.cat([col, each])).sort().values % nodes
    return _from_sets(_other_columns(left_out.reshape(nodes, nodes - degree), nodes), nodes, nodes)


def vector_wise(
    length: int, sparsity: float, vector: int = 8, *, seed: int, keys: int | None = None
) -> SparseGraph:
    """All rows in a strip of `vector` rows attend to one set of random keys (vector-wise sparsity).

    The number of keys is (1 - sparsity) S, rounded, in every strip. SSpMM measures vector-wise sparse
    attention on this pattern, with vectors of 8 or 16 rows.

    Args:
        length: queries L; the last strip may have fewer rows.
        sparsity: fraction of the elements that are left out, in [0, 1].
        vector: rows of a strip.
        seed: seed of the random draw, 0 to 2^63 - 1.
        keys: keys S; None: L.

    Raises:
        TypeError: an argument is of another type.
        ValueError: an argument is out of range.
    """
    rows, cols = _shape(length, keys)
    vector = check_integer("vector", vector)
    if not 0 <= check_number("sparsity", sparsity, "a number in [0, 1]") <= 1:
        bad_value("sparsity", f"got {sparsity}; accepted: a number in [0, 1]")
    strips = -(-rows // vector)
    sets = _random_columns(strips, cols, round((1 - sparsity) * cols), _generator(seed))
    return _from_sets(sets[torch.arange(rows, device="cpu") // vector], rows, cols)


def block(blocks: torch.Tensor, size: int, length: int | None = None, keys: int | None = None) -> SparseGraph:
    """Queries attend to keys in whole blocks of `size` x `size` elements.

    Args:
        blocks: bool [block rows, block columns], True for the blocks that are kept.
        size: rows and columns of a block.
        length: queries L, if the last block row is cut; None: it is whole.
        keys: keys S, if the last block column is cut; None: it is whole.

    Raises:
        TypeError: `blocks` is not a matrix of bool.
        ValueError: a size is out of range or does not go with the number of blocks.
    """
    check_tensor("blocks", blocks, dtypes=(torch.bool,), shape=(None, None))
    size = check_integer("size", size)
    sides = []
    for name, value, count in (("length", length, blocks.shape[0]), ("keys", keys, blocks.shape[1])):
        most = count * size
        sides.append(_length(name, most if value is None else value))
        if -(-sides[-1] // size) != count:
            accepted = f"{max(most - size + 1, 0)} to {most} with {count} blocks of {size}"
            bad_value(name, f"got {value}; accepted: {accepted}")
    return _expand(from_dense(blocks), size, *sides)


def _expand(blocks: SparseGraph, size: int, rows: int, cols: int) -> SparseGraph:
    """Make the pattern that holds all elements of the blocks, the nonzeros of a matrix of blocks."""
    begin = blocks.csr.indices.long() * size
    line = _runs(begin, (cols - begin).clamp(max=size), 1, cols)  # its row b holds the columns of block b
    # One row for each block row, which each of the `size` rows then copies.
    block_rows = Csr(line.csr.indptr[blocks.csr.indptr], line.csr.indices, cols)
    return SparseGraph(block_rows.select_rows(torch.arange(rows, device="cpu") // size)[0])


def bigbird(
    length: int,
    block_size: int = 64,
    window_blocks: int = 3,
    random_blocks: int = 3,
    global_blocks: int = 2,
    *,
    seed: int,
) -> SparseGraph:
    """The pattern of BigBird (Zaheer et al. 2020): window, random and global blocks.

    Args:
        length: tokens L; the last block may be cut.
        block_size: tokens of a block.
        window_blocks: blocks that a block attends to around itself, itself included: an odd number.
        random_blocks: random blocks that a block attends to, reduced to the number of blocks if there are
            fewer; they may coincide with window or global blocks.
        global_blocks: the first `global_blocks` blocks attend to all blocks, and all blocks to them.
        seed: seed of the random blocks, 0 to 2^63 - 1.
    """
    length, block_size = _length("length", length), check_integer("block_size", block_size)
    if check_integer("window_blocks", window_blocks) % 2 == 0:
        bad_value("window_blocks", f"got {window_blocks}; accepted: an odd number")
    check_integer("random_blocks", random_blocks, 0, _NOT_NEGATIVE)
    check_integer("global_blocks", global_blocks, 0, _NOT_NEGATIVE)
    count = -(-length // block_size)
    parts = [
        window(count, window_blocks // 2),
        random(count, min(random_blocks, count), seed),
        global_tokens(count, min(global_blocks, count)),
    ]
    return _expand(union(*parts), block_size, length, length)


def from_edges(edges: Any, num_nodes: int | tuple[int, int] | None = None) -> SparseGraph:
    """Make a pattern of an edge list: edge e lets query `edges[1, e]` attend to key `edges[0, e]`.

    Args:
        edges: int32 or int64 [2, E], keys over queries, as PyG's `edge_index`; repeats are merged.
        num_nodes: tokens, or (S keys, L queries); None: one more than the largest index.

    Raises:
        TypeError: `edges` is of another type or dtype.
        ValueError: its shape is wrong, or an index is negative or not below the number of nodes.
    """
    return SparseGraph(SparseGraph.from_edge_index(edges, num_nodes).csr)


def from_dense(mask: torch.Tensor) -> SparseGraph:
    """Make a pattern of a boolean matrix.

    Args:
        mask: bool [L, S], True where query i attends to key j.

    Raises:
        TypeError: `mask` is no dense tensor of bool.
        ValueError: `mask` does not have two dimensions, or is neither on the CPU nor on a GPU.
    """
    check_device("mask", check_tensor("mask", mask, dtypes=(torch.bool,), shape=(None, None)))
    columns = mask.nonzero()[:, 1].to(torch.int32)
    indptr = torch.nn.functional.pad(mask.sum(dim=1).cumsum(0), (1, 0))
    return SparseGraph(Csr(indptr, columns, mask.shape[1]))


def union(*graphs: SparseGraph) -> SparseGraph:
    """Return the pattern of the edges that at least one of the graphs has.

    Raises:
        TypeError: an argument is no SparseGraph.
        ValueError: no graph is given, or their shapes or devices differ.
    """
    return SparseGraph(_stacked(graphs)[0])


def intersection(*graphs: SparseGraph) -> SparseGraph:
    """Return the pattern of the edges that all graphs have.

    Raises:
        TypeError: an argument is no SparseGraph.
        ValueError: no graph is given, or their shapes or devices differ.
    """
    csr, nnz_index = _stacked(graphs)
    kept = torch.bincount(nnz_index, minlength=csr.nnz) == len(graphs)
    before = torch.nn.functional.pad(kept.cumsum(0), (1, 0))
    return SparseGraph(Csr(before[csr.indptr], csr.indices[kept], csr.cols))


def _stacked(graphs: tuple[SparseGraph, ...]) -> tuple[Csr, torch.Tensor]:
    """Merge the edges of all graphs; also returns for each edge of each graph the index of its nonzero."""
    if not graphs:
        bad_value("graphs", "there are none; accepted: one or more SparseGraphs")
    for graph in graphs:
        if not isinstance(graph, SparseGraph):
            bad_type("graphs", graph, "SparseGraphs")
        shape, first = (graph.num_rows, graph.num_cols), (graphs[0].num_rows, graphs[0].num_cols)
        if shape != first or graph.device != graphs[0].device:
            bad_value("graphs", f"one is {shape} on {graph.device}, another {first} on {graphs[0].device}")
    row = torch.cat([graph.csr.row_index() for graph in graphs])
    col = torch.cat([graph.csr.indices.long() for graph in graphs])
    return coo_to_csr(row, col, graphs[0].num_rows, graphs[0].num_cols)


#: Patterns that a configuration can name; the first argument of each is the length of the sequence.
PATTERNS: dict[str, Callable[..., SparseGraph]] = {
    pattern.__name__: pattern
    for pattern in (bigbird, dilated, expander, full, global_tokens, random, vector_wise, window)
}


def _random_columns(rows: int, cols: int, count: int, generator: torch.Generator) -> torch.Tensor:
    """Draw `count` of the columns for each row, every set of them with equal probability, ascending.

    In each round a row draws as many columns as it lacks. No round can draw too many, so the distribution is
    that of drawing one column at a time.
    """
    if 2 * count > cols:  # fewer columns are left out than kept, so drawing those takes fewer rounds
        return _other_columns(_random_columns(rows, cols, cols - count, generator), cols)
    keys = torch.empty(0, dtype=torch.int64, device="cpu")  # row x cols + column: below 2^62
    lacking = torch.full((rows,), count, device="cpu")
    while (total := int(lacking.sum())) > 0:
        row = torch.repeat_interleave(torch.arange(rows, device="cpu"), lacking)
        drawn = torch.randint(cols, (total,), generator=generator, device="cpu")
        keys = torch.cat([keys, row * cols + drawn]).unique()
        lacking = count - torch.bincount(keys.div(max(cols, 1), rounding_mode="floor"), minlength=rows)
    return (keys % max(cols, 1)).reshape(rows, count)


def _other_columns(columns: torch.Tensor, cols: int) -> torch.Tensor:
    """Return the columns that rows do not hold, of those that they hold, [rows, count]; both ascending."""
    rows, count = columns.shape
    # The k-th column that a row does not hold is k plus the number of columns that it holds before that one.
    shifted = columns - torch.arange(count, device="cpu")
    kept = torch.arange(cols - count, device="cpu").repeat(rows, 1)
    return kept + torch.searchsorted(shifted, kept, right=True)


def _regular_graph(nodes: int, degree: int, generator: torch.Generator) -> torch.Tensor:
    """Draw a graph in which every node has `degree` neighbours, without self-loops and repeated edges.

    It is the union of degree / 2 random Hamiltonian cycles, and for an odd degree of a perfect matching,
    every other edge of one more cycle. For unions of random cycles Friedman ("A proof of Alon's second
    eigenvalue conjecture", 2003) proves that all eigenvalues but the first are at most 2 sqrt(degree - 1) +
    epsilon with a probability that tends to 1 as the number of nodes grows. His cycles may share edges; here
    the few edges that a cycle shares with earlier ones are exchanged. The degree is at most nodes / 2.

    Returns:
        int64 [nodes * degree / 2, 2], the edges; each is there once, the smaller node first.
    """
    taken = torch.empty(0, dtype=torch.int64, device="cpu")  # numbers of edges, ascending
    for count in range(0, degree, 2):
        cycle = _without(taken, torch.randperm(nodes, generator=generator, device="cpu"), generator)
        edges = _numbers(cycle, cycle.roll(-1), nodes)
        if degree - count == 1:
            edges = edges[::2]
        taken = torch.cat([taken, edges]).sort().values
    return torch.stack([taken // max(nodes, 1), taken % max(nodes, 1)], dim=1)


def _numbers(a: torch.Tensor, b: torch.Tensor, nodes: int) -> torch.Tensor:
    """Return the numbers of edges, the same in both directions: below 2^62."""
    return torch.minimum(a, b) * nodes + torch.maximum(a, b)


def _without(taken: torch.Tensor, cycle: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Change a Hamiltonian cycle until it has none of the edges in `taken`.

    It is the algorithm of Palmer ("The hamiltonicity of simple graphs with large degree", 1997). Where the
    cycle has a forbidden edge, a part that begins behind it is turned around, such that both edges that this
    makes are allowed, so that every turn leaves fewer forbidden edges. By Ore's theorem there is such a part
    if each node may be joined to at least half of the nodes, as it is for degrees up to nodes / 2.
    """
    nodes = cycle.numel()
    while (shared := are_in(taken, _numbers(cycle, cycle.roll(-1), nodes)).nonzero()).numel():
        cycle = cycle.roll(-1 - int(shared[0]))  # the forbidden edge joins the last node and the first
        ends, next_ones = cycle[:-1], cycle[1:]  # of a part that begins with the first node
        forbidden = are_in(taken, _numbers(cycle[-1], ends, nodes))
        forbidden |= are_in(taken, _numbers(cycle[0], next_ones, nodes))
        allowed = (~forbidden).nonzero().flatten()
        drawn = torch.randint(allowed.numel(), (), generator=generator, device="cpu")
        length = int(allowed[drawn]) + 1
        cycle = torch.cat([cycle[:length].flip(0), cycle[length:]])
    return cycle
