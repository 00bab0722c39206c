"""Formats whose packed values have kernels of their own, and the policies that these kernels run.

- "records": cuTeSpMM's kernel over the packed blocks of hrpb (native/cuda/kernels/spmm/record_spmm.cuh).
- "tiles": RSH-SpMM's kernel over the 8 x 8 tiles of rs-tile (native/cuda/kernels/spmm/tile_spmm.cuh).
"""

from __future__ import annotations

from dataclasses import replace

from gnnsparse.formats.policy import STAGINGS, WindowPolicy
from gnnsparse.formats.spec import FormatSpec
from gnnsparse.precision import Precision

__all__ = ["RECORD_POLICY", "TILE_POLICY", "packed_changes", "packed_kernel", "why_not_packed"]

#: cuTeSpMM's own policy (sections 3.3 and 4): A and X staged once, 32 features (TN) for each warp.
RECORD_POLICY = WindowPolicy(swapped=False, k=4, shuffle=False, stage_a="single", stage_x=True, coarsening=4)
#: RSH-SpMM's own policy (algorithm 2): two buffers. A warp takes 64 features, where the paper's takes a tile
#: of 16 (coarsening 1), which takes 2.6 times as long on reddit_like in fp16 and 1.7 times in tf32 (H200,
#: N = 128).
TILE_POLICY = WindowPolicy(k=8, stage_a="double", coarsening=4)

_COARSENINGS = (1, 2, 4)


def packed_kernel(spec: FormatSpec) -> str:
    """Returns the kernel of a packed format, "records" or "tiles"; "" if the window kernel multiplies it."""
    if spec.records:
        return "records"
    tiles = (spec.window, spec.panel, spec.block, spec.brick) == (8, 8, 8, 8)
    return "tiles" if spec.packed and tiles and not spec.active_bricks else ""


def why_not_packed(policy: WindowPolicy, precision: Precision, spec: FormatSpec) -> str:
    """Returns why a packed format's kernel can't run a policy; "" if it can.

    cuTeSpMM is a kernel for tf32 alone (section 2). RSH-SpMM multiplies in fp16 (section 4.1), its figure 7
    shows the registers of tf32, and the instruction has bf16 as well.

    Args:
        policy: the policy.
        precision: arithmetic of the product.
        spec: the format, of which `packed_kernel` has a name.
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
    """Returns the policies of a packed format that differ from one in a single switch, by the change.

    `x_load` changes with `stage_x`: staged rows are copied by 16 bytes, others loaded by element.

    Args:
        policy: the policy to start from.
        precision: arithmetic of the product.
        spec: the format, of which `packed_kernel` has a name.
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
