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


def read_by_code() -> set[str]:
    """The names: constants in Python, of getenv in C++, $ENV{NAME} in CMake, $NAME in shell scripts."""
    found = set()
    files = [*ROOT.glob("*.py"), *(path for folder in PYTHON for path in (ROOT / folder).rglob("*.py"))]
    for path in set(files) - {Path(__file__)}:  # whose names only look like those of variables
        if "GNNSPARSE_" not in path.read_text():
            continue
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


def test_the_page_lists_what_the_code_reads_and_other_pages_name() -> None:
    listed, read = re.findall(r"^\| `(GNNSPARSE_[A-Z_]+)` \|", PAGE.read_text(), re.MULTILINE), read_by_code()
    assert len(listed) == len(set(listed))
    assert set(listed) == read
    # Of the package, of native code, of the build, of tests.
    assert {"GNNSPARSE_CACHE_DIR", "GNNSPARSE_ISA", "GNNSPARSE_CUDA", "GNNSPARSE_TEST_DATA"} <= read
    on_pages = {
        name for page in PAGES for name in re.findall(r"\$?(GNNSPARSE_[A-Z_]+)(?==|`| )", page.read_text())
    }
    # An option of CMake, which notes/adding-a-kernel.md gives as such.
    assert on_pages - {"GNNSPARSE_PTXAS_VERBOSE"} <= read
