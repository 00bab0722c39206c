"""Every fenced block of the README, of docs/ and of notes/ is executed, or its page says why not.

tests/docs/blocks.py says how a page marks its blocks. Commands that are not executed are checked.
"""

from __future__ import annotations

import contextlib
import doctest
import importlib.util
import io
import linecache
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from torch.distributed import run as torchrun

import gnnsparse.ops
import train
from gnnsparse.bench.accuracy_command import PARTS, check_options
from gnnsparse.cli import main as cli
from gnnsparse.data import CATALOG
from gnnsparse.registry import temporary_registrations
from launch.study.settings import read_options
from launch.words import check_words
from models import MODELS
from papers import __main__ as papers
from tests import warm
from tests.configs import CONFIGS, composed
from tests.docs.blocks import PAGES, ROOT, Block, blocks_of, page_name, unfenced, without_blocks

#: Pages whose examples need a package that is not installed everywhere.
NEEDED = {"docs/howto/dgl-model.md": "dgl"}
#: Pages whose blocks other tests execute, and where these are.
ELSEWHERE = {"docs/stories.md": "tests/stories"}
#: The first line of an example that shows a file of an operation.
OPERATION_FILE = re.compile(r"# gnnsparse/ops/(\w+/\w+\.py)\n")
#: What the commands of a page find in their folder, as in a checkout.
CHECKOUT = ("train.py", "predict.py", "startup.py", "launch", "configs", "models", "papers", "examples")
LANGUAGES = ("python", "sh", "text")


def executed(page: Path) -> list[Block]:
    """The blocks of a page that this test executes."""
    if page_name(page) in ELSEWHERE:
        assert (ROOT / ELSEWHERE[page_name(page)]).is_dir()
        return []
    return [block for block in blocks_of(page) if block.language in ("python", "sh") and not block.mark]


def cases() -> Iterator[object]:
    """The pages with blocks that are executed; those with commands are slow."""
    for page in PAGES:
        if blocks := executed(page):
            slow = any(block.language == "sh" for block in blocks)
            yield pytest.param(page, id=page_name(page), marks=pytest.mark.slow if slow else ())


@pytest.fixture
def operations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that is a part of gnnsparse/ops/ for the time of a test."""
    folder, before = tmp_path / "operations", list(gnnsparse.ops.__all__)
    monkeypatch.setattr(gnnsparse.ops, "__path__", [*gnnsparse.ops.__path__, str(folder)])
    yield folder
    for name in gnnsparse.ops.__all__[len(before) :]:
        delattr(gnnsparse.ops, name)
    del gnnsparse.ops.__all__[len(before) :]
    for path in folder.glob("*"):
        for module in [name for name in sys.modules if name.startswith(f"gnnsparse.ops.{path.name}")]:
            del sys.modules[module]


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that a page's blocks run in, with what commands need of a checkout."""
    folder = tmp_path / "checkout"
    folder.mkdir()
    for name in CHECKOUT:
        (folder / name).symlink_to(ROOT / name)
    monkeypatch.chdir(folder)
    commands = f"{warm.folder()}{os.pathsep}{Path(sys.executable).parent}"
    variables = {
        "GNNSPARSE_DATA_DIR": str(tmp_path / "data"), "GNNSPARSE_GPU_RECORDS": str(tmp_path / "gpus"),
        "PATH": f"{commands}{os.pathsep}{os.environ['PATH']}", "COLUMNS": "100",
    }  # fmt: skip
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    return folder


def run_commands(block: Block) -> str:
    """Runs a block of commands in bash, which ends at the first one that fails; returns what they print."""
    done = subprocess.run(
        ["bash", "-e", "-o", "pipefail", "-c", block.text], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True,
    )  # fmt: skip
    assert done.returncode == 0, f"{block.name}:\n{done.stdout}"
    return done.stdout


def run_python(block: Block, namespace: dict[str, object], operations: Path) -> str:
    """Executes a block of Python and returns what it prints; a file of an operation is imported."""
    if shown := OPERATION_FILE.match(block.text):
        file = operations / shown[1]
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(block.text)
        return ""
    gnnsparse.ops.find_operations()
    printed = io.StringIO()
    # Errors name the line of the page, and functions find their source, as in a notebook.
    source, name = "\n" * block.line + block.text, page_name(block.page)
    linecache.cache[name] = len(source), None, source.splitlines(keepends=True), name
    code = compile(source, name, "exec")
    with contextlib.redirect_stdout(printed):
        exec(code, namespace)
    return printed.getvalue()


def compare(block: Block, printed: str) -> None:
    """Asserts that a block of output is what was printed."""
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    same = doctest.OutputChecker().check_output(block.text, printed, flags)
    assert same, f"{block.name} says\n{block.text}but the blocks before it printed\n{printed}"


@pytest.mark.parametrize("page", list(cases()))
@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")
def test_blocks_run(page: Path, checkout: Path, operations: Path) -> None:
    """The blocks of a page, one after another in one namespace and one folder, as a reader types them."""
    package = NEEDED.get(page_name(page))
    if package is not None and importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    namespace: dict[str, object] = {}
    printed = ""
    with temporary_registrations():
        for block in blocks_of(page):
            if block.mark == "output":
                compare(block, printed)
                printed = ""
            elif block.mark != "not run":
                printed += (
                    run_commands(block)
                    if block.language == "sh"
                    else run_python(block, namespace, operations)
                )


@pytest.mark.parametrize("page", [page for page in PAGES if page_name(page) not in ELSEWHERE], ids=page_name)
def test_every_block_is_run_or_says_why_not(page: Path) -> None:
    for block in blocks_of(page):
        assert block.language in LANGUAGES, f"{block.name}: accepted languages: {', '.join(LANGUAGES)}"
        if block.mark == "not run":
            assert len(block.reason.split()) >= 3, f"{block.name}: a reason is missing"
            assert block.language != "python", f"{block.name}: Python is always executed"
        assert (block.mark == "output") <= (block.language == "text"), f"{block.name}: output is text"
        assert block.mark or block.language != "text", f"{block.name}: neither output nor not run"
    assert "```" not in without_blocks(page), (
        f"{page_name(page)} has a block that is not closed, or is indented"
    )
    assert unfenced(page) == [], f"{page_name(page)} has code without a fence"
    assert page.name != "README.md" or any(block.language == "python" for block in executed(page))


def test_links_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", without_blocks(page)):
            assert (page.parent / target).exists(), f"{page_name(page)}: {target}"


# Blocks that are not executed: their programs exist, and their options are accepted.

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
    if program == "torchrun":
        started = torchrun.get_args_parser().parse_args(rest)
        return check_python([started.training_script, *started.training_script_args])
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
def matrices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "checkout"
    folder.mkdir()
    for name in _MATRICES:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("%%MatrixMarket matrix coordinate pattern general\n1 1 1\n1 1\n")
    monkeypatch.chdir(folder)


@pytest.mark.usefixtures("matrices")
@pytest.mark.parametrize("block", not_run(), ids=lambda block: block.name)
def test_commands_are_accepted(block: Block) -> None:
    found = commands(block)
    assert found
    for words in found:
        check(words)


@pytest.mark.usefixtures("matrices")
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
