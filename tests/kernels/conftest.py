"""The emulated kernels, built once for all tests."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType

import pytest
import torch

from tests import emulated, emulator_build
from tests.gpu_paths import RunningPath


@pytest.fixture(scope="session")
def built() -> ModuleType:
    return emulator_build.load()


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Matrices are small here: threads of torch that wait for one another take longer than their work."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(params=["at once", "late"])
def module(request: pytest.FixtureRequest, one_thread: None, built: ModuleType) -> ModuleType:
    """With copies to shared memory done at once, or when they are waited for."""
    built.set_late(request.param == "late")
    return built


@pytest.fixture
def late(one_thread: None, built: ModuleType) -> ModuleType:
    built.set_late(True)
    return built


@pytest.fixture
def native(module: ModuleType) -> Iterator[RunningPath]:
    """Products on the path of a GPU, with copies at once and late."""
    with emulated.running(module) as path:
        yield path


@pytest.fixture
def copyless(late: ModuleType) -> Iterator[RunningPath]:
    """Products on the path of a GPU by kernels that copy nothing asynchronously, which is made sure of."""
    before = late.copies_started()
    with emulated.running(late) as path:
        yield path
    assert late.copies_started() == before
