"""sparsify on torch's own layers: the numbers of dense attention with the pattern as a mask.

A layer that has a pattern computes as gnnsparse.nn.SparseAttention does, whose tests have all kinds of masks.
"""

from __future__ import annotations

import functools
import re
import warnings
from typing import Any

import pytest
import torch

from gnnsparse import masks
from gnnsparse.interop.transformers import report, restore, sparsify
from gnnsparse.testing import assert_all_accurate
from tests.nn.sparsified import HEADS, WIDTH, allowed, assert_same, twins

LENGTH, KEYS, BATCH = 12, 9, 3

#: The pattern of most tests.
WINDOW = {"name": "window", "radius": 3}


def attention(**options: Any) -> torch.nn.MultiheadAttention:
    return torch.nn.MultiheadAttention(WIDTH, HEADS, **options)


def flat(result: tuple[torch.Tensor, torch.Tensor | None]) -> torch.Tensor:
    """Output and weights in one tensor, whose gradients can be compared at once."""
    return torch.cat([x.flatten() for x in result if x is not None])


def tokens(
    length: int, batch: int | None, batch_first: bool, device: str, width: int = WIDTH
) -> torch.Tensor:
    sizes = [length] if batch is None else [batch, length] if batch_first else [length, batch]
    return torch.randn(*sizes, width, device=device)


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("batch", [None, BATCH])
@pytest.mark.parametrize("weights", [None, "averaged", "of heads"])
@pytest.mark.parametrize("pattern", ["window", "full"])
def test_self_attention(
    device: str, batch_first: bool, batch: int | None, weights: str | None, pattern: str
) -> None:
    make = masks.full if pattern == "full" else functools.partial(masks.window, radius=3)
    ours, theirs = twins(attention(batch_first=batch_first), make, device)
    mask = ~allowed(make(LENGTH), device)
    options = {"need_weights": weights is not None, "average_attn_weights": weights == "averaged"}
    assert_same(
        (lambda x: flat(ours(x, x, x, **options)), ours),
        (lambda x: flat(theirs(x, x, x, attn_mask=mask, **options)), theirs),
        [tokens(LENGTH, batch, batch_first, device)],
    )


def padding(device: str, length: int = LENGTH) -> torch.Tensor:
    """Every window keeps a key: without one torch gives NaN."""
    lengths = torch.tensor([length, length - 2, length - 3], device=device)
    return torch.arange(length, device=device) >= lengths[:, None]


def additive(mask: torch.Tensor) -> torch.Tensor:
    return torch.zeros(mask.shape, device=mask.device).masked_fill(mask, float("-inf"))


@pytest.mark.parametrize("with_mask", [True, False])
def test_causal(device: str, with_mask: bool) -> None:
    """torch wants a mask beside the hint, ours needs none; the hint alone says what is blocked."""
    ours, theirs = twins(attention(batch_first=True), WINDOW, device)
    later = torch.ones(LENGTH, LENGTH, dtype=torch.bool, device=device).triu(1)
    mask = ~allowed(masks.window(LENGTH, 3), device) | later
    assert_same(
        (lambda x: flat(ours(x, x, x, attn_mask=later if with_mask else None, is_causal=True)), ours),
        (lambda x: flat(theirs(x, x, x, attn_mask=mask)), theirs),
        [torch.randn(BATCH, LENGTH, WIDTH, device=device)],
    )


def test_a_query_without_keys_gets_the_bias_of_the_output(device: str) -> None:
    ours, _ = twins(attention(batch_first=True), WINDOW, device)
    x = torch.randn(2, LENGTH, WIDTH, device=device, requires_grad=True)
    out, weights = ours(x, x, x, key_padding_mask=torch.ones(2, LENGTH, dtype=torch.bool, device=device))
    assert torch.equal(out, ours.out_proj.bias.expand_as(out))
    assert not weights.any()
    out.sum().backward()
    assert torch.isfinite(x.grad).all()


def encoder(
    layers: int = 2, norm_first: bool = False, batch_first: bool = True
) -> torch.nn.TransformerEncoder:
    layer = torch.nn.TransformerEncoderLayer(
        WIDTH, HEADS, 24, dropout=0.0, batch_first=batch_first, norm_first=norm_first
    )
    # torch warns where it can't use nested tensors.
    nested = batch_first and not norm_first
    return torch.nn.TransformerEncoder(layer, layers, torch.nn.LayerNorm(WIDTH), enable_nested_tensor=nested)


@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("training", [True, False])
def test_encoder(device: str, norm_first: bool, batch_first: bool, training: bool) -> None:
    ours, theirs = twins(encoder(2, norm_first, batch_first).train(training), WINDOW, device)
    mask = ~allowed(masks.window(LENGTH, 3), device)
    assert_same(
        (ours, ours), (lambda x: theirs(x, mask), theirs), [tokens(LENGTH, BATCH, batch_first, device)]
    )


@pytest.mark.parametrize("with_padding", [False, True])
def test_no_fast_path_passes_a_pattern_by(device: str, with_padding: bool) -> None:
    """In evaluation without gradients torch has operators for an encoder layer, and for padded stacks."""
    ours, theirs = twins(encoder().eval(), WINDOW, device)
    x = torch.randn(BATCH, LENGTH, WIDTH, device=device)
    mask, padded = additive(~allowed(masks.window(LENGTH, 3), device)), None
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

    assert_same(
        (
            lambda src, tgt: ours(
                src, tgt, tgt_mask=causal, src_key_padding_mask=padded, memory_key_padding_mask=padded
            ),
            ours,
        ),
        (dense, theirs),
        [torch.randn(BATCH, n, WIDTH, device=device) for n in (LENGTH, KEYS)],
    )


@pytest.mark.parametrize("training", [True, False])
def test_autocast(device: str, training: bool) -> None:
    """The dtype of the queries, which autocast makes a low one, decides the precision."""
    dtype = torch.float16 if device == "cuda" else torch.bfloat16
    ours, theirs = twins(encoder().train(training), WINDOW, device)
    mask = ~allowed(masks.window(LENGTH, 3), device)
    inputs = [torch.randn(BATCH, LENGTH, WIDTH, device=device)]
    assert_same((ours, ours), (lambda x: theirs(x, mask), theirs), inputs, dtype)
    kept = ours.layers[0].self_attn.gnnsparse_patterns.operands.values()
    assert [a.precision.value for a in kept] == ["fp16" if device == "cuda" else "bf16"]


@pytest.mark.parametrize("precision", ["fp32", "tf32", "fp16", "bf16"])
def test_a_precision_that_is_asked_for(precision: str) -> None:
    ours = sparsify(encoder(), WINDOW, precision=precision)
    ours(torch.randn(BATCH, LENGTH, WIDTH))
    (kept,) = ours.layers[0].self_attn.gnnsparse_patterns.operands.values()
    assert kept.precision.value == precision


X = torch.zeros(BATCH, LENGTH, WIDTH)
BIGBIRD = {"name": "bigbird", "seed": 0}


@pytest.mark.parametrize(
    ("x", "y", "pattern", "message"),
    [
        (X, X[..., :5], WINDOW, "key: has shape (3, 12, 5); accepted: a floating-point tensor [..., 16]"),
        (X, X[:2], WINDOW, "key: the batches differ: [(3,), (2,), (2,)]; accepted: one for query, key and"),
        (X.double(), X.double(), WINDOW, "query: got a tensor of dtype torch.float64; accepted: queries of"),
        (X, X[:, :5], BIGBIRD, "pattern: bigbird(seed=0) is a function of one length, and this call has 12 "),
        (X, X, masks.window(5, 1), "pattern: SparseGraph 5 x 5 is of shape (5, 5); accepted here: (12, 12)"),
        (X, X, lambda n: n, "pattern: got int; accepted: a SparseGraph or SparseOperand as"),
    ],
)  # fmt: skip
def test_bad_calls(x: torch.Tensor, y: torch.Tensor, pattern: Any, message: str) -> None:
    layer = sparsify(attention(batch_first=True), pattern).to(x.dtype)
    with pytest.raises((TypeError, ValueError), match=re.escape(message)):
        layer(x, y, y)


@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
def test_nested_tensors(layout: torch.layout) -> None:
    """Each sequence attends by the pattern of its own length; there are no weights."""
    layer, parts = sparsify(attention(batch_first=True), WINDOW), [torch.randn(n, WIDTH) for n in (3, 9)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        nested = torch.nested.nested_tensor(parts, layout=layout)
    out, _ = layer(nested, nested, nested, need_weights=False)
    for found, part in zip(out.unbind(), parts, strict=True):
        torch.testing.assert_close(found, layer(part, part, part)[0])
    with pytest.raises(ValueError, match=r"need_weights: was given with nested tensors; accepted: the layer"):
        layer(nested, nested, nested)
