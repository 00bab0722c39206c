"""The settings of a training run. Each one checks itself and names its option in what it raises.

What an option accepts is part of its field (`choices_of`, `counts_of`): train.py reads it there.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gnnsparse.environment import DEVICES
from gnnsparse.errors import bad_type, bad_value, check_choice, check_flag, check_integer
from gnnsparse.formats import FORMAT_NAMES
from gnnsparse.preprocess.reorder import REORDERINGS

__all__ = [
    "DECAYS",
    "DEVICES",
    "LOGGERS",
    "SCHEDULES",
    "SECTIONS",
    "OptimizerConfig",
    "PreprocessConfig",
    "TrainerConfig",
    "choices_of",
    "counts_of",
]

#: What `optimizer.decay` accepts.
DECAYS = ("first", "all")
#: What `optimizer.schedule` accepts.
SCHEDULES = ("none", "cosine")
#: What `trainer.logger` accepts.
LOGGERS = ("csv", "tensorboard", "both", "none")


def _choice(default: str, choices: Sequence[str]) -> Any:
    return dataclasses.field(default=default, metadata={"choices": choices})


def _count(default: int) -> Any:
    return dataclasses.field(default=default, metadata={"least": 1})


def choices_of(section: type[Any]) -> dict[str, Sequence[str]]:
    """The options of a settings class that accept names, with the names."""
    fields = dataclasses.fields(section)
    return {f.name: f.metadata["choices"] for f in fields if "choices" in f.metadata}


def counts_of(section: type[Any]) -> dict[str, int]:
    """The options of a settings class that count something, with the least value of each."""
    return {f.name: f.metadata["least"] for f in dataclasses.fields(section) if "least" in f.metadata}


def _check_fields(section: str, settings: Any) -> None:
    """Checks the options that `choices_of` and `counts_of` know."""
    for name, choices in choices_of(type(settings)).items():
        check_choice(f"{section}.{name}", getattr(settings, name), choices)
    for name, least in counts_of(type(settings)).items():
        _integer(f"{section}.{name}", getattr(settings, name), least)


def _integer(name: str, value: Any, least: int = 1) -> None:
    check_integer(name, value, least, f"an integer, at least {least}")


def _number(name: str, value: Any, *, zero: bool) -> None:
    accepted = "a number, 0 or more" if zero else "a number above 0"
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        bad_type(name, value, accepted)
    if not math.isfinite(value) or value < 0 or (value == 0 and not zero):
        bad_value(name, f"got {value}; accepted: {accepted}")


@dataclass(frozen=True)
class OptimizerConfig:
    """Adam (Kingma and Ba 2015).

    Attributes:
        lr: learning rate.
        weight_decay: times a parameter, added to its gradient.
        decay: which parameters that is for: "first", those of the model's first layer, as Kipf and
            Welling have it, or "all".
        schedule: of the learning rate: "none", or "cosine", from `lr` down to 0 at the last epoch.

    Raises:
        TypeError, ValueError: an attribute is not what is accepted.
    """

    lr: float = 0.01
    weight_decay: float = 5e-4
    decay: str = _choice("first", DECAYS)
    schedule: str = _choice("none", SCHEDULES)

    def __post_init__(self) -> None:
        _number("optimizer.lr", self.lr, zero=False)
        _number("optimizer.weight_decay", self.weight_decay, zero=True)
        _check_fields("optimizer", self)


@dataclass(frozen=True)
class TrainerConfig:
    """How long to train, and what to write meanwhile.

    An epoch is one optimiser step on a whole graph, or one on each mini-batch.

    Attributes:
        max_epochs: epochs, those before a checkpoint that is resumed included.
        batch_size: sequences of a step; a step on a whole graph has all nodes.
        val_every: epochs from one validation to the next; the last epoch has one too. The best epoch
            is one of those.
        patience: stop when the validation metric has not improved for this many epochs; None: never.
        logger: "csv", "tensorboard", "both" or "none": where losses and metrics of each epoch go.
        log_every: steps from one write to the loggers to the next: metrics stay on the device until
            then, and a loss that is not finite is found then.
        checkpoint: write checkpoints/last.ckpt, to resume from, and checkpoints/best.ckpt, the
            weights of the best epoch, at the end and meanwhile.
        checkpoint_seconds: meanwhile means: after an epoch, this long after the last time.
        progress: show a progress bar, if the output is a terminal.

    Raises:
        TypeError, ValueError: an attribute is not what is accepted.
    """

    max_epochs: int = _count(200)
    batch_size: int = _count(32)
    val_every: int = _count(1)
    patience: int | None = None
    logger: str = _choice("csv", LOGGERS)
    log_every: int = _count(50)
    checkpoint: bool = True
    checkpoint_seconds: float = 60.0
    progress: bool = True

    def __post_init__(self) -> None:
        _check_fields("trainer", self)
        if self.patience is not None:
            _integer("trainer.patience", self.patience)
        check_flag("trainer.checkpoint", self.checkpoint)
        _number("trainer.checkpoint_seconds", self.checkpoint_seconds, zero=True)
        check_flag("trainer.progress", self.progress)


@dataclass(frozen=True)
class PreprocessConfig:
    """What `gnnsparse.prepare` is asked for; see there.

    Attributes:
        reorder: row order of the operand.
        format: of the operand.
        cache: True: the prepared graph is kept in the user's cache folder; a path: in that folder;
            False: nowhere.

    Raises:
        TypeError, ValueError: an attribute is not what is accepted.
    """

    reorder: str = _choice("none", REORDERINGS)
    format: str = _choice("auto", FORMAT_NAMES)
    cache: bool | str = True

    def __post_init__(self) -> None:
        _check_fields("preprocess", self)
        if not isinstance(self.cache, (bool, str)):
            bad_type("preprocess.cache", self.cache, "true, false or a folder")


#: The groups of options that every task has.
SECTIONS: dict[str, type[Any]] = {
    "trainer": TrainerConfig,
    "optimizer": OptimizerConfig,
    "preprocess": PreprocessConfig,
}
