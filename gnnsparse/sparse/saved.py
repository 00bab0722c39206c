"""Prepared matrices and operands as plain values and tensors: files of the cache, and pickles.

A file may hold anything. What comes back is checked: every array by its dtype, its length and, where native
code reads memory by it, its content. Values have checksums alone. So kernels that run on it stay inside its
arrays. torch.save and torch.load with weights_only take what an operand is packed into.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from gnnsparse.errors import bad_type, bad_value, check_choice, check_number
from gnnsparse.formats import ARRAYS, PRESETS, BlockedMatrix, FormatSpec, check_blocked, format_spec
from gnnsparse.formats.csr import Csr, Locality, check_csr, check_host_array, check_permutation, check_range
from gnnsparse.plan import plan_from_plain
from gnnsparse.plan.store import PlanStore
from gnnsparse.plan.window import BALANCES
from gnnsparse.precision import Precision
from gnnsparse.runtime.serialization import from_plain, to_plain
from gnnsparse.sparse.kernel_cache import KernelCache
from gnnsparse.sparse.prepared import NORMALIZATIONS, Prepared

_SHARED = ("transpose_map", "edge_map", "values", "row_scale", "col_scale")
_INDEX_DTYPES = (torch.int32, torch.int64)
_MOST_NODES = 2**31 - 1
#: Nonzeros of the transpose that are compared with those of the matrix.
_SAMPLES = 1024


_STORAGE = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32}


@dataclass(frozen=True)
class _Format:
    """The blocked format of a file: its parameters and the dtype of stored values, as in "float16"."""

    spec: FormatSpec
    storage: str


@dataclass(frozen=True)
class _Facts:
    """The plain values of a file: the report of Prepared, and the shape; format None: "csr"."""

    symmetric: bool
    seconds: float
    edges: int
    rows: int
    cols: int
    reorder: Any
    format: _Format | None


@dataclass(frozen=True)
class _Order:
    """The report of a reordering."""

    method: str
    seconds: float
    before: Locality
    after: Locality
    details: Any


def plain_format(spec: FormatSpec | None, storage: torch.dtype) -> Any:
    """Return the format as plain values; None for "csr"."""
    return None if spec is None else to_plain(_Format(spec, str(storage).removeprefix("torch.")))


def pack(prepared: Prepared, storage: torch.dtype) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Return tensors and plain values for `unpack`; the format stores values, if any, as `storage`."""
    forward = prepared.forward
    shared = (
        prepared.transpose_map, prepared.edge_map, forward.given_values,
        forward.given_row_scale, forward.given_col_scale
    )  # fmt: skip
    tensors = dict(zip(_SHARED, shared, strict=True))
    for name, side in zip(("forward", "backward"), prepared.caches, strict=True):
        if name == "backward" and prepared.is_shared:
            break
        arrays = {"indptr": side.csr.indptr, "indices": side.csr.indices, "row_ids": side.row_ids}
        if side.blocked is not None:
            arrays |= {f"blocked.{part}": array for part, array in side.blocked.arrays.items()}
        tensors |= {f"{name}.{part}": array for part, array in arrays.items()}
    facts = {
        **prepared.report,
        "cols": forward.csr.cols,
        "rows": forward.csr.rows,
        "format": plain_format(None if forward.blocked is None else forward.blocked.spec, storage),
    }
    return {name: t.cpu().contiguous() for name, t in tensors.items() if t is not None}, facts


def _read_facts(metadata: dict[str, Any]) -> _Facts:
    facts: _Facts = from_plain(_Facts, metadata, "metadata")
    for name in ("rows", "cols"):
        if getattr(facts, name) > _MOST_NODES:
            bad_value(f"metadata.{name}", f"got {getattr(facts, name)}; accepted: at most {_MOST_NODES}")
    if facts.reorder != {"method": "none"}:
        from_plain(_Order, facts.reorder, "metadata.reorder")
    if facts.format is not None:
        check_choice("metadata.format.storage", facts.format.storage, tuple(_STORAGE))
    return facts


def _take(tensors: dict[str, torch.Tensor], name: str) -> torch.Tensor:
    if name not in tensors:
        bad_value(name, "is missing; accepted: every array of a prepared graph")
    return tensors.pop(name)


def _unpack_structure(
    tensors: dict[str, torch.Tensor], prefix: str, rows: int, cols: int, form: _Format | None, checked: bool
) -> tuple[Csr, torch.Tensor | None, BlockedMatrix | None]:
    """Take the arrays of one orientation out of `tensors`, and check them unless they are `checked`."""
    csr = Csr(_take(tensors, f"{prefix}.indptr"), _take(tensors, f"{prefix}.indices"), cols)
    row_ids = tensors.pop(f"{prefix}.row_ids", None)
    if not checked:
        check_host_array(f"{prefix}.indptr", csr.indptr, (torch.int64,), rows + 1)
        check_csr(prefix, csr)
    if row_ids is not None and not checked:
        check_host_array(f"{prefix}.row_ids", row_ids, (torch.int32,))
        check_permutation(f"{prefix}.row_ids", row_ids, rows)
    if form is None:
        return csr, row_ids, None
    name = f"{prefix}.blocked"
    required = [_take(tensors, f"{name}.{part}") for part in ("panel_ptr", "columns")]
    others = {part: tensors.pop(f"{name}.{part}") for part in ARRAYS if f"{name}.{part}" in tensors}
    blocked = BlockedMatrix(form.spec, csr.rows, csr.cols, csr.nnz, *required, **others)
    if not checked:
        check_blocked(name, blocked, csr, _STORAGE[form.storage])
    return csr, row_ids, blocked


def is_finite(values: torch.Tensor | None) -> bool:
    """Return whether there are no values, or all are finite."""
    if values is None or values.numel() == 0:
        return True
    return all(bool(bound.isfinite()) for bound in values.aminmax())  # both are NaN if a value is


def _check_shared(shared: dict[str, torch.Tensor], facts: _Facts, nnz: int) -> None:
    """Check the arrays that both orientations share: lengths, dtypes, and indices."""
    if "edge_map" in shared:
        check_host_array("edge_map", shared["edge_map"], _INDEX_DTYPES, facts.edges)
        check_range("edge_map", shared["edge_map"], nnz)
    elif facts.edges != nnz:
        bad_value("metadata.edges", f"got {facts.edges}; accepted without an edge_map: {nnz}")
    for name, count in (("values", nnz), ("row_scale", facts.rows), ("col_scale", facts.cols)):
        if name in shared:
            check_host_array(name, shared[name], (torch.float32,), count)
    if not is_finite(shared.get("values")):
        bad_value("values", "are not finite")


def _places(matrix: KernelCache, nonzeros: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    # By one thread: torch's waits for others, as long as they are busy.
    rows = torch.from_numpy(np.searchsorted(matrix.csr.indptr.numpy(), nonzeros.numpy(), "right") - 1)
    ids = rows if matrix.row_ids is None else matrix.row_ids[rows].long()
    return ids, matrix.csr.indices[nonzeros].long()


def _check_transpose(forward: KernelCache, backward: KernelCache, index: torch.Tensor) -> None:
    """Check the index map of the transpose: that it is a permutation, and some of its elements."""
    nnz = forward.csr.nnz
    if backward.csr.nnz != nnz:
        bad_value("backward.indices", f"has {backward.csr.nnz} nonzeros; accepted: {nnz}")
    check_permutation("transpose_map", index, nnz)
    some = torch.arange(0, nnz, max(1, nnz // _SAMPLES), device="cpu")
    there = _places(forward, index[some].long())
    here = _places(backward, some)
    if not (torch.equal(there[0], here[1]) and torch.equal(there[1], here[0])):
        bad_value("transpose_map", "leads to other elements than the transpose has")


def unpack(
    tensors: dict[str, torch.Tensor], metadata: dict[str, Any], *, checked: bool = False, **settings: Any
) -> Prepared:
    """Restore the prepared graph of `pack`, and check all of it, since native code trusts arrays.

    `checked`: this has been done before with the very same content, and is left out.
    """
    tensors = dict(tensors)
    facts = _read_facts(metadata)
    shared = {name: tensors.pop(name) for name in _SHARED if name in tensors}
    index = _take(shared, "transpose_map")
    rows, cols, form = facts.rows, facts.cols, facts.format
    csr, row_ids, blocked = _unpack_structure(tensors, "forward", rows, cols, form, checked)
    if not checked:
        _check_shared(shared, facts, csr.nnz)
    values, row_scale, col_scale = (shared.get(name) for name in _SHARED[2:])
    forward = KernelCache(csr, row_ids, blocked, values, None, row_scale, col_scale)
    if "backward.indptr" in tensors:
        csr, row_ids, blocked = _unpack_structure(tensors, "backward", cols, rows, form, checked)
    elif rows != cols:
        bad_value("backward.indptr", "is missing; accepted without it: square matrices")
    for name in tensors:
        bad_value(name, "is no array of a prepared graph")
    backward = forward.transposed(csr, row_ids, index).with_blocked(blocked)
    if not checked:
        _check_transpose(forward, backward, index)
    report = {name: getattr(facts, name) for name in ("symmetric", "reorder", "seconds", "edges")}
    return Prepared(forward, backward, index, shared.get("edge_map"), report, **settings)


def check_file(tensors: dict[str, torch.Tensor], metadata: dict[str, Any]) -> None:
    """Raise ValueError if the content of a cache file is neither a prepared graph nor a measured plan."""
    if "plan" not in metadata:
        unpack(tensors, metadata)
    elif tensors or plan_from_plain(metadata["plan"]) is None:
        bad_value("metadata.plan", "is no plan of this version")


#: Number of the layout of a saved operand.
_VERSION = 1


@dataclass(frozen=True)
class _State:
    """The plain values of a saved operand beside its graph's; `added_loops` is text, "" for None."""

    version: int
    precision: str
    auto_format: bool
    cache_hit: bool
    balance: str
    normalization: str
    is_part: bool
    added_loops: str
    transposed: bool
    handles: tuple[int, int]
    plans: Any


def pack_operand(prepared: Prepared, which: int, handles: tuple[int, int]) -> tuple[Any, ...]:
    """Return the arguments of `unpack_operand` that restore A (`which` 0) or its transpose (1)."""
    precision, device = prepared.precision, prepared.device
    if prepared.auto_format:  # the device chooses the format, and may be another one
        forward, backward = (side.with_blocked(None) for side in prepared.caches)
        prepared = replace(prepared, forward=forward, backward=backward)
    tensors, facts = pack(prepared, precision.storage)
    state = _State(
        _VERSION,
        precision.value,
        prepared.auto_format,
        prepared.cache_hit,
        prepared.balance,
        prepared.normalization or "",
        prepared.is_part,
        "" if prepared.added_loops is None else repr(prepared.added_loops),
        which == 1,
        handles,
        None if prepared.plans is None else prepared.plans.to_plain(),
    )
    return tensors, facts, to_plain(state), torch.empty(0, dtype=torch.uint8, device=device)


def unpack_operand(tensors: Any, facts: Any, state: Any, where: Any) -> tuple[Prepared, _State]:
    """Restore and check what `pack_operand` saved; `where` is a tensor on the operand's device."""
    if not isinstance(tensors, dict) or not all(isinstance(t, torch.Tensor) for t in tensors.values()):
        bad_type("tensors", tensors, "the arrays of a saved operand by name")
    if not isinstance(where, torch.Tensor):
        bad_type("where", where, "a tensor")
    if not isinstance(state, dict) or type(version := state.get("version")) is not int or version != _VERSION:
        bad_value("state", f"is no operand saved by this version; accepted: layout {_VERSION}")
    read: _State = from_plain(_State, state, "state")
    check_choice("state.balance", read.balance, BALANCES)
    check_choice("state.normalization", read.normalization, ("", *NORMALIZATIONS))
    precision = Precision.parse(read.precision, "state.precision")
    prepared = unpack(
        {name: t.detach().cpu().contiguous() for name, t in tensors.items()},
        facts,
        normalization=read.normalization or None,
        added_loops=check_number("state.added_loops", float(read.added_loops)) if read.added_loops else None,
        is_part=read.is_part,
        precision=precision,
        auto_format=read.auto_format,
        cache_hit=read.cache_hit,
        plans=None if read.plans is None else PlanStore.from_plain(read.plans),
        balance=read.balance,
    )
    if (blocked := prepared.forward.blocked) is not None:
        csr = prepared.forward.csr
        _check_format(blocked.spec, precision, csr.nnz / max(csr.rows * csr.cols, 1))
    return prepared.on(where.device), read


def _check_format(spec: FormatSpec, precision: Precision, density: float) -> None:
    """Raise a ValueError unless parameters are those of the preset that they name, by which kernels read."""
    preset = PRESETS[PRESETS.check(spec.name)]
    given = {name: getattr(spec, name) for name in preset.options}
    options = {name: value for name, value in given.items() if value is not None}
    panel = spec.panel if preset.panels else None
    wanted = format_spec(spec.name, precision, density, panel, options)
    if spec != wanted:
        bad_value("metadata.format.spec", f"is {spec}; accepted in {precision.value}: {wanted}")
