"""Statistics of scores over seeds: mean and deviation, a paired comparison, and Holm's correction."""

from __future__ import annotations

import math
import statistics
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

from gnnsparse.errors import bad_type, bad_value

__all__ = ["PairedComparison", "Summary", "compare_paired", "cross_validated", "holm", "summarize"]

#: Probability with which the interval of a difference holds the true one.
_CONFIDENCE = 0.95


@dataclass(frozen=True)
class Summary:
    """Scores of equal runs from several seeds.

    Attributes:
        count: number of scores.
        mean: their mean.
        standard_deviation: their sample standard deviation (divided by count - 1); None of one score.
    """

    count: int
    mean: float
    standard_deviation: float | None


@dataclass(frozen=True)
class PairedComparison:
    """Scores beside those of a reference from the same seeds.

    Attributes:
        count: number of pairs.
        difference: mean of score minus reference.
        interval: lower and upper end of the 95 % confidence interval of the difference, by Student's t; None
            of one pair.
        p_value: probability of a mean difference at least as large if there is none, by the two-sided paired
            t-test (Student 1908); None of one pair. It is 1 if all pairs are equal, and 0 if all differ by
            the same amount.
        within_deviation: whether the size of the difference is at most one standard deviation of the
            reference; None of one pair.
    """

    count: int
    difference: float
    interval: tuple[float, float] | None
    p_value: float | None
    within_deviation: bool | None


def _numbers(name: str, values: Sequence[float]) -> list[float]:
    found = list(values)
    for value in found:
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            bad_type(name, value, "finite numbers")
        if not math.isfinite(value):
            bad_value(name, f"has {value}; accepted: finite numbers")
    if not found:
        bad_value(name, "is empty; accepted: at least one number")
    return [float(value) for value in found]


def summarize(scores: Sequence[float]) -> Summary:
    """Computes mean and sample standard deviation.

    Raises:
        TypeError: a score is no number.
        ValueError: there are no scores, or one is not finite.
    """
    found = _numbers("scores", scores)
    deviation = statistics.stdev(found) if len(found) > 1 else None
    return Summary(len(found), statistics.fmean(found), deviation)


def compare_paired(scores: Sequence[float], reference: Sequence[float]) -> PairedComparison:
    """Compares scores with those of a reference, pair by pair.

    Args:
        scores: the scores in question, one for each seed.
        reference: the scores of the reference from the same seeds, in the same order.

    Raises:
        TypeError: a score is no number.
        ValueError: there are no scores, one is not finite, or they are not equally many.
    """
    ours, theirs = _numbers("scores", scores), _numbers("reference", reference)
    if len(ours) != len(theirs):
        bad_value("reference", f"has {len(theirs)} scores; accepted: {len(ours)}, as many as `scores`")
    differences = [a - b for a, b in zip(ours, theirs, strict=True)]
    mean = statistics.fmean(differences)
    if len(differences) == 1:
        return PairedComparison(1, mean, None, None, None)
    within = abs(mean) <= statistics.stdev(theirs)
    if len(set(differences)) == 1:  # the test divides by their deviation
        p_value = 0.0 if differences[0] else 1.0
        return PairedComparison(len(differences), differences[0], (mean, mean), p_value, within)
    from scipy import stats  # half a second of imports

    with warnings.catch_warnings():
        # scipy warns where rounding may decide, of differences that are nearly equal.
        warnings.simplefilter("ignore", RuntimeWarning)
        test = stats.ttest_rel(ours, theirs)
    low, high = test.confidence_interval(_CONFIDENCE)
    return PairedComparison(len(differences), mean, (float(low), float(high)), float(test.pvalue), within)


def holm(p_values: Sequence[float]) -> list[float]:
    """Corrects the p-values of several tests, so that the chance of any false alarm stays below the level.

    Holm, "A simple sequentially rejective multiple test procedure", Scandinavian Journal of Statistics 1979:
    the smallest of m values is multiplied by m, the next by m - 1, and so on; a value is at least the one
    before it, and at most 1.

    Args:
        p_values: the p-values, in any order; none are accepted.

    Returns:
        The corrected values in the order of the given ones.

    Raises:
        TypeError: a value is no number.
        ValueError: a value is not in [0, 1].
    """
    found = _numbers("p_values", p_values) if len(p_values) else []
    for value in found:
        if not 0 <= value <= 1:
            bad_value("p_values", f"has {value}; accepted: numbers from 0 to 1")
    corrected, largest = [0.0] * len(found), 0.0
    for rank, index in enumerate(sorted(range(len(found)), key=found.__getitem__)):
        largest = max(largest, min(1.0, (len(found) - rank) * found[index]))
        corrected[index] = largest
    return corrected


def cross_validated(curves: Sequence[Sequence[float]]) -> tuple[int, Summary]:
    """Returns the epoch with the best mean score over the folds of a cross-validation, and the scores there.

    It is the protocol of Xu et al. (2019, section 7): one epoch is chosen for all folds. The folds that
    choose it are those that it is scored on, so that the mean is slightly too good.

    Args:
        curves: for each fold the score of each epoch on that fold, of which larger values are better; as many
            epochs in each.

    Returns:
        The epoch, counted from 1, the first one among equals; and a summary of the folds' scores.

    Raises:
        TypeError: a score is no number.
        ValueError: there is no fold or no epoch, folds have different numbers of epochs, or a score is not
            finite.
    """
    folds = [_numbers("curves", curve) for curve in curves]
    if not folds or not folds[0] or any(len(fold) != len(folds[0]) for fold in folds):
        bad_value("curves", f"have {[len(fold) for fold in folds]} epochs; accepted: as many in each fold")
    means = [statistics.fmean(scores) for scores in zip(*folds, strict=True)]
    best = means.index(max(means))
    return best + 1, summarize([fold[best] for fold in folds])
