"""The one blocked format: its parameters, the published formats as presets of it, and its arrays.

Rows are grouped into panels, columns without a nonzero in a panel are dropped, what is left is cut
into blocks and bricks. docs/format.md draws it. Every preset is registered in the file that defines it.
"""

from gnnsparse.formats import presets  # noqa: F401  (before others, in messages too)
from gnnsparse.formats.matrix import BlockedMatrix
from gnnsparse.formats.registry import FORMAT_NAMES, PRESETS, Preset, format_spec, register_preset
from gnnsparse.formats.spec import FormatSpec
from gnnsparse.registry import discover

__all__ = [
    "FORMAT_NAMES",
    "PRESETS",
    "BlockedMatrix",
    "FormatSpec",
    "Preset",
    "format_spec",
    "register_preset",
]

discover(__name__)
