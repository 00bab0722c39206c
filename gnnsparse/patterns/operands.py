"""The operands of a pattern by lengths, device and precision."""

from __future__ import annotations

import itertools
import operator
import weakref
from typing import Any

import torch

from gnnsparse.errors import bad_type
from gnnsparse.formats.csr import Csr
from gnnsparse.patterns.read import Named, United, graph_of, make_pattern, text_of
from gnnsparse.precision import PRECISIONS, Precision
from gnnsparse.preprocess.api import prepare
from gnnsparse.runtime.device import path
from gnnsparse.runtime.functorch import outside
from gnnsparse.runtime.memo import ForkLock
from gnnsparse.sparse.graph import SparseGraph
from gnnsparse.sparse.operand import SparseOperand

__all__ = [
    "MOST_KEPT",
    "Patterns",
    "SharedPatterns",
    "cut",
    "graph_of_lengths",
    "patterns_of",
    "shared_patterns",
]

#: Operands that a model keeps of one pattern at most. The one that was not used for longest is dropped first.
MOST_KEPT = 16


def cut(graph: SparseGraph, rows: int, is_causal: bool) -> SparseGraph:
    """Returns the last `rows` rows of a graph on the CPU; if causal, up to the diagonal of the whole."""
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


def patterns_of(number: int) -> Patterns:
    """Returns the patterns of a number, their attribute of that name."""
    return _all[number]


class Patterns:
    """A pattern, and its operands by lengths, device and precision. Layers of one pattern share an instance.

    Copies of a model share the operands; pickles do not contain them. It can be used from several threads.

    Args:
        pattern: what `read_pattern` returns.
        precision: precision of the operands; None: that of the dtype of the queries.

    Attributes:
        operands: the operands that are kept now, at most MOST_KEPT beside those that compiled code has.
        number: stands for this object in code that torch.compile traces.
    """

    def __init__(self, pattern: Any, precision: Precision | None) -> None:
        self._pattern, self._precision = pattern, precision
        self._start({})

    def _start(self, operands: dict[_Key, SparseOperand]) -> None:
        self.operands = operands
        self._used = dict.fromkeys(operands, 0)
        self._for_good: set[_Key] = set()
        self._lock, self._clock = ForkLock(), itertools.count(1)
        self.number = next(_numbers)
        _all[self.number] = self

    def __deepcopy__(self, memo: dict[int, Any]) -> Patterns:
        other = type(self).__new__(type(self))
        other._pattern, other._precision = self._pattern, self._precision
        with self._lock:
            other._start(dict(self.operands))
        return other

    def __getstate__(self) -> dict[str, Any]:
        return {"_pattern": self._pattern, "_precision": self._precision}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._start({})

    def __str__(self) -> str:
        precision = "" if self._precision is None else f", {self._precision.value}"
        return text_of(self._pattern) + precision

    def operand(
        self,
        queries: Lengths,
        keys: Lengths,
        like: torch.Tensor,
        *,
        before: int = 0,
        is_causal: bool = False,
        with_pairs: bool = False,
    ) -> SparseOperand:
        """Returns the operand of the pattern for a call, made or kept. torch.compile can trace it.

        Args:
            queries: rows of the operand; or the lengths of sequences whose queries lie one after another,
                each of which attends by the pattern of its own length to its own keys.
            keys: columns of the operand, or as many lengths as there are of queries.
            like: the queries, whose device and dtype the operand is for.
            before: number of queries that come before these in the pattern, whose rows are left out; 0 for
                several lengths.
            is_causal: whether edges to keys behind the query are left out, counted in the whole pattern.
            with_pairs: whether a mask or weights of all pairs will be read or written at its edges.

        Raises:
            TypeError: `like` has a dtype that no kernel has; or what the pattern's function raises.
            ValueError: the pattern has another shape; or what the pattern's function raises.
            RuntimeError: an operand would have to be made while a CUDA graph is captured.
        """
        if like.dtype not in PRECISIONS:
            bad_type("query", like, "queries of dtype float32, float16 or bfloat16 in a sparse layer")
        precision = (self._precision or PRECISIONS[like.dtype]).value
        key = (
            _numbers_of(queries),
            _numbers_of(keys),
            operator.index(before),
            is_causal,
            like.device,
            precision,
        )
        if torch.compiler.is_compiling():
            # Not before: the import takes seconds, as it brings the compiler.
            from gnnsparse.patterns.tracing import make_while_tracing

            make_while_tracing(self.number, with_pairs, *key)
            return self.operands[key]
        return self._get(key)

    def keep_for_good(self, key: Any) -> SparseOperand:
        """Returns the operand of a key of `operands`, made if it is not there, which is not dropped."""
        with self._lock:
            self._for_good.add(key)
            return self._get(key)

    def _get(self, key: _Key) -> SparseOperand:
        with self._lock:
            operand = self.operands.get(key)
            if operand is None:
                if path().takes(key[4]) and path().is_capturing():
                    raise RuntimeError(
                        "the pattern is not prepared for this length yet: run the model once before "
                        "capturing a CUDA graph"
                    )
                with outside():
                    operand = self._make(*key)
                self._drop_oldest()
                self.operands[key] = operand
            self._used[key] = next(self._clock)
            return operand

    def _drop_oldest(self) -> None:
        """Makes room for one more operand."""
        droppable = [key for key in self.operands if key not in self._for_good]
        for key in sorted(droppable, key=self._used.__getitem__)[: max(len(droppable) - MOST_KEPT + 1, 0)]:
            del self.operands[key], self._used[key]

    def _make(
        self,
        queries: Lengths,
        keys: Lengths,
        before: int,
        is_causal: bool,
        device: torch.device,
        precision: str,
    ) -> SparseOperand:
        if isinstance(queries, tuple) or isinstance(keys, tuple):
            assert isinstance(queries, tuple)
            assert isinstance(keys, tuple)
            graph = graph_of_lengths(self._pattern, queries, keys, is_causal)
            return prepare(graph.to(device), precision=precision, cache=False)
        made = make_pattern(self._pattern, before + queries, keys)
        if isinstance(made, SparseOperand):
            precision = made.precision.value
            if not before and not is_causal:
                return made.to(device)
        graph = graph_of(made)
        if before or is_causal:
            graph = cut(graph, queries, is_causal)
        return prepare(graph.to(device), precision=precision, cache=False)


def _numbers_of(lengths: Lengths) -> Lengths:
    """Returns lengths as integers, of which torch.compile may have made symbols."""
    if isinstance(lengths, tuple):
        return lengths
    return operator.index(lengths)


def graph_of_lengths(
    pattern: Any, queries: tuple[int, ...], keys: tuple[int, ...], is_causal: bool
) -> SparseGraph:
    """Returns the patterns of several sequences as the blocks of a diagonal: none attends to another.

    Args:
        pattern: what `read_pattern` returns.
        queries, keys: the lengths of each sequence.
        is_causal: whether edges to keys behind the query are left out.
    """
    graphs: dict[tuple[int, int], SparseGraph] = {}
    counts, columns, first = [torch.zeros(1, dtype=torch.int64, device="cpu")], [], 0
    for rows, cols in zip(queries, keys, strict=True):
        graph = graphs.get((rows, cols))
        if graph is None:
            graph = graph_of(make_pattern(pattern, rows, cols))
            graph = graphs[rows, cols] = cut(graph, rows, True) if is_causal else graph
        counts.append(graph.csr.indptr.diff())
        columns.append(graph.csr.indices + first)
        first += cols
    indices = torch.cat(columns) if columns else torch.zeros(0, dtype=torch.int32, device="cpu")
    return SparseGraph(Csr(torch.cat(counts).cumsum(0), indices, first))


class SharedPatterns(Patterns):
    """Patterns that all layers of one description share: those of copies, and those that were unpickled.

    Made by `shared_patterns`.
    """

    @property
    def pattern(self) -> Any:
        """The description of the pattern, what `read_pattern` returned."""
        return self._pattern

    def __deepcopy__(self, memo: dict[int, Any]) -> SharedPatterns:
        return self

    def __reduce__(self) -> Any:
        return shared_patterns, (self._pattern, self._precision)


_shared: weakref.WeakValueDictionary[Any, SharedPatterns] = weakref.WeakValueDictionary()
_shared_lock = ForkLock()


def shared_patterns(pattern: Any, precision: Precision | None) -> SharedPatterns:
    """Returns the patterns of a description, one object for all that ask for the same while it is alive.

    Args:
        pattern: what `read_pattern` returns. Names and options are compared by their values, functions,
            graphs and operands by identity.
        precision: precision of the operands; None: that of the dtype of the queries.
    """
    key = _identity(pattern), precision
    with _shared_lock:
        found = _shared.get(key)
        if found is None:
            found = _shared[key] = SharedPatterns(pattern, precision)
        return found


def _identity(pattern: Any) -> Any:
    """Returns what equal patterns have in common, and can be looked up. The patterns keep what it is of."""
    if isinstance(pattern, United):
        return tuple(map(_identity, pattern.parts))
    if isinstance(pattern, Named):
        return pattern.name, tuple(sorted((key, _value(value)) for key, value in pattern.options))
    return id(pattern)


def _value(value: Any) -> Any:
    """Returns what equal values of an option have in common; tensors are compared by identity."""
    if isinstance(value, (list, tuple)):
        return tuple(map(_value, value))
    plain = value is None or isinstance(value, (bool, int, float, str))
    return type(value).__name__, value if plain else id(value)
