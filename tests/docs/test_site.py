"""The documentation site is whole, and the notebooks of examples/ are the tutorials, which tests execute."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from filelock import FileLock

import gnnsparse
from tests import warm
from tests.docs.blocks import ROOT, blocks_of
from tests.scripts import FOLDER, load_script

build_docs, make_notebooks = load_script("build_docs"), load_script("make_notebooks")


@pytest.mark.slow
def test_the_site_is_built_without_a_problem_and_links_to_the_repository() -> None:
    pytest.importorskip("zensical", reason="zensical is not installed; it needs Python 3.11")
    url = "https://example.org/repository"
    with FileLock(build_docs.SITE.with_suffix(".lock"), timeout=300):  # see conftest.py
        command = [warm.python(), FOLDER / "build_docs.py", "--repository", url]
        done = subprocess.run(command, capture_output=True, text=True)
        page = (build_docs.SITE / "index.html").read_text()
    assert done.returncode == 0, done.stderr
    assert "no warnings" in done.stdout
    assert f'href="{url}"' in page
    for part in ('class="md-tabs"', 'data-md-component="palette"', 'data-md-component="search"'):
        assert part in page


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("index.html", '<a href="missing.html">x</a>', "which does not exist"),
        ("index.html", '<a href="other.html#nowhere">x</a>', "no such heading"),
        ("index.html", '<a href="#nowhere">x</a>', "no such heading"),
        ("index.html", '<img src="missing.png">', "which does not exist"),
        ("index.html", '<script src="https://example.org/x.js"></script>', "loads https://example.org/x.js"),
        ("index.html", '<link rel="stylesheet" href="//example.org/x.css">', "loads //example.org/x.css"),
        ("style.css", "@import 'https://example.org/a';", "example.org"),
        ("style.css", "a { color: url(//example.org/a) }", "example.org"),
        ("index.html", '<a href="other.html#top">x</a> <a href="https://example.org">y</a>', None),
        ("index.html", '<a href="other.html">z</a>', None),
    ],
)
def test_a_broken_page_is_noticed(name: str, text: str, problem: str | None, tmp_path: Path) -> None:
    (tmp_path / "other.html").write_text("<html><body><h1 id='top'>y</h1></body></html>")
    (tmp_path / name).write_text(text if name == "style.css" else f"<html><body>{text}</body></html>")
    found = list(build_docs.link_problems(tmp_path))
    assert len(found) == (problem is not None)
    assert problem is None or problem in found[0]


def test_a_public_name_without_a_page_is_noticed() -> None:
    described = {f"gnnsparse.{name}" for name in gnnsparse.__all__}
    assert list(build_docs.undocumented([gnnsparse], described)) == []
    missing = build_docs.undocumented([gnnsparse], described - {"gnnsparse.prepare"})
    assert list(missing) == ["gnnsparse.prepare is not in the API reference"]
    # A name counts as described where it is defined.
    module = ModuleType("gnnsparse.elsewhere")
    module.__all__ = ["prepare"]  # type: ignore[attr-defined]
    module.prepare = gnnsparse.prepare  # type: ignore[attr-defined]
    assert list(build_docs.undocumented([module], {"gnnsparse.preprocess.api.prepare"})) == []
    some = {"gnnsparse", "gnnsparse.nn", "gnnsparse.data", "gnnsparse.patterns.masks", "gnnsparse.train"}
    assert some <= set(build_docs.public_modules())


def read(name: str) -> dict[str, Any]:
    return json.loads(make_notebooks.file_of(name).read_text())


def sources(name: str, kind: str) -> list[str]:
    return ["".join(cell["source"]) for cell in read(name)["cells"] if cell["cell_type"] == kind]


def test_the_notebooks_are_up_to_date_and_stale_ones_are_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(*options: str) -> int:
        monkeypatch.setattr("sys.argv", ["make_notebooks.py", *options])
        return make_notebooks.main()

    assert run("--check") == 0
    assert {path.name for path in (ROOT / "examples").glob("*.ipynb")} == {
        make_notebooks.file_of(name).name for name in make_notebooks.NAMES
    }
    monkeypatch.setattr(make_notebooks, "EXAMPLES", tmp_path)
    monkeypatch.setattr(make_notebooks, "ROOT", tmp_path)
    assert run("--check") == 1
    assert "my_graph.ipynb is out of date; run make notebooks" in capsys.readouterr().err
    assert run() == 0
    assert run("--check") == 0


@pytest.mark.parametrize("name", make_notebooks.NAMES)
def test_a_notebook_is_whole_and_has_the_code_that_the_tests_of_the_pages_execute(name: str) -> None:
    page = ROOT / "docs" / "tutorials" / f"{name}.md"
    blocks = [block for block in blocks_of(page) if block.language == "python"]
    assert all(not block.mark for block in blocks)
    assert sources(name, "code") == [make_notebooks.SETUP, *(block.text.strip() for block in blocks)]
    content = read(name)
    assert (content["nbformat"], content["nbformat_minor"]) == (4, 5)
    ids = [cell["id"] for cell in content["cells"]]
    assert len(set(ids)) == len(ids)
    for cell in content["cells"]:
        assert cell["cell_type"] != "code" or (cell["outputs"], cell["execution_count"]) == ([], None)
    for text in sources(name, "markdown"):
        assert "<!--" not in text
        assert ".ipynb" not in text  # it does not speak of itself
        for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", text):
            assert (ROOT / "examples" / target).exists(), target


def test_the_first_cell_leaves_the_notebooks_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    exec(make_notebooks.SETUP, {})
    assert Path.cwd().parent == tmp_path
