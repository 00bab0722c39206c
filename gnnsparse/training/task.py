"""What a training task is: how a data set, a model and the options of a run become a training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

import torch

from gnnsparse.data.registry import load_entry
from gnnsparse.training.config import OptimizerConfig, PreprocessConfig, TrainerConfig

if TYPE_CHECKING:
    from rich.table import Table

    from gnnsparse.training.data import PreparedData
    from gnnsparse.training.module import TaskModule

__all__ = ["RunOptions", "Task", "text_of"]

Dataset = TypeVar("Dataset")
Data = TypeVar("Data", bound="PreparedData")


@dataclass(frozen=True)
class RunOptions:
    """What a run was asked for, checked.

    Attributes:
        device: where it trains.
        precision: of the sparse products, and on a GPU of dense layers too.
        seed: of the weights and of dropout.
        values: weights of the operand that the model wants, as in `gnnsparse.prepare`.
        trainer, optimizer, preprocess: how long it trains, how, and on what kind of operand.
        groups: the options of other groups by group, as {"pattern": {"name": "bigbird", ...}}.
    """

    device: torch.device
    precision: str = "fp32"
    seed: int = 0
    values: str | None = None
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    preprocess: PreprocessConfig = field(default_factory=PreprocessConfig)
    groups: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


class Task(Generic[Dataset, Data]):
    """What a model is trained for. Models and data sets name the task that they are for.

    Attributes:
        name: of the task, and of the file that registers it.
        prepared: what the prepared operand is, in reports.
        steps_per_epoch: optimiser steps of an epoch where these are known before there is data, else None.
    """

    name: ClassVar[str]
    prepared: ClassVar[str] = "graph"
    steps_per_epoch: ClassVar[int | None] = None

    def check(self, run: RunOptions) -> None:
        """Raise a TypeError or a ValueError if the options do not suit the task, before data is loaded."""

    def identity(self, run: RunOptions) -> dict[str, Any]:
        """What else has to be the same for a run to go on from another one's checkpoint."""
        return {}

    def load(self, name: str, options: Mapping[str, Any]) -> Dataset:
        """The data set of a name in the catalog."""
        dataset: Dataset = load_entry(name, options)
        return dataset

    def model_sizes(self, dataset: Dataset) -> tuple[int, int]:
        """What a model is built with: its `in_channels` and its `out_channels`."""
        raise NotImplementedError

    def make_data(self, dataset: Dataset, run: RunOptions) -> Data:
        """The data module: everything that the steps need, prepared and on the device of the run."""
        raise NotImplementedError

    def make_module(self, model: torch.nn.Module, data: Data, run: RunOptions) -> TaskModule:
        """The Lightning module: what the steps do."""
        raise NotImplementedError

    def describe(self, data: Data, run: RunOptions) -> dict[str, Any]:
        """The size of the problem, for result.json: plain values by name."""
        return {"nonzeros": data.adj.nnz}

    def table(self, result: Mapping[str, Any]) -> Table:
        """The table that a run ends with.

        Args:
            result: the content of result.json.
        """
        from rich.table import Table

        title = "{model} on {dataset}, {precision}, {device_name}, seed {seed}".format(**result)
        table = Table(title=title, title_justify="left")
        table.add_column("best epoch {best_epoch} of {epochs}".format(**result))
        for part in result["metrics"]:
            table.add_column(part, justify="right")
        for score in result["metrics"]["test"]:
            table.add_row(score, *(f"{100 * of[score]:.2f} %" for of in result["metrics"].values()))
        return table


def text_of(group: Mapping[Any, Any]) -> str:
    """A group of options in one line, to compare it with that of another run."""
    return ",".join(f"{key!s}={value}" for key, value in group.items())
