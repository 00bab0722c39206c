"""The kernels of graph attention against float64, with every score, term and option.

The CPU's kernels, and CUDA's: emulated on the CPU, and on a GPU.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import gnnsparse
from gnnsparse import _native, masks
from gnnsparse.formats.csr import Csr
from gnnsparse.ops.attention import cpu, cuda_rows
from gnnsparse.ops.attention.arguments import Arrays, AttentionCall, GraphCall
from gnnsparse.plan import CsrAttentionPlan
from gnnsparse.plan.work import row_entries
from gnnsparse.runtime.device import describe_device
from gnnsparse.testing import assert_all_accurate, random_graph
from tests.helpers import PRECISIONS, ROUNDING, make
from tests.ops import attention_oracle
from tests.ops.attention_oracle import (
    GraphCase,
    exact_graph,
    few_roundings,
    make_graph_case,
    plain_graph,
    run_graph,
    term_sizes,
)
from tests.ops.conftest import Place
from tests.ops.test_attention import OPTIONS as ATTENTION_OPTIONS

#: Scores with the terms that go with them, for 3 heads.
TERMS: list[dict[str, Any]] = [
    {},
    {"bias": 1},
    {"features": 3},
    {"features": 1, "to_values": False},
    {"features": 3, "to_keys": False, "bias": 3},
    {"gate": 3, "features": 1},
    {"gate": 1, "bias": 3},
    {"mapped": 5},
    {"mapped": 18, "to_values": False, "bias": 1},
    {"mapped": 3, "in_scores": False},
    {"score": "additive"},
    {"score": "additive", "features": 3, "bias": 1},
    {"score": "additive", "features": 1},
    {"score": "additive", "negative_slope": 0.0},
    {"score": "additive", "features": 3, "negative_slope": -0.3},
    {"score": "gatv2"},
    {"score": "gatv2", "features": 3, "bias": 3},
    {"score": "gatv2", "features": 1, "to_values": False, "negative_slope": 0.0},
    {"score": "gatv2", "features": 3, "to_keys": False, "negative_slope": -0.3},
]
#: Scores that stay small where they are not divided by their sum.
OPTIONS: list[dict[str, Any]] = [
    {},
    {"clamp": 0.4},
    {"normalize": False, "clamp": 1.5},
    {"is_causal": True, "dropout_p": 0.4, "grad_weights": True},
    {"normalize": False, "scale": 0.1, "dropout_p": 0.3, "grad_weights": True},
]
all_terms = pytest.mark.parametrize("terms", TERMS, ids=str)
all_options = pytest.mark.parametrize("options", OPTIONS, ids=str)
poisoned = pytest.mark.usefixtures("poisoned")


@dataclass(frozen=True)
class Kernels:
    """A module of kernels, the device of its operands, and whether rows are as short as an emulator needs."""

    module: ModuleType
    device: str
    emulated: bool = False

    @property
    def on_cpu(self) -> bool:
        return self.module is cpu

    def make(self, graph: gnnsparse.SparseGraph, **options: Any) -> gnnsparse.SparseOperand:
        return make(graph, self.device, **options)

    def run(self, a: gnnsparse.SparseOperand, case: GraphCase) -> list[torch.Tensor]:
        return run_graph(self.module, a, case)

    def repeats(self, a: gnnsparse.SparseOperand, case: GraphCase, other: GraphCase | None = None) -> None:
        """Checks that a run gives the bits of a case also for another one."""
        again = self.run(a, other or case)
        assert all(torch.equal(x, y) for x, y in zip(self.run(a, case), again, strict=True))

    def check(
        self, a: gnnsparse.SparseOperand, case: GraphCase, floor: float | None = None
    ) -> list[torch.Tensor]:
        results = self.run(a, case)
        leaves = [x for x in case.arrays if x is not None]
        for grad, leaf in zip(results[-len(leaves) :], leaves, strict=True):
            assert (grad.dtype, grad.shape) == (leaf.dtype, leaf.shape)
        scales = None if self.on_cpu else term_sizes(a, case)
        floor = floor if self.on_cpu else few_roundings(a, case)
        like = plain_graph(a, case)
        assert_all_accurate(results, like, lambda: exact_graph(a, case), floor=floor, scales=scales)
        return results


CPU = Kernels(cpu, "cpu")


@pytest.fixture
def gpu(late_place: Place) -> Kernels:
    return Kernels(cuda_rows, late_place.device, emulated=late_place.path is not None)


@pytest.fixture
def kernels(place: Place) -> Kernels:
    is_native = place.device == "cpu" and place.path is None
    return CPU if is_native else Kernels(cuda_rows, place.device, emulated=place.path is not None)


def mask_some(a: gnnsparse.SparseOperand, case: GraphCase) -> torch.Tensor:
    """Masks a third of the edges of each head by the bias, and all of rows 0 to 2; returns the mask."""
    masked = torch.rand(a.nnz, case.arrays.bias.shape[1]) < 0.3
    masked |= (a.indices()[0].cpu() < 3)[:, None]
    case.arrays.bias.masked_fill_(masked, float("-inf"))
    return masked


@poisoned
@all_terms
@all_options
def test_options(kernels: Kernels, terms: dict[str, Any], options: dict[str, Any]) -> None:
    precision = "fp32" if kernels.on_cpu else "fp16"
    a = kernels.make(random_graph(31, 43, 0.2, hubs=2, empty_rows=0.2), precision=precision, reorder="degree")
    case = make_graph_case(a, 19 if kernels.on_cpu else 12, **terms, **options)
    if kernels.on_cpu:
        kernels.check(a, case)
    if "bias" in terms:
        masked = mask_some(a, case)
        results = kernels.check(a, case)
        dbias = results[case.names.index("bias") - len(case.names)]
        assert (results[0][:3] == 0).all()
        assert (dbias[masked] == 0).all()
    elif not kernels.on_cpu:
        kernels.check(a, case)


@all_terms
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_dtypes(terms: dict[str, Any], dtype: torch.dtype, precision: str) -> None:
    a = CPU.make(random_graph(50, 45, 0.2, hubs=1, empty_rows=0.1), precision=precision)
    case = make_graph_case(a, 12, dtype=dtype, grad_weights=True, **terms)
    CPU.check(a, case, floor=few_roundings(a, case))


#: (heads, features of keys, those of values); no warp holds two heads of 150, which run unfused.
SIZES = [
    (1, 1, 1), (1, 64, 64), (2, 33, 33), (5, 8, 8), (8, 16, 16), (16, 7, 7), (3, 128, 128), (2, 150, 150),
    (16, 3, 3), (5, 15, 15), (2, 17, 17), (1, 100, 100), (5, 200, 200), (3, 3, 70), (3, 40, 1), (3, 8, 0),
]  # fmt: skip


@poisoned
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_head_dimensions(kernels: Kernels, precision: str, sizes: tuple[int, int, int]) -> None:
    a = kernels.make(random_graph(30, 41, 0.15, hubs=1), precision=precision)
    heads, d, dv = sizes
    for terms in ({"gate": 1, "bias": 1}, {"score": "gatv2", "features": 1}, {"score": "additive"}):
        case = make_graph_case(a, d, dv, heads=heads, **terms)
        kernels.check(a, case, floor=None if precision == "fp32" else few_roundings(a, case))


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("score", ["gatv2", "dot"])
def test_one_tensor_of_keys_and_values(kernels: Kernels, precision: str, score: str) -> None:
    """Rows that are keys and values may be read once, for the same bits; one tensor has one gradient."""
    a = kernels.make(random_graph(300, 12, 0.6), precision=precision)
    case = make_graph_case(a, 16, score=score)
    k = case.arrays.k.to(a.device, a.precision.storage)
    kernels.repeats(a, case.with_arrays(k=k, v=k[:]), case.with_arrays(k=k, v=k.clone()))

    def gradient(v: torch.Tensor) -> torch.Tensor:
        call = case.with_arrays(k=k, v=v).call(a)
        result, needs = kernels.module.graph_forward(call), tuple(x is not None for x in call.arrays)
        found = kernels.module.graph_backward(call, result, case.grad_out.to(a.device), None, None, needs)
        return sum(x.double() for x in (found.k, found.v) if x is not None)

    eps = torch.finfo(a.precision.storage).eps
    torch.testing.assert_close(gradient(k), gradient(k[:]), rtol=4 * eps, atol=40 * eps)


@poisoned
@all_terms
def test_long_rows(kernels: Kernels, terms: dict[str, Any]) -> None:
    """Rows that are split, between others that one warp takes; on a CPU larger scores come later in them."""
    rows, cols = (6, 1100) if kernels.on_cpu else (12, 300) if kernels.emulated else (40, 700)
    a = kernels.make(random_graph(rows, cols, 0.02, hubs=3, empty_rows=0.0 if kernels.on_cpu else 0.3))
    if not kernels.on_cpu:
        kernels.check(a, make_graph_case(a, 8, **terms))
        return
    for normalize in (True, False):
        case = make_graph_case(a, 10, normalize=normalize, dropout_p=0.1, **terms)
        if "bias" in terms:
            rising = a.indices()[1][:, None] / 400 - 1.0
            case = case.with_arrays(bias=case.arrays.bias + rising)
        kernels.check(a, case, floor=few_roundings(a, case))


@pytest.mark.parametrize("options", [{"scale": 100.0}, {"scale": 20.0, "clamp": 60.0, "normalize": False}])
def test_large_scores_do_not_overflow(options: dict[str, Any]) -> None:
    """What a score is off by, a weight is off by; without softmax in relation to its size."""
    a = CPU.make(random_graph(40, 40, 0.2))
    case = make_graph_case(a, 16, 4, **options)
    row, column = a.indices()
    largest = options["scale"] * (case.arrays.q[row] * case.arrays.k[column]).sum(2).abs().max().item()
    assert largest > 10 * options["scale"]
    size = min(largest, 2 * options.get("clamp", largest))
    CPU.check(a, case, floor=size * torch.finfo(torch.float32).eps)


@pytest.mark.parametrize("columns", [64, 300])
@pytest.mark.parametrize("options", [{}, {"dropout_p": 0.3, "grad_weights": True}], ids=str)
def test_gradients_of_large_scores_are_as_exact_as_in_torch(columns: int, options: dict[str, Any]) -> None:
    """Of scores of about 900 that float32 holds, in rows of one block and of several."""
    a = CPU.make(masks.full(64, columns))
    case = make_graph_case(a, 32, scale=0.25, **options)
    case = case.with_arrays(q=(30 * case.arrays.q).round(), k=(30 * case.arrays.k).round())
    results = CPU.check(a, case)
    if not options:
        sums = torch.zeros(64, 3).index_add(0, a.indices()[0], results[1])
        assert (sums - 1).abs().max() < 1e-5


@pytest.mark.parametrize("score", ["dot", "additive"])
@pytest.mark.parametrize("precision", ["fp16", "fp32"])
def test_biases_of_any_size_leave_the_weights_of_a_row(kernels: Kernels, precision: str, score: str) -> None:
    """All edges of a row are masked by a large finite number, as some models do: they weigh the same."""
    a = kernels.make(random_graph(30, 41, 0.3, empty_rows=0.1), precision=precision)
    case = make_graph_case(a, 8, score=score, bias=1, grad_weights=True)
    zero = {name: torch.zeros_like(getattr(case.arrays, name)) for name in ("q", "k")}
    if score == "dot":
        del zero["q"]
    kernels.check(a, case.with_arrays(**zero, bias=torch.full_like(case.arrays.bias, -1e9)))


def test_weights_end_where_floats_do() -> None:
    one = CPU.make(random_graph(1, 1, 1.0))

    def weight(score: float) -> float:
        arrays = Arrays(torch.tensor([[score]]), torch.zeros(1, 1), torch.ones(1, 1, 1))
        call = GraphCall(one, arrays, score="additive", negative_slope=1.0, normalize=False)
        return cpu.graph_forward(call).out.item()

    for score in (88.7, 88.3, 1.0, 0.0, -1.0, -87.0):
        assert weight(score) == pytest.approx(math.exp(torch.tensor(score).item()), rel=1e-6)
    assert [weight(score) for score in (89.0, 1e30, math.inf)] == [math.inf] * 3
    assert [weight(score) for score in (-90.0, -1e30, -math.inf)] == [0.0] * 3
    assert math.isnan(weight(math.nan))


@pytest.mark.parametrize(
    "terms", [{"clamp": 2.0}, {"score": "additive", "clamp": 1.0}, {"score": "gatv2"}], ids=str
)
def test_derivatives_where_functions_have_a_kink(terms: dict[str, Any]) -> None:
    """At 0 leaky_relu has the derivative that it has below; at its bounds the clamp has that of inside."""
    a = CPU.make(random_graph(40, 40, 0.3))
    case = make_graph_case(a, 4, scale=1.0, **terms)
    whole = {name: torch.randint(-1, 2, getattr(case.arrays, name).shape).float() for name in ("q", "k")}
    row, column = a.indices()
    assert "score" in terms or ((whole["q"][row] * whole["k"][column]).sum(-1).abs() == 2).any()
    CPU.check(a, case.with_arrays(**whole))


@poisoned
@all_terms
@pytest.mark.parametrize("is_causal", [False, True])
def test_what_is_masked_is_not_read(kernels: Kernels, terms: dict[str, Any], is_causal: bool) -> None:
    """NaN and infinity of sources that no edge may see, and of a target without edges, change nothing."""
    a = kernels.make(random_graph(40, 40, 0.3), precision="fp32" if kernels.on_cpu else "fp16")
    case = make_graph_case(a, 9, is_causal=is_causal, **{**terms, "bias": 1})
    row, column = a.indices().cpu()
    sources = torch.arange(40) == 39 if is_causal else torch.arange(40) % 4 == 1
    targets = torch.arange(40) == 4
    masked = sources[column] | targets[row]
    hidden = masked | (column > row) if is_causal else masked
    case.arrays.bias.masked_fill_(masked[:, None], float("-inf"))
    of_nodes, broken = {"q": targets, "mapped_q": targets, "k": sources, "v": sources}, {}
    for name in ("q", "k", "v", "features", "gate", "mapped", "mapped_q"):
        if (x := getattr(case.arrays, name)) is not None:
            broken[name] = x.clone()
            broken[name][of_nodes.get(name, hidden)] = math.nan if name != "v" else math.inf
    kernels.repeats(a, case, case.with_arrays(**broken))


@poisoned
@pytest.mark.parametrize("target", ["both", "keys", "values"])
@pytest.mark.parametrize(
    ("heads", "width", "features"), [(4, 64, 32), (3, 40, 7), (2, 9, 7), (1, 72, 16), (2, 24, 40)], ids=str
)
@pytest.mark.parametrize("precision", ["fp16", "bf16", "fp32"])
@pytest.mark.parametrize("density", [0.05, 0.2])
def test_a_linear_map_of_edge_features(
    late_place: Place, density: float, precision: str, heads: int, width: int, features: int, target: str
) -> None:
    """Its products are made beside the kernels, or for each edge where rows are short, in 16 bits.

    Of up to 32 features its gradient has a kernel in 16 bits.
    """
    device = late_place.device
    a = make(random_graph(70, 43, density, empty_rows=0.2), device, precision=precision)
    dtype, rows = a.precision.storage, (70, 43, 43)
    shapes = [*((n, heads, width) for n in rows), (a.nnz, features), (heads * width, features)]
    leaves = [torch.randn(s, device=device).to(dtype) for s in shapes]
    leaves[-1] /= 4
    grad = torch.randn(70, heads, width, device=device)

    def run(dtype: torch.dtype, impl: str) -> list[torch.Tensor]:
        given = [x.to(dtype).requires_grad_() for x in leaves]
        terms = {"edge_features": given[3], "edge_weight": given[4], "edge_order": "operand"}
        out = gnnsparse.graph_attention(a, *given[:3], **terms, edge_target=target, impl=impl)
        return [out.detach().cpu(), *(x.cpu() for x in torch.autograd.grad(out, given, grad.to(dtype)))]

    got = run(dtype, "auto")
    if late_place.path is not None:
        has_kernel = density > 0.1 and dtype.itemsize == 2 and features <= 32
        assert late_place.ran("cuda_graph_map_grad") == has_kernel
    plain = [x.to(dtype) for x in run(torch.float32, "reference")]
    assert_all_accurate(got, plain, run(torch.float64, "reference"), floor=16 * torch.finfo(dtype).eps)


@poisoned
@pytest.mark.parametrize("shape", [(0, 5), (5, 0), (1, 1), (6, 7)])
def test_empty_patterns(kernels: Kernels, shape: tuple[int, int]) -> None:
    a = kernels.make(random_graph(*shape, 0.0))
    for terms in TERMS:
        for x in kernels.run(a, make_graph_case(a, 4, dropout_p=0.5, **terms)):
            assert (x == 0).all()


@pytest.mark.parametrize("terms", [TERMS[4], TERMS[5], TERMS[10], TERMS[14]], ids=str)
def test_results_do_not_depend_on_the_number_of_threads(terms: dict[str, Any], one_thread: None) -> None:
    a = CPU.make(random_graph(700, 500, 0.05, hubs=3, empty_rows=0.1), reorder="degree")
    case = make_graph_case(a, 20, dropout_p=0.2, **terms)
    runs = []
    for count in (1, 2, 5):
        torch.set_num_threads(count)
        runs.append(CPU.run(a, case))
    assert all(torch.equal(x, y) for run in runs for x, y in zip(run, runs[0], strict=True))


@pytest.mark.parametrize(
    "terms",
    [*({**terms, "dropout_p": 0.2} for terms in TERMS[::3]), {"heads": 8}, {"heads": 8, "score": "additive"}],
    ids=str,
)
def test_results_repeat(gpu: Kernels, terms: dict[str, Any]) -> None:
    """By kernels of single edges, and of tiles of 8 heads."""
    rows = 40 if gpu.emulated else 3000
    a = gpu.make(random_graph(rows, rows, 30 / rows, hubs=1), precision="fp16")
    gpu.repeats(a, make_graph_case(a, 16, **terms))


@all_terms
def test_strides(terms: dict[str, Any]) -> None:
    """Tensors of any strides give the same, bit for bit."""
    a = CPU.make(random_graph(40, 50, 0.2), precision="fp16")
    case = make_graph_case(a, 12, grad_weights=True, **terms)

    def strided(x: torch.Tensor | None) -> torch.Tensor | None:
        if x is None:
            return None
        wide = torch.full((*x.shape[:-1], 2 * x.shape[-1] + 1), float("nan"), dtype=x.dtype)
        wide[..., 1::2] = x
        return wide[..., 1::2]

    grads = {name: strided(getattr(case, name)) for name in ("grad_out", "grad_mapped", "grad_weights")}
    CPU.repeats(a, case, replace(case, arrays=Arrays(*map(strided, case.arrays)), **grads))
    by_head = {
        n: x.mT.contiguous().mT for n, x in case.arrays._asdict().items() if x is not None and x.dim() > 2
    }
    CPU.repeats(a, case, case.with_arrays(**by_head))


@all_terms
def test_gradients_that_are_not_needed(terms: dict[str, Any]) -> None:
    """Each alone is what it is among all, and the others are None."""
    a = CPU.make(random_graph(30, 40, 0.2))
    case = make_graph_case(a, 8, **terms)
    call = case.call(a)
    result = cpu.graph_forward(call)
    grads = (case.grad_out, case.grad_mapped, case.grad_weights)
    full = cpu.graph_backward(call, result, *grads, (True,) * len(Arrays._fields))
    for name in Arrays._fields:
        needs = tuple(field == name for field in Arrays._fields)
        for field, x in cpu.graph_backward(call, result, *grads, needs)._asdict().items():
            if field == name and getattr(full, name) is not None:
                assert torch.equal(x, getattr(full, name))
            else:
                assert x is None


@pytest.mark.parametrize("isa", ["portable", "avx2", "avx512"])
@all_terms
@pytest.mark.parametrize("precisions", [("fp32", "fp16"), ("bf16", "tf32")], ids=str)
def test_instruction_sets(isa: str, terms: dict[str, Any], precisions: tuple[str, str]) -> None:
    if not _native.set_cpu_isa(isa):
        pytest.skip(f"this machine has no {isa}")
    try:
        widths = (5, 37) if TERMS.index(terms) % 2 else (37, 5)
        for d, precision in zip(widths, precisions, strict=True):
            a = CPU.make(random_graph(40, 60, 0.3, hubs=1, empty_rows=0.1), precision=precision)
            case = make_graph_case(a, d, dropout_p=0.3, clamp=0.9, **terms)
            for normalize in (True, False):
                one = replace(case, options={**case.options, "normalize": normalize})
                CPU.check(a, one, floor=few_roundings(a, one))
    finally:
        _native.set_cpu_isa("auto")


def draw_case(draw: Any, kernels: Kernels) -> tuple[gnnsparse.SparseOperand, GraphCase]:
    """A random operand, of any shape and density, and arguments with any options and terms."""
    rows, cols = draw(st.integers(1, 40)), draw(st.integers(1, 40))
    graph = random_graph(
        rows, cols, draw(st.floats(0, 1)), seed=draw(st.integers(0, 99)), hubs=draw(st.integers(0, 2)),
        empty_rows=draw(st.sampled_from([0.0, 0.5])),
    )  # fmt: skip
    precision = draw(st.sampled_from(PRECISIONS))
    a = kernels.make(graph, precision=precision, reorder=draw(st.sampled_from(["none", "degree"])))
    heads = draw(st.integers(1, 16))
    shared = st.sampled_from([None, 1, heads])
    score = draw(st.sampled_from(["dot", "additive", "gatv2"]))
    options: dict[str, Any] = {"score": score, "bias": draw(shared), "heads": heads}
    if score == "dot" and draw(st.booleans()):
        options |= {"mapped": draw(st.integers(1, 20)), "in_scores": draw(st.booleans())}
    else:
        options |= {"features": draw(shared), "gate": draw(shared) if score == "dot" else None}
    options |= {
        "clamp": draw(st.sampled_from([0.0, 0.5])),
        "is_causal": draw(st.booleans()),
        "dropout_p": draw(st.sampled_from([0.0, 0.4])),
        "grad_weights": draw(st.booleans()),
    }
    options["normalize"] = options["clamp"] == 0.0 or draw(st.booleans())
    case = make_graph_case(a, draw(st.integers(1, 128)), **options)
    if options["bias"] is not None and draw(st.booleans()):
        mask_some(a, case)
    return a, case


@settings(max_examples=30)
@given(data=st.data())
def test_property(kernels: Kernels, data: st.DataObject) -> None:
    """Any shape, density, option, term and precision agrees with float64."""
    a, case = draw_case(data.draw, kernels)
    results = plain_graph(a, case), lambda: exact_graph(a, case)
    floor, scales = few_roundings(a, case), term_sizes(a, case)
    assert_all_accurate(kernels.run(a, case), *results, floor=floor, scales=scales)


# What CUDA's kernels alone have.


@pytest.mark.parametrize("score", ["dot", "additive"])
def test_scores_of_any_size_leave_the_weights(gpu: Kernels, score: str) -> None:
    """Equal scores of 2^20, of which the logarithm of a row's sum would leave 1 / 16."""
    a = gpu.make(random_graph(30, 41, 0.3, empty_rows=0.1), precision="fp16")
    case = make_graph_case(a, 16, heads=8, score=score, scale=1.0)
    size = 256.0 if score == "dot" else 2048.0 * 256.0
    large = {name: torch.full_like(getattr(case.arrays, name), size) for name in ("q", "k")}
    gpu.check(a, case.with_arrays(**large))


#: Heads and their features, which leave room for one to eight rows side by side.
SIZES = [(8, 8), (1, 8), (2, 12), (8, 16), (5, 16), (12, 16), (3, 32), (1, 64), (3, 64), (1, 100)]


@poisoned
@pytest.mark.parametrize("precision", ["fp16", "bf16", "fp32"])
@pytest.mark.parametrize("score", ["dot", "additive", "gatv2"])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_rows_side_by_side(gpu: Kernels, sizes: tuple[int, int], score: str, precision: str) -> None:
    """Rows of any length beside each other, cut and empty ones too, and their columns."""
    a = gpu.make(random_graph(43, 390, 0.05, hubs=2, empty_rows=0.2), precision=precision)
    gpu.check(a, make_graph_case(a, sizes[1], heads=sizes[0], score=score, dtype=a.precision.storage))


@poisoned
@pytest.mark.parametrize("score", ["dot", "additive", "gatv2"])
@pytest.mark.parametrize("rounds", [2, 5])
def test_rows_one_after_another(
    gpu: Kernels, monkeypatch: pytest.MonkeyPatch, score: str, rounds: int
) -> None:
    """A warp takes several sets of rows, the last of them in part."""
    monkeypatch.setattr(cuda_rows, "_rounds", lambda *_: rounds)
    a = gpu.make(random_graph(47, 60, 0.1, hubs=2, empty_rows=0.2), precision="fp16")
    gpu.check(a, make_graph_case(a, 16, heads=8, score=score))


def test_sets_of_rows_of_a_warp(monkeypatch: pytest.MonkeyPatch) -> None:
    """They have some 32 nonzeros, and leave each multiprocessor 64 warps."""
    device = replace(describe_device(torch.device("cpu")), multiprocessors=2)
    monkeypatch.setattr(cuda_rows, "describe_device", lambda _: device)

    def rounds(nnz: int, sets: int, for_att: bool = False) -> int:
        csr = Csr(torch.zeros(1001, dtype=torch.int64), torch.zeros(nnz, dtype=torch.int32), 9)
        return cuda_rows._rounds(csr, sets, for_att)

    many = 10_000
    assert [rounds(degree * 1000, many) for degree in (1, 3, 8, 14, 39)] == [8, 8, 4, 2, 2]
    assert rounds(39_000, many, for_att=True) == 8
    assert [rounds(3000, sets) for sets in (0, 100, 128 * 3)] == [1, 1, 3]


def test_long_rows_come_first() -> None:
    """Parts of cut rows, then rows of 32 nonzeros or more, then near ones, the longest of them first."""
    degrees = torch.tensor([3, 70, 0, 40, 5, 200, 33])
    indptr = torch.cat((torch.zeros(1, dtype=torch.int64), degrees.cumsum(0)))
    csr = Csr(indptr, torch.zeros(int(degrees.sum()), dtype=torch.int32), 300)
    ids = torch.arange(7, dtype=torch.int32).flip(0)
    entries, cuts, partials = row_entries(csr, 64, ids)
    begin, (count, row) = entries[:, :2].contiguous().view(torch.int64)[:, 0], entries[:, 2:].unbind(1)
    stored = 6 - row
    assert partials == 6
    assert stored.tolist() == [1, 1, 5, 5, 5, 5, 3, 6, 4, 0, 2]
    assert count[6:].tolist() == [40, 33, 5, 3, 0]
    assert torch.equal(begin[6:], indptr[stored[6:].long()])
    assert count[:2].sum() == 70
    assert count[2:6].sum() == 200
    assert begin[:6].tolist() == [3, 3 + count[0], *(indptr[5] + count[2:6].cumsum(0) - count[2:6]).tolist()]
    assert cuts[:, 0].tolist() == [5, 1]


@poisoned
@pytest.mark.parametrize("score", ["dot", "gatv2"])
def test_short_rows_with_features(gpu: Kernels, score: str) -> None:
    """A forward pass of their own takes rows of few edges."""
    a = gpu.make(random_graph(90, 40, 0.05, hubs=1, empty_rows=0.2), precision="fp16")
    assert a.nnz < 6 * a.shape[0]
    gpu.check(a, make_graph_case(a, 16, score=score, features=3))


@pytest.mark.parametrize("score", ["dot", "additive"])
def test_results_in_any_dtype(gpu: Kernels, score: str) -> None:
    """Results of float32 tensors are float32 in the operand's precision."""
    a = gpu.make(random_graph(40, 60, 0.2), precision="fp16")
    results = gpu.check(a, make_graph_case(a, 16, heads=8, score=score))
    assert all(x.dtype == torch.float32 for x in results)


@pytest.mark.parametrize("score", ["dot", "additive"])
def test_an_infinite_value_stays_in_its_rows(gpu: Kernels, score: str) -> None:
    """Rows of other edges in the same warp and memory are finite."""
    graph = random_graph(40, 60, 0.1, hubs=1)
    a = gpu.make(graph, precision="fp16")
    case = make_graph_case(a, 16, heads=8, score=score)
    case.arrays.v[7] = float("inf")
    out, *_ = gpu.run(a, case)
    has_it = torch.from_numpy(graph.to_scipy().toarray()[:, 7] != 0).to(out.device)
    assert has_it.any()
    assert torch.isfinite(out[~has_it]).all()
    assert not torch.isfinite(out[has_it]).any()


@poisoned
@pytest.mark.parametrize("options", ATTENTION_OPTIONS, ids=str)
@pytest.mark.parametrize("precision", PRECISIONS)
def test_attention_over_rows(gpu: Kernels, options: dict[str, Any], precision: str) -> None:
    """gnnsparse.attention by these kernels, for batches of heads."""
    a = gpu.make(random_graph(31, 43, 0.2, hubs=1, empty_rows=0.2), precision=precision)
    case = attention_oracle.make_case(a, 12, 20, lead=(2, 3), **options)
    results = attention_oracle.run(a, case, plan=CsrAttentionPlan())
    like, exact = attention_oracle.plain(a, case), attention_oracle.exact(a, case)
    assert_all_accurate(results, like, exact, floor=max(2 * ROUNDING[precision], 2e-6))


@pytest.mark.parametrize("interleaved", [False, True])
def test_attention_over_rows_has_the_strides_that_compiled_programs_expect(
    gpu: Kernels, interleaved: bool
) -> None:
    a = gpu.make(random_graph(31, 43, 0.2), precision="fp32")

    def draw(n: int) -> torch.Tensor:
        if interleaved:
            return torch.randn(2, n, 3, 8, device=a.device).transpose(1, 2)
        return torch.randn(2, 3, n, 8, device=a.device)

    q = draw(31)
    out, stats = cuda_rows.forward(AttentionCall(a, q, draw(43), draw(43), None, None, 1.0, 0.0, False))
    assert out.stride() == q.stride()
    assert stats.is_contiguous()
