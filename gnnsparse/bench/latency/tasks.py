"""The inputs of latency measurements: a graph or a batch of sequences, and a model with weights."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import torch

from gnnsparse.bench.latency.models import make_encoder, make_stack
from gnnsparse.bench.latency.settings import CORA_LIKE, LatencySettings
from gnnsparse.data import GENERATED_GRAPHS, graph_like, load_dataset
from gnnsparse.data.generated import sizes_of
from gnnsparse.formats.csr import Csr
from gnnsparse.patterns import masks
from gnnsparse.precision import Precision
from gnnsparse.sparse.graph import SparseGraph

__all__ = ["GraphInput", "Task", "graph_task", "load_graph", "sequence_task", "tiny_task"]

#: Nodes, edges in both directions, features and classes of Cora.
_CORA_NODES, _CORA_EDGES, _CORA_FEATURES, _CORA_CLASSES = 2708, 10556, 1433, 7
#: Nodes, edges, and tokens of the task by which libraries are initialised before anything is measured.
_TINY_NODES, _TINY_EDGES, _TINY_TOKENS = 64, 256, 64


@dataclass(frozen=True, eq=False)
class GraphInput:
    """A graph with features.

    Attributes:
        name: name of the data set.
        csr: A[target, source], without repeated edges.
        x: float32 [nodes, features].
        classes: number of classes.
    """

    name: str
    csr: Csr
    x: torch.Tensor
    classes: int

    @property
    def edge_index(self) -> torch.Tensor:
        """PyG's: int64 [2, edges], sources over targets."""
        return torch.stack([self.csr.indices.long(), self.csr.row_index()])

    def to(self, device: torch.device | str) -> GraphInput:
        """Returns the graph on a device."""
        return GraphInput(self.name, self.csr.to(torch.device(device)), self.x.to(device), self.classes)


@dataclass(frozen=True, eq=False)
class Task:
    """A model with weights and its input, which every backend computes.

    Attributes:
        model: name of the model.
        dataset: name of the input.
        precision: precision of products; parameters and features are stored in its dtype.
        csr: structure of the graph or pattern.
        x: features in the storage dtype, [nodes, features] or [batch, tokens, features].
        module: the model of this package, float32, with the weights that all backends have.
        heads: number of heads.
        checked: the indices of x whose results are checked: all nodes, or the first and the last sequence.
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
        """Returns the part of a result that is checked."""
        return result[list(self.checked)] if self.checked else result


def load_graph(name: str, settings: LatencySettings) -> GraphInput:
    """Loads a data set to the device of the settings.

    Raises:
        ValueError, OSError, ImportError, MemoryError: see gnnsparse.data.load_dataset.
    """
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
    root = None if settings.root is None else _folder_of(name, settings.root)
    data = load_dataset(name, root=root)
    return GraphInput(name, data.graph.csr, data.x, data.num_classes).to(settings.device)


def _folder_of(name: str, root: Path) -> Path:
    return root / name if (root / name).is_dir() else root


def _random_graph(name: str, nodes: int, edges: int, features: int, classes: int) -> GraphInput:
    """Makes a symmetric graph of about `edges` random edges, which counts both directions."""
    generator = torch.Generator("cpu").manual_seed(0)
    ends = torch.randint(nodes, (2, edges // 2), generator=generator, device="cpu")
    ends = ends[:, ends[0] != ends[1]]
    edge_index = torch.cat([ends, ends.flip(0)], dim=1).unique(dim=1)
    graph = SparseGraph.from_edge_index(edge_index, nodes)
    x = torch.randn(nodes, features, generator=generator, dtype=torch.float32, device="cpu")
    return GraphInput(name, graph.csr, x, classes)


def graph_task(model: str, graph: GraphInput, precision: Precision, settings: LatencySettings) -> Task:
    """Makes the task of a model on a graph, with weights drawn from a fixed seed."""
    stack = make_stack(
        model, graph.x.shape[1], settings.hidden_of(model), graph.classes, settings.layers_of(model),
        settings.heads,
    )  # fmt: skip
    x = graph.x.to(precision.storage)
    return Task(model, graph.name, precision, graph.csr, x, stack.to(x.device), settings.heads)


def sequence_task(batch: int, precision: Precision, settings: LatencySettings) -> Task:
    """Makes the task of the Transformer encoder on random sequences, with vector-wise sparse attention."""
    model, width = "transformer", settings.hidden_of("transformer")
    pattern = masks.vector_wise(settings.seq_len, settings.sparsity, settings.vector, seed=0)
    generator = torch.Generator("cpu").manual_seed(0)
    sizes = (batch, settings.seq_len, width)
    x = torch.randn(sizes, generator=generator, dtype=torch.float32, device="cpu")
    encoder = make_encoder(width, settings.heads, settings.layers_of(model)).to(settings.device)
    name = f"L={settings.seq_len}, {settings.sparsity:.0%} sparse"
    csr = pattern.csr.to(torch.device(settings.device))
    x = x.to(settings.device, precision.storage)
    checked = tuple(dict.fromkeys((0, batch - 1)))
    return Task(model, name, precision, csr, x, encoder, settings.heads, checked)


def tiny_task(task: Task) -> Task:
    """Makes a small task with the same model, by which libraries are initialised before a measurement."""
    if task.model == "transformer":
        pattern = masks.vector_wise(_TINY_TOKENS, 0.5, 8, seed=0).csr.to(task.device)
        x = task.x[:, :_TINY_TOKENS]
        return Task(task.model, "tiny", task.precision, pattern, x, task.module, task.heads, task.checked)
    graph = _random_graph("tiny", _TINY_NODES, _TINY_EDGES, task.x.shape[1], 2).to(task.device)
    x = graph.x.to(task.x.dtype)
    return Task(task.model, "tiny", task.precision, graph.csr, x, task.module, task.heads)
