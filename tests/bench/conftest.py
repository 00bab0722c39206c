from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gnnsparse.cli.main import main
from tests.bench.runs import Run


@pytest.fixture
def bench(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs `gnnsparse bench WORDS`; returns what it prints and the result that it writes."""

    def run(*words: str, status: int = 0) -> tuple[str, Any]:
        out = tmp_path / "deep" / "result.json"
        assert main(["bench", *" ".join(words).split(), "--out", str(out)]) == status
        text = out.read_text()
        assert str(tmp_path) not in text, "results are kept in a repository"
        return capsys.readouterr().out, json.loads(text)

    return run
