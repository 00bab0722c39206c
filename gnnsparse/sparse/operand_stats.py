"""What an operand is made of: the content of `SparseOperand.stats`."""

from __future__ import annotations

from typing import Any

from gnnsparse.formats import PRESETS, BlockedMatrix, operations
from gnnsparse.sparse.kernel_cache import KernelCache
from gnnsparse.sparse.operand_core import OperandCore

__all__ = ["operand_stats"]


def operand_stats(core: OperandCore, own: KernelCache, width: int) -> dict[str, Any]:
    """Returns what an operand is made of, and which kernels run its products, as `SparseOperand.stats` says.

    Args:
        core: the operand with its transpose.
        own: the orientation that is described.
        width: columns of the products.
    """
    prepared, blocked = core.prepared, own.blocked
    report, values = prepared.report, own.values
    chosen = {op: _kernel_report(own, op, width) for op in operations(own.format_name)}
    rows, cols, nnz = own.csr.rows, own.csr.cols, own.csr.nnz
    stored, inside = rows * cols, nnz
    if blocked is not None:
        kept_out = 0 if blocked.residual is None else blocked.residual.nnz
        stored, inside = blocked.slots * blocked.spec.panel, nnz - kept_out
    shared = prepared.backward.shares_structure(prepared.forward)
    sizes = {
        "csr": own.csr.nbytes,
        "blocked": blocked.nbytes if blocked else 0,
        "panels": own.panel_bytes,
        "values": values.nbytes if values is not None else 0,
        "transpose": 0 if shared else prepared.backward.csr.nbytes,
        "maps": sum(t.nbytes for t in (prepared.transpose_map, prepared.edge_map) if t is not None),
    }
    return {
        "rows": rows,
        "cols": cols,
        "nnz": nnz,
        "edges": int(report["edges"]),
        "precision": core.precision.value,
        "device": str(core.device),
        "symmetric": report["symmetric"],
        "format": blocked.spec.name if blocked else "csr",
        "windows": blocked.panels * (blocked.spec.panel // blocked.spec.window) if blocked else None,
        "columns": blocked.slots if blocked else None,
        "density": inside / max(stored, 1),
        "bytes": sizes,
        "format_bytes": None if blocked is None else _format_bytes(blocked),
        "reorder": report["reorder"],
        "balance": core.balance,
        "prepare_seconds": report["seconds"],
        "cache_hit": core.cache_hit,
        "kernel": chosen,
    }


def _kernel_report(kernels: KernelCache, op: str, width: int) -> dict[str, Any]:
    """Returns the name of the kernel that runs a product, or None, and the reasons."""
    try:
        plan = kernels.plan(op, width)
    except ValueError as error:  # the device has no kernel of the format that was asked for
        return {"name": None, "why": [str(error)]}
    return {"name": plan.kernel, "why": list(plan.reasons)}


def _format_bytes(blocked: BlockedMatrix) -> dict[str, int | None]:
    """Returns the bytes of a format's arrays, and those of the formula of its paper, or None."""
    preset = PRESETS.get(blocked.spec.name)
    formula = None if preset is None else preset.paper_bytes
    return {"stored": blocked.nbytes, "paper": None if formula is None else formula(blocked)}
