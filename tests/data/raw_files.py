"""Raw files of a tiny graph in the layouts of the published data sets."""

from __future__ import annotations

import json
import pickle
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


def both_ways(edges: list[tuple[int, int]]) -> np.ndarray:
    return np.array([*edges, *((v, u) for u, v in edges)]).T


def expected_graph() -> np.ndarray:
    matrix = np.zeros((NODES, NODES))
    matrix[tuple(both_ways(EDGES))] = 1
    return matrix


def write_reddit(folder: Path) -> None:
    folder.mkdir(parents=True)
    kinds = np.zeros(NODES, dtype=np.int64)
    for kind, part in enumerate(PARTS.values(), start=1):
        kinds[part] = kind
    np.savez(folder / "reddit_data.npz", feature=FEATURES.astype(np.float64), label=LABELS, node_types=kinds)
    row, col = both_ways(EDGES)
    matrix = sp.coo_matrix((np.ones(row.size), (row, col)), shape=(NODES, NODES))
    sp.save_npz(folder / "reddit_graph.npz", matrix)


def write_saint(folder: Path, labels: list[Any]) -> None:
    folder.mkdir(parents=True)
    row, col = both_ways(EDGES)
    matrix = sp.csr_matrix((np.ones(row.size), (row, col)), shape=(NODES, NODES))
    sp.save_npz(folder / "adj_full.npz", matrix)
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


#: The data sets that `write_raw` writes.
WRITTEN = (
    "minesweeper", "amazon_photo", "cora", "reddit", "flickr", "yelp", "ogbn_arxiv", "ogbn_products"
)  # fmt: skip


def write_raw(name: str, folder: Path) -> None:
    if writer := {"minesweeper": write_minesweeper, "amazon_photo": write_photo, "cora": write_planetoid}.get(
        name
    ):
        writer(folder / "raw")
    elif name == "reddit":
        write_reddit(folder / "raw")
    elif name == "flickr":
        write_saint(folder / "raw", LABELS.tolist())
    elif name == "yelp":
        write_saint(folder / "raw", np.eye(4, dtype=int)[LABELS].tolist())
    else:
        write_ogb(folder / name, {"ogbn_arxiv": "time", "ogbn_products": "sales_ranking"}[name])


def listing(folder: Path) -> list[tuple[str, int, int]]:
    status = {path: path.lstat() for path in (folder, *folder.rglob("*"))}
    return sorted((str(path), entry.st_size, entry.st_mtime_ns) for path, entry in status.items())
