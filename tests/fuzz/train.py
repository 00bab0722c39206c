"""Random options and command lines of train.py, which are accepted as they are, or refused by name."""

from __future__ import annotations

import contextlib
import copy
import functools
import traceback
from pathlib import Path
from typing import Any

import hydra
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

import train
from gnnsparse.data import CATALOG
from models import MODELS
from tests.configs import composed
from tests.fuzz import worker
from tests.fuzz.common import Trial

#: Values that suit few options, or none.
JUNK: list[Any] = [
    None, True, False, 0, 1, -1, 2, 0.5, 1.0, -0.0, 1e-30, 1e300, float("inf"), float("nan"), 2**31 - 1,
    2**31, 2**63, 10**400, -(10**30), "", " ", "x", "none", "fp32", "0", "1e3", "null", "a: b", "a,b", "../x",
    "\0", "é", "x" * 5000, "${seed}", "${nothing}", "???", [], [1, 2], {}, {"name": "x"}, {"a": {"b": 1}},
]  # fmt: skip
#: Values that one or another option accepts.
FITTING: list[Any] = [
    1, 2, 3, 4, 8, 16, 0.0, 0.1, 0.25, 0.5, True, False, None, "none", "all", "first", "layer", "batch",
    "cosine", "csv", "both", "csr", "auto", "rcm", "degree", "mean", "relu", "gelu",
]  # fmt: skip


def refused_by_hydra(error: Exception) -> bool:
    """Whether hydra raised an error, or OmegaConf: they name what they know, and have faults of their own."""
    inner = traceback.extract_tb(error.__traceback__)[-1].filename
    known = isinstance(error, (HydraException, OmegaConfBaseException))
    return known or Path(inner).is_relative_to(Path(hydra.__file__).parent)


@functools.cache
def base(model: str, data: str) -> DictConfig:
    return composed(f"model={model}", f"dataset={data}")


def options(trial: Trial) -> DictConfig:
    """The options of one of the models, with a data set for its task."""
    model = trial.draw.choice(list(MODELS))
    data = [name for name, entry in CATALOG.items() if entry.task == MODELS[model].task]
    return copy.deepcopy(base(model, trial.draw.choice(data)))


def keys(cfg: DictConfig) -> list[str]:
    content: Any = OmegaConf.to_container(cfg, resolve=False)
    groups = {name: value for name, value in content.items() if isinstance(value, dict)}
    return [*map(str, content), *(f"{group}.{name}" for group, value in groups.items() for name in value)]


def option_case(trial: Trial) -> None:
    """Options of any type are accepted as they are, or refused with their name, before data is loaded."""
    draw = trial.draw
    cfg, changed = options(trial), []
    OmegaConf.set_struct(cfg, False)
    for _ in range(draw.integer(1, 3)):
        option = draw.choice(keys(cfg))
        value = draw.choice(FITTING if draw.chance(0.5) else JUNK)
        how = draw.choice(["set", "set", "set", "set", "remove", "add"])
        group, _, name = option.rpartition(".")
        if how == "remove":
            del (OmegaConf.select(cfg, group) if group else cfg)[name]
        else:
            option = f"{group}.more" if how == "add" and group else option
            with contextlib.suppress(OmegaConfBaseException):  # a value that OmegaConf can't hold
                OmegaConf.update(cfg, option, value, merge=False)
        changed.append(f"{how} {option}={str(value)[:60]!r}")
    OmegaConf.set_struct(cfg, True)
    trial.attempt(f"options {'; '.join(changed)}", lambda: checked(cfg))


def checked(cfg: DictConfig) -> Any:
    train.check_quickly(cfg)
    settings = train.read_settings(cfg)
    from gnnsparse.train.tasks import TASKS

    task = TASKS[TASKS.check(train.task_name(cfg))]
    task.check(settings)
    for name in ("max_epochs", "batch_size", "val_every", "log_every"):
        assert getattr(settings.trainer, name) == cfg.trainer.get(name, getattr(settings.trainer, name)), name
    assert (settings.seed, settings.precision) == (cfg.seed, cfg.precision)
    return train.identity_of(cfg, task, settings)


def command_case(trial: Trial) -> None:
    """A command line, as a user types it, is refused by hydra, refused by train.py, or accepted."""
    draw, words = trial.draw, []
    names = keys(base("gcn", "digits"))
    for _ in range(draw.integer(1, 3)):
        option = draw.choice([*names, "model", "dataset", "hydra.run.dir", "nothing"])
        value = draw.choice(
            [*map(str, FITTING), *map(str, JUNK), "gcn", "digits", "'quoted", "[1,", "{", "$x"]
        )
        words.append(f"{draw.choice(['', '+', '++', '~'])}{option}={value}")
    cfg = trial.attempt(f"command {words}", lambda: composed(*words), refused_by_hydra)
    if cfg is not None:
        trial.attempt(f"options of {words}", lambda: checked(cfg))


#: One case in 13 is a command line.
_DECK = [*[option_case] * 12, command_case]

GENERATOR = worker.Generator(
    "train", lambda trial: trial.draw.choice(_DECK)(trial),
    case_seconds=120.0, batch_seconds=20.0, memory=3 << 30,
)  # fmt: skip
