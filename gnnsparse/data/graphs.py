"""GraphDataset: many graphs, each with a target, as one block-diagonal matrix."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from gnnsparse.data.checks import check_finite, check_square, check_targets
from gnnsparse.data.dataset import METRICS, REGRESSION_METRICS, WithTargets
from gnnsparse.errors import bad_value, check_choice, check_tensor
from gnnsparse.sparse.graph import SparseGraph

__all__ = ["GraphDataset", "check_graph_ptr"]


@dataclass(frozen=True, eq=False)
class GraphDataset(WithTargets):
    """Classification or regression of G graphs, which have N nodes with F features together.

    Graph g has the nodes graph_ptr[g] to graph_ptr[g + 1] - 1, and no edge joins nodes of two graphs:
    `gnnsparse.data.block_diagonal` makes such a matrix of single graphs.

    Attributes:
        name: name of the data set.
        graph: A[target, source], N x N, block-diagonal.
        graph_ptr: int64 [G + 1], ascending from 0 to N; each graph has a node.
        x: features of the nodes, float32 [N, F], finite.
        y: int64 [G], the class of each graph; or float32 [G, labels] of 0 and 1, if graphs have several
            labels; or float32 [G] or [G, numbers], numbers to predict, if the metric is "mae", "mse" or "r2".
            A class of -1 and labels and numbers of NaN are missing.
        train_mask: bool [G], the graphs to train on.
        val_mask: bool [G], the graphs by which the best epoch is chosen.
        test_mask: bool [G], the graphs that it is scored on, which may be those of `val_mask`.
        num_classes: number of classes, labels or numbers to predict.
        metric: "accuracy", "roc_auc", "micro_f1", "mean_roc_auc", "mae", "mse" or "r2".

    Raises:
        TypeError: an attribute is of another type or dtype.
        ValueError: shapes do not agree, an edge joins two graphs, a feature is not finite, a graph to train
            on is in another part as well, or a target or the metric is not accepted.
    """

    name: str
    graph: SparseGraph
    graph_ptr: torch.Tensor
    x: torch.Tensor
    y: torch.Tensor
    train_mask: torch.Tensor
    val_mask: torch.Tensor
    test_mask: torch.Tensor
    num_classes: int
    metric: str = "accuracy"

    def __post_init__(self) -> None:
        nodes = check_square(self.graph)
        check_graph_ptr(self.graph_ptr, nodes)
        self._check_blocks()
        check_choice("metric", self.metric, METRICS)
        check_tensor("x", self.x, dtypes=(torch.float32,), shape=(nodes, None))
        check_finite("x", self.x)
        graphs = self.num_graphs
        check_targets("y", self.y, graphs, self.num_classes, regression=self.metric in REGRESSION_METRICS)
        for name in ("train_mask", "val_mask", "test_mask"):
            check_tensor(name, getattr(self, name), dtypes=(torch.bool,), shape=(graphs,))
        if bool((self.train_mask & (self.val_mask | self.test_mask)).any()):
            bad_value("train_mask", "has a graph of another part; accepted: graphs that are in no other part")

    def _check_blocks(self) -> None:
        csr = self.graph.csr
        graph_of = torch.repeat_interleave(
            torch.arange(self.num_graphs, device=self.graph_ptr.device), self.graph_ptr.diff()
        ).to(csr.device)
        wrong = graph_of[csr.indices.long()] != graph_of[csr.row_index()]
        if bool(wrong.any()):
            at = int(wrong.nonzero()[0])
            row, column = int(csr.row_index()[at]), int(csr.indices[at])
            bad_value(
                "graph", f"has an edge from node {column} to node {row} of another graph; accepted: none"
            )

    @property
    def num_graphs(self) -> int:
        """G, the number of graphs."""
        return self.graph_ptr.numel() - 1

    @property
    def parts(self) -> dict[str, torch.Tensor]:
        """The graphs of each part of the split by name, int64: "train", "val", "test"."""
        masks = {"train": self.train_mask, "val": self.val_mask, "test": self.test_mask}
        return {name: mask.nonzero().flatten() for name, mask in masks.items()}


def check_graph_ptr(graph_ptr: torch.Tensor, nodes: int) -> None:
    """Raises unless `graph_ptr` is int64 [graphs + 1] and ascends from 0 to `nodes`, without repeats."""
    check_tensor("graph_ptr", graph_ptr, dtypes=(torch.int64,), shape=(None,))
    if graph_ptr.numel() == 0 or int(graph_ptr[0]) != 0 or int(graph_ptr[-1]) != nodes:
        bad_value(
            "graph_ptr", f"does not lead from 0 to {nodes}; accepted: the first node of each graph, and N"
        )
    if bool((graph_ptr.diff() <= 0).any()):
        at = int((graph_ptr.diff() <= 0).nonzero()[0])
        bad_value("graph_ptr", f"graph {at} has no nodes; accepted: graphs of one node or more")
