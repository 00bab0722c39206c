"""The blocked format: its parameters, the published formats as presets of it, and its arrays.

Rows are grouped into panels. In each panel, columns without a nonzero are dropped, and the others are cut
into blocks and bricks (docs/format.md). Every preset is registered in the file that defines it.
"""

from gnnsparse.formats import presets  # noqa: F401  (first, so that messages list these names first)
from gnnsparse.formats.arrays import ARRAYS, ArrayRule, check_blocked
from gnnsparse.formats.matrix import BlockedMatrix
from gnnsparse.formats.policy import WindowPolicy
from gnnsparse.formats.registry import FORMAT_NAMES, PRESETS, Preset, format_spec, register_preset
from gnnsparse.formats.spec import FormatSpec
from gnnsparse.registry import discover

__all__ = [
    "ARRAYS",
    "FORMAT_NAMES",
    "PRESETS",
    "ArrayRule",
    "BlockedMatrix",
    "FormatSpec",
    "Preset",
    "WindowPolicy",
    "check_blocked",
    "format_spec",
    "register_preset",
]

discover(__name__)
