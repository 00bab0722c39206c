"""The options of `gnnsparse report`."""

from __future__ import annotations

import argparse
from pathlib import Path

from gnnsparse.bench.options import file_option

__all__ = ["DEFAULT_FOLDER", "DESCRIPTION", "add_arguments"]

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
