"""SparseAttention called as torch.nn.MultiheadAttention: masks, weights, causal hints, in torch's modules."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import gnnsparse
from gnnsparse import masks
from gnnsparse.nn import SparseAttention
from gnnsparse.nn.attention_edges import MOST_MASKS, _cached_masks, pattern_of_mask
from gnnsparse.testing import with_gradients
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
    flat,
    padding,
    pair,
    tokens,
)


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("averaged", [True, False])
def test_output_and_weights_are_torchs(device: str, batch_first: bool, averaged: bool) -> None:
    ours, theirs = pair(device, batch_first=batch_first)
    x = tokens(device) if batch_first else tokens(device).transpose(0, 1).contiguous()
    options = {"average_attn_weights": averaged}
    assert_same(
        (lambda x: flat(ours(x, x, x, **options)), ours),
        (lambda x: flat(theirs(x, x, x, attn_mask=blocked(device), **options)), theirs),
        [x],
    )


def test_a_call_by_position_has_torchs_order() -> None:
    ours, theirs = pair()
    x, mask = tokens(), torch.rand(LENGTH, LENGTH) < 0.3
    mask.fill_diagonal_(False)
    infinite = additive(padding())
    got = ours(x, x, x, padding(), True, mask, False)
    want = theirs(x, x, x, infinite, True, additive(mask | blocked()), False)
    assert got[1].shape == want[1].shape == (BATCH, HEADS, LENGTH, LENGTH)
    rows = torch.isfinite(want[0])  # torch gives NaN to queries without keys
    assert_near(got[0][rows], want[0][rows])
    assert ours(x, x, x, None, False)[1] is None


def test_a_pattern_by_position_gives_the_output_alone() -> None:
    """The former call; the operand replaces the layer's own pattern."""
    ours, _ = pair()
    x = tokens()
    a = gnnsparse.prepare(masks.window(LENGTH, 1), cache=False)
    out = ours(x, x, x, a, padding(), True)
    assert torch.equal(out, ours(x, x, x, pattern=a, key_padding_mask=padding(), is_causal=True))
    pair_of = ours(x, x, x, pattern=a, key_padding_mask=padding(), is_causal=True, need_weights=False)
    assert torch.equal(pair_of[0], out)
    assert pair_of[1] is None
    _, weights = ours(x, x, x, a, need_weights=True)
    assert torch.equal(weights[0] != 0, allowed(masks.window(LENGTH, 1)))


@pytest.mark.parametrize("kind", ["bool", "float", "of heads", "numbers"])
@pytest.mark.parametrize("with_pattern", [True, False])
def test_masks(device: str, kind: str, with_pattern: bool) -> None:
    """A mask is merged with the pattern; without one its own pairs are the pattern."""
    ours, theirs = pair(device, WINDOW if with_pattern else None)
    window = blocked(device) if with_pattern else torch.zeros(LENGTH, LENGTH, dtype=torch.bool, device=device)
    shape = (BATCH * HEADS, LENGTH, LENGTH) if kind == "of heads" else (LENGTH, LENGTH)
    mask = torch.rand(shape, device=device) < 0.3
    mask.diagonal(dim1=-2, dim2=-1).fill_(False)
    merged = additive(mask | window)
    if kind == "float":
        mask = additive(mask)
    if kind == "numbers":
        numbers = torch.randn(shape, device=device)
        mask = numbers.masked_fill(mask, float("-inf"))
        merged = mask.masked_fill(window, float("-inf"))
    assert_same(
        (lambda x: flat(ours(x, x, x, attn_mask=mask)), ours),
        (lambda x: flat(theirs(x, x, x, attn_mask=merged.to(x))), theirs),
        [tokens(device)],
    )


def test_padding_and_a_causal_hint(device: str) -> None:
    ours, theirs = pair(device)
    later = torch.ones(LENGTH, LENGTH, dtype=torch.bool, device=device).triu(1)
    merged, infinite = additive(later | blocked(device)), additive(padding(device))
    merged[-3:, 0] = 0  # torch gives NaN to queries without keys; these rows are compared by none
    got, want = (
        lambda x: ours(x, x, x, key_padding_mask=padding(device), need_weights=False, is_causal=True)[0],
        lambda x: theirs(x, x, x, key_padding_mask=infinite.to(x), attn_mask=merged.to(x))[0],
    )
    assert_same((lambda x: got(x)[:, :-3], ours), (lambda x: want(x)[:, :-3], theirs), [tokens(device)])


def test_a_hint_and_a_mask_both_count(device: str) -> None:
    """torch reads the one or the other; a mask that says more than the hint is not dropped."""
    x, numbers = tokens(device), torch.randn(LENGTH, LENGTH, device=device)
    later = torch.ones(LENGTH, LENGTH, dtype=torch.bool, device=device).triu(1)
    for pattern in (WINDOW, None):
        ours, theirs = pair(device, pattern)
        window = blocked(device) if pattern else torch.zeros_like(later)
        merged = numbers.masked_fill(later | window, float("-inf"))
        assert_same(
            (lambda x, ours=ours: ours(x, x, x, attn_mask=numbers, is_causal=True)[0], ours),
            (lambda x, t=theirs, m=merged: t(x, x, x, attn_mask=m.to(x))[0], theirs),
            [x],
        )


def test_a_hint_alone_is_a_causal_pattern() -> None:
    ours, theirs = pair(pattern=None)
    later = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)
    x = tokens()
    got, want = ours(x, x, x, is_causal=True), theirs(x, x, x, attn_mask=later)
    assert_near(got, want)
    assert_near(ours(x, x, x), theirs(x, x, x))


@pytest.mark.parametrize("with_pattern", [True, False])
def test_a_learnable_mask_gets_its_gradient(device: str, with_pattern: bool) -> None:
    ours, theirs = pair(device, WINDOW if with_pattern else None)
    window = blocked(device) if with_pattern else torch.zeros(LENGTH, LENGTH, dtype=torch.bool, device=device)
    assert_same(
        (lambda x, mask: flat(ours(x, x, x, attn_mask=mask)), ours),
        (lambda x, mask: flat(theirs(x, x, x, attn_mask=mask.masked_fill(window, float("-inf")))), theirs),
        [tokens(device), torch.randn(LENGTH, LENGTH, device=device)],
    )


@pytest.mark.filterwarnings("ignore:Sparse invariant checks:UserWarning")
@pytest.mark.parametrize("averaged", [True, False])
@pytest.mark.parametrize("batch", [True, False])
def test_sparse_weights(device: str, averaged: bool, batch: bool) -> None:
    ours, _ = pair(device)
    x = tokens(device) if batch else tokens(device)[0]
    options = {"average_attn_weights": averaged}
    out, dense = ours(x, x, x, **options)
    same, sparse = ours(x, x, x, need_weights="sparse", **options)
    assert sparse.layout == torch.sparse_coo
    assert torch.equal(sparse.to_dense(), dense)
    assert torch.equal(same, out)
    assert sparse._nnz() == int((~blocked()).sum()) * dense.numel() // LENGTH**2
    probe = torch.randn_like(dense)
    grads = [
        torch.autograd.grad((w.to_dense() * probe).sum(), ours.in_proj_weight)[0] for w in (sparse, dense)
    ]
    assert_near(*grads)


@pytest.mark.parametrize("sizes", [{}, {"kdim": 7, "vdim": 5}, {"kdim": 7}, {"bias": False}], ids=str)
def test_cross_attention(device: str, sizes: dict[str, Any]) -> None:
    ours, theirs = pair(device, **sizes)
    mask = blocked(device, LENGTH, KEYS)
    key, value = sizes.get("kdim", WIDTH), sizes.get("vdim", WIDTH)
    assert_same(
        (lambda q, k, v: flat(ours(q, k, v)), ours),
        (lambda q, k, v: flat(theirs(q, k, v, attn_mask=mask)), theirs),
        [tokens(device), tokens(device, KEYS, key), tokens(device, KEYS, value)],
    )


class Grouped(torch.nn.Module):
    """torch's layer with the parameters of one with fewer heads of keys, each of which is repeated."""

    def __init__(self, ours: SparseAttention) -> None:
        super().__init__()
        for name, parameter in ours.named_parameters():
            self.register_parameter(name.replace(".", "_"), torch.nn.Parameter(parameter.detach().clone()))
        self.sizes = WIDTH, *[ours.num_kv_heads * ours.head_dim] * 2
        self.groups = ours.num_heads // ours.num_kv_heads

    def repeated(self, x: torch.Tensor) -> torch.Tensor:
        parts = x.split(self.sizes)
        heads = [p.unflatten(0, (-1, WIDTH // HEADS)).repeat_interleave(self.groups, 0) for p in parts[1:]]
        return torch.cat([parts[0], *(h.flatten(0, 1) for h in heads)])

    def forward(self, q: torch.Tensor, k: torch.Tensor, **options: Any) -> Any:
        turned = (x.transpose(0, 1) for x in (q, k, k))
        out, weights = torch.nn.functional.multi_head_attention_forward(
            *turned, WIDTH, HEADS, self.repeated(self.in_proj_weight), self.repeated(self.in_proj_bias), None,
            None, False, 0.0, self.out_proj_weight, self.out_proj_bias, **options,
        )  # fmt: skip
        return out.transpose(0, 1), weights


@pytest.mark.parametrize("kv_heads", [1, 2])
@pytest.mark.parametrize("kind", ["plain", "masks", "mask of heads"])
def test_grouped_query_heads(device: str, kv_heads: int, kind: str) -> None:
    ours = SparseAttention(
        WIDTH, HEADS, batch_first=True, num_kv_heads=kv_heads, pattern=WINDOW, device=device
    )
    for parameter in ours.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    assert ours.in_proj_weight.shape == (WIDTH + 2 * kv_heads * 4, WIDTH)
    theirs, mask = Grouped(ours), additive(blocked(device))
    options: dict[str, Any] = {}
    if kind != "plain":
        numbers = torch.randn(BATCH * HEADS if kind == "mask of heads" else 1, LENGTH, LENGTH, device=device)
        numbers = numbers if kind == "mask of heads" else numbers[0]
        options = {"attn_mask": numbers, "key_padding_mask": padding(device)}
        mask = mask + numbers
    infinite = additive(padding(device))

    def dense(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        padded = infinite.to(q) if options else None
        return flat(theirs(q, k, attn_mask=mask.to(q), key_padding_mask=padded, average_attn_weights=False))

    assert_same(
        (lambda q, k: flat(ours(q, k, k, average_attn_weights=False, **options)), ours),
        (dense, theirs),
        [tokens(device), tokens(device)],
    )


@given(
    rows=st.integers(1, 16), cols=st.integers(1, 16), density=st.floats(0, 1), seed=st.integers(0, 2**16),
    heads=st.sampled_from([(1, 1), (2, 1), (8, 8), (8, 2)]), is_float=st.booleans(), per_head=st.booleans(),
)  # fmt: skip
def test_any_mask_without_a_pattern(
    rows: int, cols: int, density: float, seed: int, heads: tuple[int, int], is_float: bool, per_head: bool
) -> None:
    """Against the layer with all pairs as its pattern, to whose scores the mask is added."""
    torch.manual_seed(seed)
    mask = torch.rand(*([2 * heads[0]] if per_head else []), rows, cols) >= density
    given = torch.randn(mask.shape).masked_fill(mask, float("-inf")) if is_float else mask
    options: dict[str, Any] = {"batch_first": True, "num_kv_heads": heads[1]}
    layer = SparseAttention(WIDTH, heads[0], **options)
    everything = SparseAttention(WIDTH, heads[0], pattern="full", **options)
    everything.load_state_dict(layer.state_dict())
    q, k = torch.randn(2, rows, WIDTH), torch.randn(2, cols, WIDTH)
    got, want = (flat(x(q, k, k, attn_mask=given)) for x in (layer, everything))
    assert_near(got, want)
    assert torch.isfinite(got).all()


def test_the_pattern_of_a_mask_is_made_once_while_it_is_the_same(device: str) -> None:
    mask = torch.rand(LENGTH, LENGTH, device=device) < 0.5
    fp32 = gnnsparse.Precision.FP32
    first = pattern_of_mask(mask, fp32)
    assert first.is_whole
    assert pattern_of_mask(mask, fp32) is first
    assert pattern_of_mask(mask, gnnsparse.Precision.BF16) is not first
    mask[0, 0] = ~mask[0, 0]
    other = pattern_of_mask(mask, fp32)
    assert abs(other.operand.nnz - first.operand.nnz) == 1
    others = [torch.zeros(length, length, device=device) for length in range(2, 4 + MOST_MASKS)]
    for one in others:
        pattern_of_mask(one, fp32)
    assert len(_cached_masks) == MOST_MASKS
    with torch.inference_mode():
        unknown = torch.zeros(LENGTH, LENGTH, device=device)
        assert pattern_of_mask(unknown, fp32).operand.nnz == LENGTH**2


def test_matrices_that_do_not_fit_into_memory_are_refused() -> None:
    """Without an allocation, which the operating system would answer by ending the process."""
    ours = SparseAttention(4, 1, batch_first=True, pattern="window", pattern_options={"radius": 0})
    x = torch.zeros(1, 400_000, 4)
    with pytest.raises(MemoryError, match=r"need_weights: the weights of all pairs \(1 x 400000 x 400000\)"):
        ours(x, x, x)
    assert ours(x, x, x, need_weights="sparse")[1]._nnz() == 400_000
    with pytest.raises(MemoryError, match="length: a pattern of 160000000000 edges needs"):
        SparseAttention(4, 1, batch_first=True)(x, x, x, need_weights=False)


def test_transforms_of_torch_func() -> None:
    """Gradients and batches of torch.func, with a pattern and with that of a mask."""
    mask = torch.randn(LENGTH, LENGTH)
    mask[0, 5] = float("-inf")
    for pattern in (WINDOW, None):
        ours, _ = pair(pattern=pattern)
        x = tokens()

        def loss(x: torch.Tensor, mask: torch.Tensor, ours: Any = ours) -> torch.Tensor:
            return ours(x, x, x, attn_mask=mask, need_weights=False)[0].square().sum()

        got = torch.func.grad(loss, argnums=(0, 1))(x, mask)
        inputs = [x.clone().requires_grad_(), mask.clone().requires_grad_()]
        want = torch.autograd.grad(loss(*inputs), inputs)
        finite = torch.isfinite(mask)
        assert_near(got[0], want[0])
        assert_near(got[1][finite], want[1][finite])
        each = torch.func.vmap(lambda x, o=ours: o(x, x, x, attn_mask=mask, need_weights=False)[0])(x)
        assert_near(each, ours(x, x, x, attn_mask=mask, need_weights=False)[0])


def test_two_runs_have_the_same_bits(device: str) -> None:
    ours = SparseAttention(WIDTH, HEADS, batch_first=True, num_kv_heads=2, pattern=WINDOW, device=device)
    x = tokens(device)
    first, second = (with_gradients(lambda x: flat(ours(x, x, x)), [x], ours.parameters()) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


X = torch.zeros(BATCH, LENGTH, WIDTH)


def call(*arguments: Any, pattern: Any = WINDOW, own: Any = None, **options: Any) -> Any:
    layer = SparseAttention(WIDTH, HEADS, batch_first=True, pattern=pattern, **(own or {}))
    return lambda: layer(*(arguments or (X, X, X)), **options)


def make(**options: Any) -> Any:
    return lambda: SparseAttention(WIDTH, HEADS, **options)


def nested() -> torch.Tensor:
    return torch.nested.nested_tensor([X[0], X[0, :5]], layout=torch.jagged)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (make(num_kv_heads=3), "num_kv_heads: got 3; accepted: a divisor of num_heads, 4"),
        (make(kdim=0), "kdim: got 0; accepted: a positive integer"),
        (make(add_bias_kv=True), "add_bias_kv: got True, which adds a key that no pattern has; accepted"),
        (make(add_zero_attn=1), "add_zero_attn: got int; accepted: True or False"),
        (make(pattern="windows"), "pattern.name: got 'windows'; accepted: bigbird"),
        (make(pattern="window"), "pattern: missing a required argument: 'radius'; accepted for 'window'"),
        (make(pattern="causal", pattern_options={"radius": 1}), "pattern: got an unexpected keyword"),
        (make(pattern_options={"radius": 1}), "pattern_options: go with the name of a pattern"),
        (make(pattern=WINDOW, pattern_options={"radius": 1}), "pattern_options: got {'radius': 1}; accepted"),
        (make(pattern="window", pattern_options=3), "pattern_options: got int; accepted: a mapping of the"),
        (make(pattern=torch.nn.Linear(1, 1)), "pattern: got Linear; accepted: a function of the length"),
        (make(precision="fp7"), "precision: got 'fp7'; accepted: fp32"),
        (call(attn_mask=torch.zeros(5, 5)), "attn_mask: has shape (5, 5); accepted: (12, 12) or (12, "),
        (call(attn_mask=torch.zeros(LENGTH, LENGTH).long()), "attn_mask: got a tensor of dtype torch.int64"),
        (call(attn_mask=[1]), "attn_mask: got list; accepted: a dense tensor of bool or of a floating dtype"),
        (call(need_weights="dense"), "need_weights: got 'dense'; accepted: True, False, 'sparse'"),
        (call(need_weights=1), "need_weights: got int; accepted: True or False"),
        (call(is_causal=None), "is_causal: got NoneType; accepted: True or False"),
        (call(X, X, X[:, :5]), "value: has shape (3, 5, 16); accepted: (length, 16) or (batch, length, 16)"),
        (call(X, X[..., :5], X), "key: has shape (3, 12, 5); accepted: a floating-point tensor [..., 16]"),
        (call(X[0, 0], X, X), "query: has shape (16,); accepted: (length, 16) or (batch, length, 16)"),
        (call(X, X, X, None, False, None, True, False, 3), "forward: got tuple; accepted: query, key"),
        (
            call(X, X, X, padding(), key_padding_mask=padding()),
            "key_padding_mask: got a tensor of dtype torch.bool; accepted: one value; this argument was",
        ),
        (call(nested(), X, X), "key: got a tensor of dtype torch.float32; accepted: a nested tensor"),
        (
            call(X, X, X, key_padding_mask=padding()[:2]),
            "key_padding_mask: has shape (2, 12); accepted: (12,) or (3, 12), a row a sequence",
        ),
        (
            call(X[0], X[0], X[0], key_padding_mask=padding()),
            "key_padding_mask: has shape (3, 12); accepted: (12,), a row a sequence",
        ),
        (
            call(X, X, X, key_padding_mask=padding(), bias=torch.zeros(2, 1, 5)),
            "bias: has shape (2, 1, 5); accepted: (",
        ),
        (call(*[nested()] * 3, need_weights=True), "need_weights: was given with nested tensors; accepted"),
        (call(*[nested()] * 3, key_padding_mask=padding()), "key_padding_mask: was given with nested"),
    ],
)  # fmt: skip
def test_bad_arguments(call: Any, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=re.escape(message)):
        call()
