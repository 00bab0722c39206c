"""Makes the notebooks in examples/ from the tutorials in docs/.

    python scripts/make_notebooks.py            write them; `make notebooks` does it
    python scripts/make_notebooks.py --check    exit with 1 if they are not up to date

Prose and Python become cells, without outputs. Commands of a shell stay in the prose, and what blocks print
is left out. tests/docs/test_site.py makes sure that the code is that of the pages, which tests execute.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
TUTORIALS, EXAMPLES = ROOT / "docs" / "tutorials", ROOT / "examples"
#: The tutorials that a notebook is made of; many-gpus.md consists of commands.
NAMES = ("my-graph", "my-pyg-model", "my-transformer")
#: The first cell: what a notebook writes goes to a folder of its own.
SETUP = "import os\nimport tempfile\n\nos.chdir(tempfile.mkdtemp())  # files of this notebook go there"
_MARK = r"(?:^<!-- [^\n]* -->\n)?"
_OUTPUT = re.compile(_MARK + r"^```text\n.*?^```\n", re.MULTILINE | re.DOTALL)
_PYTHON = re.compile(r"^```python\n(.*?)^```\n", re.MULTILINE | re.DOTALL)


def prose(text: str) -> str:
    """Return prose of a page for a notebook, whose links are from another folder."""
    text = re.sub(r"<!-- [^\n]* -->\n", "", _OUTPUT.sub("", text))
    text = re.sub(r"\s+The\s+same\s+steps\s+are\s+in\s+a\s+notebook,\s+`[^`]*`\.", "", text)
    text = re.sub(r"\]\(\.\./", "](../docs/", text)
    text = re.sub(r"\]\((?!https?:|\.\./|#)", "](../docs/tutorials/", text)
    return re.sub(r"\n{3,}", "\n\n", text).strip()


def cells(page: str) -> list[tuple[str, str]]:
    """Return the cells of a page: ("markdown" or "code", source)."""
    made = []
    for at, part in enumerate(_PYTHON.split(page)):
        if at % 2:
            made.append(("code", part.strip()))
        elif text := prose(part):
            made.append(("markdown", text))
    return [made[0], ("code", SETUP), *made[1:]]


def notebook(page: str) -> dict[str, Any]:
    """Return the content of a notebook, in version 4.5 of the format."""
    made = []
    for number, (kind, source) in enumerate(cells(page)):
        cell: dict[str, Any] = {"cell_type": kind, "id": f"cell-{number}", "metadata": {}}
        if kind == "code":
            cell |= {"execution_count": None, "outputs": []}
        made.append({**cell, "source": source.splitlines(keepends=True)})
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    return {"cells": made, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}


def file_of(name: str) -> Path:
    """Return the file of a tutorial's notebook."""
    return EXAMPLES / f"{name.replace('-', '_')}.ipynb"


def main() -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="compare the files and write nothing")
    options = parser.parse_args()
    for name in NAMES:
        text = (
            json.dumps(notebook((TUTORIALS / f"{name}.md").read_text()), indent=1, ensure_ascii=False) + "\n"
        )
        file = file_of(name)
        if file.exists() and file.read_text() == text:
            continue
        if options.check:
            print(f"{file.relative_to(ROOT)} is out of date; run make notebooks", file=sys.stderr)
            return 1
        file.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
