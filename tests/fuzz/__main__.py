"""`python -m tests.fuzz`: replays the corpus, then runs the generators, each for its share of the time."""

from __future__ import annotations

import argparse
import functools
import importlib
import json
import multiprocessing
import os
import secrets
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

from tests.fuzz import worker
from tests.fuzz.common import Counts, Failure

#: The generators; each is a module of this package with a GENERATOR. Those of SLOW run when they are named.
NAMES = ("api", "cache", "messages", "readers", "tables", "train")
SLOW = ("emulated",)
CORPUS = Path(__file__).parent / "corpus"


def generator(name: str) -> worker.Generator:
    found: worker.Generator = importlib.import_module(f"tests.fuzz.{name}").GENERATOR
    return found


def replay_corpus(generators: dict[str, worker.Generator], folder: Path) -> Counts:
    total = Counts()
    for path in sorted(folder.glob("*.json")):
        entry = json.loads(path.read_text())
        if entry["generator"] in generators:
            counts = generators[entry["generator"]].replay(entry["choices"])
            for failure in counts.failures:
                failure.message = f"{path.name}: {failure.message}"
            total.add(counts)
    return total


def save(failure: Failure, folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{failure.generator}-{failure.seed}-{failure.case}.json"
    path.write_text(json.dumps(failure.__dict__, indent=1) + "\n")
    return path


def _job(name: str, seed: int, seconds: float | None, count: int | None, number: int) -> Counts:
    return generator(name).run(seed * 1000 + number, seconds, count)


def run_jobs(name: str, seed: int, seconds: float | None, count: int | None, jobs: int) -> Counts:
    """Runs a generator in several processes with seeds of their own."""
    of_job = None if count is None else -(-count // jobs)
    total = Counts()
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("fork")) as pool:
        for counts in pool.map(functools.partial(_job, name, seed, seconds, of_job), range(jobs)):
            total.add(counts)
    return total


def show(failures: list[Failure]) -> None:
    by_kind: dict[str, list[Failure]] = {}
    for failure in failures:
        by_kind.setdefault(failure.signature, []).append(failure)
    for same in sorted(by_kind.values(), key=len, reverse=True):
        first = min(same, key=lambda f: len(f.choices))
        place = f"--seed {first.seed}, case {first.case}"
        print(f"--- {first.generator}: {first.kind}, {len(same)} times; {place}")
        print("\n".join([*first.calls[-4:], first.message]))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, help="for all generators together (default: 60)")
    parser.add_argument("--count", type=int, help="calls, or files, of each generator, in place of a time")
    parser.add_argument("--seed", type=int, help="of the random choices (default: a random one)")
    parser.add_argument("--only", nargs="+", choices=NAMES + SLOW, default=list(NAMES), metavar="NAME")
    parser.add_argument("--jobs", type=int, default=2, help="processes (default: 2)")
    parser.add_argument("--corpus", type=Path, default=CORPUS, help="cases that failed before")
    parser.add_argument("--keep-going", action="store_true", help="go on after a failure")
    options = parser.parse_args()
    seed = secrets.randbelow(10**6) if options.seed is None else options.seed
    seconds = 60.0 if options.seconds is None and options.count is None else options.seconds
    seconds = None if seconds is None else seconds / len(options.only)
    if options.keep_going:
        worker.most_failures = 10**6
    print(f"seed {seed}, {options.jobs} processes")
    old = replay_corpus({name: generator(name) for name in options.only}, options.corpus)
    print(f"corpus: {old.cases} cases run to their end, {len(old.failures)} fail")
    failures = list(old.failures)
    for name in options.only:
        if failures and not options.keep_going:
            break
        start = time.monotonic()
        counts = run_jobs(name, seed, seconds, options.count, options.jobs)
        print(f"{name}: {counts}, {time.monotonic() - start:.0f} s")
        if counts.failures and not options.keep_going:
            counts.failures[0] = generator(name).reduce(counts.failures[0], seconds=30)
            print(f"smallest case found: {save(counts.failures[0], options.corpus)}")
        failures += counts.failures
    show(failures)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
