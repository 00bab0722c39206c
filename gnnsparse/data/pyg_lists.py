"""Lists of PyG's graphs: what counts as one, batches of them, and the graphs of a data set as such a list."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

from gnnsparse.data.optional import import_optional
from gnnsparse.errors import bad_type, bad_value
from gnnsparse.preprocess.source import is_pyg_data

if TYPE_CHECKING:
    from gnnsparse.data.datasets import GraphDataset

#: Most nodes of graphs that are put together for a prediction, unless a single graph has more.
_NODES = 2**16


def is_many(data: Any) -> bool:
    """Return whether data are a list or tuple, or a data set of PyG or torch, as many graphs are given."""
    names = [f"{kind.__module__}.{kind.__name__}" for kind in type(data).__mro__]
    return isinstance(data, (list, tuple)) or "torch.utils.data.dataset.Dataset" in names


def graphs_of(data: Any) -> list[Any]:
    """Return the graphs of a list or data set as a list of torch_geometric.data.Data; raise at others."""
    if not is_many(data):
        bad_type("data", data, "a list of torch_geometric.data.Data")
    graphs = [data[at] for at in range(len(data))]
    for at, graph in enumerate(graphs):
        if not is_pyg_data(graph):
            bad_type(f"data[{at}]", graph, "a torch_geometric.data.Data")
    if not graphs:
        bad_value("data", "has no graph; accepted: a list of one or more")
    return graphs


def batches_of(graphs: list[Any]) -> Iterator[Any]:
    """Yield Batches of PyG of some graphs in their order, each of not too many nodes."""
    batch = import_optional("torch_geometric.data", "a list of graphs").Batch
    some: list[Any] = []
    nodes = 0
    for graph in graphs:
        nodes += graph.num_nodes
        if some and nodes > _NODES:
            yield batch.from_data_list(some)
            some, nodes = [], graph.num_nodes
        some.append(graph)
    if some:
        yield batch.from_data_list(some)


def divided(dataset: GraphDataset, with_features: bool = False) -> list[Any]:
    """Return the graphs of a data set as a list of torch_geometric.data.Data, with weights of edges.

    With `with_features` they have the features of edges as edge_attr, if there are some.
    """
    data = import_optional("torch_geometric.data", "a model of PyG").Data
    csr, weights = dataset.graph.csr, dataset.graph.values
    ptr = dataset.graph_ptr.to(csr.device)
    edges, ends = torch.stack([csr.indices.long(), csr.row_index().long()]), csr.indptr[ptr].tolist()
    found = {} if weights is None else {"edge_weight": weights}
    if with_features and (more := dataset.edge_features) is not None:
        graph_of = torch.searchsorted(ptr, more.edge_index[1], right=True) - 1
        order = graph_of.argsort(stable=True)
        ends = [0, *graph_of.bincount(minlength=dataset.num_graphs).cumsum(0).tolist()]
        found = {name: value[order] for name, value in more.attributes.items() if name != "edge_index"}
        edges = more.edge_index[:, order]
    nodes, graphs = ptr.tolist(), []
    for at in range(dataset.num_graphs):
        of = slice(ends[at], ends[at + 1])
        own = {name: value[of] for name, value in found.items()}
        x = dataset.x[nodes[at] : nodes[at + 1]]
        graphs.append(data(x=x, edge_index=edges[:, of] - nodes[at], **own))
    return graphs
