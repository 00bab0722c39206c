"""The options of `gnnsparse bench accuracy`."""

from __future__ import annotations

import argparse

from gnnsparse.bench.accuracy.command import PARTS, AccuracySettings
from gnnsparse.bench.accuracy.data import RANGES
from gnnsparse.bench.accuracy.operations import OPERATIONS
from gnnsparse.bench.options import device_option, file_option, plot_option
from gnnsparse.precision import ROUNDED_PRECISIONS
from gnnsparse.runtime.environment import DEVICES

__all__ = ["accuracy_settings", "add_accuracy_arguments"]

_DESCRIPTION = """\
Measures what each precision does to results: errors of operations against float64, sums in float32 beside
sums in float16 (emulated), gradients with and without scaling of the loss, and overflow (docs/numerics.md).
"""
#: The largest seed of a torch.Generator that is accepted here.
_MAX_SEED = 2**63 - 1


def _seed(text: str) -> int:
    if not (text.isascii() and text.isdecimal()) or int(text) > _MAX_SEED:
        raise argparse.ArgumentTypeError(f"got {text!r}; accepted: an integer from 0 to 2^63 - 1")
    return int(text)


def add_accuracy_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options of `gnnsparse bench accuracy`."""
    parser.description = _DESCRIPTION
    choices = {
        "--part": (tuple(PARTS), "what to measure"),
        "--op": (tuple(OPERATIONS), "operations of the part operations"),
        "--range": (tuple(RANGES), "operands of the part operations"),
        "--precision": (
            tuple(p.value for p in ROUNDED_PRECISIONS),
            "of all parts but accumulation, which is of fp16",
        ),
    }
    for name, (accepted, text) in choices.items():
        about = f"{text}: {', '.join(accepted)}; default: all"
        parser.add_argument(name, nargs="+", choices=accepted, default=accepted, metavar="NAME", help=about)
    parser.add_argument(
        "--device", type=device_option, default="auto", metavar="NAME",
        help=f"{', '.join(DEVICES)}; default: auto",
    )  # fmt: skip
    parser.add_argument("--seed", type=_seed, default=0, metavar="N", help="of all operands; default: 0")
    parser.add_argument("--out", type=file_option, metavar="FILE.json", help="write all measurements")
    parser.add_argument(
        "--plot", type=plot_option, metavar="FILE.png", help="draw the errors (needs matplotlib)"
    )


def accuracy_settings(options: argparse.Namespace) -> AccuracySettings:
    """Makes the settings of parsed options; `options.fail` is called if they do not go together."""
    parts, precisions = tuple(dict.fromkeys(options.part)), tuple(dict.fromkeys(options.precision))
    if "operations" not in parts:
        for name, everything in (("op", OPERATIONS), ("range", RANGES)):
            if tuple(getattr(options, name)) != tuple(everything):
                options.fail(f"argument --{name}: goes with --part operations")
    if parts == ("scaling",) and not {"fp16", "bf16"} & set(precisions):
        options.fail("argument --precision: scaling is of fp16 and bf16; accepted: one of them")
    return AccuracySettings(
        parts=parts,
        ops=tuple(dict.fromkeys(options.op)),
        ranges=tuple(dict.fromkeys(options.range)),
        precisions=precisions,
        device=options.device,
        seed=options.seed,
    )
