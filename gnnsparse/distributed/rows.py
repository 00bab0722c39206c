"""Operations on a matrix whose rows are divided among ranks, which exchange features of columns."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from gnnsparse.distributed.cost import Choice
from gnnsparse.distributed.exchange import Exchange, GatherExchange, HaloExchange
from gnnsparse.distributed.functions import extend, multiply
from gnnsparse.distributed.layout import Layout
from gnnsparse.distributed.products import RowProduct
from gnnsparse.distributed.shard import Shard
from gnnsparse.errors import bad_value, check_tensor
from gnnsparse.ops import attention, edge_softmax, graph_attention, sddmm, spmm
from gnnsparse.ops.common import FLOATS, check_features
from gnnsparse.precision import Precision
from gnnsparse.sparse.operand import SparseOperand

__all__ = ["RowOperations", "refuse_plan"]


def refuse_plan(plan: Any) -> None:
    """Raises a ValueError if a plan is given: each rank has operands of its own, with plans of their own."""
    if plan is not None:
        bad_value("plan", "goes with an operand of one process; accepted with several: None")


class RowOperations:
    """The operations of gnnsparse on the rows of one rank.

    Args:
        shard: the rows.
        choice: how ranks share products, "halo" or "gather".
        precision, format, device: of the operands.
        group: the ranks.
    """

    def __init__(
        self,
        shard: Shard,
        choice: Choice,
        precision: Precision,
        format: str,
        device: torch.device,
        group: dist.ProcessGroup | None,
    ) -> None:
        self.shard, self.precision, self.device = shard, precision, device
        self._gathered = gathered = choice.way == "gather"
        self._layout = Layout(shard, gathered, precision, format, device)

        def exchange(of: Shard) -> Exchange:
            return GatherExchange(of.facts, group) if gathered else HaloExchange(of, device, group)

        self._exchange = exchange(shard)
        self._whole: SparseOperand | None = None
        self._product = self._transposed = RowProduct(self._layout, self._exchange, choice)
        if (back := shard.transposed) is not None:
            layout = Layout(back, gathered, precision, format, device)
            self._transposed = RowProduct(layout, exchange(back), choice)

    @property
    def whole(self) -> SparseOperand:
        """The operand of all columns, whose order edge values are in."""
        if self._whole is None:
            self._whole = self._layout.whole()
        return self._whole

    @property
    def _wire(self) -> torch.dtype | None:
        """The dtype in which features travel: the products round to it anyway; None: their own."""
        storage = self.precision.storage
        return storage if storage in (torch.float16, torch.bfloat16) else None

    def multiply(self, x: torch.Tensor) -> torch.Tensor:
        """Returns the own rows of A x."""
        return self._product.multiply(x)

    def multiply_transposed(self, grad: torch.Tensor) -> torch.Tensor:
        """Returns the own rows of A^T grad, which are a product of the own rows of A^T as those of A are.

        Nothing that was computed has to travel back and be added up.
        """
        return self._transposed.multiply(grad)

    def extended(self, x: torch.Tensor) -> torch.Tensor:
        """Returns the features of the columns of `whole`, of those of the own nodes [rows, ...]."""
        return extend(x, self._exchange, has_own=self._gathered, wire=self._wire)

    def _extended_along(self, *tensors: tuple[torch.Tensor, int]) -> list[torch.Tensor]:
        """Extends several tensors in one exchange, each along its dimension of nodes."""
        flat = [x.movedim(dim, 0).flatten(1) if x.dim() > 1 else x[:, None] for x, dim in tensors]
        dtype = flat[0].dtype
        for one in flat[1:]:
            dtype = torch.promote_types(dtype, one.dtype)
        both = self.extended(torch.cat([one.to(dtype) for one in flat], dim=1))
        parts, found = both.split([one.shape[1] for one in flat], dim=1), []
        for (x, dim), part in zip(tensors, parts, strict=True):
            sizes = x.movedim(dim, 0).shape[1:]
            found.append(part.reshape(part.shape[0], *sizes).movedim(0, dim).to(x.dtype))
        return found

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
        if values is not None or reduce != "sum" or impl == "reference":
            extended = self.extended(x)
            return spmm(self.whole, extended, values, reduce=reduce, impl=impl)
        if x.dim() == 3:
            return multiply(self, x.flatten(1)).unflatten(1, x.shape[1:])
        return multiply(self, x)

    def sddmm(self, a: SparseOperand, q: torch.Tensor, k: torch.Tensor, impl: str, plan: Any) -> torch.Tensor:
        """Computes dot products at the own rows' nonzeros; `gnnsparse.sddmm` documents the arguments."""
        refuse_plan(plan)
        k = check_features("k", k, a, a.shape[1], impl)
        return sddmm(self.whole, q, self.extended(k), impl=impl)

    def edge_softmax(self, a: SparseOperand, scores: torch.Tensor, impl: str) -> torch.Tensor:
        """Computes the softmax over the own rows' nonzeros, for which nothing has to travel."""
        return edge_softmax(self.whole, scores, impl=impl)

    def attention(
        self, a: SparseOperand, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, options: dict[str, Any]
    ) -> Any:
        """Computes attention of the own nodes; `gnnsparse.attention` documents the arguments."""
        refuse_plan(options.pop("plan"))
        _refuse_causal(options)
        for name, x in (("k", k), ("v", v)):
            check_tensor(name, x, dtypes=(*FLOATS, torch.float64), device=self.device)
            if x.dim() < 2 or x.shape[-2] != a.shape[1]:
                bad_value(name, f"has shape {tuple(x.shape)}; accepted: (.., {a.shape[1]}, any) for this A")
        k, v = self._extended_along((k, -2), (v, -2))
        return attention(self.whole, q, k, v, **options)

    def graph_attention(
        self, a: SparseOperand, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, options: dict[str, Any]
    ) -> Any:
        """Computes attention of the own nodes; `gnnsparse.graph_attention` documents the arguments."""
        _refuse_causal(options)
        edge_terms = ("bias", "edge_features", "gate")
        has_terms = options["return_weights"] or any(options[name] is not None for name in edge_terms)
        if has_terms and options["edge_order"] == "coo":
            bad_value(
                "edge_order",
                "got 'coo', but a rank has a part of the edges; accepted: 'operand', its own order",
            )
        for name, x in (("k", k), ("v", v)):
            check_tensor(name, x, dtypes=(*FLOATS, torch.float64), device=self.device)
            if x.dim() < 2 or x.shape[0] != a.shape[1]:
                bad_value(name, f"has shape {tuple(x.shape)}; accepted: ({a.shape[1]}, ..) for this A")
        mask = options["key_padding_mask"]
        if mask is not None:
            check_tensor(
                "key_padding_mask", mask, dtypes=(torch.bool,), device=self.device, shape=(a.shape[1],)
            )
            options["key_padding_mask"] = self.extended(mask.float()).bool()
        k, v = self._extended_along((k, 0), (v, 0))
        return graph_attention(self.whole, q, k, v, **options)


def _refuse_causal(options: dict[str, Any]) -> None:
    if options["is_causal"]:
        bad_value("is_causal", "got True, but ranks have renumbered nodes, without an order; accepted: False")
