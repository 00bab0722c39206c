"""Files of results: which there are, and whether they are ours."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from gnnsparse.bench.render.model import Problem, ResultFile
from gnnsparse.errors import bad_value
from gnnsparse.runtime.safe_io import read_json

__all__ = ["ENVIRONMENT", "find_files", "read_results", "row_lists"]

#: Keys by which a file of ours is known: what `gnnsparse.runtime.environment.describe_environment` returns.
ENVIRONMENT = ("device", "device_name", "threads", "versions", "commit", "date")
_REQUIRED = ("device_name", "versions", "date")
#: How deep in a file lists of rows are looked for.
_DEPTH = 4


def find_files(paths: Sequence[Path]) -> tuple[list[tuple[str, Path]], list[Problem]]:
    """Returns the JSON files of files and folders, each with its name in the report, and empty folders.

    Raises:
        ValueError: there is no such file or folder.
    """
    found: dict[Path, str] = {}
    problems = []
    for path in paths:
        if path.is_dir():
            inside = sorted(file for file in path.rglob("*.json") if file.is_file())
            found |= {file.resolve(): file.relative_to(path).as_posix() for file in inside}
            if not inside:
                problems.append(Problem(path.name, "the folder has no file .json"))
        elif path.exists():
            found.setdefault(path.resolve(), path.name)
        else:
            bad_value("files", f"there is no file or folder {path}")
    return [(name, path) for path, name in found.items()], problems


def read_results(files: Sequence[tuple[str, Path]]) -> tuple[list[ResultFile], list[Problem]]:
    """Reads files; returns the results, and why the other files are none."""
    results, problems = [], []
    for name, path in files:
        try:
            content = read_json(path)
        except (ValueError, OSError, MemoryError, RecursionError) as error:
            # The message begins with the whole path, which must not get into a page that is published.
            problems.append(Problem(name, str(error).replace(str(path), name).removeprefix(f"{name}: ")))
            continue
        environments = _environments(content)
        if environments:
            results.append(ResultFile(name, content, environments))
        else:
            problems.append(
                Problem(name, f"is no result of gnnsparse: it lacks {', '.join(_missing(content))}")
            )
    return results, problems


def _missing(content: Any) -> list[str]:
    if not isinstance(content, dict):
        return ["an object with " + ", ".join(_REQUIRED)]
    return [key for key in _REQUIRED if key not in content]


def _is_environment(content: Any) -> bool:
    return (
        isinstance(content, dict)
        and all(key in content for key in _REQUIRED)
        and isinstance(content["versions"], dict)
        and isinstance(content["date"], str)
    )


def _environments(content: Any) -> tuple[dict[str, Any], ...]:
    """Returns the environment of a file, or of each of its parts; empty if it is no result."""
    if _is_environment(content):
        return ({key: content.get(key) for key in ENVIRONMENT},)
    parts = list(content.values()) if isinstance(content, dict) else []
    if not parts or not all(map(_is_environment, parts)):
        return ()
    return tuple({key: part.get(key) for key in ENVIRONMENT} for part in parts)


def row_lists(content: Any, at: str = "", depth: int = _DEPTH) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Yields every list of objects in a result with its place, such as ("rows", [...]).

    An object of results, as that of fuzz.json, is such a list, with its keys as the column "name".
    """
    if not isinstance(content, dict) or depth == 0:
        return
    inner = {key: value for key, value in content.items() if key not in ENVIRONMENT}
    if not at and inner and all(map(_is_environment, inner.values())):
        yield "", [{"name": key, **value} for key, value in inner.items()]
        return
    for key, value in inner.items():
        place = f"{at}.{key}" if at else str(key)
        if isinstance(value, list) and value and all(isinstance(row, dict) for row in value):
            yield place, value
        elif isinstance(value, dict):
            yield from row_lists(value, place, depth - 1)
