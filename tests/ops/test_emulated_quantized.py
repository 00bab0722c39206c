"""The CUDA sources of products with an X of 8 bits, run on the CPU, against integers and float64."""

from __future__ import annotations

import pytest
import torch

import gnnsparse
from gnnsparse import Precision, _native
from gnnsparse.ops import quantization
from gnnsparse.ops.quantization import quantize, store
from gnnsparse.plan import PanelPlan, Plan
from gnnsparse.testing import assert_accurate, random_graph
from tests.gpu_paths import RunningPath
from tests.helpers import make, product_scale
from tests.ops.test_quantized_spmm import parts_of
from tests.quantized import EIGHT_BITS, stored

PRECISIONS = tuple(EIGHT_BITS)
HEIGHTS = tuple((p, h) for p in PRECISIONS for h in _native.INTEGER_SUM_ROWS)


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("weights", [None, "gcn", "mean"])
@pytest.mark.parametrize("height", [16, 32])
@pytest.mark.parametrize(
    ("limit", "slices", "together"), [(1, 2, 0), (3, 4, 0), (1000, 2, 0), (1000, 4, 3), (2, 2, 2)]
)
def test_integers_add_up_exactly(
    native: RunningPath, weights: str | None, height: int, limit: int, slices: int, together: int
) -> None:
    """Panels in one piece and cut, with an odd number of K tiles, one slice a warp and two, and turned."""
    graph = random_graph(90, 90, 0.1, weighted=False, hubs=2, empty_rows=0.2)
    a = make(graph, "cpu", precision="int8", values=weights, reorder="degree")
    plan = Plan(
        "panel", height=height, tile_limit=limit, slices=slices, longest_first=limit == 1,
        concurrent_panels=together,
    )  # fmt: skip
    matrix, by_row, by_column = parts_of(a)
    row_ids = a.kernels.row_ids
    if row_ids is not None and a.kernels.row_scale is not None:
        by_row = torch.empty(90).index_copy(0, row_ids.long(), by_row)
    for width in (7, 128, 300):
        x = torch.randn(90, width) * torch.logspace(-2, 2, width)
        numbers, scale = stored(x * by_column[:, None], "int8")
        wanted = (matrix @ numbers.double()).float() * scale * by_row[:, None]
        assert torch.equal(gnnsparse.spmm(a, x, plan=plan), wanted)
    assert {"cuda_quantize", "cuda_spmm_quantized"} <= set(native.called)


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize(("precision", "height"), HEIGHTS)
@pytest.mark.parametrize("weights", ["stored", None, "gcn"])
@pytest.mark.parametrize("limit", [1, 2, 1000])
def test_panels(native: RunningPath, precision: str, height: int, weights: str | None, limit: int) -> None:
    """Bits and stored values. Panels have 16 rows whatever the plan says, but for sums of integers."""
    graph = random_graph(75, 75, 0.15, weighted=weights == "stored", hubs=2, empty_rows=0.2)
    a = make(graph, "cpu", precision=precision, values=None if weights == "stored" else weights)
    matrix, by_row, by_column = parts_of(a)
    for width, dtype in ((1, torch.float32), (72, torch.float16), (136, torch.float32), (72, torch.bfloat16)):
        x = torch.randn(75, width).to(dtype)
        numbers, scale = stored(x.float() * by_column[:, None], precision)
        whole, dense = by_row.double()[:, None] * matrix, numbers.double() * scale.double()
        y = gnnsparse.spmm(a, x, plan=Plan("panel", height=height, tile_limit=limit))
        assert y.dtype == dtype
        # Tensor Cores cut off what a float32 sum has no room for.
        plain = (whole.float() @ dense.float()).to(dtype)
        assert_accurate(y, plain, whole @ dense, floor=max(2e-6, 4 * torch.finfo(dtype).eps),
                        scale=product_scale(whole, dense))  # fmt: skip
    assert "cuda_spmm_quantized" in native.called


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("seed", [None, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_numbers_and_scales(
    native: RunningPath, precision: str, weighted: bool, seed: int | None, dtype: torch.dtype
) -> None:
    for shape, layout in (((50, 37), 1), ((3, 1), 1), ((70, 64), 1), ((33, 130), 2), ((33, 20), 0)):
        whole = (torch.randn(shape[0], shape[1] * max(layout, 1)) * 3).to(dtype)
        x = whole[:, : shape[1]] if layout else whole.T.contiguous().T
        weights = torch.rand(shape[0]) + 0.1 if weighted else None
        found = store(x, Precision(precision), weights, seed)
        numbers, scale = quantize(x, Precision(precision), weights, seed)
        kind = torch.int8 if precision == "int8" else torch.float8_e4m3fn
        assert torch.equal(found.numbers.view(kind).float()[:, : shape[1]], numbers)
        assert torch.equal(found.scale[: shape[1]], scale)
        assert (found.numbers[:, shape[1] :] == 0).all()
    assert native.called == {"cuda_quantize"}


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    ("width", "stride"), [(64, 64), (24, 32), (18, 18), (18, 20), (13, 13), (2064, 2064)]
)
@pytest.mark.parametrize("parts", [1, 3, 7, 500])
def test_rows_in_any_number_of_parts(
    native: RunningPath, monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, width: int, stride: int,
    parts: int,
) -> None:  # fmt: skip
    """Reads of 16 and 4 bytes and of elements; threads with whole and broken batches of rows, or none."""
    monkeypatch.setattr(quantization, "_parts", lambda *_: parts)
    x = (torch.randn(45, stride) * torch.logspace(-1, 1, stride)).to(dtype)[:, :width]
    weights = torch.rand(45) + 0.1
    for seed in (None, 4):
        found = store(x, Precision.INT8, weights, seed)
        numbers, scale = quantize(x, Precision.INT8, weights, seed)
        assert torch.equal(found.numbers.view(torch.int8).float()[:, :width], numbers)
        assert torch.equal(found.scale[:width], scale)
        assert (found.numbers[:, width:] == 0).all()


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_is_not_finite_is_not_lost(native: RunningPath, precision: str, bad: float) -> None:
    a = make(random_graph(40, 40, 0.1, weighted=False), "cpu", precision=precision)
    x = torch.randn(40, 20)
    plan = Plan("panel", height=16, tile_limit=1000)
    y = gnnsparse.spmm(a, x, plan=plan)
    x[17, 5] = bad
    with_bad = gnnsparse.spmm(a, x, plan=plan)
    others = torch.arange(20) != 5
    assert with_bad[:, 5].isnan().all()
    assert torch.equal(with_bad[:, others], y[:, others])


@pytest.mark.parametrize("precision", PRECISIONS)
def test_products_in_sixteen_bits_have_plans_of_their_own(native: RunningPath, precision: str) -> None:
    """Six columns of 8 bits are multiplied by panels, of 16 bits row by row, whichever came first."""
    graph = random_graph(60, 60, 0.1)
    a, half = make(graph, "cpu", precision=precision), make(graph, "cpu", precision="fp16")
    x, probe = torch.randn(60, 6, requires_grad=True), torch.randn(60, 6)
    gnnsparse.spmm(a.T, probe)
    assert "cuda_spmm_quantized" in native.called
    (grad,) = torch.autograd.grad(gnnsparse.spmm(a, x), x, probe)
    assert torch.equal(grad, half.T @ probe)
    assert type(a.T.plan(6)) is type(a.plan(6)) is PanelPlan
    assert a.unquantized.T.plan(6) == half.T.plan(6)
    assert not isinstance(half.T.plan(6), PanelPlan)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_plans_without_panels_convert_to_float16(native: RunningPath, precision: str) -> None:
    """The csr kernel, edge values, and values for each head; and a GPU of before Ampere."""
    graph = random_graph(60, 60, 0.1, weighted=False)
    a = make(graph, "cpu", precision=precision, values="gcn")
    matrix, by_row, by_column = parts_of(a)
    x = torch.randn(60, 24)
    numbers, scale = stored(x * by_column[:, None], precision)
    whole, dense = by_row.double()[:, None] * matrix, numbers.double() * scale.double()
    y = gnnsparse.spmm(a, x, plan=Plan("csr"))
    assert_accurate(y, whole.float() @ dense.float(), whole @ dense, floor=2e-6)
    assert "cuda_spmm_quantized" not in native.called
    values = torch.rand(a.nnz)
    own = torch.zeros(60, 60).index_put(tuple(a.indices()), values.half().float())
    numbers, scale = stored(x, precision)
    dense = numbers.double() * scale.double()
    y = gnnsparse.spmm(a, x, values)
    assert_accurate(y, own @ dense.float(), own.double() @ dense, floor=2e-6)
    y = gnnsparse.spmm(a, x.view(60, 3, 8), values[:, None].expand(-1, 3).contiguous())
    assert_accurate(y.flatten(1), own @ dense.float(), own.double() @ dense, floor=2e-6)


def test_native_arguments_are_checked(native: RunningPath) -> None:
    """Bytes that are no bytes, rows that are not padded, scales that are too short."""
    x, numbers = torch.randn(4, 20), torch.zeros(4, 32, dtype=torch.uint8)
    scale, peaks = torch.zeros(32), torch.zeros(32, dtype=torch.int32)
    good = {"x": x, "weights": None, "out": numbers, "scale": scale, "peaks": peaks, "parts": 1}
    for name, wrong, message in (
        ("out", numbers.to(torch.int32), "out: accepted: uint8"),
        ("out", numbers[:, :16].contiguous(), "out: accepted: contiguous"),
        ("out", torch.zeros(4, 48, dtype=torch.uint8), "out: has more columns"),
        ("scale", scale[:20], "scale"),
        ("peaks", peaks[:20], "peaks"),
        ("weights", torch.ones(3), "weights"),
        ("parts", 0, "parts"),
    ):
        with pytest.raises(ValueError, match=message):
            native.native.cuda_quantize(**{**good, name: wrong}, number_type=0, seed=None, stream=0)
    with pytest.raises(ValueError, match="number_type"):
        native.native.cuda_quantize(**good, number_type=2, seed=None, stream=0)
