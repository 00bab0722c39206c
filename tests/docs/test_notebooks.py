"""The notebooks in examples/ are the tutorials, whose blocks test_examples.py executes."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.docs.blocks import ROOT, blocks_of
from tests.scripts import load_script

make_notebooks = load_script("make_notebooks")


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
