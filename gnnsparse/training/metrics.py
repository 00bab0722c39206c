"""The scores of node classification, as functions of logits and labels."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torchmetrics.functional.classification import (
    binary_auroc,
    multiclass_accuracy,
    multilabel_f1_score,
)

from gnnsparse.data import NodeDataset
from gnnsparse.errors import bad_value

__all__ = ["Score", "make_scores"]

#: (logits [n, classes], labels [n] or [n, labels]) -> a score, float32 [] on the device.
Score = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def make_scores(dataset: NodeDataset) -> dict[str, Score]:
    """Returns the scores of a data set by name; the first one is the data set's metric.

    Classes are scored by accuracy, and two classes by the area under the ROC curve as well if that is the
    metric. Several labels a node are scored by the F1 of all (node, label) pairs, where a label is predicted
    if its probability is above one half.

    Raises:
        ValueError: the data set's metric does not go with its labels.
    """
    classes, metric = dataset.num_classes, dataset.metric

    def accuracy(logits: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return multiclass_accuracy(logits, y, classes, average="micro", validate_args=False)

    def roc_auc(logits: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        margin = logits[:, 1].float() - logits[:, 0].float()
        return binary_auroc(margin.sigmoid(), y, validate_args=False)

    def micro_f1(logits: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        probability = logits.float().sigmoid()
        return multilabel_f1_score(probability, y.int(), classes, average="micro", validate_args=False)

    scores: dict[str, dict[str, Score]] = {
        "accuracy": {"accuracy": accuracy},
        "roc_auc": {"roc_auc": roc_auc, "accuracy": accuracy},
        "micro_f1": {"micro_f1": micro_f1},
    }
    if (metric == "micro_f1") != dataset.multi_label or (metric == "roc_auc" and classes != 2):
        bad_value("metric", f"{metric!r} does not go with the labels of {dataset.name}")
    return scores[metric]
