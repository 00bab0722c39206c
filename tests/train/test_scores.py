"""The scores against their definitions; their statistics over seeds, by hand and against definitions."""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from gnnsparse.data import NodeDataset
from gnnsparse.runtime.timing import capture
from gnnsparse.train.metrics import WeightedLoss, class_rows, is_known, make_loss, make_scores, shown_score
from gnnsparse.train.statistics import (
    LEAST_PAIRS,
    compare_paired,
    cross_validated,
    holm,
    smallest_p_value,
    summarize,
)
from tests.tasks import toy_task


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_scores_of_half_precision_logits_and_of_missing_classes(dtype: torch.dtype) -> None:
    logits = torch.tensor([[2.0, -1.0], [0.5, 1.5], [-1.0, 3.0], [1.0, 0.0]]).to(dtype)
    scores = make_scores(toy_task(12, 2, "roc_auc"))
    for y, accuracy in (([0, 1, 1, 1], 0.75), ([0, -1, -1, 1], 0.5)):
        assert float(scores["accuracy"](logits, torch.tensor(y))) == accuracy
        assert float(scores["roc_auc"](logits, torch.tensor(y))) == 1.0


def test_metrics_that_do_not_go_with_the_labels() -> None:
    for base, metric in (
        (toy_task(12, 3, "accuracy"), "roc_auc"),
        (toy_task(12, 3, "accuracy"), "micro_f1"),
        (toy_task(12, 3, "micro_f1"), "accuracy"),
    ):
        with pytest.raises(ValueError, match=r"metric: .* does not go with the labels of toy"):
            make_scores(dataclasses.replace(base, metric=metric))


def test_scores_are_those_of_torchmetrics() -> None:
    """With ties of the ROC's margins; the accuracy is a mean over nodes, and not over classes."""
    from torchmetrics.functional.classification import binary_auroc, multiclass_accuracy, multilabel_f1_score

    assert list(make_scores(toy_task(12, 3, "accuracy"))) == ["accuracy", "macro_f1"]
    for seed in range(5):
        torch.manual_seed(seed)
        logits, y = torch.randn(200, 2).round(decimals=1), (torch.rand(200) < 0.2).long()
        scores = make_scores(toy_task(12, 2, "roc_auc"))
        assert list(scores) == ["roc_auc", "accuracy", "macro_f1"]
        margin = logits[:, 1] - logits[:, 0]
        torch.testing.assert_close(scores["roc_auc"](logits, y), binary_auroc(margin.double(), y).float())
        accuracy = multiclass_accuracy(logits, y, 2, average="micro")
        torch.testing.assert_close(scores["accuracy"](logits, y), accuracy)
        logits, y = torch.randn(40, 5), (torch.rand(40, 5) < 0.3).long()
        scores = make_scores(toy_task(12, 5, "micro_f1"))
        assert list(scores) == ["micro_f1", "macro_f1"]
        wanted = multilabel_f1_score(logits, y, 5, average="micro")
        torch.testing.assert_close(scores["micro_f1"](logits, y), wanted)


@pytest.mark.parametrize("label", [0, 1])
def test_a_fraction_of_nothing_is_zero(label: int) -> None:
    for base, name, logits, y in (
        (toy_task(12, 2, "roc_auc"), "roc_auc", torch.randn(6, 2), torch.full((6,), label)),
        (toy_task(12, 3, "micro_f1"), "micro_f1", -torch.ones(6, 3), torch.zeros(6, 3)),
        (toy_task(12, 3, "accuracy"), "accuracy", torch.zeros(0, 3), torch.zeros(0).long()),
    ):
        assert float(make_scores(base)[name](logits, y)) == 0


@pytest.mark.gpu
@pytest.mark.parametrize("metric", ["accuracy", "macro_f1", "roc_auc", "micro_f1"])
def test_scores_can_be_captured(metric: str) -> None:
    base = toy_task(300, 2, metric)
    score, y = make_scores(base)[metric], base.y.to("cuda")
    logits = torch.randn(300, 2, device="cuda")
    kept: list[torch.Tensor] = []
    replay = capture(lambda: kept.append(score(logits, y)), 1)
    logits.copy_(torch.randn(300, 2, device="cuda"))
    replay()
    assert float(kept[-1]) == float(score(logits, y)) == float(score(logits.cpu(), y.cpu()))


def numbers(metric: str, columns: int) -> NodeDataset:
    y = torch.randn(12, columns) if columns > 1 else torch.randn(12)
    return dataclasses.replace(toy_task(12), y=y, num_classes=columns, metric=metric)


def with_gaps(y: torch.Tensor, share: float = 0.3) -> torch.Tensor:
    return torch.where(torch.rand(y.shape) < share, torch.nan, y)


@pytest.mark.parametrize("gaps", [False, True])
def test_mean_roc_auc_is_scikit_learns_mean(gaps: bool) -> None:
    from sklearn.metrics import roc_auc_score

    base = dataclasses.replace(toy_task(12, 5, "micro_f1"), metric="mean_roc_auc")
    scores = make_scores(base)
    assert list(scores) == ["mean_roc_auc", "micro_f1", "macro_f1"]
    logits, y = torch.randn(60, 5).round(decimals=1), (torch.rand(60, 5) < 0.3).float()
    y[:, 4] = 1  # a label without both values does not count
    y = with_gaps(y) if gaps else y
    columns = [(logits[~y[:, c].isnan(), c], y[~y[:, c].isnan(), c]) for c in range(4)]
    want = sum(roc_auc_score(labels.numpy(), margin.double().numpy()) for margin, labels in columns) / 4
    assert float(scores["mean_roc_auc"](logits, y)) == pytest.approx(want, rel=1e-6)


@pytest.mark.parametrize("labels", [False, True])
def test_scores_of_classes_are_scikit_learns(labels: bool) -> None:
    """Classes that no item has or is given do not count; one that is only given has an F1 of 0."""
    from sklearn.metrics import f1_score, precision_recall_fscore_support

    torch.manual_seed(3)
    logits, y = torch.randn(60, 5), torch.randint(3, (60,))
    logits[:, 4] = -9  # class 3 is only given, class 4 neither
    if labels:
        y = (torch.rand(60, 5) < 0.3).float()
        y[0] = 1
    of = {"micro_f1" if labels else "accuracy": None} | {"macro_f1": None}
    for metric in of:
        base = dataclasses.replace(toy_task(12, 5, "micro_f1" if labels else "accuracy"), metric=metric)
        scores = make_scores(base)
        assert next(iter(scores)) == metric
        assert set(scores) == set(of)
    given, true = ((logits > 0).numpy(), y.numpy()) if labels else (logits.argmax(1).numpy(), y.numpy())
    want = f1_score(true, given, average="macro", zero_division=0)
    assert float(scores["macro_f1"](logits, y)) == pytest.approx(want, rel=1e-6)
    missing = torch.full_like(y[:1], torch.nan if labels else -1)
    logits, y = torch.cat([logits, logits[:1]]), torch.cat([y, missing])
    assert float(scores["macro_f1"](logits, y)) == pytest.approx(want, rel=1e-6)
    rows = class_rows(logits, y, "abcde")
    assert [row.pop("class") for row in rows] == list("abcde")
    columns = precision_recall_fscore_support(true, given, labels=range(5), zero_division=0)
    for row, numbers in zip(rows, zip(*columns, strict=True), strict=True):
        assert list(row.values()) == pytest.approx(numbers, abs=1e-6)
    assert class_rows(logits, y)[2]["class"] == 2


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
    labels = make_loss(toy_task(12, 4, "micro_f1"))
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


@pytest.mark.parametrize("weights", ["balanced", (1, 4, 0.5, 0)])
def test_losses_with_weights_of_classes(weights: Any) -> None:
    """Over the training items that of torch; in batches each item counts by its weight alone."""
    torch.manual_seed(0)
    task = toy_task(40, 4)
    y = task.y[task.train_mask]
    given = torch.tensor(weights) if weights != "balanced" else 1 / torch.bincount(y, minlength=4)
    loss, logits = WeightedLoss(task, weights), torch.randn(len(y), 4, requires_grad=True)
    want = torch.nn.functional.cross_entropy(logits, y, given.float())
    torch.testing.assert_close(loss(logits, y), want)
    halves = [loss(part, of) * len(of) for part, of in zip(logits.split(7), y.split(7), strict=True)]
    torch.testing.assert_close(sum(halves) / len(y), want)
    assert not loss.state_dict(), "a checkpoint has none of it"

    task = toy_task(40, 4, "micro_f1")
    y = with_gaps(task.y[task.train_mask])
    task = dataclasses.replace(task, y=task.y.masked_scatter(task.train_mask[:, None], y))
    loss, known = WeightedLoss(task, weights), ~y.isnan()
    given = (y == 0).sum(0) / (y == 1).sum(0) if weights == "balanced" else torch.tensor(weights)
    losses = torch.nn.functional.binary_cross_entropy_with_logits(
        logits, y.nan_to_num(), reduction="none", pos_weight=given.float()
    )
    torch.testing.assert_close(loss(logits, y), losses[known].mean())


@pytest.mark.parametrize(
    ("metric", "weights", "message"),
    [
        ("accuracy", (1, 2), r"got \[1, 2\]; accepted: 4 numbers, one a class"),
        ("accuracy", (0, 0, 0, 0), r"got \[0, 0, 0, 0\], and 0 for all training items; accepted: numbers"),
        ("mae", "balanced", "got balanced for numbers to predict; accepted: none"),
    ],
)
def test_wrong_weights_of_classes(metric: str, weights: Any, message: str) -> None:
    task = numbers(metric, 4) if metric == "mae" else toy_task(12, 4, metric)
    with pytest.raises(ValueError, match=rf"^trainer\.class_weights: {message}"):
        WeightedLoss(task, weights)


def test_items_of_which_something_is_known() -> None:
    nan = torch.nan
    for y, known in (
        ([1, 0, -1, 0], [True, True, False, True]),
        ([nan, 0.0, 1.0, nan], [False, True, True, False]),
        ([[nan, nan], [nan, nan], [nan, 0.0], [1.0, 1.0]], [False, False, True, True]),
    ):
        assert is_known(torch.tensor(y)).tolist() == known


def test_how_scores_are_shown() -> None:
    assert shown_score("accuracy", 0.81525) == "81.53 %"
    assert shown_score("mae", 0.034567) == "0.03457"
    assert shown_score("r2", -2.5) == "-2.5"


# Statistics over seeds.


NODES = st.integers(690, 710)
SCORES = st.floats(0, 100, allow_nan=False).map(lambda x: round(x, 3))


def test_mean_and_sample_deviation() -> None:
    found = summarize([1.0, 2.0, 3.0, 6.0])
    assert (found.count, found.mean) == (4, 3.0)
    assert found.standard_deviation == pytest.approx(math.sqrt(14 / 3))
    assert summarize([5.0]).standard_deviation is None


def score_of(right: int) -> float:
    """The score in per cent of 1000 nodes, as a run gives it: computed in float32."""
    return 100 * float(np.float32(right) / np.float32(1000))


@given(st.lists(st.tuples(NODES, NODES), min_size=5, max_size=9))
def test_the_paired_test_counts_patterns_of_signs(pairs: list[tuple[int, int]]) -> None:
    """Scores come in steps of one node, so that many sums are equal but for the last bits of floats."""
    ours, theirs = zip(*pairs, strict=True)
    found = compare_paired([score_of(n) for n in ours], [score_of(n) for n in theirs])
    sums = [sum(signed) for signed in itertools.product(*((a - b, b - a) for a, b in pairs))]
    assert found.p_value == sum(abs(other) >= abs(sums[0]) for other in sums) / len(sums)
    assert found.p_value >= smallest_p_value(len(pairs))
    assert found.difference == pytest.approx(sums[0] / len(pairs) / 10, abs=1e-5)


@given(st.lists(st.tuples(SCORES, SCORES), min_size=2, max_size=20))
def test_the_interval_is_that_of_students_t(pairs: list[tuple[float, float]]) -> None:
    ours, theirs = zip(*pairs, strict=True)
    found, differences = compare_paired(ours, theirs), np.subtract(ours, theirs)
    assert found.count == len(pairs)
    assert found.difference == pytest.approx(float(differences.mean()), abs=1e-9)
    deviation = np.std(theirs, ddof=1)
    if abs(abs(found.difference) - deviation) > 1e-9:  # equal ones differ by rounding
        assert found.within_deviation == (abs(found.difference) <= deviation)
    error = differences.std(ddof=1) / math.sqrt(len(pairs))
    if len(pairs) < LEAST_PAIRS or np.ptp(differences) < 1e-4:
        assert found.interval is None
        return
    assert found.interval is not None
    reach = stats.t.ppf(0.975, len(pairs) - 1) * error
    assert found.interval == pytest.approx((differences.mean() - reach, differences.mean() + reach), abs=1e-6)


@pytest.mark.parametrize("count", [1, 2, 4])
def test_nothing_is_said_of_significance_below_five_pairs(count: int) -> None:
    """Equal differences have no variance: two of them gave a p of 0 by Student's t."""
    found = compare_paired([81.0, 82.0, 83.0, 84.0][:count], [80.0, 81.0, 82.0, 83.0][:count])
    assert (found.count, found.difference) == (count, 1.0)
    assert (found.p_value, found.interval) == (None, None)
    assert found.within_deviation is (None if count == 1 else count > 2)


def test_equal_differences() -> None:
    for count, p_value in ((5, 1 / 16), (6, 1 / 32), (10, 1 / 512), (16, 2**-15)):
        found = compare_paired([80.1] * count, [80.0] * count)
        assert found.p_value == p_value == smallest_p_value(count)
        assert found.interval is None
    same = compare_paired([80.0, 81.0] * 3, [80.0, 81.0] * 3)
    assert (same.difference, same.p_value, same.interval, same.within_deviation) == (0.0, 1.0, None, True)


def test_patterns_of_many_pairs_are_drawn() -> None:
    """Fifteen of twenty differences are one way: both tails of 20 tosses of a coin, in 65,536 draws."""
    signs = [1.0] * 15 + [-1.0] * 5
    exact = 2 * stats.binom.sf(14, 20, 0.5)
    found = compare_paired(signs, [0.0] * 20).p_value
    assert found == compare_paired(signs, [0.0] * 20).p_value
    assert found == pytest.approx(exact, abs=6 * math.sqrt(exact / 2**16))
    assert (compare_paired([1.0] * 40, [0.0] * 40).p_value or 0.0) >= smallest_p_value(40) > 0


def test_scores_that_can_not_be_compared_are_refused() -> None:
    with pytest.raises(ValueError, match=r"reference: has 1 scores; accepted: 2"):
        compare_paired([1.0, 2.0], [1.0])
    with pytest.raises(ValueError, match="scores: is empty"):
        summarize([])
    with pytest.raises(ValueError, match="scores: has nan"):
        summarize([1.0, float("nan")])
    with pytest.raises(TypeError, match="scores: got str"):
        summarize(["1"])  # type: ignore[list-item]


def test_holm_by_hand() -> None:
    """Sorted .01, .02, .03, .04 times 4, 3, 2, 1: .04, .06, .06, .04, which may not fall."""
    assert holm([0.03, 0.01, 0.04, 0.02]) == pytest.approx([0.06, 0.04, 0.06, 0.06])
    assert holm([0.4, 0.9]) == [0.8, 0.9]
    assert holm([1.0, 0.6, 0.0]) == [1.0, 1.0, 0.0]  # at most 1
    assert holm([]) == []
    with pytest.raises(ValueError, match=r"p_values: has 1.5"):
        holm([1.5])


def test_one_epoch_for_all_folds() -> None:
    """Each fold is best in another epoch; their mean is best in the third, and as good in the fourth."""
    epoch, scores = cross_validated([[0.5, 0.9, 0.6, 0.6], [0.7, 0.4, 0.8, 0.8], [0.6, 0.5, 0.7, 0.7]])
    assert (epoch, scores.count) == (3, 3)
    assert scores.mean == pytest.approx(0.7)
    assert scores.standard_deviation == pytest.approx(0.1)
    refused: list[tuple[list[list[float]], str]] = [
        ([], r"curves: have \[\] epochs; accepted: as many in each fold"),
        ([[1.0], [1.0, 2.0]], r"curves: have \[1, 2\] epochs"),
        ([[1.0], []], "curves: is empty"),
        ([[math.nan]], "curves: has nan"),
    ]
    for curves, message in refused:
        with pytest.raises(ValueError, match=message):
            cross_validated(curves)
