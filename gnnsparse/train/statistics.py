"""Statistics of scores over seeds: mean and deviation, a paired comparison, and Holm's correction."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gnnsparse.errors import bad_type, bad_value

__all__ = ["LEAST_PAIRS", "compare_paired", "cross_validated", "holm", "smallest_p_value", "summarize"]

#: Pairs of scores below which nothing is said of significance.
LEAST_PAIRS = 5
#: Probability with which the interval of a difference holds the true one.
_CONFIDENCE = 0.95
#: Sign patterns up to which all are counted, those of 16 pairs; of more pairs this many are drawn.
_PATTERNS = 2**16
#: Sign patterns that are held in memory at a time.
_BATCH = 2**10
#: The rounding of a score, relative to it: models are scored in float32.
_ROUNDING = 2.0**-24


@dataclass(frozen=True)
class Summary:
    """The number of scores of equal runs, their mean, and their sample deviation; None of one score."""

    count: int
    mean: float
    standard_deviation: float | None


@dataclass(frozen=True)
class PairedComparison:
    """Scores beside those of a reference from the same seeds.

    Attributes:
        count: number of pairs.
        difference: mean of score minus reference.
        interval: lower and upper end of the 95 % confidence interval of the difference, by Student's t, which
            takes differences to be normally distributed; None of fewer than LEAST_PAIRS pairs, and where all
            differences are equal, since the interval comes from their spread.
        p_value: probability of a mean difference at least as large, in either direction, if each pair could
            as well have been the other way round: the paired permutation test (Fisher 1935), over all 2^count
            patterns of signs up to 16 pairs and over 65,536 drawn ones of more. It takes no distribution for
            granted, and differences may be equal. None of fewer than LEAST_PAIRS pairs.
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
    """Compute mean and sample standard deviation of finite numbers; TypeError or ValueError for others."""
    found = _numbers("scores", scores)
    deviation = statistics.stdev(found) if len(found) > 1 else None
    return Summary(len(found), statistics.fmean(found), deviation)


def compare_paired(scores: Sequence[float], reference: Sequence[float]) -> PairedComparison:
    """Compare scores with those of a reference from the same seeds, in the same order.

    Raises:
        TypeError: a score is no number.
        ValueError: there are no scores, one is not finite, or they are not equally many.
    """
    ours, theirs = _numbers("scores", scores), _numbers("reference", reference)
    if len(ours) != len(theirs):
        bad_value("reference", f"has {len(theirs)} scores; accepted: {len(ours)}, as many as `scores`")
    count, differences = len(ours), np.subtract(ours, theirs)
    mean = float(differences.mean())
    within = abs(mean) <= statistics.stdev(theirs) if count > 1 else None
    if count < LEAST_PAIRS:
        return PairedComparison(count, mean, None, None, within)
    # Equal numbers of nodes make scores that differ in their last bits, and so do sums of their differences.
    rounding = 2 * _ROUNDING * max(map(abs, [*ours, *theirs]))
    return PairedComparison(
        count, mean, _interval(differences, rounding), _permutation_test(differences, rounding), within
    )


def _interval(differences: Any, rounding: float) -> tuple[float, float] | None:
    if np.ptp(differences) <= 2 * rounding:
        return None
    from scipy import stats  # half a second of imports

    low, high = stats.ttest_1samp(differences, 0.0).confidence_interval(_CONFIDENCE)
    return float(low), float(high)


def _permutation_test(differences: Any, rounding: float) -> float:
    """Return the fraction of sign patterns with a sum as large as that of differences, but for rounding."""
    from scipy import stats

    large = abs(differences.sum()) - 2 * rounding * len(differences)

    def is_large(signed: Any, axis: int) -> Any:
        return (abs(signed.sum(axis)) >= large).astype(float)

    found = stats.permutation_test(
        (differences,), is_large, permutation_type="samples", alternative="greater",
        n_resamples=_PATTERNS, batch=_BATCH, vectorized=True, rng=0,
    )  # fmt: skip
    return float(found.pvalue)


def smallest_p_value(count: int) -> float:
    """Return the smallest p-value of `compare_paired` for `count` pairs: all differences have one sign."""
    return max(2.0 ** (1 - count), 1 / (_PATTERNS + 1))


def holm(p_values: Sequence[float]) -> list[float]:
    """Correct the p-values of several tests, so that the chance of any false alarm stays below the level.

    Holm, "A simple sequentially rejective multiple test procedure", Scandinavian Journal of Statistics 1979:
    the smallest of m values is multiplied by m, the next by m - 1, and so on; a value is at least the one
    before it, and at most 1. The corrected values come in the order of the given ones, which may be none.

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
    """Return the epoch with the best mean score over the folds of a cross-validation, and the scores there.

    It is the protocol of Xu et al. (2019, section 7): one epoch, counted from 1, the first one among equals,
    is chosen for all folds, by the score of each of its epochs on each fold, of which larger values are
    better. The folds that choose it are those that it is scored on, so that the mean is slightly too good.

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
