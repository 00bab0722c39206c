"""The commands of blocks that are not executed: their programs exist, and their options are accepted."""

from __future__ import annotations

import importlib.util
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

import train
from gnnsparse.bench.accuracy_command import PARTS, check_options
from gnnsparse.cli import main as cli
from gnnsparse.data import CATALOG
from launch.study.settings import read_options
from launch.words import check_words
from models import MODELS
from papers import __main__ as papers
from tests.configs import CONFIGS, composed
from tests.docs.blocks import PAGES, ROOT, Block, blocks_of

_EXTRAS = re.compile(r"(?:gnnsparse|\.)\[([\w,]+)\]")
#: A list of values of a sweep, of which the first is taken.
_LIST = re.compile(r"=([^\[\]=,]*),.*")
#: What the commands of the pages find in the folder of the reader, and beside it.
_MATRICES = (
    "graph.mtx",
    "DIR/a.mtx",
    *(f"../shared/data/{name}/a.mtx" for name in ("dlmc", "graphs", "suitesparse", "tu")),
)


def not_run() -> list[Block]:
    blocks = [block for page in PAGES for block in blocks_of(page)]
    return [block for block in blocks if block.language == "sh" and block.mark == "not run"]


def commands(block: Block) -> list[list[str]]:
    """The words of each command, without variables of the environment before it and what it is piped into."""
    found = []
    for line in block.text.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        while words and re.match(r"\w+=", words[0]):
            words.pop(0)
        ends = [at for at, word in enumerate(words) if word in ("|", ">", "&")]
        if words := words[: min(ends, default=len(words))]:
            found.append(words)
    return found


def check(words: list[str]) -> Any:
    """Assert that a command can be given, and return the study or the measurements that it begins."""
    program, *rest = words
    if program == "nsys":
        return check(rest[1:])
    if program == "pip":
        project = (ROOT / "pyproject.toml").read_text().partition("[project.optional-dependencies]")[2]
        extras = re.findall(r"^(\w+) = \[", project.partition("\n[")[0], re.MULTILINE)
        for names in _EXTRAS.findall(" ".join(rest)):
            assert set(names.split(",")) <= set(extras)
        assert rest[0] == "install"
    elif program == "make":
        rules = re.findall(r"^([\w -]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        targets = [target for rule in rules for target in rule.split()]
        assert [word for word in rest if "=" not in word and word not in targets] == []
    elif program == "gnnsparse":
        # Whether there is a GPU is asked for when the option is read.
        words = ["cpu" if word == "cuda" else word for word in rest]
        options = cli.make_full_parser(words).parse_args(words)
        if rest[:2] == ["bench", "accuracy"]:
            check_options(options)
            return options.parts
    elif program.endswith("python"):
        return check_python(rest)
    else:
        assert (ROOT / program).is_file(), f"{program} is not a program that this test knows"
    return None


def check_python(words: list[str]) -> Any:
    if words[0] == "-m":
        assert importlib.util.find_spec(words[1]) is not None
        if words[1] == "papers":
            papers.parser().parse_args(words[2:])
        return None
    assert (ROOT / words[0]).is_file()
    if words[0] != "train.py" or "--help" in words:
        return None
    if any(word.startswith("experiment=") for word in words):
        return read_options(words[1:]).experiment
    options = [word for word in words[1:] if word != "-m"]
    train.offer_registered()
    check_words(options, CONFIGS, {"dataset": CATALOG, "model": MODELS})
    if "-m" in words:
        options = [_LIST.sub(r"=\1", word) for word in options]
    composed(*options)
    return None


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "checkout"
    folder.mkdir()
    for name in _MATRICES:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("%%MatrixMarket matrix coordinate pattern general\n1 1 1\n1 1\n")
    monkeypatch.chdir(folder)


@pytest.mark.usefixtures("checkout")
@pytest.mark.parametrize("block", not_run(), ids=lambda block: block.name)
def test_commands_are_accepted(block: Block) -> None:
    found = commands(block)
    assert found
    for words in found:
        check(words)


@pytest.mark.usefixtures("checkout")
def test_pages_show_every_study_and_every_measurement_of_accuracy() -> None:
    """In blocks that are executed, too."""
    blocks = [block for page in PAGES for block in blocks_of(page) if block.language == "sh"]
    given = [words for block in blocks for words in commands(block)]
    studies = [check(words) for words in given if any(word.startswith("experiment=") for word in words)]
    assert set(studies) == {"precision", "flashsparse_table8"}
    assert len(studies) >= 4
    measured = [check(words) for words in given if words[:3] == ["gnnsparse", "bench", "accuracy"]]
    assert {part for parts in measured for part in parts} == set(PARTS)
    kinds = {words[1] for words in given if words[0] == "gnnsparse"}
    assert {"report", "doctor", "profile"} <= kinds


@pytest.mark.parametrize(
    "line",
    [
        "python train.py modle=gcn",
        "python train.py -m model=gcn,gta",
        "python missing.py",
        "gnnsparse bench kernels --matrx DIR",
        "make tset",
        'pip install "gnnsparse[training]"',
        "somebody/else",
    ],
)
def test_a_command_that_is_not_accepted_is_noticed(line: str) -> None:
    with pytest.raises((AssertionError, ValueError, SystemExit)):
        check(shlex.split(line))
