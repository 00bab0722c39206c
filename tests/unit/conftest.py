from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gnnsparse import cuda_path
from tests.gpu_paths import RecordingPath


@pytest.fixture
def dataset_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty data folder for one test, in place of the user's."""
    folder = tmp_path / "dataset-cache"
    monkeypatch.setenv("GNNSPARSE_DATA_DIR", str(folder))
    return folder


@pytest.fixture
def recorded() -> Iterator[RecordingPath]:
    """Operands on the CPU take the GPU's path, whose native calls are recorded."""
    path = RecordingPath()
    with cuda_path.use(path):
        yield path
