"""The stories of docs/stories.md, read from the page."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

__all__ = ["PAGE", "ROOT", "Block", "Story", "read_stories"]

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "stories.md"
_TITLE = re.compile(r"^### (\d+)\. (.+)$", re.MULTILINE)
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\(([^)#]+\.md)(?:#[^)]*)?\)")


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, "sh" or "python", and its text."""

    language: str
    text: str


@dataclass(frozen=True)
class Story:
    """A story of the page.

    Attributes:
        number: as in its title.
        title: without the number.
        prose: the text around the blocks.
        blocks: the fenced blocks, which are run one after another.
        pages: the pages that the prose links to, relative to docs/.
    """

    number: int
    title: str
    prose: str
    blocks: tuple[Block, ...]
    pages: tuple[str, ...]


def read_stories() -> list[Story]:
    """Returns the stories in the order of the page."""
    text = PAGE.read_text()
    titles = list(_TITLE.finditer(text))
    ends = [title.start() for title in titles[1:]] + [len(text)]
    found = []
    for title, end in zip(titles, ends, strict=True):
        body = re.split(r"^## ", text[title.end() : end], flags=re.MULTILINE)[0]
        blocks = tuple(Block(language, code) for language, code in _BLOCK.findall(body))
        prose = _BLOCK.sub("", body).strip()
        found.append(Story(int(title[1]), title[2].strip(), prose, blocks, tuple(_LINK.findall(prose))))
    return found
