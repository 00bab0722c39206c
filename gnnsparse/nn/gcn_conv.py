"""The layer of Kipf and Welling's graph convolutional network, found by `gnnsparse.nn`."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812

from gnnsparse.errors import bad_value, check_flag, check_integer
from gnnsparse.nn.adjacency import AdjacencyMemo, GcnRecipe, GraphLayer, check_precision
from gnnsparse.nn.aggregation import product_first
from gnnsparse.nn.inputs import MOST_FEATURES, check_features, is_plain_linear
from gnnsparse.nn.linear import can_propagate, linear_in_padded_rows, propagated_linear
from gnnsparse.ops import spmm
from gnnsparse.precision import Precision
from gnnsparse.sparse.operand import SparseOperand

__all__ = ["GCNConv"]


class GCNConv(GraphLayer):
    """y = D^-1/2 (A + I) D^-1/2 x W + b (Kipf and Welling 2017, equation 2).

    Arguments, parameters and `state_dict` (`lin.weight` [out, in], `bias` [out]) are those of PyG's GCNConv,
    and outputs agree with it.

    Args:
        in_channels: features of a node in x.
        out_channels: features of a node in y.
        improved: whether added self-loops have weight 2. As in PyG, this has no effect on an edge_index
            without edge weights.
        cached: whether the operand made of the first edge_index is used in all later calls. They have edge
            weights if the first one has; weights without a gradient are those of the first call.
        add_self_loops: whether nodes without a self-loop in an edge_index get one; None: if `normalize`.
            It needs `normalize`.
        normalize: whether an edge_index is scaled by D^-1/2 on both sides. Operands must have the weights
            that the layer would make, or are refused. False: operands are used with their own weights.
        bias: whether b is learned; False: there is none.
        precision: precision of the operands that the layer makes of an edge_index, see gnnsparse.Precision,
            and of the operands that it takes; None: "fp32", and that of any operand.

    Raises:
        TypeError: an argument is of another type.
        ValueError: an argument is out of range; add_self_loops is given without normalize, or improved
            without add_self_loops, where they would do nothing.
    """

    bias: torch.Tensor | None

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        improved: bool = False,
        cached: bool = False,
        add_self_loops: bool | None = None,
        normalize: bool = True,
        bias: bool = True,
        *,
        precision: Precision | str | None = None,
    ) -> None:
        super().__init__(precision)
        if add_self_loops is None:
            add_self_loops = normalize
        if add_self_loops and not normalize:
            bad_value("add_self_loops", "goes with normalize=True only")
        self.in_channels = check_integer("in_channels", in_channels, most=MOST_FEATURES)
        self.out_channels = check_integer("out_channels", out_channels, most=MOST_FEATURES)
        self.improved = check_flag("improved", improved)
        self.cached = check_flag("cached", cached)
        self.add_self_loops = check_flag("add_self_loops", add_self_loops)
        self.normalize = check_flag("normalize", normalize)
        if improved and not add_self_loops:
            bad_value("improved", "goes with add_self_loops=True only, as the weight of added self-loops")
        self._memo = AdjacencyMemo(forever=cached)
        self.lin = torch.nn.Linear(in_channels, out_channels, bias=False)
        has_bias = check_flag("bias", bias)
        self.register_parameter("bias", torch.nn.Parameter(torch.empty(out_channels)) if has_bias else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the weight (Glorot and Bengio 2010), set the bias to 0, and drop a cached operand."""
        torch.nn.init.xavier_uniform_(self.lin.weight)
        if self.bias is not None:
            torch.nn.init.zeros_(self.bias)
        self._memo.clear()

    def forward(
        self, x: torch.Tensor, adj: SparseOperand | torch.Tensor, edge_weight: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Compute the layer's output.

        Args:
            x: [nodes, in_channels], float32, float16 or bfloat16, on the device of `adj`. Autocast works as
                for a linear layer.
            adj: a SparseOperand [nodes, nodes]: `gnnsparse.prepare(..., values="gcn")` makes the matrix of
                the formula, with self_loop_weight=2.0 that of `improved`; a layer with normalize=False takes
                any operand. Or an edge_index [2, edges], sources over targets, which the layer prepares in
                the first call, and again when the edges differ from those of the last one. On the CPU their
                contents are compared. On a GPU the tensor object, its address and torch's counter of changes
                are, so that a change through `.data`, DLPack or another library is not noticed: pass a
                clone after one. In models of several layers each layer would prepare it, so an operand is
                faster.
            edge_weight: with an edge_index: floating-point [edges], which gets a gradient if it needs one;
                None: 1 each.

        Returns:
            [nodes, out_channels], in the dtype of the linear layer's output.

        Raises:
            TypeError: an argument is of another type or dtype.
            ValueError: an argument has another shape or device, does not go with another one, or is an
                operand to which an option of the layer could not be applied; or with `cached` one of two
                calls has edge weights.
        """
        # Looked up once, and this way, because an attribute of a module takes most of a microsecond.
        lin: torch.nn.Linear = self._modules["lin"]  # type: ignore[assignment]
        bias = self.bias
        weight = lin.weight
        if (
            edge_weight is None
            and type(adj) is SparseOperand
            and can_propagate(x, weight, bias)
            and is_plain_linear(lin)
            and not product_first(x, weight, None)
        ):
            self._check_operand(adj)
            return propagated_linear(x, weight, bias, adj)
        check_features("x", x, self.in_channels, weight)
        operand: Any = adj
        values = None
        if isinstance(adj, SparseOperand):
            self._check_operand(adj)
        if edge_weight is not None or not isinstance(adj, SparseOperand):
            recipe = GcnRecipe(self.normalize, self._loop_weight, self.precision or Precision.FP32)
            operand, values = self._memo.resolve((x.shape[0], x.shape[0]), adj, edge_weight, recipe)
        if product_first(x, weight, values):
            return F.linear(spmm(operand, x, values), weight, bias)
        product = linear_in_padded_rows(x, weight) if is_plain_linear(lin) else lin(x)
        out = spmm(operand, product, values)
        if bias is None:
            return out
        return out + (bias if bias.dtype == out.dtype else bias.to(out.dtype))

    @property
    def _loop_weight(self) -> float | None:
        return (2.0 if self.improved else 1.0) if self.add_self_loops else None

    def _check_operand(self, operand: SparseOperand) -> None:
        check_precision(operand, self.precision)
        if self.cached:
            bad_value(
                "cached", "got True with an operand, which is made once anyway; accepted: an edge_index"
            )
        if not self.normalize:
            return
        instead = "GCNConv(..., normalize=False) to use its own weights"
        if operand.normalization != "gcn":
            has = f"values={operand.normalization!r}" if operand.normalization else "weights of its own"
            accepted = f"values='gcn', an edge_index, or {instead}"
            bad_value("adj", f"an operand prepared with {has}; accepted: {accepted}")
        if not self.add_self_loops:
            bad_value(
                "add_self_loops",
                f"got False with an operand that has them; accepted: an edge_index, or {instead}",
            )
        if operand.added_loops != self._loop_weight:
            has = f"the operand was prepared with self_loop_weight={operand.added_loops}"
            bad_value("improved", f"got {self.improved}, {has}; accepted: {self._loop_weight}, or {instead}")
