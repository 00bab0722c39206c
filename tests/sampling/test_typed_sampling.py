"""TypedNeighborSampler beside a plain search: types, relations, times, links; what it refuses."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare
from torch.utils._python_dispatch import TorchDispatchMode

import gnnsparse
from gnnsparse import TypedGraph
from gnnsparse.sampling import NeighborSampler, TypedNeighborSampler, TypedSubgraph
from tests import emulated
from tests.gpu_paths import RunningPath
from tests.sampling.conftest import ON_GPU, Place
from tests.sampling.samplers import STRATEGIES

#: Types with few nodes and with none, of which one is joined to nothing.
NODES = {"user": 9, "item": 7, "empty": 0, "alone": 3}
RELATIONS = (
    ("user", "rates", "item"),
    ("item", "rated_by", "user"),
    ("user", "knows", "user"),
    ("item", "rates", "item"),
    ("empty", "of", "user"),
    ("user", "of", "empty"),
)
Edges = dict[tuple[str, str, str], torch.Tensor]


def drawn_graph(edges: int, seed: int) -> tuple[Edges, Edges, torch.Generator]:
    """Edges of each relation with repeats, their times, and what draws more."""
    draw = torch.Generator().manual_seed(seed)
    found, times = {}, {}
    for key in RELATIONS:
        source, target = NODES[key[0]], NODES[key[2]]
        count = int(torch.randint(edges + 1, (), generator=draw)) if source and target else 0
        ends = [torch.randint(max(nodes, 1), (count,), generator=draw) for nodes in (source, target)]
        found[key], times[key] = torch.stack(ends), torch.randint(6, (count,), generator=draw)
    return found, times, draw


def options_of(strategy: str, edges: Edges, draw: torch.Generator) -> dict[str, Any]:
    options = dict(STRATEGIES[strategy])
    if options.get("method") == "weighted":
        options["weights"] = {key: torch.rand(e.shape[1], generator=draw) for key, e in edges.items()}
    return options


def check(
    found: TypedSubgraph, edges: Edges, times: Mapping[Any, torch.Tensor], seeds: dict[str, list[int]],
    at: list[int] | None, fanouts: Mapping[Any, list[int]], strategy: str, last: bool,
) -> None:  # fmt: skip
    """Every node draws in the hop after it was reached, and as many of the edges in time as it has to."""
    trees = found.trees or {kind: torch.zeros_like(nodes) for kind, nodes in found.nodes.items()}
    first = 0
    for kind, nodes in found.nodes.items():
        assert len(set(zip(trees[kind].tolist(), nodes.tolist(), strict=True))) == nodes.numel()
        assert sum(found.num_nodes[kind]) == nodes.numel()
    for kind, own in seeds.items():
        assert found.nodes[kind][: len(own)].tolist() == own
        assert found.num_nodes[kind][0] == len(own)
        if found.trees is not None:
            assert found.trees[kind][: len(own)].tolist() == list(range(first, first + len(own)))
        first += len(own)
    reached: dict[str, set[int]] = {kind: set(range(len(seeds.get(kind, [])))) for kind in NODES}
    for key, (source, target) in found.edge_index.items():
        ids, of_hops = found.edge_ids[key], found.num_edges[key]
        kinds = found.nodes[key[0]], found.nodes[key[2]]
        assert torch.equal(torch.stack([kinds[0][source], kinds[1][target]]), edges[key][:, ids])
        assert torch.equal(trees[key[0]][source], trees[key[2]][target])
        assert sum(of_hops) == ids.numel()
        reached[key[0]] |= set(source.tolist())
        bounds = itertools.pairwise(itertools.accumulate(found.num_nodes[key[2]], initial=0))
        parts = zip(bounds, fanouts[key], ids.split(of_hops), target.split(of_hops), strict=False)
        for (begin, end), fanout, of_hop, rows in parts:
            assert bool(((rows >= begin) & (rows < end)).all())
            for row in range(begin, end):
                could = (edges[key][1] == kinds[1][row]).nonzero().flatten().tolist()
                if key in times:
                    assert at is not None
                    until = at[int(trees[key[2]][row])]
                    could = sorted((e for e in could if times[key][e] <= until), key=lambda e: times[key][e])
                    could = could[-fanout:] if last and fanout > 0 else could
                taken = of_hop[rows == row].tolist()
                assert set(taken) <= set(could)
                if fanout < 0:
                    assert sorted(taken) == sorted(could)
                elif fanout == 0:
                    assert taken == []
                elif strategy == "uniform":
                    assert len(set(taken)) == len(taken) == min(fanout, len(could))
                elif strategy == "uniform replaced":
                    assert len(taken) == (fanout if could else 0)
    # Every node is a seed or the source of an edge.
    assert all(len(reached[kind]) == nodes.numel() for kind, nodes in found.nodes.items())


CASES = st.tuples(
    st.integers(0, 40), st.integers(0, 2**16), st.sampled_from(["none", "disjoint", "edges", "nodes"]),
    st.booleans(), st.booleans(), st.integers(1, 3), st.sampled_from(sorted(STRATEGIES)),
)  # fmt: skip


def case_of(case: tuple[Any, ...]) -> tuple[TypedNeighborSampler, tuple[Any, ...], tuple[Any, ...]]:
    """A sampler, the arguments of a sample, and those of `check`."""
    count, seed, times_of, last, by_relation, hops, strategy = case
    edges, times, draw = drawn_graph(count, seed)
    options = options_of(strategy, edges, draw)
    sizes = torch.tensor([-1, 0, 1, 2, 5])
    fanouts = {key: sizes[torch.randint(5, (hops,), generator=draw)].tolist() for key in RELATIONS}
    if not by_relation:
        fanouts = dict.fromkeys(RELATIONS, fanouts[RELATIONS[0]])
    if times_of == "edges":
        times = {key: times[key] for key in RELATIONS[:3]}
        options |= {"edge_time": times, "temporal_strategy": "last" if last else "uniform"}
    elif times_of == "nodes":
        node_time = {
            "user": torch.randint(6, (9,), generator=draw),
            "empty": torch.empty(0, dtype=torch.int64),
        }
        options |= {"node_time": node_time, "temporal_strategy": "last" if last else "uniform"}
        times = {key: node_time[key[0]][e[0]] for key, e in edges.items() if key[0] in node_time}
    else:
        times, options["disjoint"] = {}, times_of == "disjoint"
    given_fanouts = fanouts if by_relation else fanouts[RELATIONS[0]]
    made = TypedNeighborSampler(edges, given_fanouts, num_nodes=NODES, seed=seed, **options)
    seeds = {"item": [4, 0, 6], "user": [8, 1], "alone": [2]}
    at = [0, 5, 3, 2, 4, 5] if times_of in ("edges", "nodes") else None
    of_types = None if at is None else {"item": at[:3], "user": at[3:5], "alone": at[5:]}
    return made, (seeds, 3, of_types), (edges, times, seeds, at, fanouts, strategy, last)


@given(CASES)
def test_each_type_draws_by_its_relations(case: tuple[Any, ...]) -> None:
    made, arguments, wanted = case_of(case)
    found = made.sample(*arguments)
    check(found, *wanted)
    assert (found.trees is not None) == (case[2] != "none")
    again = made.sample(*arguments)
    assert all(torch.equal(found.edge_ids[key], again.edge_ids[key]) for key in RELATIONS)


@settings(max_examples=15)
@given(CASES)
def test_typed_samples_of_a_gpu_are_those_of_the_cpu(late: Any, case: tuple[Any, ...]) -> None:
    made, arguments, _ = case_of(case)
    on_cpu = made.sample(*arguments)
    with emulated.running(late):
        made, arguments, _ = case_of(case)
        assert_same(made.sample(*arguments), on_cpu)


def assert_same(mine: TypedSubgraph, theirs: TypedSubgraph) -> None:
    for name in ("nodes", "edge_index", "edge_ids", "trees"):
        one, two = getattr(mine, name), getattr(theirs, name)
        assert (one is None) == (two is None)
        assert one is None or one.keys() == two.keys()
        assert one is None or all(torch.equal(one[key].cpu(), two[key].cpu()) for key in one)
    assert (mine.num_nodes, mine.num_edges) == (theirs.num_nodes, theirs.num_edges)


@ON_GPU
def test_typed_links_of_a_gpu_are_those_of_the_cpu(place: Place) -> None:
    edges, times, _ = drawn_graph(30, 4)
    pairs, at = torch.tensor([[0, 1], [5, 6], [0, 1]]), torch.tensor([1, 4, 5])
    found = []
    for device in ("cpu", place.device):
        with place.running():
            made = TypedNeighborSampler(edges, [3, 2], num_nodes=NODES, edge_time=times, device=device)
            found.append(made.sample_links(RELATIONS[0], pairs.to(device), 5, 2, at.to(device)))
    assert_same(*(links.sample for links in found))
    for name in ("positive", "negative"):
        assert torch.equal(*(getattr(links, name).cpu() for links in found))


def test_one_relation_draws_what_an_untyped_sampler_draws() -> None:
    edge_index = torch.randint(30, (2, 400), generator=torch.Generator().manual_seed(2))
    plain = NeighborSampler(edge_index, [4, 3], num_nodes=30, seed=9).sample_subgraph([5, 1], 7)
    key = ("node", "to", "node")
    made = TypedNeighborSampler({key: edge_index}, [4, 3], num_nodes={"node": 30}, seed=9)
    found = made.sample({"node": [5, 1]}, 7)
    assert torch.equal(found.nodes["node"], plain.nodes)
    assert torch.equal(found.edge_ids[key], plain.edge_ids)
    assert (found.num_nodes["node"], found.num_edges[key]) == (plain.num_nodes, plain.num_edges)


def test_samples_are_typed_graphs() -> None:
    """Which products and layers take; the sampler takes one, too."""
    edges, _, _ = drawn_graph(30, 3)
    made = TypedNeighborSampler(TypedGraph(NODES, edges), [-1, -1])
    seeds = {"item": torch.arange(7), "user": torch.arange(9)}
    found = made.sample(seeds)
    assert_same(found, TypedNeighborSampler(edges, [-1, -1], num_nodes=NODES).sample(seeds))
    whole, part = (gnnsparse.prepare(graph, cache=False) for graph in (TypedGraph(NODES, edges), found.graph))
    assert found.graph.num_nodes["user"] == 9
    x = {kind: torch.randn(count, 4) for kind, count in NODES.items()}
    got, want = (
        operand.operand @ torch.cat([x[key[0]][nodes[key[0]]] for key in RELATIONS])
        for operand, nodes in (
            (part, found.nodes),
            (whole, {kind: torch.arange(n) for kind, n in NODES.items()}),
        )
    )
    at = found.graph.offsets["item"], whole.offsets["item"]
    torch.testing.assert_close(got[at[0] : at[0] + 7], want[at[1] : at[1] + 7][found.nodes["item"]])


def test_the_host_waits_for_nothing_to_make_the_graph_of_a_sample() -> None:
    """What was drawn is right: an `aminmax` of each relation would make it wait for a GPU."""

    class Refused(TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            assert function not in (
                torch.ops.aten._local_scalar_dense.default,
                torch.ops.aten.aminmax.default,
            )
            return function(*args, **(kwargs or {}))

    edges, _, _ = drawn_graph(30, 3)
    found = TypedNeighborSampler(edges, [3, 2], num_nodes=NODES).sample({"item": torch.arange(7)})
    with Refused():
        graph = found.graph.spanning(list(RELATIONS)[::-1])
    checked = TypedGraph({kind: len(nodes) for kind, nodes in found.nodes.items()}, found.edge_index)
    assert graph.num_nodes == checked.num_nodes
    assert {name: edges.dtype for name, edges in graph.edges.items()} == dict.fromkeys(RELATIONS, torch.int64)
    assert all(torch.equal(graph.edges[name], edges) for name, edges in checked.edges.items())


def test_relations_draw_independently() -> None:
    """Two relations with the same edges."""
    rows = 4000
    edge_index = torch.stack([torch.arange(3).repeat(rows), torch.arange(rows).repeat_interleave(3)])
    keys = ("a", "first", "b"), ("a", "second", "b")
    made = TypedNeighborSampler(dict.fromkeys(keys, edge_index), [1], num_nodes={"a": 3, "b": rows})
    found = made.sample({"b": torch.arange(rows)})
    one, two = (edge_index[0, found.edge_ids[key]] for key in keys)
    assert chisquare(torch.bincount(3 * one + two, minlength=9)).pvalue > 1e-3


@pytest.mark.parametrize("relation", [RELATIONS[0], RELATIONS[2]])
@pytest.mark.parametrize("times_of", ["none", "disjoint", "edges"])
def test_links_have_negatives_of_the_targets_type(relation: tuple[str, str, str], times_of: str) -> None:
    edges, times, _ = drawn_graph(30, 1)
    options: dict[str, Any] = {"edge_time": times} if times_of == "edges" else {}
    made = TypedNeighborSampler(edges, [3, 2], num_nodes=NODES, disjoint=times_of == "disjoint", **options)
    pairs, at = torch.tensor([[0, 1], [5, 6], [0, 1], [2, 2]]), torch.tensor([1, 4, 5, 0])
    links = made.sample_links(relation, pairs, 3, 2, at if times_of == "edges" else None)
    source, _, target = relation
    sources, targets = links.sample.nodes[source], links.sample.nodes[target]
    ends = torch.stack([sources[links.positive[:, 0]], targets[links.positive[:, 1]]], dim=1)
    assert torch.equal(ends, pairs)
    assert links.negative.shape == (4, 3)
    joined = set(zip(*edges[relation].tolist(), strict=True))
    for (own, _), others in zip(pairs.tolist(), targets[links.negative].tolist(), strict=True):
        assert not joined & {(own, other) for other in others}
        assert source != target or own not in others
    if times_of == "edges":
        assert links.sample.trees is not None
        kinds = dict.fromkeys((source, target))
        of_seeds = [at, at.repeat(1), at.repeat_interleave(3)]
        until = torch.cat(of_seeds)
        assert sum(links.sample.num_nodes[kind][0] for kind in kinds) == until.numel()
        for key, (_, rows) in links.sample.edge_index.items():
            of_edges = times[key][links.sample.edge_ids[key]]
            assert bool((of_edges <= until[links.sample.trees[key[2]][rows]]).all())
    assert made.sample_links(
        relation, torch.empty(0, 2, dtype=torch.int64), 2, 0, at[:0] if options else None
    )


def test_every_target_without_an_edge_is_as_likely() -> None:
    """Also the one that has the source's number, where it is a node of another type."""
    key = ("user", "rates", "item")
    made = TypedNeighborSampler({key: torch.tensor([[1, 1], [0, 3]])}, [1], num_nodes={"user": 5, "item": 5})
    links = made.sample_links(key, [[1, 0]], 3000)
    counts = torch.bincount(links.sample.nodes["item"][links.negative[0]], minlength=5)
    assert counts[[0, 3]].sum() == 0
    assert chisquare(counts[[1, 2, 4]]).pvalue > 1e-3
    full = TypedNeighborSampler({key: torch.tensor([[1, 1], [0, 1]])}, [1], num_nodes={"user": 2, "item": 2})
    with pytest.raises(ValueError, match="graph: joins nearly all pairs"):
        full.sample_links(key, [[1, 0]])


KEY = ("a", "to", "b")
ONE = {KEY: torch.tensor([[0], [1]])}


@pytest.mark.parametrize(
    ("message", "graph", "options"),
    [
        ("graph: got a tensor", torch.zeros(2, 1), {}),
        ("num_nodes: got None", ONE, {"num_nodes": None}),
        (r"fanouts: got -2", ONE, {"fanouts": [-2]}),
        (r"fanouts: lacks \('a', 'to', 'b'\)", ONE, {"fanouts": {}}),
        (r"fanouts: names \('b', 'to', 'a'\)", ONE, {"fanouts": {("b", "to", "a"): [1]}}),
        (r"fanouts: have \[1, 2\] numbers", ONE | {("b", "to", "a"): ONE[KEY].flip(0)},
         {"fanouts": {KEY: [1], ("b", "to", "a"): [1, 2]}}),
        (r"weights: got None with method='weighted'", ONE, {"method": "weighted"}),
        (r"weights: lacks \('a', 'to', 'b'\)", ONE, {"method": "weighted", "weights": {}}),
        (r"edge_time: names 'a'", ONE, {"edge_time": {"a": [1]}}),
        (r"edge_time\[\('a', 'to', 'b'\)\]: has shape \(2,\)", ONE, {"edge_time": {KEY: [1, 2]}}),
        (r"node_time: names 'c'; accepted: a, b", ONE, {"node_time": {"c": [1]}}),
        (r"node_time: is given with edge_time", ONE, {"node_time": {"a": [1, 2]}, "edge_time": {KEY: [1]}}),
        (r"edge_time: has integers and floats", ONE | {("b", "to", "a"): ONE[KEY].flip(0)},
         {"edge_time": {KEY: [1], ("b", "to", "a"): [1.0]}}),
        (r"node_time: has integers and floats", ONE, {"node_time": {"a": [1, 2], "b": [1.0, 2.0]}}),
        (r"fanouts: have too many numbers", ONE, {"fanouts": [1] * 300, "disjoint": True}),
    ],
)  # fmt: skip
def test_wrong_typed_options_are_refused(message: str, graph: Any, options: dict[str, Any]) -> None:
    with pytest.raises((TypeError, ValueError), match=f"^{message}"):
        TypedNeighborSampler(graph, **{"fanouts": [2], "num_nodes": {"a": 2, "b": 2}, **options})


def test_a_sampler_of_one_type_names_that_of_several() -> None:
    with pytest.raises(TypeError, match=r"graph: got TypedGraph; .*with types go to .*TypedNeighborSampler"):
        NeighborSampler(TypedGraph({"a": 2, "b": 2}, ONE), [2])


def test_wrong_typed_seeds_are_refused(path: RunningPath | None) -> None:
    sizes = {"a": 2, "b": 2}
    made = TypedNeighborSampler(ONE, [2], num_nodes=sizes)
    timed = TypedNeighborSampler(ONE, [2], num_nodes=sizes, edge_time={KEY: [1]})
    for sampler, message, arguments in (
        (made, r"seeds: got a list; accepted: a mapping|seeds: got list", ([1],)),
        (made, r"seeds: got NoneType; accepted: a mapping", (None,)),
        (made, r"seeds: names 'c'; accepted: a, b", ({"c": [1]},)),
        (made, r"seeds\['a'\]: element 0 is 2; accepted: 0 to 1", ({"a": [2]},)),
        (made, r"seeds: element 1 is 1 once more", ({"b": [1, 1]},)),
        (made, "step: got -1", ({"a": [1]}, -1)),
        (made, "time: is given, but edges have no times", ({"a": [1]}, 0, {"a": [1]})),
        (timed, "time: is missing for seeds of type 'a'", ({"a": [1]},)),
        (timed, "time: names 'b'; accepted: a", ({"a": [1]}, 0, {"b": [1]})),
        (timed, r"time\['a'\]: got .*; accepted: int64", ({"a": [1]}, 0, {"a": [1.0]})),
    ):
        with pytest.raises((TypeError, ValueError), match=f"^({message})"):
            sampler.sample(*arguments)
    links: tuple[tuple[str, Any], ...] = (
        ("relation: got 'a'; accepted", ("a", [[0, 1]])),
        (r"pairs: has shape \(1, 3\)", (KEY, [[0, 1, 1]])),
        (r"pairs: element 0 is 3; accepted: 0 to 1", (KEY, [[0, 3]])),
        ("negatives: got -1", (KEY, [[0, 1]], -1)),
    )
    for message, others in links:
        with pytest.raises((TypeError, ValueError), match=f"^({message})"):
            made.sample_links(*others)
    assert made.sample({}).nodes["a"].numel() == 0
