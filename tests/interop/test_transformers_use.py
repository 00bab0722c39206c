"""How sparsify is used: descriptions of patterns, reports, what is kept, copies, threads."""

from __future__ import annotations

import copy
import functools
import io
import logging
import pickle
import re
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import gnnsparse
from gnnsparse import SparseGraph, masks
from gnnsparse.interop.transformers import Report, report, restore, sparsify
from gnnsparse.interop.transformers.layers import SparsifiedMultiheadAttention
from gnnsparse.patterns.operands import MOST_OPERANDS, Patterns
from tests.nn.sparsified import HEADS, WIDTH, allowed

LENGTH, BATCH = 12, 3
WINDOW = {"name": "window", "radius": 3}


def attention(**options: Any) -> torch.nn.MultiheadAttention:
    return torch.nn.MultiheadAttention(WIDTH, HEADS, batch_first=True, **options)


def encoder(layers: int = 2) -> torch.nn.TransformerEncoder:
    layer = torch.nn.TransformerEncoderLayer(WIDTH, HEADS, 24, dropout=0.0, batch_first=True)
    return torch.nn.TransformerEncoder(layer, layers)


def patterns_of(layer: Any) -> Patterns:
    return layer.gnnsparse_patterns


def x(length: int = LENGTH) -> torch.Tensor:
    return torch.randn(BATCH, length, WIDTH)


def own_pattern(length: int) -> SparseGraph:
    return masks.union(masks.window(length, 2), masks.global_tokens(length, 1))


def operand_of_length(length: int) -> gnnsparse.SparseOperand:
    return gnnsparse.prepare(masks.window(length, 3), precision="bf16", cache=False)


@pytest.mark.parametrize(
    ("pattern", "graph", "text"),
    [
        (WINDOW, masks.window(LENGTH, 3), "window(radius=3)"),
        ({"name": "full"}, masks.full(LENGTH), "full()"),
        (functools.partial(masks.window, radius=3), masks.window(LENGTH, 3), "window(radius=3)"),
        (own_pattern, own_pattern(LENGTH), "own_pattern"),
        (masks.window(LENGTH, 3), masks.window(LENGTH, 3), "SparseGraph 12 x 12"),
        (operand_of_length(LENGTH), masks.window(LENGTH, 3), "SparseOperand 12 x 12"),
        (operand_of_length, masks.window(LENGTH, 3), "operand_of_length"),
        (
            [WINDOW, {"name": "global_tokens", "tokens": 2}, own_pattern],
            masks.union(masks.window(LENGTH, 3), masks.global_tokens(LENGTH, 2)),
            "window(radius=3) + global_tokens(tokens=2) + own_pattern",
        ),
    ],
)
@pytest.mark.parametrize("is_causal", [False, True])
def test_every_kind_of_pattern(pattern: Any, graph: SparseGraph, text: str, is_causal: bool) -> None:
    layer = sparsify(attention(), pattern)
    assert report(layer).rows[0].pattern == text
    given = x()
    _, weights = layer(given, given, given, is_causal=is_causal)
    expected = allowed(graph).tril() if is_causal else allowed(graph)
    assert torch.equal(weights[0] != 0, expected)
    assert len(patterns_of(layer).operands) == 1


def test_an_operand_brings_its_precision() -> None:
    for pattern in (operand_of_length(LENGTH), operand_of_length):
        layer = sparsify(attention(), pattern)
        layer(x(), x(), x())
        layer(x(), x(), x(), is_causal=True)
        assert {a.precision.value for a in patterns_of(layer).operands.values()} == {"bf16"}
    given = operand_of_length(LENGTH)
    layer = sparsify(attention(), given, precision="bf16")
    layer(x(), x(), x())
    assert list(patterns_of(layer).operands.values()) == [given]


def test_layers_have_the_patterns_that_their_names_fit() -> None:
    model = sparsify(
        torch.nn.Transformer(WIDTH, HEADS, 2, 2, 24, batch_first=True),
        {"encoder.layers.0.*": None, "encoder.*": WINDOW, "decoder.layers.[01].self_attn": masks.causal},
    )
    rows = {row.name: (row.pattern, row.reason) for row in report(model).rows}
    assert rows == {
        "encoder.layers.0.self_attn": (None, "no pattern was given for it"),
        "encoder.layers.1.self_attn": ("window(radius=3)", ""),
        "decoder.layers.0.self_attn": ("causal", ""),
        "decoder.layers.0.multihead_attn": (None, "no pattern was given for it"),
        "decoder.layers.1.self_attn": ("causal", ""),
        "decoder.layers.1.multihead_attn": (None, "no pattern was given for it"),
    }
    assert type(model.encoder.layers[0].self_attn) is torch.nn.MultiheadAttention
    first, second = (layer.self_attn for layer in model.decoder.layers)
    assert patterns_of(first) is patterns_of(second)


class Own(torch.nn.MultiheadAttention):
    """A layer of a user."""


def test_what_stays_dense_is_reported_with_the_reason(caplog: pytest.LogCaptureFixture) -> None:
    biased, zero = attention(add_bias_kv=True), attention(add_zero_attn=True)
    model = torch.nn.ModuleDict({"a": attention(), "b": biased, "c": zero, "d": Own(WIDTH, HEADS)})
    with caplog.at_level(logging.INFO, "gnnsparse.interop"):
        found = report(sparsify(model, WINDOW))
    assert caplog.messages == [str(found)]
    assert isinstance(found, Report)
    assert [row.name for row in found.replaced] == ["a"]
    assert str(found).splitlines() == [
        "layer  class               attends by",
        "a      MultiheadAttention  window(radius=3)",
        "b      MultiheadAttention  all keys: bias_k and bias_v are a key and a value that no pattern has "
        "(add_bias_kv=True)",
        "c      MultiheadAttention  all keys: add_zero_attn=True adds a key that no pattern has",
        "d      Own                 all keys: it is a subclass of torch.nn.MultiheadAttention, which may "
        "compute something else",
    ]


def test_restore_undoes_everything() -> None:
    model = encoder().eval()
    before = copy.deepcopy(model)
    assert sparsify(model, WINDOW) is model
    assert isinstance(model.layers[0].self_attn, SparsifiedMultiheadAttention)
    assert restore(model) is model
    for ours, theirs in zip(model.modules(), before.modules(), strict=True):
        assert type(ours) is type(theirs)
        assert ours.__dict__.keys() == theirs.__dict__.keys()
    assert model.use_nested_tensor
    given = x()
    assert torch.equal(model(given), before(given))
    restore(model)  # once more changes nothing


def test_a_second_pattern_takes_the_place_of_the_first() -> None:
    model = sparsify(encoder(), WINDOW)
    with pytest.raises(ValueError, match="pattern"):  # a mistake leaves the model as it was
        sparsify(model, {"layers.1.*": masks.full, "layers.7.*": masks.full})
    assert [row.pattern for row in report(model).rows] == ["window(radius=3)"] * 2
    sparsify(model, {"layers.1.*": masks.full})
    assert [row.pattern for row in report(model).rows] == [None, "full"]
    assert not restore(model).layers[1].self_attn.__dict__.keys() & {"gnnsparse_patterns"}


def test_state_and_hooks_stay() -> None:
    model = attention()
    calls: list[Any] = []
    model.register_forward_hook(lambda *_: calls.append(None))
    names = list(model.state_dict())
    parameters = list(model.parameters())
    sparsify(model, WINDOW)
    assert list(model.state_dict()) == names
    assert all(a is b for a, b in zip(model.parameters(), parameters, strict=True))
    model.load_state_dict(attention().state_dict())
    model(x(), x(), x())
    assert len(calls) == 1
    assert repr(restore(model)) == repr(attention())


def noting() -> tuple[list[int], Callable[[int], SparseGraph]]:
    """A pattern, and the lengths that it is made for."""
    made: list[int] = []

    def pattern(length: int) -> SparseGraph:
        made.append(length)
        return masks.window(length, 3)

    return made, pattern


def test_operands_are_made_once_for_each_length_and_dtype() -> None:
    made, pattern = noting()
    model = sparsify(encoder(3), pattern)
    for length in (8, 10, 8, 10):
        model(x(length))
    assert made == [8, 10]
    with torch.autocast("cpu", torch.bfloat16):
        model(x(8))
    assert made == [8, 10, 8]
    model.to(torch.bfloat16)(x(10).bfloat16())
    assert made == [8, 10, 8, 10]


def test_few_operands_are_kept_and_the_oldest_is_dropped_first() -> None:
    layer = sparsify(attention(), WINDOW)
    kept = patterns_of(layer).operands
    for length in range(4, 4 + MOST_OPERANDS):
        layer(*[x(length)] * 3)
    first, second = list(kept)[:2]
    layer(*[x(4)] * 3)  # used again: now the second is the oldest
    layer(*[x(40)] * 3)
    assert len(kept) == MOST_OPERANDS
    assert first in kept
    assert second not in kept


def test_copies_and_pickles() -> None:
    model = sparsify(
        encoder().eval(), {"layers.0.*": WINDOW, "layers.1.*": functools.partial(masks.window, radius=1)}
    )
    given = x()
    expected = model(given)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    copied = copy.deepcopy(model)
    mine, its = (patterns_of(m.layers[0].self_attn).operands for m in (model, copied))
    assert mine == its  # the same operands
    assert mine is not its
    unpickled = pickle.loads(pickle.dumps(model))
    assert not patterns_of(unpickled.layers[0].self_attn).operands
    for other in (copied, unpickled, torch.load(file, weights_only=False)):
        assert torch.equal(other(given), expected)
        restore(other)
        assert not torch.equal(other(given), expected)
    assert torch.equal(model(given), expected)


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpoints(use_reentrant: bool) -> None:
    """With the reentrant ones gradients are there for `backward` alone."""
    model, given = sparsify(encoder(), WINDOW), x()
    grads = []
    for call in (model, functools.partial(checkpoint, model, use_reentrant=use_reentrant)):
        model.zero_grad()
        leaf = given.clone().requires_grad_()
        call(leaf).square().sum().backward()
        grads.append([leaf.grad, *(p.grad.clone() for p in model.parameters())])
    assert all(torch.equal(a, b) for a, b in zip(*grads, strict=True))


def test_the_packages_of_others_are_imported_by_no_one_else() -> None:
    code = (
        "import sys, gnnsparse, gnnsparse.nn, gnnsparse.interop.transformers as t, torch; "
        "t.sparsify(torch.nn.MultiheadAttention(8, 2), {'name': 'full'}); "
        "assert 'transformers' not in sys.modules and 'torch_geometric' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


LAYER = attention()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: sparsify(3, WINDOW), "model: got int; accepted: a torch.nn.Module"),
        (lambda: restore(3), "model: got int; accepted: a torch.nn.Module"),
        (lambda: report(3), "model: got int; accepted: a torch.nn.Module"),
        (lambda: sparsify(torch.nn.Linear(2, 2), WINDOW), "model: has no attention layer that can be given"),
        (
            lambda: sparsify(attention(add_zero_attn=True), WINDOW),
            "model: has no attention layer that can be given the pattern:\nlayer        class",
        ),
        (lambda: sparsify(LAYER, None), "pattern: got NoneType; accepted: a function of the length"),
        (lambda: sparsify(LAYER, "window"), "pattern: got str; accepted: a function of the length"),
        (lambda: sparsify(LAYER, []), "pattern: got an empty list; accepted: one or more patterns"),
        (lambda: sparsify(LAYER, [WINDOW, 3]), "pattern[1]: got int; accepted: a function of the length"),
        (lambda: sparsify(LAYER, {"*": 3}), "pattern['*']: got int; accepted: a function of the length"),
        (lambda: sparsify(LAYER, {3: WINDOW}), "pattern: got int; accepted: names of layers as the keys"),
        (
            lambda: sparsify(encoder(1), {"decoder*": WINDOW}),
            "pattern: got 'decoder*', which fits no attention layer; accepted: layers.0.self_attn",
        ),
        (lambda: sparsify(LAYER, WINDOW, precision="fp7"), "precision: got 'fp7'; accepted: fp32, tf32"),
        (
            lambda: sparsify(LAYER, operand_of_length(4), precision="fp32"),
            "precision: got 'fp32'; accepted: 'bf16', that of the operand in pattern, or None",
        ),
    ],
)  # fmt: skip
def test_bad_arguments(call: Any, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=re.escape(message)):
        call()
