"""NodeDataset: a graph with features, labels and one split of its nodes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch

from gnnsparse.data.checks import check_finite, check_labels
from gnnsparse.errors import bad_type, bad_value, check_choice, check_tensor
from gnnsparse.graph import SparseGraph

__all__ = ["METRICS", "NodeDataset", "normalize_rows"]

#: The metrics that data sets are scored by.
METRICS = ("accuracy", "roc_auc", "micro_f1")


@dataclass(frozen=True, eq=False)
class NodeDataset:
    """A node classification task on one graph with N nodes and F features.

    Attributes:
        name: name of the data set.
        graph: A[target, source], N x N, with the self-loops of the data.
        x: features, float32 [N, F], finite.
        y: int64 [N], the class of each node; or float32 [N, labels] of 0 and 1, if nodes have several labels.
        train_mask: bool [N], the nodes to train on.
        val_mask: bool [N], the nodes by which the best model is chosen.
        test_mask: bool [N], the nodes that it is scored on. A node is in at most one of the masks.
        num_classes: number of classes, or of labels if nodes have several.
        metric: one of METRICS.

    Raises:
        TypeError: an attribute is of another type or dtype.
        ValueError: shapes do not agree, a feature is not finite, a node is in two masks, a class is not below
            `num_classes`, a label is neither 0 nor 1, or the metric is unknown.
    """

    name: str
    graph: SparseGraph
    x: torch.Tensor
    y: torch.Tensor
    train_mask: torch.Tensor
    val_mask: torch.Tensor
    test_mask: torch.Tensor
    num_classes: int
    metric: str = "accuracy"

    def __post_init__(self) -> None:
        if not isinstance(self.graph, SparseGraph):
            bad_type("graph", self.graph, "a SparseGraph")
        nodes = self.graph.num_rows
        if self.graph.num_cols != nodes:
            bad_value("graph", f"has shape ({nodes}, {self.graph.num_cols}); accepted: a square one")
        check_choice("metric", self.metric, METRICS)
        check_tensor("x", self.x, dtypes=(torch.float32,), shape=(nodes, None))
        check_finite("x", self.x)
        check_labels("y", self.y, nodes, self.num_classes)
        masks = [self.train_mask, self.val_mask, self.test_mask]
        for name, mask in zip(("train_mask", "val_mask", "test_mask"), masks, strict=True):
            check_tensor(name, mask, dtypes=(torch.bool,), shape=(nodes,))
        if nodes and int(torch.stack(masks).sum(dim=0).max()) > 1:
            bad_value("test_mask", "a node is in two of the masks; accepted: masks without overlap")

    @property
    def num_nodes(self) -> int:
        """N, the number of nodes."""
        return self.graph.num_rows

    @property
    def num_features(self) -> int:
        """F, the number of features of a node."""
        return self.x.shape[1]

    @property
    def multi_label(self) -> bool:
        """Whether nodes can have several labels."""
        return self.y.dim() == 2

    def permuted(self, order: Any) -> NodeDataset:
        """Returns the task with renumbered nodes: new node i is node `order[i]`.

        Args:
            order: int32 or int64 [N], a permutation of 0 to N - 1.

        Raises:
            TypeError: `order` is of another type or dtype.
            ValueError: `order` is not a permutation of the nodes.
        """
        check_tensor("order", order, dtypes=(torch.int32, torch.int64), shape=(self.num_nodes,))
        order = order.to(device=self.graph.device, dtype=torch.int64)
        ids = torch.arange(self.num_nodes, device=order.device)
        if not torch.equal(order.sort().values, ids):
            bad_value("order", f"accepted: a permutation of 0 to {self.num_nodes - 1}")
        new_id = torch.empty_like(order).scatter_(0, order, ids)
        csr = self.graph.csr
        edges = torch.stack([new_id[csr.indices.long()], new_id[csr.row_index()]])
        moved = SparseGraph.from_edge_index(edges, self.num_nodes, self.graph.values)
        return replace(
            self,
            graph=SparseGraph(moved.csr, moved.values),
            x=self.x[order],
            y=self.y[order],
            train_mask=self.train_mask[order],
            val_mask=self.val_mask[order],
            test_mask=self.test_mask[order],
        )


def normalize_rows(x: torch.Tensor) -> None:
    """Divides each row of x [N, F] by the sum of its magnitudes, in place. Rows of zeros stay zero."""
    total = torch.linalg.vector_norm(x, ord=1, dim=1, keepdim=True)
    x.div_(total.where(total > 0, 1.0))
