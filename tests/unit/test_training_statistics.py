"""Statistics over seeds: against scipy, against numbers worked out by hand, and by their laws."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from gnnsparse.training.statistics import compare_paired, cross_validated, holm, summarize

SCORES = st.floats(0, 100, allow_nan=False).map(lambda x: round(x, 3))
PROBABILITIES = st.lists(st.floats(0, 1), max_size=12)


def test_mean_and_sample_deviation() -> None:
    found = summarize([1.0, 2.0, 3.0, 6.0])
    assert (found.count, found.mean) == (4, 3.0)
    assert found.standard_deviation == pytest.approx(math.sqrt(14 / 3))
    assert summarize([5.0]).standard_deviation is None


@given(st.lists(st.tuples(SCORES, SCORES), min_size=2, max_size=20))
def test_the_paired_test_is_that_of_students_t(pairs: list[tuple[float, float]]) -> None:
    """The statistic and its distribution, from the definition."""
    ours, theirs = zip(*pairs, strict=True)
    found, differences = compare_paired(ours, theirs), np.subtract(ours, theirs)
    assert found.count == len(pairs)
    assert found.difference == pytest.approx(float(differences.mean()), abs=1e-9)
    deviation = np.std(theirs, ddof=1)
    if abs(abs(found.difference) - deviation) > 1e-9:  # equal ones differ by rounding
        assert found.within_deviation == (abs(found.difference) <= deviation)
    error = differences.std(ddof=1) / math.sqrt(len(pairs))
    if error < 1e-9:
        return
    statistic, freedom = differences.mean() / error, len(pairs) - 1
    assert found.p_value == pytest.approx(2 * stats.t.sf(abs(statistic), freedom), abs=1e-9)
    assert found.interval is not None
    reach = stats.t.ppf(0.975, freedom) * error
    assert found.interval == pytest.approx((differences.mean() - reach, differences.mean() + reach), abs=1e-6)


def test_a_known_case() -> None:
    """Differences 1, 2, 3: mean 2, error 1 / sqrt(3), t = 3.4641 with 2 degrees of freedom."""
    found = compare_paired([11.0, 22.0, 33.0], [10.0, 20.0, 30.0])
    assert found.p_value == pytest.approx(0.0741799, abs=1e-6)
    assert found.interval == pytest.approx(
        (2 - 4.302653 / math.sqrt(3), 2 + 4.302653 / math.sqrt(3)), abs=1e-5
    )
    assert found.within_deviation


def test_pairs_without_spread() -> None:
    same = compare_paired([80.0, 80.0, 80.0], [80.0, 80.0, 80.0])
    assert (same.difference, same.p_value, same.interval, same.within_deviation) == (
        0.0,
        1.0,
        (0.0, 0.0),
        True,
    )
    shifted = compare_paired([81.0, 82.0], [80.0, 81.0])
    assert (shifted.difference, shifted.p_value) == (1.0, 0.0)
    single = compare_paired([81.0], [80.0])
    assert (single.difference, single.p_value, single.interval, single.within_deviation) == (
        1.0,
        None,
        None,
        None,
    )


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
    assert holm([]) == []
    with pytest.raises(ValueError, match=r"p_values: has 1.5"):
        holm([1.5])


@given(PROBABILITIES)
def test_laws_of_holm(values: list[float]) -> None:
    corrected = holm(values)
    for raw, value in zip(values, corrected, strict=True):
        assert raw <= value <= min(1.0, len(values) * raw) or value == pytest.approx(raw)
    by_raw: Any = sorted(zip(values, corrected, strict=True))
    assert [value for _, value in by_raw] == sorted(corrected)
    # A hypothesis falls at a level exactly if Holm's step-down procedure rejects it.
    for level in (0.01, 0.05, 0.5):
        rejected = 0
        for rank, raw in enumerate(sorted(values)):
            if (len(values) - rank) * raw > level:
                break
            rejected += 1
        assert sum(value <= level for value in corrected) == rejected


def test_one_epoch_for_all_folds() -> None:
    """Each fold is best in another epoch; their mean is best in the third, and as good in the fourth."""
    curves = [[0.5, 0.9, 0.6, 0.6], [0.7, 0.4, 0.8, 0.8], [0.6, 0.5, 0.7, 0.7]]
    epoch, scores = cross_validated(curves)
    assert (epoch, scores.count) == (3, 3)
    assert scores.mean == pytest.approx(0.7)
    assert scores.standard_deviation == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("curves", "message"),
    [
        ([], r"curves: have \[\] epochs; accepted: as many in each fold"),
        ([[1.0], [1.0, 2.0]], r"curves: have \[1, 2\] epochs"),
        ([[1.0], []], "curves: is empty"),
        ([[math.nan]], "curves: has nan"),
    ],
)
def test_curves_that_are_refused(curves: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        cross_validated(curves)
