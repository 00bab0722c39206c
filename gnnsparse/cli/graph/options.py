"""The options of `gnnsparse graph`."""

from __future__ import annotations

import argparse
import math

from gnnsparse.data.datasets import check_scale, check_seed
from gnnsparse.data.generators import BLOCK_MODELS

__all__ = ["DESCRIPTION", "add_arguments"]

DESCRIPTION = """\
Makes a folder of a graph that need not fit into memory, for gnnsparse.data.open_graph, samplers and
plan-cluster; and says what a folder has.
"""
_BUILD = """\
Sorts edges into a graph in bounded memory. A weight of an edge is not kept; repeated edges are merged.
"""
_GENERATE = """\
Generates a random graph with the size and degrees of a well-known one, part by part.
"""
_INFO = """\
Says what a folder has. With --verify, its files are read and checked, and the exit status is 1 if one is
damaged.
"""


def _bytes(text: str) -> int:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0.001 <= value < 1e6:
        raise argparse.ArgumentTypeError(f"got {text!r}; accepted: GB, a number from 0.001 on")
    return int(value * 1e9)


def _nodes(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 11 and int(text) < 2**31):
        raise argparse.ArgumentTypeError(f"got {text!r}; accepted: an integer from 0 to 2^31 - 1")
    return int(text)


def _scale(text: str) -> float:
    try:
        return check_scale(float(text))
    except ValueError:
        raise argparse.ArgumentTypeError(f"got {text!r}; accepted: a number above 0 and at most 1") from None


def _seed(text: str) -> int:
    try:
        return check_seed(int(text))
    except ValueError:
        raise argparse.ArgumentTypeError(f"got {text!r}; accepted: an integer from 0 to 2^63 - 1") from None


def _add_writing(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="FOLDER", help="the folder to make")
    parser.add_argument(
        "--memory", type=_bytes, default=1_000_000_000, metavar="GB",
        help="memory to use at a time; default: 1",
    )  # fmt: skip
    parser.add_argument("--overwrite", action="store_true", help="replace a graph that is in the folder")


def _add_build(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("edges", metavar="EDGES.npy", help="an array (2, edges), int32 or int64")
    _add_writing(parser)
    parser.add_argument("--nodes", type=_nodes, required=True, metavar="N", help="number of nodes")
    parser.add_argument("--symmetric", action="store_true", help="add the reverse of each edge")
    parser.add_argument("--about", default="", metavar="TEXT", help="what the graph is, for `info`")


def _add_generate(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", choices=tuple(BLOCK_MODELS), metavar="NAME", help=", ".join(BLOCK_MODELS))
    _add_writing(parser)
    parser.add_argument(
        "--scale", type=_scale, default=1.0, metavar="S",
        help="factor of the numbers of nodes and edges, at most 1; default: 1",
    )  # fmt: skip
    parser.add_argument("--seed", type=_seed, default=0, metavar="N", help="default: 0")


def _add_info(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="FOLDER", help="the folder of a graph")
    parser.add_argument("--verify", action="store_true", help="read all of its files, and check them")


_SUBJECTS = {
    "build": (_add_build, _BUILD),
    "generate": (_add_generate, _GENERATE),
    "info": (_add_info, _INFO),
}


def add_arguments(subject: str, parser: argparse.ArgumentParser) -> None:
    """Declares the options of `gnnsparse graph SUBJECT`."""
    add, parser.description = _SUBJECTS[subject]
    add(parser)
