"""The documentation site is built without a warning, is whole, and describes every public name."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import gnnsparse
from tests.scripts import FOLDER, load_script

build_docs = load_script("build_docs")


@pytest.mark.slow
def test_the_site_is_built_without_a_problem() -> None:
    done = subprocess.run([sys.executable, FOLDER / "build_docs.py"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "no warnings" in done.stdout


def site(folder: Path, **pages: str) -> Path:
    for name, body in pages.items():
        (folder / f"{name}.html").write_text(f"<html><body>{body}</body></html>")
    return folder


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ('<a href="missing.html">x</a>', "which does not exist"),
        ('<a href="other.html#nowhere">x</a>', "no such heading"),
        ('<a href="#nowhere">x</a>', "no such heading"),
        ('<img src="missing.png">', "which does not exist"),
        ('<script src="https://example.org/x.js"></script>', "loads https://example.org/x.js"),
        ('<link rel="stylesheet" href="//example.org/x.css">', "loads //example.org/x.css"),
    ],
)
def test_a_broken_page_is_noticed(body: str, problem: str, tmp_path: Path) -> None:
    found = list(build_docs.link_problems(site(tmp_path, index=body, other="<h1 id='top'>y</h1>")))
    assert len(found) == 1
    assert problem in found[0]


def test_a_whole_page_has_no_problems(tmp_path: Path) -> None:
    body = '<a href="other.html#top">x</a> <a href="https://example.org">y</a> <a href="other.html">z</a>'
    assert list(build_docs.link_problems(site(tmp_path, index=body, other="<h1 id='top'>y</h1>"))) == []


@pytest.mark.parametrize("rule", ["@import 'https://example.org/a';", "a { color: url(//example.org/a) }"])
def test_a_style_from_elsewhere_is_noticed(rule: str, tmp_path: Path) -> None:
    (tmp_path / "style.css").write_text(rule)
    assert "example.org" in "".join(build_docs.link_problems(tmp_path))


def test_a_public_name_without_a_page_is_noticed() -> None:
    described = {f"gnnsparse.{name}" for name in gnnsparse.__all__}
    assert list(build_docs.undocumented([gnnsparse], described)) == []
    missing = build_docs.undocumented([gnnsparse], described - {"gnnsparse.prepare"})
    assert list(missing) == ["gnnsparse.prepare is not in the API reference"]


def test_a_name_counts_as_described_where_it_is_defined() -> None:
    module = ModuleType("gnnsparse.elsewhere")
    module.__all__ = ["prepare"]  # type: ignore[attr-defined]
    module.prepare = gnnsparse.prepare  # type: ignore[attr-defined]
    assert list(build_docs.undocumented([module], {"gnnsparse.preprocess.api.prepare"})) == []


def test_every_package_with_public_names_is_checked() -> None:
    some = {"gnnsparse", "gnnsparse.nn", "gnnsparse.data", "gnnsparse.patterns.masks", "gnnsparse.train"}
    assert some <= set(build_docs.public_modules())
