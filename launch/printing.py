"""The console of train.py's tables, whose reader may have gone."""

from __future__ import annotations

from rich.console import Console

from gnnsparse.runtime.environment import without_pipe

__all__ = ["make_console"]


class _PipeConsole(Console):
    def on_broken_pipe(self) -> None:
        """Prints nowhere from now on, in place of ending the process: what is printed is in files as well."""
        self.quiet = True
        without_pipe()


def make_console(width: int | None = None) -> Console:
    """Returns a console of the standard output.

    Args:
        width: least characters of a line if the output is no terminal; None: as many as there are.
    """
    console = _PipeConsole()
    if width is not None and not console.is_terminal:
        console = _PipeConsole(width=max(width, console.width))
    return console
