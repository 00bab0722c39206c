"""The propagation layer of the attention-based graph neural network (AGNN), found by `gnnsparse.nn`."""

from __future__ import annotations

from typing import Any

import torch

from gnnsparse.errors import check_flag
from gnnsparse.nn.adjacency import GcnRecipe, GraphLayer, check_precision, check_self_loops
from gnnsparse.nn.edges import log_counts
from gnnsparse.nn.inputs import check_features
from gnnsparse.ops import attention
from gnnsparse.ops.dispatch import direct
from gnnsparse.ops.segments import inverse_lengths
from gnnsparse.precision import Precision
from gnnsparse.runtime.functorch import is_eager
from gnnsparse.sparse.operand import SparseOperand

__all__ = ["AGNNConv"]


class AGNNConv(GraphLayer):
    """y_i = sum over j of softmax_j(beta cos(x_i, x_j)) x_j, where j are the neighbours of i and i itself.

    Thekumparampil et al. 2018, "Attention-based Graph Neural Network for Semi-supervised Learning", equation
    6. Arguments, parameter and `state_dict` (`beta` [1]) are those of PyG's AGNNConv, and outputs agree with
    it. The cosine with a row of zeros is 0. Such a row gets no gradient through the cosine, whereas PyG
    multiplies its gradient by 10^12. No tensor has a value for each edge.

    Args:
        requires_grad: whether beta is learned; False: it is a buffer that stays 1.
        add_self_loops: whether nodes without a self-loop in an edge_index get one, and operands in which
            nodes lack one are refused. False: edges and operands are used as they are.
        precision: the argument of GCNConv.

    Raises:
        TypeError: an argument is of another type.
        ValueError: the precision is unknown.
    """

    beta: torch.Tensor

    def __init__(
        self,
        requires_grad: bool = True,
        add_self_loops: bool = True,
        *,
        precision: Precision | str | None = None,
    ) -> None:
        super().__init__(precision)
        self.requires_grad = check_flag("requires_grad", requires_grad)
        self.add_self_loops = check_flag("add_self_loops", add_self_loops)
        if requires_grad:
            self.beta = torch.nn.Parameter(torch.ones(1))
        else:
            self.register_buffer("beta", torch.ones(1))

    def reset_parameters(self) -> None:
        """Set beta to 1, and drop a cached operand."""
        torch.nn.init.ones_(self.beta)
        self._memo.clear()

    def forward(self, x: torch.Tensor, adj: SparseOperand | torch.Tensor) -> torch.Tensor:
        """Compute the layer's output.

        Args:
            x: [nodes, features], float32, float16 or bfloat16, on the device of `adj`.
            adj: a SparseOperand [nodes, nodes], whose weights are ignored; values="gcn" prepares one with
                self-loops. It may have fewer rows, if its targets are the first nodes, as in a sampled block.
                Or an edge_index [2, edges], see GCNConv.forward, whose repeated edges count several times.

        Returns:
            [nodes, features] in the dtype of x; a row for each row of the operand.

        Raises:
            TypeError: an argument is of another type or dtype.
            ValueError: an argument has another shape or device, or the operand lacks self-loops or has
                another precision than the layer was made for.
        """
        check_features("x", x, None, device=self.beta.device)
        if isinstance(adj, SparseOperand):
            check_precision(adj, self.precision)
            if self.add_self_loops:
                check_self_loops(adj, "AGNNConv(add_self_loops=False) to do without them")
        loops = 1.0 if self.add_self_loops else None
        recipe = GcnRecipe(False, loops, self.precision or Precision.FP32)
        operand, _ = self._memo.resolve((x.shape[0], x.shape[0]), adj, None, recipe)
        bias = None if isinstance(adj, SparseOperand) else log_counts(operand)
        q, k = (_quick if is_eager() else _cosine_operands)(x, self.beta)
        if operand.shape[0] < operand.shape[1] and (operand.has_self_loops or not self.add_self_loops):
            q = q[: operand.shape[0]]
        return attention(operand, q, k, x, scale=1.0, bias=bias)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(requires_grad={self.requires_grad})"


def _cosine_operands(x: torch.Tensor, beta: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    wide = x.float()  # squares of float16 overflow
    unit = wide * inverse_lengths(wide)
    return (unit * beta).to(x.dtype), unit.to(x.dtype)


class _CosineOperands(torch.autograd.Function):
    """Compute q = beta u and k = u for the unit rows u of x; its gradient takes few kernels."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, beta: torch.Tensor) -> Any:
        wide = x.float()  # squares of float16 overflow
        inverse = inverse_lengths(wide)
        unit = wide * inverse
        ctx.save_for_backward(x, beta, unit, inverse)
        return (unit * beta).to(x.dtype), unit.to(x.dtype)

    @staticmethod
    def backward(ctx: Any, dq: torch.Tensor, dk: torch.Tensor) -> Any:
        x, beta, unit, inverse = ctx.saved_tensors
        if torch.is_grad_enabled():  # by autograd, for second derivatives
            q, k = _cosine_operands(x, beta)
            wanted = [t for t, need in zip((x, beta), ctx.needs_input_grad, strict=True) if need]
            found = iter(torch.autograd.grad((q, k), wanted, (dq, dk), create_graph=True))
            return tuple(next(found) if need else None for need in ctx.needs_input_grad)
        dx = dbeta = None
        wide = dq.float()
        if ctx.needs_input_grad[0]:
            along = torch.addcmul(dk.float(), wide, beta)
            dx = (
                along.addcmul_(unit, (along * unit).sum(-1, keepdim=True), value=-1).mul_(inverse).to(x.dtype)
            )
        if ctx.needs_input_grad[1]:
            dbeta = torch.mul(wide, unit).sum().reshape_as(beta).to(beta.dtype)
        return dx, dbeta


_quick = direct(_CosineOperands)
