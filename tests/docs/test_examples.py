"""Every Python example of the README and of docs/ runs, and the README's tables are those of the results."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from gnnsparse.registry import temporary_registrations

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def examples(page: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", [p for p in PAGES if examples(p)], ids=lambda p: p.name)
def test_examples_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The examples of a page, one after another in one namespace, as a reader would type them."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GNNSPARSE_DATA_DIR", str(tmp_path / "data"))
    namespace: dict[str, object] = {}
    with temporary_registrations():
        for number, example in enumerate(examples(page)):
            exec(compile(example, f"{page.name}, example {number + 1}", "exec"), namespace)


def test_the_readme_has_examples() -> None:
    assert examples(ROOT / "README.md")


def test_links_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_readme_tables_are_made_from_the_results() -> None:
    script = ROOT / "scripts" / "readme_tables.py"
    done = subprocess.run([sys.executable, script, "--check"], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
