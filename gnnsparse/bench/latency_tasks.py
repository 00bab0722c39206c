"""What `gnnsparse bench latency` measures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812

from gnnsparse.data import GENERATED_GRAPHS, graph_like, load_dataset
from gnnsparse.data.generated import sizes_of
from gnnsparse.formats.csr import Csr
from gnnsparse.nn import AGNNConv, GATConv, GCNConv, TransformerEncoder, TransformerEncoderLayer
from gnnsparse.patterns import masks
from gnnsparse.precision import Precision
from gnnsparse.sparse.graph import SparseGraph

__all__ = [
    "BACKENDS", "CACHES", "CORA_LIKE", "FEED_FORWARD", "GRAPH_MODELS", "MODELS", "MODES", "GraphInput",
    "GraphStack", "LatencySettings", "Task", "graph_task", "load_graph", "sequence_task", "tiny_task",
]  # fmt: skip

GRAPH_MODELS = ("gcn", "agnn", "gat")
#: The models that are measured.
MODELS = (*GRAPH_MODELS, "transformer")
#: Who runs them.
BACKENDS = ("gnnsparse", "pyg", "pyg-csr", "pyg-compile", "dense")
#: Whether each call is launched from Python, or replayed from a CUDA graph.
MODES = ("eager", "captured")
CACHES = ("warm", "cold")
#: A random graph of Cora's size with random features, which needs no files.
CORA_LIKE = "cora_like"


@dataclass(frozen=True)
class LatencySettings:
    """The options of the command, whose help says what they mean; None: the model's or graph's default."""

    models: tuple[str, ...] = ("gcn",)
    datasets: tuple[str, ...] = ("cora_like",)
    precisions: tuple[str, ...] = ("fp32",)
    backends: tuple[str, ...] = BACKENDS
    device: str = "cpu"
    modes: tuple[str, ...] = MODES
    caches: tuple[str, ...] = CACHES
    layers: int | None = None
    hidden: int | None = None
    heads: int = 8
    batches: tuple[int, ...] = (1,)
    seq_len: int = 8192
    sparsity: float = 0.95
    vector: int = 8
    root: Path | None = None
    scale: float = 1.0
    features: int | None = None
    calls: int = 200
    seconds: float = 5.0
    timeout: float = 300.0

    def layers_of(self, model: str) -> int:
        """Return the number of layers of a model."""
        return self.layers or (4 if model == "transformer" else 3)

    def hidden_of(self, model: str) -> int:
        """Return the features of a hidden layer of a model."""
        return self.hidden or (64 * self.heads if model == "transformer" else 128)


# The models whose latency is measured, of this package's layers.

#: Features inside a feed-forward network, in units of the encoder's width.
FEED_FORWARD = 4


_ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {"agnn": lambda x: x, "gat": F.elu}


class GraphStack(torch.nn.Module):
    """Graph layers one after the other, with activations between them.

    An AGNN has a linear layer before and after its layers, and no activations between them (Thekumparampil et
    al. 2018).
    """

    def __init__(
        self, model: str, convs: Sequence[torch.nn.Module], before: torch.nn.Linear | None = None,
        after: torch.nn.Linear | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.model = model
        self.convs = torch.nn.ModuleList(convs)
        self.before, self.after = before, after

    def forward(self, x: torch.Tensor, adj: Any) -> torch.Tensor:
        """Compute the scores [nodes, classes] of features [nodes, features] on what the layers take."""
        if self.before is not None:
            x = F.relu(self.before(x))
        activation = _ACTIVATIONS.get(self.model, F.relu)
        for number, conv in enumerate(self.convs):
            x = conv(x, adj) if number == 0 else conv(activation(x), adj)
        return x if self.after is None else self.after(x)


def make_stack(model: str, features: int, hidden: int, classes: int, layers: int, heads: int) -> GraphStack:
    """Make a stack of this package's layers with weights drawn from a fixed seed, in evaluation mode.

    The heads of a GAT's layer share `hidden`; its last layer has one.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        if model == "agnn":
            before, after = torch.nn.Linear(features, hidden), torch.nn.Linear(hidden, classes)
            return GraphStack(model, [AGNNConv() for _ in range(layers)], before, after).eval()
        widths = [features, *[hidden] * (layers - 1), classes]
        make: dict[str, Callable[[int, int, int], torch.nn.Module]] = {
            "gcn": lambda width, out, heads: GCNConv(width, out),
            "gat": lambda width, out, heads: GATConv(width, out // heads, heads=heads),
        }
        each_heads = [*[heads] * (layers - 1), 1]
        convs = [make[model](*sizes, n) for sizes, n in zip(pairwise(widths), each_heads, strict=True)]
        return GraphStack(model, convs).eval()


# The inputs of latency measurements: a graph or a batch of sequences, and a model with weights.

#: Nodes, edges in both directions, features and classes of Cora.
_CORA_NODES, _CORA_EDGES, _CORA_FEATURES, _CORA_CLASSES = 2708, 10556, 1433, 7
#: Nodes, edges, and tokens of the task by which libraries are initialised before anything is measured.
_TINY_NODES, _TINY_EDGES, _TINY_TOKENS = 64, 256, 64


@dataclass(frozen=True, eq=False)
class GraphInput:
    """A graph A[target, source] without repeated edges, with features [nodes, features], float32."""

    name: str
    csr: Csr
    x: torch.Tensor
    classes: int

    def to(self, device: torch.device | str) -> GraphInput:
        """Return the graph on a device."""
        return GraphInput(self.name, self.csr.to(torch.device(device)), self.x.to(device), self.classes)


@dataclass(frozen=True, eq=False)
class Task:
    """A model with weights and its input, which every backend computes.

    `x` has the storage dtype, [nodes, features] or [batch, tokens, features]; `module` is this package's,
    float32. `checked` are the indices of x whose results are checked: the first and the last sequence; empty:
    all nodes.
    """

    model: str
    dataset: str
    precision: Precision
    csr: Csr
    x: torch.Tensor
    module: torch.nn.Module
    heads: int
    checked: tuple[int, ...] = field(default=())

    @property
    def device(self) -> torch.device:
        """Where the input is."""
        return self.x.device

    @property
    def batch(self) -> int:
        """Number of samples of a call: sequences, or 1 for a graph."""
        return self.x.shape[0] if self.model == "transformer" else 1

    @property
    def edge_index(self) -> torch.Tensor:
        """PyG's: int64 [2, edges], sources over targets."""
        return torch.stack([self.csr.indices.long(), self.csr.row_index()])

    def shown(self, result: torch.Tensor) -> torch.Tensor:
        """Return the part of a result that is checked."""
        return result[list(self.checked)] if self.checked else result


def load_graph(name: str, settings: LatencySettings) -> GraphInput:
    """Load a data set to the device of the settings, with the errors of gnnsparse.data.load_dataset."""
    if name == CORA_LIKE:
        features = settings.features or _CORA_FEATURES
        return _random_graph(name, _CORA_NODES, _CORA_EDGES, features, _CORA_CLASSES).to(settings.device)
    if name in GENERATED_GRAPHS:
        # Not by load_dataset, which plants labels that can be learned: a GPU makes the graph in a second.
        csr = graph_like(name, settings.scale, device=settings.device).csr
        features, classes = sizes_of(name)
        generator = torch.Generator(settings.device).manual_seed(0)
        sizes = (csr.rows, settings.features or features)
        x = torch.randn(sizes, generator=generator, dtype=torch.float32, device=settings.device)
        return GraphInput(name, csr, x, classes)
    root = settings.root
    data = load_dataset(name, root=root / name if root and (root / name).is_dir() else root)
    return GraphInput(name, data.graph.csr, data.x, data.num_classes).to(settings.device)


def _random_graph(name: str, nodes: int, edges: int, features: int, classes: int) -> GraphInput:
    """Make a symmetric graph of about `edges` random edges, which counts both directions."""
    generator = torch.Generator("cpu").manual_seed(0)
    ends = torch.randint(nodes, (2, edges // 2), generator=generator, device="cpu")
    ends = ends[:, ends[0] != ends[1]]
    edge_index = torch.cat([ends, ends.flip(0)], dim=1).unique(dim=1)
    graph = SparseGraph.from_edge_index(edge_index, nodes)
    x = torch.randn(nodes, features, generator=generator, dtype=torch.float32, device="cpu")
    return GraphInput(name, graph.csr, x, classes)


def graph_task(model: str, graph: GraphInput, precision: Precision, settings: LatencySettings) -> Task:
    """Make the task of a model on a graph, with weights drawn from a fixed seed."""
    stack = make_stack(
        model, graph.x.shape[1], settings.hidden_of(model), graph.classes, settings.layers_of(model),
        settings.heads,
    )  # fmt: skip
    x = graph.x.to(precision.storage)
    return Task(model, graph.name, precision, graph.csr, x, stack.to(x.device), settings.heads)


def sequence_task(batch: int, precision: Precision, settings: LatencySettings) -> Task:
    """Make the task of the Transformer encoder on random sequences, with vector-wise sparse attention."""
    model, width = "transformer", settings.hidden_of("transformer")
    pattern = masks.vector_wise(settings.seq_len, settings.sparsity, settings.vector, seed=0)
    generator = torch.Generator("cpu").manual_seed(0)
    sizes = (batch, settings.seq_len, width)
    x = torch.randn(sizes, generator=generator, dtype=torch.float32, device="cpu")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layer = TransformerEncoderLayer(
            width, settings.heads, FEED_FORWARD * width, 0.0, activation="gelu", batch_first=True
        )
        encoder = TransformerEncoder(layer, settings.layers_of(model))
        encoder.reset_parameters()
    name = f"L={settings.seq_len}, {settings.sparsity:.0%} sparse"
    csr = pattern.csr.to(torch.device(settings.device))
    x = x.to(settings.device, precision.storage)
    checked = tuple(dict.fromkeys((0, batch - 1)))
    module = encoder.eval().to(settings.device)
    return Task(model, name, precision, csr, x, module, settings.heads, checked)


def tiny_task(task: Task) -> Task:
    """Make a small task with the same model, by which libraries are initialised before a measurement."""
    if task.model == "transformer":
        pattern = masks.vector_wise(_TINY_TOKENS, 0.5, 8, seed=0).csr.to(task.device)
        x = task.x[:, :_TINY_TOKENS]
        return Task(task.model, "tiny", task.precision, pattern, x, task.module, task.heads, task.checked)
    graph = _random_graph("tiny", _TINY_NODES, _TINY_EDGES, task.x.shape[1], 2).to(task.device)
    x = graph.x.to(task.x.dtype)
    return Task(task.model, "tiny", task.precision, graph.csr, x, task.module, task.heads)
