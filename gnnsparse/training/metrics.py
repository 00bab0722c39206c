"""The scores of node classification, as functions of logits and labels.

All of them stay on the device, with shapes that depend on the number of nodes alone, so that a validation can
be captured in a CUDA graph. torchmetrics' ROC AUC waits for a GPU to learn how many values differ.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from gnnsparse.data import NodeDataset
from gnnsparse.errors import bad_value

__all__ = ["Score", "make_scores"]

#: (logits [n, classes], labels [n] or [n, labels]) -> a score, float32 [] on the device.
Score = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def make_scores(dataset: NodeDataset) -> dict[str, Score]:
    """Returns the scores of a data set by name; the first one is the data set's metric.

    Classes are scored by accuracy, and two classes by the area under the ROC curve as well if that is the
    metric. Several labels a node are scored by the F1 of all (node, label) pairs, where a label is predicted
    if its probability is above one half. A score that is a share of nothing is 0.

    Raises:
        ValueError: the data set's metric does not go with its labels.
    """
    classes, metric = dataset.num_classes, dataset.metric
    scores: dict[str, dict[str, Score]] = {
        "accuracy": {"accuracy": _accuracy},
        "roc_auc": {"roc_auc": _roc_auc, "accuracy": _accuracy},
        "micro_f1": {"micro_f1": _micro_f1},
    }
    if (metric == "micro_f1") != dataset.multi_label or (metric == "roc_auc" and classes != 2):
        bad_value("metric", f"{metric!r} does not go with the labels of {dataset.name}")
    return scores[metric]


def _share(part: torch.Tensor, whole: torch.Tensor) -> torch.Tensor:
    """Returns the quotient of two counts, 0 if the second is."""
    return (part.double() / whole.double().clamp(min=1)).float()


def _accuracy(logits: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    hits = logits.argmax(dim=1) == y
    return _share(hits.sum(), hits.new_full((), hits.numel(), dtype=torch.int64))


def _roc_auc(logits: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Returns the share of pairs of a node of class 1 and one of class 0 that the margin orders, ties half.

    This is the statistic of Mann and Whitney (1947). For each node of class 1 the nodes of class 0 with a
    smaller margin are counted, and those with a margin that is not larger.
    """
    margin = logits[:, 1].float() - logits[:, 0].float()
    ordered, order = margin.sort()
    below = torch.nn.functional.pad((y[order] == 0).long().cumsum(0), (1, 0))
    smaller = below[torch.searchsorted(ordered, margin)]
    not_larger = below[torch.searchsorted(ordered, margin, right=True)]
    ones = (y == 1).long()
    return _share((ones * (smaller + not_larger)).sum(), 2 * ones.sum() * (y == 0).sum())


def _micro_f1(logits: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    predicted, true = logits > 0, y == 1
    return _share(2 * (predicted & true).sum(), predicted.sum() + true.sum())
