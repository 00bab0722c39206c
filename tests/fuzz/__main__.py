"""`python -m tests.fuzz`: replays the corpus, then runs the generators, each for its share of the time."""

from __future__ import annotations

import argparse
import importlib
import json
import multiprocessing
import os
import secrets
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

from rich.console import Console
from rich.table import Table

from tests.fuzz import worker
from tests.fuzz.common import Counts, Failure, name_with_kinds
from tests.fuzz.report import store

#: The generators; each is a module of this package with a function `run`.
NAMES = tuple(
    name
    for name in ("api", "cache", "messages", "readers", "tables", "train")
    if find_spec(f"tests.fuzz.{name}")
)
CORPUS = Path(__file__).parent / "corpus"


def generators(names: list[str]) -> dict[str, ModuleType]:
    """The modules of the generators."""
    return {name: importlib.import_module(f"tests.fuzz.{name}") for name in names}


def replay_corpus(modules: dict[str, ModuleType], folder: Path) -> Counts:
    """Runs the cases that once failed, of generators that can replay them."""
    total = Counts()
    for path in sorted(folder.glob("*.json")):
        entry = json.loads(path.read_text())
        module = modules.get(entry["generator"])
        if module is not None and hasattr(module, "replay"):
            counts = module.replay(entry["choices"])
            for failure in counts.failures:
                failure.message = f"{path.name}: {failure.message}"
            total.add(counts)
    return total


def save(module: ModuleType, failure: Failure, folder: Path, seconds: float) -> Path:
    """Writes a failure to the corpus, after making it smaller if its generator can."""
    if failure.choices and hasattr(module, "reduce"):
        failure = module.reduce(failure, seconds)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{failure.generator}-{failure.seed}-{failure.case}.json"
    path.write_text(json.dumps(failure.__dict__, indent=1) + "\n")
    return path


def _job(name: str, seed: int, seconds: float | None, count: int | None, results: Any) -> None:
    """Runs one generator in a process of its own."""
    results.put(importlib.import_module(f"tests.fuzz.{name}").run(seed, seconds, count))


def run_jobs(
    names: list[str], seed: int, seconds: float | None, count: int | None, jobs: int, keep_going: bool
) -> dict[str, tuple[Counts, float]]:
    """Runs the generators one after another, each in `jobs` processes with seeds of their own.

    Returns:
        By generator its counts and the seconds that it took.
    """
    context = multiprocessing.get_context("fork")
    found: dict[str, tuple[Counts, float]] = {}
    for name in names:
        results, start = context.SimpleQueue(), time.monotonic()
        share = None if seconds is None else seconds / len(names)
        part = None if count is None else -(-count // jobs)
        processes = [
            context.Process(target=_job, args=(name, seed * 1000 + job, share, part, results))
            for job in range(jobs)
        ]
        for process in processes:
            process.start()
        total = Counts()
        for _ in processes:
            total.add(results.get())
        for process in processes:
            process.join()
        found[name] = total, time.monotonic() - start
        if total.failures and not keep_going:
            break
    return found


def table(found: dict[str, tuple[Counts, float]]) -> Table:
    """The counts as a table."""
    result = Table(title="Fuzzing")
    for name in ("generator", "calls", "accepted", "refused", "cases", "failures", "seconds"):
        result.add_column(name, justify="left" if name in ("generator", "refused") else "right")
    for name, (counts, seconds) in found.items():
        refused = ", ".join(f"{number:,} {kind}" for kind, number in sorted(counts.refused.items()))
        numbers = counts.calls, counts.accepted, refused, counts.cases, len(counts.failures)
        cells = [x if isinstance(x, str) else f"{x:,}" for x in numbers]
        result.add_row(name_with_kinds(name, counts.kinds), *cells, f"{seconds:.0f}")
    return result


def show(console: Console, failures: list[Failure]) -> None:
    """Prints one failure of each kind, and how often there was one."""
    by_kind: dict[str, list[Failure]] = {}
    for failure in failures:
        by_kind.setdefault(failure.signature, []).append(failure)
    for same in sorted(by_kind.values(), key=len, reverse=True):
        first = min(same, key=lambda f: len(f.choices))
        console.rule(
            f"{first.generator}: {first.kind}, {len(same)} times; --seed {first.seed}, case {first.case}"
        )
        console.print("\n".join([*first.calls[-4:], first.message]), markup=False, highlight=False)


def main() -> int:
    """The command; returns 1 if anything failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, help="for all generators together (default: 60)")
    parser.add_argument("--count", type=int, help="calls, or files, of each generator, in place of a time")
    parser.add_argument("--seed", type=int, help="of the random choices (default: a random one)")
    parser.add_argument("--only", nargs="+", choices=NAMES, default=list(NAMES), metavar="NAME")
    parser.add_argument("--jobs", type=int, default=2, help="processes (default: 2)")
    parser.add_argument("--corpus", type=Path, default=CORPUS, help="cases that failed before")
    parser.add_argument("--keep-going", action="store_true", help="go on after a failure")
    parser.add_argument("--json", type=Path, help="write the counts to this file")
    options = parser.parse_args()
    seed = secrets.randbelow(10**6) if options.seed is None else options.seed
    seconds = 60.0 if options.seconds is None and options.count is None else options.seconds
    console = Console(width=None if sys.stdout.isatty() else 140)
    modules = generators(options.only)
    if options.keep_going:
        worker.most_failures = 10**6
    console.print(f"seed {seed}, {options.jobs} processes")
    old = replay_corpus(modules, options.corpus)
    console.print(f"corpus: {old.cases} cases run to their end, {len(old.failures)} fail")
    failures = list(old.failures)
    if not failures or options.keep_going:
        found = run_jobs(options.only, seed, seconds, options.count, options.jobs, options.keep_going)
        console.print(table(found))
        new = [failure for counts, _ in found.values() for failure in counts.failures]
        if options.json:
            store(options.json, seed, options.jobs, found)
        if new and not options.keep_going:
            path = save(modules[new[0].generator], new[0], options.corpus, seconds=30)
            console.print(f"smallest case found: {path}")
            new[0] = Failure(**json.loads(path.read_text()))
        failures += new
    show(console, failures)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
