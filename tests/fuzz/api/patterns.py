"""The attention patterns of `gnnsparse.masks`, against their definitions on dense matrices."""

from __future__ import annotations

from typing import Any

import torch

from gnnsparse import SparseGraph, masks
from tests.fuzz.common import Draw, Trial

LENGTHS = (4, 1, 7, 16, 0, 33)


def dense(graph: SparseGraph) -> torch.Tensor:
    return torch.from_numpy(graph.to_scipy().toarray()) > 0


def _window(draw: Draw, n: int, keys: int | None) -> Any:
    radius, dilation = draw.integer(0, 5), draw.integer(1, 4)
    i, j = torch.arange(n)[:, None], torch.arange(n if keys is None else keys)
    wanted = ((j - i) % dilation == 0) & ((j - i).abs() <= radius * dilation)
    return lambda: masks.window(n, radius, dilation, keys), wanted


def _dilated(draw: Draw, n: int, keys: int | None) -> Any:
    segment, dilation = draw.integer(1, 9), draw.integer(1, 4)
    i, j = torch.arange(n)[:, None], torch.arange(n)
    wanted = (i // segment == j // segment) & ((i - j) % dilation == 0)
    return lambda: masks.dilated(n, segment, dilation), wanted


def _causal(draw: Draw, n: int, keys: int | None) -> Any:
    wanted = torch.arange(n if keys is None else keys) <= torch.arange(n)[:, None]
    return lambda: masks.causal(n, keys), wanted


def _full(draw: Draw, n: int, keys: int | None) -> Any:
    return lambda: masks.full(n, keys), torch.ones(n, n if keys is None else keys, dtype=torch.bool)


def _global(draw: Draw, n: int, keys: int | None) -> Any:
    chosen = sorted({draw.below(n) for _ in range(draw.below(4))}) if n else []
    wanted = torch.zeros(n, n, dtype=torch.bool)
    wanted[chosen] = True
    wanted[:, chosen] = True
    tokens = draw.choice((list, torch.tensor))(chosen)
    return lambda: masks.global_tokens(n, tokens), wanted


def _block(draw: Draw, n: int, keys: int | None) -> Any:
    size = draw.integer(1, 5)
    shape = draw.integer(0, 4), draw.integer(0, 4)
    blocks = torch.rand(shape, generator=torch.Generator().manual_seed(draw.seed())) < 0.5
    wanted = blocks.repeat_interleave(size, 0).repeat_interleave(size, 1)
    return lambda: masks.block(blocks, size), wanted


def _from_dense(draw: Draw, n: int, keys: int | None) -> Any:
    mask = torch.rand(n, keys or n, generator=torch.Generator().manual_seed(draw.seed())) < 0.4
    mask = mask.T if draw.chance(0.3) else mask
    return lambda: masks.from_dense(mask), mask


def _random(draw: Draw, n: int, keys: int | None) -> Any:
    per_row, seed = draw.below((n if keys is None else keys) + 1), draw.seed()
    return lambda: masks.random(n, per_row, seed, keys), torch.full((n,), per_row)


def _expander(draw: Draw, n: int, keys: int | None) -> Any:
    degree, seed = draw.below(max(n, 1)), draw.seed()
    degree -= n * degree % 2
    return lambda: masks.expander(n, degree, seed=seed), torch.full((n,), degree)


def _vector_wise(draw: Draw, n: int, keys: int | None) -> Any:
    sparsity, vector, seed = draw.choice((0.5, 0.0, 1.0, 0.9)), draw.integer(1, 9), draw.seed()
    count = round((1 - sparsity) * (n if keys is None else keys))
    return lambda: masks.vector_wise(n, sparsity, vector, seed=seed, keys=keys), torch.full((n,), count)


def _bigbird(draw: Draw, n: int, keys: int | None) -> Any:
    size, seed = draw.integer(1, 8), draw.seed()
    counts = 2 * draw.below(3) + 1, draw.below(4), draw.below(4)
    return lambda: masks.bigbird(n, size, *counts, seed=seed), None


_PATTERNS = (
    _window, _dilated, _causal, _full, _global, _block, _from_dense, _random, _expander, _vector_wise,
    _bigbird,
)  # fmt: skip


def pattern(trial: Trial) -> None:
    draw = trial.draw
    found = []
    n = draw.choice(LENGTHS)
    for _ in range(draw.integer(1, 3)):
        make = draw.choice(_PATTERNS)
        call, wanted = make(draw, n, draw.choice((None, None, *LENGTHS)))
        label = f"masks.{make.__name__[1:]} {n}"
        graph = trial.call(label, call)
        got = dense(graph)
        if wanted is not None and wanted.dim() == 1:
            wanted, got = wanted, got.sum(1)
        trial.check(wanted is None or torch.equal(got, wanted), f"{label}: another pattern")
        found.append(graph)
    shapes = {(g.num_rows, g.num_cols) for g in found}
    if len(shapes) > 1:
        trial.refuse("masks.union of shapes", lambda: masks.union(*found))
        return
    all_of = torch.stack([dense(g) for g in found])
    union = trial.call("masks.union", lambda: masks.union(*found))
    both = trial.call("masks.intersection", lambda: masks.intersection(*found))
    trial.check(torch.equal(dense(union), all_of.any(0)), "masks.union: another pattern")
    trial.check(torch.equal(dense(both), all_of.all(0)), "masks.intersection: another pattern")
