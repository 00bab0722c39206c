"""Runs every CUDA kernel once on small, awkward shapes: the program that compute-sanitizer watches.

compute-sanitizer --tool memcheck python tests/gpu/every_kernel.py [products] [attention] [graph_attention]
    [starts] [narrow] [added] [eight_bits] [sampling] [edges] [networks]

Without names it runs all of them, with "-NAME" all but NAME; "plain" is a part of "graph_attention" that is
short enough for racecheck.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from itertools import product
from typing import Any

import torch

import gnnsparse
from gnnsparse import _native, masks
from gnnsparse.formats.policy import packed_changes, packed_kernel
from gnnsparse.nn import InteractionBlock
from gnnsparse.ops.edges.cuda import available
from gnnsparse.ops.edges.schema import kernel_on
from gnnsparse.ops.spmm_kernels import spmm_into
from gnnsparse.plan import AttentionPlan, BlockAttentionPlan, CsrAttentionPlan, Plan
from gnnsparse.plan.window import RESIDUAL_MODES
from gnnsparse.precision import dense_view
from gnnsparse.runtime.device import path
from gnnsparse.sampling import FEATURE_DTYPES, FeatureStore, NeighborSampler
from gnnsparse.sparse.kernel_cache import Product
from gnnsparse.testing import random_graph
from tests.helpers import FORMATS, cut_at, has_precision

PRECISIONS = ("fp32", "tf32", "fp16", "bf16")
HEIGHTS = tuple(_native.SPMM_PANEL_BLOCKS)


def products(a: gnnsparse.SparseOperand, width: int) -> None:
    x = torch.randn(a.shape[1], width, device="cuda")
    q = torch.randn(a.shape[0], width, device="cuda")
    x.requires_grad_()
    for limit in (2, 1000):
        plan = cut_at(a.plan(width), limit, 8 * limit)
        gnnsparse.spmm(a, x, plan=plan).square().sum().backward()
    if a.stats()["kernel"].get("sddmm", {"name": None})["name"] is None:
        return
    for limit in (2, 1000):
        plan = cut_at(a.plan(width, "sddmm"), limit, 8 * limit)
        scores = gnnsparse.sddmm(a, q, x, plan=plan)
    leaf = scores.detach().requires_grad_()
    weights = gnnsparse.edge_softmax(a, leaf)
    y = gnnsparse.spmm(a, x, weights)
    y.square().sum().backward()


def packed(a: gnnsparse.SparseOperand) -> None:
    """Every policy of the kernels of packed formats, with windows cut and rows on CUDA cores."""
    spec = a.kernels.require_blocked().spec
    for width in (7, 136):
        x, plan = torch.randn(a.shape[1], width, device="cuda"), a.plan(width)
        policies = (plan.policy, *packed_changes(plan.policy, a.precision, spec).values())
        for policy, limit, mode in product(policies, (1, 100), RESIDUAL_MODES):
            now = replace(plan, policy=policy, tile_limit=limit, residual_mode=mode)
            gnnsparse.spmm(a, x, plan=now)


def heads(a: gnnsparse.SparseOperand, count: int, width: int) -> None:
    """Products of several heads, maxima, and their gradients; heads in whole vectors or not."""
    q, x = (torch.randn(rows, count, width, device="cuda", requires_grad=True) for rows in a.shape)
    weights = gnnsparse.edge_softmax(a, gnnsparse.sddmm(a, q, x))
    for reduce in ("sum", "mean", "max", "min"):
        gnnsparse.spmm(a, x, weights, reduce=reduce).square().sum().backward(retain_graph=True)
        gnnsparse.spmm(a, x, reduce=reduce).square().sum().backward()
    for limit in (8, 1000):
        plan = Plan("csr", 2, 16, row_limit=limit)
        gnnsparse.spmm(a, x, weights, plan=plan)
        gnnsparse.spmm(a, x, weights, reduce="max", plan=plan)
        gnnsparse.sddmm(a, q, x, plan=plan)


def panels(a: gnnsparse.SparseOperand) -> None:
    for height, limit, width in ((16, 1, 5), (32, 1, 72), (16, 100, 136), (32, 100, 9)):
        x = torch.randn(a.shape[1], width, device="cuda")
        for slices in (1, 2):
            plan = Plan("panel", height=height, tile_limit=limit, slices=slices, prescale=slices == 1)
            gnnsparse.spmm(a, x, plan=replace(plan, longest_first=slices == 2))
            gnnsparse.spmm(a, x, plan=replace(plan, concurrent_panels=3))
        scores = Plan("panel", height=16, tile_limit=limit)
        gnnsparse.sddmm(a, torch.randn(a.shape[0], width, device="cuda"), x, plan=scores)


def gather_floor() -> None:
    columns = torch.randint(-1, 75, (1000,), dtype=torch.int32, device="cuda")
    x = torch.randn(75, 40, device="cuda")
    processors = torch.cuda.get_device_properties(0).multi_processor_count
    out = torch.empty(processors, 1024, dtype=torch.int32, device="cuda")
    _native.cuda_gather_floor(columns, dense_view(x), 40, out, path().stream(x.device))


def long_rows() -> gnnsparse.SparseGraph:
    """Rows that are cut."""
    return random_graph(4, 3000, 0.9).to("cuda")


def attention(a: gnnsparse.SparseOperand, d: int, **options: object) -> None:
    """Both passes of the gradient, too; a row of `a` is long enough to be cut."""
    q, k, v = (torch.randn(2, n, d, device="cuda", requires_grad=True) for n in (*a.shape, a.shape[1]))
    gnnsparse.attention(a, q, k, v, **options).square().sum().backward()


def all_products() -> None:
    """spmm, sddmm, edge_softmax and their gradients."""
    for precision in PRECISIONS:
        graph = random_graph(75, 61, 0.1, hubs=2, empty_rows=0.1).to("cuda")
        for name in FORMATS:
            if not has_precision(name, precision):
                continue
            a = gnnsparse.prepare(graph, precision=precision, format=name, cache=False)
            for width in (5, 40):
                products(a, width)
            if a.kernels.blocked is not None and packed_kernel(a.kernels.blocked.spec):
                packed(a)
        a = gnnsparse.prepare(graph, precision=precision, cache=False)
        for count, width in ((3, 5), (2, 16), (16, 1)):
            heads(a, count, width)
        square = random_graph(70, 70, 0.1, weighted=False, hubs=1).to("cuda")
        a = gnnsparse.prepare(square, precision=precision, values="gcn", reorder="degree", cache=False)
        products(a, 136)
        gnnsparse.spmm(a, torch.randn(70, 9, device="cuda"), plan=Plan("csr", 1, 32, row_limit=8))
        gnnsparse.spmm(a, torch.randn(70, 72, device="cuda"), plan=Plan("csr", 8, 8, row_limit=8, group=20))
        panels(a)
        panels(gnnsparse.prepare(square, precision=precision, cache=False))
        panels(gnnsparse.prepare(graph, precision=precision, cache=False))
        # Of packed values: K tiles of two vectors a lane, and of more than a lane loads ahead.
        for density in (0.2, 0.9):
            many = random_graph(70, 150, density).to("cuda")
            panels(gnnsparse.prepare(many, precision=precision, cache=False))
    products(gnnsparse.prepare(long_rows(), precision="fp16", cache=False), 16)
    heads(gnnsparse.prepare(long_rows(), precision="fp16", cache=False), 3, 16)
    heads(gnnsparse.prepare(long_rows(), precision="fp32", cache=False).T, 3, 5)
    gather_floor()


def all_attention() -> None:
    """Attention over panels and its gradients."""
    for precision in ("fp16", "bf16"):
        a = gnnsparse.prepare(long_rows(), precision=precision, reorder="degree", cache=False)
        for d in (24, 72):
            attention(a, d)
            bias = torch.randn(2, a.nnz, device="cuda", requires_grad=True)
            attention(a, d, bias=bias, dropout_p=0.2, is_causal=True)
        attention(a, 24, bias=torch.randn(a.nnz, device="cuda", requires_grad=True))
        # Narrow rows; then panels of 64 rows, whole and cut.
        attention(a, 64)
        for pattern in (masks.window(200, 128), masks.full(100, 300)):
            dense = gnnsparse.prepare(pattern, precision=precision, cache=False).cuda()
            attention(dense, 64)
            for d in (40, 64, 128):
                attention(dense, d, plan=BlockAttentionPlan())
        # Both backward passes in one; dK and dV over tiles where there are warpgroups, and in steps.
        for sparsity in (0.95, 0.98):
            strips = masks.vector_wise(300, sparsity, seed=3, keys=1200)
            a = gnnsparse.prepare(strips, precision=precision, cache=False).cuda()
            for d in (24, 64):
                attention(a, d)
                attention(a, d, dropout_p=0.2, is_causal=True)
    for precision, widths in (("tf32", (24, 64)), ("fp32", (24,))):
        a = gnnsparse.prepare(long_rows(), precision=precision, reorder="degree", cache=False)
        for d in widths:
            attention(a, d)
            bias = torch.randn(2, a.nnz, device="cuda", requires_grad=True)
            attention(a, d, bias=bias, dropout_p=0.2, is_causal=True)


def graph_attention(a: gnnsparse.SparseOperand, heads: int, d: int, **options: object) -> None:
    """Attention with every score and edge term, and its gradients."""

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(shape, device="cuda", requires_grad=True)

    (rows, cols), edges = a.shape, a.nnz
    terms: list[dict[str, object]] = [
        {},
        {"edge_features": draw(edges, heads, d)},
        {"gate": draw(edges, heads, d)},
        {"edge_features": draw(edges, 9), "edge_weight": draw(heads * d, 9)},
    ]
    of_scores: list[dict[str, object]] = [{}, {"edge_features": draw(edges, heads), "clamp": 0.5}]
    for score in ("dot", "gatv2", "additive"):
        inner = () if score == "additive" else (d,)
        q, k, v = draw(rows, heads, *inner), draw(cols, heads, *inner), draw(cols, heads, d)
        att = draw(heads, d) if score == "gatv2" else None
        for given in {"dot": terms, "gatv2": terms[:2], "additive": of_scores}[score]:
            given = {"score": score, "att": att, "edge_order": "operand", **given, **options}
            out, weights = gnnsparse.graph_attention(a, q, k, v, return_weights=True, **given)
            (out.square().sum() + weights.square().sum()).backward()


def plain_graph_attention(a: gnnsparse.SparseOperand, heads: int, d: int) -> None:
    """Attention without further terms, and its gradients."""
    rows, cols = a.shape
    att = torch.randn(heads, d, device="cuda", requires_grad=True)
    for inner, score in ((d,), "dot"), ((), "additive"), ((d,), "gatv2"):
        q = torch.randn(rows, heads, *inner, device="cuda", requires_grad=True)
        k = torch.randn(cols, heads, *inner, device="cuda", requires_grad=True)
        v = torch.randn(cols, heads, d, device="cuda", requires_grad=True)
        of_score = att if score == "gatv2" else None
        gnnsparse.graph_attention(a, q, k, v, score=score, att=of_score).square().sum().backward()


def all_plain() -> None:
    """Graph attention without further terms, on rows side by side of every length up to one that is cut."""
    graph = random_graph(40, 75, 0.2, hubs=1, empty_rows=0.2).to("cuda")
    for precision in ("fp16", "fp32"):
        for a in (
            gnnsparse.prepare(graph, precision=precision, reorder="degree", cache=False),
            gnnsparse.prepare(long_rows(), precision=precision, cache=False),
        ):
            for heads, d in ((1, 8), (8, 8), (5, 16), (2, 64)):
                plain_graph_attention(a, heads, d)


def all_graph_attention() -> None:
    """The kernels of graph attention over rows: short, long and empty ones."""
    graph = random_graph(60, 75, 0.1, hubs=1, empty_rows=0.2).to("cuda")
    for precision in PRECISIONS:
        for a in (
            gnnsparse.prepare(graph, precision=precision, reorder="degree", cache=False),
            gnnsparse.prepare(long_rows(), precision=precision, cache=False),
        ):
            graph_attention(a, 3, 5)
            graph_attention(a, 8, 16, dropout_p=0.2, is_causal=True)
            q = torch.randn(2, 3, a.shape[0], 12, device="cuda", requires_grad=True)
            k = torch.randn(2, 3, a.shape[1], 12, device="cuda", requires_grad=True)
            gnnsparse.attention(a, q, k, k, plan=CsrAttentionPlan()).square().sum().backward()
    all_plain()


def all_eight_bits() -> None:
    """Rounding to 8 bits, and products with what was rounded, with panels whole and cut."""
    graph = random_graph(75, 61, 0.1, hubs=2, empty_rows=0.1).to("cuda")
    square = random_graph(70, 70, 0.1, weighted=False, hubs=1).to("cuda")
    dense = random_graph(70, 150, 0.9, weighted=False).to("cuda")
    for precision, values in product(("int8", "fp8"), (None, "gcn", "mean")):
        for given in (square,) if values == "gcn" else (graph, square, dense):
            a = gnnsparse.prepare(given, values=values, precision=precision, cache=False)
            for width in (1, 40, 72, 136):
                x = torch.randn(a.shape[1], width, device="cuda", requires_grad=True)
                for limit, height in product((2, 1000), _native.INTEGER_SUM_ROWS):
                    plan = Plan("panel", height=height, tile_limit=limit)
                    gnnsparse.spmm(a, x, plan=plan).square().sum().backward()
                gnnsparse.spmm(a, x.detach().T.contiguous().T, seed=3)
    # Attention, whose K and V have 8 bits; a row of the second operand is cut.
    for precision in ("int8", "fp8"):
        for given in (graph, long_rows()):
            a = gnnsparse.prepare(given, precision=precision, reorder="degree", cache=False)
            for d, limit in product((5, 16, 40, 64), (2, 1000)):
                plan = AttentionPlan(tile_limit=limit)
                attention(a, d, plan=plan)
                bias = torch.randn(2, a.nnz, device="cuda", requires_grad=True)
                attention(a, d, bias=bias, dropout_p=0.2, is_causal=True, plan=plan)
                q, k, v = (torch.randn(2, n, 3, d, device="cuda") for n in (*a.shape, a.shape[1]))
                gnnsparse.attention(a, *(x.transpose(1, 2).half() for x in (q, k, v)), plan=plan)


def all_starts() -> None:
    """Panels whose rows of X and of results begin at bytes, words and halves of vectors, whole and cut."""
    graph = random_graph(70, 61, 0.15, weighted=False, hubs=2, empty_rows=0.1).to("cuda")
    square = random_graph(70, 70, 0.15, weighted=False, hubs=1).to("cuda")
    for precision, values in product(PRECISIONS, (None, "gcn")):
        a = gnnsparse.prepare(square if values else graph, values=values, precision=precision, cache=False)
        for width, height, limit in product((7, 20, 22, 38, 100, 131), HEIGHTS, (1, 1000)):
            for dtype in {a.precision.storage, torch.float32}:
                x = torch.randn(a.shape[1], width, device="cuda").to(dtype)
                gnnsparse.spmm(a, x, plan=Plan("panel", height=height, tile_limit=limit, slices=2))


def all_narrow() -> None:
    """The kernel of few columns: rows of every length, whole and cut, in groups of one and of many rows."""
    graph = random_graph(300, 200, 0.05, weighted=False, hubs=2, empty_rows=0.2).to("cuda")
    square = random_graph(200, 200, 0.05, weighted=False, hubs=1, empty_rows=0.2).to("cuda")
    weighted = random_graph(300, 200, 0.05, hubs=2, empty_rows=0.2).to("cuda")
    for precision, (given, values) in product(
        PRECISIONS, ((graph, None), (square, "gcn"), (weighted, None), (long_rows(), None))
    ):
        a = gnnsparse.prepare(given, values=values, precision=precision, cache=False)
        for width, (group, limit) in product((1, 2, 3, 32), ((1, 40), (64, 64), (1024, 2000))):
            plan = Plan("csr", group=group, row_limit=limit, narrow=True)
            for dtype in {a.precision.storage, torch.float32}:
                x = torch.randn(a.shape[1], width + 1, device="cuda").to(dtype)
                gnnsparse.spmm(a, x[:, 1:], plan=plan)


def all_added() -> None:
    """Products of panels that are added to what is there, whole and cut, at whole chunks and between them."""
    graph = random_graph(90, 90, 0.06, weighted=False, hubs=2, empty_rows=0.2).to("cuda")
    for precision, height, values in product(PRECISIONS, HEIGHTS, (None, "gcn")):
        a = gnnsparse.prepare(graph, precision=precision, values=values, cache=False)
        x = torch.randn(90, 72, device="cuda").to(a.precision.storage)
        for limit, dtype in product((1, 1000), {a.precision.storage, torch.float32}):
            plan = Plan("panel", height=height, tile_limit=limit, prescale=limit == 1)
            y = torch.zeros(90, 73, device="cuda", dtype=dtype)
            for width, first in ((72, 0), (72, 1), (23, 3)):
                a.kernels.use_plan(Product("spmm", width), plan)
                spmm_into(a, x[:, :width], y[:, first : first + width], add=True)


def all_sampling() -> None:
    """Draws of every kind, the numbering of nodes, and pairs without an edge."""
    graph = random_graph(300, 300, 0.05, weighted=False, hubs=2, empty_rows=0.1).to("cuda")
    weights = torch.rand(graph.nnz, device="cuda")
    nodes = torch.randperm(300, device="cuda")[:40]
    ways: list[dict[str, object]] = [
        {}, {"replace": True}, {"method": "labor"}, {"values": "gcn"}, {"values": "mean", "replace": True},
        {"method": "weighted", "weights": weights},
        {"method": "weighted", "weights": weights, "replace": True},
    ]  # fmt: skip
    for way in ways:
        sampler = NeighborSampler(graph, [7, -1, 3], keep_edge_ids=True, **way)  # type: ignore[arg-type]
        for block in sampler.sample(nodes).blocks:
            gnnsparse.spmm(block.adj, torch.randn(block.adj.shape[1], 24, device="cuda"))
        if way.get("values") != "gcn":
            sampler.sample_subgraph(nodes)
    sampler.sample_links(nodes.reshape(-1, 2), negatives=3)
    for width, dtype, share in product((1, 7, 8, 600), FEATURE_DTYPES, (0.0, 0.5)):
        for placement in ("device", "pinned"):
            store = FeatureStore(
                torch.randn(300, width), placement, device="cuda", dtype=dtype, uses=torch.arange(300),
                cache_share=share,
            )  # fmt: skip
            store.gather(sampler.sample(nodes).nodes)


def all_edges() -> None:
    """Passes of functions over edges, with rows that are cut and parts of features."""
    graph = random_graph(90, 70, 0.2, weighted=False, hubs=2, empty_rows=0.2).to("cuda")
    for precision, width in product(("fp32", "fp16"), (3, 30, 264)):
        a = gnnsparse.prepare(graph, precision=precision, cache=False)
        assert kernel_on(a.device) is not None, available(a.device)
        new: dict[str, Any] = {"device": "cuda", "requires_grad": True}
        x, y = torch.randn(70, width, **new), torch.randn(90, width, **new)
        e, w = torch.randn(a.num_edges, 5, **new), torch.randn(width, 5, **new)
        s, t = torch.randn(a.num_edges, **new), torch.randn(width, **new)
        results = gnnsparse.aggregate_edges(
            a, lambda x_j, y_i, e_ij, s_ij, w, t: torch.sigmoid(x_j * t + torch.nn.functional.linear(e_ij, w))
            * y_i + s_ij,
            x_j=x, y_i=y, e_ij=e, s_ij=s, w=w, t=t, reduce=("sum", "max", "min", "none"),
        )  # fmt: skip
        sum(result.square().sum() for result in results).backward()


def all_networks() -> None:
    """Networks of edges of every width, with rows that cross tiles and edges in any order."""
    index = torch.stack([torch.randint(0, 60, (700,)), torch.randint(0, 50, (700,))]).cuda()
    index[1, :300] = 7
    for precision, width in product(("fp16", "bf16"), (40, 128, 256)):
        layer = InteractionBlock((16, 24), width, width - 8, act="gelu", precision=precision).cuda()
        new: dict[str, Any] = {"device": "cuda", "requires_grad": True}
        x, y, e = torch.randn(60, 16, **new), torch.randn(50, 24, **new), torch.randn(700, width, **new)
        out, edges = layer((x, y), index, e)
        (out.square().sum() + edges.square().sum()).backward()


KERNELS = {
    "products": all_products, "starts": all_starts, "narrow": all_narrow, "added": all_added,
    "attention": all_attention, "graph_attention": all_graph_attention, "eight_bits": all_eight_bits,
    "sampling": all_sampling, "plain": all_plain, "edges": all_edges,
    "networks": all_networks,
}  # fmt: skip


def main() -> None:
    torch.manual_seed(0)
    names = [name for name in sys.argv[1:] if not name.startswith("-")]
    names = names or [name for name in KERNELS if name != "plain"]
    for name in sys.argv[1:]:
        if name.startswith("-"):
            names.remove(name[1:])
    for name in names:
        KERNELS[name]()
    torch.cuda.synchronize()
    print("every kernel ran")


if __name__ == "__main__":
    main()
