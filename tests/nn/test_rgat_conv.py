"""RGATConv against PyG's layer: the same numbers, gradients and weights, and what it refuses."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch

import gnnsparse
from gnnsparse.nn import RGATConv, rgat_conv
from gnnsparse.testing import assert_all_accurate, in_float64
from tests.helpers import ROUNDING
from tests.nn.pyg_layers import SQUARE, TALL, WIDE, alike, edges, pyg

WIDTH, OUT, RELATIONS, EDGE_DIM = 6, 4, 3, 5
ACROSS, WITHIN = "across-relation", "within-relation"
ADDITIVE, MULTIPLICATIVE = "additive-self-attention", "multiplicative-self-attention"
MODS = None, "additive", "scaled", "f-additive", "f-scaled"
#: All mechanisms, modes and mods, and beside them what else a layer has.
OPTIONS: list[dict[str, Any]] = [
    {
        "attention_mechanism": mechanism, "attention_mode": mode, "mod": mod, "heads": 2,
        "dim": 1 if mode == ADDITIVE else 3, "concat": mod != "scaled", "bias": mod != "additive",
        "num_bases": 2 if mod == "f-scaled" else None, "num_blocks": 2 if mod == "scaled" else None,
        "edge_dim": EDGE_DIM if mod in (None, "f-additive") else None, "negative_slope": 0.3,
    }
    for mechanism, mode, mod in itertools.product((ACROSS, WITHIN), (ADDITIVE, MULTIPLICATIVE), MODS)
]  # fmt: skip


def layers(relations: int = RELATIONS, **options: Any) -> tuple[Any, Any]:
    """Our layer and PyG's with the same random parameters."""
    given = WIDTH, OUT, relations
    return alike(RGATConv(*given, **options), pyg.RGATConv(*given, **options))


def distinct(index: torch.Tensor, kinds: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Edges of which none is repeated, in random order."""
    both = torch.cat([index, kinds[None]]).unique(dim=1)
    both = both[:, torch.randperm(both.shape[1])]
    return both[:2].contiguous(), both[2].contiguous()


def compare(
    ours: Any, theirs: Any, size: tuple[int, int], relations: int = RELATIONS, weighs: bool = True
) -> None:
    """Output, weights and all gradients, where float64 judges; the last relation has no edge.

    Without the weights no edge is repeated, and attention is one operation where it can be.
    """
    index = edges(size)
    kinds = torch.randint(0, max(relations - 1, 1), index.shape[1:])
    if not weighs:
        index, kinds = distinct(index, kinds)
    given = [torch.randn(count, WIDTH) for count in (size if size[0] != size[1] else size[:1])]
    given += [torch.randn(index.shape[1], EDGE_DIM)] if theirs.edge_dim else []
    probes = torch.Generator().manual_seed(1)

    def run(layer: Any, dtype: torch.dtype) -> list[torch.Tensor]:
        leaves = [t.to(dtype).requires_grad_() for t in given]
        nodes, attr = (leaves[:-1], leaves[-1:]) if theirs.edge_dim else (leaves, [])
        x = nodes[0] if len(nodes) == 1 else tuple(nodes)
        weights = torch.zeros(())
        if weighs:
            y, (same, weights) = layer(x, index, kinds, *attr, return_attention_weights=True)
            assert same is index
        else:
            y = layer(x, index, kinds, *attr)
        probe = torch.randn(y.shape, generator=probes.manual_seed(1)).to(y)
        wanted = [*leaves, *layer.parameters()]
        grads = torch.autograd.grad(y, wanted, probe, allow_unused=True)
        zeros = torch.zeros(())
        return [y.detach(), weights.detach(), *(zeros if g is None else g for g in grads)]

    exactly = copy.deepcopy(theirs)
    with in_float64(exactly):
        exact = run(exactly, torch.float64)
    got, plain = run(ours, torch.float32), run(theirs, torch.float32)
    assert_all_accurate(got, plain, exact, floor=128 * ROUNDING["fp32"])


@pytest.mark.parametrize("number", range(len(OPTIONS)))
def test_same_numbers_as_pyg(number: int) -> None:
    """With repeated edges, and nodes without any."""
    torch.manual_seed(number)
    compare(*layers(**OPTIONS[number]), SQUARE)


@pytest.mark.parametrize("mechanism", [ACROSS, WITHIN])
@pytest.mark.parametrize("size", [WIDE, TALL], ids=str)
def test_sources_that_are_no_targets(size: tuple[int, int], mechanism: str) -> None:
    torch.manual_seed(0)
    compare(*layers(heads=3, attention_mechanism=mechanism, mod="f-scaled"), size)


@pytest.mark.parametrize("size", [SQUARE, WIDE, TALL], ids=str)
@pytest.mark.parametrize("number", range(0, len(OPTIONS), 2))
def test_edges_of_which_none_is_repeated(
    number: int, size: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Attention with sums for scores is one operation, which stores no weights."""
    torch.manual_seed(number)
    options = {**OPTIONS[number], "mod": OPTIONS[number]["mod"] if number % 4 else None}
    if options["mod"] is None and options["attention_mode"] == ADDITIVE:
        options["attention_mechanism"] = ACROSS
        monkeypatch.setattr(rgat_conv, "edge_softmax", None)
    compare(*layers(**options), size, weighs=False)


@pytest.mark.parametrize("options", [{}, {"num_bases": 3}, {"num_blocks": 2}], ids=str)
def test_many_relations(options: dict[str, Any]) -> None:
    """Edges begin at few of the pairs of a node and a relation, of which products are made."""
    torch.manual_seed(0)
    compare(*layers(90, heads=2, **options), SQUARE, 90)
    compare(*layers(90, heads=2, **options), SQUARE, 90, weighs=False)


def test_initial_values() -> None:
    """They are PyG's for one seed, but `l2`, which PyG leaves as the memory was."""
    choices: list[dict[str, Any]] = [{"edge_dim": 3}, {"num_bases": 2}, {"num_blocks": 3}]
    for options in choices:
        found = []
        for kind in (RGATConv, pyg.RGATConv):
            torch.manual_seed(0)
            found.append(kind(WIDTH, OUT + 2, 2, heads=2, **options).state_dict())
        ours, theirs = found
        assert torch.equal(ours.pop("l2"), torch.full((OUT + 2, OUT + 2), 1 / (OUT + 2)))
        assert all(torch.equal(ours[name], theirs[name]) for name in ours)


@pytest.mark.parametrize("count", [0, 1])
def test_few_edges(count: int) -> None:
    ours, theirs = layers(heads=2)
    index, kinds = torch.tensor([[1], [3]])[:, :count], torch.zeros(count, dtype=torch.int32)
    x = torch.randn(5, WIDTH)
    if count:
        torch.testing.assert_close(ours(x, index, kinds), theirs(x, index, kinds.long()))
    else:
        torch.testing.assert_close(ours(x, index, kinds), ours.bias.expand(5, -1))


@pytest.mark.parametrize("mechanism", [ACROSS, WITHIN])
@pytest.mark.parametrize("mod", [None, "additive", "scaled", "f-additive", "f-scaled"])
def test_no_targets(mod: str | None, mechanism: str) -> None:
    ours, _ = layers(heads=2, mod=mod, attention_mechanism=mechanism)
    empty = torch.zeros(2, 0, dtype=torch.int64)
    out = ours((torch.randn(3, WIDTH), torch.randn(0, WIDTH)), empty, empty[0])
    assert out.shape == (0, ours.bias.shape[0])


def test_changes_of_edges_and_types_are_noticed() -> None:
    ours, theirs = layers()
    index, x = edges(), torch.randn(SQUARE[0], WIDTH)
    kinds = torch.zeros(index.shape[1], dtype=torch.int64)
    for change in (lambda: None, lambda: kinds[:50].fill_(2), lambda: index[0, :20].fill_(3)):
        change()
        torch.testing.assert_close(ours(x, index, kinds), theirs(x, index, kinds), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("repeated", [False, True])
def test_dropout_and_precision(repeated: bool) -> None:
    """Training drops weights, whose mean is what nothing dropped gives; fp16 rounds the sums' operands."""
    index, x = edges(), torch.randn(SQUARE[0], WIDTH)
    kinds = index.sum(0) % RELATIONS
    index, kinds = (index, kinds) if repeated else distinct(index, kinds)
    layer = RGATConv(WIDTH, OUT, RELATIONS, dropout=0.4)
    with torch.no_grad():
        many = torch.stack([layer(x, index, kinds) for _ in range(400)])
        want = layer.eval()(x, index, kinds)
        error = (many.mean(0) - want) / (many.std(0) / 20 + 1e-5)
        assert error.abs().max() < 6
        assert not torch.equal(many[0], many[1])
        half = RGATConv(WIDTH, OUT, RELATIONS, precision="fp16")
        half.load_state_dict(layer.state_dict())
        assert 0 < (half(x, index, kinds) - want).norm() < 0.01 * want.norm()


X, E = torch.randn(SQUARE[0], WIDTH), edges()
TYPES = E.sum(0) % 2
REFUSED: list[tuple[Callable[[], Any], str]] = [
    (lambda: RGATConv(4, 4, 0), "num_relations: got 0"),
    (lambda: RGATConv(4, 4, 2, 2, 2), "num_blocks: got 2 with num_bases=2; accepted: one of both"),
    (lambda: RGATConv(4, 3, 2, num_blocks=2), "num_blocks: got 2 for 4 and 3 features; accepted: a divisor"),
    (lambda: RGATConv(4, 4, 2, mod="sum"), "mod: got 'sum'; accepted: additive, scaled"),
    (lambda: RGATConv(4, 4, 2, attention_mode="dot"), "attention_mode: got 'dot'; accepted: additive-self"),
    (
        lambda: RGATConv(4, 4, 2, attention_mechanism="all"),
        "attention_mechanism: got 'all'; accepted: across",
    ),
    (lambda: RGATConv(4, 4, 2, dim=2), "dim: got 2 with 'additive-self-attention'; accepted: 1, or 'multi"),
    (lambda: RGATConv(4, 4, 2, mod="scaled", dropout=0.5), "dropout: got 0.5 with mod='scaled'; accepted: 0"),
    (lambda: RGATConv(WIDTH, 4, 2)(X, E, None), "edge_type: got NoneType; accepted: an int64"),
    (lambda: RGATConv(WIDTH, 4, 2)(X, E, TYPES[:9]), "edge_type: has shape"),
    (lambda: RGATConv(WIDTH, 4, 1)(X, E, TYPES), "edge_type: has types from 0 to 1; accepted: 0 to 0"),
    (lambda: RGATConv(WIDTH, 4, 2)(X[:, 1:], E, TYPES), "x: has shape"),
    (lambda: RGATConv(WIDTH, 4, 2)((X, None), E, TYPES), "x: has no features of targets"),
    (lambda: RGATConv(WIDTH, 4, 2)(X[:9], E, TYPES), "accepted"),
    (lambda: RGATConv(WIDTH, 4, 2)(X, E, TYPES, X), "edge_attr: goes with edge_dim"),
    (lambda: RGATConv(WIDTH, 4, 2, edge_dim=3)(X, E, TYPES, torch.randn(7, 3)), "edge_attr: is of 7 edges"),
    (
        lambda: RGATConv(WIDTH, 4, 2)(X, gnnsparse.prepare(E, num_nodes=40, cache=False), TYPES),
        "adj: got SparseOperand; accepted: an edge_index",
    ),
]


@pytest.mark.parametrize("number", range(len(REFUSED)))
def test_what_is_refused(number: int) -> None:
    call, said = REFUSED[number]
    with pytest.raises((TypeError, ValueError)) as raised:
        call()
    assert said in str(raised.value)
