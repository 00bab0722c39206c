"""NodeDataset: a graph with features, labels and one split of its nodes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch

from gnnsparse.errors import bad_type, bad_value, check_choice, check_tensor
from gnnsparse.graph import SparseGraph

__all__ = ["METRICS", "NodeDataset", "normalize_rows"]

#: What a data set is scored by.
METRICS = ("accuracy", "roc_auc", "micro_f1")


@dataclass(frozen=True, eq=False)
class NodeDataset:
    """A node classification task on one graph. N nodes, F features.

    Attributes:
        name: of the data set.
        graph: A[target, source], N x N; self-loops are those of the data, none are added.
        x: features, float32 [N, F].
        y: int64 [N], the class of each node, or float32 [N, labels] of 0 and 1 where a node has
            several labels.
        train_mask: bool [N], the nodes to train on.
        val_mask: bool [N], the nodes to choose a model by.
        test_mask: bool [N], the nodes to score it on. A node is in one of the masks at most.
        num_classes: classes, or labels where a node has several.
        metric: one of METRICS.

    Raises:
        TypeError: an attribute is of another type or dtype.
        ValueError: shapes do not fit together, a node is in two masks, a class is not below
            `num_classes`, or the metric is not known.
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
        self._check_labels(nodes)
        masks = [self.train_mask, self.val_mask, self.test_mask]
        for name, mask in zip(("train_mask", "val_mask", "test_mask"), masks, strict=True):
            check_tensor(name, mask, dtypes=(torch.bool,), shape=(nodes,))
        if nodes and int(torch.stack(masks).sum(dim=0).max()) > 1:
            bad_value("test_mask", "a node is in two of the masks; accepted: masks without overlap")

    def _check_labels(self, nodes: int) -> None:
        if isinstance(self.y, torch.Tensor) and self.y.is_floating_point():
            check_tensor("y", self.y, dtypes=(torch.float32,), shape=(nodes, self.num_classes))
            return
        check_tensor("y", self.y, dtypes=(torch.int64,), shape=(nodes,))
        if nodes == 0:
            return
        low, high = int(self.y.min()), int(self.y.max())
        if low < 0 or high >= self.num_classes:
            bad_value("y", f"holds classes {low} to {high}; accepted: 0 to {self.num_classes - 1}")

    @property
    def num_nodes(self) -> int:
        """N."""
        return self.graph.num_rows

    @property
    def num_features(self) -> int:
        """F."""
        return self.x.shape[1]

    @property
    def multi_label(self) -> bool:
        """Whether a node can have several labels."""
        return self.y.dim() == 2

    def permuted(self, order: Any) -> NodeDataset:
        """The task with other node numbers: new node i is node `order[i]`.

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
    """Divides each row of x [N, F] by the sum of its magnitudes, in place; rows of zeros stay."""
    total = torch.linalg.vector_norm(x, ord=1, dim=1, keepdim=True)
    x.div_(total.where(total > 0, 1.0))
