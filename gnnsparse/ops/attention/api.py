"""The public functions `attention` and `graph_attention`: they check arguments and call a kernel."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812

from gnnsparse.errors import bad_value, check_choice, check_flag, check_number, check_share, check_tensor
from gnnsparse.formats.csr import PaddedCsr
from gnnsparse.ops.arguments import check_fits, check_operand, dtypes_of, resolve_impl
from gnnsparse.ops.attention import schema
from gnnsparse.ops.attention.arguments import Arrays, AttentionCall, GraphCall, to_edges, to_heads
from gnnsparse.ops.attention.edges import from_coo, to_coo
from gnnsparse.ops.attention.libraries import LIBRARY_PLANS, why_not
from gnnsparse.ops.attention.philox import draw_seed
from gnnsparse.ops.attention.schema import Outputs
from gnnsparse.ops.attention.unfused import by_operations, by_products, graph_forward
from gnnsparse.ops.dispatch import is_plain, needs_grad
from gnnsparse.ops.segments import inverse_lengths
from gnnsparse.plan import KERNELS, AttentionPlan, AttentionProblem, CsrAttentionPlan, Plan, UnfusedPlan
from gnnsparse.plan.attention import FUSED_GRAD
from gnnsparse.plan.choose import kernel_of
from gnnsparse.precision import Precision
from gnnsparse.runtime.device import path
from gnnsparse.runtime.functorch import is_eager, materialised
from gnnsparse.runtime.nvtx import ranged
from gnnsparse.sparse.kernel_cache import Product
from gnnsparse.sparse.operand import SparseOperand

__all__ = ["attention", "graph_attention"]

#: The kernels that `impl=` of attention may name, by their names in plans.
_NAMED_KERNELS = {
    "panels": "attention", "csr": "attention_csr", "blocks": "blocks", "flex": "flex", "fa4": "fa4",
}  # fmt: skip
#: Of `_suits_products`: edges of a row for each head, and weights that are stored.
_SHORT_ROW, _MOST_WEIGHTS = 8, 1 << 22
#: Of `_suits_expansion`: mean edges of a row.
_FEW_EDGES = 4


def _check_heads(
    a: SparseOperand, q: Any, k: Any, v: Any, dtypes: tuple[torch.dtype, ...]
) -> tuple[int, ...]:
    """Return the leading sizes that q, k and v are broadcast to; raise if an argument does not fit."""
    (rows, cols), device = a.shape, a.device
    for name, x, size in (("q", q, rows), ("k", k, cols), ("v", v, cols)):
        check_tensor(name, x, dtypes=dtypes, device=device)
        if x.dim() < 2 or x.shape[-2] != size:
            bad_value(name, f"has shape {tuple(x.shape)}; accepted: (.., {size}, any) for this A")
        check_fits(name, x, a)
    if k.shape[-1] != q.shape[-1]:
        bad_value("k", f"has {k.shape[-1]} features; accepted: {q.shape[-1]}, as q")
    leading = tuple(q.shape[:-2])
    for name, x in (("k", k), ("v", v)):
        if x.shape[:-2] == leading:
            continue
        try:
            leading = tuple(torch.broadcast_shapes(leading, x.shape[:-2]))
        except RuntimeError:
            bad_value(name, f"has leading sizes {tuple(x.shape[:-2])}; accepted: {leading}, or 1 in places")
    return leading


def check_bias(
    a: SparseOperand, bias: Any, leading: tuple[int, ...], dtypes: tuple[torch.dtype, ...]
) -> None:
    """Raise unless a bias has a value for each edge of A, and sizes that are broadcast to `leading`."""
    check_tensor("bias", bias, dtypes=dtypes, device=a.device)
    sizes = tuple(bias.shape[:-1])
    fits = bias.dim() >= 1 and len(sizes) <= len(leading) and bias.shape[-1] == a.nnz
    pairs = zip(reversed(sizes), reversed(leading), strict=False)
    if not fits or any(size not in (1, full) for size, full in pairs):
        wanted = ", ".join(map(str, (*leading, a.nnz)))
        bad_value(
            "bias",
            f"has shape {tuple(bias.shape)}; accepted: ({a.nnz},) or ({wanted}) with leading sizes of 1 "
            "in places, one value for each edge of A",
        )


def _check_fused(call: AttentionCall, return_weights: bool, in_transform: bool) -> None:
    if in_transform:
        bad_value(
            "fused",
            "got True inside a transform of torch.func or forward-mode AD, where the three operations run; "
            "accepted: None, False",
        )
    if return_weights:
        bad_value(
            "fused",
            "got True with return_weights, which stores a weight for each edge; accepted: None, False",
        )
    plan = call.operand.kernels.plan_of(call.product("attention"))
    if isinstance(plan, UnfusedPlan) and min(call.heads, call.operand.nnz, call.v.shape[3], call.q.shape[3]):
        bad_value("fused", f"got True, but there is no fused kernel here ({'; '.join(plan.reasons)})")


def _named_plan(call: AttentionCall, name: str, plan: Plan | None, as_unfused: bool) -> Plan:
    """Return the plan of the kernel that `impl` names; raise ValueError if it can't run the call."""
    if plan is not None:
        bad_value("plan", f"got one with impl={name!r}, which names a kernel; accepted: None")
    if as_unfused:
        bad_value("impl", f"{name!r} stores no weights, has no fused=False and runs in no transform")
    kernels, product = call.operand.kernels, call.product("attention")
    problem = kernels.problem(product, counts_tiles=True)
    (kernel,) = (kernel for kernel in KERNELS["attention"] if kernel.name == _NAMED_KERNELS[name])
    why = kernel.can_run(problem).problem
    if problem.device.type not in kernel.devices:
        why = f"the operand is on {call.operand.device}"
    if not why:
        found = kernel.default(problem)
        if isinstance(found, AttentionPlan):
            grad = kernels.problem(call.product("attention_grad"), call.operand.T.kernels, counts_tiles=False)
            assert isinstance(grad, AttentionProblem)
            found = replace(found, backward=FUSED_GRAD.default(grad))
        why = why_not(call, found) if isinstance(found, LIBRARY_PLANS) else ""
    if why:
        bad_value("impl", f"{name!r} can't run: {why}")
    return found


@ranged("attention")
def attention(
    A: SparseOperand,  # noqa: N803
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    scale: float | None = None,
    bias: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    return_weights: bool = False,
    fused: bool | None = None,
    impl: str = "auto",
    plan: Plan | None = None,
) -> Any:
    """Attention over the edges of A: softmax(scale * q k^T + bias at A's nonzeros) v. Differentiable.

    The fused kernels make one pass over the edges and store no weight for any of them. The backward pass
    computes the weights again from two statistics of each row (Dao et al., "FlashAttention", NeurIPS 2022,
    section 3.1). Operands of both products are rounded to A's precision; sums and the softmax are float32. In
    int8 and fp8 k and v are rounded to 8 bits with a scale for each feature of each head and batch entry;
    gradients pass this rounding unchanged.
    A's own weights are ignored. A row without edges, or with masked edges only, gives zeros. It has
    forward-mode derivatives too, and composes with torch.func. Inside its transforms (torch.vmap among them)
    and for second derivatives the three operations of `fused=False` run.

    Args:
        A: operand made by `gnnsparse.prepare`, of shape [L, S]: row i attends to the columns of its
            nonzeros.
        q: [..., L, D], float32, float16 or bfloat16, any strides, on A's device. All leading dimensions
            (batch, heads) share the pattern of A.
        k: [..., S, D], of a dtype that q may have; leading sizes of q, k and v are broadcast.
        v: [..., S, Dv], of a dtype that q may have.
        scale: factor of the dot products; None: 1 / sqrt(D).
        bias: [nnz] or [..., nnz], in A's own order (`A.from_coo_order`), added to the scaled scores; leading
            sizes are those of q, or 1. -inf masks an edge. It gets a gradient. None: no bias.
        dropout_p: probability with which a weight is set to 0, in [0, 1); the others are divided by
            1 - dropout_p. Which ones are dropped depends only on one seed, which is drawn from the device's
            default generator in torch: not on strides, the kernel or the device.
        is_causal: whether edges with column > row are masked.
        return_weights: whether the weights after dropout are returned as well. They are then stored for each
            edge and head, as `fused=False` does.
        fused: None: the plan decides, which `A.plan(op="attention", width=D, heads=H)` returns with its
            reasons. False: `sddmm`, `edge_softmax` and `spmm` run for each head. True: a fused kernel runs,
            or an error is raised if none can.
        impl: "auto" (kernels of A's device), "cpu", "cuda", or "reference" (plain torch, which stores all
            weights and accepts float64 as well). On a GPU it may name a kernel, for the gradients too:
            "panels", "csr", "blocks" (over 128 x 128 tiles), "flex" (torch's FlexAttention) or "fa4"
            (package flash-attn-4; not the same bits in every run).
        plan: kernel and parameters to run with, as returned by `A.plan`; None: A's own plan. Calls inside
            torch.compile ignore it, and a kernel named by `impl`.

    Returns:
        [..., L, Dv] in the dtype of q; with `return_weights` a pair of that and the weights [..., nnz], in
        A's own order and the dtype of q.

    Raises:
        TypeError: an argument is of another type or dtype.
        ValueError: a shape or a device does not go with A, dropout_p is out of range, `impl`, `plan` or
            fused=True can't run there, or A's format has no attention. A format that has it runs the three
            operations for each head.
        RuntimeError: the native module was built without CUDA and A is on a GPU.
    """
    check_operand(A)
    kind = resolve_impl(impl, A, tuple(_NAMED_KERNELS))
    if A.operations is not None:
        given = {
            "scale": scale, "bias": bias, "dropout_p": dropout_p, "is_causal": is_causal,
            "return_weights": return_weights, "fused": fused, "impl": impl, "plan": plan,
        }  # fmt: skip
        return A.operations.attention(q, k, v, given)
    if kind != "reference":
        A.kernels.require("A", "attention", "sddmm")
    dtypes = dtypes_of(kind)
    leading = _check_heads(A, q, k, v, dtypes)
    if bias is not None:
        check_bias(A, bias, leading, dtypes)
        bias = to_edges(bias, leading)
    for name, flag in (("is_causal", is_causal), ("return_weights", return_weights)):
        check_flag(name, flag)
    if fused is not None:
        check_flag("fused", fused)
    factor, p = 1 / max(q.shape[-1], 1) ** 0.5, check_share("dropout_p", dropout_p)
    if scale is not None:
        factor = check_number("scale", scale, "a finite number in the range of float32, or None")
    return _checked(
        A, q, k, v, bias, leading, factor, p, is_causal, kind, return_weights=return_weights, fused=fused,
        plan=plan, kernel=impl if impl in _NAMED_KERNELS else "",
    )  # fmt: skip


def _checked(
    a: SparseOperand, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor | None,
    leading: tuple[int, ...], factor: float, p: float, is_causal: bool, kind: str, *,
    return_weights: bool = False, fused: bool | None = None, plan: Plan | None = None, kernel: str = "",
) -> Any:  # fmt: skip
    """Compute `attention` of arguments that have been checked; the bias is as `to_edges` returns it."""
    seed = draw_seed(a.device) if p > 0 else None
    shape = (*leading, a.shape[0], v.shape[-1])
    native, quick = is_plain(q, k, v, bias), is_eager()
    q, k, v = materialised(q), materialised(k), materialised(v)
    bias = None if bias is None else materialised(bias)
    records = native and needs_grad(q, k, v, bias)
    in_transform = native and not quick
    as_unfused = return_weights or fused is False or kind == "reference" or in_transform
    as_is = records and len(leading) < 2 and not as_unfused and fused is None and plan is None and not kernel
    if as_is and q.dim() == k.dim() == v.dim() and q.shape[:-2] == k.shape[:-2] == v.shape[:-2]:
        return schema.recorded(q, k, v, bias, seed, a, factor, p, is_causal, None)[0]
    call = AttentionCall(
        a, to_heads(q, leading), to_heads(k, leading), to_heads(v, leading), bias, seed, factor, p, is_causal
    )
    if fused:
        _check_fused(call, return_weights, in_transform)
    if kernel:
        plan = _named_plan(call, kernel, plan, as_unfused)
    elif plan is not None:
        counts = isinstance(plan, LIBRARY_PLANS) or None
        problem = a.kernels.problem(call.product("attention"), counts_tiles=counts)
        kernel_of("attention", plan).check(problem, plan)
    if as_unfused:
        out, weights = by_operations(call, "reference" if kind == "reference" else "auto")
        out = out.reshape(shape)
        return (out, weights.reshape(*leading, a.nnz)) if return_weights else out
    tensors, options = (call.q, call.k, call.v, bias, seed), (factor, p, is_causal)
    if not native:
        out, _ = torch.ops.gnnsparse.attention(*tensors, a.handle, *options)
    elif records:
        out, _ = schema.recorded(*tensors, a, *options, plan)
    else:
        out, _ = schema.run_forward(call, plan)
    return out if out.shape == shape else out.reshape(shape)


# Graph attention.


#: The names of the scores.
_SCORES = ("dot", "additive", "gatv2", "cosine")
_DOTS = ("dot", "cosine")


@dataclass
class _Given:
    """Checks of arguments that have to go together; heads, width (D) and value_width are known after `nodes`.

    `in_coo`: edge tensors are in the order of the edges given to `prepare`.
    """

    operand: SparseOperand
    score: str
    dtypes: tuple[torch.dtype, ...]
    in_coo: bool
    heads: int = 0
    width: int = 1
    value_width: int = 0

    def _dense(self, name: str, x: Any, shape: tuple[int | None, ...] | None) -> torch.Tensor:
        check_tensor(name, x, dtypes=self.dtypes, device=self.operand.device, shape=shape)
        return x

    def nodes(self, q: Any, k: Any, v: Any) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        rows, cols = self.operand.shape
        v = self._dense("v", v, (cols, None, None))
        _, self.heads, self.value_width = v.shape
        if self.heads == 0:
            bad_value("v", f"has shape {tuple(v.shape)}; accepted: at least one head")
        if self.score == "additive":
            q, k = self._dense("q", q, (rows, self.heads)), self._dense("k", k, (cols, self.heads))
        else:
            q = self._dense("q", q, (rows, self.heads, None))
            self.width = q.shape[2]
            k = self._dense("k", k, (cols, self.heads, self.width))
        for name, x in (("q", q), ("k", k), ("v", v)):
            check_fits(name, x.movedim(1, 0) if x.dim() == 3 else x, self.operand)
        return materialised(q), materialised(k), materialised(v)

    def attention_vectors(self, att: Any) -> torch.Tensor | None:
        if (att is not None) != (self.score == "gatv2"):
            got, accepted = ("None", "a tensor [H, D]") if att is None else ("a tensor", "None")
            bad_value("att", f"got {got} with score={self.score!r}; accepted: {accepted}")
        return None if att is None else materialised(self._dense("att", att, (self.heads, self.width)))

    def scale(self, scale: Any) -> float | torch.Tensor | None:
        if scale is not None and self.score not in _DOTS:
            bad_value("scale", f"got one with score={self.score!r}; accepted: None")
        if not isinstance(scale, torch.Tensor):
            return None if scale is None else check_number("scale", scale)
        self._dense("scale", scale, None)
        if scale.dim() > 1 or scale.numel() not in (1, self.heads):
            bad_value("scale", f"has shape {tuple(scale.shape)}; accepted: (), (1,) or ({self.heads},)")
        return materialised(scale)

    @property
    def _edges(self) -> int:
        return self.operand.num_edges if self.in_coo else self.operand.nnz

    def _ordered(self, name: str, x: torch.Tensor) -> torch.Tensor:
        x = materialised(x)
        return from_coo(name, x, self.operand) if self.in_coo else x

    def _per_head(self, name: str, x: Any, sizes: tuple[int, ...]) -> torch.Tensor:
        """Return [nnz, H or 1, *sizes] of a tensor [edges, H, *sizes] or [edges, *sizes]."""
        self._dense(name, x, None)
        shared, own = (self._edges, *sizes), (self._edges, self.heads, *sizes)
        if tuple(x.shape) not in (shared, own):
            bad_value(name, f"has shape {tuple(x.shape)}; accepted: {own}, or {shared} for all heads")
        return self._ordered(name, x.unsqueeze(1) if x.dim() == len(shared) else x)

    def bias(self, bias: Any, padding: Any) -> torch.Tensor | None:
        """Return the bias [nnz, H or 1] with -inf at edges from masked sources."""
        bias = None if bias is None else self._per_head("bias", bias, ())
        if padding is None:
            return bias
        (_, cols), device = self.operand.shape, self.operand.device
        check_tensor("key_padding_mask", padding, dtypes=(torch.bool,), device=device, shape=(cols,))
        masked = padding.index_select(0, self.operand.kernels.csr.indices)[:, None]
        if bias is None:
            bias = torch.zeros(self.operand.nnz, 1, dtype=torch.float32, device=device)
        return bias.masked_fill(masked, float("-inf"))

    def edge_terms(self, features: Any, weight: Any, gate: Any, target: str) -> tuple[Any, Any, Any, Any]:
        """Return `Arrays.features`, `gate` and `mapped`, and the linear map [H, D, d_e] of the last."""
        if gate is not None and self.score != "dot":
            bad_value("gate", f"got one with score={self.score!r}; accepted: score='dot'")
        if weight is not None and (self.score not in _DOTS or gate is not None):
            also = "" if gate is None else " and a gate"
            bad_value(
                "edge_weight",
                f"got one with score={self.score!r}{also}; accepted: score 'dot' or 'cosine' without a gate",
            )
        if gate is not None:
            gate = self._per_head("gate", gate, (self.width,))
        if features is not None or weight is not None:
            self._check_target(target, weight is not None)
        if weight is not None:
            if features is None:
                bad_value(
                    "edge_weight", "got one without edge_features; accepted: edge_features [edges, d_e] too"
                )
            features = self._dense("edge_features", features, (self._edges, None))
            width = self.value_width if target == "values" else self.width
            weight = self._dense("edge_weight", weight, (self.heads * width, features.shape[1]))
            weight = materialised(weight).reshape(self.heads, width, features.shape[1])
            return None, None, self._ordered("edge_features", features), weight
        if features is not None:
            sizes = () if self.score == "additive" else (self.width,)
            features = self._per_head("edge_features", features, sizes)
        return features, gate, None, None

    def _check_target(self, target: str, is_mapped: bool) -> None:
        """Raise ValueError if edge features can't be added to what they are meant for."""
        if self.score == "cosine" and target != "values":
            bad_value(
                "edge_features",
                "got features of keys with score='cosine', which divides keys by their lengths; accepted: "
                "edge_target='values'",
            )
        widths = f"keys of {self.width} and values of {self.value_width} features; accepted: v as wide as k"
        if self.score == "additive" or self.value_width == self.width:
            return
        if is_mapped and target == "both":
            bad_value("edge_weight", f"can't map to {widths}, or another edge_target")
        if not is_mapped and target != "keys":
            bad_value("edge_features", f"can't be added to {widths}, or edge_target='keys'")


def _unit(x: torch.Tensor) -> torch.Tensor:
    """Divide rows by their Euclidean lengths; rows of zeros stay zero."""
    wide = x if x.dtype == torch.float64 else x.float()  # squares of float16 overflow
    return wide * inverse_lengths(wide)


def _scaled(
    score: str, q: torch.Tensor, k: torch.Tensor, scale: Any
) -> tuple[torch.Tensor, torch.Tensor, float]:
    """Return q, k and the factor of their dot product: a tensor `scale` and lengths go into q and k."""
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
    """Return whether `attention` has better kernels for a call than those over rows, which run here."""
    a = call.arrays
    has_terms = any(x is not None for x in (a.features, a.gate, a.mapped))
    if call.score != "dot" or has_terms or not call.normalize or call.clamp != 0.0:
        return False
    if torch.compiler.is_compiling() and call.operand.kernels.quantization is not None:
        return False  # `unquantized` can't be traced
    if not is_plain(*a) or not is_eager() or not path().takes(call.operand.device):
        return True
    extras = a.bias is not None or call.dropout_p > 0 or call.is_causal
    sizes = a.q.shape[2], False, a.v.shape[2], call.heads, extras
    return not rows_are_faster(call.operand, sizes, needs_grad(*a))


def rows_are_faster(operand: SparseOperand, sizes: tuple[Any, ...], with_grad: bool) -> bool:
    """Return whether attention is planned over rows; `sizes` are those of its Product."""
    kernels = operand.kernels
    plans = [kernels.plan_of(Product("attention", *sizes))]
    if with_grad:
        plans.append(kernels.plan_of(Product("attention_grad", *sizes), operand.T.kernels))
    return all(isinstance(plan, CsrAttentionPlan) for plan in plans)


def _suits_expansion(a: SparseOperand, mapped: torch.Tensor) -> bool:
    """Return whether edge features behind a linear map are mapped for each edge, and not with the nodes.

    On a GPU rows of few edges cost less then: the products with queries and sums read and write rows anew.
    """
    is_stored = mapped.dtype == a.precision.storage and mapped.dtype.itemsize == 2
    return is_stored and path().takes(a.device) and a.nnz < _FEW_EDGES * a.shape[0]


def _suits_products(call: GraphCall) -> bool:
    """Return whether a softmax and a product of all heads side by side are faster than the CPU's kernel.

    It takes a row head by head, its edges side by side: of few edges in many heads its vectors are nearly
    empty. On an EPYC with AVX-512, one thread: 5 edges a row, 8 heads of 8 features 2.1 ms and 0.45 in place
    of it, with gradients 6.4 and 1.6; 60 edges, 4 heads of 32 features 1.0 and 1.5, and 4.7 both.
    """
    a, operand = call.arrays, call.operand
    if call.score != "additive" or operand.precision is not Precision.FP32 or path().takes(operand.device):
        return False
    if isinstance(operand.kernels.csr, PaddedCsr):  # nothing writes the gradients of its padding's weights
        return False
    if a.bias is not None or call.dropout_p > 0 or call.clamp or call.is_causal or not call.normalize:
        return False
    if not (is_eager() and is_plain(*a)) or any(x.dtype is not torch.float32 for x in (a.q, a.k, a.v)):
        return False
    is_short = operand.nnz <= _SHORT_ROW * call.heads * operand.shape[0]
    return is_short and operand.nnz * call.heads <= _MOST_WEIGHTS


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

    Nothing of the size of edges x features is stored on a GPU, but for short rows with an `edge_weight`: the
    backward pass computes the weights again, and stores two numbers for each edge and head. Operands are
    rounded to A's precision; sums and the softmax are float32. A's own weights are ignored. A row without
    edges, or with masked edges only, gives zeros. Results are the same bits in every run. Second derivatives
    and transforms of torch.func store features for each edge.

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
            edge_weight a_ij, which are not computed: q . (W a) = (W^T q) . a, and the sum of w W a is W times
            the sum of w a. A GPU does compute them in 16 bits if rows have fewer than 4 edges in the mean,
            which takes less time. With "dot" and "cosine" alone.
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
        given_options = {
            "score": score, "scale": scale, "att": att, "negative_slope": negative_slope, "bias": bias,
            "edge_features": edge_features, "edge_weight": edge_weight, "edge_target": edge_target,
            "gate": gate, "normalize": normalize, "clamp": clamp, "dropout_p": dropout_p,
            "is_causal": is_causal, "key_padding_mask": key_padding_mask, "edge_order": edge_order,
            "return_weights": return_weights, "impl": impl,
        }  # fmt: skip
        return A.operations.graph_attention(q, k, v, given_options)
    check_choice("score", score, _SCORES)
    check_choice("edge_target", edge_target, ("both", "keys", "values"))
    in_coo = check_choice("edge_order", edge_order, ("coo", "operand")) == "coo"
    flags = {"normalize": normalize, "is_causal": is_causal, "return_weights": return_weights}
    for name, flag in flags.items():
        check_flag(name, flag)
    if kind != "reference":
        dots = score in ("dot", "cosine") and not return_weights
        A.kernels.require("A", "graph_attention", "sddmm" if dots else None)
    given = _Given(A, score, dtypes_of(kind), in_coo)
    q, k, v = given.nodes(q, k, v)
    att, scale = given.attention_vectors(att), given.scale(scale)
    features, gate, mapped, weight = given.edge_terms(edge_features, edge_weight, gate, edge_target)
    if weight is not None and given.width == given.value_width and _suits_expansion(A, mapped):
        features, mapped = F.linear(mapped, weight.flatten(0, 1).to(mapped.dtype)), None
        features, weight = features.unflatten(1, weight.shape[:2]), None
    bias = given.bias(bias, key_padding_mask)
    slope = check_number("negative_slope", negative_slope)
    if clamp is not None:
        accepted = "a positive number in the range of float32"
        if check_number("clamp", clamp, accepted) <= 0:
            bad_value("clamp", f"got {clamp}; accepted: {accepted}")
    p = check_share("dropout_p", dropout_p)
    q, k, factor = _scaled(score, q, k, scale)
    call = GraphCall(
        A, Arrays(q, k, v, att, bias, features, gate, mapped, None, weight),
        "dot" if score == "cosine" else score, factor, slope, edge_target != "values" or score == "additive",
        edge_target != "keys" and score != "additive", float(clamp or 0), normalize, is_causal, p,
    )  # fmt: skip
    if kind != "reference" and not return_weights and _suits_attention(call):
        # With nothing rounded to 8 bits, as in the kernels of this operation.
        leading = (given.heads,)
        out = _checked(
            A.unquantized, q.transpose(0, 1), k.transpose(0, 1), v.transpose(0, 1),
            None if bias is None else to_edges(bias.T, leading), leading, factor, p, is_causal, kind,
        )  # fmt: skip
        return out.transpose(0, 1).to(v.dtype)
    if impl == "auto" and not return_weights and _suits_products(call):
        return by_products(call)
    if kind != "reference":
        schema.require_rows(A)
    if p > 0:
        call = call._replace(seed=draw_seed(A.device))
    native, tensors, options = is_plain(*call.arrays), (*call.arrays, call.seed), call.options
    found: Outputs
    if kind == "reference" or (native and not is_eager()):
        found = schema.outputs_of(*graph_forward(call))
    elif not native:
        found = torch.ops.gnnsparse.graph_attention(*tensors, A.handle, *options, return_weights)
    elif needs_grad(*call.arrays):
        found = schema.recorded_graph(*tensors, A, *options, return_weights)
    else:
        found = schema.run_graph(call, return_weights)
    out, *_, weights = found
    if not return_weights:
        return out
    return out, (to_coo(weights, A) if in_coo else weights).to(v.dtype)
