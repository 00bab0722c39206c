"""The command `gnnsparse cache`: it lists, checks and removes prepared graphs and generated data.

It stands alone as a command; `doctor` checks the files as it does.
"""

from __future__ import annotations

import argparse
import datetime
from collections.abc import Callable
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from rich.text import Text

from gnnsparse.bench.session import printer
from gnnsparse.data.generated import unpack_generated
from gnnsparse.distributed.shard import unpack_shard
from gnnsparse.runtime.cache import GraphCache
from gnnsparse.sparse.saved import check_file
from gnnsparse_cli import add_cache_arguments, check_folder

_LAST_SECOND = datetime.datetime(9999, 12, 30).timestamp()

add_arguments = add_cache_arguments


def check_cached(tensors: dict[str, torch.Tensor], metadata: dict[str, Any]) -> None:
    """Raise ValueError if the content of a cache file is no prepared graph, shard, plan or data set."""
    read = unpack_shard if "shard" in metadata else unpack_generated if "data" in metadata else check_file
    read(tensors, metadata)


def _list(cache: GraphCache, say: Callable[[str], None]) -> int:
    entries = cache.entries()
    if not entries:
        say(f"{cache.folder} is empty")
        return 0
    table = Table(title=Text(str(cache.folder)), caption=f"{sum(e.nbytes for e in entries) / 1e6:.1f} MB")
    for name in ("key", "MB", "last used", "rows x cols", "edges", "reorder, plan or data"):
        table.add_column(name)
    for entry in entries:
        # Other programs may set times that a date has no room for.
        seconds = min(max(entry.used, 0.0), _LAST_SECOND)
        used = datetime.datetime.fromtimestamp(seconds).isoformat(" ", "minutes")
        about = entry.about() or ("damaged", "", "")
        # As Text, for brackets in a file are no markup.
        cells = (entry.key[:12], f"{entry.nbytes / 1e6:.2f}", used, *about)
        table.add_row(*(Text(cell) for cell in cells))
    Console().print(table)
    return 0


def _verify(cache: GraphCache, say: Callable[[str], None]) -> int:
    damaged = 0
    for entry in cache.entries():
        problem = cache.problem_of(entry, check_cached)
        damaged += problem is not None
        say(f"{entry.path}: {problem or 'ok'}")
    say(f"{damaged} damaged")
    return 1 if damaged else 0


def _clear(cache: GraphCache, say: Callable[[str], None]) -> int:
    say(f"{cache.clear()} prepared graphs removed from {cache.folder}")
    return 0


def run(options: argparse.Namespace) -> int:
    """Run the command with parsed options, and return its exit status: 1 if a file is damaged, else 0."""
    check_folder(options)
    actions = {"ls": _list, "verify": _verify, "clear": _clear}
    return actions[options.action](GraphCache(options.dir), printer(Console()))
