"""Graph attention as a chain of torch operations: slow, differentiable by autograd, also inside transforms.

It stores a row of features for each edge and head.
"""

from __future__ import annotations

import torch

from gnnsparse.ops.attention.philox import keeps
from gnnsparse.ops.common import exact_rounded
from gnnsparse.ops.graph_attention import reference
from gnnsparse.ops.graph_attention.call import Arrays, GraphCall, Result

__all__ = ["backward", "forward", "weights"]

_MINUS_INFINITY = float("-inf")


def _wide(x: torch.Tensor) -> torch.Tensor:
    return x if x.dtype == torch.float64 else x.float()


class _Edges:
    """A call's tensors for each edge: rounded, and zero where an edge does not count.

    Attributes:
        row, column: of each edge, int64 [nnz].
        counts: whether an edge counts in a head, bool [nnz, 1 or H]; None: all do.
    """

    def __init__(self, call: GraphCall) -> None:
        self.call = call
        index = call.operand.indices()
        self.row, self.column = index[0], index[1]
        self.counts: torch.Tensor | None = None
        if call.arrays.bias is not None:
            self.counts = call.arrays.bias.detach() > _MINUS_INFINITY
        if call.is_causal:
            below = (self.column <= self.row)[:, None]
            self.counts = below if self.counts is None else self.counts & below

    def rounded(self, x: torch.Tensor) -> torch.Tensor:
        return exact_rounded(x, self.call.operand.precision)

    def gathered(self, x: torch.Tensor) -> torch.Tensor:
        """Returns the rows of keys or values [S, ...] that edges lead to."""
        return x.index_select(0, self.column)

    def without_masked(self, x: torch.Tensor) -> torch.Tensor:
        """Returns `x` [nnz, H or 1, ...] with zeros for edges that do not count, infinite as they may be."""
        if self.counts is None:
            return x
        counts = self.counts.reshape(*self.counts.shape, *(1,) * (x.dim() - 2))
        return torch.where(counts, x, 0.0)

    def keys(self) -> torch.Tensor:
        """Returns the keys of edges after gate and features: [nnz, H, D], or [nnz, H] of additive scores."""
        arrays, call = self.call.arrays, self.call
        assert arrays.k is not None
        additive = call.score == "additive"
        keys = self.gathered(_wide(arrays.k) if additive else self.rounded(arrays.k))
        if arrays.gate is not None:
            keys = keys * self.rounded(arrays.gate)
        if arrays.features is not None and call.to_keys:
            keys = keys + (_wide(arrays.features) if additive else self.rounded(arrays.features))
        return self.without_masked(keys)

    def values(self) -> torch.Tensor:
        """Returns the values of edges after features: [nnz, H, Dv]."""
        arrays = self.call.arrays
        assert arrays.v is not None
        values = self.gathered(self.rounded(arrays.v))
        if arrays.features is not None and self.call.to_values:
            values = values + self.rounded(arrays.features)
        return self.without_masked(values)

    def mapped(self) -> torch.Tensor | None:
        """Returns the features behind a linear map, [nnz, H or 1, d_e]."""
        mapped = self.call.arrays.mapped
        return None if mapped is None else self.without_masked(self.rounded(mapped)[:, None])


def _raw_scores(edges: _Edges) -> torch.Tensor:
    """Returns the scores before clamp, bias and masks: [nnz, H]."""
    call, arrays, keys = edges.call, edges.call.arrays, edges.keys()
    assert arrays.q is not None
    queries = _wide(arrays.q) if call.score == "additive" else edges.rounded(arrays.q)
    att = None if arrays.att is None else _wide(arrays.att)
    found = reference.scores(call.score, queries.index_select(0, edges.row), keys, att, call.negative_slope)
    mapped = edges.mapped()
    if arrays.mapped_q is not None and mapped is not None:
        found = found + (edges.rounded(arrays.mapped_q).index_select(0, edges.row) * mapped).sum(-1)
    return found * call.scale if call.score == "dot" else found


def _scores(edges: _Edges) -> torch.Tensor:
    call = edges.call
    scores = _raw_scores(edges)
    if call.clamp:
        scores = scores.clamp(-call.clamp, call.clamp)
    if call.arrays.bias is not None:
        scores = scores + edges.without_masked(_wide(call.arrays.bias))
    return scores if edges.counts is None else scores.masked_fill(~edges.counts, _MINUS_INFINITY)


def _softmax(edges: _Edges, scores: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the weights [nnz, H] before dropout, and what made them of scores [L, H, 2]."""
    rows = edges.call.operand.shape[0]
    if not edges.call.normalize:
        return scores.exp(), scores.new_tensor([0.0, 1.0]).expand(rows, scores.shape[1], 2).contiguous()
    return reference.softmax(edges.row, rows, scores)


def _dropped(edges: _Edges, weights: torch.Tensor) -> torch.Tensor:
    call = edges.call
    if call.seed is None:
        return weights
    index = torch.stack([edges.row, edges.column])
    kept = torch.stack([keeps(call.seed, index, h, call.dropout_p) for h in range(weights.shape[1])], 1)
    return torch.where(kept, weights / (1 - call.dropout_p), 0.0)


def forward(call: GraphCall) -> tuple[Result, torch.Tensor]:
    """Computes the results, and the weights after dropout, float32 or float64 [nnz, H]."""
    edges = _Edges(call)
    weights, stats = _softmax(edges, _scores(edges))
    weights = _dropped(edges, weights)
    assert call.arrays.v is not None
    dtype = call.arrays.v.dtype
    rows = call.operand.shape[0]
    out = reference.sums(edges.row, rows, weights[..., None] * edges.values()).to(dtype)
    features, mapped = edges.mapped(), None
    if features is not None and call.to_values:
        mapped = reference.sums(edges.row, rows, weights[..., None] * features).to(dtype)
    return Result(out, mapped, stats), weights


def weights(call: GraphCall) -> torch.Tensor:
    """Computes the weights after dropout, float32 or float64 [nnz, H]."""
    edges = _Edges(call)
    return _dropped(edges, _softmax(edges, _scores(edges))[0])


def backward(
    call: GraphCall, grad_out: torch.Tensor, grad_mapped: torch.Tensor | None,
    grad_weights: torch.Tensor | None, needs: tuple[bool, ...],
) -> Arrays:  # fmt: skip
    """Computes the gradients that are needed; the others are None."""
    with torch.enable_grad():
        leaves = Arrays(
            *(
                None if x is None else x.detach().requires_grad_(need)
                for x, need in zip(call.arrays, needs, strict=True)
            )
        )
        again, dropped = forward(call.with_arrays(leaves))
    pairs = [(again.out, grad_out), (again.mapped, grad_mapped), (dropped, grad_weights)]
    outputs, given = (
        [y for y, g in pairs if y is not None and g is not None],
        [g for _, g in pairs if g is not None],
    )
    wanted = [x for x in leaves if x is not None and x.requires_grad]
    grads = torch.autograd.grad(outputs, wanted, given, allow_unused=True)
    found = iter(grads)
    return Arrays(*(next(found) if need else None for need in needs))
