"""Our attention and encoder layers inside of torch's modules, and our encoder called as torch's."""

from __future__ import annotations

import copy
import re
import warnings
from typing import Any

import pytest
import torch

import gnnsparse
from gnnsparse import masks
from gnnsparse.nn import TransformerEncoder, TransformerEncoderLayer
from tests.nn.sparsified import (
    BATCH,
    HEADS,
    KEYS,
    LENGTH,
    WIDTH,
    WINDOW,
    additive,
    allowed,
    assert_near,
    assert_same,
    blocked,
    padding,
    pair,
    tokens,
)


@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("training", [True, False])
def test_an_encoder_layer(device: str, norm_first: bool, training: bool) -> None:
    theirs = torch.nn.TransformerEncoderLayer(
        WIDTH, HEADS, 24, dropout=0.0, batch_first=True, norm_first=norm_first, device=device
    ).train(training)
    ours = copy.deepcopy(theirs)
    ours.self_attn, theirs.self_attn = pair(device)
    ours.train(training)
    mask = blocked(device)
    assert_same((ours, ours), (lambda x: theirs(x, mask), theirs), [tokens(device)])
    with torch.no_grad():  # torch's fast path in evaluation knows no pattern
        x = tokens(device)
        assert_near(ours(x), theirs(x, mask))


@pytest.mark.parametrize("training", [True, False])
def test_a_decoder(device: str, training: bool) -> None:
    layer = torch.nn.TransformerDecoderLayer(WIDTH, HEADS, 24, dropout=0.0, batch_first=True, device=device)
    theirs = torch.nn.TransformerDecoder(layer, 2).train(training)
    ours = copy.deepcopy(theirs)
    for mine, its in zip(ours.layers, theirs.layers, strict=True):
        mine.self_attn, its.self_attn = pair(device)
        mine.multihead_attn, its.multihead_attn = pair(device, {"name": "random", "per_row": 7, "seed": 1})
    causal = torch.nn.Transformer.generate_square_subsequent_mask(LENGTH, device=device)
    own = causal.masked_fill(blocked(device), float("-inf"))
    across = ~allowed(masks.random(LENGTH, 7, 1, keys=KEYS), device)
    assert_same(
        (lambda x, m: ours(x, m, tgt_mask=causal, tgt_is_causal=True), ours),
        (lambda x, m: theirs(x, m, tgt_mask=own.to(x), memory_mask=additive(across).to(x)), theirs),
        [tokens(device), tokens(device, KEYS)],
    )


def test_padded_sequences_that_torch_makes_nested(device: str) -> None:
    """In evaluation without gradients torch's encoder leaves padding out, in its older nested layout."""
    layer = torch.nn.TransformerEncoderLayer(WIDTH, HEADS, 24, 0.0, batch_first=True, device=device)
    model = torch.nn.TransformerEncoder(layer, 2).eval()
    for mine in model.layers:
        mine.self_attn = pair(device)[0]
    x, padded = tokens(device), padding(device)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # nested tensors of that layout are a prototype, torch says
        got = model(x, src_key_padding_mask=padded)
    want = model(x, src_key_padding_mask=padded)
    assert_near(got[~padded], want[~padded])
    assert not got[padded].any()


def encoders(device: str = "cpu", pattern: Any = WINDOW, **options: Any) -> tuple[Any, Any, Any]:
    """Our encoder, torch's with our layers, and torch's own, with equal random parameters."""
    options = {"dropout": 0.0, "batch_first": True, "device": device, **options}
    theirs = torch.nn.TransformerEncoder(
        torch.nn.TransformerEncoderLayer(WIDTH, HEADS, 24, **options), 2, enable_nested_tensor=False
    )
    for parameter in theirs.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    layer = TransformerEncoderLayer(WIDTH, HEADS, 24, pattern=pattern, **options)
    ours = TransformerEncoder(layer, 2)
    mixed = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    for model in (ours, mixed):
        model.load_state_dict(theirs.state_dict())
    return ours, mixed, theirs


@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("training", [True, False])
def test_torchs_encoder_takes_our_layer(
    device: str, norm_first: bool, batch_first: bool, training: bool
) -> None:
    ours, mixed, theirs = encoders(device, norm_first=norm_first, batch_first=batch_first)
    x = tokens(device) if batch_first else tokens(device).transpose(0, 1).contiguous()
    mask = blocked(device)
    for model in (ours, mixed):
        model.train(training)
        assert_same((model, model), (lambda x: theirs(x, mask), theirs), [x])


@pytest.mark.parametrize("with_pattern", [True, False])
@pytest.mark.parametrize("kind", ["bool", "float", "causal"])
def test_masks_of_encoders(device: str, with_pattern: bool, kind: str) -> None:
    ours, mixed, theirs = encoders(device, WINDOW if with_pattern else None)
    mask = torch.rand(LENGTH, LENGTH, device=device) < 0.3
    mask.fill_diagonal_(False)
    mask[:, 0] = mask[-3:] = False  # padded queries keep a key
    if kind == "causal":
        mask = torch.ones_like(mask).triu(1)
    merged = additive(mask | blocked(device) if with_pattern else mask)
    given = mask if kind == "bool" else additive(mask)
    padded = padding(device) if kind == "bool" else None
    infinite = None if padded is None else additive(padded)

    def dense(x: torch.Tensor) -> torch.Tensor:
        return theirs(x, merged.to(x), None if infinite is None else infinite.to(x))

    for model in (ours, mixed):
        for call in (
            lambda x, model=model: model(x, mask=given, src_key_padding_mask=padded, is_causal=None),
            lambda x, model=model: model(x, given, padded),
        ):
            assert_same((call, model), (dense, theirs), [tokens(device)])


def test_a_causal_encoder_needs_no_mask(device: str) -> None:
    ours, mixed, theirs = encoders(device)
    later = torch.ones(LENGTH, LENGTH, dtype=torch.bool, device=device).triu(1) | blocked(device)
    for model in (ours, mixed):
        assert_same(
            (lambda x, model=model: model(x, is_causal=True), model),
            (lambda x: theirs(x, later), theirs),
            [tokens(device)],
        )


def test_layers_of_one_pattern_share_masks_and_hooks_see_every_layer() -> None:
    ours, _, _ = encoders()
    seen: list[Any] = []
    for layer in ours.layers:
        layer.register_forward_pre_hook(
            lambda _, args, options: seen.append((args, options)), with_kwargs=True
        )
    ours(tokens(), src_key_padding_mask=padding())
    first, second = seen
    assert first[0][1] is second[0][1]
    assert first[1]["bias"] is second[1]["bias"]


def test_layers_may_have_patterns_of_their_own() -> None:
    ours, _, theirs = encoders()
    other = TransformerEncoderLayer(WIDTH, HEADS, 24, 0.0, batch_first=True, pattern="full")
    other.load_state_dict(ours.layers[1].state_dict())
    ours.layers[1] = other
    x, padded = tokens(), padding()
    want = theirs.layers[1](theirs.layers[0](x, additive(blocked()), additive(padded)), None, padded)
    assert_near(ours(x, None, padded), want)


def test_grouped_heads_in_an_encoder() -> None:
    layer = TransformerEncoderLayer(WIDTH, HEADS, 24, batch_first=True, num_kv_heads=2, pattern=WINDOW)
    assert layer.self_attn.in_proj_weight.shape == (WIDTH + 2 * WIDTH // 2, WIDTH)
    assert TransformerEncoder(layer, 2)(tokens()).shape == (BATCH, LENGTH, WIDTH)


def layer(**options: Any) -> TransformerEncoderLayer:
    return TransformerEncoderLayer(WIDTH, HEADS, 24, **{"batch_first": True, "pattern": WINDOW, **options})


X = torch.zeros(BATCH, LENGTH, WIDTH)
NESTED = torch.nested.nested_tensor([X[0], X[0, :5]], layout=torch.jagged)
MASK = torch.zeros(LENGTH, LENGTH)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: layer()(X, masks.window(LENGTH, 1)), "pattern: got SparseGraph; accepted: a SparseOperand"),
        (
            lambda: layer()(X, MASK, src_mask=MASK),
            "src_mask: got a tensor of dtype torch.float32; accepted: one",
        ),
        (lambda: layer()(X, MASK[:5]), "attn_mask: has shape (5, 12); accepted: (12, 12) or (12, 12, 12)"),
        (
            lambda: layer()(X[..., :3]),
            "src: has shape (3, 12, 3); accepted: a floating-point tensor [..., 16]",
        ),
        (lambda: layer()(X[0, 0]), "src: has shape (16,); accepted: two or three dimensions"),
        (
            lambda: layer()(NESTED, MASK),
            "attn_mask: was given with nested tensors; accepted: the layer's own",
        ),
        (lambda: layer()(X, is_causal=1), "is_causal: got int; accepted: True or False"),
        (lambda: layer(pattern="windows"), "pattern.name: got 'windows'; accepted: bigbird"),
        (
            lambda: TransformerEncoder(layer(), 1)(X, MASK, mask=MASK),
            "mask: got a tensor of dtype torch.float32; accepted: one mask",
        ),
        (
            lambda: layer()(X, gnnsparse.prepare(masks.window(5, 1), cache=False)),
            "query: has shape (3, 12, 16); accepted: (length, 16) or (batch, length, 16), length 5 here",
        ),
    ],
)
def test_bad_arguments(call: Any, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=re.escape(message)):
        call()
