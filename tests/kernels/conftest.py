"""The emulated kernels, built once for all files."""

from __future__ import annotations

from types import ModuleType

import pytest

from tests import emulator_build


@pytest.fixture(scope="session")
def built() -> ModuleType:
    return emulator_build.load()


@pytest.fixture(params=["at once", "late"])
def module(request: pytest.FixtureRequest, built: ModuleType) -> ModuleType:
    """With copies to shared memory done at once, or when they are waited for."""
    built.set_late(request.param == "late")
    return built


@pytest.fixture
def late(built: ModuleType) -> ModuleType:
    built.set_late(True)
    return built
