"""The network of an interaction block over the edges of an operand, as one kernel on Tensor Cores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812

from gnnsparse.ops import dispatch
from gnnsparse.ops.edges.reference import Edges
from gnnsparse.ops.edges.schema import edges_of, rows_of
from gnnsparse.precision import Precision
from gnnsparse.runtime.device import path
from gnnsparse.runtime.functorch import alive, is_eager, materialised, outside
from gnnsparse.runtime.memo import made_once
from gnnsparse.runtime.nvtx import ranged
from gnnsparse.sparse.operand import SparseOperand

_ACTIVATIONS = {"silu": F.silu, "relu": F.relu, "gelu": F.gelu}
_PRECISIONS = {torch.float16: Precision.FP16, torch.bfloat16: Precision.BF16}
#: Tiles of a multiprocessor whose hidden features and gradients are in memory at a time in the backward pass.
_TILES_AT_A_TIME = 4


class Options(NamedTuple):
    """The activation by its name, and what the layer norm adds to a variance; None: there is no norm."""

    act: str
    eps: float | None


def can_run(
    operand: SparseOperand, dtype: torch.dtype, sizes: tuple[int, int], *tensors: torch.Tensor
) -> bool:
    """Return whether there is a kernel for a network of features of edges and hidden ones, and for this call.

    It takes float16 and bfloat16, and sizes that are multiples of 8 of at most 256 (128 where a block of the
    GPU has less than 190 KiB of shared memory). Calls that are traced or transformed have none.
    """
    if dtype not in _PRECISIONS or not (is_eager() and dispatch.is_plain(*tensors)):
        return False
    if any(size % 8 for size in sizes) or operand.added_loops is not None or operand.num_edges == 0:
        return False
    if operand.prepared.renewable:  # tiles are made of the edges once
        return False
    return _width(operand, sizes) > 0


def _width(operand: SparseOperand, sizes: tuple[int, int]) -> int:
    """Return the width that a kernel pads a network to, or 0."""
    gpu, device = path(), operand.device
    if not gpu.takes(device) or not hasattr(gpu.native, "EdgeNetwork"):
        return 0
    major, minor = gpu.describe(device).capability
    return int(gpu.native.edge_network_width(max(sizes), 100 * major + 10 * minor))


class _Tiles(NamedTuple):
    """The edges in the order of rows: int32 [edges] targets and sources, and their numbers if they differ."""

    targets: torch.Tensor
    sources: torch.Tensor
    edge_ids: torch.Tensor | None


@made_once
def _tiles_of(operand: SparseOperand) -> _Tiles:
    with outside():
        kernels, ids, _ = rows_of(operand, False)
        targets, row_ids = kernels.csr.row_index().to(torch.int32), kernels.row_ids
        targets = targets if row_ids is None else row_ids[targets.long()]
        if ids is not None and torch.equal(ids, torch.arange(len(ids), dtype=ids.dtype, device=ids.device)):
            ids = None
        return _Tiles(targets.contiguous(), kernels.csr.indices, ids)


class _Chunk(NamedTuple):
    """Edges [first, last) by their sources: where their places begin for each of `columns`, all int32."""

    first: int
    last: int
    order: torch.Tensor
    starts: torch.Tensor
    columns: torch.Tensor


@made_once
def _chunks_of(operand: SparseOperand, size: int) -> list[_Chunk]:
    found = []
    with outside():
        sources = _tiles_of(operand).sources
        for first in range(0, len(sources), size):
            ordered, order = sources[first : first + size].sort(stable=True)
            columns, counts = ordered.unique_consecutive(return_counts=True)
            starts = F.pad(counts.cumsum(0), (1, 0)).to(torch.int32)
            found.append(_Chunk(first, first + len(order), order.to(torch.int32), starts, columns))
    return found


def _padded(width: int, *matrices: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor:
    """Return matrices, or vectors, one behind the other in squares, or rows, of this width."""
    first = next(m for m in matrices if m is not None)
    out = torch.zeros((len(matrices), *[width] * first.dim()), dtype=dtype, device=first.device)
    for to, matrix in zip(out, matrices, strict=True):
        if matrix is not None:
            to[tuple(slice(size) for size in matrix.shape)] = matrix
    return out


def _aligned(x: torch.Tensor) -> torch.Tensor:
    """Return contiguous rows, with their numbers in memory, that begin at a multiple of 16 bytes."""
    x = materialised(x).contiguous()
    return x if x.data_ptr() % 16 == 0 else x.clone()


class _Network:
    """A network with its arguments, as kernels take it; `back`: with what the backward pass needs."""

    def __init__(self, operand: SparseOperand, options: Options, tensors: Sequence[Any], back: bool) -> None:
        e, p, q, w1, w2, b2, weight, bias = tensors
        self.e, self.p, self.q = _aligned(e), _aligned(p), _aligned(q)
        self.operand, self.tiles, gpu = operand, _tiles_of(operand), path()
        self.dim, self.hidden, device = e.shape[1], p.shape[1], operand.device
        self.width = _width(operand, (self.dim, self.hidden))
        self.multiprocessors = gpu.describe(device).multiprocessors
        self.rows = gpu.native.EDGE_NETWORK_ROWS
        self.tile_count = -(-len(self.tiles.targets) // self.rows)
        self.blocks = min(self.tile_count, self.multiprocessors * (1 if self.width == 256 else 2))
        matrices = (w1, w2, w2.t(), w1.t()) if back else (w1, w2)
        self._kept = (
            _padded(self.width, *matrices, dtype=e.dtype),
            _padded(self.width, b2, weight, bias, dtype=torch.float32),
        )
        self.native = gpu.native.EdgeNetwork(
            _PRECISIONS[e.dtype].code, *self.tiles, *operand.shape, e.shape[0], self.dim, self.hidden,
            self.width, self.blocks, list(_ACTIVATIONS).index(options.act), options.eps, self.e, self.p,
            self.q, *self._kept,
        )  # fmt: skip

    def new(self, *shape: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype or self.e.dtype, device=self.e.device)

    def forward(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the new features of edges, and their sums."""
        partial = self.new(self.tile_count, 2, self.width, dtype=torch.float32)
        new, total = torch.empty_like(self.e), self.new(self.operand.shape[0], self.dim).zero_()
        with path().current(self.operand.device):
            stream = path().stream(self.operand.device)
            path().native.cuda_edge_network(self.native, partial, new, total, stream)
        return new, total

    def backward(
        self, of_new: torch.Tensor | None, of_total: torch.Tensor | None
    ) -> tuple[torch.Tensor, ...]:
        """Return the gradients of e, p, q, w1, w2, b2 and of the norm's weight and bias."""
        at_a_time = min(self.tile_count, _TILES_AT_A_TIME * self.multiprocessors)
        chunks = _chunks_of(self.operand, at_a_time * self.rows)
        (targets, sources), device, wide = self.operand.shape, self.operand.device, torch.float32
        partial = self.new(self.tile_count, 2, self.width, dtype=wide)
        of_e, of_p = torch.empty_like(self.e), self.new(targets, self.hidden).zero_()
        of_q = self.new(sources, self.hidden, dtype=wide).zero_()
        scratch = self.new(self.blocks, self.rows, self.width // 2, dtype=torch.int32)
        groups, sums = path().native.EDGE_NETWORK_SUMS
        columns = self.new(len(chunks), self.blocks, groups, sums, self.width, dtype=wide)
        hidden, of_hidden = (self.new(at_a_time * self.rows, self.hidden) for _ in range(2))
        of_out = self.new(at_a_time * self.rows, self.dim)
        of_w1 = self.new(self.hidden, self.dim, dtype=wide).zero_()
        of_w2 = self.new(self.dim, self.hidden, dtype=wide).zero_()
        for chunk, of_chunk in zip(chunks, columns, strict=True):
            count = chunk.last - chunk.first
            with path().current(device):
                path().native.cuda_edge_network_grad(
                    self.native, chunk.first // self.rows, -(-count // self.rows), of_new, of_total, partial,
                    hidden, of_out, of_hidden, of_e, of_p, of_q, *chunk[2:], scratch, of_chunk,
                    path().stream(device),
                )  # fmt: skip
            ids, here = self.tiles.edge_ids, slice(chunk.first, chunk.last)
            e = self.e[here] if ids is None else self.e.index_select(0, ids[here])
            of_w1 += of_hidden[:count].t() @ e
            of_w2 += of_out[:count].t() @ hidden[:count]
        of_b2, of_bias, of_weight = columns.sum((0, 1, 2))[:, : self.dim]
        return of_e, of_p, of_q.to(of_p.dtype), of_w1, of_w2, of_b2, of_weight, of_bias


def reference(edges: Edges, options: Options, *tensors: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute the network by torch's operations."""
    e, p, q, w1, w2, b2, weight, bias = tensors
    act: Any = _ACTIVATIONS[options.act]
    hidden = act(F.linear(e, w1) + p[edges.target] + q[edges.source])
    change = F.linear(hidden, w2, b2)
    if options.eps is not None:
        change = F.layer_norm(change, change.shape[1:], weight, bias, options.eps)
    new = e + change
    return new, new.new_zeros((edges.targets, new.shape[1])).index_add(0, edges.target, new)


class _EdgeNetwork(dispatch.Operation):
    """Applied to the tensors, the operand, the options and the call."""

    name = "edge_network"

    @staticmethod
    def forward(*arguments: Any) -> Any:
        *tensors, _, _, run = arguments
        return run(*tensors)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        *tensors, ctx.operand, ctx.options, _ = inputs
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*tensors)

    @staticmethod
    @ranged("edge_network_backward")
    def backward(ctx: Any, *grads: Any) -> Any:
        """Compute the gradients of the tensors."""
        tensors = alive(ctx.saved_tensors)
        given = [None if g is None else _aligned(dispatch.gradient("edge_network", g)) for g in grads]
        if all(g is None for g in given):
            return (None,) * (len(tensors) + 3)

        def native() -> Any:
            found = _Network(ctx.operand, ctx.options, tensors, back=True).backward(*given)
            return [
                g.to(t.dtype) if t is not None and needed else None
                for g, t, needed in zip(found, tensors, ctx.needs_input_grad, strict=False)
            ]

        def composed() -> Any:
            wanted = [t for t, needed in zip(tensors, ctx.needs_input_grad, strict=False) if needed]
            with dispatch.recording(), torch.autocast(ctx.operand.device.type, enabled=False):
                wide = [None if t is None else t.float() for t in tensors]
                results = reference(edges_of(ctx.operand), ctx.options, *wide)
                kept = [r for r, g in zip(results, given, strict=True) if g is not None]
                grads = [g.float() for g in given if g is not None]
                found = iter(torch.autograd.grad(kept, wanted, grads, create_graph=True, allow_unused=True))
            return [next(found) if needed else None for needed in ctx.needs_input_grad[: len(tensors)]]

        return *dispatch.native_or_composed((*given, *tensors), native, composed), None, None, None


def edge_network(
    operand: SparseOperand, options: Options, *tensors: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute e' = e + norm(W2 act(W1 e + p_i + q_j) + b2), and the sums of e' at targets. Differentiable.

    Nothing of the size edges x features is in memory but e and e', and in the backward pass their gradients
    and the hidden features of some edges at a time. Results have the same bits in every run.

    Args:
        operand: [targets, sources], one that `can_run` has said yes to; edges that were repeated in
            `prepare` count as often as they were given.
        options: the activation and the norm.
        *tensors: e [edges, D] in the order of the edges given to `prepare`, p [targets, H], q [sources, H],
            W1 [H, D], W2 [D, H], b2 [D], and weight and bias of the norm [D] or None. The first three are
            in one dtype, float16 or bfloat16, in which W1 and W2 are multiplied.

    Returns:
        e' [edges, D] and its sums [targets, D] in the dtype of e.
    """

    def run(*given: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
        return _Network(operand, options, given, back=False).forward()

    if dispatch.needs_grad(*tensors):
        return dispatch.direct(_EdgeNetwork)(*tensors, operand, options, run)
    return run(*tensors)
