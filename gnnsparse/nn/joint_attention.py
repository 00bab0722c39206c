"""Graph attention of linear maps of the same nodes, as one step of autograd on a GPU.

One product makes all that attention reads of a node, and the kernels write their gradients into the columns
of one matrix, whose products are the gradients of nodes and weights: nothing is concatenated or added up.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812

from gnnsparse.nn.bias import column_sum
from gnnsparse.ops.attention import schema, unfused
from gnnsparse.ops.attention.api import rows_are_faster
from gnnsparse.ops.attention.arguments import Arrays, GraphCall, Result
from gnnsparse.ops.attention.philox import draw_seed
from gnnsparse.ops.dispatch import direct, is_plain, needs_grad
from gnnsparse.runtime.device import path
from gnnsparse.runtime.functorch import alive, is_batch_of_gradients, is_eager, materialised
from gnnsparse.sparse.operand import SparseOperand


@lru_cache
def _columns(score: str, heads: int, width: int, has_root: bool) -> dict[str, slice]:
    names = {"dot": "qkv", "gatv2": "kq", "additive": "vqk"}[score]
    found, at = {}, 0
    for name in names + "r" * has_root:
        size = heads if score == "additive" and name in "qk" else heads * width
        found[name], at = slice(at, at + size), at + size
    return {**found, "": slice(at, None)}


class Joint(NamedTuple):
    """Graph attention over an operand, of parts of a product's columns.

    "dot" reads queries, keys and values in this order, "gatv2" keys (which are values) and queries,
    "additive" values and one number a head of targets and of sources. Then come the columns of `has_root`,
    which are added to the result, and any others.
    """

    operand: SparseOperand
    score: str
    heads: int
    width: int
    has_root: bool = False
    has_edges: bool = False  # in every row
    negative_slope: float = 0.2
    dropout_p: float = 0.0

    def columns(self) -> dict[str, slice]:
        """Return the columns of queries, keys, values and the root by their letters, and others."""
        return _columns(self.score, self.heads, self.width, self.has_root)

    def call(self, product: torch.Tensor, att: torch.Tensor | None, seed: torch.Tensor | None) -> GraphCall:
        """Return the call of the kernels."""
        parts = self.parts(product)
        if self.score == "additive":  # of which kernels read float32
            parts["q"], parts["k"] = product[:, self.columns()["q"].start :].float().split(self.heads, 1)[:2]
        arrays = Arrays(parts["q"], parts["k"], parts.get("v", parts["k"]), att)
        return GraphCall(
            self.operand, arrays, self.score, self.width**-0.5 if self.score == "dot" else 1.0,
            self.negative_slope, to_values=self.score != "additive", dropout_p=self.dropout_p, seed=seed,
        )  # fmt: skip

    def parts(self, product: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return what attention reads as views of the product, [nodes, heads, width] or [nodes, heads]."""
        columns, sizes = self.columns(), (self.heads, self.width)
        parts = {name: product[:, columns[name]] for name in columns if name in ("q", "k", "v")}
        if self.score == "additive":
            return {**parts, "v": parts["v"].unflatten(1, sizes)}
        return {name: part.unflatten(1, sizes) for name, part in parts.items()}

    def with_values(
        self, weight: torch.Tensor, bias: torch.Tensor | None, added: torch.Tensor
    ) -> torch.Tensor:
        """Return a bias of the product that adds `added` to all values, and so to weighted means of them."""
        whole = weight.new_zeros(weight.shape[0]) if bias is None else bias.clone()
        columns = self.columns()
        whole[columns.get("v", columns["k"])] += added
        if self.score == "gatv2":  # whose values are keys: their sums with queries stay what they are
            whole[columns["q"]] -= added
        return whole

    def added(self, out: torch.Tensor, product: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """Return the result of attention [nodes, heads, width] side by side, with the root and a bias."""
        y = out.flatten(1)
        y = y + product[:, self.columns()["r"]] if self.has_root else y
        return y if bias is None else y + bias.to(y.dtype)


class _JointAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None,
        att: torch.Tensor | None, added: torch.Tensor | None, seed: torch.Tensor | None, joint: Joint,
    ) -> torch.Tensor:  # fmt: skip
        device, read = x.device.type, x
        if torch.is_autocast_enabled(device):
            read = x.to(torch.get_autocast_dtype(device))
        more, after = bias, added
        if added is not None and joint.has_edges and joint.dropout_p == 0:
            # Weights of a row have the sum 1, and a product adds a bias for nothing.
            more, after = joint.with_values(weight, bias, added), None
        product = F.linear(read, weight, more)
        result = Result(*schema.run_graph(joint.call(product, att, seed), False, for_grads=True)[:4])
        ctx.joint = joint
        results = read, product, result.out, result.stats, result.sloped
        ctx.save_for_backward(x, weight, bias, att, added, seed, *results)
        return joint.added(result.out, product, after)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        *inputs, seed, read, product, out, stats, sloped = alive(ctx.saved_tensors)
        needs = ctx.needs_input_grad[:5]
        if needs_grad(grad, *inputs) or is_batch_of_gradients(grad) or not is_plain(grad):
            found = schema.with_graph(lambda again: _by_operations(again, seed, ctx.joint, product.dtype),
                                      inputs, needs, [grad])  # fmt: skip
            return *found, None, None
        x, weight, bias, att, added = inputs
        grad = materialised(grad).contiguous()
        joined, of_att = _gradients(ctx.joint, product, att, seed, Result(out, None, stats, sloped), grad)
        return (
            joined.mm(weight.to(joined.dtype)).to(x.dtype) if needs[0] else None,
            joined.t().mm(read).to(weight.dtype) if needs[1] else None,
            column_sum(joined).to(bias.dtype) if needs[2] else None,
            of_att,
            column_sum(grad).to(added.dtype) if needs[4] else None,
            None,
            None,
        )


def _gradients(
    joint: Joint, product: torch.Tensor, att: torch.Tensor | None, seed: torch.Tensor | None,
    result: Result, grad: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor | None]:  # fmt: skip
    """Return the gradient of the product, contiguous, and that of the attention vectors."""
    joined, columns = product.new_empty(product.shape), joint.columns()
    into = joint.parts(joined)
    needs = tuple(name in ("q", "k", "v") or (name == "att" and att is not None) for name in Arrays._fields)
    heads = grad.unflatten(1, (joint.heads, joint.width))
    found = schema.graph_gradients(
        joint.call(product, att, seed), result, [heads, None, None], needs,
        Arrays(into["q"], into["k"], into.get("v")),
    )  # fmt: skip
    for name, to in into.items():
        if (one := getattr(found, name)) is not to:
            to.copy_(one)
    if joint.has_root:
        joined[:, columns["r"]] = grad
    if (others := joined[:, columns[""]]).shape[1] > 0:
        others.zero_()
    return joined, found.att


def _by_operations(
    inputs: list[Any], seed: torch.Tensor | None, joint: Joint, dtype: torch.dtype
) -> tuple[torch.Tensor]:
    """Compute the same with operations that have second derivatives."""
    x, weight, bias, att, added = inputs
    product = F.linear(x.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype))
    result, _ = unfused.graph_forward(joint.call(product, att, seed))
    return (joint.added(result.out, product, added),)


_recorded = direct(_JointAttention)


def suits(joint: Joint, x: torch.Tensor, *parameters: torch.Tensor | None) -> bool:
    """Return whether a call is one of training on a GPU, where no other kernels are faster."""
    operand, tensors = joint.operand, (x, *parameters)
    if not (is_eager() and is_plain(*tensors) and needs_grad(*tensors) and path().takes(operand.device)):
        return False
    if x.layout is not torch.strided or operand.operations is not None or operand.kernels.runs_format_alone:
        return False
    if x.device != operand.device or x.dtype is torch.float64 or operand.shape != (x.shape[0], x.shape[0]):
        return False
    sizes = joint.width, False, joint.width, joint.heads, joint.dropout_p > 0
    return joint.score != "dot" or rows_are_faster(operand, sizes, with_grad=True)


def joint_attention(
    joint: Joint, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None,
    att: torch.Tensor | None = None, added: torch.Tensor | None = None,
) -> torch.Tensor:  # fmt: skip
    """Compute attention of the columns of x W^T + b: [nodes, heads * width], to which `added` is added."""
    seed = draw_seed(joint.operand.device) if joint.dropout_p > 0 else None
    return _recorded(x, weight, bias, att, added, seed, joint)
