"""Going on with a benchmark whose file has some of the matrices already."""

from __future__ import annotations

import json
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, NamedTuple

from gnnsparse.bench.kernels import Bench, Settings, Skipped
from gnnsparse.errors import bad_value
from gnnsparse.runtime.environment import describe_environment

__all__ = ["go_on"]

#: What a file and the run that goes on with it must agree on, beside the settings; on a CPU also the threads.
_SAME = ("device", "device_name", "versions")


def go_on(bench: Bench, file: Path) -> set[str]:
    """Adds the measurements of a file to a run.

    Args:
        bench: the run, which has measured nothing yet.
        file: what a run with equal settings, but for the matrices, wrote to the file of --out; or a file that
            does not exist yet.

    Returns:
        The names of the matrices that need not be measured again. One of which nothing could be measured is
        not among them.

    Raises:
        ValueError: the file is none of this benchmark, or of another machine, versions or options.
            `bench` is as it was.
    """
    if not file.exists():
        return set()
    found = _read(file, bench.settings)
    bench.rows += found.rows
    bench.skipped += found.skipped
    bench.noise.earlier += found.medians
    bench.commits += found.commits
    return {row["graph"] for row in found.rows}


class _Found(NamedTuple):
    """What a file has: rows, what was skipped, the medians of the noise's reference, and the commits."""

    rows: list[dict[str, Any]]
    skipped: list[Skipped]
    medians: list[float]
    commits: list[str]


def _read(file: Path, settings: Settings) -> _Found:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        rows, medians = [dict(row) for row in found["rows"]], list(map(float, found["noise"]["reference_ms"]))
        names = {str(row["graph"]) for row in rows}
        skipped = [case for case in (Skipped(**case) for case in found["skipped"]) if case.graph in names]
        commits = list(map(str, found.get("commits", [found["commit"]])))
        _check_same(file, found, settings)
    except (OSError, UnicodeDecodeError, json.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
        bad_value("resume", f"{file} is no file that this benchmark wrote ({type(error).__name__}: {error})")
    return _Found(rows, skipped, medians, commits)


def _check_same(file: Path, found: dict[str, Any], settings: Settings) -> None:
    here = describe_environment(settings.device)
    for name in (*_SAME, *(("threads",) if settings.device == "cpu" else ())):
        if found[name] != here[name]:
            bad_value("resume", f"{file} has the {name} {found[name]}, this run {here[name]}")
    wanted = json.loads(json.dumps({**asdict(settings), "matrices": None}))
    for name in (field.name for field in fields(settings) if field.name != "matrices"):
        if found["settings"][name] != wanted[name]:
            bad_value(
                "resume", f"{file} was measured with {name} {found['settings'][name]}, not {wanted[name]}"
            )
