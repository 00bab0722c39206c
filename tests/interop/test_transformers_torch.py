"""sparsify on torch's own layers: the numbers of masked dense attention, and how it is used.

A layer that has a pattern computes as gnnsparse.nn.SparseAttention does, whose tests have all kinds of masks.
"""

from __future__ import annotations

import copy
import functools
import logging
import re
import subprocess
import sys
import warnings
from typing import Any

import pytest
import torch

import gnnsparse
from gnnsparse import SparseGraph, masks
from gnnsparse.interop.transformers import Report, report, restore, sparsify
from gnnsparse.interop.transformers.layers import SparsifiedMultiheadAttention
from gnnsparse.nn import SparseAttention
from gnnsparse.patterns.operands import MOST_OPERANDS, Patterns
from gnnsparse.testing import assert_all_accurate
from tests.helpers import copies_of
from tests.nn.sparsified import (
    HEADS,
    KEYS,
    LENGTH,
    WIDTH,
    WINDOW,
    additive,
    allowed,
    assert_same,
    blocked,
    padding,
    tokens,
    twins,
)


def attention(batch_first: bool = True, **options: Any) -> torch.nn.MultiheadAttention:
    return torch.nn.MultiheadAttention(WIDTH, HEADS, batch_first=batch_first, **options)


def encoder(layers: int = 2) -> torch.nn.TransformerEncoder:
    layer = torch.nn.TransformerEncoderLayer(WIDTH, HEADS, 24, dropout=0.0, batch_first=True)
    return torch.nn.TransformerEncoder(layer, layers, torch.nn.LayerNorm(WIDTH))


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("batch", [True, False])
def test_a_layer_computes_as_one_with_the_pattern(device: str, batch_first: bool, batch: bool) -> None:
    """Bit for bit, with arguments in torch's order; beside the hint a mask is not read, as in torch."""
    theirs = torch.nn.MultiheadAttention(WIDTH, HEADS, batch_first=batch_first, device=device)
    own = SparseAttention(WIDTH, HEADS, batch_first=batch_first, pattern=WINDOW, device=device)
    own.load_state_dict(theirs.state_dict())
    ours, mask = sparsify(theirs, WINDOW), torch.randn(LENGTH, LENGTH, device=device)
    x, padded = tokens(device) if batch_first else tokens(device).transpose(0, 1), padding(device)
    if not batch:
        x, padded = x[(0,) if batch_first else (slice(None), 0)], padded[1]
    for options in ((), (padded, False), (padded, True, mask, False), (None, True, None, True, True)):
        for got, want in zip(ours(x, x, x, *options), own(x, x, x, *options), strict=True):
            assert got is want is None or torch.equal(got, want)
    causal = ours(x, x, x, None, True, mask, True, True)
    assert all(map(torch.equal, causal, own(x, x, x, is_causal=True)))


def test_a_query_without_keys_gets_the_bias_of_the_output(device: str) -> None:
    ours, _ = twins(attention(), WINDOW, device)
    x = torch.randn(2, LENGTH, WIDTH, device=device, requires_grad=True)
    out, weights = ours(x, x, x, key_padding_mask=torch.ones(2, LENGTH, dtype=torch.bool, device=device))
    assert torch.equal(out, ours.out_proj.bias.expand_as(out))
    assert not weights.any()
    out.sum().backward()
    assert torch.isfinite(x.grad).all()


@pytest.mark.parametrize("with_padding", [False, True])
def test_no_fast_path_passes_a_pattern_by(device: str, with_padding: bool) -> None:
    """In evaluation without gradients torch has operators for an encoder layer, and for padded stacks."""
    ours, theirs = twins(encoder().eval(), WINDOW, device)
    x = tokens(device)
    mask, padded = additive(blocked(device)), None
    if with_padding:
        padded = padding(device)
    with torch.no_grad():
        got = ours(x, src_key_padding_mask=padded)
    infinite = None if padded is None else additive(padded)
    plain = theirs(x, mask, src_key_padding_mask=infinite).detach()
    theirs.double()
    exact = theirs(x.double(), mask.double(), None if infinite is None else infinite.double()).detach()
    assert_all_accurate([got], [plain], [exact], floor=None if device == "cpu" else 4e-6)
    # The same call of a dense encoder does go by the fast path, whose last layer leaves 0 at padded tokens.
    dense = restore(ours)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # nested tensors are a prototype, torch says
        other = dense(x, src_key_padding_mask=padded)
    assert not torch.allclose(got, other)
    if with_padding:
        assert torch.equal(other[padded], dense.norm.bias.expand_as(other[padded]))


@pytest.mark.parametrize("training", [True, False])
def test_a_whole_transformer(device: str, training: bool) -> None:
    """Encoder, causal decoder and attention between them, with padding."""
    model = torch.nn.Transformer(WIDTH, HEADS, 2, 2, 24, dropout=0.0, batch_first=True).train(training)
    patterns = {
        "*multihead_attn": functools.partial(masks.random, per_row=7, seed=1),
        "*": functools.partial(masks.window, radius=3),
    }
    ours, theirs = twins(model, patterns, device)
    assert len(report(ours).replaced) == 6
    padded = padding(device)
    causal = torch.ones(KEYS, KEYS, dtype=torch.bool, device=device).triu(1)
    window, own = (~allowed(masks.window(n, 3), device) for n in (LENGTH, KEYS))
    across = ~allowed(masks.random(KEYS, 7, 1, keys=LENGTH), device)

    def dense(src: torch.Tensor, tgt: torch.Tensor) -> torch.Tensor:
        infinite = additive(padded).to(src)
        return theirs(
            src, tgt, src_mask=additive(window).to(src), tgt_mask=causal | own,
            memory_mask=additive(across).to(src), src_key_padding_mask=infinite,
            memory_key_padding_mask=infinite,
        )  # fmt: skip

    options = {"tgt_mask": causal, "src_key_padding_mask": padded, "memory_key_padding_mask": padded}
    sparse = functools.partial(ours, **options)
    assert_same((sparse, ours), (dense, theirs), [tokens(device, n) for n in (LENGTH, KEYS)])


@pytest.mark.parametrize("training", [True, False])
def test_autocast(device: str, training: bool) -> None:
    """The dtype of the queries, which autocast makes a low one, decides the precision."""
    dtype = torch.float16 if device == "cuda" else torch.bfloat16
    ours, theirs = twins(encoder().train(training), WINDOW, device)
    mask = blocked(device)
    inputs = [tokens(device)]
    assert_same((ours, ours), (lambda x: theirs(x, mask), theirs), inputs, dtype)
    kept = ours.layers[0].self_attn.gnnsparse_patterns.operands.values()
    assert [a.precision.value for a in kept] == ["fp16" if device == "cuda" else "bf16"]


# How it is used: descriptions of patterns, reports, what is kept, copies.


def patterns_of(layer: Any) -> Patterns:
    return layer.gnnsparse_patterns


def own_pattern(length: int) -> SparseGraph:
    return masks.union(masks.window(length, 2), masks.global_tokens(length, 1))


def operand_of_length(length: int) -> gnnsparse.SparseOperand:
    return gnnsparse.prepare(masks.window(length, 3), precision="bf16", cache=False)


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        (WINDOW, "window(radius=3)"),
        ({"name": "full"}, "full()"),
        (functools.partial(masks.window, radius=3), "window(radius=3)"),
        (own_pattern, "own_pattern"),
        (masks.window(LENGTH, 3), "SparseGraph 12 x 12"),
        (operand_of_length(LENGTH), "SparseOperand 12 x 12"),
        (operand_of_length, "operand_of_length"),
        (
            [WINDOW, {"name": "global_tokens", "tokens": 2}, own_pattern],
            "window(radius=3) + global_tokens(tokens=2) + own_pattern",
        ),
    ],
)
def test_every_kind_of_pattern(pattern: Any, text: str) -> None:
    layer = sparsify(attention(), pattern)
    own = SparseAttention(WIDTH, HEADS, batch_first=True, pattern=pattern)
    assert report(layer).rows[0].uses == text
    own.load_state_dict(layer.state_dict())
    x = tokens()
    assert all(map(torch.equal, layer(x, x, x), own(x, x, x)))


@pytest.mark.parametrize("precision", ["fp32", "tf32", "fp16", "bf16"])
def test_the_precision_is_the_operand_s_or_what_was_asked_for(precision: str) -> None:
    given = gnnsparse.prepare(masks.window(LENGTH, 3), precision=precision, cache=False)
    for pattern, asked in ((WINDOW, precision), (given, precision), (given, None), (lambda n: given, None)):
        layer = sparsify(attention(), pattern, precision=asked)
        layer(tokens(), tokens(), tokens())
        if pattern is given:
            assert list(patterns_of(layer).operands.values()) == [given]
        layer(tokens(), tokens(), tokens(), is_causal=True)
        assert {a.precision.value for a in patterns_of(layer).operands.values()} == {precision}


def test_layers_have_the_patterns_that_their_names_fit() -> None:
    model = sparsify(
        torch.nn.Transformer(WIDTH, HEADS, 2, 2, 24, batch_first=True),
        {"encoder.layers.0.*": None, "encoder.*": WINDOW, "decoder.layers.[01].self_attn": masks.causal},
    )
    rows = {row.name: (row.uses, row.reason) for row in report(model).rows}
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
    given = tokens()
    assert torch.equal(model(given), before(given))
    restore(model)  # once more changes nothing


def test_a_second_pattern_takes_the_place_of_the_first() -> None:
    model = sparsify(encoder(), WINDOW)
    with pytest.raises(ValueError, match="pattern"):  # a mistake leaves the model as it was
        sparsify(model, {"layers.1.*": masks.full, "layers.7.*": masks.full})
    assert [row.uses for row in report(model).rows] == ["window(radius=3)"] * 2
    sparsify(model, {"layers.1.*": masks.full})
    assert [row.uses for row in report(model).rows] == [None, "full"]
    assert not restore(model).layers[1].self_attn.__dict__.keys() & {"gnnsparse_patterns"}


def test_state_and_hooks_stay() -> None:
    model, calls = attention(), []
    model.register_forward_hook(lambda *_: calls.append(None))
    parameters = dict(model.named_parameters())
    sparsify(model, WINDOW)
    assert all(found is parameters[name] for name, found in model.named_parameters())
    model.load_state_dict(attention().state_dict())
    model(tokens(), tokens(), tokens())
    assert len(calls) == 1
    assert repr(restore(model)) == repr(attention())


def test_copies_and_pickles() -> None:
    model = sparsify(
        encoder().eval(), {"layers.0.*": WINDOW, "layers.1.*": functools.partial(masks.window, radius=1)}
    )
    given = tokens()
    expected = model(given)
    others = copied, unpickled, _ = copies_of(model)
    mine, its = (patterns_of(m.layers[0].self_attn).operands for m in (model, copied))
    assert mine == its  # the same operands
    assert mine is not its
    assert not patterns_of(unpickled.layers[0].self_attn).operands
    for other in others:
        assert torch.equal(other(given), expected)
        assert not torch.equal(restore(other)(given), expected)
    assert torch.equal(model(given), expected)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own tools warn about themselves
@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.filterwarnings("ignore:.*(TF32|TensorFloat32).*:UserWarning")
@pytest.mark.filterwarnings("ignore:.*AccumulateGrad.*:UserWarning")
class TestCompiled:
    """torch.compile of layers with patterns."""

    @pytest.fixture(autouse=True)
    def fresh_compiler(self) -> None:
        torch._dynamo.reset()

    def test_compiles_without_graph_breaks(self, device: str) -> None:
        """The first call of a length may be the compiled one: its operand is made while torch traces."""
        ours, theirs = twins(encoder(1).eval(), WINDOW, device)
        compiled = torch.compile(ours, fullgraph=True, backend="aot_eager")
        for length in (8, LENGTH):
            mask = blocked(device, length)
            assert_same(
                (compiled, ours), (lambda x, mask=mask: theirs(x, mask), theirs), [tokens(device, length)]
            )
        with torch.no_grad():
            given = tokens(device)
            assert torch.allclose(compiled(given), ours(given), atol=1e-5)

    def test_a_layer_is_compiled_by_inductor(self, device: str) -> None:
        ours, theirs = twins(attention(), WINDOW, device)
        compiled, mask = torch.compile(ours, fullgraph=True), blocked(device)
        assert_same(
            (lambda x: compiled(x, x, x, need_weights=False)[0], ours),
            (lambda x: theirs(x, x, x, attn_mask=mask, need_weights=False)[0], theirs),
            [tokens(device)],
        )

    def test_compiled_code_sees_a_new_pattern(self) -> None:
        layer, given = sparsify(attention(), WINDOW), tokens()
        compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
        for pattern in (WINDOW, {"name": "window", "radius": 1}):
            sparsify(layer, pattern)
            assert torch.equal(compiled(given, given, given)[0], layer(given, given, given)[0])

    def test_what_compiled_code_uses_is_not_dropped(self) -> None:
        """Other lengths come between forward and backward pass, which carries the operand's handle."""
        layer = sparsify(attention(), WINDOW)
        compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
        given = tokens().requires_grad_()
        out = compiled(given, given, given)[0]
        for length in range(20, 21 + MOST_OPERANDS):
            layer(*[tokens(length=length)] * 3)
        out.sum().backward()
        assert len(layer.gnnsparse_patterns.operands) == MOST_OPERANDS + 1
        assert given.grad is not None


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
