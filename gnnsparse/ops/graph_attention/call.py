"""The arguments of graph attention in the form that every implementation takes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import torch

from gnnsparse.sparse.operand import SparseOperand

__all__ = ["OPTIONS", "SCORE_CODES", "Arrays", "GraphCall", "Result", "as_given"]

#: The numbers of the scores in native code.
SCORE_CODES = {"dot": 0, "additive": 1, "gatv2": 2}


class Arrays(NamedTuple):
    """The tensors that attention is differentiable in; also their gradients, None where not needed.

    Attributes:
        q, k: [L, H, D] and [S, H, D]; [L, H] and [S, H] with additive scores.
        v: [S, H, Dv].
        att: [H, D], of "gatv2" alone.
        bias: [nnz, H or 1].
        features: [nnz, H or 1, D]; [nnz, H or 1] with additive scores.
        gate: [nnz, H or 1, D].
        mapped: [nnz, d_e], edge features behind a linear map.
        mapped_q: [L, H, d_e], the queries that have passed through that map; None if the features take no
            part in the scores.
    """

    q: torch.Tensor | None
    k: torch.Tensor | None
    v: torch.Tensor | None
    att: torch.Tensor | None = None
    bias: torch.Tensor | None = None
    features: torch.Tensor | None = None
    gate: torch.Tensor | None = None
    mapped: torch.Tensor | None = None
    mapped_q: torch.Tensor | None = None


class Result(NamedTuple):
    """Results of attention.

    Attributes:
        out: [L, H, Dv] in the dtype of v: sums of weight * value.
        mapped: [L, H, d_e] in the dtype of v: sums of weight * mapped features; None: there are none, or
            they take no part in the values.
        stats: float32 [L, H, 2]: for each row what its scores are lowered by before they are exponents (on a
            GPU of 2), and the factor that makes the sum of its weights 1; 0 and 0 for rows without an edge
            that counts; 0 and 1 without softmax.
    """

    out: torch.Tensor
    mapped: torch.Tensor | None
    stats: torch.Tensor

    def times(self, grad_out: torch.Tensor, grad_mapped: torch.Tensor | None) -> torch.Tensor:
        """Multiplies the results with their gradients and adds up over features: float32 [L, H].

        It is the sum over a row's edges of weight * its gradient through the results.
        """
        total = (grad_out.float() * self.out.float()).sum(-1)
        if grad_mapped is not None and self.mapped is not None:
            total += (grad_mapped.float() * self.mapped.float()).sum(-1)
        return total


class GraphCall(NamedTuple):
    """Attention over the nonzeros of an operand [L, S] for H heads, edge tensors in the operand's order.

    Attributes:
        operand: the operand, whose nonzeros are the edges.
        arrays: the tensors, any strides.
        score: "dot", "additive" or "gatv2".
        scale: factor of dot products.
        negative_slope: slope of leaky_relu below 0.
        to_keys, to_values: what `features` are added to. `mapped` takes part in the scores if `mapped_q` is
            there, and in the values if `to_values`.
        clamp: scores are clamped to [-clamp, clamp]; 0: they are not.
        normalize: whether the weights of a row are divided by their sum.
        is_causal: whether edges with column > row are masked.
        dropout_p: probability with which a weight is dropped.
        seed: seed of dropout, int64 [1]; None if dropout_p is 0.
    """

    operand: SparseOperand
    arrays: Arrays
    score: str = "dot"
    scale: float = 1.0
    negative_slope: float = 0.2
    to_keys: bool = True
    to_values: bool = True
    clamp: float = 0.0
    normalize: bool = True
    is_causal: bool = False
    dropout_p: float = 0.0
    seed: torch.Tensor | None = None

    @property
    def heads(self) -> int:
        """Number of heads."""
        assert self.arrays.v is not None
        return self.arrays.v.shape[1]

    @property
    def options(self) -> tuple[Any, ...]:
        """The attributes that OPTIONS names."""
        return self[2:-1]

    @classmethod
    def of(
        cls, operand: SparseOperand, arrays: Arrays, options: Iterable[Any], seed: torch.Tensor | None
    ) -> GraphCall:
        """Makes a call with the attributes that OPTIONS names, in their order."""
        return cls(operand, arrays, *options, seed)  # type: ignore[call-arg]

    def with_arrays(self, arrays: Arrays) -> GraphCall:
        """Returns the call with other tensors."""
        return self._replace(arrays=arrays)


#: The attributes of a GraphCall that are neither tensors nor the operand, in their order.
OPTIONS = GraphCall._fields[2:-1]


def as_given(grads: Arrays, given: Arrays) -> Arrays:
    """Returns gradients in the shapes and dtypes of the tensors that they belong to.

    Args:
        grads: gradients as kernels write them: of every head, and of `att` a sum for each group of rows.
        given: the tensors. Those that heads share get the sum of the heads' gradients.
    """

    def one(grad: torch.Tensor | None, x: torch.Tensor | None) -> torch.Tensor | None:
        if grad is None or x is None:
            return None
        if grad.shape != x.shape:
            grad = grad.sum(1, keepdim=True, dtype=torch.float32)
        return grad.to(x.dtype)

    att = None if grads.att is None else grads.att.sum(0)
    return Arrays(*(one(*pair) for pair in zip(grads._replace(att=att), given, strict=True)))
