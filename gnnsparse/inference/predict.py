"""`gnnsparse predict`: the predictions of a trained model on a data set, as a file."""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import re
import sys
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console

from gnnsparse.bench.arguments import add_device
from gnnsparse.data.catalog import (
    CATALOG,
    load_dataset,  # noqa: F401  (registers the data sets)
)
from gnnsparse.errors import bad_value, naming
from gnnsparse.inference import LoadedModel, load
from gnnsparse.inference.loading import LoadError
from gnnsparse.runtime.environment import log_shown, write_bytes
from gnnsparse.sparse.typed import TypedGraph
from gnnsparse.train.settings import PreprocessConfig, SamplerConfig
from gnnsparse.train.tasks import TASKS, RunOptions, Task
from gnnsparse.train.trained import ModelRecipe, check_types
from gnnsparse_cli import PREDICTION_ENDINGS, add_predict_arguments

__all__ = [
    "Predictions", "add_arguments", "load_data", "match_features", "predict_dataset", "predict_run",
    "run", "write_predictions",
]  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_predict_arguments(parser)
    add_device(parser)


def _option(word: str) -> tuple[str, Any]:
    """Return the name and the value of an option as train.py reads it: a text, a number, null or a list."""
    name, sign, value = word.partition("=")
    if not sign:
        bad_value("argument", f"got {word!r}; accepted: dataset.OPTION=VALUE, as in dataset.id=name")
    if value.startswith("[") and value.endswith("]"):
        return name.removeprefix("dataset."), [
            _plain(item.strip()) for item in value[1:-1].split(",") if item
        ]
    return name.removeprefix("dataset."), _plain(value)


def _plain(text: str) -> Any:
    """Return null, true, false and numbers as Python's, and any other text as it is, without its quotes."""
    with contextlib.suppress(ValueError):
        return json.loads(text)
    quoted = len(text) > 1 and text[0] == text[-1] == "'"
    return text[1:-1] if quoted else text


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
    options: Mapping[str, Any] | None = None,
) -> Predictions:
    """Compute the predictions of the model of a run, as `gnnsparse predict` does.

    Args:
        source: the argument of `gnnsparse.load`, as are device and registry.
        data: the name of a data set, or a file or folder in a form that the data set "custom" reads; None:
            the data that the model was trained on.
        root: the folder with the files of a published data set; None: that of the run, if it had one.
        options: options of the data set in place of those of the training, as in {"id": "name"}.

    Raises:
        LoadError: the model can't be loaded.
        ValueError: there is no such data set, it can't be loaded, or it does not fit the model.
    """
    model = load(source, device=device, registry=registry)
    return predict_dataset(model, *load_data(model, data, root, options))


def load_data(
    model: LoadedModel,
    data: str | None = None,
    root: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> tuple[Task[Any, Any], RunOptions, Any, str]:
    """Load a data set for a model: its task, the options that prepare it as in training, itself, its name.

    The arguments and errors are those of `predict_run`.
    """
    recipe = model.recipe
    task = TASKS[TASKS.check(recipe.task)]
    name, given = _data_of(recipe, data)
    given |= {} if root is None else {"root": root}
    given |= options or {}
    run = RunOptions(  # by which the data are prepared as in training
        device=model.device,
        precision=recipe.precision,
        seed=int(recipe.run.get("seed", 0)),
        values=recipe.values,
        preprocess=PreprocessConfig(**recipe.run.get("preprocess", {})),
        groups={group: recipe.run[group] for group in task.groups if group in recipe.run},
    )
    task.check(run)
    with naming("dataset"):
        dataset = task.load(name, given)
    sampler = None
    if getattr(dataset, "on_disk", False):
        sampler = SamplerConfig(**recipe.run.get("sampler", {"name": "neighbor"}))
    elif getattr(dataset, "has_times", False):
        sampler = SamplerConfig(**recipe.run.get("sampler", {}))
    if sampler is not None:
        run = replace(run, sampler=sampler.with_fanouts(model.module))
    return task, run, dataset, name


def predict_dataset(
    model: LoadedModel, task: Task[Any, Any], run: RunOptions, dataset: Any, name: str
) -> Predictions:
    """Compute the predictions of a model on a data set of its task, which messages call `name`.

    The data are prepared by the options `run`.

    Raises:
        ValueError: the data do not fit the model or lack a feature, or the task has no predictions.
    """
    dataset, recipe = match_features(name, dataset, model.recipe), model.recipe
    dataset = match_edges(name, dataset, model)
    if isinstance(getattr(dataset, "graph", None), TypedGraph):
        check_types(f"dataset: {name}", dataset.x, dataset.graph, recipe.options.get("types"))
    got, own = task.model_sizes(dataset), (recipe.in_channels, recipe.out_channels)
    if got != own:
        accepted = f"accepted by the checkpoint: {own[0]} and {own[1]}"
        raise ValueError(f"dataset: {name} has {got[0]} inputs and {got[1]} outputs; {accepted}")
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


def match_edges(name: str, dataset: Any, model: LoadedModel) -> Any:
    """Return a data set with the features of edges that a model takes, or without, if it takes none.

    Raises:
        ValueError: there are none, or not as many as the model takes.
    """
    more = getattr(dataset, "edge_features", None)
    if not model.takes_edge_features:
        return dataset if more is None else replace(dataset, edge_features=None)
    columns = 0 if more is None else more.edge_attr.shape[1]
    if model.edge_channels not in (None, columns):
        accepted = f"accepted by the checkpoint: {model.edge_channels}"
        raise ValueError(f"dataset: {name} has {columns} features of edges; {accepted}")
    return dataset


def _data_of(recipe: ModelRecipe, data: str | None) -> tuple[str, dict[str, Any]]:
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
    is_typed = recipe.task == "typed_link" and (Path(data) / "edges").is_dir()
    # Pairs of nodes of the graph that was trained on.
    if recipe.task in ("link", "typed_link") and name == _OWN and not is_typed:
        return _OWN, {**trained, "pairs": data}
    trained |= {"split": "all"} if is_typed else {}  # messages pass over all edges of another graph
    features = {} if recipe.feature_names is None else {"feature_columns": list(recipe.feature_names)}
    own = trained if name in (_OWN, None) else {}
    return _OWN, {**features, **own, "task": recipe.task, _PATH: data}


#: A formula of a spreadsheet begins with one of these, or a full-width form (OWASP's page on CSV injection).
#: The apostrophe is here so that one that was put in front is told from one of the text.
_FORMULA = tuple("=+-@\t\r\n'\uff1d\uff0b\uff0d\uff20")
#: A text that a spreadsheet reads as a number, and not as a formula.
_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?")


def write_predictions(
    path: Path, arrays: Mapping[str, torch.Tensor], names: Mapping[str, np.ndarray] | None = None
) -> None:
    """Write predictions to a file, which appears whole or not at all.

    A CSV file has a row for each element of the first dimension. An array of one dimension is a column with
    its name, and the columns of one of two dimensions have numbers, or the names of the classes where they
    are known: probabilities_0, probabilities_1, ..., or probabilities_law, ... A column `class_name` then has
    the name of the class. A text that begins like a formula of a spreadsheet, with one of = + - @, a tab or a
    line break, or with an apostrophe, gets an apostrophe in front, unless it is a number.

    Args:
        path: a file that ends in .npz or .csv; an existing one is replaced.
        arrays: tensors [N] or [N, C] by name, on the CPU, all of the same N for a CSV file.
        names: arrays of texts by name, which say what numbers in `arrays` are called: "ids", a text for each
            row, which stands before what was predicted in a CSV file, "class_names", a text for each class,
            and for an array of one dimension its name, whose place the texts take.

    Raises:
        ValueError: the name has another ending, or the arrays have several lengths in a CSV file.
        OSError: the file can't be written.
    """
    if path.suffix not in PREDICTION_ENDINGS:
        bad_value("path", f"got {str(path)!r}; accepted: a name in {', '.join(PREDICTION_ENDINGS)}")
    named: dict[str, Any] = {name: array.numpy() for name, array in arrays.items()}
    content = io.BytesIO()
    if path.suffix == ".npz":
        np.savez(content, **{**named, **(names or {})})
    else:
        content.write(_as_csv(named, names or {}).encode())
    write_bytes(path, content.getbuffer())


def _as_csv(arrays: dict[str, Any], names: Mapping[str, np.ndarray]) -> str:
    columns: dict[str, Any] = {}
    ids, classes = names.get("ids"), names.get("class_names")
    for name, array in arrays.items():
        if array.ndim == 1:
            columns[name] = names.get(name, array)
            if name == "classes" and classes is not None:
                columns["class_name"] = classes[array]
            if len(columns) == 1 and ids is not None and len(ids) == len(array):
                columns["ids"] = ids
        elif array.ndim == 2:
            count = array.shape[1]
            titles = classes if classes is not None and len(classes) == count else range(count)
            columns |= {f"{name}_{title}": array[:, at] for at, title in enumerate(titles)}
        else:
            bad_value("arrays", f"{name} has shape {array.shape}; accepted: one or two dimensions, or .npz")
    if len(lengths := {len(column) for column in columns.values()}) > 1:
        bad_value("arrays", f"have the lengths {sorted(lengths)}; accepted: one length, or a file in .npz")
    # As Python's numbers: of a float32 they would otherwise show NumPy's type.
    rows = [columns, *zip(*(_texts(column) for column in columns.values()), strict=True)]
    # Not csv.writer, which before Python 3.13 leaves a carriage return unquoted where lines end without one.
    return "".join(",".join(_quoted(str(cell)) for cell in row) + "\n" for row in rows)


def _quoted(cell: str) -> str:
    return '"{}"'.format(cell.replace('"', '""')) if set(cell) & set(',"\r\n') else cell


def _texts(column: Any) -> Any:
    """Return the cells of a column, of floats with the digits that tell float32 numbers apart.

    No spreadsheet runs a text, from which `removeprefix("'")` makes the given one again.
    """
    if column.dtype.kind in "OU":
        return [
            f"'{text}" if text.startswith(_FORMULA) and not _NUMBER.fullmatch(text) else text
            for text in map(str, column.tolist())
        ]
    if column.dtype.kind == "f":
        return [f"{value:.9g}" for value in column.tolist()]
    return column.astype(int).tolist() if column.dtype.kind == "b" else column.tolist()


def run(options: argparse.Namespace) -> int:
    """Write predictions to a file, say how many, and return the exit status 0."""
    # Last, so that nothing in the present folder takes the place of an installed module.
    sys.path.append(os.getcwd())
    console = Console(highlight=False, markup=False, soft_wrap=True)
    with log_shown("gnnsparse.data", console.print):
        try:
            found = predict_run(
                options.source, options.data, root=options.root, device=options.device,
                options=dict(map(_option, options.rest)),
            )  # fmt: skip
        except TypeError as error:
            if str(error).startswith("dataset."):  # an option of another type, or that there is not
                raise ValueError(str(error)) from error
            raise
    write_predictions(options.out, found.arrays, found.names)
    count = len(next(iter(found.arrays.values())))
    scores = ", ".join(f"{name} {value:.4g}" for name, value in found.metrics.get("test", {}).items())
    said = f"; test: {scores}" if scores else ""
    console.print(f"{count} predictions on {found.dataset}{said}\n{options.out}")
    return 0
