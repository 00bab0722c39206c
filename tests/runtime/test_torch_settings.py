"""What a user has set in torch changes no result: default device and dtype, inference mode, autocast."""

from __future__ import annotations

import ast
import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import gnnsparse
from gnnsparse import SparseGraph, SparseOperand, masks
from gnnsparse.formats import FORMAT_NAMES, operations
from gnnsparse.preprocess.reorder import REORDERINGS
from gnnsparse.runtime.device import tensor_maker
from gnnsparse.testing import random_graph
from tests.helpers import has_precision

PACKAGE = Path(gnnsparse.__file__).parent
#: Functions of torch that make a tensor, and those of them whose dtype is the default one.
MAKERS = {"arange", "as_tensor", "empty", "eye", "full", "linspace", "ones", "rand", "randint", "randn",
          "randperm", "tensor", "zeros"}  # fmt: skip
OF_DEFAULT_DTYPE = {"empty", "eye", "linspace", "ones", "rand", "randn", "zeros"}
#: Parameters and buffers have the default dtype and device, as those of torch's layers.
LAYER_TENSORS = {"Parameter", "register_buffer"}
#: What reads data and trains chooses the device by its own options.
LEFT_OUT = ("bench", "data", "train")


@contextlib.contextmanager
def float64() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


SETTINGS = {
    "device": lambda: torch.device("meta"),
    "dtype": float64,
    "inference": torch.inference_mode,
    "no_grad": torch.no_grad,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
}


@pytest.fixture(params=SETTINGS)
def setting(request: pytest.FixtureRequest) -> Callable[[], Any]:
    return SETTINGS[request.param]


def _results(a: SparseOperand, x: torch.Tensor, bias: torch.Tensor, scores: torch.Tensor) -> list[Any]:
    heads = x.expand(2, *x.shape)
    options = {"bias": bias}
    products = [a @ x, a.T @ x, gnnsparse.spmm(a, x, impl="reference")]
    if "sddmm" not in operations(a.kernels.format_name):
        return products
    return [
        *products,
        gnnsparse.spmm(a, x, scores),
        gnnsparse.sddmm(a, x, x),
        gnnsparse.edge_softmax(a, scores),
        gnnsparse.attention(a, heads, heads, heads, **options),
        gnnsparse.attention(a, heads, heads, heads, fused=False, **options),
        a.indices(),
        a.to_coo_order(scores),
        a.from_coo_order(bias),
        a.transpose_values(scores),
    ]


def _prepare(graph: SparseGraph, **options: Any) -> SparseOperand:
    return gnnsparse.prepare(graph, cache=False, **options)


@pytest.mark.parametrize(
    ("name", "precision"),
    [(n, p) for n in FORMAT_NAMES for p in ("fp32", "tf32", "fp16") if has_precision(n, p)],
)
@pytest.mark.parametrize("order", ["none", "rcm"])
def test_results_are_those_without_it(
    setting: Callable[[], Any], name: str, precision: str, order: str
) -> None:
    graph = random_graph(20, 20, 0.3, seed=1)
    x, scores = torch.randn(20, 6), torch.randn(graph.nnz)
    options = {"format": name, "precision": precision, "reorder": order}
    wanted = _results(_prepare(graph, **options), x, scores, scores)
    with setting():
        found = _results(_prepare(graph, **options), x, scores, scores)
    for number, (got, right) in enumerate(zip(found, wanted, strict=True)):
        assert got.dtype == right.dtype, number
        assert torch.equal(got, right), number


@pytest.mark.parametrize("values", ["gcn", "mean", None])
@pytest.mark.parametrize("order", REORDERINGS)
def test_a_graph_is_prepared_as_without_it(
    setting: Callable[[], Any], values: str | None, order: str
) -> None:
    edges = torch.randint(30, (2, 100))
    with setting():
        a = gnnsparse.prepare(edges, num_nodes=30, values=values, reorder=order, cache=False)
        stats = a.stats()
    x = torch.randn(30, 4)
    b = gnnsparse.prepare(edges, num_nodes=30, values=values, reorder=order, cache=False)
    assert torch.equal(a @ x, b @ x)
    assert stats["nnz"] == b.nnz


def test_an_operand_of_a_setting_trains_without_it(setting: Callable[[], Any]) -> None:
    """Nothing that an operand remembers was made for inference alone."""
    edges, weights = torch.randint(30, (2, 100)), torch.rand(100)
    x = torch.randn(30, 4)
    with setting():
        options = {"num_nodes": 30, "reorder": "degree", "precision": "fp16", "cache": False}
        a = gnnsparse.prepare(edges, values=weights.clone(), **options)
        graph = SparseGraph.from_edge_index(edges, 30, weights.clone())
        scores = gnnsparse.sddmm(a, x, x)
        a.transpose_values(a.from_coo_order(a.to_coo_order(scores)))
        gnnsparse.attention(a, x, x, x, bias=scores)
        gnnsparse.spmm(a.T, x, impl="reference")
    for operand in (a, _prepare(graph, precision="fp16")):
        x = torch.randn(30, 4, requires_grad=True)
        values = torch.rand(operand.nnz, requires_grad=True)
        coo = torch.rand(100, requires_grad=True)
        for y in (
            operand @ x,
            gnnsparse.spmm(operand, x, impl="reference"),
            gnnsparse.spmm(operand, x, values),
            operand.T @ x,
            operand.to_coo_order(values),
            operand.from_coo_order(coo),
            operand.transpose_values(values),
            gnnsparse.attention(operand, x, x, x, bias=values),
        ):
            y.sum().backward()


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_gradients_of_attention_s_bias_under_another_default_dtype(precision: str) -> None:
    a = _prepare(random_graph(9, 9, 0.5, seed=1), precision=precision)
    q = torch.randn(9, 4)
    found = []
    for context in (contextlib.nullcontext, float64):
        bias = torch.linspace(-1, 1, a.nnz, requires_grad=True)
        with context():
            gnnsparse.attention(a, q, q, q, bias=bias).sum().backward()
        found.append(bias.grad)
    assert found[0].dtype == torch.float32
    assert torch.equal(*found)


def test_patterns_are_on_the_cpu_whatever_the_default_device() -> None:
    block = torch.eye(3, dtype=torch.bool)
    makers = [
        lambda: masks.window(9, 2),
        lambda: masks.dilated(9, 4, 2),
        lambda: masks.causal(9),
        lambda: masks.full(9, 4),
        lambda: masks.global_tokens(9, 2),
        lambda: masks.global_tokens(9, [1, 3]),
        lambda: masks.random(9, 7, seed=1),
        lambda: masks.random(9, 2, seed=1),
        lambda: masks.expander(9, 4, seed=1),
        lambda: masks.expander(9, 6, seed=1),
        lambda: masks.vector_wise(9, 0.5, 4, seed=1),
        lambda: masks.bigbird(20, 4, seed=1),
        lambda: masks.block(block, 3),
        lambda: random_graph(9, 9, 0.5, hubs=1, empty_rows=0.2),
    ]
    wanted = [make() for make in makers]
    with torch.device("meta"), float64():
        found = [make() for make in makers]
    for got, right in zip(found, wanted, strict=True):
        assert got.fingerprint == right.fingerprint


def test_attention_stacks_heads_under_autocast() -> None:
    """Autocast on a CPU does not stack float16, and unfused attention stacks heads."""
    a = _prepare(random_graph(9, 9, 0.5, seed=1))
    q = torch.randn(2, 9, 4).half()
    wanted = gnnsparse.attention(a, q, q, q, fused=False)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(gnnsparse.attention(a, q, q, q, fused=False), wanted)


def _calls() -> Iterator[tuple[str, ast.Call]]:
    """All calls in the package but those that make parameters and buffers of layers."""
    for path in PACKAGE.rglob("*.py"):
        if path.relative_to(PACKAGE).parts[0] in LEFT_OUT:
            continue
        calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
        named = [(call, call.func.attr) for call in calls if isinstance(call.func, ast.Attribute)]
        of_layers = [id(arg) for call, name in named if name in LAYER_TENSORS for arg in call.args]
        for call, _ in named:
            if id(call) not in of_layers:
                yield f"{path.relative_to(PACKAGE)}:{call.lineno}", call


def test_every_new_tensor_says_where_it_is_and_what_it_holds() -> None:
    """A tensor made without a device or a dtype has torch's default one, which the user may have set."""
    wrong = []
    for place, call in _calls():
        assert isinstance(call.func, ast.Attribute)
        of_torch = isinstance(call.func.value, ast.Name) and call.func.value.id == "torch"
        name, given = call.func.attr, {keyword.arg for keyword in call.keywords}
        if not of_torch or name not in MAKERS or None in given:  # None: **options
            continue
        if "device" not in given or (name in OF_DEFAULT_DTYPE and "dtype" not in given):
            wrong.append(f"{place} {ast.unparse(call)}")
    assert wrong == []


@pytest.mark.parametrize("is_deterministic", [False, True])
def test_new_tensors_are_filled_where_algorithms_are_deterministic(is_deterministic: bool) -> None:
    """torch fills what is not set by NaN then, so that its use is seen."""
    forms = [
        ((3, 5), torch.float32),
        ((0, 4), torch.float16),
        ((7,), torch.int32),
        ((2, 0, 3), torch.float32),
    ]
    make = tensor_maker(torch.device("cpu"), forms)
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(is_deterministic)
    try:
        first, second = make(), make()
    finally:
        torch.use_deterministic_algorithms(before)
    assert [(tuple(t.shape), t.dtype) for t in first] == forms
    assert all(t.is_contiguous() for t in first)
    assert first[0].data_ptr() != second[0].data_ptr()
    assert first[0].isnan().all() or not is_deterministic
