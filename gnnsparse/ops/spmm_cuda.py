"""SpMM on NVIDIA GPUs. Kernels are queued on the caller's current stream, without waiting for the GPU."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from gnnsparse import _native
from gnnsparse.errors import bad_value
from gnnsparse.formats import BlockedMatrix
from gnnsparse.formats.convert import place_values
from gnnsparse.formats.csr import Csr
from gnnsparse.formats.policy import POLICY_BLOCKS, STAGINGS, X_LOADS, packed_kernel, why_not_packed
from gnnsparse.ops.dense import CudaLoader, aligned_values, partial_sums
from gnnsparse.plan import CsrPlan, PanelPlan, Plan, WindowPlan
from gnnsparse.plan.choose import kernel_of
from gnnsparse.plan.panel import reads_lines
from gnnsparse.plan.work import WorkList
from gnnsparse.precision import Precision
from gnnsparse.runtime.device import (
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

__all__ = ["bind"]

#: Panels copy X to rows of whole sectors if each row is read at least this often. Rows that are not read one
#: sector in 16 more, which takes as long as the copy at 35 reads by the rates of an H200.
_READS_OF_A_ROW = 70
#: Panels of bits read rows of X that begin between two vectors as they are, by twice the copies, where that
#: takes less time than a copy of X: where its slices do not stay in L2, rows are read less often than this,
#: and have at most so many slices (notes/log.md).
_READS_BY_HALVES, _SLICES_BY_HALVES = 16, 8
_SUMS = torch.float32


def bind(
    kernels: KernelCache, product: Product, dtype: torch.dtype, plan: Plan | None, mean: bool
) -> SpmmCall:
    """Returns a function that runs SpMM: (x, edge values or None[, y]) -> y. `kernels` keeps it.

    Args:
        kernels: cache of the orientation that is multiplied.
        product: the columns of X, and whether values are given in the call.
        dtype: dtype of X and y.
        plan: the plan to run by; None: the operand's own.
        mean: whether a row's sum is divided by its number of nonzeros.

    Raises:
        ValueError: `plan` can't run for this operand.
    """
    width = product.width

    def make() -> SpmmCall:
        if plan is not None:
            kernel_of("spmm", plan)
        if width == 0 or kernels.csr.nnz == 0:
            rows = kernels.csr.rows
            return lambda x, values, out=None: x.new_zeros(rows, width) if out is None else out.zero_()
        chosen = plan or kernels.plan_of(product)
        run, launch = _BINDERS[type(chosen)](kernels, chosen, product, mean)
        native = None if launch is None or product.edge_values else launch.bind(kernels, width, dtype)
        # Kernels of panels of bits add to memory.
        adds = isinstance(chosen, PanelPlan) and kernels.values is None
        return Launchable(kernels.csr.device, run, native, mean, adds)

    return kernels.memo.get(BoundCall(product, dtype, plan, mean), make)


@dataclass(frozen=True)
class _Launch:
    """What a native launch is made of, which queues a product without edge values in one call.

    Attributes:
        kind: the constructor of the native class SpmmLaunch.
        handles: its arguments before the precision.
        load: how X is converted.
        partials: number of floats of the workspace for partial sums.
    """

    kind: str
    handles: tuple[Any, ...]
    load: CudaLoader
    partials: int

    def bind(self, kernels: KernelCache, width: int, dtype: torch.dtype) -> Any:
        """Returns the native object; None: it would not pay, or module or torch lack what it needs."""
        if not kernels.dispatch_cache.repeats:
            return None
        gpu, device, csr = path(), kernels.csr.device, kernels.csr
        native = gpu.native
        if getattr(native, "SpmmLaunch", None) is None:
            return None
        like, stored, sums = (torch.empty(0, dtype=t, device=device) for t in (dtype, self.load.dtype, _SUMS))
        if not native.shows_tensors(like):
            return None
        result = native.SpmmResult(csr.rows, csr.cols, width, like, stored, sums, self.partials)
        queue = native.LaunchQueue(*gpu.queue(device), kernels.streams.note)
        make = getattr(native.SpmmLaunch, self.kind)
        return make(*self.handles, kernels.precision.code, result, self.load.layout(), queue)


#: A product that runs by Python, and a native launch that computes the same, or None.
_Bound = tuple[SpmmCall, "_Launch | None"]


def _csr_product(
    kernels: KernelCache, csr: Csr, work: WorkList, groups: torch.Tensor | None, plan: CsrPlan, width: int
) -> Callable[[_native.StoredRows, _native.Dense, _native.Dense, torch.device], None]:
    """Binds the csr kernel to a matrix; arguments left: rows with their values, x, y, device."""
    lanes = _lanes(plan, groups)
    view, items, code, partials = csr.view, work.view, kernels.precision.code, work.partials
    streams = kernels.streams

    def run(rows: _native.StoredRows, x: _native.Dense, y: _native.Dense, device: torch.device) -> None:
        partial, gpu = partial_sums(partials, 1, width, device), path()
        gpu.native.cuda_spmm_csr(view, rows, items, lanes, x, y, width, partial, code, streams.current())

    return run


def _lanes(plan: CsrPlan, groups: torch.Tensor | None) -> _native.CsrLanes:
    return _native.CsrLanes(plan.lanes, plan.row_lanes, plan.row_limit, groups, plan.narrow)


def _floats(work: WorkList, rows: int, width: int) -> int:
    """Returns the size of what `partial_sums` allocates."""
    return work.partials * rows * partial_width(width)


def _bind_csr(kernels: KernelCache, plan: CsrPlan, product: Product, mean: bool) -> _Bound:
    precision, rows, width, row_ids = kernels.precision, kernels.csr.rows, product.width, kernels.row_ids
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
    row_scale = kernels.row_factors(weighted, mean)
    load = CudaLoader(precision, width, col_scale, elements=plan.narrow)
    work = kernels.row_work(plan.row_limit)
    groups = kernels.row_groups(plan.group, plan.row_limit) if plan.group else None
    multiply = _csr_product(kernels, kernels.csr, work, groups, plan, width)
    stored = path().native.StoredRows(None, row_ids, row_scale, own)

    def run(x: torch.Tensor, values: torch.Tensor | None, out: torch.Tensor | None = None) -> torch.Tensor:
        gpu, now, x_view = path(), stored, load(x)
        y = x.new_empty(rows, width) if out is None else out
        if values is not None:
            now = gpu.native.StoredRows(None, row_ids, row_scale, aligned_values(values, precision))
        multiply(now, x_view, gpu.native.Dense(y), y.device)
        return y

    lanes = _lanes(plan, groups)
    launch = _Launch("csr", (kernels.csr.view, stored, work.view, lanes), load, _floats(work, 1, width))
    return run, launch


def _bind_panel(kernels: KernelCache, plan: PanelPlan, product: Product, mean: bool) -> _Bound:
    if product.edge_values:
        bad_value("plan", "panels hold no place for edge values; use window or csr")
    height, slices, width = plan.height, plan.slices, product.width
    work = kernels.panel_work(height, plan.tile_limit, plan.longest_first, plan.concurrent_panels)
    view, items, partials = kernels.panel_view(height, not plan.prescale), work.view, work.partials
    values = kernels.values
    row_scale = kernels.row_factors(values is None, mean)
    stored = path().native.StoredRows(None, kernels.row_ids, row_scale)
    rows, code, streams = kernels.csr.rows, kernels.precision.code, kernels.streams
    # The loader rounds only for panels of bits: kernels of panels with values round X themselves.
    rounds = plan.prescale and kernels.precision is Precision.TF32 and values is None
    scale = kernels.col_scale if plan.prescale else None
    reads = kernels.panel(height).slots / max(kernels.csr.cols, 1)
    whole = _whole_rows(kernels, product, reads)
    make_load = functools.partial(CudaLoader, kernels.precision, width, scale, rounds=rounds, whole=whole)
    load = make_load(halves=values is None and _reads_halves(kernels, product, reads))
    load_to_add = make_load()  # kernels that add to memory read whole vectors

    def run(
        x: torch.Tensor, values: torch.Tensor | None, out: torch.Tensor | None = None, add: bool = False
    ) -> torch.Tensor:
        x_view = load_to_add(x) if add else load(x)
        y = x.new_empty(rows, width) if out is None else out
        partial, gpu = partial_sums(partials, height, width, y.device), path()
        gpu.native.cuda_spmm_panel(
            view, stored, items, x_view, gpu.native.Dense(y), width, slices, partial, code,
            streams.current(), add,
        )  # fmt: skip
        return y

    return run, _Launch("panel", (view, stored, items, slices), load, _floats(work, height, width))


def _whole_rows(kernels: KernelCache, product: Product, reads: float) -> int:
    """Returns of how many bytes rows of X should be multiples, each of which panels read `reads` times."""
    if reads_lines(kernels.problem(product), reads):
        return SLICE_BYTES
    return SECTOR_BYTES if reads >= _READS_OF_A_ROW else VECTOR_BYTES


def _reads_halves(kernels: KernelCache, product: Product, reads: float) -> bool:
    """Returns whether panels read rows of half vectors as they are, each `reads` times."""
    problem = kernels.problem(product)
    few = reads < _READS_BY_HALVES and problem.slices <= _SLICES_BY_HALVES
    return few and not problem.slice_is_resident


def _bind_window(kernels: KernelCache, plan: WindowPlan, product: Product, mean: bool) -> _Bound:
    blocked, precision, width = kernels.blocked, kernels.precision, product.width
    if blocked is None:
        bad_value("plan", "the window kernel needs an operand in a blocked format")
    if kernel := packed_kernel(blocked.spec):
        return _bind_packed(kernels, blocked, kernel, plan, product, mean)
    stores_values, edge_values = blocked.spec.stores_values, product.edge_values
    placed = edge_values and stores_values
    if placed and blocked.spec.encoding != "dense":
        bad_value("plan", f"{blocked.spec.name} stores no bits to place edge values by; use csr")
    weighted = not (stores_values or edge_values)
    own, scale = kernels.values if weighted else None, kernels.row_factors(weighted, mean)
    work = kernels.window_work(plan.tile_limit, balance=plan.balance, concurrent=plan.concurrent_windows)
    own_view = kernels.blocked_view(weighted=not edge_values)
    items, partials, window = work.view, work.partials, blocked.spec.window
    rows, indptr, row_ids = kernels.csr.rows, kernels.csr.indptr, kernels.row_ids
    load, code, streams = CudaLoader(precision, width), precision.code, kernels.streams
    residual = _bind_residual(kernels, plan.residual, width, mean)
    stored = path().native.StoredRows(indptr, row_ids, scale, own)
    policy = _policy(kernels, blocked, plan)

    def run(x: torch.Tensor, values: torch.Tensor | None, out: torch.Tensor | None = None) -> torch.Tensor:
        x_view = load(x)
        # If the format keeps rows out of its windows, empty rows are in neither part: nothing writes them.
        y = x.new_empty(rows, width) if out is None else out
        if residual is not None:
            y.zero_()
        gpu, now, view = path(), stored, own_view
        y_view, partial = gpu.native.Dense(y), partial_sums(partials, window, width, y.device)
        if values is not None and placed:
            rounded = aligned_values(values, precision)
            view = replace(blocked, values=place_values(blocked, kernels.value_places, rounded)).view()
        elif values is not None:
            now = gpu.native.StoredRows(indptr, row_ids, scale, aligned_values(values, precision))
        stream = streams.current()
        if policy is None:
            gpu.native.cuda_spmm_window(view, now, items, x_view, y_view, width, partial, code, stream)
        else:
            gpu.native.cuda_spmm_policy(
                view, now, items, policy, x_view, y_view, width, partial, code, stream
            )  # fmt: skip
        if residual is not None:
            residual(x_view, y_view, y.device)
        return y

    if residual is not None:  # two products, of which the second adds to the first
        return run, None
    kind, how = ("window", ()) if policy is None else ("policy", (policy,))
    return run, _Launch(kind, (own_view, stored, items, *how), load, _floats(work, window, width))


def _policy(kernels: KernelCache, blocked: BlockedMatrix, plan: WindowPlan) -> _native.WindowPolicy | None:
    """Returns the native handle of a plan's policy; None: it is the one that the window kernel has.

    Raises:
        ValueError: the policy can't exist for the operand's precision and format, or this GPU lacks a part.
    """
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


def _bind_packed(
    kernels: KernelCache, blocked: BlockedMatrix, kernel: str, plan: WindowPlan, product: Product, mean: bool
) -> _Bound:
    """Binds the kernel of hrpb ("records") or of rs-tile ("tiles")."""
    spec, precision, width, policy = blocked.spec, kernels.precision, product.width, plan.policy
    if product.edge_values:
        bad_value("plan", f"{spec.name} stores no bits to place edge values by; use csr")
    if why := why_not_packed(policy, precision, spec):
        bad_value("plan", why)
    work = kernels.window_work(plan.tile_limit, balance=plan.balance, concurrent=plan.concurrent_windows)
    view = kernels.blocked_view(weighted=False)
    items, partials, item_rows = work.view, work.partials, spec.item_rows
    stored = path().native.StoredRows(None, kernels.row_ids, kernels.row_factors(False, mean))
    how = path().native.PackedPolicy(
        STAGINGS.index(policy.stage_a), policy.stage_x, policy.coarsening, plan.residual_mode == "same-launch"
    )
    rows, code, streams = kernels.csr.rows, precision.code, kernels.streams
    load, every_row = CudaLoader(precision, width), not spec.split_short_rows

    def run(x: torch.Tensor, values: torch.Tensor | None, out: torch.Tensor | None = None) -> torch.Tensor:
        x_view, gpu = load(x), path()
        # Empty rows may be neither in a window nor in the rows that are kept out: nothing writes them.
        y = x.new_empty(rows, width) if out is None else out
        if not every_row:
            y.zero_()
        partial = partial_sums(partials, item_rows, width, y.device)
        launch = gpu.native.cuda_spmm_records if kernel == "records" else gpu.native.cuda_spmm_tiles
        launch(view, stored, items, how, x_view, gpu.native.Dense(y), width, partial, code, streams.current())
        return y

    return run, None


def _bind_residual(
    kernels: KernelCache, plan: CsrPlan, width: int, mean: bool
) -> Callable[[_native.Dense, _native.Dense, torch.device], None] | None:
    """Binds the product of the rows that the format keeps out of its windows; None if there are none."""
    blocked = kernels.blocked
    if blocked is None or blocked.residual is None:
        return None
    work = kernels.residual_work(plan.row_limit)
    # Values of the residual have the weights of its rows already.
    counts = kernels.residual_counts() if mean else None
    rows = path().native.StoredRows(None, kernels.residual_row_ids(), counts, blocked.residual_csr_values)
    multiply = _csr_product(kernels, blocked.residual, work, None, plan, width)
    return lambda x, y, device: multiply(rows, x, y, device)


_BINDERS: dict[type[Plan], Callable[[KernelCache, Any, Product, bool], _Bound]] = {
    CsrPlan: _bind_csr, PanelPlan: _bind_panel, WindowPlan: _bind_window,
}  # fmt: skip
