"""`gnnsparse.fit`, which trains any model of nodes on a graph as train.py trains its models."""

from __future__ import annotations

import contextlib
import inspect
import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from gnnsparse.errors import bad_type, bad_value, check_choice, check_flag, check_integer
from gnnsparse.precision import Precision
from gnnsparse.preprocess.source import is_pyg_data
from gnnsparse.registry import MADE_OF
from gnnsparse.sparse.prepared import NORMALIZATIONS

if TYPE_CHECKING:
    from gnnsparse.data import NodeDataset
    from gnnsparse.sparse.operand import SparseOperand
    from gnnsparse.train.trained import ModelRecipe, Prediction

__all__ = ["Fitted", "fit"]

#: What a model can be called with beside the features.
INPUTS = ("auto", "operand", "edge_index", "none")
#: The weights of the operand that layers of gnnsparse.nn need.
_VALUES: dict[str, str | None] = {
    "GCNConv": "gcn", "GATConv": "gcn", "GATv2Conv": "gcn", "AGNNConv": "gcn", "SAGEConv": "mean",
    "GINConv": None, "GraphConv": None, "TransformerConv": None,
}  # fmt: skip
#: Layers of gnnsparse.nn that use the structure of the operand alone.
_WITHOUT_WEIGHTS = ("GATConv", "GATv2Conv", "AGNNConv", "TransformerConv")
#: Attributes of PyG's Data that are passed to a model whose `forward` has a parameter of that name.
_EDGE_ARGUMENTS = ("edge_weight", "edge_attr")
#: Names of a parameter that stands for a whole graph, and not for its features.
_WHOLE_GRAPHS = ("data", "batch", "graph", "g")


@dataclass(frozen=True, eq=False)
class Fitted:
    """The outcome of `gnnsparse.fit`.

    Attributes:
        model: the model, with the weights of its best epoch, on the device that it was trained on.
        dataset: the data set that it was trained on, with its split.
        metrics: scores after the best epoch: {"train" | "val" | "test": {name: value}}.
        history: a row for each epoch: "epoch", counted from 1, "train/loss", and in validated epochs
            "val/loss" and the validation scores.
        best_epoch: the epoch with the best validation score, the first one among equals.
        epochs: number of trained epochs.
        seconds: wall time of the training.
    """

    model: torch.nn.Module
    dataset: NodeDataset
    metrics: dict[str, dict[str, float]]
    history: list[dict[str, float]]
    best_epoch: int
    epochs: int
    seconds: float
    _caller: _Caller

    def predict(self, data: Any = None) -> Prediction:
        """Computes what the model says of all nodes, without gradients, in the precision of the training.

        Args:
            data: another graph, a PyG Data with x or a NodeDataset; None: the one that it was trained on.

        Returns:
            Logits, probabilities and classes of the nodes, on the CPU; class c is `dataset.class_names[c]`
            where the classes have names.

        Raises:
            TypeError: `data` is of another type.
            ValueError: it has no features, or others than the model takes.
        """
        from gnnsparse.train.trained import Prediction

        x, graph = self._caller.inputs(self.dataset if data is None else data)
        wanted = self.dataset.num_features
        if x.dim() != 2 or x.shape[1] != wanted:
            bad_value("data.x", f"has shape {tuple(x.shape)}; accepted: (nodes, {wanted}), as in training")
        was_training = self.model.training
        self.model.eval()
        try:
            with torch.no_grad(), self._caller.numerics():
                outputs = self._caller(self.model, x, graph).float().cpu()
        finally:
            self.model.train(was_training)
        return Prediction(outputs, self.dataset.multi_label, self.dataset.regression)


@dataclass(frozen=True, eq=False)
class _Caller:
    """How a model is called.

    Attributes:
        kind: one of INPUTS but "auto".
        values: weights of the operand.
        precision: precision of the operand's products, and on a GPU of dense layers.
        device: the device.
        arguments: names of the edges' attributes that are passed as well.
        fixed: the graph of the training, and its edges if it came as PyG's Data.
    """

    kind: str
    values: str | None
    precision: Precision
    device: torch.device
    arguments: tuple[str, ...] = ()
    fixed: tuple[Any, Any] | None = None

    def __call__(self, model: torch.nn.Module, x: torch.Tensor, graph: Any) -> torch.Tensor:
        if self.kind == "none":
            return model(x)
        if self.kind == "operand":
            return model(x, graph)
        edge_index, more = graph
        return model(x, edge_index, **more)

    def numerics(self) -> Any:
        from gnnsparse.train.device import numerics

        return numerics(self.precision, self.device)

    def inputs(self, data: Any) -> tuple[torch.Tensor, Any]:
        """Returns the features and the graph of data, on the device, as the model takes them."""
        from gnnsparse.data import NodeDataset

        if self.fixed is not None and data is self.fixed[0]:
            x, graph = data.x, self.fixed[1]
        elif is_pyg_data(data):
            if not isinstance(data.x, torch.Tensor):
                bad_value("data.x", "is missing; accepted: features of the nodes")
            x, graph = data.x, self._graph(data)
        elif isinstance(data, NodeDataset):
            x, graph = data.x, self._graph(data)
        else:
            bad_type("data", data, "a torch_geometric.data.Data or a gnnsparse.data.NodeDataset")
        storage = self.precision.storage if self.device.type == "cuda" else torch.float32
        return x.to(self.device, storage), graph

    def _graph(self, data: Any) -> Any:
        if self.kind == "none":
            return None
        return self.operand(data) if self.kind == "operand" else self.edges(data)

    def operand(self, data: Any) -> SparseOperand:
        """Prepares the graph of data."""
        from gnnsparse.preprocess.api import prepare

        source = data if is_pyg_data(data) else data.graph
        return prepare(source, values=self.values, precision=self.precision).to(self.device)

    def edges(self, data: Any) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Returns the edge_index of data, and the attributes of edges that the model takes."""
        if is_pyg_data(data):
            if not isinstance(data.edge_index, torch.Tensor):
                bad_value("data.edge_index", "is missing; accepted: the edges, int64 [2, edges]")
            edge_index = data.edge_index
            found = {name: data.get(name) for name in self.arguments}
        else:
            csr, values = data.graph.csr, data.graph.values
            edge_index = torch.stack([csr.indices.long(), csr.row_index().long()])
            found = {"edge_weight": values} if "edge_weight" in self.arguments else {}
        more = {name: value.to(self.device) for name, value in found.items() if value is not None}
        return edge_index.to(self.device), more


def fit(
    model: torch.nn.Module,
    data: Any,
    *,
    epochs: int = 200,
    lr: float = 0.01,
    weight_decay: float = 5e-4,
    decay: str = "all",
    schedule: str = "none",
    precision: Precision | str = "fp32",
    device: str = "auto",
    seed: int | None = 0,
    val_every: int = 1,
    patience: int | None = None,
    folder: str | os.PathLike[str] | None = None,
    resume: str | os.PathLike[str] | None = None,
    inputs: str = "auto",
    values: str | None = "auto",
    split: str = "auto",
    progress: bool = False,
) -> Fitted:
    """Trains a model on the nodes of a graph, as train.py does, and leaves it with its best weights.

    Each epoch is one step of Adam on the whole graph. The best epoch is the one with the best validation
    score. On a GPU the steps are captured in a CUDA graph where the model allows it.

    Args:
        model: any module. One of our layers is called as model(x, A) with a prepared operand A, one of PyG's
            as model(x, edge_index), with edge_weight= and edge_attr= if its `forward` has such parameters and
            the data have them, and a module whose `forward` takes the features alone as model(x). It returns
            [nodes, classes], or [nodes, numbers] in a regression.
        data: a torch_geometric.data.Data with x, y and edge_index (see gnnsparse.data.dataset_of_pyg), or a
            gnnsparse.data.NodeDataset (see gnnsparse.data.load_custom).
        epochs: number of epochs.
        lr: learning rate.
        weight_decay: factor of the L2 penalty.
        decay: "all": of all parameters; "first": of those of the layer `model.first_layer` alone.
        schedule: "none", or "cosine": from `lr` down to 0 at the last epoch.
        precision: "fp32", "tf32", "fp16" or "bf16": of sparse products, and on a GPU of dense layers too; or
            "int8" or "fp8", with which dense layers run as with "fp16".
        device: "auto", "cpu" or "cuda".
        seed: seed of dropout, and of a split that is made; None: the state of torch's random numbers as it
            is, and a split with seed 0.
        val_every: epochs from one validation to the next.
        patience: training stops when the validation score has not improved for this many epochs; None: it
            does not.
        folder: a new folder for checkpoints and logs, whose model `gnnsparse.load` reads; None: nothing is
            written. Models of `models.MODELS` are made anew by their name and options, as they were made
            here; any other has to be given to it: `gnnsparse.load(folder, model=...)`.
        resume: checkpoints/last.ckpt of an earlier call with a folder, to go on from.
        inputs: one of INPUTS: what `forward` takes beside the features; "auto": as above.
        values: weights of the operand, "gcn", "mean" or None as in `gnnsparse.prepare`; "auto": those that
            the model's layers need.
        split: of PyG's Data, see gnnsparse.data.load_custom: "auto" takes the masks that there are.
        progress: whether a progress bar is shown if the output is a terminal.

    Returns:
        Scores, history and predictions.

    Raises:
        TypeError: an argument is of another type, or the model's `forward` takes other arguments.
        ValueError: an argument is out of range, the data lack what training needs, or the model's layers need
            operands of different weights.
        FloatingPointError: the loss became infinite or NaN.
        ImportError: Lightning is not installed: gnnsparse[train].
    """
    if not isinstance(model, torch.nn.Module):
        bad_type("model", model, "a torch.nn.Module")
    check_choice("inputs", inputs, INPUTS)
    if values is not None:
        check_choice("values", values, ("auto", *NORMALIZATIONS))
    if seed is not None:
        check_integer("seed", seed, 0, "an integer from 0 on, or None", 2**63 - 1)
    check_flag("progress", progress)
    try:
        from gnnsparse.train import OptimizerConfig, TrainerConfig, resolve_device
        from gnnsparse.train import fit as train
        from gnnsparse.train.plots import Curves
    except ImportError as error:
        raise ImportError(f"gnnsparse.fit needs Lightning ({error}): pip install gnnsparse[train]") from error
    trainer = TrainerConfig(max_epochs=epochs, val_every=val_every, patience=patience, progress=progress)
    optimizer = OptimizerConfig(lr=lr, weight_decay=weight_decay, decay=decay, schedule=schedule)
    dataset = _dataset(data, split, 0 if seed is None else seed)
    kind = _inputs_of(model) if inputs == "auto" else inputs
    arguments = _edge_arguments(model) if kind == "edge_index" else ()
    has = data if is_pyg_data(data) else {"edge_weight": dataset.graph.values}
    _check_forward(model, kind, inputs == "auto", [name for name in arguments if has.get(name) is not None])
    caller = _Caller(
        kind,
        _values_of(model) if values == "auto" and kind == "operand" else None if values == "auto" else values,
        Precision.parse(precision),
        resolve_device(device),
        arguments,
    )
    dataset = _with_used_weights(model, data, dataset, caller)
    curves = Curves()
    devices = [torch.cuda.current_device()] if caller.device.type == "cuda" else []
    with torch.random.fork_rng(devices, enabled=seed is not None):
        if seed is not None:
            torch.manual_seed(seed)
        module, prepared, caller = _make(model, data, dataset, caller, optimizer, epochs)
        result = train(
            module,
            prepared,
            trainer,
            folder=None if folder is None else Path(folder),
            recipe=None if folder is None else _recipe(model, dataset, caller, seed),
            resume=None if resume is None else Path(resume),
            curves=curves,
        )
        model.to(caller.device)  # Lightning leaves it on the CPU
    return Fitted(
        model,
        dataset,
        result.metrics,
        _rows(curves),
        result.best_epoch,
        result.epochs,
        result.fit_seconds,
        caller,
    )


def _dataset(data: Any, split: str, seed: int) -> NodeDataset:
    from gnnsparse.data import NodeDataset, dataset_of_pyg

    if isinstance(data, NodeDataset):
        if split != "auto":
            bad_value("split", f"got {split!r} for a NodeDataset, which has its split; accepted: auto")
        return data
    if not is_pyg_data(data):
        bad_type("data", data, "a torch_geometric.data.Data or a gnnsparse.data.NodeDataset")
    for name, instead in (
        ("x", "gnnsparse.data.dataset_of_pyg(data, features='degree'), which makes features of the graph"),
        ("y", "float numbers to predict, in the place of classes"),
    ):
        if data.get(name) is None:
            what = "features" if name == "x" else "classes"
            bad_value(f"data.{name}", f"is missing; accepted: {what} of the nodes, or {instead}")
    return dataset_of_pyg(data, split=split, seed=seed)


def _inputs_of(model: torch.nn.Module) -> str:
    """Returns what a model takes beside the features, by its layers and by its signature."""
    homes = {kind.__module__ for module in model.modules() for kind in type(module).__mro__}
    if any(home.startswith("gnnsparse.nn") for home in homes):
        return "operand"
    if any(home.startswith("torch_geometric.nn") for home in homes):
        return "edge_index"
    names, needed = [], 0
    for parameter in inspect.signature(model.forward).parameters.values():
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            names.append(parameter.name)
            needed += parameter.default is parameter.empty
    if "edge_index" in names:
        return "edge_index"
    return "none" if needed <= 1 and len(names) == 1 else "operand"


def _check_forward(model: torch.nn.Module, kind: str, is_guess: bool, arguments: list[str]) -> None:
    """Raise a TypeError unless the `forward` of a model takes what it is called with.

    Args:
        model: the model.
        kind: one of INPUTS but "auto".
        is_guess: whether it was inferred from the model.
        arguments: the attributes of edges that the data have, by name.
    """
    given = ("x",) if kind == "none" else ("x", "A" if kind == "operand" else "edge_index")
    signature = inspect.signature(model.forward)
    first = next(iter(signature.parameters), "")
    with contextlib.suppress(TypeError):
        signature.bind(*given, **dict.fromkeys(arguments))
        if not (is_guess and kind == "none" and first in _WHOLE_GRAPHS):
            return
    called = ", ".join((*given, *(f"{name}={name}" for name in arguments)))
    raise TypeError(
        f"model: got {type(model).__name__} with forward{signature}, which is called as forward({called}); "
        "accepted: forward(x, A) with an operand A, forward(x, edge_index) with edge_weight and edge_attr "
        "where the data have them, or forward(x), with defaults for the others; inputs= says which it is"
    )


def _layers(model: torch.nn.Module) -> list[torch.nn.Module]:
    """Returns the layers of a model that are those of gnnsparse.nn."""
    found = []
    for module in model.modules():
        if any(kind.__module__.startswith("gnnsparse.nn") for kind in type(module).__mro__):
            found.append(module)
    return found


def _layer_name(layer: torch.nn.Module) -> str | None:
    names = (kind.__name__ for kind in type(layer).__mro__ if kind.__module__.startswith("gnnsparse.nn"))
    return next((name for name in names if name in _VALUES), None)


def _values_of(model: torch.nn.Module) -> str | None:
    """Returns the weights of the operand that the layers of a model need; raises if they differ."""
    needed: dict[str | None, str] = {}
    for layer in _layers(model):
        name = _layer_name(layer)
        if name is None or (name == "GCNConv" and not getattr(layer, "normalize", True)):
            continue
        values = _VALUES[name]
        if name == "SAGEConv" and getattr(layer, "aggr", "mean") != "mean":
            values = None
        needed.setdefault(values, name)
    if len(needed) > 1:
        what = ", ".join(f"{name} {values!r}" for values, name in needed.items())
        bad_value("values", f"layers need different ones ({what}); accepted: values= that suits all of them")
    return next(iter(needed), None)


def _edge_arguments(model: torch.nn.Module) -> tuple[str, ...]:
    parameters = inspect.signature(model.forward).parameters
    return tuple(name for name in _EDGE_ARGUMENTS if name in parameters)


def _with_used_weights(
    model: torch.nn.Module, data: Any, dataset: NodeDataset, caller: _Caller
) -> NodeDataset:
    """Returns the data set, without weights of edges that the model would ignore, after a warning."""
    weighted = (data.get("edge_weight") if is_pyg_data(data) else dataset.graph.values) is not None
    if caller.kind == "operand":
        names = [name for layer in _layers(model) if (name := _layer_name(layer)) is not None]
        ignored = bool(names) and all(name in _WITHOUT_WEIGHTS for name in names)
    else:
        ignored = "edge_weight" not in caller.arguments
    if not ignored:
        return dataset
    if weighted:
        problem = f"data: {type(model).__name__} does not use the weights of the edges"
        warnings.warn(problem, UserWarning, stacklevel=3)
    return dataset.without_weights()


def _make(
    model: torch.nn.Module,
    data: Any,
    dataset: NodeDataset,
    caller: _Caller,
    optimizer: Any,
    epochs: int,
) -> tuple[Any, Any, _Caller]:
    """Makes the Lightning module and the data module, and the caller with the graph on its device."""
    from gnnsparse.train.sampled import NodeBatch
    from gnnsparse.train.tasks.node import FullGraphData, GraphBatch, NodeClassifier

    prepared = FullGraphData(dataset, values=caller.values, precision=caller.precision, device=caller.device)
    graph: Any = prepared.adj
    if caller.kind == "edge_index":
        graph = caller.edges(data)
    caller = replace(caller, fixed=(dataset, graph))

    class Classifier(NodeClassifier):
        """A NodeClassifier of a model that is called in its own way."""

        def outputs(self, batch: GraphBatch | NodeBatch) -> torch.Tensor:
            return caller(self.model, batch.x, graph)

    batch = prepared.batch
    model.to(caller.device)
    call: Callable[[], torch.Tensor] = lambda: caller(model, batch.x, graph)  # noqa: E731
    _check_outputs(model, call, dataset, caller)
    model.train()
    return Classifier(model, dataset, optimizer, epochs), prepared, caller


def _recipe(model: torch.nn.Module, dataset: NodeDataset, caller: _Caller, seed: int | None) -> ModelRecipe:
    """Returns what the model is made of, if it is a registered one as it was made, and how it is called."""
    from gnnsparse.train.trained import ModelRecipe

    inputs = {"operand": ("operand",), "none": (), "edge_index": ("edge_index", *caller.arguments)}
    if caller.kind == "edge_index" and caller.fixed is not None:  # of those that it can take, which it got
        inputs["edge_index"] = ("edge_index", *caller.fixed[1][1])
    recipe = ModelRecipe(
        registry=None,
        name=type(model).__name__,
        options={},
        in_channels=dataset.num_features,
        out_channels=dataset.num_classes,
        values=caller.values,
        precision=caller.precision.value,
        several_labels=dataset.multi_label,
        regression=dataset.regression,
        inputs=inputs[caller.kind],
        feature_names=dataset.feature_names,
        run={} if seed is None else {"seed": seed},
    )
    made_of = getattr(model, MADE_OF, None)
    if made_of is None:
        return recipe
    registry, name, options = made_of
    try:
        own = replace(recipe, registry=registry, name=name, options=options)
        with torch.device("meta"):
            again = own.build().state_dict()
    except (ValueError, RuntimeError, NotImplementedError):  # of options that are no plain values, say
        return recipe
    shapes = {key: tensor.shape for key, tensor in model.state_dict().items()}
    return own if shapes == {key: tensor.shape for key, tensor in again.items()} else recipe


def _check_outputs(
    model: torch.nn.Module, call: Callable[[], torch.Tensor], dataset: NodeDataset, caller: _Caller
) -> None:
    """Calls a model once, which also makes lazy parameters, and checks what it returns."""
    model.eval()
    with torch.no_grad(), caller.numerics():
        outputs: Any = call()
    wanted = (dataset.num_nodes, dataset.num_classes)
    if not isinstance(outputs, torch.Tensor) or tuple(outputs.shape) != wanted:
        got = tuple(outputs.shape) if isinstance(outputs, torch.Tensor) else type(outputs).__name__
        bad_value(
            "model", f"returns {got}; accepted: a tensor {wanted}, a row for each node, a column a class"
        )


def _rows(curves: Any) -> list[dict[str, float]]:
    steps, losses = curves.loss
    rows = {
        step: {"epoch": float(step), "train/loss": loss} for step, loss in zip(steps, losses, strict=True)
    }
    for name, (at, scores) in curves.scores.items():
        for step, score in zip(at, scores, strict=True):
            rows[step][name] = score
    return [rows[step] for step in sorted(rows)]
