"""SpMM on NVIDIA GPUs. Kernels are queued on the caller's current stream, without waiting for the GPU."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import torch

from gnnsparse import _native
from gnnsparse.errors import bad_value
from gnnsparse.formats import BlockedMatrix
from gnnsparse.formats.convert import place_values
from gnnsparse.formats.policy import POLICY_BLOCKS, STAGINGS, X_LOADS, packed_kernel, why_not_packed
from gnnsparse.ops.dense import (
    CudaLoader,
    aligned_values,
    has_padded_rows,
    new_result,
    padded_width,
    partial_sums,
)
from gnnsparse.plan import CsrPlan, PanelPlan, Plan, Problem, WindowPlan
from gnnsparse.plan.choose import kernel_of
from gnnsparse.plan.panel import reads_lines
from gnnsparse.plan.work import WorkList
from gnnsparse.precision import Precision
from gnnsparse.runtime.device import (
    HALF_VECTOR_BYTES,
    NARROW_WIDTH,
    SECTOR_BYTES,
    SLICE_BYTES,
    VECTOR_BYTES,
    describe_device,
    partial_width,
    path,
)
from gnnsparse.runtime.memo import Launchable
from gnnsparse.sparse.kernel_cache import BoundCall, KernelCache, Product, SpmmCall


def bind(
    kernels: KernelCache, product: Product, dtype: torch.dtype, plan: Plan | None, mean: bool
) -> SpmmCall:
    """Return a function that runs SpMM by a plan, ValueError if it can't: (x, edge values[, y]) -> y."""
    width = product.width

    def make() -> SpmmCall:
        if plan is not None:
            kernel_of("spmm", plan)
        if width == 0 or kernels.csr.nnz == 0:
            rows = kernels.csr.rows
            return lambda x, values, out=None: x.new_zeros(rows, width) if out is None else out.zero_()
        given = "packed" if dtype is kernels.precision.storage else "converted"
        chosen = plan or kernels.plan_of(replace(product, rows_of_x=given))
        bound = _BINDERS[type(chosen)](kernels, chosen, product, mean)
        launch = _native_launch(kernels, bound, product, dtype)
        run, adds = _python_call(kernels, bound, width), bound.load_to_add is not None
        # A batch is multiplied once or twice, and has few rows.
        if plan is None and kernels.dispatch_cache.repeats and padded_width(width, dtype) != width:
            other = kernels.plan_of(replace(product, rows_of_x="padded"))
            if replace(other, reasons=()) != replace(chosen, reasons=()):
                padded = _BINDERS[type(other)](kernels, other, product, mean)
                run = _by_rows(run, _python_call(kernels, padded, width))
                if launch is not None:
                    launch.set_padded(_native_launch(kernels, padded, product, dtype))
        return Launchable(kernels.csr.device, run, launch, mean, adds)

    return kernels.memo.get(BoundCall(product, dtype, plan, mean), make)


class _Bound(NamedTuple):
    """A kernel with all its arguments but X, y and edge values."""

    #: Name in the functions cuda_spmm_* and the constructors of SpmmLaunch.
    kind: str
    view: _native.Csr | _native.Blocked
    stored: _native.StoredRows
    work: WorkList
    load: CudaLoader
    #: Rows of a partial sum.
    height: int = 1
    #: What follows the work list, and the width of X.
    how: tuple[Any, ...] = ()
    after_width: tuple[Any, ...] = ()
    #: Whether some rows are written by nobody, or added to.
    clears: bool = False
    #: The matrix and its rows with edge values in place of their own.
    with_values: Callable[[torch.Tensor], tuple[Any, _native.StoredRows]] | None = None
    #: How X is converted for a kernel that adds to y; None: it can't.
    load_to_add: CudaLoader | None = None
    #: What multiplies the rows that the format keeps out of its windows.
    residual: _Bound | None = None


def _queue(
    kernels: KernelCache, bound: _Bound, width: int
) -> Callable[[Any, _native.StoredRows, _native.Dense, torch.Tensor, bool], None]:
    """Return what queues a bound kernel: (matrix, rows, x, y, whether to add) -> None."""
    work, height, how, after = bound.work, bound.height, bound.how, bound.after_width
    items, partials = work.view, work.partials
    name, adds = f"cuda_spmm_{bound.kind}", bound.kind == "panel"
    code, streams = kernels.precision.code, kernels.streams

    def queue(
        view: Any, stored: _native.StoredRows, x: _native.Dense, y: torch.Tensor, add: bool = False
    ) -> None:
        partial, gpu = partial_sums(partials, height, width, y.device), path()
        launch = getattr(gpu.native, name)
        launch(
            view, stored, items, *how, x, gpu.native.Dense(y), width, *after, partial, code,
            streams.current(), *((add,) if adds else ()),
        )  # fmt: skip

    return queue


def _python_call(kernels: KernelCache, bound: _Bound, width: int) -> SpmmCall:
    """Return what runs a bound kernel: (x, edge values or None[, y[, whether to add]]) -> y."""
    rows, load, load_to_add = kernels.csr.rows, bound.load, bound.load_to_add
    view, stored, with_values, clears = bound.view, bound.stored, bound.with_values, bound.clears
    queue, rest = _queue(kernels, bound, width), bound.residual
    queue_rest = None if rest is None else _queue(kernels, rest, width)

    def run(
        x: torch.Tensor, values: torch.Tensor | None, out: torch.Tensor | None = None, add: bool = False
    ) -> torch.Tensor:
        x_view = load_to_add(x) if add and load_to_add is not None else load(x)
        y = new_result(x, rows) if out is None else out
        if clears:
            y.zero_()
        matrix, of_rows = view, stored
        if values is not None and with_values is not None:
            matrix, of_rows = with_values(values)
        queue(matrix, of_rows, x_view, y, add)
        if rest is not None and queue_rest is not None:
            queue_rest(rest.view, rest.stored, x_view, y, False)
        return y

    return run


def _by_rows(packed: SpmmCall, padded: SpmmCall) -> SpmmCall:
    """Return a call that is `padded` where X has padded rows, unless it adds to what is there."""

    def run(
        x: torch.Tensor, values: torch.Tensor | None, out: torch.Tensor | None = None, add: bool = False
    ) -> torch.Tensor:
        if has_padded_rows(x) and not add:
            return padded(x, values, out)
        return packed(x, values, out, add) if add else packed(x, values, out)

    return run


def _native_launch(kernels: KernelCache, bound: _Bound, product: Product, dtype: torch.dtype) -> Any:
    """Return the native object that queues a product without edge values in one call; None: there is none."""
    gpu, device, csr, work = path(), kernels.csr.device, kernels.csr, bound.work
    native, possible = gpu.native, bound.residual is None and not product.edge_values
    make = getattr(getattr(native, "SpmmLaunch", None), bound.kind, None)
    if make is None or not possible or not kernels.dispatch_cache.repeats:
        return None
    like, stored, sums = (
        torch.empty(0, dtype=t, device=device) for t in (dtype, bound.load.dtype, torch.float32)
    )
    if not native.shows_tensors(like):
        return None
    partials = work.partials * bound.height * partial_width(product.width)
    result = native.SpmmResult(
        csr.rows, csr.cols, product.width, padded_width(product.width, dtype), like, stored, sums, partials
    )
    queue = native.LaunchQueue(*gpu.queue(device), kernels.streams.note)
    handles = bound.view, bound.stored, work.view, *bound.how, *bound.after_width
    return make(*handles, kernels.precision.code, result, bound.load.layout(), queue)


def _csr(kernels: KernelCache, plan: CsrPlan, product: Product, mean: bool) -> _Bound:
    precision, width, row_ids = kernels.precision, product.width, kernels.row_ids
    if plan.narrow and not (plan.group and width <= NARROW_WIDTH):
        bad_value(
            "plan", f"narrow takes group > 0 and at most {NARROW_WIDTH} columns, not {plan.group}, {width}"
        )
    own: torch.Tensor | None = None
    col_scale, weighted = None, False
    if not product.edge_values and kernels.col_scale is not None and not plan.prescale:
        own = kernels.explicit_values
    elif not product.edge_values:
        own, col_scale, weighted = kernels.values, kernels.col_scale, True
    row_scale, view = kernels.row_factors(weighted, mean), kernels.csr.view
    groups = kernels.row_groups(plan.group, plan.row_limit) if plan.group else None
    size = precision.storage.itemsize
    as_is = size if plan.narrow else plan.row_unit(width * size)

    def with_values(values: torch.Tensor) -> tuple[_native.Csr, _native.StoredRows]:
        return view, path().native.StoredRows(None, row_ids, row_scale, aligned_values(values, precision))

    return _Bound(
        "csr", view, path().native.StoredRows(None, row_ids, row_scale, own),
        kernels.row_work(plan.row_limit), CudaLoader(precision, width, col_scale, as_is=as_is),
        how=(_lanes(plan, groups),), with_values=with_values,
    )  # fmt: skip


def _lanes(plan: CsrPlan, groups: torch.Tensor | None) -> _native.CsrLanes:
    return _native.CsrLanes(plan.lanes, plan.row_lanes, plan.row_limit, groups, plan.narrow)


def _panel(kernels: KernelCache, plan: PanelPlan, product: Product, mean: bool) -> _Bound:
    if product.edge_values:
        bad_value("plan", "panels hold no place for edge values; use window or csr")
    height, values, problem = plan.height, kernels.values, kernels.problem(product)
    reads = kernels.panel(height).slots / max(kernels.csr.cols, 1)
    whole, rates = _whole_rows(problem, reads), problem.record.panel
    # Panels of bits read rows of half vectors as they are where each is read few times.
    few = values is None and reads < rates.half_reads and problem.slices <= rates.half_slices
    # The loader rounds only for panels of bits: kernels of panels with values round X themselves.
    make_load = functools.partial(
        CudaLoader, kernels.precision, product.width, kernels.col_scale if plan.prescale else None,
        rounds=plan.prescale and kernels.precision is Precision.TF32 and values is None, whole=whole,
        unpacked=problem.record.memory.unpacked_bytes if whole == SLICE_BYTES else SLICE_BYTES,
    )  # fmt: skip
    return _Bound(
        "panel", kernels.view(height, not plan.prescale),
        path().native.StoredRows(None, kernels.row_ids, kernels.row_factors(values is None, mean)),
        kernels.panel_work(height, plan.tile_limit, plan.longest_first, plan.concurrent_panels),
        make_load(as_is=HALF_VECTOR_BYTES if few and not problem.slice_is_resident else 0), height,
        # Kernels of panels of bits add to memory, and then read whole vectors.
        after_width=(plan.slices,), load_to_add=make_load() if values is None else None,
    )  # fmt: skip


def _whole_rows(problem: Problem, reads: float) -> int:
    """Return of how many bytes rows of X should be multiples, each of which panels read `reads` times."""
    if reads_lines(problem, reads):
        return SLICE_BYTES
    return SECTOR_BYTES if reads >= problem.record.panel.sector_reads else VECTOR_BYTES


def _window(kernels: KernelCache, plan: WindowPlan, product: Product, mean: bool) -> _Bound:
    blocked, precision, width = kernels.blocked, kernels.precision, product.width
    if blocked is None:
        bad_value("plan", "the window kernel needs an operand in a blocked format")
    spec, edge_values, kernel = blocked.spec, product.edge_values, packed_kernel(blocked.spec)
    places_values = edge_values and spec.stores_values and not kernel
    if (places_values and spec.encoding != "dense") or (kernel and edge_values):
        bad_value("plan", f"{spec.name} stores no bits to place edge values by; use csr")
    if kernel and (why := why_not_packed(plan.policy, precision, spec)):
        bad_value("plan", why)
    weighted = not (spec.stores_values or edge_values or kernel)
    own, scale = kernels.values if weighted else None, kernels.row_factors(weighted, mean)
    work = kernels.window_work(plan.tile_limit, balance=plan.balance, concurrent=plan.concurrent_windows)
    load, row_ids = CudaLoader(precision, width), kernels.row_ids
    if kernel:
        how = path().native.PackedPolicy(
            STAGINGS.index(plan.policy.stage_a), plan.policy.stage_x, plan.policy.coarsening,
            plan.residual_mode == "same-launch",
        )  # fmt: skip
        # Empty rows may be neither in a window nor in the rows that are kept out: nothing writes them.
        return _Bound(
            kernel, kernels.view(0, False),
            path().native.StoredRows(None, row_ids, scale), work, load, spec.item_rows, (how,),
            clears=spec.split_short_rows,
        )  # fmt: skip
    indptr, own_view = kernels.csr.indptr, kernels.view(0, not edge_values)
    residual = _residual(kernels, plan.residual, load, mean)
    places, policy = kernels.value_places if places_values else None, _policy(kernels, blocked, plan)

    def with_values(values: torch.Tensor) -> tuple[_native.Blocked, _native.StoredRows]:
        rounded, native = aligned_values(values, precision), path().native
        if places is None:
            return own_view, native.StoredRows(indptr, row_ids, scale, rounded)
        view = replace(blocked, values=place_values(blocked, places, rounded)).view()
        return view, native.StoredRows(indptr, row_ids, scale, own)

    return _Bound(
        "window" if policy is None else "policy", own_view,
        path().native.StoredRows(indptr, row_ids, scale, own), work, load, spec.window,
        () if policy is None else (policy,), clears=residual is not None, with_values=with_values,
        residual=residual,
    )  # fmt: skip


def _policy(kernels: KernelCache, blocked: BlockedMatrix, plan: WindowPlan) -> _native.WindowPolicy | None:
    """Return the native handle of a plan's policy; None: it is the one that the window kernel has."""
    policy, precision = plan.policy, kernels.precision
    if why := policy.why_not(precision, blocked.spec.encoding, blocked.spec.window):
        bad_value("plan", f"its policy can't run here: {why}")
    if policy.is_default(precision):
        return None
    if blocked.spec.block not in POLICY_BLOCKS:
        accepted = ", ".join(map(str, POLICY_BLOCKS))
        bad_value(
            "plan", f"its policy can't run blocks of {blocked.spec.block} columns; accepted: {accepted}"
        )
    capability = describe_device(kernels.csr.device).capability
    if policy.stage_a != "none" and capability < (8, 0):
        bad_value("plan", f"stage_a needs asynchronous copies, which sm_{capability[0]}{capability[1]} lacks")
    deep = policy.depth(precision) == replace(policy, k=None).depth(precision)
    return path().native.WindowPolicy(
        policy.swapped, deep, X_LOADS.index(policy.x_load), policy.shuffle, STAGINGS.index(policy.stage_a),
        policy.stage_x, policy.coarsening, policy.grid == "3d", blocked.zero_ptr, blocked.zero_cols,
    )  # fmt: skip


def _residual(kernels: KernelCache, plan: CsrPlan, load: CudaLoader, mean: bool) -> _Bound | None:
    """Bind the product of the rows that the format keeps out of its windows; None if there are none."""
    blocked = kernels.require_blocked()
    if blocked.residual is None:
        return None
    # Values of the residual have the weights of its rows already.
    counts = kernels.residual_counts() if mean else None
    stored = path().native.StoredRows(None, kernels.residual_row_ids(), counts, blocked.residual_csr_values)
    work = kernels.residual_work(plan.row_limit)
    return _Bound("csr", blocked.residual.view, stored, work, load, how=(_lanes(plan, None),))


_BINDERS: dict[type[Plan], Callable[[KernelCache, Any, Product, bool], _Bound]] = {
    CsrPlan: _csr, PanelPlan: _panel, WindowPlan: _window,
}  # fmt: skip
