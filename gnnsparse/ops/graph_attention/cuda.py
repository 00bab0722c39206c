"""Graph attention on NVIDIA GPUs: kernels over CSR rows, in which a warp takes all heads of a row."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from gnnsparse import _native
from gnnsparse.ops.graph_attention import chain
from gnnsparse.ops.graph_attention.call import Arrays, GraphCall, Result, as_given
from gnnsparse.ops.graph_attention.views import heads_view, problem_of, result_view
from gnnsparse.ops.rows import row_sums
from gnnsparse.runtime.device import VECTOR_BYTES, describe_device, path
from gnnsparse.runtime.memo import cached_property
from gnnsparse.sparse.kernel_cache import KernelCache

__all__ = ["backward", "forward", "weights"]

#: Rows with more nonzeros are cut into parts of at most so many.
_ROW_LIMIT = 128
#: The most rows that a warp takes one after another: edge by edge, and over tiles.
_ROWS_PER_WARP = (8, 16)
#: Warps that a multiprocessor runs at a time, about, times the rounds of work that balance its load.
_WARPS = 32 * 4


def _aligned(x: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor | None:
    """Returns [n, H or 1, width] in `dtype`, each row contiguous and aligned to VECTOR_BYTES.

    If that takes a copy, the memory of its rows is padded with zeros to whole vectors.
    """
    if x is None:
        return None
    width, per_vector = x.shape[2], VECTOR_BYTES // dtype.itemsize
    steps = [x.stride(i) for i in range(2) if x.shape[i] > 1]
    is_aligned = x.data_ptr() % VECTOR_BYTES == 0 and all(step % per_vector == 0 for step in steps)
    if x.dtype == dtype and width % per_vector == 0 and x.stride(2) == 1 and is_aligned:
        return x
    packed = x.new_empty(*x.shape[:2], -(-width // per_vector) * per_vector, dtype=dtype)
    if width % per_vector:
        packed[..., width:] = 0
    packed[..., :width] = x
    return packed[..., :width]


def _rows_like(x: torch.Tensor, rows: int, heads: int, width: int) -> torch.Tensor:
    """Allocates [rows, heads, width] in the dtype and the memory order of `x` [n, H, any]."""
    if x.stride(0) < x.stride(1):
        return x.new_empty(heads, rows, width).transpose(0, 1)
    return x.new_empty(rows, heads, width)


def _laid_out(call: GraphCall) -> GraphCall:
    """Returns the call with its tensors as the kernels read them."""
    a, storage = call.arrays, call.operand.precision.storage
    mapped = None if a.mapped is None else _aligned(a.mapped[:, None], storage)

    def of_scores(x: torch.Tensor | None) -> torch.Tensor | None:
        if call.score != "additive":
            return _aligned(x, storage)
        return None if x is None else x.float()

    return call.with_arrays(
        Arrays(
            of_scores(a.q), of_scores(a.k), _aligned(a.v, storage), None if a.att is None else a.att.float(),
            None if a.bias is None else a.bias.float(), of_scores(a.features), _aligned(a.gate, storage),
            None if mapped is None else mapped[:, 0], _aligned(a.mapped_q, storage),
        )
    )  # fmt: skip


def _laid_out_result(result: Result, storage: torch.dtype) -> Result:
    out = _aligned(result.out, storage)
    assert out is not None
    return Result(out, _aligned(result.mapped, storage), result.stats)


def _fits(call: GraphCall) -> bool:
    """Returns whether the lanes of a warp hold the features of a head, and there is something to compute."""
    a, most = call.arrays, _native.GRAPH_ATTENTION_CHUNKS * VECTOR_BYTES
    widths = [x.shape[-1] for x in (a.v, a.mapped) if x is not None]
    if call.score != "additive" and a.q is not None:
        widths.append(a.q.shape[-1])
    sizes = (call.operand.nnz, *call.operand.shape, call.heads, *widths)
    if a.mapped is not None and call.heads > _native.GRAPH_MAPPED_HEADS:
        return False
    return min(sizes) > 0 and max(widths) * call.operand.precision.storage.itemsize <= most


def _can_take_tiles(call: GraphCall, forward: bool) -> bool:
    """Returns whether the kernels of tiles, which multiply on Tensor Cores, compute a pass.

    They take dot products and additive scores without any other term, and forward additive scores alone.
    """
    a, storage = call.arrays, call.operand.precision.storage
    assert a.v is not None
    width = a.v.shape[2]
    if _native.graph_tile_heads(width) == 0:
        return False
    if storage.itemsize != 2 or a.v.dtype not in (storage, torch.float32):
        return False
    if call.score == "gatv2" or (call.score == "dot" and (forward or a.q is None or a.q.shape[2] != width)):
        return False
    has_terms = any(x is not None for x in (a.bias, a.features, a.gate, a.mapped))
    is_plain = call.normalize and call.clamp == 0 and not call.is_causal and call.seed is None
    return is_plain and not has_terms and describe_device(call.operand.device).capability >= (8, 0)


def _tiles_are_faster(call: GraphCall, forward: bool) -> bool:
    """Returns whether a pass over tiles is faster than one edge by edge, by measurements on an H200.

    It is where a warp takes all heads at once, and they are more than half of what it takes; forward in heads
    of 16 features or more (notes/log.md).
    """
    assert call.arrays.v is not None
    width = call.arrays.v.shape[2]
    at_once = _native.graph_tile_heads(width)
    return at_once < 2 * call.heads <= 2 * at_once and (not forward or width >= 16)


def _takes_tiles(call: GraphCall, forward: bool) -> bool:
    return _can_take_tiles(call, forward) and _tiles_are_faster(call, forward)


@dataclass(frozen=True, eq=False)
class _Rows:
    """The rows of an orientation, shared out among warps.

    Attributes:
        handle: the native handle.
        items: number of warps that take some.
    """

    handle: _native.GraphRows
    items: int

    @classmethod
    def of(cls, kernels: KernelCache, call: GraphCall, tiles: bool) -> _Rows:
        a, rows, device = call.arrays, kernels.csr.rows, kernels.csr.device
        assert a.q is not None
        assert a.v is not None
        limit = kernels.row_limit(_ROW_LIMIT)
        work = kernels.row_work(limit)
        warps = _WARPS * describe_device(device).multiprocessors
        per_warp = max(1, min(_ROWS_PER_WARP[tiles], rows // warps)) if kernels.csr.nnz < 2**31 else 1
        widths = 1 if call.score == "additive" else a.q.shape[2], a.v.shape[2]
        floats = _native.graph_partial_floats(*widths, 0 if a.mapped is None else a.mapped.shape[1])
        partial = None
        if work.partials > 0:
            partial = torch.empty(work.partials * call.heads * floats, dtype=torch.float32, device=device)
        handle = _native.GraphRows(
            kernels.csr.view, kernels.row_ids, work.view, limit, per_warp, partial, tiles
        )
        return cls(handle, work.items.shape[0] + -(-rows // per_warp))


def forward(call: GraphCall) -> Result:
    """Computes the results."""
    if not _fits(call):
        with torch.no_grad():
            return chain.forward(call)[0]
    v, rows, heads = call.arrays.v, call.operand.shape[0], call.heads
    assert v is not None
    mapped = None
    if call.arrays.mapped is not None and call.to_values:
        mapped = _rows_like(v, rows, heads, call.arrays.mapped.shape[1])
    stats = torch.empty(rows, heads, 2, dtype=torch.float32, device=v.device)
    result = Result(_rows_like(v, rows, heads, v.shape[2]), mapped, stats)
    kernels, gpu, tiles = call.operand.kernels, path(), _takes_tiles(call, True)
    with gpu.current(v.device):
        call = _laid_out(call)
        of = _Rows.of(kernels, call, tiles)
        gpu.native.cuda_graph_attention(
            problem_of(call), of.handle, result_view(result), kernels.streams.current()
        )
    return result


def weights(call: GraphCall, result: Result) -> torch.Tensor:
    """Computes the weights after dropout, float32 [nnz, H]."""
    if not _fits(call):
        with torch.no_grad():
            return chain.weights(call)
    v = call.arrays.v
    assert v is not None
    # The pass over rows gives the weights beside the gradients, which are not read here.
    zeros = torch.zeros_like(v[:1, :1]).expand(call.operand.shape[0], call.heads, -1)
    inner = torch.zeros(1, 1, dtype=torch.float32, device=v.device).expand(result.stats.shape[:2])
    with path().current(v.device):
        storage = call.operand.precision.storage
        state = _Backward(
            _laid_out(call), _laid_out_result(result, storage), _aligned(zeros, storage), None, None, inner,
            (False,) * 9, tiles=False,
        )  # fmt: skip
        edges, _ = state.rows()
    return edges[..., 0]


@dataclass(frozen=True, eq=False)
class _Backward:
    """The arguments of both passes of a backward pass.

    Attributes:
        call: the arguments of attention, laid out for the kernels.
        result: the results of the forward pass, laid out like v.
        grad, grad_mapped: gradients of the results, laid out like v.
        grad_weights: gradient of the weights, float32 [nnz, H].
        inner: sum over a row's edges of weight * its gradient, float32 [L, H]; None: that of the results.
        needs: which gradients are needed.
        tiles: whether the kernels of tiles run.
    """

    call: GraphCall
    result: Result
    grad: torch.Tensor | None
    grad_mapped: torch.Tensor | None
    grad_weights: torch.Tensor | None
    inner: torch.Tensor | None
    needs: tuple[bool, ...]
    tiles: bool

    @cached_property
    def problem(self) -> _native.GraphAttention:
        """The native handle of the call."""
        return problem_of(self.call)

    def _numbers(self, rows: int, width: int) -> torch.Tensor:
        device = self.call.operand.device
        return torch.empty(rows, self.call.heads, width, dtype=torch.float32, device=device)

    def _like(self, x: torch.Tensor | None, need: bool) -> torch.Tensor | None:
        """Allocates the gradient of [n, H or 1, D] for every head."""
        if x is None or not need:
            return None
        if x.dim() == 2:
            return x.new_empty(x.shape[0], self.call.heads)
        return _rows_like(x, x.shape[0], self.call.heads, x.shape[2])

    def _edges(self) -> torch.Tensor:
        """Allocates what the pass over rows keeps of the edges: [nnz, H, 2]; of tiles for blocks of heads."""
        if not self.tiles:
            return self._numbers(self.call.operand.nnz, 2)
        v = self.call.arrays.v
        assert v is not None
        blocks = -(-self.call.heads // _native.graph_tile_heads(v.shape[2]))
        return v.new_empty(blocks, self.call.operand.nnz, _native.GRAPH_TILE_NUMBERS).transpose(0, 1)

    def rows(self) -> tuple[torch.Tensor, Arrays]:
        """Runs the pass over rows: what it keeps of the edges, and gradients but of k, v and mapped."""
        call, heads, needs = self.call, self.call.heads, Arrays(*self.needs)  # type: ignore[arg-type]
        a, additive = call.arrays, call.score == "additive"
        of = _Rows.of(call.operand.kernels, call, self.tiles)
        edges = self._edges()
        found = Arrays(
            self._like(a.q, bool(needs.q)), None, None,
            self._numbers(of.items, a.att.shape[1]) if needs.att and a.att is not None else None,
            self._numbers(call.operand.nnz, 1)[..., 0] if needs.bias else None,
            None if additive else self._like(a.features, bool(needs.features)),
            self._like(a.gate, bool(needs.gate)), None, self._like(a.mapped_q, bool(needs.mapped_q)),
        )  # fmt: skip
        grads = self._grads(edges)
        grads.weights = heads_view(self.grad_weights, heads)
        grads.inner = heads_view(self.inner, heads)
        grads.mapped = heads_view(self.grad_mapped, heads)
        grads.q = heads_view(found.q, heads)
        grads.att, grads.bias = heads_view(found.att, heads), heads_view(found.bias, heads)
        grads.features, grads.gate = heads_view(found.features, heads), heads_view(found.gate, heads)
        grads.mapped_q = heads_view(found.mapped_q, heads)
        path().native.cuda_graph_attention_rows(
            self.problem, of.handle, result_view(self.result), grads, call.operand.kernels.streams.current()
        )
        if additive and needs.features:
            found = found._replace(features=edges[..., 1])
        return edges, found

    def columns(self, edges: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """Runs the pass over columns: the gradients of k and v."""
        call, heads = self.call, self.call.heads
        dk, dv = self._like(call.arrays.k, self.needs[1]), self._like(call.arrays.v, self.needs[2])
        if dk is None and dv is None:
            return None, None
        grads = self._grads(edges)
        grads.k = heads_view(dk, heads)
        grads.v = heads_view(dv, heads)
        operand = call.operand
        path().native.cuda_graph_attention_columns(
            self.problem, _Rows.of(operand.T.kernels, call, self.tiles).handle, grads,
            operand.transpose_map, operand.kernels.streams.current(),
        )  # fmt: skip
        return dk, dv

    def _grads(self, edges: torch.Tensor) -> _native.GraphAttentionGrads:
        grads = _native.GraphAttentionGrads()
        grads.out = heads_view(self.grad, self.call.heads)
        grads.edges = heads_view(edges, edges.shape[1])
        return grads

    def of_mapped(self, edges: torch.Tensor) -> torch.Tensor | None:
        """Runs the pass for the gradient of the mapped features [nnz, d_e], which is a sum over heads."""
        call, mapped = self.call, self.call.arrays.mapped
        if mapped is None or not self.needs[7]:
            return None
        found = mapped.new_empty(mapped.shape)
        grads = _native.GraphAttentionGrads()
        grads.mapped = heads_view(self.grad_mapped, call.heads)
        grads.edges = heads_view(edges, call.heads)
        grads.of_mapped = heads_view(found[:, None], 1)
        path().native.cuda_graph_attention_mapped(
            self.problem, _Rows.of(call.operand.kernels, call, tiles=False).handle, grads,
            call.operand.kernels.streams.current(),
        )  # fmt: skip
        return found


def backward(
    call: GraphCall, result: Result, grad_out: torch.Tensor, grad_mapped: torch.Tensor | None,
    grad_weights: torch.Tensor | None, needs: tuple[bool, ...],
) -> Arrays:  # fmt: skip
    """Computes the gradients that are needed; the others are None.

    Args:
        call: the arguments of attention.
        result: the results of `forward`.
        grad_out, grad_mapped: gradients of the results; of `mapped` None: it is zero.
        grad_weights: gradient of the weights after dropout, [nnz, H]; None: it is zero.
        needs: which gradients are needed, in the order of Arrays.
    """
    if not _fits(call):
        return chain.backward(call, grad_out, grad_mapped, grad_weights, needs)
    given, storage, inner = call.arrays, call.operand.precision.storage, None
    tiles = grad_weights is None and _takes_tiles(call, False)
    with path().current(grad_out.device):
        call = _laid_out(call)
        aligned, aligned_mapped = _aligned(grad_out, storage), _aligned(grad_mapped, storage)
        assert aligned is not None
        grad_weights = None if grad_weights is None else grad_weights.float()
        # The kernels compute the inner sums themselves unless the weights have a gradient, or they would
        # read a rounded result. Without softmax there are none.
        if call.normalize and (grad_weights is not None or result.out.dtype != storage):
            inner = result.times(aligned, aligned_mapped)
            if grad_weights is not None:
                inner += row_sums(call.operand, weights(call, result) * grad_weights)
        state = _Backward(
            call,
            _laid_out_result(result, storage),
            aligned,
            aligned_mapped,
            grad_weights,
            inner,
            needs,
            tiles,
        )
        edges, found = state.rows()
        dk, dv = state.columns(edges)
        return as_given(found._replace(k=dk, v=dv, mapped=state.of_mapped(edges)), given)
