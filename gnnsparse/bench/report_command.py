"""The command `gnnsparse report`: one page, and Markdown, of all results in JSON files."""

from __future__ import annotations

import argparse
import datetime
from pathlib import Path
from typing import Any

from rich.console import Console

import gnnsparse
from gnnsparse.bench.arguments import file_option
from gnnsparse.bench.render.pages import LOST, as_html, as_markdown
from gnnsparse.bench.render.results import (
    ENVIRONMENT,
    Comparison,
    Part,
    Report,
    ResultFile,
    losses_text,
    read_results,
    row_lists,
    table_of,
)
from gnnsparse.bench.render.views import (
    benchmark_of,
    is_losses,
    is_scores,
    is_timed,
    show_losses,
    show_scores,
    show_times,
)
from gnnsparse.errors import bad_value
from gnnsparse.runtime.environment import write_text

__all__ = ["DESCRIPTION", "add_arguments", "assemble", "run"]

#: Words in keys of rows by which a section is found; the first that fits.
_WORDS = (
    ("kernels", {"pattern", "gflops"}),
    ("latency", {"p50_ms", "p90_ms", "p99_ms", "throughput", "samples_per_s", "sparsity"}),
    ("preprocessing", {"preprocess_seconds", "preprocess_ms", "prepare_ms", "prepare_seconds", "cache_hit"}),
    (
        "training",
        {"first_loss", "loss", "losses", "peak_bytes", "backward_ms", "fit_milliseconds", "epochs"},
    ),
    ("training", {"accelerated_ms"}),
    ("precision", {"error", "relative_error", "mean", "accuracy", "half", "magnitude", "infinite", "p"}),
    ("kernels", {"both_ms", "forward_ms"}),
)
#: Lists in files of benchmarks that stand beside the measurements, and their titles.
_BESIDE = {
    "skipped": "Not measured",
    "means": "Means over the matrices",
    LOST: "By the benchmark's own rule, where other kernels of ours count too",
}
#: The keys of a run of train.py that are shown.
_RUN = (
    "model", "dataset", "precision", "seed", "metrics", "epochs", "best_epoch", "epoch_milliseconds",
    "fit_seconds", "peak_memory_bytes", "parameters", "preprocess_seconds", "cache_hit",
)  # fmt: skip

Row = dict[str, Any]


def assemble(files: list[ResultFile], problems: list[str], made: str) -> Report:
    """Make the report of files; `problems` are lines about files that are none, `made` says when and how."""
    report = Report(files, list(problems), made)
    for file in files:
        _add(report, file)
    return report


def _add(report: Report, file: ResultFile) -> None:
    content, lists = file.content, dict(row_lists(file.content))
    if isinstance(content.get("metrics"), dict) and "fit_seconds" in content:
        run = table_of("A run of train.py", [{key: content.get(key) for key in _RUN}])
        shown: list[tuple[str, list[Part]]] = [("training", [run])]
    else:
        shown = []
    about = _about(content)
    for place, rows in lists.items():
        try:
            section, parts, comparisons = _view(file.name, place, rows, about)
        except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
            what = f"{place or 'its rows'} could not be read as expected ({type(error).__name__}: {error})"
            report.problems.append(f"{file.name}: {what}, and are shown as they are")
            section, parts, comparisons = "other", [_as_it_is(place, rows)], []
        shown.append((section, parts))
        report.comparisons += comparisons
    if not shown:
        report.problems.append(f"{file.name}: has no list of results; its values are shown as they are")
    noise = content.get("noise")
    if isinstance(noise, dict) and noise.get("noisy") is True:
        noisy = "the machine was noisy when it was measured: small differences mean nothing"
        report.problems.append(f"{file.name}: {noisy}")
    if further := {} if "" in lists else _without(content, set(lists)):
        table = table_of("Settings and further values", [further], folded=True)
        shown.append(("", [table] if table.header else []))
    first = next((section for section, _ in shown if section not in ("", LOST)), "other")
    for section, parts in shown:
        report.sections.setdefault(section or first, []).extend((file.name, part) for part in parts)


def _without(content: Row, listed: set[str], at: str = "") -> Row:
    """Return a copy of an object without the lists at the given places, and without the environment."""
    left = {}
    for key, value in content.items():
        place = f"{at}.{key}" if at else str(key)
        if place in listed or (not at and key in ENVIRONMENT) or value in ([], {}):
            continue
        left[key] = _without(value, listed, place) if isinstance(value, dict) else value
    return left


def _about(content: Row) -> str:
    """Return what all results of a file have in common, such as "gcn, reddit_like, 5 layers, hidden 128"."""
    found = []
    for key in ("model", "graph", "dataset", "precision", "layers", "hidden"):
        value = content.get(key)
        if isinstance(value, str):
            found.append(value)
        elif isinstance(value, int):
            found.append(f"{value} {key}" if key == "layers" else f"{key} {value}")
    return ", ".join(found)


def _view(file: str, place: str, rows: list[Row], about: str) -> tuple[str, list[Part], list[Comparison]]:
    """Return what a list of rows is shown as: the section, "" for that of the file, and the parts of it."""
    last = place.rpartition(".")[2]
    if benchmark := benchmark_of(rows):
        return benchmark[0], *show_times(file, rows, *benchmark)
    if last in _BESIDE:
        return LOST if last == LOST else "", [table_of(_BESIDE[last], rows, folded=last != LOST)], []
    if is_scores(rows):
        return "precision", show_scores(rows), []
    if is_losses(rows):
        return "precision", show_losses(rows), []
    keys = {key for row in rows for key in row} - set(ENVIRONMENT)
    section = next((name for name, words in _WORDS if keys & words), "other")
    if is_timed(rows):
        section = "kernels" if section == "precision" else section
        return section, *show_times(file, rows, section, about=about)
    return section, [_as_it_is(place, rows)], []


def _as_it_is(place: str, rows: list[Row]) -> Part:
    left = [{key: value for key, value in row.items() if key not in ENVIRONMENT} for row in rows]
    return table_of(place or "Results", left)


DESCRIPTION = """\
Makes one page of all results: what was measured where, by which versions, how fast, how exact, and where
others are faster. The page needs no network and no script.
"""
#: The folder that is read if none is named, below the current one.
DEFAULT_FOLDER = Path("benchmarks/results")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `gnnsparse report`."""
    parser.add_argument(
        "files", nargs="*", type=Path, metavar="FILE",
        help=f"JSON files of results, and folders, which are searched for them; default: {DEFAULT_FOLDER}",
    )  # fmt: skip
    parser.add_argument("--out", type=file_option, metavar="FILE.html", help="the page; default: report.html")
    parser.add_argument("--markdown", type=file_option, metavar="FILE.md", help="the report in Markdown too")


def run(options: argparse.Namespace) -> int:
    """Read results, and write the report; the status is 1 if there is no result, and nothing was written.

    Files that are no results are named on stderr and in the report.
    """
    errors = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)
    console = Console(highlight=False, markup=False, soft_wrap=True)
    if not options.files and not DEFAULT_FOLDER.is_dir():
        bad_value("files", f"none is given, and there is no folder {DEFAULT_FOLDER}")
    files, damaged = read_results(options.files or [DEFAULT_FOLDER])
    now = datetime.datetime.now(datetime.timezone.utc).isoformat(" ", "minutes").removesuffix("+00:00")
    made = f"Made from {len(files)} files of results by gnnsparse {gnnsparse.__version__}, {now} UTC."
    report = assemble(files, damaged, made)
    for problem in report.problems:
        errors.print(f"gnnsparse report: {problem}")
    if not files:
        errors.print("gnnsparse report: there is no result; nothing is written")
        return 1
    out = options.out or (None if options.markdown else Path("report.html"))
    if out is not None:
        write_text(out, as_html(report))
        console.print(f"{out}: {out.stat().st_size / 1e6:.1f} MB; open it in a browser")
    if options.markdown is not None:
        write_text(options.markdown, as_markdown(report))
        console.print(f"{options.markdown}")
    console.print(losses_text(report.comparisons))
    return 0
