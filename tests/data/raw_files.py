"""Raw files of a tiny graph in the layouts of sets whose own are too large to keep for tests."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from gnnsparse.data import load_dataset

NODES = 12
EDGES = [(0, 1), (1, 2), (2, 3), (3, 4), (5, 0), (6, 7), (8, 9), (9, 10), (10, 11)]
FEATURES = np.arange(NODES * 3, dtype=np.float32).reshape(NODES, 3)
LABELS = np.arange(NODES) % 4
PARTS = {"train": [0, 1, 2, 3, 4, 5], "val": [6, 7, 8], "test": [9, 10, 11]}


def both_ways(edges: list[tuple[int, int]]) -> np.ndarray:
    return np.array([*edges, *((v, u) for u, v in edges)]).T


def dense_graph(name: str, root: Path) -> np.ndarray:
    return load_dataset(name, root=root).graph.to_scipy().toarray()


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
    sp.save_npz(
        folder / "reddit_graph.npz", sp.coo_matrix((np.ones(row.size), (row, col)), shape=(NODES, NODES))
    )


def write_saint(folder: Path, labels: list[Any]) -> None:
    folder.mkdir(parents=True)
    row, col = both_ways(EDGES)
    matrix = sp.csr_matrix((np.ones(row.size), (row, col)), shape=(NODES, NODES))
    np.savez(
        folder / "adj_full.npz",
        data=matrix.data,
        indices=matrix.indices,
        indptr=matrix.indptr,
        shape=np.array(matrix.shape),
    )
    np.save(folder / "feats.npy", FEATURES.astype(np.float64))
    (folder / "class_map.json").write_text(
        json.dumps({str(node): label for node, label in enumerate(labels)})
    )
    (folder / "role.json").write_text(json.dumps({key[:2]: nodes for key, nodes in PARTS.items()}))


def write_table(path: Path, rows: list[list[Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(",".join(map(str, row)) + "\n" for row in rows)
    path.write_bytes(gzip.compress(text.encode()))


def write_ogb(folder: Path, split: str) -> None:
    raw = folder / "raw"
    write_table(raw / "edge.csv.gz", [list(edge) for edge in EDGES])
    write_table(raw / "node-feat.csv.gz", FEATURES.tolist())
    write_table(raw / "node-label.csv.gz", [[label] for label in LABELS])
    write_table(raw / "node_year.csv.gz", [[2000 + node] for node in range(NODES)])
    write_table(raw / "num-node-list.csv.gz", [[NODES]])
    write_table(raw / "num-edge-list.csv.gz", [[len(EDGES)]])
    for key, nodes in PARTS.items():
        file = {"val": "valid"}.get(key, key)
        write_table(folder / "split" / split / f"{file}.csv.gz", [[node] for node in nodes])


def write_raw(name: str, folder: Path) -> None:
    if name == "reddit":
        write_reddit(folder / "raw")
    elif name == "flickr":
        write_saint(folder / "raw", LABELS.tolist())
    elif name == "yelp":
        write_saint(folder / "raw", np.eye(4, dtype=int)[LABELS].tolist())
    else:
        write_ogb(folder / name, {"ogbn_arxiv": "time", "ogbn_products": "sales_ranking"}[name])
