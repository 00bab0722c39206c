"""Where results come from, and files that are whole or not there."""

from __future__ import annotations

import datetime
import json
import subprocess
from pathlib import Path

import pytest
import torch

import gnnsparse
from gnnsparse.runtime.environment import commit_of, describe_environment, device_name, write_json


def test_a_file_that_can_not_be_written_leaves_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "deep" / "result.json"
    write_json(file, {"a": 1})
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(file, {"a": float("nan")})

    def full(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr("os.replace", full)
    with pytest.raises(OSError, match="disk full"):
        write_json(file, {"a": 2})
    assert json.loads(file.read_text()) == {"a": 1}
    assert [path.name for path in file.parent.iterdir()] == ["result.json"]
    assert file.stat().st_mode & 0o777 == 0o644, "others may read it"


def test_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GNNSPARSE_COMMIT", "abc")
    assert commit_of(tmp_path) == "abc"
    monkeypatch.delenv("GNNSPARSE_COMMIT")
    assert commit_of(tmp_path) is None
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b.c"]
    subprocess.run([*git, "init", "-q"], check=True)
    assert commit_of(tmp_path) is None
    (tmp_path / "file").write_text("1")
    subprocess.run([*git, "add", "."], check=True)
    subprocess.run([*git, "commit", "-q", "-m", "first"], check=True)
    commit = commit_of(tmp_path)
    assert commit is not None
    assert len(commit) == 40
    (tmp_path / "file").write_text("2")
    assert commit_of(tmp_path) == f"{commit}-dirty"


def test_environment() -> None:
    found = describe_environment("cpu")
    assert found["versions"]["gnnsparse"] == gnnsparse.__version__
    assert found["versions"]["torch"] == torch.__version__
    assert datetime.datetime.fromisoformat(found["date"]).utcoffset() == datetime.timedelta(0)
    assert found["device"] == "cpu"
    assert found["device_name"] == device_name("cpu")
    assert found["device_name"]
