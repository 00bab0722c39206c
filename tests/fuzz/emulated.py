"""The calls of `api` on the path of a GPU, whose kernels native/emulator runs."""

from __future__ import annotations

from functools import cache

from tests import emulated, emulator_build
from tests.fuzz import api, worker
from tests.fuzz.common import Trial

#: Built when the first case runs; a load looks through all sources.
_kernels = cache(emulator_build.load)


def case(trial: Trial) -> None:
    with emulated.running(_kernels()):
        api.case(trial)


GENERATOR = worker.Generator("emulated", case)
