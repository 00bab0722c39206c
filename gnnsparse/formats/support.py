"""What a format can compute: checks by which a product runs in the format that was asked for, or raises."""

from __future__ import annotations

from gnnsparse.errors import bad_value
from gnnsparse.formats.registry import FORMAT_NAMES, PRESETS, Preset
from gnnsparse.precision import Precision

__all__ = ["check_precision", "exclusive_preset", "operations", "require_operation"]


def exclusive_preset(name: str) -> Preset | None:
    """Returns the preset called `name` if products of an operand in it run in that format alone."""
    preset = PRESETS.get(name)
    return preset if preset is not None and preset.exclusive else None


def operations(name: str) -> tuple[str, ...]:
    """Returns the products that operands in a format have, "csr" and "auto" included."""
    preset = PRESETS.get(name)
    return ("spmm", "sddmm") if preset is None else preset.ops


def check_precision(name: str, precision: Precision) -> None:
    """Raises ValueError if a format does not have a precision.

    Args:
        name: name of a format, "csr" and "auto" included.
        precision: arithmetic of the products.
    """
    preset = PRESETS.get(name)
    if preset is None or precision in preset.precisions:
        return
    has = ", ".join(p.value for p in preset.precisions if p not in preset.added)
    added = ", ".join(p.value for p in preset.added)
    bad_value(
        "precision",
        f"got '{precision.value}' with the format {name} ({preset.source}), whose paper has {has}"
        f"{f', to which this project adds {added}' if added else ''}; accepted: "
        f"{', '.join(p.value for p in preset.precisions)}, or format='auto' or 'csr', which have all",
    )


def require_operation(argument: str, name: str, what: str, op: str | None) -> None:
    """Raises ValueError if a format is exclusive and has no operation that an argument asks for.

    Args:
        argument: the argument's name in the error.
        name: name of the operand's format.
        what: the operation in words, such as "edge values".
        op: the product that the operation is made of: "spmm" or "sddmm"; None: no exclusive format has it.
    """
    preset = exclusive_preset(name)
    if preset is None or op in preset.ops:
        return
    others = [n for n in FORMAT_NAMES if exclusive_preset(n) is None or (op and op in operations(n))]
    bad_value(
        argument,
        f"asks for {what}, which the format {name} ({preset.source}) does not have; accepted: an operand "
        f"that was prepared with format={' or '.join(map(repr, others))}",
    )
