"""Generated graphs like molecules: kinds, edges, and the numbers to predict."""

from __future__ import annotations

import networkx
import pytest
import torch

from gnnsparse.data import CATALOG
from gnnsparse.data.molecules import load_molecules
from gnnsparse.data.pyg_lists import divided

LENGTHS = (1.0, 2.0, 3.0, 1.5)


def test_numbers_are_those_of_shortest_paths() -> None:
    dataset = load_molecules(graphs=300, seed=3)
    for data, y in zip(divided(dataset, with_features=True)[::23], dataset.y[::23].tolist(), strict=True):
        graph = networkx.Graph()
        assert torch.equal(data.edge_attr.sum(dim=1), torch.ones(data.edge_index.shape[1]))
        for ends, kind in zip(data.edge_index.T.tolist(), data.edge_attr.argmax(dim=1).tolist(), strict=True):
            graph.add_edge(*ends, length=LENGTHS[kind])
        assert (graph.number_of_nodes(), 2 * graph.number_of_edges()) == (len(data.x), len(data.edge_attr))
        far = networkx.eccentricity(graph)
        paths = dict(networkx.all_pairs_dijkstra_path_length(graph, weight="length"))
        longest = max(max(of.values()) for of in paths.values())
        assert y == pytest.approx([sum(far.values()) / len(far), longest])


def test_a_seed_decides_the_graphs_and_a_split_the_parts() -> None:
    first, more, other = load_molecules(50), load_molecules(60), load_molecules(50, seed=1)
    assert torch.equal(first.y, more.y[:50])
    assert not torch.equal(first.y, other.y)
    again = load_molecules(50, split=1)
    assert torch.equal(first.x, again.x)
    assert not torch.equal(first.train_mask, again.train_mask)
    assert [int(mask.sum()) for mask in (first.train_mask, first.val_mask, first.test_mask)] == [40, 5, 5]
    assert (first.metric, first.regression, first.class_names) == ("mae", True, ("eccentricity", "path"))
    assert CATALOG["generated_molecules"].task == "graph"
    with pytest.raises(ValueError, match="graphs: got 9; accepted: an integer, at least 10"):
        load_molecules(9)
