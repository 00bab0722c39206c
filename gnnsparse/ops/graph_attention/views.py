"""Native handles of graph attention's arguments, for kernels of every device."""

from __future__ import annotations

import torch

from gnnsparse import _native
from gnnsparse.ops.graph_attention.call import SCORE_CODES, Arrays, GraphCall, Result
from gnnsparse.precision import Precision, round_operand

__all__ = ["heads_view", "problem_of", "readable", "result_view", "rounded"]

_NO_HEADS = _native.Heads()


def heads_view(x: torch.Tensor | None, heads: int) -> _native.Heads:
    """Returns the native handle of [rows, H or 1, width] with contiguous rows, or of numbers [rows, H or 1].

    What has one head is shared by all of them. None gives the handle of nothing.
    """
    return _NO_HEADS if x is None else _native.Heads.of_rows(x, heads)


def rounded(x: torch.Tensor, precision: Precision) -> torch.Tensor:
    """Returns [rows, ..., width] rounded to the precision, in its storage dtype, with contiguous rows."""
    x = round_operand(x, precision)
    return x if x.shape[-1] < 2 or x.stride(-1) == 1 else x.contiguous()


def readable(call: GraphCall) -> GraphCall:
    """Returns the call with its tensors as kernels read them.

    Operands of products are rounded to the precision. Biases, `att`, and with additive scores all but the
    values are in float32. Rows are contiguous.
    """
    precision = call.operand.precision
    scored = Precision.FP32 if call.score == "additive" else precision

    def of(x: torch.Tensor | None, to: Precision) -> torch.Tensor | None:
        return None if x is None else rounded(x, to)

    a = call.arrays
    return call.with_arrays(
        Arrays(
            of(a.q, scored), of(a.k, scored), of(a.v, precision), of(a.att, Precision.FP32),
            None if a.bias is None else a.bias.float(), of(a.features, scored), of(a.gate, precision),
            of(a.mapped, precision), of(a.mapped_q, precision),
        )
    )  # fmt: skip


def problem_of(call: GraphCall) -> _native.GraphAttention:
    """Returns the native handle of a call that `readable` has returned."""
    arrays, heads, additive = call.arrays, call.heads, call.score == "additive"
    att = None if arrays.att is None else arrays.att[None]
    mapped = None if arrays.mapped is None else arrays.mapped[:, None]
    return _native.GraphAttention(
        heads_view(arrays.q, heads), heads_view(arrays.k, heads), heads_view(arrays.v, heads),
        heads_view(att, heads), heads_view(arrays.bias, heads), heads_view(arrays.features, heads),
        call.to_keys or additive,
        call.to_values and not additive, heads_view(arrays.gate, heads), heads_view(mapped, heads),
        heads_view(arrays.mapped_q, heads), SCORE_CODES[call.score], call.scale, call.negative_slope,
        call.clamp, call.normalize, call.is_causal, call.dropout_p, call.seed, call.operand.precision.code,
    )  # fmt: skip


def result_view(result: Result) -> _native.GraphAttentionResult:
    """Returns the native handle of the results of the forward pass, whose rows are contiguous."""
    heads = result.out.shape[1]
    return _native.GraphAttentionResult(
        heads_view(result.out, heads), heads_view(result.mapped, heads), heads_view(result.stats, heads)
    )
