"""The generator of random runs of train.py works, and finds what it is there to find."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

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


@pytest.mark.parametrize("kind", fuzz.CASES, ids=lambda kind: kind.__name__)
def test_cases(kind: Callable[[Trial], None]) -> None:
    many(kind, 1 if kind is fuzz.run_case else 12)


def test_a_run_is_repeatable() -> None:
    counts = [fuzz.GENERATOR.run(5, count=15) for _ in range(2)]
    assert counts[0] == counts[1]
    assert counts[0].failures == []
    assert counts[0].calls >= 15


def test_it_finds_options_that_are_not_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("train.check_quickly", lambda cfg: cfg.trainer.max_epochs + 1)
    with pytest.raises(FailedCallError, match=r"Error in "):
        many(fuzz.option_case, 200)


def test_it_finds_a_checkpoint_that_is_not_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gnnsparse.train.checkpoint._check_contents", lambda checkpoint: None)
    with pytest.raises(FailedCallError):
        many(fuzz.checkpoint_case, 100)


def test_it_finds_code_that_is_executed(monkeypatch: pytest.MonkeyPatch) -> None:
    load = torch.load
    monkeypatch.setattr("torch.load", lambda *a, **k: load(*a, **{**k, "weights_only": False}))
    monkeypatch.setattr(fuzz, "DAMAGE", [fuzz.crafted])
    with pytest.raises(FailedCallError, match="code in a checkpoint was executed"):
        many(fuzz.checkpoint_case, 20)


def test_it_finds_files_that_are_touched(monkeypatch: pytest.MonkeyPatch) -> None:
    def careless(self: object) -> None:
        Path("result.json").unlink(missing_ok=True)

    monkeypatch.setattr("gnnsparse.train.RunFolder.release", careless)
    with pytest.raises(FailedCallError, match="files"):
        many(fuzz.folder_case, 20)
