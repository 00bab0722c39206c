"""Patterns that layers have by name: lengths, nested tensors, what is kept, copies, torch.compile."""

from __future__ import annotations

import copy
import functools
import gc
import weakref
from typing import Any
from unittest import mock

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import gnnsparse
from gnnsparse import SparseGraph, masks
from gnnsparse.nn import SparseAttention, TransformerEncoder, TransformerEncoderLayer
from gnnsparse.patterns.operands import MOST_OPERANDS
from gnnsparse.patterns.read import NAMES
from gnnsparse.testing import assert_all_accurate, with_gradients
from tests.helpers import capture, copies_of
from tests.nn.sparsified import BATCH, HEADS, LENGTH, WIDTH, WINDOW, allowed, assert_near, pair, tokens
from tests.together import run_together

#: Options with which each name makes a pattern of LENGTH tokens.
OPTIONS: dict[str, dict[str, Any]] = {
    "bigbird": {"block_size": 2, "seed": 0},
    "causal": {},
    "dilated": {"segment": 5, "dilation": 2},
    "expander": {"degree": 4, "seed": 0},
    "full": {},
    "global_tokens": {"tokens": 2},
    "random": {"per_row": 3, "seed": 0},
    "sliding_window": {"radius": 2, "dilation": 2},
    "vector_wise": {"sparsity": 0.5, "vector": 4, "seed": 0},
    "window": {"radius": 2},
}


def attention(pattern: Any, **options: Any) -> SparseAttention:
    return SparseAttention(WIDTH, HEADS, batch_first=True, pattern=pattern, **options)


def pairs_of(layer: SparseAttention, length: int = LENGTH, **options: Any) -> torch.Tensor:
    """The pairs that have a weight, bool [length, length]."""
    x = torch.randn(1, length, WIDTH)
    return layer(x, x, x, **options)[1][0] != 0


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("is_causal", [False, True])
def test_every_name(name: str, is_causal: bool) -> None:
    assert set(OPTIONS) == set(NAMES)
    graph = NAMES[name](LENGTH, **OPTIONS[name])
    expected = allowed(graph).tril() if is_causal else allowed(graph)
    for pattern, options in ((name, OPTIONS[name]), ({"name": name, **OPTIONS[name]}, None)):
        layer = attention(pattern, pattern_options=options)
        assert torch.equal(pairs_of(layer, is_causal=is_causal), expected)
    assert name in repr(layer)


def longformer(length: int) -> SparseGraph:
    return masks.union(masks.window(length, 2), masks.global_tokens(length, 1))


@pytest.mark.parametrize(
    "pattern",
    [
        longformer,
        [{"name": "window", "radius": 2}, {"name": "global_tokens", "tokens": [0]}],
        [functools.partial(masks.window, radius=2), {"name": "global_tokens", "tokens": 1}],
        longformer(LENGTH),
        gnnsparse.prepare(longformer(LENGTH), cache=False),
        lambda length: gnnsparse.prepare(longformer(length), cache=False),
    ],
    ids=["function", "list", "mixed", "graph", "operand", "function of operands"],
)
def test_other_descriptions(pattern: Any) -> None:
    layer = attention(pattern)
    assert torch.equal(pairs_of(layer), allowed(longformer(LENGTH)))
    if isinstance(pattern, (SparseGraph, gnnsparse.SparseOperand)):
        with pytest.raises(ValueError, match=r"is of shape \(12, 12\); accepted here: \(5, 5\)"):
            pairs_of(layer, 5)
    else:
        assert torch.equal(pairs_of(layer, 5), allowed(longformer(5)))


@pytest.mark.parametrize("chosen", [4, [0, 3, 7]])
def test_a_sequence_may_be_shorter_than_the_tokens_that_an_option_names(chosen: Any) -> None:
    layer = attention(
        [{"name": "global_tokens", "tokens": chosen}, {"name": "random", "per_row": 5, "seed": 1}]
    )
    for length in (1, 2, 3, 6):
        for token in (0, 3):
            if token < min(length, 4):
                assert pairs_of(layer, length)[token].all()


def sequences(lengths: list[int], device: str = "cpu") -> torch.Tensor:
    parts = [torch.randn(length, WIDTH, device=device) for length in lengths]
    return torch.nested.nested_tensor(parts, layout=torch.jagged)


@given(
    lengths=st.lists(st.integers(0, 9), min_size=1, max_size=5), keys=st.integers(1, 9),
    radius=st.integers(0, 4), is_causal=st.booleans(), kv_heads=st.sampled_from([1, 4]),
    cross=st.booleans(), seed=st.integers(0, 2**16),
)  # fmt: skip
def test_nested_sequences_attend_by_themselves(
    lengths: list[int], keys: int, radius: int, is_causal: bool, kv_heads: int, cross: bool, seed: int
) -> None:
    """Outputs and gradients of the sequences one after another, each with the pattern of its own length."""
    torch.manual_seed(seed)
    lengths = [max(lengths[0], 1), *lengths[1:]]
    layer = attention({"name": "window", "radius": radius}, num_kv_heads=kv_heads)
    given_q, given_k = sequences(lengths), sequences([keys] * len(lengths))
    of_q, of_k = given_q.offsets(), given_k.offsets()

    def together(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        q = torch.nested.nested_tensor_from_jagged(q, of_q)
        k = torch.nested.nested_tensor_from_jagged(k, of_k) if cross else q
        return layer(q, k, k, is_causal=is_causal)[0].values()

    def apart(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        of_sequences = q.split(of_q.diff().tolist())
        keys_of = k.split(of_k.diff().tolist()) if cross else of_sequences
        return torch.cat(
            [
                layer(one, other, other, is_causal=is_causal, need_weights=False)[0]
                for one, other in zip(of_sequences, keys_of, strict=True)
                if one.shape[0]
            ]
        )

    inputs = [given_q.values(), given_k.values()] if cross else [given_q.values()]
    got, want = (
        with_gradients(lambda *x, run=run: run(x[0], x[-1]), inputs, layer.parameters())
        for run in (together, apart)
    )
    assert_all_accurate(got, want, [x.double() for x in want], floor=1e-5)


@pytest.mark.parametrize("norm_first", [True, False])
def test_nested_sequences_in_encoders(device: str, norm_first: bool) -> None:
    layer = TransformerEncoderLayer(
        WIDTH, HEADS, 24, dropout=0.0, batch_first=True, norm_first=norm_first, pattern=WINDOW, device=device
    )
    ours = TransformerEncoder(layer, 2, torch.nn.LayerNorm(WIDTH, device=device))
    torchs = torch.nn.TransformerEncoder(layer, 2, ours.norm, enable_nested_tensor=False)
    x = sequences([5, 1, 9], device)
    for model in (ours, torchs):
        out = model(x)
        assert out.is_nested
        assert out.shape == x.shape
        for one, got in zip(x.unbind(), out.unbind(), strict=True):
            assert_near(got, model(one[None])[0])
    given = x.detach().requires_grad_()
    ours(given).values().square().sum().backward()
    assert torch.isfinite(given.grad.values()).all()


def test_operands_are_made_once_for_layers_of_equal_patterns() -> None:
    name = {"name": "window", "radius": 5, "dilation": 3}  # which no other test has
    first, second = attention(name), attention("window", pattern_options={"dilation": 3, "radius": 5})
    encoder = TransformerEncoder(TransformerEncoderLayer(WIDTH, HEADS, 8, batch_first=True, pattern=name), 3)
    with mock.patch("gnnsparse.patterns.operands.prepare", wraps=gnnsparse.prepare) as made:
        for model in (first, second, *copies_of(first)):
            for length in (LENGTH, 7):
                pairs_of(model, length)
        encoder(tokens())
        assert [call.args[0].num_rows for call in made.call_args_list] == [LENGTH, 7]
        with torch.autocast("cpu", torch.bfloat16):
            pairs_of(first)
        pairs_of(first, is_causal=True)
        assert made.call_count == 4
    kept = first.patterns.own.operands
    assert {a.precision.value for a in kept.values()} == {"fp32", "bf16"}
    assert attention({**name, "radius": 4}).patterns.own is not first.patterns.own
    assert attention(name, precision="bf16").patterns.own is not first.patterns.own


def test_the_number_of_operands_is_bounded_and_they_end_with_the_layers() -> None:
    layer = attention({"name": "window", "radius": 9, "dilation": 7})
    for length in range(1, MOST_OPERANDS + 1):
        pairs_of(layer, length)
    kept = layer.patterns.own
    first, second, *_ = kept.operands
    for length in (1, 40):  # that of length 1 is used again: now the second is the oldest
        pairs_of(layer, length)
    assert len(kept.operands) == MOST_OPERANDS
    assert first in kept.operands
    assert second not in kept.operands
    reference = weakref.ref(kept)
    del layer, kept
    gc.collect()
    assert reference() is None


def test_threads_share_one_operand() -> None:
    layer = attention({"name": "window", "radius": 2, "dilation": 4})
    x = tokens()
    outs: list[torch.Tensor] = []

    def work(number: int, barrier: Any) -> None:
        barrier.wait()
        outs.append(layer(x, x, x, need_weights=False)[0])

    run_together(4, work)
    assert all(torch.equal(out, outs[0]) for out in outs)
    assert len(layer.patterns.own.operands) == 1


def test_state_dicts_copies_and_pickles() -> None:
    """A pattern is no part of the state_dict; copies and pickles have it."""
    layer, theirs = pair()
    x = tokens()
    want = layer(x, x, x)[0]
    assert layer.state_dict().keys() == theirs.state_dict().keys()
    for other in copies_of(layer):
        assert torch.equal(other(x, x, x)[0], want)
        assert other.patterns.own is layer.patterns.own
    fresh = attention(WINDOW)
    fresh.load_state_dict(layer.state_dict())
    assert torch.equal(fresh(x, x, x)[0], want)


def test_equal_descriptions_are_one_object() -> None:
    def of(pattern: Any) -> Any:
        return attention(pattern).patterns.own

    described = [
        [WINDOW, {"name": "global_tokens", "tokens": [1, 2]}],
        longformer,
        masks.window(5, 1),
        "full",
    ]
    held, again = ([of(pattern) for pattern in described] for _ in range(2))
    assert all(one is other for one, other in zip(held, again, strict=True))
    assert len({id(one) for one in held}) == 4
    assert of(masks.window(5, 1)) is not held[2]
    # Texts of long tensors are equal where their numbers are not.
    many = [{"name": "global_tokens", "tokens": torch.arange(2000) * step} for step in (1, 2)]
    assert of(many[0]) is not of(many[1])
    assert of({"name": "window", "radius": 1}) is not of({"name": "window", "radius": True})


def test_a_list_of_options_may_change_after_it_was_given() -> None:
    chosen = [0]
    layer = attention("global_tokens", pattern_options={"tokens": chosen})
    before = pairs_of(layer)
    chosen.append(5)
    assert torch.equal(pairs_of(layer, LENGTH + 1)[:LENGTH, :LENGTH], before)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_and_low_precision(device: str, dtype: torch.dtype) -> None:
    layer = TransformerEncoderLayer(WIDTH, HEADS, 24, batch_first=True, pattern=WINDOW, device=device).eval()
    encoder = TransformerEncoder(layer, 2)
    x = tokens(device)
    want = encoder(x).detach()
    with torch.autocast(device, dtype):
        out = encoder(x)
    bound = 32 * torch.finfo(dtype).eps
    assert float((out.detach().float() - want).abs().max()) < bound
    out.float().sum().backward()
    assert all(p.grad.dtype == torch.float32 for p in encoder.parameters())
    halved = copy.deepcopy(encoder).to(dtype)
    assert float((halved(x.to(dtype)).detach().float() - want).abs().max()) < bound


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind",
    [TransformerEncoder, functools.partial(torch.nn.TransformerEncoder, enable_nested_tensor=False)],
    ids=["ours", "torch's"],
)
def test_compiles_without_graph_breaks(kind: Any) -> None:
    torch._dynamo.reset()
    layer = TransformerEncoderLayer(
        WIDTH, HEADS, 24, dropout=0.0, batch_first=True, pattern=WINDOW, num_kv_heads=2
    )
    model = kind(layer, 1)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    x = tokens()
    got, want = (with_gradients(f, [x], model.parameters()) for f in (compiled, model))
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("pattern", [None, "operand"])
def test_compiles_with_masks_and_weights(pattern: Any) -> None:
    """A pattern can't be made of a mask while torch traces: all pairs are computed then."""
    torch._dynamo.reset()
    given = {}
    if pattern == "operand":
        pattern, given = None, {"pattern": gnnsparse.prepare(masks.window(LENGTH, 3), cache=False)}
    layer, x = attention(pattern), tokens()
    mask, padded = torch.randn(LENGTH, LENGTH), torch.zeros(BATCH, LENGTH)
    mask[0, 1], padded[1, -2:] = float("-inf"), float("-inf")

    def run(model: Any) -> tuple[torch.Tensor, torch.Tensor]:
        return model(x, x, x, key_padding_mask=padded, attn_mask=mask, need_weights=True, **given)

    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    assert_near(run(compiled), run(layer))


@pytest.mark.gpu
@pytest.mark.parametrize("with_padding", [False, True])
def test_cuda_graphs(with_padding: bool) -> None:
    """A length that the layer has seen can be captured, and is replayed on other numbers."""
    layer = attention(WINDOW, device="cuda")
    x, padded = tokens("cuda"), torch.zeros(BATCH, LENGTH, device="cuda") if with_padding else None
    with torch.no_grad():
        graph, (out, _) = capture(lambda: layer(x, x, x, padded, need_weights=False))
        x.copy_(torch.randn_like(x))
        graph.replay()
        assert torch.equal(out, layer(x, x, x, padded, need_weights=False)[0])


def test_a_function_that_needs_the_number_of_keys_is_a_pattern() -> None:
    layer = SparseAttention(
        8, 2, batch_first=True, pattern=lambda length, *, keys: masks.full(length, keys=keys)
    )
    keys = torch.randn(2, 5, 8)
    assert layer(torch.randn(2, 3, 8), keys, keys)[0].shape == (2, 3, 8)
