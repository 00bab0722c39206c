"""Where the raw files of published data sets are below a folder."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from gnnsparse.data.sources import SOURCES, Source

__all__ = ["find_root"]

#: How many folders below the given one are looked into: DIR/planetoid/cora/raw has three.
_DEPTH = 4


def _folders(base: Path, depth: int) -> Iterator[Path]:
    yield base
    if depth:
        with os.scandir(base) as entries:
            inner = sorted(entry.name for entry in entries if entry.is_dir() and entry.name[0] != ".")
        for name in inner:
            yield from _folders(base / name, depth - 1)


def _is_named(folder: Path, base: Path, source: Source) -> bool:
    """Returns whether a folder between `base` and `folder` has the name of the data set."""
    names = {source.name, *(part.lower() for part in PurePosixPath(source.place).parts if part != "raw")}
    return any(part.lower() in names for part in folder.relative_to(base).parts)


def find_root(name: str, base: Path) -> Path | None:
    """Finds the folder with all raw files of a published data set, at most four levels below `base`.

    Data sets whose files have equal names (flickr and yelp) are told apart by the name of a folder.

    Args:
        name: name of the data set.
        base: the folder to look in.

    Returns:
        The folder; None if the data set is not a published one.

    Raises:
        ValueError: no folder has all files, or several have them.
        OSError: a folder can't be read.
    """
    source = SOURCES.get(name)
    if source is None:
        return None
    found = [
        folder for folder in _folders(base, _DEPTH) if all((folder / file).is_file() for file in source.files)
    ]
    named = [folder for folder in found if _is_named(folder, base, source)]
    chosen = named or found
    if len(chosen) == 1:
        return chosen[0]
    if chosen:
        where = ", ".join(map(str, chosen))
        raise ValueError(f"data: several folders have the files of {name} ({where}); accepted: one of them")
    raise ValueError(f"data: no folder in {base} has all raw files of {name}: {', '.join(source.files)}")
