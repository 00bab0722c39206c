"""Graph attention by single edges in torch: exact in float64, and plain in a precision, both by autograd.

`run` gives the same of kernels: of a backend, which is a module with `graph_forward`, `graph_backward` and
`graph_weights` as gnnsparse.ops.attention.cpu has them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch

from gnnsparse import Precision, SparseOperand
from gnnsparse.ops.attention.arguments import Arrays, GraphCall, Result
from gnnsparse.ops.attention.philox import keeps
from gnnsparse.precision import round_operand
from tests.helpers import ROUNDING

SEED = 7


class Backend(Protocol):
    def graph_forward(self, call: GraphCall) -> Result: ...
    def graph_weights(self, call: GraphCall, result: Result) -> torch.Tensor: ...
    def graph_backward(
        self,
        call: GraphCall,
        result: Result,
        grad_out: torch.Tensor,
        grad_mapped: torch.Tensor | None,
        grad_weights: torch.Tensor | None,
        needs: tuple[bool, ...],
    ) -> Arrays: ...


@dataclass(frozen=True)
class Case:
    """The arguments of a GraphCall and the gradients of its results, on the CPU.

    Attributes:
        arrays: the tensors.
        grad_out, grad_mapped, grad_weights: gradients of the results; None: there is none.
        options: the options of a GraphCall by name, without `seed`.
    """

    arrays: Arrays
    grad_out: torch.Tensor
    grad_mapped: torch.Tensor | None
    grad_weights: torch.Tensor | None
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        """What has a gradient, in the order of `Arrays`."""
        return [name for name, x in self.arrays._asdict().items() if x is not None]

    def call(self, a: SparseOperand) -> GraphCall:
        seed = torch.tensor([SEED], device=a.device) if self.options.get("dropout_p") else None
        arrays = Arrays(*(None if x is None else x.to(a.device) for x in self.arrays))
        return GraphCall(a, arrays, seed=seed, **self.options)

    def with_arrays(self, **arrays: torch.Tensor | None) -> Case:
        return replace(self, arrays=self.arrays._replace(**arrays))


def make_case(
    a: SparseOperand, d: int, dv: int | None = None, *, heads: int = 3, score: str = "dot",
    bias: int | None = None, features: int | None = None, gate: int | None = None, mapped: int | None = None,
    in_scores: bool = True, grad_weights: bool = False, dtype: torch.dtype = torch.float32, **options: Any,
) -> Case:  # fmt: skip
    """Makes random arguments.

    Args:
        a: the operand.
        d, dv: features of a head's keys and values; None: as many.
        heads: number of heads.
        score: how scores are computed.
        bias, features, gate: heads of the edge terms, 1 or `heads`; None: there is none.
        mapped: width of features behind a linear map; None: there are none.
        in_scores: whether these take part in the scores.
        grad_weights: whether the weights have a gradient.
        dtype: that of all tensors.
        options: options of a GraphCall.
    """
    (rows, cols), dv = a.shape, d if dv is None else dv
    additive = score == "additive"

    def draw(*shape: int | None, size: float = 1.0) -> torch.Tensor | None:
        return None if None in shape else (size * torch.randn(*shape)).to(dtype)  # type: ignore[arg-type]

    inner = () if additive else (d,)
    arrays = Arrays(
        draw(rows, heads, *inner), draw(cols, heads, *inner), draw(cols, heads, dv),
        draw(heads, d, size=d**-0.5) if score == "gatv2" else None, draw(a.nnz, bias),
        draw(a.nnz, features, *inner), draw(a.nnz, gate, d), draw(a.nnz, mapped),
        draw(rows, heads, mapped) if in_scores else None,
    )  # fmt: skip
    options = {"score": score, "scale": max(d, 1) ** -0.5, "to_values": dv == d and not additive, **options}
    out = draw(rows, heads, dv)
    assert out is not None
    has_mapped = mapped is not None and options["to_values"]
    return Case(
        arrays, out, draw(rows, heads, mapped) if has_mapped else None,
        torch.randn(a.nnz, heads) if grad_weights else None, options,
    )  # fmt: skip


def run(backend: Backend, a: SparseOperand, case: Case) -> list[torch.Tensor]:
    """The results (out, mapped if there is any, weights) and the gradient of every tensor, on the CPU."""
    call = case.call(a)
    result = backend.graph_forward(call)
    given = (case.grad_out, case.grad_mapped, case.grad_weights)
    needs = tuple(x is not None for x in call.arrays)
    grads = backend.graph_backward(
        call, result, *(None if x is None else x.to(a.device) for x in given), needs
    )
    results = [result.out, result.mapped, backend.graph_weights(call, result)]
    assert (result.mapped is not None) == (case.grad_mapped is not None)
    assert [name for name, x in grads._asdict().items() if x is not None] == case.names
    return [x.detach().cpu() for x in (*results, *grads) if x is not None]


def _scores(call: GraphCall, x: Arrays, row: torch.Tensor, column: torch.Tensor) -> torch.Tensor:
    """Finished scores [nnz, H]; -inf for masked edges."""
    assert x.q is not None
    assert x.k is not None
    own, key = x.q[row], x.k[column]
    if x.gate is not None:
        key = key * x.gate
    if x.features is not None and (call.to_keys or call.score == "additive"):
        key = key + x.features
    if call.score == "dot":
        scores = (own * key).sum(2)
        if x.mapped is not None and x.mapped_q is not None:
            scores = scores + (x.mapped_q[row] * x.mapped[:, None]).sum(2)
        scores = scores * call.scale
    else:
        scores = torch.nn.functional.leaky_relu(own + key, call.negative_slope)
        if x.att is not None:
            scores = (scores * x.att).sum(2)
    if call.clamp:
        scores = scores.clamp(-call.clamp, call.clamp)
    if x.bias is not None:
        scores = scores + x.bias
    masked = (column > row) if call.is_causal else torch.zeros_like(row, dtype=torch.bool)
    return scores.masked_fill(masked[:, None], float("-inf"))


def _softmax(scores: torch.Tensor, row: torch.Tensor, rows: int) -> torch.Tensor:
    """The softmax over rows, [nnz, H]."""
    sizes = rows, scores.shape[1]
    places = row[:, None].expand_as(scores)
    top = scores.new_full(sizes, float("-inf")).scatter_reduce(0, places, scores.detach(), "amax")
    top = torch.where(torch.isinf(top), 0.0, top)
    shifted = (scores - top[row]).exp()
    total = scores.new_zeros(sizes).index_add(0, row, shifted)
    total = torch.where(total == 0, 1.0, total)
    return shifted / total[row]


class _TermsOfSoftmax(torch.autograd.Function):
    """A softmax whose gradient is the size of its two terms: the weight's gradient, and the row's sum."""

    @staticmethod
    def forward(ctx: Any, scores: torch.Tensor, row: torch.Tensor, rows: int) -> torch.Tensor:
        weights = _softmax(scores, row, rows)
        ctx.save_for_backward(weights, row)
        ctx.rows = rows
        return weights

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None]:  # type: ignore[override]
        weights, row = ctx.saved_tensors
        inner = grad.new_zeros(ctx.rows, grad.shape[1]).index_add(0, row, weights * grad)
        return weights * grad.hypot(inner[row]), None, None


def _weighed(weights: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """The values [nnz, H, n] or [nnz, 1, n], times the weights [nnz, H]."""
    return weights[:, :, None] * values


class _TermsOfWeights(torch.autograd.Function):
    """Weighed values, whose gradient of a weight is the size of its terms: one for each feature.

    Their sum is what the softmax subtracts from. Where terms cancel, it has a rounding error of their size.
    """

    @staticmethod
    def forward(ctx: Any, weights: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(weights, values)
        return _weighed(weights, values)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:  # type: ignore[override]
        weights, values = ctx.saved_tensors
        return (grad * values).norm(dim=2), (weights[:, :, None] * grad).sum_to_size(values.shape)


Softmax = Callable[[torch.Tensor, torch.Tensor, int], torch.Tensor]
Weigh = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def attend(call: GraphCall, x: Arrays, softmax: Softmax, weigh: Weigh = _weighed) -> list[torch.Tensor]:
    """Out, mapped if there is any, and the weights after dropout, in the dtype of `x`."""
    row, column = call.operand.indices().cpu()
    scores = _scores(call, x, row, column)
    weights = softmax(scores, row, call.operand.shape[0]) if call.normalize else scores.exp()
    if call.seed is not None:
        index = torch.stack([row, column])
        kept = [keeps(call.seed.cpu(), index, head, call.dropout_p) for head in range(call.heads)]
        weights = weights * (torch.stack(kept, 1).to(weights) / (1 - call.dropout_p))
    assert x.v is not None
    values = x.v[column]
    if x.features is not None and call.to_values and call.score != "additive":
        values = values + x.features
    sizes = call.operand.shape[0], call.heads
    results = [weights.new_zeros(*sizes, values.shape[2]).index_add(0, row, weigh(weights, values))]
    if x.mapped is not None and call.to_values:
        terms = weigh(weights, x.mapped[:, None])
        results.append(weights.new_zeros(*sizes, x.mapped.shape[1]).index_add(0, row, terms))
    return [*results, weights]


def _differentiate(
    call: GraphCall, leaves: Arrays, grads: list[Any], softmax: Softmax, weigh: Weigh = _weighed
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """The results, and the gradients of the tensors."""
    given = [x.requires_grad_() for x in leaves if x is not None]
    results = attend(call, leaves, softmax, weigh)
    total = sum((x * grad).sum() for x, grad in zip(results, grads, strict=True) if grad is not None)
    computed = torch.autograd.grad(total, given, allow_unused=True)
    shaped = [torch.zeros_like(x) if g is None else g for g, x in zip(computed, given, strict=True)]
    return [x.detach() for x in results], shaped


def _grads(case: Case) -> list[torch.Tensor | None]:
    own = [case.grad_out] if case.grad_mapped is None else [case.grad_out, case.grad_mapped]
    return [*own, case.grad_weights]


def _in_float64(
    a: SparseOperand, case: Case, softmax: Softmax, weigh: Weigh = _weighed
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    leaves = Arrays(*(None if x is None else x.double() for x in case.arrays))
    grads = [None if x is None else x.double() for x in _grads(case)]
    return _differentiate(case.call(a), leaves, grads, softmax, weigh)


def exact(a: SparseOperand, case: Case) -> list[torch.Tensor]:
    """What `run` gives, in float64."""
    results, grads = _in_float64(a, case, _softmax)
    return [*results, *grads]


def term_sizes(a: SparseOperand, case: Case) -> list[torch.Tensor | None]:
    """How large the terms of the gradients are: the `scales` of gnnsparse.testing; None for the results.

    The gradient of a score is a difference. In a row of one edge nothing is left of it but rounding errors.
    """
    results, grads = _in_float64(a, case, _TermsOfSoftmax.apply, _TermsOfWeights.apply)
    return [*(None for _ in results), *grads]


def plain(a: SparseOperand, case: Case) -> list[torch.Tensor]:
    """What `run` gives, in float32 with operands rounded to A's precision, in the dtypes of the arguments."""
    precision, additive = Precision.parse(a.precision), case.options["score"] == "additive"
    unrounded = {"att", "bias", *(("q", "k", "features") if additive else ())}

    def r(x: torch.Tensor | None, name: str = "") -> torch.Tensor | None:
        if x is None:
            return None
        return x.float().clone() if name in unrounded else round_operand(x, precision).float().clone()

    leaves = Arrays(*(r(x, name) for name, x in case.arrays._asdict().items()))
    *grads, of_weights = _grads(case)
    given = [*(r(x) for x in grads), of_weights]
    results, leaf_grads = _differentiate(case.call(a), leaves, given, _softmax)
    dtypes = [case.grad_out.dtype] * len(grads) + [torch.float32]
    dtypes += [x.dtype for x in case.arrays if x is not None]
    return [x.to(dtype) for x, dtype in zip([*results, *leaf_grads], dtypes, strict=True)]


def few_roundings(a: SparseOperand, case: Case) -> float:
    """What error is allowed in any case where there are few edges, since a plain run may be exact by luck."""
    return 8 * max(ROUNDING[a.precision], torch.finfo(case.grad_out.dtype).eps)
