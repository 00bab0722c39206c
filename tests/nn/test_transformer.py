"""SparseAttention and encoders: torch's numbers, inside of torch's modules, and called as torch's."""

from __future__ import annotations

import copy
import re
import warnings
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import gnnsparse
from gnnsparse import SparseGraph, SparseOperand, masks
from gnnsparse.nn import SparseAttention, TransformerEncoder, TransformerEncoderLayer, edge_bias
from gnnsparse.nn.attention_edges import MOST_MASKS, _cached_masks, pattern_of_mask
from gnnsparse.testing import assert_accurate, in_float64
from tests.helpers import ROUNDING, assert_same_results, reference_layers
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
    same_parameters,
    tokens,
)


def operand(graph: SparseGraph, **options: Any) -> SparseOperand:
    return gnnsparse.prepare(graph, cache=False, **options)


def everything(length: int = LENGTH) -> SparseOperand:
    return operand(masks.full(length))


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("batch", [None, BATCH])
@pytest.mark.parametrize("fused", [True, False])
def test_attention_is_torchs(batch_first: bool, bias: bool, batch: int | None, fused: bool) -> None:
    ours, theirs = pair(pattern=None, own={"fused": fused}, bias=bias, batch_first=batch_first)

    def tokens(length: int) -> torch.Tensor:
        sizes = [length] if batch is None else [batch, length] if batch_first else [length, batch]
        return torch.randn(*sizes, WIDTH)

    def cross(layer: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return layer(q, k, v, need_weights=False)[0]

    assert_same_results(ours, theirs, cross, [tokens(LENGTH), tokens(7), tokens(7)], in_one=False, floor=None)
    graph = masks.union(masks.window(LENGTH, 2), masks.random(LENGTH, 3, seed=0))
    a = operand(graph, reorder="degree")
    for causal in (False, True):
        mask = ~(allowed(graph).tril() if causal else allowed(graph))

        def over(layer: Any, x: torch.Tensor, mask: Any = mask, causal: bool = causal) -> torch.Tensor:
            if layer is ours:
                return layer(x, x, x, a, None, causal)
            return layer(x, x, x, attn_mask=mask, need_weights=False)[0]

        assert_same_results(ours, theirs, over, [tokens(LENGTH)], in_one=False, floor=None)


@pytest.mark.parametrize(
    "sizes", [{}, {"batch_first": False}, {"kdim": 7, "vdim": 5}, {"kdim": 7}, {"bias": False}], ids=str
)
@pytest.mark.parametrize("averaged", [True, False])
def test_output_and_weights_are_torchs(device: str, sizes: dict[str, Any], averaged: bool) -> None:
    ours, theirs = pair(device, **sizes)
    options, mask = {"average_attn_weights": averaged}, blocked(device, LENGTH, KEYS)
    key, value = sizes.get("kdim", WIDTH), sizes.get("vdim", WIDTH)
    inputs = [tokens(device), tokens(device, KEYS, key), tokens(device, KEYS, value)]
    if not ours.batch_first:
        inputs = [x.transpose(0, 1).contiguous() for x in inputs]
    assert_same(
        (lambda q, k, v: flat(ours(q, k, v, **options)), ours),
        (lambda q, k, v: flat(theirs(q, k, v, attn_mask=mask, **options)), theirs),
        inputs,
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


@pytest.mark.parametrize(
    "kind",
    ["bool", "float", "of heads", "numbers", "learned", "hint", "hint and numbers", "hint and padding"],
)
@pytest.mark.parametrize("with_pattern", [True, False])
def test_masks_of_attention(device: str, kind: str, with_pattern: bool) -> None:
    """A mask is merged with the pattern; without one its own pairs are the pattern. It may get a gradient.

    A mask beside the causal hint is not dropped, where torch reads the one or the other.
    """
    ours, theirs = pair(device, WINDOW if with_pattern else None)
    window = blocked(device) if with_pattern else torch.zeros(LENGTH, LENGTH, dtype=torch.bool, device=device)
    if is_causal := "hint" in kind:
        window = window | torch.ones_like(window).triu(1)
    shape = (BATCH * HEADS, LENGTH, LENGTH) if kind == "of heads" else (LENGTH, LENGTH)
    mask = torch.rand(shape, device=device) < (0 if kind in ("hint", "hint and padding") else 0.3)
    mask.diagonal(dim1=-2, dim2=-1).fill_(False)
    merged = additive(mask | window)
    if kind == "float":
        mask = additive(mask)
    if kind in ("numbers", "learned", "hint and numbers"):
        numbers = torch.randn(shape, device=device)
        mask = numbers if kind == "learned" else numbers.masked_fill(mask, float("-inf"))
        merged = mask.masked_fill(window, float("-inf"))
    given = None if kind in ("hint", "hint and padding") else mask
    padded = padding(device) if kind == "hint and padding" else None
    infinite = None if padded is None else additive(padded)

    def sparse(x: torch.Tensor, *learned: torch.Tensor) -> torch.Tensor:
        return flat(ours(x, x, x, padded, True, learned[0] if learned else given, is_causal=is_causal))

    def dense(x: torch.Tensor, *learned: torch.Tensor) -> torch.Tensor:
        mask = learned[0].masked_fill(window, float("-inf")) if learned else merged.to(x)
        return flat(theirs(x, x, x, None if infinite is None else infinite.to(x), attn_mask=mask))

    assert_same((sparse, ours), (dense, theirs), [tokens(device), *([mask] if kind == "learned" else [])])


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


def repeated(parameter: torch.Tensor, kv_heads: int) -> torch.Tensor:
    """A parameter of all projections, with a head of keys and values for each of queries."""
    q, *others = parameter.split([WIDTH, *[kv_heads * WIDTH // HEADS] * 2])
    heads = (x.unflatten(0, (kv_heads, -1)).repeat_interleave(HEADS // kv_heads, 0) for x in others)
    return torch.cat([q, *(x.flatten(0, 1) for x in heads)])


@pytest.mark.parametrize("kv_heads", [1, 2])
@pytest.mark.parametrize("kind", ["plain", "masks", "mask of heads"])
def test_grouped_query_heads(device: str, kv_heads: int, kind: str) -> None:
    ours = SparseAttention(
        WIDTH, HEADS, batch_first=True, num_kv_heads=kv_heads, pattern=WINDOW, device=device
    )
    for parameter in ours.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    assert ours.in_proj_weight.shape == (WIDTH + 2 * kv_heads * 4, WIDTH)
    twin, mask = copy.deepcopy(ours), additive(blocked(device))
    theirs = torch.nn.MultiheadAttention(WIDTH, HEADS, batch_first=True, device=device)
    options: dict[str, Any] = {}
    if kind != "plain":
        numbers = torch.randn(BATCH * HEADS if kind == "mask of heads" else 1, LENGTH, LENGTH, device=device)
        numbers = numbers if kind == "mask of heads" else numbers[0]
        options = {"attn_mask": numbers, "key_padding_mask": padding(device)}
        mask = mask + numbers
    infinite = additive(padding(device))

    def dense(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        given = {n: repeated(p, kv_heads) if "in_proj" in n else p for n, p in twin.named_parameters()}
        masks = {"attn_mask": mask.to(q), "key_padding_mask": infinite.to(q) if options else None}
        by_head = {"average_attn_weights": False, **masks}
        return flat(torch.func.functional_call(theirs, given, (q, k, k), by_head))

    assert_same(
        (lambda q, k: flat(ours(q, k, k, average_attn_weights=False, **options)), ours),
        (dense, twin),
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
    assert first[1]
    assert pattern_of_mask(mask, fp32) is first
    assert pattern_of_mask(mask, gnnsparse.Precision.BF16) is not first
    mask[0, 0] = ~mask[0, 0]
    other = pattern_of_mask(mask, fp32)
    assert abs(other[0].nnz - first[0].nnz) == 1
    others = [torch.zeros(length, length, device=device) for length in range(2, 4 + MOST_MASKS)]
    for one in others:
        pattern_of_mask(one, fp32)
    assert len(_cached_masks) == MOST_MASKS
    with torch.inference_mode():
        unknown = torch.zeros(LENGTH, LENGTH, device=device)
        assert pattern_of_mask(unknown, fp32)[0].nnz == LENGTH**2


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


@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("training", [True, False])
def test_our_attention_in_torchs_encoder(device: str, norm_first: bool, training: bool) -> None:
    """In evaluation without gradients torch's fast paths know no pattern, and leave padding out."""
    layer = torch.nn.TransformerEncoderLayer(
        WIDTH, HEADS, 24, dropout=0.0, batch_first=True, norm_first=norm_first, device=device
    )
    theirs = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=not norm_first)
    ours = copy.deepcopy(theirs)
    for mine, its in zip(ours.layers, theirs.layers, strict=True):
        mine.self_attn, its.self_attn = pair(device)
    for model in (ours, theirs):
        model.train(training)
    x, mask, padded = tokens(device), blocked(device), padding(device)
    assert_same((ours, ours), (lambda x: theirs(x, mask), theirs), [x])
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # nested tensors of torch's older layout are a prototype, torch says
        assert_near(ours(x), theirs(x, mask))
        got = ours(x, src_key_padding_mask=padded)
    want = ours(x, src_key_padding_mask=padded)
    assert_near(got[~padded], want[~padded])
    assert bool(got[padded].any()) == (norm_first or training)


def encoders(device: str = "cpu", pattern: Any = WINDOW, **options: Any) -> tuple[Any, Any, Any]:
    """Our encoder, torch's with our layers, and torch's own, with equal random parameters."""
    options = {"dropout": 0.0, "batch_first": True, "device": device, **options}
    norm = torch.nn.LayerNorm(WIDTH, device=device)
    theirs = torch.nn.TransformerEncoder(
        torch.nn.TransformerEncoderLayer(WIDTH, HEADS, 24, **options), 2, norm, enable_nested_tensor=False
    )
    layer = TransformerEncoderLayer(WIDTH, HEADS, 24, pattern=pattern, **options)
    ours = TransformerEncoder(layer, 2, copy.deepcopy(norm))
    mixed = torch.nn.TransformerEncoder(layer, 2, copy.deepcopy(norm), enable_nested_tensor=False)
    same_parameters(ours, theirs)
    mixed.load_state_dict(theirs.state_dict())
    return ours, mixed, theirs


@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(
    "options",
    [
        {"activation": torch.nn.functional.silu},
        {"activation": "gelu", "layer_norm_eps": 1e-2},
        {"bias": False},
    ],
    ids=["function", "eps", "no bias"],
)
def test_torchs_encoder_takes_our_layer(
    device: str, norm_first: bool, batch_first: bool, training: bool, options: dict[str, Any]
) -> None:
    ours, mixed, theirs = encoders(device, norm_first=norm_first, batch_first=batch_first, **options)
    x = tokens(device) if batch_first else tokens(device).transpose(0, 1).contiguous()
    mask = blocked(device)
    for model in (ours, mixed):
        model.train(training)
        assert_same((model, model), (lambda x: theirs(x, mask), theirs), [x])


@pytest.mark.parametrize("with_pattern", [True, False])
@pytest.mark.parametrize("kind", ["bool", "float", "causal", "hint"])
def test_masks_of_encoders(device: str, with_pattern: bool, kind: str) -> None:
    ours, mixed, theirs = encoders(device, WINDOW if with_pattern else None)
    mask = torch.rand(LENGTH, LENGTH, device=device) < 0.3
    mask.fill_diagonal_(False)
    mask[:, 0] = mask[-3:] = False  # padded queries keep a key
    if kind in ("causal", "hint"):
        mask = torch.ones_like(mask).triu(1)
    merged = additive(mask | blocked(device) if with_pattern else mask)
    given, hint = {"bool": (mask, None), "hint": (None, True)}.get(kind, (additive(mask), None))
    padded = infinite = None if kind in ("causal", "hint") else additive(padding(device))
    if kind == "bool":
        padded = padding(device)

    def dense(x: torch.Tensor) -> torch.Tensor:
        return theirs(x, merged.to(x), None if infinite is None else infinite.to(x))

    for model in (ours, mixed):
        for call in (
            lambda x, model=model: model(x, mask=given, src_key_padding_mask=padded, is_causal=hint),
            lambda x, model=model: model(x, given, padded, hint),
        ):
            assert_same((call, model), (dense, theirs), [tokens(device)])


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
    assert_near(ours(x, None, padded), theirs.norm(want))


def test_options_and_own_parameters_of_layers_in_an_encoder() -> None:
    options: dict[str, Any] = {"num_kv_heads": 2, "fused": False, "pattern": WINDOW}
    layer = TransformerEncoderLayer(WIDTH, HEADS, 24, batch_first=True, **options)
    assert layer.self_attn.fused is False
    assert layer.self_attn.in_proj_weight.shape == (WIDTH + 2 * WIDTH // 2, WIDTH)
    encoder = TransformerEncoder(layer, 2)
    assert encoder(tokens()).shape == (BATCH, LENGTH, WIDTH)
    first, second = encoder.layers
    assert torch.equal(first.linear1.weight, second.linear1.weight)
    encoder.reset_parameters()
    assert not torch.equal(first.linear1.weight, second.linear1.weight)
    assert not torch.equal(first.self_attn.in_proj_weight, second.self_attn.in_proj_weight)


def test_what_padding_does_in_an_encoder() -> None:
    """What is padded does not matter, and a sequence of padding alone gives no NaN."""
    ours, _, _ = encoders()
    a, padded = operand(masks.window(LENGTH, 3)), torch.zeros(BATCH, LENGTH, dtype=torch.bool)
    padded[:, -4:] = True
    x = torch.randn(BATCH, LENGTH, WIDTH, requires_grad=True)
    other = x.detach().clone()
    other[padded] = torch.randn(int(padded.sum()), WIDTH)
    assert torch.equal(ours(x, a, padded)[:, :-4], ours(other, a, padded)[:, :-4])
    padded[0] = True
    y = ours(x, a, padded)
    y.square().sum().backward()
    assert torch.isfinite(y).all()
    assert torch.isfinite(x.grad).all()
    assert all(torch.isfinite(p.grad).all() for p in ours.parameters())


def test_edge_bias() -> None:
    a = operand(masks.random(LENGTH, 4, seed=1), reorder="degree")
    padded = torch.rand(BATCH, LENGTH) < 0.3
    bias = edge_bias(a, padded)
    assert bias.shape == (BATCH, 1, a.nnz)
    assert torch.equal(bias[:, 0] == float("-inf"), padded[:, a.indices()[1]])
    assert torch.equal(bias[:, 0] == 0, ~padded[:, a.indices()[1]])
    assert edge_bias(a, padded[0]).shape == (1, a.nnz)


def test_a_learnable_bias_gets_its_gradient() -> None:
    layer = TransformerEncoderLayer(WIDTH, HEADS, 24, dropout=0.0, batch_first=True)
    a, x = operand(masks.window(LENGTH, 2)), torch.randn(BATCH, LENGTH, WIDTH)
    bias = torch.zeros(HEADS, a.nnz, requires_grad=True)
    y = layer(x, a, bias=bias)
    assert torch.equal(y, layer(x, a))
    y.square().sum().backward()
    assert float(bias.grad.abs().max()) > 0


def test_dropout_acts_in_training_alone() -> None:
    layer = TransformerEncoderLayer(WIDTH, HEADS, 24, dropout=0.5, batch_first=True)
    a, x = operand(masks.window(LENGTH, 2)), torch.randn(BATCH, LENGTH, WIDTH)
    assert not torch.equal(layer(x, a), layer(x, a))
    torch.manual_seed(3)
    first = layer(x, a)
    torch.manual_seed(3)
    assert torch.equal(layer(x, a), first)
    layer.eval()
    assert torch.equal(layer(x, a), layer(x, a))


@pytest.mark.parametrize("precision", ["fp32", "tf32", "fp16", "bf16"])
def test_precisions_on_a_device(device: str, precision: str) -> None:
    """A step on the device, beside the reference implementation in the precision and in float64."""
    options: dict[str, Any] = {"dropout": 0.0, "batch_first": True}
    layer = TransformerEncoderLayer(64, 2, 64, **options)
    graph = masks.bigbird(96, 8, 3, 1, 1, seed=0)
    x = torch.randn(2, 96, 64)
    a = operand(graph, precision=precision)
    with reference_layers():
        plain = layer(x, a)
        with in_float64(layer):
            exact = layer(x.double(), a)
    moved = copy.deepcopy(layer).to(device)
    got = moved(x.to(device), a.to(device))
    got.square().sum().backward()
    # On a GPU heads of 32 features are multiplied as sums of two tf32 numbers.
    floor = 8 * ROUNDING["fp32"] if (device, precision) == ("cuda", "fp32") else None
    assert_accurate(got, plain, exact, floor=floor)
    assert all(torch.isfinite(p.grad).all() for p in moved.parameters())


def call(*arguments: Any, pattern: Any = WINDOW, own: Any = None, **options: Any) -> Any:
    layer = SparseAttention(WIDTH, HEADS, batch_first=True, pattern=pattern, **(own or {}))
    return lambda: layer(*(arguments or (X, X, X)), **options)


def make(**options: Any) -> Any:
    return lambda: SparseAttention(WIDTH, HEADS, **options)


def layer(**options: Any) -> TransformerEncoderLayer:
    return TransformerEncoderLayer(WIDTH, HEADS, 24, **{"batch_first": True, "pattern": WINDOW, **options})


X = torch.zeros(BATCH, LENGTH, WIDTH)
NESTED = torch.nested.nested_tensor([X[0], X[0, :5]], layout=torch.jagged)
MASK, LAYER = torch.zeros(LENGTH, LENGTH), layer()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            call(*[X.double()] * 3, own={"dtype": torch.float64}),
            "query: got a tensor of dtype torch.float64; accepted: queries of",
        ),
        (
            call(X, *[X[:, :5]] * 2, pattern={"name": "bigbird", "seed": 0}),
            "pattern: bigbird(seed=0) is a function of one length, and this call has 12 ",
        ),
        (call(pattern=lambda n: n), "pattern: got int; accepted: a SparseGraph or SparseOperand as"),
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
        (call(NESTED, X, X), "key: got a tensor of dtype torch.float32; accepted: a nested tensor"),
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
        (call(*[NESTED] * 3, need_weights=True), "need_weights: was given with nested tensors; accepted"),
        (call(*[NESTED] * 3, key_padding_mask=padding()), "key_padding_mask: was given with nested"),
        (lambda: SparseAttention(10, 3), "num_heads: got 3; accepted: a divisor of embed_dim, 10"),
        (lambda: SparseAttention(8, 2, dropout=1.0), "dropout: got 1.0; accepted: a number in [0, 1)"),
        (lambda: SparseAttention(8, 2)(X, X, X, masks.window(4, 1)), "pattern: got SparseGraph; accepted: a"),
        (
            lambda: SparseAttention(WIDTH, 2, batch_first=True)(X, X, X, everything(5)),
            "query: has shape (3, 12, 16); accepted: (length, 16) or (batch, length, 16), length 5 here",
        ),
        (
            lambda: SparseAttention(WIDTH, 2, batch_first=True)(X, X[:2], X[:2], everything()),
            "key: the batches differ: [(3,), (2,), (2,)]",
        ),
        (lambda: edge_bias(everything(), X), "key_padding_mask: has shape (3, 12, 16); accepted: a tensor"),
        (lambda: edge_bias(everything(), X[..., 0].long()), "key_padding_mask: got a tensor of dtype torch."),
        (lambda: layer(activation="swish"), "activation: got 'swish'; accepted: relu"),
        (lambda: TransformerEncoder(torch.nn.Linear(2, 2), 2), "encoder_layer: got Linear; accepted: a gnn"),
        (lambda: TransformerEncoder(LAYER, 0), "num_layers: got 0"),
        (lambda: LAYER(X, masks.window(LENGTH, 1)), "pattern: got SparseGraph; accepted: a SparseOperand"),
        (
            lambda: LAYER(X, MASK, src_mask=MASK),
            "src_mask: got a tensor of dtype torch.float32; accepted: one",
        ),
        (lambda: LAYER(X[..., :3]), "src: has shape (3, 12, 3); accepted: a floating-point tensor"),
        (lambda: LAYER(X[0, 0]), "src: has shape (16,); accepted: two or three dimensions"),
        (lambda: LAYER(NESTED, MASK), "attn_mask: was given with nested tensors; accepted: the layer's own"),
        (lambda: LAYER(X, is_causal=1), "is_causal: got int; accepted: True or False"),
        (
            lambda: TransformerEncoder(LAYER, 1)(X, MASK, mask=MASK),
            "mask: got a tensor of dtype torch.float32; accepted: one mask",
        ),
    ],
)  # fmt: skip
def test_bad_arguments(call: Any, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=re.escape(message)):
        call()
