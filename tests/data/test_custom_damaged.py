"""Wrong files of `load_custom`: each is refused with a message that says where, and none runs code."""

from __future__ import annotations

import contextlib
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gnnsparse.data import NodeDataset, load_custom
from tests.data.raw_files import rewritten
from tests.fuzz.common import Draw
from tests.fuzz.mutations import mutate
from tests.own_graphs import (
    NODES,
    Evil,
    arrays,
    tensors,
    write_graphml,
    write_mtx,
    write_npz,
    write_ogb,
    write_table,
    write_tables,
)


def changed(name: str, at: Any, value: Any) -> np.ndarray:
    array = np.array(arrays()[name])
    array[at] = value
    return array


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"edge_index": None}, r"path: .*graph\.npz: edge_index: is missing; the archive has .*edge_weight"),
        ({"edge_index": changed("edge_index", (0, 5), NODES)}, "edge_index: .*60.*"),
        ({"edge_index": changed("edge_index", (1, 5), -1)}, "edge_index: .*-1.*"),
        ({"edge_index": arrays()["edge_index"].astype(float)}, "edge_index: is of type float64; accepted: i"),
        ({"edge_index": np.zeros((3, 4), int)}, r"edge_index: has shape \(3, 4\); accepted: \(2, any\)"),
        ({"x": changed("x", (3, 1), np.nan)}, "x: .*nan"),
        ({"x": np.full((NODES, 2), 1e300)}, "x: .*inf"),
        ({"x": np.full((NODES, 2), "a")}, "x: is of type <U1; accepted: bools or integers or"),
        ({"x": arrays()["x"][:9]}, r"y: has shape \(60,\); accepted: a row for each of 9 nodes"),
        ({"x": None}, "^features: got 'file', and the file has no features; accepted: degree, constant or"),
        ({"y": None}, r"^label: there are no labels; accepted: y, a column of labels \(label=COLUMN\), or"),
        ({"y": np.full(NODES, -1)}, "y: no node has a label"),
        ({"y": np.where(arrays()["y"] < 0, -1, 2)}, "y: all nodes with a label, 54, have '2'; accepted: two"),
        ({"y": np.where(np.eye(3)[arrays()["y"]] > 0, 1, -1)}, "y: holds -1 and no 0; accepted: 0 for a la"),
        ({"y": np.full((NODES, 2), np.nan)}, "y: no node has a label"),
        ({"y": changed("y", 7, -2)}, "y: node 7 has the class -2; accepted: 0 to 59, or -1 or NaN where"),
        ({"y": changed("y", 7, NODES)}, "y: node 7 has the class 60; accepted: 0 to 59"),
        ({"y": np.full(NODES, np.inf)}, "y: node 0 has infinity"),
        ({"y": np.zeros((NODES, 2, 2))}, "y: has shape"),
        ({"edge_weight": np.ones(3)}, "edge_weight: has shape"),
        ({"edge_weight": changed("edge_weight", 3, np.nan)}, "values: .*nan"),
        ({"train_mask": arrays()["train_mask"][1:]}, r"train_mask: has shape \(59,\)"),
        ({"train_mask": np.full(NODES, 2)}, "train_mask: holds other numbers than 0 and 1; accepted: a mask"),
        ({"val_mask": None}, "^split: got 'given', and the file has no val_mask; accepted: random, stratifi"),
        ({"val_mask": arrays()["train_mask"]}, "^split: node 0 is in two parts of the given split"),
        ({"val_mask": np.zeros(NODES, bool)}, "^split: 'auto' of 54 nodes with a label leaves none for val"),
        ({"num_nodes": np.array(-4)}, "num_nodes: is -4; accepted: 0 to"),
        ({"num_nodes": np.array(70)}, "accepted: a row for each of 70 nodes"),
        ({"ids": np.array(["a"] * NODES)}, "ids: has an id twice"),
        ({"x": np.array([object()] * NODES)}, r"x: .*"),
    ],
)  # fmt: skip
def test_wrong_arrays(more: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        load_custom(write_npz(tmp_path, **more))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"split": "given:1"}, "^split: got 'given:1', and the file has 1; accepted: smaller numbers"),
        ({"split": "time:year"}, "^split: got 'time:year', and the nodes have no such column; they have: no"),
        ({"split": "time:"}, "^split: got 'time:'; accepted: auto, given, random, stratified, all, given"),
        ({"split": 3}, "^split: got int"),
        ({"split": "all"}, "^split: got 'all' for nodes; accepted: other splits, as 'all' is for links of a"),
        ({"train_fraction": 0.9, "val_fraction": 0.2}, "^val_fraction: got 0.2 beside train_fraction=0.9"),
        ({"train_fraction": 0}, "^train_fraction: got 0; accepted"),
        ({"train_fraction": "much"}, "^train_fraction: got str"),
        ({"split": "random", "train_fraction": 0.001, "val_fraction": 0.998}, "^split: 'random' of 54 nodes"),
        ({"features": "noise"}, "^features: got 'noise'; accepted: file, degree, constant, identity"),
        ({"classes": 2}, "y: node 9 has the class 2; accepted: 0 to 1, as classes= says"),
        ({"classes": 1}, "^classes: got 1, one class; accepted: two or more"),
        ({"classes": "law"}, "^classes: got str"),
        ({"classes": ["law", "law"]}, "^classes: got law, law; accepted: the number of classes, or a list"),
        ({"label_kind": "multilabel"}, "y: holds other numbers than 0 and 1"),
        ({"metric": "micro_f1"}, "^metric: got 'micro_f1' for labels of the kind class; accepted: accuracy"),
        ({"metric": "best"}, "^metric: got 'best'; accepted"),
        ({"directed": "no"}, "^directed: got str"),
        ({"format": "hdf5"}, "^format: got 'hdf5'; accepted: auto, pyg, npz, tables, typed, mtx"),
        ({"format": "ogb"}, "^path: .* is a file, which format=ogb is not"),
        ({"seed": -1}, "^seed: got -1"),
        ({"nodes": 3}, "^nodes: got int; accepted: the name of a file"),
    ],
)  # fmt: skip
def test_wrong_options(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        load_custom(write_npz(tmp_path), **options)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("edges.csv", b"", "path: .*edges.csv: is no table"),
        ("edges.csv", b"source\na\n", "target: edges.csv has the columns source; accepted: two column"),
        ("edges.csv", b"source,target\na,b\na,b,c,d\n", "path: .*edges.csv: is no table"),
        ("edges.csv", b"source,target\na,\0b\n", "path: .*edges.csv: has null characters, and is no text"),
        ("edges.csv.gz", b"\x1f\x8b damaged", "path: .*edges.csv.gz: is damaged"),
        ("edges.parquet", b"PAR1 damaged PAR1", "path: .*edges.parquet: is no table"),
        ("graph.pt", b"not a zip", "path: .*graph.pt: is no archive of torch.save"),
        ("graph.npz", b"PK damaged", "path: .*graph.npz: is damaged"),
        ("graph.mtx", b"%%MatrixMarket", "path: .*graph.mtx: banner"),
        ("graph.mtx", b"%%MatrixMarket matrix coordinate real general\n2 3 0\n", "path: .*accepted: a squar"),
        ("graph.graphml", b"<graphml>", "path: .*graph.graphml: is no GraphML"),
        ("graph.graphml", b"<!DOCTYPE lolz [<!ENTITY lol 'lol'>]><graphml/>", "declares a document type"),
        ("graph.graphml", b"\xff\xfe\x00", "path: .*graph.graphml: is no GraphML"),
        ("graph.xyz", b"", "path: got .*graph.xyz'; accepted: a folder, or a file .pt, .pth, .npz"),
    ],
)  # fmt: skip
def test_damaged_files(name: str, content: bytes, message: str, tmp_path: Path) -> None:
    if name.endswith(".parquet"):
        pytest.importorskip("pyarrow")
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=message):
        load_custom(tmp_path / name, features="constant", classes=2)


def test_paths(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"path: there is no file or folder .*nothing\.npz"):
        load_custom(tmp_path / "nothing.npz")
    with pytest.raises(ValueError, match=r"path: the folder .* has neither edges.csv, .tsv or .parquet, n"):
        load_custom(tmp_path)
    with pytest.raises(TypeError, match=r"path: got NoneType; accepted: .* as in graph.npz"):
        load_custom(None)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="path: there is no file or folder"):
        load_custom("a\0b")
    os.mkfifo(tmp_path / "pipe.npz")
    with pytest.raises(ValueError, match="is a pipe, a device or a socket"):
        load_custom(tmp_path / "pipe.npz")


def test_labels_beside_a_matrix(tmp_path: Path) -> None:
    path = write_mtx(tmp_path / "graph.mtx")
    path.with_suffix(".labels").write_text("a\nb\n")
    with pytest.raises(ValueError, match=r"path: .*graph.labels: has 2 labels; accepted: 60, one in a line"):
        load_custom(path, features="identity")
    with pytest.raises(ValueError, match=r"^labels: there is no file 'other' in"):
        load_custom(path, features="identity", labels="other")


def test_names_are_no_classes(tmp_path: Path) -> None:
    """GraphML that Gephi writes has the name of a node as its attribute "label"."""
    ids = [f"n{i}" for i in range(20)]
    write_table(tmp_path / "edges.csv", {"source": ids, "target": ids[::-1]})
    write_table(tmp_path / "nodes.csv", {"id": ids, "f": range(20), "label": [f"{i} Street" for i in ids]})
    with pytest.raises(ValueError, match=r"^label: each of 20 nodes has a label of its own, as a name is"):
        load_custom(tmp_path)


def test_a_folder_of_ogb_that_is_not_whole(tmp_path: Path) -> None:
    folder = write_ogb(tmp_path / "ogbn_mine")
    (folder / "raw" / "edge.csv.gz").unlink()
    with pytest.raises(ValueError, match=r"path: .* lacks raw/edge.csv.gz; accepted: a whole folder of OGB"):
        load_custom(folder)


def test_no_file_runs_code(tmp_path: Path) -> None:
    marker = tmp_path / "executed"
    evil = Evil(marker)
    for content in ({**tensors(), "extra": evil}, {**tensors(), "x": evil}, evil):
        torch.save(content, tmp_path / "graph.pt")
        with pytest.raises(ValueError, match=r"path: .*graph.pt: names posix.mkdir, whose code is not run"):
            load_custom(tmp_path / "graph.pt")
    torch.save({**tensors(), "x": "text"}, tmp_path / "graph.pt")
    with pytest.raises(ValueError, match=r"path: .*graph.pt: x: is a str; accepted: a dense tensor"):
        load_custom(tmp_path / "graph.pt")
    np.savez(tmp_path / "graph.npz", **arrays(), ids=np.array([evil] * NODES, dtype=object))
    with pytest.raises(ValueError, match=r"ids: .*Object arrays can"):
        load_custom(tmp_path / "graph.npz")
    assert not marker.exists()


class View:
    """Pickled as a tensor of a storage "0" of 180 floats."""

    def __init__(self, offset: int = 0, size: Any = (NODES, 3), stride: Any = (3, 1)) -> None:
        self.parts = torch.zeros(3 * NODES)._typed_storage(), offset, size, stride, False, {}

    def __reduce__(self) -> Any:
        return torch._utils._rebuild_tensor_v2, self.parts


@pytest.mark.parametrize(
    ("view", "said", "instead", "message"),
    [
        ({"offset": 1}, b"", b"", "is damaged"),
        ({"stride": (-3, 1)}, b"", b"", "is damaged"),
        ({"size": (10**6, 10**8), "stride": (0, 0)}, b"", b"", "needs .* GB"),
        ({"size": (2**61, 8)}, b"", b"", "is damaged"),
        ({"size": (1,) * 9, "stride": (1,) * 9}, b"", b"", "edge_index: "),
        ({}, b"K\xb4", pickle.dumps(10**15, 2)[2:-1], "is damaged|more bytes than the file has"),
        ({}, b"X\1\0\0\0" + b"0", b"X\t\0\0\0../secret", "is damaged"),
    ],
)
def test_tensors_that_their_bytes_do_not_hold(
    view: dict[str, Any], said: bytes, instead: bytes, message: str, tmp_path: Path
) -> None:
    path = tmp_path / "graph.pt"
    torch.save({"x": View(**view), "edge_index": View(**view)}, path)
    rewritten(path, lambda members: [(n, d.replace(said, instead) if said else d) for n, d in members])
    with pytest.raises((ValueError, MemoryError), match=message):
        load_custom(path)


WRITERS: dict[str, Callable[[Path], Path]] = {
    "pt": lambda folder: (torch.save(tensors(), folder / "graph.pt"), folder / "graph.pt")[1],
    "npz": write_npz,
    "csv": lambda folder: write_tables(folder / "tables"),
    "mtx": lambda folder: write_mtx(folder / "graph.mtx"),
    "graphml": lambda folder: write_graphml(folder / "graph.graphml"),
    "parquet": lambda folder: write_tables(folder / "tables", ".parquet"),
    "ogb": lambda folder: write_ogb(folder / "mine"),
}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("kind", WRITERS)
def test_any_damage_is_an_error_or_a_data_set(kind: str, tmp_path: Path) -> None:
    """Of the bytes of a file, or of what is in an archive."""
    if kind == "parquet":
        pytest.importorskip("pyarrow")
    path = WRITERS[kind](tmp_path)
    files = [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.is_file())
    draw = Draw(kind)
    for _ in range(25):
        file = draw.choice(files)
        whole = file.read_bytes()
        file.write_bytes(mutate(draw, file.name, whole))
        with contextlib.suppress(ValueError, MemoryError):  # any other error is none that the loader has made
            got = load_custom(path, features="file" if kind != "mtx" else "constant")
            assert isinstance(got, NodeDataset)
        file.write_bytes(whole)
