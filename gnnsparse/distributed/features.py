"""Operations in which each rank has the whole matrix and multiplies it by a slice of the features."""

from __future__ import annotations

from typing import Any, NoReturn

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812

from gnnsparse.distributed.exchange import FeatureExchange
from gnnsparse.distributed.functions import to_features, to_rows
from gnnsparse.distributed.rows import refuse_plan
from gnnsparse.errors import bad_value
from gnnsparse.ops import attention, graph_attention, spmm
from gnnsparse.sparse.operand import SparseOperand

__all__ = ["FeatureOperations"]


class FeatureOperations:
    """The operations of gnnsparse by all-to-all exchanges of rows against features.

    Args:
        whole: the operand of the whole matrix, in the numbering of the ranks.
        sizes: number of rows of each rank.
        rank: this rank.
        group: the ranks.
    """

    def __init__(
        self, whole: SparseOperand, sizes: tuple[int, ...], rank: int, group: dist.ProcessGroup | None
    ) -> None:
        self.whole, self._ranks, self._rank = whole, len(sizes), rank
        self._exchange = FeatureExchange(sizes, rank, group)

    def spmm(
        self,
        a: SparseOperand,
        x: torch.Tensor,
        values: torch.Tensor | None,
        reduce: str,
        impl: str,
        plan: Any,
    ) -> torch.Tensor:
        """Computes the own rows of A x; `gnnsparse.spmm` documents the arguments, and has checked x."""
        refuse_plan(plan)
        if values is not None:
            self._refuse("values")
        if x.dim() == 3:
            return self.spmm(a, x.flatten(1), None, reduce, impl, plan).unflatten(1, x.shape[1:])
        width = x.shape[1]
        padded = F.pad(x, (0, -width % self._ranks))
        y = spmm(self.whole, to_features(padded, self._exchange), reduce=reduce, impl=impl)
        return to_rows(y, self._exchange)[:, :width]

    def sddmm(self, a: SparseOperand, q: Any, k: Any, impl: str, plan: Any) -> torch.Tensor:
        """Refuses: a sum over features would have to travel for each nonzero."""
        self._refuse("sddmm")

    def edge_softmax(self, a: SparseOperand, scores: Any, impl: str) -> torch.Tensor:
        """Refuses: no rank has scores of its own rows."""
        self._refuse("edge_softmax")

    def attention(
        self, a: SparseOperand, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, options: dict[str, Any]
    ) -> Any:
        """Computes attention of the own nodes, each rank for a share of the heads [..., heads, L, D]."""
        refuse_plan(options.pop("plan"))
        self._check_terms(options, ("bias",))
        if not all(isinstance(x, torch.Tensor) and x.dim() == 3 for x in (q, k, v)):
            bad_value("q", f"has no heads to divide among {self._ranks} ranks; accepted: {_INSTEAD}")
        heads_last = [x.transpose(0, 1) for x in (q, k, v)]
        q, k, v = (self._by_heads(name, x).transpose(0, 1) for name, x in zip("qkv", heads_last, strict=True))
        out = attention(self.whole, q, k, v, **options)
        return to_rows(out.transpose(0, 1), self._exchange).transpose(0, 1)

    def graph_attention(
        self, a: SparseOperand, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, options: dict[str, Any]
    ) -> Any:
        """Computes attention of the own nodes, each rank for a share of the heads."""
        self._check_terms(options, ("bias", "edge_features", "gate", "edge_weight", "key_padding_mask"))
        heads = v.shape[1] if isinstance(v, torch.Tensor) and v.dim() == 3 else 0
        q, k, v = (self._by_heads(name, x) for name, x in zip("qkv", (q, k, v), strict=True))
        mine = slice(self._rank * v.shape[1], (self._rank + 1) * v.shape[1])
        for name in ("att", "scale"):
            if isinstance(options[name], torch.Tensor) and options[name].shape[:1] == (heads,):
                options[name] = options[name][mine]
        return to_rows(graph_attention(self.whole, q, k, v, **options), self._exchange)

    def _by_heads(self, name: str, x: Any) -> torch.Tensor:
        """Returns all rows of this rank's heads, of the own rows of all heads [rows, heads, ...]."""
        if not isinstance(x, torch.Tensor) or x.dim() < 2 or x.shape[1] == 0 or x.shape[1] % self._ranks:
            has = f"{x.shape[1]} heads" if isinstance(x, torch.Tensor) and x.dim() > 1 else "no heads"
            bad_value(name, f"has {has} to divide among {self._ranks} ranks; accepted: {_INSTEAD}")
        return to_features(x, self._exchange)

    def _check_terms(self, options: dict[str, Any], terms: tuple[str, ...]) -> None:
        if options["is_causal"]:
            bad_value("is_causal", "got True with an operand of several ranks; accepted: False")
        if options["return_weights"]:
            self._refuse("return_weights")
        for name in terms:
            if options[name] is not None:
                self._refuse(name)

    def _refuse(self, name: str) -> NoReturn:
        bad_value(name, f"edge values can't be divided by features; accepted: {_INSTEAD}")


_INSTEAD = "a number of heads that the ranks divide, or an operand with way='halo' or 'gather'"
