"""`python -m tests.fuzz.report`: writes the table of notes/fuzzing.md from benchmarks/results/fuzz.json.

The table stands between `<!-- table fuzz -->` and `<!-- end -->`. With --check nothing is written, and the
exit status is 1 if the table is out of date.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path
from typing import Any

from gnnsparse.runtime.environment import describe_environment, write_json
from tests.fuzz.common import Counts, name_with_kinds

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "fuzz.json"
PAGE = ROOT / "notes" / "fuzzing.md"


def store(path: Path, seed: int, jobs: int, found: dict[str, tuple[Counts, float]]) -> None:
    """Writes the counts of generators to a JSON file, and keeps those of generators that did not run."""
    content = json.loads(path.read_text()) if path.exists() else {}
    where = describe_environment("cpu")
    for name, (counts, seconds) in found.items():
        plain = {**counts.as_dict(), "failures": len(counts.failures)}
        content[name] = {**plain, "seconds": round(seconds), "seed": seed, "jobs": jobs, **where}
    write_json(path, content)


def row(name: str, result: dict[str, Any]) -> str:
    """A row of the table."""
    refused = ", ".join(f"{number:,} {kind}" for kind, number in sorted(result["refused"].items()))
    cells = [
        name_with_kinds(name, result.get("kinds", {})), f"{result['calls']:,}", f"{result['accepted']:,}",
        refused or "none", f"{result['failures']:,}",
        f"{result['seconds']:,} s on {result['jobs']} cores", str(result["seed"]), str(result["commit"])[:7],
    ]  # fmt: skip
    return "| " + " | ".join(cells) + " |"


def table(content: dict[str, Any]) -> str:
    """The table in Markdown, and where its rows were made."""
    header = ["generator", "calls", "returned", "refused", "failures", "time", "seed", "commit"]
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    lines += [row(name, result) for name, result in sorted(content.items())]
    origins: dict[str, list[str]] = {}
    for name, result in sorted(content.items()):
        place = f"{result['device_name']}, torch {result['versions']['torch']}, {result['date'][:10]}"
        origins.setdefault(place, []).append(name)
    places = [f"{', '.join(names)}: {place}." for place, names in origins.items()]
    return "\n".join([*lines, "", " ".join(places)])


def updated(page: str, content: dict[str, Any]) -> str:
    """The page with the table of these counts."""
    pattern = re.compile(r"(<!-- table fuzz -->\n).*?(<!-- end -->)", re.DOTALL)
    return pattern.sub(lambda found: f"{found[1]}{table(content)}\n{found[2]}", page)


def main() -> int:
    """The command; returns 1 if --check finds the table out of date."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.report", description=__doc__)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    page = PAGE.read_text()
    new = updated(page, json.loads(RESULTS.read_text()))
    if not options.check:
        PAGE.write_text(new)
    return int(options.check and new != page)


if __name__ == "__main__":
    sys.exit(main())
