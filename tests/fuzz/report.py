"""`python -m tests.fuzz.report`: writes the table of notes/fuzzing.md from benchmarks/results/fuzz.json.

The table stands between `<!-- table fuzz -->` and `<!-- end -->`.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from gnnsparse.runtime.environment import describe_environment, write_json
from tests.fuzz.common import Counts

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "fuzz.json"
PAGE = ROOT / "notes" / "fuzzing.md"


def results_of(seed: int, jobs: int, found: dict[str, tuple[Counts, float]]) -> dict[str, Any]:
    """The counts and the seconds of generators as JSON."""
    return {
        name: {
            **vars(counts), "failures": len(counts.failures), "seconds": round(seconds), "seed": seed,
            "jobs": jobs, **describe_environment("cpu"),
        }
        for name, (counts, seconds) in found.items()
    }  # fmt: skip


def store(path: Path, results: dict[str, Any]) -> None:
    write_json(path, {**(json.loads(path.read_text()) if path.exists() else {}), **results})


def _row(name: str, result: dict[str, Any]) -> list[str]:
    kinds = ", ".join(f"{number:,} {kind}" for kind, number in result.get("kinds", {}).items())
    refused = ", ".join(f"{number:,} {kind}" for kind, number in sorted(result["refused"].items()))
    return [
        f"{name} ({kinds})" if kinds else name, f"{result['calls']:,}", f"{result['accepted']:,}",
        refused or "none", f"{result['failures']:,}",
        f"{result['seconds']:,} s on {result['jobs']} cores", str(result["seed"]), str(result["commit"])[:7],
    ]  # fmt: skip


def table(content: dict[str, Any]) -> str:
    """The table in Markdown, and where its rows were made."""
    header = ["generator", "calls", "returned", "refused", "failures", "time", "seed", "commit"]
    rows = [header, ["---"] * len(header), *(_row(*item) for item in sorted(content.items()))]
    lines = [f"| {' | '.join(row)} |" for row in rows]
    lines[1] = lines[1].replace(" ", "")
    origins: dict[str, list[str]] = {}
    for name, result in sorted(content.items()):
        place = f"{result['device_name']}, torch {result['versions']['torch']}, {result['date'][:10]}"
        origins.setdefault(place, []).append(name)
    places = [f"{', '.join(names)}: {place}." for place, names in origins.items()]
    return "\n".join([*lines, "", " ".join(places)])


def updated(page: str, content: dict[str, Any]) -> str:
    pattern = re.compile(r"(<!-- table fuzz -->\n).*?(<!-- end -->)", re.DOTALL)
    return pattern.sub(lambda found: f"{found[1]}{table(content)}\n{found[2]}", page)


if __name__ == "__main__":
    PAGE.write_text(updated(PAGE.read_text(), json.loads(RESULTS.read_text())))
