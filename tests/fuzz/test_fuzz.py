"""The fuzzer finds what it is made to find, names the case, makes it smaller and replays it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.fuzz import __main__ as command
from tests.fuzz import api, report, worker
from tests.fuzz.common import Counts, Draw, Trial

SOON = worker.Limits(case_seconds=1.0, memory=256 << 20)
#: For a case that takes memory until it is stopped, which is slow on a busy machine.
LATER = worker.Limits(case_seconds=20.0, memory=256 << 20)


def _failing(trial: Trial, fail: Any) -> None:
    """One case of three draws a number of 7 or more and fails."""
    for _ in range(trial.draw.below(5)):
        trial.call("harmless", lambda: None)
    if trial.draw.below(9) >= 7:
        fail(trial)


def _divide(trial: Trial) -> None:
    trial.call("divide", lambda: 1 / 0)


def _abort(trial: Trial) -> None:
    trial.call("abort", os.abort)


def _sleep(trial: Trial) -> None:
    trial.call("sleep", lambda: time.sleep(60))


def _eat(trial: Trial) -> None:
    parts: list[Any] = []

    def eat() -> None:
        while True:
            parts.append(bytearray(os.urandom(1 << 10) * (16 << 10)))
            time.sleep(0.05)

    trial.call("eat", eat)


def _differ(trial: Trial) -> None:
    trial.call("compute", lambda: 2)
    trial.check(False, "2 is not 3")


@pytest.mark.parametrize(
    ("fail", "kind", "message"),
    [
        (_divide, "error", "ZeroDivisionError"),
        (_abort, "crash", "SIGABRT"),
        (_differ, "wrong", "2 is not 3"),
        pytest.param(_sleep, "hang", "no end after 1 s", marks=pytest.mark.slow),
        pytest.param(_eat, "memory", "more than 256 MiB", marks=pytest.mark.slow),
    ],
)
def test_a_failure_is_attributed_to_its_case(fail: Any, kind: str, message: str) -> None:
    def case(trial: Trial) -> None:
        _failing(trial, fail)

    found = worker.run_cases("x", case, seed=3, seconds=30, limits=LATER if fail is _eat else SOON)
    (failure,) = found.failures
    assert (failure.kind, failure.generator, failure.seed) == (kind, "x", 3)
    assert message in failure.message
    assert failure.calls[-1] == {_differ: "compute"}.get(fail, fail.__name__[1:])
    assert failure.choices[-1] >= 7
    if kind in ("hang", "memory"):
        return
    small = worker.reduce(case, failure, seconds=20, limits=SOON)
    assert small.choices == [0, 7]
    assert small.calls == failure.calls[-1:]
    (again,) = worker.replay("x", case, small.choices, SOON).failures
    assert again.signature == failure.signature


def test_a_case_depends_on_its_seed_alone() -> None:
    def drawn(seed: str) -> list[int]:
        draw = Draw(seed)
        return [draw.below(1000) for _ in range(5)]

    assert drawn("a/1/2") == drawn("a/1/2") != drawn("a/1/3")


def test_calls_are_counted_by_what_came_of_them() -> None:
    def case(trial: Trial) -> None:
        trial.call("returns", lambda: 1)
        trial.attempt("refuses", _refuse)

    def _refuse() -> None:
        raise ValueError("width: got 0; accepted: a positive integer")

    found = worker.run_cases("x", case, seed=0, count=20)
    assert (found.calls, found.accepted, found.refused) == (20, 10, {"ValueError": 10})
    assert found.failures == []


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("x: got 3"),
        KeyError("x"),
        ValueError("could not broadcast"),
        MemoryError("std::bad_alloc"),
        AssertionError("x: got 3"),
    ],
)
def test_an_error_that_names_nothing_is_a_failure(error: Exception) -> None:
    def case(trial: Trial) -> None:
        def fail() -> None:
            raise error

        trial.attempt("call", fail)

    (failure,) = worker.run_cases("x", case, seed=0, count=1).failures
    assert failure.kind == "error"
    assert str(error) in failure.message


def test_a_mistake_of_a_generator_is_told_from_the_package_s() -> None:
    def case(trial: Trial) -> None:
        raise IndexError("mine")

    (failure,) = worker.run_cases("x", case, seed=0, count=1).failures
    assert failure.kind == "generator"


def test_counts_are_added() -> None:
    total = Counts(1, 2, 1, {"ValueError": 1})
    total.add(Counts(2, 3, 1, {"ValueError": 1, "TypeError": 1}))
    assert (total.cases, total.calls, total.accepted) == (3, 5, 2)
    assert total.refused == {"ValueError": 2, "TypeError": 1}


def test_the_corpus_is_replayed(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps({"generator": "api", "choices": [0]}))
    (tmp_path / "b.json").write_text(json.dumps({"generator": "absent", "choices": [0]}))
    found = command.replay_corpus({"api": api}, tmp_path)
    assert found.cases == 1
    assert found.failures == []


@pytest.mark.slow
def test_random_calls_of_the_api_do_what_they_must(tmp_path: Path) -> None:
    """In a process of its own: torch's threads hang in a fork of a process that has used several."""
    seed = int(torch.randint(10**6, ()))
    run = subprocess.run(
        [sys.executable, "-m", "tests.fuzz", "--only", "api", "--count", "4000", "--seed", str(seed),
         "--jobs", "1", "--corpus", str(tmp_path)],
        capture_output=True, text=True, check=False, cwd=Path(__file__).parents[2],
    )  # fmt: skip
    assert run.returncode == 0, run.stdout[-3000:] + run.stderr[-3000:]


@pytest.mark.slow
def test_the_command_reports_counts(tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-m", "tests.fuzz", "--only", "api", "--count", "200", "--seed", "1", "--corpus",
         str(tmp_path), "--json", str(tmp_path / "counts")],
        cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout + run.stderr
    counts = json.loads((tmp_path / "counts").read_text())
    assert counts["api"]["calls"] >= 200
    assert counts["api"]["failures"] == 0


def test_the_table_is_that_of_the_counts() -> None:
    content = json.loads(report.RESULTS.read_text())
    assert report.updated(report.PAGE.read_text(), content) == report.PAGE.read_text()


def test_counts_of_other_generators_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "fuzz.json"
    report.store(path, 7, 2, {"api": (Counts(1, 1200, 1100, {"ValueError": 100}), 3.4)})
    report.store(path, 8, 2, {"cache": (Counts(1, 2, 2), 1.0)})
    text = report.updated("<!-- table fuzz -->\nold\n<!-- end -->\n", json.loads(path.read_text()))
    assert "| api | 1,200 | 1,100 | 100 ValueError | 0 | 3 s on 2 cores | 7 |" in text
    assert "| cache | 2 | 2 | none | 0 |" in text
    assert "old" not in text
