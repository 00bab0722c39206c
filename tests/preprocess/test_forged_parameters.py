"""Saved operands with forged numbers: a documented error, or the operand that was saved."""

from __future__ import annotations

import copy
import functools
import itertools
import operator
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import gnnsparse
from gnnsparse.formats import FormatSpec
from gnnsparse.testing import random_graph
from tests.helpers import FORMAT_PRECISIONS

#: What a file may hold in the place of a number.
FORGED: tuple[Any, ...] = (
    0, -1, 2, 2**15, 2**31, 2**62, 10**400, 1.5, float("nan"), float("inf"), True, None, "8", "nan", [1], {},
    torch.tensor([1, 2]),
)  # fmt: skip
GRAPH = random_graph(30, 30, 0.2, seed=5, hubs=1, empty_rows=0.2)
X = torch.randn(30, 8, generator=torch.Generator().manual_seed(0))


def paths(content: Any, where: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The places of all values in dicts and lists, those that are dicts and lists included."""
    items = content.items() if isinstance(content, dict) else enumerate(content)
    for key, value in items:
        yield (*where, key)
        if isinstance(value, (dict, list)):
            yield from paths(value, (*where, key))


def forge(content: Any, path: tuple[Any, ...], value: Any) -> Any:
    """A copy of plain values in which one is another."""
    forged = copy.deepcopy(content)
    functools.reduce(operator.getitem, path[:-1], forged)[path[-1]] = value
    return forged


OPERANDS = {
    name: gnnsparse.prepare(
        GRAPH, format=name, precision=precision, values="gcn", reorder="degree", autotune=True, cache=False
    )
    for name, precision in FORMAT_PRECISIONS
}
_SAVED = {name: operand.__reduce__() for name, operand in OPERANDS.items()}


@pytest.mark.parametrize(
    ("name", "part"),
    [*((name, 1) for name in sorted(_SAVED)), ("csr", 2), ("hrpb", 2)],  # the facts, and the state
)
def test_every_number_of_a_saved_operand(name: str, part: int) -> None:
    """What is not refused with a documented error gives the products of the operand that was saved."""
    restore, saved = _SAVED[name]
    operand, handles = OPERANDS[name], itertools.count(2)
    right, back = operand @ X, operand.T @ X
    for path, value in itertools.product(paths(saved[part]), FORGED):
        parts = list(saved)
        # The handles of an operand that exists would give this one.
        parts[2] = {**parts[2], "handles": [next(handles), next(handles)]}
        parts[part] = forge(parts[part], path, value)
        try:
            found = restore(*parts)
        except (ValueError, TypeError):
            continue
        if path[0] in ("precision", "transposed"):
            continue  # another operand, as the file says
        assert torch.equal(found @ X, right), (path, value)
        assert torch.equal(found.T @ X, back), (path, value)
        found.stats()


@pytest.mark.parametrize("field", ["window", "panel", "block", "brick", "pad"])
@pytest.mark.parametrize("value", [0, -8, 2**40, 2.5, "8", None, float("nan"), True])
def test_a_size_of_a_format(field: str, value: Any) -> None:
    base = {"window": 8, "panel": 8, "block": 8, "brick": 8, "pad": 8}
    with pytest.raises((ValueError, TypeError), match=rf"format\.{field}: got"):
        FormatSpec("mine", encoding="dense", **{**base, field: value})
