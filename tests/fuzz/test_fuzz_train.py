"""The generator of random runs of train.py works, and finds what it is there to find."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.fuzz import train as fuzz
from tests.fuzz.common import Counts, Draw, FailedCallError, Trial

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def offered(registrations: None) -> None:
    fuzz.offer()


def trial(seed: int) -> Trial:
    return Trial(Draw(f"unit/{seed}"), Counts())


def many(kind: Callable[[Trial], None], count: int) -> None:
    for seed in range(count):
        kind(trial(seed))


@pytest.mark.parametrize(
    ("kind", "count"), [(fuzz.option_case, 12), (fuzz.command_case, 12), (fuzz.run_case, 1)]
)
def test_cases(kind: Callable[[Trial], None], count: int) -> None:
    many(kind, count)


def test_a_run_is_repeatable() -> None:
    counts = [fuzz.GENERATOR.run(5, count=8) for _ in range(2)]
    assert counts[0] == counts[1]
    assert counts[0].failures == []
    assert counts[0].calls >= 8


def test_it_finds_options_that_are_not_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("train.check_quickly", lambda cfg: cfg.trainer.max_epochs + 1)
    with pytest.raises(FailedCallError, match=r"Error in "):
        many(fuzz.option_case, 200)


def test_it_finds_files_that_are_touched() -> None:
    touched = pytest.raises(FailedCallError, match="files outside of the run folder were touched")
    with touched, fuzz.sandbox(trial(0)):
        Path("result.json").unlink()
