"""Types of options that several commands have; each raises ArgumentTypeError with what is accepted."""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from gnnsparse import _native
from gnnsparse.bench.matrices import MatrixSpec, parse_matrix
from gnnsparse.environment import DEVICES

__all__ = ["at_least_one", "device", "file_to_write", "matrices", "one_matrix"]


def matrices(text: str) -> list[MatrixSpec]:
    """Returns the matrices that an option stands for."""
    try:
        return parse_matrix(text)
    except (ValueError, TypeError) as error:
        message = str(error)
        raise argparse.ArgumentTypeError(message.removeprefix("matrix: ")) from None


def one_matrix(text: str) -> MatrixSpec:
    """Returns the one matrix that an option stands for."""
    found = matrices(text)
    if len(found) != 1:
        raise argparse.ArgumentTypeError(
            f"the folder {text!r} has {len(found)} matrices; accepted: one matrix"
        )
    return found[0]


def at_least_one(text: str) -> int:
    """Returns an integer from 1 on."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"got {text!r}; accepted: an integer from 1 on")
    return int(text)


def device(text: str) -> str:
    """Returns "cpu" or "cuda", which can be used here."""
    if text not in DEVICES:
        raise argparse.ArgumentTypeError(f"got {text!r}; accepted: {', '.join(DEVICES)}")
    usable = torch.cuda.is_available() and _native.has_cuda
    if text == "cuda" and not usable:
        problem = "no NVIDIA GPU here" if _native.has_cuda else "gnnsparse was built without CUDA kernels"
        raise argparse.ArgumentTypeError(problem)
    return text if text != "auto" else "cuda" if usable else "cpu"


def file_to_write(text: str) -> Path:
    """Returns a path that is no folder."""
    path = Path(text)
    if path.is_dir():
        raise argparse.ArgumentTypeError(f"{text!r} is a folder; accepted: a file to write")
    return path
