"""The options of `gnnsparse doctor`."""

from __future__ import annotations

import argparse

__all__ = ["DESCRIPTION", "add_arguments"]

DESCRIPTION = """\
Says what is installed, which GPU and driver there are and whether the kernels were built for them, by which
record plans are chosen, and what state the cache is in; then compares every kernel with a float64 reference.
The exit status is 1 if something is broken.
"""


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= 3600:
        raise argparse.ArgumentTypeError(f"got {text!r}; accepted: seconds from 0 to 3600")
    return seconds


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options of `gnnsparse doctor`."""
    parser.add_argument("--json", action="store_true", help="print one JSON object in place of text")
    parser.add_argument(
        "--seconds", type=_seconds, default=10.0, metavar="S",
        help="most seconds of the self-test; 0: no self-test; default: 10",
    )  # fmt: skip
