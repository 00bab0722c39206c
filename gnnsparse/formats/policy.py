"""Policies of the window kernel: the mechanisms by which the papers multiply windows, as switches."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from gnnsparse.errors import bad_value, check_flag
from gnnsparse.formats.spec import FormatSpec
from gnnsparse.precision import Precision

#: How the lanes of a warp load the rows of X.
X_LOADS = ("vector", "coalesced", "plain")
#: How blocks of A reach the registers.
STAGINGS = ("none", "single", "double")
#: The orders in which blocks of threads are started.
GRIDS = ("flat", "3d")
#: The numbers of feature tiles that a warp can compute.
COARSENINGS = (1, 2, 4, 8)
#: The columns of a block that kernels of policies other than the default read.
POLICY_BLOCKS = (1, 2, 4, 8, 16)
#: The depths K of the mma instructions of a precision, the largest first (FlashSparse, table 1).
_DEPTHS = {Precision.FP16: (16, 8), Precision.BF16: (16,), Precision.TF32: (8, 4)}


@dataclass(frozen=True)
class WindowPolicy:
    """How the window kernel multiplies a window of A by the gathered rows of X.

    The default is the project's own window kernel, which takes every encoding. Other policies are for formats
    that store the values of all elements of a window (encoding "dense").

    Attributes:
        swapped: whether A is the right operand of the mma, so that windows have 8 rows (swap-and-transpose,
            FlashSparse, section 3.2; transpose mapping, SSpMM, section III), or 16 as two times 8. False: A
            is the left operand, and windows have 16 rows.
        k: the depth K of the mma instruction: 16 or 8 in fp16, 8 or 4 in tf32, 16 in bf16; None: the largest.
        x_load: how a warp loads rows of X: "vector" (16 bytes a lane), "coalesced" (two neighbouring
            elements a lane, the 2 x 2 blocks of FlashSparse, figure 7c) or "plain" (one element a lane in the
            order of the operand, figure 7b).
        shuffle: with "vector" loads, whether the 16 bytes that a lane has loaded become its own part of the
            operands by renaming registers (SSpMM, section IV). False: the lanes exchange elements through
            shared memory, which needs `stage_x`. Other loads put elements where they belong: False.
        stage_a: whether a block of threads copies A to shared memory, where its warps, which share a window,
            read it: "none" (each warp loads A to its registers), "single" (copy, then multiply) or "double"
            (two buffers: the next part is copied while this one is multiplied; SSpMM, algorithm 2).
        stage_x: whether rows of X are copied to shared memory, too; needs "vector" loads and `stage_a`.
        coarsening: how many feature tiles of 64 columns of X (tf32: 32) a warp computes one after the other.
        grid: the order in which blocks of threads start: "flat" (all windows for the first feature tiles,
            then all for the next) or "3d" (Tiled-CSR, figure 5: the feature tiles are cut into slabs, and
            within a slab those of a window come first, then the next window).
    """

    swapped: bool = True
    k: int | None = None
    x_load: str = "vector"
    shuffle: bool = True
    stage_a: str = "none"
    stage_x: bool = False
    coarsening: int = 1
    grid: str = "flat"

    def __post_init__(self) -> None:
        for name in ("swapped", "shuffle", "stage_x"):
            check_flag(name, getattr(self, name))
        for name, accepted in (("x_load", X_LOADS), ("stage_a", STAGINGS), ("grid", GRIDS)):
            if getattr(self, name) not in accepted:
                bad_value(name, f"got {getattr(self, name)!r}; accepted: {', '.join(accepted)}")
        for name, depths in (("coarsening", COARSENINGS), ("k", (None, 4, 8, 16))):
            value = getattr(self, name)
            if isinstance(value, bool) or value not in depths:
                bad_value(name, f"got {value!r}; accepted: {', '.join(map(str, depths))}")

    def depth(self, precision: Precision) -> int:
        """Return the depth K of the mma instruction in a precision."""
        return _DEPTHS[precision][0] if self.k is None else self.k

    def is_default(self, precision: Precision) -> bool:
        """Return whether the policy is what the project's own window kernel does."""
        k = self.k if self.k is None or self.k != _DEPTHS.get(precision, (0,))[0] else None
        return replace(self, k=k) == WindowPolicy()

    def why_not(self, precision: Precision, encoding: str, window: int) -> str:
        """Return why a precision, an encoding or a window's rows rule the policy out; "": they do not."""
        if precision not in _DEPTHS:
            return f"no Tensor Core product of {precision.value}"
        if self.k is not None and self.k not in _DEPTHS[precision]:
            depths = " or ".join(map(str, _DEPTHS[precision]))
            return f"no mma of depth {self.k} in {precision.value}, which has {depths}"
        if self.shuffle and self.x_load != "vector":
            return f"no registers to shuffle with {self.x_load} loads of X, which go where they belong"
        if self.stage_x and self.x_load != "vector":
            return f"no {self.x_load} loads of X with stage_x, which copies 16 bytes at a time"
        if self.x_load == "vector" and not (self.shuffle or self.stage_x):
            return "vector loads of X need the register shuffle, or stage_x for lanes to exchange elements"
        if self.stage_x and self.stage_a == "none":
            return "stage_x needs stage_a: a block that copies X copies its window of A as well"
        if not self.swapped and window != 16:
            return f"windows have {window} rows; as the left operand of an mma A has 16"
        if self.is_default(precision):
            return ""
        if encoding != "dense":
            return f"encoding {encoding} has the default policy alone; the others read dense values"
        if precision is Precision.BF16:
            return "bf16 has the default policy alone"
        return ""


def policy_changes(policy: WindowPolicy, precision: Precision, window: int) -> dict[str, WindowPolicy]:
    """Return the policies that differ from one in a single switch, by the change, such as "grid=3d".

    What a change makes impossible is changed along with it: loads other than "vector" have no `shuffle`,
    "vector" loads without `stage_x` have it, and `stage_x` has "single" staging of A at least.
    """
    switches: dict[str, tuple[Any, ...]] = {
        "swapped": (True, False), "k": _DEPTHS[precision], "x_load": X_LOADS, "shuffle": (True, False),
        "stage_a": STAGINGS, "stage_x": (True, False), "coarsening": (1, 2), "grid": GRIDS,
    }  # fmt: skip
    found = {}
    for name, values in switches.items():
        for value in values:
            now = policy.depth(precision) if name == "k" else getattr(policy, name)
            if value == now:
                continue
            changed = _completed(replace(policy, **{name: value}), name)
            if changed != policy and not changed.why_not(precision, "dense", window):
                found[f"{name}={value}"] = changed
    return found


def _completed(policy: WindowPolicy, changed: str) -> WindowPolicy:
    """Return the policy with what the change of a switch, `changed`, needs of the others."""
    if changed == "shuffle":  # both need vector loads; without it lanes exchange elements
        policy = replace(policy, x_load="vector", stage_x=policy.stage_x or not policy.shuffle)
    elif changed == "stage_x" and policy.stage_x:
        policy = replace(policy, x_load="vector")
    elif changed == "x_load" and policy.x_load != "vector":
        policy = replace(policy, stage_x=False, shuffle=False)
    elif changed == "stage_a" and policy.stage_a == "none":
        policy = replace(policy, stage_x=False)
    if policy.x_load == "vector" and not policy.stage_x:
        policy = replace(policy, shuffle=True)
    if policy.stage_x and policy.stage_a == "none":
        policy = replace(policy, stage_a="single")
    return policy


#: cuTeSpMM's own policy (sections 3.3 and 4): A and X staged once, 32 features (TN) for each warp.
RECORD_POLICY = WindowPolicy(swapped=False, k=4, shuffle=False, stage_a="single", stage_x=True, coarsening=4)
#: RSH-SpMM's own policy (algorithm 2): two buffers. A warp takes 64 features, where the paper's takes a tile
#: of 16 (coarsening 1), which takes 2.6 times as long on reddit_like in fp16 and 1.7 times in tf32 (H200,
#: N = 128).
TILE_POLICY = WindowPolicy(k=8, stage_a="double", coarsening=4)

_COARSENINGS = (1, 2, 4)


def packed_kernel(spec: FormatSpec) -> str:
    """Return the kernel of a packed format, "records" or "tiles"; "" if the window kernel multiplies it."""
    if spec.records:
        return "records"
    tiles = (spec.window, spec.panel, spec.block, spec.brick) == (8, 8, 8, 8)
    return "tiles" if spec.packed and tiles and not spec.active_bricks else ""


def why_not_packed(policy: WindowPolicy, precision: Precision, spec: FormatSpec) -> str:
    """Return why the kernel of a packed format can't run a policy; "" if it can.

    cuTeSpMM is a kernel for tf32 alone (section 2). RSH-SpMM multiplies in fp16 (section 4.1), its figure 7
    shows the registers of tf32, and the instruction has bf16 as well.
    """
    kernel = packed_kernel(spec)
    if precision is Precision.FP32:
        return "no Tensor Core product of fp32"
    if policy.grid != "flat" or policy.coarsening not in _COARSENINGS:
        return f"{spec.name} has flat grids and coarsening {', '.join(map(str, _COARSENINGS))} alone"
    if kernel == "tiles":
        if policy.swapped and policy.k == 8 and policy.x_load == "vector" and not policy.stage_x:
            return ""
        return f"{spec.name} has swapped operands, k=8 and vector loads of X to registers alone (algorithm 2)"
    if precision is not Precision.TF32:
        return f"{spec.name} has no {precision.value}: cuTeSpMM is a tf32 kernel (section 2)"
    if policy.x_load == "coalesced":
        return f"{spec.name} has no coalesced loads of X, which are for swapped operands"
    if policy.swapped or policy.k != 4 or policy.shuffle:
        return (
            f"{spec.name} has bricks of 16 x 4, the left operand of m16n8k4: swapped=False, k=4, no shuffle"
        )
    if policy.stage_x != (policy.x_load == "vector"):
        return f"{spec.name} copies X by 16 bytes (vector) with stage_x, and loads elements (plain) without"
    if policy.coarsening != RECORD_POLICY.coarsening and not (policy.stage_x and policy.stage_a == "single"):
        return f"{spec.name} has coarsening 1 and 2 with stage_a='single' and stage_x alone"
    return ""


def packed_changes(policy: WindowPolicy, precision: Precision, spec: FormatSpec) -> dict[str, WindowPolicy]:
    """Return the policies of a packed format that differ from one in a single switch, by the change.

    `x_load` changes with `stage_x`: staged rows are copied by 16 bytes, others loaded by element.
    """
    changes = {f"stage_a={stage}": replace(policy, stage_a=stage) for stage in STAGINGS}
    changes |= {f"coarsening={tiles}": replace(policy, coarsening=tiles) for tiles in _COARSENINGS}
    staged = not policy.stage_x
    x_load = "vector" if staged else "plain"
    changes[f"stage_x={staged}"] = replace(policy, stage_x=staged, x_load=x_load)
    return {
        name: changed
        for name, changed in changes.items()
        if changed != policy and not why_not_packed(changed, precision, spec)
    }
