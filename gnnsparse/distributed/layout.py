"""The matrices of a rank, made of its shard: all of its columns in one, or own columns and others apart."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from gnnsparse.distributed.shard import Shard
from gnnsparse.formats.csr import Csr, coo_to_csr
from gnnsparse.precision import Precision
from gnnsparse.preprocess.normalize import Weighted
from gnnsparse.preprocess.prepare import Prepared, Recipe, assemble, prepare_weighted, with_format
from gnnsparse.runtime.functorch import outside
from gnnsparse.sparse.graph import SparseGraph
from gnnsparse.sparse.operand import SparseOperand
from gnnsparse.sparse.oriented import Oriented

__all__ = ["Layout", "global_columns"]


def global_columns(shard: Shard) -> torch.Tensor:
    """Returns the node of each column of a shard in the new numbering, int64 [rows + halo]."""
    start = shard.facts.starts[shard.facts.rank]
    own = torch.arange(start, start + shard.facts.rows, dtype=torch.int64, device="cpu")
    return torch.cat([own, shard.halo])


def _gathered_columns(shard: Shard) -> torch.Tensor:
    """Returns the column of a GatherExchange for each column of a shard, int64 [rows + halo]."""
    facts, nodes = shard.facts, global_columns(shard)
    starts = torch.tensor(facts.starts, dtype=torch.int64, device="cpu")
    # The last range that begins at or before a node: empty ranges before it begin there too.
    owner = torch.searchsorted(starts, nodes, right=True) - 1
    owner = owner.clamp(max=facts.ranks - 1)
    return owner * facts.most_rows + (nodes - starts[owner])


@dataclass(frozen=True, eq=False)
class Layout:
    """How the columns of a shard are laid out on a rank.

    Attributes:
        shard: the shard.
        gathered: False: own columns and then those of the halo; True: those of a GatherExchange.
        precision: precision of the operands.
        format: format of the operands, or "auto".
        device: device of the operands.
    """

    shard: Shard
    gathered: bool
    precision: Precision
    format: str
    device: torch.device

    def _operand(
        self, csr: Csr, values: torch.Tensor | None, col_scale: torch.Tensor | None, transposes: bool
    ) -> SparseOperand:
        with outside():  # operands are kept
            row_scale = self.shard.row_scale
            scales = (None if scale is None else scale.to(self.device) for scale in (row_scale, col_scale))
            weights = Weighted(SparseGraph(csr, values).to(self.device), *scales)
            auto = self.format == "auto"
            recipe = Recipe(format="csr" if auto else self.format, precision=self.precision)
            prepared = prepare_weighted(weights, recipe) if transposes else _one_sided(weights, recipe)
            return SparseOperand.from_prepared(
                prepared, self.precision, self.device, auto_format=auto, cache_hit=False
            )

    def whole(self, *, transposes: bool = True) -> SparseOperand:
        """Makes the operand of all columns: [rows, rows + halo], or [rows, columns of the gather].

        Args:
            transposes: whether its transpose is needed, which takes as much time and memory as it does.
        """
        shard = self.shard
        csr, values, scale = shard.csr, shard.values, shard.col_scale
        if self.gathered:
            place = _gathered_columns(shard)
            columns = shard.facts.ranks * shard.facts.most_rows
            index = place[csr.indices.long()].int()
            csr, order = coo_to_csr(csr.row_index().int(), index, csr.rows, columns)
            if values is not None:
                values = values.new_empty(csr.nnz).index_copy_(0, order.long(), values)
            scale = _scattered(scale, place, columns)
        return self._operand(csr, values, scale, transposes)

    def own(self, *, transposes: bool = True) -> SparseOperand:
        """Makes the operand of the own columns, [rows, rows]; see `whole`."""
        shard, rows = self.shard, self.shard.facts.rows
        csr, values = _part(shard, shard.csr.indices < rows, 0, rows)
        scale = None if shard.col_scale is None else shard.col_scale[:rows]
        return self._operand(csr, values, scale, transposes)

    def others(self, *, transposes: bool = True) -> SparseOperand:
        """Makes the operand of other ranks' columns: [rows, halo], or [rows, columns of the gather]."""
        shard, rows = self.shard, self.shard.facts.rows
        scale = None if shard.col_scale is None else shard.col_scale[rows:]
        csr, values = _part(shard, shard.csr.indices >= rows, rows, shard.halo.numel())
        if self.gathered:
            place = _gathered_columns(shard)[rows:]
            columns = shard.facts.ranks * shard.facts.most_rows
            # Places ascend with the nodes, so that columns ascend in each row as before.
            csr = Csr(csr.indptr, place[csr.indices.long()].int(), columns)
            scale = _scattered(scale, place, columns)
        return self._operand(csr, values, scale, transposes)


def _one_sided(weights: Weighted, recipe: Recipe) -> Prepared:
    """Prepares a matrix by which nothing but products are computed: its transpose is left empty."""
    graph = weights.graph
    csr, device = graph.csr, graph.device
    matrix = Oriented(csr, None, None, graph.values, None, weights.row_scale, weights.col_scale)
    spec = recipe.spec(graph.nnz / max(graph.num_rows * graph.num_cols, 1))
    none = torch.zeros(0, dtype=torch.int32, device=device)
    empty = Csr(torch.zeros(csr.cols + 1, dtype=torch.int64, device=device), none, csr.rows)
    return assemble(with_format(matrix, recipe.precision, spec), empty, none)


def _scattered(scale: torch.Tensor | None, place: torch.Tensor, columns: int) -> torch.Tensor | None:
    return None if scale is None else scale.new_zeros(columns).index_copy_(0, place, scale)


def _part(shard: Shard, taken: torch.Tensor, first: int, columns: int) -> tuple[Csr, torch.Tensor | None]:
    """Returns some columns of a shard, numbered from `first` on, and their values."""
    before = torch.zeros(taken.numel() + 1, dtype=torch.int64, device="cpu")
    torch.cumsum(taken, 0, out=before[1:])
    csr = Csr(before[shard.csr.indptr], shard.csr.indices[taken] - first, columns)
    return csr, None if shard.values is None else shard.values[taken]
