"""Charts of the report mark what is lost."""

from __future__ import annotations

import re

import pytest

from gnnsparse.bench.render.pages import draw
from gnnsparse.bench.render.results import OURS, PEER, Bar, Bars


def kinds(chart: Bars) -> list[str]:
    """The classes of the bars, from the top."""
    return re.findall(r'<rect [^>]*class="(\w+)"', draw(chart))


@pytest.mark.parametrize(
    ("times", "marked"),
    [
        ([(OURS, 1.0), (PEER, 2.0)], []),
        ([(OURS, 3.0), (PEER, 2.0)], [0]),
        ([(OURS, 3.0), (OURS, 2.5), (PEER, 2.0), (PEER, 9.0)], [1]),  # the fastest of ours
        ([(OURS, 3.0), (PEER, None)], []),
        ([(OURS, None), (PEER, 2.0)], []),
        ([(OURS, 3.0), (OURS, 1.0)], []),
    ],
)
def test_times_where_another_is_faster_are_marked(
    times: list[tuple[str, float | None]], marked: list[int]
) -> None:
    bars = tuple(Bar(f"case {n}", value, str(value), kind) for n, (kind, value) in enumerate(times))
    drawn = [number for number, (_, value) in enumerate(times) if value is not None]
    found = dict(zip(drawn, kinds(Bars("times, ms", bars)), strict=True))
    assert [number for number in drawn if found[number] == "lost"] == marked


def test_speeds_below_the_line_are_marked() -> None:
    bars = tuple(Bar(str(speed), speed, str(speed)) for speed in (0.5, 1.0, 2.0))
    assert kinds(Bars("speed", bars, line=1.0)) == ["lost", OURS, OURS]
