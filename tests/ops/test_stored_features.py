"""Features that are stored in 8 bits before their products."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch

import gnnsparse
from gnnsparse.plan import Plan
from gnnsparse.testing import random_graph
from tests.gpu_paths import RunningPath
from tests.helpers import make
from tests.ops.quantized import EIGHT_BITS, rounding_bound

PRECISIONS = tuple(EIGHT_BITS)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("weights", ["stored", None, "gcn"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("width", [0, 7, 64])
def test_products_are_those_of_x(
    device: str, precision: str, weights: str | None, dtype: torch.dtype, width: int
) -> None:
    graph = random_graph(60, 60, 0.1, weighted=weights == "stored", hubs=2)
    a = make(graph, device, precision=precision, values=None if weights == "stored" else weights)
    x = torch.randn(60, width, device=device).to(dtype)
    for seed in (None, 3):
        stored = gnnsparse.store_features(a, x, seed=seed)
        assert (stored.shape, stored.dtype, stored.device) == (x.shape, dtype, x.device)
        y = a @ stored
        assert y.dtype == dtype
        assert torch.equal(y, gnnsparse.spmm(a, x, seed=seed))
        mean = gnnsparse.spmm(a, stored, reduce="mean", impl=torch.device(device).type)
        assert torch.equal(mean, gnnsparse.spmm(a, x, reduce="mean", seed=seed))


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("plan", [Plan("panel", height=32, tile_limit=2), Plan("csr"), None])
def test_on_the_path_of_a_gpu(native: RunningPath, precision: str, plan: Plan | None) -> None:
    a = make(random_graph(60, 60, 0.1, weighted=False, hubs=2), "cpu", precision=precision, values="gcn")
    x = torch.randn(60, 40)
    stored = gnnsparse.store_features(a, x)
    assert native.called == {"cuda_quantize"}
    assert torch.equal(gnnsparse.spmm(a, stored, plan=plan), gnnsparse.spmm(a, x, plan=plan))


@pytest.mark.parametrize("precision", PRECISIONS)
def test_what_it_says_of_itself(device: str, precision: str) -> None:
    a = make(random_graph(30, 30, 0.1, weighted=False), device, precision=precision, values="gcn")
    x = torch.randn(30, 20)
    stored = gnnsparse.store_features(a, x.to(device))
    weights = a.kernels.given_col_scale
    assert weights is not None
    weighted = x * weights.cpu()[:, None]
    error = (stored.dequantize().cpu() - x).double().abs() * weights.cpu().double()[:, None]
    assert (error <= rounding_bound(weighted, precision) + 1e-6).all()
    assert stored.nbytes == 30 * 32 + 4 * 32
    assert f"30 x 20, {precision}" in repr(stored)
    assert copy.deepcopy(stored) is stored
    with pytest.raises(TypeError, match="store X again"):
        pickle.dumps(stored)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_x_may_change_and_another_operand_may_multiply(device: str, precision: str) -> None:
    a, b = (
        make(random_graph(30, 30, 0.1, weighted=False, seed=s), device, precision=precision) for s in (1, 2)
    )
    x = torch.randn(30, 20, device=device)
    stored, wanted = gnnsparse.store_features(a, x), [a @ x, b @ x]
    x.zero_()
    assert all(torch.equal(y, w) for y, w in zip((a @ stored, b @ stored), wanted, strict=True))


X = torch.zeros(9, 4)
BAD: dict[str, tuple[Callable[[Any, Any], Any], type[Exception], str]] = {
    "precision": (lambda a, s: make(random_graph(9, 9, 0.2), "cpu", precision="fp16") @ s,
                  ValueError, "A: is in fp16; accepted: an operand in int8 or fp8"),
    "other bits": (lambda a, s: make(random_graph(9, 9, 0.2), "cpu", precision="fp8") @ s,
                   ValueError, "x: is stored in int8; accepted: fp8"),
    "rows": (lambda a, s: make(random_graph(9, 5, 0.2), "cpu", precision="int8") @ s,
             ValueError, r"x: has shape \(9, 4\); accepted: \(5, any\)"),
    "weights": (lambda a, s: make(random_graph(9, 9, 0.2), "cpu", precision="int8") @ s,
                ValueError, "x: was stored with other column weights"),
    "values": (lambda a, s: gnnsparse.spmm(a, s, torch.ones(a.nnz)), ValueError, "values: is given"),
    "seed": (lambda a, s: gnnsparse.spmm(a, s, seed=1), ValueError, "seed: is given"),
    "reduce": (lambda a, s: gnnsparse.spmm(a, s, reduce="max"), ValueError, "reduce: got 'max' with stored"),
    "impl": (lambda a, s: gnnsparse.spmm(a, s, impl="reference"), ValueError, "impl: got 'reference'"),
    "operand": (lambda a, s: X @ s, TypeError, "A: got a tensor"),
    "store operand": (lambda a, s: gnnsparse.store_features(X, X), TypeError, "A: got a tensor"),  # type: ignore[arg-type]
    "store precision": (lambda a, s: gnnsparse.store_features(make(random_graph(9, 9, 0.2), "cpu"), X),
                        ValueError, "A: is in fp32; accepted: an operand in int8 or fp8"),
    "store rows": (lambda a, s: gnnsparse.store_features(a, X[:5]), ValueError, "x: has shape"),
    "store dtype": (lambda a, s: gnnsparse.store_features(a, X.double()), TypeError, "x: got"),
    "store seed": (lambda a, s: gnnsparse.store_features(a, X, seed=-1), ValueError, "seed: got -1"),
    "gradient": (lambda a, s: gnnsparse.store_features(a, X.clone().requires_grad_()),
                 ValueError, r"x: requires a gradient.*accepted: x.detach\(\)"),
    "vmap": (lambda a, s: torch.vmap(lambda x: gnnsparse.store_features(a, x))(torch.zeros(2, 9, 4)),
             ValueError, "x: a transform"),
    "product in vmap": (lambda a, s: torch.vmap(lambda x: (a @ s) + x)(torch.zeros(2, 9, 4)),
                        TypeError, "x: got StoredFeatures; accepted: a tensor inside"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_what_is_refused(case: str) -> None:
    a = make(random_graph(9, 9, 0.2, weighted=False), "cpu", precision="int8", values="gcn")
    call, error, message = BAD[case]
    with pytest.raises(error, match=message):
        call(a, gnnsparse.store_features(a, X))


def test_without_gradients_x_may_require_one() -> None:
    a = make(random_graph(9, 9, 0.2), "cpu", precision="int8")
    with torch.no_grad():
        stored = gnnsparse.store_features(a, torch.randn(9, 4, requires_grad=True))
    assert not (a @ stored).requires_grad
