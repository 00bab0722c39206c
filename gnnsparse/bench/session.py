"""What the benchmarks of kernels and of latency share: rows, what was skipped, noise, and their report."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from rich.console import Console
from rich.table import Table

from gnnsparse.runtime.environment import describe_environment
from gnnsparse.runtime.timing import measure

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
        return {
            **describe_environment(self.settings.device), "settings": settings, "rows": self.rows,
            "skipped": self.skipped, **more, "noise": self.noise.summary(self.rows),
        }  # fmt: skip

    def say_end(self, say: Callable[[str], None], lines: Iterable[str]) -> None:
        """Print the lines, those about the noise, and the heading of the lost cases."""
        for line in (*lines, *noise_lines(self.noise.summary(self.rows)), "Where we lose:"):
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


def printer(console: Console) -> Callable[[str], None]:
    """Return what prints lines as they are, however long."""
    return lambda line: console.print(line, markup=False, highlight=False, soft_wrap=True)


def progress() -> Callable[[str], None]:
    """Return what prints lines on the standard error."""
    return printer(Console(stderr=True))


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


# Whether the machine was quiet enough for times to be compared. A fixed piece of work, a matrix product and a
# sum of two arrays, is timed when a run begins and again as it goes on. If its time changes, the clocks or
# other programs changed the times of the candidates as well; and if the repeats of one measurement lie far
# apart, its median says little.

#: The fraction by which the reference may change between begin and end, and by which quartiles may lie apart.
DRIFT_LIMIT, SPREAD_LIMIT = 0.05, 0.10
#: Rows of the reference's square matrices by type of device: about 0.1 ms on a GPU and 1 ms on a core.
_SIZES = {"cuda": 4096, "cpu": 384}
_REPEATS = 20


def spread_of(lower_quartile: float, median: float, upper_quartile: float) -> float:
    """Return how far the quartiles lie apart, as a fraction of the median."""
    return (upper_quartile - lower_quartile) / median if median > 0 else 0.0


def is_noise(mine: Row, other: Row, drift: float) -> bool:
    """Return whether two measurements differ by no more than the noise that was measured.

    That is so if the repeats of one of them lie too far apart, if their quartiles overlap, or if the
    reference changed by as much (`drift`) as they differ.
    """
    rows = mine, other
    bounds = [(row["lower_quartile_ms"], row["ms"], row["upper_quartile_ms"]) for row in rows]
    if max(spread_of(*row) for row in bounds) > SPREAD_LIMIT:
        return True
    low, high = sorted(bounds, key=lambda row: row[1])
    return high[0] <= low[2] or high[1] <= (1 + drift) * low[1]


@dataclass
class NoiseMeter:
    """Times the reference work whenever `read` is called.

    `medians` are the reference's, in milliseconds, those of a run that this one goes on with first, and
    `spread` is how far the quartiles of the worst reading lay apart, as a fraction of its median.
    """

    device: torch.device | str
    medians: list[float] = field(default_factory=list)
    spread: float = 0.0

    def __post_init__(self) -> None:
        size = _SIZES[torch.device(self.device).type]
        factors = torch.ones(2, size, size, dtype=torch.float32, device=self.device)
        self._factors, self._out = factors, torch.empty_like(factors[0])

    def _reference(self) -> None:
        torch.mm(*self._factors, out=self._out)
        torch.add(*self._factors, out=self._out)

    def read(self) -> None:
        """Time the reference once more."""
        found = measure(self._reference, self.device, repeats=_REPEATS)
        self.medians.append(found.median)
        self.spread = max(self.spread, spread_of(found.lower_quartile, found.median, found.upper_quartile))

    @property
    def drift(self) -> float:
        """The largest change of the reference's median, as a fraction of the smallest; 0 at first."""
        return max(self.medians) / min(self.medians) - 1 if self.medians else 0.0

    def summary(self, rows: list[Row]) -> Row:
        """Return what the JSON file says of the noise, and of rows whose quartiles lie apart."""
        noisy = sum(row["spread"] > SPREAD_LIMIT for row in rows)
        return {
            "reference_ms": self.medians,
            "drift": self.drift, "spread": self.spread, "noisy_rows": noisy, "rows": len(rows),
            "noisy": self.drift > DRIFT_LIMIT or self.spread > SPREAD_LIMIT,
        }  # fmt: skip


def noise_lines(noise: Row) -> list[str]:
    """Return the lines of a report about `NoiseMeter.summary`: none if the machine was quiet."""
    lines = []
    if noise["noisy"]:
        lines.append(
            f"too noisy: the reference changed by {noise['drift']:.0%} (accepted: {DRIFT_LIMIT:.0%}), its "
            f"quartiles lay {noise['spread']:.0%} apart (accepted: {SPREAD_LIMIT:.0%}): run it again on a "
            "quiet machine before you compare"
        )
    if noise["noisy_rows"]:
        lines.append(
            f"noisy: {noise['noisy_rows']} of {noise['rows']} rows have quartiles more than "
            f"{SPREAD_LIMIT:.0%} of their median apart; they are marked with ~"
        )
    return lines
