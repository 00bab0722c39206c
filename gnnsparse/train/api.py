"""`gnnsparse.fit`, which trains any model on a data set of any task, as train.py trains its models."""

from __future__ import annotations

import contextlib
import copy
import inspect
import os
import statistics
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from gnnsparse.data.custom.edges import features_of_attr, is_of_edges
from gnnsparse.data.optional import import_optional
from gnnsparse.data.pyg_lists import divided, graphs_of, is_many
from gnnsparse.errors import bad_type, bad_value, check_choice, check_flag, check_integer
from gnnsparse.nn.edge_head import EdgeHead, EdgeScorer
from gnnsparse.precision import Precision
from gnnsparse.preprocess.api import prepare
from gnnsparse.preprocess.source import is_pyg_data
from gnnsparse.registry import MADE_OF
from gnnsparse.sparse.prepared import NORMALIZATIONS
from gnnsparse.sparse.typed import is_hetero_data
from gnnsparse.train.device import numerics, resolve_device
from gnnsparse.train.settings import OptimizerConfig, SamplerConfig, TrainerConfig
from gnnsparse.train.trained import (
    call_typed,
    call_with_graph,
    outputs_of_type,
    takes_edge_features,
    typed_inputs,
)

if TYPE_CHECKING:
    from gnnsparse.train.tasks import RunOptions, Task
    from gnnsparse.train.trained import ModelRecipe, Prediction

__all__ = ["Fitted", "fit"]

#: What a model can be called with beside the features.
INPUTS = ("auto", "operand", "edge_index", "data", "none")
#: The weights of the operand that layers of gnnsparse.nn need.
_VALUES: dict[str, str | None] = {
    "GCNConv": "gcn", "GATConv": "gcn", "GATv2Conv": "gcn", "AGNNConv": "gcn", "SAGEConv": "mean",
    "GINConv": None, "GraphConv": None, "TransformerConv": None,
}  # fmt: skip
#: Layers of gnnsparse.nn that use the structure of the operand alone.
_WITHOUT_WEIGHTS = ("GATConv", "GATv2Conv", "AGNNConv", "TransformerConv")
#: Attributes of PyG's Data that are passed to a model whose `forward` has a parameter of that name, if the
#: data have them; others only where the parameter has no default.
_OPTIONAL = ("edge_weight", "edge_attr", "batch")
#: Names of a parameter that stands for a whole graph, and not for its features.
_WHOLE_GRAPHS = ("data", "batch", "graph", "g")


@dataclass(frozen=True, eq=False)
class Fitted:
    """The outcome of `gnnsparse.fit`.

    Attributes:
        model: the model, with the weights of its best epoch, on the device that it was trained on.
        dataset: the data set that it was trained on, with its split.
        metrics: scores after the best epoch: {"train" | "val" | "test": {name: value}}.
        classes: of a classifier a row for each class of the test part: "class" (its name or number),
            "precision", "recall", "f1", "count".
        history: a row for each epoch: "epoch", counted from 1, "train/loss", and in validated epochs
            "val/loss" and the validation scores.
        best_epoch: the epoch with the best validation score, the first one among equals.
        epochs: number of trained epochs.
        seconds: wall time of the training.
    """

    model: torch.nn.Module
    dataset: Any
    metrics: dict[str, dict[str, float]]
    classes: Sequence[dict[str, Any]]
    history: list[dict[str, float]]
    best_epoch: int
    epochs: int
    seconds: float
    _caller: _Caller | None

    def predict(self, data: Any = None) -> Prediction:
        """Compute what the model says of all nodes, edges or graphs, without gradients, as it was trained.

        Args:
            data: of a model of nodes another graph, a PyG Data with x or a NodeDataset, or of a graph with
                types a HeteroData or a TypedNodeDataset; of one of edges likewise, or an EdgeDataset; of one
                of graphs a list of Data, or a GraphDataset; None: what it was trained on. Data of a user's
                file are made by load_custom(..., transform=result.dataset.feature_transform).

        Returns:
            Logits, probabilities and classes of the nodes, edges or graphs, on the CPU; class c is
            `dataset.class_names[c]` where the classes have names.

        Raises:
            TypeError: `data` is of another type.
            ValueError: it has no features, or others than the model takes, or they are scaled in another way;
                or the model is one of links or sequences.
        """
        from gnnsparse.train.trained import Prediction

        if self._caller is None:
            accepted = "gnnsparse.load(folder).predict, with the argument folder of the training"
            bad_value("data", f"are no nodes, edges or graphs; accepted: {accepted}")
        _check_same_features(self.dataset, data)
        was_training = self.model.training
        self.model.eval()
        try:
            with torch.no_grad(), numerics(self._caller.precision, self._caller.device):
                outputs = self._caller.outputs(self.model, self.dataset, data).float().cpu()
        finally:
            self.model.train(was_training)
        return Prediction(outputs, self.dataset.multi_label, self.dataset.regression)


def _check_same_features(trained: Any, data: Any) -> None:
    """Raise ValueError if the features of a user's file have other names, or are scaled in another way."""
    own, given = (getattr(of, "feature_transform", None) for of in (trained, data))
    if own is None or given is None:
        return
    names = [getattr(of, "feature_names", None) for of in (trained, data)]
    differ = any(own.get(name) != given.get(name) for name in ("scale", "types", "nodes"))
    if (None not in names and names[0] != names[1]) or differ:
        accepted = "load_custom(..., transform=result.dataset.feature_transform)"
        bad_value("data", f"has features that are not made as in the training; accepted: {accepted}")


@dataclass(frozen=True, eq=False)
class _Caller:
    """How a model is called: `kind` is one of INPUTS but "auto", `values` are the weights of its operand."""

    # Names of attributes that are passed too; the training's graph, with its edges if it was PyG's Data;
    # whether a model with an operand takes features of edges, which are behind it in a tuple then.

    kind: str
    values: str | None
    precision: Precision
    device: torch.device
    arguments: tuple[str, ...] = ()
    fixed: tuple[Any, Any] | None = None
    takes_edges: bool = False

    @property
    def takes(self) -> tuple[str, ...]:
        """What the model takes beside the features, as a ModelRecipe has it."""
        return () if self.kind == "none" else (self.kind, *self.arguments)

    @property
    def takes_attr(self) -> bool:
        """Whether the model gets features of edges, if the data have them."""
        return self.kind == "data" or "edge_attr" in self.arguments

    def __call__(self, model: torch.nn.Module, x: torch.Tensor, graph: Any) -> torch.Tensor:
        if self.kind == "none":
            return model(x)
        if self.kind == "operand":
            return model(x, *graph) if self.takes_edges else model(x, graph)
        found: torch.Tensor = call_with_graph(model, self.takes, x, graph)
        return found

    def outputs(self, model: torch.nn.Module, dataset: Any, data: Any) -> torch.Tensor:
        """Return what the model says of data, or of those of the training, if there are no others."""
        x, graph = self.inputs(dataset if data is None else data)
        if x.dim() != 2 or x.shape[1] != (wanted := dataset.num_features):
            bad_value("data.x", f"has shape {tuple(x.shape)}; accepted: (nodes, {wanted}), as in training")
        return self(model, x, graph)

    def inputs(self, data: Any) -> tuple[torch.Tensor, Any]:
        """Return the features and the graph of data, on the device, as the model takes them."""
        from gnnsparse.data import EdgeDataset, NodeDataset

        wanted = EdgeDataset if isinstance(self, _EdgesCaller) else NodeDataset
        if not is_pyg_data(data) and not isinstance(data, wanted):
            bad_type("data", data, f"a torch_geometric.data.Data or a gnnsparse.data.{wanted.__name__}")
        if not isinstance(data.x, torch.Tensor):
            bad_value("data.x", "is missing; accepted: features of the nodes")
        of, graph = (None, None) if self.fixed is None else self.fixed
        storage = self.precision.storage if self.device.type == "cuda" else torch.float32
        made = getattr(getattr(of, "edge_features", None), "transform", {})
        return data.x.to(self.device, storage), graph if data is of else self.graph(data, made)

    def graph(self, data: Any, edge_transform: Mapping[str, Any] | None = None) -> Any:
        """Return the graph of data as the model takes it: an operand, PyG's Data, or attributes by name."""
        if self.kind == "none":
            return None
        if self.takes_edges:
            found = data if is_pyg_data(data) else getattr(data.edge_features, "attributes", {})
            if found.get("edge_attr") is None:
                bad_value("data.edge_attr", "is missing; accepted: features of the edges, as in training")
            adj = prepare(found["edge_index"], num_nodes=data.num_nodes, precision=self.precision)
            attr = found["edge_attr"]
            attr = features_of_attr(attr, edge_transform or {}) if is_pyg_data(data) else attr
            return adj.to(self.device), attr.to(self.device)
        if self.kind == "operand":
            source = data if is_pyg_data(data) else data.graph
            return prepare(source, values=self.values, precision=self.precision).to(self.device)
        if is_pyg_data(data):
            if not isinstance(data.edge_index, torch.Tensor):
                bad_value("data.edge_index", "is missing; accepted: the edges, int64 [2, edges]")
            if self.kind == "data":
                return copy.copy(data).to(self.device)
            found = {name: data.get(name) for name in self.takes}
        else:
            csr, weights = data.graph.csr, data.graph.values
            found = {"edge_index": torch.stack([csr.indices.long(), csr.row_index().long()])}
            found |= {} if weights is None else {"edge_weight": weights}
            if self.takes_attr and (more := getattr(data, "edge_features", None)) is not None:
                found = more.attributes
            if self.kind == "data":
                return import_optional("torch_geometric.data", "this model").Data(**found).to(self.device)
        return {name: value.to(self.device) for name, value in found.items() if value is not None}


@dataclass(frozen=True, eq=False)
class _EdgesCaller(_Caller):
    """How the encoder of an EdgeScorer is called; `fixed` has the training's data set, and its graph."""

    def outputs(self, model: torch.nn.Module, dataset: Any, data: Any) -> torch.Tensor:
        """Return what the model says of each edge."""
        from gnnsparse.data import dataset_of_edges
        from gnnsparse.train.tasks import options_found

        of = dataset if data is None else data
        if is_pyg_data(data):
            plain = copy.copy(data)
            plain.edge_label = None
            found = options_found("edge", dataset)
            options = {name: found[name] for name in ("label_kind", "classes", "metric")}
            of = dataset_of_edges(plain, **options, edge_transform=dataset.edge_transform)
        x, graph = self.inputs(dataset if data is None else data)
        attr = None if of.edge_attr is None else of.edge_attr.to(self.device)
        scorer: Any = model
        outputs: torch.Tensor = scorer.head(
            self(scorer.encoder, x, graph), of.edge_index.to(self.device), attr
        )
        return outputs


@dataclass(frozen=True, eq=False)
class _TypedCaller(_Caller):
    """How a model of a graph with types is called; `fixed` has the training's data set, x and graph."""

    target: str = ""

    def __call__(self, model: torch.nn.Module, x: Any, graph: Any) -> torch.Tensor:
        return outputs_of_type(call_typed(model, x, graph), self.target)

    def outputs(self, model: torch.nn.Module, dataset: Any, data: Any) -> torch.Tensor:
        """Return what the model says of each node of the target type."""
        assert self.fixed is not None
        of, (x, graph) = self.fixed
        if data is not None and data is not of:
            storage = self.precision.storage if self.device.type == "cuda" else torch.float32
            given, graph = typed_inputs(data)
            x = {kind: own.to(self.device, storage) for kind, own in given.items()}
            graph = graph.to(self.device)
        return self(model, x, graph)


def _with_head(model: torch.nn.Module, call: Callable[[], Any], dataset: Any, caller: _Caller) -> EdgeScorer:
    """Return a model of edges: the model itself, or its outputs as embeddings of the nodes, and a head."""
    if isinstance(model, EdgeScorer):
        return model
    model.eval()
    with torch.no_grad(), numerics(caller.precision, caller.device):
        outputs = call()
    if not isinstance(outputs, torch.Tensor) or outputs.dim() != 2 or len(outputs) != dataset.num_nodes:
        got = tuple(outputs.shape) if isinstance(outputs, torch.Tensor) else type(outputs).__name__
        bad_value("model", f"returns {got}; accepted: embeddings of the nodes, ({dataset.num_nodes}, any)")
    columns = 0 if dataset.edge_attr is None else dataset.edge_attr.shape[1]
    head = EdgeHead(outputs.shape[1], dataset.num_classes, columns)
    return EdgeScorer(model, head).to(caller.device)


@dataclass(frozen=True, eq=False)
class _GraphsCaller(_Caller):
    """How a model of graphs is called; `fixed` has the training's data set, and PyG's graphs of it."""

    def call(self, model: torch.nn.Module, batch: Any) -> torch.Tensor:
        """Call the model with a batch of graphs."""
        from gnnsparse.train.tasks.graph import call_with_operand

        if self.kind == "operand":
            return call_with_operand(model, batch)
        return self(model, batch.x, batch.adj)

    def outputs(self, model: torch.nn.Module, dataset: Any, data: Any) -> torch.Tensor:
        """Return what the model says of each graph."""
        from gnnsparse.data import GraphDataset

        if data is None:
            dataset, graphs = self.fixed or (dataset, None)
        elif isinstance(data, GraphDataset):
            dataset, graphs = data, None
        else:
            graphs = graphs_of(data)
            dataset = _without_labels(graphs, dataset)
        return torch.cat(
            [self.call(model, batch) for batch in self.batches(dataset, graphs, {}).all_graphs()]
        )

    def batches(self, dataset: Any, graphs: list[Any] | None, options: Mapping[str, Any]) -> Any:
        """Make the data module, of PyG's graphs if the model takes them."""
        from gnnsparse.train.tasks.graph import GraphData, PygGraphData

        of: dict[str, Any] = {"values": self.values, "precision": self.precision, "device": self.device}
        if self.kind == "operand":
            dataset = dataset if self.takes_edges else replace(dataset, edge_features=None)
            return GraphData(dataset, **{**of, **options})
        graphs = divided(dataset, self.takes_attr) if graphs is None else graphs
        return PygGraphData(dataset, graphs, **{**of, **options})


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
    batch_size: int | None = None,
    class_weights: str | Sequence[float] = "none",
    sampler: SamplerConfig | None = None,
    pattern: Mapping[str, Any] | None = None,
    group: dist.ProcessGroup | None = None,
    folder: str | os.PathLike[str] | None = None,
    resume: str | os.PathLike[str] | None = None,
    inputs: str = "auto",
    values: str | None = "auto",
    split: str = "auto",
    target: str | None = None,
    progress: bool = False,
) -> Fitted:
    """Train a model as train.py does, and leave it with its best weights.

    The data say which task it is: nodes, graphs, links or sequences. An epoch is one step of Adam on a whole
    graph, or a step on each batch. The best epoch is the one with the best validation score. On a GPU the
    steps are captured in a CUDA graph where the model allows it.

    Args:
        model: any module. Of nodes, one of our layers is called as model(x, A) with a prepared operand A, one
            of PyG's as model(x, edge_index), with edge_weight= and edge_attr= if its `forward` has such
            parameters and the data have them, and a module whose `forward` takes the features alone as
            model(x). One of our layers whose `forward` has a parameter edge_attr gets features of edges as
            the last argument, if the data have them. It returns [nodes, classes], or [nodes, numbers] in a
            regression. Of graphs, one of PyG's is called likewise, with batch= too, on batches that PyG puts
            together, and returns [graphs, classes]. Parameters without a default may be any attributes of the
            data by name, in any order. Of a graph with types a model is called as those of PyG's `to_hetero`
            are, with x and edge_index by type, and returns outputs of the type that is learned, or of all
            types. A module whose `forward` takes `data` alone gets PyG's Data or Batch. Other models are
            called as those of `models.MODELS` are (GraphPredictor, LinkPredictor and SequenceClassifier in
            gnnsparse.train.tasks). Of edges, one of nodes returns embeddings [nodes, any], and
            `Fitted.model` has it as `encoder`, and a `head` on both ends and the features of an edge.
        data: a torch_geometric.data.Data with x, y and edge_index (see gnnsparse.data.dataset_of_pyg), or
            edge_label in place of y (see gnnsparse.data.dataset_of_edges); a HeteroData, with y of one type
            (see gnnsparse.data.dataset_of_hetero); a list or a data set of PyG of Data, each with a y (see
            gnnsparse.data.dataset_of_graphs); or a NodeDataset (see gnnsparse.data.load_custom),
            GraphDataset, EdgeDataset, LinkDataset, SequenceDataset, TypedNodeDataset or TypedLinkDataset of
            gnnsparse.data.
        epochs: number of epochs.
        lr: learning rate.
        weight_decay: factor of the L2 penalty.
        decay: "all": of all parameters; "first": of those of the layer `model.first_layer` alone.
        schedule: "none", or "cosine": from `lr` down to 0 at the last epoch.
        precision: "fp32", "tf32", "fp16" or "bf16": of sparse products, and on a GPU of dense layers too; or
            "int8" or "fp8", with which dense layers run as with "fp16".
        device: "auto", "cpu" or "cuda".
        seed: seed of dropout, of the order of batches, and of a split that is made; None: the state of
            torch's random numbers as it is, and an order and a split with seed 0.
        val_every: epochs from one validation to the next.
        patience: training stops when the validation score has not improved for this many epochs; None: it
            does not.
        batch_size: graphs, links or sequences of a step; a step on all nodes of a graph ignores it. None: see
            gnnsparse.train.TrainerConfig.
        class_weights: "none", "balanced" or a number for each class, see gnnsparse.train.TrainerConfig.
        sampler: steps take neighbours that are drawn for some nodes or links; None: the whole graph.
        pattern: the attention pattern of sequences, "name" in gnnsparse.masks.PATTERNS and its arguments.
        group: the processes that train one graph of nodes together, as torchrun starts them, each of which
            calls `fit` with equal arguments (rank 0 alone has a folder); None: this one trains alone.
        folder: a new folder for checkpoints and logs, whose model `gnnsparse.load` reads; None: nothing is
            written. Models of `models.MODELS` are made anew by their name and options, as they were made
            here; any other has to be given to it: `gnnsparse.load(folder, model=...)`.
        resume: checkpoints/last.ckpt of an earlier call with a folder, to go on from.
        inputs: one of INPUTS: what `forward` of a model of nodes or graphs takes beside the features; "auto":
            as above.
        values: weights of the operand, "gcn", "mean" or None as in `gnnsparse.prepare`; "auto": those that
            the model's layers need.
        split: of PyG's Data, see gnnsparse.data.load_custom: "auto" takes the masks that there are.
        target: of a HeteroData the type whose nodes are learned; None: the one with y.
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
        from gnnsparse.data import dataset_of_hetero
        from gnnsparse.distributed.training import Peers
        from gnnsparse.train.fitting import fit as train
        from gnnsparse.train.sampled import check_blocks
        from gnnsparse.train.tasks import BATCH_SIZE, TASKS, RunOptions
    except ImportError as error:
        raise ImportError(f"gnnsparse.fit needs Lightning ({error}): pip install gnnsparse[train]") from error
    if is_many(data) and len(data) == 1 and is_hetero_data(data[0]):
        data = data[0]  # as PyG's data sets with types are
    if is_many(data):
        many = graphs_of(data)
        # A data set of one graph, as PyG has Cora, is of its nodes.
        data = many if isinstance(data, (list, tuple)) or len(many) > 1 else many[0]
    encoder: Any = model.encoder if isinstance(model, EdgeScorer) else model
    if target is not None and not is_hetero_data(data):
        bad_value(
            "target", f"got {target!r} for a {type(data).__name__}; accepted: None, and a HeteroData's type"
        )
    kind = inputs_of(encoder) if inputs == "auto" else inputs
    takes_edges = kind == "operand" and takes_edge_features(encoder)
    drawn = 0 if seed is None else seed
    if is_hetero_data(data):
        data, split = dataset_of_hetero(data, target=target, split=split, seed=drawn), "auto"
    dataset, task = _dataset(data, split, drawn, TASKS, kind, takes_edges)
    peers = None
    if group is not None:
        control = group if dist.get_backend(group) == "gloo" else dist.new_group(backend="gloo")
        peers = Peers(dist.get_rank(group), dist.get_world_size(group), group, control)
    run = RunOptions(
        device=resolve_device(device),
        precision=Precision.parse(precision).value,
        seed=seed or 0,
        trainer=TrainerConfig(
            max_epochs=epochs, batch_size=batch_size, val_every=val_every, patience=patience,
            progress=progress, class_weights=class_weights,
        ),
        optimizer=OptimizerConfig(lr=lr, weight_decay=weight_decay, decay=decay, schedule=schedule),
        sampler=(sampler or SamplerConfig()).with_fanouts(encoder),
        groups={} if pattern is None else {"pattern": dict(pattern)},
        peers=peers,
    )  # fmt: skip
    caller = None
    if task.name in ("node", "graph", "edge"):
        caller = _caller_of(encoder, data, dataset, kind, values, run, inputs == "auto", takes_edges)
        dataset = _with_used_weights(encoder, data, dataset, caller)
        values = caller.values
    elif task.name == "typed_node":
        caller = _TypedCaller(
            "operand", None, Precision.parse(run.precision), run.device, target=dataset.target
        )
    elif inputs not in ("auto", "operand"):  # of links or sequences
        bad_value("inputs", f"got {inputs!r} for a {task.name} task; accepted: auto, operand")
    if task.samples_graphs:
        values = None if getattr(model, "typed_graph", None) == "prepared" else "mean"
    elif values == "auto":
        values = values_of(model)
    run = replace(run, values=values)
    task.check(run)
    if run.sampler.draws:
        check_blocks(encoder, run.sampler, task.samples_graphs)
    curves: list[tuple[int, dict[str, float]]] = []
    devices = [torch.cuda.current_device()] if run.device.type == "cuda" else []
    with torch.random.fork_rng(devices, enabled=seed is not None):
        if seed is not None:
            torch.manual_seed(seed)
        prepared: Any
        if isinstance(caller, _GraphsCaller):
            own = {name: value for name, value in run.of_data.items() if name == "seed"}
            graphs = data if isinstance(data, list) else None
            caller = replace(caller, fixed=(dataset, graphs))
            prepared = caller.batches(dataset, graphs, {**own, "batch_size": batch_size or BATCH_SIZE})
        else:
            prepared = task.make_data(dataset, run if peers is None else replace(run, model=encoder))
        model.to(run.device)
        if isinstance(caller, _GraphsCaller):
            batch = next(prepared.all_graphs())
            _check_outputs(model, caller, partial(caller.call, model, batch), len(batch.y), dataset)
        elif isinstance(caller, _TypedCaller):
            caller = replace(caller, fixed=(dataset, (prepared.x, prepared.adj)))
            _check_outputs(
                model, caller, partial(caller, model, prepared.x, prepared.adj), dataset.num_nodes, dataset
            )
        elif caller is not None:
            graph = prepared.adj if caller.kind == "operand" else caller.graph(data)
            if caller.takes_edges:
                graph = graph, prepared.batch.edge_attr
            x = prepared.batch.x
            if isinstance(caller, _EdgesCaller):
                model = _with_head(model, partial(caller, encoder, x, graph), dataset, caller)
            else:
                _check_outputs(model, caller, partial(caller, model, x, graph), x.shape[0], dataset)
            if group is None:  # else the operand has the nodes of this rank alone
                caller = replace(caller, fixed=(dataset, graph))
        model.train()
        module = task.make_module(model, prepared, run)
        made: Any = module
        if isinstance(caller, _GraphsCaller):
            made.call = caller.call
        elif isinstance(caller, _TypedCaller):
            made.call = caller
        elif caller is not None and caller.kind != "operand":
            made.call = lambda model, x, adj, *attr: caller(model, x, graph)
        result = train(
            module,
            prepared,
            run.trainer,
            folder=None if folder is None else Path(folder),
            recipe=None if folder is None else _recipe(model, task, dataset, caller, run, seed),
            resume=None if resume is None else Path(resume),
            identity=task.identity(run),
            curves=curves,
        )
        model.to(run.device)  # Lightning leaves it on the CPU
    history = _rows(curves, prepared.steps_per_epoch)
    best, epochs, seconds = result.best_epoch, result.epochs, result.fit_seconds
    return Fitted(model, dataset, result.metrics, result.classes, history, best, epochs, seconds, caller)


def _dataset(
    data: Any, split: str, seed: int, tasks: Mapping[str, Task[Any, Any]], kind: str, takes_edges: bool
) -> tuple[Any, Task[Any, Any]]:
    from gnnsparse.data import dataset_of_edges, dataset_of_graphs, dataset_of_pyg

    for task in tasks.values():
        if isinstance(data, task.dataset):
            if split != "auto":
                what = f"a {type(data).__name__}, which has its split; accepted: auto"
                bad_value("split", f"got {split!r} for {what}")
            return data, task
    if isinstance(data, list):
        # A model that gets whole graphs may use other attributes than x.
        made = kind == "data" and not any(hasattr(graph, "x") and graph.x is not None for graph in data)
        options: dict[str, Any] = {"features": "constant"} if made else {}
        options |= {"split": split, "seed": seed, "edge_features": takes_edges}
        return dataset_of_graphs(data, **options), tasks["graph"]
    if not is_pyg_data(data):
        kinds = ", ".join(sorted(task.dataset.__name__ for task in tasks.values()))
        accepted = (
            "a torch_geometric.data.Data or HeteroData, a list of Data, or a gnnsparse.data data set "
            f"({kinds})"
        )
        bad_type("data", data, accepted)
    of_edges = is_of_edges(data, "auto")
    degrees = "gnnsparse.data.dataset_of_pyg(data, features='degree'), which makes features of the graph"
    for name, accepted in (
        ("x", f"features of the nodes, or {degrees}"),
        ("y", "classes of the nodes, or float numbers to predict (edge_label: those of edges)"),
    ):
        if data.get(name) is None and not (of_edges and name == "y"):
            bad_value(f"data.{name}", f"is missing; accepted: {accepted}")
    if of_edges:
        return dataset_of_edges(data, split=split, seed=seed), tasks["edge"]
    return dataset_of_pyg(data, split=split, seed=seed, edge_features=takes_edges), tasks["node"]


def _without_labels(graphs: list[Any], dataset: Any) -> Any:
    """Return a data set of graphs whose labels do not matter, with the kind of labels of another one."""
    from gnnsparse.data import dataset_of_graphs
    from gnnsparse.train.tasks import options_found

    plain = [copy.copy(graph) for graph in graphs]
    for graph in plain:
        graph.y = graph.split = None
    found = options_found("graph", dataset)
    options = {name: found[name] for name in ("label_kind", "classes", "metric")}
    made = all(graph.get("x") is None for graph in plain)
    if (more := dataset.edge_features) is not None:
        options |= {"edge_features": True, "edge_transform": more.transform}
    return dataset_of_graphs(plain, **options, features="constant" if made else "file")


def _caller_of(
    model: torch.nn.Module, data: Any, dataset: Any, kind: str, values: str | None, run: RunOptions,
    is_guess: bool, takes_edges: bool,
) -> _Caller:  # fmt: skip
    """Return how a model of nodes or graphs is called; raise if its `forward` takes something else."""
    of_graphs = hasattr(dataset, "graph_ptr")
    if of_graphs and kind == "none":
        bad_value("inputs", "got 'none' for graphs; accepted: auto, operand, edge_index, data")
    if run.peers is not None and kind != "operand":
        bad_value("group", f"goes with models that take an operand; this one takes {kind}; accepted: None")
    has = _attributes(data, dataset)
    arguments = _arguments(model, has) if kind == "edge_index" else ()
    if values == "auto":
        values = values_of(model) if kind == "operand" else None
    # Self-loops of values="gcn" have no features.
    takes_edges &= getattr(dataset, "edge_features", None) is not None and values != "gcn"
    _check_forward(model, kind, is_guess, arguments, of_graphs, has, takes_edges)
    made = _GraphsCaller if of_graphs else _EdgesCaller if hasattr(dataset, "edge_index") else _Caller
    precision = Precision.parse(run.precision)
    return made(kind, values, precision, run.device, arguments, takes_edges=takes_edges)


def _attributes(data: Any, dataset: Any) -> list[str]:
    """Return the names of the attributes of the data that a model can take by name."""
    if isinstance(data, list):
        return ["batch", *(name for name, value in data[0].to_dict().items() if value is not None)]
    if is_pyg_data(data):
        return [name for name, value in data.to_dict().items() if value is not None]
    weights = [] if dataset.graph.values is None else ["edge_weight"]
    weights += [] if getattr(dataset, "edge_features", None) is None else ["edge_attr"]
    return [*weights, *(["batch"] if hasattr(dataset, "graph_ptr") else [])]


def _arguments(model: torch.nn.Module, has: list[str]) -> tuple[str, ...]:
    """Return what a model takes by name beside the features and an edge_index, of what the data have."""
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    parameters = [p for p in inspect.signature(model.forward).parameters.values() if p.kind in kinds]
    if "edge_index" in (names := [p.name for p in parameters]):
        rest = [p for p in parameters if p.name not in ("edge_index", "x" if "x" in names else names[0])]
    else:
        rest = parameters[2:]
    wanted = [p.name for p in rest if p.default is p.empty or p.name in _OPTIONAL]
    return tuple(name for name in wanted if name in has)


def inputs_of(model: torch.nn.Module) -> str:
    """Return what a model takes beside the features, by its layers and by its signature."""
    parameters = inspect.signature(model.forward).parameters.values()
    names = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    if len(names) == 1 and names[0] in _WHOLE_GRAPHS:
        return "data"
    homes = {kind.__module__ for module in model.modules() for kind in type(module).__mro__}
    if any(home.startswith("gnnsparse.nn") for home in homes):
        return "operand"
    if any(home.startswith("torch_geometric.nn") for home in homes):
        return "edge_index"
    if "edge_index" in names:
        return "edge_index"
    return "none" if len(names) == 1 else "operand"


def _check_forward(
    model: torch.nn.Module, kind: str, is_guess: bool, arguments: Sequence[str], of_graphs: bool,
    has: Sequence[str], takes_edges: bool,
) -> None:  # fmt: skip
    """Raise a TypeError unless a model's `forward` takes what it is called with, `arguments` by name."""
    graph = {"none": (), "data": (), "edge_index": ("edge_index",)}.get(kind, ("A",))
    given: tuple[str, ...] = ("data",) if kind == "data" else ("x", *graph)
    given += ("graph_ptr",) if kind == "operand" and of_graphs else ()
    given += ("edge_attr",) if takes_edges else ()
    signature = inspect.signature(model.forward)
    names = list(signature.parameters)
    named = dict.fromkeys(arguments)
    in_order = "edge_index" not in names or names[1] == "edge_index" or kind != "edge_index"
    with contextlib.suppress(TypeError):
        if in_order:
            signature.bind(*given, **named)
        else:
            signature.bind(**dict.fromkeys(given), **named)
        return
    called, missing = ", ".join((*given, *(f"{name}={name}" for name in arguments))), ""
    if kind == "edge_index":
        needed = [p.name for p in signature.parameters.values() if p.default is p.empty and p.kind < 2]
        rest = needed if "edge_index" in needed else needed[2:]
        first = [] if "x" in names else names[:1]
        lacking = [name for name in rest if name not in (*given, *has, *first)]
        missing = f", and the data have no {', '.join(lacking)}" if lacking else ""
    more = ", batch" if of_graphs else ""
    operand = "forward(x, A, graph_ptr)" if of_graphs else "forward(x, A)"
    alone = "" if of_graphs else ", or forward(x)"
    got = f"got {type(model).__name__} with forward{signature}"
    raise TypeError(
        f"model: {got}, which is called as forward({called}){missing}; "
        f"accepted: {operand} with an operand A, forward(x, edge_index{more}) with other attributes of the "
        f"data by name, forward(data){alone}, with defaults for what the data lack; inputs= says which it is"
    )


def _layers(model: torch.nn.Module) -> list[tuple[str, Any]]:
    """Return the layers of gnnsparse.nn in a model that multiply by an operand, with their names."""
    from gnnsparse import nn

    kinds = {name: getattr(nn, name) for name in _VALUES}
    return [(n, layer) for layer in model.modules() for n, kind in kinds.items() if isinstance(layer, kind)]


def values_of(model: torch.nn.Module) -> str | None:
    """Return the weights of the operand that the layers of a model need; raise if they differ."""
    needed: dict[str | None, str] = {}
    for name, layer in _layers(model):
        if name == "GCNConv" and not layer.normalize:
            continue
        needed.setdefault(None if name == "SAGEConv" and layer.aggr != "mean" else _VALUES[name], name)
    if len(needed) > 1:
        what = ", ".join(f"{name} {values!r}" for values, name in needed.items())
        bad_value("values", f"layers need different ones ({what}); accepted: values= that suits all of them")
    return next(iter(needed), None)


def _with_used_weights(model: torch.nn.Module, data: Any, dataset: Any, caller: _Caller) -> Any:
    """Return the data set, without weights of edges that the model would ignore, after a warning."""
    if caller.kind == "data":
        return dataset
    found = data[0] if isinstance(data, list) else data
    weighted = (found.get("edge_weight") if is_pyg_data(found) else dataset.graph.values) is not None
    attr = (
        found.get("edge_attr") if is_pyg_data(found) else getattr(found, "edge_features", None)
    ) is not None
    unused = "edge_attr" not in caller.arguments and not caller.takes_edges
    if attr and unused and not isinstance(caller, _EdgesCaller):
        problem = f"data: {type(model).__name__} does not take edge_attr, the attributes of the edges"
        warnings.warn(problem, UserWarning, stacklevel=3)
    if caller.kind == "operand" and not caller.takes_edges and hasattr(dataset, "edge_features"):
        dataset = replace(dataset, edge_features=None)
    if caller.kind == "operand":
        names = [name for name, _ in _layers(model)]
        ignored = bool(names) and all(name in _WITHOUT_WEIGHTS for name in names)
    else:
        ignored = "edge_weight" not in caller.arguments
    if not ignored:
        return dataset
    if weighted:
        problem = f"data: {type(model).__name__} does not use the weights of the edges"
        warnings.warn(problem, UserWarning, stacklevel=3)
    return dataset.without_weights()


def _recipe(
    model: torch.nn.Module, task: Task[Any, Any], dataset: Any, caller: _Caller | None, run: RunOptions,
    seed: int | None,
) -> ModelRecipe:  # fmt: skip
    """Return what the model is made of, if it is a registered one as it was made, and how it is called."""
    inputs: tuple[str, ...] = ("operand",)
    if caller is not None:
        inputs = caller.takes
    groups = {**run.groups, **({} if seed is None else {"seed": seed})}
    groups |= {"dataset": found} if (found := task.found_options(dataset)) else {}
    recipe = task.recipe(
        dataset, run, registry=None, name=type(model).__name__, options={}, inputs=inputs, run=groups
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
    model: torch.nn.Module, caller: _Caller, call: Callable[[], Any], rows: int, dataset: Any
) -> None:
    """Call a model once, which also makes lazy parameters, and check what it returns."""
    model.eval()
    with torch.no_grad(), numerics(caller.precision, caller.device):
        try:
            outputs = call()
        except TypeError as error:
            if caller.kind != "data":
                raise
            problem = f"{type(model).__name__}, called with PyG's Data, raised {error}"
            raise TypeError(
                f"model: {problem}; accepted: inputs='none' if it takes features alone"
            ) from error
    wanted = (rows, dataset.num_classes)
    got = tuple(outputs.shape) if isinstance(outputs, torch.Tensor) else type(outputs).__name__
    if got != wanted:
        item = "graph (pooled by batch)" if isinstance(caller, _GraphsCaller) else "node"
        column = "number" if dataset.regression else "class"
        accepted = f"a tensor {wanted}, a row for each {item}, a column a {column}"
        bad_value("model", f"returns {got}; accepted: {accepted}")


def _rows(curves: list[tuple[int, dict[str, float]]], steps_per_epoch: int) -> list[dict[str, float]]:
    """Return a row for each epoch, with the mean of the losses of its steps."""
    rows: list[dict[str, float]] = []
    losses: list[float] = []
    for step, found in curves:
        losses.append(found["train/loss"])
        if step % steps_per_epoch == 0:
            loss = {"train/loss": statistics.fmean(losses)}
            rows.append({"epoch": float(step // steps_per_epoch), **found, **loss})
            losses = []
    return rows
