"""Lots: the arrays of several batches of blocks, gathered at once, of which each batch is a part.

A batch of small graphs takes about as many operations on arrays as a large one. On a GPU they take the host
longer than the device, so that all batches of an epoch, if they are small, are gathered as one lot.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

import torch

from gnnsparse.formats.csr import Csr, index_dtype
from gnnsparse.plan import CsrPlan, Plan, choose_plan
from gnnsparse.sparse.kernel_cache import KernelCache
from gnnsparse.sparse.kernel_keys import Product

__all__ = ["BatchPlans", "Lot"]

#: Bytes that arrays of kernels have to be aligned to.
_ALIGNMENT = 16


class BatchPlans:
    """The plans of one orientation of all batches on a GPU, chosen when the first needs them.

    Rows of batches have few nonzeros, and batches differ in size alone. A plan whose rows are neither cut nor
    grouped needs nothing of a batch that a GPU would have to compute, and the host to wait for.

    Args:
        longest_row: number of nonzeros of the longest row of any batch.
    """

    def __init__(self, longest_row: int) -> None:
        self.longest_row = longest_row
        self._found: dict[Product, Plan] = {}

    def __call__(self, kernels: KernelCache, product: Product) -> Plan:
        """Returns the plan of a product, as the attribute `tuner` of a KernelCache."""
        if product not in self._found:
            plan = choose_plan(kernels.problem(product))
            if isinstance(plan, CsrPlan):
                limit = kernels.row_limit(plan.row_limit)
                if self.longest_row <= limit:
                    plan = replace(plan, group=0, row_limit=limit, narrow=False)
            self._found[product] = plan
        return self._found[product]


class Lot:
    """Chosen blocks of a block-diagonal matrix, laid one after another and divided among batches.

    Indices of nodes and of nonzeros are those in the batch. All index arithmetic is on the device, with sizes
    that are known on the CPU, so that nothing waits for a GPU.

    Args:
        nodes: int64 [blocks + 1] on the CPU, the first node of each block of the whole matrix, and the end.
        edges: int64 [blocks + 1] on the CPU, the first nonzero of each block, and the end.
        chosen: int64 [k] on the CPU, the blocks of one batch after another.
        sizes: the number of blocks of each batch.
        device: the device of the matrix.
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
        node_begin, node_count, node_start = _placed(nodes, chosen)
        edge_begin, edge_count, edge_start = _placed(edges, chosen)
        # The offsets of a batch end with one more, which is that behind the last row of its last block.
        row_count = node_count.clone()
        row_count[ends - 1] += 1
        row_start = row_count.cumsum(0) - row_count
        own_nodes, own_edges = (start - start[first][batch] for start in (node_start, edge_start))
        pointers = torch.empty(chosen.numel() + counts.numel(), dtype=torch.int64, device="cpu")
        at = torch.arange(chosen.numel(), dtype=torch.int64, device="cpu") + batch
        pointers[at] = own_nodes
        pointers[at[ends - 1] + 1] = own_nodes[ends - 1] + node_count[ends - 1]
        arrays = (
            node_count, row_count, edge_count,
            node_begin - node_start, node_begin - row_start, edge_begin - edge_start,
            node_begin - own_nodes, edge_begin - own_edges, pointers,
        )  # fmt: skip
        moved = torch.cat(arrays).to(device, non_blocking=True).split([a.numel() for a in arrays])
        self._counts = dict(zip(("node", "row", "edge"), moved[:3], strict=True))
        self._node_shift, self._edge_shift, self._pointers = moved[6:]
        # How many nodes, offsets, nonzeros and blocks each batch has.
        sums = [_sums(part, ends) for part in (node_count, row_count, edge_count)]
        self._of_batch = dict(zip(("node", "row", "edge"), sums, strict=True))
        self._pointers_of_batch = [size + 1 for size in sizes]
        self._node, self._row, self._edge = (
            self._positions(kind, shift)
            for kind, shift in zip(("node", "row", "edge"), moved[3:6], strict=True)
        )

    def _expand(self, kind: str, of_block: torch.Tensor) -> torch.Tensor:
        """Returns for each node, offset or nonzero what its block has."""
        total = sum(self._of_batch[kind])
        return torch.repeat_interleave(of_block, self._counts[kind], output_size=total)

    def _positions(self, kind: str, shift: torch.Tensor) -> torch.Tensor:
        total = sum(self._of_batch[kind])
        places = torch.arange(total, dtype=torch.int64, device=shift.device)
        return places + self._expand(kind, shift)

    def nodes(self) -> list[torch.Tensor]:
        """Returns for each batch the rows of the whole matrix, int64 [nodes]."""
        return list(self._node.split(self._of_batch["node"]))

    def pointers(self) -> list[torch.Tensor]:
        """Returns for each batch the first node of each block, and the end, int64 [blocks + 1]."""
        return list(self._pointers.split(self._pointers_of_batch))

    def of_nodes(self, array: torch.Tensor) -> list[torch.Tensor]:
        """Gathers an array [nodes] of the whole matrix for each batch."""
        return [_aligned(part) for part in array[self._node].split(self._of_batch["node"])]

    def of_edges(self, array: torch.Tensor) -> list[torch.Tensor]:
        """Gathers an array [nnz] of the whole matrix for each batch."""
        return [_aligned(part) for part in array[self._edge].split(self._of_batch["edge"])]

    def structures(self, csr: Csr) -> list[Csr]:
        """Gathers the structure of each batch, in the orientation of `csr`."""
        offsets = csr.indptr[self._row] - self._expand("row", self._edge_shift)
        columns = (csr.indices[self._edge] - self._expand("edge", self._node_shift)).to(torch.int32)
        parts = offsets.split(self._of_batch["row"]), columns.split(self._of_batch["edge"])
        return [Csr(o, _aligned(c), o.numel() - 1) for o, c in zip(*parts, strict=True)]

    def indices(self, index: torch.Tensor) -> list[torch.Tensor]:
        """Gathers indices of nonzeros [nnz], such as those of the transpose, for each batch."""
        found = index[self._edge] - self._expand("edge", self._edge_shift)
        sizes = self._of_batch["edge"]
        return [_aligned(part.to(index_dtype(part.numel()))) for part in found.split(sizes)]


def _placed(bounds: torch.Tensor, chosen: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Returns where each chosen block begins in the whole, its length, and where it begins in the lot."""
    begin = bounds[chosen]
    count = bounds[chosen + 1] - begin
    return begin, count, count.cumsum(0) - count


def _sums(counts: torch.Tensor, ends: torch.Tensor) -> list[int]:
    """Returns the sums of the counts of each batch; `ends` are the numbers of blocks up to its end."""
    totals = counts.cumsum(0)[ends - 1].tolist()
    return [after - before for before, after in itertools.pairwise([0, *totals])]


def _aligned(part: torch.Tensor) -> torch.Tensor:
    """Returns the part of an array, copied if kernels, which read several elements at a time, could not."""
    return part if part.data_ptr() % _ALIGNMENT == 0 else part.clone()
