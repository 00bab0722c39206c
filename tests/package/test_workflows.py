"""Workflows of CI and of a release, and the dev container: they are valid, and call what exists."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
ROOT = Path(__file__).resolve().parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def load(name: str) -> dict[str, Any]:
    """A workflow; YAML reads its key `on` as true."""
    content: dict[str, Any] = yaml.safe_load((ROOT / ".github" / "workflows" / f"{name}.yml").read_text())
    return content


def pythons() -> list[str]:
    """The versions of Python that the package says it supports."""
    return re.findall(r"Programming Language :: Python :: (3\.\d+)", (ROOT / "pyproject.toml").read_text())


def problems(command: str) -> Iterator[str]:
    """What in a shell command is not there: syntax, scripts and targets of make."""
    done = subprocess.run(["bash", "-n"], input=command, capture_output=True, text=True, check=False)
    yield from done.stderr.splitlines()
    targets = re.findall(r"^([a-z][\w-]*(?: [\w-]+)*):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for target in re.findall(r"\bmake ((?:[a-z][\w-]*)?)", command):
        if target not in " ".join(targets).split():
            yield f"make has no target {target!r}"
    for script in re.findall(r"(?<![\w/])((?:\.ci|scripts)/[\w.]+)", command):
        if not (ROOT / script).is_file() or not (ROOT / script).stat().st_mode & 0o100:
            yield f"{script} is not there, or can't be executed"


@pytest.mark.parametrize(
    ("command", "problem"),
    [
        ("make wheel", ""),
        ("make nothing", "no target 'nothing'"),
        ("scripts/check_wheel.py dist", "can't be executed"),
        ("scripts/none.sh", "is not there"),
        ("if true; do", "syntax error"),
    ],
)
def test_what_a_command_lacks_is_found(command: str, problem: str) -> None:
    found = list(problems(command))
    assert problem in " ".join(found) if problem else found == []


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_is_valid_and_calls_what_exists(path: Path) -> None:
    workflow = load(path.stem)
    assert workflow.keys() == {"name", True, "permissions", "jobs"} | workflow.keys() & {"concurrency"}
    assert workflow["permissions"] == {"contents": "read"}
    for name, job in workflow["jobs"].items():
        assert {"runs-on", "steps"} <= job.keys()
        assert {job.get("needs", name)} <= workflow["jobs"].keys()
        for step in job["steps"]:
            (kind,) = {"run", "uses"} & step.keys()
            if kind == "run":
                assert list(problems(step["run"])) == []
            else:
                assert re.fullmatch(r"[\w-]+/[\w-]+@(v\d+|release/v\d+)", step["uses"])
        given = {**job.get("strategy", {}).get("matrix", {})}
        known = {*given, *(key for case in given.get("include", []) for key in case)}
        assert {*re.findall(r"matrix\.(\w+)", json.dumps(job))} <= known


def test_ci_runs_what_a_developer_runs_with_each_python() -> None:
    (job,) = load("ci")["jobs"].values()
    assert [step["run"] for step in job["steps"] if "run" in step] == [".ci/run"]
    assert job["strategy"]["matrix"]["python"] == pythons()


def test_a_release_has_a_wheel_for_each_python_and_processor_and_tries_it() -> None:
    jobs = load("release")["jobs"]
    paths = jobs["build"]["env"]["PYTHONS"].split()
    tags = ["cp" + python.replace(".", "") for python in pythons()]
    assert paths == [f"/opt/python/{tag}-{tag}/bin/python" for tag in tags]
    assert jobs["build"]["env"]["PYTHON"] in paths
    (minors,) = re.findall(r"for minor in ([\d ]+);", (ROOT / "Makefile").read_text())
    assert [f"3.{minor}" for minor in minors.split()] == pythons()  # what make wheel looks for
    tried = jobs["try"]["strategy"]["matrix"]
    assert tried["python"] == pythons()
    built = [case["processor"] for case in jobs["build"]["strategy"]["matrix"]["include"]]
    assert tried["processor"] == built == ["x86_64", "aarch64"]


def test_what_publishes_does_nothing_else_and_has_no_password() -> None:
    jobs = load("release")["jobs"]
    assert jobs["publish"]["needs"] == "try"
    assert [name for name, job in jobs.items() if "id-token" in job.get("permissions", {})] == ["publish"]
    assert not any("run" in step for step in jobs["publish"]["steps"])
    text = (ROOT / ".github" / "workflows" / "release.yml").read_text()
    assert not re.search(r"secrets\.|password:|https?://", text)


def test_the_dev_container_sets_itself_up() -> None:
    container = json.loads((ROOT / ".devcontainer" / "devcontainer.json").read_text())
    assert container["postCreateCommand"] == "make train"
    assert list(problems(container["postCreateCommand"])) == []
    image, tag = container["image"].split(":")
    assert image == "python"
    assert tag.split("-")[0] in pythons()
