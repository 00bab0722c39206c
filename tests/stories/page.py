"""The stories of docs/stories.md, read from the page."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tests.docs.blocks import ROOT, Block, blocks_of

__all__ = ["PAGE", "Story", "read_stories"]

PAGE = ROOT / "docs" / "stories.md"
_TITLE = re.compile(r"### (\d+)\. (.+)")
_LINK = re.compile(r"\]\(([^)#]+\.md)(?:#[^)]*)?\)")


@dataclass(frozen=True)
class Story:
    """A story of the page.

    Attributes:
        number: as in its title.
        title: without the number.
        blocks: the fenced blocks, which are run one after another.
        pages: the pages that it links to, relative to docs/.
    """

    number: int
    title: str
    blocks: tuple[Block, ...]
    pages: tuple[str, ...]


def read_stories() -> list[Story]:
    """Returns the stories in the order of the page."""
    lines = PAGE.read_text().splitlines()
    titles = {at: found for at, line in enumerate(lines) if (found := _TITLE.fullmatch(line))}
    stories = []
    for at, title in titles.items():
        end = next(
            (other for other in range(at + 1, len(lines)) if re.match("##+ ", lines[other])), len(lines)
        )
        blocks = tuple(block for block in blocks_of(PAGE) if at < block.line <= end)
        pages = tuple(_LINK.findall("\n".join(lines[at:end])))
        stories.append(Story(int(title[1]), title[2], blocks, pages))
    return stories
