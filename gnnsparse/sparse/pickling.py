"""Operands as plain values and tensors, which pickle, torch.save and torch.load with weights_only take.

A file may hold anything. What is read is checked like a file of the cache, so that kernels that run on it
stay inside its arrays.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch

from gnnsparse.errors import bad_type, bad_value, check_choice, check_number
from gnnsparse.formats import PRESETS, FormatSpec, format_spec
from gnnsparse.plan.store import PlanStore
from gnnsparse.plan.window import BALANCES
from gnnsparse.precision import Precision
from gnnsparse.preprocess.normalize import NORMALIZATIONS
from gnnsparse.preprocess.stored import pack, unpack
from gnnsparse.runtime.serialization import from_plain, to_plain
from gnnsparse.sparse.operand_core import OperandCore, place

__all__ = ["State", "pack_core", "unpack_core"]

#: Number of the layout of a saved operand.
_VERSION = 1


@dataclass(frozen=True)
class State:
    """The plain values of a saved operand, beside those of its prepared graph.

    Attributes:
        version: number of the layout.
        precision, auto_format, cache_hit, balance: see OperandCore.
        normalization, is_part: see Prepared.
        added_loops: see Prepared, as text, which may be negative; "" for None.
        transposed: whether it is the transpose that was saved.
        handles: the handles of the operand and of its transpose.
        plans: see PlanStore.to_plain; None: plans are not measured.
    """

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


def pack_core(core: OperandCore, which: int, handles: tuple[int, int]) -> tuple[Any, ...]:
    """Returns the arguments of `unpack_core` that restore an operand.

    Args:
        core: the operand with its transpose.
        which: 0 if the operand is saved, 1 if its transpose is.
        handles: the handles of the operand and of its transpose.
    """
    prepared = core.prepared
    if core.auto_format:  # the device chooses the format, and may be another one
        bare = prepared.forward.with_blocked(None), prepared.backward.with_blocked(None)
        prepared = replace(prepared, forward=bare[0], backward=bare[1])
    tensors, facts = pack(prepared, core.precision.storage)
    state = State(
        _VERSION,
        core.precision.value,
        core.auto_format,
        core.cache_hit,
        core.balance,
        prepared.normalization or "",
        prepared.is_part,
        "" if prepared.added_loops is None else repr(prepared.added_loops),
        which == 1,
        handles,
        None if core.plans is None else core.plans.to_plain(),
    )
    return tensors, facts, to_plain(state), torch.empty(0, dtype=torch.uint8, device=core.device)


def unpack_core(tensors: Any, facts: Any, state: Any, where: Any) -> tuple[OperandCore, State]:
    """Restores what `pack_core` saved, and checks it.

    Args:
        tensors: arrays by name.
        facts: plain values of the prepared graph.
        state: plain values of the operand.
        where: a tensor on the device of the operand, where `map_location` of torch.load may have put it.

    Raises:
        TypeError: an argument is of another type.
        ValueError: an array or a value is missing, of another type or out of range.
    """
    if not isinstance(tensors, dict) or not all(isinstance(t, torch.Tensor) for t in tensors.values()):
        bad_type("tensors", tensors, "the arrays of a saved operand by name")
    if not isinstance(where, torch.Tensor):
        bad_type("where", where, "a tensor")
    if not isinstance(state, dict) or type(version := state.get("version")) is not int or version != _VERSION:
        bad_value("state", f"is no operand saved by this version; accepted: layout {_VERSION}")
    read: State = from_plain(State, state, "state")
    check_choice("state.balance", read.balance, BALANCES)
    check_choice("state.normalization", read.normalization, ("", *NORMALIZATIONS))
    prepared = unpack({name: t.detach().cpu().contiguous() for name, t in tensors.items()}, facts)
    prepared = replace(
        prepared,
        normalization=read.normalization or None,
        added_loops=check_number("state.added_loops", float(read.added_loops)) if read.added_loops else None,
        is_part=read.is_part,
    )
    precision = Precision.parse(read.precision, "state.precision")
    if (blocked := prepared.forward.blocked) is not None:
        csr = prepared.forward.csr
        _check_format(blocked.spec, precision, csr.nnz / max(csr.rows * csr.cols, 1))
    prepared = place(prepared, where.device, precision, read.auto_format)
    plans = None if read.plans is None else PlanStore.from_plain(read.plans)
    return OperandCore(prepared, precision, read.auto_format, read.cache_hit, plans, read.balance), read


def _check_format(spec: FormatSpec, precision: Precision, density: float) -> None:
    """Raise a ValueError unless parameters are those of the preset that they name.

    Kernels read a format by its name, and the arrays of some formats do not show how wide their blocks are.
    """
    preset = PRESETS[PRESETS.check(spec.name)]
    given = {name: getattr(spec, name) for name in preset.options}
    options = {name: value for name, value in given.items() if value is not None}
    panel = spec.panel if preset.panels else None
    wanted = format_spec(spec.name, precision, density, panel, options)
    if spec != wanted:
        bad_value("metadata.format.spec", f"is {spec}; accepted in {precision.value}: {wanted}")
