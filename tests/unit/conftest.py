from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def dataset_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty data folder for one test, in place of the user's."""
    folder = tmp_path / "dataset-cache"
    monkeypatch.setenv("GNNSPARSE_DATA_DIR", str(folder))
    return folder
