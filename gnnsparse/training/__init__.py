"""Training with Lightning: the parts that all tasks share. The tasks themselves are in gnnsparse.tasks.

The names in this package are imported when they are first used, because importing Lightning takes seconds.
Classes of the tasks "node" and "sequence" are defined in gnnsparse.tasks and can be imported from here as
well.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gnnsparse.runtime.lazy import lazy_names
from gnnsparse.training.config import OptimizerConfig, PreprocessConfig, SamplerConfig, TrainerConfig
from gnnsparse.training.device import resolve_device

if TYPE_CHECKING:
    from gnnsparse.tasks.node import FullGraphData, GraphBatch, NodeClassifier, Part
    from gnnsparse.tasks.sequence import SequenceBatch, SequenceClassifier, SequenceData
    from gnnsparse.training.capture import UncapturableError
    from gnnsparse.training.checkpoint import CheckpointError, check_checkpoint
    from gnnsparse.training.data import PreparedData, RepeatedBatch
    from gnnsparse.training.fitting import FitResult, fit
    from gnnsparse.training.folders import RunFolder, RunFolderError, RunFolderWarning
    from gnnsparse.training.interruption import StopRequest, TrainingInterrupted
    from gnnsparse.training.module import TaskModule

__all__ = [
    "CheckpointError",
    "FitResult",
    "FullGraphData",
    "GraphBatch",
    "NodeClassifier",
    "OptimizerConfig",
    "Part",
    "PreparedData",
    "PreprocessConfig",
    "RepeatedBatch",
    "RunFolder",
    "RunFolderError",
    "RunFolderWarning",
    "SamplerConfig",
    "SequenceBatch",
    "SequenceClassifier",
    "SequenceData",
    "StopRequest",
    "TaskModule",
    "TrainerConfig",
    "TrainingInterrupted",
    "UncapturableError",
    "check_checkpoint",
    "fit",
    "resolve_device",
]

__getattr__ = lazy_names(
    __name__,
    {
        "gnnsparse.tasks.node": ("FullGraphData", "GraphBatch", "NodeClassifier", "Part"),
        "gnnsparse.tasks.sequence": ("SequenceBatch", "SequenceClassifier", "SequenceData"),
        "gnnsparse.training.capture": ("UncapturableError",),
        "gnnsparse.training.checkpoint": ("CheckpointError", "check_checkpoint"),
        "gnnsparse.training.data": ("PreparedData", "RepeatedBatch"),
        "gnnsparse.training.fitting": ("FitResult", "fit"),
        "gnnsparse.training.folders": ("RunFolder", "RunFolderError", "RunFolderWarning"),
        "gnnsparse.training.interruption": ("StopRequest", "TrainingInterrupted"),
        "gnnsparse.training.module": ("TaskModule",),
    },
)
