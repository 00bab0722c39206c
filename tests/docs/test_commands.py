"""The commands of the README and of docs/ that begin studies or measure accuracy have good options."""

from __future__ import annotations

import argparse
import re
import shlex
from pathlib import Path

import pytest

from gnnsparse.bench.accuracy_command import PARTS, add_arguments, settings_of
from launch.study.settings import read_options
from tests.docs.blocks import PAGES

#: Commands in blocks of shell code, of which comments and continued lines are no part.
BLOCK = re.compile(r"^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)


def commands(start: str) -> list[list[str]]:
    """The arguments of all commands that begin with a text."""
    found = []
    for page in PAGES:
        for block in BLOCK.findall(page.read_text()):
            for line in block.replace("\\\n", " ").splitlines():
                if line.startswith(start):
                    found.append(shlex.split(line.removeprefix(start), comments=True))
    return found


def test_studies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "shared" / "data").mkdir(parents=True)
    (tmp_path / "checkout").mkdir()
    monkeypatch.chdir(tmp_path / "checkout")  # where the documentation's ../shared/data is
    given = [words for words in commands("python train.py ") if any("experiment=" in word for word in words)]
    studies = [read_options(words) for words in given]
    assert {study.experiment for study in studies} == {"precision", "flashsparse_table8"}
    assert len(studies) >= 4


def test_measurements_of_accuracy() -> None:
    given = commands("gnnsparse bench accuracy")
    assert len(given) >= 3
    parts = set()
    for words in given:
        parser = argparse.ArgumentParser(exit_on_error=False)
        add_arguments(parser)
        parser.set_defaults(fail=pytest.fail)
        # Whether there is a GPU is asked for when the option is read.
        words = ["cpu" if word == "cuda" else word for word in words]
        parts.update(settings_of(parser.parse_args(words)).parts)
    assert parts == set(PARTS)
