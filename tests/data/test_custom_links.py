"""Links of a user's own graph: parts without leaks, negatives, two kinds of nodes, directions, refusals."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gnnsparse.data import LinkDataset, NodeDataset, load_custom
from gnnsparse.data.datasets import edge_keys, has_edges
from tests.own_graphs import write_table

NODES = 24


def ring(both: bool = False) -> dict[str, Any]:
    """Edges of each node to the next two, as undirected edges in both directions if `both`."""
    first = np.arange(NODES).repeat(2)
    second = (first + np.tile([1, 2], NODES)) % NODES
    ends = np.stack([first, second])
    ends = np.concatenate([ends, ends[::-1]], axis=1) if both else ends
    return {"source": [f"p{node}" for node in ends[0]], "target": [f"p{node}" for node in ends[1]]}


def shop(**more: Any) -> dict[str, Any]:
    """Users 0 to 7 and items 0 to 5: each user has three items."""
    users = np.arange(8).repeat(3)
    return {"user": users, "item": (users + np.tile([0, 1, 2], 8)) % 6, **more}


def load(folder: Path, columns: dict[str, Any], **options: Any) -> LinkDataset:
    write_table(folder / "edges.csv", columns)
    made = load_custom(folder, **options)
    assert isinstance(made, LinkDataset)
    return made


def keys(pairs: torch.Tensor) -> set[tuple[int, ...]]:
    return {tuple(sorted(pair)) for pair in pairs.tolist()}


def parts_of(made: LinkDataset) -> list[torch.Tensor]:
    return [made.train_edges, made.val_edges, made.test_edges]


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_both_directions_of_an_edge_are_in_one_part_and_messages_pass_over_training_edges(
    tmp_path: Path, seed: int
) -> None:
    made = load(tmp_path, ring(both=True), seed=seed, train_fraction=0.5)
    parts = [keys(part) for part in parts_of(made)]
    assert [len(part) for part in parts] == [24, 10, 14]
    assert not parts[0] & parts[1]
    assert not parts[0] & parts[2]
    assert not parts[1] & parts[2]
    csr = made.graph.csr
    assert keys(torch.stack([csr.row_index(), csr.indices.long()], dim=1)) == parts[0]
    assert not parts[0].union(*parts) & (keys(made.val_negatives) | keys(made.test_negatives))
    assert len(made.val_negatives) == 10


def test_graphs_of_pyg_that_store_both_directions_are_undirected(tmp_path: Path) -> None:
    ends = [[int(name[1:]) for name in names] for names in ring(both=True).values()]
    np.savez(tmp_path / "graph.npz", edge_index=np.array(ends))
    made = load_custom(tmp_path / "graph.npz", task="link")
    assert isinstance(made, LinkDataset)
    assert not made.directed
    assert sum(map(len, parts_of(made))) == 2 * NODES


def test_task_is_links_if_nothing_has_labels(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "gnnsparse.data"):
        made = load(tmp_path, ring())
    assert (
        "task = link, undirected (29 to train on, 10 for validation, 9 for the test): nothing has"
        in caplog.text
    )
    assert made.x is None
    assert made.metric == "auc"
    assert made.hits_at == 1
    ids = [f"p{node}" for node in range(NODES)]
    write_table(
        tmp_path / "nodes.csv", {"id": ids, "f": range(NODES), "label": [n % 2 for n in range(NODES)]}
    )
    assert isinstance(load_custom(tmp_path), NodeDataset)
    made = load(tmp_path, ring(), task="link", hits_at=3)
    assert made.x is not None
    assert made.feature_names == ("f",)
    assert made.hits_at == 3


def test_users_and_items_are_two_kinds_of_nodes(tmp_path: Path) -> None:
    made = load(tmp_path, shop(weight=np.arange(24) + 1.0), val_fraction=0.3)
    assert made.num_nodes == 14
    assert made.sides is not None
    assert made.node_ids is not None
    users, items = made.sides
    for pairs in (*parts_of(made), made.val_negatives, made.test_negatives):
        assert torch.isin(pairs[:, 0], users).all()
        assert torch.isin(pairs[:, 1], items).all()
    rows = {(str(user), str(item)) for user, item in zip(shop()["user"], shop()["item"], strict=True)}
    named = [(made.node_ids[a], made.node_ids[b]) for a, b in made.val_negatives.tolist()]
    assert not rows & set(named)
    assert {(made.node_ids[a], made.node_ids[b]) for a, b in torch.cat(parts_of(made)).tolist()} == rows
    assert made.graph.values is not None
    one_kind = load(tmp_path, shop(), bipartite=False)
    assert one_kind.num_nodes == 8
    assert one_kind.sides is None
    assert load(tmp_path, ring(), bipartite=True).num_nodes == 2 * NODES


def test_directed_links_keep_their_direction(tmp_path: Path) -> None:
    made = load(tmp_path, ring(), directed=True)
    assert made.directed
    assert made.graph.nnz == len(made.train_edges)
    assert bool(has_edges(edge_keys(made.graph), made.train_edges.flip(1), NODES).all())
    turned = {tuple(pair) for pair in torch.cat(parts_of(made)).flip(1).tolist()}
    negatives = {tuple(pair) for pair in made.test_negatives.tolist()}
    assert len(turned & negatives) >= len(made.test_negatives) // 2  # edges that are turned round
    assert not {pair[::-1] for pair in turned} & negatives


def test_split_by_column_and_by_time(tmp_path: Path) -> None:
    parts = (["train", "train", "val", "test"] * NODES)[: 2 * NODES]
    made = load(tmp_path, {**ring(), "split": parts})
    assert [len(part) for part in parts_of(made)] == [24, 12, 12]
    made = load(tmp_path, {**ring(), "when": np.arange(2 * NODES)}, split="time:when")
    assert made.node_ids is not None
    last = {tuple(sorted(pair)) for pair in zip(*(ends[-10:] for ends in ring().values()), strict=True)}
    assert {tuple(sorted(made.node_ids[n] for n in pair)) for pair in made.test_edges.tolist()} == last


def test_pairs_to_predict_for_have_names_of_the_graph(tmp_path: Path) -> None:
    write_table(tmp_path / "pairs.csv", {"user": [3, 0], "item": [5, 1]})
    made = load(tmp_path, shop(), pairs=tmp_path / "pairs.csv")
    assert made.pairs is not None
    assert made.node_ids is not None
    assert made.sides is not None
    assert [[made.node_ids[n] for n in pair] for pair in made.pairs.tolist()] == [["3", "5"], ["0", "1"]]
    assert torch.isin(made.pairs[:, 1], made.sides[1]).all()
    write_table(tmp_path / "pairs.csv", {"user": [3], "item": [7]})  # there is a user 7
    with pytest.raises(
        ValueError, match=r"pairs: pairs.csv: column 'item' has '7' in row 1; accepted: nodes"
    ):
        load(tmp_path, shop(), pairs=tmp_path / "pairs.csv")


def few() -> dict[str, Any]:
    return {name: column[:6] for name, column in ring().items()}


def loops() -> dict[str, Any]:
    return {"source": ring()["source"], "target": ring()["source"]}


def full() -> dict[str, Any]:
    pairs = [(f"p{a}", f"p{b}") for a in range(8) for b in range(a)]
    return {"source": [a for a, _ in pairs], "target": [b for _, b in pairs]}


@pytest.mark.parametrize(
    ("columns", "options", "said"),
    [
        (few(), {}, "edges: 6 rows have 6 different edges between two nodes; accepted: 10 or more"),
        (loops(), {}, "edges: 48 rows have 0 different edges"),
        (full(), {"bipartite": False}, "edges: join nearly all pairs of the 8 nodes; accepted: 99 %"),
        (ring(), {"metric": "accuracy"}, "metric: got 'accuracy' for links, which are scored by auc"),
        (ring(), {"pairs": "nowhere"}, "pairs: there is no table 'nowhere'; accepted: a file .csv"),
        (ring(), {"task": "node"}, "label: there are no labels; accepted: .*or task=link, which needs none"),
        (ring(), {"hits_at": 0}, "hits_at"),
    ],
    ids=["few", "loops", "full", "metric", "pairs", "node", "hits"],
)
def test_what_is_no_graph_of_links(tmp_path: Path, columns: Any, options: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        load(tmp_path, columns, **options)
