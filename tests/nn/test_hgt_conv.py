"""HGTConv and HANConv against PyG's layers: equal numbers and gradients over all relations, and refusals."""

from __future__ import annotations

import copy
import functools
from typing import Any

import pytest
import torch

import gnnsparse
from gnnsparse.nn import HANConv, HGTConv
from gnnsparse.sparse.typed import TypedGraph
from gnnsparse.testing import assert_all_accurate, in_float64
from tests.helpers import ROUNDING
from tests.nn.pyg_layers import alike, pyg

IN = {"paper": 8, "author": 5, "field": 30, "venue": 8}
RELATIONS = [
    ("paper", "cites", "paper"),
    ("author", "writes", "paper"),
    ("paper", "has", "field"),
    ("field", "of", "paper"),
    ("venue", "prints", "paper"),
]
OUT, HEADS = 8, 2


def graph(sizes: dict[str, int], counts: list[int], seed: int = 1) -> tuple[dict[str, Any], dict[Any, Any]]:
    """Features and random edges, of which some are repeated; None: the relation is missing."""
    torch.manual_seed(seed)
    edges = {}
    for relation, count in zip(RELATIONS, counts, strict=True):
        if count is not None:
            ends = [torch.randint(max(sizes[kind], 1), (count,)) for kind in (relation[0], relation[2])]
            index = torch.stack(ends)
            edges[relation] = torch.cat([index, index[:, : count // 4]], dim=1)
    return {kind: torch.randn(count, IN[kind]) for kind, count in sizes.items()}, edges


#: Sizes by type, and edges by relation: usual; missing and empty relations; a type without nodes or left out.
GRAPHS: list[tuple[dict[str, int], list[Any]]] = [
    ({"paper": 30, "author": 20, "field": 7, "venue": 3}, [90, 60, 40, 40, 20]),
    ({"paper": 30, "author": 20, "field": 7, "venue": 3}, [90, 0, None, 10, None]),
    ({"venue": 0, "field": 1, "author": 9, "paper": 12}, [5, 30, 30, 20, 0]),
    ({"paper": 11, "author": 4, "field": 3}, [40, 0, 10, None, None]),
]


def layers(kind: type = HGTConv, **options: Any) -> tuple[Any, Any]:
    """Our layer and PyG's with the same random parameters."""
    given = IN, OUT, (list(IN), RELATIONS), HEADS
    return alike(kind(*given, **options), getattr(pyg, kind.__name__)(*given, **options))


def run(layer: Any, nodes: dict[str, Any], edges: Any, dtype: torch.dtype) -> list[torch.Tensor]:
    """Outputs by type, and gradients of all features and parameters."""
    leaves = {kind: x.to(dtype).requires_grad_() for kind, x in nodes.items()}
    found = layer(leaves, edges, *([True] if hasattr(layer, "proj") else []))
    found, weights = found if isinstance(found, tuple) else (found, {})
    outs = [part[kind] for part in (found, weights) for kind in sorted(part) if part[kind] is not None]
    probes = torch.Generator().manual_seed(1)
    loss = sum((y * torch.randn(y.shape, generator=probes).to(y)).sum() for y in outs)
    wanted = [*leaves.values(), *layer.parameters()]
    grads = torch.autograd.grad(loss, wanted, allow_unused=True)
    pairs = zip(grads, wanted, strict=True)
    return [*(y.detach() for y in outs), *(torch.zeros_like(w) if g is None else g for g, w in pairs)]


KINDS: list[tuple[Any, dict[str, Any]]] = [(HGTConv, {}), (HANConv, {"negative_slope": 0.4})]


@pytest.mark.parametrize("number", range(len(GRAPHS)))
@pytest.mark.parametrize(("kind", "options"), KINDS)
def test_same_numbers_as_pyg(number: int, kind: type, options: dict[str, Any]) -> None:
    nodes, edges = graph(*GRAPHS[number])
    ours, theirs = layers(kind, **options)
    exactly = copy.deepcopy(theirs)
    got, plain = (run(layer, nodes, edges, torch.float32) for layer in (ours, theirs))
    assert len(ours(nodes, edges)) == len(theirs(nodes, edges))
    # The gradient of a bias under a softmax cancels to 0: what is left depends on the order of the sum.
    with in_float64(exactly):
        exact = functools.partial(run, exactly, nodes, edges, torch.float64)
        assert_all_accurate(got, plain, exact, floor=128 * ROUNDING["fp32"])


@pytest.mark.parametrize("kind", [HGTConv, HANConv])
def test_a_typed_graph_gives_the_numbers_of_its_edges(kind: type) -> None:
    """Prepared or not, and with types in another order."""
    nodes, edges = graph(*GRAPHS[0])
    ours, _ = layers(kind)
    expected = run(ours, nodes, edges, torch.float32)
    sizes = {kind: len(nodes[kind]) for kind in reversed(nodes)}
    plain = TypedGraph(sizes, edges)
    for given in (plain, gnnsparse.prepare(plain, cache=False)):
        for a, b in zip(run(ours, nodes, given, torch.float32), expected, strict=True):
            torch.testing.assert_close(a, b)


@pytest.mark.parametrize("kind", [HGTConv, HANConv])
def test_layers_have_the_precision_of_a_prepared_graph(kind: type) -> None:
    nodes, edges = graph(*GRAPHS[0])
    made = gnnsparse.prepare(
        TypedGraph({k: len(x) for k, x in nodes.items()}, edges), precision="bf16", cache=False
    )
    ours, _ = layers(kind)
    assert not torch.equal(ours(nodes, made)["paper"], ours(nodes, edges)["paper"])
    ours.precision = gnnsparse.Precision.FP32
    with pytest.raises(ValueError, match="precision: got 'fp32', the operand has 'bf16'"):
        ours(nodes, made)


@pytest.mark.parametrize("kind", [HGTConv, HANConv])
def test_types_may_have_names_that_modules_have(kind: type) -> None:
    nodes, edges = graph(*GRAPHS[0])
    other = dict(zip(IN, ["items", "a.b", "", "training"], strict=True))
    renamed = [(other[source], name, other[target]) for source, name, target in RELATIONS]
    theirs = {other[of]: count for of, count in IN.items()}
    ours, named = layers(kind)[0], kind(theirs, OUT, (list(theirs), renamed), HEADS)
    for mine, his in zip(named.parameters(), ours.parameters(), strict=True):
        mine.data.copy_(his.data)
    wanted = ours(nodes, edges)
    found = named({other[of]: x for of, x in nodes.items()}, dict(zip(renamed, edges.values(), strict=True)))
    for of, y in wanted.items():
        assert y is found[other[of]] or torch.equal(y, found[other[of]])
    copy.deepcopy(named).load_state_dict(named.state_dict())


def test_a_change_of_an_edge_is_seen() -> None:
    nodes, edges = graph(*GRAPHS[0])
    ours, theirs = layers()
    first = ours(nodes, edges)["paper"]
    memo = ours._memo._entry
    ours(nodes, dict(edges))
    assert ours._memo._entry is memo
    edges[RELATIONS[3]][0].zero_()
    changed = ours(nodes, edges)["paper"]
    assert not torch.allclose(first, changed)
    torch.testing.assert_close(changed, theirs(nodes, edges)["paper"], rtol=1e-4, atol=1e-4)


def test_training_drops_attention_of_han() -> None:
    nodes, edges = graph(*GRAPHS[0])
    ours = layers(HANConv, dropout=0.5)[0]
    with torch.no_grad():
        assert not torch.equal(ours(nodes, edges)["paper"], ours(nodes, edges)["paper"])
        ours.eval()
        assert torch.equal(ours(nodes, edges)["paper"], ours(nodes, edges)["paper"])


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        (lambda x, e: (list(x), e), TypeError, "x_dict: .*a dict of features"),
        (lambda x, e: ({**x, "city": x["paper"]}, e), ValueError, "x_dict: has the type 'city'"),
        (lambda x, e: ({**x, "paper": x["field"]}, e), ValueError, r"x_dict\['paper'\]: has shape"),
        (lambda x, e: (x, {}), TypeError, "edge_index_dict: .*not empty"),
        (lambda x, e: (x, {("a", "b", "c"): e[RELATIONS[0]]}), ValueError, "edge_index_dict: has"),
        (lambda x, e: ({"paper": x["paper"]}, e), ValueError, "x_dict: lacks 'author'"),
        (lambda x, e: (x, TypedGraph({"paper": 99}, {RELATIONS[0]: e[RELATIONS[0]]})), ValueError, "x_dict"),
    ],
)
def test_what_does_not_fit_is_refused(change: Any, error: type, words: str) -> None:
    nodes, edges = graph(*GRAPHS[0])
    with pytest.raises(error, match=words):
        layers()[0](*change(nodes, edges))


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ((IN, 8, (list(IN), RELATIONS), 3), ValueError, "heads: got 3 for 8"),
        ((IN, 8, list(IN)), TypeError, "metadata"),
        (({"paper": 3}, 8, (list(IN), RELATIONS)), ValueError, "in_channels: has"),
        ((3, 8, (["paper"], RELATIONS)), ValueError, "metadata: has .'author'"),
        ((0, 8, (list(IN), RELATIONS)), ValueError, r"in_channels\['paper'\]: got 0"),
    ],
)
def test_a_layer_that_can_not_be_is_refused(given: Any, error: type, words: str) -> None:
    with pytest.raises(error, match=words):
        HGTConv(*given)
