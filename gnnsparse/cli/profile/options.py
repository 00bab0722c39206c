"""The options of `gnnsparse profile`, checked before anything is loaded."""

from __future__ import annotations

import argparse
from pathlib import Path

from gnnsparse.bench.matrices import MatrixSpec, parse_matrix
from gnnsparse.bench.options import at_least_one, device_option
from gnnsparse.cli.profile.steps import MODELS
from gnnsparse.precision import Precision
from gnnsparse.runtime.environment import DEVICES

__all__ = ["DESCRIPTION", "add_arguments"]

DESCRIPTION = """\
Profiles a training step with torch.profiler: writes a trace, which https://ui.perfetto.dev and
chrome://tracing show, and prints what each operation costs host and GPU. The step is that of a stack of
layers of gnnsparse.nn on a graph, or a function of your own.
"""
_TRACE_ENDINGS = (".json", ".json.gz")


def _trace(text: str) -> Path:
    if not text.endswith(_TRACE_ENDINGS):
        raise argparse.ArgumentTypeError(f"got {text!r}; accepted: a name in {', '.join(_TRACE_ENDINGS)}")
    if Path(text).is_dir():
        raise argparse.ArgumentTypeError(f"{text!r} is a folder; accepted: a file to write")
    return Path(text)


def _matrix(text: str) -> MatrixSpec:
    try:
        found = parse_matrix(text)
    except (ValueError, TypeError) as error:
        raise argparse.ArgumentTypeError(str(error).removeprefix("matrix: ")) from None
    if len(found) != 1:
        raise argparse.ArgumentTypeError(f"{text!r} has {len(found)} matrices; accepted: one matrix")
    return found[0]


def _callable(text: str) -> tuple[str, str]:
    module, colon, name = text.rpartition(":")
    if not colon or not module or not name.isidentifier():
        raise argparse.ArgumentTypeError(
            f"got {text!r}; accepted: MODULE:FUNCTION or FILE.py:FUNCTION, a function without arguments"
        )
    return module, name


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options of `gnnsparse profile`."""
    parser.add_argument(
        "--call", type=_callable, metavar="MODULE:FUNCTION",
        help="a function of yours without arguments that does one step, also as FILE.py:FUNCTION; the "
        "options of the model and the graph do not apply to it",
    )  # fmt: skip
    parser.add_argument(
        "--model",
        choices=tuple(MODELS),
        default="gcn",
        metavar="NAME",
        help=f"{', '.join(MODELS)}; default: gcn",
    )
    parser.add_argument(
        "--matrix", type=_matrix, default="arxiv_like:scale=0.1", metavar="MATRIX",
        help="a generated graph or a file, as in `gnnsparse bench kernels`; default: arxiv_like:scale=0.1",
    )  # fmt: skip
    parser.add_argument("--layers", type=at_least_one, default=3, metavar="N", help="default: 3")
    parser.add_argument(
        "--width", type=at_least_one, default=128, metavar="N", help="hidden features; default: 128"
    )
    parser.add_argument(
        "--features", type=at_least_one, default=128, metavar="N", help="input features; default: 128"
    )
    names = Precision.names()
    parser.add_argument(
        "--precision",
        choices=names,
        default="fp32",
        metavar="NAME",
        help=f"{', '.join(names)}; default: fp32",
    )
    parser.add_argument(
        "--device",
        type=device_option,
        default="auto",
        metavar="NAME",
        help=f"{', '.join(DEVICES)}; default: auto",
    )
    parser.add_argument(
        "--steps", type=at_least_one, default=5, metavar="N", help="profiled steps; default: 5"
    )
    parser.add_argument(
        "--warmup", type=at_least_one, default=3, metavar="N", help="steps before; default: 3"
    )
    parser.add_argument(
        "--out", type=_trace, default=Path("trace.json"), metavar="FILE.json",
        help="the trace, also as FILE.json.gz; default: trace.json",
    )  # fmt: skip
    parser.add_argument(
        "--top", type=at_least_one, default=15, metavar="N", help="rows of a table; default: 15"
    )
