"""Statistics over seeds: against definitions, against numbers worked out by hand, and by their laws."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from gnnsparse.train.statistics import (
    LEAST_PAIRS,
    compare_paired,
    cross_validated,
    holm,
    smallest_p_value,
    summarize,
)

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
