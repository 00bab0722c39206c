"""The command `python -m papers`, in a checkout: figures and tables of the five papers, beside ours."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from gnnsparse_cli import Parser
from papers.command import run_reproduce
from papers.options import DESCRIPTION, add_arguments, session_of

__all__ = ["main", "parser"]


def parser() -> Parser:
    """Return the parser of the command's options."""
    made = Parser(prog="python -m papers", description=DESCRIPTION)
    add_arguments(made)
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status: 1 if nothing could be computed.

    Options that are not accepted, and files that cannot be read, exit with 2.
    """
    made = parser()
    options = made.parse_args(arguments)
    try:
        return run_reproduce(*session_of(options, made.error), options.json)
    except (ValueError, OSError, MemoryError) as error:  # of files and sizes that were named
        made.error(str(error))


if __name__ == "__main__":
    sys.exit(main())
