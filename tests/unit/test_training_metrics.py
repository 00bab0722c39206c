"""The scores against their definitions."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from gnnsparse.data import NodeDataset
from gnnsparse.testing import assert_accurate, random_graph
from gnnsparse.timing import capture
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


def test_scores_are_those_of_torchmetrics() -> None:
    from torchmetrics.functional.classification import binary_auroc, multiclass_accuracy, multilabel_f1_score

    for seed in range(5):
        torch.manual_seed(seed)
        logits, y = torch.randn(200, 2).round(decimals=1), torch.randint(2, (200,))
        scores = make_scores(dataset(2, "roc_auc"))
        margin = logits[:, 1] - logits[:, 0]
        torch.testing.assert_close(scores["roc_auc"](logits, y), binary_auroc(margin.double(), y).float())
        accuracy = multiclass_accuracy(logits, y, 2, average="micro")
        torch.testing.assert_close(scores["accuracy"](logits, y), accuracy)
        logits, y = torch.randn(40, 5), (torch.rand(40, 5) < 0.3).long()
        micro_f1 = make_scores(dataset(5, "micro_f1", several=True))["micro_f1"](logits, y)
        torch.testing.assert_close(micro_f1, multilabel_f1_score(logits, y, 5, average="micro"))


@pytest.mark.parametrize("label", [0, 1])
def test_a_share_of_nothing_is_zero(label: int) -> None:
    y = torch.full((6,), label)
    assert float(make_scores(dataset(2, "roc_auc"))["roc_auc"](torch.randn(6, 2), y)) == 0
    no_labels = torch.zeros(6, 3)
    scores = make_scores(dataset(3, "micro_f1", several=True))
    assert float(scores["micro_f1"](-torch.ones(6, 3), no_labels)) == 0
    assert (
        float(make_scores(dataset(3, "accuracy"))["accuracy"](torch.zeros(0, 3), torch.zeros(0).long())) == 0
    )


@pytest.mark.gpu
@pytest.mark.parametrize("metric", ["accuracy", "roc_auc", "micro_f1"])
def test_scores_can_be_captured(metric: str) -> None:
    several = metric == "micro_f1"
    score = make_scores(dataset(2, metric, several))[metric]
    logits = torch.randn(300, 2, device="cuda")
    y = torch.randint(2, (300, 2) if several else (300,), device="cuda")
    y = y.float() if several else y
    kept: list[torch.Tensor] = []
    replay = capture(lambda: kept.append(score(logits, y)), 1)
    logits.copy_(torch.randn(300, 2, device="cuda"))
    replay()
    assert float(kept[-1]) == float(score(logits, y)) == float(score(logits.cpu(), y.cpu()))
