"""Raw files of a tiny graph in the layouts of the published data sets."""

from __future__ import annotations

import json
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from tests.own_graphs import ogb_folder

NODES = 12
EDGES = [(0, 1), (1, 2), (2, 3), (3, 4), (5, 0), (6, 7), (8, 9), (9, 10), (10, 11)]
FEATURES = np.arange(NODES * 3, dtype=np.float32).reshape(NODES, 3)
LABELS = np.arange(NODES) % 4
PARTS = {"train": [0, 1, 2, 3, 4, 5], "val": [6, 7, 8], "test": [9, 10, 11]}


def expected_graph() -> np.ndarray:
    """The edges lead both ways."""
    matrix = np.zeros((NODES, NODES))
    matrix[tuple(np.transpose(EDGES))] = 1
    return matrix + matrix.T


def write_reddit(folder: Path) -> None:
    folder.mkdir(parents=True)
    kinds = np.zeros(NODES, dtype=np.int64)
    for kind, part in enumerate(PARTS.values(), start=1):
        kinds[part] = kind
    np.savez(folder / "reddit_data.npz", feature=FEATURES.astype(np.float64), label=LABELS, node_types=kinds)
    sp.save_npz(folder / "reddit_graph.npz", sp.coo_matrix(expected_graph()))


def write_saint(folder: Path, labels: list[Any]) -> None:
    folder.mkdir(parents=True)
    sp.save_npz(folder / "adj_full.npz", sp.csr_matrix(expected_graph()))
    np.save(folder / "feats.npy", FEATURES.astype(np.float64))
    (folder / "class_map.json").write_text(json.dumps({str(n): label for n, label in enumerate(labels)}))
    (folder / "role.json").write_text(json.dumps({key[:2]: nodes for key, nodes in PARTS.items()}))


def write_ogb(folder: Path, split: str) -> None:
    tables = {"edge": EDGES, "node-feat": FEATURES, "node-label": LABELS[:, None]}
    numbers = {"num-node-list": [[NODES]], "num-edge-list": [[len(EDGES)]]}
    years = [[2000 + node] for node in range(NODES)]
    ogb_folder(folder, split, {**tables, **numbers, "node_year": years}, PARTS)


def write_minesweeper(folder: Path, **changed: Any) -> None:
    """Writes an archive in the layout of the heterophilous graphs, with other arrays; None: left out."""
    folder.mkdir(parents=True, exist_ok=True)
    part = np.arange(NODES) % 3 + np.zeros((10, 1), dtype=int)
    masks = {f"{name}_masks": part == number for number, name in enumerate(PARTS)}
    arrays = {
        "node_features": FEATURES,
        "node_labels": LABELS % 2,
        "edges": np.array(EDGES),
        **masks,
        **changed,
    }
    np.savez(folder / "minesweeper.npz", **{name: a for name, a in arrays.items() if a is not None})


def write_photo(folder: Path) -> None:
    """Writes the archive of amazon_photo: adjacency, features, and four nodes of each of three classes."""
    folder.mkdir(parents=True, exist_ok=True)
    arrays: dict[str, Any] = {"labels": np.arange(NODES) % 3}
    for prefix, matrix in (("adj", sp.csr_array(expected_graph())), ("attr", sp.csr_array(FEATURES))):
        parts = ("data", "indices", "indptr", "shape")
        arrays |= {f"{prefix}_{part}": getattr(matrix, part) for part in parts}
    np.savez_compressed(folder / "amazon_electronics_photo.npz", **arrays)


def write_planetoid(folder: Path, protocol: int = 2, **changed: Any) -> None:
    """Writes cora's files: five nodes, and three more, whose order is that of `index`."""
    folder.mkdir(parents=True, exist_ok=True)
    labels = np.eye(3, dtype=np.int32)[np.arange(8) % 3]
    features = sp.csr_matrix(np.eye(8, 4, dtype=np.float32))
    parts = {
        "x": features[:2], "tx": features[:3], "allx": features[:5], "y": labels[:2], "ty": labels[5:8],
        "ally": labels[:5], "graph": {node: [(node + 1) % 8] for node in range(8)}, **changed,
    }  # fmt: skip
    index = parts.pop("index", "7\n5\n6\n")
    for name, part in parts.items():
        content = part if isinstance(part, bytes) else pickle.dumps(part, protocol=protocol)
        (folder / f"ind.cora.{name}").write_bytes(content)
    (folder / "ind.cora.test.index").write_text(index)


#: What writes a data set into a folder.
WRITERS: dict[str, Callable[[Path], None]] = {
    "minesweeper": lambda folder: write_minesweeper(folder / "raw"),
    "amazon_photo": lambda folder: write_photo(folder / "raw"),
    "cora": lambda folder: write_planetoid(folder / "raw"),
    "reddit": lambda folder: write_reddit(folder / "raw"),
    "flickr": lambda folder: write_saint(folder / "raw", LABELS.tolist()),
    "yelp": lambda folder: write_saint(folder / "raw", np.eye(4, dtype=int)[LABELS].tolist()),
    "ogbn_arxiv": lambda folder: write_ogb(folder / "ogbn_arxiv", "time"),
    "ogbn_products": lambda folder: write_ogb(folder / "ogbn_products", "sales_ranking"),
}


def rewritten(path: Path, change: Any, method: int = zipfile.ZIP_STORED) -> None:
    """Writes an archive again with other members; `change` maps a list of (name, bytes) to another."""
    with zipfile.ZipFile(path) as archive:
        members = [(name, archive.read(name)) for name in archive.namelist()]
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, data in change(members):
            archive.writestr(name, data)


def listing(folder: Path) -> list[tuple[str, int, int]]:
    status = {path: path.lstat() for path in (folder, *folder.rglob("*"))}
    return sorted((str(path), entry.st_size, entry.st_mtime_ns) for path, entry in status.items())
