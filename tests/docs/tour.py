"""The ways of notes/tour.md: which functions of the project four calls enter, and in which order.

`python -m tests.docs.tour` writes the present file and line of each function into the page, and names those
that are entered no more.
"""

from __future__ import annotations

import ast
import functools
import json
import os
import re
import runpy
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch

import gnnsparse
from tests import warm
from tests.docs.blocks import ROOT

PAGE = ROOT / "notes" / "tour.md"
_STOP = re.compile(r"^(\d+\. )`([\w/]+\.py):(\d+)` `([\w.<>]+)`", re.MULTILINE)
_RECORDED = "tour-of-train.json"


class Stop(NamedTuple):
    """A function: its file, the line of its `def`, and its name with those of what it is defined in."""

    file: str
    line: int
    name: str


def sections() -> dict[str, str]:
    """Return the sections of the page by their headings."""
    parts = re.split(r"^## (.*)\n", PAGE.read_text(), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def stops(section: str) -> list[Stop]:
    return [Stop(file, int(line), name) for _, file, line, name in _STOP.findall(section)]


@functools.cache
def defined(file: str) -> dict[int, Stop]:
    """Return the functions of a file by the line at which their code begins, that of a decorator."""
    found = {}

    def visit(node: ast.AST, names: tuple[str, ...]) -> None:
        for child in ast.iter_child_nodes(node):
            inner = names
            if isinstance(child, ast.FunctionDef):
                first = min([child.lineno, *(decorator.lineno for decorator in child.decorator_list)])
                found[first] = Stop(file, child.lineno, ".".join((*names, child.name)))
                inner = (*names, child.name, "<locals>")
            elif isinstance(child, ast.ClassDef):
                inner = (*names, child.name)
            visit(child, inner)

    visit(ast.parse((ROOT / file).read_text()), ())
    return found


def entered(call: Callable[[], Any]) -> list[Stop]:
    """Call a function and return which functions of the project were entered, one after another."""
    begun: list[tuple[str, int]] = []

    def note(frame: Any, event: str, _: Any) -> None:
        if event == "call":
            begun.append((frame.f_code.co_filename, frame.f_code.co_firstlineno))

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    root = f"{ROOT}{os.sep}"
    own = [(name.removeprefix(root), line) for name, line in begun if name.startswith(root)]
    own = [(name, line) for name, line in own if not name.startswith((".", "tests"))]
    return [defined(name)[line] for name, line in own if line in defined(name)]


def _graph(**options: Any) -> gnnsparse.SparseOperand:
    edges = torch.randint(50, (2, 300), generator=torch.Generator().manual_seed(0))
    return gnnsparse.prepare(edges, num_nodes=50, cache=False, **options)


def _product() -> list[Stop]:
    A, x = _graph(values="gcn"), torch.randn(50, 16)
    return entered(lambda: A @ x)


def _attention() -> list[Stop]:
    A, q = _graph(), torch.randn(2, 50, 16)
    return entered(lambda: gnnsparse.attention(A, q, q, q))


def _accelerate() -> list[Stop]:
    import torch_geometric.nn as pyg

    from gnnsparse.interop.pyg import accelerate

    edges, x = torch.randint(50, (2, 300)), torch.randn(50, 16)
    model = pyg.GCN(16, 32, num_layers=1)
    return entered(lambda: accelerate(model, convert="always")(x, edges))


def _train() -> list[Stop]:
    """Run train.py in a process of its own, without a cache of prepared graphs."""
    with tempfile.TemporaryDirectory() as folder:
        there = {**os.environ, "PYTHONPATH": str(ROOT), "GNNSPARSE_CACHE_DIR": f"{folder}/cache"}
        command = [warm.python(), "-c", "from tests.docs.tour import record_train; record_train()"]
        done = subprocess.run(command, cwd=folder, env=there, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return [Stop(*stop) for stop in json.loads(Path(folder, _RECORDED).read_text())]


def record_train() -> None:
    options = "model=gcn dataset=digits device=cpu trainer.max_epochs=2 trainer.plots=false hydra.run.dir=run"
    script = str(ROOT / "train.py")
    sys.argv = [script, *options.split()]

    def run() -> None:
        try:
            runpy.run_path(script, run_name="__main__")
        except SystemExit as end:
            if end.code:
                raise

    Path(_RECORDED).write_text(json.dumps(entered(run)))


#: What is called for each section of the page.
WAYS = {
    "`A @ x`": _product,
    "`python train.py model=gcn dataset=cora`": _train,
    "`accelerate(model)`": _accelerate,
    "`attention(...)`": _attention,
}


def current(stop: Stop, found: list[Stop]) -> Stop | None:
    """Return where a function is now, of those that were entered; None if there is none or are several."""
    named = {other for other in found if other.name == stop.name}
    here = {other for other in named if other.file == stop.file} or named
    return here.pop() if len(here) == 1 else None


def main() -> int:
    """Write the present places into the page; return 1 if a function is entered no more."""
    text, missing = PAGE.read_text(), []
    for heading, section in sections().items():
        found = WAYS[heading]()
        print(f"{heading}: enters {len(set(found))} functions")

        def place(match: re.Match[str], found: list[Stop] = found) -> str:
            stop = Stop(match[2], int(match[3]), match[4])
            now = current(stop, found)
            if now is None:
                missing.append(stop)
                return match[0]
            return f"{match[1]}`{now.file}:{now.line}` `{now.name}`"

        text = text.replace(section, _STOP.sub(place, section))
    PAGE.write_text(text)
    for stop in missing:
        print(f"{stop.name} of {stop.file} is entered no more", file=sys.stderr)
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
