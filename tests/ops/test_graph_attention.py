"""gnnsparse.graph_attention: its arguments, edge orders, transforms and errors."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

import gnnsparse
from gnnsparse import SparseGraph
from gnnsparse.data.graph_batches import BlockBatches
from gnnsparse.ops.attention import api
from gnnsparse.ops.attention.unfused import by_products
from gnnsparse.testing import assert_all_accurate, random_graph
from tests.helpers import PRECISIONS, make

H, D = 3, 8


def edge_list(rows: int = 20, cols: int = 27, edges: int = 90) -> torch.Tensor:
    """(source, target) of distinct edges, in random order."""
    keys = torch.randperm(rows * cols)[:edges]
    return torch.stack([keys % cols, keys // cols])


def operand(device: str, precision: str = "fp32", rows: int = 20, cols: int = 27) -> tuple[Any, torch.Tensor]:
    source, target = edge_list(rows, cols)
    graph = SparseGraph.from_edge_index(torch.stack([source, target]), (cols, rows))
    return gnnsparse.prepare(graph, precision=precision, cache=False).to(device), torch.stack(
        [target, source]
    )


def nodes(a: Any, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    (rows, cols), device = a.shape, a.device
    return [torch.randn(n, H, D, device=device, dtype=dtype, requires_grad=True) for n in (rows, cols, cols)]


def scored(a: Any, score: str) -> tuple[list[torch.Tensor], dict[str, Any]]:
    """q, k and v, and what goes with a score."""
    q, k, v = nodes(a)
    if score == "additive":
        q, k = q[..., 0], k[..., 0]
    att = torch.randn(H, D, device=a.device) if score == "gatv2" else None
    return [q, k, v], {"score": score, "att": att}


def by_edges(edges: torch.Tensor, rows: int, scores: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """The output of scores and values of edges, in float64."""
    target = edges[0]
    total = torch.zeros(rows, H, dtype=torch.float64).index_add(0, target, scores.exp())
    weighed = (scores.exp() / total[target])[..., None] * values
    return torch.zeros(rows, H, D, dtype=torch.float64).index_add(0, target, weighed)


def gradients(out: torch.Tensor, leaves: list[torch.Tensor]) -> list[torch.Tensor]:
    torch.manual_seed(3)
    grad = torch.randn(out.shape)
    found = torch.autograd.grad(out, leaves, grad.to(out))
    return [out.detach().cpu(), *(g.cpu() for g in found)]


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("kind", ["dot", "cosine", "expanded", "mapped", "gate"])
def test_edge_tensors_are_in_the_order_of_the_edges(device: str, kind: str, precision: str) -> None:
    a, edges = operand(device, precision)
    (rows, _), count = a.shape, edges.shape[1]
    q, k, v = nodes(a)
    scale = torch.rand(H, device=a.device, requires_grad=True)
    e = torch.randn(count, H, D, device=a.device, requires_grad=True)
    x = torch.randn(count, 5, device=a.device, requires_grad=True)
    w = torch.randn(H * D, 5, device=a.device, requires_grad=True)
    terms: dict[str, dict[str, Any]] = {
        "dot": {"scale": scale},
        "cosine": {"score": "cosine", "scale": scale},
        "expanded": {"edge_features": e, "scale": 0.3},
        "mapped": {"edge_features": x, "edge_weight": w, "scale": 0.2},
        "gate": {"gate": e, "scale": 0.3},
    }
    leaves = [q, k, v, *(t for t in terms[kind].values() if isinstance(t, torch.Tensor))]

    def exact(dtype: torch.dtype) -> list[torch.Tensor]:
        given = [t.detach().cpu().to(dtype).requires_grad_() for t in leaves]
        q, k, v, *rest = given
        target, source = edges
        own, keys, values = q[target], k[source], v[source]
        factor: Any = 0.3
        if kind == "cosine":
            own, keys = (torch.nn.functional.normalize(t, dim=-1) for t in (own, keys))
        if kind in ("dot", "cosine"):
            factor = rest[0]
        if kind == "expanded":
            keys, values = keys + rest[0], values + rest[0]
        if kind == "mapped":
            features = (rest[0] @ rest[1].T).view(-1, H, D)
            keys, values, factor = keys + features, values + features, 0.2
        if kind == "gate":
            keys = keys * rest[0]
        out = by_edges(edges, rows, ((own * keys).sum(-1) * factor).double(), values.double())
        return gradients(out.to(dtype), given)

    got = gradients(gnnsparse.graph_attention(a, q, k, v, **terms[kind]), leaves)
    floor = {"fp32": 4e-6, "tf32": 4e-3, "fp16": 4e-3, "bf16": 3e-2}[precision]
    assert_all_accurate(got, exact(torch.float32), exact(torch.float64), floor=floor)


@pytest.mark.parametrize("score", ["dot", "additive", "gatv2"])
def test_both_orders_and_returned_weights_agree(device: str, score: str) -> None:
    a, edges = operand(device)
    given, how = scored(a, score)
    bias = torch.randn(edges.shape[1], H, device=device, requires_grad=True)
    out, weights = gnnsparse.graph_attention(a, *given, bias=bias, return_weights=True, **how)
    in_order = {"bias": a.from_coo_order(bias), "edge_order": "operand", "return_weights": True}
    own, other = gnnsparse.graph_attention(a, *given, **how, **in_order)
    assert torch.equal(out, own)
    assert torch.equal(weights, a.to_coo_order(other))
    sums = torch.zeros(a.shape[0], H).index_add(0, edges[0], weights.detach().cpu())
    assert torch.allclose(sums[edges[0]], torch.ones(()), atol=1e-5)
    again = gnnsparse.graph_attention(a, *given, bias=bias, **how)
    assert torch.allclose(again, out, atol=1e-5)
    # With dot products this one is scaled dot-product attention, by other kernels.
    (got,), (wanted,) = (torch.autograd.grad(x.sin().sum(), bias, retain_graph=True) for x in (again, out))
    assert torch.allclose(got, wanted, atol=1e-5)
    _, exact = gnnsparse.graph_attention(a, *given, **how, **in_order, impl="reference")
    (got,), (wanted,) = (torch.autograd.grad(x.square().sum(), given[0]) for x in (weights, exact))
    assert torch.allclose(got, wanted, atol=1e-5)


def test_masked_sources_have_no_weight(device: str) -> None:
    a, edges = operand(device)
    q, k, v = nodes(a)
    padding = torch.arange(a.shape[1]) % 3 == 0
    for extra in ({}, {"edge_features": torch.randn(edges.shape[1], D, device=device)}):
        _, weights = gnnsparse.graph_attention(
            a, q, k, v, key_padding_mask=padding.to(device), return_weights=True, **extra
        )
        assert (weights.cpu()[padding[edges[1]]] == 0).all()


@pytest.mark.parametrize("score", ["dot", "additive", "gatv2", "gated"])
def test_random_graphs_by_the_reference_with_its_dropout(device: str, score: str) -> None:
    a = make(random_graph(40, 50, 0.1, hubs=2, empty_rows=0.2), device, reorder="degree")
    given, how = scored(a, "dot" if score == "gated" else score)
    if score == "gated":
        how |= {"gate": torch.randn(a.nnz, D, device=device), "clamp": 0.5, "edge_order": "operand"}
    for dropout_p in (0.0, 0.5):
        found = []
        for impl in ("auto", "reference"):
            torch.manual_seed(1)
            found.append(gnnsparse.graph_attention(a, *given, dropout_p=dropout_p, impl=impl, **how))
        assert torch.allclose(*found, atol=1e-5)


def test_padding_has_no_part_in_gradients_of_additive_scores() -> None:
    """Of a batch of blocks in static buffers, whose last nonzeros belong to no row."""
    torch.manual_seed(3)
    starts = [0, 5, 12, 18]
    blocks = [torch.randint(a, b, (2, 15)).unique(dim=1) for a, b in itertools.pairwise(starts)]
    whole = gnnsparse.prepare(torch.cat(blocks, 1), num_nodes=starts[-1], cache=False)
    batch = BlockBatches(whole, torch.tensor(starts)).padded(2, 20, 60)
    batch.chosen[:2] = torch.tensor([2, 0])
    batch.assemble()
    leaves = [torch.randn(20, *of, requires_grad=True) for of in ((H,), (H,), (H, D))]
    for count in range(3):
        torch.full((60, H), 10.0 ** (3 * count))  # in memory that is not written
        found, plain = (
            gradients(gnnsparse.graph_attention(batch.adj, *leaves, score="additive", impl=impl), leaves)
            for impl in ("auto", "cpu")
        )
        torch.testing.assert_close(found, plain)


@pytest.mark.parametrize(("density", "features"), [(0.1, None), (0.1, H), (0.1, 1), (0.9, None)])
def test_few_edges_of_many_heads_on_a_cpu(
    monkeypatch: pytest.MonkeyPatch, density: float, features: int | None
) -> None:
    """By products of all heads, with the results and gradients of the kernel; not rows of many edges."""
    calls: list[Any] = []
    monkeypatch.setattr(api, "by_products", lambda call: calls.append(call) or by_products(call))
    torch.manual_seed(2)
    a = make(random_graph(40, 50, density, hubs=2, empty_rows=0.2), "cpu", reorder="degree")
    leaves, how = scored(a, "additive")
    if features is not None:
        leaves.append(torch.randn(a.nnz, *([features] if features > 1 else []), requires_grad=True))

    def run(impl: str, *given: torch.Tensor) -> list[torch.Tensor]:
        own = [t.detach().requires_grad_() for t in given]
        terms = {"edge_features": own[3]} if features else {}
        options = {**how, **terms, "negative_slope": 0.1, "edge_order": "operand", "impl": impl}
        return gradients(gnnsparse.graph_attention(a, *own[:3], **options), own)

    found = run("auto", *leaves)
    assert len(calls) == (density < 0.5)
    plain = run("cpu", *leaves)
    assert len(calls) == (density < 0.5)
    assert_all_accurate(found, plain, run("reference", *(t.double() for t in leaves)))
    for options in ({"dropout_p": 0.5}, {"clamp": 1.0}, {"normalize": False}, {"return_weights": True}):
        gnnsparse.graph_attention(a, *leaves[:3], **how, **options)
    assert len(calls) == (density < 0.5)


@pytest.mark.parametrize("terms", ["none", "gatv2", "mapped"])
def test_compiled_whole_with_gradients(device: str, terms: str) -> None:
    a, edges = operand(device)
    q, k, v = nodes(a)
    att = torch.randn(H, D, device=device, requires_grad=True)
    x = torch.randn(edges.shape[1], 5, device=device)
    w = torch.randn(H * D, 5, device=device, requires_grad=True)
    given: dict[str, Any] = {
        "none": {}, "gatv2": {"score": "gatv2", "att": att}, "mapped": {"edge_features": x, "edge_weight": w},
    }[terms]  # fmt: skip

    def loss(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, given: dict[str, Any]) -> torch.Tensor:
        return gnnsparse.graph_attention(a, q, k, v, **given).square().sum()  # type: ignore[no-any-return]

    leaves = [q, k, v, *(t for t in given.values() if isinstance(t, torch.Tensor) and t.requires_grad)]
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    got = torch.autograd.grad(compiled(q, k, v, given), leaves)
    wanted = torch.autograd.grad(loss(q, k, v, given), leaves)
    for one, other in zip(got, wanted, strict=True):
        assert torch.allclose(one, other, rtol=1e-4, atol=1e-4)


def test_second_derivatives_and_transforms(device: str) -> None:
    a, _ = operand(device)
    q, k, v = nodes(a)
    att = torch.randn(H, D, device=device)

    def loss(q: torch.Tensor) -> torch.Tensor:
        return gnnsparse.graph_attention(a, q, k, v, score="gatv2", att=att).square().sum()  # type: ignore[no-any-return]

    (first,) = torch.autograd.grad(loss(q), q, create_graph=True)
    (second,) = torch.autograd.grad(first.square().sum(), q)
    assert torch.allclose(torch.func.grad(loss)(q), first, atol=1e-3)
    # Along a direction, the change of the first derivative's size: differences of float64's reference.
    way, step = torch.randn_like(q), 1e-4

    def size(x: torch.Tensor) -> torch.Tensor:
        wide = x.detach().double().requires_grad_()
        others = (t.double() for t in (k, v))
        out = gnnsparse.graph_attention(a, wide, *others, score="gatv2", att=att.double(), impl="reference")
        return torch.autograd.grad(out.square().sum(), wide)[0].square().sum()

    slope = (size(q.double() + step * way) - size(q.double() - step * way)) / (2 * step)
    assert torch.allclose((second * way).sum().double(), slope, rtol=1e-2, atol=1e-3)


def test_results_in_half_precision_have_the_dtype_of_the_values(device: str) -> None:
    a, _ = operand(device, "fp16")
    q, k, v = nodes(a, torch.float16)
    for score in ("dot", "cosine"):
        assert gnnsparse.graph_attention(a, q, k, v, score=score).dtype == torch.float16


ONES = torch.ones(90, D)
ERRORS: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"score": "sum"}, ValueError, "score: got 'sum'"),
    ({"score": "gatv2"}, ValueError, "att: got None with score='gatv2'"),
    ({"att": torch.ones(H, D)}, ValueError, "att: got a tensor with score='dot'"),
    ({"score": "gatv2", "att": torch.ones(H, D), "scale": 1.0}, ValueError, "scale: got one with"),
    ({"scale": float("inf")}, ValueError, "scale: got inf"),
    ({"scale": torch.ones(2)}, ValueError, "scale: has shape"),
    ({"clamp": 0.0}, ValueError, "clamp: got 0"),
    ({"dropout_p": 1.0}, ValueError, "dropout_p: got 1.0"),
    ({"bias": torch.ones(3)}, ValueError, "bias: has shape"),
    ({"edge_features": torch.ones(90, 5)}, ValueError, "edge_features: has shape"),
    ({"edge_weight": torch.ones(H * D, 5)}, ValueError, "edge_weight: got one without edge_features"),
    ({"edge_features": ONES, "edge_weight": torch.ones(4, D)}, ValueError, "edge_weight: has shape"),
    ({"edge_features": ONES, "score": "cosine"}, ValueError, "edge_features: got features of keys"),
    ({"gate": torch.ones(90, D), "score": "cosine"}, ValueError, "gate: got one with score='cosine'"),
    ({"edge_target": "sums"}, ValueError, "edge_target: got 'sums'"),
    ({"edge_order": "csr"}, ValueError, "edge_order: got 'csr'"),
    ({"normalize": 1}, TypeError, "normalize: got int"),
    ({"key_padding_mask": torch.ones(4)}, TypeError, "key_padding_mask: got"),
    ({"negative_slope": "a"}, TypeError, "negative_slope: got str"),
]  # fmt: skip


@pytest.mark.parametrize(("given", "error", "text"), ERRORS, ids=[text for _, _, text in ERRORS])
def test_errors_name_the_argument(given: dict[str, Any], error: type[Exception], text: str) -> None:
    a, _ = operand("cpu")
    q, k, v = nodes(a)
    with pytest.raises(error) as found:
        gnnsparse.graph_attention(a, q, k, v, **given)
    assert str(found.value).startswith(text)
    assert "accepted: " in str(found.value)


def test_features_of_repeated_edges_are_refused() -> None:
    graph = SparseGraph.from_edge_index(torch.tensor([[1, 1, 0], [0, 0, 1]]), 2)
    a = gnnsparse.prepare(graph, cache=False)
    q, k, v = nodes(a)
    with pytest.raises(ValueError, match="edge_features: has a row for each edge, but edges were repeated"):
        gnnsparse.graph_attention(a, q, k, v, edge_features=torch.ones(3, D))
    out = gnnsparse.graph_attention(a, q, k, v, edge_features=torch.ones(2, D), edge_order="operand")
    assert out.shape == (2, H, D)


def test_self_loops_that_were_added_have_no_features() -> None:
    edge_index = torch.tensor([[1, 0, 2], [0, 2, 1]])
    a = gnnsparse.prepare(edge_index, num_nodes=3, values="gcn", cache=False)
    q, k, v = nodes(a)
    features = torch.randn(3, H, D)
    own = {"edge_features": a.from_coo_order(features), "edge_order": "operand"}
    out = gnnsparse.graph_attention(a, q, k, v, edge_features=features)
    assert torch.equal(out, gnnsparse.graph_attention(a, q, k, v, **own))
