"""The scores against their definitions."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from gnnsparse.data import NodeDataset
from gnnsparse.runtime.timing import capture
from gnnsparse.testing import random_graph
from gnnsparse.train.metrics import known_items, make_loss, make_scores, shown_score


def dataset(classes: int, metric: str, several: bool = False) -> NodeDataset:
    nodes = 12
    y = torch.randint(classes, (nodes,))
    masks = [torch.arange(nodes) % 3 == part for part in range(3)]
    labels = torch.nn.functional.one_hot(y, classes).float() if several else y
    graph = random_graph(nodes, nodes, 0.3, weighted=False)
    return NodeDataset(
        "toy", graph, torch.randn(nodes, 4), labels, *masks, num_classes=classes, metric=metric
    )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_scores_of_half_precision_logits_and_of_missing_classes(dtype: torch.dtype) -> None:
    logits = torch.tensor([[2.0, -1.0], [0.5, 1.5], [-1.0, 3.0], [1.0, 0.0]]).to(dtype)
    scores = make_scores(dataset(2, "roc_auc"))
    for y, accuracy in (([0, 1, 1, 1], 0.75), ([0, -1, -1, 1], 0.5)):
        assert float(scores["accuracy"](logits, torch.tensor(y))) == accuracy
        assert float(scores["roc_auc"](logits, torch.tensor(y))) == 1.0


def test_metrics_that_do_not_go_with_the_labels() -> None:
    for base, metric in (
        (dataset(3, "accuracy"), "roc_auc"),
        (dataset(3, "accuracy"), "micro_f1"),
        (dataset(3, "micro_f1", several=True), "accuracy"),
    ):
        with pytest.raises(ValueError, match=r"metric: .* does not go with the labels of toy"):
            make_scores(dataclasses.replace(base, metric=metric))


def test_scores_are_those_of_torchmetrics() -> None:
    """With ties of the ROC's margins; the accuracy is a mean over nodes, and not over classes."""
    from torchmetrics.functional.classification import binary_auroc, multiclass_accuracy, multilabel_f1_score

    assert list(make_scores(dataset(3, "accuracy"))) == ["accuracy"]
    for seed in range(5):
        torch.manual_seed(seed)
        logits, y = torch.randn(200, 2).round(decimals=1), (torch.rand(200) < 0.2).long()
        scores = make_scores(dataset(2, "roc_auc"))
        assert list(scores) == ["roc_auc", "accuracy"]
        margin = logits[:, 1] - logits[:, 0]
        torch.testing.assert_close(scores["roc_auc"](logits, y), binary_auroc(margin.double(), y).float())
        accuracy = multiclass_accuracy(logits, y, 2, average="micro")
        torch.testing.assert_close(scores["accuracy"](logits, y), accuracy)
        logits, y = torch.randn(40, 5), (torch.rand(40, 5) < 0.3).long()
        scores = make_scores(dataset(5, "micro_f1", several=True))
        assert list(scores) == ["micro_f1"]
        wanted = multilabel_f1_score(logits, y, 5, average="micro")
        torch.testing.assert_close(scores["micro_f1"](logits, y), wanted)


@pytest.mark.parametrize("label", [0, 1])
def test_a_fraction_of_nothing_is_zero(label: int) -> None:
    for base, name, logits, y in (
        (dataset(2, "roc_auc"), "roc_auc", torch.randn(6, 2), torch.full((6,), label)),
        (dataset(3, "micro_f1", several=True), "micro_f1", -torch.ones(6, 3), torch.zeros(6, 3)),
        (dataset(3, "accuracy"), "accuracy", torch.zeros(0, 3), torch.zeros(0).long()),
    ):
        assert float(make_scores(base)[name](logits, y)) == 0


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


def numbers(metric: str, columns: int) -> NodeDataset:
    base = dataset(2, "accuracy")
    y = torch.randn(12, columns) if columns > 1 else torch.randn(12)
    return dataclasses.replace(base, y=y, num_classes=columns, metric=metric)


def with_gaps(y: torch.Tensor, share: float = 0.3) -> torch.Tensor:
    return torch.where(torch.rand(y.shape) < share, torch.nan, y)


@pytest.mark.parametrize("gaps", [False, True])
def test_mean_roc_auc_is_scikit_learns_mean(gaps: bool) -> None:
    from sklearn.metrics import roc_auc_score

    base = dataclasses.replace(dataset(5, "micro_f1", several=True), metric="mean_roc_auc")
    scores = make_scores(base)
    assert list(scores) == ["mean_roc_auc", "micro_f1"]
    logits, y = torch.randn(60, 5).round(decimals=1), (torch.rand(60, 5) < 0.3).float()
    y[:, 4] = 1  # a label without both values does not count
    y = with_gaps(y) if gaps else y
    columns = [(logits[~y[:, c].isnan(), c], y[~y[:, c].isnan(), c]) for c in range(4)]
    want = sum(roc_auc_score(labels.numpy(), margin.double().numpy()) for margin, labels in columns) / 4
    assert float(scores["mean_roc_auc"](logits, y)) == pytest.approx(want, rel=1e-6)


@pytest.mark.parametrize("columns", [1, 3])
def test_errors_are_scikit_learns(columns: int) -> None:
    from sklearn.metrics import mean_absolute_error, mean_squared_error, r2_score

    scores = make_scores(numbers("r2", columns))
    assert list(scores) == ["r2", "mae", "mse"]
    assert list(make_scores(numbers("mae", columns))) == ["mae", "mse", "r2"]
    outputs, y = torch.randn(50, columns), torch.randn(50, columns) + 3
    exact = [v.double().numpy() for v in (y, outputs)]
    for name, want in (("mae", mean_absolute_error), ("mse", mean_squared_error), ("r2", r2_score)):
        assert float(scores[name](outputs, y)) == pytest.approx(want(*exact), rel=1e-5), name
    if columns == 1:
        assert scores["mae"](outputs, y[:, 0]) == scores["mae"](outputs, y)
        known = torch.rand(50) < 0.5
        gaps = torch.where(known, y[:, 0], torch.nan)
        for name in scores:
            found = float(scores[name](outputs, gaps))
            assert found == pytest.approx(float(scores[name](outputs[known], y[known])), rel=1e-5), name
    assert float(scores["r2"](outputs, torch.ones(50, columns))) == 0


def test_losses_leave_out_what_is_missing() -> None:
    torch.manual_seed(0)
    labels = make_loss(dataset(4, "micro_f1", several=True))
    logits, y = torch.randn(20, 4), with_gaps((torch.rand(20, 4) < 0.5).float())
    logits.requires_grad_()
    known = ~y.isnan()
    want = torch.nn.functional.binary_cross_entropy_with_logits(logits[known], y[known])
    found = labels(logits, y)
    torch.testing.assert_close(found, want)
    (gradient,) = torch.autograd.grad(found, logits)
    assert bool((gradient[~known] == 0).all())
    assert bool(gradient.isfinite().all())
    outputs, numbers_to_predict = torch.randn(20, 2), with_gaps(torch.randn(20, 2))
    known = ~numbers_to_predict.isnan()
    error = (outputs - numbers_to_predict)[known]
    for metric, want in (("mae", error.abs()), ("mse", error.square()), ("r2", error.square())):
        loss = make_loss(numbers(metric, 2))
        torch.testing.assert_close(loss(outputs, numbers_to_predict), want.mean())


def test_items_of_which_something_is_known() -> None:
    items, nan = torch.tensor([3, 0, 2]), torch.nan
    for y, known in (
        ([1, 0, -1, 0], [3, 0]),
        ([nan, 0.0, 1.0, nan], [2]),
        ([[nan, nan], [nan, nan], [nan, 0.0], [1.0, 1.0]], [3, 2]),
    ):
        assert known_items(items, torch.tensor(y)).tolist() == known


def test_how_scores_are_shown() -> None:
    assert shown_score("accuracy", 0.81525) == "81.53 %"
    assert shown_score("mae", 0.034567) == "0.03457"
    assert shown_score("r2", -2.5) == "-2.5"
