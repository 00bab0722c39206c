"""Descriptions of patterns: a name with options, a function, a graph, an operand, or a union of these."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from gnnsparse.errors import bad_type, bad_value, check_choice
from gnnsparse.patterns import masks
from gnnsparse.sparse.graph import SparseGraph
from gnnsparse.sparse.operand import SparseOperand

#: The patterns that have a name, by which the layers and `sparsify` take them.
NAMES: dict[str, Callable[..., SparseGraph]] = {
    **masks.PATTERNS,
    "causal": masks.causal,
    "sliding_window": masks.window,
}

_ACCEPTED = (
    "a function of the length, a SparseGraph, a SparseOperand, the name and options of a pattern such as "
    "{'name': 'window', 'radius': 64}, or a list of these, which are united"
)


#: Options that count or list tokens, of which a shorter sequence has fewer.
_TOKENS = {("global_tokens", "tokens"), ("random", "per_row")}


def _within(name: str, option: str, value: Any, length: int) -> Any:
    """Return the value of an option for a sequence, which may have fewer tokens than the option says."""
    if (name, option) not in _TOKENS or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return min(value, length)
    if isinstance(value, torch.Tensor) and value.layout == torch.strided and not value.is_complex():
        return value[value < length]
    if isinstance(value, (list, tuple)) and all(isinstance(token, int) for token in value):
        return [token for token in value if token < length]
    return value  # what is no list of tokens is refused where the pattern is made


@dataclass(frozen=True)
class Named:
    """A pattern of `NAMES` by its name and options, as configurations give it."""

    name: str
    options: tuple[tuple[str, Any], ...]

    def __call__(self, length: int, **keys: Any) -> SparseGraph:
        """Make the pattern of a length."""
        options = {key: _within(self.name, key, value, length) for key, value in self.options}
        return NAMES[self.name](length, **options, **keys)

    def __str__(self) -> str:
        return f"{self.name}({', '.join(f'{key}={value}' for key, value in self.options)})"


@dataclass(frozen=True)
class United:
    """The union of several patterns."""

    patterns: tuple[Any, ...]

    def __str__(self) -> str:
        return " + ".join(map(text_of, self.patterns))


def text_of(pattern: Any) -> str:
    """Return a pattern as the report shows it."""
    if isinstance(pattern, (Named, United)):
        return str(pattern)
    if isinstance(pattern, SparseGraph):
        return f"SparseGraph {pattern.num_rows} x {pattern.num_cols}"
    if isinstance(pattern, SparseOperand):
        return f"SparseOperand {pattern.shape[0]} x {pattern.shape[1]}"
    if isinstance(pattern, partial):
        given = [*map(repr, pattern.args), *(f"{key}={value!r}" for key, value in pattern.keywords.items())]
        return f"{text_of(pattern.func)}({', '.join(given)})"
    return getattr(pattern, "__qualname__", type(pattern).__qualname__)


def read_pattern(name: str, pattern: Any) -> Any:
    """Return a pattern as `Patterns` takes it: a Named, a United, or what was given if it is a pattern."""
    if isinstance(pattern, Mapping):
        return _read_named(name, pattern)
    if isinstance(pattern, Sequence) and not isinstance(pattern, (str, bytes)):
        if not pattern:
            bad_value(name, "got an empty list; accepted: one or more patterns")
        return United(tuple(read_pattern(f"{name}[{i}]", one) for i, one in enumerate(pattern)))
    if isinstance(pattern, (SparseGraph, SparseOperand, United)):
        return pattern
    # A module is called with tensors; a class has been given by mistake in place of its instance.
    if not callable(pattern) or isinstance(pattern, (torch.nn.Module, type)):
        bad_type(name, pattern, _ACCEPTED)
    try:
        signature = inspect.signature(pattern)
    except (TypeError, ValueError):  # some functions written in C have no signature
        return pattern
    try:
        signature.bind(1, **({"keys": 1} if "keys" in signature.parameters else {}))
    except TypeError as error:
        bad_value(name, f"{text_of(pattern)} can't be called with a length: {error}; accepted: {_ACCEPTED}")
    return pattern


def read_own_pattern(name: str, pattern: Any, options: Any) -> Any:
    """Return the pattern of a layer, for which a name and options may stand; raises if it is none."""
    if options is not None and not isinstance(options, Mapping):
        bad_type(f"{name}_options", options, "a mapping of the options of a pattern, or None")
    if isinstance(pattern, str):
        return _read_named(name, {**(options or {}), "name": pattern})
    if options is not None:
        bad_value(
            f"{name}_options", f"got {dict(options)}; accepted: None, or {name}= one of {', '.join(NAMES)}"
        )
    return read_pattern(name, pattern)


def _read_named(name: str, given: Mapping[str, Any]) -> Named:
    kind = check_choice(f"{name}.name", given.get("name"), tuple(NAMES))
    # A list of the caller's may change later, when operands have been made of it.
    options = {k: list(v) if isinstance(v, list) else v for k, v in given.items() if k != "name"}
    signature = inspect.signature(NAMES[kind])
    names = list(signature.parameters)[1:]
    try:
        signature.bind(1, **options)
    except TypeError as error:
        bad_value(name, f"{error}; accepted for {kind!r}: {', '.join(names) or 'no options'}")
    return Named(kind, tuple(options.items()))


def _takes_keys(function: Callable[..., Any]) -> bool:
    """Return whether a function makes rectangular patterns: it has an argument `keys`."""
    if isinstance(function, Named):
        function = NAMES[function.name]
    try:
        return "keys" in inspect.signature(function).parameters
    except (TypeError, ValueError):  # some functions written in C have no signature
        return False


def make_pattern(pattern: Any, rows: int, cols: int) -> SparseGraph | SparseOperand:
    """Return the graph or operand of a pattern for so many queries and keys."""
    if isinstance(pattern, United):
        return masks.union(*(graph_of(make_pattern(one, rows, cols)) for one in pattern.patterns))
    graph = pattern
    if not isinstance(pattern, (SparseGraph, SparseOperand)):
        if rows == cols:
            graph = pattern(rows)
        elif _takes_keys(pattern):
            graph = pattern(rows, keys=cols)
        else:
            bad_value(
                "pattern",
                f"{text_of(pattern)} is a function of one length, and this call has {rows} queries and "
                f"{cols} keys; accepted: a function with the arguments (length, keys=), or no pattern for "
                "this layer",
            )
        if not isinstance(graph, (SparseGraph, SparseOperand)):
            bad_type("pattern", graph, f"a SparseGraph or SparseOperand as the result of {text_of(pattern)}")
    shape = graph.shape if isinstance(graph, SparseOperand) else (graph.num_rows, graph.num_cols)
    if shape != (rows, cols):
        bad_value("pattern", f"{text_of(pattern)} is of shape {shape}; accepted here: {(rows, cols)}")
    return graph


def graph_of(made: SparseGraph | SparseOperand) -> SparseGraph:
    """Return the structure of an operand or a graph, on the CPU, where patterns are united and cut."""
    if isinstance(made, SparseGraph):
        return made.to("cpu")
    rows, cols = made.shape
    return masks.from_edges(made.indices().flip(0).cpu(), (cols, rows))
