"""The models by plain torch operations, in float64 and in the precision of a task, for checks of results.

Nothing here is code of the measured kernels and layers: weights and structure are taken from a task, and each
formula is written down from its paper.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812

from gnnsparse.bench.latency_tasks import Task
from gnnsparse.bench.workload import PEER_FACTOR, Verdict, verdict_of
from gnnsparse.formats.csr import Csr
from gnnsparse.precision import Precision, round_operand

#: The error that a result of ours may have, in units of a plain run's. More than for one kernel, because the
#: backends multiply in different orders, (A x) W or A (x W), and round between the products. Peers get
#: PEER_FACTOR, as single kernels of theirs do.
FACTOR = 4.0
#: The relative error that is allowed in any case: compilers have their own exp in fp32. A product in
#: tf32 that passes for fp32 has 50 times that error.
_FLOOR = 1e-5
#: Most elements that are gathered at a time.
_CHUNK = 2**25
#: Queries whose scores are computed at a time.
_QUERIES = 1024
_SLOPE = 0.2


@dataclass(frozen=True)
class Arithmetic:
    """How numbers are kept: in float64 (None), or as a plain run in a precision keeps them."""

    precision: Precision | None

    @property
    def dtype(self) -> torch.dtype:
        """The dtype that is computed in."""
        return torch.float64 if self.precision is None else torch.float32

    def operand(self, x: torch.Tensor) -> torch.Tensor:
        """Round an operand of a product."""
        if self.precision is None:
            return x.double()
        return round_operand(x.float(), self.precision).float()

    def stored(self, x: torch.Tensor) -> torch.Tensor:
        """Round a result to the dtype that it is stored in."""
        return x if self.precision is None else x.to(self.precision.storage).to(self.dtype)

    def linear(self, x: torch.Tensor, linear: Any) -> torch.Tensor:
        """Compute a linear layer."""
        out = self.operand(x) @ self.operand(linear.weight).T
        return self.stored(out if linear.bias is None else out + linear.bias)

    def norm(self, x: torch.Tensor, norm: Any) -> torch.Tensor:
        """Compute a layer norm."""
        weight, bias = norm.weight.to(self.dtype), norm.bias.to(self.dtype)
        return self.stored(F.layer_norm(x, norm.normalized_shape, weight, bias, norm.eps))


class Answers(NamedTuple):
    """The results that a backend's is compared with: in float64, and of plain operations in the precision."""

    exact: torch.Tensor
    plain: torch.Tensor


@torch.no_grad()
def answers_of(task: Task, dense: bool = False) -> Answers:
    """Compute the right results of a task; `dense`: attention of all pairs instead of the pattern's."""
    # Parameters are rounded to the dtype that every backend stores them in.
    module = copy.deepcopy(task.module).to(task.precision.storage).float()
    compute = partial(_encoder, dense=dense) if task.model == "transformer" else _GRAPH_MODELS[task.model]
    rounded = replace(task, module=module)
    exact, plain = (compute(rounded, Arithmetic(p)) for p in (None, task.precision))
    return Answers(exact, plain.to(task.precision.storage))


def judge(result: torch.Tensor, task: Task, answers: Answers, backend: str = "gnnsparse") -> Verdict:
    """Compare a backend's result with the right one."""
    factor = FACTOR if backend == "gnnsparse" else PEER_FACTOR
    return verdict_of(result, task.shown(result), answers.plain, answers.exact, factor, _FLOOR)


def _edges(csr: Csr, width: int) -> Iterator[tuple[slice, torch.Tensor, torch.Tensor]]:
    """Yield (place, row, column) of a part of the nonzeros at a time."""
    rows, size = csr.row_index(), max(1, _CHUNK // max(width, 1))
    for begin in range(0, csr.nnz, size):
        part = slice(begin, min(begin + size, csr.nnz))
        yield part, rows[part], csr.indices[part].long()


def _sum(csr: Csr, weights: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Add rows of x over the neighbours, out[i] = sum_j weights[ij] x[j]; weights [nnz] or [nnz, heads]."""
    out = x.new_zeros((csr.rows, *x.shape[1:]))
    for part, row, col in _edges(csr, x[0].numel()):
        out.index_add_(0, row, weights[part, ..., None] * x[col])
    return out


def softmax_by_row(scores: torch.Tensor, row: torch.Tensor, rows: int) -> torch.Tensor:
    """Compute the softmax of the scores, [nnz] or [nnz, heads], of the nonzeros of each of `rows` rows."""
    index, shape = row.reshape(-1, *[1] * (scores.dim() - 1)).expand_as(scores), (rows, *scores.shape[1:])
    largest = scores.new_full(shape, float("-inf")).scatter_reduce_(0, index, scores, "amax")
    weights = (scores - largest[row]).exp()
    return weights / scores.new_zeros(shape).index_add_(0, row, weights)[row]


def _gcn(task: Task, how: Arithmetic) -> torch.Tensor:
    """Kipf and Welling 2017, equation 2, one time for each layer."""
    csr, _ = task.csr.add_self_loops()
    scale = csr.degrees.to(how.dtype).rsqrt()
    row, col = csr.row_index(), csr.indices.long()
    weights = how.operand(scale[row] * scale[col])
    stack: Any = task.module
    x = task.x
    for number, conv in enumerate(stack.convs):
        x = x if number == 0 else F.relu(x)
        product = how.linear(x, conv.lin)
        x = how.stored(_sum(csr, weights, how.operand(product)) + conv.bias.to(how.dtype))
    return x


def _agnn(task: Task, how: Arithmetic) -> torch.Tensor:
    """Thekumparampil et al. 2018, equation 6, between two linear layers."""
    csr, _ = task.csr.add_self_loops()
    stack: Any = task.module
    x = F.relu(how.linear(task.x, stack.before))
    for conv in stack.convs:
        unit = how.operand(how.stored(F.normalize(x.to(how.dtype), dim=1)))
        scores = torch.cat([(unit[row] * unit[col]).sum(1) for _, row, col in _edges(csr, 2 * x.shape[1])])
        weights = how.operand(softmax_by_row(conv.beta.to(how.dtype) * scores, csr.row_index(), csr.rows))
        x = how.stored(_sum(csr, weights, how.operand(x)))
    return how.linear(x, stack.after)


def _gat(task: Task, how: Arithmetic) -> torch.Tensor:
    """Velickovic et al. 2018, equations 1 to 5."""
    csr, _ = task.csr.add_self_loops()
    stack: Any = task.module
    x = task.x
    for number, conv in enumerate(stack.convs):
        x = x if number == 0 else F.elu(x)
        h = how.linear(x, conv.lin).unflatten(1, (conv.heads, -1))
        of_source, of_target = (
            how.stored((h * vector.to(how.dtype)).sum(-1)) for vector in (conv.att_src, conv.att_dst)
        )
        scores = torch.cat([of_target[row] + of_source[col] for _, row, col in _edges(csr, 2 * conv.heads)])
        weights = how.operand(softmax_by_row(F.leaky_relu(scores, _SLOPE), csr.row_index(), csr.rows))
        out = _sum(csr, weights, how.operand(h)).flatten(1)
        x = how.stored(out + conv.bias.to(how.dtype))
    return x


_GRAPH_MODELS: dict[str, Callable[[Task, Arithmetic], torch.Tensor]] = {
    "gcn": _gcn, "agnn": _agnn, "gat": _gat,
}  # fmt: skip


def _encoder(task: Task, how: Arithmetic, dense: bool) -> torch.Tensor:
    """Vaswani et al. 2017, section 3, layer norms after the sums, on the sequences that are checked."""
    module: Any = task.module
    x = task.shown(task.x).to(how.dtype)
    for layer in module.layers:
        x = how.norm(x + _attention(task, how, layer.self_attn, x, dense), layer.norm1)
        hidden = how.stored(F.gelu(how.linear(x, layer.linear1)))
        x = how.norm(x + how.linear(hidden, layer.linear2), layer.norm2)
    return x


def _attention(task: Task, how: Arithmetic, layer: Any, x: torch.Tensor, dense: bool) -> torch.Tensor:
    projected = how.operand(x) @ how.operand(layer.in_proj_weight).T + layer.in_proj_bias.to(how.dtype)
    q, k, v = (
        part.unflatten(-1, (layer.num_heads, -1)).transpose(1, 2)
        for part in how.operand(how.stored(projected)).chunk(3, dim=-1)
    )
    out = torch.empty_like(q)
    indptr = task.csr.indptr
    for begin in range(0, x.shape[1], _QUERIES):
        rows = slice(begin, min(begin + _QUERIES, x.shape[1]))
        scores = q[:, :, rows] @ k.transpose(-2, -1) / q.shape[-1] ** 0.5
        if not dense:
            nonzeros = slice(int(indptr[rows.start]), int(indptr[rows.stop]))
            counts = indptr[rows.start : rows.stop + 1].diff()
            row = torch.repeat_interleave(torch.arange(counts.numel(), device=x.device), counts)
            mask = torch.ones(counts.numel(), x.shape[1], dtype=torch.bool, device=x.device)
            mask[row, task.csr.indices[nonzeros].long()] = False
            scores = scores.masked_fill(mask, float("-inf"))
        # A row without an edge has no weights: its result is 0.
        out[:, :, rows] = how.operand(torch.nan_to_num(scores.softmax(-1))) @ v
    return how.linear(how.stored(out).transpose(1, 2).flatten(2), layer.out_proj)
