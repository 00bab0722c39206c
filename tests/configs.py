"""Options of train.py, composed as hydra does."""

from __future__ import annotations

from pathlib import Path

from hydra import compose, initialize_config_dir
from omegaconf import DictConfig

import train

CONFIGS = Path(train.__file__).resolve().parent / "configs"


def composed(*overrides: str) -> DictConfig:
    """The options of a command line, with what is registered on offer."""
    train.offer_registered()
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        return compose("train", list(overrides))
