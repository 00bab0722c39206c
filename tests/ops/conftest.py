"""Where operations are tested: on a CPU, by the CUDA sources run on the CPU, and on a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests import emulated
from tests.gpu_paths import RunningPath


@dataclass
class Place:
    """The device of the tensors, and the path of emulated kernels; None: they are native ones."""

    device: str
    path: RunningPath | None = None

    def ran(self, *names: str) -> bool:
        """Whether these native functions were called, which is known of emulated ones alone."""
        return self.path is None or self.path.called >= set(names)


def _enter(request: pytest.FixtureRequest) -> Iterator[Place]:
    if request.param in ("cpu", "cuda"):
        yield Place(request.param)
        return
    request.getfixturevalue("one_thread")
    module = request.getfixturevalue("built")
    module.set_late(request.param == "late")
    with emulated.running(module) as path:
        yield Place("cpu", path)


_GPU = pytest.param("cuda", marks=pytest.mark.gpu)
_AT_ONCE, _LATE = (pytest.param(name, marks=pytest.mark.slow) for name in ("at once", "late"))


@pytest.fixture(params=["cpu", _LATE, _GPU])
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    """A CPU, emulated kernels, and a GPU; for kernels that copy nothing asynchronously."""
    yield from _enter(request)


@pytest.fixture(params=[_AT_ONCE, _LATE, _GPU])
def gpu_place(request: pytest.FixtureRequest) -> Iterator[Place]:
    """Emulated kernels, with copies to shared memory at once or when they are waited for, and a GPU."""
    yield from _enter(request)


@pytest.fixture(params=[_LATE, _GPU])
def cuda_place(request: pytest.FixtureRequest) -> Iterator[Place]:
    """Emulated kernels that copy nothing asynchronously, and a GPU."""
    yield from _enter(request)
