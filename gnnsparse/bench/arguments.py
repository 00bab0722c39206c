"""Types of options that commands share: counts, numbers in a range, devices, matrices, and files to write."""

from __future__ import annotations

import argparse
import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from gnnsparse import _native
from gnnsparse.bench.matrices import MatrixSpec, parse_matrix
from gnnsparse.runtime.environment import DEVICES

__all__ = [
    "Several", "add_device", "add_outputs", "at_least_one", "device_option", "devices_here", "file_option",
    "folder_option", "matrices_option", "number_option", "seed_option",
]  # fmt: skip

#: Endings of the names of figures.
PLOT_ENDINGS = (".png", ".pdf", ".svg")


class Several(argparse.Action):
    """Stores a tuple of the values, each once; an option's type may return several at a time."""

    def __call__(self, parser: Any, options: argparse.Namespace, values: Any, option: Any = None) -> None:
        """Store the values of an option."""
        flat = (value for group in values for value in (group if isinstance(group, list) else [group]))
        setattr(options, self.dest, tuple(dict.fromkeys(flat)))


def at_least_one(text: str) -> int:
    """Parse an integer from 1 on."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"got {text!r}; accepted: an integer from 1 on")
    return int(text)


def number_option(accepted: str, fits: Callable[[float], bool]) -> Callable[[str], float]:
    """Return a parser of numbers that `fits` accepts, which is given NaN for what is no number."""

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = float("nan")
        if not fits(value):
            raise argparse.ArgumentTypeError(f"got {text!r}; accepted: {accepted}")
        return value

    return parse


def seed_option(text: str) -> int:
    """Parse a seed of random numbers."""
    if not (text.isascii() and text.isdecimal()) or int(text) >= 2**63:
        raise argparse.ArgumentTypeError(f"got {text!r}; accepted: an integer from 0 to 2^63 - 1")
    return int(text)


def matrices_option(text: str) -> list[MatrixSpec]:
    """Parse the name of a matrix, of which a folder has several, without loading it."""
    try:
        return parse_matrix(text)
    except (ValueError, TypeError) as error:
        message = str(error)
        raise argparse.ArgumentTypeError(message.removeprefix("matrix: ")) from None


def devices_here() -> tuple[str, ...]:
    """Return the types of devices that can be measured here."""
    return ("cpu", "cuda") if torch.cuda.is_available() and _native.has_cuda else ("cpu",)


def device_option(text: str) -> str:
    """Read the option --device: return "cpu" or "cuda", which "auto" stands for."""
    if text not in DEVICES:
        raise argparse.ArgumentTypeError(f"got {text!r}; accepted: {', '.join(DEVICES)}")
    usable = "cuda" in devices_here()
    if text == "cuda" and not usable:
        problem = "no NVIDIA GPU here" if _native.has_cuda else "gnnsparse was built without CUDA kernels"
        raise argparse.ArgumentTypeError(problem)
    return text if text != "auto" else "cuda" if usable else "cpu"


def add_device(parser: argparse.ArgumentParser) -> None:
    """Declare the option --device."""
    parser.add_argument(
        "--device", type=device_option, default="auto", metavar="NAME",
        help=f"{', '.join(DEVICES)}; default: auto",
    )  # fmt: skip


def add_outputs(parser: argparse.ArgumentParser, drawn: str) -> None:
    """Declare the options --out, and --plot, which draws what `drawn` says."""
    parser.add_argument("--out", type=file_option, metavar="FILE.json", help="write all measurements")
    parser.add_argument(
        "--plot", type=plot_option, metavar="FILE.png", help=f"draw the {drawn} (needs matplotlib)"
    )


def file_option(text: str) -> Path:
    """Read an option that names a file to write."""
    path = Path(text)
    if path.is_dir():
        raise argparse.ArgumentTypeError(f"{text!r} is a folder; accepted: a file to write")
    return path


def folder_option(text: str) -> Path:
    """Read an option that names a folder which is there."""
    path = Path(text)
    if not path.is_dir():
        raise argparse.ArgumentTypeError(f"there is no folder {text!r}")
    return path


def plot_option(text: str) -> Path:
    """Read an option that names a figure to write, which needs matplotlib."""
    if not text.endswith(PLOT_ENDINGS):
        raise argparse.ArgumentTypeError(f"got {text!r}; accepted: a name in {', '.join(PLOT_ENDINGS)}")
    if importlib.util.find_spec("matplotlib") is None:
        raise argparse.ArgumentTypeError("needs matplotlib: pip install 'gnnsparse[bench]'")
    return file_option(text)
