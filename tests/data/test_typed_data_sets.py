"""TypedNodeDataset and TypedLinkDataset: what they accept, and what they know of their graph."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from gnnsparse.data import TypedLinkDataset, TypedNodeDataset
from tests.tasks import typed_links, typed_nodes


def test_a_typed_node_data_set_knows_its_sizes() -> None:
    data = typed_nodes()
    types = data.types
    assert types["features"] == {"paper": 4, "venue": 3}
    assert types["nodes"] == {"author": 10}
    assert types["relations"][1] == ["author", "writes", "paper"]
    assert data.num_nodes == 80
    assert (data.multi_label, data.regression) == (False, False)
    several = replace(data, y=torch.eye(3)[data.y])
    assert several.multi_label
    assert replace(data, y=data.y.float(), metric="mae", num_classes=1).regression


@pytest.mark.parametrize(("change", "error", "message"), [
    ({"graph": {}}, TypeError, "graph: got dict; accepted: a TypedGraph"),
    ({"x": {"editor": torch.ones(3, 1)}}, ValueError, "x: has 'editor'; accepted: 'paper', 'author', "),
    ({"x": {"venue": torch.ones(5, 1)}}, ValueError, r"x\['venue'\]: has shape \(5, 1\); accepted: \(6"),
    ({"x": {"venue": torch.full((6, 1), torch.nan)}}, ValueError, r"x\['venue'\]: element \[0, 0\] is nan"),
    ({"target": "editor"}, ValueError, "target: got 'editor'; accepted: paper, author, venue"),
    ({"target": "venue"}, ValueError, r"y: has shape"),
    ({"val_mask": torch.ones(80, dtype=torch.bool)}, ValueError, "test_mask: a node is in two of the masks"),
    ({"class_names": ("a",)}, ValueError, "class_names: accepted: a tuple of 3 texts, or None"),
    ({"node_ids": {"venue": ("a",)}}, ValueError, r"node_ids\['venue'\]: accepted: a tuple of 6 texts"),
    ({"times": {"venue": torch.zeros(6, dtype=torch.int64)}}, ValueError, "times: are missing for 'paper'"),
    ({"times": {"paper": torch.zeros(80)}}, TypeError, r"times\['paper'\]: got a tensor of dtype"),
])  # fmt: skip
def test_wrong_node_data_is_named(change: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        replace(typed_nodes(), **change)


def test_a_typed_link_data_set_knows_all_edges() -> None:
    data = typed_links()
    users, items = data.sizes
    pairs = torch.cartesian_prod(torch.arange(users), torch.arange(items))
    edges = {tuple(pair) for part in data.edges.values() for pair in part.tolist()}
    assert data.are_known(pairs).tolist() == [tuple(pair) in edges for pair in pairs.tolist()]
    assert set(data.times.values()) == {None}
    one = replace(data, known=torch.tensor([items + 2]))
    assert pairs[one.are_known(pairs)].tolist() == [[1, 2]]


@pytest.mark.parametrize(("change", "error", "message"), [
    ({"relation": ("user", "sees", "item")}, ValueError, "relation: got .*; accepted: .*'buys'"),
    ({"val_edges": torch.tensor([[0, 99]])}, ValueError, "val_edges: element 0 is 99; accepted: 0 to 14"),
    ({"test_edges": torch.empty(0, 2, dtype=torch.int64)}, ValueError, "test_edges: is empty"),
    ({"pairs": torch.tensor([[99, 0]])}, ValueError, "pairs: element 0 is 99"),
    ({"metric": "auc"}, ValueError, "metric: got 'auc'; accepted: mrr, hits"),
    ({"negatives": 0}, ValueError, "negatives: got 0"),
    ({"edge_times": {}}, ValueError, "train_times: is None, and edge_times are not; accepted: both or "),
])  # fmt: skip
def test_wrong_link_data_is_named(change: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        replace(typed_links(), **change)


def test_both_are_frozen() -> None:
    for data in (typed_nodes(), typed_links()):
        assert isinstance(data, TypedNodeDataset | TypedLinkDataset)
        with pytest.raises(AttributeError):
            data.name = "other"  # type: ignore[misc]
