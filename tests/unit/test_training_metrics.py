"""The scores against their definitions."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from gnnsparse.data import NodeDataset
from gnnsparse.testing import assert_accurate, random_graph
from gnnsparse.training.metrics import make_scores


def dataset(classes: int, metric: str, several: bool = False) -> NodeDataset:
    nodes = 12
    y = torch.randint(classes, (nodes,))
    masks = [torch.arange(nodes) % 3 == part for part in range(3)]
    labels = torch.nn.functional.one_hot(y, classes).float() if several else y
    graph = random_graph(nodes, nodes, 0.3, weighted=False)
    return NodeDataset(
        "toy", graph, torch.randn(nodes, 4), labels, *masks, num_classes=classes, metric=metric
    )


def test_accuracy_counts_nodes_not_classes() -> None:
    """The mean over nodes: the mean over classes, torchmetrics' default, would be 0.5."""
    scores = make_scores(dataset(3, "accuracy"))
    logits = torch.eye(3)[torch.zeros(10, dtype=int)]
    y = torch.tensor([0] * 8 + [1] * 2)
    assert list(scores) == ["accuracy"]
    assert scores["accuracy"](logits, y) == torch.tensor(0.8)


def test_roc_auc_is_the_share_of_ordered_pairs() -> None:
    scores = make_scores(dataset(2, "roc_auc"))
    logits, y = torch.randn(60, 2), torch.randint(2, (60,))
    logits[:10] = logits[10:20]  # ties count one half
    margin = logits[:, 1] - logits[:, 0]
    difference = margin[y == 1][:, None] - margin[y == 0][None, :]
    plain, exact = (
        ((difference > 0).to(dtype) + 0.5 * (difference == 0).to(dtype)).mean()
        for dtype in (torch.float32, torch.float64)
    )
    assert list(scores) == ["roc_auc", "accuracy"]
    assert_accurate(scores["roc_auc"](logits, y), plain, exact)
    assert float(scores["accuracy"](logits, y)) == float(((margin > 0) == y).float().mean())


def test_micro_f1_counts_all_labels_alike() -> None:
    scores = make_scores(dataset(5, "micro_f1", several=True))
    logits, y = torch.randn(40, 5), (torch.rand(40, 5) < 0.3).float()
    predicted, true = logits > 0, y == 1
    hits = float((predicted & true).sum())
    want = torch.tensor(2 * hits / float(predicted.sum() + true.sum()))
    assert list(scores) == ["micro_f1"]
    assert scores["micro_f1"](logits, y) == want


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_scores_of_half_precision_logits(dtype: torch.dtype) -> None:
    logits = torch.tensor([[2.0, -1.0], [0.5, 1.5], [-1.0, 3.0], [1.0, 0.0]]).to(dtype)
    y = torch.tensor([0, 1, 1, 1])
    scores = make_scores(dataset(2, "roc_auc"))
    assert float(scores["accuracy"](logits, y)) == 0.75
    assert float(scores["roc_auc"](logits, y)) == 1.0


def test_metrics_that_do_not_go_with_the_labels() -> None:
    for base, metric in (
        (dataset(3, "accuracy"), "roc_auc"),
        (dataset(3, "accuracy"), "micro_f1"),
        (dataset(3, "micro_f1", several=True), "accuracy"),
    ):
        with pytest.raises(ValueError, match=r"metric: .* does not go with the labels of toy"):
            make_scores(dataclasses.replace(base, metric=metric))
