"""Models of graphs with types, and other tables: features as in the training, and what is refused."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch

import gnnsparse
from gnnsparse.data import load_custom
from gnnsparse.inference.predict import predict_run
from models import MODELS
from tests.own_graphs import write_table

pyg_data = pytest.importorskip("torch_geometric.data")

CPU: dict[str, Any] = {"device": "cpu", "progress": False}
VENUES = ["Acta", "ICML", "NeurIPS"]


def papers(folder: Path, seed: int, journals: list[str], labels: bool = True) -> Path:
    """Papers with numbers, texts and classes, authors with ages, and venues that have no table."""
    draw, count = random.Random(seed), 30 + seed
    names, authors = ([f"{kind}{seed}_{at}" for at in range(count)] for kind in "pa")
    (folder / "nodes").mkdir(parents=True)
    (folder / "edges").mkdir()
    table: dict[str, Any] = {
        "id": names, "pages": [draw.choice(["", 8, 12, 40]) for _ in names],
        "journal": [draw.choice(journals) for _ in names],
    }  # fmt: skip
    if labels:
        table["label"] = [draw.choice(["law", "physics"]) for _ in names]
    write_table(folder / "nodes/paper.csv", table)
    write_table(
        folder / "nodes/author.csv", {"name": authors, "age": [draw.randrange(20, 70) for _ in names]}
    )
    for relation, sources, targets in (
        ("author__writes__paper", authors, names), ("paper__in__venue", names, VENUES[: 3 - seed % 2])
    ):  # fmt: skip
        source, _, target = relation.split("__")
        ends = {
            end: [draw.choice(of) for _ in range(80)] for end, of in ((source, sources), (target, targets))
        }
        write_table(folder / f"edges/{relation}.csv", ends)
    return folder


@pytest.fixture(name="run", scope="module")
def run_(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The folder of a run on papers, and what it was trained on."""
    place = tmp_path_factory.mktemp("papers")
    dataset: Any = load_custom(papers(place / "old", 0, ["Nature", "Cell"]), standardize=True)
    torch.manual_seed(0)
    model = MODELS["rgcn"].build(
        dataset.x["paper"].shape[1], out_channels=2, hidden_channels=8,
        types={**dataset.types, "target": "paper"},
    )  # fmt: skip
    gnnsparse.fit(model, dataset, epochs=3, folder=place / "run", **CPU)
    return place / "run", dataset


def test_other_tables_have_the_features_of_the_training(run: Any, tmp_path: Path) -> None:
    folder, old = run
    other = papers(tmp_path / "new", 1, ["Cell", "Science"], labels=False)
    with pytest.warns(UserWarning, match=r"no training row has what others have: journal=Science"):
        found = predict_run(folder, str(other), device="cpu")
    made = old.feature_transform["types"]
    ((mean, deviation),) = made["author"]["scale"].values()
    assert found.arrays["classes"].shape == (31,)
    assert list(found.names["ids"]) == [f"p1_{at}" for at in range(31)]
    assert list(found.names["class_names"]) == ["law", "physics"]
    assert not found.metrics
    with pytest.warns(UserWarning, match="journal=Science"):
        new: Any = load_custom(
            other, nodes="paper", classes=["law", "physics"], transform=old.feature_transform
        )
    rows = (other / "nodes/author.csv").read_text().splitlines()[1:]
    ages = torch.tensor([float(row.split(",")[1]) for row in rows])
    torch.testing.assert_close(new.x["author"].flatten(), (ages - mean) / deviation)
    assert abs(float(new.x["author"].mean())) > 1e-4  # by the training's mean, and not by its own
    rows = (other / "nodes/paper.csv").read_text().splitlines()[1:]
    cell = torch.tensor([row.endswith(",Cell") for row in rows])
    journal = new.x["paper"][:, [made["paper"]["columns"].index("journal") + 1 + at for at in (0, 1)]]
    assert torch.equal(journal, torch.stack([cell.float(), torch.zeros(31)], 1))  # Cell, Nature
    assert new.node_ids["venue"] == tuple(VENUES)  # of which the new papers are in two
    assert new.graph.num_nodes["venue"] == 3

    loaded = gnnsparse.load(folder, device="cpu")
    whole = loaded.predict(new)
    assert torch.equal(whole.classes, found.arrays["classes"])
    assert torch.equal(whole.probabilities, found.arrays["probabilities"])
    data = pyg_data.HeteroData()
    for kind, count in new.graph.num_nodes.items():
        data[kind].num_nodes = count
        if kind in new.x:
            data[kind].x = new.x[kind]
    for relation, edges in new.graph.edges.items():
        data[relation].edge_index = edges
    assert torch.equal(loaded.predict(data).logits, whole.logits)

    del data["paper"].x
    with pytest.raises(ValueError, match=r"data: has 31 nodes of type 'paper'; accepted by the checkpoint: "):
        loaded.predict(data)
    data["paper"].x = new.x["paper"][:, 1:]
    with pytest.raises(ValueError, match=r"data: has 31 nodes with 3 features of type 'paper'; accepted by"):
        loaded.predict(data)
    data["paper"].x = new.x["paper"]
    data["venue"].num_nodes = 4
    with pytest.raises(ValueError, match=r"has 4 nodes of type 'venue'; accepted .*: 3 nodes without feat"):
        loaded.predict(data)
    data["venue"].num_nodes = 3
    data["venue", "prints", "paper"].edge_index = torch.zeros(2, 1, dtype=torch.int64)
    with pytest.raises(ValueError, match=r"data: has the relation venue-prints-paper; accepted by the check"):
        loaded.predict(data)
    with pytest.raises(TypeError, match=r"data: got dict; accepted: a torch_geometric.data.HeteroData or a"):
        loaded.predict({})
    again: Any = load_custom(other, nodes="paper", classes=2, standardize=True)
    model = MODELS["rgcn"].build(4, out_channels=2, hidden_channels=8, types={**old.types, "target": "paper"})
    with pytest.raises(ValueError, match="data: has features that are not made as in the training"):
        gnnsparse.fit(model, old, epochs=1, **CPU).predict(again)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda at: (at / "nodes/author.csv").unlink(), "there is no table of the nodes of type 'author'"),
        (
            lambda at: (at / "edges/paper__in__venue.csv").write_text("paper,venue\np1_0,Cambridge\n"),
            "of the nodes of type 'venue' 'Cambridge' is new; accepted: the 3 of the training, which have em",
        ),
        (
            lambda at: (at / "nodes/author.csv").write_text(
                (at / "nodes/author.csv").read_text().replace("age", "height")
            ),
            "there is no column 'age'; nodes/author.csv has name, height; accepted: all columns that the mod",
        ),
        (
            lambda at: (at / "edges/paper__in__venue.csv").rename(at / "edges/paper__at__venue.csv"),
            "has the relation paper-at-venue; accepted by the checkpoint: author-writes-paper, paper-in-venu",
        ),
        (
            lambda at: (at / "edges/paper__in__shop.csv").write_text("paper,shop\np1_0,s\n"),
            "there is no table of the nodes of type 'shop'; accepted: a table nodes/shop.csv with the column",
        ),
    ],
    ids=["table", "node", "column", "relation", "type"],
)
def test_tables_that_do_not_fit_are_named(run: Any, tmp_path: Path, change: Any, message: str) -> None:
    other = papers(tmp_path / "new", 1, ["Cell"])
    change(other)
    with pytest.raises(ValueError, match="dataset.*" + message):
        predict_run(run[0], str(other), device="cpu")


def shop(folder: Path, seed: int) -> Path:
    draw = random.Random(seed)
    (folder / "nodes").mkdir(parents=True)
    (folder / "edges").mkdir()
    users, items = [f"u{seed}{at}" for at in range(12)], [f"i{at}" for at in range(10)]
    write_table(folder / "nodes/user.csv", {"id": users, "age": [draw.randrange(20, 70) for _ in users]})
    pairs = [(user, item) for user in users for item in items if draw.random() < 0.4]
    ends = dict(zip(("user", "item"), zip(*pairs, strict=True), strict=True))
    write_table(folder / "edges/user__buys__item.csv", ends)
    return folder


@pytest.mark.parametrize("name", ["rgcn", "hgt"])
def test_links_of_new_users_are_scored_by_all_their_edges(tmp_path: Path, name: str) -> None:
    old: Any = load_custom(shop(tmp_path / "old", 0), standardize=True, task="link")
    model = MODELS[name].for_task("typed_link").build(
        1, out_channels=1, hidden_channels=8, types={**old.types, "target": None, "link": ["user", "item"]}
    )  # fmt: skip
    gnnsparse.fit(model, old, epochs=2, folder=tmp_path / "run", **CPU)
    other = shop(tmp_path / "new", 1)
    asked = tmp_path / "asked.csv"
    write_table(asked, {"user": ["u10", "u13"], "item": ["i3", "i9"]})
    found = predict_run(tmp_path / "run", str(other), device="cpu", options={"pairs": str(asked)})
    assert list(found.names["source"]) == ["u10", "u13"]
    assert not found.metrics["test"]
    made = old.feature_transform
    new: Any = load_custom(other, task="typed_link", split="all", transform=made, pairs=asked)
    rows = (other / "edges/user__buys__item.csv").read_text().splitlines()[1:]
    assert new.graph.edges["user", "buys", "item"].shape[1] == len(rows)
    loaded = gnnsparse.load(tmp_path / "run", device="cpu")
    probability = loaded.predict(new).probabilities
    assert probability.shape == (2, 1)
    assert torch.equal(probability[:, 0], found.arrays["probability"])
    with pytest.raises(ValueError, match=r"split: the edges to train on are those of the test; accepted"):
        gnnsparse.fit(model, new, epochs=1, **CPU)

    data = pyg_data.HeteroData()
    data["user"].x, data["item"].num_nodes = new.x["user"], 10
    for relation, edges in new.graph.edges.items():
        data[relation].edge_index = edges
    with pytest.raises(ValueError, match=r"data: has no edge_label_index of user__buys__item; accepted: int"):
        loaded.predict(data)
    data["user", "buys", "item"].edge_label_index = new.pairs.T
    assert torch.equal(loaded.predict(data).probabilities, probability)
