"""Checks of train.py's options that need no data, and none of the imports that take many seconds."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from launch.words import is_begun, is_sweep

__all__ = ["check_quickly", "choices"]

#: Values of the option `mode`.
MODES = ("train", "predict")
#: Values of the option `resume_data`.
RESUME_DATA = ("same", "changed")
#: The largest seed that NumPy accepts.
MAX_SEED = 2**32 - 1


def choices() -> dict[str, Sequence[str]]:
    """Return the options that accept names, with these names, as the library defines them."""
    from gnnsparse import Precision
    from gnnsparse.runtime.environment import DEVICES
    from gnnsparse.train.settings import SECTIONS, choices_of

    found: dict[str, Sequence[str]] = {"precision": Precision.names(), "device": DEVICES, "mode": MODES}
    found["resume_data"] = RESUME_DATA
    for section, kind in SECTIONS.items():
        found |= {f"{section}.{name}": accepted for name, accepted in choices_of(kind).items()}
    return found


def to_dict(group: DictConfig) -> dict[str, Any]:
    """Return the options of a group as Python's own types."""
    content: Any = OmegaConf.to_container(group, resolve=True)
    return {str(key): value for key, value in content.items()}


def section(cfg: DictConfig, name: str, kind: type[Any]) -> Any:
    """Make a settings object of gnnsparse.train from a group of options.

    Raises:
        TypeError: an option is of another type.
        ValueError: an option is unknown or out of range.
    """
    options = to_dict(cfg[name])
    known = [field.name for field in dataclasses.fields(kind)]
    for option in options:
        if option not in known:
            raise ValueError(f"{name}.{option}: no such option; accepted: {', '.join(known)}")
    return kind(**options)


def check_references(cfg: DictConfig, group: str, content: Mapping[Any, Any]) -> None:
    """Raise a ValueError, with the name of the option, if a reference such as `${seed}` leads nowhere."""
    for name, value in content.items():
        option = f"{group}{name}"
        try:
            OmegaConf.select(cfg, option)
        except OmegaConfBaseException as error:
            raise ValueError(f"{option}: {str(error).splitlines()[0]}") from error
        if isinstance(value, dict):
            check_references(cfg, f"{option}.", value)


def _is_file(path: str) -> bool:
    try:
        return Path(path).is_file()
    except (OSError, ValueError):  # a name that is too long, or has a null character
        return False


def check_quickly(cfg: DictConfig) -> None:
    """Refuse wrong options before the imports that take many seconds, and give removed ones their defaults.

    Raises:
        ValueError: an option is missing, of another type, or out of range.
    """
    from gnnsparse.train.settings import SECTIONS

    content: Any = OmegaConf.to_container(cfg, resolve=False)
    check_references(cfg, "", content)
    OmegaConf.resolve(cfg)
    for group in ("model", "dataset", *SECTIONS):
        if not isinstance(got := OmegaConf.select(cfg, group), DictConfig):
            raise ValueError(f"{group}: got {got!r}; accepted: a name, as in --help, and its options")
    for option in ("precision", "device", "mode", "resume_data"):
        value, accepted = OmegaConf.select(cfg, option), choices()[option]
        if not isinstance(value, str) or value not in accepted:
            raise ValueError(f"{option}: got {value!r}; accepted: {', '.join(accepted)}")
    for name, kind in SECTIONS.items():
        settings = section(cfg, name, kind)
        for field in dataclasses.fields(kind):
            if field.name not in cfg[name]:  # removed by ~name.option: it has its default
                value = getattr(settings, field.name)
                OmegaConf.update(cfg, f"{name}.{field.name}", value, force_add=True)
    if type(seed := OmegaConf.select(cfg, "seed")) is not int or seed < 0:
        raise ValueError(f"seed: got {seed!r}; accepted: an integer, at least 0")
    if seed > MAX_SEED:
        raise ValueError(f"seed: got {seed}; accepted: at most {MAX_SEED}")
    resume = OmegaConf.select(cfg, "resume")
    if resume is not None and not (
        isinstance(resume, str) and (_is_file(resume) or is_sweep(Path(resume)) or is_begun(Path(resume)))
    ):
        accepted = "last, the folder of a run or of a sweep, or a checkpoint last.ckpt"
        raise ValueError(f"resume: there is no file {resume}; accepted: {accepted}")
    check_checkpoint_option(cfg)
    for option in sorted(OmegaConf.missing_keys(cfg)):
        raise ValueError(f"{option}: got nothing; accepted: a value, as in {option}=1")


def check_checkpoint_option(cfg: DictConfig) -> None:
    """Raise a ValueError unless there is a checkpoint with mode=predict alone, and nothing to resume."""
    checkpoint, mode = OmegaConf.select(cfg, "checkpoint"), OmegaConf.select(cfg, "mode")
    if checkpoint is not None and not isinstance(checkpoint, str):
        raise ValueError(f"checkpoint: got {checkpoint!r}; accepted: the folder of a run, or a file in it")
    if (checkpoint is None) == (mode == "predict"):
        accepted = "a path with mode=predict alone, null with mode=train"
        raise ValueError(f"checkpoint: got {checkpoint} with mode={mode}; accepted: {accepted}")
    if mode == "predict" and OmegaConf.select(cfg, "resume") is not None:
        raise ValueError("resume: got a checkpoint with mode=predict; accepted: null")
