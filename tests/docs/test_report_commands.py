"""The commands of the documentation that make reports, check and profile are accepted."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from gnnsparse.cli import main as cli
from tests.docs.blocks import PAGES

#: A command in a block of shell code, after variables of the environment.
COMMAND = re.compile(r"^(?:\w+=\S+ )*gnnsparse ((?:report|doctor|profile)\b.*)$", re.MULTILINE)
BLOCK = re.compile(r"^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)


def commands() -> list[list[str]]:
    blocks = [block for page in PAGES for block in BLOCK.findall(page.read_text())]
    return [
        shlex.split(line.partition(" > ")[0], comments=True) for b in blocks for line in COMMAND.findall(b)
    ]


def test_there_are_commands_of_each_kind() -> None:
    assert {words[0] for words in commands()} == {"report", "doctor", "profile"}


@pytest.mark.parametrize("words", commands(), ids=" ".join)
def test_a_command_is_accepted(words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "shared" / "data").mkdir(parents=True)
    checkout = tmp_path / "checkout"
    checkout.mkdir()
    monkeypatch.chdir(checkout)  # where the documentation's ../shared/data is
    (checkout / "graph.mtx").write_text("%%MatrixMarket matrix coordinate pattern general\n1 1 1\n1 1\n")
    seen = []
    for name in ("bench.report_command", "cli.doctor", "cli.profile"):
        monkeypatch.setattr(f"gnnsparse.{name}.run", lambda options: seen.append(options) or 0)
    assert cli.main(words) == 0
    assert len(seen) == 1
