"""What `gnnsparse bench latency` measures: models on inputs, and who runs them: this package, torch, PyG."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch.nn.attention import SDPBackend, sdpa_kernel

import gnnsparse
from gnnsparse.bench.candidates import check_memory, edge_index_of, free_bytes, sparse_csr
from gnnsparse.bench.workload import UnavailableError, Workload, make_subject
from gnnsparse.data import GENERATED_GRAPHS, graph_like, load_dataset
from gnnsparse.data.generated import sizes_of
from gnnsparse.errors import check_choice
from gnnsparse.formats.csr import Csr
from gnnsparse.nn import AGNNConv, GATConv, GCNConv, TransformerEncoder, TransformerEncoderLayer
from gnnsparse.patterns import masks
from gnnsparse.precision import Precision
from gnnsparse.sparse.graph import SparseGraph

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
_FEED_FORWARD = 4
_ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {"agnn": lambda x: x, "gat": F.elu}


class GraphStack(torch.nn.Module):
    """Graph layers with activations between them; an AGNN has linear layers at its ends instead."""

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
    """Make a stack of this package's layers in evaluation mode, with weights of a fixed seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        if model == "agnn":
            before, after = torch.nn.Linear(features, hidden), torch.nn.Linear(hidden, classes)
            return GraphStack(model, [AGNNConv() for _ in range(layers)], before, after).eval()
        widths = [features, *[hidden] * (layers - 1), classes]
        each_heads = [*[heads] * (layers - 1), 1]
        convs = [
            GCNConv(width, out) if model == "gcn" else GATConv(width, out // of, heads=of)
            for (width, out), of in zip(pairwise(widths), each_heads, strict=True)
        ]
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
    checked: tuple[int, ...] = ()

    @property
    def device(self) -> torch.device:
        """Where the input is."""
        return self.x.device

    @property
    def batch(self) -> int:
        """Number of samples of a call: sequences, or 1 for a graph."""
        return self.x.shape[0] if self.model == "transformer" else 1

    def shown(self, result: torch.Tensor) -> torch.Tensor:
        """Return the part of a result that is checked."""
        return result[list(self.checked)] if self.checked else result


def load_graph(name: str, settings: LatencySettings) -> GraphInput:
    """Load a data set to the device of the settings, with the errors of gnnsparse.data.load_dataset."""
    if name == CORA_LIKE:
        features = settings.features or _CORA_FEATURES
        return _random_graph(name, _CORA_NODES, _CORA_EDGES, features, _CORA_CLASSES, settings.device)
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
    csr, x = data.graph.csr.to(torch.device(settings.device)), data.x.to(settings.device)
    return GraphInput(name, csr, x, data.num_classes)


def _random_graph(
    name: str, nodes: int, edges: int, features: int, classes: int, device: torch.device | str
) -> GraphInput:
    """Make a symmetric graph of about `edges` random edges, which counts both directions."""
    generator = torch.Generator("cpu").manual_seed(0)
    ends = torch.randint(nodes, (2, edges // 2), generator=generator, device="cpu")
    ends = ends[:, ends[0] != ends[1]]
    edge_index = torch.cat([ends, ends.flip(0)], dim=1).unique(dim=1)
    graph = SparseGraph.from_edge_index(edge_index, nodes)
    x = torch.randn(nodes, features, generator=generator, dtype=torch.float32, device="cpu")
    return GraphInput(name, graph.csr.to(torch.device(device)), x.to(device), classes)


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
            width, settings.heads, _FEED_FORWARD * width, 0.0, activation="gelu", batch_first=True
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
        return replace(task, dataset="tiny", csr=pattern, x=task.x[:, :_TINY_TOKENS])
    graph = _random_graph("tiny", _TINY_NODES, _TINY_EDGES, task.x.shape[1], 2, task.device)
    return replace(task, dataset="tiny", csr=graph.csr, x=graph.x.to(task.x.dtype))


# Who runs a task: this package, torch with a dense matrix, and PyG.

#: Share of the free memory that a dense matrix may take.
_MEMORY_SHARE = 0.25
#: torch's kernels of dense attention, by type of device.
_SDPA = {
    "cuda": {
        "cudnn": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION,
        "efficient": SDPBackend.EFFICIENT_ATTENTION,
    },
    "cpu": {"flash": SDPBackend.FLASH_ATTENTION, "math": SDPBackend.MATH},
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class Backend:
    """What runs a task: a module with its weights in the storage dtype, called with what `prepare` makes.

    `dense`: all pairs attend, so that it computes something else. `context` is entered around each call.
    """

    name: str
    module: torch.nn.Module
    prepare: Callable[[], Any]
    variant: str = ""
    dense: bool = False
    context: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext


def variants_of(name: str, task: Task) -> list[Callable[[], Backend]]:
    """Return functions that make the variants of a backend, or raise UnavailableError."""
    check_choice("backend", name, BACKENDS)
    if name == "gnnsparse":
        return [lambda: _ours(task)]
    if name == "dense":
        return _dense(task)
    try:
        import torch_geometric  # noqa: F401
    except ImportError as error:
        raise UnavailableError(f"not installed: {error}") from error
    return [lambda: _pyg_backend(name, task)]


def _stored(task: Task) -> torch.nn.Module:
    return copy.deepcopy(task.module).to(task.precision.storage)


def _ours(task: Task) -> Backend:
    graph: Any = {"graph": SparseGraph(task.csr)}
    if task.model != "transformer":
        graph = {"graph": edge_index_of(task.csr), "num_nodes": task.csr.rows, "values": "gcn"}
    return Backend(
        "gnnsparse", _stored(task),
        lambda: gnnsparse.prepare(**graph, precision=task.precision, cache=False),
    )  # fmt: skip


def _dense(task: Task) -> list[Callable[[], Backend]]:
    if task.model == "transformer":
        return list(_dense_encoders(task))
    if task.model != "gcn":
        raise UnavailableError(f"there is no dense {task.model.upper()} here; a GCN's matrix can be dense")
    needed = 2 * task.csr.rows**2 * torch.float32.itemsize
    if needed > _MEMORY_SHARE * (free := free_bytes(task.device)):
        raise UnavailableError(f"would need {needed / 1e9:.1f} GB, {free / 1e9:.1f} GB are free")
    stack: Any = _stored(task)
    dense = GraphStack("gcn", [_DenseConv(conv) for conv in stack.convs])
    return [lambda: Backend("dense", dense, lambda: _gcn_matrix(task).to_dense())]


def _gcn_matrix(task: Task) -> torch.Tensor:
    """Return the adjacency of a GCN as a torch CSR tensor in the storage dtype."""
    subject = make_subject(task.dataset, SparseGraph(task.csr), "gcn")
    return sparse_csr(Workload(subject, "spmm", task.precision, task.x.shape[1]))


class _DenseConv(torch.nn.Module):
    def __init__(self, conv: Any) -> None:
        super().__init__()
        self.conv = conv

    def forward(self, x: torch.Tensor, adj: torch.Tensor) -> torch.Tensor:
        return torch.addmm(self.conv.bias, adj, F.linear(x, self.conv.lin.weight))


def _dense_encoders(task: Task) -> Iterator[Callable[[], Backend]]:
    """Yield the dense encoder by each kernel of attention, as torch's layer and as plain code without it."""

    def make(variant: str, encoder: Callable[[Task], torch.nn.Module], context: Any) -> Backend:
        return Backend("dense", encoder(task), lambda: None, variant, dense=True, context=context)

    yield partial(make, "torch's layer, fast path", _torch_encoder, contextlib.nullcontext)
    for name, kernel in _SDPA[task.device.type].items():
        context = partial(_attention_by, kernel)
        yield partial(make, f"torch's layer, {name}", _torch_encoder, context)
        yield partial(make, f"plain, {name}", _PlainEncoder, context)


@contextlib.contextmanager
def _attention_by(kernel: SDPBackend) -> Iterator[None]:
    """Let one kernel of attention run, and torch's layer not as one operation."""
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with sdpa_kernel([kernel]):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)


def _torch_encoder(task: Task) -> torch.nn.Module:
    """Return torch's encoder, which is called with None, its own mask, in place of a pattern."""
    module: Any = task.module
    width = task.x.shape[2]
    layer = torch.nn.TransformerEncoderLayer(
        width, task.heads, _FEED_FORWARD * width, 0.0, activation="gelu", batch_first=True,
        device=task.device, dtype=task.precision.storage,
    )  # fmt: skip
    encoder = torch.nn.TransformerEncoder(layer, len(module.layers), enable_nested_tensor=False)
    encoder.load_state_dict(module.state_dict())
    return encoder.eval()


class _PlainEncoder(torch.nn.Module):
    """The dense encoder with nothing around its products and torch's attention."""

    def __init__(self, task: Task) -> None:
        super().__init__()
        self.encoder: Any = _stored(task)

    def forward(self, x: torch.Tensor, pattern: None) -> torch.Tensor:
        for layer in self.encoder.layers:
            attention = layer.self_attn
            projected = F.linear(x, attention.in_proj_weight, attention.in_proj_bias)
            q, k, v = projected.unflatten(-1, (3, attention.num_heads, -1)).permute(2, 0, 3, 1, 4)
            out = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
            x = layer.norm1(x + attention.out_proj(out))
            x = layer.norm2(x + layer.linear2(F.gelu(layer.linear1(x))))
        return x


# PyG's layers with the weights of a task, as its users run full graphs. What depends on the graph alone is
# prepared ahead for them too: the GCN keeps its normalised weights (`cached=True`), and the attention layers
# get edges with self-loops, so that they need not add them in each call.


def _pyg_layers() -> dict[str, Callable[[Any], torch.nn.Module]]:
    """Return what makes PyG's layer of ours, by model; "gcn of a matrix" takes a weighted adjacency."""
    from torch_geometric import nn

    return {
        "gcn": lambda conv: nn.GCNConv(conv.in_channels, conv.out_channels, cached=True),
        "gcn of a matrix": lambda conv: nn.GCNConv(conv.in_channels, conv.out_channels, normalize=False),
        "agnn": lambda conv: nn.AGNNConv(add_self_loops=False),
        "gat": lambda conv: nn.GATConv(
            conv.in_channels, conv.out_channels, heads=conv.heads, add_self_loops=False
        ),
    }


def _pyg_stack(task: Task, twin: Callable[[Any], torch.nn.Module]) -> GraphStack:
    ours = task.module
    assert isinstance(ours, GraphStack)
    convs = []
    with torch.random.fork_rng(devices=[]):  # what PyG draws is replaced
        for conv in ours.convs:
            made = twin(conv)
            made.load_state_dict(conv.state_dict())
            convs.append(made)
    stack = GraphStack(task.model, convs, copy.deepcopy(ours.before), copy.deepcopy(ours.after))
    return stack.to(task.device, task.precision.storage).eval()


def _pyg_backend(name: str, task: Task) -> Backend:
    """Make the backend "pyg" (edge_index), "pyg-csr" (torch CSR adjacency) or "pyg-compile" for a task."""
    from torch_geometric.utils import add_remaining_self_loops

    layers = _pyg_layers()
    if task.model not in layers:
        raise UnavailableError(f"PyG has no {task.model}")
    if name == "pyg-csr":
        if task.model != "gcn":
            raise UnavailableError(f"PyG's {task.model.upper()} has no product with a CSR adjacency")
        return Backend(name, _pyg_stack(task, layers["gcn of a matrix"]), lambda: _gcn_matrix(task))
    width = max(p.shape[0] for p in task.module.parameters())
    check_memory(task.csr, width * task.precision.storage.itemsize)
    stack, edge_index = _pyg_stack(task, layers[task.model]), edge_index_of(task.csr)

    def prepare() -> torch.Tensor:
        if task.model == "gcn":
            # Its layers normalise the edges in the first call and keep the result. They do it here, where the
            # preprocessing is timed, and before a compiler sees it.
            with torch.no_grad():
                stack(task.x, edge_index)
            return edge_index
        return add_remaining_self_loops(edge_index, num_nodes=task.csr.rows)[0]

    if name == "pyg":
        return Backend(name, stack, prepare)
    # Adapts to a CPU, where there are no CUDA graphs.
    compiled: Any = torch.compile(stack, mode="reduce-overhead", dynamic=False)
    return Backend(name, compiled, prepare, "reduce-overhead")
