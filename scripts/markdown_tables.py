"""Tables in Markdown, and the line below them that says where results come from."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


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
