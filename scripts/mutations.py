"""Change one operator, constant or branch of the package at a time, and see whether the tests notice.

Two trees are compared, such as a commit and a later one in which code and tests have moved. A mutation is
drawn from the statements that both have, each exactly once, and is tried in each tree with that tree's tests.

    python scripts/mutations.py record --tree OLD --out old.calls.json    # which tests call which functions
    python scripts/mutations.py record --tree NEW --out new.calls.json
    python scripts/mutations.py draw --trees OLD NEW --count 120 --seed 0 --out drawn.json
    python scripts/mutations.py run --tree OLD --calls old.calls.json --drawn drawn.json --out old.json
    python scripts/mutations.py run --tree NEW --calls new.calls.json --drawn drawn.json --out new.json

`run` writes to the tree, and writes the former text back. Use trees that nobody works in, with an environment
of their own (`make .venv/.dev`), in Python 3.11 or newer.
"""

from __future__ import annotations

import argparse
import ast
import collections
import contextlib
import json
import os
import random
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SWAPS: dict[type, str] = {
    ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==", ast.Is: "is not",
    ast.IsNot: "is", ast.In: "not in", ast.NotIn: "in", ast.Add: "-", ast.Sub: "+", ast.Mult: "+",
    ast.FloorDiv: "*", ast.Div: "*", ast.Mod: "*", ast.And: "or", ast.Or: "and",
}  # fmt: skip

#: A pytest plugin that notes, for each test file, the package's functions that it calls.
PLUGIN = """
import collections, json, os, sys, time, pytest
ROOT, OUT = os.environ["MUTATIONS_ROOT"], os.environ["MUTATIONS_OUT"]
called, seconds, now, failed = collections.defaultdict(set), collections.Counter(), [None], set()
saved = [0.0]
def note(frame, event, argument):
    if event == "call" and now[0] is not None:
        code = frame.f_code
        if code.co_filename.startswith(ROOT):
            called[now[0]].add("gnnsparse/" + code.co_filename[len(ROOT):] + "::" + code.co_qualname)
@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    now[0] = str(item.path.relative_to(item.config.rootpath))
    sys.setprofile(note)
    try:
        return (yield)
    finally:
        sys.setprofile(None)
        if time.monotonic() > saved[0] + 10:
            save()
def pytest_runtest_logreport(report):
    seconds[report.location[0]] += report.duration
    if report.failed:
        failed.add(report.nodeid)
def pytest_collectreport(report):
    if report.failed:
        failed.add(report.nodeid)
def save():  # a run that is ended before its last test has noted what it ran
    name = OUT + "." + os.environ.get("PYTEST_XDIST_WORKER", "main")
    with open(name, "w") as file:
        found = {k: sorted(v) for k, v in called.items()}
        json.dump({"called": found, "seconds": seconds, "failed": sorted(failed)}, file)
    saved[0] = time.monotonic()
def pytest_sessionfinish(session):
    save()
"""


def places(tree: Path) -> dict[tuple[str, str, int], dict[str, Any]]:
    """Return what can be changed in a tree, of statements that it has exactly once.

    Keys are the statement's text, the kind of change and its number among those of one kind in the statement.
    """
    found: dict[tuple[str, str, int], list[dict[str, Any]]] = collections.defaultdict(list)
    for path in sorted((tree / "gnnsparse").rglob("*.py")):
        source = path.read_text()
        for function, statement in _statements(ast.parse(source), ""):
            numbers: collections.Counter[str] = collections.Counter()
            for kind, node, text in _changes(statement, source):
                span = [node.lineno, node.col_offset, node.end_lineno, node.end_col_offset]
                file = str(path.relative_to(tree))
                place = {"file": file, "function": function, "text": text, "span": span}
                found[ast.unparse(_head(statement)), kind, numbers[kind]].append(place)
                numbers[kind] += 1
    return {key: given[0] for key, given in found.items() if len(given) == 1}


def _statements(node: ast.AST, function: str) -> Iterator[tuple[str, ast.stmt]]:
    """Yield the statements of functions, with the qualified names of these."""
    for child in ast.iter_child_nodes(node):
        inside = function
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            inner = ".<locals>." if isinstance(node, ast.FunctionDef) else "." if function else ""
            inside = function + inner + child.name
        elif isinstance(child, ast.stmt) and function:
            yield function, child
        yield from _statements(child, inside)


def _head(statement: ast.stmt) -> ast.AST:
    """Return a statement without its body, whose statements have changes of their own."""
    if not hasattr(statement, "body") and not hasattr(statement, "cases"):
        return statement
    return getattr(statement, "test", None) or getattr(statement, "iter", None) or ast.Pass()


def _changes(statement: ast.stmt, source: str) -> Iterator[tuple[str, ast.expr, str]]:
    """Yield the changes of a statement: kind, the expression, and the text that takes its place."""
    if isinstance(statement, (ast.If, ast.While)):
        yield "branch", statement.test, f"(not ({ast.get_source_segment(source, statement.test)}))"
    for node in ast.walk(_head(statement)):
        if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in SWAPS:
            sides = [node.left, node.comparators[0]]
            yield "comparison", node, _joined(source, sides, SWAPS[type(node.ops[0])])
        elif (
            isinstance(node, ast.BinOp) and type(node.op) in SWAPS and not isinstance(node.left, ast.Constant)
        ):
            yield "operator", node, _joined(source, [node.left, node.right], SWAPS[type(node.op)])
        elif isinstance(node, ast.BoolOp):
            yield "connective", node, _joined(source, node.values, SWAPS[type(node.op)])
        elif isinstance(node, ast.Constant) and type(node.value) is int:
            yield "constant", node, f"({node.value} + 1)"
        elif isinstance(node, ast.Constant) and type(node.value) is bool:
            yield "constant", node, str(not node.value)


def _joined(source: str, parts: list[ast.expr], operator: str) -> str:
    return "(" + f" {operator} ".join(f"({ast.get_source_segment(source, part)})" for part in parts) + ")"


def python_of(tree: Path) -> str:
    """Return the interpreter of a tree's own environment, in which its package is installed, or this one."""
    own = tree.resolve() / ".venv" / "bin" / "python"
    return str(own) if own.exists() else sys.executable


def paths_of(*folders: Path) -> str:
    """Return a PYTHONPATH with folders before what it has."""
    return os.pathsep.join([*(str(f.resolve()) for f in folders), os.environ.get("PYTHONPATH", "")])


def changed(source: str, span: list[int], text: str) -> str:
    """Return the source with another text at a span of lines and byte columns, as ast counts them."""
    lines = source.encode().splitlines(keepends=True)
    first, start, last, end = span
    middle = lines[first - 1][:start] + text.encode() + lines[last - 1][end:]
    return b"".join([*lines[: first - 1], middle, *lines[last:]]).decode()


def record(tree: Path, out: Path, limit: float | None, arguments: list[str]) -> None:
    """Run the tests of a tree once, `limit` seconds at most, and note which functions each file calls."""
    plugin = out.with_name("mutations_plugin.py")
    plugin.write_text(PLUGIN)
    environment = dict(
        os.environ,
        PYTHONPATH=paths_of(plugin.parent, tree),
        MUTATIONS_OUT=str(out.resolve()),
        MUTATIONS_ROOT=f"{tree.resolve()}/gnnsparse/",
    )
    command = [python_of(tree), "-m", "pytest", "-q", "-p", plugin.stem, *arguments]
    with contextlib.suppress(subprocess.TimeoutExpired):
        subprocess.run(command, cwd=tree, env=environment, check=False, timeout=limit)
    called, failed = collections.defaultdict(set), set()
    seconds: collections.Counter[str] = collections.Counter()
    for part in out.parent.glob(out.name + ".*"):
        content = json.loads(part.read_text())
        seconds.update(content["seconds"])
        failed.update(content["failed"])
        for test, functions in content["called"].items():
            called[test].update(functions)
        part.unlink()
    by_test = {k: sorted(v) for k, v in called.items()}
    found = {"called": by_test, "seconds": seconds, "failed": sorted(failed)}
    out.write_text(json.dumps(found, indent=1))


def draw(trees: list[Path], count: int, seed: int, out: Path) -> None:
    """Draw mutations that all trees can have."""
    known = [places(tree) for tree in trees]
    shared = sorted(set.intersection(*(set(k) for k in known)))
    chosen = random.Random(seed).sample(shared, count)
    rows = []
    for key in chosen:
        where = {str(tree): places_of[key] for tree, places_of in zip(trees, known, strict=True)}
        rows.append({"statement": key[0], "kind": key[1], "places": where})
    out.write_text(json.dumps(rows, indent=1))
    print(f"{count} of {len(shared)} that {len(trees)} trees share")


def run(tree: Path, calls: Path, drawn: Path, out: Path, limit: float, arguments: list[str]) -> None:
    """Try each mutation in a tree, with the test files that call the changed function, the quickest first.

    Tests that failed while the calls were recorded, without a mutation, are left out.
    """
    noted, results = json.loads(calls.read_text()), []
    failed = [f"--deselect={test}" for test in noted["failed"]]
    for mutation in json.loads(drawn.read_text()):
        place = mutation["places"][str(tree)]
        name = f"{place['file']}::{place['function']}"
        calling = (t for t, f in noted["called"].items() if name in f and t not in noted["failed"])
        tests = sorted(calling, key=noted["seconds"].__getitem__)
        path, outcome, by = tree / place["file"], "survived" if tests else "not called", None
        former = path.read_text()
        path.write_text(changed(former, place["span"], place["text"]))
        try:
            if tests:  # in one process, which ends at the first failure
                command = [python_of(tree), "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider"]
                environment = dict(os.environ, PYTHONPATH=paths_of(tree))
                done = subprocess.run(
                    [*command, *tests, *failed, *arguments], cwd=tree, env=environment, capture_output=True,
                    text=True, timeout=limit, check=False,
                )  # fmt: skip
                if done.returncode not in (0, 5):
                    outcome, by = "caught", re.findall(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
        except subprocess.TimeoutExpired:
            outcome = "survived within the limit"
        finally:
            path.write_text(former)
        results.append({**mutation, "places": None, "file": place["file"], "outcome": outcome, "by": by})
        out.write_text(json.dumps(results, indent=1))
        print(f"{outcome}: {name}: {mutation['kind']} of {mutation['statement'][:80]!r}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("do", choices=("record", "draw", "run"))
    parser.add_argument("--tree", type=Path, help="of record and run")
    parser.add_argument("--trees", type=Path, nargs="+", help="of draw")
    parser.add_argument("--calls", type=Path, help="what record wrote")
    parser.add_argument("--drawn", type=Path, help="what draw wrote")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--count", type=int, default=120)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limit", type=float, help="seconds of tests, of record or for each mutation")
    args, rest = parser.parse_known_args()
    if args.do == "record":
        record(args.tree, args.out, args.limit, rest)
    elif args.do == "draw":
        draw(args.trees, args.count, args.seed, args.out)
    else:
        run(args.tree, args.calls, args.drawn, args.out, args.limit or 900, rest)


if __name__ == "__main__":
    main()
