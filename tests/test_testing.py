"""The accuracy rule: what it allows, what it does not, and sums that cancel."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from gnnsparse.testing import (
    assert_accurate,
    assert_all_accurate,
    in_float64,
    measure_errors,
    rounding_errors,
    with_gradients,
)

ROWS = torch.tensor([3, 3, 0])
EXACT = torch.linspace(1, 2, 100, dtype=torch.float64)


def off_by(error: float, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return (EXACT * (1 + error)).to(dtype)


def cancelling() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The exact sum of terms that cancel, a sum that is off by a rounding of a term, and their scale."""
    terms = torch.tensor([1000.0, -1000.0, 1.0], dtype=torch.float64)
    exact = terms.sum().reshape(1)
    return exact, exact + 2**-24 * 1000, terms.norm().reshape(1)


SUM, OFF, SCALE = cancelling()
ZERO, TERMS = torch.zeros(1, dtype=torch.float64), torch.full((1,), 100.0)
NAN = EXACT.where(torch.arange(100) != 3, torch.nan)


@pytest.mark.parametrize(
    ("actual", "plain", "exact", "options", "ok"),
    [
        pytest.param(off_by(1.9e-4), off_by(1e-4), EXACT, {}, True, id="twice the error of a plain run"),
        pytest.param(off_by(2.1e-4), off_by(1e-4), EXACT, {}, False, id="more"),
        pytest.param(off_by(2.9e-4), off_by(1e-4), EXACT, {"factor": 3.0}, True, id="three times"),
        pytest.param(NAN, NAN, EXACT, {}, False, id="NaN"),
        pytest.param(ZERO, ZERO, ZERO, {}, True, id="a zero"),
        pytest.param(ZERO + 1e-5, ZERO, ZERO, {}, False, id="no zero"),
        pytest.param(OFF, SUM, SUM, {}, False, id="terms cancel"),
        pytest.param(OFF, SUM, SUM, {"scale": SCALE}, True, id="of this size"),
        pytest.param(SUM + 1e-5 * SCALE, SUM, SUM, {"scale": SCALE}, False, id="off by more than their size"),
        pytest.param(ZERO + 5e-5, ZERO, ZERO, {"scale": TERMS}, True, id="a zero of large terms"),
        pytest.param(ZERO + 2e-4, ZERO, ZERO, {"scale": TERMS}, False, id="no zero of large terms"),
        pytest.param(EXACT[:0], EXACT[:0], EXACT[:0], {}, True, id="nothing"),
    ],
)
def test_what_is_allowed(
    actual: torch.Tensor, plain: torch.Tensor, exact: torch.Tensor, options: dict[str, Any], ok: bool
) -> None:
    assert measure_errors(actual, plain, exact, **options).ok == ok


@pytest.mark.parametrize(
    ("dtype", "floor"), [(torch.float32, 1e-6), (torch.float16, 4 * 2**-10), (torch.bfloat16, 4 * 2**-7)]
)
def test_a_few_roundings_are_allowed_where_the_plain_run_is_exact(dtype: torch.dtype, floor: float) -> None:
    right = off_by(0, dtype)
    assert measure_errors(right, right, right.double()).allowed == (floor, floor)
    assert measure_errors(off_by(2 * floor, dtype), right, right.double(), floor=3 * floor).ok
    assert not measure_errors(off_by(2 * floor, dtype), right, right.double()).ok


def test_one_wrong_element_is_seen() -> None:
    """It hardly shows in the norm of many."""
    wrong = EXACT.repeat(100)
    exact = wrong.clone()
    wrong[5] += 1e-5
    errors = measure_errors(wrong, exact, exact)
    assert errors.actual[0] < errors.allowed[0]
    assert not errors.ok


def test_a_scale_allows_no_more_where_nothing_cancels() -> None:
    scale = EXACT / 3  # nine equal terms
    assert measure_errors(EXACT, EXACT, EXACT, scale=scale).allowed == (1e-6, 1e-6)


@pytest.mark.parametrize("terms", [10, 1000])
@pytest.mark.parametrize("shift", [0.0, 2.0])
def test_rounding_errors_are_those_of_sums_in_any_order(terms: int, shift: float) -> None:
    """Of float32 sums that are taken one term after another, with terms of one sign or of both."""
    x, y = torch.randn(50, terms) + shift, torch.randn(terms)
    y = y.abs() if shift else y
    exact = x.double() @ y.double()
    (estimate,) = rounding_errors(lambda: [x.double() @ y.double()])
    total = torch.zeros(50)
    for i in torch.randperm(terms):
        total = total + x[:, i] * y[i]
    ratio = (total.double() - exact).norm() / estimate.norm()
    assert 0.5 < ratio < 2


def test_what_float32_holds_has_no_rounding_error() -> None:
    x = torch.randint(-99, 99, (20, 30)).double()
    for compute in (lambda: x @ x.T, lambda: x.sum(1), lambda: x / 4, lambda: (x * x).index_select(0, ROWS)):
        assert not rounding_errors(lambda compute=compute: [compute()])[0].any()


def softmax_of(x: torch.Tensor, offset: float) -> torch.Tensor:
    """Of rows whose elements are all larger by an offset, which changes the size of rounding errors alone."""
    scores = 1.3 * (x + offset)
    weights = (scores - scores.amax(1, keepdim=True)).exp()
    return weights / weights.sum(1, keepdim=True)


def test_rounding_errors_grow_with_the_condition() -> None:
    """Those of a softmax grow with its scores, and those of a difference with what cancels, in gradients."""
    x = torch.randn(40, 30)
    small, large = (rounding_errors(lambda c=c: [softmax_of(x.double(), c)])[0].norm() for c in (0.1, 100.1))
    assert 10 * small < large < 1000 * small

    def gradient() -> list[torch.Tensor]:
        leaf = x.double().requires_grad_()
        return list(torch.autograd.grad(((leaf.exp() - 1) - leaf.exp()).square().sum(), [leaf]))

    assert rounding_errors(gradient)[0].norm() > 1e-7


def test_a_plain_run_that_is_exact_by_luck() -> None:
    """Its error is not asked for where the computation has a larger one; others stay errors."""
    x = torch.randn(40, 30)

    def compute() -> torch.Tensor:
        return softmax_of(x.double(), 100.1)

    exact = compute()
    got = softmax_of(x, 100.1)
    lucky = exact.float()
    with pytest.raises(AssertionError, match="exceeds"):
        assert_accurate(got, lucky, exact)
    assert_accurate(got, lucky, compute)
    rounded = softmax_of(x.bfloat16().float(), 100.1)
    lost = got.clone()
    lost[3, int(exact[3].argmax())] = 0.0
    for wrong in (got * (1 + 1e-3), rounded, lost):
        with pytest.raises(AssertionError, match="exceeds"):
            assert_accurate(wrong, lucky, compute)
        with pytest.raises(AssertionError, match=r"result 1: .* exceeds"):
            assert_all_accurate([got, wrong], [lucky, lucky], lambda: [compute(), compute()])


def test_shapes_are_compared() -> None:
    with pytest.raises(ValueError, match="actual: shapes differ"):
        measure_errors(EXACT[:5], EXACT, EXACT)
    with pytest.raises(ValueError, match=r"scale: has shape \(1,\); accepted: \(100,\), as exact"):
        measure_errors(EXACT, EXACT, EXACT, scale=torch.ones(1))


def test_a_failure_says_by_how_much_and_which_result() -> None:
    with pytest.raises(AssertionError, match=r"^relative error \(Frobenius, largest\) \(0\.1"):
        assert_accurate(off_by(0.1), EXACT, EXACT)
    with pytest.raises(AssertionError, match=r"^result 1: relative error"):
        assert_all_accurate([EXACT, off_by(0.1)], [EXACT, EXACT], [EXACT, EXACT])
    with pytest.raises(ValueError, match="argument 2 is shorter"):
        assert_all_accurate([EXACT, EXACT], [EXACT], [EXACT, EXACT])


def test_gradients_of_inputs_and_parameters() -> None:
    linear = torch.nn.Linear(3, 2)
    x = torch.randn(5, 3)
    y, of_x, of_weight, of_bias = with_gradients(linear, [x], linear.parameters())
    probe = torch.randn(5, 2, generator=torch.Generator().manual_seed(0))
    assert torch.equal(y, linear(x))
    assert_all_accurate(
        [of_x, of_weight, of_bias],
        [probe @ linear.weight, probe.T @ x, probe.sum(0)],
        [probe.double() @ linear.weight.double(), probe.double().T @ x.double(), probe.double().sum(0)],
    )
    assert x.grad is None
    assert all(p.grad is None for p in linear.parameters())


def test_the_gradient_of_the_result_is_the_same_in_every_dtype() -> None:
    x = torch.randn(4, 3)
    assert torch.equal(
        with_gradients(torch.clone, [x])[1], with_gradients(torch.clone, [x.double()])[1].float()
    )


def test_a_module_comes_back_from_float64_as_it_was() -> None:
    norm = torch.nn.BatchNorm1d(3).eval()
    before = {name: value.clone() for name, value in norm.state_dict().items()}
    with in_float64(norm) as wide:
        assert wide is norm
        assert norm.weight.dtype == norm.running_mean.dtype == torch.float64
    with pytest.raises(RuntimeError, match="running_mean"), in_float64(norm):
        norm(torch.ones(2, 4, dtype=torch.float64))
    for name, value in norm.state_dict().items():
        assert value.dtype == before[name].dtype
        assert torch.equal(value, before[name])
