"""SpMM into memory that the caller has: columns of a wider result, in a dtype of its own."""

from __future__ import annotations

from itertools import product

import pytest
import torch

import gnnsparse
from gnnsparse import SparseOperand, _native
from gnnsparse.ops.spmm_kernels import bind_spmm, spmm_into
from gnnsparse.plan import Plan
from gnnsparse.runtime.memo import Launchable
from gnnsparse.sparse.kernel_cache import Product
from gnnsparse.testing import random_graph
from tests.gpu_paths import RunningPath
from tests.helpers import make
from tests.ops.conftest import Place


def check(a: SparseOperand, dtype: torch.dtype) -> None:
    """Products beside and added to what was there have the bits of products by themselves."""
    rows, columns = a.shape
    for given in dict.fromkeys((a.precision.storage, torch.float32)):
        # From column 0 on results are whole chunks, from column 41 on they begin between two vectors.
        for parts, width in (((slice(0, 40), slice(40, 64)), 64), ((slice(41, 65), slice(1, 41)), 67)):
            x = torch.randn(columns, width, device=a.device).to(given)
            y = torch.randn(rows, width + 8, device=a.device).to(dtype)
            written, before = y.clone(), y.clone()
            wanted = y.clone()
            for part in parts:
                product = gnnsparse.spmm(a, x[:, part].float()).to(dtype)
                wanted[:, part] = product
                spmm_into(a, x[:, part], written[:, part])
                before[:, part] += product
                spmm_into(a, x[:, part], y[:, part], add=True)
            assert torch.equal(written, wanted)
            assert torch.equal(y, before)


@pytest.mark.parametrize(
    ("precision", "format"), [*product(("fp32", "fp16"), ("auto", "window")), ("fp16", "me-bcrs")]
)
def test_on_the_cpu(precision: str, format: str) -> None:
    graph = random_graph(60, 60, 0.1, seed=3, weighted=False, empty_rows=0.2)
    a = gnnsparse.prepare(graph, precision=precision, values="mean", format=format, cache=False)
    for dtype in (torch.float32, torch.float16):
        check(a, dtype)


def test_an_empty_matrix_gives_zeros(native: RunningPath) -> None:
    a = make(random_graph(5, 6, 0.0), "cpu")
    y = torch.ones(5, 8)
    spmm_into(a, torch.randn(6, 4), y[:, :4])
    assert torch.equal(y, torch.tensor([0.0] * 4 + [1.0] * 4).expand(5, 8))
    spmm_into(a, torch.randn(6, 4), y, add=True)
    assert torch.equal(y, torch.tensor([0.0] * 4 + [1.0] * 4).expand(5, 8))


@pytest.mark.parametrize("precision", ["int8", "fp8"])
def test_of_eight_bits(precision: str) -> None:
    graph = random_graph(60, 60, 0.1, seed=3, weighted=False, empty_rows=0.2)
    a = gnnsparse.prepare(graph, precision=precision, values="gcn", cache=False)
    x, y = torch.randn(60, 24), torch.randn(60, 30)
    expected = y.clone()
    expected[:, :24] += gnnsparse.spmm(a, x)
    spmm_into(a, x, y[:, :24], add=True)
    assert torch.equal(y, expected)


PANELS = [
    Plan("panel", height=height, tile_limit=1 if cut else 1000, prescale=cut)
    for height, cut in product(_native.SPMM_PANEL_BLOCKS, (True, False))
]


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("plan", [*PANELS, Plan("csr"), Plan("window")], ids=str)
@pytest.mark.parametrize("values", [None, "gcn"])
def test_kernels_add_to_what_is_there(
    gpu_place: Place, precision: str, plan: Plan, values: str | None
) -> None:
    """Panels in the kernel itself, which writes to no memory but the result; in one piece and cut."""
    if plan.kernel == "window" and precision == "fp32":
        pytest.skip("the window kernel has no fp32")
    graph = random_graph(90, 90, 0.06, weighted=False, hubs=2, empty_rows=0.2)
    a = make(graph, gpu_place.device, precision=precision, values=values)
    for width in (40, 24):
        a.kernels.use_plan(Product("spmm", width), plan)
    for dtype in dict.fromkeys((torch.float32, torch.float16, a.precision.storage)):
        check(a, dtype)
    assert gpu_place.ran(f"cuda_spmm_{plan.kernel}")
    if plan.kernel != "panel":
        return
    x, y = (torch.zeros(90, 24, device=a.device) for _ in range(2))
    run = bind_spmm(a.kernels, x, None)
    assert isinstance(run, Launchable)
    assert run.adds
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "empty_like", None)  # of which the other way would need one
        spmm_into(a, x, y, add=True)
