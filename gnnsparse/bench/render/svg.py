"""Charts as inline SVG. Colours are classes, which the page defines for light and dark themes.

A chart is 360 units wide, so that it can be read on a phone without being scrolled. Labels are above the
bars, because beside them there is no room.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from html import escape
from typing import TypeGuard

from gnnsparse.bench.render.cells import shown_number
from gnnsparse.bench.render.model import OURS, PEER, Bar, Bars, Curves, Intervals

__all__ = ["draw"]

_WIDTH = 360.0
_ROW, _BAR, _TEXT = 34.0, 10.0, 12.0
_MARGIN = 4.0
#: Characters that fit into a line, label and value together, and into the value.
_CHARACTERS, _VALUE_CHARACTERS = 56, 32
_CURVES = 6
#: Values from which on nothing is drawn.
_MOST = 1e150
_PLOT = (44.0, 10.0, 348.0, 168.0)  # left, top, right, bottom of the area of curves


def draw(chart: Bars | Intervals | Curves) -> str:
    """Returns a chart as an SVG element, or "" if it has nothing to draw."""
    if isinstance(chart, Curves):
        return _curves(chart)
    if not any(_can_be_drawn(bar.value) for bar in chart.bars):
        return ""
    return _rows(chart)


def _svg(height: float, title: str, body: Iterable[str]) -> str:
    label = escape(title, quote=True)
    return (
        f'<svg viewBox="0 0 {_WIDTH:g} {height:g}" role="img" aria-label="{label}" '
        f'preserveAspectRatio="xMinYMin meet">{"".join(body)}</svg>'
    )


def _text(x: float, y: float, text: str, kind: str, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}" text-anchor="{anchor}">{escape(text)}</text>'


def _line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="{kind}"/>'


def _cut(text: str, room: int) -> str:
    return text if len(text) <= room else f"{text[: max(room - 1, 1)]}\u2026"


def _can_be_drawn(value: float | None) -> TypeGuard[float]:
    """Returns whether a value is a number whose products with lengths do not overflow."""
    return value is not None and math.isfinite(value) and abs(value) < _MOST


def _finite(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if _can_be_drawn(value)]


def _lost(chart: Bars) -> set[int]:
    """Returns the numbers of the bars where another is faster.

    These are speeds below the line. Of times, for which there is no line, it is the fastest of ours if
    another library's is less.
    """
    drawn = [(bar.value, number) for number, bar in enumerate(chart.bars) if _can_be_drawn(bar.value)]
    if chart.line is not None:
        return {number for value, number in drawn if value < chart.line}
    ours = [found for found in drawn if chart.bars[found[1]].kind == OURS]
    peers = [value for value, number in drawn if chart.bars[number].kind == PEER]
    return {min(ours)[1]} if ours and peers and min(peers) < min(ours)[0] else set()


def _rows(chart: Bars | Intervals) -> str:
    """Draws bars from zero, or points with intervals on an axis of their own, one below the other."""
    from_zero = isinstance(chart, Bars)
    line = chart.line if isinstance(chart, Bars) else None
    ends = _finite(x for bar in chart.bars for x in (bar.value, bar.low, bar.high))
    low, high = (0.0, max([*ends, line or 0.0])) if from_zero else (min(ends), max(ends))
    if not from_zero:
        room = 0.08 * (high - low) or 0.5
        low, high = low - room, high + room
    span = (high - low) or 1.0

    def place(value: float) -> float:
        return _MARGIN + (_WIDTH - 2 * _MARGIN) * min(max((value - low) / span, 0.0), 1.0)

    height = _ROW * len(chart.bars) + (0 if from_zero else 18)
    body, lost = [], _lost(chart) if isinstance(chart, Bars) else set()
    for number, bar in enumerate(chart.bars):
        top = _ROW * number
        body.append(_label(bar, top + _TEXT))
        middle = top + _TEXT + 5 + _BAR / 2
        if not _can_be_drawn(bar.value):
            continue
        kind = "lost" if number in lost else bar.kind
        if from_zero:
            width = max(place(bar.value) - _MARGIN, 1.0)
            body.append(
                f'<rect x="{_MARGIN:g}" y="{middle - _BAR / 2:.1f}" width="{width:.1f}" height="{_BAR:g}" '
                f'rx="2" class="{kind}"/>'
            )
        if _can_be_drawn(bar.low) and _can_be_drawn(bar.high):
            body.append(_line(place(bar.low), middle, place(bar.high), middle, "whisker"))
        if not from_zero:
            body.append(f'<circle cx="{place(bar.value):.1f}" cy="{middle:.1f}" r="4.5" class="{bar.kind}"/>')
        if line is not None:
            half = _BAR / 2 + 2
            body.append(_line(place(line), middle - half, place(line), middle + half, "mark"))
    if not from_zero:
        body.append(_line(_MARGIN, height - 16, _WIDTH - _MARGIN, height - 16, "axis"))
        body.append(_text(_MARGIN, height - 3, shown_number(float(low)), "tick"))
        body.append(_text(_WIDTH - _MARGIN, height - 3, shown_number(float(high)), "tick", "end"))
    return _svg(height, chart.title, body)


def _label(bar: Bar, y: float) -> str:
    text = _cut(bar.text, _VALUE_CHARACTERS)
    label = _cut(bar.label, _CHARACTERS - len(text))
    title = f"<title>{escape(bar.label)}: {escape(bar.text)}</title>"
    value = _text(_WIDTH - _MARGIN, y, text, "value", "end")
    return f"<g>{title}{_text(_MARGIN, y, label, 'label')}{value}</g>"


def _curves(chart: Curves) -> str:
    left, top, right, bottom = _PLOT
    shown = [(name, values) for name, values in chart.curves if len(values) > 1][:_CURVES]
    ends = _finite([*(value for _, values in shown for value in values), chart.line])
    if chart.log:
        ends = [value for value in ends if value > 0]
    if not shown or not ends:
        return ""
    scale = math.log10 if chart.log else float
    low, high = scale(min(ends)), scale(max(ends))
    span = (high - low) or 1.0

    def height_of(value: float) -> float:
        return bottom - (bottom - top) * (scale(value) - low) / span

    body = [_line(left, bottom, right, bottom, "axis"), _line(left, top, left, bottom, "axis")]
    for value in dict.fromkeys((min(ends), max(ends), *_finite([chart.line]))):
        body.append(_text(left - 5, height_of(value) + 4, shown_number(float(value)), "tick", "end"))
    if chart.line is not None:
        body.append(_line(left, height_of(chart.line), right, height_of(chart.line), "mark"))
    for number, (_, values) in enumerate(shown):
        step = (right - left) / (len(values) - 1)
        points = " ".join(
            f"{left + step * at:.1f},{height_of(value):.1f}"
            for at, value in enumerate(values)
            if _can_be_drawn(value) and (value > 0 or not chart.log)
        )
        body.append(f'<polyline points="{points}" class="curve c{number}"/>')
    body.append(_text(right, bottom + 15, chart.x_label, "tick", "end"))
    y = bottom + 32
    for number, (name, _) in enumerate(shown):
        if name:
            body.append(_line(left, y - 4, left + 18, y - 4, f"curve c{number}"))
            body.append(_text(left + 24, y, _cut(name, 44), "label"))
            y += 16
    return _svg(y - 8, chart.title, body)
