"""Losses and scores of nodes and graphs, as functions of a model's outputs and of targets.

All of them stay on the device, with shapes that depend on the number of items alone, so that a validation can
be captured in a CUDA graph. torchmetrics' own functions wait for a GPU, to check their arguments and to learn
how many values differ; the tests hold these functions against them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F  # noqa: N812

from gnnsparse.data.datasets import REGRESSION_METRICS
from gnnsparse.errors import bad_value

if TYPE_CHECKING:
    from gnnsparse.data.datasets import GraphDataset, NodeDataset

__all__ = [
    "SMALLER_IS_BETTER",
    "Score",
    "WeightedLoss",
    "class_rows",
    "is_known",
    "make_loss",
    "make_scores",
    "shown_score",
]

#: (outputs [n, classes], targets [n] or [n, classes]) -> a score or a loss, float32 [] on the device.
Score = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

#: The scores of which smaller values are better.
SMALLER_IS_BETTER = ("mae", "mse")


def make_scores(dataset: NodeDataset | GraphDataset) -> dict[str, Score]:
    """Return the scores of a data set by name; the first one is the data set's metric.

    Classes are scored by accuracy and macro-F1, the mean of the F1 of the classes that items have or are
    given, and two classes by the area under the ROC curve as well if that is the metric. Several labels an
    item are scored by macro-F1 and by micro-F1, that of all pairs of an item and a label, where a label is
    predicted if its probability is above one half; and if "mean_roc_auc" is the metric by the area under the
    ROC curve as well, a mean over the labels that have both values among the items (as OGB has it, Hu et al.
    2020), which takes a sort of each column. Numbers are scored by mean absolute error, mean squared error,
    and the coefficient of determination R^2, a mean over the columns. Missing labels and numbers are left
    out. A score that is a fraction of nothing is 0.

    Raises:
        ValueError: the data set's metric does not go with its targets.
    """
    metric = dataset.metric
    if (
        (metric in ("micro_f1", "mean_roc_auc") and not dataset.multi_label)
        or (metric in ("accuracy", "roc_auc") and dataset.multi_label)
        or (metric in REGRESSION_METRICS) != dataset.regression
        or (metric == "roc_auc" and dataset.num_classes != 2)
    ):
        bad_value("metric", f"{metric!r} does not go with the labels of {dataset.name}")
    others: tuple[str, ...] = REGRESSION_METRICS
    if not dataset.regression:
        others = ("micro_f1" if dataset.multi_label else "accuracy", "macro_f1")
    return {name: _SCORES[name] for name in (metric, *others)}


def make_loss(dataset: NodeDataset | GraphDataset) -> Score:
    """Return the loss of a data set: a mean over what is known of the targets.

    It is the cross entropy of classes, the binary cross entropy of labels, the mean absolute error if that is
    the metric, and else the mean squared error of numbers. Classes must not be missing: `known_items`.
    """
    if dataset.regression:
        return _mae if dataset.metric == "mae" else _mse
    return _label_loss if dataset.multi_label else _class_loss


class WeightedLoss(torch.nn.Module):
    """The loss of a data set in which classes count by weights, with a mean of 1 over the training items.

    A batch's loss is a mean over its items, so that batches and ranks add up to the loss of all of them.

    Args:
        dataset: nodes or graphs with classes or several labels.
        weights: "balanced", or a number for each class, or for each label that of a 1 beside a 0.

    Raises:
        ValueError: the data set has numbers to predict, there are other numbers of classes, or all training
            items have the weight 0.
    """

    weights: torch.Tensor

    def __init__(self, dataset: NodeDataset | GraphDataset, weights: str | Sequence[float]) -> None:
        super().__init__()
        option, shown = "trainer.class_weights", weights if isinstance(weights, str) else list(weights)
        if dataset.regression:
            bad_value(option, f"got {shown} for numbers to predict; accepted: none")
        if not isinstance(weights, str) and len(weights) != dataset.num_classes:
            bad_value(option, f"got {shown}; accepted: {dataset.num_classes} numbers, one a class")
        y = dataset.y[dataset.train_mask & is_known(dataset.y)].cpu()
        self.multi_label = dataset.multi_label
        if self.multi_label:
            ones = (y == 1).sum(0).double()
            found = (y == 0).sum(0) / ones.where(ones > 0, 1.0)
            found = found.where(ones > 0, 1.0)
        else:
            found = 1 / torch.bincount(y, minlength=dataset.num_classes).double().clamp(min=1)
        if not isinstance(weights, str):
            found = torch.tensor(weights, dtype=torch.float64, device="cpu")
        if not self.multi_label:
            if not (total := float(found[y].sum())) > 0:
                bad_value(option, f"got {shown}, and 0 for all training items; accepted: numbers above 0")
            found = found * (len(y) / total)
        self.register_buffer("weights", found.float(), persistent=False)

    def forward(self, outputs: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Return the mean loss of outputs [n, classes] and targets [n] or [n, labels], a scalar."""
        if self.multi_label:
            return _label_loss(outputs, y, self.weights)
        return (F.cross_entropy(outputs.float(), y, reduction="none") * self.weights[y]).mean()


def is_known(y: torch.Tensor) -> torch.Tensor:
    """Return whether anything is known of the items whose targets are y, [N] or [N, columns], bool [N]."""
    known = ~y.isnan() if y.is_floating_point() else y >= 0
    return known if known.dim() == 1 else known.any(dim=1)


def shown_score(name: str, value: float) -> str:
    """Return a score as tables show it: a fraction in per cent, an error as a number."""
    return f"{value:.4g}" if name in REGRESSION_METRICS else f"{100 * value:.2f} %"


def _fraction(part: torch.Tensor, whole: torch.Tensor) -> torch.Tensor:
    """Return the quotient of two counts or sums, 0 where the second is 0."""
    part, whole = part.double(), whole.double()
    return (part / whole.where(whole > 0, 1.0)).where(whole > 0, 0.0).float()


def _class_loss(logits: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits.float(), y)


def _label_loss(logits: torch.Tensor, y: torch.Tensor, weights: torch.Tensor | None = None) -> torch.Tensor:
    known = ~y.isnan()
    losses = F.binary_cross_entropy_with_logits(
        logits.float(), y.where(known, 0.0), reduction="none", pos_weight=weights
    )
    return losses.where(known, 0.0).sum() / known.sum().clamp(min=1)


def _accuracy(logits: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    known = y >= 0
    return _fraction(((logits.argmax(dim=1) == y) & known).sum(), known.sum())


def _roc_auc(logits: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    margin = logits[:, 1].float() - logits[:, 0].float()
    ordered, pairs = _ordered_pairs(margin[:, None], y[:, None])
    return _fraction(ordered, 2 * pairs)[0]


def _mean_roc_auc(logits: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    labels = torch.where(y.isnan(), -1.0, y).long()
    ordered, pairs = _ordered_pairs(logits.float(), labels)
    return _fraction(_fraction(ordered, 2 * pairs).sum(), (pairs > 0).sum())


def _ordered_pairs(margin: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Count twice the pairs of items of classes 1 and 0 that the margin orders, and all pairs, by column."""
    # This is the statistic of Mann and Whitney (1947), in which ties are half ordered. Margin and y, which is
    # -1 for items that do not count, are [n, columns].
    ordered, order = margin.T.contiguous().sort(dim=1)
    classes = y.T.contiguous()
    below = F.pad((classes.gather(1, order) == 0).long().cumsum(1), (1, 0))
    values = margin.T.contiguous()
    smaller = below.gather(1, torch.searchsorted(ordered, values))
    not_larger = below.gather(1, torch.searchsorted(ordered, values, right=True))
    ones = (classes == 1).long()
    return (ones * (smaller + not_larger)).sum(1), ones.sum(1) * (classes == 0).sum(1)


def _micro_f1(logits: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    predicted, true = (logits > 0) & ~y.isnan(), y == 1
    return _fraction(2 * (predicted & true).sum(), predicted.sum() + true.sum())


def class_rows(
    outputs: torch.Tensor, y: torch.Tensor, names: Sequence[str] | None = None
) -> list[dict[str, Any]]:
    """Return a row for each class or label: "class" (its name or number), precision, recall, f1, count.

    Outputs and y are those of a Score; `names` has a text for each class, None: they are numbered. The count
    is that of the items with the class. Scores have six decimals, and a fraction of nothing is 0.
    """
    right, given, items = (count.cpu() for count in _class_counts(outputs, y))
    scores = {
        "precision": _fraction(right, given), "recall": _fraction(right, items),
        "f1": _fraction(2 * right, given + items),
    }  # fmt: skip
    columns = {name: [round(value, 6) for value in score.tolist()] for name, score in scores.items()}
    columns["count"] = items.tolist()
    classes = range(len(items)) if names is None else names
    rows = zip(classes, *columns.values(), strict=True)
    return [dict(zip(("class", *columns), row, strict=True)) for row in rows]


def _class_counts(outputs: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Count by class, int64 [classes] each: items given it and right, items given it, items with it."""
    if y.dim() == 2:
        given, true = (outputs > 0) & ~y.isnan(), y == 1
        return (given & true).sum(0), given.sum(0), true.sum(0)
    known, predicted = y >= 0, outputs.argmax(dim=1)
    # Not bincount, which waits for a GPU.
    none = torch.zeros(outputs.shape[1], dtype=torch.int64, device=y.device)
    right, given, items = (
        none.scatter_add(0, of, counted.long())
        for of, counted in (
            (predicted, known & (predicted == y)),
            (predicted, known),
            (y.clamp(min=0), known),
        )
    )
    return right, given, items


def _macro_f1(outputs: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    right, given, items = _class_counts(outputs, y)
    whole = given + items
    return _fraction(_fraction(2 * right, whole).sum(), (whole > 0).sum())


def _errors(outputs: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the errors, 0 for numbers that are missing, and which ones are known, [n, columns] each."""
    y = y.reshape(outputs.shape)
    known = ~y.isnan()
    return (outputs.float() - y.where(known, 0.0)).where(known, 0.0), known


def _mae(outputs: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    error, known = _errors(outputs, y)
    return error.abs().sum() / known.sum().clamp(min=1)


def _mse(outputs: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    error, known = _errors(outputs, y)
    return error.square().sum() / known.sum().clamp(min=1)


def _r2(outputs: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return the mean over columns of 1 - squared errors / squared deviations, 0 of equal numbers."""
    error, known = _errors(outputs, y)
    y = y.reshape(outputs.shape).double()
    count = known.sum(0).clamp(min=1)
    mean = y.where(known, 0.0).sum(0) / count
    spread = (y - mean).where(known, 0.0).square().sum(0)
    rest = error.double().square().sum(0)
    return (1 - rest / spread.where(spread > 0, 1.0)).where(spread > 0, 0.0).mean().float()


_SCORES: dict[str, Score] = {
    "accuracy": _accuracy, "macro_f1": _macro_f1, "roc_auc": _roc_auc, "micro_f1": _micro_f1,
    "mean_roc_auc": _mean_roc_auc, "mae": _mae, "mse": _mse, "r2": _r2,
}  # fmt: skip
