"""Predictions of a trained model on a data set."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gnnsparse.data.catalog import (
    CATALOG,
    load_dataset,  # noqa: F401  (registers the data sets)
)
from gnnsparse.errors import bad_value, naming
from gnnsparse.inference import LoadedModel, load
from gnnsparse.inference.loading import LoadError
from gnnsparse.train.config import PreprocessConfig
from gnnsparse.train.recipe import ModelRecipe
from gnnsparse.train.task import RunOptions, Task
from gnnsparse.train.tasks import TASKS

__all__ = ["Predictions", "check_sizes", "match_features", "predict_dataset", "predict_run"]

#: The data set that files and folders of a user are loaded by, with the option that names them.
_OWN, _PATH = "custom", "path"


@dataclass(frozen=True, eq=False)
class Predictions:
    """What a model says of a data set.

    Attributes:
        arrays: the arrays of the model's task by name, on the CPU: indices, and what was predicted for them.
        metrics: scores by part and name, as in FitResult.metrics; empty if nothing is known to compare with.
        dataset: name of the data set.
        details: the size of the problem, plain values by name.
        names: what numbers in the arrays are called in the user's files, arrays of texts by name.
    """

    arrays: Mapping[str, torch.Tensor]
    metrics: Mapping[str, Mapping[str, float]]
    dataset: str
    details: Mapping[str, Any]
    names: Mapping[str, np.ndarray] = field(default_factory=dict)


def predict_run(
    source: str | os.PathLike[str],
    data: str | None = None,
    *,
    root: str | None = None,
    device: str = "auto",
    registry: Mapping[str, Any] | None = None,
) -> Predictions:
    """Computes the predictions of the model of a run, as `gnnsparse predict` does.

    Args:
        source: the folder of a run, or a checkpoint in it, as `gnnsparse.load` takes it.
        data: the name of a data set, or a file or folder in a form that the data set "custom" reads; None:
            the data that the model was trained on.
        root: the folder with the files of a published data set; None: that of the run, if it had one.
        device: "auto", "cpu" or "cuda".
        registry: the models by name; None: those that the checkpoint names, whose module is imported.

    Raises:
        LoadError: the model can't be loaded.
        ValueError: there is no such data set, it can't be loaded, or it does not fit the model.
    """
    model = load(source, device=device, registry=registry)
    recipe = model.recipe
    task = TASKS[TASKS.check(recipe.task)]
    name, options = _data_of(recipe, data)
    if root is not None:
        options["root"] = root
    run = _options_of(recipe, task, model.device)
    task.check(run)
    with naming("data"):
        dataset = task.load(name, options)
    return predict_dataset(model, task, run, dataset, name)


def predict_dataset(
    model: LoadedModel, task: Task[Any, Any], run: RunOptions, dataset: Any, name: str
) -> Predictions:
    """Computes the predictions of a model on a data set of its task.

    Args:
        model: the model.
        task: its task.
        run: the options by which the data are prepared.
        dataset: the data set.
        name: the name of the data set, for messages.

    Raises:
        ValueError: the data do not fit the model or lack a feature, or the task has no predictions.
    """
    dataset = match_features(name, dataset, model.recipe)
    check_sizes(name, task.model_sizes(dataset), model.recipe)
    data = task.make_data(dataset, run)
    try:
        arrays, metrics = task.predict(model, data)
    except NotImplementedError:
        raise LoadError(f"checkpoint: the task {task.name!r} has no method predict") from None
    return Predictions(arrays, metrics, name, task.describe(data, run), task.names(dataset))


def match_features(name: str, dataset: Any, recipe: ModelRecipe) -> Any:
    """Return a data set with the features that a model takes, in its order, by their names.

    Features that the model does not take are left out, with a warning. Where the data or the model have no
    names of features, the data set is returned as it is.

    Raises:
        ValueError: a feature is missing.
    """
    wanted, there = recipe.feature_names, getattr(dataset, "feature_names", None)
    if wanted is None or there is None or tuple(wanted) == there:
        return dataset
    place = {feature: at for at, feature in enumerate(there)}
    missing = [feature for feature in wanted if feature not in place]
    if missing:
        raise ValueError(
            f"dataset: {name} has no feature {missing[0]!r}, but {', '.join(there)[:200]}; accepted by the "
            f"checkpoint: {', '.join(wanted)[:200]}"
        )
    if more := [feature for feature in there if feature not in wanted]:
        problem = f"dataset: not used, as the model does not take them: {', '.join(more)[:200]}"
        warnings.warn(problem, UserWarning, stacklevel=3)
    order = torch.tensor([place[feature] for feature in wanted], dtype=torch.int64, device=dataset.x.device)
    return replace(dataset, x=dataset.x[:, order], feature_names=tuple(wanted))


def check_sizes(name: str, got: tuple[int, int], recipe: ModelRecipe) -> None:
    """Raises a ValueError unless a data set has the numbers of inputs and outputs of the model."""
    own = (recipe.in_channels, recipe.out_channels)
    if got != own:
        raise ValueError(
            f"dataset: {name} has {got[0]} inputs and {got[1]} outputs; accepted by the checkpoint: "
            f"{own[0]} and {own[1]}"
        )


def _data_of(recipe: ModelRecipe, data: str | None) -> tuple[str, dict[str, Any]]:
    """Returns the name of a data set and the options of its loader."""
    trained = {str(key): value for key, value in recipe.run.get("dataset", {}).items()}
    name = trained.pop("name", None)
    if data is None and name is None:
        bad_value("data", "got nothing, and the checkpoint does not say what it was trained on; accepted: "
                  "the name of a data set, a file or a folder")  # fmt: skip
    if data is None or data == name:
        return str(name), trained
    if data in CATALOG:
        return data, {}
    if not Path(data).exists() or _OWN not in CATALOG:
        files = "" if _OWN not in CATALOG else ", a file or a folder"
        bad_value("data", f"got {data!r}; accepted: {', '.join(CATALOG)}{files}")
    features = {} if recipe.feature_names is None else {"feature_columns": list(recipe.feature_names)}
    return _OWN, {**features, **(trained if name == _OWN else {}), _PATH: data}


def _options_of(recipe: ModelRecipe, task: Task[Any, Any], device: torch.device) -> RunOptions:
    """Returns the options of a run for preparing data as in training."""
    return RunOptions(
        device=device,
        precision=recipe.precision,
        seed=int(recipe.run.get("seed", 0)),
        values=recipe.values,
        preprocess=PreprocessConfig(**recipe.run.get("preprocess", {})),
        groups={group: recipe.run[group] for group in task.groups if group in recipe.run},
    )
