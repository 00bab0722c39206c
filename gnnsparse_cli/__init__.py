"""The start of the `gnnsparse` command: its help and its version, without the seconds that torch takes.

`import gnnsparse` imports torch, whatever part of the package is asked for. So what the command says of
itself is in this package, which imports the standard library alone. The options of a subcommand are in
gnnsparse.cli.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import metadata
from typing import Any, NoReturn

__all__ = ["COMMANDS", "Parser", "main", "make_parser"]

#: The subcommands, with their help.
COMMANDS = {
    "cache": "look after the cache of prepared graphs and generated data",
    "bench": "measure kernels and models beside their peers",
    "predict": "write the predictions of a trained model to a file",
    "report": "one page of all results",
    "doctor": "is this installation right?",
    "profile": "what a training step costs",
    "reproduce": "figures and tables of the five papers",
}


class Parser(argparse.ArgumentParser):
    """An argument parser that reports errors in one line, without the usage that argparse prints before."""

    def error(self, message: str) -> NoReturn:
        """Exits with status 2 after one line."""
        self.exit(2, f"{self.prog}: error: {message}\n")


class _Version(argparse.Action):
    """Prints the version of the installed package, and exits."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        print(f"gnnsparse {metadata.version('gnnsparse')}")
        parser.exit()


def make_parser() -> tuple[Parser, Any]:
    """Returns the parser of the command, and what its subcommands are added to."""
    parser = Parser(
        prog="gnnsparse",
        description="Sparse kernels for graph neural networks: measurements, predictions and housekeeping. "
        "Training is `python train.py`.",
        epilog="gnnsparse COMMAND --help shows the options of a command.",
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="show the version and exit")
    return parser, parser.add_subparsers(dest="command", required=True, metavar="command")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit status, as gnnsparse.cli.main does."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments and arguments[0] in COMMANDS:
        from gnnsparse.cli import main as run

        return run(arguments)
    parser, commands = make_parser()
    for name, text in COMMANDS.items():
        commands.add_parser(name, help=text)
    parser.parse_args(arguments)
    return 0


if __name__ == "__main__":
    sys.exit(main())
