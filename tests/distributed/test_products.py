"""Operations on several ranks against those of one process, for gloo on CPUs."""

from __future__ import annotations

import functools
import itertools
import random
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist

import gnnsparse
from gnnsparse import SparseGraph
from gnnsparse.distributed import (
    DistributedOperand,
    Rates,
    distribute,
    known_rates,
    measure_rates,
    share_batch_norm,
    sum_over_ranks,
)
from gnnsparse.distributed.api import _shard_of
from gnnsparse.distributed.exchange import total_of
from gnnsparse.distributed.names import PARTITIONS
from gnnsparse.distributed.partition import Partition
from gnnsparse.distributed.shard import ShardRecipe, content_of, read_shard, store_shard
from gnnsparse.distributed.training import RowGather, sum_gradients
from gnnsparse.ops.quantization import exact_rounded
from gnnsparse.runtime.cache import GraphCache
from gnnsparse.testing import assert_all_accurate, random_graph
from gnnsparse.train.tasks.node import _trial_of
from models import MODELS
from tests.distributed.ranks import Ranks
from tests.distributed.test_partition import assert_same

#: Ways that divide rows; "features" is one of its own.
ROWS = ("halo", "gather")
PARTS = ("contiguous", "community", "metis")


def graph_of(nodes: int, seed: int, weighted: bool = False, density: float = 0.08) -> SparseGraph:
    return random_graph(
        nodes, nodes, density, seed=seed, weighted=weighted, hubs=min(2, nodes), empty_rows=0.2
    )


def _noise(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def _with_gradients(
    function: Callable[..., torch.Tensor], inputs: list[torch.Tensor], weight: torch.Tensor
) -> Any:
    """[result, gradients of the inputs] for the loss (result * weight).sum()."""
    leaves = [x.clone().requires_grad_() for x in inputs]
    y = function(*leaves)
    (y * weight).sum().backward()
    return [y.detach(), *(x.grad for x in leaves)]


def _compare(
    operand: DistributedOperand,
    run: Callable[[Any, str], Callable[..., torch.Tensor]],
    one: Any,
    inputs: list[torch.Tensor],
    weight: torch.Tensor,
    floor: float | None = None,
) -> None:
    """Compares this rank's rows with those of one process, whose reference in float64 is the exact result.

    `floor`: a relative error that is allowed.
    """
    nodes, one = operand.nodes.to(operand.device), one.to(operand.device)
    assert operand.dtype == one.dtype
    inputs, weight = [x.to(operand.device) for x in inputs], weight.to(operand.device)
    mine = _with_gradients(run(operand, "auto"), [x[nodes] for x in inputs], weight[nodes])
    again = _with_gradients(run(operand, "auto"), [x[nodes] for x in inputs], weight[nodes])
    assert all(torch.equal(a, b) for a, b in zip(mine, again, strict=True))
    plain = _with_gradients(run(one, "auto"), inputs, weight)
    exact_inputs = [exact_rounded(x, one.precision).double() for x in inputs]
    exact = _with_gradients(run(one, "reference"), exact_inputs, weight.double())
    assert_all_accurate(mine, [t[nodes] for t in plain], [t[nodes] for t in exact], floor=floor)


def _product(reduce: str) -> Callable[[Any, str], Callable[..., torch.Tensor]]:
    return lambda a, impl: lambda x: gnnsparse.spmm(a, x, reduce=reduce, impl=impl)


def products(group: dist.ProcessGroup, nodes: int, seed: int, precision: str, width: int) -> None:
    """A @ X and its gradient, for all ways, partitions and weights."""
    for values in ("gcn", "mean", None):
        graph = graph_of(nodes, seed, weighted=values is None)
        one = gnnsparse.prepare(graph, values=values, precision=precision, cache=False)
        x, weight = _noise(nodes, width, seed=seed + 1), _noise(nodes, width, seed=seed + 2)
        # A GPU's csr kernel rounds the product of a weight's two factors, which the exact result does not.
        product_of_factors = {"tf32": 2.0**-11, "fp16": 2.0**-11, "bf16": 2.0**-8} if values == "gcn" else {}
        for way, parts in [*((w, p) for w in ROWS for p in PARTS), ("features", "auto")]:
            options = {"precision": precision, "way": way, "parts": parts, "chunks": 2, "cache": False}
            for split in (False, True) if way in ROWS else (None,):
                operand = distribute(graph, group, values=values, split=split, **options)
                floor = product_of_factors.get(precision) if operand.device.type == "cuda" else None
                _compare(operand, _product("sum"), one, [x], weight, floor)


def _transfers(operand: DistributedOperand, x: torch.Tensor) -> int:
    """How often products start to fetch what other ranks have, of two that must have equal bits."""
    exchange, found = type(operand.operations._product.exchange), []
    with mock.patch.object(exchange, "start", autospec=True, side_effect=exchange.start) as starts:
        for leaf in (x.requires_grad_(), x.detach().clone().requires_grad_()):
            y = operand @ leaf
            found.append([y, *torch.autograd.grad(y, leaf, torch.ones_like(y))])
    assert all(torch.equal(one, same) for one, same in zip(*found, strict=True))
    return starts.call_count


def fetched_once(group: dist.ProcessGroup, precision: str, wire: str) -> None:
    """Features that stay as they are travel in the first product alone, whose bits all of them have."""
    graph, rank = graph_of(40, 3), dist.get_rank(group)
    for way, split in itertools.product(ROWS, (False, True)):
        how = {"way": way, "split": split, "chunks": 2, "wire": wire, "precision": precision}
        operand = distribute(graph, group, values="mean", cache=False, **how)
        x, other = (_noise(40, 70, seed=seed)[operand.nodes].to(operand.device) for seed in (1, 2))
        transfers = functools.partial(_transfers, operand)
        every = transfers(x)
        operand.fetch_once(x)
        assert transfers(x) == every
        once = transfers(x)
        assert transfers(x) == once < every
        assert transfers(other) == every
        with torch.no_grad():
            x[:1] += 1
        assert transfers(x) == every
        operand.fetch_once(x)
        assert (transfers(x), transfers(x)) == (every, once)
        with mock.patch("gnnsparse.distributed.operations._LEAST_FREE", 10 if rank else 2**60):
            operand.fetch_once(x)  # rank 0 has no room
        assert (transfers(x), transfers(x)) == (every, every)
        with pytest.raises(ValueError, match=r"^x: has shape"):
            operand.fetch_once(torch.zeros(len(x) + 1, 2, device=x.device))


def in_8_bits(group: dist.ProcessGroup, nodes: int, seed: int, precision: str) -> None:
    """X of other ranks is rounded to 255 numbers in each row; own rows, gradients and masks are not."""
    graph, width = graph_of(nodes, seed), 37
    one = gnnsparse.prepare(graph, values="gcn", precision=precision, cache=False)
    x, weight = _noise(nodes, width, seed=seed + 1), _noise(nodes, width, seed=seed + 2)
    x[1] = 0
    scale = x.abs().amax(1, keepdim=True) / 127
    rounded = (x / scale.clamp(min=1e-30)).round() * scale
    assert 1e-3 < (rounded - x).norm() / x.norm() < 1e-2
    mask = torch.arange(nodes) % 3 == 0
    for way in ROWS:
        options = {"precision": precision, "way": way, "parts": "community", "cache": False}
        for split in (False, True):
            operand = distribute(graph, group, values="gcn", wire="int8", split=split, chunks=1, **options)
            nodes_of = operand.nodes
            assert "travel as 8 bits a feature" in operand.explain() or operand.facts.ranks == 1
            seen = rounded.index_copy(0, nodes_of, x[nodes_of])
            found = _with_gradients(lambda own, a=operand: a @ own, [x[nodes_of]], weight[nodes_of])
            torch.testing.assert_close(found[0], (one @ seen)[nodes_of], rtol=1e-3, atol=1e-3)
            plain = _with_gradients(lambda own: one @ own, [x], weight)
            torch.testing.assert_close(found[1], plain[1][nodes_of], rtol=1e-3, atol=1e-3)
            assert x[nodes_of].isfinite().all()
            bad = torch.where(nodes_of[:, None] == 2, torch.tensor(float("inf")), x[nodes_of])
            reached = (one @ torch.where(torch.arange(nodes)[:, None] == 2, torch.nan, x)).isnan()[nodes_of]
            assert torch.equal((operand @ bad).isfinite(), ~reached)
            q, own_mask = x[nodes_of][:, None], mask[nodes_of]
            attend = gnnsparse.graph_attention
            out = attend(operand, q, q, q, key_padding_mask=own_mask)
            all_keys = attend(one, x[:, None], seen[:, None], seen[:, None], key_padding_mask=mask)
            torch.testing.assert_close(out, all_keys[nodes_of], rtol=1e-2, atol=1e-2)


def reductions(group: dist.ProcessGroup, nodes: int, seed: int) -> None:
    graph = graph_of(nodes, seed)
    one = gnnsparse.prepare(graph, cache=False)
    x, weight = _noise(nodes, 8, seed=seed + 1), _noise(nodes, 8, seed=seed + 2)
    for way in (*ROWS, "features"):
        operand = distribute(graph, group, way=way, parts="contiguous", cache=False)
        for reduce in ("mean", "max", "min"):
            _compare(operand, _product(reduce), one, [x], weight)


def edge_operations(group: dist.ProcessGroup, nodes: int, seed: int) -> None:
    """The chain of SDDMM, softmax and SpMM with edge values, whose order is a rank's own."""

    def run(a: Any, impl: str) -> Callable[..., torch.Tensor]:
        def chain(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            weights = gnnsparse.edge_softmax(a, gnnsparse.sddmm(a, q, k, impl=impl), impl=impl)
            return gnnsparse.spmm(a, v, weights, impl=impl)

        return chain

    graph = graph_of(nodes, seed)
    one = gnnsparse.prepare(graph, cache=False)
    inputs = [_noise(nodes, 8, seed=seed + number) for number in range(3)]
    for way in ROWS:
        operand = distribute(graph, group, way=way, parts="community", cache=False)
        _compare(operand, run, one, inputs, _noise(nodes, 8, seed=seed + 9))


def attentions(group: dist.ProcessGroup, nodes: int, seed: int, heads: int) -> None:
    graph = graph_of(nodes, seed)
    one = gnnsparse.prepare(graph, cache=False)
    q, k, v = (_noise(nodes, heads, 8, seed=seed + number) for number in range(3))
    scores = [_noise(nodes, heads, seed=seed + number) for number in (5, 6)]
    weight = _noise(nodes, heads, 8, seed=seed + 9)

    def dot(a: Any, impl: str) -> Callable[..., torch.Tensor]:
        def run(*nodes_first: torch.Tensor) -> torch.Tensor:
            by_head = (x.transpose(0, 1) for x in nodes_first)
            return gnnsparse.attention(a, *by_head, impl=impl).transpose(0, 1)

        return run

    def additive(a: Any, impl: str) -> Callable[..., torch.Tensor]:
        return lambda q, k, v: gnnsparse.graph_attention(a, q, k, v, score="additive", impl=impl)

    for way in (*ROWS, "features"):
        operand = distribute(graph, group, way=way, parts="contiguous", cache=False)
        _compare(operand, dot, one, [q, k, v], weight)
        _compare(operand, additive, one, [*scores, v], weight)


def _loss(model: torch.nn.Module, x: torch.Tensor, adj: Any, y: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(model(x, adj), y, reduction="sum") / 50


def model_steps(
    group: dist.ProcessGroup,
    name: str,
    way: str,
    options: dict[str, Any],
    nodes: int = 50,
    seed: int = 3,
    precision: str = "fp32",
    rates: Rates | None = None,
) -> str:
    """Two training steps of a model give the losses and gradients of one process, and the same bits again.

    Returns the way.
    """
    entry = MODELS[name]
    graph = graph_of(nodes, seed, density=min(1.0, 4 / nodes))
    options = {"hidden_channels": 12, "dropout": 0.0, **options}
    values = entry.values_with(options)
    x, y = _noise(nodes, 6, seed=4), torch.arange(nodes) % 4
    one = gnnsparse.prepare(graph, values=values, precision=precision, cache=False)
    trial = _trial_of(entry.build(6, out_channels=4, **options), 6)
    operand = distribute(
        graph, group, values=values, way=way, parts="contiguous", cache=False, precision=precision,
        rates=rates, trial=trial,
    )  # fmt: skip
    mine = operand.nodes.to(operand.device)
    x, y, one = x.to(operand.device), y.to(operand.device), one.to(operand.device)

    def train(adj: Any, shared: bool) -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = entry.build(6, out_channels=4, **options).to(operand.device)
        if shared:
            share_batch_norm(model, group)
        optimizer, found = torch.optim.SGD(model.parameters(), lr=0.1), []
        for _ in range(2):
            optimizer.zero_grad()
            own = _loss(model, x[mine], adj, y[mine]) if shared else _loss(model, x, adj, y)
            loss = total_of(own, group) if shared else own
            loss.backward()
            if shared:
                sum_gradients(model.parameters(), group)
            found += [loss.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)]
            optimizer.step()
        model.eval()
        with torch.no_grad():
            found.append(model(x[mine], adj) if shared else model(x, adj)[mine])
        return found

    first, again = train(operand, True), train(operand, True)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    # Sums of another order round features in between to other numbers of the precision.
    close = {"fp32": (2e-4, 2e-5), "tf32": (5e-3, 2e-3), "fp16": (5e-3, 2e-3), "bf16": (4e-2, 2e-2)}
    for got, expected in zip(first, train(one, False), strict=True):
        torch.testing.assert_close(got, expected, rtol=close[precision][0], atol=close[precision][1])
    return operand.choice.way


def refusals(group: dist.ProcessGroup) -> None:
    """What an operand of several ranks refuses, on each of them."""
    graph, rank = graph_of(20, 1), dist.get_rank(group)
    square = distribute(graph, group, way="halo", parts="contiguous", cache=False)
    sliced = distribute(graph, group, way="features", cache=False)
    twice = SparseGraph.from_edge_index(torch.tensor([[0, 0, 1], [1, 1, 2]]), 20)
    repeated = distribute(twice, group, way="halo", parts="contiguous", cache=False)
    x, by_head = torch.ones(square.shape[0], 4), torch.ones(4, sliced.shape[0], 4)
    other = random_graph(20, 20, 0.1, seed=rank)
    options = "graph: differs between the processes, or their options do"
    whole = "A: is divided among ranks, and this takes all of it"
    calls: dict[str, list[Callable[[], Any]]] = {
        "graph: is 4 x 5; accepted: a square matrix": [lambda: distribute(random_graph(4, 5, 0.5), group)],
        options: [
            lambda: distribute(other, group, cache=False),
            lambda: distribute(graph, group, chunks=1 + rank),
            lambda: distribute(graph, group, way=ROWS[rank % 2]),
        ],
        "way: got 'rows'; accepted: auto, halo, gather, features": [
            lambda: distribute(graph, group, way="rows")
        ],
        "rates: got dict; accepted: Rates": [lambda: distribute(graph, group, rates={})],
        "trial: got int; accepted: a function of an operand": [lambda: distribute(graph, group, trial=1)],
        "parts: got 'random'; accepted: auto, contiguous, community, metis": [
            lambda: distribute(graph, group, parts="random")
        ],
        "wire: got 'fp8'; accepted: auto, int8": [lambda: distribute(graph, group, wire="fp8")],
        "wire: got 'int8' with way='features'; accepted: 'auto', or way='halo' or 'gather'": [
            lambda: distribute(graph, group, wire="int8", way="features")
        ],
        "precision: got 'int8', whose scales depend on all ranks; accepted: fp32, tf32, fp16, bf16": [
            lambda: distribute(graph, group, precision="int8")
        ],
        "x: has shape": [lambda: square @ torch.ones(len(x) + 1, 4)],
        "A.T: is not divided among the ranks": [lambda: square.T],
        "values: an operand of several ranks has no order of given edges": [lambda: square.to_coo_order(x)],
        "device: got meta": [lambda: square.to("meta")],
        "is_causal: got True, but ranks have renumbered nodes": [
            lambda: gnnsparse.attention(square, x, x, x, is_causal=True)
        ],
        "sddmm: edge values can't be divided by features": [lambda: gnnsparse.sddmm(sliced, x, x)],
        "q: has 4 heads to divide among 3 ranks": [
            lambda: gnnsparse.attention(sliced, by_head, by_head, by_head)
        ],
        "adj: is of several devices, or an input of an exported program, and this model attends": [
            lambda: MODELS["gps"].build(4, out_channels=2, hidden_channels=8)(x, square)
        ],
        "message: edge values can't be divided by features": [
            lambda: gnnsparse.aggregate_edges(sliced, lambda x_j: x_j, x_j=x)
        ],
        "x_j: has shape": [
            lambda: gnnsparse.aggregate_edges(square, lambda x_j: x_j, x_j=torch.ones(len(x) + 1, 4))
        ],
        "A: is of several ranks, and edges that were repeated are one": [
            lambda: gnnsparse.aggregate_edges(repeated, lambda x_j: x_j, x_j=x)
        ],
        "plan: goes with an operand of one process": [
            lambda: gnnsparse.spmm(square, x, plan=gnnsparse.prepare(graph, cache=False).plan(4))
        ],
        "seed: got 1, and an operand in fp32": [lambda: gnnsparse.spmm(square, x, seed=1)],
        whole: [lambda: square[:2], square.stats, lambda: square.prepared, lambda: square.handle],
    }
    for message, refused in calls.items():
        for call in refused:
            with pytest.raises((TypeError, ValueError), match=re.escape(message)):
                call()


def rates(group: dist.ProcessGroup) -> Any:
    operand = gnnsparse.prepare(graph_of(60, 2), cache=False)
    return measure_rates(operand, group, width=16, repeats=2)


def gathered_rows(group: dist.ProcessGroup) -> None:
    """Rank 1 has none of the nodes."""
    rank, order = dist.get_rank(group), torch.randperm(20, generator=torch.Generator().manual_seed(1))
    own = [order[:12], order[:0], order[12:]][rank] * 3
    gather = RowGather(own, group)
    assert gather.count == 20
    found = gather(torch.stack([own, -own], 1).float())
    assert (found is None) == (rank > 0)
    if found is not None:
        assert torch.equal(found[:, 1], -3.0 * torch.arange(20))


def cached(group: dist.ProcessGroup, folder: str) -> bool:
    return distribute(graph_of(40, 5), group, way="halo", cache=folder).cache_hit


def cuts(group: dist.ProcessGroup, folder: str) -> None:
    """Each rank cuts the shard that one process would cut, with a cache and without; rank 0 divides."""
    rank, parts, host = dist.get_rank(group), dist.get_world_size(group), torch.device("cpu")
    for seed, (kind, method) in enumerate(itertools.product((None, "gcn", "mean"), PARTITIONS)):
        nodes = (40, 3, 150)[seed % 3]
        graph = random_graph(nodes, nodes, 0.1, seed=seed, weighted=kind is None, hubs=1, empty_rows=0.3)
        recipe = ShardRecipe(kind, 1.0, parts, method)
        weights, content = recipe.weights(graph), content_of(graph, recipe)
        expected = recipe.cut(weights, recipe.partition(weights), rank)
        with pytest.MonkeyPatch.context() as patch:
            if rank > 0:
                patch.delattr("gnnsparse.distributed.shard.partition_rows")
            for store, known in ((None, False), (GraphCache(folder), False), (GraphCache(folder), True)):
                made, hit = _shard_of(graph, recipe, content, store, host, group)
                assert hit == known
                assert_same(made, expected)


def other_divisions(group: dist.ProcessGroup, folder: str) -> list[bool]:
    """Shards are made anew by all ranks if one has none, or one of another division, and not again."""
    rank, found = dist.get_rank(group), []
    with pytest.MonkeyPatch.context() as patch:
        if rank == 1:
            patch.setattr(GraphCache, "load", lambda *_: None)
        found.append(cached(group, folder))
    graph = graph_of(40, 5)
    recipe = ShardRecipe(None, 1.0, dist.get_world_size(group), "auto")
    content, host = content_of(graph, recipe), torch.device("cpu")
    other = recipe.cut(recipe.weights(graph), Partition.even(40, recipe.parts), 1)
    if rank == 1:
        store_shard(GraphCache(folder), content, other)
    dist.barrier(group)
    found.append(cached(group, folder))
    kept = read_shard(GraphCache(folder), content, rank, host)
    assert kept is not None
    assert kept.facts.starts != other.facts.starts
    return [*found, cached(group, folder)]


def no_division(group: dist.ProcessGroup) -> None:
    """What rank 0 fails with when it divides the nodes is every rank's error."""
    with pytest.MonkeyPatch.context() as patch:
        if dist.get_rank(group) == 0:
            patch.setitem(sys.modules, "pymetis", None)
        with pytest.raises(ImportError, match=r"^parts='metis' needs the package pymetis"):
            distribute(graph_of(40, 5), group, way="halo", parts="metis", cache=False)


def sums(group: dist.ProcessGroup, count: int) -> torch.Tensor:
    """A sum of which each rank has a part with another exponent, so that its order shows."""
    return sum_over_ranks(_noise(count, seed=1) * 10.0 ** (3 * dist.get_rank(group)), group)


#: Nodes: fewer than ranks, so that parts are empty; a few; more than any tile of a kernel.
SIZES = (2, 17, 90)


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("nodes", SIZES)
def test_products_and_gradients_are_those_of_one_process(ranks: Ranks, size: int, nodes: int) -> None:
    ranks.run(size, products, nodes, 7, "fp32", 37)


@pytest.mark.parametrize("precision", ["tf32", "fp16", "bf16"])
def test_features_travel_in_the_precision_of_the_operand(ranks: Ranks, precision: str) -> None:
    ranks.run(2, products, 40, 11, precision, 70)


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_features_travel_in_8_bits(ranks: Ranks, precision: str) -> None:
    for size in (2, 3):
        ranks.run(size, in_8_bits, 40, 11, precision)


@pytest.mark.parametrize(("precision", "wire"), [("fp32", "auto"), ("fp16", "auto"), ("fp32", "int8")])
def test_features_that_stay_as_they_are_travel_once(ranks: Ranks, precision: str, wire: str) -> None:
    ranks.run(3, fetched_once, precision, wire)


@pytest.mark.parametrize("nodes", SIZES)
def test_means_and_extrema_are_those_of_one_process(ranks: Ranks, nodes: int) -> None:
    ranks.run(3, reductions, nodes, 13)


@pytest.mark.parametrize("nodes", SIZES)
def test_edge_values_stay_on_the_rank_of_their_row(ranks: Ranks, nodes: int) -> None:
    ranks.run(3, edge_operations, nodes, 17)


@pytest.mark.parametrize(("size", "heads"), [(2, 4), (3, 3)])
def test_attention_fetches_keys_and_values_of_the_halo(ranks: Ranks, size: int, heads: int) -> None:
    for nodes in SIZES:
        ranks.run(size, attentions, nodes, 19, heads)


CASES = [
    ("gcn", "halo", {"norm": "batch"}),
    ("gcn", "gather", {"norm": "layer", "residual": True}),
    ("gcn", "features", {"num_layers": 3}),
    ("graphsage", "halo", {}),
    ("gin", "halo", {}),
    ("agnn", "halo", {}),
    ("gat", "halo", {"heads": 2}),
    ("gatv2", "gather", {"heads": 2}),
    ("graph_transformer", "halo", {"heads": 2}),
    ("pna", "halo", {"num_layers": 2}),
    ("gatedgcn", "gather", {"num_layers": 2}),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]}-{case[1]}")
def test_two_steps_of_a_model_are_those_of_one_process(ranks: Ranks, case: tuple) -> None:
    ranks.run(3 if case[1] == "halo" else 2, model_steps, *case)


@pytest.fixture(scope="module")
def many():
    """Processes with groups of two to eight ranks."""
    found = Ranks(list(range(2, 9)), "cpu")
    yield found
    found.close()


#: Rates by which features are the fastest way, wherever a model runs by them.
SLICED = Rates(link_bytes=1e6, latency=1e-9, product_bytes=1e12, narrow_bytes=1.0, copy_bytes=1e12)


@pytest.mark.slow
@pytest.mark.parametrize("case", range(12))
def test_what_auto_takes_runs_and_equals_one_process(many: Ranks, case: int) -> None:
    draw = random.Random(f"auto {case}")
    names = ["gcn", "graphsage", "gin", "agnn", "gat", "gatv2", "graph_transformer", "pna", "gatedgcn"]
    name = draw.choice(names)
    norms = ["none", "batch" if name == "gatedgcn" else "layer"]
    options: dict[str, Any] = {"num_layers": draw.choice([1, 2, 3]), "norm": draw.choice(norms)}
    if "heads" in MODELS[name].options:
        options["heads"] = draw.choice([1, 2, 3, 4, 6])
        if "out_heads" in MODELS[name].options:
            options["out_heads"] = draw.choice([1, options["heads"]])
    gloo = known_rates("gloo")
    link = replace(gloo, link_bytes=gloo.link_bytes * 10 ** draw.uniform(-3, 3))
    ranks, nodes = draw.randint(2, 8), draw.choice([3, 20, 60])
    precision = draw.choice(["fp32", "fp32", "tf32", "fp16", "bf16"])
    rates = draw.choice([link, SLICED])
    found = many.run(ranks, model_steps, name, "auto", options, nodes, case, precision, rates)
    assert len(set(found)) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "options", "divided"),
    [
        ("gcn", {}, True),
        ("graphsage", {}, True),
        ("graph_transformer", {"heads": 4}, True),
        ("graph_transformer", {"heads": 2}, False),
        ("gat", {"heads": 4}, False),  # the last layer has one head
        ("gat", {"heads": 4, "out_heads": 4}, True),
        ("agnn", {}, False),
        ("pna", {"num_layers": 1}, False),
    ],
)
def test_auto_divides_features_of_models_that_allow_it(
    many: Ranks, name: str, options: dict[str, Any], divided: bool
) -> None:
    found = many.run(4, model_steps, name, "auto", options, 40, 5, "fp32", SLICED)
    assert set(found) == ({"features"} if divided else {"halo"})


def test_what_several_ranks_do_not_have_is_refused_on_each_of_them(ranks: Ranks) -> None:
    ranks.run(3, refusals)


def test_rates_are_measured_and_equal_on_all_ranks(ranks: Ranks) -> None:
    first, *others = ranks.run(3, rates)
    assert all(other == first for other in others)
    assert first.link_bytes > 0
    assert "3 ranks, gloo" in first.about


def test_rows_of_all_ranks_come_together_in_the_order_of_the_graph(ranks: Ranks) -> None:
    ranks.run(3, gathered_rows)


def test_ranks_prepare_a_graph_once(ranks: Ranks, tmp_path: Path) -> None:
    assert ranks.run(3, cached, str(tmp_path)) == [False] * 3
    assert len(list(tmp_path.glob("*.safetensors"))) == 3
    assert ranks.run(3, cached, str(tmp_path)) == [True] * 3
    assert ranks.run(3, other_divisions, str(tmp_path)) == [[False, False, True]] * 3
    ranks.run(3, no_division)


@pytest.mark.parametrize("size", [2, 3, 4, 5])
def test_each_rank_cuts_its_own_shard(ranks: Ranks, size: int, tmp_path: Path) -> None:
    ranks.run(size, cuts, str(tmp_path))


@pytest.mark.parametrize("count", [0, 5, 5000])
def test_sums_are_added_in_the_order_of_ranks(ranks: Ranks, count: int) -> None:
    """With the bits of that order, whether ranks divide the work or not."""
    x = torch.randn(count, generator=torch.Generator().manual_seed(1))
    expected = (x * 1.0 + x * 1e3) + x * 1e6
    for found in ranks.run(3, sums, count):
        assert torch.equal(found, expected)
