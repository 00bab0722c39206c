"""PyG's layers with the weights of a task, as its users run full graphs.

What depends on the graph alone is prepared ahead for them too: the GCN keeps its normalised weights
(`cached=True`), and the attention layers get edges with self-loops, so that they need not add them in each
call.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch_geometric import nn as pyg
from torch_geometric.utils import add_remaining_self_loops

from gnnsparse.bench.candidates import UnavailableError
from gnnsparse.bench.latency.backends import Backend
from gnnsparse.bench.latency.tasks import GraphStack, Task
from gnnsparse.bench.peers import check_memory_of

__all__ = ["pyg_backend"]


def _gcn(conv: Any) -> torch.nn.Module:
    return pyg.GCNConv(conv.in_channels, conv.out_channels, cached=True)


def _gcn_of_matrix(conv: Any) -> torch.nn.Module:
    return pyg.GCNConv(conv.in_channels, conv.out_channels, normalize=False)


def _agnn(conv: Any) -> torch.nn.Module:
    return pyg.AGNNConv(add_self_loops=False)


def _gat(conv: Any) -> torch.nn.Module:
    return pyg.GATConv(conv.in_channels, conv.out_channels, heads=conv.heads, add_self_loops=False)


_LAYERS: dict[str, Callable[[Any], torch.nn.Module]] = {"gcn": _gcn, "agnn": _agnn, "gat": _gat}


def _stack(task: Task, twin: Callable[[Any], torch.nn.Module]) -> GraphStack:
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


def pyg_backend(name: str, task: Task) -> Backend:
    """Make the backend "pyg" (edge_index), "pyg-csr" (torch CSR adjacency) or "pyg-compile" for a task.

    Raises:
        UnavailableError: PyG does not have the model in that way, or it needs more memory than is free.
    """
    if task.model not in _LAYERS:
        raise UnavailableError(f"PyG has no {task.model}")
    if name == "pyg-csr":
        if task.model != "gcn":
            raise UnavailableError(f"PyG's {task.model.upper()} has no product with a CSR adjacency")
        return Backend(name, _stack(task, _gcn_of_matrix), lambda: _csr_adjacency(task))
    width = max(p.shape[0] for p in task.module.parameters())
    check_memory_of(task.csr.nnz, width * task.precision.storage.itemsize, task.csr.rows, task.device)
    stack, edge_index, nodes = _stack(task, _LAYERS[task.model]), task.edge_index, task.csr.rows

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


def _csr_adjacency(task: Task) -> torch.Tensor:
    csr, _ = task.csr.add_self_loops()
    scale = csr.degrees.float().rsqrt()
    values = (scale[csr.row_index()] * scale[csr.indices.long()]).to(task.precision.storage)
    return torch.sparse_csr_tensor(csr.indptr.int(), csr.indices, values, (csr.rows, csr.cols))
