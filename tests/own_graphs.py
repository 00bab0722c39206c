"""A small graph of a user, as files of every format that dataset=custom reads."""

from __future__ import annotations

import gzip
import os
from pathlib import Path
from typing import Any

import numpy as np
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


def write_tables(folder: Path, ending: str = ".csv", *, split: bool = True, years: bool = False) -> Path:
    """edges and nodes of texts: node i is called "n<i>", class c has the name NAMES[c]."""
    folder.mkdir(exist_ok=True)
    made = arrays()
    ids = [f"n{i}" for i in range(NODES)]
    source, target = ([ids[i] for i in ends] for ends in made["edge_index"])
    edges = {"source": source, "target": target, "weight": made["edge_weight"].astype(float).tolist()}
    nodes: dict[str, list[Any]] = {"id": ids}
    nodes |= {f"f{column}": made["x"][:, column].astype(float).tolist() for column in range(3)}
    nodes["label"] = ["" if y < 0 else NAMES[y] for y in made["y"]]
    if split:
        parts = ("train", "val", "test")
        masks = np.stack([made[f"{part}_mask"] for part in parts])
        nodes["split"] = [parts[part] for part in masks.argmax(axis=0)]
    if years:
        nodes["year"] = [2000 + i // 3 for i in range(NODES)]
    for name, table in (("edges", edges), ("nodes", nodes)):
        write_table(folder / f"{name}{ending}", table)
    return folder


def write_table(path: Path, table: dict[str, list[Any]]) -> None:
    if path.suffix == ".parquet":
        import pyarrow
        import pyarrow.parquet

        pyarrow.parquet.write_table(pyarrow.table(table), path)
        return
    separator = "\t" if ".tsv" in path.suffixes else ","
    rows = [table, *zip(*table.values(), strict=True)]
    content = "".join(separator.join(map(str, row)) + "\n" for row in rows).encode()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)


def write_mtx(path: Path) -> Path:
    made = arrays()
    source, target = made["edge_index"]
    lines = [f"{t + 1} {s + 1} {w}" for s, t, w in zip(source, target, made["edge_weight"], strict=True)]
    head = ["%%MatrixMarket matrix coordinate real general", f"{NODES} {NODES} {len(lines)}"]
    path.write_text("\n".join([*head, *lines]) + "\n")
    labels = ["" if y < 0 else NAMES[y] for y in made["y"]]
    path.with_suffix(".labels").write_text("\n".join(labels) + "\n")
    return path


def write_graphml(path: Path) -> Path:
    import networkx

    made = arrays()
    graph = networkx.DiGraph()
    for i in range(NODES):
        more = {} if made["y"][i] < 0 else {"label": NAMES[made["y"][i]]}
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
