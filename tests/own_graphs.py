"""A small graph of a user, as files of every format that dataset=custom reads."""

from __future__ import annotations

import gzip
import os
from pathlib import Path
from typing import Any

import networkx
import numpy as np
import pandas
import scipy.io
import scipy.sparse as sp
import torch

NODES = 60
NAMES = ("law", "math", "music")


def arrays(seed: int = 0) -> dict[str, Any]:
    """Edges between nodes of mostly one class, features around the mean of a class, some labels missing."""
    rng = np.random.default_rng(seed)
    classes = rng.integers(0, 3, NODES)
    source, target = rng.integers(0, NODES, (2, 900))
    kept = (classes[source] == classes[target]) & (source != target)
    pairs = np.unique(np.stack([source[kept], target[kept]]), axis=1)
    y = classes.copy()
    y[::11] = -1
    part = rng.permutation(np.arange(NODES) % 5)
    masks = {"train_mask": part < 3, "val_mask": part == 3, "test_mask": part == 4}
    x = np.eye(3)[classes] + rng.normal(0, 0.7, (NODES, 3))
    return {
        "edge_index": pairs, "x": x.astype(np.float32), "y": y,
        "edge_weight": rng.uniform(0.5, 2, pairs.shape[1]).astype(np.float32), **masks,
    }  # fmt: skip


def tensors(**more: Any) -> dict[str, Any]:
    """The same as tensors; what is no array in `more` stays as it is."""
    found = {**arrays(), **more}
    return {
        name: torch.as_tensor(value) if isinstance(value, (np.ndarray, torch.Tensor)) else value
        for name, value in found.items()
    }


def write_npz(folder: Path, **more: Any) -> Path:
    """An archive of the arrays, of which None leaves one out."""
    content = {name: value for name, value in {**arrays(), **more}.items() if value is not None}
    np.savez(folder / "graph.npz", **content)
    return folder / "graph.npz"


class Evil:
    """Its pickle makes a folder when it is read."""

    def __init__(self, folder: Path) -> None:
        self.folder = str(folder)

    def __reduce__(self) -> Any:
        return os.mkdir, (self.folder,)


def labels_of(made: dict[str, Any]) -> list[str]:
    """The names of the classes; "" for a missing one."""
    return ["" if y < 0 else NAMES[y] for y in made["y"]]


def write_tables(folder: Path, ending: str = ".csv", *, split: bool = True, years: bool = False) -> Path:
    """edges and nodes of texts: node i is called "n<i>", class c has the name NAMES[c]."""
    folder.mkdir(exist_ok=True)
    made = arrays()
    ids = np.array([f"n{i}" for i in range(NODES)])
    source, target = ids[made["edge_index"]]
    edges = {"source": source, "target": target, "weight": made["edge_weight"].astype(np.float64)}
    nodes: dict[str, Any] = {"id": ids}
    nodes |= {f"f{column}": made["x"][:, column].astype(np.float64) for column in range(3)}
    nodes["label"] = labels_of(made)
    if split:
        masks = np.stack([made["train_mask"], made["val_mask"], made["test_mask"]])
        nodes["split"] = np.array(["train", "val", "test"])[masks.argmax(axis=0)]
    if years:
        nodes["year"] = 2000 + np.arange(NODES) // 3
    for name, table in (("edges", edges), ("nodes", nodes)):
        write_table(folder / f"{name}{ending}", table)
    return folder


def write_table(path: Path, table: dict[str, Any]) -> None:
    frame = pandas.DataFrame(table)
    if path.suffix == ".parquet":
        frame.to_parquet(path, index=False)
    else:
        frame.to_csv(path, sep="\t" if ".tsv" in path.suffixes else ",", index=False)


def write_mtx(path: Path) -> Path:
    made = arrays()
    source, target = made["edge_index"]
    scipy.io.mmwrite(path, sp.coo_array((made["edge_weight"], (target, source)), shape=(NODES, NODES)))
    path.with_suffix(".labels").write_text("".join(f"{label}\n" for label in labels_of(made)))
    return path


def write_graphml(path: Path) -> Path:
    made = arrays()
    graph = networkx.DiGraph()
    for i, label in enumerate(labels_of(made)):
        more = {"label": label} if label else {}
        graph.add_node(f"n{i}", **{f"f{c}": float(made["x"][i, c]) for c in range(3)}, **more)
    for (s, t), w in zip(made["edge_index"].T, made["edge_weight"], strict=True):
        graph.add_edge(f"n{s}", f"n{t}", weight=float(w))
    networkx.write_graphml(graph, path)
    return path


def ogb_folder(folder: Path, split: str, tables: dict[str, Any], parts: dict[str, Any]) -> Path:
    """Writes the tables of raw/, and the numbers of the nodes in each part, as OGB does."""
    files = {f"raw/{name}": rows for name, rows in tables.items()}
    for part, file in (("train", "train"), ("val", "valid"), ("test", "test")):
        files[f"split/{split}/{file}"] = [[node] for node in parts[part]]
    for name, rows in files.items():
        path = folder / f"{name}.csv.gz"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.compress("".join(",".join(map(str, row)) + "\n" for row in rows).encode()))
    return folder


def write_ogb(folder: Path) -> Path:
    made = arrays()
    edges, labels = made["edge_index"].T, [["nan" if y < 0 else y] for y in made["y"]]
    numbers = {"num-node-list": [[NODES]], "num-edge-list": [[len(edges)]]}
    tables = {"edge": edges, "node-feat": made["x"], "node-label": labels, **numbers}
    parts = {part: made[f"{part}_mask"].nonzero()[0] for part in ("train", "val", "test")}
    return ogb_folder(folder, "time", tables, parts)
