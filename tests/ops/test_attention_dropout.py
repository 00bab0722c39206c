"""Dropout of attention: its generator, its share, which edges it drops, and gradients with the same edges."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import gnnsparse
from gnnsparse import _native
from gnnsparse.ops.attention.philox import draw_seed, dropout_threshold, keeps, philox4x32
from gnnsparse.testing import assert_accurate, random_graph
from tests.helpers import make
from tests.ops.attention_oracle import SEED
from tests.ops.test_attention import floor_in_parts
from tests.ops.test_attention_use import tensors

#: (counter, key, words): the known answers that the generator's authors publish with Random123.
KNOWN = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


def seed_of(key: tuple[int, int]) -> int:
    seed = key[1] << 32 | key[0]
    return seed - 2**64 if seed >= 2**63 else seed


@pytest.mark.parametrize(("counter", "key", "words"), KNOWN)
def test_known_answers(
    device: str, counter: tuple[int, ...], key: tuple[int, int], words: tuple[int, ...]
) -> None:
    assert _native.philox4x32(counter, seed_of(key)) == words
    got = philox4x32(*(tuple(torch.tensor([x], device=device) for x in part) for part in (counter, key)))
    assert tuple(int(x) for x in got) == words


def test_native_and_torch_agree() -> None:
    counter = torch.randint(2**32, (4, 200))
    seed = torch.randint(-(2**63), 2**63 - 1, (1,))
    words = philox4x32(tuple(counter), (seed & 0xFFFFFFFF, (seed >> 32) & 0xFFFFFFFF))
    for i, one in enumerate(counter.T.tolist()):
        assert _native.philox4x32(one, int(seed)) == tuple(int(word[i]) for word in words)


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_generator_keeps_its_share(device: str, p: float) -> None:
    row, col = torch.arange(600, device=device), torch.arange(700, device=device)
    index = torch.cartesian_prod(row, col).T
    kept = [keeps(torch.tensor([seed], device=device), index, 3, p) for seed in (1, 2)]
    bound = 5 * (p * (1 - p) / index.shape[1]) ** 0.5
    for mask in kept:
        assert abs(float(mask.double().mean()) - (1 - p)) < bound
        for dim in (0, 1):  # no row and no column is favoured
            share = mask.view(600, 700).double().mean(dim)
            assert float((share - (1 - p)).abs().max()) < 6 * (p * (1 - p) / 600) ** 0.5
    both = float((kept[0] & kept[1]).double().mean())
    assert abs(both - (1 - p) ** 2) < bound


def test_threshold() -> None:
    assert dropout_threshold(0.0) == 0
    assert dropout_threshold(0.25) == 2**30
    assert dropout_threshold(1 - 2**-53) == 2**32 - 1


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("fused", [True, False])
def test_dropout_keeps_its_share(device: str, p: float, fused: bool) -> None:
    """With equal scores and values of 1 the result is the share that is kept, divided by 1 - p."""
    a = make(random_graph(400, 400, 0.5), device)
    zeros = torch.zeros(4, 400, 8, device=device)
    out = gnnsparse.attention(a, zeros, zeros, torch.ones_like(zeros), dropout_p=p, fused=fused)
    share = float(out.double().mean()) * (1 - p)
    assert abs(share - (1 - p)) < 5 * (p * (1 - p) / (4 * a.nnz)) ** 0.5
    assert float(out.std()) > 0


def test_dropped_edges_do_not_depend_on_how_it_is_computed(device: str) -> None:
    graph = random_graph(50, 50, 0.2, weighted=False)
    q, k, v = (torch.randn(3, 50, 4) for _ in range(3))
    by_edge = []
    for reorder in ("none", "degree"):
        a = make(graph, device, reorder=reorder)
        inputs = [x.to(device) for x in (q, k, v)]

        def attend(*inputs: torch.Tensor, a: gnnsparse.SparseOperand = a, **how: Any) -> Any:
            torch.manual_seed(SEED)
            return gnnsparse.attention(a, *inputs, dropout_p=0.4, **how)

        out, weights = attend(*inputs, return_weights=True)
        exact = attend(*(x.double() for x in inputs), impl="reference")
        for got in (out, attend(*inputs)):
            assert_accurate(got, attend(*inputs, impl="reference"), exact, floor=floor_in_parts(a, 4))
        by_edge.append(a.to_coo_order(weights.T) != 0)
        torch.manual_seed(SEED)
        seed = draw_seed(a.device)
        for head in range(3):
            assert torch.equal(weights[head] != 0, keeps(seed, a.indices(), head, 0.4))
    assert torch.equal(*by_edge)
    assert not torch.equal(by_edge[0][:, 0], by_edge[0][:, 1])


def test_dropout_follows_the_generator(device: str) -> None:
    operand = make(random_graph(37, 52, 0.2, hubs=1, empty_rows=0.1), device, reorder="degree")
    q, k, v = tensors(operand)
    outs = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        outs.append(gnnsparse.attention(operand, q, k, v, dropout_p=0.5))
    assert torch.equal(outs[0], outs[1])
    assert not torch.equal(outs[0], outs[2])
    assert not torch.equal(gnnsparse.attention(operand, q, k, v, dropout_p=0.5), outs[2])
    state = torch.get_rng_state()
    gnnsparse.attention(operand, q, k, v)
    assert torch.equal(state, torch.get_rng_state())


def test_reference_against_finite_differences() -> None:
    a = make(random_graph(5, 6, 0.5, empty_rows=0.2), "cpu")
    shapes = ((2, 5, 2), (2, 6, 2), (2, 6, 1), (a.nnz,))
    leaves = [torch.randn(s, dtype=torch.float64, requires_grad=True) for s in shapes]

    def function(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(SEED)
        return gnnsparse.attention(a, q, k, v, bias=bias, is_causal=True, dropout_p=0.3, impl="reference")

    assert torch.autograd.gradcheck(function, leaves)
