"""The stories of docs/stories.md: the page is the test, and the table of checks says what has to come out."""

from __future__ import annotations

import importlib.util
import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.docs.blocks import ROOT, Block, blocks_of
from tests.stories.checks import STORIES
from tests.stories.running import run_block

PAGE = ROOT / "docs" / "stories.md"
_TITLE = re.compile(r"### (\d+)\. (.+)")
_LINK = re.compile(r"\]\(([^)#]+\.md)(?:#[^)]*)?\)")


@dataclass(frozen=True)
class Story:
    """A story of the page."""

    number: int
    title: str
    blocks: tuple[Block, ...]
    pages: tuple[str, ...]


def read_stories() -> list[Story]:
    """Return the stories in the order of the page."""
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


ALL = read_stories()
#: Most lines of a block: a story is a command or about ten lines.
_LINES = 15


def test_the_page_is_in_order() -> None:
    assert [story.number for story in ALL] == list(range(1, len(ALL) + 1))
    assert [story.title for story in ALL] == list(dict.fromkeys(story.title for story in ALL))
    assert len(ALL) >= 40
    assert {story.title for story in ALL} == set(STORIES)


@pytest.mark.parametrize("story", ALL, ids=lambda story: str(story.number))
def test_a_story_is_short_and_leads_to_its_page(story: Story) -> None:
    assert story.blocks
    for block in story.blocks:
        assert len([line for line in block.text.splitlines() if line.strip()]) <= _LINES
    assert story.pages, "there is no link to the page that explains it"
    assert all((PAGE.parent / page).is_file() for page in story.pages)


def id_of(story: Story) -> str:
    return f"{story.number}-{re.sub(r'[^a-z0-9]+', '-', story.title.lower()).strip('-')}"


@pytest.mark.slow
@pytest.mark.parametrize("story", ALL, ids=id_of)
def test_story(story: Story, tmp_path: Path) -> None:
    known = STORIES[story.title]
    for package in known.needs:
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"the package {package} is not installed")
    folder = tmp_path / "checkout"
    folder.mkdir()
    if known.given is not None:
        known.given(folder)
    for block in story.blocks:
        outcome = run_block(block, folder)
        assert outcome.status == known.status, f"{outcome.output}\n{outcome.errors}"
        assert known.warns or outcome.errors == ""
    known.check(outcome)
