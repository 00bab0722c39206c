"""The command `gnnsparse report`."""

from __future__ import annotations

import argparse
import datetime
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

import gnnsparse
from gnnsparse.bench.arguments import file_option
from gnnsparse.bench.render.assemble import assemble
from gnnsparse.bench.render.files import find_files, read_results
from gnnsparse.bench.render.html import as_html
from gnnsparse.bench.render.markdown import as_markdown
from gnnsparse.bench.render.summary import losses_text, problem_text
from gnnsparse.errors import bad_value
from gnnsparse.runtime.environment import write_text

__all__ = ["DESCRIPTION", "add_arguments", "run", "run_report"]

DESCRIPTION = """\
Makes one page of all results: what was measured where, by which versions, how fast, how exact, and where
others are faster. The page needs no network and no script.
"""
#: The folder that is read if none is named, below the current one.
DEFAULT_FOLDER = Path("benchmarks/results")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options of `gnnsparse report`."""
    parser.add_argument(
        "files", nargs="*", type=Path, metavar="FILE",
        help=f"JSON files of results, and folders, which are searched for them; default: {DEFAULT_FOLDER}",
    )  # fmt: skip
    parser.add_argument("--out", type=file_option, metavar="FILE.html", help="the page; default: report.html")
    parser.add_argument("--markdown", type=file_option, metavar="FILE.md", help="the report in Markdown too")


def run_report(paths: Sequence[Path], out: Path | None = None, markdown: Path | None = None) -> int:
    """Reads results, and writes the report. Files that are no results are named on stderr and in the report.

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
        errors.print(f"gnnsparse report: {problem_text(problem)}")
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
