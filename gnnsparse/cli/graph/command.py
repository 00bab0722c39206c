"""What `gnnsparse graph` does."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from gnnsparse.data import DamagedGraphError, StoredGraph, build_graph, generate_graph, graph_info, open_graph
from gnnsparse.data.large.build import Progress as Tell
from gnnsparse.data.large.folder import map_offsets

__all__ = ["run_graph"]

#: Offsets that are looked at at a time.
_OFFSETS = 1 << 22
_WORDS = {"count": "counting edges", "distribute": "distributing edges", "sort": "sorting edges"}


def run_graph(options: argparse.Namespace) -> int:
    """Makes or describes a graph, and returns the exit status: 1 if a file is damaged, else 0.

    Raises:
        ValueError: an option is not accepted, or a folder is not what it should be.
        OSError: a file can't be read or written, or the disk is too full.
    """
    if options.subject == "info":
        return _info(options.folder, verify=options.verify)
    with _bar() as tell:
        if options.subject == "build":
            made = build_graph(
                options.edges, options.folder, options.nodes, symmetric=options.symmetric,
                memory=options.memory, overwrite=options.overwrite, about=options.about, progress=tell,
            )  # fmt: skip
        else:
            made = generate_graph(
                options.name, options.folder, options.scale, options.seed, memory=options.memory,
                overwrite=options.overwrite, progress=tell,
            )  # fmt: skip
    Console().print(_table(made))
    return 0


@contextlib.contextmanager
def _bar() -> Iterator[Tell]:
    """Yields what shows how far a build is: a bar on the standard error, if that is a terminal."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[done]}"))
    bar = Progress(
        *columns, TimeElapsedColumn(), console=console, transient=True, disable=not console.is_terminal
    )
    with bar:
        task = bar.add_task("", total=None, done="")

        def tell(what: str, done: int, total: int | None) -> None:
            text = f"{done / 1e6:.1f}{'' if total is None else f' of {total / 1e6:.1f}'} million"
            bar.update(task, description=_WORDS[what], completed=done, total=total, done=text)

        yield tell


def _info(folder: str, *, verify: bool) -> int:
    console = Console()
    try:
        made = graph_info(folder)
        console.print(_table(made, _degrees(made)))
        if verify:
            open_graph(folder)
            console.print("all files are as they were written", highlight=False)
    except DamagedGraphError as error:
        if not verify:
            raise
        console.print(str(error), soft_wrap=True, highlight=False, markup=False)
        return 1
    return 0


def _degrees(made: StoredGraph) -> tuple[int, int]:
    """Returns the largest number of nonzeros of a row, and how many rows have none."""
    offsets, largest, empty = map_offsets(made), 0, 0
    for first in range(0, made.num_nodes, _OFFSETS):
        degrees = np.diff(offsets[first : first + _OFFSETS + 1])
        largest = max(largest, int(degrees.max()))
        empty += int(np.count_nonzero(degrees == 0))
    return largest, empty


def _table(made: StoredGraph, degrees: tuple[int, int] | None = None) -> Table:
    table = Table(title=Text(str(made.folder)), title_justify="left", show_header=False)
    rows = [
        ("about", made.about or "-"),
        ("nodes", str(made.num_nodes)),
        ("nonzeros", str(made.nnz)),
        ("edges read", str(made.num_edges)),
        ("symmetric", "yes" if made.symmetric else "not known"),
        ("mean degree", f"{made.nnz / max(made.num_nodes, 1):.2f}"),
    ]
    if degrees is not None:
        rows += [("largest degree", str(degrees[0])), ("rows without nonzeros", str(degrees[1]))]
    for name, value in (*rows, ("MB", f"{made.nbytes / 1e6:.1f}"), ("built", made.date)):
        table.add_row(name, Text(value))  # as Text, for brackets in a file are no markup
    return table
