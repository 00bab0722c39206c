"""Errors that train.py reports in one line."""

from __future__ import annotations

import os
import sys
from typing import NoReturn

__all__ = ["PROBLEMS", "RefusedError", "refuse"]

#: The errors that are reported in one line. A package that is missing or data that can't be loaded are such.
PROBLEMS = (ValueError, TypeError, ImportError, OSError, MemoryError)


class RefusedError(SystemExit):
    """Ends the process with status 2, after the reason was printed.

    Attributes:
        reason: the line that was printed, without the name of the program.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(2)
        self.reason = reason


def refuse(problem: Exception | str) -> NoReturn:
    """Ends the process with an error message of one line; HYDRA_FULL_ERROR=1 raises the error instead."""
    if os.environ.get("HYDRA_FULL_ERROR") == "1" and isinstance(problem, Exception):
        raise problem
    line = " ".join(str(problem).split())
    print(f"train.py: {line}", file=sys.stderr)
    raise RefusedError(line)
