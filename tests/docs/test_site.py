"""The documentation site is built without a warning, is whole, and describes every public name."""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import ModuleType

import pytest

import gnnsparse
from tests import warm
from tests.scripts import FOLDER, load_script

build_docs = load_script("build_docs")


@pytest.mark.slow
def test_the_site_is_built_without_a_problem() -> None:
    done = subprocess.run([warm.python(), FOLDER / "build_docs.py"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "no warnings" in done.stdout


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
