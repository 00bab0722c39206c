"""Every Python example of the README and of docs/ runs, and the README's tables are those of the results."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import gnnsparse.ops
from gnnsparse.registry import temporary_registrations

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
#: Pages whose examples need a package that is not installed everywhere.
NEEDED = {"docs/howto/dgl-model.md": "dgl"}
#: The first line of an example that shows a file of an operation.
OPERATION_FILE = re.compile(r"# gnnsparse/ops/(\w+/\w+\.py)\n")


def page_name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def examples(page: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)


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


@pytest.mark.parametrize("page", [p for p in PAGES if examples(p)], ids=page_name)
@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")
def test_examples_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, operations: Path) -> None:
    """The examples of a page, one after another in one namespace, as a reader would type them.

    Those that begin with the path of a file in gnnsparse/ops/ are that file: they are imported.
    """
    package = NEEDED.get(page_name(page))
    if package is not None and importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GNNSPARSE_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("GNNSPARSE_GPU_RECORDS", str(tmp_path / "gpus"))
    namespace: dict[str, object] = {}
    with temporary_registrations():
        for number, example in enumerate(examples(page)):
            if shown := OPERATION_FILE.match(example):
                file = operations / shown[1]
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(example)
                continue
            gnnsparse.ops.find_operations()
            exec(compile(example, f"{page_name(page)}, example {number + 1}", "exec"), namespace)


def test_the_readme_has_examples() -> None:
    assert examples(ROOT / "README.md")


def test_links_lead_somewhere() -> None:
    for page in PAGES:
        prose = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
        for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", prose):
            assert (page.parent / target).exists(), f"{page_name(page)}: {target}"


def test_readme_tables_are_made_from_the_results() -> None:
    script = ROOT / "scripts" / "readme_tables.py"
    done = subprocess.run([sys.executable, script, "--check"], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
