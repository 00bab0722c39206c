"""Where the tests of sampling run: on the CPU, on the emulator's kernels, on a GPU."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

import pytest

from tests import emulated
from tests.gpu_paths import RunningPath

EMULATED = pytest.param("emulated", marks=pytest.mark.slow)
CUDA = pytest.param("cuda", marks=pytest.mark.gpu)


class Place(NamedTuple):
    """The device of tensors; inside `running` operands take its path, which is given if it is emulated."""

    device: str
    running: Callable[[], AbstractContextManager[RunningPath | None]]


@pytest.fixture(params=["cpu", EMULATED, CUDA])
def place(request: pytest.FixtureRequest) -> Place:
    if request.param == "emulated":
        return Place("cpu", functools.partial(emulated.running, request.getfixturevalue("late")))
    return Place(request.param, nullcontext)


#: For tests that compare a GPU with the CPU.
ON_GPU = pytest.mark.parametrize("place", [EMULATED, CUDA], indirect=True)


@pytest.fixture(params=["cpu", EMULATED])
def path(request: pytest.FixtureRequest) -> RunningPath | None:
    """The path of the CPU, or that of a GPU with emulated kernels."""
    return request.getfixturevalue("copyless") if request.param == "emulated" else None
