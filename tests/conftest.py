from __future__ import annotations

import os
import signal
import zlib
from collections.abc import Iterator
from pathlib import Path

# Before torch is imported. The test processes share the cores; the tests of threads ask for theirs.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# A pool of processes takes longer to start than to compile the few kernels of the tests.
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")

# A shell starts what runs in its background with SIGINT ignored, and processes hand that on: tests of Ctrl-C,
# and the runs that they start, need the signal.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

import pytest
import torch
from hypothesis import HealthCheck, settings

from gnnsparse import _native

# A folder that a group can write to is warned of when it is a cache, and warnings are errors.
os.umask(os.umask(0o022) | 0o022)

settings.register_profile(
    "default",
    deadline=None,
    derandomize=bool(os.environ.get("CI")),
    max_examples=40,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.load_profile("default")


def cuda_problem() -> str | None:
    """Why the CUDA kernels can't run here, or None."""
    if not torch.cuda.is_available():
        return "no NVIDIA GPU"
    if not _native.has_cuda:
        return "gnnsparse was built without its CUDA kernels"
    return None


#: Tests of numbers, which depend on the instruction set: `--sample` leaves none of them out.
NUMERICAL = {"kernels", "parity"}


def pytest_addoption(parser: pytest.Parser) -> None:
    help_ = "of the tests that are not numerical, run one in N, always the same"
    parser.addoption("--sample", type=int, default=1, metavar="N", help=help_)


def is_sampled(item: pytest.Item, sample: int) -> bool:
    return item.path.parent.name in NUMERICAL or zlib.crc32(item.nodeid.encode()) % sample == 0


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    left_out = [item for item in items if not is_sampled(item, config.getoption("sample"))]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if is_sampled(item, config.getoption("sample"))]
    problem = cuda_problem()
    for item in items:
        if item.path.parent.name == "e2e" or "built" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.slow)
        if problem is not None and item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason=problem))


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keeps the tests out of the user's cache."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("GNNSPARSE_CACHE_DIR", str(folder))
    return folder


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(int(os.environ.get("GNNSPARSE_TEST_SEED", "0")))


@pytest.fixture
def poisoned() -> Iterator[None]:
    """New memory holds NaN, so that an element nobody wrote shows."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    fill = torch.utils.deterministic.fill_uninitialized_memory
    torch.utils.deterministic.fill_uninitialized_memory = True
    yield
    torch.utils.deterministic.fill_uninitialized_memory = fill
    torch.use_deterministic_algorithms(False)
