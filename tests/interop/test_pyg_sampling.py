"""PyG's loaders of sampled nodes: drawn by NeighborSampler, and their batches on accelerated models."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

pytest.importorskip("torch_geometric")

import torch_geometric.nn as pyg
from torch_geometric.data import Data
from torch_geometric.loader import NodeLoader

from gnnsparse.interop.pyg import PygSampler, accelerate, report
from gnnsparse.interop.pyg.graphs import memo
from gnnsparse.sampling import NeighborSampler

NODES = 400


def data_of() -> Data:
    draw = torch.Generator().manual_seed(0)
    edge_index = torch.randint(NODES, (2, 5000), generator=draw)
    return Data(torch.randn(NODES, 8, generator=draw), edge_index, torch.arange(5000.0), num_nodes=NODES)


def loader_of(data: Data, **options: Any) -> NodeLoader:
    made = NeighborSampler(data.edge_index, [6, 4], num_nodes=NODES, **options)
    return NodeLoader(data, node_sampler=PygSampler(made), input_nodes=torch.arange(100), batch_size=40)


@pytest.mark.parametrize("replace", [False, True])
def test_batches_are_parts_of_the_graph(replace: bool) -> None:
    data, seen = data_of(), []
    for batch in loader_of(data, replace=replace):
        seen.append(batch.n_id[: batch.batch_size])
        assert batch.n_id.unique().numel() == batch.num_nodes == sum(batch.num_sampled_nodes)
        assert torch.equal(batch.x, data.x[batch.n_id])
        assert torch.equal(batch.n_id[batch.edge_index], data.edge_index[:, batch.e_id])
        assert torch.equal(batch.edge_attr, data.edge_attr[batch.e_id])
        assert sum(batch.num_sampled_edges) == batch.num_edges
        first = batch.num_sampled_edges[0]
        counts = torch.bincount(batch.edge_index[1, :first], minlength=batch.batch_size)
        assert int(counts.max()) == 6
        assert int(batch.edge_index[1, :first].max()) < batch.batch_size
        # The second hop is drawn for nodes that the first one has reached.
        assert int(batch.edge_index[1, first:].min()) >= batch.batch_size
    assert torch.equal(torch.cat(seen), torch.arange(100))


def test_epochs_draw_anew_and_a_seed_repeats_them() -> None:
    data = data_of()

    def drawn() -> list[list[int]]:
        return [batch.e_id.tolist() for batch in loader_of(data)]

    torch.manual_seed(3)
    first, second = drawn(), drawn()
    assert first != second
    torch.manual_seed(3)
    assert drawn() == first


@pytest.mark.parametrize("convert", ["auto", "always"])
def test_accelerated_models_take_the_batches_as_they_are(convert: str, own_cache: Any) -> None:
    torch.manual_seed(0)
    memo.clear()
    plain = pyg.GraphSAGE(8, 16, num_layers=2, out_channels=3)
    model = accelerate(copy.deepcopy(plain), convert=convert)
    for _ in range(4):
        for batch in loader_of(data_of()):
            got, want = (net(batch.x, batch.edge_index)[: batch.batch_size] for net in (model, plain))
            torch.testing.assert_close(got, want)
            got.sum().backward()
    if convert == "always":
        assert "spmm" in str(report(model))
    assert not own_cache.exists()  # nothing of a batch is stored
    del batch
    assert len(memo) <= 1  # nor kept longer than the batch


def test_what_is_no_sampler_of_nodes_is_refused() -> None:
    data = data_of()
    with pytest.raises(TypeError, match="sampler: got Data; accepted: a gnnsparse"):
        PygSampler(data)  # type: ignore[arg-type]
    made = NeighborSampler(data.edge_index, [2], num_nodes=NODES)
    with pytest.raises(NotImplementedError, match=r"NeighborSampler\.sample_links"):
        PygSampler(made).sample_from_edges(None)
    with pytest.raises(ValueError, match="values: of subgraphs"):
        NeighborSampler(data.edge_index, [2], num_nodes=NODES, values="gcn").sample_subgraph([1])


def test_neighbor_loaders_batches_are_taken() -> None:
    """PyG's own loader, where what it needs is installed."""
    from torch_geometric.loader import NeighborLoader
    from torch_geometric.typing import WITH_PYG_LIB, WITH_TORCH_SPARSE

    if not (WITH_PYG_LIB or WITH_TORCH_SPARSE):
        pytest.skip("needs pyg-lib or torch-sparse")
    data, plain = data_of(), pyg.GraphSAGE(8, 16, num_layers=2, out_channels=3)
    model = accelerate(copy.deepcopy(plain), convert="always")
    for batch in NeighborLoader(data, [6, 4], input_nodes=torch.arange(100), batch_size=40):
        torch.testing.assert_close(model(batch.x, batch.edge_index), plain(batch.x, batch.edge_index))
