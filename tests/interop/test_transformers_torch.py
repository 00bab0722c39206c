"""sparsify on torch's own layers: the numbers of dense attention with the pattern as a mask."""

from __future__ import annotations

import functools
import re
import warnings
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gnnsparse import masks
from gnnsparse.interop.transformers import report, restore, sparsify
from gnnsparse.testing import assert_all_accurate, with_gradients
from tests.sparsified import HEADS, WIDTH, allowed, assert_same, twins

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


@pytest.mark.parametrize("sizes", [{}, {"kdim": 7, "vdim": 5}, {"bias": False}], ids=str)
@pytest.mark.parametrize("batch_first", [True, False])
def test_cross_attention(device: str, sizes: dict[str, Any], batch_first: bool) -> None:
    ours, theirs = twins(attention(batch_first=batch_first, **sizes), WINDOW, device)
    mask = ~allowed(masks.window(LENGTH, 3, keys=KEYS), device)
    key, value = sizes.get("kdim", WIDTH), sizes.get("vdim", WIDTH)
    assert_same(
        (lambda q, k, v: flat(ours(q, k, v)), ours),
        (lambda q, k, v: flat(theirs(q, k, v, attn_mask=mask)), theirs),
        [
            tokens(LENGTH, BATCH, batch_first, device),
            tokens(KEYS, BATCH, batch_first, device, key),
            tokens(KEYS, BATCH, batch_first, device, value),
        ],
    )


def padding(device: str, length: int = LENGTH) -> torch.Tensor:
    """Every window keeps a key: without one torch gives NaN."""
    lengths = torch.tensor([length, length - 2, length - 3], device=device)
    return torch.arange(length, device=device) >= lengths[:, None]


def additive(mask: torch.Tensor) -> torch.Tensor:
    return torch.zeros(mask.shape, device=mask.device).masked_fill(mask, float("-inf"))


@pytest.mark.parametrize("kind", ["bool", "float", "of heads", "numbers"])
@pytest.mark.parametrize("with_padding", [False, True])
def test_masks_are_merged_with_the_pattern(device: str, kind: str, with_padding: bool) -> None:
    ours, theirs = twins(attention(batch_first=True), WINDOW, device)
    window = ~allowed(masks.window(LENGTH, 3), device)
    shape = (BATCH * HEADS, LENGTH, LENGTH) if kind == "of heads" else (LENGTH, LENGTH)
    mask = torch.rand(shape, device=device) < 0.3
    mask.diagonal(dim1=-2, dim2=-1).fill_(False)
    if with_padding:  # a padded query keeps its own key, which is padding
        mask[..., 0] = False
        mask[..., -3:, :] = False
    blocked = additive(mask | window)
    if kind == "float":
        mask = additive(mask)
    if kind == "numbers":
        mask = torch.randn(LENGTH, LENGTH, device=device)
        blocked = mask.masked_fill(window, float("-inf"))
    padded = padding(device) if with_padding else None
    infinite = None if padded is None else additive(padded)

    def dense(x: torch.Tensor) -> torch.Tensor:
        key_padding = None if infinite is None else infinite.to(x)
        return flat(theirs(x, x, x, key_padding_mask=key_padding, attn_mask=blocked.to(x)))

    assert_same(
        (lambda x: flat(ours(x, x, x, key_padding_mask=padded, attn_mask=mask)), ours),
        (dense, theirs),
        [torch.randn(BATCH, LENGTH, WIDTH, device=device)],
    )


def test_a_learnable_mask_gets_its_gradient(device: str) -> None:
    ours, theirs = twins(attention(batch_first=True), WINDOW, device)
    window = ~allowed(masks.window(LENGTH, 3), device)
    x, mask = torch.randn(BATCH, LENGTH, WIDTH, device=device), torch.randn(LENGTH, LENGTH, device=device)
    assert_same(
        (lambda x, mask: flat(ours(x, x, x, attn_mask=mask)), ours),
        (lambda x, mask: flat(theirs(x, x, x, attn_mask=mask.masked_fill(window, float("-inf")))), theirs),
        [x, mask],
    )


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


@given(
    rows=st.integers(1, 20), cols=st.integers(1, 20), density=st.floats(0, 1), seed=st.integers(0, 2**16),
    heads=st.sampled_from([1, 2, 8]), turned=st.booleans(),
)  # fmt: skip
def test_any_shape_and_density(
    rows: int, cols: int, density: float, seed: int, heads: int, turned: bool
) -> None:
    """Rows without keys are left out of the dense run, which has NaN there."""
    torch.manual_seed(seed)
    mask = torch.rand(rows, cols) < density
    layer = torch.nn.MultiheadAttention(WIDTH, heads, batch_first=not turned)
    ours, theirs = twins(layer, masks.from_dense(mask))
    q, k = torch.randn(2, rows, WIDTH), torch.randn(2, cols, WIDTH)
    q, k = (x.transpose(0, 1) if turned else x for x in (q, k))
    filled = mask | ~mask.any(1, keepdim=True)
    has_keys = mask.any(1)

    def run(model: Any, q: torch.Tensor, k: torch.Tensor, **options: Any) -> torch.Tensor:
        out, weights = model(q, k, k, **options)
        out = out.transpose(0, 1) if turned else out
        return torch.cat([out[:, has_keys].flatten(), weights[:, has_keys].flatten()])

    assert_same(
        (lambda q, k: run(ours, q, k), ours),
        (lambda q, k: run(theirs, q, k, attn_mask=~filled), theirs),
        [q, k],
    )


def test_two_runs_have_the_same_bits(device: str) -> None:
    ours, _ = twins(attention(batch_first=True), WINDOW, device)
    x = torch.randn(BATCH, LENGTH, WIDTH, device=device)
    first, second = (with_gradients(lambda x: flat(ours(x, x, x)), [x], ours.parameters()) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_dropout_acts_in_training_alone(device: str) -> None:
    ours, _ = twins(attention(batch_first=True, dropout=0.5), WINDOW, device)
    x = torch.randn(BATCH, LENGTH, WIDTH, device=device)
    _, weights = ours(x, x, x, average_attn_weights=False)
    at_edges = weights[..., allowed(masks.window(LENGTH, 3), device)]
    share = (at_edges == 0).float().mean().item()
    # 864 independent draws: the share is within five standard deviations, 0.017 each.
    assert at_edges.numel() == 864
    assert abs(share - 0.5) < 0.085
    kept = ours.eval()(x, x, x, average_attn_weights=False)[1][..., allowed(masks.window(LENGTH, 3), device)]
    torch.testing.assert_close(at_edges, torch.where(at_edges == 0, 0.0, 2 * kept))
    assert torch.equal(ours(x, x, x)[0], ours(x, x, x)[0])


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


def call(*inputs: Any, pattern: Any = WINDOW, **options: Any) -> Any:
    return lambda: sparsify(attention(batch_first=True), pattern)(*inputs, **options)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (call(X, X, X[..., :5]), "value: has shape (3, 12, 5) (batch first); accepted: (length, 16), or of"),
        (
            call(X, X[:2], X[:2]),
            "key: the batches of query, key and value differ; accepted: one batch for all",
        ),
        (call(X, X, X[:, :5]), "value: has length 5; accepted: 12, as key"),
        (call(X[0, 0], X, X), "query: has shape (16,) (batch first); accepted: (length, 16)"),
        (
            call(X, X, X, attn_mask=torch.zeros(5, 5)),
            "attn_mask: has shape (5, 5); accepted: (12, 12) or (12, 12, 12)",
        ),
        (
            call(X, X, X, attn_mask=torch.zeros(LENGTH, LENGTH, dtype=torch.int64)),
            "attn_mask: got a tensor of dtype torch.int64; accepted: bool or a floating dtype",
        ),
        (
            call(X, X, X, key_padding_mask=torch.zeros(BATCH, 5)),
            "key_padding_mask: has shape (3, 5); accepted",
        ),
        (
            call(X, X, X, key_padding_mask=torch.zeros(2, LENGTH)),
            "key_padding_mask: has shape (2, 12); accepted: (12,) or (3, 12), a row a sequence",
        ),
        (
            call(X, X[:, :5], X[:, :5], pattern={"name": "bigbird", "seed": 0}),
            "pattern: bigbird(seed=0) is a function of one length, and this call has 12 queries and 5 keys; ",
        ),
        (
            call(X, X, X, pattern=masks.window(5, 1)),
            "pattern: SparseGraph 5 x 5 is of shape (5, 5); accepted here: (12, 12)",
        ),
        (call(X, X, X, pattern=lambda n: n), "pattern: got int; accepted: a SparseGraph or SparseOperand as"),
    ],
)
def test_bad_calls(call: Any, message: str) -> None:
    with pytest.raises((TypeError, ValueError, RuntimeError), match=re.escape(message)):
        call()


def test_a_model_of_doubles_is_refused() -> None:
    x = X.double()
    message = "query: got a tensor of dtype torch.float64; accepted: queries of dtype float32, float16 or bf"
    with pytest.raises(TypeError, match=re.escape(message)):
        sparsify(attention(batch_first=True).double(), WINDOW)(x, x, x)


def test_nested_tensors_are_refused() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        nested = torch.nested.nested_tensor([torch.zeros(3, WIDTH), torch.zeros(5, WIDTH)])
    with pytest.raises(ValueError, match=r"query: got a nested tensor; accepted in a sparse layer: padded"):
        sparsify(attention(batch_first=True), WINDOW)(nested, nested, nested)
