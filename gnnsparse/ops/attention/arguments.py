"""The arguments of both operations in the form that kernels take, their layouts, and their native forms."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from gnnsparse import _native
from gnnsparse.precision import Precision, round_operand
from gnnsparse.runtime.device import VECTOR_BYTES
from gnnsparse.sparse.kernel_cache import Product
from gnnsparse.sparse.operand import SparseOperand

# The arguments of attention: tensors [B, H, rows, features].

#: Gradients of q, k, v and the bias, each None if it is not needed.
Grads = tuple["torch.Tensor | None", "torch.Tensor | None", "torch.Tensor | None", "torch.Tensor | None"]
#: Whether the gradients of q, k, v and the bias are needed.
Needs = tuple[bool, bool, bool, bool]


@dataclass(frozen=True, eq=False)
class AttentionCall:
    """Attention over an operand [L, S] for H heads in each of B batch entries: q [B, H, L, D], k and v.

    Strides are any. The bias is [B or 1, H or 1, nnz] in the operand's order, the seed int64 [1] or None.
    """

    operand: SparseOperand
    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    bias: torch.Tensor | None
    seed: torch.Tensor | None
    scale: float
    dropout_p: float
    is_causal: bool

    @property
    def heads(self) -> int:
        """Number of heads, those of all batch entries together."""
        return self.q.shape[0] * self.q.shape[1]

    def product(self, op: str) -> Product:
        """Return the key of the plan of the forward ("attention") or backward ("attention_grad") pass."""
        extras = self.bias is not None or self.seed is not None or self.is_causal
        places = self.heads if self._has_heads_apart() else 1
        return Product(op, self.q.shape[3], False, self.v.shape[3], self.heads, extras, head_places=places)

    def _has_heads_apart(self) -> bool:
        """Return whether kernels over rows, which take [n, B * H, D], read the heads of a node of k apart."""
        batches, heads, _, width = self.k.shape
        of_batch, of_head, of_row, _ = self.k.stride()
        storage = self.operand.precision.storage
        if self.heads == 1 or self.k.dtype != storage or width * storage.itemsize % VECTOR_BYTES:
            return False  # a copy that `vectorized` makes has them side by side
        if min(batches, heads) > 1 and of_batch != heads * of_head:
            return True  # batch entries and heads become one dimension by a copy of each
        return (of_head if heads > 1 else of_batch) > of_row


def to_heads(x: torch.Tensor, leading: tuple[int, ...]) -> torch.Tensor:
    """Broadcast `x` [..., n, d] to the leading sizes, and fold all but the last, by a view if it can be."""
    if x.shape[:-2] != leading:
        x = x.expand(*leading, *x.shape[-2:])
    return x.flatten(0, -4) if len(leading) > 2 else four_dimensions(x)


def to_edges(values: torch.Tensor, leading: tuple[int, ...]) -> torch.Tensor:
    """Fold edge values [..., nnz] to [B or 1, H or 1, nnz]; only sizes of 1 folded with others expand."""
    own = (1,) * (len(leading) + 1 - values.dim()) + tuple(values.shape)
    values = values.view(own) if len(own) != values.dim() else values
    if len(leading) > 2:
        folded = own[: len(leading) - 1]
        if folded != leading[:-1] and any(size != 1 for size in folded):
            values = values.expand(*leading[:-1], *own[-2:])
        return values.flatten(0, -3)
    return values[(None,) * (2 - len(leading))] if len(leading) < 2 else values


def four_dimensions(x: torch.Tensor) -> torch.Tensor:
    """Return [n, d], [H, n, d] or [B, H, n, d] as a view with four dimensions; those added have size 1."""
    return x if x.dim() == 4 else x[(None,) * (4 - x.dim())]


def empty_heads(like: torch.Tensor, width: int, dtype: torch.dtype | None = None) -> torch.Tensor:
    """Allocate [B, H, n, width] in the memory order of `like` [B, H, n, any], and in its dtype if None."""
    batches, heads, rows = like.shape[:3]
    if like.stride(1) < like.stride(2):
        return like.new_empty(batches, rows, heads, width, dtype=dtype).transpose(1, 2)
    return like.new_empty(batches, heads, rows, width, dtype=dtype)


def empty_grads(call: AttentionCall, needs: Needs) -> list[torch.Tensor | None]:
    """Allocate the gradients of q, k, v and the bias that are needed; that of the bias is float32 zeros."""
    inputs = (call.q, call.k, call.v)
    grads = [empty_heads(x, x.shape[3]) if need else None for x, need in zip(inputs, needs, strict=False)]
    if call.bias is None or not needs[3]:
        return [*grads, None]
    return [*grads, torch.zeros(call.bias.shape, dtype=torch.float32, device=call.q.device)]


# The arguments of graph attention: tensors [rows, H, features].


class Arrays(NamedTuple):
    """The tensors that graph attention is differentiable in; also their gradients, None where not needed.

    q is [L, H, D], k [S, H, D] (both without D for additive scores), v [S, H, Dv], and att [H, D]. Edge terms
    in the operand's order: bias [nnz, H or 1], features and gate [nnz, H or 1, D] (features without D for
    additive scores), mapped [nnz, d_e], which are behind a linear map, and mapped_q [L, H, d_e], the queries
    that have passed through it; None if the mapped features take no part in the scores. Kernels get these;
    callers give the map [H, D, d_e] itself in place of mapped_q.
    """

    q: Any
    k: Any
    v: Any
    att: torch.Tensor | None = None
    bias: torch.Tensor | None = None
    features: torch.Tensor | None = None
    gate: torch.Tensor | None = None
    mapped: torch.Tensor | None = None
    mapped_q: torch.Tensor | None = None
    map: torch.Tensor | None = None


class Result(NamedTuple):
    """Results of graph attention: sums [L, H, Dv] of values and [L, H, d_e] of mapped features (or None).

    `stats` float32 [L, H, 2]: for each row what its scores are lowered by before they are exponents (on a GPU
    of 2), and the factor that makes the sum of its weights 1; 0 and 0 for rows without an edge that counts; 0
    and 1 without softmax. `sloped` is what gradients of additive scores need on a GPU, None elsewhere: sums
    [L, H, Dv] of slope * weight * value, with the slope of leaky_relu at an edge's argument, in the storage
    dtype; `stats` have a third number then, the sum of slope * weight before dropout.
    """

    out: torch.Tensor
    mapped: torch.Tensor | None
    stats: torch.Tensor
    sloped: torch.Tensor | None = None

    def times(self, grad_out: torch.Tensor, grad_mapped: torch.Tensor | None) -> torch.Tensor:
        """Compute the sum over a row's edges of weight * its gradient through the results: float32 [L, H]."""
        total = (grad_out.float() * self.out.float()).sum(-1)
        if grad_mapped is not None and self.mapped is not None:
            total += (grad_mapped.float() * self.mapped.float()).sum(-1)
        return total


class GraphCall(NamedTuple):
    """Attention over the nonzeros of an operand [L, S] for H heads, edge tensors in the operand's order.

    `features` are added `to_keys` and `to_values`; `mapped` takes part in the scores if `mapped_q` is there,
    and in the values if `to_values`. Scores ("dot", "additive" or "gatv2") are clamped to [-clamp, clamp]
    unless it is 0. The seed of dropout is int64 [1], or None.
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
        return self.arrays.v.shape[1]

    @property
    def options(self) -> tuple[Any, ...]:
        """The attributes that are neither tensors nor the operand, in their order."""
        return self[2:-1]

    def rounded(self) -> GraphCall:
        """Return the call as the CPU's kernels read it: rounded to the precision, with contiguous rows.

        Biases, `att`, and with additive scores all but the values are in float32.
        """
        a, precision = self.arrays, self.operand.precision
        scored = Precision.FP32 if self.score == "additive" else precision
        to = (scored, scored, precision, Precision.FP32, None, scored, *(precision,) * 4)
        arrays = [x if x is None or p is None else rounded(x, p) for x, p in zip(a, to, strict=True)]
        bias = None if a.bias is None else a.bias.float()
        return self._replace(arrays=Arrays(*arrays)._replace(bias=bias))


def of_all_heads(grads: Arrays, given: Arrays) -> Arrays:
    """Return gradients of every head in the shapes and dtypes of the tensors, which heads may share."""

    def one(grad: torch.Tensor | None, x: torch.Tensor | None) -> torch.Tensor | None:
        if grad is None or x is None:
            return None
        if grad.shape != x.shape:
            grad = grad.sum(1, keepdim=True, dtype=torch.float32)
        return grad.to(x.dtype)

    if grads.att is not None:
        grads = grads._replace(att=grads.att.sum(0))
    return Arrays(*map(one, grads, given))


def by_head(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Multiply each head by its matrix: [n, H, a] by [H, a, b] to [n, H, b], node by node in memory."""
    out = x.new_empty(*x.shape[:2], weight.shape[2])
    torch.bmm(x.transpose(0, 1), weight.to(x.dtype), out=out.transpose(0, 1))
    return out


def add_by_head(to: torch.Tensor, x: torch.Tensor, weight: torch.Tensor) -> None:
    """Add the products [n, H, b] of `by_head` in place."""
    to.transpose(0, 1).baddbmm_(x.transpose(0, 1).to(to.dtype), weight.to(to.dtype))


def map_grad(pairs: list[tuple[torch.Tensor, torch.Tensor]]) -> torch.Tensor:
    """Sum the products x^T y of pairs x [n, H, a] and y [n, H, b], in each head: float32 [H, a, b]."""
    products = [torch.bmm(x.permute(1, 2, 0).to(y.dtype), y.transpose(0, 1)).float() for x, y in pairs]
    return torch.stack(products).sum(0)


# The rows that kernels read.


def rounded(x: torch.Tensor, precision: Precision) -> torch.Tensor:
    """Return [.., width] rounded to the precision, in its storage dtype, with contiguous rows."""
    x = round_operand(x, precision)
    return x if x.shape[-1] < 2 or x.stride(-1) == 1 else x.contiguous()


def padded(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Allocate the shape of `x` [.., width], with rows that zeros pad to whole vectors."""
    width, per_vector = x.shape[-1], VECTOR_BYTES // dtype.itemsize
    packed = x.new_empty(*x.shape[:-1], -(-width // per_vector) * per_vector, dtype=dtype)
    if width % per_vector:
        packed[..., width:] = 0
    return packed[..., :width]


def vectorized(x: Any, dtype: torch.dtype) -> Any:
    """Return `x` [.., width] in `dtype`, rows contiguous and aligned; a copy is padded. None for None."""
    if x is None:
        return None
    per_vector, shape = VECTOR_BYTES // dtype.itemsize, x.shape
    if x.dtype is dtype and shape[-1] % per_vector == 0 and x.data_ptr() % VECTOR_BYTES == 0:
        *steps, last = x.stride()
        pairs = zip(steps, shape, strict=False)
        if last == 1 and not any(step % per_vector and size > 1 for step, size in pairs):
            return x
    return padded(x, dtype).copy_(x)


def contiguous_edges(bias: torch.Tensor | None) -> torch.Tensor | None:
    """Return `bias` [B, H, nnz] with contiguous edges, copied if it has other strides; None for None."""
    return bias if bias is None or bias.stride(2) == 1 else bias.contiguous()


# Native arguments.

_NO_HEADS = _native.Heads()
_NO_EDGES = _native.EdgeValues()
#: The numbers of the scores in native code.
_SCORE_CODES = {"dot": 0, "additive": 1, "gatv2": 2}


def heads_argument(x: torch.Tensor | None) -> _native.Heads:
    """Return [B, H, n, d] with contiguous rows, or None, as a native argument."""
    return _NO_HEADS if x is None else _native.Heads(x)


def nodes_argument(x: torch.Tensor | None, heads: int) -> _native.Heads:
    """Return [rows, H or 1, width] with contiguous rows, numbers [rows, H or 1], or None as an argument."""
    return _NO_HEADS if x is None else _native.Heads.of_rows(x, heads)


def edges_argument(x: torch.Tensor | None) -> _native.EdgeValues:
    """Return edge values [B or 1, H or 1, nnz], contiguous along nnz, or None as a native argument."""
    return _NO_EDGES if x is None else _native.EdgeValues(x)


def grads_argument(grad: torch.Tensor, found: list[torch.Tensor | None]) -> _native.AttentionGrads:
    """Return the output's gradient and the gradients to write (None: not needed) as a native argument."""
    dq, dk, dv = map(heads_argument, found[:3])
    return _native.AttentionGrads(heads_argument(grad), dq, dk, dv, edges_argument(found[3]))


def native_attention(call: AttentionCall) -> _native.Attention:
    """Return the native form of a call whose q, k and v are in the storage dtype with contiguous rows."""
    return _native.Attention(
        heads_argument(call.q), heads_argument(call.k), heads_argument(call.v), edges_argument(call.bias),
        call.scale, call.is_causal, call.dropout_p, call.seed, call.operand.precision.code,
    )  # fmt: skip


def native_graph_attention(call: GraphCall) -> _native.GraphAttention:
    """Return the native form of a call whose tensors are as kernels read them."""
    a, additive = call.arrays, call.score == "additive"
    att = None if a.att is None else a.att[None]
    mapped = None if a.mapped is None else a.mapped[:, None]

    def nodes(x: torch.Tensor | None) -> _native.Heads:
        return nodes_argument(x, call.heads)

    return _native.GraphAttention(
        nodes(a.q), nodes(a.k), nodes(a.v), nodes(att), nodes(a.bias), nodes(a.features),
        call.to_keys or additive, call.to_values and not additive, nodes(a.gate), nodes(mapped),
        nodes(a.mapped_q), _SCORE_CODES[call.score], call.scale, call.negative_slope, call.clamp,
        call.normalize, call.is_causal, call.dropout_p, call.seed, call.operand.precision.code,
    )  # fmt: skip


def graph_grads_argument(
    heads: int, edges: torch.Tensor | None = None, **tensors: torch.Tensor | None
) -> _native.GraphAttentionGrads:
    """Return what a pass over rows stores of edges, and tensors [n, heads or 1, ..] by their native names."""
    grads = _native.GraphAttentionGrads()
    if edges is not None:
        grads.edges = nodes_argument(edges, edges.shape[1])
    for name, x in tensors.items():
        if x is not None:
            setattr(grads, name, nodes_argument(x, heads))
    return grads


def result_argument(result: Result) -> _native.GraphAttentionResult:
    """Return the results of a forward pass, whose rows are contiguous, as a native argument."""
    heads = result.out.shape[1]
    return _native.GraphAttentionResult(*(nodes_argument(x, heads) for x in result))
