"""The training tasks: each file here registers one, under the name of the file."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

import numpy as np
import torch

from gnnsparse.data.catalog import load_entry
from gnnsparse.distributed.training import Peers
from gnnsparse.errors import bad_value
from gnnsparse.registry import Registry
from gnnsparse.train.metrics import shown_score
from gnnsparse.train.settings import OptimizerConfig, PreprocessConfig, SamplerConfig, TrainerConfig
from gnnsparse.train.trained import ModelRecipe

if TYPE_CHECKING:
    from rich.table import Table

    from gnnsparse.train.data import PreparedData
    from gnnsparse.train.module import TaskModule

__all__ = [
    "BATCH_SIZE",
    "TASKS",
    "MiniBatchTask",
    "RunOptions",
    "Task",
    "edge_options",
    "options_found",
    "register_task",
    "text_of",
    "texts_of",
]

Dataset = TypeVar("Dataset")
Data = TypeVar("Data", bound="PreparedData")


@dataclass(frozen=True)
class RunOptions:
    """The options of a run, after all checks.

    Attributes:
        device: the device to train on.
        precision: precision of sparse products, and on a GPU of dense layers.
        seed: seed of the weights and of dropout.
        values: weights of the operand that the model needs: "gcn", "mean" or None.
        trainer, optimizer, preprocess, sampler: settings of the groups that every task has.
        groups: options of other groups by the group's name, as in {"pattern": {"name": "bigbird", ...}}.
        peers: the ranks that train together; None: this process trains alone.
        model: with peers: the model, or an equal one, by which they choose how they share products; None:
            they choose without it.
    """

    device: torch.device
    precision: str = "fp32"
    seed: int = 0
    values: str | None = None
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    preprocess: PreprocessConfig = field(default_factory=PreprocessConfig)
    sampler: SamplerConfig = field(default_factory=SamplerConfig)
    groups: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    peers: Peers | None = None
    model: torch.nn.Module | None = None

    @property
    def of_data(self) -> dict[str, Any]:
        """The options that every data module takes, by name."""
        names = ("values", "precision", "device", "preprocess", "seed")
        return {name: getattr(self, name) for name in names}


class Task(Generic[Dataset, Data]):
    """A training task. Models and data sets name the task that they are for.

    Attributes:
        name: name of the task, and of the file that registers it.
        dataset: the type of its data sets, by which `gnnsparse.fit` finds the task.
        data: makes its data module of a data set and the options in `RunOptions.of_data`.
        module: makes its Lightning module of a model, a data set, an OptimizerConfig and the last step.
        prepared: what reports call the prepared operand.
        groups: the groups of options that the task has beside those that every task has.
        shared: whether several devices can train together.
        steps_per_epoch: optimiser steps of an epoch if they do not depend on the data, else None.
        samples: whether training steps can take sampled neighbours.
        samples_graphs: whether a model gets a sample as one graph, and not as a block for each layer.
        sparse_features: whether features of nodes can be a sparse matrix.
        weighs_classes: whether classes can have weights in the loss.
    """

    name: ClassVar[str]
    dataset: ClassVar[type[Any]] = type(None)
    data: ClassVar[Callable[..., Any]]
    module: ClassVar[Callable[..., Any]]
    prepared: ClassVar[str] = "graph"
    groups: ClassVar[tuple[str, ...]] = ()
    shared: ClassVar[bool] = False
    steps_per_epoch: ClassVar[int | None] = None
    samples: ClassVar[bool] = False
    samples_graphs: ClassVar[bool] = False
    sparse_features: ClassVar[bool] = False
    weighs_classes: ClassVar[bool] = False

    @property
    def called(self) -> str:
        """What messages call the task, with an article."""
        return f"{'an' if self.name[0] in 'aeiou' else 'a'} {self.name} task"

    def check(self, run: RunOptions) -> None:
        """Raise TypeError or ValueError if options do not suit the task; called before data is loaded."""
        if run.sampler.draws and not self.samples:
            bad_value("sampler", f"got {run.sampler.name!r} for {self.called}; accepted: none")
        if run.trainer.sparse_features == "on" and not self.sparse_features:
            bad_value("trainer.sparse_features", f"got 'on' for {self.called}; accepted: auto, off")
        if run.trainer.class_weights != "none" and not self.weighs_classes:
            problem = "goes with nodes, graphs and edges"
            bad_value("trainer.class_weights", f"{problem}; accepted for a {self.name}: none")

    def known_steps(self, run: RunOptions) -> int | None:
        """Return the optimiser steps of an epoch of a run if they do not depend on the data, else None."""
        return self.steps_per_epoch

    def identity(self, run: RunOptions) -> dict[str, Any]:
        """Return the task's own values that a run and the run whose checkpoint it resumes must share."""
        return {}

    def load(self, name: str, options: Mapping[str, Any]) -> Dataset:
        """Load a data set of the catalog by its name and the options of its loader."""
        return load_entry(name, options)

    def model_sizes(self, dataset: Dataset) -> tuple[int, int]:
        """Return the arguments `in_channels` and `out_channels` of the model."""
        of: Any = dataset
        return of.num_features, of.num_classes

    def model_options(self, dataset: Dataset) -> dict[str, Any]:
        """Return options of the model that the data set decides, beside its sizes."""
        return {}

    def make_data(self, dataset: Dataset, run: RunOptions) -> Data:
        """Make the data module, with everything that the steps need, prepared and on the run's device."""
        return type(self).data(dataset, **run.of_data)

    def make_module(self, model: torch.nn.Module, data: Data, run: RunOptions) -> TaskModule:
        """Make the Lightning module, whose steps train and score the model."""
        steps = run.trainer.max_epochs * data.steps_per_epoch
        return self.weighed(type(self).module(model, data.dataset, run.optimizer, steps), run)

    def weighed(self, module: Any, run: RunOptions) -> TaskModule:
        """Return a Lightning module after giving the classes their weights in its loss, if they have some."""
        if run.trainer.class_weights != "none":
            module.weigh_classes(run.trainer.class_weights)
        return module

    def recipe(self, dataset: Dataset, options: RunOptions, /, **own: Any) -> ModelRecipe:
        """Return what a model of a data set is made of; `own`: registry, name, options, inputs, run."""
        inputs, outputs = self.model_sizes(dataset)
        return ModelRecipe(
            in_channels=inputs, out_channels=outputs, task=self.name, values=options.values,
            precision=options.precision, several_labels=getattr(dataset, "multi_label", False),
            regression=getattr(dataset, "regression", False),
            feature_names=getattr(dataset, "feature_names", None), **own,
        )  # fmt: skip

    def names(self, dataset: Dataset) -> dict[str, np.ndarray]:
        """Return what numbers in predictions are called in the user's files, arrays of texts by name."""
        return {}

    def found_options(self, dataset: Dataset) -> dict[str, Any]:
        """Return options of a data set that loading it decided, by which other data are read alike."""
        return {}

    def predict(self, model: Any, data: Data) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        """Return the arrays of predictions.npz, on the CPU, and scores as in `FitResult.metrics`."""
        raise NotImplementedError

    def describe(self, data: Data, run: RunOptions) -> dict[str, Any]:
        """Return the size of the problem for result.json, plain values by name."""
        return {"nonzeros": data.adj.nnz}

    def table(self, result: Mapping[str, Any]) -> Table:
        """Make the table that is printed at the end of a run, of the content of result.json."""
        from rich.table import Table

        table = Table()
        table.add_column("best epoch {best_epoch} of {epochs}".format(**result))
        for part in result["metrics"]:
            table.add_column(part, justify="right")
        for score in result["metrics"]["test"]:
            table.add_row(score, *(shown_score(score, of[score]) for of in result["metrics"].values()))
        return table


#: Items of a training step, unless an option says how many.
BATCH_SIZE = 32


class MiniBatchTask(Task[Dataset, Data]):
    """A task whose steps take mini-batches, in an order that the seed decides."""

    def batch_size(self, run: RunOptions) -> int:
        """Return the items of a training step."""
        return run.trainer.batch_size or BATCH_SIZE

    def identity(self, run: RunOptions) -> dict[str, Any]:
        """Return the numbers that the order of the items depends on."""
        return {"batch_size": self.batch_size(run), "order": run.seed}

    def make_data(self, dataset: Dataset, run: RunOptions) -> Data:
        """Make the data module, prepared and on the run's device."""
        return type(self).data(dataset, batch_size=self.batch_size(run), **run.of_data)


def texts_of(**names: Sequence[str] | None) -> dict[str, np.ndarray]:
    """Return the names that there are as arrays of texts."""
    return {name: np.array(texts, dtype=str) for name, texts in names.items() if texts is not None}


def edge_options(dataset: Any) -> dict[str, Any]:
    """Return the option of models that says how many features an edge has, if edges have some."""
    more = getattr(dataset, "edge_features", None)
    return {} if more is None else {"edge_channels": more.edge_attr.shape[1]}


def options_found(task: str, dataset: Any) -> dict[str, Any]:
    """Return what loading a data set of nodes or graphs decided, as options of a loader.

    They are the task, what the labels are (kind, classes, metric), and what the features are made of.
    """
    names, features = dataset.class_names, getattr(dataset, "feature_names", None)
    kind = "regression" if dataset.regression else "multilabel" if dataset.multi_label else "class"
    classes = dataset.num_classes if names is None else list(names)
    found = {"task": task, "label_kind": kind, "classes": classes, "metric": dataset.metric}
    if (made := getattr(dataset, "feature_transform", None)) is not None:
        found["transform"] = dict(made)
    elif features is not None:
        found["feature_columns"] = list(features)
    if (more := getattr(dataset, "edge_features", None)) is not None:
        found["edge_transform"] = dict(more.transform)
    return found


def text_of(group: Mapping[Any, Any]) -> str:
    """Return a group of options as one line of text, to compare it with the group of another run."""
    return ",".join(f"{key!s}={value}" for key, value in group.items())


#: The tasks by name. A task's file is imported when the task is first asked for, because importing Lightning
#: takes seconds.
TASKS: Registry[Task[Any, Any]] = Registry("task", package=__name__)


def register_task(task: Task[Any, Any]) -> None:
    """Register a task under its name, that of its file in this folder; raise ValueError if it is taken."""
    TASKS.register(task.name, task)
