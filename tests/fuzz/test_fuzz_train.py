"""The generator of random options of train.py works, and finds what it is there to find."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.fuzz import train as fuzz
from tests.fuzz.common import Counts, Draw, FailedCallError, Trial

pytestmark = pytest.mark.slow


def many(kind: Callable[[Trial], None], count: int) -> None:
    for seed in range(count):
        kind(Trial(Draw(f"unit/{seed}"), Counts()))


@pytest.mark.parametrize("kind", [fuzz.option_case, fuzz.command_case])
def test_cases(kind: Callable[[Trial], None]) -> None:
    many(kind, 12)


def test_a_run_is_repeatable() -> None:
    counts = [fuzz.GENERATOR.run(5, count=8) for _ in range(2)]
    assert counts[0] == counts[1]
    assert counts[0].failures == []
    assert counts[0].calls >= 8


def test_it_finds_options_that_are_not_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("train.check_quickly", lambda cfg: cfg.trainer.max_epochs + 1)
    with pytest.raises(FailedCallError, match=r"Error in "):
        many(fuzz.option_case, 200)
