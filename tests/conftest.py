from __future__ import annotations

import collections
import functools
import os
import signal
import zlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

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
from hydra.core.config_store import ConfigStore
from hypothesis import HealthCheck, settings

from gnnsparse import _native
from gnnsparse.registry import temporary_registrations
from gnnsparse.runtime import device as gpu_seam
from tests import emulated, emulator_build
from tests.gpu_paths import RecordingPath, RunningPath

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


@functools.cache
def cuda_problem() -> str | None:
    """Why the CUDA kernels can't run here, or None."""
    if not torch.cuda.is_available():
        return "no NVIDIA GPU"
    if not _native.has_cuda:
        return "gnnsparse was built without its CUDA kernels"
    return None


#: Tests of numbers, which depend on the instruction set: `--sample` leaves none of them out.
NUMERICAL = {"ops", "nn"}


def pytest_addoption(parser: pytest.Parser) -> None:
    help_ = "of the tests that are not numerical, run one in N, always the same"
    parser.addoption("--sample", type=int, default=1, metavar="N", help=help_)
    help_ = "of each test function run at most N cases, always the same; 0: all"
    parser.addoption("--cases", type=int, default=0, metavar="N", help=help_)


def number_of(item: pytest.Item) -> int:
    """A number that a test has in every run."""
    return zlib.crc32(item.nodeid.encode())


def left_out(items: list[pytest.Item], sample: int, cases: int) -> set[pytest.Item]:
    out = {item for item in items if item.path.parent.name not in NUMERICAL and number_of(item) % sample}
    if cases:
        functions = collections.defaultdict(list)
        for item in items:
            functions[item.path, item.originalname].append(item)
        for found in functions.values():
            out.update(sorted(found, key=number_of)[cases:])
    return out


def pytest_itemcollected(item: pytest.Item) -> None:
    if item.path.parent.name == "e2e" or "built" in getattr(item, "fixturenames", ()):
        item.add_marker(pytest.mark.slow)
    if item.get_closest_marker("gpu") and (problem := cuda_problem()) is not None:
        item.add_marker(pytest.mark.skip(reason=problem))


@pytest.hookimpl(trylast=True)  # after those that `-m` and `-k` leave out
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    out = left_out(items, config.getoption("sample"), config.getoption("cases"))
    if out:
        config.hook.pytest_deselected(items=[item for item in items if item in out])
        items[:] = [item for item in items if item not in out]


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


@pytest.fixture
def any_threads() -> Iterator[None]:
    """A test may set the number of threads; afterwards it is what it was."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


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
    with gpu_seam.use(path):
        yield path


@pytest.fixture
def registrations() -> Iterator[None]:
    """Takes out again what a test registers, of hydra's groups, too."""
    repository = ConfigStore.instance().repo
    before = {group: dict(repository.get(group, {})) for group in ("dataset", "model")}
    with temporary_registrations():
        yield
    repository.update(before)


@pytest.fixture(scope="session")
def built() -> ModuleType:
    """The emulated kernels, built once for all tests."""
    return emulator_build.load()


@pytest.fixture
def one_thread(any_threads: None) -> None:
    """Matrices are small here: threads of torch that wait for one another take longer than their work."""
    torch.set_num_threads(1)


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
