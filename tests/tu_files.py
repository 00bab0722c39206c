"""A small data set of graphs in the forms in which TU Dortmund's are found."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from gnnsparse import SparseGraph
from gnnsparse.data import GraphDataset, block_diagonal

TITLE = "PROTEINS"


def small_graphs(count: int, seed: int = 0) -> tuple[list[SparseGraph], list[torch.Tensor], torch.Tensor]:
    """Graphs, kinds of their nodes, and classes: rings are class 0, and stars class 1."""
    generator = torch.Generator().manual_seed(seed)
    graphs, kinds, classes = [], [], []
    for number in range(count):
        nodes = int(torch.randint(4, 12, (), generator=generator))
        ids = torch.arange(nodes)
        ring = torch.stack([ids, (ids + 1) % nodes])
        star = torch.stack([torch.zeros(nodes - 1, dtype=torch.int64), ids[1:]])
        edges = star if number % 2 else ring
        graphs.append(SparseGraph.from_edge_index(torch.cat([edges, edges.flip(0)], dim=1), nodes))
        kinds.append(torch.randint(3, (nodes,), generator=generator))
        classes.append(number % 2)
    return graphs, kinds, torch.tensor(classes)


def graph_dataset(count: int = 40, metric: str = "accuracy") -> GraphDataset:
    """The small graphs as a data set; with another metric the target is the number of nodes, or labels."""
    graphs, kinds, classes = small_graphs(count)
    whole, ptr = block_diagonal(graphs)
    y, columns = classes, 2
    if metric in ("mae", "mse", "r2"):
        y, columns = ptr.diff().float() / 10, 1
    elif metric in ("micro_f1", "mean_roc_auc"):
        y, columns = torch.stack([classes, 1 - classes, ptr.diff() > 7], dim=1).float(), 3
    part = torch.arange(count) // 2 % 4
    masks = [part < 2, part == 2, part == 3]
    x = torch.nn.functional.one_hot(torch.cat(kinds), 3).float()
    return GraphDataset("toy", whole, ptr, x, y, *masks, num_classes=columns, metric=metric)


def write_text(folder: Path, count: int = 40, attributes: bool = False) -> Path:
    """Writes the text files: nodes and graphs count from 1, classes are 1 and 2, and kinds 0, 3 and 6."""
    folder.mkdir(parents=True, exist_ok=True)
    graphs, kinds, classes = small_graphs(count)
    whole, ptr = block_diagonal(graphs)
    pairs = torch.stack([whole.csr.row_index(), whole.csr.indices.long()], dim=1) + 1
    graph_of = torch.repeat_interleave(torch.arange(count), ptr.diff()) + 1
    tables = {
        "A": [f"{a}, {b}" for a, b in pairs.tolist()],
        "graph_indicator": graph_of.tolist(),
        "graph_labels": (classes + 1).tolist(),
        "node_labels": (3 * torch.cat(kinds)).tolist(),
    }
    if attributes:
        tables["node_attributes"] = [f"{0.5 * node}, {-node}" for node in range(whole.num_rows)]
    for name, rows in tables.items():
        (folder / f"{TITLE}_{name}.txt").write_text("".join(f"{row}\n" for row in rows))
    return folder


def write_npz(folder: Path, count: int = 40, folds: bool = True) -> Path:
    """Writes TITLE.npz; graph g is tested in fold g // 2 % 10, and the first one in none."""
    folder.mkdir(parents=True, exist_ok=True)
    graphs, kinds, classes = small_graphs(count)
    whole, ptr = block_diagonal(graphs)
    fold = torch.arange(count) // 2 % 10
    fold[0] = -1
    arrays = {
        "num_graphs": np.int64(count),
        "graph_ptr": ptr.int().numpy(),
        "indptr": whole.csr.indptr.int().numpy(),
        "indices": whole.csr.indices.numpy(),
        "node_labels": torch.cat(kinds).int().numpy(),
        "graph_labels": classes.int().numpy(),
    }
    if folds:
        arrays["test_fold"] = fold.to(torch.int8).numpy()
    np.savez(folder / f"{TITLE}.npz", **arrays)
    return folder
