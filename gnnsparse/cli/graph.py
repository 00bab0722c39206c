"""The options of `gnnsparse graph`."""

from __future__ import annotations

import argparse
import contextlib
import logging
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from gnnsparse.bench.arguments import number_option, scale_option, seed_option
from gnnsparse.data import (
    DamagedGraphError,
    StoredGraph,
    build_graph,
    build_graph_of_tables,
    generate_graph,
    graph_ids,
    graph_info,
    open_graph,
)
from gnnsparse.data.custom.tables import ENDINGS
from gnnsparse.data.generators import BLOCK_MODELS
from gnnsparse.data.large.build import Progress as Tell
from gnnsparse.data.large.folder import IDS, VALUES, map_arrays
from gnnsparse.errors import bad_value
from gnnsparse.runtime.environment import log_shown

_BUILD = """\
Sorts edges into a graph in bounded memory: those of one or more tables, or of an array in a .npy file. An
edge leads from its source to its target; repeated edges are merged, and weights in tables are summed.
"""
_GENERATE = """\
Generates a random graph with the size and degrees of a well-known one, part by part.
"""
_INFO = """\
Says what a folder has. With --verify, its files are read and checked, and the exit status is 1 if one is
damaged.
"""
_gigabytes = number_option("GB, a number from 0.001 on", lambda value: 0.001 <= value < 1e6)
_nodes = number_option("an integer from 0 to 2^31 - 1", lambda value: 0 <= value < 2**31, int)


def _add_writing(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="FOLDER", help="the folder to make")
    parser.add_argument(
        "--memory", type=_gigabytes, default=1.0, metavar="GB",
        help="memory to use at a time; default: 1",
    )  # fmt: skip
    parser.add_argument("--overwrite", action="store_true", help="replace a graph that is in the folder")


def add_build(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `gnnsparse graph build`."""
    parser.description = _BUILD
    parser.add_argument(
        "edges", nargs="+", metavar="EDGES",
        help=f"tables of edges ({', '.join(ENDINGS)}), or a .npy file (2, edges) of int32 or int64",
    )  # fmt: skip
    _add_writing(parser)
    parser.add_argument(
        "--nodes", type=_nodes, metavar="N",
        help="number of nodes, with ids 0 to N - 1; tables need it only if many of these have no edge",
    )  # fmt: skip
    parser.add_argument("--symmetric", action="store_true", help="add the reverse of each edge")
    for name, usual in (
        ("source", "source, src or from"),
        ("target", "target, dst or to"),
        ("weight", "weight"),
    ):
        parser.add_argument(f"--{name}", metavar="COLUMN", help=f"of tables; default: {usual}")
    parser.add_argument("--separator", metavar="NAME", help="of tables; default: found by their content")
    parser.add_argument("--about", default="", metavar="TEXT", help="what the graph is, for `info`")


def add_generate(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `gnnsparse graph generate`."""
    parser.description = _GENERATE
    parser.add_argument("name", choices=tuple(BLOCK_MODELS), metavar="NAME", help=", ".join(BLOCK_MODELS))
    _add_writing(parser)
    parser.add_argument(
        "--scale", type=scale_option, default=1.0, metavar="S",
        help="factor of the numbers of nodes and edges, at most 1; default: 1",
    )  # fmt: skip
    parser.add_argument("--seed", type=seed_option, default=0, metavar="N", help="default: 0")


def add_info(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `gnnsparse graph info`."""
    parser.description = _INFO
    parser.add_argument("folder", metavar="FOLDER", help="the folder of a graph")
    parser.add_argument("--verify", action="store_true", help="read all of its files, and check them")


_log = logging.getLogger("gnnsparse.data")
#: Arguments of `build_graph_of_tables` as its errors write them.
_KEYWORDS = re.compile(r"\b(source|target|weight|separator)=")
#: Offsets that are looked at at a time.
_OFFSETS = 1 << 22
_WORDS = {
    "read": "reading tables",
    "count": "counting edges",
    "distribute": "distributing edges",
    "sort": "sorting edges",
}


def run(options: argparse.Namespace) -> int:
    """Make or describe a graph, and return the exit status: 1 if a file is damaged, else 0."""
    if options.subject == "info":
        return _info(options.folder, verify=options.verify)
    how: Any = {"memory": int(options.memory * 1e9), "overwrite": options.overwrite}
    console = Console(highlight=False, markup=False, soft_wrap=True)
    with _bar() as tell, log_shown("gnnsparse.data", console.print):
        if options.subject == "build":
            made = _build(options, progress=tell, **how)
        else:
            given = options.name, options.folder, options.scale, options.seed
            made = generate_graph(*given, progress=tell, **how)
    Console().print(_table(made))
    return 0


def _build(options: argparse.Namespace, **how: Any) -> StoredGraph:
    how |= {"symmetric": options.symmetric, "about": options.about}
    if not options.edges[0].endswith(".npy"):
        how |= {name: getattr(options, name) for name in ("source", "target", "weight", "separator")}
        try:
            made = build_graph_of_tables(options.edges, options.folder, options.nodes, **how)
        except ValueError as error:  # in the words of the command line
            raise ValueError(_KEYWORDS.sub(r"--\1 ", str(error))) from error
        if not options.symmetric:
            _log.info(
                "edges lead from their source to their target alone; --symmetric adds the reverse of each"
            )
        return made
    if len(options.edges) > 1:
        bad_value("edges", f"got {len(options.edges)} files; accepted: one .npy file, or tables")
    if options.nodes is None:
        bad_value("--nodes", "is missing; accepted: the number of nodes, beside edges in a .npy file")
    return build_graph(options.edges[0], options.folder, options.nodes, **how)


@contextlib.contextmanager
def _bar() -> Iterator[Tell]:
    """Yield what shows how far a build is: a bar on the standard error, if that is a terminal."""
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
            graph_ids(folder)
            console.print("all files are as they were written", highlight=False)
    except DamagedGraphError as error:
        if not verify:
            raise
        console.print(str(error), soft_wrap=True, highlight=False, markup=False)
        return 1
    return 0


def _degrees(made: StoredGraph) -> tuple[int, int]:
    """Return the largest number of nonzeros of a row, and how many rows have none."""
    offsets, largest, empty = map_arrays(made.folder, made)[0], 0, 0
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
        ("weights", "yes" if VALUES in made.files else "no"),
        ("names of nodes", "in ids.txt" if IDS in made.files else "their numbers"),
        ("mean degree", f"{made.nnz / max(made.num_nodes, 1):.2f}"),
    ]
    if degrees is not None:
        rows += [("largest degree", str(degrees[0])), ("rows without nonzeros", str(degrees[1]))]
    for name, value in (*rows, ("MB", f"{made.nbytes / 1e6:.1f}"), ("built", made.date)):
        table.add_row(name, Text(value))  # as Text, for brackets in a file are no markup
    return table
