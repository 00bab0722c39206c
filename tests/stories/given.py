"""Files that stories are given."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests.own_graphs import NAMES, NODES, tensors, write_table

Table = dict[str, list[Any]]


#: The nodes of the tables.
PAPERS = 240


def cited(seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns edges [2, E], mostly between nodes of one class, features [PAPERS, 3], and classes."""
    rng = np.random.default_rng(seed)
    classes = rng.integers(0, 3, PAPERS)
    source, target = rng.integers(0, PAPERS, (2, 12 * PAPERS))
    kept = (source != target) & ((classes[source] == classes[target]) | (rng.random(source.size) < 0.1))
    x = np.eye(3)[classes] + rng.normal(0, 0.7, (PAPERS, 3))
    return np.unique(np.stack([source[kept], target[kept]]), axis=1), x.round(4), classes


def write_papers(folder: Path, more: Callable[..., Table], seed: int = 0) -> None:
    """Writes two tables; `more` returns further columns of the nodes for edges, features and classes."""
    folder.mkdir()
    edges, x, classes = cited(seed)
    ids = [f"n{i}" for i in range(PAPERS)]
    write_table(
        folder / "edges.csv",
        {name: [ids[i] for i in ends] for name, ends in zip(("source", "target"), edges, strict=True)},
    )
    nodes = {"id": ids, **{f"f{c}": x[:, c].tolist() for c in range(3)}, **more(edges, x, classes)}
    write_table(folder / "nodes.csv", nodes)


def fields(edges: np.ndarray, x: np.ndarray, classes: np.ndarray) -> Table:
    """The field of a paper, which of every seventh one is not known."""
    return {"label": ["" if i % 7 == 0 else NAMES[c] for i, c in enumerate(classes)]}


def papers(folder: Path) -> None:
    """Two tables of papers, their fields and years, and their citations."""
    years = [2000 + i // 12 for i in range(PAPERS)]
    write_papers(folder / "papers", lambda *of: {**fields(*of), "year": years})


def papers_and_new(folder: Path) -> None:
    """Papers without years, and other ones without fields in the folder `new`."""
    write_papers(folder / "papers", fields)
    write_papers(folder / "new", lambda *_: {}, seed=1)


def loads(folder: Path) -> None:
    """Two tables of nodes whose load is a number, the mean of a feature of their neighbours."""

    def column(edges: np.ndarray, x: np.ndarray, classes: np.ndarray) -> Table:
        both = np.concatenate([edges, edges[::-1], np.tile(np.arange(PAPERS), (2, 1))], axis=1)
        total, count = np.zeros(PAPERS), np.zeros(PAPERS)
        np.add.at(total, both[0], x[both[1], 0])
        np.add.at(count, both[0], 1)
        return {"load": (10 * total / count + 0.25).round(4).tolist()}

    write_papers(folder / "loads", column)


def pyg_file(folder: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of torch, in the import of PyG
        from torch_geometric.data import Data

    torch.save(Data(**tensors()), folder / "graph.pt")


def dgl_file(folder: Path) -> None:
    from gnnsparse.interop.dgl import import_dgl

    dgl = import_dgl()
    made = tensors()
    graph = dgl.graph(tuple(made["edge_index"]), num_nodes=NODES)
    graph.ndata["feat"], graph.ndata["label"] = made["x"], made["y"]
    dgl.save_graphs(str(folder / "graph.bin"), [graph])
