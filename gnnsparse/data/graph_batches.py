"""Batches of graphs: block-diagonal matrices, put together from arrays by offsets, without sorting.

A batch of small graphs takes about as many operations on arrays as a large one. On a GPU they take the host
longer than the device, so that all batches of an epoch, if they are small, are packed at once.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from gnnsparse.data.datasets import check_graph_ptr
from gnnsparse.errors import bad_type, bad_value, check_integer, check_tensor
from gnnsparse.formats.csr import Csr, PaddedCsr, index_dtype
from gnnsparse.plan import CsrPlan, Plan, choose_plan
from gnnsparse.runtime.functorch import runs_outside
from gnnsparse.runtime.padding import Padding
from gnnsparse.sparse.graph import SparseGraph
from gnnsparse.sparse.kernel_cache import KernelCache, Product
from gnnsparse.sparse.operand import SparseOperand
from gnnsparse.sparse.prepared import Prepared, assemble

#: Bytes that arrays of kernels have to be aligned to.
_ALIGNMENT = 16


class BatchPlans:
    """The plans of one orientation of all batches on a GPU, chosen when the first needs them.

    Rows of batches have few nonzeros, at most `longest_row`, and batches differ in size alone. A plan whose
    rows are not split and not grouped needs nothing of a batch that the host would have to wait for.
    """

    def __init__(self, longest_row: int) -> None:
        self.longest_row = longest_row
        self._found: dict[Product, Plan] = {}

    def __call__(self, kernels: KernelCache, product: Product) -> Plan:
        """Return the plan of a product, as the attribute `tuner` of a KernelCache."""
        if product not in self._found:
            plan = choose_plan(kernels.problem(product))
            if isinstance(plan, CsrPlan):
                limit = kernels.row_limit(plan.row_limit)
                if self.longest_row <= limit:
                    plan = replace(plan, group=0, row_limit=limit, narrow=False)
            self._found[product] = plan
        return self._found[product]


class _PackedBatches:
    """Chosen blocks of a block-diagonal matrix, laid one after another and divided among batches of `sizes`
    blocks.

    Indices of nodes and of nonzeros are those in the batch. All index arithmetic is on the device, with sizes
    that are known on the CPU, so that nothing waits for a GPU. `nodes` and `edges`, int64 [blocks + 1] on the
    CPU, are the first node and the first nonzero of each block of the whole matrix, and the end; `chosen`,
    int64 [k] on the CPU, are the blocks of one batch after another.
    """

    def __init__(
        self,
        nodes: torch.Tensor,
        edges: torch.Tensor,
        chosen: torch.Tensor,
        sizes: Sequence[int],
        device: torch.device,
    ) -> None:
        counts = torch.tensor(sizes, dtype=torch.int64, device="cpu")
        ends = counts.cumsum(0)
        batch = torch.repeat_interleave(counts)  # of each block
        first = ends - counts
        node_begin, node_count, node_start = _ranges(nodes, chosen)
        edge_begin, edge_count, edge_start = _ranges(edges, chosen)
        # The offsets of a batch end with one more, which is that behind the last row of its last block.
        row_count = node_count.clone()
        row_count[ends - 1] += 1
        row_start = row_count.cumsum(0) - row_count
        own_nodes, own_edges = (start - start[first][batch] for start in (node_start, edge_start))
        firsts = torch.empty(chosen.numel() + counts.numel(), dtype=torch.int64, device="cpu")
        at = torch.arange(chosen.numel(), dtype=torch.int64, device="cpu") + batch
        firsts[at] = own_nodes
        firsts[at[ends - 1] + 1] = own_nodes[ends - 1] + node_count[ends - 1]
        arrays = (
            node_count, row_count, edge_count,
            node_begin - node_start, node_begin - row_start, edge_begin - edge_start,
            node_begin - own_nodes, edge_begin - own_edges, firsts,
        )  # fmt: skip
        moved = torch.cat(arrays).to(device, non_blocking=True).split([a.numel() for a in arrays])
        kinds = ("node", "row", "edge")
        self._counts = dict(zip(kinds, moved[:3], strict=True))
        self._node_shift, self._edge_shift, pointers = moved[6:]
        # How many nodes, offsets, nonzeros and blocks each batch has.
        totals = (part.cumsum(0)[ends - 1].tolist() for part in (node_count, row_count, edge_count))
        sums = ([after - before for before, after in itertools.pairwise([0, *total])] for total in totals)
        self._of_batch = dict(zip(kinds, sums, strict=True))
        #: The places in the whole.
        self._at = {
            kind: torch.arange(sum(self._of_batch[kind]), dtype=torch.int64, device=device)
            + self._expand(kind, shift)
            for kind, shift in zip(kinds, moved[3:6], strict=True)
        }
        #: Of each batch the rows and the nonzeros of the whole matrix, and the first node of each block, and
        #: the end.
        self.nodes = self._at["node"].split(self._of_batch["node"])
        self.edges = self._at["edge"].split(self._of_batch["edge"])
        self.pointers = pointers.split([size + 1 for size in sizes])

    def _expand(self, kind: str, of_block: torch.Tensor) -> torch.Tensor:
        """Return for each node, offset or nonzero what its block has."""
        total = sum(self._of_batch[kind])
        return torch.repeat_interleave(of_block, self._counts[kind], output_size=total)

    def gathered(self, kind: str, array: torch.Tensor | None) -> list[torch.Tensor] | list[None]:
        """Gather what each "node" or "edge" of the whole has for each batch; None for each: there is none."""
        if array is None:
            return [None] * len(self.nodes)
        return [_aligned(part) for part in array[self._at[kind]].split(self._of_batch[kind])]

    def structures(self, csr: Csr) -> list[Csr]:
        """Gather the structure of each batch, in the orientation of `csr`."""
        offsets = csr.indptr[self._at["row"]] - self._expand("row", self._edge_shift)
        columns = (csr.indices[self._at["edge"]] - self._expand("edge", self._node_shift)).to(torch.int32)
        parts = offsets.split(self._of_batch["row"]), columns.split(self._of_batch["edge"])
        return [Csr(o, _aligned(c), o.numel() - 1) for o, c in zip(*parts, strict=True)]

    def indices(self, index: torch.Tensor) -> list[torch.Tensor]:
        """Gather indices of nonzeros [nnz], such as those of the transpose, for each batch."""
        found = index[self._at["edge"]] - self._expand("edge", self._edge_shift)
        parts = found.split(self._of_batch["edge"])
        return [_aligned(part.to(index_dtype(part.numel()))) for part in parts]


def _ranges(bounds: torch.Tensor, chosen: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return where each chosen block begins in the whole, its length, and where it begins when packed."""
    begin = bounds[chosen]
    count = bounds[chosen + 1] - begin
    return begin, count, count.cumsum(0) - count


def _aligned(part: torch.Tensor) -> torch.Tensor:
    """Return the part of an array, copied if kernels, which read several elements at a time, could not."""
    return part if part.data_ptr() % _ALIGNMENT == 0 else part.clone()


class _PaddingSource:
    """The arrays of a whole operand, and an empty block behind the last, which padding reads."""

    def __init__(self, whole: SparseOperand, nodes: torch.Tensor, edges: torch.Tensor) -> None:
        self.whole, prepared, device = whole, whole.prepared, whole.device
        self.num_blocks = nodes.numel() - 1
        self.num_nodes, self.num_edges = int(nodes[-1]), int(edges[-1])
        self.nodes, self.edges = (_with_end(t, int(t[-1])).to(device) for t in (nodes, edges))
        # Of the matrix, and of its transpose unless that has the same arrays.
        structures = {id(matrix.csr): matrix.csr for matrix in (prepared.forward, prepared.backward)}
        self.structures = [(c.indptr, _with_end(c.indices, self.num_nodes)) for c in structures.values()]
        self.index = _with_end(prepared.transpose_map.to(device), 0)
        matrix = prepared.forward
        self.values, self.row_scale, self.col_scale = (
            None if t is None else _with_end(t, 0)
            for t in (matrix.given_values, matrix.given_row_scale, matrix.given_col_scale)
        )


def _with_end(array: torch.Tensor, last: int) -> torch.Tensor:
    return torch.cat([array, array.new_full((1,), last)])


class PaddedBlocks:
    """A batch of a fixed number of blocks in static buffers, the same from batch to batch.

    `assemble` writes the arrays of the blocks `chosen`, int64 [blocks + 1] with the empty block behind all
    last, by operations whose sizes do not depend on them, so that a CUDA graph can hold it. Sizes are bounds:
    nodes behind those of the blocks have no edges, and nonzeros behind those of the blocks belong to no row.

    Attributes:
        adj: the operand, nodes x nodes.
        graph_ptr: int64 [blocks + 1], the first node of each block, and the number of nodes.
        rows: int64 [nodes], the row of each node in the whole operand; of padding the number of its rows.
        edges: int64 [nnz], the number of each nonzero in the whole operand; of padding that of its nonzeros.
        padding: which rows are nodes of the blocks. `assemble` replaces it.
        edge_padding: which nonzeros are those of the blocks. `assemble` replaces it.
    """

    rows: torch.Tensor
    edges: torch.Tensor
    padding: Padding
    edge_padding: Padding

    def __init__(
        self, source: _PaddingSource, blocks: int, nodes: int, edges: int, plans: list[BatchPlans]
    ) -> None:
        if not 0 < nodes < 2**31:
            bad_value("nodes", f"got {nodes}; accepted: 1 to 2^31 - 1")
        self._source, device = source, source.whole.device
        self.chosen = torch.full((blocks + 1,), source.num_blocks, dtype=torch.int64, device=device)
        self.graph_ptr = torch.zeros(blocks + 1, dtype=torch.int64, device=device)
        self._node_places = torch.arange(nodes + 1, dtype=torch.int64, device=device)
        self._edge_places = torch.arange(edges, dtype=torch.int64, device=device)
        self.capacity = nodes - 1, edges

        def structure() -> Csr:
            offsets = torch.zeros(nodes + 1, dtype=torch.int64, device=device)
            offsets[-1] = edges  # on the CPU a native handle checks the offsets when it is made
            csr = PaddedCsr(offsets, torch.zeros(edges, dtype=torch.int32, device=device), nodes)
            assert csr.view is not None
            return csr

        def array(like: torch.Tensor | None, size: int) -> torch.Tensor | None:
            return None if like is None else like.new_zeros(size)

        self._structures = [structure() for _ in source.structures]
        self._index = torch.arange(edges, dtype=index_dtype(edges), device=device)
        scales = array(source.row_scale, nodes), array(source.col_scale, nodes)
        self._matrix = KernelCache(
            self._structures[0], None, None, array(source.values, edges), None, *scales
        )
        self._prepared = _assembled(
            source.whole.prepared, plans, self._matrix, self._structures[-1], self._index, renewable=True
        )
        for cache in self._prepared.caches:
            cache.keeps_rows_whole = True
        self.adj = SparseOperand(self._prepared)

    def assemble(self) -> None:
        """Write the arrays of the blocks in `chosen`, which have at most `capacity` nodes and nonzeros."""
        source = self._source
        node_shift, node_ends = _shifts(source.nodes, self.chosen)
        edge_shift, edge_ends = _shifts(source.edges, self.chosen)
        self.graph_ptr[1:].copy_(node_ends[:-1])
        # Padding is in the block behind the last one.
        of_node = torch.searchsorted(node_ends[:-1], self._node_places, right=True)
        of_edge = torch.searchsorted(edge_ends[:-1], self._edge_places, right=True)
        nodes = (self._node_places + node_shift[of_node]).clamp_(max=source.num_nodes)
        edges = (self._edge_places + edge_shift[of_edge]).clamp_(max=source.num_edges)
        node_edge_shift, edge_node_shift = edge_shift[of_node], node_shift[of_edge]
        for csr, (indptr, indices) in zip(self._structures, source.structures, strict=True):
            torch.sub(indptr[nodes], node_edge_shift, out=csr.indptr)
            csr.indices.copy_(indices[edges] - edge_node_shift)
        in_blocks = self._edge_places < edge_ends[-1]
        index = source.index[edges] - edge_shift[of_edge]
        self._index.copy_(torch.where(in_blocks, index, self._edge_places))
        self.rows, self.edges = nodes[:-1], edges
        for own, all_of, at in (
            (self._matrix.given_values, source.values, edges),
            (self._matrix.given_row_scale, source.row_scale, self.rows),
            (self._matrix.given_col_scale, source.col_scale, self.rows),
        ):
            if own is not None and all_of is not None:
                own.copy_(all_of[at])
        self._prepared.renew()
        self.padding = Padding(node_ends[-1], self.rows.numel())
        self.edge_padding = Padding(edge_ends[-1], edges.numel())


def _shifts(bounds: torch.Tensor, chosen: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return how far the place of each chosen block is from that in the whole, and where it ends."""
    begin, counts, start = _ranges(bounds, chosen)
    return begin - start, start + counts


def _assembled(
    whole: Prepared, plans: list[BatchPlans], forward: KernelCache, transposed: Csr, index: torch.Tensor,
    renewable: bool = False,
) -> Prepared:  # fmt: skip
    prepared = assemble(
        forward, transposed, index, whole.report, normalization=whole.normalization,
        added_loops=whole.added_loops, precision=whole.precision, one_stream=True, renewable=renewable,
    )  # fmt: skip
    for cache, own in zip(prepared.caches, plans, strict=True):
        cache.longest_row, cache.tuner = own.longest_row, own
    return prepared


@runs_outside
def block_diagonal(graphs: Sequence[SparseGraph]) -> tuple[SparseGraph, torch.Tensor]:
    """Put graphs together as the blocks on the diagonal of one matrix.

    Their arrays are in order already, so nothing is sorted: offsets and columns are shifted.

    Args:
        graphs: one or more square graphs with a node or more, on one device.

    Returns:
        The matrix, whose values are given if a graph has values; and graph_ptr, int64 [graphs + 1] on the
        CPU: graph g has the rows and columns graph_ptr[g] to graph_ptr[g + 1] - 1.

    Raises:
        TypeError: an element is no SparseGraph.
        ValueError: there is none, one is not square or empty, or they are on several devices.
    """
    graphs = list(graphs)
    for at, graph in enumerate(graphs):
        if not isinstance(graph, SparseGraph):
            bad_type(f"graphs[{at}]", graph, "a SparseGraph")
        if graph.num_rows != graph.num_cols or graph.num_rows == 0:
            shape = (graph.num_rows, graph.num_cols)
            bad_value(f"graphs[{at}]", f"has shape {shape}; accepted: a square one with a node or more")
        if graph.device != graphs[0].device:
            bad_value(f"graphs[{at}]", f"is on {graph.device}; accepted: {graphs[0].device}, as the first")
    if not graphs:
        bad_value("graphs", "is empty; accepted: one graph or more")
    nodes, edges = (
        torch.tensor([0, *sizes], dtype=torch.int64, device="cpu").cumsum(0)
        for sizes in ([g.num_rows for g in graphs], [g.nnz for g in graphs])
    )
    total = int(nodes[-1])
    if total >= 2**31:
        bad_value("graphs", f"have {total} nodes together; accepted: fewer than 2^31")
    device = graphs[0].device
    offsets = [g.csr.indptr[:-1] + edge for g, edge in zip(graphs, edges.tolist(), strict=False)]
    columns = [g.csr.indices + node for g, node in zip(graphs, nodes.tolist(), strict=False)]
    values = None
    if any(graph.values is not None for graph in graphs):
        ones = torch.ones(max(g.nnz for g in graphs), dtype=torch.float32, device=device)
        values = torch.cat([ones[: g.nnz] if g.values is None else g.values for g in graphs])
    indptr = torch.cat([*offsets, edges[-1:].to(device)])
    return SparseGraph(Csr(indptr, torch.cat(columns), total), values), nodes


@dataclass(frozen=True, eq=False)
class BlockBatch:
    """Some of the blocks of a block-diagonal operand, as an operand of their own.

    Attributes:
        adj: the operand, n x n, on the device of the whole.
        nodes: int64 [n], the row of each node in the whole operand, on the device.
        graph_ptr: int64 [blocks + 1], the first node of each block, and n, on the device.
        edges: int64 [nnz], the number of each nonzero in the whole operand, on the device.
    """

    adj: SparseOperand
    nodes: torch.Tensor
    graph_ptr: torch.Tensor
    edges: torch.Tensor


class BlockBatches:
    """Makes batches of the blocks of a prepared block-diagonal operand.

    The weights, the self-loops and the transpose of the whole operand were computed when it was prepared. A
    batch gathers them, on the operand's device, by ranges that are known on the CPU, and sorts nothing. On a
    GPU nothing waits for it: batches are made by work that is queued on the current stream, and used there.
    All batches of one GPU run by the plans that were chosen for the first.

    Args:
        operand: a square operand that was prepared with reorder="none", whose blocks are graphs.
        graph_ptr: int64 [graphs + 1], the first node of each graph, and the number of nodes.

    Raises:
        TypeError: an argument is of another type.
        ValueError: the operand has reordered rows or a format other than CSR, or `graph_ptr` is not that of
            its blocks.
    """

    @runs_outside
    def __init__(self, operand: SparseOperand, graph_ptr: torch.Tensor) -> None:
        if not isinstance(operand, SparseOperand):
            bad_type("operand", operand, "a SparseOperand, from gnnsparse.prepare")
        whole: Prepared = operand.prepared
        if whole.forward.row_ids is not None or whole.backward.row_ids is not None:
            bad_value("operand", "has reordered rows; accepted: one that was prepared with reorder='none'")
        check_graph_ptr(graph_ptr, operand.shape[0])
        self._whole, self._operand = whole, operand
        self._nodes = graph_ptr.cpu()
        sides = whole.forward, whole.backward
        offsets = [m.csr.indptr.cpu()[self._nodes] for m in sides]
        if not torch.equal(*offsets):
            bad_value("graph_ptr", "an edge joins two of its graphs; accepted: the blocks of the operand")
        self._edges = offsets[0]
        self._index = whole.transpose_map.to(operand.device)
        self._plans = [BatchPlans(int(m.csr.degrees.max()) if m.csr.rows else 0) for m in sides]
        self._source: _PaddingSource | None = None

    def __len__(self) -> int:
        return self._nodes.numel() - 1

    def elements(self, graphs: torch.Tensor) -> int:
        """Return how many nodes and nonzeros graphs, int64 [k] on the CPU, have: memory and time grow so."""
        return sum(int(counts.sum()) for counts in self.sizes(graphs))

    def sizes(self, graphs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the numbers of nodes and of nonzeros of graphs, int64 [k] each and as given, on the CPU."""
        nodes, edges = (bounds[graphs + 1] - bounds[graphs] for bounds in (self._nodes, self._edges))
        return nodes, edges

    @runs_outside
    def padded(self, graphs: int, nodes: int, edges: int) -> PaddedBlocks:
        """Return a batch of so many graphs in static buffers: more nodes than any has, and as many edges."""
        if self._source is None:
            self._source = _PaddingSource(self._operand, self._nodes, self._edges)
        # Plans of their own, whose rows are never split.
        plans = [BatchPlans(plans.longest_row) for plans in self._plans]
        return PaddedBlocks(self._source, graphs, nodes, edges, plans)

    def select(self, graphs: torch.Tensor) -> BlockBatch:
        """Return some of the graphs as a batch.

        Args:
            graphs: int64 [k] on the CPU, the numbers of the graphs, in any order, with repeats or without.

        Raises:
            TypeError: `graphs` is of another type or dtype.
            ValueError: it is empty, not on the CPU, or a graph does not exist.
        """
        (batch,) = self.split(graphs, [graphs.numel() if isinstance(graphs, torch.Tensor) else 1])
        return batch

    @runs_outside
    def split(self, graphs: torch.Tensor, sizes: Sequence[int]) -> list[BlockBatch]:
        """Return several batches, which are put together at once: they share their arrays' memory.

        Args:
            graphs: int64 [k] on the CPU, the numbers of the graphs of one batch after another.
            sizes: the number of graphs of each batch, 1 or more; k together.

        Raises:
            TypeError: an argument is of another type or dtype.
            ValueError: `graphs` is empty, not on the CPU, or has a graph that does not exist; or the sizes
                are not those of parts of it.
        """
        check_tensor("graphs", graphs, dtypes=(torch.int64,), shape=(None,), device=torch.device("cpu"))
        if graphs.numel() == 0 or int(graphs.min()) < 0 or int(graphs.max()) >= len(self):
            bad_value("graphs", f"is empty, or has numbers out of range; accepted: 0 to {len(self) - 1}")
        for size in sizes:
            check_integer("sizes", size)
        if sum(sizes) != graphs.numel():
            bad_value("sizes", f"are {sum(sizes)} together; accepted: {graphs.numel()}, as many as graphs")
        packed = _PackedBatches(self._nodes, self._edges, graphs, sizes, self._operand.device)
        forward = packed.structures(self._whole.forward.csr)
        shared = self._whole.backward.csr is self._whole.forward.csr
        backward = forward if shared else packed.structures(self._whole.backward.csr)
        indices = packed.indices(self._index)
        matrix, nodes, pointers = self._whole.forward, packed.nodes, packed.pointers
        values = packed.gathered("edge", matrix.given_values)
        scales = [packed.gathered("node", s) for s in (matrix.given_row_scale, matrix.given_col_scale)]
        found = []
        for n, (csr, transposed, index) in enumerate(zip(forward, backward, indices, strict=True)):
            own = KernelCache(csr, None, None, values[n], None, scales[0][n], scales[1][n])
            prepared = _assembled(self._whole, self._plans, own, transposed, index)
            found.append(BlockBatch(SparseOperand(prepared), nodes[n], pointers[n], packed.edges[n]))
        return found
