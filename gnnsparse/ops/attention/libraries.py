"""Attention by other libraries' kernels over tiles of 128 x 128: FlashAttention-4 and FlexAttention.

It stands alone as one of the backends, which schema.py chooses among. Neither library is imported before a
plan considers it. Before its first use with some features and dtype its results and gradients are compared
with exact ones on a small pattern: FlashAttention-4 has had releases with wrong gradients on Hopper.
"""

from __future__ import annotations

import importlib
import logging
import math
import warnings
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import torch

from gnnsparse.formats.csr import coo_to_csr
from gnnsparse.formats.tiles import TILE, tiles_across
from gnnsparse.ops.attention import arguments
from gnnsparse.ops.attention.arguments import AttentionCall, Grads, Needs
from gnnsparse.ops.attention.tiles import tile_lists
from gnnsparse.plan import FlashPlan, FlexPlan, Plan
from gnnsparse.plan.attention import TILE_FAULTS
from gnnsparse.runtime.device import path
from gnnsparse.runtime.memo import made_once
from gnnsparse.sparse.kernel_cache import KernelCache

_log = logging.getLogger("gnnsparse.attention")
#: Plans of the kernels that run here.
LIBRARY_PLANS = (FlashPlan, FlexPlan)
_LOG2_E = math.log2(math.e)
#: Of the comparison: tokens, and the relative error that is accepted, in units of the dtype's precision.
_TOKENS, _MOST_ERROR = 4 * TILE, 8
_Rows = tuple[torch.Tensor, torch.Tensor]  # numbers [1, 1, n] of entries, and entries [1, 1, n, most], int32


class _Blocks(NamedTuple):
    """The full and the partial tiles by rows of tiles, and the full ones by columns."""

    full: _Rows
    partial: _Rows
    full_columns: _Rows


def _packed(major: torch.Tensor, minor: torch.Tensor, count: int, most: int) -> _Rows:
    """Return `minor`, which ascends in each of `count` values of `major`, in a row of `most` for each."""
    order = torch.argsort(major, stable=True)
    sizes = torch.bincount(major, minlength=count)
    major, minor = major[order], minor[order]
    starts = sizes.cumsum(0) - sizes
    rank = torch.arange(major.numel(), dtype=torch.int64, device=major.device) - starts[major]
    entries = torch.zeros(count, most, dtype=torch.int32, device=major.device)
    entries[major, rank] = minor.int()
    return sizes.int()[None, None], entries[None, None]


@made_once
def _blocks(kernels: KernelCache) -> _Blocks:
    csr, lists = kernels.csr, tile_lists(kernels)
    down, across = lists.starts.numel() - 1, tiles_across(csr)
    panels = torch.arange(down, dtype=torch.int64, device=csr.device)
    rows = torch.repeat_interleave(panels, lists.starts.diff().long(), output_size=lists.tiles.shape[0])
    # FlexAttention computes with the rows past the last one in tiles that are called full.
    columns, full = lists.tiles[:, 0].long(), (lists.tiles[:, 1] < 0) & ((rows + 1) * TILE <= csr.rows)
    return _Blocks(
        _packed(rows[full], columns[full], down, across),
        _packed(rows[~full], columns[~full], down, across),
        _packed(columns[full], rows[full], across, down),
    )  # fmt: skip


@made_once
def _empty(kernels: KernelCache) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """Return the rows and the columns without edges, for which libraries leave open what they write."""
    csr = kernels.csr
    has_edge = torch.zeros(csr.cols, dtype=torch.bool, device=csr.device)
    has_edge[csr.indices.long()] = True
    rows, columns = (csr.degrees == 0).nonzero().squeeze(1), (~has_edge).nonzero().squeeze(1)
    return rows if rows.numel() else None, columns if columns.numel() else None


@made_once
def _statistics(kernels: KernelCache) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what is added to logarithms of sums, and what they are multiplied by, for both statistics."""
    found = torch.tensor([[0.0, 1.0], [_LOG2_E, 0.0]], dtype=torch.float32, device=kernels.csr.device)
    return found[0], found[1]


def _zeroed(x: torch.Tensor, rows: torch.Tensor | None) -> torch.Tensor:
    return x if rows is None else x.index_fill_(2, rows, 0)


# FlashAttention-4, whose tensors are [B, n, H, d].


def _flash_pattern(kernels: KernelCache, backward: bool) -> dict[str, Any]:
    """Return the arguments that name the pattern."""
    if (band := kernels.band) is not None:
        # A side without a bound is None: that is another kernel.
        left, right = (None if side >= kernels.csr.rows - 1 else side for side in band)
        repeats = {"deterministic": torch.are_deterministic_algorithms_enabled()} if backward else {}
        return {"window_size_left": left, "window_size_right": right, **repeats}
    return {"block_sparse_tensors": _flash_lists(kernels)[backward]}


@made_once
def _flash_lists(kernels: KernelCache) -> list[Any]:
    """Return the tile lists of both passes, which are made before a CUDA graph captures either."""
    of, blocks = importlib.import_module("flash_attn.cute.block_sparsity"), _blocks(kernels)
    found = []
    for numbers, entries in (blocks.full, blocks.full_columns):
        none = torch.zeros_like(numbers)
        lists = (none, entries[..., :1], numbers, entries)
        found.append(of.BlockSparseTensorsTorch(*lists, block_size=(TILE, TILE)))
    return found


def _flash_forward(
    kernels: KernelCache, given: Sequence[torch.Tensor], scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    q, k, v = given
    flash = importlib.import_module("flash_attn.cute.interface")
    out = arguments.empty_heads(q, v.shape[3])
    sums = torch.empty(q.shape[:3], dtype=torch.float32, device=q.device)
    flash._flash_attn_fwd(
        *(x.transpose(1, 2) for x in (q, k, v)), softmax_scale=scale, out=out.transpose(1, 2), lse=sums,
        return_lse=True, **_flash_pattern(kernels, backward=False),
    )  # fmt: skip
    return out, sums


def _flash_backward(
    kernels: KernelCache, given: Sequence[torch.Tensor], sums: torch.Tensor, scale: float
) -> list[torch.Tensor]:
    """Compute the gradients of q, k and v for q, k, v, out and its gradient in `given`."""
    flash = importlib.import_module("flash_attn.cute.interface")
    found = [arguments.empty_heads(x, x.shape[3]) for x in given[:3]]
    dq, dk, dv = (x.transpose(1, 2) for x in found)
    flash._flash_attn_bwd(
        *(x.transpose(1, 2) for x in given), sums, softmax_scale=scale, dq=dq, dk=dk, dv=dv,
        **_flash_pattern(kernels, backward=True),
    )  # fmt: skip
    return found


# FlexAttention.


@made_once
def _block_mask(kernels: KernelCache) -> Any:
    of = importlib.import_module("torch.nn.attention.flex_attention")
    csr, lists, blocks = kernels.csr, tile_lists(kernels), _blocks(kernels)
    down, across = lists.starts.numel() - 1, tiles_across(csr)
    # The place of a tile in the bits; -1: it is full, -2: it has no edge.
    places = torch.full((down, across), -2, dtype=torch.int64, device=csr.device)
    panels = torch.arange(down, dtype=torch.int64, device=csr.device)
    rows = torch.repeat_interleave(panels, lists.starts.diff().long(), output_size=lists.tiles.shape[0])
    places[rows, lists.tiles[:, 0].long()] = lists.tiles[:, 1].long()
    bits = lists.bits if lists.bits.numel() else lists.bits.new_zeros(1, TILE, TILE // 32)

    def has_edge(batch: Any, head: Any, row: torch.Tensor, column: torch.Tensor) -> torch.Tensor:
        place = places[row // TILE, column // TILE]
        word = bits[place.clamp(min=0), row % TILE, column % TILE // 32]
        return (place == -1) | ((place >= 0) & (word >> column % 32 & 1 == 1))

    return of.BlockMask.from_kv_blocks(
        *blocks.partial, *blocks.full, BLOCK_SIZE=TILE, mask_mod=has_edge, seq_lengths=(csr.rows, csr.cols)
    )


@lru_cache
def _flex(compiled: bool) -> tuple[Any, dict[str, Any]]:
    """Return FlexAttention, and the argument that makes it return logarithms of sums of exponents."""
    of = importlib.import_module("torch.nn.attention.flex_attention")
    terms = {"return_aux": of.AuxRequest(lse=True)} if hasattr(of, "AuxRequest") else {"return_lse": True}
    return torch.compile(of.flex_attention) if compiled else of.flex_attention, terms


def _flex_forward(
    kernels: KernelCache, given: Sequence[torch.Tensor], scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    # On a CPU it runs as it is, and has no gradients.
    run, terms = _flex(given[0].is_cuda)
    out, found = run(*given, block_mask=_block_mask(kernels), scale=scale, **terms)
    return out, getattr(found, "lse", found)


def _flex_backward(
    kernels: KernelCache, given: Sequence[torch.Tensor], sums: torch.Tensor, scale: float
) -> list[torch.Tensor]:
    """Compute `_flash_backward`; a graph of autograd holds the only way to the kernel, so it runs forward."""
    with torch.enable_grad():
        leaves = [x.detach().requires_grad_() for x in given[:3]]
        out, _ = _flex_forward(kernels, leaves, scale)
    return list(torch.autograd.grad(out, leaves, given[4]))


# Both, as schema.py calls them.

_FORWARD = {"fa4": _flash_forward, "flex": _flex_forward}
_BACKWARD = {"fa4": _flash_backward, "flex": _flex_backward}


def _forward(
    kernels: KernelCache, plan: Plan, given: Sequence[torch.Tensor], scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the output for readable q, k, v, and the logarithms of the sums of exponents."""
    out, sums = _FORWARD[plan.kernel](kernels, given, scale)
    return _zeroed(out, _empty(kernels)[0]), sums


def _backward(
    kernels: KernelCache, plan: Plan, given: Sequence[torch.Tensor], sums: torch.Tensor, scale: float
) -> tuple[torch.Tensor, ...]:
    """Return the gradients of q, k and v for readable q, k, v, out and its gradient."""
    rows, columns = _empty(kernels)
    dq, dk, dv = _BACKWARD[plan.kernel](kernels, given, sums, scale)
    return _zeroed(dq, rows), _zeroed(dk, columns), _zeroed(dv, columns)


def _readable(kernels: KernelCache, *tensors: torch.Tensor) -> list[torch.Tensor]:
    return [arguments.vectorized(x, kernels.precision.storage) for x in tensors]


def forward(call: AttentionCall, plan: Plan) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute the results of `schema.run_forward` by a plan that `settled` has returned."""
    kernels = call.operand.kernels
    with path().current(call.q.device):
        out, sums = _forward(kernels, plan, _readable(kernels, call.q, call.k, call.v), call.scale)
        # A weight is exp2(score * log2(e) - first) * second. One launch makes both: a whole pass takes .2 ms.
        stats = torch.addcmul(*_statistics(kernels), sums.unsqueeze(-1))
        return out.to(call.q.dtype), _zeroed(stats, _empty(kernels)[0])


def backward(
    call: AttentionCall, plan: Plan, out: torch.Tensor, stats: torch.Tensor, grad: torch.Tensor, needs: Needs
) -> Grads:
    """Compute the gradients of `schema.run_backward` by a plan that `settled` has returned."""
    kernels = call.operand.kernels
    with path().current(call.q.device):
        given = _readable(kernels, call.q, call.k, call.v, out, grad)
        sums = torch.special.xlogy(-1, stats[..., 1]).add_(stats[..., 0], alpha=1 / _LOG2_E)
        found = _backward(kernels, plan, given, sums, call.scale)
    dq, dk, dv = (x if need else None for x, need in zip(found, needs, strict=False))
    return dq, dk, dv, None


# Whether they run.


def _pattern(plan: Plan, is_band: bool, device: torch.device) -> torch.Tensor:
    """Return the pattern of the comparison, bool [n, n], where it can be with empty rows and columns."""
    place = torch.arange(_TOKENS, dtype=torch.int64, device=device)
    if is_band:
        return (place[:, None] - place).abs() <= TILE - 20
    tiles = torch.tensor([[1, 0, 1, 0], [0, 0, 0, 0], [1, 1, 0, 0], [0, 1, 1, 0]], device=device) != 0
    found = tiles.repeat_interleave(TILE, 0).repeat_interleave(TILE, 1)
    return found.logical_and_(place[:, None] % TILE > 0) if isinstance(plan, FlexPlan) else found


def _difference(kernels: KernelCache, plan: Plan, width: int, value_width: int, pattern: torch.Tensor) -> str:
    """Return how results differ from plain float64 by more than rounding; "": they do not."""
    device, dtype = pattern.device, kernels.precision.storage
    generator, scale = torch.Generator(device).manual_seed(0), width**-0.5
    q, k, v, grad = (
        torch.randn(1, 2, _TOKENS, d, generator=generator, device=device, dtype=torch.float32).to(dtype)
        for d in (width, width, value_width, value_width)
    )
    leaves = [x.double().requires_grad_() for x in (q, k, v)]
    # Not -inf: a row of these alone has no gradient that is a number.
    scores = (leaves[0] @ leaves[1].mT * scale).masked_fill(~pattern, -1e300)
    right = scores.softmax(-1).masked_fill(~pattern, 0) @ leaves[2]
    wanted = right.detach(), *torch.autograd.grad(right, leaves, grad.double())
    with torch.no_grad():
        out, sums = _forward(kernels, plan, (q, k, v), scale)
        found = out, *_backward(kernels, plan, (q, k, v, out, grad), sums, scale)
    names = "results", *(f"gradients of {name}" for name in "qkv")
    for name, x, want in zip(names, found, wanted, strict=True):
        error = float((x.double() - want).norm() / want.norm())
        if not error <= _MOST_ERROR * torch.finfo(dtype).eps:
            return f"its {name} are wrong by {error:.2g} of their size"
    return ""


def _fault(call: AttentionCall, plan: Plan) -> str:
    """Return what is wrong with a kernel for calls like this one, which is found out once; "": nothing."""
    kernels, device = call.operand.kernels, call.q.device
    of = plan.kernel, call.q.shape[3], call.v.shape[3], kernels.precision, kernels.band is not None
    if of in TILE_FAULTS:
        return TILE_FAULTS[of]
    if path().takes(device) and path().is_capturing():
        return "it was not compared with exact results before a CUDA graph was captured"
    # A failed load keeps a spin lock of its runtime (nvidia-cutlass-dsl 4.6.2): the next load would not end.
    raised = (why for by, why in TILE_FAULTS.items() if by[0] == of[0] == "fa4" and "it raised" in why)
    if why := next(raised, ""):
        return why
    # Neither can be stopped, and a compiler has been seen to hang: the last word before it is ours.
    _log.warning("attention by %s: compiling it and comparing it with exact results, before first use", of[0])
    with torch.inference_mode(False), torch.enable_grad(), torch.autocast(device.type, enabled=False):
        pattern = _pattern(plan, of[-1], device)
        row, column = pattern.nonzero().T.contiguous()
        csr, _ = coo_to_csr(row, column, _TOKENS, _TOKENS)
        try:
            why = _difference(KernelCache(csr, precision=kernels.precision), plan, *of[1:3], pattern)
        except Exception as error:  # a release that calls otherwise, a compiler that is not there, ...
            why = f"it raised {type(error).__name__}: {error}"
    TILE_FAULTS[of] = why
    if why:
        warnings.warn(f"attention does not run by {plan.kernel}: {why}", RuntimeWarning, stacklevel=2)
    return why


def why_not(call: AttentionCall, plan: Plan, backward: bool = False) -> str:
    """Return why a plan of this module's, which fits the pattern, can't run a call; "" if it can."""
    if isinstance(plan, FlashPlan) and not call.scale > 0:
        return "it takes scales above 0"
    repeats = isinstance(plan, FlexPlan) or call.operand.kernels.band is not None
    if backward and not repeats and torch.are_deterministic_algorithms_enabled():
        return "its gradients are not the same bits in every run, as torch was told that results must be"
    return _fault(call, plan)


def settled(call: AttentionCall, plan: Plan, op: str) -> Plan:
    """Return a plan of "attention" or "attention_grad", another one if a library can't run it."""
    operand, product = call.operand, call.product(op)
    refused: tuple[tuple[str, str], ...] = ()
    while isinstance(plan, LIBRARY_PLANS) and (why := why_not(call, plan, op == "attention_grad")):
        refused = (*refused, (plan.kernel, why))
        transpose = operand.T.kernels if op == "attention_grad" else None
        plan = operand.kernels.plan_of(product, transpose, refused)
    return plan
