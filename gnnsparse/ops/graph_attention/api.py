"""The public function `graph_attention`: it checks its arguments and calls an implementation."""

from __future__ import annotations

from typing import Any

import torch

from gnnsparse.errors import check_choice, check_flag, check_number, check_share
from gnnsparse.ops.attention.api import attention
from gnnsparse.ops.attention.philox import draw_seed
from gnnsparse.ops.common import FLOATS, check_operand, is_plain, needs_grad, resolve_impl
from gnnsparse.ops.graph_attention import chain, checks, schema
from gnnsparse.ops.graph_attention.by_head import by_head
from gnnsparse.ops.graph_attention.call import Arrays, GraphCall
from gnnsparse.ops.graph_attention.edges import to_coo
from gnnsparse.ops.rows import inverse_lengths
from gnnsparse.plan import CsrAttentionPlan
from gnnsparse.runtime.device import path
from gnnsparse.runtime.functorch import is_direct, settled
from gnnsparse.runtime.nvtx import ranged
from gnnsparse.sparse.kernel_keys import Product
from gnnsparse.sparse.operand import SparseOperand

__all__ = ["graph_attention"]


def _unit(x: torch.Tensor) -> torch.Tensor:
    """Divides rows by their Euclidean lengths; rows of zeros stay zero."""
    wide = x if x.dtype == torch.float64 else x.float()  # squares of float16 overflow
    return wide * inverse_lengths(wide)


def _scaled(
    score: str, q: torch.Tensor, k: torch.Tensor, scale: Any
) -> tuple[torch.Tensor, torch.Tensor, float]:
    """Returns q, k and the factor of their dot product: a tensor `scale` and lengths go into q and k."""
    dtype = q.dtype
    if score == "cosine":
        q, k, default = _unit(q), _unit(k).to(k.dtype), 1.0
    else:
        default = 1 / max(q.shape[-1], 1) ** 0.5 if q.dim() == 3 else 1.0
    if isinstance(scale, torch.Tensor):
        factor = scale if q.dtype == torch.float64 else scale.float()
        return (q * factor.reshape(-1, 1)).to(dtype), k, 1.0
    return q.to(dtype), k, default if scale is None else scale


def _suits_attention(call: GraphCall) -> bool:
    """Returns whether `gnnsparse.attention`, which has more kernels, is to compute a call.

    It can if the call is scaled dot-product attention. Where its plans are the kernels over rows, these run
    here, without conversions of its layouts.
    """
    a = call.arrays
    has_terms = any(x is not None for x in (a.features, a.gate, a.mapped))
    if call.score != "dot" or has_terms or not call.normalize or call.clamp != 0.0:
        return False
    if torch.compiler.is_compiling() and call.operand.kernels.quantization is not None:
        return False  # what `_as_attention` takes of the operand can't be traced
    if not is_plain(*a) or not is_direct() or not path().takes(call.operand.device):
        return True
    assert a.q is not None
    assert a.v is not None
    extras = a.bias is not None or call.dropout_p > 0 or call.is_causal
    sizes, kernels = (a.q.shape[2], False, a.v.shape[2], call.heads, extras), call.operand.kernels
    plans = [kernels.plan_of(Product("attention", *sizes))]
    if needs_grad(*a):
        plans.append(kernels.plan_of(Product("attention_grad", *sizes), call.operand.T.kernels))
    return not all(isinstance(plan, CsrAttentionPlan) for plan in plans)


def _as_attention(call: GraphCall, impl: str) -> torch.Tensor:
    """Computes a call by `attention`, whose plan has the choice of more kernels.

    Nothing is rounded to 8 bits, as in the kernels of this operation.
    """
    a = call.arrays
    assert a.q is not None
    assert a.k is not None
    assert a.v is not None
    out: torch.Tensor = attention(
        call.operand.unquantized, *(x.transpose(0, 1) for x in (a.q, a.k, a.v)), scale=call.scale,
        bias=None if a.bias is None else a.bias.T, dropout_p=call.dropout_p, is_causal=call.is_causal,
        impl=impl,
    )  # fmt: skip
    return out.transpose(0, 1).to(a.v.dtype)


def _output(call: GraphCall, impl: str, wants_weights: bool) -> schema.Outputs:
    plain = is_plain(*call.arrays)
    if impl == "reference" or (plain and not is_direct()):
        return schema.outputs_of(*chain.forward(call))
    return schema.with_grad(call, wants_weights) if plain else schema.registered(call, wants_weights)


@ranged("graph_attention")
def graph_attention(
    A: SparseOperand,  # noqa: N803
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    score: str = "dot",
    scale: float | torch.Tensor | None = None,
    att: torch.Tensor | None = None,
    negative_slope: float = 0.2,
    bias: torch.Tensor | None = None,
    edge_features: torch.Tensor | None = None,
    edge_weight: torch.Tensor | None = None,
    edge_target: str = "both",
    gate: torch.Tensor | None = None,
    normalize: bool = True,
    clamp: float | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    key_padding_mask: torch.Tensor | None = None,
    edge_order: str = "coo",
    return_weights: bool = False,
    impl: str = "auto",
) -> Any:
    """Attention over the edges of a graph with the scores of graph layers, all heads of a node at once.

    For row i of A (a target) and its nonzeros j (sources) it computes the sum of w_ij v_ij, where w_ij is the
    softmax over j of a score of q_i and k_ij. Without edge terms k_ij and v_ij are rows j of k and v. Scores:

    - "dot": scale * q_i . k_ij (Vaswani et al. 2017; TransformerConv, Shi et al. 2021, section 3.1);
    - "additive": leaky_relu(q_i + k_j + e_ij), one number a head (GAT, Velickovic et al. 2018, equation 3);
    - "gatv2": att . leaky_relu(q_i + k_ij) (Brody et al. 2022, equation 7);
    - "cosine": scale * q_i . k_j / (|q_i| |k_j|) (AGNN, Thekumparampil et al. 2018, equation 6).

    Nothing of the size of edges x features is stored on a GPU: the backward pass computes the weights again,
    and stores two numbers for each edge and head. Operands are rounded to A's precision; sums and the softmax
    are float32. A's own weights are ignored. A row without edges, or with masked edges only, gives zeros.
    Results are the same bits in every run. Second derivatives and transforms of torch.func store features for
    each edge.

    Args:
        A: operand made by `gnnsparse.prepare`, of shape [L, S], square or not.
        q: [L, H, D], float32, float16 or bfloat16, any strides, on A's device; "additive": [L, H].
        k: [S, H, D]; "additive": [S, H].
        v: [S, H, Dv].
        score: "dot", "additive", "gatv2" or "cosine".
        scale: factor of "dot" and "cosine": a number, or a tensor of 1 or H elements, which gets a gradient.
            None: 1 / sqrt(D) for "dot", 1 for "cosine".
        att: [H, D], the vectors of "gatv2"; None with other scores.
        negative_slope: slope of leaky_relu for negative numbers.
        bias: [edges] or [edges, H], added to the scores; -inf masks an edge.
        edge_features: [edges, H, D], or [edges, D] for all heads, added to keys, values or both. "additive":
            [edges, H] or [edges], added inside leaky_relu. With `edge_weight`: [edges, d_e].
        edge_weight: [H * D, d_e], as the weight of torch.nn.Linear(d_e, H * D): edge (i, j) has the features
            edge_weight a_ij, which are never computed: q . (W a) = (W^T q) . a, and the sum of w W a is W
            times the sum of w a. With "dot" and "cosine" alone.
        edge_target: "keys", "values" or "both": what edge_features are added to; "cosine" takes "values".
        gate: [edges, H, D] or [edges, D], by which keys are multiplied (Shirzad et al. 2023, Exphormer).
            With "dot".
        normalize: whether weights are divided by their sum, as softmax does; False: they are exp(score).
        clamp: scores are clamped to [-clamp, clamp] before the bias is added; None: they are not.
        dropout_p: probability with which a weight is set to 0, in [0, 1); others are divided by 1 - p.
        is_causal: whether edges with column > row are masked.
        key_padding_mask: bool [S], True for sources that are masked.
        edge_order: order of edge tensors that are given and returned: "coo": that of the edges given to
            `prepare`; "operand": A's own order, as `A.from_coo_order` gives it, which saves reordering.
        return_weights: whether the weights after dropout are returned too; they are computed once more.
        impl: "auto" (kernels of A's device), "cpu", "cuda", or "reference" (plain torch, which stores a row
            of features for each edge, and accepts float64 as well).

    Returns:
        [L, H, Dv] in the dtype of v; with `return_weights` a pair of that and the weights [edges, H].

    Raises:
        TypeError: an argument is of another type or dtype.
        ValueError: an argument is out of range, has another shape or device, or does not go with the score;
            edges were repeated in `prepare`, and a tensor has a row for each; or A's format has no attention,
            or that of dot products and cosines alone.
        RuntimeError: the native module was built without CUDA and A is on a GPU.
    """
    check_operand(A)
    kind = resolve_impl(impl, A)
    if A.operations is not None:
        options = {
            "score": score, "scale": scale, "att": att, "negative_slope": negative_slope, "bias": bias,
            "edge_features": edge_features, "edge_weight": edge_weight, "edge_target": edge_target,
            "gate": gate, "normalize": normalize, "clamp": clamp, "dropout_p": dropout_p,
            "is_causal": is_causal, "key_padding_mask": key_padding_mask, "edge_order": edge_order,
            "return_weights": return_weights, "impl": impl,
        }  # fmt: skip
        return A.operations.graph_attention(A, q, k, v, options)
    dtypes = (*FLOATS, torch.float64) if kind == "reference" else FLOATS
    check_choice("score", score, checks.SCORES)
    check_choice("edge_target", edge_target, ("both", "keys", "values"))
    in_coo = check_choice("edge_order", edge_order, ("coo", "operand")) == "coo"
    flags = {"normalize": normalize, "is_causal": is_causal, "return_weights": return_weights}
    for name, flag in flags.items():
        check_flag(name, flag)
    if kind != "reference":
        dots = score in ("dot", "cosine") and not return_weights
        A.kernels.require("A", "graph_attention", "sddmm" if dots else None)
    given = checks.Given(A, score, dtypes, in_coo)
    q, k, v = given.nodes(q, k, v)
    att = given.attention_vectors(att)
    scale = given.scale(scale)
    terms = given.edge_terms(edge_features, edge_weight, gate, edge_target)
    bias = given.bias(bias, key_padding_mask)
    slope = check_number("negative_slope", negative_slope)
    limit = 0.0 if clamp is None else checks.positive("clamp", clamp)
    p = check_share("dropout_p", dropout_p)
    q, k, factor = _scaled(score, settled(q), settled(k), scale)
    mapped_q = None
    if terms.weight is not None and edge_target != "values":
        mapped_q = by_head(q, terms.weight.to(q.dtype))
    call = GraphCall(
        A, Arrays(q, k, v, att, bias, terms.features, terms.gate, terms.mapped, mapped_q),
        "dot" if score == "cosine" else score, factor, slope, edge_target != "values" or score == "additive",
        edge_target != "keys" and score != "additive", limit, normalize, is_causal, p,
    )  # fmt: skip
    if kind != "reference" and not return_weights and _suits_attention(call):
        return _as_attention(call, impl)
    if kind != "reference":
        schema.require_rows(A)
    if p > 0:
        call = call._replace(seed=draw_seed(A.device))
    out, mapped, _, weights = _output(call, kind, return_weights)
    if terms.weight is not None and edge_target != "keys":
        out = out + by_head(mapped, terms.weight.mT.to(mapped.dtype))
    if not return_weights:
        return out
    return out, (to_coo(weights, A) if in_coo else weights).to(v.dtype)
