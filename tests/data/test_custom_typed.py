"""A user's own graph with types: tables of nodes and relations, HeteroData and OGB's folders, and errors."""

from __future__ import annotations

import gzip
import logging
import random
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gnnsparse.data import TypedLinkDataset, TypedNodeDataset, load_custom
from gnnsparse.sparse.typed import Relation
from tests.own_graphs import write_table

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    from torch_geometric.data import HeteroData, InMemoryDataset

WRITES = ("author", "writes", "paper")
CITES = ("paper", "cites", "paper")
IN = ("paper", "in", "venue")
BUYS = ("user", "buys", "item")
SEES = ("user", "sees", "item")


class Papers:
    """Random papers, authors and venues; papers have features, a class, a year and a part of a split."""

    def __init__(self, seed: int = 0) -> None:
        draw = random.Random(seed)
        self.papers = [f"p{number}" for number in range(40)]
        self.authors = [f"{number}" for number in range(25)]  # the last ones write nothing
        self.x = [[draw.gauss(0, 1) for _ in range(3)] for _ in self.papers]
        self.y = [draw.choice(["law", "physics", ""]) for _ in self.papers]
        self.age = [draw.randrange(20, 70) for _ in self.authors]
        self.year = [draw.randrange(20) for _ in self.papers]
        self.split = ["train", "val", "test", "train"] * 10
        self.edges: dict[Relation, list[tuple[str, str]]] = {
            WRITES: [(draw.choice(self.authors[:20]), draw.choice(self.papers)) for _ in range(90)],
            CITES: [(draw.choice(self.papers), draw.choice(self.papers)) for _ in range(70)],
            IN: [(paper, draw.choice(["ICML", "Acta", "NeurIPS"])) for paper in self.papers],
        }
        self.edges[CITES] += self.edges[CITES][:5]  # which are there twice

    def write(self, folder: Path, ending: str = ".csv") -> Path:
        (folder / "nodes").mkdir(parents=True)
        (folder / "edges").mkdir()
        columns = {f"f{at}": [row[at] for row in self.x] for at in range(3)}
        table = {"id": self.papers, **columns, "label": self.y, "year": self.year, "split": self.split}
        write_table(folder / f"nodes/paper{ending}", table)
        write_table(folder / f"nodes/author{ending}", {"name": self.authors, "age": self.age})
        for relation, pairs in self.edges.items():
            names = ("source", "target") if relation == CITES else (relation[0], f"{relation[2]}_id")
            rows = dict(zip(names, map(list, zip(*pairs, strict=True)), strict=True))
            write_table(folder / f"edges/{'__'.join(relation)}{ending}", rows)
        return folder

    def pairs(self, data: Any, relation: Relation) -> list[tuple[str, str]]:
        source, target = data.graph.edges[relation].tolist()
        ids = data.node_ids
        return [(ids[relation[0]][s], ids[relation[2]][t]) for s, t in zip(source, target, strict=True)]


@pytest.mark.parametrize("ending", [".csv", ".tsv.gz", ".parquet"])
def test_tables_of_three_types(tmp_path: Path, ending: str, caplog: pytest.LogCaptureFixture) -> None:
    own = Papers()
    with caplog.at_level(logging.INFO, "gnnsparse.data"):
        data = load_custom(own.write(tmp_path / "own", ending))
    assert isinstance(data, TypedNodeDataset)
    assert (data.target, data.class_names, data.metric) == ("paper", ("law", "physics"), "accuracy")
    assert data.node_ids == {
        "author": tuple(own.authors), "paper": tuple(own.papers), "venue": ("Acta", "ICML", "NeurIPS")
    }  # fmt: skip
    for relation, pairs in own.edges.items():
        assert own.pairs(data, relation) == pairs
        back = (relation[2], f"rev_{relation[1]}", relation[0])
        assert own.pairs(data, back) == [(target, source) for source, target in pairs]
    assert len(data.graph.edges) == 6
    assert data.x.keys() == {"paper", "author"}
    assert torch.allclose(
        data.x["paper"][:, :3].double(), torch.tensor(own.x, dtype=torch.float64), atol=1e-6
    )
    assert data.x["author"].flatten().tolist() == own.age
    assert data.x["paper"].shape == (40, 4)  # with the year, which is no time here
    number = {"law": 0, "physics": 1, "": -1}
    assert data.y.tolist() == [number[label] for label in own.y]
    for part, mask in (("train", data.train_mask), ("val", data.val_mask), ("test", data.test_mask)):
        wanted = [split == part and label != "" for split, label in zip(own.split, own.y, strict=True)]
        assert mask.tolist() == wanted
    said = "\n".join(caplog.messages)
    assert f"edges/author__writes__paper{ending}: author, paper_id = ends" in said
    assert f"nodes/author{ending}: name = ids; age = features" in said
    assert "task = typed_node, classes of paper (2)" in said


def test_a_split_by_time_has_times_of_all_types(tmp_path: Path) -> None:
    own = Papers()
    write_table(own.write(tmp_path / "own") / "nodes/author.csv", {
        "id": own.authors, "year": ["", *range(70, 94)]
    })  # fmt: skip
    data = load_custom(tmp_path / "own", split="time:year", directed=True)
    assert isinstance(data, TypedNodeDataset)
    assert data.times is not None
    assert data.times["paper"].tolist() == own.year
    assert data.times["author"].tolist() == [-(2**53), *range(70, 94)]
    assert data.x.keys() == {"paper"}
    assert data.x["paper"].shape == (40, 3)
    year = data.times["paper"]
    assert int(year[data.train_mask].max()) < int(year[data.val_mask].min())
    assert int(year[data.val_mask].max()) < int(year[data.test_mask].min())
    assert list(data.graph.edges) == [WRITES, CITES, IN]


def test_options_of_columns(tmp_path: Path) -> None:
    own = Papers()
    folder = own.write(tmp_path / "own")
    data = load_custom(folder, label="year", feature_columns=["f1", "age"], standardize=True, split="random")
    assert isinstance(data, TypedNodeDataset)
    assert (data.target, data.regression) == ("paper", False)
    assert {kind: x.shape[1] for kind, x in data.x.items()} == {"author": 1, "paper": 1}
    assert float(data.x["author"].mean().abs()) < 1e-6
    data = load_custom(folder, nodes="author", label="age", label_kind="regression", id="name")
    assert isinstance(data, TypedNodeDataset)
    assert (data.target, data.regression, data.metric) == ("author", True, "mae")
    assert data.y.flatten().tolist() == own.age
    assert data.x.keys() == {"paper"}
    data = load_custom(folder, nodes="venue", classes=2)  # for predictions alone
    assert isinstance(data, TypedNodeDataset)
    assert not data.train_mask.any()


class Shop:
    """Random purchases with days, some repeated, what users have seen with days, and kinds of items."""

    def __init__(self) -> None:
        draw = random.Random(1)
        self.buys = [(f"u{draw.randrange(20)}", f"i{draw.randrange(15)}") for _ in range(150)]
        self.sees = [(f"u{draw.randrange(20)}", f"i{draw.randrange(15)}") for _ in range(100)]
        self.days = [[draw.randrange(100) for _ in pairs] for pairs in (self.buys, self.sees)]

    def write(self, folder: Path) -> Path:
        (folder / "nodes").mkdir(parents=True)
        (folder / "edges").mkdir()
        for relation, pairs, days in zip((BUYS, SEES), (self.buys, self.sees), self.days, strict=True):
            user, item = map(list, zip(*pairs, strict=True))
            date = [f"2024-{1 + day // 28:02}-{1 + day % 28:02}" for day in days]
            write_table(folder / f"edges/{'__'.join(relation)}.csv", {"user": user, "item": item, "at": date})
        items = sorted({item for _, item in (*self.buys, *self.sees)})
        write_table(folder / "nodes/item.csv", {"id": items, "kind": [item[-1] for item in items]})
        return folder


def test_links_are_split_by_time_without_later_edges(tmp_path: Path) -> None:
    own = Shop()
    data = load_custom(own.write(tmp_path / "own"), split="time:at", edges="buys", seed=3)
    assert isinstance(data, TypedLinkDataset)
    assert (data.relation, data.hits_at, data.node_ids is not None) == (BUYS, 10, True)
    assert data.node_ids is not None
    assert data.edge_times is not None
    earliest: dict[tuple[str, str], int] = {}
    for pair, day in zip(own.buys, own.days[0], strict=True):
        earliest[pair] = min(day, earliest.get(pair, day))
    users, items = data.node_ids["user"], data.node_ids["item"]

    def seconds(day: int) -> int:
        return int(
            np.datetime64(f"2024-{1 + day // 28:02}-{1 + day % 28:02}").astype("datetime64[s]").astype(int)
        )

    found = {}
    for part, edges in data.edges.items():
        times = data.times[part]
        assert times is not None
        for (user, item), time in zip(edges.tolist(), times.tolist(), strict=True):
            found[users[user], items[item]] = time
    assert found == {pair: seconds(day) for pair, day in earliest.items()}
    train, val, test = data.times.values()
    assert train is not None
    assert val is not None
    assert test is not None
    assert int(train.max()) < int(val.min()) <= int(val.max()) < int(test.min())
    assert torch.equal(data.graph.edges[BUYS], data.train_edges.T)
    assert torch.equal(data.graph.edges["item", "rev_buys", "user"], data.train_edges.T.flip(0))
    sees = [
        (pair, seconds(day)) for pair, day in zip(own.sees, own.days[1], strict=True)
        if seconds(day) <= int(train.max())
    ]  # fmt: skip
    assert 0 < len(sees) < 100
    for relation in (SEES, ("item", "rev_sees", "user")):
        edges = data.graph.edges[relation] if relation == SEES else data.graph.edges[relation].flip(0)
        there = [(users[u], items[i]) for u, i in edges.T.tolist()]
        assert list(zip(there, data.edge_times[relation].tolist(), strict=True)) == sees
    assert len(data.known_keys) == len(earliest)
    assert data.x.keys() == {"item"}


def test_times_of_nodes_are_those_of_their_edges(tmp_path: Path) -> None:
    """A table of events is a type with times: what an event tells is known from then on."""
    (tmp_path / "nodes").mkdir()
    (tmp_path / "edges").mkdir()
    draw = random.Random(0)
    events = list(range(60))
    write_table(tmp_path / "nodes/event.csv", {"id": events, "day": events})
    write_table(tmp_path / "edges/event__of__user.csv", {"event": events, "user": [e % 7 for e in events]})
    days = [draw.randrange(60) for _ in range(40)]
    write_table(tmp_path / "edges/user__buys__item.csv", {
        "user": [n % 7 for n in range(40)], "item": [n // 7 for n in range(40)], "day": days,
    })  # fmt: skip
    data = load_custom(tmp_path, edges="user__buys__item", split="time:day", task="typed_link")
    assert isinstance(data, TypedLinkDataset)
    assert data.edge_times is not None
    assert data.train_times is not None
    last = int(data.train_times.max())
    assert data.edge_times["event", "of", "user"].tolist() == list(range(last + 1))
    assert data.graph.edges["event", "of", "user"].shape == (2, last + 1)


def test_a_given_split_of_links_and_pairs_to_predict_for(tmp_path: Path) -> None:
    (tmp_path / "own/edges").mkdir(parents=True)
    rows = [(f"u{user}", f"i{item}") for user in range(5) for item in range(4)]
    split = [["train", "train", "val", "test"][number % 4] for number in range(20)]
    user, item = map(list, zip(*rows, strict=True))
    write_table(tmp_path / "own/edges/user__buys__item.csv", {"user": user, "item": item, "split": split})
    write_table(tmp_path / "pairs.csv", {"user": ["u4", "u0"], "item": ["i0", "i3"]})
    data = load_custom(tmp_path / "own", pairs=tmp_path / "pairs.csv", hits_at=3)
    assert isinstance(data, TypedLinkDataset)
    assert data.train_edges.tolist() == [[u, i] for u in range(5) for i in (0, 1)]
    assert data.val_edges.tolist() == [[u, 2] for u in range(5)]
    assert data.test_edges.tolist() == [[u, 3] for u in range(5)]
    assert data.pairs is not None
    assert data.pairs.tolist() == [[4, 0], [0, 3]]
    assert (data.edge_times, data.hits_at) == (None, 3)
    write_table(tmp_path / "pairs.csv", {"user": ["u4", "u9"], "item": ["i0", "i3"]})
    with pytest.raises(
        ValueError, match=r"^pairs: pairs.csv: column 'user' has 'u9' in row 2; accepted: nodes"
    ):
        load_custom(tmp_path / "own", pairs=tmp_path / "pairs.csv")


def hetero(own: Papers, **more: list[str]) -> HeteroData:
    """PyG's graph of the same papers, with numbers for ids."""
    data = HeteroData()
    data["paper"].x, data["author"].num_nodes = torch.tensor(own.x), len(own.authors)
    data["paper"].y = torch.tensor([{"law": 0, "physics": 1, "": -1}[label] for label in own.y])
    for part in ("train", "val", "test"):
        data["paper"][f"{part}_mask"] = torch.tensor([split == part for split in own.split])
    data["paper"].year = torch.tensor(own.year)
    venues = ["Acta", "ICML", "NeurIPS"]
    numbers = {"paper": own.papers, "author": own.authors, "venue": venues, **more}
    for relation, pairs in own.edges.items():
        ends = [[numbers[relation[2 * at]].index(pair[at]) for pair in pairs] for at in (0, 1)]
        data[relation].edge_index = torch.tensor(ends)
        data[relation].time = torch.arange(len(pairs))
    return data


@pytest.mark.parametrize("form", ["object", "dict", "processed"])
@pytest.mark.filterwarnings("ignore::UserWarning:torch_geometric")
def test_saved_hetero_data(tmp_path: Path, form: str) -> None:
    """It has what the tables have, but for names; the number of venues is that of the edges."""
    own = Papers()
    made, file = hetero(own), tmp_path / "graph.pt"
    if form == "processed":
        InMemoryDataset.save([made], str(file))
    else:
        torch.save(made if form == "object" else made.to_dict(), file)
    data = load_custom(file, split="time:year" if form == "dict" else "auto")
    assert isinstance(data, TypedNodeDataset)
    assert data.graph.num_nodes == {"paper": 40, "author": 25, "venue": 3}
    assert list(data.graph.edges) == list(own.edges)  # as they are stored, in one direction
    for relation in own.edges:
        assert torch.equal(data.graph.edges[relation], made[relation].edge_index)
    assert torch.equal(data.x["paper"], made["paper"].x)
    assert torch.equal(data.y, made["paper"].y)
    if form == "dict":
        assert data.times is not None
        assert torch.equal(data.times["paper"], made["paper"].year)
    else:
        assert torch.equal(data.val_mask, made["paper"].val_mask & (data.y >= 0))
    undirected = load_custom(file, directed=False)
    assert isinstance(undirected, TypedNodeDataset)
    assert len(undirected.graph.edges) == 6


def test_a_stored_reverse_has_no_edge_of_the_test(tmp_path: Path) -> None:
    made = HeteroData()
    made["user"].num_nodes, made["item"].num_nodes = 10, 12
    drawn = torch.randperm(120)[:50]
    made[BUYS].edge_index = torch.stack([drawn // 12, drawn % 12])
    made["item", "bought_by", "user"].edge_index = made[BUYS].edge_index.flip(0)[:, torch.randperm(50)]
    torch.save(made, tmp_path / "graph.pt")
    data = load_custom(tmp_path / "graph.pt", edges="buys")
    assert isinstance(data, TypedLinkDataset)
    back = data.graph.edges["item", "bought_by", "user"]
    assert torch.equal(back.flip(0), data.train_edges.T)
    assert len(data.graph.edges) == 2


def write_gz(path: Path, rows: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(",".join(map(str, row)) + "\n" for row in rows)
    path.write_bytes(gzip.compress(text.encode()))


def write_ogb_typed(folder: Path, made: HeteroData, counts: dict[str, int]) -> Path:
    """The files of ogbn_mag: numbers of nodes, a folder of each relation, features, labels and years."""
    write_gz(folder / "raw/num-node-dict.csv.gz", [counts, counts.values()])
    for relation in made.edge_types:
        place = folder / "raw/relations" / "___".join(relation)
        write_gz(place / "edge.csv.gz", made[relation].edge_index.T.tolist())
        write_gz(place / "num-edge-list.csv.gz", [[made[relation].edge_index.shape[1]]])
    paper = made["paper"]
    write_gz(folder / "raw/node-feat/paper/node-feat.csv.gz", paper.x.tolist())
    write_gz(folder / "raw/node-label/paper/node-label.csv.gz", paper.y.abs()[:, None].tolist())
    write_gz(folder / "raw/node-feat/paper/node_year.csv.gz", paper.year[:, None].tolist())
    for part, name in (("train", "train"), ("val", "valid"), ("test", "test")):
        write_gz(folder / f"split/time/paper/{name}.csv.gz", paper[f"{part}_mask"].nonzero().tolist())
    return folder


def test_a_folder_of_ogb(tmp_path: Path) -> None:
    own = Papers()
    made = hetero(own)
    data = load_custom(write_ogb_typed(tmp_path / "mag", made, {"author": 25, "paper": 40, "venue": 3}))
    assert isinstance(data, TypedNodeDataset)
    assert (data.target, data.num_classes) == ("paper", 2)
    for relation in own.edges:
        assert torch.equal(data.graph.edges[relation], made[relation].edge_index)
    assert len(data.graph.edges) == 6
    assert torch.allclose(data.x["paper"], made["paper"].x)
    assert torch.equal(data.y, made["paper"].y.abs())
    for part in ("train", "val", "test"):
        assert torch.equal(getattr(data, f"{part}_mask"), made["paper"][f"{part}_mask"])
    timed = load_custom(tmp_path / "mag", split="time:year")
    assert isinstance(timed, TypedNodeDataset)
    assert timed.times is not None
    assert timed.times["paper"].tolist() == own.year
    (tmp_path / "mag/raw/relations/paper___cites___paper/num-edge-list.csv.gz").unlink()
    with pytest.raises((ValueError, OSError), match="num-edge-list"):
        load_custom(tmp_path / "mag")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"label": "genre"},
            r"^label: no table has a column 'genre': nodes/author.csv has name, age; nodes/pa",
        ),
        ({"feature_columns": ["f7"]}, r"^feature_columns: no table has a column 'f7'"),
        ({"source": "from"}, r"^source: no table has a column 'from': edges/author__writes__paper.csv has"),
        ({"nodes": "book"}, r"^nodes: there is no type 'book'; accepted: author, paper, venue"),
        ({"classes": 3, "nodes": "venue", "split": "time:year"}, None),
        (
            {"task": "typed_link"},
            r"^edges: there are several relations; accepted: the one whose links are pre",
        ),
        ({"edges": "eats", "task": "typed_link"}, r"^edges: got 'eats'; accepted: .*paper__cites__paper"),
        ({"task": "graph"}, r"^task: got 'graph', and own is a graph with types; accepted: auto, typed_node"),
        ({"features": "degree"}, r"^features: got 'degree' for a graph with types; accepted: file"),
        ({"bipartite": True}, r"^bipartite: got 'True' for a graph with types; accepted: null"),
        ({"split": "time:born"}, r"^split: got 'time:born', and the papers have no such column; they have"),
        ({"task": "typed_link", "edges": "in", "metric": "roc_auc"}, r"^metric: got 'roc_auc' for links"),
        ({"task": "typed_link", "edges": "in", "split": "time:year"}, None),
    ],
)
def test_options_that_do_not_fit(tmp_path: Path, options: dict[str, Any], message: str | None) -> None:
    folder = Papers().write(tmp_path / "own")
    if message is None:
        load_custom(folder, **options)
        return
    with pytest.raises(ValueError, match=message):
        load_custom(folder, **options)


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("edges/writes.csv", "a,b\n1,2\n", r"path: .*edges/writes.csv is no name of a relation; accepted"),
        ("edges/paper__cites__paper.csv", "source,target\np1,p2\np1,p99\n",
         r"^target: edges/paper__cites__paper.csv: row 2 has 'p99'; accepted: .*nodes/paper.csv, col"),
        ("edges/paper__in__venue.csv", "paper,venue\np1,\n", r"^target: edges/paper__in__venue.csv: .* row"),
        ("edges/paper__in__venue.tsv", "paper\tvenue\np1\ta\n", r"path: .*edges has paper__in__venue.csv an"),
        ("nodes/book.csv", "id\n1\n", r"path: .*nodes/book.csv is of a type without edges; accepted: auth"),
        ("nodes/author.csv", "id,age,label\n" + "".join(f"{n},1,{n % 2}\n" for n in range(25)),
         r"^nodes: author and paper have labels; accepted: the type whose nodes are learned, as nodes=TYPE"),
        ("nodes/author.csv", "id,age\n0,1\n0,2\n", r"^id: nodes/author.csv: '0' has two rows"),
        ("nodes/author.csv", "id,age\n" + "".join(f"{n},{'x' if n == 7 else n}\n" for n in range(25)),
         r"^feature_columns: nodes/author.csv: column 'age' has 'x' in row 8"),
    ],
)  # fmt: skip
def test_wrong_tables(tmp_path: Path, file: str, text: str, message: str) -> None:
    folder = Papers().write(tmp_path / "own")
    (folder / file).write_text(text)
    with pytest.raises(ValueError, match=message):
        load_custom(folder)


def test_times_between_whole_numbers(tmp_path: Path) -> None:
    own = Papers()
    own.year[3] = 1.5  # type: ignore[call-overload]
    message = r"^split: column 'year' has 1.5 for paper 3; accepted: whole numbers, or dates as 2024-12-31"
    with pytest.raises(ValueError, match=message):
        load_custom(own.write(tmp_path / "own"), split="time:year")


def test_types_are_refused_where_there_are_none(tmp_path: Path) -> None:
    (tmp_path / "edges.csv").write_text("source,target\n" + "".join(f"{n},{n + 1}\n" for n in range(20)))
    with pytest.raises(ValueError, match=r"^task: got 'typed_node', and .* has no types; accepted: a folder"):
        load_custom(tmp_path, task="typed_node")
