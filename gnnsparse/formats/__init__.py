"""The blocked format: its parameters, the published formats as presets of it, and its arrays.

Rows are grouped into panels. In each panel, columns without a nonzero are dropped, and the others are cut
into blocks and bricks (notes/format.md). Every preset is registered in the file that defines it.
"""

from gnnsparse.formats import presets  # noqa: F401  (first, so that messages list these names first)
from gnnsparse.formats.blocked import ARRAYS, ArrayRule, BlockedMatrix, check_blocked
from gnnsparse.formats.policy import WindowPolicy
from gnnsparse.formats.registry import (
    FORMAT_NAMES,
    PRESETS,
    Preset,
    check_precision,
    exclusive_preset,
    format_spec,
    operations,
    register_preset,
    require_operation,
)
from gnnsparse.formats.spec import FormatSpec
from gnnsparse.registry import discover

__all__ = [
    "ARRAYS", "FORMAT_NAMES", "PRESETS", "ArrayRule", "BlockedMatrix", "FormatSpec", "Preset", "WindowPolicy",
    "check_blocked", "check_precision", "exclusive_preset", "format_spec", "operations", "register_preset",
    "require_operation",
]  # fmt: skip

discover(__name__)
