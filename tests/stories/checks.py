"""The table of checks: what each story of docs/stories.md is given, what it needs, and what comes out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.stories.running import Outcome

__all__ = ["STORIES", "Check", "story"]


@dataclass(frozen=True)
class Check:
    """What is known of a story beside its page.

    Attributes:
        check: asserts what its last block left.
        given: makes the files that it is given, in the folder that it runs in.
        needs: packages that it needs.
        data: published files that it reads, relative to the data folder.
        status: exit status of its blocks.
        warns: whether something is printed to the standard error.
    """

    check: Callable[[Outcome], object]
    given: Callable[[Path], object] | None = None
    needs: tuple[str, ...] = ()
    data: tuple[str, ...] = ()
    status: int = 0
    warns: bool = False


#: The checks by the titles of the stories.
STORIES: dict[str, Check] = {}


def story(title: str, **known: Any) -> Callable[[Callable[[Outcome], object]], Callable[[Outcome], object]]:
    """Make the decorated function the check of a story; the arguments are the attributes of Check."""

    def keep(check: Callable[[Outcome], object]) -> Callable[[Outcome], object]:
        assert title not in STORIES, title
        STORIES[title] = Check(check, **known)
        return check

    return keep
