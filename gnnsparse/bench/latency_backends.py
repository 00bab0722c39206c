"""Who runs a model: this package, torch with a dense matrix, and PyG.

It stands alone because it measures nothing: what a backend computes is checked without a clock.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch.nn.attention import SDPBackend, sdpa_kernel

import gnnsparse
from gnnsparse.bench.candidates import UnavailableError
from gnnsparse.bench.latency_tasks import BACKENDS, FEED_FORWARD, GraphStack, Task
from gnnsparse.bench.peers import check_memory, free_bytes
from gnnsparse.errors import check_choice

__all__ = ["Backend", "variants_of"]

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

    @property
    def ours(self) -> bool:
        """Whether it is this package."""
        return self.name == "gnnsparse"


def variants_of(name: str, task: Task) -> list[Callable[[], Backend]]:
    """Return functions that make a backend for a task: one for each of its variants.

    Raises UnavailableError if the backend does not have the model, or its package is not installed.
    """
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
    """Return the task's model with its weights in the storage dtype."""
    return copy.deepcopy(task.module).to(task.precision.storage)


def _ours(task: Task) -> Backend:
    graph: Any = {"graph": gnnsparse.SparseGraph(task.csr)}
    if task.model != "transformer":
        graph = {"graph": task.edge_index, "num_nodes": task.csr.rows, "values": "gcn"}
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
    return [lambda: Backend("dense", _DenseGcn(_stored(task)), lambda: _gcn_matrix(task).to_dense())]


def _gcn_matrix(task: Task) -> torch.Tensor:
    """Return the adjacency of a GCN as a torch CSR tensor in the storage dtype."""
    csr, _ = task.csr.add_self_loops()
    scale = csr.degrees.float().rsqrt()
    values = (scale[csr.row_index()] * scale[csr.indices.long()]).to(task.precision.storage)
    return torch.sparse_csr_tensor(csr.indptr.int(), csr.indices, values, (csr.rows, csr.cols))


class _DenseGcn(torch.nn.Module):
    """A GCN whose adjacency is a dense matrix."""

    def __init__(self, stack: torch.nn.Module) -> None:
        super().__init__()
        assert isinstance(stack, GraphStack)
        self.convs = stack.convs

    def forward(self, x: torch.Tensor, adj: torch.Tensor) -> torch.Tensor:
        layers: list[Any] = list(self.convs)
        for number, conv in enumerate(layers):
            x = x if number == 0 else F.relu(x)
            x = torch.addmm(conv.bias, adj, F.linear(x, conv.lin.weight))
        return x


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


class _WithoutPattern(torch.nn.Module):
    """A module that is called with a pattern, which it does not need."""

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: torch.Tensor, pattern: None) -> torch.Tensor:
        out: torch.Tensor = self.module(x)
        return out


def _torch_encoder(task: Task) -> torch.nn.Module:
    module: Any = task.module
    width = task.x.shape[2]
    layer = torch.nn.TransformerEncoderLayer(
        width, task.heads, FEED_FORWARD * width, 0.0, activation="gelu", batch_first=True,
        device=task.device, dtype=task.precision.storage,
    )  # fmt: skip
    encoder = torch.nn.TransformerEncoder(layer, len(module.layers), enable_nested_tensor=False)
    encoder.load_state_dict(module.state_dict())
    return _WithoutPattern(encoder.eval())


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
    stack, edge_index, nodes = _pyg_stack(task, layers[task.model]), task.edge_index, task.csr.rows

    def prepare() -> torch.Tensor:
        if task.model == "gcn":
            # Its layers normalise the edges in the first call and keep the result. They do it here, where the
            # preprocessing is timed, and before a compiler sees it.
            with torch.no_grad():
                stack(task.x, edge_index)
            return edge_index
        edges: torch.Tensor = add_remaining_self_loops(edge_index, num_nodes=nodes)[0]
        return edges

    if name == "pyg":
        return Backend(name, stack, prepare)
    # Adapts to a CPU, where there are no CUDA graphs.
    compiled: Any = torch.compile(stack, mode="reduce-overhead", dynamic=False)
    return Backend(name, compiled, prepare, "reduce-overhead")
