"""The command `gnnsparse report`: one page, and Markdown, of all results in JSON files."""

from __future__ import annotations

import argparse
import datetime
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

import gnnsparse
from gnnsparse.bench.arguments import file_option
from gnnsparse.bench.render.pages import as_html, as_markdown
from gnnsparse.bench.render.results import (
    ENVIRONMENT,
    Comparison,
    Part,
    Problem,
    Report,
    ResultFile,
    Section,
    Table,
    as_cells,
    find_files,
    losses_text,
    read_results,
    row_lists,
)
from gnnsparse.bench.render.views import (
    KERNEL_KEYS,
    LATENCY_KEYS,
    is_losses,
    is_paired,
    is_scores,
    is_timed,
    run_rows,
    show_kernels,
    show_latency,
    show_losses,
    show_pairs,
    show_preparation,
    show_scores,
    show_times,
)
from gnnsparse.errors import bad_value
from gnnsparse.runtime.environment import write_text

__all__ = ["DESCRIPTION", "SECTIONS", "add_arguments", "assemble", "run", "run_report"]

#: The sections in their order: word for links, heading, sentence.
SECTIONS = (
    ("kernels", "Kernels", "Products and attention by themselves, beside the fastest of other libraries."),
    ("latency", "Latency", "Inference: what a call takes."),
    ("training", "Training", "Steps of training and epochs."),
    ("precision", "Precision and accuracy", "How exact results are, and what models score."),
    ("preprocessing", "Preprocessing", "What preparing a graph takes."),
    ("other", "Other results", "What has no view of its own."),
)
#: Words in keys of rows, or in the place of the rows, by which a section is found; the first that fits.
_WORDS = (
    ("kernels", ("pattern", "gflops")),
    ("latency", ("p50_ms", "p90_ms", "p99_ms", "throughput", "samples_per_s", "sparsity")),
    ("preprocessing", ("preprocess_seconds", "preprocess_ms", "prepare_ms", "prepare_seconds", "cache_hit")),
    ("training", ("first_loss", "loss", "losses", "peak_bytes", "backward_ms", "fit_milliseconds", "epochs")),
    ("training", ("accelerated_ms",)),
    ("precision", ("error", "relative_error", "mean", "accuracy", "half", "magnitude", "infinite", "p")),
    ("kernels", ("both_ms", "forward_ms")),
)
#: Lists in files of benchmarks beside the measurements.
_BESIDE = {"skipped": "Not measured", "means": "Means over the matrices"}
#: The list of cases that a benchmark itself calls lost, and its title.
_LOST, _LOST_TITLE = "lost", "By the benchmark's own rule, where other kernels of ours count too"
_NOISY = "the machine was noisy when it was measured: small differences mean nothing"
#: Rows of a table of unknown rows up to which it is shown unfolded.
_UNFOLDED = 20

Row = dict[str, Any]
Placed = tuple[str, list[Part], list[Comparison]]


def assemble(files: list[ResultFile], problems: list[Problem], made: str) -> Report:
    """Make the report of files.

    Args:
        files: the results.
        problems: files that are none.
        made: when and by which version the report is made.
    """
    sections = {name: Section(name, title, about) for name, title, about in (*SECTIONS, (_LOST, "", ""))}
    report = Report(files, [], [], [], list(problems), made)
    for file in files:
        first = None
        for name, parts, comparisons in _parts_of(file, report.problems):
            sections[name].parts += [(file.name, part) for part in parts]
            report.comparisons += comparisons
            first = first or (name if parts else None)
        if first is None:
            problem = "has no list of results; its values are shown as they are"
            report.problems.append(Problem(file.name, problem))
        if _is_noisy(file.content):
            report.problems.append(Problem(file.name, _NOISY))
        if values := _further_values(file.content):
            sections[first or "other"].parts.append((file.name, values))
    for section in sections.values():
        _charts_first(section)
    report.lost = sections.pop(_LOST).parts
    report.sections = [section for section in sections.values() if section.parts]
    return report


def _is_noisy(content: dict[str, Any]) -> bool:
    """Return whether a benchmark says that its machine was too noisy."""
    noise = content.get("noise")
    return isinstance(noise, dict) and noise.get("noisy") is True


def _charts_first(section: Section) -> None:
    """Move files with charts before those without."""
    drawn = {name for name, part in section.parts if not isinstance(part, Table)}
    section.parts.sort(key=lambda placed: placed[0] not in drawn)


def _further_values(content: dict[str, Any]) -> Table | None:
    """Return what a file holds beside its environment and its lists of results, or None."""
    listed = {place for place, _ in row_lists(content)}
    if "" in listed:
        return None
    header, rows = as_cells([_without(content, listed)])
    pairs = [(key, value) for key, value in zip(header, rows[0], strict=True) if value not in ([], {}, None)]
    if not pairs:
        return None
    return Table("Settings and further values", ("name", "value"), tuple(pairs), folded=True)


def _without(content: dict[str, Any], listed: set[str], at: str = "") -> dict[str, Any]:
    """Return a copy of an object without the lists at the given places, and without the environment."""
    left = {}
    for key, value in content.items():
        place = f"{at}.{key}" if at else str(key)
        if place in listed or (not at and key in ENVIRONMENT):
            continue
        left[key] = _without(value, listed, place) if isinstance(value, dict) else value
    return left


def _parts_of(file: ResultFile, problems: list[Problem]) -> Iterator[Placed]:
    about = _about(file.content)
    if runs := _runs(file):
        yield from runs
    for place, rows in row_lists(file.content):
        try:
            yield from _view(file.name, place, rows, about)
        except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
            what = f"{place or 'its rows'} could not be read as expected ({type(error).__name__}: {error})"
            problems.append(Problem(file.name, f"{what}, and are shown as they are"))
            yield "other", [_as_it_is(place, rows)], []


def _about(content: dict[str, Any]) -> str:
    """Return what all results of a file have in common, such as "gcn, reddit_like, 5 layers, hidden 128"."""
    found = []
    for key in ("model", "graph", "dataset", "precision", "layers", "hidden"):
        value = content.get(key)
        if isinstance(value, str):
            found.append(value)
        elif isinstance(value, int):
            found.append(f"{value} {key}" if key == "layers" else f"{key} {value}")
    return ", ".join(found)


def _runs(file: ResultFile) -> list[Placed]:
    training, scores, prepared = run_rows(file.content)
    return [
        (name, [Table(title, *as_cells(rows))], [])
        for name, title, rows in (
            ("training", "A run of train.py", training),
            ("precision", "Scores of a run of train.py", scores),
            ("preprocessing", "Preparing the graph of a run of train.py", prepared),
        )
        if rows
    ]


def _view(file: str, place: str, rows: list[Row], about: str) -> list[Placed]:
    last = place.rpartition(".")[2]
    if any(set(KERNEL_KEYS) <= set(row) for row in rows):
        return [("kernels", *show_kernels(file, _with_keys(rows, KERNEL_KEYS)))]
    if any(set(LATENCY_KEYS) <= set(row) for row in rows):
        shown = _with_keys(rows, LATENCY_KEYS)
        return [("latency", *show_latency(file, shown)), ("preprocessing", show_preparation(shown), [])]
    if last in _BESIDE and any("precision" in row for row in rows):
        section = "kernels" if any("op" in row for row in rows) else "latency"
        return [(section, [Table(_BESIDE[last], *as_cells(rows), folded=True)], [])]
    if last == _LOST:
        return [(_LOST, [Table(_LOST_TITLE, *as_cells(rows))], [])]
    if is_scores(rows):
        return [("precision", show_scores(rows), [])]
    if is_losses(rows):
        return [("precision", show_losses(rows), [])]
    section = _section(rows)
    if is_paired(rows):
        return [(section, *show_pairs(file, rows, section))]
    if is_timed(rows):
        section = "kernels" if section == "precision" else section
        return [(section, *show_times(file, rows, section, about))]
    return [(section, [_as_it_is(place, rows)], [])]


def _with_keys(rows: list[Row], keys: tuple[str, ...]) -> list[Row]:
    """Return the rows; raises KeyError if one of them lacks a key."""
    for number, row in enumerate(rows):
        if missing := [key for key in keys if key not in row]:
            raise KeyError(f"row {number} lacks {', '.join(missing)}")
    return rows


def _section(rows: list[Row]) -> str:
    keys = {key for row in rows for key in row} - set(ENVIRONMENT)
    for name, words in _WORDS:
        if keys & set(words):
            return name
    return "other"


def _as_it_is(place: str, rows: list[Row]) -> Table:
    left = [{key: value for key, value in row.items() if key not in ENVIRONMENT} for row in rows]
    return Table(place or "Results", *as_cells(left), folded=len(rows) > _UNFOLDED)


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


def run_report(paths: Sequence[Path], out: Path | None = None, markdown: Path | None = None) -> int:
    """Read results, and write the report. Files that are no results are named on stderr and in the report.

    Args:
        paths: files and folders; empty: benchmarks/results.
        out: the page; None: report.html, or none if `markdown` is given.
        markdown: the file of the report in Markdown; None: none.

    Returns:
        The exit status: 1 if there is no result, and nothing was written.

    Raises:
        ValueError: there is no such file or folder.
        OSError: a file can't be written.
    """
    errors = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)
    console = Console(highlight=False, markup=False, soft_wrap=True)
    if not paths and not DEFAULT_FOLDER.is_dir():
        bad_value("files", f"none is given, and there is no folder {DEFAULT_FOLDER}")
    found, missing = find_files(paths or [DEFAULT_FOLDER])
    files, damaged = read_results(found)
    now = datetime.datetime.now(datetime.timezone.utc).isoformat(" ", "minutes").removesuffix("+00:00")
    made = f"Made from {len(files)} files of results by gnnsparse {gnnsparse.__version__}, {now} UTC."
    report = assemble(files, [*missing, *damaged], made)
    for problem in report.problems:
        errors.print(f"gnnsparse report: {problem.text}")
    if not files:
        errors.print("gnnsparse report: there is no result; nothing is written")
        return 1
    if out is None and markdown is None:
        out = Path("report.html")
    if out is not None:
        write_text(out, as_html(report))
        console.print(f"{out}: {out.stat().st_size / 1e6:.1f} MB; open it in a browser")
    if markdown is not None:
        write_text(markdown, as_markdown(report))
        console.print(f"{markdown}")
    console.print(losses_text(report.comparisons))
    return 0


def run(options: argparse.Namespace) -> int:
    """Run the command with parsed options, and return its exit status."""
    return run_report(options.files, options.out, options.markdown)
