"""A trained model: what it is made of and called with, as plain values, and what it says of data."""

from __future__ import annotations

import copy
import dataclasses
import importlib
import inspect
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from gnnsparse.data.custom.edges import features_of_attr
from gnnsparse.data.optional import import_optional
from gnnsparse.data.pyg_lists import batches_of, graphs_of
from gnnsparse.errors import bad_type, bad_value, check_tensor
from gnnsparse.formats.csr import check_range
from gnnsparse.nn.adjacency import GraphLayer
from gnnsparse.nn.traced_graph import graph_of
from gnnsparse.precision import Precision
from gnnsparse.preprocess.api import prepare
from gnnsparse.preprocess.source import is_pyg_data
from gnnsparse.registry import Registry
from gnnsparse.sparse.operand import SparseOperand
from gnnsparse.sparse.prepared import NORMALIZATIONS
from gnnsparse.sparse.typed import TypedGraph, is_hetero_data, read_typed
from gnnsparse.train.device import numerics

_REGISTRY = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")
_LARGEST = 2**31 - 1
_FLOATS = (torch.float32, torch.float16, torch.bfloat16)
_INTEGERS = (torch.int16, torch.int32, torch.int64)
#: What models can take beside the features; an edge_index with other attributes of PyG's Data by name.
_INPUTS = (("operand",), (), ("data",), ("edge_index",))


@dataclass(frozen=True)
class ModelRecipe:
    """What a model is made of, and what it is called with, as plain values.

    Attributes:
        registry: where the model is registered, as "MODULE:NAME": a Registry in a module that can be
            imported, whose entries have a method `build(in_channels, out_channels=..., **options)`, or for
            several tasks a method `for_task(task)` that returns such an entry. None: it is in no registry,
            and has to be given to load it.
        name: the model's name in the registry, or of its class.
        options: the options of `build`.
        in_channels: features of a node, or size of a vocabulary.
        out_channels: number of classes or labels.
        task: the task that the model is for, a name in gnnsparse.train.tasks.
        values: weights of the operand that the model needs: "gcn", "mean" or None.
        precision: the precision that it was trained in, a name in gnnsparse.Precision.
        several_labels: whether a node can have several labels.
        regression: whether the model predicts numbers, not classes.
        inputs: what a model of nodes or graphs takes beside the features: ("operand",), ("edge_index",) and
            after it attributes of PyG's Data by name, such as "edge_weight" and "batch", or (); ("data",) is
            a whole Data, with the features.
        feature_names: the names of the features, in_channels different texts in the order in which the model
            takes them; None: they have none.
        run: the options of the run by group, for `train.py mode=predict`; nothing else reads them.

    Raises:
        ValueError: an attribute is of another type or out of range; the message names it.
    """

    registry: str | None
    name: str
    options: Mapping[str, Any]
    in_channels: int
    out_channels: int
    task: str = "node"
    values: str | None = None
    precision: str = "fp32"
    several_labels: bool = False
    regression: bool = False
    inputs: Sequence[str] = ("operand",)
    feature_names: Sequence[str] | None = None
    run: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        at = self.registry
        if at is not None and not (isinstance(at, str) and _REGISTRY.fullmatch(at)):
            bad_value("registry", f"got {_short(at)}; accepted: 'MODULE:NAME', or None")
        if not _are_inputs(self.inputs):
            known = f"{', '.join(map(str, _INPUTS))}, this one with more names"
            bad_value("inputs", f"got {_short(self.inputs)}; accepted: {known}")
        choices: dict[str, tuple[Any, ...]] = {
            "values": (None, *NORMALIZATIONS),
            "precision": tuple(Precision.names()),
            "several_labels": (False, True),
            "regression": (False, True),
        }
        for name, accepted in choices.items():
            value = getattr(self, name)
            if not any(type(value) is type(one) and value == one for one in accepted):
                bad_value(name, f"got {_short(value)}; accepted: {', '.join(map(str, accepted))}")
        for name in ("in_channels", "out_channels"):
            count = getattr(self, name)
            if type(count) is not int or not 0 <= count <= _LARGEST:
                bad_value(name, f"got {_short(count)}; accepted: an integer from 0 to {_LARGEST}")
        features = self.feature_names
        if features is not None and not (
            isinstance(features, (list, tuple))
            and all(isinstance(feature, str) for feature in features)
            and len(set(features)) == len(features) == self.in_channels
        ):
            problem = f"got {_short(features)}; accepted: {self.in_channels} different texts, or None"
            bad_value("feature_names", problem)
        for name, what in (("name", "model"), ("task", "task")):
            if not isinstance(text := getattr(self, name), str) or not text:
                bad_value(name, f"got {_short(text)}; accepted: the name of a {what}")
        for name in ("options", "run"):
            _check_plain(name, getattr(self, name), 0)

    def to_dict(self) -> dict[str, Any]:
        """Return the attributes as plain values by name, for a checkpoint."""
        return {item.name: _copy(getattr(self, item.name)) for item in dataclasses.fields(self)}

    @classmethod
    def read(cls, content: Any) -> ModelRecipe:
        """Make a recipe of what `to_dict` returned; raise ValueError if it is something else."""
        names = [item.name for item in dataclasses.fields(cls)]
        given = dict(content) if isinstance(content, dict) else {}
        if set(given) != set(names):
            got = ", ".join(sorted(map(str, content))) if isinstance(content, dict) else _short(content)
            bad_value("recipe", f"has {got[:200]}; accepted: {', '.join(names)}")
        for name in ("inputs", "feature_names"):
            if isinstance(given[name], list):
                given[name] = tuple(given[name])
        return cls(**given)

    def build(self, registry: Mapping[str, Any] | None = None) -> torch.nn.Module:
        """Make the model, with initial weights; raise ValueError if it or its options are unknown."""
        # The registry that the recipe names is imported, unless another one is given.
        if self.registry is None:
            accepted = "gnnsparse.load(..., model=...) in Python, with one made as it was for the training"
            bad_value("model", f"is a {self.name}, which is in no registry; accepted: {accepted}")
        models = self._find(self.registry) if registry is None else registry
        if self.name not in models:
            bad_value("name", f"got {_short(self.name)}; accepted by {self.registry}: {', '.join(models)}")
        try:
            entry = models[self.name]
            if hasattr(entry, "for_task"):  # one model may be for several tasks
                entry = entry.for_task(self.task)
            return entry.build(self.in_channels, out_channels=self.out_channels, **_copy(self.options))
        except (TypeError, ValueError) as error:
            raise ValueError(f"options of {self.name}: {error}") from error

    @staticmethod
    def _find(registry: str) -> Mapping[str, Any]:
        module, _, name = registry.partition(":")
        try:
            found = getattr(importlib.import_module(module), name, None)
        except ImportError as error:
            raise ValueError(
                f"registry: {module} can't be imported ({error}); accepted: a module on sys.path (run in the "
                "folder of train.py, or set PYTHONPATH to it), or the argument registry="
            ) from error
        if not isinstance(found, Registry):
            bad_value("registry", f"{registry} is no Registry; accepted: one of gnnsparse.registry")
        return found


def _are_inputs(given: Any) -> bool:
    if not isinstance(given, (list, tuple)) or not all(isinstance(name, str) for name in given):
        return False
    named = given[:1] == ["edge_index"] or given[:1] == ("edge_index",)
    distinct = len(set(given)) == len(given) and all(name.isidentifier() for name in given)
    return tuple(given) in _INPUTS or (named and distinct)


def _short(value: Any) -> str:
    return repr(value)[:100]


def _copy(value: Any) -> Any:
    """Return a value with mappings as dicts."""
    if isinstance(value, Mapping):
        return {key: _copy(item) for key, item in value.items()}
    return [_copy(item) for item in value] if isinstance(value, (list, tuple)) else value


def _check_plain(name: str, value: Any, depth: int) -> None:
    """Raise ValueError unless a value is a dict of names, down to texts, finite numbers, flags and None."""
    accepted = "texts, numbers, true, false, null, and lists and dicts of them"
    if depth > 8:
        bad_value(name, f"is nested too deeply; accepted: {accepted}")
    if isinstance(value, Mapping):
        for key, item in value.items():
            if not isinstance(key, str):
                bad_value(name, f"has the key {_short(key)}; accepted: texts")
            _check_plain(f"{name}.{key}"[:100], item, depth + 1)
    elif depth == 0:
        bad_value(name, f"got {_short(value)}; accepted: a dict")
    elif isinstance(value, (list, tuple)):
        for item in value:
            _check_plain(name, item, depth + 1)
    elif isinstance(value, float):
        if not math.isfinite(value):
            bad_value(name, f"got {value}; accepted: finite numbers")
    elif value is not None and type(value) not in (str, int, bool):
        bad_value(name, f"got {_short(value)}; accepted: {accepted}")


def call_with_graph(model: torch.nn.Module, inputs: Sequence[str], x: torch.Tensor, graph: Any) -> Any:
    """Call a model that takes an `edge_index`, or a whole Data of PyG.

    Args:
        model: the model.
        inputs: what it takes beside the features, as in ModelRecipe: ("data",), or names of attributes, which
            are passed by name, "edge_index" first.
        x: the features.
        graph: a Data or a Batch of PyG; or for inputs by name a dict.

    Raises:
        ValueError: the graph lacks an attribute.
    """
    if tuple(inputs) == ("data",):
        whole = copy.copy(graph)
        whole.x = x
        return in_columns(model(whole))
    parameters, more = inspect.signature(model.forward).parameters, {}
    for name in inputs[1:]:
        if name in graph and graph[name] is not None:
            more[name] = graph[name]
        elif name != "edge_weight" or parameters[name].default is inspect.Parameter.empty:
            problem = "is missing, and the model was trained with it"
            bad_value(f"data.{name}", f"{problem}; accepted: data that have it")
    if "edge_index" in parameters and list(parameters)[1] != "edge_index":
        return in_columns(model(x=x, edge_index=graph["edge_index"], **more))
    return in_columns(model(x, graph["edge_index"], **more))


def in_columns(outputs: Any) -> Any:
    """Return outputs in columns: a model of one number for each item may return them without."""
    flat = isinstance(outputs, torch.Tensor) and outputs.dim() == 1
    return outputs[:, None] if flat else outputs


def takes_edge_features(model: torch.nn.Module) -> bool:
    """Return whether a model with an operand takes features of edges: as it says, or by its `forward`."""
    says = getattr(model, "takes_edge_features", None)
    return "edge_attr" in inspect.signature(model.forward).parameters if says is None else bool(says)


def set_precision(model: torch.nn.Module, precision: Precision) -> None:
    """Let the layers of a model that have no precision of their own compute in that of a run."""
    for layer in model.modules():
        if isinstance(layer, GraphLayer) and layer.precision is None:
            layer.precision = precision


def call_typed(model: torch.nn.Module, x: Mapping[str, torch.Tensor], graph: TypedGraph) -> Any:
    """Call a model of a graph with types, one of this project or one as those of PyG's `to_hetero`."""
    if hasattr(model, "typed_graph"):
        return model(x, graph)
    # The numbers of nodes without features are of no use to it.
    return model({kind: own for kind, own in x.items() if own.is_floating_point()}, graph.edges)


def outputs_of_type(found: Any, target: str) -> torch.Tensor:
    """Return what a model says of the nodes of the target type, in columns; ValueError if it says nothing."""
    if isinstance(found, Mapping):
        if target not in found:
            got = f"returns outputs of {', '.join(map(repr, found))}"
            bad_value("model", f"{got}; accepted: of {target!r}, whose nodes have targets")
        found = found[target]
    outputs: torch.Tensor = in_columns(found)
    return outputs


def typed_inputs(data: Any) -> tuple[dict[str, torch.Tensor], TypedGraph]:
    """Return the features by type and the graph of a HeteroData or of a data set of a graph with types."""
    if is_hetero_data(data):
        x = {kind: data[kind].x for kind in data.node_types if data[kind].get("x") is not None}
        graph: Any = read_typed(data)
        return x, graph
    if not isinstance(graph := getattr(data, "graph", None), TypedGraph):
        bad_type("data", data, "a torch_geometric.data.HeteroData or a TypedNodeDataset")
    return data.x, graph


def check_types(name: str, x: Mapping[str, torch.Tensor], graph: TypedGraph, types: Any) -> None:
    """Raise ValueError unless a graph has the types, features and relations that a model is made of.

    `types` are those of the model's options, None if it does not say them, and `name` begins the message.
    """
    if types is None:
        return
    known: dict[str, int | None] = {**types["features"], **dict.fromkeys(types["nodes"])}
    for kind, features in known.items():
        count = graph.num_nodes.get(kind)
        if count is not None and features is None and kind not in x and count == types["nodes"][kind]:
            continue
        if kind in x and x[kind].shape[1:] == (features,):
            continue
        got = "no nodes" if count is None else f"{count} nodes"
        got += f" with {x[kind].shape[-1]} features" if kind in x else ""
        accepted = f"nodes with {features} features"
        if features is None:
            accepted = f"{types['nodes'][kind]} nodes without features, each of which has an embedding"
        bad_value(name, f"has {got} of type {kind!r}; accepted by the checkpoint: {accepted}")
    if more := [kind for kind in graph.num_nodes if kind not in known]:
        accepted = f"accepted by the checkpoint: {', '.join(known)}"
        bad_value(name, f"has nodes of type {more[0]!r}; {accepted}")
    wanted = {tuple(relation) for relation in types["relations"]}
    for relation in sorted(wanted ^ {*graph.edges}):
        got = f"{'has' if relation in graph.edges else 'lacks'} the relation {'-'.join(relation)}"
        accepted = ", ".join("-".join(one) for one in sorted(wanted))
        bad_value(name, f"{got}; accepted by the checkpoint: {accepted}")


class EdgeModel(torch.nn.Module):
    """A model of an `edge_index`, as PyG's are, or of the features alone, which is called with an operand."""

    # `inputs` are those of `ModelRecipe`.

    def __init__(self, model: torch.nn.Module, inputs: Sequence[str]) -> None:
        super().__init__()
        self.model, self.inputs = model, tuple(inputs)

    def forward(
        self,
        x: torch.Tensor,
        graph: SparseOperand | torch.Tensor | Any,
        graph_ptr: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Compute what the model does, of features [nodes, F] and a graph.

        It is an operand, with `graph_ptr` of several graphs; an `edge_index` as it is; or a Data of PyG.
        """
        if not self.inputs:
            return self.model(x)
        if isinstance(graph, torch.Tensor):
            found: Any = {"edge_index": graph}
        elif isinstance(graph, SparseOperand):
            matrix = graph.to_torch_sparse("coo")
            # Row v collects what arrives at v.
            found = {"edge_index": matrix.indices().flip(0), "edge_weight": matrix.values()}
        else:
            return call_with_graph(self.model, self.inputs, x, graph)
        if graph_ptr is not None:
            found["batch"] = torch.repeat_interleave(graph_ptr.diff())
        if self.inputs == ("data",):
            found = import_optional("torch_geometric.data", "this model").Data(**found)
        return call_with_graph(self.model, self.inputs, x, found)


class ForEdges(torch.nn.Module):
    """A trained model of nodes or graphs as a module of tensors, which `torch.export` takes with any sizes.

    Its weights are those of `model`. Of a `graph`, given before anything is normalised, the edges and weights
    are part of it, and not arguments of `forward`.

    Attributes:
        num_nodes: number of nodes of the graph that is part of it; None: there is none.
        of_graphs: whether the model is one of graphs.
    """

    edge_index: torch.Tensor | None
    edge_weight: torch.Tensor | None

    def __init__(
        self, model: torch.nn.Module, recipe: ModelRecipe, device: torch.device,
        graph: SparseOperand | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.model, self.num_nodes = model, None if graph is None else graph.shape[0]
        self.precision, self.values, self._device = Precision.parse(recipe.precision), recipe.values, device
        self.of_graphs = recipe.task == "graph"
        edges = weights = None
        if graph is not None:
            matrix = graph.to_torch_sparse("coo")
            # Copies: torch.export takes no views of a sparse tensor.
            edges, weights = matrix.indices().flip(0).to(device), matrix.values().clone().to(device)
            weights = None if bool((weights == 1).all()) else weights
        self.register_buffer("edge_index", edges)
        self.register_buffer("edge_weight", weights)

    def forward(
        self,
        x: torch.Tensor,
        edge_index: torch.Tensor | None = None,
        edge_weight: torch.Tensor | None = None,
        graph_ptr: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Compute the logits, float32 [nodes, out_channels], or [graphs, out_channels].

        Args:
            x: features, float32 [nodes, in_channels].
            edge_index: int64 [2, edges], sources over targets. Repeated edges count several times in sums and
                means, and once in attention.
            edge_weight: float32 [edges]; None: 1 each.
            graph_ptr: of a model of graphs alone: int64 [graphs + 1], the first node of each graph, and the
                number of nodes.
        """
        if self.of_graphs == (graph_ptr is None):
            accepted = "int64 [graphs + 1]" if self.of_graphs else "None, as the model is one of nodes"
            bad_value("graph_ptr", f"does not go with the model; accepted: {accepted}")
        if self.num_nodes is not None:
            edge_index, edge_weight = self.edge_index, self.edge_weight
        elif edge_index is None:
            bad_value("edge_index", "is missing; accepted: int64 [2, edges]")
        with numerics(self.precision, self._device):
            return self._logits(x, edge_index, edge_weight, graph_ptr).float()

    def _logits(
        self, x: torch.Tensor, edge_index: Any, edge_weight: torch.Tensor | None, graph_ptr: Any
    ) -> torch.Tensor:
        if self._device.type == "cuda":
            x = x.to(self.precision.storage)
        if isinstance(self.model, EdgeModel):
            if edge_weight is not None and "edge_weight" in self.model.inputs:
                return self.model.model(x, edge_index, edge_weight=edge_weight)
            return self.model(x, edge_index)
        nodes = x.shape[0] if self.num_nodes is None else self.num_nodes
        graph = graph_of(edge_index, edge_weight, nodes, self.values, self.precision.value)
        return self.model(x, graph) if graph_ptr is None else self.model(x, graph, graph_ptr)


@dataclass(frozen=True, eq=False)
class Prediction:
    """What a model says of N nodes or sequences.

    Attributes:
        logits: float32 [N, C], for C classes or labels; of a model that predicts numbers the numbers.
        several_labels: whether a node can have several labels.
        regression: whether the model predicts numbers; there are no probabilities and no classes then.
    """

    logits: torch.Tensor
    several_labels: bool = False
    regression: bool = False

    @property
    def values(self) -> torch.Tensor:
        """float32 [N, C], the numbers that a model of a regression predicts; ValueError if it has classes."""
        if not self.regression:
            bad_value("values", "the model predicts classes; accepted: .probabilities, .classes, .logits")
        return self.logits

    @property
    def probabilities(self) -> torch.Tensor:
        """float32 [N, C]: of classes, or of each label by itself; ValueError of a regression."""
        self._check_classes("probabilities")
        return self.logits.sigmoid() if self.several_labels else self.logits.softmax(dim=1)

    @property
    def classes(self) -> torch.Tensor:
        """int64 [N], the likeliest class, or bool [N, C], labels above one half; ValueError likewise."""
        self._check_classes("classes")
        return self.logits > 0 if self.several_labels else self.logits.argmax(dim=1)

    def _check_classes(self, name: str) -> None:
        if self.regression:
            bad_value(name, "the model predicts numbers; accepted: .values")


def arrays_of(prediction: Prediction) -> dict[str, torch.Tensor]:
    """Return the classes and probabilities of a prediction by name, or its numbers, on the CPU."""
    if prediction.regression:
        return {"values": prediction.values.cpu()}
    return {"classes": prediction.classes.cpu(), "probabilities": prediction.probabilities.cpu()}


@dataclass(frozen=True, eq=False)
class LoadedModel:
    """A trained model on a device, in evaluation mode, with what it is called with.

    Attributes:
        recipe: what the model is made of.
        module: the model, with its weights, on the device.
        device: the device.
    """

    recipe: ModelRecipe
    module: torch.nn.Module
    device: torch.device

    def prepare(self, graph: Any, **options: Any) -> SparseOperand:
        """Prepare a graph or a pattern as the model needs it, on its device, as `gnnsparse.prepare` does."""
        options = {"values": self.recipe.values, "precision": self.recipe.precision, **options}
        return prepare(graph, **options).to(self.device)

    def for_edges(self, graph: Any = None) -> ForEdges:
        """Return a module `module(x, edge_index, edge_weight=None)`, for torch.export and servers.

        One of a model of graphs takes `graph_ptr`, too.

        Args:
            graph: one that `prepare` takes, for all calls of a model of nodes; the module is then
                `module(x)`. None: each call has a graph of its own.

        Raises:
            ValueError: the model is one of links or sequences, or takes features of edges; or it is one of
                graphs, and takes an edge_index or is given a graph.
        """
        task = self.recipe.task
        if task not in ("node", "graph"):
            bad_value("task", f"is {task!r}; accepted: node, graph, as others take more than x and edges")
        if task == "graph" and (graph is not None or isinstance(self.module, EdgeModel)):
            bad_value("graph", "goes with models of nodes; accepted: None, and a model that takes an operand")
        if "edge_attr" in self.recipe.inputs or self.takes_edge_features:
            place = ".module.model" if isinstance(self.module, EdgeModel) else ".module"
            bad_value("inputs", f"has edge_attr; accepted: {place}, called as it was in training")
        if isinstance(graph, SparseOperand):
            bad_value("graph", "is an operand, which has weights; accepted: the graph that it was made of")
        given = None if graph is None else prepare(graph, cache=False)
        return ForEdges(self.module, self.recipe, self.device, given).eval()

    def inputs(
        self,
        x: Any,
        graph: Any,
        padding: torch.Tensor | None = None,
        graph_ptr: torch.Tensor | None = None,
        edge_attr: torch.Tensor | None = None,
    ) -> tuple[Any, ...]:
        """Check the arguments of `predict`, and return those of the model, on its device."""
        # As PyG's models take it, which keeps repeated edges apart.
        is_edge_index = isinstance(graph, torch.Tensor) and graph.layout == torch.strided
        if isinstance(self.module, EdgeModel) and is_edge_index and graph.dtype == torch.int64:
            check_tensor("x", x, dtypes=_FLOATS, shape=(None, self.recipe.in_channels))
            if self.recipe.task != "graph":
                return x.to(self.device, self._storage()), graph.to(self.device)
            if graph_ptr is None:
                graph_ptr = torch.tensor([0, len(x)], dtype=torch.int64, device="cpu")
            return x.to(self.device, self._storage()), graph.to(self.device), graph_ptr.to(self.device)
        adj = graph if isinstance(graph, SparseOperand) else self.prepare(graph)
        if adj.device != self.device:
            bad_value("graph", f"is on {adj.device}; accepted: {self.device}")
        if edge_attr is not None and not self.takes_edge_features:
            bad_value("edge_attr", "the model takes no features of edges; accepted: None")
        more: tuple[torch.Tensor, ...] = ()
        if self.takes_edge_features:
            check_tensor("edge_attr", edge_attr, dtypes=_FLOATS, shape=(adj.num_edges, self.edge_channels))
            more = (edge_attr.to(self.device, torch.float32),)  # type: ignore[union-attr]
        if self.recipe.task == "sequence":
            return self._sequences(x, adj, padding)
        if self.recipe.task not in ("node", "graph"):
            bad_value(
                "task",
                f"{self.recipe.task!r} is unknown here; accepted: node, graph, sequence (or call .module)",
            )
        if padding is not None:
            bad_value("padding", "goes with models of sequences; accepted: None")
        if graph_ptr is not None and self.recipe.task != "graph":
            bad_value("graph_ptr", "goes with models of graphs; accepted: None")
        check_tensor("x", x, dtypes=_FLOATS, shape=(adj.shape[1], self.recipe.in_channels))
        dtype = self._storage()
        if self.recipe.task == "node":
            return x.to(self.device, dtype), adj, *more
        if graph_ptr is None:
            graph_ptr = torch.tensor([0, adj.shape[0]], dtype=torch.int64, device=self.device)
        check_tensor("graph_ptr", graph_ptr, dtypes=(torch.int64,), shape=(None,))
        return x.to(self.device, dtype), adj, graph_ptr.to(self.device), *more

    @property
    def takes_edge_features(self) -> bool:
        """Whether the model is called with features of edges, as it was in its training.

        Models of edges have features of those that they classify, which are theirs alone.
        """
        if self.recipe.task not in ("node", "graph"):
            return False
        had = self.edge_channels is not None or "edge_transform" in self.recipe.run.get("dataset", {})
        return had and not isinstance(self.module, EdgeModel) and takes_edge_features(self.module)

    @property
    def edge_channels(self) -> int | None:
        """The number of features of an edge that the model takes; None: it does not say."""
        return self.recipe.options.get("edge_channels")

    def _storage(self) -> torch.dtype:
        """Return the dtype of features: on a GPU that of the precision, as in training."""
        on_gpu = self.device.type == "cuda"
        return Precision.parse(self.recipe.precision).storage if on_gpu else torch.float32

    def _sequences(self, tokens: Any, adj: SparseOperand, padding: torch.Tensor | None) -> Any:
        check_tensor("x", tokens, dtypes=_INTEGERS, shape=(None, adj.shape[1]))
        if tokens.numel():
            low, high = (int(bound) for bound in tokens.aminmax())
            if low < 0 or high >= self.recipe.in_channels:
                accepted = f"tokens from 0 to {self.recipe.in_channels - 1}"
                bad_value("x", f"has tokens from {low} to {high}; accepted: {accepted}")
        if padding is None:
            padding = tokens == 0
            padding = padding if bool(padding.any()) else None
        else:
            check_tensor("padding", padding, dtypes=(torch.bool,), shape=tuple(tokens.shape))
        return tokens.to(self.device), adj, None if padding is None else padding.to(self.device)

    def _of_typed(self, data: Any) -> Prediction:
        """Predict for the nodes of the target type of a graph with types, or for pairs."""
        of: Any = self.module
        recipe = self.recipe
        x, graph = typed_inputs(data)
        check_types("data", x, graph, recipe.options.get("types"))
        pairs = self._pairs_of(data) if recipe.task == "typed_link" else None
        precision, dtype = Precision.parse(recipe.precision), self._storage()
        set_precision(of, precision)
        here = graph.to(self.device)
        if getattr(of, "typed_graph", None) == "prepared":
            here = prepare(here, precision=precision)
        with torch.no_grad(), numerics(precision, self.device):
            found = call_typed(of, {kind: own.to(self.device, dtype) for kind, own in x.items()}, here)
            if pairs is None:
                outputs = outputs_of_type(found, recipe.run["dataset"]["nodes"])
            else:
                outputs = of.score(found, pairs.to(self.device))[:, None]
        return Prediction(outputs.float(), recipe.several_labels or pairs is not None, recipe.regression)

    def _pairs_of(self, data: Any) -> torch.Tensor:
        """Return the pairs of a source and a target that data ask for, int64 [k, 2]."""
        if not is_hetero_data(data):
            asked: torch.Tensor = data.test_edges if data.pairs is None else data.pairs
            return asked
        name = self.recipe.run["dataset"]["edges"]
        relation = tuple(name.split("__"))
        given = data[relation].get("edge_label_index")
        if given is None:
            bad_value("data", f"has no edge_label_index of {name}; accepted: int64 [2, pairs] to score")
        check_tensor("edge_label_index", given, dtypes=(torch.int64,), shape=(2, None))
        for ends, kind in zip(given.contiguous(), relation[::2], strict=True):
            check_range("edge_label_index", ends, data[kind].num_nodes, f"the nodes of type {kind!r}")
        pairs: torch.Tensor = given.T
        return pairs

    def _of_data(self, data: Any) -> Prediction:
        """Predict for a graph with types, a Data of PyG, or for each of a sequence of such graphs."""
        if self.recipe.task.startswith("typed"):
            return self._of_typed(data)
        pieces = [data] if is_pyg_data(data) else batches_of(graphs_of(data))
        logits = []
        for piece in pieces:
            piece = piece.to(self.device)
            if not isinstance(piece.x, torch.Tensor):
                bad_value("data.x", "is missing; accepted: features of the nodes")
            ptr = None if self.recipe.task == "node" else piece.get("ptr")
            if not isinstance(self.module, EdgeModel):
                attr = piece.get("edge_attr") if self.takes_edge_features else None
                if attr is not None:
                    made = self.recipe.run.get("dataset", {}).get("edge_transform")
                    attr = features_of_attr(attr, made or {})
                found = self.predict(piece.x, self.prepare(piece), graph_ptr=ptr, edge_attr=attr)
                logits.append(found.logits)
                continue
            if self.recipe.task == "graph" and piece.get("batch") is None:
                piece = next(iter(batches_of([piece])))
            with torch.no_grad(), numerics(Precision.parse(self.recipe.precision), self.device):
                logits.append(self.module(piece.x, piece).float())
        return Prediction(torch.cat(logits), self.recipe.several_labels, self.recipe.regression)

    def predict(
        self,
        x: Any,
        graph: Any = None,
        padding: torch.Tensor | None = None,
        graph_ptr: torch.Tensor | None = None,
        edge_attr: torch.Tensor | None = None,
    ) -> Prediction:
        """Compute logits, probabilities and classes, without gradients, in the precision of the training.

        Args:
            x: features, floating-point [nodes, in_channels]; or tokens, int16, int32 or int64 [batch,
                length], of a model of sequences. On any device. Without `graph` a torch_geometric.data.Data,
                or of a model of graphs a list of them; of a graph with types a HeteroData or a data set.
                Of links of a relation the pairs are its edge_label_index, or the data set's `pairs` or test
                edges, and the probability [pairs, 1] is that of an edge.
            graph: an operand on the model's device, prepared as `prepare` does; or a graph that `prepare`
                takes.
            padding: of a model of sequences: bool [batch, length], True for padding; None: tokens 0 are.
            graph_ptr: of a model of graphs: int64 [graphs + 1], the first node of each graph, and the number
                of nodes, where `graph` is block-diagonal; None: it is one graph.
            edge_attr: of a model that takes features of edges: floating-point [edges, D], in the order of the
                edges that the graph was prepared from. Of PyG's graphs it is their edge_attr, of which
                kinds become columns as in the training.

        Raises:
            TypeError: an argument is of another type or dtype.
            ValueError: a shape, a token or a device does not fit the model, or its task is neither "node",
                "graph" nor "sequence".
        """
        if graph is None and not isinstance(x, torch.Tensor):
            return self._of_data(x)
        inputs = self.inputs(x, graph, padding, graph_ptr, edge_attr)
        with torch.no_grad(), numerics(Precision.parse(self.recipe.precision), self.device):
            logits = self.module(*inputs).float()
        return Prediction(logits, self.recipe.several_labels, self.recipe.regression)
