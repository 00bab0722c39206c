"""Every fenced block of the README, of docs/ and of notes/ is executed, or its page says why not.

tests/docs/blocks.py says how a page marks its blocks. Commands that are not executed are checked by
test_not_run.py.
"""

from __future__ import annotations

import contextlib
import doctest
import importlib.util
import io
import linecache
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import gnnsparse.ops
from gnnsparse.registry import temporary_registrations
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
    scripts = Path(sys.executable).parent
    variables = {
        "GNNSPARSE_DATA_DIR": str(tmp_path / "data"), "GNNSPARSE_GPU_RECORDS": str(tmp_path / "gpus"),
        "PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}", "COLUMNS": "100",
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


def test_the_readme_has_examples() -> None:
    assert [block for block in executed(ROOT / "README.md") if block.language == "python"]


def test_links_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", without_blocks(page)):
            assert (page.parent / target).exists(), f"{page_name(page)}: {target}"
