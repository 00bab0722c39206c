"""The checks of graph attention's arguments."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from gnnsparse.errors import bad_value, check_number, check_tensor
from gnnsparse.ops.common import check_fits
from gnnsparse.ops.graph_attention.edges import from_coo
from gnnsparse.runtime.functorch import settled
from gnnsparse.sparse.operand import SparseOperand

__all__ = ["SCORES", "EdgeTerms", "Given", "positive"]

#: The names of the scores.
SCORES = ("dot", "additive", "gatv2", "cosine")
_DOTS = ("dot", "cosine")


def positive(name: str, value: Any) -> float:
    """Returns `value` if it is a positive number, else raises."""
    number = check_number(name, value, "a positive number in the range of float32")
    if number <= 0:
        bad_value(name, f"got {value}; accepted: a positive number in the range of float32")
    return number


class EdgeTerms(NamedTuple):
    """What edges add to keys and values, in the operand's order.

    Attributes:
        features: [nnz, H or 1, D]; [nnz, H or 1] with additive scores; None: none, or behind a linear map.
        gate: [nnz, H or 1, D], or None.
        mapped: [nnz, d_e], the features behind a linear map, or None.
        weight: that map, [H, D, d_e].
    """

    features: torch.Tensor | None
    gate: torch.Tensor | None
    mapped: torch.Tensor | None
    weight: torch.Tensor | None


@dataclass
class Given:
    """The arguments that are checked together.

    Attributes:
        operand: the operand [L, S].
        score: the name of the score.
        dtypes: the dtypes that are accepted.
        in_coo: whether edge tensors are in the order of the edges given to `prepare`.
        heads, width, value_width: H, D and Dv, known after `nodes`.
    """

    operand: SparseOperand
    score: str
    dtypes: tuple[torch.dtype, ...]
    in_coo: bool
    heads: int = field(default=0, init=False)
    width: int = field(default=1, init=False)
    value_width: int = field(default=0, init=False)

    def _dense(self, name: str, x: Any, shape: tuple[int | None, ...]) -> torch.Tensor:
        check_tensor(name, x, dtypes=self.dtypes, device=self.operand.device, shape=shape)
        return x

    def nodes(self, q: Any, k: Any, v: Any) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Returns q, k and v if they fit the operand and one another."""
        rows, cols = self.operand.shape
        v = self._dense("v", v, (cols, None, None))
        self.heads, self.value_width = v.shape[1], v.shape[2]
        if self.heads == 0:
            bad_value("v", f"has shape {tuple(v.shape)}; accepted: at least one head")
        if self.score == "additive":
            q, k = self._dense("q", q, (rows, self.heads)), self._dense("k", k, (cols, self.heads))
        else:
            q = self._dense("q", q, (rows, self.heads, None))
            self.width = q.shape[2]
            k = self._dense("k", k, (cols, self.heads, self.width))
        for name, x in (("q", q), ("k", k), ("v", v)):
            check_fits(name, x, self.operand)
        return q, k, settled(v)

    def attention_vectors(self, att: Any) -> torch.Tensor | None:
        """Returns `att` [H, D] with "gatv2", None with other scores."""
        if (att is not None) != (self.score == "gatv2"):
            got, accepted = ("None", "a tensor [H, D]") if att is None else ("a tensor", "None")
            bad_value("att", f"got {got} with score={self.score!r}; accepted: {accepted}")
        return None if att is None else settled(self._dense("att", att, (self.heads, self.width)))

    def scale(self, scale: Any) -> float | torch.Tensor | None:
        """Returns the factor of dot products: a number, a tensor with 1 or H elements, or None."""
        if scale is not None and self.score not in _DOTS:
            bad_value("scale", f"got one with score={self.score!r}; accepted: None")
        if not isinstance(scale, torch.Tensor):
            return None if scale is None else check_number("scale", scale)
        check_tensor("scale", scale, dtypes=self.dtypes, device=self.operand.device)
        if scale.dim() > 1 or scale.numel() not in (1, self.heads):
            bad_value("scale", f"has shape {tuple(scale.shape)}; accepted: (), (1,) or ({self.heads},)")
        return settled(scale)

    def _ordered(self, name: str, x: torch.Tensor) -> torch.Tensor:
        x = settled(x)
        return from_coo(name, x, self.operand) if self.in_coo else x

    @property
    def _edges(self) -> int:
        return self.operand.num_edges if self.in_coo else self.operand.nnz

    def _per_head(self, name: str, x: Any, sizes: tuple[int, ...]) -> torch.Tensor:
        """Returns [nnz, H or 1, *sizes] of a tensor [edges, H, *sizes] or [edges, *sizes]."""
        check_tensor(name, x, dtypes=self.dtypes, device=self.operand.device)
        shared, own = (self._edges, *sizes), (self._edges, self.heads, *sizes)
        if tuple(x.shape) not in (shared, own):
            bad_value(name, f"has shape {tuple(x.shape)}; accepted: {own}, or {shared} for all heads")
        return self._ordered(name, x.unsqueeze(1) if x.dim() == len(shared) else x)

    def bias(self, bias: Any, padding: Any) -> torch.Tensor | None:
        """Returns the bias [nnz, H or 1] with -inf at edges from masked sources."""
        bias = None if bias is None else self._per_head("bias", bias, ())
        if padding is None:
            return bias
        shape = (self.operand.shape[1],)
        device = self.operand.device
        check_tensor("key_padding_mask", padding, dtypes=(torch.bool,), device=device, shape=shape)
        masked = padding.index_select(0, self.operand.kernels.csr.indices)[:, None]
        if bias is None:
            bias = torch.zeros(self.operand.nnz, 1, dtype=torch.float32, device=device)
        return bias.masked_fill(masked, float("-inf"))

    def edge_terms(self, features: Any, weight: Any, gate: Any, target: str) -> EdgeTerms:
        """Returns the terms of edges if they go with the score."""
        if gate is not None and self.score != "dot":
            bad_value("gate", f"got one with score={self.score!r}; accepted: score='dot'")
        if weight is not None:
            return self._mapped(features, weight, gate, target)
        if gate is not None:
            gate = self._per_head("gate", gate, (self.width,))
        if features is None:
            return EdgeTerms(None, gate, None, None)
        self._refuse_cosine(target)
        sizes = () if self.score == "additive" else (self.width,)
        if self.score != "additive" and target != "keys" and self.value_width != self.width:
            bad_value(
                "edge_features",
                f"can't be added to keys of {self.width} and values of {self.value_width} features; accepted:"
                " v as wide as k, or edge_target='keys'",
            )
        return EdgeTerms(self._per_head("edge_features", features, sizes), gate, None, None)

    def _refuse_cosine(self, target: str) -> None:
        if self.score == "cosine" and target != "values":
            bad_value(
                "edge_features",
                "got features of keys with score='cosine', which divides keys by their lengths; accepted: "
                "edge_target='values'",
            )

    def _mapped(self, features: Any, weight: Any, gate: Any, target: str) -> EdgeTerms:
        if self.score not in _DOTS or gate is not None:
            also = "" if gate is None else " and a gate"
            bad_value(
                "edge_weight",
                f"got one with score={self.score!r}{also}; accepted: score 'dot' or 'cosine' without a gate",
            )
        self._refuse_cosine(target)
        if features is None:
            bad_value(
                "edge_weight", "got one without edge_features; accepted: edge_features [edges, d_e] too"
            )
        features = self._dense("edge_features", features, (self._edges, None))
        if target == "both" and self.value_width != self.width:
            bad_value(
                "edge_weight",
                f"can't map to keys of {self.width} and values of {self.value_width} features; accepted: "
                "v as wide as k, or another edge_target",
            )
        width = self.value_width if target == "values" else self.width
        weight = self._dense("edge_weight", weight, (self.heads * width, features.shape[1]))
        features = self._ordered("edge_features", features)
        return EdgeTerms(None, None, features, settled(weight).reshape(self.heads, width, features.shape[1]))
