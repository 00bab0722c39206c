"""`load_custom`: every format gives the same graph, with its features, labels, split and names."""

from __future__ import annotations

import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import torch

from gnnsparse import SparseGraph
from gnnsparse.data import NodeDataset, load_custom, load_dataset
from tests.interop.dgl_graphs import dgl_or_skip
from tests.own_graphs import (
    NAMES,
    NODES,
    arrays,
    tensors,
    write_graphml,
    write_mtx,
    write_npz,
    write_ogb,
    write_table,
    write_tables,
)

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    from torch_geometric.data import Data, InMemoryDataset

PARTS = ("train", "val", "test")


class Mine(InMemoryDataset):
    """A data set of one graph, of a class that only the user has."""

    def __init__(self, *graphs: Data) -> None:
        super().__init__(None)
        self.data, self.slices = self.collate(list(graphs))


def csr_arrays() -> dict[str, Any]:
    made = arrays()
    graph = SparseGraph.from_edge_index(torch.from_numpy(made["edge_index"]), NODES, made["edge_weight"])
    csr = {"indptr": graph.csr.indptr, "indices": graph.csr.indices, "data": graph.values}
    return {"edge_index": None, "edge_weight": None, **csr}


def expected(weights: bool = True) -> NodeDataset:
    made = tensors()
    weight = made["edge_weight"] if weights else None
    graph = SparseGraph.from_edge_index(made["edge_index"], NODES, weight)
    masks = [made[f"{part}_mask"] & (made["y"] >= 0) for part in PARTS]
    return NodeDataset("mine", SparseGraph(graph.csr, graph.values), made["x"], made["y"], *masks, 3)


def assert_equal(got: NodeDataset, want: NodeDataset, split: bool = True) -> None:
    assert (got.graph.values is None, got.num_classes) == (want.graph.values is None, want.num_classes)
    names = ["x", "y", *(("train_mask", "val_mask", "test_mask") if split else ())]
    names += [f"graph.{name}" for name in ("csr.indptr", "csr.indices", "values")]
    for name in names[: -1 if got.graph.values is None else None]:
        assert torch.equal(attrgetter(name)(got), attrgetter(name)(want)), name


@pytest.mark.parametrize(
    "made",
    [
        Data(**tensors()),
        [Data(**tensors())],
        (Data(**tensors()),),
        tensors(),
        Data(**tensors(x=torch.as_tensor(arrays()["x"]).double(), comment="some text", more=[1, "a"])),
        Data(**tensors(edge_index=torch.as_tensor(arrays()["edge_index"]).T.contiguous().T)),
    ],
)
def test_what_torch_has_saved_is_the_same_graph(made: Any, tmp_path: Path) -> None:
    torch.save(made, tmp_path / "graph.pt")
    assert_equal(load_custom(tmp_path / "graph.pt"), expected())


def test_what_pyg_has_processed_is_the_same_graph(tmp_path: Path) -> None:
    (tmp_path / "mine" / "processed").mkdir(parents=True)
    Mine.save([Data(**tensors())], str(tmp_path / "mine" / "processed" / "data.pt"))
    assert_equal(load_custom(tmp_path / "mine"), expected())


@pytest.mark.parametrize(
    "changed",
    [
        {},
        csr_arrays(),
        {"edge_index": None, "edges": arrays()["edge_index"].T},
        {"edge_index": None, "row": arrays()["edge_index"][1], "col": arrays()["edge_index"][0]},
        {"y": np.where(arrays()["y"] < 0, np.nan, arrays()["y"])},
        {"y": arrays()["y"][:, None]},
        {f"{p}_mask": None for p in PARTS} | {f"{p}_idx": arrays()[f"{p}_mask"].nonzero()[0] for p in PARTS},
    ],
)
def test_arrays_in_every_form_are_the_same_graph(changed: dict[str, Any], tmp_path: Path) -> None:
    assert_equal(load_custom(write_npz(tmp_path, **changed)), expected())


def test_other_classes_than_pygs_and_other_numbers_of_graphs_are_refused(tmp_path: Path) -> None:
    torch.save(Mine(Data(**tensors())), tmp_path / "mine.pt")
    torch.save([], tmp_path / "none.pt")
    torch.save([tensors()] * 2, tmp_path / "list.pt")
    Mine.save([Data(**tensors())] * 2, str(tmp_path / "two.pt"))
    for name, said in (
        ("mine", r"names .*\.Mine, whose code is not run; accepted"),
        ("none", "holds a list, and no graph; accepted: a tor"),
        ("list", "y: has a row for each node, and .* accepted: labels of the graphs"),
        ("two", "y: has a row for each node, and .* accepted: labels of the graphs"),
    ):
        with pytest.raises(ValueError, match=rf"path: .*{name}\.pt: {said}"):
            load_custom(tmp_path / f"{name}.pt")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64, torch.int8])
def test_features_of_every_type_are_float32(dtype: torch.dtype, tmp_path: Path) -> None:
    x = (4 * tensors()["x"]).to(dtype)
    torch.save(Data(**tensors(x=x)), tmp_path / "graph.pt")
    assert torch.equal(load_custom(tmp_path / "graph.pt").x, x.float())


@pytest.mark.parametrize("kind", [".csv", ".tsv", ".csv.gz", ".tsv.gz", ".parquet", "mtx", "graphml"])
def test_files_with_names_are_the_same_graph(kind: str, tmp_path: Path) -> None:
    pytest.importorskip({".parquet": "pyarrow", "graphml": "networkx"}.get(kind, "numpy"))
    is_table, is_matrix = kind.startswith("."), kind == "mtx"
    if is_table:
        got = load_custom(write_tables(tmp_path / "tables", kind), directed=True)
    else:
        write = write_mtx if is_matrix else write_graphml
        got = load_custom(write(tmp_path / f"graph.{kind}"), features="identity" if is_matrix else "file")
    assert torch.equal(got.x, torch.eye(NODES) if is_matrix else expected().x)
    assert_equal(replace(got, x=expected().x), expected(), split=is_table)
    assert got.node_ids == (None if is_matrix else tuple(f"n{i}" for i in range(NODES)))
    assert got.class_names == NAMES


def test_tables_with_other_names(tmp_path: Path) -> None:
    folder = write_tables(tmp_path / "tables")
    links = pandas.read_csv(folder / "edges.csv")[["weight", "source", "target"]]
    write_table(tmp_path / "links.tsv", links.set_axis(["w", "from_node", "to_node"], axis=1))
    people = pandas.read_csv(folder / "nodes.csv").rename(columns={"id": "who", "label": "kind"})
    write_table(tmp_path / "people.csv", people.assign(city="Graz"))
    got = load_custom(
        tmp_path, format="tables", edges="links.tsv", nodes="people.csv", source="from_node",
        target="to_node", weight="w", id="who", label="kind", feature_columns=["f0", "f1", "f2"],
        directed=True,
    )  # fmt: skip
    assert_equal(got, expected())
    assert got.class_names == NAMES


def test_a_column_of_another_size_is_noticed(tmp_path: Path) -> None:
    """As long as nobody has chosen it; a column of times is no feature."""
    folder = write_tables(tmp_path / "papers", years=True)
    said = r"feature_columns: nodes.csv: the values of 'year' are about 2.01e\+03, and those of the others"
    with pytest.warns(UserWarning, match=said):
        assert load_custom(folder).num_features == 4
    assert load_custom(folder, feature_columns=["f0", "year"]).num_features == 2


def test_the_edges_alone_with_features_made_of_the_graph(tmp_path: Path) -> None:
    write_table(tmp_path / "edges.csv", {"a": ["x", "y", "10", "x"], "b": ["y", "z", "x", "y"]})
    got = load_custom(tmp_path / "edges.csv", source="a", target="b", features="constant", classes=2)
    assert got.node_ids == ("10", "x", "y", "z")
    assert got.graph.values is None
    assert got.graph.to_scipy().toarray().tolist() == [[0, 1, 0, 0], [1, 0, 1, 0], [0, 1, 0, 1], [0, 0, 1, 0]]
    assert not (got.train_mask | got.val_mask | got.test_mask).any()
    assert got.y.tolist() == [-1] * 4


def test_graphml_in_which_values_are_missing(tmp_path: Path) -> None:
    """One value of a feature, or of the weights, may not drop the others without a word."""
    networkx = pytest.importorskip("networkx")
    path = write_graphml(tmp_path / "graph.graphml")
    graph = networkx.read_graphml(path)
    value = graph.nodes["n5"].pop("f1")
    networkx.write_graphml(graph, path)
    said = r"graph.graphml: feature_columns: 'f1' is missing at node 'n5'; accepted: a number at every"
    for given in (None, ["f0", "f1"]):
        with pytest.raises(ValueError, match=said):
            load_custom(path, feature_columns=given)
    assert torch.equal(load_custom(path, feature_columns=["f0", "f2"]).x, expected().x[:, [0, 2]])

    graph.nodes["n5"]["f1"] = value
    first, _, _, fourth, *_ = graph.edges
    del graph.edges[first]["weight"], graph.edges[fourth]["weight"]
    networkx.write_graphml(graph, path)
    count = graph.number_of_edges()
    said = f"weight: 'weight' is missing at edge .*{first[0]}.*, as at 2 of {count}; accepted: "
    for name in (None, "weight"):
        with pytest.raises(ValueError, match=said):
            load_custom(path, weight=name)

    for *_, of in graph.edges(data=True):
        of.pop("weight", None)
    networkx.write_graphml(graph, path)
    assert load_custom(path).graph.values is None


def test_a_folder_of_ogb(tmp_path: Path) -> None:
    got = load_custom(write_ogb(tmp_path / "ogbn_mine"), directed=True)
    assert_equal(got, expected(weights=False))
    both = load_custom(tmp_path / "ogbn_mine")
    assert both.graph.is_symmetric
    assert both.graph.values is None


def test_an_undirected_graph_leads_both_ways(tmp_path: Path) -> None:
    edges, weights = np.array([[0, 1, 2, 2], [1, 0, 2, 3]]), np.array([1.0, 2.0, 4.0, 8.0])
    for weight, directed, want in (
        (None, False, [[0, 1, 0, 0], [1, 0, 0, 0], [0, 0, 1, 1], [0, 0, 1, 0]]),
        (weights, False, [[0, 3, 0, 0], [3, 0, 0, 0], [0, 0, 4, 8], [0, 0, 8, 0]]),
        (weights, True, [[0, 2, 0, 0], [1, 0, 0, 0], [0, 0, 4, 0], [0, 0, 8, 0]]),  # A[target, source]
    ):
        made = load_custom(write_npz(tmp_path, edge_index=edges, edge_weight=weight), directed=directed)
        assert (made.graph.values is None) == (weight is None)
        assert made.graph.to_scipy().toarray()[:4, :4].tolist() == want


def test_features_of_degrees_do_not_depend_on_the_graph(tmp_path: Path) -> None:
    edges = np.array([[0, 1, 2, 3], [4, 4, 4, 0]])
    got = load_custom(write_npz(tmp_path, x=None, edge_index=edges, edge_weight=None), features="degree")
    assert got.x.shape == (NODES, 32)
    assert got.x.argmax(dim=1)[:6].tolist() == [1, 0, 0, 0, 2, 0]  # of 1, 0, 0, 0, 3, 0 neighbours
    assert torch.equal(got.x.sum(dim=1), torch.ones(NODES))


def test_several_labels_some_of_which_are_missing(tmp_path: Path) -> None:
    table = np.eye(3)[arrays()["y"]]
    table[4], table[5, 1] = np.nan, np.nan
    got = load_custom(write_npz(tmp_path, y=table))
    assert (got.multi_label, got.metric, got.num_classes) == (True, "micro_f1", 3)
    assert torch.equal(got.y.isnan(), torch.from_numpy(np.isnan(table)))
    used = got.train_mask | got.val_mask | got.test_mask
    assert (not used[4], bool(used[5])) == (True, True)


def test_columns_of_several_labels_have_names(tmp_path: Path) -> None:
    folder = write_tables(tmp_path / "tables")
    nodes = pandas.read_csv(folder / "nodes.csv")
    write_table(folder / "nodes.csv", nodes.assign(red=nodes.index % 2, blue=nodes.index % 3 // 2))
    got = load_custom(folder, label=["red", "blue"], feature_columns=["f0"])
    assert got.class_names == ("red", "blue")
    assert got.y[:4].tolist() == [[0, 0], [1, 0], [0, 1], [1, 0]]


@pytest.mark.parametrize("columns", [1, 2])
def test_numbers_to_predict(columns: int, tmp_path: Path) -> None:
    y = np.random.default_rng(0).normal(size=(NODES, columns))
    y[3] = np.nan
    got = load_custom(write_npz(tmp_path, y=y[:, 0] if columns == 1 else y))
    assert (got.regression, got.metric, got.num_classes) == (True, "mae", columns)
    assert not (got.train_mask | got.val_mask | got.test_mask)[3]
    path = write_npz(tmp_path, y=np.arange(NODES))  # classes, unless they are said to be targets
    assert load_custom(path).num_classes == NODES
    assert load_custom(path, label_kind="regression", metric="r2").regression


def test_classes_keep_their_numbers_in_other_files(tmp_path: Path) -> None:
    folder = write_tables(tmp_path / "tables", split=False)
    text = (folder / "nodes.csv").read_text().replace(",law", ",").replace(",math", ",")
    (folder / "nodes.csv").write_text(text)
    with pytest.raises(ValueError, match=r"^label: all nodes with a label, \d+, have 'music'; accepted: "):
        load_custom(folder)
    got = load_custom(folder, classes=list(NAMES))
    assert (got.class_names, got.num_classes) == (NAMES, 3)
    assert set(got.y.tolist()) == {-1, 2}


def test_integers_as_names_are_sorted_as_numbers(tmp_path: Path) -> None:
    write_table(tmp_path / "edges.csv", {"a": [1, 2], "b": [2, 10]})
    write_table(tmp_path / "nodes.csv", {"id": [10, 2, 1], "f": [0, 1, 2], "y": [100, 20, 3]})
    got = load_custom(tmp_path, split="random", train_fraction=0.3, val_fraction=0.3)
    assert got.class_names == ("3", "20", "100")
    assert got.y.tolist() == [2, 1, 0]
    assert got.node_ids == ("10", "2", "1")


def test_by_the_catalog(tmp_path: Path) -> None:
    path = write_npz(tmp_path)
    assert_equal(load_dataset("custom", path=path), expected())
    assert load_dataset("custom", path=path, split="random", seed=3).train_mask.sum() == round(0.6 * 54)
    with pytest.raises(TypeError, match=r"^nodez: no such option of custom"):
        load_dataset("custom", path=path, nodez="a")


@pytest.mark.slow
def test_a_graph_of_dgl(tmp_path: Path) -> None:
    dgl = dgl_or_skip()
    made = tensors()
    graph = dgl.graph((made["edge_index"][0], made["edge_index"][1]), num_nodes=NODES)
    for name, key in (("feat", "x"), ("label", "y"), *((f"{p}_mask",) * 2 for p in PARTS)):
        graph.ndata[name] = made[key]
    graph.edata["w"] = made["edge_weight"]
    dgl.save_graphs(str(tmp_path / "graph.bin"), [graph])
    (tmp_path / "bad.bin").write_bytes((tmp_path / "graph.bin").read_bytes()[:200])
    with ThreadPoolExecutor() as threads:  # each imports DGL in a process of its own
        good, bad = (threads.submit(load_custom, tmp_path / name) for name in ("graph.bin", "bad.bin"))
        assert_equal(good.result(), expected())
        with pytest.raises(ValueError, match=r"bad\.bin: DGL can't read it"):
            bad.result()
