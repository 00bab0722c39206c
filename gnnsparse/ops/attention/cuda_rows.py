"""Both operations on NVIDIA GPUs by the kernels over CSR rows, in which a warp takes all heads of a row.

It stands alone as one of the backends, which schema.py chooses among and tests call by themselves.
"""

from __future__ import annotations

import torch

from gnnsparse import _native
from gnnsparse.formats.csr import Csr
from gnnsparse.ops.attention import arguments, unfused
from gnnsparse.ops.attention.arguments import Arrays, AttentionCall, Grads, GraphCall, Needs, Result
from gnnsparse.ops.segments import row_sums
from gnnsparse.plan.gpu_records.record import AttentionRates, record_for
from gnnsparse.runtime.device import VECTOR_BYTES, describe_device, path
from gnnsparse.runtime.memo import made_once
from gnnsparse.sparse.kernel_cache import KernelCache


def _rows_like(x: torch.Tensor, rows: int, heads: int, width: int) -> torch.Tensor:
    """Allocate [rows, heads, width] in the dtype and the memory order of `x` [n, H, any]."""
    if x.stride(0) < x.stride(1):
        return x.new_empty(heads, rows, width).transpose(0, 1)
    return x.new_empty(rows, heads, width)


#: Names of the arrays that kernels read as float32 numbers; with additive scores also of nodes and edges.
_NUMBERS = frozenset(("att", "bias"))
_ADDITIVE_NUMBERS = _NUMBERS | {"q", "k", "features"}


def _laid_out(call: GraphCall) -> GraphCall:
    storage = call.operand.precision.storage
    numbers = _ADDITIVE_NUMBERS if call.score == "additive" else _NUMBERS

    def laid_out(name: str, x: torch.Tensor) -> torch.Tensor:
        if name == "mapped":
            return arguments.vectorized(x[:, None], storage)[:, 0]
        return x.float() if name in numbers else arguments.vectorized(x, storage)

    pairs = zip(Arrays._fields, call.arrays, strict=True)
    arrays = Arrays(*[None if x is None else laid_out(name, x) for name, x in pairs])
    # One tensor of keys and values stays one: an edge's row is read once, and has one gradient.
    return call._replace(arrays=arrays._replace(v=arrays.k) if call.arrays.v is call.arrays.k else arrays)


def _laid_out_result(result: Result, storage: torch.dtype) -> Result:
    out, mapped, stats, sloped = result
    vectorized = arguments.vectorized
    return Result(vectorized(out, storage), vectorized(mapped, storage), stats, vectorized(sloped, storage))


def _fits(call: GraphCall) -> bool:
    """Return whether the lanes of a warp hold the features of a head, and there is something to compute."""
    a, most = call.arrays, _native.GRAPH_ATTENTION_CHUNKS * VECTOR_BYTES
    widths = [x.shape[-1] for x in (a.v, a.mapped) if x is not None]
    if call.score != "additive":
        widths.append(a.q.shape[-1])
    sizes = (call.operand.nnz, *call.operand.shape, call.heads, *widths)
    if a.mapped is not None and call.heads > _native.GRAPH_MAPPED_HEADS:
        return False
    return min(sizes) > 0 and max(widths) * call.operand.precision.storage.itemsize <= most


#: A warp takes sets of rows side by side one after another: of so many nonzeros on average, but two to
#: _ROUNDS sets, _ROUNDS where each warp writes a sum, fewer if a multiprocessor had less than _WARPS warps.
_NNZ_OF_ROUNDS, _ROUNDS, _WARPS = 32, 8, 64


@made_once
def _rates(kernels: KernelCache) -> AttentionRates:
    """Return the numbers of the GPU's record by which these kernels are launched; `kernels` keeps them."""
    return record_for(describe_device(kernels.csr.device)).attention


def _rounds(csr: Csr, sets: int, for_att: bool) -> int:
    """Return how many of the `sets` of rows side by side a warp takes one after another.

    `for_att`: each warp writes a sum of the gradient of `att`.
    """
    wanted = _ROUNDS if for_att else max(2, _NNZ_OF_ROUNDS * csr.rows // max(csr.nnz, 1))
    return max(1, min(wanted, _ROUNDS, sets // (_WARPS * describe_device(csr.device).multiprocessors)))


def _rows(kernels: KernelCache, call: GraphCall, for_att: bool = False) -> _native.GraphRows:
    """Return the rows of an orientation as a native argument; `for_att` as in `_rounds`."""
    a, csr = call.arrays, kernels.csr
    found = kernels.row_entries(_rates(kernels).row_limit)
    count = csr.rows if found is None else len(found.entries)
    widths = 1 if call.score == "additive" else a.q.shape[2], a.v.shape[2]
    second = widths[1] if call.score == "additive" else 0 if a.mapped is None else a.mapped.shape[1]
    row_bytes = max(*widths, second) * call.operand.precision.storage.itemsize
    side_by_side = _native.graph_rows_side_by_side(-(-row_bytes // VECTOR_BYTES), call.heads)
    rounds = _rounds(csr, count // side_by_side, for_att)
    entries, cuts, partials = (None, None, 0) if found is None else found
    partial = None
    if partials > 0:
        size = partials * call.heads * _native.graph_partial_floats(*widths, second)
        partial = torch.empty(size, dtype=torch.float32, device=csr.device)
    return _native.GraphRows(
        csr.view, kernels.row_ids, entries, cuts, partials, side_by_side, rounds, partial
    )


def keeps_sloped(call: GraphCall) -> bool:
    """Return whether gradients come of `Result.sloped`."""
    return call.score == "additive" and _fits(call)


def graph_forward(call: GraphCall, for_grads: bool = True) -> Result:
    """Compute the results of graph attention; `for_grads`: with what only gradients need of them."""
    if not _fits(call):
        with torch.no_grad():
            return unfused.graph_forward(call)[0]
    v, rows, heads = call.arrays.v, call.operand.shape[0], call.heads
    mapped = sloped = None
    if call.arrays.mapped is not None and call.to_values:
        mapped = _rows_like(v, rows, heads, call.arrays.mapped.shape[1])
    if for_grads and keeps_sloped(call):
        storage = call.operand.precision.storage
        sloped = torch.empty(rows, heads, v.shape[2], dtype=storage, device=v.device)
    numbers = 2 if sloped is None else 3
    stats = torch.empty(rows, heads, numbers, dtype=torch.float32, device=v.device)
    result = Result(_rows_like(v, rows, heads, v.shape[2]), mapped, stats, sloped)
    kernels, gpu = call.operand.kernels, path()
    with gpu.current(v.device):
        call = _laid_out(call)
        work = _rows(kernels, call)
        problem, found = arguments.native_graph_attention(call), arguments.result_argument(result)
        gpu.native.cuda_graph_attention(problem, work, found, kernels.streams.current())
    return result


def graph_weights(call: GraphCall, result: Result) -> torch.Tensor:
    """Compute the weights after dropout, float32 [nnz, H]."""
    if not _fits(call):
        with torch.no_grad():
            return unfused.graph_forward(call)[1]
    with path().current(call.arrays.v.device):
        call = _laid_out(call)
        return _Backward(call, dict.fromkeys(Arrays._fields, False)).edges(result)[..., 0]


class _Backward:
    """The passes of a backward pass; `needs` says by the names of Arrays which gradients are needed.

    Those for which `into` has a tensor of the dtype that kernels write are written there.
    """

    def __init__(self, call: GraphCall, needs: dict[str, bool], into: Arrays | None = None) -> None:
        self.call, self.needs, self._into = call, needs, into
        self._problem = arguments.native_graph_attention(call)

    def _numbers(self, rows: int, width: int) -> torch.Tensor:
        device = self.call.operand.device
        return torch.empty(rows, self.call.heads, width, dtype=torch.float32, device=device)

    def _like(self, name: str) -> torch.Tensor | None:
        """Allocate the gradient of a tensor [n, H or 1, D] for every head, if it is needed."""
        x = getattr(self.call.arrays, name)
        if x is None or not self.needs[name]:
            return None
        to: torch.Tensor | None = None if self._into is None else getattr(self._into, name)
        if to is not None and to.dtype == x.dtype:
            return to
        if x.dim() == 2:
            return x.new_empty(x.shape[0], self.call.heads)
        return _rows_like(x, x.shape[0], self.call.heads, x.shape[2])

    def rows(self, result: Result, **given: torch.Tensor | None) -> tuple[torch.Tensor, Arrays]:
        """Run the pass over rows: what it stores of the edges, and gradients but of k, v and mapped.

        `given`, by native names: the gradients of the results "out" and "mapped", laid out like v; of
        "weights", float32 [nnz, H]; and "inner", float32 [L, H], the sum over a row's edges of weight * its
        gradient.
        """
        call, a = self.call, self.call.arrays
        for_att = a.att is not None and self.needs["att"]
        work = _rows(call.operand.kernels, call, for_att)
        edges = self._numbers(call.operand.nnz, 2)
        found = Arrays(
            self._like("q"), None, None,
            self._numbers(work.warps, a.att.shape[1]) if for_att and a.att is not None else None,
            self._numbers(call.operand.nnz, 1)[..., 0] if self.needs["bias"] else None,
            self._like("features"), self._like("gate"), None, self._like("mapped_q"),
        )  # fmt: skip
        written = {
            name: getattr(found, name) for name in ("q", "att", "bias", "features", "gate", "mapped_q")
        }
        path().native.cuda_graph_attention_rows(
            self._problem, work, arguments.result_argument(result),
            arguments.graph_grads_argument(call.heads, edges, **given, **written),
            call.operand.kernels.streams.current(),
        )  # fmt: skip
        return edges, found

    def columns(self, edges: torch.Tensor, grad: torch.Tensor) -> dict[str, torch.Tensor | None]:
        """Run the pass over columns: the gradients of k and v; of one tensor in place of both that of k."""
        operand, a, found = self.call.operand, self.call.arrays, {"k": self._like("k")}
        is_one = a.k is a.v and self.needs["k"] and self.needs["v"]
        found["v"] = found["k"] if is_one else self._like("v")
        if found["k"] is not None or found["v"] is not None:
            grads = arguments.graph_grads_argument(self.call.heads, edges, out=grad, **found)
            path().native.cuda_graph_attention_columns(
                self._problem, _rows(operand.T.kernels, self.call), grads,
                operand.transpose_map, operand.kernels.streams.current(),
            )  # fmt: skip
        return {**found, "v": None} if is_one else found

    def edges(self, result: Result) -> torch.Tensor:
        """Compute the weights of edges after dropout, of additive scores also times slopes: [nnz, H, 2]."""
        call, v, storage = self.call, self.call.arrays.v, self.call.operand.precision.storage
        zeros = torch.zeros_like(v[:1, :1]).expand(call.operand.shape[0], call.heads, -1)
        inner = torch.zeros(1, 1, dtype=torch.float32, device=v.device).expand(result.stats.shape[:2])
        zeros = arguments.vectorized(zeros, storage)
        if call.score != "additive":
            # The pass over rows gives the weights beside the gradients, which are not read here.
            return self.rows(_laid_out_result(result, storage), out=zeros, inner=inner)[0]
        edges = self._numbers(call.operand.nnz, 2)
        numbers = torch.stack((call.arrays.q, *result.stats.unbind(-1)[:2], inner), -1)
        self._additive_columns(out=zeros, numbers=numbers, edges=edges)
        return edges

    def additive(
        self, result: Result, grad: torch.Tensor, inner: torch.Tensor | None, weights: torch.Tensor | None
    ) -> Arrays:
        """Run both passes of additive scores, which keep nothing of edges; `weights`: their gradient."""
        call, operand, nnz, of_edges = self.call, self.call.operand, self.call.operand.nnz, None
        numbers, dq = self._numbers(operand.shape[0], 4), self._like("q")
        if weights is not None:
            of_edges = row_sums(operand, self.edges(result) * weights[..., None])
            inner = None if inner is None else inner + of_edges[..., 0]
        path().native.cuda_graph_attention_rows(
            self._problem, _rows(operand.kernels, call), arguments.result_argument(result),
            arguments.graph_grads_argument(call.heads, out=grad, inner=inner, numbers=numbers, q=dq),
            operand.kernels.streams.current(),
        )  # fmt: skip
        if dq is not None and of_edges is not None:
            dq += of_edges[..., 1]
        bias = self._numbers(nnz, 1)[..., 0] if self.needs["bias"] else None
        found = Arrays(dq, self._like("k"), self._like("v"), bias=bias, features=self._like("features"))
        written = {name: getattr(found, name) for name in ("k", "v", "bias", "features")}
        if any(x is not None for x in written.values()):
            self._additive_columns(out=grad, numbers=numbers, weights=weights, **written)
        return found

    def _additive_columns(self, **tensors: torch.Tensor | None) -> None:
        operand = self.call.operand
        path().native.cuda_graph_attention_columns(
            self._problem, _rows(operand.T.kernels, self.call),
            arguments.graph_grads_argument(self.call.heads, **tensors), operand.transpose_map,
            operand.kernels.streams.current(),
        )  # fmt: skip

    def of_mapped(self, edges: torch.Tensor, grad_mapped: torch.Tensor | None) -> torch.Tensor | None:
        """Run the pass for the gradient of the mapped features [nnz, d_e], which is a sum over heads."""
        kernels, mapped = self.call.operand.kernels, self.call.arrays.mapped
        if mapped is None or not self.needs["mapped"]:
            return None
        found = mapped.new_empty(mapped.shape)
        grads = arguments.graph_grads_argument(self.call.heads, edges, mapped=grad_mapped)
        grads.of_mapped = arguments.nodes_argument(found[:, None], 1)
        path().native.cuda_graph_attention_mapped(
            self._problem, _rows(kernels, self.call), grads, kernels.streams.current()
        )
        return found


def graph_backward(
    call: GraphCall, result: Result, grad_out: torch.Tensor, grad_mapped: torch.Tensor | None,
    grad_weights: torch.Tensor | None, needs: tuple[bool, ...], into: Arrays | None = None,
) -> Arrays:  # fmt: skip
    """Compute the gradients of `schema.graph_gradients`."""
    if not _fits(call):
        return unfused.graph_backward(call, grad_out, grad_mapped, grad_weights, needs)
    given, storage, inner = call.arrays, call.operand.precision.storage, None
    with path().current(grad_out.device):
        call = _laid_out(call)
        grad_out, grad_mapped = (arguments.vectorized(g, storage) for g in (grad_out, grad_mapped))
        grad_weights = None if grad_weights is None else grad_weights.float()
        # The kernels compute the inner sums themselves unless the weights have a gradient, or they would
        # read a rounded result. Without softmax there are none.
        of_mapped = result.mapped is not None and grad_mapped is not None
        if call.normalize and (grad_weights is not None or of_mapped or result.out.dtype != storage):
            inner = result.times(grad_out, grad_mapped)
        passes = _Backward(call, dict(zip(Arrays._fields, needs, strict=True)), into)
        stored = _laid_out_result(result, storage)
        if call.score == "additive":
            return arguments.of_all_heads(passes.additive(stored, grad_out, inner, grad_weights), given)
        if inner is not None and grad_weights is not None:
            inner += row_sums(call.operand, passes.edges(result)[..., 0] * grad_weights)
        edges, found = passes.rows(
            stored, out=grad_out, weights=grad_weights, inner=inner, mapped=grad_mapped
        )
        of_columns, mapped = passes.columns(edges, grad_out), passes.of_mapped(edges, grad_mapped)
        return arguments.of_all_heads(found._replace(**of_columns, mapped=mapped), given)


#: Blocks of a multiprocessor that add up the gradient of a linear map.
_MAP_BLOCKS = 3


def map_grad(call: GraphCall, pairs: list[tuple[torch.Tensor, torch.Tensor]]) -> torch.Tensor:
    """Compute the gradient of the linear map of edge features: `arguments.map_grad`."""
    storage, device = call.operand.precision.storage, call.operand.device
    heads, width = pairs[0][0].shape[1:]
    features, most, gpu = pairs[0][1].shape[2], _native.GRAPH_MAP_WIDTH, describe_device(device)
    if storage.itemsize != 2 or features > most or gpu.capability < (8, 0) or not call.operand.nnz:
        return arguments.map_grad(pairs)
    slices = -(-_MAP_BLOCKS * gpu.multiprocessors // heads)
    found = torch.empty(slices, heads, width, most, dtype=torch.float32, device=device)
    with path().current(device):
        rows = [arguments.nodes_argument(arguments.vectorized(x, storage), heads) for x in sum(pairs, ())]
        path().native.cuda_graph_map_grad(
            *(rows + [arguments.nodes_argument(None, heads)] * 2)[:4], arguments.heads_argument(found),
            call.operand.precision.code, call.operand.kernels.streams.current(),
        )  # fmt: skip
    return found.sum(0)[..., :features]


# `attention` by these kernels: batch entries and heads are heads of nodes.


def _to_nodes(x: torch.Tensor) -> torch.Tensor:
    """Return [B, H, n, ...] as [n, B * H, ...], a view unless the strides of batch and heads forbid it."""
    return x.flatten(0, 1).transpose(0, 1)


def _from_nodes(x: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Undo `_to_nodes` for a tensor with the batch and heads of `like`."""
    return x.transpose(0, 1).unflatten(0, like.shape[:2])


def _ordered(x: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Return [B, H, n, d] in the dtype and memory order of `like`, a copy if it has another."""
    by_nodes = like.stride(1) < like.stride(2)
    in_order = (x.transpose(1, 2) if by_nodes else x).is_contiguous()
    return x.to(like.dtype) if in_order else arguments.empty_heads(like, x.shape[3]).copy_(x)


def _graph_call(call: AttentionCall) -> GraphCall:
    bias = call.bias
    if bias is not None:
        bias = _to_nodes(bias if bias.shape[:2] == (1, 1) else bias.expand(*call.q.shape[:2], -1))
    arrays = Arrays(_to_nodes(call.q), _to_nodes(call.k), _to_nodes(call.v), bias=bias)
    return GraphCall(
        call.operand, arrays, scale=call.scale, is_causal=call.is_causal, dropout_p=call.dropout_p,
        seed=call.seed,
    )  # fmt: skip


def forward(call: AttentionCall) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute the results of `schema.run_forward`."""
    result = graph_forward(_graph_call(call))
    # Contiguous, as compiled programs expect it.
    stats = _from_nodes(result.stats, call.q).contiguous()
    return _ordered(_from_nodes(result.out, call.q), call.q), stats


def backward(
    call: AttentionCall, out: torch.Tensor, stats: torch.Tensor, grad: torch.Tensor, needs: Needs
) -> Grads:
    """Compute the gradients of `schema.run_backward`."""
    result = Result(_to_nodes(out), None, _to_nodes(stats))
    asked = dict(zip(("q", "k", "v", "bias"), needs, strict=True))
    wanted = tuple(asked.get(name, False) for name in Arrays._fields)
    found = graph_backward(_graph_call(call), result, _to_nodes(grad), None, None, wanted)
    pairs = zip(found[:3], (call.q, call.k, call.v), strict=True)
    dq, dk, dv = (None if g is None else _ordered(_from_nodes(g, call.q), x) for g, x in pairs)
    if found.bias is None or call.bias is None:
        return dq, dk, dv, None
    sizes = call.bias.shape[:2]
    if sizes == (1, 1):
        return dq, dk, dv, found.bias.T[None]
    # A bias that batch entries or heads share gets the sum of their gradients.
    dbias = _from_nodes(found.bias, call.q)
    shared = [i for i in (0, 1) if sizes[i] == 1 and dbias.shape[i] != 1]
    return dq, dk, dv, (dbias.sum(shared, keepdim=True) if shared else dbias).contiguous()
