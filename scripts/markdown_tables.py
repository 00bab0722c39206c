"""Tables in Markdown, and the line below them that says where results come from."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gnnsparse.bench.render import markdown_table


def measured(header: Iterable[str], rows: Iterable[Iterable[str]], *results: dict[str, Any]) -> str:
    """Return a table, and below it where the results come from, each once."""
    return "\n\n".join([markdown_table(header, rows), *dict.fromkeys(map(origin, results))])


def pivot(rows: Iterable[dict[str, Any]], keys: tuple[str, ...], across: str) -> dict[Any, dict[Any, Any]]:
    """Return the rows by their values of some keys, a tuple, and then by that of another key."""
    found: dict[Any, dict[Any, Any]] = {}
    for row in rows:
        found.setdefault(tuple(row[key] for key in keys), {})[row[across]] = row
    return found


def origin(result: dict[str, Any]) -> str:
    """Return the machine, versions, date and commits of a result."""
    return f"{_machine(result)}, {result['date'][:10]}, {_named(_commits(result))}."


def origins(results: Iterable[dict[str, Any]]) -> str:
    """Return where results come from, in one line for each machine and torch, with all commits."""
    found: dict[str, dict[str, None]] = {}
    for result in results:
        found.setdefault(_machine(result), {}).update(dict.fromkeys(_commits(result)))
    return "\n\n".join(f"{machine}, {_named(list(commits))}." for machine, commits in found.items())


def _machine(result: dict[str, Any]) -> str:
    versions = result["versions"]
    cuda = f", CUDA {versions['cuda']}" if versions.get("cuda") else ""
    return f"{result['device_name']}, torch {versions['torch']}{cuda}"


def _commits(result: dict[str, Any]) -> list[str]:
    return [commit[:7] for commit in result.get("commits") or [result["commit"]]]


def _named(commits: list[str]) -> str:
    return f"commit{'s' * (len(commits) > 1)} {', '.join(commits)}"
