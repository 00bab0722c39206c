"""SparseAttention and the encoder: torch's numbers with all pairs, masked ones with a pattern."""

from __future__ import annotations

import copy
import pickle
import re
from typing import Any

import pytest
import torch

import gnnsparse
from gnnsparse import SparseGraph, SparseOperand, masks
from gnnsparse.nn import SparseAttention, TransformerEncoder, TransformerEncoderLayer, edge_bias
from gnnsparse.testing import assert_accurate, assert_all_accurate, in_float64, with_gradients
from tests.helpers import ROUNDING, reference_layers
from tests.nn.sparsified import BATCH, HEADS, LENGTH, WIDTH, additive, allowed, blocked, padding, pair


def operand(graph: SparseGraph, **options: Any) -> SparseOperand:
    return gnnsparse.prepare(graph, cache=False, **options)


def everything(rows: int = LENGTH, cols: int = LENGTH) -> SparseOperand:
    return operand(masks.full(rows, cols))


def same_parameters(ours: torch.nn.Module, theirs: torch.nn.Module) -> None:
    """Random ones, also where torch starts with zeros and ones; the names have to be the same."""
    for parameter in theirs.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    ours.load_state_dict(theirs.state_dict())
    assert [n for n, _ in ours.named_parameters()] == [n for n, _ in theirs.named_parameters()]


def assert_same(ours: Any, theirs: Any, inputs: list[torch.Tensor]) -> None:
    """Outputs and all gradients of two calls, which float64 judges; each is a function and its module."""
    got, plain = (with_gradients(call, inputs, module.parameters()) for call, module in (ours, theirs))
    with in_float64(theirs[1]) as module:
        exact = with_gradients(theirs[0], [x.double() for x in inputs], module.parameters())
    assert_all_accurate(got, plain, exact)


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("batch", [None, BATCH])
@pytest.mark.parametrize("fused", [True, False])
def test_attention_is_torchs(batch_first: bool, bias: bool, batch: int | None, fused: bool) -> None:
    ours, theirs = pair(pattern=None, own={"fused": fused}, bias=bias, batch_first=batch_first)

    def tokens(length: int) -> torch.Tensor:
        sizes = [length] if batch is None else [batch, length] if batch_first else [length, batch]
        return torch.randn(*sizes, WIDTH)

    a = everything(LENGTH, 7)
    cross = [tokens(LENGTH), tokens(7), tokens(7)]
    assert_same(
        (lambda q, k, v: ours(q, k, v, a), ours),
        (lambda q, k, v: theirs(q, k, v, need_weights=False)[0], theirs),
        cross,
    )
    b = everything()
    assert_same(
        (lambda x: ours(x, x, x, b), ours),
        (lambda x: theirs(x, x, x, need_weights=False)[0], theirs),
        [tokens(LENGTH)],
    )


@pytest.mark.parametrize("causal", [False, True])
def test_attention_over_a_pattern_is_masked_attention(causal: bool) -> None:
    graph = masks.union(masks.window(LENGTH, 2), masks.random(LENGTH, 3, seed=0))
    ours, theirs = pair(pattern=None)
    mask = ~allowed(masks.intersection(graph, masks.causal(LENGTH)) if causal else graph)
    a = operand(graph, reorder="degree")
    assert_same(
        (lambda x: ours(x, x, x, a, None, causal), ours),
        (lambda x: theirs(x, x, x, attn_mask=mask, need_weights=False)[0], theirs),
        [torch.randn(BATCH, LENGTH, WIDTH)],
    )


@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("activation", ["relu", "gelu", torch.nn.functional.silu])
def test_layer_is_torchs(norm_first: bool, batch_first: bool, bias: bool, activation: Any) -> None:
    options: dict[str, Any] = {
        "dropout": 0.0, "activation": activation, "layer_norm_eps": 1e-3, "batch_first": batch_first,
        "norm_first": norm_first, "bias": bias,
    }  # fmt: skip
    ours = TransformerEncoderLayer(WIDTH, HEADS, 24, **options)
    theirs = torch.nn.TransformerEncoderLayer(WIDTH, HEADS, 24, **options)
    same_parameters(ours, theirs)
    a, sizes = everything(), (BATCH, LENGTH) if batch_first else (LENGTH, BATCH)
    assert_same((lambda x: ours(x, a), ours), (theirs, theirs), [torch.randn(*sizes, WIDTH)])


def encoders(layers: int = 2, **options: Any) -> tuple[TransformerEncoder, torch.nn.TransformerEncoder]:
    options = {"dropout": 0.0, "batch_first": True, **options}
    ours = TransformerEncoder(
        TransformerEncoderLayer(WIDTH, HEADS, 24, **options), layers, torch.nn.LayerNorm(WIDTH)
    )
    theirs = torch.nn.TransformerEncoder(
        torch.nn.TransformerEncoderLayer(WIDTH, HEADS, 24, **options), layers, torch.nn.LayerNorm(WIDTH),
        enable_nested_tensor=False,
    )  # fmt: skip
    same_parameters(ours, theirs)
    return ours, theirs


@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("kind", ["bool", "float"])
def test_padding(norm_first: bool, kind: str) -> None:
    """Each sequence its own padded keys; torch leaves padded queries what they are too."""
    ours, theirs = encoders(norm_first=norm_first)
    padded, pattern_mask = padding(), additive(blocked())
    infinite = additive(padded)
    mask = padded if kind == "bool" else infinite
    a = operand(masks.window(LENGTH, 3))
    assert_same(
        (lambda x: ours(x, a, mask), ours),
        (lambda x: theirs(x, pattern_mask.to(x), infinite.to(x)), theirs),
        [torch.randn(BATCH, LENGTH, WIDTH)],
    )


def test_what_padding_does_in_an_encoder() -> None:
    """Every layer gets it, what is padded does not matter, and a sequence of padding alone gives no NaN."""
    ours, _ = encoders()
    a, padded = operand(masks.window(LENGTH, 3)), torch.zeros(BATCH, LENGTH, dtype=torch.bool)
    padded[:, -4:] = True
    x = torch.randn(BATCH, LENGTH, WIDTH, requires_grad=True)
    want = x
    for layer in ours.layers:
        want = layer(want, a, padded)
    assert torch.equal(ours(x, a, padded), ours.norm(want))
    assert not torch.equal(ours(x, a, padded), ours(x, a))
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


def test_fused_and_unfused_agree() -> None:
    options: dict[str, Any] = {"dropout": 0.3, "batch_first": True}
    fused = TransformerEncoderLayer(WIDTH, HEADS, 24, **options)
    unfused = TransformerEncoderLayer(WIDTH, HEADS, 24, fused=False, **options)
    unfused.load_state_dict(fused.state_dict())
    a, x = operand(masks.window(LENGTH, 2)), torch.randn(BATCH, LENGTH, WIDTH)

    def run(layer: TransformerEncoderLayer, x: torch.Tensor = x) -> torch.Tensor:
        torch.manual_seed(0)
        return layer(x, a)

    results = run(fused), run(unfused)
    with reference_layers():
        plain = run(fused)
        with in_float64(fused):
            exact = run(fused, x.double())
    for y in results:
        assert_accurate(y, plain, exact)


def test_layers_of_a_stack_get_their_own_parameters() -> None:
    encoder = TransformerEncoder(TransformerEncoderLayer(WIDTH, HEADS, 24), 2)
    first, second = encoder.layers
    assert torch.equal(first.linear1.weight, second.linear1.weight)
    encoder.reset_parameters()
    assert not torch.equal(first.linear1.weight, second.linear1.weight)
    assert not torch.equal(first.self_attn.in_proj_weight, second.self_attn.in_proj_weight)


def test_copies_and_pickles() -> None:
    ours, _ = encoders()
    a, x = operand(masks.window(LENGTH, 2)), torch.randn(BATCH, LENGTH, WIDTH)
    want = ours(x, a)
    assert torch.equal(copy.deepcopy(ours)(x, a), want)
    assert torch.equal(pickle.loads(pickle.dumps(ours))(x, a), want)


def test_compiles_without_graph_breaks() -> None:
    ours, _ = encoders(1)
    a, x = operand(masks.window(LENGTH, 2)), torch.randn(BATCH, LENGTH, WIDTH)
    padded = torch.zeros(BATCH, LENGTH, dtype=torch.bool)
    padded[:, -1] = True
    compiled = torch.compile(ours, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(x, a, padded), ours(x, a, padded))


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


X = torch.zeros(BATCH, LENGTH, WIDTH)


@pytest.mark.parametrize(
    ("call", "message"),
    [
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
        (
            lambda: TransformerEncoderLayer(8, 2, activation="swish"),
            "activation: got 'swish'; accepted: relu",
        ),
        (lambda: TransformerEncoder(torch.nn.Linear(2, 2), 2), "encoder_layer: got Linear; accepted: a gnn"),
        (lambda: TransformerEncoder(TransformerEncoderLayer(8, 2), 0), "num_layers: got 0"),
    ],
)
def test_bad_arguments(call: Any, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=re.escape(message)):
        call()
