"""The operands of a pattern by lengths, device and precision, and masks as terms of their scores."""

from __future__ import annotations

import itertools
import operator
import weakref
from collections.abc import Mapping
from typing import Any

import torch

from gnnsparse.errors import bad_type, bad_value, check_memory
from gnnsparse.formats.csr import Csr
from gnnsparse.ops.attention.api import attention
from gnnsparse.patterns.read import Named, United, graph_of, make_pattern, text_of
from gnnsparse.precision import PRECISIONS, Precision
from gnnsparse.preprocess.api import prepare
from gnnsparse.runtime.device import path
from gnnsparse.runtime.functorch import constant_when_traced, outside
from gnnsparse.runtime.memo import ForkLock
from gnnsparse.sparse.graph import SparseGraph
from gnnsparse.sparse.operand import SparseOperand, operand_of

#: Operands that a model keeps of one pattern at most. The one that was not used for longest is dropped first.
MOST_OPERANDS = 16


def cut(graph: SparseGraph, rows: int, is_causal: bool) -> SparseGraph:
    """Return the last `rows` rows of a graph on the CPU; if causal, up to the diagonal of the whole."""
    csr = graph.csr
    first = csr.rows - rows
    begin = int(csr.indptr[first])
    indptr, indices = csr.indptr[first:] - begin, csr.indices[begin:]
    if is_causal:
        own = torch.repeat_interleave(torch.arange(first, csr.rows, device="cpu"), indptr.diff())
        kept = indices <= own
        indptr = torch.nn.functional.pad(kept.cumsum(0), (1, 0))[indptr]
        indices = indices[kept]
    return SparseGraph(Csr(indptr.contiguous(), indices.contiguous(), csr.cols))


#: A length, or those of sequences that are packed one after another.
Lengths = int | tuple[int, ...]
#: (queries, keys, queries before them, causal or not, device, precision)
_Key = tuple[Lengths, Lengths, int, bool, torch.device, str]

_numbers = itertools.count()
_all: weakref.WeakValueDictionary[int, Patterns] = weakref.WeakValueDictionary()


@constant_when_traced
def _make_while_tracing(number: int, *key: Any) -> bool:
    """Make an operand of the patterns with a number.

    The traced code then reads the operand from the patterns, so that it is compiled anew for other ones. The
    operand is not dropped while its patterns live, since compiled code carries its handle.
    """
    _all[number].get(key, for_good=True)
    return True


class Patterns:
    """A pattern, and its operands by lengths, device and precision; copies share them, pickles do not."""

    def __init__(
        self, pattern: Any, precision: Precision | None, operands: Mapping[_Key, SparseOperand] | None = None
    ) -> None:
        self.pattern, self._precision = pattern, precision
        self.operands: dict[_Key, SparseOperand] = dict(operands or {})
        self._used = dict.fromkeys(self.operands, 0)
        self._for_good: set[_Key] = set()
        self._lock, self._clock = ForkLock(), itertools.count(1)
        self.number = next(_numbers)
        _all[self.number] = self

    def __deepcopy__(self, memo: dict[int, Any]) -> Patterns:
        with self._lock:
            return type(self)(self.pattern, self._precision, self.operands)

    def __reduce__(self) -> Any:
        return type(self), (self.pattern, self._precision)

    def __str__(self) -> str:
        precision = "" if self._precision is None else f", {self._precision.value}"
        return text_of(self.pattern) + precision

    def operand(
        self, queries: Lengths, keys: Lengths, like: torch.Tensor, *, before: int = 0, is_causal: bool = False
    ) -> SparseOperand:
        """Return the operand of the pattern for a call, made or cached. torch.compile can trace it.

        Lengths in tuples are of sequences that lie one after another, each of which attends to itself by the
        pattern of its own length. `before` queries come before these in the pattern, whose rows are left out;
        `is_causal` counts in the whole of it. `like` are the queries, whose device and dtype the operand is
        for.
        """
        if like.dtype not in PRECISIONS:
            bad_type("query", like, "queries of dtype float32, float16 or bfloat16 in a sparse layer")
        precision = (self._precision or PRECISIONS[like.dtype]).value
        lengths = _numbers_of(queries), _numbers_of(keys), operator.index(before)
        key = (*lengths, is_causal, like.device, precision)
        if torch.compiler.is_compiling():
            _make_while_tracing(self.number, *key)
            return self.operands[key]
        return self.get(key)

    def get(self, key: Any, for_good: bool = False) -> SparseOperand:
        """Return the operand of a key of `operands`, made if it is not there, which may be never dropped."""
        with self._lock:
            if for_good:
                self._for_good.add(key)
            operand = self.operands.get(key)
            if operand is None:
                if path().takes(key[4]) and path().is_capturing():
                    raise RuntimeError(
                        "the pattern is not prepared for this length yet: run the model once before "
                        "capturing a CUDA graph"
                    )
                with outside():
                    operand = self._make(*key)
                droppable = [old for old in self.operands if old not in self._for_good]
                droppable.sort(key=self._used.__getitem__)
                for old in droppable[: max(len(droppable) - MOST_OPERANDS + 1, 0)]:
                    del self.operands[old], self._used[old]
                self.operands[key] = operand
            self._used[key] = next(self._clock)
            return operand

    def _make(
        self, queries: Lengths, keys: Lengths, before: int, is_causal: bool, device: torch.device,
        precision: str,
    ) -> SparseOperand:  # fmt: skip
        if isinstance(queries, tuple) and isinstance(keys, tuple):
            graph = graph_of_lengths(self.pattern, queries, keys, is_causal)
            return prepare(graph.to(device), precision=precision, cache=False)
        assert isinstance(queries, int)
        assert isinstance(keys, int)
        made = make_pattern(self.pattern, before + queries, keys)
        if isinstance(made, SparseOperand):
            precision = made.precision.value
            if not before and not is_causal:
                return made.to(device)
        graph = graph_of(made)
        if before or is_causal:
            graph = cut(graph, queries, is_causal)
        return prepare(graph.to(device), precision=precision, cache=False)


def _numbers_of(lengths: Lengths) -> Lengths:
    """Return lengths as integers, of which torch.compile may have made symbols."""
    return lengths if isinstance(lengths, tuple) else operator.index(lengths)


def graph_of_lengths(
    pattern: Any, queries: tuple[int, ...], keys: tuple[int, ...], is_causal: bool
) -> SparseGraph:
    """Return the patterns of several sequences as the blocks of a diagonal: none attends to another."""
    pairs = list(zip(queries, keys, strict=True))
    graphs = {
        pair: cut(graph_of(make_pattern(pattern, *pair)), pair[0], is_causal) for pair in dict.fromkeys(pairs)
    }
    counts, columns, first = [torch.zeros(1, dtype=torch.int64, device="cpu")], [], 0
    for pair in pairs:
        counts.append(graphs[pair].csr.indptr.diff())
        columns.append(graphs[pair].csr.indices + first)
        first += pair[1]
    indices = torch.cat(columns) if columns else torch.zeros(0, dtype=torch.int32, device="cpu")
    return SparseGraph(Csr(torch.cat(counts).cumsum(0), indices, first))


class SharedPatterns(Patterns):
    """Patterns that layers of one description share, copies and unpickled ones too."""

    def __deepcopy__(self, memo: dict[int, Any]) -> SharedPatterns:
        return self

    def __reduce__(self) -> Any:
        return shared_patterns, (self.pattern, self._precision)


_shared: weakref.WeakValueDictionary[Any, SharedPatterns] = weakref.WeakValueDictionary()
_shared_lock = ForkLock()


def shared_patterns(pattern: Any, precision: Precision | None) -> SharedPatterns:
    """Return the one object of a description: options by their values, functions by identity."""
    key = _identity(pattern), precision
    with _shared_lock:
        found = _shared.get(key)
        if found is None:
            found = _shared[key] = SharedPatterns(pattern, precision)
        return found


def _identity(pattern: Any) -> Any:
    """Return what equal patterns have in common, and can be looked up. The patterns keep what it is of."""
    if isinstance(pattern, United):
        return tuple(map(_identity, pattern.patterns))
    if isinstance(pattern, Named):
        return pattern.name, tuple(sorted((key, _value(value)) for key, value in pattern.options))
    return id(pattern)


def _value(value: Any) -> Any:
    """Return what equal values of an option have in common; tensors are compared by identity."""
    if isinstance(value, (list, tuple)):
        return tuple(map(_value, value))
    by_value = value is None or isinstance(value, (bool, int, float, str))
    return type(value).__name__, value if by_value else id(value)


def make_pairs(operand: SparseOperand) -> torch.Tensor:
    """Return the index of each edge in the flattened matrix [L, S], int64 [nnz]; the operand keeps it."""

    def make() -> torch.Tensor:
        row, col = operand.indices()
        return row * operand.shape[1] + col

    return operand.kernels.memo.get("pairs", make)


def _pairs(operand: SparseOperand) -> torch.Tensor:
    """`make_pairs`, which torch.compile calls while it traces and does not look into."""
    if not torch.compiler.is_compiling():
        return make_pairs(operand)
    _make_pairs_while_tracing(operand.handle)  # before the first look: the tracer remembers what it has seen
    found = operand.kernels.memo.find("pairs")
    assert found is not None
    return found


@constant_when_traced
def _make_pairs_while_tracing(handle: int) -> bool:
    make_pairs(operand_of(handle))
    return True


def pair_terms(operand: SparseOperand, name: str, mask: torch.Tensor, blocks: bool) -> torch.Tensor:
    """Make the term float32 [..., nnz] that a mask [..., L, S] adds to scores of edges. Differentiable.

    Numbers are added; `blocks` says whether True in a bool mask means that a query does not attend to a key.
    """
    if mask.device != operand.device:
        bad_value(name, f"is on {mask.device}; accepted: {operand.device}, as the queries")
    at_edges = mask.flatten(-2).index_select(-1, _pairs(operand))
    if mask.dtype == torch.bool:
        blocked = at_edges if blocks else ~at_edges
        return torch.zeros_like(blocked, dtype=torch.float32).masked_fill(blocked, float("-inf"))
    if not mask.is_floating_point():
        bad_type(name, mask, "bool or a floating dtype")
    return at_edges.float()


def dense_weights(operand: SparseOperand, weights: torch.Tensor) -> torch.Tensor:
    """Return weights of edges [..., nnz] as matrices [..., L, S] with 0 elsewhere. Differentiable."""
    rows, cols = operand.shape
    if weights.device.type == "cpu" and not torch.compiler.is_compiling():
        matrices = weights.shape[:-1].numel()
        what = f"the weights of all pairs ({matrices} x {rows} x {cols}), which need_weights=False saves,"
        check_memory("need_weights", matrices * rows * cols * weights.element_size(), what)
    empty = weights.new_zeros((*weights.shape[:-1], rows * cols))
    return empty.index_copy(-1, _pairs(operand), weights).unflatten(-1, (rows, cols))


def attend(
    operand: SparseOperand, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, need_weights: bool, *,
    bias: torch.Tensor | None, **options: Any,
) -> tuple[torch.Tensor, torch.Tensor | None]:  # fmt: skip
    """Compute attention over a pattern, where heads may share keys, and weights [..., heads, nnz]."""
    heads, groups = q.shape[-3], q.shape[-3] // k.shape[-3]
    if groups > 1:  # leading sizes are broadcast
        q, k, v = q.unflatten(-3, (-1, groups)), k.unsqueeze(-3), v.unsqueeze(-3)
        if bias is not None and bias.dim() > 1:
            shared = bias.shape[-2] != heads
            bias = bias.unsqueeze(-2) if shared else bias.unflatten(-2, (-1, groups))
    done = attention(operand, q, k, v, bias=bias, return_weights=need_weights, **options)
    out, weights = done if need_weights else (done, None)
    if groups > 1:
        out = out.flatten(-4, -3)
        weights = None if weights is None else weights.flatten(-3, -2)
    return out, weights
