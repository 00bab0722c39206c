"""examples/write_tunes.py: it learns to go on with tunes, and a cache changes none of the notes."""

from __future__ import annotations

import pytest
import torch

from examples import write_tunes
from tests.nn.sparsified import assert_near

SMALL = ["--hidden=32", "--layers=1", "--steps=120", "--lr=0.01", "--notes=20"]


def test_notes_are_right_and_the_same_without_a_cache(device: str, capsys: pytest.CaptureFixture) -> None:
    """A constant note would be right in one of twelve cases."""
    found = write_tunes.main([*SMALL, f"--device={device}"])
    assert found["same"] == 1
    assert found["right"] > 0.9
    # The window and the sinks; right after a prompt a note of the window may be a sink.
    assert found["kept"] == 11
    assert "kept 11 of 44 notes in each layer" in capsys.readouterr().out


def test_a_note_has_its_place_in_the_bar() -> None:
    """Scores of notes that follow a cache are those of the whole tune, also where beginnings differ."""
    torch.manual_seed(0)
    model = write_tunes.Composer(32, 2, radius=4, sinks=1).eval()
    notes = write_tunes.tunes(3, 20, torch.Generator().manual_seed(1))
    lengths = torch.tensor([7, 12, 5])
    caches = model.make_caches()
    model.go_on(notes[:, :12], caches, lengths)
    rows = torch.arange(3)
    for step in range(8):
        scores = model.go_on(notes[rows, lengths + step][:, None], caches)[:, 0]
        assert_near(scores, model(notes)[rows, lengths + step].detach())
