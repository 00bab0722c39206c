"""Patterns as rules over positions: what a new token attends to, and how long a token is needed.

Keys behind the query play no part here, as in writing one token after another.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from gnnsparse.errors import bad_value
from gnnsparse.formats.csr import Csr, are_in
from gnnsparse.patterns.operands import cut
from gnnsparse.patterns.read import NAMES, Named, United, graph_of, make_pattern, text_of
from gnnsparse.sparse.graph import SparseGraph
from gnnsparse.sparse.operand import SparseOperand

#: The last query of a token that is always needed.
ENDLESS = 2**62


class Rule:
    """What tokens attend to, by their positions in the sequence: here to all keys up to the query."""

    def attends(self, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        """Return whether queries attend to keys that are not behind them, for positions that broadcast."""
        return torch.ones_like(query - key, dtype=torch.bool)

    def last(self, key: torch.Tensor) -> torch.Tensor:
        """Return the last query of each key, at most the key if no later one attends; `ENDLESS`: none."""
        return torch.full_like(key, ENDLESS)


@dataclass(frozen=True)
class _Window(Rule):
    """The keys at distances 0, dilation, ..., radius x dilation."""

    radius: int
    dilation: int = 1

    @property
    def _reach(self) -> int:
        return min(self.radius * self.dilation, ENDLESS)

    def attends(self, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        distance = query - key
        return (distance <= self._reach) & (distance % self.dilation == 0)

    def last(self, key: torch.Tensor) -> torch.Tensor:
        return key + self._reach


@dataclass(frozen=True)
class _Dilated(Rule):
    """The keys of the query's segment at distances that are multiples of the dilation."""

    segment: int
    dilation: int

    def attends(self, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        same = query.div(self.segment, rounding_mode="floor") == key.div(self.segment, rounding_mode="floor")
        return same & ((query - key) % self.dilation == 0)

    def last(self, key: torch.Tensor) -> torch.Tensor:
        left = self.segment - 1 - key % self.segment
        return key + left - left % self.dilation


class _GlobalTokens(Rule):
    """Some tokens, the first ones or a list, which attend to all keys and to which all queries attend."""

    def __init__(self, tokens: Any) -> None:
        self._count = min(tokens, ENDLESS) if isinstance(tokens, int) else None
        positions = torch.as_tensor([] if isinstance(tokens, int) else tokens, device="cpu")
        self._chosen = positions.flatten().long().sort().values

    def _holds(self, position: torch.Tensor) -> torch.Tensor:
        return torch.isin(position, self._chosen) if self._count is None else position < self._count

    def attends(self, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        return self._holds(key) | self._holds(query)

    def last(self, key: torch.Tensor) -> torch.Tensor:
        # A token of the list attends to all before it, which are needed until then.
        final = int(self._chosen[-1]) if len(self._chosen) else -1
        return torch.where(self._holds(key), ENDLESS, final)


@dataclass(frozen=True)
class _Union(Rule):
    """The union of rules."""

    rules: tuple[Rule, ...]

    def attends(self, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        return functools.reduce(torch.logical_or, (rule.attends(query, key) for rule in self.rules))

    def last(self, key: torch.Tensor) -> torch.Tensor:
        return functools.reduce(torch.maximum, (rule.last(key) for rule in self.rules))


class Rows(Rule):
    """The rows of a pattern up to a length; `graph`, on the CPU, is without keys behind their query."""

    def __init__(self, graph: SparseGraph) -> None:
        self.graph = cut(graph, graph.num_rows, True)
        rows, columns = self.graph.csr.row_index(), self.graph.csr.indices.long()
        self._pairs = (rows * graph.num_cols + columns).sort().values
        self._last = torch.full((graph.num_cols,), -1, dtype=torch.int64, device="cpu")
        self._last.scatter_reduce_(0, columns, rows, "amax")

    def attends(self, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        """See Rule."""
        return are_in(self._pairs, query * self.graph.num_cols + key)

    def last(self, key: torch.Tensor) -> torch.Tensor:
        """See Rule."""
        return self._last[key.clamp(0, len(self._last) - 1)]

    def first(self, length: int) -> SparseGraph:
        """Return the pattern of the first tokens."""
        csr = self.graph.csr
        count = int(csr.indptr[length])
        return SparseGraph(Csr(csr.indptr[: length + 1].clone(), csr.indices[:count].clone(), length))


#: Rules of the named patterns whose rows do not depend on the length.
_RULES: dict[str, Callable[..., Rule]] = {
    "causal": Rule,
    "dilated": _Dilated,
    "full": Rule,
    "global_tokens": _GlobalTokens,
    "sliding_window": _Window,
    "window": _Window,
}


def _as_named(pattern: Any) -> Any:
    """Return a function of gnnsparse.masks, options bound or not, as the named pattern that it is."""
    is_bound = isinstance(pattern, partial) and not pattern.args
    function, options = (pattern.func, tuple(pattern.keywords.items())) if is_bound else (pattern, ())
    return next((Named(name, options) for name, known in NAMES.items() if known is function), pattern)


def rule_of(pattern: Any, max_length: int | None) -> Rule:
    """Return the rule of a pattern, of `max_length` tokens where its rows depend on the length."""
    if isinstance(pattern, United):
        rules = tuple(rule_of(one, max_length) for one in pattern.patterns)
        longest = [rule.graph.num_rows for rule in rules if isinstance(rule, Rows)]
        if not longest:
            return _Union(rules)
        return Rows(graph_of(make_pattern(pattern, longest[0], longest[0])))
    pattern = _as_named(pattern)
    if isinstance(pattern, Named) and pattern.name in _RULES and "keys" not in dict(pattern.options):
        make_pattern(pattern, 1, 1)  # it checks the options
        return _RULES[pattern.name](**dict(pattern.options))
    if max_length is None and isinstance(pattern, (SparseGraph, SparseOperand)):
        max_length = graph_of(pattern).num_rows
    if max_length is None:
        bad_value(
            "max_length",
            f"got None; accepted for {text_of(pattern)}, whose rows depend on the length: the most tokens of "
            "a sequence",
        )
    return Rows(graph_of(make_pattern(pattern, max_length, max_length)))
