"""Tables as text, for the reports of what models run on."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["aligned"]


def aligned(lines: Sequence[tuple[str, str, str]]) -> str:
    """Returns lines of three cells as text whose columns are aligned.

    Args:
        lines: the lines, the first of which is the header.
    """
    widths = [max(len(line[i]) for line in lines) for i in range(2)]
    return "\n".join(f"{a:<{widths[0]}}  {b:<{widths[1]}}  {c}" for a, b, c in lines)
