"""Where operations are tested: on a CPU, by the CUDA sources run on the CPU, and on a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import strategies as st

from gnnsparse import SparseGraph, _native
from gnnsparse.testing import random_graph
from tests import emulated
from tests.gpu_paths import RunningPath
from tests.helpers import PRECISIONS


@dataclass
class Place:
    """The device of the tensors, and the path of emulated kernels; None: they are native ones."""

    device: str
    path: RunningPath | None = None

    def ran(self, *names: str) -> bool:
        """Whether these native functions were called, which is known of emulated ones alone."""
        return self.path is None or self.path.called >= set(names)


def graphs(
    rows: int, cols: int, densities: tuple[float, ...] = (0.0, 0.02, 0.3, 1.0), **options: Any
) -> st.SearchStrategy[SparseGraph]:
    """Random graphs, with the seed of the test's tensors; options are random_graph's, or strategies."""

    def make(rows: int, cols: int, density: float, seed: int, **options: Any) -> SparseGraph:
        torch.manual_seed(seed)
        return random_graph(rows, cols, density, seed=seed, **options)

    given = {k: o if isinstance(o, st.SearchStrategy) else st.just(o) for k, o in options.items()}
    sizes = st.integers(1, rows), st.integers(1, cols)
    return st.builds(make, *sizes, st.sampled_from(densities), st.integers(0, 2**20), **given)


def _enter(request: pytest.FixtureRequest) -> Iterator[Place]:
    if request.param in ("cpu", "cuda"):
        yield Place(request.param)
        return
    request.getfixturevalue("one_thread")
    module = request.getfixturevalue("built")
    module.set_late(request.param == "late")
    before = module.copies_started()
    with emulated.running(module) as path:
        yield Place("cpu", path)
    assert request.fixturename != "cuda_place" or module.copies_started() == before


_GPU = pytest.param("cuda", marks=pytest.mark.gpu)
_AT_ONCE, _LATE = (pytest.param(name, marks=pytest.mark.slow) for name in ("at once", "late"))


@pytest.fixture(params=PRECISIONS)
def precision(request: pytest.FixtureRequest) -> str:
    """Each precision that every kernel takes, in tests that name no others."""
    return request.param


@pytest.fixture(params=["portable", "avx2", "avx512"])
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    """The instruction set that CPU kernels run with, of those that this machine has."""
    if not _native.set_cpu_isa(request.param):
        pytest.skip(f"this machine has no {request.param}")
    yield request.param
    _native.set_cpu_isa("auto")


def _places(name: str, *params: Any) -> Any:
    @pytest.fixture(name=name, params=params)
    def places(request: pytest.FixtureRequest) -> Iterator[Place]:
        yield from _enter(request)

    return places


#: A CPU, emulated kernels, and a GPU; for kernels that copy nothing asynchronously.
place = _places("place", "cpu", _LATE, _GPU)
#: A CPU, emulated kernels whose copies are done at once or late, and a GPU.
anywhere = _places("anywhere", "cpu", _AT_ONCE, _LATE, _GPU)
#: Emulated kernels, with copies to shared memory at once or when they are waited for, and a GPU.
gpu_place = _places("gpu_place", _AT_ONCE, _LATE, _GPU)
#: Emulated kernels, with copies when they are waited for, and a GPU.
late_place = _places("late_place", _LATE, _GPU)
#: Emulated kernels that copy nothing asynchronously, and a GPU.
cuda_place = _places("cuda_place", _LATE, _GPU)
