"""Products of the own rows of a matrix with features that other ranks have a part of."""

from __future__ import annotations

import torch

from gnnsparse.distributed.cost import Choice, slices_of
from gnnsparse.distributed.exchange import Exchange
from gnnsparse.distributed.layout import Layout
from gnnsparse.ops.spmm.into import spmm_into
from gnnsparse.runtime.device import VECTOR_BYTES
from gnnsparse.sparse.operand import SparseOperand

__all__ = ["RowProduct"]


class RowProduct:
    """The own rows of A X, of the own rows of X, for one orientation of a matrix.

    There are two ways to compute them. In one product, all columns are multiplied as soon as their features
    are there, one chunk of the features after the other. Split, the own columns are multiplied while the
    features of the others travel, and these then; their product is added to the first one. Results have the
    same bits in every run.

    Args:
        layout: the matrices of the rank.
        exchange: fetches features.
        choice: whether products are split, and in how many chunks features travel.
    """

    def __init__(self, layout: Layout, exchange: Exchange, choice: Choice) -> None:
        self._layout, self._exchange, self._choice = layout, exchange, choice
        self._made: dict[str, SparseOperand] = {}
        storage = layout.precision.storage
        # Features travel as the products round them anyway.
        self._wire = storage if storage.itemsize < 4 else None

    def _operand(self, name: str) -> SparseOperand:
        """Returns the operand "whole", "own" or "others" without its transpose, made when first needed."""
        if name not in self._made:
            self._made[name] = getattr(self._layout, name)(transposes=False)
        return self._made[name]

    def multiply(self, x: torch.Tensor) -> torch.Tensor:
        """Returns the own rows of the product, [rows, n], of the own rows of X, [rows, n]."""
        width, dtype = x.shape[1], self._wire or x.dtype
        parts = slices_of(width, dtype.itemsize, self._choice.chunks)
        begin = self._exchange.start if self._choice.split else self._exchange.start_whole
        pending = [begin(_in_vectors(x[:, part], dtype), dtype) for part in parts]
        y, split = x.new_empty(self._layout.shard.facts.rows, width), self._choice.split
        if split:
            spmm_into(self._operand("own"), x, y)
        operand = self._operand("others" if split else "whole")
        for part, transfer in zip(parts, pending, strict=True):
            of_others = transfer.wait()[:, : part.stop - part.start]
            if operand.nnz or not split:
                spmm_into(operand, of_others, y[:, part], add=split)
        return y


def _in_vectors(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Pads features, so that rows of `dtype` are whole vectors: kernels would copy all of X otherwise."""
    rest = -x.shape[1] % (VECTOR_BYTES // dtype.itemsize)
    return torch.nn.functional.pad(x, (0, rest)) if rest and x.is_cuda else x
