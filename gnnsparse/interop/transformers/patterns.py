"""Descriptions of patterns, and the operands that are made of them for lengths, devices and precisions."""

from __future__ import annotations

import inspect
import itertools
import operator
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from gnnsparse import masks
from gnnsparse.api import prepare
from gnnsparse.csr import Csr
from gnnsparse.cuda_path import path
from gnnsparse.errors import bad_type, bad_value, check_choice
from gnnsparse.graph import SparseGraph
from gnnsparse.interop.models import PRECISIONS
from gnnsparse.locks import ForkLock
from gnnsparse.operand import SparseOperand
from gnnsparse.precision import Precision
from gnnsparse.transforms import outside

__all__ = ["MOST_KEPT", "Patterns", "patterns_of", "read_pattern"]

#: Operands that a model keeps of one pattern at most. The one that was not used for longest is dropped first.
MOST_KEPT = 16

_ACCEPTED = (
    "a function of the length, a SparseGraph, a SparseOperand, the name and options of a pattern such as "
    "{'name': 'window', 'radius': 64}, or a list of these, which are united"
)


@dataclass(frozen=True)
class _Named:
    """A pattern of gnnsparse.masks.PATTERNS by its name and options, as configurations give it."""

    name: str
    options: tuple[tuple[str, Any], ...]

    def __call__(self, length: int, **keys: Any) -> SparseGraph:
        return masks.PATTERNS[self.name](length, **dict(self.options), **keys)

    def __str__(self) -> str:
        return f"{self.name}({', '.join(f'{key}={value}' for key, value in self.options)})"


@dataclass(frozen=True)
class _United:
    """The union of several patterns."""

    parts: tuple[Any, ...]

    def __str__(self) -> str:
        return " + ".join(map(_text, self.parts))


def _text(pattern: Any) -> str:
    """Returns a pattern as the report shows it."""
    if isinstance(pattern, (_Named, _United)):
        return str(pattern)
    if isinstance(pattern, SparseGraph):
        return f"SparseGraph {pattern.num_rows} x {pattern.num_cols}"
    if isinstance(pattern, SparseOperand):
        return f"SparseOperand {pattern.shape[0]} x {pattern.shape[1]}"
    if isinstance(pattern, partial):
        given = [*map(repr, pattern.args), *(f"{key}={value!r}" for key, value in pattern.keywords.items())]
        return f"{_text(pattern.func)}({', '.join(given)})"
    return getattr(pattern, "__qualname__", type(pattern).__qualname__)


def read_pattern(name: str, pattern: Any) -> Any:
    """Returns a pattern in the form that `Patterns` takes; raises if it is none.

    Args:
        name: the argument's name, for errors.
        pattern: a function of the length, a SparseGraph, a SparseOperand, a mapping with the name and the
            options of one of gnnsparse.masks.PATTERNS, or a list of these.

    Raises:
        TypeError: it is of another type.
        ValueError: there is no pattern of that name, it lacks an option or has no such option, or the list is
            empty.
    """
    if isinstance(pattern, Mapping):
        return _read_named(name, pattern)
    if isinstance(pattern, Sequence) and not isinstance(pattern, (str, bytes)):
        if not pattern:
            bad_value(name, "got an empty list; accepted: one or more patterns")
        return _United(tuple(read_pattern(f"{name}[{i}]", part) for i, part in enumerate(pattern)))
    if isinstance(pattern, (SparseGraph, SparseOperand)):
        return pattern
    # A module is called with tensors; a class has been given by mistake in place of its instance.
    if not callable(pattern) or isinstance(pattern, (torch.nn.Module, type)):
        bad_type(name, pattern, _ACCEPTED)
    return pattern


def _read_named(name: str, given: Mapping[str, Any]) -> _Named:
    kind = check_choice(f"{name}.name", given.get("name"), tuple(masks.PATTERNS))
    options = {key: value for key, value in given.items() if key != "name"}
    signature = inspect.signature(masks.PATTERNS[kind])
    names = list(signature.parameters)[1:]
    try:
        signature.bind(1, **options)
    except TypeError as error:
        bad_value(name, f"{error}; accepted for {kind!r}: {', '.join(names) or 'no options'}")
    return _Named(kind, tuple(options.items()))


def _takes_keys(function: Callable[..., Any]) -> bool:
    """Returns whether a function makes rectangular patterns: it has an argument `keys`."""
    if isinstance(function, _Named):
        function = masks.PATTERNS[function.name]
    try:
        return "keys" in inspect.signature(function).parameters
    except (TypeError, ValueError):  # some functions written in C have no signature
        return False


def _made(pattern: Any, rows: int, cols: int) -> SparseGraph | SparseOperand:
    """Returns the graph or operand of a pattern for so many queries and keys."""
    if isinstance(pattern, _United):
        return masks.union(*(_graph_of(_made(part, rows, cols)) for part in pattern.parts))
    graph = pattern
    if not isinstance(pattern, (SparseGraph, SparseOperand)):
        if rows == cols:
            graph = pattern(rows)
        elif _takes_keys(pattern):
            graph = pattern(rows, keys=cols)
        else:
            bad_value(
                "pattern",
                f"{_text(pattern)} is a function of one length, and this call has {rows} queries and {cols} "
                "keys; accepted: a function with the arguments (length, keys=), or no pattern for this layer",
            )
        if not isinstance(graph, (SparseGraph, SparseOperand)):
            bad_type("pattern", graph, f"a SparseGraph or SparseOperand as the result of {_text(pattern)}")
    shape = graph.shape if isinstance(graph, SparseOperand) else (graph.num_rows, graph.num_cols)
    if shape != (rows, cols):
        bad_value("pattern", f"{_text(pattern)} is of shape {shape}; accepted here: {(rows, cols)}")
    return graph


def _graph_of(made: SparseGraph | SparseOperand) -> SparseGraph:
    """Returns the structure of an operand or a graph, on the CPU, where patterns are united and cut."""
    if isinstance(made, SparseGraph):
        return made.to("cpu")
    rows, cols = made.shape
    return masks.from_edges(made.indices().flip(0).cpu(), (cols, rows))


def _cut(graph: SparseGraph, rows: int, is_causal: bool) -> SparseGraph:
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


#: (queries, keys, queries before them, causal or not, device, precision)
_Key = tuple[int, int, int, bool, torch.device, str]

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
        return _text(self._pattern) + precision

    def operand(
        self,
        queries: int,
        keys: int,
        like: torch.Tensor,
        *,
        before: int = 0,
        is_causal: bool = False,
        with_pairs: bool = False,
    ) -> SparseOperand:
        """Returns the operand of the pattern for a call, made or kept. torch.compile can trace it.

        Args:
            queries: rows of the operand.
            keys: columns of the operand.
            like: the queries, whose device and dtype the operand is for.
            before: number of queries that come before these in the pattern, whose rows are left out.
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
        # torch.compile may have made symbols of the lengths; `index` makes them numbers again.
        key = (operator.index(queries), operator.index(keys), operator.index(before), is_causal, like.device,
               precision)  # fmt: skip
        if torch.compiler.is_compiling():
            # Not before: the import takes seconds, as it brings the compiler.
            from gnnsparse.interop.transformers.tracing import make_while_tracing

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
        self, queries: int, keys: int, before: int, is_causal: bool, device: torch.device, precision: str
    ) -> SparseOperand:
        made = _made(self._pattern, before + queries, keys)
        if isinstance(made, SparseOperand):
            precision = made.precision.value
            if not before and not is_causal:
                return made.to(device)
        graph = _graph_of(made)
        if before or is_causal:
            graph = _cut(graph, queries, is_causal)
        return prepare(graph.to(device), precision=precision, cache=False)
