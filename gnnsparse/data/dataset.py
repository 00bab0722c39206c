"""NodeDataset: a graph with features, labels and one split of its nodes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch

from gnnsparse.data.checks import check_finite, check_square, check_targets
from gnnsparse.errors import bad_value, check_choice, check_tensor
from gnnsparse.sparse.graph import SparseGraph

__all__ = [
    "CLASS_METRICS", "METRICS", "REGRESSION_METRICS", "NodeDataset", "WithTargets", "check_masks",
    "normalize_rows",
]  # fmt: skip

#: The metrics of data sets with classes or labels, of which larger values are better.
CLASS_METRICS = ("accuracy", "roc_auc", "micro_f1", "mean_roc_auc")
#: The metrics of data sets with numbers to predict: mean absolute error, mean squared error, and R^2.
REGRESSION_METRICS = ("mae", "mse", "r2")
#: The metrics that data sets are scored by.
METRICS = (*CLASS_METRICS, *REGRESSION_METRICS)


class WithTargets:
    """What a data set with features of nodes and with targets says of itself, whatever the targets are of."""

    graph: SparseGraph
    x: torch.Tensor
    y: torch.Tensor
    metric: str

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
        """Whether a node, or a graph, can have several labels."""
        return self.y.dim() == 2 and not self.regression

    @property
    def regression(self) -> bool:
        """Whether `y` are numbers to predict."""
        return self.y.is_floating_point() and self.metric in REGRESSION_METRICS


@dataclass(frozen=True, eq=False)
class NodeDataset(WithTargets):
    """Classification or regression of the nodes of one graph, with N nodes and F features.

    Attributes:
        name: name of the data set.
        graph: A[target, source], N x N, with the self-loops of the data.
        x: features, float32 [N, F], finite.
        y: int64 [N], the class of each node; or float32 [N, labels] of 0 and 1, if nodes have several labels;
            or float32 [N] or [N, numbers], numbers to predict, if the metric is one of REGRESSION_METRICS. A
            class of -1 and labels and numbers of NaN are missing: nothing is trained on or scored by them.
        train_mask: bool [N], the nodes to train on.
        val_mask: bool [N], the nodes by which the best model is chosen.
        test_mask: bool [N], the nodes that it is scored on. A node is in at most one of the masks.
        num_classes: number of classes, or of labels if nodes have several, or of numbers to predict for a
            node.
        metric: one of METRICS.
        node_ids: the names of the nodes in the user's files, N different texts; None: they are numbered.
        class_names: the names of the classes or labels, num_classes texts; None: they are numbered.
        feature_names: the names of the features, F different texts; None: they have none.

    Raises:
        TypeError: an attribute is of another type or dtype.
        ValueError: shapes do not agree, a feature is not finite, a node is in two masks, a class is not below
            `num_classes`, a label is neither 0 nor 1, a number to predict is infinite, there are more or
            fewer names than nodes, classes or features, or the metric is unknown.
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
    node_ids: tuple[str, ...] | None = None
    class_names: tuple[str, ...] | None = None
    feature_names: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        nodes = check_square(self.graph)
        check_choice("metric", self.metric, METRICS)
        check_tensor("x", self.x, dtypes=(torch.float32,), shape=(nodes, None))
        check_finite("x", self.x)
        check_targets("y", self.y, nodes, self.num_classes, regression=self.metric in REGRESSION_METRICS)
        check_masks(self.train_mask, self.val_mask, self.test_mask, nodes, "node")
        for name, names, count in (
            ("node_ids", self.node_ids, nodes),
            ("class_names", self.class_names, self.num_classes),
            ("feature_names", self.feature_names, self.num_features),
        ):
            if names is not None and (not isinstance(names, tuple) or len(names) != count):
                bad_value(name, f"accepted: a tuple of {count} texts, or None")

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
            node_ids=None if self.node_ids is None else tuple(self.node_ids[i] for i in order.tolist()),
        )

    def without_weights(self) -> NodeDataset:
        """Returns the task with edges that have no weights, for a model that would ignore them."""
        return replace(self, graph=SparseGraph(self.graph.csr))


def check_masks(train: torch.Tensor, val: torch.Tensor, test: torch.Tensor, count: int, item: str) -> None:
    """Raises unless the arguments are bool [count], and no item, such as a "node", is in two of them."""
    masks = {"train_mask": train, "val_mask": val, "test_mask": test}
    for name, mask in masks.items():
        check_tensor(name, mask, dtypes=(torch.bool,), shape=(count,))
    if count and int(torch.stack(list(masks.values())).sum(dim=0).max()) > 1:
        bad_value("test_mask", f"a {item} is in two of the masks; accepted: masks without overlap")


def normalize_rows(x: torch.Tensor) -> None:
    """Divides each row of x [N, F] by the sum of its magnitudes, in place. Rows of zeros stay zero."""
    total = torch.linalg.vector_norm(x, ord=1, dim=1, keepdim=True)
    x.div_(total.where(total > 0, 1.0))
