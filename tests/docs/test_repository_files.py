"""README, CITATION.cff and the files for contributors are right where the package says the same."""

from __future__ import annotations

import re

import pytest
import yaml

import gnnsparse
from tests.docs.blocks import ROOT

PAGES = ("README.md", "CONTRIBUTING.md", "SECURITY.md")


@pytest.mark.parametrize("page", PAGES)
def test_a_page_of_the_repository_links_to_files_that_exist(page: str) -> None:
    targets = re.findall(r"\]\((?!https?:|#)([^)#]+)", (ROOT / page).read_text())
    assert targets or page == "SECURITY.md"
    assert [target for target in targets if not (ROOT / target).exists()] == []


def test_the_badges_say_what_the_package_says() -> None:
    page, project = (ROOT / "README.md").read_text(), (ROOT / "pyproject.toml").read_text()
    versions = re.findall(r'"Programming Language :: Python :: (3\.\d+)"', project)
    assert f"[Python {versions[0]} to {versions[-1]}](" in page
    assert f"/python-{versions[0]}_to_{versions[-1]}-" in page
    assert f"Python {versions[0]} or newer" in page
    assert 'license = "Apache-2.0"' in project


def test_the_first_screen_of_the_readme_says_what_it_is_for() -> None:
    """It has a figure, a time on a CPU and one on a GPU, own data and a line that installs."""
    screen = (ROOT / "README.md").read_text().partition("\n## ")[0]
    for needed in ("docs/speed.svg", "of a CPU", "NVIDIA", "Your own data", "pip install", "For those who"):
        assert needed in screen
    assert len(screen.split()) < 420


def test_the_citation_is_of_this_package() -> None:
    """The keys that the Citation File Format 1.2.0 requires, and none that it does not know."""
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    known = {
        "cff-version",
        "message",
        "type",
        "title",
        "abstract",
        "authors",
        "version",
        "license",
        "keywords",
    }
    assert {"cff-version", "message", "title", "authors"} <= set(cited) <= known
    assert (cited["cff-version"], cited["type"], cited["title"]) == ("1.2.0", "software", "gnnsparse")
    assert [set(author) for author in cited["authors"]] == [{"name"}]
    assert cited["version"] == gnnsparse.__version__
    assert len(set(cited["keywords"])) == len(cited["keywords"])
