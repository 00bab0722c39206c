"""The command `python -m papers`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from gnnsparse.runtime.environment import describe_environment, write_json
from papers.figures import PAPERS, Figure, Missing, Outcome, Row
from papers.session import Session

__all__ = ["reproduce", "run_reproduce"]

#: Characters of a line if the output is no terminal; in a narrower table numbers would be cut.
_WIDTH = 150
_NO_GPU = Missing(
    "a GPU", "run it on a machine with an NVIDIA GPU, with gnnsparse built with its CUDA kernels"
)


def reproduce(paper: str, names: Sequence[str] | None, session: Session) -> dict[str, Outcome]:
    """Reproduces figures and tables of a paper.

    Args:
        paper: name of the paper.
        names: names of its figures; None: those that need no GPU and no training, and no minutes.
        session: the matrices and the device.

    Returns:
        What each figure gave, by its name.

    Raises:
        ValueError: there is no such paper, or a file is damaged.
    """
    figures = PAPERS[PAPERS.check(paper)].figures
    chosen = [f for f in figures.values() if f.name in names] if names is not None else _quick(figures)
    return {figure.name: _run(figure, session) for figure in chosen}


def _quick(figures: dict[str, Figure]) -> list[Figure]:
    return [figure for figure in figures.values() if not figure.minutes]


def _run(figure: Figure, session: Session) -> Outcome:
    if figure.needs == "gpu" and session.device != "cuda":
        return Outcome(missing=[_NO_GPU])
    return figure.run(session)


def run_reproduce(paper: str, names: Sequence[str] | None, session: Session, out: Path | None = None) -> int:
    """Reproduces figures of a paper, prints them, and writes them to a file.

    Args:
        paper, names, session: as of `reproduce`.
        out: the JSON file to write; None: none.

    Returns:
        The exit status: 1 if there is not one number.
    """
    console = Console()
    console = console if console.is_terminal else Console(width=max(_WIDTH, console.width))
    figures = PAPERS[paper].figures
    console.print(f"{PAPERS[paper].title}", highlight=False)
    outcomes = reproduce(paper, names, session)
    for name, outcome in outcomes.items():
        _print_figure(console, figures[name], outcome)
    _print_missing(console, outcomes)
    if names is None:
        _print_others(console, paper, [figure for figure in figures.values() if figure.name not in outcomes])
    if out is not None:
        write_json(out, as_json(paper, outcomes, session))
    return 0 if any(outcome.rows for outcome in outcomes.values()) else 1


def as_json(paper: str, outcomes: dict[str, Outcome], session: Session) -> dict[str, Any]:
    """Returns the content of the JSON file: environment, paper, and the figures."""
    figures = PAPERS[paper].figures
    content = {
        name: {"title": figures[name].title, "needs": figures[name].needs, **asdict(outcome)}
        for name, outcome in outcomes.items()
    }
    return {**describe_environment(session.device), "paper": paper, "figures": content}


def _number(value: float | None, unit: str) -> str:
    if value is None:
        return "-"
    text = f"{value:,.0f}" if abs(value) >= 1000 or float(value).is_integer() else f"{value:.3g}"
    return f"{text} {unit}".strip() if unit in ("%", "GFLOP/s", "s") else f"{text}{unit}"


def _table(figure: Figure, rows: list[Row]) -> Table:
    table = Table(title=f"{figure.name}: {escape(figure.title)}")
    table.add_column("quantity", overflow="fold")
    table.add_column("matrix", overflow="fold")
    for name in ("paper", "ours"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("matrix is")
    with_notes = any(row.note for row in rows)
    if with_notes:
        table.add_column("note", overflow="fold")
    for row in rows:
        origin = {"paper's": "the paper's", "subset": "a subset", "stand-in": "a stand-in"}.get(
            row.origin, "an example"
        )
        cells = [row.quantity, row.matrix, _number(row.paper, row.unit), _number(row.ours, row.unit), origin]
        table.add_row(*map(escape, cells + ([row.note] if with_notes else [])))
    return table


def _print_figure(console: Console, figure: Figure, outcome: Outcome) -> None:
    if outcome.rows:
        console.print(_table(figure, outcome.rows))
    else:
        console.print(f"{figure.name}: {figure.title}", markup=False, highlight=False)
    if outcome.missing:
        _say(console, f"  not there: {', '.join(missing.what for missing in outcome.missing)}")
    for note in outcome.notes:
        _say(console, f"  note: {note}")


def _print_missing(console: Console, outcomes: dict[str, Outcome]) -> None:
    """Lists once what several figures lack."""
    lacking = dict.fromkeys(missing for outcome in outcomes.values() for missing in outcome.missing)
    if not lacking:
        return
    _say(console, "Not there, and how to get it (matrices go into the folder of --data):")
    for missing in lacking:
        _say(console, f"  {missing.what}: {missing.how}")


def _print_others(console: Console, paper: str, others: list[Figure]) -> None:
    if not others:
        return
    _say(console, f"Takes minutes, or more than a CPU (python -m papers {paper} --figure NAME):")
    needs = {"cpu": "", "gpu": ", on a GPU", "train": ", by train.py"}
    for figure in others:
        _say(console, f"  {figure.name}: {figure.title}{needs[figure.needs]}")


def _say(console: Console, text: str) -> None:
    console.print(text, soft_wrap=True, highlight=False, markup=False)
