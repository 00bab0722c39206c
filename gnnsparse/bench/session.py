"""What the benchmarks of kernels and of latency share: rows, what was skipped, noise, and their report."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, ClassVar

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from gnnsparse.bench.noise import NoiseMeter, noise_lines
from gnnsparse.runtime.environment import describe_environment

__all__ = [
    "LOSS", "Row", "Session", "new_table", "no_losses", "printer", "progress", "shown_error", "skipped_lines",
]  # fmt: skip

#: Ours loses a case if its speed is below this fraction of the best one's.
LOSS = 0.97
#: Most names that a line of the report has.
_NAMES = 4

Row = dict[str, Any]


@dataclass
class Session:
    """A run of a benchmark; `rows` and `skipped` grow as it goes on, and `tell` gets lines of text.

    `skipped` has what was asked for and not measured, where "" or 0 stands for all: "failed" is whether an
    error occurred, else a known limit was met.
    """

    #: The key that says who was skipped.
    who: ClassVar[str]
    settings: Any
    tell: Callable[[str], None] = lambda line: None
    rows: list[Row] = field(default_factory=list)
    skipped: list[Row] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.noise = NoiseMeter(self.settings.device)
        self.noise.read()

    @property
    def status(self) -> int:
        """The exit status: 1 if a result of ours is wrong or failed, or an input could not be read."""
        wrong = any(row["ours"] and not row["ok"] for row in self.rows)
        return int(wrong or any(one["failed"] and (one["ours"] or not one[self.who]) for one in self.skipped))

    def content(self, settings: Row, **more: Any) -> Row:
        """Return the content of the JSON file: environment, settings, rows, skipped, noise, and more."""
        environment = describe_environment(self.settings.device)
        spreads = [row["spread"] for row in self.rows]
        return {
            **environment, "settings": settings, "rows": self.rows, "skipped": self.skipped, **more,
            "noise": self.noise.summary(spreads),
        }  # fmt: skip

    def say_end(self, say: Callable[[str], None], lines: Iterable[str]) -> None:
        """Print the lines, those about the noise, and the heading of the lost cases."""
        spreads = [row["spread"] for row in self.rows]
        for line in (*lines, *noise_lines(self.noise.summary(spreads)), "Where we lose:"):
            say(line)


def skipped_lines(skipped: list[Row], who: str, keys: tuple[str, ...]) -> list[str]:
    """Return a line for each candidate and reason for which it was skipped, with the values of `keys`."""
    groups: dict[tuple[str, str, bool], list[Row]] = defaultdict(list)
    for case in skipped:
        groups[case[who], case["reason"], case["failed"]].append(case)
    lines = []
    for (name, reason, failed), cases in groups.items():
        where = []
        for key in keys:
            names = list(dict.fromkeys(str(case[key]) for case in cases if case[key]))
            more = [f"and {len(names) - _NAMES} more"] if len(names) > _NAMES else []
            where += [", ".join([*names[:_NAMES], *more])] if names else []
        count = f"{len(cases)} cases of " if len(cases) > 1 else ""
        about = f"{name + ' in ' if name else ''}{count}{'; '.join(where)}"
        lines.append(f"{'failed' if failed else 'skipped'}: {about}: {reason}")
    return lines


def no_losses(measured: int, compared: int) -> str:
    """Return what a report says of losses when it lists none: a comparison of nothing shows nothing."""
    if compared:
        return f"nowhere among {compared} compared cases"
    return "nothing was compared: no right results stand side by side" if measured else "nothing was measured"


def progress() -> Callable[[str], None]:
    """Return what prints lines on the standard error."""
    console = Console(stderr=True)
    return lambda line: console.print(line, markup=False, highlight=False, soft_wrap=True)


def printer(console: Console) -> Callable[[str], None]:
    """Return what prints lines of a report as they are, however long."""
    return lambda text: console.print(escape(text), soft_wrap=True, highlight=False)


def new_table(title: str, texts: Iterable[str], numbers: Iterable[str], **options: Any) -> Table:
    """Return a table of a terminal without rows: columns of texts, then of numbers."""
    table = Table(title=title, **options)
    for name in texts:
        table.add_column(name, overflow="fold")
    for name in numbers:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def shown_error(row: Row) -> str:
    """Return the cell of a row's error, which says whether the result is wrong."""
    error = "-" if row["error"] is None else f"{row['error']:.1e}"
    return error if row["ok"] else f"[red]WRONG[/red] {error}"
