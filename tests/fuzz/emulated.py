"""The calls of `api` on the path of a GPU, whose kernels native/emulator runs."""

from __future__ import annotations

from tests import emulated, emulator_build
from tests.fuzz import api, worker
from tests.fuzz.common import Trial


def case(trial: Trial) -> None:
    with emulated.running(emulator_build.load()):
        api.case(trial)


GENERATOR = worker.Generator("emulated", case)
