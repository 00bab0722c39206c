"""The options of `gnnsparse predict`."""

from __future__ import annotations

import argparse
from pathlib import Path

from gnnsparse.runtime.environment import DEVICES

__all__ = ["DESCRIPTION", "add_arguments"]

DESCRIPTION = """\
Writes the predictions of a trained model, which train.py left in the folder of a run. The module in which the
model is registered is looked for in the present folder too, so run it where train.py is.
"""


def _out(text: str) -> Path:
    from gnnsparse.inference.predict.files import ENDINGS

    if not text.endswith(ENDINGS):
        raise argparse.ArgumentTypeError(f"got {text!r}; accepted: a name in {', '.join(ENDINGS)}")
    if Path(text).is_dir():
        raise argparse.ArgumentTypeError(f"{text!r} is a folder; accepted: a file to write")
    return Path(text)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    parser.add_argument("run", metavar="RUN", help="the folder of a run, or a checkpoint in it")
    parser.add_argument(
        "--data", metavar="NAME_OR_FILE",
        help="a data set of train.py, or a file or folder as dataset=custom dataset.path=... takes; "
        "default: the data that the model was trained on",
    )  # fmt: skip
    parser.add_argument("--root", metavar="DIR", help="the folder with the files of a published data set")
    parser.add_argument(
        "--out", type=_out, required=True, metavar="FILE",
        help="FILE.npz: arrays; FILE.csv: a row for each node or sequence; an existing file is replaced",
    )  # fmt: skip
    parser.add_argument(
        "--device",
        choices=DEVICES,
        default="auto",
        metavar="NAME",
        help=f"{', '.join(DEVICES)}; default: auto",
    )
