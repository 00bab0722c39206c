"""notes/tour.md: each function is defined where the page says, and is entered in the order of the page."""

from __future__ import annotations

import pytest

from tests.docs.tour import WAYS, Stop, current, sections, stops


def test_the_page_has_a_section_for_each_way() -> None:
    assert list(sections()) == list(WAYS)


@pytest.mark.parametrize(
    "heading", [pytest.param(way, marks=pytest.mark.slow if "train.py" in way else ()) for way in WAYS]
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")
def test_the_functions_are_defined_there_and_entered_in_this_order(heading: str) -> None:
    listed, found = stops(sections()[heading]), iter(WAYS[heading]())
    assert 5 <= len(listed) <= 15
    for stop in listed:
        assert stop in found, f"{stop} is not entered after those before it: run python -m tests.docs.tour"


def test_a_function_that_moved_is_found_by_its_name() -> None:
    found = [Stop("a.py", 7, "f"), Stop("b.py", 8, "g"), Stop("c.py", 9, "g")]
    assert current(Stop("a.py", 1, "f"), found) == found[0]
    assert current(Stop("d.py", 1, "f"), found) == found[0]
    assert current(Stop("c.py", 1, "g"), found) == found[2]
    assert current(Stop("d.py", 1, "g"), found) is None
    assert current(Stop("a.py", 1, "h"), found) is None
