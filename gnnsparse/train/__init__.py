"""Training with Lightning: the parts that all tasks share. The tasks themselves are in gnnsparse.train.tasks.

The names in this package are imported when they are first used, because importing Lightning takes seconds.
Classes of the tasks "node" and "sequence" are defined in gnnsparse.train.tasks and can be imported from here
as well.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gnnsparse.registry import lazy_names
from gnnsparse.train.device import resolve_device
from gnnsparse.train.settings import OptimizerConfig, PreprocessConfig, SamplerConfig, TrainerConfig

if TYPE_CHECKING:
    from gnnsparse.train.checkpoint import CheckpointError, check_checkpoint
    from gnnsparse.train.data import PreparedData, RepeatedBatch
    from gnnsparse.train.fitting import FitResult, fit
    from gnnsparse.train.folders import RunFolder, RunFolderError, RunFolderWarning
    from gnnsparse.train.interruption import StopRequest, TrainingInterrupted
    from gnnsparse.train.module import TaskModule
    from gnnsparse.train.steps import UncapturableError
    from gnnsparse.train.tasks.node import FullGraphData, GraphBatch, NodeClassifier, Part
    from gnnsparse.train.tasks.sequence import SequenceBatch, SequenceClassifier, SequenceData

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
        "gnnsparse.train.tasks.node": ("FullGraphData", "GraphBatch", "NodeClassifier", "Part"),
        "gnnsparse.train.tasks.sequence": ("SequenceBatch", "SequenceClassifier", "SequenceData"),
        "gnnsparse.train.steps": ("UncapturableError",),
        "gnnsparse.train.checkpoint": ("CheckpointError", "check_checkpoint"),
        "gnnsparse.train.data": ("PreparedData", "RepeatedBatch"),
        "gnnsparse.train.fitting": ("FitResult", "fit"),
        "gnnsparse.train.folders": ("RunFolder", "RunFolderError", "RunFolderWarning"),
        "gnnsparse.train.interruption": ("StopRequest", "TrainingInterrupted"),
        "gnnsparse.train.module": ("TaskModule",),
    },
)
