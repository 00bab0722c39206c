"""The parts of a report, which say nothing about how they are shown: tables, charts and sections."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

__all__ = [
    "OURS", "PEER", "Bar", "Bars", "Cell", "Comparison", "Curves", "Intervals", "Part", "Problem",
    "Report", "ResultFile", "Section", "Table",
]  # fmt: skip

#: What a cell of a table holds; None is an empty cell.
Cell = Any
#: Kinds of a bar: a time or speed of ours, or of another library.
OURS, PEER = "ours", "peer"


@dataclass(frozen=True)
class Table:
    """A table.

    Attributes:
        title: its title.
        header: names of the columns, as keys of the results (`peak_bytes`), from which units are read.
        rows: its rows, each as long as the header.
        folded: whether a page shows it only when it is asked for.
    """

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    folded: bool = False


@dataclass(frozen=True)
class Bar:
    """A value with a label.

    Attributes:
        label: what was measured.
        value: the value; None: there is none, and `text` says why.
        text: the value as text.
        kind: OURS or PEER.
        low, high: an interval around the value, or None.
    """

    label: str
    value: float | None
    text: str
    kind: str = OURS
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Bars:
    """Horizontal bars from zero.

    Attributes:
        title: what they show, with the unit.
        bars: the bars.
        line: a value that is marked by a line, such as 1 for ratios; None: there is no line.
    """

    title: str
    bars: tuple[Bar, ...]
    line: float | None = None


@dataclass(frozen=True)
class Intervals:
    """Values with intervals on an axis that need not begin at zero; the attributes are those of Bars."""

    title: str
    bars: tuple[Bar, ...]


@dataclass(frozen=True)
class Curves:
    """Curves over a common axis.

    Attributes:
        title: what they show.
        x_label: what the horizontal axis is.
        curves: pairs (name, values at equal distances).
        line: a value that is marked by a line, or None.
        log: whether the vertical axis is logarithmic; values are above 0 then.
    """

    title: str
    x_label: str
    curves: tuple[tuple[str, tuple[float, ...]], ...]
    line: float | None = None
    log: bool = False


Part = Table | Bars | Intervals | Curves


@dataclass(frozen=True)
class Comparison:
    """A time of ours beside the best time of others in the same case.

    Attributes:
        section: what was compared: "kernels", "training", ...
        file: name of the file.
        case: the case in words.
        ours, best: names of what was measured.
        ours_ms, best_ms: their milliseconds.
        fastest_ms: the milliseconds of the fastest of ours in this case.
    """

    section: str
    file: str
    case: str
    ours: str
    best: str
    ours_ms: float
    best_ms: float
    fastest_ms: float

    @property
    def speed(self) -> float:
        """The speed of ours in units of the other's: below 1 the other is faster."""
        return self.best_ms / self.ours_ms


@dataclass(frozen=True)
class ResultFile:
    """A file of results.

    Attributes:
        name: its name in the report; without the folders above it.
        content: its content.
        environments: what its results were obtained with: device, versions, commit, date. A file has one, or
            one for each of its parts.
    """

    name: str
    content: dict[str, Any]
    environments: tuple[dict[str, Any], ...]


@dataclass(frozen=True)
class Problem:
    """A file that could not be shown or not as meant, and why; or what to know of it."""

    file: str
    reason: str


@dataclass
class Section:
    """A section of a report.

    Attributes:
        name: a word for links.
        title: its heading.
        about: a sentence under the heading.
        parts: what it shows: pairs (name of the file, part).
    """

    name: str
    title: str
    about: str
    parts: list[tuple[str, Part]] = field(default_factory=list)


@dataclass
class Report:
    """A report.

    Attributes:
        files: the files whose results it shows.
        sections: its sections, without those that are empty.
        comparisons: all comparisons of times with other libraries.
        lost: tables of the cases that benchmarks themselves call lost: pairs (name of the file, table).
        problems: what could not be shown, and what to know of files.
        made: when and by which version it was made.
    """

    files: list[ResultFile]
    sections: list[Section]
    comparisons: list[Comparison]
    lost: list[tuple[str, Part]]
    problems: list[Problem]
    made: str
