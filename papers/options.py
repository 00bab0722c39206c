"""The options of `python -m papers`."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from gnnsparse.bench.arguments import at_least_one, device_option, file_option
from gnnsparse.runtime.environment import DEVICES
from papers import cutespmm, flashsparse, rsh_spmm, sspmm, tiled_csr  # noqa: F401  (each registers itself)
from papers.figures import PAPERS
from papers.session import Session

__all__ = ["DESCRIPTION", "add_arguments", "session_of"]

DESCRIPTION = """\
Reproduces figures and tables of a paper: each of the paper's numbers beside ours, on which matrix, and
whether that is the paper's matrix, a part of its collection, or one that stands in for it. What is not there
(matrices, a GPU) is listed with how to get it. Without --figure, what takes a minute or two runs, and the
rest is listed.
"""


def _folder(text: str) -> Path:
    path = Path(text)
    if not path.is_dir():
        raise argparse.ArgumentTypeError(f"there is no folder {text!r}")
    return path


def _file(text: str) -> Path:
    path = Path(text)
    if not path.is_file():
        raise argparse.ArgumentTypeError(f"there is no file {text!r}")
    return path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options of `python -m papers`."""
    papers = tuple(PAPERS)
    parser.add_argument("paper", choices=papers, metavar="PAPER", help=", ".join(papers))
    parser.add_argument(
        "--figure", nargs="+", metavar="NAME", help="figures and tables, such as figure-1 or table-7; or all"
    )
    parser.add_argument(
        "--data", type=_folder, metavar="FOLDER",
        help="where the matrices are, at any depth: files .mtx, .mtx.gz or .npz with the matrix's name, the "
        "folders of DLMC, raw files of data sets",
    )  # fmt: skip
    parser.add_argument(
        "--device", type=device_option, default="auto", metavar="NAME",
        help=f"{', '.join(DEVICES)}; default: auto",
    )  # fmt: skip
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
    """Makes the session of parsed options.

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
