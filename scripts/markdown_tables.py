"""Tables in Markdown, and the line below them that says where results come from."""

from __future__ import annotations

from typing import Any


def origin(result: dict[str, Any]) -> str:
    """Returns the machine, versions, date and commit of a result."""
    versions = result["versions"]
    cuda = f", CUDA {versions['cuda']}" if versions.get("cuda") else ""
    where = f"{result['device_name']}, torch {versions['torch']}{cuda}"
    return f"{where}, {result['date'][:10]}, commit {result['commit'][:7]}."


def table(header: list[str], rows: list[list[str]]) -> str:
    """Returns a table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
