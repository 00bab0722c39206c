"""The generator of attention's dropout, native and in torch."""

from __future__ import annotations

import pytest
import torch

from gnnsparse import _native
from gnnsparse.ops.attention.philox import draw_seed, dropout_threshold, keeps, philox4x32

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
def test_share(device: str, p: float) -> None:
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


def test_seeds_follow_the_generator(device: str) -> None:
    drawn = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        drawn.append(draw_seed(torch.device(device)))
    assert drawn[0].dtype == torch.int64
    assert drawn[0].shape == (1,)
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])
    assert not torch.equal(draw_seed(torch.device(device)), draw_seed(torch.device(device)))
