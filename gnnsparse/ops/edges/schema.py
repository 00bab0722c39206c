"""Functions over the edges of an operand: their kernels, their gradients, and their operators."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch

from gnnsparse.formats.csr import Csr, PaddedCsr
from gnnsparse.ops import dispatch
from gnnsparse.ops.attention.edges import order_of
from gnnsparse.ops.edges import cpu, cuda
from gnnsparse.ops.edges.program import (
    Function,
    Pass,
    column_pass,
    forward_pass,
    function_from,
    function_of,
    row_pass,
    with_slopes,
)  # fmt: skip
from gnnsparse.ops.edges.reference import Edges, compute
from gnnsparse.ops.edges.rows import Rows
from gnnsparse.runtime.device import path, tensor_maker
from gnnsparse.runtime.functorch import alive, constant_when_traced, is_eager, outside
from gnnsparse.runtime.memo import made_once
from gnnsparse.runtime.nvtx import ranged
from gnnsparse.sparse.kernel_cache import KernelCache
from gnnsparse.sparse.operand import SparseOperand

_WINNERS = ("max", "min")
#: Outputs in the dtype of the results, or of gradients.
_STORED = ("sum", "edge", *_WINNERS)
#: Outputs with a row for each edge.
_OF_EDGES = ("edge", "edge_number", "mapped_edge")


# The edges of an operand. Those that `prepare` merged are told apart; self-loops that it added are numbered
# behind the given edges.


def are_nonzeros(operand: SparseOperand) -> bool:
    """Return whether the edges given to `prepare` are the nonzeros in order, as in batches of graphs."""
    prepared = operand.prepared
    return prepared.edge_map is None and operand.kernels is prepared.forward


def edges_of(operand: SparseOperand) -> Edges:
    """Return the edges that were given to `prepare`, in this order, and then added self-loops."""
    # Of arrays that are overwritten nothing can be remembered.
    return _edges_now(operand) if operand.prepared.renewable else _known_edges(operand)


def _edges_now(operand: SparseOperand) -> Edges:
    with outside():
        if are_nonzeros(operand):
            row, col = operand.indices()
            return Edges(row, col, operand.shape[0])
        order, index = order_of(operand), operand.indices()
        given = index[:, order.nonzero_of]
        loops = index[:, order.edge_of == operand.num_edges]
        row, col = torch.cat([given, loops], dim=1)
        return Edges(row, col, operand.shape[0])


_known_edges = made_once(_edges_now)


@made_once
def rows_of(operand: SparseOperand, by_column: bool) -> Rows:
    """Return the rows of A, or of A^T, whose nonzeros are the edges."""
    with outside():
        if are_nonzeros(operand):  # the arrays themselves, which may be overwritten
            ids = operand.transpose_map.to(torch.int32) if by_column else None
            return Rows(operand.T.kernels if by_column else operand.kernels, ids, operand.nnz)
        order, kernels = order_of(operand), operand.kernels
        if order.has_repeats:
            return _repeated_rows(operand, edges_of(operand), by_column)
        ids = order.edge_of
        if order.has_added:
            is_loop = ids == operand.num_edges
            ids = torch.where(is_loop, operand.num_edges - 1 + is_loop.cumsum(0), ids)
        if by_column:
            ids, kernels = ids.index_select(0, operand.transpose_map), operand.T.kernels
        return Rows(kernels, ids.to(torch.int32), operand.nnz)


def _repeated_rows(operand: SparseOperand, edges: Edges, by_column: bool) -> Rows:
    rows, cols = operand.shape
    row, col = edges.target, edges.source
    if by_column:
        rows, cols, row, col = cols, rows, col, row
    order = (row * cols + col).argsort(stable=True)
    indptr = torch.zeros(rows + 1, dtype=torch.int64, device=operand.device)
    indptr[1:] = row.bincount(minlength=rows).cumsum(0)
    csr = Csr(indptr, col[order].to(torch.int32), cols)
    return Rows(KernelCache(csr, precision=operand.precision), order.to(torch.int32), row.numel())


def edge_counts(operand: SparseOperand, like: torch.Tensor, inverse: bool = False) -> torch.Tensor:
    """Return the number of edges of each target, float32 [targets, 1]; or its inverse, for none 1.

    `like` is any tensor on the operand's device.
    """
    if torch.compiler.is_compiling():
        return torch.ops.gnnsparse.edge_counts(like.detach(), operand.handle, inverse)
    return _counts(operand, inverse)


@made_once
def _counts(operand: SparseOperand, inverse: bool) -> torch.Tensor:
    kernels = operand.kernels
    with outside():
        if are_nonzeros(operand) and kernels.row_ids is None:  # nothing waits for a GPU
            counts = kernels.csr.indptr.diff().float()[:, None]
        else:
            edges = edges_of(operand)
            counts = edges.target.bincount(minlength=edges.targets).float()[:, None]
        return counts.clamp(min=1).reciprocal() if inverse else counts


def kernel_on(device: torch.device) -> Callable[..., Callable[..., None]] | None:
    """Return what binds a pass to a matrix on a device; None: torch's operations compute results there."""
    if path().takes(device):
        return cuda.bind if cuda.available(device) is None else None
    return cpu.bind if device.type == "cpu" else None


# Results and gradients.

Tensors = Sequence[torch.Tensor]


def _width(function: Function, tensors: Tensors) -> int:
    """Return the number of features."""
    for x, tensor in zip(function.inputs, tensors, strict=False):
        if x.form == "mapped":
            return tensors[-1].shape[1]
        if x.form in ("features", "wide"):
            return tensor.shape[-1]
    return 1


class _Run:
    """A pass over the rows of an operand, with all that follows from these and the sizes of its arguments.

    It is called with the tensors of a function, and for gradients those of its results and the winners.
    """

    def __init__(
        self, operand: SparseOperand, function: Function, pass_: Pass, by_column: bool, width: int,
        dtypes: Sequence[torch.dtype],
    ) -> None:  # fmt: skip
        rows, size = rows_of(operand, by_column), max(pass_.sizes, default=0)
        bind = kernel_on(operand.device)
        assert bind is not None
        self._run = bind(pass_, rows, width, operand.precision.storage)
        count = len(function.inputs) + any(x.form == "mapped" for x in function.inputs)
        with_winners = [k for k, (how, _) in enumerate(function.results) if how in _WINNERS]
        place_of = {("input", i): i for i in range(count)}
        place_of |= {("grad", k): count + k for k in range(len(function.results))}
        count += len(function.results)
        place_of |= {("winner", k): count + i for i, k in enumerate(with_winners)}
        places = [
            (place_of[of], len(function.inputs)) if kind == "mapped" else (place_of[of],)
            for kind, of in zip(pass_.inputs, pass_.given, strict=True)
        ]
        self._places = [place for some in places for place in some]
        targets, edges = rows.kernels.csr.rows, rows.num_edges
        is_padded = isinstance(rows.kernels.csr, PaddedCsr)
        shapes = {
            "row_number": (targets,), "edge_number": (edges,), "vector": (width,), "edge": (edges, width),
            "mapped_edge": (edges, size), "mapped_weight": (size, width),
            **dict.fromkeys(("sum", *_WINNERS), (targets, width)),
        }  # fmt: skip
        made: list[tuple[tuple[int, ...], torch.dtype]] = []
        #: The places of the results among the outputs, and then those of winners.
        self._order: list[int] = []
        winners = []
        for (kind, _), dtype in zip(pass_.outputs, dtypes, strict=True):
            self._order.append(len(made))
            made.append((shapes[kind], dtype if kind in _STORED else torch.float32))
            if kind in _WINNERS:
                winners.append(len(made))
                made.append((shapes[kind], torch.int32))
        # Edges of padding have no row, which writes them.
        is_zeroed = [is_padded and kind in _OF_EDGES for kind, _ in pass_.outputs]
        self._zeroed = [i for i, zeroed in zip(self._order, is_zeroed, strict=True) if zeroed]
        self._order += winners
        self._make = tensor_maker(operand.device, made)

    def __call__(self, tensors: Tensors) -> list[torch.Tensor]:
        """Return the outputs, and behind them the winners."""
        outputs = self._make()
        for i in self._zeroed:
            outputs[i].zero_()
        self._run([tensors[i] for i in self._places], outputs)
        return [outputs[i] for i in self._order]


@made_once
def _runs_of(operand: SparseOperand) -> dict[Any, Any]:
    """Return what was bound to an operand so far, by the function and the sizes."""
    return {}


def _forward_run(
    operand: SparseOperand, function: Function, dtype: torch.dtype, tensors: Tensors
) -> _Run | None:
    """Return the pass that computes the results; None: torch's operations do."""
    runs, key = _runs_of(operand), (function, dtype, width := _width(function, tensors))
    run: _Run | None = runs.get(key)
    if run is None and kernel_on(operand.device) is not None:
        dtypes = [dtype] * len(function.results) + [torch.float32] * len(function.sums)
        run = runs[key] = _Run(operand, function, forward_pass(function), False, width, dtypes)
    return run


def run_forward(
    operand: SparseOperand, function: Function, dtype: torch.dtype, tensors: Tensors
) -> list[torch.Tensor]:
    """Compute the results in a dtype, sums in float32, and the winners, int32, of each "max" and "min"."""
    run = _forward_run(operand, function, dtype, tensors)
    return _computed(operand, function, dtype, tensors) if run is None else run(tensors)


def _computed(
    operand: SparseOperand, function: Function, dtype: torch.dtype, tensors: Tensors
) -> list[torch.Tensor]:
    """Compute what `run_forward` returns by torch's operations."""
    all_ = function_of(function.inputs, function.steps, function.stored)
    with torch.no_grad(), torch.autocast(operand.device.type, enabled=False):
        results, found = compute(all_, edges_of(operand), [t.float() for t in tensors])
    count = len(function.results)
    results = [r.to(dtype) if k < count else r for k, r in enumerate(results)]
    return [*results, *(w.to(torch.int32) for w in found)]


@functools.lru_cache(1024)
def _saved_numbers(function: Function) -> tuple[int, ...]:
    """Return what the backward pass needs of the outputs: results that slopes use, sums, and winners."""
    count, stored = len(function.results), len(function.stored)
    used = {slope.total for slope in function.slopes if 0 <= slope.total < count}
    winners = sum(how in _WINNERS for how, _ in function.results)
    return *sorted(used), *range(count, stored + winners)


def _saved(function: Function, outputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return the outputs that the backward pass needs."""
    return [outputs[k] for k in _saved_numbers(function)]


def _winners(function: Function, saved: Tensors) -> Tensors:
    """Return the winners, of what `_saved` returned."""
    return saved[len(saved) - sum(how in _WINNERS for how, _ in function.results) :]


def _of_results(
    function: Function, grads: Sequence[torch.Tensor | None], winners: Tensors
) -> tuple[Function, list[torch.Tensor], list[torch.Tensor]]:
    """Return the function with those results alone that have a gradient, the gradients, and the winners."""
    left, taken = iter(winners), []
    for (how, _), grad in zip(function.results, grads, strict=True):
        winner = next(left) if how in _WINNERS else None
        taken += [] if winner is None or grad is None else [winner]
    kept = [k for k, grad in enumerate(grads) if grad is not None]
    return function.of(kept), [g for g in grads if g is not None], taken


class _Gradients:
    """The gradients of the tensors that `needs` says, if results have one, or none where `given` is False."""

    def __init__(
        self, operand: SparseOperand, function: Function, needs: tuple[bool, ...], given: tuple[bool, ...],
        width: int,
    ) -> None:  # fmt: skip
        self._storage = operand.precision.storage
        numbers, count = _saved_numbers(function), len(function.stored)
        with_winners = [k for k, (how, _) in enumerate(function.results) if how in _WINNERS]
        winner_of = {k: numbers.index(count + i) for i, k in enumerate(with_winners)}
        #: Results, inputs, factors, and what of the saved tensors their gradients are multiplied by.
        self._slopes: list[tuple[int, int, float, int, bool]] = []
        for k, i, factor, total in function.slopes:
            if given[k] and needs[i]:
                place = winner_of.get(k, -1) if total < 0 else numbers.index(total)
                self._slopes.append((k, i, factor, place, total < 0))
        by_slopes = {i for _, i, *_ in self._slopes}
        self._given = [k for k, has_one in enumerate(given) if has_one]
        self._winners = [winner_of[k] for k in self._given if k in winner_of]
        left = tuple([needed and i not in by_slopes for i, needed in enumerate(needs)])
        self._shared = [i for i, x in enumerate(function.inputs) if x.side == "shared"]
        self._passes = []
        part = function.of(self._given)
        for by_column, make in ((False, row_pass), (True, column_pass)):
            if (pass_ := make(part, left)) is not None:
                dtypes = [self._storage] * len(pass_.outputs)
                self._passes.append((_Run(operand, part, pass_, by_column, width, dtypes), pass_.found))

    def __call__(
        self, operand: SparseOperand, grads: Sequence[torch.Tensor | None], tensors: Tensors, saved: Tensors
    ) -> list[torch.Tensor | None]:
        """Return for each tensor its gradient, or None."""
        found: list[torch.Tensor | None] = [None] * len(tensors)
        for k, i, factor, place, is_count in self._slopes:
            grad: Any = grads[k]
            by: Any = edge_counts(operand, grad) if place < 0 else saved[place]
            by = by >= 0 if is_count and place >= 0 else by
            # In one kernel, which rounds what it computes in float32.
            is_same = by.dtype in (grad.dtype, torch.bool)
            term = grad * by if is_same else torch.mul(grad, by, out=torch.empty_like(grad))
            term = term if factor == 1 else term * factor
            found[i] = term if (before := found[i]) is None else before + term
        if not self._passes:
            return found
        values = list(tensors)
        given: list[Any] = [grads[k] for k in self._given]
        values += [g if g.dtype is self._storage else g.to(self._storage) for g in given]
        values += [saved[i] for i in self._winners]
        for run, places in self._passes:
            for i, made in zip(places, run(values), strict=True):
                is_one = i in self._shared and made.numel() > 1 and tensors[i].numel() == 1
                found[i] = made.sum().reshape(1) if is_one else made
        return found


def run_backward(
    operand: SparseOperand, function: Function, needs: tuple[bool, ...], grads: Sequence[torch.Tensor | None],
    tensors: Tensors, saved: Tensors,
) -> list[torch.Tensor | None]:  # fmt: skip
    """Compute the gradients of the tensors, of those that `needs` says; None: there is none.

    `saved` is what `_saved` returned.
    """
    runs, width, given = _runs_of(operand), _width(function, tensors), tuple([g is not None for g in grads])
    run = runs.get((function, needs, given, width))
    if run is None:
        if kernel_on(operand.device) is None:
            function, results, winners = _of_results(function, grads, _winners(function, saved))
            leaves = [t.detach().requires_grad_() for t in tensors]
            return _composed(operand, function, needs, results, leaves, winners, again=False)
        run = runs[function, needs, given, width] = _Gradients(operand, function, needs, given, width)
    return run(operand, grads, tensors, saved)


def _composed(
    operand: SparseOperand, function: Function, needs: tuple[bool, ...], grads: Tensors, tensors: Tensors,
    winners: Tensors, again: bool = True,
) -> list[torch.Tensor | None]:  # fmt: skip
    """Compute gradients by torch's operations; `again`: they have gradients themselves."""
    wanted = [t for t, needed in zip(tensors, needs, strict=True) if needed]
    if not wanted or not grads:
        return [None] * len(tensors)
    with dispatch.recording(), torch.autocast(operand.device.type, enabled=False):
        wide = [t.float() for t in tensors]
        results, _ = compute(function, edges_of(operand), wide, [w.long() for w in winners])
        # A result that is made of other tensors alone has no gradient to hand on.
        pairs = [(r, g.to(r.dtype)) for r, g in zip(results, grads, strict=True) if r.requires_grad]
        if not pairs:
            return [None] * len(tensors)
        kept, given = zip(*pairs, strict=True)
        found = iter(torch.autograd.grad(kept, wanted, given, create_graph=again, allow_unused=True))
    return [next(found) if needed else None for needed in needs]


def _gradients_of(
    operand: SparseOperand, function: Function, needs: tuple[bool, ...], grads: Sequence[torch.Tensor | None],
    tensors: Tensors, saved: Tensors,
) -> Sequence[torch.Tensor | None]:  # fmt: skip
    """Compute what `run_backward` does, differentiably."""
    given = [None if g is None else dispatch.gradient("aggregate_edges", g) for g in grads]
    native = lambda: run_backward(operand, function, needs, given, tensors, saved)  # noqa: E731

    def composed() -> Any:
        part, results, taken = _of_results(function, given, _winners(function, saved))
        return _composed(operand, part, needs, results, tensors, taken)

    found = dispatch.native_or_composed((*given, *tensors), native, composed)
    return [g if needed else None for g, needed in zip(found, needs, strict=True)]


class _EdgeFunction(dispatch.Operation):
    """Applied to the tensors, the operand, the function, the dtype of the results, and the call."""

    name = "aggregate_edges"

    @staticmethod
    def forward(*arguments: Any) -> Any:
        *tensors, _, _, _, run = arguments
        return tuple(run(*tensors))

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        *tensors, operand, ctx.function, _, _ = inputs
        ctx.operand = dispatch.operand_at(operand)
        ctx.mark_non_differentiable(*output[len(ctx.function.results) :])
        ctx.set_materialize_grads(False)
        ctx.count = len(tensors)
        ctx.save_for_backward(*tensors, *_saved(ctx.function, output))

    @staticmethod
    @ranged("aggregate_edges_backward")
    def backward(ctx: Any, *grads: Any) -> Any:
        """Compute the gradients of the tensors."""
        stored, count = alive(ctx.saved_tensors), ctx.count
        of_results, needs = grads[: len(ctx.function.results)], ctx.needs_input_grad[:count]
        found = _gradients_of(ctx.operand, ctx.function, needs, of_results, stored[:count], stored[count:])
        return *found, *[None] * 4


class _EagerFunction(torch.autograd.Function):
    """What `_EdgeFunction` does outside of torch.func, in less time: applied to the pass and the tensors."""

    @staticmethod
    def forward(ctx: Any, run: _Run, operand: SparseOperand, function: Function, *tensors: Any) -> Any:
        outputs = run(tensors)
        ctx.operand, ctx.function = operand, function
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*tensors, *_saved(function, outputs))
        return tuple(outputs[: len(function.results)])

    @staticmethod
    @ranged("aggregate_edges_backward")
    def backward(ctx: Any, *grads: Any) -> Any:
        """Compute the gradients of the tensors."""
        stored, needs = ctx.saved_tensors, ctx.needs_input_grad[3:]
        count = len(needs)
        found = _gradients_of(ctx.operand, ctx.function, needs, grads, stored[:count], stored[count:])
        return None, None, None, *found


_apply_eagerly = dispatch.direct(_EagerFunction)


def run_function(
    operand: SparseOperand, function: Function, tensors: Tensors, dtype: torch.dtype
) -> Sequence[torch.Tensor]:
    """Compute a function over the edges of an operand. Differentiable, any number of times.

    Args:
        operand: [targets, sources]; edges that were repeated in `prepare` count as often as they were given.
        function: what is computed.
        tensors: for each of its inputs one on the operand's device, and last the map of a "mapped" one:
            features [sources, F], [targets, F], [edges, F] (in the order of the edges given to `prepare`) in
            the operand's storage type; in float32 wide ones [targets, F], numbers [sources], [targets],
            [edges], shared features [F] and numbers [1], mapped numbers [edges, size] and the map [size, F].
        dtype: of the results: the storage type, or float32.

    Returns:
        For each result [targets, F], or [edges, F]; behind the results there may be others.
    """
    if dispatch.is_plain(*tensors) and is_eager():
        run = _forward_run(operand, function, dtype, tensors)
        if run is not None:
            is_recorded = dispatch.needs_grad(*tensors)
            found = _apply_eagerly(run, operand, function, *tensors) if is_recorded else run(tensors)
            return cast(Sequence[torch.Tensor], found)
    bind = lambda: lambda *given: run_forward(operand, function, dtype, given)  # noqa: E731

    def operator(*arguments: Any) -> Any:
        *given, handle, _, _ = arguments
        return torch.ops.gnnsparse.aggregate_edges(given, handle, function.text, dtype)

    found = dispatch.call(_EdgeFunction, operator, operand, tuple(tensors), bind, (function, dtype))
    return cast(Sequence[torch.Tensor], found)


@constant_when_traced
def for_gradients(text: str, needs: tuple[bool, ...], given: tuple[int, ...]) -> str:
    """Return the text of a function with the sums that its gradients need, see `with_slopes`."""
    return with_slopes(function_from(text), needs, given).text if any(needs) else text


def run_text(
    operand: SparseOperand, text: str, tensors: Tensors, dtype: torch.dtype
) -> Sequence[torch.Tensor]:
    """Compute the function of a text, see `run_function`; behind the results there may be others."""
    if torch.compiler.is_compiling():
        return torch.ops.gnnsparse.aggregate_edges(list(tensors), operand.handle, text, dtype)
    return run_function(operand, function_from(text), tensors, dtype)


# The operators, which torch.compile calls.


def register_functions(
    name: str, place: str, found: Callable[..., SparseOperand], sizes: Callable[..., tuple[int, int]]
) -> None:
    """Register an operator of functions over edges, and one of their gradients, behind its name "_grad".

    Args:
        name: of the operator, which is called with the tensors, `place`, the function's text and the dtype.
        place: the arguments that tell the operand, as a schema of torch.library has them.
        found: returns the operand by these arguments.
        sizes: returns the numbers of targets and of edges by them.
    """

    def run(tensors: Tensors, *where: Any) -> list[torch.Tensor]:
        *where, text, dtype = where  # type: ignore[assignment]
        return run_forward(found(*where), function_from(text), dtype, tensors)

    def fake(tensors: Tensors, *where: Any) -> list[torch.Tensor]:
        *where, text, dtype = where  # type: ignore[assignment]
        function, (targets, edges) = function_from(text), sizes(*where)
        new = functools.partial(tensors[0].new_empty, dtype=dtype)
        width = _width(function, tensors)
        results = [new((edges if how == "edge" else targets, width)) for how, _ in function.results]
        results += [new((targets, width), dtype=torch.float32) for _ in function.sums]
        winners = [how for how, _ in function.results if how in _WINNERS]
        return [*results, *(new((targets, width), dtype=torch.int32) for _ in winners)]

    def setup(ctx: Any, inputs: Any, output: Any) -> None:
        tensors, *ctx.where, ctx.text, _ = inputs
        ctx.count, ctx.needs = len(tensors), [t.requires_grad for t in tensors]
        placed = [of for of in ctx.where if isinstance(of, torch.Tensor)]
        ctx.where = [None if isinstance(of, torch.Tensor) else of for of in ctx.where]
        ctx.save_for_backward(*placed, *tensors, *_saved(function_from(ctx.text), output))

    def backward(ctx: Any, grads: Any) -> Any:
        left = iter(alive(ctx.saved_tensors))
        where = [next(left) if of is None else of for of in ctx.where]
        stored = list(left)
        given = [g.contiguous() for g in grads[: len(function_from(ctx.text).results)]]
        run_grad = getattr(torch.ops.gnnsparse, f"{name}_grad")
        tensors, saved = stored[: ctx.count], stored[ctx.count :]
        grads = run_grad(given, tensors, saved, *where, ctx.text, ctx.needs)
        of_tensors = [g if needed else None for g, needed in zip(grads, ctx.needs, strict=True)]
        return of_tensors, *[None] * (len(where) + 2)

    def run_grad(grads: Tensors, tensors: Tensors, saved: Tensors, *where: Any) -> list[torch.Tensor]:
        *where, text, needs = where  # type: ignore[assignment]
        got = run_backward(found(*where), function_from(text), tuple(needs), grads, tensors, saved)
        return [
            t.new_empty(0) if not needed else torch.zeros_like(t) if g is None else g.to(t.dtype)
            for g, t, needed in zip(got, tensors, needs, strict=True)
        ]

    def fake_grad(grads: Tensors, tensors: Tensors, *rest: Any) -> list[torch.Tensor]:
        return [t.new_empty(t.shape if needed else 0) for t, needed in zip(tensors, rest[-1], strict=True)]

    dispatch.register(
        f"{name}(Tensor[] tensors, {place}, str function, ScalarType dtype) -> Tensor[]",
        run, fake, setup, backward,
    )  # fmt: skip
    lists = "Tensor[] grads, Tensor[] tensors, Tensor[] saved"
    dispatch.register(
        f"{name}_grad({lists}, {place}, str function, bool[] needs) -> Tensor[]", run_grad, fake_grad
    )


def _sizes(operand: int) -> tuple[int, int]:
    of = dispatch.operand_at(operand)
    return of.shape[0], of.num_edges


register_functions("aggregate_edges", "int operand", dispatch.operand_at, _sizes)
dispatch.register(
    "edge_counts(Tensor like, int operand, bool inverse) -> Tensor",
    # A copy: compiled code may write into what an operator returns.
    lambda like, operand, inverse: _counts(dispatch.operand_at(operand), inverse).clone(),
    lambda like, operand, inverse: like.new_empty(
        (dispatch.operand_at(operand).shape[0], 1), dtype=torch.float32
    ),
)
