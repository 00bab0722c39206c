"""The options of `gnnsparse plan-cluster`."""

from __future__ import annotations

import argparse
import math

from gnnsparse.precision import ROUNDED_PRECISIONS

__all__ = ["DESCRIPTION", "add_arguments"]

DESCRIPTION = """\
Estimates the time of a training step and the memory of a GPU, for a model of graph convolutions on 1 to 1,024
GPUs. With a data set, its graph is divided along communities for each number of GPUs and its halos are
counted; with --graph, a graph on disk is divided into ranges of consecutive nodes, without being read into
memory; with --nodes and --edges, edges join random nodes, and halos are large. Nothing is run: the rates of
kernels are those of a GPU's record, those of the network are options.
"""
MOST_GPUS = 1024
#: Those in which distribute makes operands.
_PRECISIONS = tuple(precision.value for precision in ROUNDED_PRECISIONS)


def _count(text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        value = 0
    if not 0 < value < 2**40:
        raise argparse.ArgumentTypeError(f"got {text!r}; accepted: a positive integer")
    return value


def _gpus(text: str) -> int:
    if (value := _count(text)) > MOST_GPUS:
        raise argparse.ArgumentTypeError(f"got {text}; accepted: at most {MOST_GPUS}")
    return value


def _rate(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"got {text!r}; accepted: a number above 0")
    return value


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    parser.add_argument("dataset", nargs="?", metavar="DATASET", help="a data set of nodes of train.py")
    parser.add_argument("--root", metavar="DIR", help="the folder with the files of a published data set")
    parser.add_argument("--graph", metavar="FOLDER", help="a graph that `gnnsparse graph` has made")
    parser.add_argument("--nodes", type=_count, metavar="N", help="nodes of a graph that is not there")
    parser.add_argument("--edges", type=_count, metavar="E", help="its edges, both directions counted")
    parser.add_argument("--features", type=_count, metavar="F", help="features of its nodes; default: 128")
    parser.add_argument("--classes", type=_count, metavar="C", help="its classes; default: 64")
    parser.add_argument(
        "--gpus", type=_gpus, nargs="+", default=[1, 2, 4, 8, 64, 1024], metavar="G",
        help=f"numbers of GPUs, up to {MOST_GPUS}; default: 1 2 4 8 64 1024",
    )  # fmt: skip
    parser.add_argument("--hidden", type=_count, default=128, metavar="H", help="default: 128")
    parser.add_argument("--layers", type=_count, default=5, metavar="L", help="convolutions; default: 5")
    parser.add_argument(
        "--precision", choices=_PRECISIONS, default="fp16", metavar="NAME",
        help=f"{', '.join(_PRECISIONS)}; default: fp16",
    )  # fmt: skip
    parser.add_argument("--gpu", metavar="NAME", help="the record of a GPU; default: NVIDIA H200")
    parser.add_argument("--link-gbs", type=_rate, metavar="GB/S", help="received from GPUs of one machine")
    parser.add_argument("--network-gbs", type=_rate, metavar="GB/S", help="received from other machines")
    parser.add_argument("--machine-gpus", type=_count, metavar="N", help="GPUs of a machine; default: 8")
