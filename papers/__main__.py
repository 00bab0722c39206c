"""The command `python -m papers`, in a checkout: figures and tables of the five papers, beside ours."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from gnnsparse.bench.arguments import add_device, at_least_one, folder_option
from gnnsparse.runtime.environment import describe_environment, write_json
from gnnsparse.runtime.profiler import wide_console
from gnnsparse_cli import Parser, file_option
from papers import cutespmm, flashsparse, rsh_spmm, sspmm, tiled_csr  # noqa: F401  (each registers itself)
from papers.figures import PAPERS, Figure, Missing, Outcome, Row
from papers.session import Session

__all__ = ["DESCRIPTION", "add_arguments", "main", "parser", "reproduce", "run_reproduce", "session_of"]

DESCRIPTION = """\
Reproduces figures and tables of a paper: each of the paper's numbers beside ours, on which matrix, and
whether that is the paper's matrix, a part of its collection, or one that stands in for it. What is not there
(matrices, a GPU) is listed with how to get it. Without --figure, what takes a minute or two runs, and the
rest is listed.
"""


def _file(text: str) -> Path:
    path = Path(text)
    if not path.is_file():
        raise argparse.ArgumentTypeError(f"there is no file {text!r}")
    return path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `python -m papers`."""
    papers = tuple(PAPERS)
    parser.add_argument("paper", choices=papers, metavar="PAPER", help=", ".join(papers))
    parser.add_argument(
        "--figure", nargs="+", metavar="NAME", help="figures and tables, such as figure-1 or table-7; or all"
    )
    parser.add_argument(
        "--data", type=folder_option, metavar="FOLDER",
        help="where the matrices are, at any depth: files .mtx, .mtx.gz or .npz with the matrix's name, the "
        "folders of DLMC, raw files of data sets",
    )  # fmt: skip
    add_device(parser)
    parser.add_argument("--json", type=file_option, metavar="FILE.json", help="write all rows")
    parser.add_argument(
        "--results", type=_file, metavar="FILE.json",
        help="speeds that models are compared with, as benchmarks/presets.py writes them on a GPU",
    )  # fmt: skip
    parser.add_argument(
        "--generate", action="store_true",
        help="generated graphs stand in for large ones that are missing; takes minutes and 10 GB on a CPU",
    )  # fmt: skip
    parser.add_argument(
        "--repeats", type=at_least_one, default=20, metavar="N", help="timed calls; default: 20"
    )
    parser.add_argument(
        "--seeds", type=at_least_one, metavar="N", help="of trainings; default: the study's own"
    )


def session_of(
    options: argparse.Namespace, fail: Callable[[str], object]
) -> tuple[str, list[str] | None, Session]:
    """Make the session of parsed options.

    Args:
        options: the parsed options.
        fail: called with a message if a figure is unknown, as ArgumentParser.error.

    Returns:
        The name of the paper, the names of the figures (None: what is quick), and the session.
    """
    figures = PAPERS[options.paper].figures
    names = None if options.figure is None else list(dict.fromkeys(options.figure))
    if names == ["all"]:
        names = list(figures)
    for name in names or ():
        if name not in figures:
            accepted = ", ".join(figures)
            fail(f"argument --figure: got {name!r} of {options.paper}; accepted: {accepted}, or all alone")
    session = Session(
        options.data, options.device, options.results, options.repeats, options.generate, options.seeds
    )
    return options.paper, names, session


_NO_GPU = Missing(
    "a GPU", "run it on a machine with an NVIDIA GPU, with gnnsparse built with its CUDA kernels"
)


def reproduce(paper: str, names: Sequence[str] | None, session: Session) -> dict[str, Outcome]:
    """Reproduce figures and tables of a paper.

    Args:
        paper: name of the paper.
        names: names of its figures; None: those that need no GPU and no training, and no minutes.
        session: the matrices and the device.

    Returns:
        What each figure gave, by its name.

    Raises:
        ValueError: there is no such paper, or a file is damaged.
    """
    return {figure.name: _run(figure, session) for figure in _chosen(paper, names)}


def _chosen(paper: str, names: Sequence[str] | None) -> list[Figure]:
    figures = PAPERS[PAPERS.check(paper)].figures.values()
    return [f for f in figures if (f.name in names if names is not None else not f.minutes)]


def _run(figure: Figure, session: Session) -> Outcome:
    if figure.needs == "gpu" and session.device != "cuda":
        return Outcome(missing=[_NO_GPU])
    return figure.run(session)


def run_reproduce(paper: str, names: Sequence[str] | None, session: Session, out: Path | None = None) -> int:
    """Reproduce figures of a paper, print them, and write them to a file.

    Args:
        paper, names, session: as of `reproduce`.
        out: the JSON file to write; None: none.

    Returns:
        The exit status: 1 if there is not one number.
    """
    console = wide_console(150)
    figures = PAPERS[paper].figures
    console.print(f"{PAPERS[paper].title}", highlight=False)
    outcomes: dict[str, Outcome] = {}
    for figure in _chosen(paper, names):
        outcomes[figure.name] = _run(figure, session)
        _print_figure(console, figure, outcomes[figure.name])
        if out is not None:  # after each figure, because some take minutes
            write_json(out, as_json(paper, outcomes, session))
    _print_missing(console, outcomes)
    if names is None:
        _print_others(console, paper, [figure for figure in figures.values() if figure.name not in outcomes])
    return 0 if any(outcome.rows for outcome in outcomes.values()) else 1


def as_json(paper: str, outcomes: dict[str, Outcome], session: Session) -> dict[str, Any]:
    """Return the content of the JSON file: environment, paper, and the figures."""
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
    """List once what several figures lack."""
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


def parser() -> Parser:
    """Return the parser of the command's options."""
    made = Parser(prog="python -m papers", description=DESCRIPTION)
    add_arguments(made)
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status: 1 if nothing could be computed.

    Options that are not accepted, and files that cannot be read, exit with 2.
    """
    made = parser()
    options = made.parse_args(arguments)
    try:
        return run_reproduce(*session_of(options, made.error), options.json)
    except (ValueError, OSError, MemoryError) as error:  # of files and sizes that were named
        made.error(str(error))


if __name__ == "__main__":
    sys.exit(main())
