"""Training with Lightning: of nodes on one graph, of sequences on one pattern, kept on the device.

The names below are imported when they are first used: Lightning takes seconds to import.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from gnnsparse.training.config import OptimizerConfig, PreprocessConfig, TrainerConfig
from gnnsparse.training.device import resolve_device

if TYPE_CHECKING:
    from gnnsparse.training.classifier import NodeClassifier, SequenceClassifier
    from gnnsparse.training.data import FullGraphData, GraphBatch, Part
    from gnnsparse.training.fitting import CheckpointError, FitResult, check_checkpoint, fit
    from gnnsparse.training.sequences import SequenceBatch, SequenceData

__all__ = [
    "CheckpointError",
    "FitResult",
    "FullGraphData",
    "GraphBatch",
    "NodeClassifier",
    "OptimizerConfig",
    "Part",
    "PreprocessConfig",
    "SequenceBatch",
    "SequenceClassifier",
    "SequenceData",
    "TrainerConfig",
    "check_checkpoint",
    "fit",
    "resolve_device",
]

_HOMES = {
    "classifier": ("NodeClassifier", "SequenceClassifier"),
    "data": ("FullGraphData", "GraphBatch", "Part"),
    "fitting": ("CheckpointError", "FitResult", "check_checkpoint", "fit"),
    "sequences": ("SequenceBatch", "SequenceData"),
}


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(f"{__name__}.{home}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
