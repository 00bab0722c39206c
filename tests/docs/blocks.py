"""The fenced blocks of the README, of docs/ and of notes/, and what their pages say of them.

A block of Python or of shell commands is executed unless the line above it is `<!-- not run: REASON -->`. A
block of text below the line `<!-- output -->` is what the blocks since the last one of its kind printed, with
`...` for what differs from run to run; above any other block of text its page says why nothing is executed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
#: The README, every page of the documentation, and what developers read.
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "notes").glob("*.md"))]
_BLOCK = re.compile(
    r"(?:^<!-- (?P<mark>output|not run)(?:: (?P<reason>[^\n]*?))? -->\n)?"
    r"^```(?P<language>\w*)\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Block:
    """A fenced block."""

    page: Path
    line: int
    language: str
    text: str
    mark: str
    reason: str

    @property
    def name(self) -> str:
        return f"{page_name(self.page)}:{self.line}"


def page_name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def blocks_of(page: Path) -> list[Block]:
    """Returns the blocks of a page in their order."""
    text, blocks = page.read_text(), []
    for found in _BLOCK.finditer(text):
        line = text[: found.start("text")].count("\n")
        mark, reason = found["mark"] or "", found["reason"] or ""
        blocks.append(Block(page, line, found["language"], found["text"], mark, reason))
    return blocks


def unfenced(page: Path) -> list[str]:
    """Returns the lines that Markdown shows as code because they are indented by four spaces."""
    found, before, outer = [], "", ""
    for line in without_blocks(page).splitlines():
        if line.startswith("    ") and not before.strip() and not re.match(r"(?:\d+\.|-|:::) ", outer):
            found.append(line)
        if line and not line.startswith(" "):
            outer = line
        before = line
    return found


def without_blocks(page: Path) -> str:
    """Returns the text of a page without its fenced blocks."""
    return _BLOCK.sub("", page.read_text())
