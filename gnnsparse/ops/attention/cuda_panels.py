"""Attention on NVIDIA GPUs by the fused kernels over panels of rows: launches, work lists and workspaces.

It stands alone as one of the backends, which schema.py chooses among.
"""

from __future__ import annotations

from dataclasses import replace
from functools import reduce
from typing import Any, NamedTuple

import torch

from gnnsparse import _native
from gnnsparse.errors import bad_value
from gnnsparse.formats import BlockedMatrix
from gnnsparse.formats.tiles import TILE
from gnnsparse.ops.attention import arguments, quantized
from gnnsparse.ops.attention.arguments import AttentionCall, Grads, Needs
from gnnsparse.ops.attention.tiles import column_lists, tile_lists
from gnnsparse.plan import AttentionGradPlan, AttentionPlan
from gnnsparse.plan.attention import dkv_range
from gnnsparse.plan.work import WorkList
from gnnsparse.runtime.device import SCORE_ROWS, describe_device, partial_width, path
from gnnsparse.runtime.memo import made_once
from gnnsparse.sparse.kernel_cache import KernelCache


class _PanelPass(NamedTuple):
    """Panels of bits, their work list, and the native arguments of a pass that come before the workspace."""

    panel: BlockedMatrix
    work: WorkList
    head: tuple[Any, ...]

    def workspace(self, heads: int, widths: tuple[int, ...], device: torch.device) -> torch.Tensor | None:
        """Allocate float32 for partial results of divided panels, or None: sums and two numbers a row."""
        if self.work.partials == 0:
            return None
        floats = sum(map(partial_width, widths)) + _native.PARTIAL_ROW_STATS
        floats *= heads * self.work.partials * self.panel.spec.panel
        return torch.empty(floats, dtype=torch.float32, device=device)


@made_once
def _panel_pass(kernels: KernelCache, plan: AttentionPlan) -> _PanelPass:
    panel, view, work = kernels.score_panels(plan.tile_limit, plan.longest_first, plan.height, "attention")
    rows = _native.StoredRows(kernels.csr.indptr, kernels.row_ids)
    return _PanelPass(panel, work, (view, rows, work.view))


class _DkvSteps(NamedTuple):
    """The order in which dK and dV are summed: ranges of columns, and in each of them the panels.

    A step takes up to DKV_STEP_SLOTS column slots of a panel, even and odd columns in turn where it can.
    Empty steps fill the last stage of a range, of DKV_STAGE_STEPS.

    `slots` int32 [steps, DKV_STEP_SLOTS]: 4 times the slot as the pass over rows numbers them, where
    8 (n // 2) + 2 j + n % 2 of a K tile is 8 j + n, plus 1 if the lower eight rows have an edge there, and
    2 if the upper have; 0: none. `columns` int32 [steps, 8, DKV_PAIR_WORDS]: word j of row g has the
    columns of slots g and g + 8 of the j-th 16, counted in the range, in 16 bits each; -1: none. `panels`
    int32 [steps]. `starts` int32 [ranges + 1]: the first step of each range.
    """

    slots: torch.Tensor
    columns: torch.Tensor
    panels: torch.Tensor
    starts: torch.Tensor


class _DkvSlots(NamedTuple):
    """The column slots of A with an edge, in panels of 16 rows: all int64 [slots], but `edges` int32.

    `slots` as the pass over rows numbers them, where 8 (n // 2) + 2 j + n % 2 of a K tile is 8 j + n;
    their `panels` and `columns`; `edges`: 1 if the lower eight rows have an edge there, plus 2 if the upper
    have.
    """

    slots: torch.Tensor
    panels: torch.Tensor
    columns: torch.Tensor
    edges: torch.Tensor


def _dkv_slots(kernels: KernelCache) -> _DkvSlots:
    panel = kernels.panel(SCORE_ROWS, bits=True)
    written, device = panel.columns.view(-1, 4, 4, 2).transpose(1, 2).reshape(-1), panel.columns.device
    slots = torch.nonzero(written >= 0).squeeze(1)
    assert panel.bitmap is not None
    # Bit 8 odd + 4 upper + j of lane 4 g + t: of row g + 8 upper, in slot 8 t + 2 j + odd.
    bits = reduce(torch.bitwise_or, panel.bitmap.view(torch.int16).view(-1, 8, 4).unbind(1)).int()
    lower = torch.arange(16, dtype=torch.int32, device=device).view(2, 2, 4)[:, 0].t()  # 8 odd + j
    edges = (bits[:, None, :, None] >> lower[:, None]).reshape(-1)[slots]
    panels = torch.searchsorted(panel.panel_ptr, slots, right=True) - 1
    return _DkvSlots(slots, panels, written[slots].long(), edges & 1 | edges >> 3 & 2)


@made_once
def _dkv_steps(kernels: KernelCache, size: int) -> _DkvSteps:
    """Return the steps for ranges of `size` columns."""
    slots, panels, columns, edges = _dkv_slots(kernels)
    device, count, ranges = slots.device, -(-kernels.csr.rows // SCORE_ROWS), -(-kernels.csr.cols // size)
    groups, odd = columns // size * count + panels, columns % size % 2
    key, order = torch.sort(2 * groups + odd, stable=True)
    sizes = torch.bincount(key, minlength=2 * ranges * count)
    rank = torch.arange(key.numel(), dtype=torch.int64, device=device) - (sizes.cumsum(0) - sizes)[key]
    paired, groups = sizes.view(-1, 2).amin(1), key // 2
    place = torch.where(rank < paired[groups], 2 * rank + key % 2, paired[groups] + rank)
    steps = -(-sizes.view(-1, 2).sum(1) // _native.DKV_STEP_SLOTS)
    in_range = steps.view(ranges, count)  # a view
    in_range[:, -1] += -in_range.sum(1) % _native.DKV_STAGE_STEPS
    ends = steps.cumsum(0)
    place += (ends - steps)[groups] * _native.DKV_STEP_SLOTS
    entries = torch.zeros(2, int(ends[-1]), _native.DKV_STEP_SLOTS, dtype=torch.int32, device=device)
    entries[1] = -1
    entries.view(2, -1)[:, place] = torch.stack((4 * slots + edges, columns % size)).int()[:, order]
    pairs = torch.full((len(entries[1]), 8, _native.DKV_PAIR_WORDS, 2), -1, dtype=torch.int16, device=device)
    pairs[:, :, : _native.DKV_STEP_SLOTS // 16] = entries[1].view(len(pairs), -1, 2, 8).permute(0, 3, 1, 2)
    starts = torch.zeros(ranges + 1, dtype=torch.int32, device=device)
    starts[1:] = ends[count - 1 :: count]
    of_group = torch.arange(steps.numel(), dtype=torch.int32, device=device) % count
    return _DkvSteps(entries[0], pairs.view(torch.int32), torch.repeat_interleave(of_group, steps), starts)


@made_once
def _dkv_tiles(kernels: KernelCache) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what is copied for the tiles that dK and dV are products of, one range of columns after another.

    First int32 [entries, 2]: a half of a column slot, 2 slot + upper, and the place of its eight rows in the
    operand, in bytes; or -1, and the place of what the last tile in the same stage had and this one has not.
    Then int32 [tiles + 1]: the first entry of each tile.
    """
    slots, panels, columns, edges = _dkv_slots(kernels)
    rows, width, stages = _native.DKV_TILE
    device, eights = slots.device, rows // 8
    tiles, ranges = -(-kernels.csr.rows // rows), -(-kernels.csr.cols // width)
    upper = torch.arange(2, dtype=torch.int64, device=device)
    # Of eight rows of a column: the range, the eight among all rows, and the column in the range.
    key = ((columns // width * tiles * eights + 2 * panels)[:, None] + upper) * width
    key += (columns % width)[:, None]
    real = (edges[:, None] >> upper & 1).bool()
    key, order = torch.sort(key[real])
    source = (2 * slots[:, None] + upper)[real][order]
    of_tile = eights * width
    later = (key + stages * of_tile)[key // of_tile % tiles + stages < tiles]
    cleared = later[~torch.isin(later, key, assume_unique=True)]
    key, order = torch.sort(torch.cat((key, cleared)))
    source = torch.cat((source, torch.full_like(cleared, -1)))[order]
    column, eight = key % width, key // width % (tiles * eights) % 8
    place = 128 * column + 16 * (eight ^ column % 8)
    starts = torch.zeros(ranges * tiles + 1, dtype=torch.int32, device=device)
    starts[1:] = torch.bincount(key // of_tile, minlength=ranges * tiles).cumsum(0)
    return torch.stack((source, place), 1).int(), starts


def _readable(call: AttentionCall) -> AttentionCall:
    storage = call.operand.precision.storage
    q, k, v = (arguments.vectorized(x, storage) for x in (call.q, call.k, call.v))
    return replace(call, q=q, k=k, v=v, bias=arguments.contiguous_edges(call.bias))


def forward(call: AttentionCall, plan: AttentionPlan, in_bytes: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute the results of `schema.run_forward`; with `in_bytes` k and v are stored in 8 bits for it."""
    kernels, width, device, gpu = call.operand.kernels, call.v.shape[3], call.q.device, path()
    out = arguments.empty_heads(call.q, width)
    stats = torch.empty(*call.q.shape[:3], 2, dtype=torch.float32, device=device)
    with gpu.current(device):
        of = _panel_pass(kernels, plan)
        partial = of.workspace(call.heads, (width,), device)
        result = _native.AttentionRows(arguments.heads_argument(out), stats)
        if in_bytes:
            problem = quantized.native_attention(replace(call, bias=arguments.contiguous_edges(call.bias)))
            gpu.native.cuda_attention_quantized(problem, *of.head, partial, result, kernels.streams.current())
        else:
            plain = arguments.native_attention(_readable(call))
            gpu.native.cuda_attention_panel(plain, *of.head, partial, result, kernels.streams.current())
    return out, stats


#: The least fill of tiles that the kernel over them takes: below it their bits take more memory than edges.
_LEAST_TILE_FILL = 1 / 64


def block_forward(call: AttentionCall) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute the results of `schema.run_forward` over the 128 x 128 tiles of the pattern.

    Raises:
        ValueError: the tiles are nearly empty.
    """
    if (fill := call.operand.kernels.tiles.fill) < _LEAST_TILE_FILL:
        bad_value("plan", f"blocks: tiles are {fill:.2%} full; accepted: {_LEAST_TILE_FILL:.2%} or more")
    kernels, device, gpu = call.operand.kernels, call.q.device, path()
    out = arguments.empty_heads(call.q, call.v.shape[3], call.operand.precision.storage)
    stats = torch.empty(*call.q.shape[:3], 2, dtype=torch.float32, device=device)
    with gpu.current(device):
        problem, lists = arguments.native_attention(_readable(call)), tile_lists(kernels)
        result = _native.AttentionRows(arguments.heads_argument(out), stats)
        gpu.native.cuda_attention_blocks(problem, kernels.row_ids, *lists, result, kernels.streams.current())
    return out.to(call.q.dtype), stats


def block_backward(
    call: AttentionCall, out: torch.Tensor, stats: torch.Tensor, grad_out: torch.Tensor, needs: Needs
) -> Grads:
    """Compute the gradients of `schema.run_backward` over tiles, in the storage dtype."""
    kernels, storage, gpu = call.operand.kernels, call.operand.precision.storage, path()
    with gpu.current(call.q.device):
        call = _readable(call)
        out, grad = (arguments.vectorized(x, storage) for x in (out, grad_out))
        floats = 2 * call.heads * -(-call.q.shape[2] // TILE) * TILE
        row_stats = torch.empty(floats, dtype=torch.float32, device=call.q.device)
        given = _native.AttentionRows(arguments.heads_argument(out), stats.contiguous(), row_stats)
        found = [
            arguments.empty_heads(x, -(-x.shape[3] // 8) * 8)[..., : x.shape[3]] if need else None
            for x, need in zip((call.q, call.k, call.v), needs, strict=False)
        ]
        gpu.native.cuda_attention_blocks_backward(
            arguments.native_attention(call), kernels.row_ids, *tile_lists(kernels), *column_lists(kernels),
            given, arguments.grads_argument(grad, [*found, None]), kernels.streams.current(),
        )  # fmt: skip
    return found[0], found[1], found[2], None


def backward(
    call: AttentionCall, plan: AttentionGradPlan, out: torch.Tensor, stats: torch.Tensor,
    grad_out: torch.Tensor, needs: Needs,
) -> Grads:  # fmt: skip
    """Compute the gradients of `schema.run_backward`, that of the bias in float32."""
    operand, device, gpu, found = call.operand, call.q.device, path(), arguments.empty_grads(call, needs)
    with gpu.current(device):
        call, grad = _readable(call), arguments.vectorized(grad_out, operand.precision.storage)
        floats = call.heads * call.q.shape[2] * _native.ROW_STATS_FLOATS
        row_stats = torch.empty(floats, dtype=torch.float32, device=device)
        # The statistics with delta, which the pass over rows writes and that over columns reads.
        given = _native.AttentionRows(arguments.heads_argument(out), stats.contiguous(), row_stats)
        problem, grads = arguments.native_attention(call), arguments.grads_argument(grad, found)
        widths, stream = (call.q.shape[3], call.v.shape[3]), operand.kernels.streams.current()

        def run(kernel: Any, kernels: KernelCache, plan: AttentionPlan, results: int, *others: Any) -> None:
            """Run a pass with partial results of the width of q, and of that of v if there are 2."""
            of = _panel_pass(kernels, plan)
            partial = of.workspace(call.heads, widths[:results], device)
            kernel(problem, *of.head, partial, given, grads, *others, stream)

        of_columns = found[1] is not None or found[2] is not None
        if of_columns and plan.fused_heads > 0:
            # One pass over the rows of A, some heads at a time.
            slots = operand.kernels.panel(SCORE_ROWS, bits=True).columns.numel()
            needed = plan.fused_heads * slots * _native.DKV_SLOT_BYTES
            room = torch.empty(needed, dtype=torch.uint8, device=device)
            if plan.tiles:
                weights = _native.DkvWeights(room, plan.fused_heads, *_dkv_tiles(operand.kernels))
            else:
                size = dkv_range(describe_device(device), operand.shape, slots, plan.fused_heads)
                weights = _native.DkvWeights(room, plan.fused_heads, *_dkv_steps(operand.kernels, size), size)
            kernel = gpu.native.cuda_attention_panel_fused_backward
            run(kernel, operand.kernels, plan.rows, 1, weights)
        else:
            run(gpu.native.cuda_attention_panel_rows, operand.kernels, plan.rows, 1)
            if of_columns:
                index = None if call.bias is None else operand.transpose_map
                run(gpu.native.cuda_attention_panel_columns, operand.T.kernels, plan.columns, 2, index)
    return tuple(found)  # type: ignore[return-value]
