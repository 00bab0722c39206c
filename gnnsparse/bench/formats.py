"""Published formats in the benchmark: by their papers' policies, and with one switch of them changed."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from gnnsparse.bench.candidates import UnavailableError
from gnnsparse.formats import PRESETS, BlockedMatrix, WindowPolicy
from gnnsparse.formats.policy import packed_changes, packed_kernel, policy_changes
from gnnsparse.plan import Plan, WindowPlan
from gnnsparse.precision import Precision
from gnnsparse.runtime.device import VECTOR_BYTES, WINDOW_K_TILE
from gnnsparse.sparse.operand import SparseOperand

__all__ = [
    "TALL", "ModelledCounts", "details", "format_plans", "has_tall", "modelled_counts", "tall_plans",
]  # fmt: skip

#: Rows of the windows that are measured for comparison where a preset has them (FlashSparse, figure 1).
TALL = 16
#: Bytes of a sector, the least that is read of L2 or DRAM.
_SECTOR_BYTES = 32


@dataclass(frozen=True)
class ModelledCounts:
    """What an SpMM of the window kernel does, counted from the format's arrays and the plan, not measured.

    Attributes:
        mma: mma instructions of all warps.
        x_loads: load instructions of all warps for rows of X, or copies to shared memory.
        x_sectors: sectors of 32 bytes that those ask for (the transactions of FlashSparse, section 3.3).
        gathered_bytes: bytes of X that are multiplied, one row for each column slot.
    """

    mma: int
    x_loads: int
    x_sectors: int
    gathered_bytes: int


def format_plans(a: SparseOperand, op: str, width: int, ablate: bool) -> dict[str, Plan]:
    """Returns the plans to measure of an operand in a published format, by the names of their rows.

    Args:
        a: the operand.
        op: "spmm" or "sddmm".
        width: columns of X, or features of Q and K.
        ablate: whether, for spmm on a GPU, each switch of the policy is changed, one at a time.

    Raises:
        UnavailableError: another kernel than that of the format would run.
    """
    blocked = a.kernels.blocked
    name = "csr" if blocked is None else blocked.spec.name
    plan = a.plan(width, op)
    if a.device.type == "cuda" and not isinstance(plan, WindowPlan):
        raise UnavailableError(f"{name} has no {op} in {a.precision.value}: the plan would be {plan.label}")
    plans = {name: plan}
    if not (ablate and op == "spmm" and blocked is not None and isinstance(plan, WindowPlan)):
        return plans
    if packed_kernel(blocked.spec):
        changes = packed_changes(plan.policy, a.precision, blocked.spec)
        plans |= {f"{name} {change}": replace(plan, policy=p) for change, p in changes.items()}
        if blocked.residual_rows is not None:
            plans[f"{name} residual_mode=after"] = replace(plan, residual_mode="after")
    elif blocked.spec.encoding == "dense" and a.precision is not Precision.BF16:
        changes = policy_changes(plan.policy, a.precision, blocked.spec.window)
        plans |= {f"{name} {change}": replace(plan, policy=p) for change, p in changes.items()}
    return plans


def tall_plans(a: SparseOperand, width: int) -> dict[str, Plan]:
    """Returns the plans of an operand with windows of 16 rows, A the right or the left operand of the mma.

    Args:
        a: the operand, in a preset with `panel=TALL`.
        width: columns of X.
    """
    plan, name = a.plan(width), a.kernels.require_blocked().spec.name
    if not isinstance(plan, WindowPlan):
        return {}
    unswapped = replace(plan, policy=replace(plan.policy, swapped=False))
    return {f"{name} panel=16": plan, f"{name} panel=16 swapped=False": unswapped}


def has_tall(name: str) -> bool:
    """Returns whether a preset has windows of 8 rows, and of 16 for comparison."""
    preset = PRESETS[name]
    return preset.spec.window == 8 and preset.spec.encoding == "dense" and TALL in preset.panels


def modelled_counts(
    blocked: BlockedMatrix, policy: WindowPolicy, precision: Precision, width: int
) -> ModelledCounts:
    """Counts instructions and sectors of an SpMM by a policy.

    Args:
        blocked: the prepared format.
        policy: the policy.
        precision: arithmetic of the product.
        width: columns of X.
    """
    per_vector = VECTOR_BYTES // precision.storage.itemsize
    tiles = -(-width // (8 * per_vector))
    spec, slots = blocked.spec, blocked.panel_ptr.diff()
    windows = spec.panel // spec.window
    depth = policy.depth(precision)
    steps = windows * int(((slots + depth - 1) // depth).sum())
    k_tiles = windows * int(((slots + WINDOW_K_TILE - 1) // WINDOW_K_TILE).sum())
    per_step = per_vector // 2 * (spec.window // 8) if policy.swapped else per_vector
    # Elements that a lane loads at once; 4 column slots of a K tile are a lane's.
    at_once = {"vector": per_vector, "coalesced": 2, "plain": 1}[policy.x_load]
    loads = 4 * per_vector // at_once
    bytes_of_row = 8 * at_once * precision.storage.itemsize  # that one instruction asks of each row
    sectors = per_vector // at_once * -(-bytes_of_row // _SECTOR_BYTES)
    all_slots = windows * blocked.slots
    return ModelledCounts(
        mma=steps * per_step * tiles,
        x_loads=k_tiles * loads * tiles,
        x_sectors=all_slots * sectors * tiles,
        gathered_bytes=all_slots * width * precision.storage.itemsize,
    )


def details(a: SparseOperand, plan: Plan, op: str, width: int) -> dict[str, Any]:
    """Returns what the row of a format has beside a kernel's: its name, policy and modelled counts."""
    blocked = a.kernels.blocked
    found: dict[str, Any] = {"format": None if blocked is None else blocked.spec.name}
    if blocked is None or op != "spmm" or not isinstance(plan, WindowPlan):
        return found
    if packed_kernel(blocked.spec):  # other kernels, which the model does not describe
        return {**found, "policy": asdict(plan.policy)}
    found["policy"] = asdict(plan.policy)
    if blocked.spec.encoding == "dense":  # kernels of packed values leave out bricks without a nonzero
        found["modelled"] = asdict(modelled_counts(blocked, plan.policy, a.precision, width))
    return found
