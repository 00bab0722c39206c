from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hydra.core.config_store import ConfigStore

from gnnsparse.registry import temporary_registrations
from gnnsparse.runtime import device
from tests.gpu_paths import RecordingPath


@pytest.fixture
def dataset_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty data folder for one test, in place of the user's."""
    folder = tmp_path / "dataset-cache"
    monkeypatch.setenv("GNNSPARSE_DATA_DIR", str(folder))
    return folder


@pytest.fixture
def no_questions(monkeypatch: pytest.MonkeyPatch) -> None:
    """A question on the terminal fails the test."""

    def refuse(*_: object) -> str:
        raise AssertionError("asked on the terminal")

    monkeypatch.setattr("builtins.input", refuse)


@pytest.fixture
def recorded() -> Iterator[RecordingPath]:
    """Operands on the CPU take the GPU's path, whose native calls are recorded."""
    path = RecordingPath()
    with device.use(path):
        yield path


@pytest.fixture
def registrations() -> Iterator[None]:
    """Takes out again what a test registers, of hydra's groups, too."""
    repository = ConfigStore.instance().repo
    before = {group: dict(repository.get(group, {})) for group in ("dataset", "model")}
    with temporary_registrations():
        yield
    repository.update(before)
