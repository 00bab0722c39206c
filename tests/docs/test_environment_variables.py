"""docs/environment.md lists exactly the environment variables that the code reads."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from tests.docs.blocks import PAGES, ROOT

PAGE = ROOT / "docs" / "environment.md"
NAME = re.compile(r"GNNSPARSE_[A-Z_]+")
#: Code that reads variables; options of CMake and macros of C++ have such names, too, and are none.
PYTHON = ("gnnsparse", "gnnsparse_cli", "launch", "models", "papers", "scripts", "tests", "benchmarks")
#: Files whose text has names that only look like those of variables.
_TEXTS = ("tests/docs/test_environment_variables.py",)


def python_files() -> list[Path]:
    files = [*ROOT.glob("*.py"), *(path for folder in PYTHON for path in (ROOT / folder).rglob("*.py"))]
    return [path for path in files if str(path.relative_to(ROOT)) not in _TEXTS]


def read_by_code() -> set[str]:
    """The names: constants in Python, of getenv in C++, $ENV{NAME} in CMake, $NAME in shell scripts."""
    found = set()
    for path in python_files():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and NAME.fullmatch(node.value):
                found.add(node.value)
            elif isinstance(node, ast.keyword) and node.arg is not None and NAME.fullmatch(node.arg):
                found.add(node.arg)  # of a call that starts a process with it
    for path in (*ROOT.glob("native/**/*.cmake"), *ROOT.glob("native/**/CMakeLists.txt")):
        found.update(re.findall(r"ENV\{(GNNSPARSE_[A-Z_]+)\}", path.read_text()))
    for path in ROOT.glob("native/**/*.cpp"):
        found.update(re.findall(r'getenv\("(GNNSPARSE_[A-Z_]+)"\)', path.read_text()))
    for path in ROOT.glob("scripts/*.sh"):
        found.update(re.findall(r"\$\{?(GNNSPARSE_[A-Z_]+)", path.read_text()))
    return found


def test_the_page_lists_what_the_code_reads() -> None:
    listed = re.findall(r"^\| `(GNNSPARSE_[A-Z_]+)` \|", PAGE.read_text(), re.MULTILINE)
    assert len(listed) == len(set(listed))
    assert set(listed) == read_by_code()


def test_variables_of_each_kind_are_found() -> None:
    """Of the package, of native code, of the build, of tests."""
    found = read_by_code()
    of_each = {"GNNSPARSE_CACHE_DIR", "GNNSPARSE_ISA", "GNNSPARSE_CUDA", "GNNSPARSE_TEST_DATA"}
    assert of_each <= found


def test_variables_on_other_pages_are_on_this_one() -> None:
    on_pages = {
        name for page in PAGES for name in re.findall(r"\$?(GNNSPARSE_[A-Z_]+)(?==|`| )", page.read_text())
    }
    # An option of CMake, which notes/adding-a-kernel.md gives as such.
    assert on_pages - {"GNNSPARSE_PTXAS_VERBOSE"} <= read_by_code()
