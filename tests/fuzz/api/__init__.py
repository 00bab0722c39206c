"""Random calls of all that gnnsparse offers in Python, with valid arguments and with senseless ones."""

from __future__ import annotations

import contextlib
import importlib
import warnings
from collections.abc import Callable

import torch

from tests.fuzz import worker
from tests.fuzz.api import env as tools
from tests.fuzz.api import operands, products
from tests.fuzz.api.env import Env
from tests.fuzz.api.junk import junk
from tests.fuzz.api.operands import draw_env
from tests.fuzz.common import Trial

# What is otherwise imported when it is first needed, in every process that runs cases.
for _module in ("pymetis", "safetensors.torch", "scipy.linalg", "scipy.sparse.csgraph", "torch._dynamo"):
    with contextlib.suppress(ImportError):
        importlib.import_module(_module)

#: What is done with an operand, and how often.
_STEPS: tuple[tuple[Callable[[Trial, Env, bool], None], int], ...] = (
    (products.spmm, 12), (products.sddmm, 5), (products.heads, 4), (products.edge_softmax, 4),
    (products.attention, 2), (products.special_values, 1), (operands.orders, 3), (operands.reports, 2),
    (operands.copies, 3), (products.edge_functions, 3), (products.interactions, 1),
)  # fmt: skip
_CHOICES = tuple(step for step, weight in _STEPS for _ in range(weight))


def operand(trial: Trial) -> None:
    """An operand with random options, and a few calls on it under settings that a user may have made."""
    draw = trial.draw
    env = draw_env(trial)
    if env is None:
        return
    for _ in range(draw.integer(2, 14)):
        step = draw.choice(_CHOICES)
        name = draw.choice(("",) * 12 + tuple(tools.MODES))
        trial.mode = tools.MODES[name]
        if name:
            trial.calls.append(f"mode: {name}")
        step(trial, env.transposed() if draw.chance(0.3) else env, name not in tools.QUIET)
        trial.mode = tools.MODES[""]


_CASES: tuple[tuple[Callable[[Trial], None], int], ...] = ((operand, 20), (junk, 10), (operands.graph, 3))
_ALL = tuple(case for case, weight in _CASES for _ in range(weight))


def case(trial: Trial) -> None:
    torch.set_num_threads(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trial.draw.choice(_ALL)(trial)


GENERATOR = worker.Generator("api", case)
