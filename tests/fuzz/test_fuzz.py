"""The fuzzer finds what it is made to find, names the case, makes it smaller and replays it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import gnnsparse
from tests.fuzz import __main__ as command
from tests.fuzz import api
from tests.fuzz.common import Counts, Draw, Trial
from tests.fuzz.worker import Generator


def eat() -> None:
    parts: list[Any] = []
    while True:
        parts.append(bytearray(os.urandom(1 << 10) * (16 << 10)))
        time.sleep(0.2)  # the parent process looks now and then, before the system refuses memory


CALLS: dict[str, Callable[[], object]] = {
    "divide": lambda: 1 / 0,
    "abort": os.abort,
    "differ": lambda: 2,
    "sleep": lambda: time.sleep(60),
    "eat": eat,
}


@pytest.mark.parametrize(
    ("name", "kind", "message"),
    [
        ("divide", "error", "ZeroDivisionError"),
        ("abort", "crash", "SIGABRT"),
        ("differ", "wrong", "2 is not 3"),
        pytest.param("sleep", "hang", "no end after 1 s", marks=pytest.mark.slow),
        pytest.param("eat", "memory", "more than 256 MiB", marks=pytest.mark.slow),
    ],
)
def test_a_failure_is_attributed_to_its_case(name: str, kind: str, message: str) -> None:
    def case(trial: Trial) -> None:
        """One case of three draws a number of 7 or more and fails."""
        for _ in range(trial.draw.below(5)):
            trial.call("harmless", lambda: None)
        if trial.draw.below(9) >= 7:
            trial.check(trial.call(name, CALLS[name]) == 3, "2 is not 3")

    # A case that takes memory until it is stopped is slow on a busy machine.
    seconds = 20.0 if name == "eat" else 1.0
    generator = Generator("x", case, case_seconds=seconds, memory=256 << 20)
    (failure,) = generator.run(seed=3, seconds=30).failures
    assert (failure.kind, failure.generator, failure.seed) == (kind, "x", 3)
    assert message in failure.message
    assert failure.calls[-1] == name
    assert failure.choices[-1] >= 7
    if kind in ("hang", "memory"):
        return
    small = generator.reduce(failure, seconds=20)
    assert small.choices == [0, 7]
    assert small.calls == failure.calls[-1:]
    (again,) = generator.replay(small.choices).failures
    assert again.signature == failure.signature


def test_calls_are_counted_by_what_came_of_them() -> None:
    drawn: list[int] = []

    def refuse() -> None:
        raise ValueError("width: got 0; accepted: a positive integer")

    def case(trial: Trial) -> None:
        trial.call("returns", lambda: drawn.append(trial.draw.below(1000)))
        trial.attempt("refuses", refuse)
        trial.counts.kinds["both"] += 1

    generator = Generator("x", case)
    found = generator.run(seed=0, count=20)
    assert found == Counts(10, 20, 10, Counter(ValueError=10), [], Counter(both=10))
    found.add(generator.run(seed=0, count=20))
    assert str(found) == "40 calls, 20 returned, refused: 20 ValueError, 20 both, 0 failures"
    assert Draw("a/1/2").below(1000) == Draw("a/1/2").below(1000) != Draw("a/1/3").below(1000)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (RuntimeError("x: got 3"), "error"),
        (KeyError("x"), "error"),
        (ValueError("could not broadcast"), "error"),
        (MemoryError("std::bad_alloc"), "error"),
        (AssertionError("x: got 3"), "error"),
        (IndexError("mine"), "generator"),
    ],
)
def test_an_error_that_names_nothing_is_a_failure(error: Exception, kind: str) -> None:
    """One outside of a call is a mistake of the generator itself."""

    def fail() -> None:
        raise error

    case = (lambda trial: trial.attempt("call", fail)) if kind == "error" else lambda trial: fail()
    (failure,) = Generator("x", case).run(seed=0, count=1).failures
    assert failure.kind == kind
    assert str(error) in failure.message


def test_the_corpus_is_replayed(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps({"generator": "api", "choices": [0]}))
    (tmp_path / "b.json").write_text(json.dumps({"generator": "absent", "choices": [0]}))
    found = command.replay_corpus({"api": api.GENERATOR}, tmp_path)
    assert found.cases == 1
    assert found.failures == []


@pytest.mark.slow
@pytest.mark.usefixtures("built")
@pytest.mark.parametrize(("name", "count"), [("api", 2500), ("emulated", 500)])
def test_random_calls_of_the_api_do_what_they_must(tmp_path: Path, name: str, count: int) -> None:
    """In a process of its own: torch's threads hang in a fork of a process that has used several."""
    run = subprocess.run(
        [sys.executable, "-m", "tests.fuzz", "--only", name, "--count", str(count), "--jobs", "1",
         "--seed", str(int(torch.randint(10**6, ()))), "--corpus", str(tmp_path)],
        capture_output=True, text=True, check=False, cwd=Path(__file__).parents[2],
    )  # fmt: skip
    assert run.returncode == 0, run.stdout[-3000:] + run.stderr[-3000:]
    counts = re.search(rf"^{name}: ([\d,]+) calls, .* 0 failures, ", run.stdout, re.MULTILINE)
    assert counts is not None
    assert int(counts[1].replace(",", "")) >= count


@pytest.mark.slow
@pytest.mark.parametrize(("edges", "nodes"), [([[0], [2**31 - 2]], None), ([[0], [1]], 2**31 - 1)])
def test_graphs_of_as_many_nodes_as_there_are_indices(edges: Any, nodes: int | None) -> None:
    try:
        a = gnnsparse.prepare(torch.tensor(edges), num_nodes=nodes, precision="tf32", cache=False)
    except (ValueError, TypeError, MemoryError):
        return
    assert (a @ torch.ones(a.shape[1], 2)).shape == (a.shape[0], 2)
