from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.e2e.started import Run, Started
from tests.warm import ROOT


def environment_with(cache: Path, **more: str) -> dict[str, str]:
    """The environment of a run, with a cache."""
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        "GNNSPARSE_CACHE_DIR": str(cache),
        "GNNSPARSE_DATA_DIR": str(cache / "data"),
        "OMP_NUM_THREADS": "1",  # what else the machine does then costs least
        "HYDRA_FULL_ERROR": "0",
        **more,
    }


@pytest.fixture(scope="module")
def train(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Run]:
    """Runs train.py with options, `fresh` in a new interpreter; all runs share a cache."""
    cache = tmp_path_factory.mktemp("cache")

    def run(
        *options: str, folder: Path | None = None, own_folder: bool = False, fresh: bool = False, **more: str
    ) -> Run:
        folder = folder or tmp_path_factory.mktemp("run")
        environment = environment_with(cache, **more)
        if not any(option.startswith(("trainer.plots=", "mode=predict")) for option in options):
            options = (*options, "trainer.plots=false")  # they take half a second
        own_folder |= "--help" in options or "-m" in options
        where = [] if own_folder else [f"hydra.run.dir={folder}"]
        return Started([*options, *where], folder, environment, fresh).wait()

    return run


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Started]]:
    """Starts train.py with options in a folder, and returns without waiting for its end."""
    environment, begun = environment_with(tmp_path_factory.mktemp("cache")), []

    def begin(*options: str, folder: Path, change: str = "") -> Started:
        begun.append(Started(list(options), folder, environment, change=change))
        return begun[-1]

    yield begin
    for process in begun:  # of a test that has failed
        process.kill()
