"""Writing one token after another: the numbers of the whole sequence, what is kept, batches, errors."""

from __future__ import annotations

import copy
import functools
import re
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import gnnsparse
from gnnsparse import SparseGraph, masks
from gnnsparse.nn import KeyValueCache, SparseAttention, TransformerEncoder, TransformerEncoderLayer
from gnnsparse.patterns.read import graph_of, make_pattern, read_own_pattern
from gnnsparse.testing import assert_accurate
from tests.helpers import copies_of
from tests.nn.sparsified import BATCH, HEADS, WIDTH, allowed, assert_near

LENGTH = 40
SINKS = [{"name": "sliding_window", "radius": 5}, {"name": "global_tokens", "tokens": 3}]


def own_pattern(length: int) -> SparseGraph:
    return masks.union(masks.window(length, 3), masks.random(length, min(4, length), 7))


#: Patterns, and the most tokens for those whose rows depend on the length.
PATTERNS: dict[str, tuple[Any, int | None]] = {
    "window": ({"name": "window", "radius": 5}, None),
    "dilated window": ({"name": "window", "radius": 3, "dilation": 4}, None),
    "sinks": (SINKS, None),
    "endless window": ({"name": "window", "radius": 2**62, "dilation": 3}, None),
    "endless sinks": ({"name": "global_tokens", "tokens": 10**40}, None),
    "later global tokens": (
        [{"name": "window", "radius": 1}, {"name": "global_tokens", "tokens": [2, 21]}],
        None,
    ),
    "tensor of tokens": ({"name": "global_tokens", "tokens": torch.tensor([9, 0])}, None),
    "segments": ({"name": "dilated", "segment": 8, "dilation": 1}, None),
    "dilated segments": (functools.partial(masks.dilated, segment=9, dilation=2), None),
    "all": (masks.causal, None),
    "global tokens alone": ({"name": "global_tokens", "tokens": 2}, None),
    "bigbird": ({"name": "bigbird", "block_size": 4, "random_blocks": 2, "seed": 3}, LENGTH),
    "random": ({"name": "random", "per_row": 4, "seed": 1}, LENGTH),
    "mixed": ([{"name": "window", "radius": 1}, {"name": "random", "per_row": 3, "seed": 1}], LENGTH),
    "own": (own_pattern, LENGTH),
    "graph": (masks.window(LENGTH, 3), None),
}


def causal(pattern: Any, length: int = LENGTH) -> torch.Tensor:
    """The pairs of a pattern without keys behind the query, bool [length, length]."""
    read = read_own_pattern("pattern", pattern, None)
    return allowed(graph_of(make_pattern(read, length, length))).tril()


def dense(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, pairs: torch.Tensor) -> torch.Tensor:
    groups = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(groups, 1) for x in (k, v))
    scores = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(~pairs.to(q.device), float("-inf"))
    return scores.softmax(-1).nan_to_num() @ v


def heads(device: str, length: int, kv_heads: int = 4, width: int = 4, batch: int = BATCH) -> Any:
    return [
        torch.randn(batch, n, length, d, device=device) for n, d in ((4, 4), (kv_heads, 4), (kv_heads, width))
    ]


def write(cache: KeyValueCache, q: Any, k: Any, v: Any, pieces: list[int]) -> torch.Tensor:
    parts = zip(*(x.split(pieces, 2) for x in (q, k, v)), strict=True)
    return torch.cat([cache.attend(*part) for part in parts], 2)


@pytest.mark.parametrize("name", PATTERNS)
@pytest.mark.parametrize("kv_heads", [4, 2])
@pytest.mark.parametrize(
    "pieces", [[1] * LENGTH, [17, *[1] * 23], [9, 4, 1, 20, 6]], ids=["1", "prompt", "n"]
)
def test_attention_is_that_of_the_whole_sequence(
    device: str, name: str, kv_heads: int, pieces: list[int]
) -> None:
    pattern, most = PATTERNS[name]
    q, k, v = heads(device, LENGTH, kv_heads, 6)
    pairs = causal(pattern)
    cache = KeyValueCache(pattern, max_length=most)
    got = write(cache, q, k, v, pieces)
    exact = dense(q.double(), k.double(), v.double(), pairs)
    assert_accurate(got, dense(q, k, v, pairs), exact, floor=1e-6 if device == "cpu" else 1e-5)
    assert cache.lengths.tolist() == [LENGTH] * BATCH
    double = write(KeyValueCache(pattern, max_length=most), *(x.double() for x in (q, k, v)), pieces)
    torch.testing.assert_close(double, exact, atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("name", PATTERNS)
@pytest.mark.parametrize("prompt", [0, 13])
def test_only_what_later_tokens_need_is_kept(name: str, prompt: int) -> None:
    pattern, most = PATTERNS[name]
    cache = KeyValueCache(pattern, max_length=most)
    q, k, v = heads("cpu", 30)
    if prompt:
        cache.attend(*(x[:, :, :prompt] for x in (q, k, v)))
    for token in range(prompt, 30):
        cache.attend(*(x[:, :, token : token + 1] for x in (q, k, v)))
        # What tokens up to the end of the longest sequence need; a longer one where patterns know no end.
        pairs = causal(pattern, LENGTH if most or isinstance(pattern, SparseGraph) else 90)
        needed = pairs[token + 1 :, : token + 1].any(0).nonzero().flatten().tolist()
        assert cache.kept == [needed] * BATCH
    slots = cache._held.shape[1]
    assert slots <= max(16, 2 * (max(map(len, cache.kept)) + 14))
    assert cache.nbytes == 2 * BATCH * 4 * slots * 4 * 4


def test_memory_does_not_grow_with_a_window_and_sinks() -> None:
    cache = KeyValueCache(SINKS)
    q, k, v = heads("cpu", 1, batch=1)
    for _ in range(300):
        cache.attend(q, k, v)
    assert cache.kept == [[0, 1, 2, *range(295, 300)]]
    assert cache._held.shape[1] == 16


@settings(max_examples=40)
@given(
    lengths=st.lists(st.integers(0, 9), min_size=1, max_size=4), steps=st.integers(0, 12),
    pattern=st.sampled_from(["sinks", "segments", "dilated window", "bigbird"]), seed=st.integers(0, 2**16),
    kv_heads=st.sampled_from([1, 4]),
)  # fmt: skip
def test_sequences_of_several_lengths(
    lengths: list[int], steps: int, pattern: str, seed: int, kv_heads: int
) -> None:
    """Prompts padded on the right, then single tokens; a sequence may end before the others."""
    torch.manual_seed(seed)
    given, most = PATTERNS[pattern]
    batch, cache = len(lengths), KeyValueCache(given, max_length=most)
    parts: list[list[torch.Tensor]] = [[] for _ in lengths]
    stored: list[list[list[torch.Tensor]]] = [[[], [], []] for _ in lengths]
    calls = [torch.tensor(lengths), *(torch.rand(steps, batch) < 0.8).long()]
    for number, counts in enumerate(calls):
        tokens = heads("cpu", 9 if number == 0 else 1, kv_heads, batch=batch)
        out = cache.attend(*tokens, lengths=counts)
        for row, count in enumerate(counts.tolist()):
            parts[row].append(out[row, :, :count])
            for to, x in zip(stored[row], tokens, strict=True):
                to.append(x[row, :, :count])
    assert cache.lengths.tolist() == torch.stack(calls).sum(0).tolist()
    for row, kept in enumerate(cache.kept):
        q, k, v = (torch.cat(x, 1)[None].double() for x in stored[row])
        length = q.shape[2]
        pairs = causal(given, most or max(length, 1))[:length, :length]
        exact = dense(q, k, v, pairs)[0]
        assert_near(torch.cat(parts[row], 1).double(), exact)
        assert all(position < length for position in kept)


def test_selected_sequences_go_on_as_their_own(device: str) -> None:
    """As in beam search: some sequences go on twice, others end."""
    q, k, v = heads(device, 12)
    for lengths in (None, [8, 5, 2]):
        cache, whole = KeyValueCache(SINKS), KeyValueCache(SINKS)
        for one in (cache, whole):
            one.attend(*(x[:, :, :8] for x in (q, k, v)), lengths=lengths)
        order = [2, 0, 0]
        cache.select(order)
        assert cache.lengths.tolist() == whole.lengths[order].tolist()
        for token in range(8, 12):
            step = [x[:, :, token : token + 1] for x in (q, k, v)]
            wanted = copy.deepcopy(whole)
            got = cache.attend(*(x[order] for x in step))
            assert_near(got, whole.attend(*step)[order])
            assert wanted.lengths.tolist() != whole.lengths.tolist()


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("kv_heads", [4, 1])
@pytest.mark.parametrize("norm_first", [True, False])
def test_layers_write_what_they_compute_for_whole_sequences(
    device: str, batch_first: bool, kv_heads: int, norm_first: bool
) -> None:
    layer = TransformerEncoderLayer(
        WIDTH, HEADS, 24, batch_first=batch_first, norm_first=norm_first, pattern=SINKS,
        num_kv_heads=kv_heads, device=device,
    )  # fmt: skip
    encoder = TransformerEncoder(layer, 2, torch.nn.LayerNorm(WIDTH, device=device)).eval()
    encoder.reset_parameters()
    time = 1 if batch_first else 0
    x = torch.randn(*((BATCH, LENGTH) if batch_first else (LENGTH, BATCH)), WIDTH, device=device)
    want = encoder(x, is_causal=True).detach()
    caches = encoder.make_cache()
    got = torch.cat([encoder.decode(part, caches) for part in x.split([15, *[1] * 25], time)], time)
    assert_near(got, want)
    assert [cache.kept[0] for cache in caches] == [[0, 1, 2, *range(LENGTH - 5, LENGTH)]] * 2
    assert not got.requires_grad


def test_a_layer_without_a_pattern_keeps_all() -> None:
    layer = SparseAttention(WIDTH, HEADS, batch_first=True).eval()
    x, cache = torch.randn(2, 9, WIDTH), layer.make_cache()
    got = torch.cat([layer.decode(part, cache) for part in x.split(1, 1)], 1)
    assert_near(got, layer(x, x, x, is_causal=True)[0])
    assert cache.kept == [list(range(9))] * 2


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision(device: str, dtype: torch.dtype) -> None:
    q, k, v = heads(device, LENGTH)
    exact = dense(*(x.to(dtype).double() for x in (q, k, v)), causal(SINKS))
    got = write(KeyValueCache(SINKS), *(x.to(dtype) for x in (q, k, v)), [10, *[1] * 30])
    assert got.dtype == dtype
    plain = dense(*(x.to(dtype).float() for x in (q, k, v)), causal(SINKS)).to(dtype)
    assert_accurate(got, plain, exact, floor=8 * torch.finfo(dtype).eps)


def test_copies_pickles_and_clear() -> None:
    q, k, v = heads("cpu", 14)
    cache = KeyValueCache(SINKS)
    cache.attend(*(x[:, :, :10] for x in (q, k, v)))
    others = copies_of(cache)
    rest = [x[:, :, 10:] for x in (q, k, v)]
    want = cache.attend(*rest)
    for other in others:
        assert other.lengths.tolist() == [10] * BATCH
        assert torch.equal(other.attend(*rest), want)
    cache.clear()
    assert cache.kept == [[]]
    assert cache.nbytes == 0
    assert_near(write(cache, q, k, v, [14])[:, :, 10:], want)


Q = torch.zeros(2, 4, 1, 8)


def after(lengths: Any = None, **options: Any) -> KeyValueCache:
    cache = KeyValueCache(**{"pattern": SINKS, **options})
    cache.attend(Q, Q, Q, lengths=lengths)
    return cache


def make(*arguments: Any, **options: Any) -> Any:
    return lambda: KeyValueCache(*arguments, **options)


def attend(q: torch.Tensor = Q, k: torch.Tensor = Q, v: torch.Tensor = Q, **options: Any) -> Any:
    return lambda: after(**options).attend(q, k, v)


def decode(x: torch.Tensor, cache: Any, **options: Any) -> Any:
    return lambda: SparseAttention(WIDTH, HEADS, batch_first=True, **options).decode(x, cache)


TOKEN = torch.zeros(1, 1, WIDTH)
SHORT = gnnsparse.prepare(masks.window(5, 1), cache=False)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (make("windows"), "pattern.name: got 'windows'; accepted: bigbird"),
        (make(own_pattern), "max_length: got None; accepted for own_pattern, whose rows depend"),
        (
            make("random", {"per_row": 3, "seed": 0}),
            "max_length: got None; accepted for random(per_row=3, seed=0), whose rows depend on the length",
        ),
        (make("window", {"radius": -1}), "radius: got -1; accepted: an integer, 0 or more"),
        (make("global_tokens", {"tokens": [-1]}), "tokens: runs from -1 to -1"),
        (make("dilated", {"segment": 0, "dilation": 1}), "segment: got 0; accepted: a positive"),
        (make("causal", max_length=0), "max_length: got 0; accepted: a positive integer"),
        (make(SHORT, max_length=6), "pattern: SparseOperand 5 x 5 is of shape (5, 5); accepted here: (6, 6)"),
        (attend(max_length=1), "k: makes 2 tokens of a sequence; accepted: 1, max_length"),
        (attend(k=Q[:, :3]), "k: has 3 heads; accepted: a divisor of 4"),
        (attend(k=Q[..., :4]), "k: has shape (2, 4, 1, 4); accepted: (2, 4, 1, 8)"),
        (attend(v=Q[:1]), "v: has shape (1, 4, 1, 8); accepted: (2, 4, 1, 8)"),
        (attend(k=Q.half()), "k: is torch.float16 on cpu; accepted: torch.float32 on cpu"),
        (attend(q=Q[0]), "q: has shape (4, 1, 8); accepted: (any, any, any, any)"),
        (attend(q=Q.int()), "q: got a tensor of dtype torch.int32; accepted: a dense tensor"),
        (attend(*[Q[:1]] * 3), "k: is 1 x 4 heads x 8, torch.float32 on cpu; accepted: 2 x 4"),
        (lambda: after([1]), "lengths: got [1]; accepted: 2 integers from 0 to 1"),
        (lambda: after([1, 2]), "lengths: got [1, 2]; accepted: 2 integers from 0 to 1"),
        (lambda: after([1, "2"]), "lengths: got str; accepted: integers, 0 or more"),
        (lambda: after(torch.ones(2)), "lengths: got a tensor of dtype torch.float32; accepted: a dense ten"),
        (lambda: after().select(3), "sequences: got int; accepted: a list or a tensor of integers"),
        (lambda: after().select([2]), "sequences: got [2]; accepted: 0 to 1"),
        (lambda: KeyValueCache().select([0]), "sequences: the cache is empty"),
        (decode(TOKEN, []), "cache: got list; accepted: a KeyValueCache"),
        (decode(TOKEN, KeyValueCache(), dropout=0.1), "dropout: got 0.1 in training mode; accepted: layer"),
        (decode(TOKEN[0], KeyValueCache()), "x: has shape (1, 16); accepted: a floating-point tensor [.."),
        (
            lambda: TransformerEncoder(TransformerEncoderLayer(8, 2), 2).decode(Q[0], []),
            "caches: are 0; accepted: 2, as there are layers",
        ),
        (lambda: KeyValueCache(lambda: None), "<lambda> can't be called with a length: too many"),
        (
            SparseAttention(8, 2, pattern="expander", pattern_options={"degree": 2, "seed": 0}).make_cache,
            "max_length: got None; accepted for expander",
        ),
    ],
)
def test_bad_arguments(call: Any, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=re.escape(message)):
        call()
