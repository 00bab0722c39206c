"""SpMM of an X in 8 bits against float64, exact integers, and torch's own conversions."""

from __future__ import annotations

import copy
import itertools
import pickle
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import gnnsparse
from gnnsparse import Precision, SparseGraph, _native
from gnnsparse.ops import quantization
from gnnsparse.ops.quantization import fake_quantized, quantize, store
from gnnsparse.plan import PanelPlan, Plan, UnfusedPlan
from gnnsparse.testing import assert_accurate, assert_all_accurate, random_graph
from tests.gpu_paths import RunningPath
from tests.helpers import dense_matrix, make, product_scale
from tests.ops.conftest import Place, graphs
from tests.ops.quantized import EIGHT_BITS, rounding_bound, stored, stored_matrix

# torch warns about itself.
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")

WIDTHS = (1, 7, 33, 64, 200)
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
PRECISIONS = tuple(EIGHT_BITS)
HEIGHTS = tuple((p, h) for p in PRECISIONS for h in _native.INTEGER_SUM_ROWS)


@pytest.fixture(params=PRECISIONS)
def precision(request: pytest.FixtureRequest) -> str:
    return request.param


def parts_of(
    a: gnnsparse.SparseOperand, x: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """The matrix and its row weights, and the numbers and scales of what it multiplies, in float64."""
    matrix, by_row = stored_matrix(a)
    weights = torch.ones(a.shape[1]) if a.kernels.given_col_scale is None else a.kernels.given_col_scale.cpu()
    numbers, scale = stored(x.float() * weights[:, None], a.precision.value)
    return matrix, by_row, numbers.double(), scale.double()


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("weights", [None, "gcn", "mean"])
@pytest.mark.parametrize("height", [16, 32])
@pytest.mark.parametrize(
    ("limit", "slices", "together"), [(1, 2, 0), (3, 4, 0), (1000, 2, 0), (1000, 4, 3), (2, 2, 2)]
)
def test_sums_of_integers_are_exact(
    anywhere: Place, weights: str | None, height: int, limit: int, slices: int, together: int
) -> None:
    """Integers, sums and factors, each rounded once; panels cut, whole and turned, with slices for a warp."""
    graph = random_graph(90, 90, 0.1, weighted=False, hubs=2, empty_rows=0.2)
    a = make(graph, anywhere.device, precision="int8", values=weights, reorder="degree")
    sizes = {"height": height, "tile_limit": limit, "slices": slices}
    plan = Plan("panel", **sizes, longest_first=limit == 1, concurrent_panels=together)
    for width in (1, 7, 68, 128, 130, 300):
        x = torch.randn(90, width) * torch.logspace(-2, 2, width)
        matrix, by_row, numbers, scale = parts_of(a, x)
        wanted = (matrix @ numbers).float() * scale.float() * by_row.float()[:, None]
        assert torch.equal(gnnsparse.spmm(a, x.to(a.device), plan=plan).cpu(), wanted)
    assert anywhere.ran("cuda_quantize", "cuda_spmm_quantized")


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize(("precision", "height"), HEIGHTS)
@pytest.mark.parametrize("weights", ["stored", None, "gcn"])
@pytest.mark.parametrize("limit", [1, 2, 1000])
def test_matches_float64_of_what_is_stored(
    anywhere: Place, precision: str, height: int, weights: str | None, limit: int
) -> None:
    """Bits and stored values. Panels have 16 rows whatever the plan says, but for sums of integers."""
    graph = random_graph(75, 75, 0.15, weighted=weights == "stored", hubs=2, empty_rows=0.2)
    values, plan = None if weights == "stored" else weights, Plan("panel", height=height, tile_limit=limit)
    a = make(graph, anywhere.device, precision=precision, values=values)
    for width, dtype in ((1, torch.float32), (72, torch.float16), (136, torch.float32), (72, torch.bfloat16)):
        x = torch.randn(75, width).to(dtype)
        matrix, by_row, numbers, scale = parts_of(a, x)
        whole, dense = by_row[:, None] * matrix, numbers * scale
        y = gnnsparse.spmm(a, x.to(a.device), plan=plan)
        assert y.dtype == dtype
        plain = (whole.float() @ dense.float()).to(dtype)
        # Tensor Cores cut off what a float32 sum has no room for.
        floor = max(2e-6, 4 * torch.finfo(dtype).eps)
        assert_accurate(y, plain, whole @ dense, floor=floor, scale=product_scale(whole, dense))
    assert anywhere.ran("cuda_spmm_quantized")


@given(
    graph=graphs(40, 40, (0.0, 0.05, 0.5), empty_rows=0.2), width=st.integers(1, 70),
    dtype=st.sampled_from(DTYPES), layout=st.sampled_from(["rows", "columns", "view"]),
    spread=st.integers(0, 6),
)  # fmt: skip
def test_error_is_within_the_documented_bound(
    device: str, precision: str, graph: SparseGraph, width: int, dtype: torch.dtype, layout: str, spread: int
) -> None:
    a = make(graph, device, precision=precision)
    x = torch.randn(graph.num_cols, width) * 10.0 ** torch.linspace(-spread / 2, spread / 2, width)
    x = x.to(dtype)
    given_x = {"rows": x, "columns": x.T.contiguous().T, "view": torch.cat([x, x], 1)[:, :width]}[layout]
    y = gnnsparse.spmm(a, given_x.to(device))
    assert (y.dtype, y.shape) == (dtype, (graph.num_rows, width))
    matrix = dense_matrix(graph, None)
    # Weights are rounded to 16 bits as well, and the result to the dtype of x.
    bound = matrix.abs() @ (rounding_bound(x, precision) + x.double().abs() * 2.0**-10)
    exact = matrix @ x.double()
    bound = bound + 2 * torch.finfo(dtype).eps * (exact.abs() + bound) + 1e-7
    assert ((y.cpu().double() - exact).abs() <= bound).all()


def test_the_error_of_normal_numbers_is_as_documented(device: str, precision: str) -> None:
    graph = random_graph(2000, 2000, 0.0125, weighted=False)
    a, exact = make(graph, device, precision=precision), make(graph, "cpu")
    x = torch.randn(2000, 128)
    y, right = gnnsparse.spmm(a, x.to(device)).cpu().double(), gnnsparse.spmm(exact, x).double()
    error = float((y - right).norm() / right.norm())
    low, high = {"int8": (6e-3, 1e-2), "fp8": (2.3e-2, 2.9e-2)}[precision]
    assert low < error < high


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_what_is_not_finite_is_not_lost(place: Place, precision: str, bad: float) -> None:
    """Its feature is NaN in every row, and the other features are as without it."""
    graph = random_graph(40, 40, 0.1, weighted=False)
    a, x = make(graph, place.device, values="gcn", precision=precision), torch.randn(40, 20)
    y = gnnsparse.spmm(a, x.to(a.device)).cpu()
    x[17, 5] = bad
    with_bad = gnnsparse.spmm(a, x.to(a.device)).cpu()
    others = torch.arange(20) != 5
    assert with_bad[:, 5].isnan().all()
    assert torch.equal(with_bad[:, others], y[:, others])


def test_features_of_any_size(device: str, precision: str) -> None:
    """Features of zeros give zeros; from 2^-100 to the largest float32 the relative error is the same."""
    graph = random_graph(40, 40, 0.2, weighted=False)
    a = make(graph, device, precision=precision)
    sizes = torch.tensor([0.0, 2.0**-99, 1e-20, 1.0, 1e20, 1e36])
    x = torch.randn(40, 1).expand(40, 6) * sizes
    y = gnnsparse.spmm(a, x.to(device)).cpu().double()
    assert (y[:, 0] == 0).all()
    unit = y[:, 3]
    for at in (1, 2, 4, 5):
        scaled = y[:, at] / sizes[at].double()
        assert float((scaled - unit).norm() / unit.norm()) < {"int8": 2e-2, "fp8": 4e-2}[precision]
    tiny = gnnsparse.spmm(a, (x[:, 3:4] * 1e-35).to(device)).cpu()
    assert float(tiny.abs().max()) <= 40 * 1e-34


@pytest.mark.parametrize("reduce", ["sum", "mean"])
@pytest.mark.parametrize("case", ["own", "values", "heads"])
def test_products_are_those_of_the_reference_and_gradients_those_of_sixteen_bits(
    device: str, precision: str, reduce: str, case: str
) -> None:
    """The specification in plain torch quantises X alike: products differ by rounding."""
    graph = random_graph(50, 30, 0.1, hubs=1, empty_rows=0.1)
    a, half = (make(graph, device, precision=p) for p in (precision, "fp16"))
    shape = {"own": (), "values": (a.nnz,), "heads": (a.nnz, 3)}[case]
    x = torch.randn(30, 3, 8, device=device) if case == "heads" else torch.randn(30, 24, device=device)
    tensors = [x, torch.randn(shape, device=device)] if shape else [x]
    probe = torch.randn(50, *x.shape[1:], device=device)
    wanted = gnnsparse.spmm(a, *tensors, reduce=reduce, impl="reference")
    assert_accurate(gnnsparse.spmm(a, *tensors, reduce=reduce), wanted, wanted.double(), floor=4e-6)

    def gradients(operand: gnnsparse.SparseOperand) -> tuple[torch.Tensor, ...]:
        inputs = [t.clone().requires_grad_() for t in tensors]
        y = gnnsparse.spmm(operand, *inputs, reduce=reduce)
        return torch.autograd.grad((y * probe).sum(), inputs)

    assert all(map(torch.equal, gradients(a), gradients(half)))


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("seed", [None, 3])
@pytest.mark.parametrize("dtype", DTYPES)
def test_native_code_and_torch_round_alike(
    place: Place, precision: str, weighted: bool, seed: int | None, dtype: torch.dtype
) -> None:
    """X by rows, by columns, and in a wider matrix."""
    cases = [((50, 37), 1), ((3, 1), 1), ((70, 64), 1), ((0, 5), 1), ((33, 130), 2), ((33, 20), 0)]
    for shape, wider in cases:
        whole = torch.randn(shape[0], shape[1] * max(wider, 1)) * 3
        whole = (whole * torch.logspace(-3, 3, whole.shape[1])).to(dtype)
        x = whole[:, : shape[1]] if wider else whole.T.contiguous().T
        weights = torch.rand(shape[0]) + 0.1 if weighted else None
        check_stored(place.device, x, precision, weights, seed)
        if seed is None:
            numbers, scale = quantize(x, Precision(precision), weights)
            wide = x.float() if weights is None else x.float() * weights[:, None]
            assert all(map(torch.equal, (numbers, scale), stored(wide, precision)))
    assert place.path is None or place.path.called == {"cuda_quantize"}


def check_stored(
    device: str, x: torch.Tensor, precision: str, weights: torch.Tensor | None, seed: int | None
) -> None:
    """What native code stores of X is what torch computes."""
    width, exact = x.shape[1], Precision(precision)
    on_device = None if weights is None else weights.to(device)
    found = store(x.to(device), exact, on_device, seed)
    numbers, scale = quantize(x, exact, weights, seed)
    kind = torch.int8 if precision == "int8" else torch.float8_e4m3fn
    assert torch.equal(found.numbers.cpu().view(kind).float()[:, :width], numbers)
    assert torch.equal(found.scale[:width].cpu(), scale)
    assert (found.numbers[:, width:] == 0).all()


def test_every_byte_of_e4m3_is_read_as_torch_reads_it() -> None:
    """A row of one nonzero each: the product is the number times the scale 1."""
    numbers = torch.tensor([byte for byte in range(256) if byte & 0x7F != 0x7F], dtype=torch.uint8)
    n = numbers.numel()
    eye = gnnsparse.prepare(torch.arange(n).expand(2, n).contiguous(), num_nodes=n, cache=False)
    stored_x = numbers[:, None].expand(n, 16).contiguous()
    for values in (None, torch.ones(n)):
        y = torch.empty(n, 16)
        rows = _native.StoredRows(None, None, None, values)
        _native.cpu_spmm_quantized(eye.kernels.csr.view, rows, stored_x, torch.ones(16), 1, y, 1)
        assert torch.equal(y, stored_x.view(torch.float8_e4m3fn).float())


def test_stochastic_rounding_is_unbiased_and_repeats(device: str, precision: str) -> None:
    graph = random_graph(60, 60, 0.1, weighted=False)
    a = make(graph, device, values="gcn", precision=precision)
    x = torch.randn(60, 20, device=device)
    once = gnnsparse.spmm(a, x, seed=1)
    assert torch.equal(once, gnnsparse.spmm(a, x, seed=1))
    assert not torch.equal(once, gnnsparse.spmm(a, x, seed=2))
    mean = sum(gnnsparse.spmm(a, x, seed=s).double() for s in range(200)) / 200
    right = gnnsparse.spmm(make(graph, device, values="gcn"), x).double()
    one, many = float((once - right).norm()), float((mean - right).norm())
    assert many < one / 8  # by 14 if errors are independent
    assert (once - gnnsparse.spmm(a, x, seed=1, impl="reference")).norm() < 1e-5 * once.norm()


def test_compiles_and_passes_opcheck(precision: str) -> None:
    graph = random_graph(30, 30, 0.2, weighted=False)
    a = make(graph, "cpu", values="gcn", precision=precision)
    x = torch.randn(30, 12, requires_grad=True)

    def loss(x: torch.Tensor) -> torch.Tensor:
        return gnnsparse.spmm(a, (a @ x).relu(), seed=5).square().sum()

    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(x), loss(x))
    wanted = torch.autograd.grad(loss(x), x)[0]
    assert torch.equal(torch.autograd.grad(compiled(x), x)[0], wanted)
    torch.library.opcheck(torch.ops.gnnsparse.spmm.default, (x, None, a.handle, False, 3))


def test_further_operations_have_operands_of_sixteen_bits(device: str, precision: str) -> None:
    graph = random_graph(40, 40, 0.1)
    a, half = (make(graph, device, precision=p) for p in (precision, "fp16"))
    q, k = torch.randn(2, 40, 16, device=device)
    assert torch.equal(gnnsparse.sddmm(a, q, k), gnnsparse.sddmm(half, q, k))
    inputs = [t.clone().requires_grad_() for t in (q, k)]
    probe = torch.randn(a.nnz, device=device)
    grads = [torch.autograd.grad((gnnsparse.sddmm(o, *inputs) * probe).sum(), inputs) for o in (a, half)]
    assert all(torch.equal(one, other) for one, other in zip(*grads, strict=True))
    # But for K and V of attention.
    k, v = (numbers * scale for numbers, scale in (stored(x.cpu(), precision) for x in (k, q)))
    k, v = k.to(device), v.to(device)
    outs = [gnnsparse.attention(o, q, k, v, plan=UnfusedPlan()) for o in (a, half, a.unquantized)]
    assert torch.equal(outs[0], outs[1])
    assert torch.equal(outs[0], outs[2])
    assert torch.equal(gnnsparse.spmm(a, q, reduce="max"), gnnsparse.spmm(half, q, reduce="max"))
    assert torch.equal(a.unquantized @ q, half @ q)
    assert a.unquantized.T.precision is Precision.FP16
    assert a.T.unquantized is a.unquantized.T
    assert half.unquantized is half
    assert a.precision.value == precision


def test_fake_quantized_passes_gradients() -> None:
    x = torch.randn(9, 4, requires_grad=True)
    probe = torch.randn(9, 4)
    y = fake_quantized(x, Precision.INT8)
    assert_all_accurate([y], [y], [x.double()], floor=1e-2)
    assert torch.equal(torch.autograd.grad((y * probe).sum(), x)[0], probe)


# Features that are stored once.


@pytest.mark.parametrize("weights", ["stored", None, "gcn"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [0, 7, 64])
def test_products_of_stored_features_are_those_of_x(
    device: str, precision: str, weights: str | None, dtype: torch.dtype, width: int
) -> None:
    """Also of another operand, and after X has changed; without gradients X may require one."""
    values = None if weights == "stored" else weights
    made = [random_graph(60, 60, 0.1, weighted=weights == "stored", hubs=2, seed=s) for s in (0, 1)]
    a, other = (make(graph, device, precision=precision, values=values) for graph in made)
    x = torch.randn(60, width, device=device).to(dtype).requires_grad_()
    for seed, reduce in itertools.product((None, 3), ("sum", "mean")):
        with torch.no_grad():
            stored = gnnsparse.store_features(a, x, seed=seed)
            wanted = [gnnsparse.spmm(of, x, reduce=reduce, seed=seed) for of in (a, other)]
        assert (stored.shape, stored.dtype, stored.device) == (x.shape, dtype, x.device)
        x.detach().copy_(x + 1)
        y = gnnsparse.spmm(a, stored, reduce=reduce, impl=torch.device(device).type)
        assert (y.dtype, y.requires_grad) == (dtype, False)
        assert torch.equal(y, wanted[0])
        if weights != "gcn":  # stored features have the column weights of their operand
            assert torch.equal(gnnsparse.spmm(other, stored, reduce=reduce), wanted[1])
    assert torch.equal(a @ stored, gnnsparse.spmm(a, stored))


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("plan", [Plan("panel", height=32, tile_limit=2), Plan("csr"), None])
def test_stored_features_on_the_path_of_a_gpu(native: RunningPath, precision: str, plan: Plan | None) -> None:
    a = make(random_graph(60, 60, 0.1, weighted=False, hubs=2), "cpu", precision=precision, values="gcn")
    x = torch.randn(60, 40)
    stored = gnnsparse.store_features(a, x)
    assert native.called == {"cuda_quantize"}
    assert torch.equal(gnnsparse.spmm(a, stored, plan=plan), gnnsparse.spmm(a, x, plan=plan))


def test_what_stored_features_say_of_themselves(device: str, precision: str) -> None:
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


def test_what_stored_features_refuse() -> None:
    def other(precision: str, cols: int = 9) -> gnnsparse.SparseOperand:
        return make(random_graph(9, cols, 0.2), "cpu", precision=precision)

    a = make(random_graph(9, 9, 0.2, weighted=False), "cpu", precision="int8", values="gcn")
    x, batch = torch.zeros(9, 4), torch.zeros(2, 9, 4)
    store = partial(gnnsparse.store_features, a)
    stored, spmm, ones = store(x), partial(gnnsparse.spmm, a), torch.ones(a.nnz)
    leaf = x.clone().requires_grad_()
    refused: dict[type[Exception], list[tuple[str, Callable[[], Any]]]] = {
        ValueError: [
            ("A: is in fp16; accepted: an operand in int8 or fp8", lambda: other("fp16") @ stored),
            ("x: is stored in int8; accepted: fp8", lambda: other("fp8") @ stored),
            (r"x: has shape \(9, 4\); accepted: \(5, any\)", lambda: other("int8", 5) @ stored),
            ("x: was stored with other column weights", lambda: other("int8") @ stored),
            ("values: is given", lambda: spmm(stored, ones)),
            ("seed: is given", lambda: spmm(stored, seed=1)),
            ("reduce: got 'max' with stored", lambda: spmm(stored, reduce="max")),
            ("impl: got 'reference'", lambda: spmm(stored, impl="reference")),
            ("A: is in fp32; accepted: an operand in", lambda: gnnsparse.store_features(other("fp32"), x)),
            ("x: has shape", lambda: store(x[:5])),
            ("seed: got -1", lambda: store(x, seed=-1)),
            (r"x: requires a gradient.*accepted: x.detach\(\)", lambda: store(leaf)),
            ("x: a transform", lambda: torch.vmap(store)(batch)),
        ],
        TypeError: [
            ("A: got a tensor", lambda: x @ stored),
            ("A: got a tensor", lambda: gnnsparse.store_features(x, x)),
            ("x: got", lambda: store(x.double())),
            (
                "x: got StoredFeatures; accepted: a tensor inside",
                lambda: torch.vmap(lambda x: a @ stored + x)(batch),
            ),
        ],
    }
    for error, calls in refused.items():
        for message, call in calls:
            with pytest.raises(error, match=message):
                call()


# The CUDA sources, run on the CPU.


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
        check_stored("cpu", x, "int8", weights, seed)


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


def test_plans_without_panels_convert_to_float16(native: RunningPath, precision: str) -> None:
    """The csr kernel, edge values, and values for each head; and a GPU of before Ampere."""
    graph = random_graph(60, 60, 0.1, weighted=False)
    a = make(graph, "cpu", precision=precision, values="gcn")
    x = torch.randn(60, 24)
    matrix, by_row, numbers, scale = parts_of(a, x)
    whole, dense = by_row[:, None] * matrix, numbers * scale
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
