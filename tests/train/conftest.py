from __future__ import annotations

import pytest

from tests.tasks import PlainRecorder, run_in_chunks


@pytest.fixture
def in_chunks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> list[PlainRecorder]:
    """Runs go in chunks; on the CPU stand-ins call what a graph would replay, and are returned."""
    if request.node.get_closest_marker("gpu"):
        return []
    return run_in_chunks(monkeypatch, lambda module, data: data.capture_obstacle(module))
