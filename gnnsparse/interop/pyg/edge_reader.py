"""A `message` of elementwise code, read from its source as a function over edges; see message.py.

The code is followed with tensors of rows (of sources, targets or edges) in place of values. What is linear in
rows stays so as long as it can: a linear layer over `torch.cat([x_i, x_j, edge_attr], -1)` becomes one
product by sources, one by targets and one by edges, and sums of rows of one side are taken once for each
node. All else becomes steps of the code that runs for each edge. What a network makes of steps, such as a
further linear layer, is computed by torch on rows of all edges, which are stored.
What is found is in edge_message.py.
"""

from __future__ import annotations

import ast
import functools
import inspect
import math
import operator
import types
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch_geometric.nn import MLP, BatchNorm, LayerNorm
from torch_geometric.nn.dense.linear import Linear

from gnnsparse.interop.pyg.edge_message import EdgeMessage, Source, uses
from gnnsparse.interop.pyg.message import (
    ABSENT,
    EDGES,
    OPAQUE,
    PASSED_ON,
    Argument,
    Form,
    NotShown,
    Part,
    Reader,
    is_constant,
)
from gnnsparse.ops.edges.elementwise import ELEMENTWISE, Emitter, Unknown
from gnnsparse.ops.edges.program import MOST_MAPPED, Code, Input
from gnnsparse.ops.edges.trace import MOST_INPUTS
from gnnsparse.precision import PRECISIONS

#: Modules that compute a function of `ELEMENTWISE`, with those of its options that are their attributes.
_MODULES = {
    torch.nn.ReLU: "relu", torch.nn.LeakyReLU: "leaky_relu", torch.nn.ELU: "elu", torch.nn.SiLU: "silu",
    torch.nn.GELU: "gelu", torch.nn.Sigmoid: "sigmoid", torch.nn.Tanh: "tanh",
    torch.nn.Softplus: "softplus", torch.nn.LogSigmoid: "logsigmoid",
}  # fmt: skip
#: Modules that torch applies to rows of edges, of which the last ones are the same for rows of nodes.
_NORMS = (torch.nn.BatchNorm1d, BatchNorm, LayerNorm, torch.nn.LayerNorm)
_OPERATORS: dict[type, tuple[str, Callable[[Any, Any], Any]]] = {
    ast.Add: ("add", operator.add), ast.Sub: ("sub", operator.sub), ast.Mult: ("mul", operator.mul),
    ast.Div: ("div", operator.truediv), ast.Pow: ("pow", operator.pow),
}  # fmt: skip
_AS_METHODS = ("unsqueeze", "squeeze", "reshape", "flatten", "softmax")
_COMPARED = {ast.Gt: "gt", ast.GtE: "ge", ast.Lt: "lt", ast.LtE: "le"}
_BOOLEAN = {"gt", "ge", "lt", "le", "eq", "ne", "greater", "greater_equal", "less", "less_equal", "not_equal"}


class _AnySize(int):
    """A number of features that fits everywhere, for layers whose arguments are not known yet."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, int) and int(other) > 1

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = int.__hash__


ANY = _AnySize(5)


_STORED = ("rows", "linear", "applied", "module")


@dataclass(frozen=True)
class _Term:
    """Rows of one side, or a vector that is "shared", that are added or subtracted.

    `mapped`: of edges that a linear layer maps, the numbers that it maps and the part of its weight.
    """

    side: str
    source: Source
    is_negative: bool = False
    mapped: tuple[Source, Source, int] | None = None


@dataclass
class Rows:
    """A tensor with a row for each edge, or a shared one (no size is `EDGES`).

    `segments` are, side by side in the last dimension, sums of terms; None: it is computed, a value of code.
    `alone`: a side, and what torch computes rows of this side by, if it can without the code.
    """

    sizes: tuple[Any, ...]
    segments: tuple[tuple[_Term, ...], ...] | None
    widths: tuple[int, ...] = ()  # of the segments, of the last dimension
    value: int | None = None
    is_bool: bool = False
    alone: tuple[str, Source] | None = None

    @property
    def flat(self) -> tuple[Any, ...]:
        """The sizes of one edge."""
        return tuple(size for size in self.sizes if size is not EDGES)


class _Weighted(NamedTuple):
    """The softmax of an exponent over the edges of each target, and the rows that it weights, if any."""

    exponent: Rows
    of: Rows | None = None


class _Parts(NamedTuple):
    """Rows [edges, parts, features], part by part."""

    rows: list[Rows]


#: The arguments of `sum` that add up parts.
_BY_PARTS: list[Any] = [([1], {}), ([], {"dim": 1})]


class _Opaque(NamedTuple):
    """An argument by its name of which nothing else is known."""

    name: str


def _is_one(size: Any) -> bool:
    return type(size) is int and size == 1


def _product(sizes: Iterable[Any]) -> Any:
    sizes = tuple(sizes)
    return ANY if any(size is ANY for size in sizes) else math.prod(sizes)


def edge_form_of(layer: Any, arguments: tuple[Argument, ...], given: dict[str, Any], edges: int) -> Form:
    """Return what an elementwise message may depend on in a call of `propagate` with these arguments."""
    return (("edges",), *(_form_of(layer.node_dim, a, given, edges) for a in arguments))


def _form_of(node_dim: int, argument: Argument, given: dict[str, Any], edges: int) -> tuple[Any, ...]:
    side = {"source": "source", "edge": "edge"}.get(argument.role, "target")
    if argument.role == "other" and not argument.is_target:
        return OPAQUE
    if argument.source not in given:
        return ABSENT
    value = given[argument.source]
    if side != "edge" and isinstance(value, (tuple, list)):
        # An index that is a bool is refused by torch.compile before torch 2.12.
        value = value[int(side == "target")] if len(value) == 2 else ...
    if is_constant(value):
        return "constant", type(value), value
    # Tracing puts subclasses of Tensor in.
    is_tensor = isinstance(value, torch.Tensor) and torch.compiler.is_compiling()
    if not is_tensor and type(value) not in (torch.Tensor, torch.nn.Parameter):
        return OPAQUE
    if value.dtype not in PRECISIONS:
        return OPAQUE
    if value.layout != torch.strided or value.dim() not in (1, 2, 3):
        return OPAQUE
    if value.shape[0] != edges if side == "edge" else node_dim not in (0, -value.dim()):
        return OPAQUE
    # Sizes that torch.compile takes for variable are fixed by index().
    return "rows", side, *[operator.index(size) for size in value.shape[1:]]


@dataclass(frozen=True)
class _Module:
    """A module of the layer, and where it is."""

    path: tuple[str, ...]
    part: Part


class EdgeReader(Reader):
    """Follows the code of a message whose arguments have a form of `edge_form_of`."""

    def __init__(self, layer: Any, function: Any, training: bool | None) -> None:
        super().__init__(layer, function, training)
        self.code = Code(MOST_INPUTS)
        self.inputs: list[Input] = []
        self.sources: list[Source] = []
        self.map: Source | None = None
        self.stored: dict[str, Rows] = {}  # attributes that the code sets
        self.rows: dict[int, Rows] = {}  # that are stored for all edges, by their values
        self._dropped: Source | None = None  # what was put through dropout last

    def read(self, arguments: tuple[Argument, ...], form: Form) -> EdgeMessage:
        """Return the message, or raise NotShown."""
        symbols: dict[str, Any] = {}
        for argument, (kind, *rest) in zip(arguments, form[1:], strict=True):
            if kind == "constant":
                symbols[argument.name] = rest[1]
            elif kind == "rows":
                side, *sizes = rest
                term = _Term(side, ("argument", argument.source, side))
                symbols[argument.name] = Rows((EDGES, *sizes), ((term,),), (sizes[-1] if sizes else 1,))
            elif kind == "opaque":
                symbols[argument.name] = _Opaque(argument.name)
        try:
            found, exponent = self.run(symbols), None
            if type(found) is _Weighted and found.of is not None:
                exponent, found = found
            is_stacked = type(found) is list
            results = found if is_stacked else [found]
            for rows in results:
                if type(rows) is not Rows or rows.is_bool or rows.sizes[:1] != (EDGES,):
                    raise NotShown
                if rows.sizes != results[0].sizes or len(rows.sizes) not in (2, 3):
                    raise NotShown
            summed = self._before_last(results) if exponent is None else None
            message = self._message(results, is_stacked, exponent)
            message.summed = summed
            return message
        except Unknown:
            raise NotShown from None

    def _message(
        self, found: list[Rows], is_stacked: bool = False, exponent: Rows | None = None
    ) -> EdgeMessage:
        values = [self.emitted(rows) for rows in (found if exponent is None else [*found, exponent])]
        stored: list[Any] = [(("rows", v), self.rows[v].sizes[1:], v) for v in sorted(self.rows)]
        stored += [(name, rows.sizes[1:], self.emitted(rows)) for name, rows in self.stored.items()]
        return EdgeMessage(
            self.code, self.inputs, self.sources, self.map, values, stored, found[0].sizes[1:], is_stacked,
            exponent is not None,
        )  # fmt: skip

    def _before_last(self, results: list[Rows]) -> EdgeMessage | None:
        """Return the message before a linear layer of rows of edges, which can follow their sum."""
        terms = results[0].segments[0] if results[0].segments else ()
        if len(results) > 1 or len(terms) != 1 or terms[0].source[0] != "linear" or terms[0].is_negative:
            return None
        side, (_, source, weight, *bias) = terms[0].side, terms[0].source
        if side != "edge" or terms[0].mapped is not None or len(results[0].sizes) != 2:
            return None
        rows = Rows((EDGES, weight[3]), ((_Term("edge", source),),), (weight[3],))
        message = self._message([self.rows[source[1]] if source[0] == "rows" else rows])
        message.last = weight, bias[0] if bias else None
        return message

    # Values of code.

    def emitted(self, rows: Rows) -> int:
        """Return the value of rows in the code that runs for each edge."""
        if rows.value is None:
            if rows.segments is None or len(rows.segments) != 1:
                raise NotShown
            rows.value = self._sum(rows.segments[0], rows.flat)
        return rows.value

    def _sum(self, terms: tuple[_Term, ...], sizes: tuple[Any, ...]) -> int:
        is_number = all(_is_one(size) for size in sizes)
        form = "number" if is_number else "features"
        parts: list[tuple[bool, int]] = []
        for side in ("source", "target", "shared"):  # added once for each node
            mine = [(t.is_negative, t.source) for t in terms if t.side == side]
            # Terms that are all negative are added, and subtracted together.
            is_negative = bool(mine) and all(negative for negative, _ in mine)
            mine = [(negative and not is_negative, source) for negative, source in mine]
            if mine:
                parts.append((is_negative, self._input(Input(side, form), _sum_of(mine))))
        for term in terms:
            if term.side == "edge":
                parts.append((term.is_negative, self._of_edges(term, form)))
        parts.sort(key=operator.itemgetter(0))
        negative, value = parts[0]
        value = self.code.emit("neg", value) if negative else value
        for negative, part in parts[1:]:
            value = self.code.emit("sub" if negative else "add", value, part)
        return value

    def _of_edges(self, term: _Term, form: str) -> int:
        if term.mapped is not None and form == "features":
            numbers, weight, size = term.mapped
            if self.map is None and size <= MOST_MAPPED:
                self.map = weight
                return self._input(Input("edge", "mapped", size), numbers)
        return self._input(Input("edge", form), term.source)

    def _input(self, of: Input, source: Source) -> int:
        for i, known in enumerate(zip(self.inputs, self.sources, strict=True)):
            if known == (of, source):
                return i
        if len(self.inputs) == MOST_INPUTS:
            raise NotShown
        self.inputs.append(of)
        self.sources.append(source)
        return len(self.inputs) - 1

    # Operations.

    def _applied(self, name: str, arguments: list[Any], options: dict[str, Any]) -> Rows:
        """Return what a function of `ELEMENTWISE` makes of rows and numbers."""
        rows = [a for a in arguments if type(a) is Rows]
        if name not in ELEMENTWISE or not rows or any(type(a) is _Weighted for a in arguments):
            raise NotShown
        if any(a.is_bool for a in (rows[1:] if name == "where" and rows[0] is arguments[0] else rows)):
            raise NotShown  # torch's arithmetic of truth values is another
        if name == "where" and not (type(arguments[0]) is Rows and arguments[0].is_bool):
            raise NotShown
        sizes = _broadcast([a.sizes for a in rows])
        if name in ("add", "sub") and not options and all(len(a.segments or ()) == 1 for a in rows):
            first, *others = rows
            if len(arguments) == 2 and [a.sizes for a in others] == [first.sizes]:
                terms, more = (a.segments[0] for a in rows)  # type: ignore[index]
                return Rows(sizes, (terms + (more if name == "add" else _negated(more)),), first.widths)
        taken = [self._argument(a) for a in arguments]
        settings = {key: self._argument(a, is_option=True) for key, a in options.items()}
        try:
            value = ELEMENTWISE[name](Emitter(self.code), *taken, **settings)
        except TypeError:
            raise NotShown from None
        return Rows(sizes, None, value=value, is_bool=name in _BOOLEAN)

    def _argument(self, a: Any, is_option: bool = False) -> Any:
        if type(a) is Rows:
            return self.emitted(a)
        if type(a) in (int, float):
            return float(a)
        if is_option and (a is None or type(a) in (bool, str)):
            return a
        raise NotShown

    def _weighted(self, left: Any, right: Any) -> Any:
        """Return rows times a softmax, or [edges, parts, features] times a number of each; None: neither."""
        for weight, x in ((left, right), (right, left)):
            if type(x) is not Rows:
                continue
            if type(weight) is _Weighted and weight.of is None:
                if _broadcast([weight.exponent.sizes, x.sizes]) != x.sizes:
                    raise NotShown
                return weight._replace(of=x)
            count = x.sizes[1] if type(weight) is Rows and len(x.sizes) == 3 else None
            if type(count) is int and count > 1 and weight.sizes == (EDGES, count, 1) != x.sizes:
                parts = [[_indexed(of, (slice(None), i)) for of in (weight, x)] for i in range(count)]
                return _Parts([self._applied("mul", part, {}) for part in parts])
        return None

    def _one_side(self, x: Rows) -> tuple[str, Source] | None:
        """Return the side of rows of one side alone, and what torch computes them by; None: they are not."""
        if x.alone is None and x.segments is not None and len(x.segments) == 1:
            sides = {term.side for term in x.segments[0]} - {"shared"}
            if len(sides) == 1:
                x.alone = sides.pop(), _sum_of([(term.is_negative, term.source) for term in x.segments[0]])
        return x.alone

    def _alone(self, x: Rows) -> tuple[str, Source]:
        """Return what `_one_side` does; rows of several sides are stored for all edges."""
        if x.sizes[:1] != (EDGES,) or len(x.sizes) != 2 or x.is_bool:
            raise NotShown
        if (known := self._one_side(x)) is not None:
            return known
        x.alone = "edge", ("rows", value := self.emitted(x))
        self.rows[value] = x
        return x.alone

    def _linear(self, x: Rows, module: _Module) -> Rows:
        """Return what a linear layer makes of rows, term by term."""
        width_in, width, has_bias = module.part.options
        if x.sizes[:1] != (EDGES,) or len(x.sizes) != 2 or x.sizes[-1] != width_in:
            raise NotShown
        # Where rows of all edges are multiplied anyway, those of nodes are added to them before.
        if x.segments is None or (len(x.segments) == 1 and any(map(_is_stored, x.segments[0]))):
            side, source = self._alone(x)
            bias = [("bias", module.path)] if has_bias else []
            return _of_side(side, ("linear", source, ("weight", module.path, 0, width_in), *bias), width)
        terms, start = [], 0
        for segment, size in zip(x.segments, x.widths, strict=True):
            weight = ("weight", module.path, start, start + size)
            for term in segment:
                made = replace(term, source=("linear", term.source, weight), mapped=None)
                # What is stored for all edges anyway, torch maps faster.
                if term.side == "edge" and term.mapped is None and not _is_stored(term):
                    made = replace(made, mapped=(term.source, weight, size))
                terms.append(made)
            start += size
        if has_bias:
            terms = _with_bias(terms, ("bias", module.path))
        return Rows((EDGES, width), (tuple(terms),), (width,))

    def _called(self, module: _Module, x: Any, is_fresh: bool = False) -> Any:
        """Return what a module makes of rows; `is_fresh`: it may overwrite them."""
        kind, part = module.part.kind, module.part
        if part.is_watched or type(x) is not Rows:
            raise NotShown
        if kind is torch.nn.Identity:
            return x
        if kind in (torch.nn.Linear, Linear) and part.options:
            return self._linear(x, module)
        if kind in (torch.nn.Sequential, MLP) and part.options:
            for path, child in part.options:
                x = self._called(_Module((*module.path, *path.split(".")), child), x, is_fresh)
                is_fresh = child.kind in (torch.nn.Linear, Linear, *_NORMS, *_MODULES)
            return x
        if kind in _NORMS or (kind is torch.nn.Dropout and part.options):
            side, source = self._alone(x)
            if side != "edge" and kind is not torch.nn.LayerNorm:
                raise NotShown  # it depends on how often a node is
            made = ("module", module.path, source)
            if kind is torch.nn.Dropout:
                if part.options[1] and not is_fresh:
                    raise NotShown  # what else is made of the rows would be of those that it overwrites
                if self._dropped is not None and not uses(source, self._dropped):
                    raise NotShown  # they might draw their numbers in another order
                self._dropped = made
            return _of_side(side, made, x.sizes[1])
        if kind is torch.nn.Dropout:
            return x
        if kind not in _MODULES:
            raise NotShown
        options = {name: of for name, of in part.options if not (is_fresh and name == "inplace")}
        found, one = self._applied(_MODULES[kind], [x], options), self._one_side(x)
        if one is not None and found.segments is None:
            found.alone = one[0], ("applied", _MODULES[kind], tuple(options.items()), one[1])
        return found

    # Expressions.

    def _value(self, node: ast.expr) -> Any:
        match node:
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
                name, compute = _OPERATORS[type(op)]
                first, second = self._value(left), self._value(right)
                if type(first) in (int, float) and type(second) in (int, float):
                    try:
                        return compute(first, second)
                    except (ArithmeticError, ValueError):
                        raise NotShown from None
                found = self._weighted(first, second) if name == "mul" else None
                return self._applied(name, [first, second], {}) if found is None else found
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                value = self._value(operand)
                return -value if type(value) in (int, float) else self._applied("neg", [value], {})
            case ast.Compare(left=left, ops=[op], comparators=[right]):
                return self._compared(op, self._value(left), self._value(right))
            case ast.List(elts=elements):
                return [self._value(element) for element in elements]
            case ast.ListComp(elt=element, generators=[generator]):
                return self._listed(element, generator)
            case ast.Call(func=function, args=arguments, keywords=keywords):
                if any(keyword.arg is None for keyword in keywords):
                    raise NotShown
                values = [self._value(argument) for argument in arguments]
                options = {str(keyword.arg): self._value(keyword.value) for keyword in keywords}
                return self._computed(function, values, options)
            case ast.Subscript(value=of, slice=index):
                value = self._value(of)
                if type(value) is tuple and len(value) > 0:
                    return self._size(value, self._value(index))
                return _indexed(value, self._value(index))
        return super()._value(node)

    def _store(self, of: Any, name: str, value: Any) -> None:
        # What was passed on would be stored as the object that it is; what was computed is made anew.
        kind, is_computed = type(self.layer), type(value) is Rows and value.segments is None
        is_plain = inspect.getattr_static(kind, name, None) is None and name in self.layer.__dict__
        if of is not self.layer or not is_computed or not is_plain:
            raise NotShown
        if value.sizes[:1] != (EDGES,) or value.is_bool or not all(map(_is_one, value.flat)):
            raise NotShown
        if inspect.getattr_static(kind, "__setattr__") is not vars(torch.nn.Module)["__setattr__"]:
            raise NotShown
        self.stored[name] = value

    def _attribute(self, of: Any, name: str) -> Any:
        if of is self.layer and name in self.stored:
            return self.stored[name]
        if type(of) is Rows and name in ("shape", "ndim"):
            return of.sizes if name == "shape" else len(of.sizes)
        found = super()._attribute(of, name)
        if type(found) is not Part:
            return found
        if found.kind is torch.nn.Parameter:
            shape = found.options
            term = _Term("shared", ("parameter", (name,)))
            return Rows(shape, ((term,),), (shape[-1] if shape else 1,))
        return _Module((name,), found)

    def _compared(self, op: ast.cmpop, left: Any, right: Any) -> Any:
        if type(op) in (ast.Is, ast.IsNot) and (left is None or right is None):
            other = right if left is None else left
            if type(other) in (Rows, _Module):
                return isinstance(op, ast.IsNot)
        if type(op) in _COMPARED and Rows in (type(left), type(right)):
            return self._applied(_COMPARED[type(op)], [left, right], {})
        if ANY is left or ANY is right:
            if isinstance(op, (ast.Eq, ast.NotEq)):
                return isinstance(op, ast.Eq)
            raise NotShown
        return super()._compared(op, left, right)

    def _size(self, sizes: tuple[Any, ...], index: Any) -> Any:
        if type(index) is not int or not -len(sizes) <= index < len(sizes):
            raise NotShown
        return sizes[index]

    def _listed(self, element: ast.expr, generator: ast.comprehension) -> list[Any]:
        """Follow `[... for i, module in enumerate(self.modules)]`, or without the number."""
        if generator.ifs or generator.is_async:
            raise NotShown
        match generator:
            case ast.comprehension(
                target=ast.Tuple(elts=[ast.Name(id=number), ast.Name(id=name)]),
                iter=ast.Call(func=function, args=[of], keywords=[]),
            ) if self._value(function) is enumerate:
                pass
            case ast.comprehension(target=ast.Name(id=name), iter=of):
                number = ""
            case _:
                raise NotShown
        modules, before, found = self._value(of), dict(self.names), []
        if type(modules) is not _Module or modules.part.kind is not torch.nn.ModuleList:
            raise NotShown
        for i, (path, part) in enumerate(modules.part.options):
            self.names[name] = _Module((*modules.path, path), part)
            self.names.update({number: i} if number else {})
            found.append(self._value(element))
        self.names = before
        return found

    def _computed(self, function: ast.expr, values: list[Any], options: dict[str, Any]) -> Any:
        if isinstance(function, ast.Attribute):
            of = self._value(function.value)
            if type(of) is Rows:
                return self._method(of, function.attr, values, options)
            if type(of) is _Parts and function.attr == "sum" and (values, options) in _BY_PARTS:
                return functools.reduce(lambda a, b: self._applied("add", [a, b], {}), of.rows)
            if of is self.layer and (inner := self.method(function.attr)) is not None:
                return self.inlined(inner, values, options)
            called = self._attribute(of, function.attr)
        else:
            called = self._value(function)
        if type(called) is _Module:
            if len(values) != 1 or options:
                raise NotShown
            return self._called(called, values[0])
        if called is hasattr and len(values) == 2 and values[0] is self.layer and type(values[1]) is str:
            return self._read("has", values[1])
        is_test = called is torch.is_tensor or (called is isinstance and values[1:] == [torch.Tensor])
        if is_test and values and (type(values[0]) is Rows or is_constant(values[0])):
            return type(values[0]) is Rows
        is_function = isinstance(called, (types.FunctionType, types.BuiltinFunctionType))
        if not is_function or (name := PASSED_ON.get(called)) is None:
            raise NotShown
        if name in ("cat", "stack"):
            return _joined(name, *values, **options)
        if name == "dropout":
            return _undropped(*values, **options)
        if name == "softmax of targets":
            return _softmax(*values, **options)
        if name == "pairs":
            return _pairs(values)
        if name in _AS_METHODS and values and type(values[0]) is Rows:
            return self._method(values[0], name, values[1:], options)
        return self._applied(name, values, options)

    def _method(self, of: Rows, name: str, values: list[Any], options: dict[str, Any]) -> Any:
        if name == "size" and not options and len(values) <= 1:
            return self._size(of.sizes, values[0]) if values else of.sizes
        if name == "dim" and not values and not options:
            return len(of.sizes)
        if name == "contiguous" and not values and not options:
            return of
        if name in ("view", "reshape") and values and not options:
            return _viewed(of, values[0] if type(values[0]) is tuple else tuple(values))
        if name == "unsqueeze" and not options and values in ([-1], [len(of.sizes)]):
            return _viewed(of, (*of.sizes, 1))
        if name == "softmax" and [*values, *options.values()] in ([1], [-1]) and options.keys() <= {"dim"}:
            side, source = self._alone(of)
            return _of_side(side, ("applied", "softmax", (("dim", 1),), source), of.sizes[1])
        if name == "sum" and (values, options) in _BY_PARTS and len(of.sizes) == 3 and _is_one(of.sizes[1]):
            return _viewed(of, (EDGES, of.sizes[2]))
        is_last = not options and len(of.sizes) > 1 and values in ([-1], [len(of.sizes) - 1])
        if name == "squeeze" and is_last and (_is_one(of.sizes[-1]) or of.sizes[-1] is ANY):
            return _viewed(of, of.sizes[:-1])
        if name == "flatten" and values == [1] and not options and len(of.sizes) > 1:
            return _viewed(of, (EDGES, _product(of.flat)))
        if name == "repeat" and len(values) == len(of.sizes) == 3 and not options:
            count = values[1]
            if values[0] == values[2] == 1 and type(count) is int and count > 0 and _is_one(of.sizes[1]):
                return _repeated(of, count) if count > 1 else of
        return self._applied(name, [of, *values], options)


def _of_side(side: str, source: Source, width: Any) -> Rows:
    """Return rows of one side that torch computes by a source."""
    return Rows((EDGES, width), ((_Term(side, source),),), (width,), alone=(side, source))


def _is_stored(term: _Term) -> bool:
    """Return whether a term is rows of all edges that torch computes."""
    return term.side == "edge" and term.source[0] in _STORED


def _sum_of(terms: list[tuple[bool, Source]]) -> Source:
    """Return the source of a sum of sources, some of them negative."""
    return terms[0][1] if terms == [(False, terms[0][1])] else ("sum", *terms)


def _softmax(x: Any, index: Any = None, ptr: Any = None, num_nodes: Any = None) -> _Weighted:
    """Return PyG's softmax of rows over the edges of each target."""
    given = [getattr(of, "name", of) for of in (index, ptr, num_nodes)]
    is_usual = given[0] == "index" and given[1] in ("ptr", None) and given[2] in ("size_i", "dim_size", None)
    if type(x) is not Rows or not is_usual:
        raise NotShown
    return _Weighted(x)


def _pairs(of: list[Any]) -> Rows:
    """Return PyG's features of pairs of points, for which torch gathers the arguments for each edge."""
    sources = [x.segments[0][0].source for x in of if type(x) is Rows and x.segments and len(x.sizes) == 2]
    if len(sources) != 4 or any(how != "argument" or side == "edge" for how, *_, side in sources):
        raise NotShown
    return _of_side("edge", ("pairs", *sources), 4)


def _repeated(of: Rows, count: int) -> Rows:
    """Return rows [edges, 1, features] that are repeated in the middle; only one of them can be used."""
    if of.segments is None:
        raise NotShown
    segments = tuple(
        tuple(replace(t, source=("repeated", t.source, t.mapped), mapped=None) for t in terms)
        for terms in of.segments
    )
    return Rows((EDGES, count, of.sizes[2]), segments, of.widths)


def _negated(terms: tuple[_Term, ...]) -> tuple[_Term, ...]:
    return tuple(replace(term, is_negative=not term.is_negative) for term in terms)


def _with_bias(terms: list[_Term], bias: Source) -> list[_Term]:
    """Add a bias to the rows of a node's side, so that no vector is added for each edge, if there are any."""
    for side in ("target", "source"):
        for i, term in enumerate(terms):
            if term.side == side and not term.is_negative:  # it is what the linear layer made of rows
                terms[i] = replace(term, source=(*term.source, bias))
                return terms
    return [*terms, _Term("shared", bias)]


def _broadcast(shapes: list[tuple[Any, ...]]) -> tuple[Any, ...]:
    """Return the sizes of an elementwise result. Numbers go with features, and nothing else is expanded."""
    count = max(map(len, shapes))
    padded = [(*(1,) * (count - len(sizes)), *sizes) for sizes in shapes]
    found = []
    for sizes in zip(*padded, strict=True):
        others = [size for size in sizes if not _is_one(size)]
        if any((size is EDGES) != (others[0] is EDGES) or size != others[0] for size in others):
            raise NotShown
        found.append(others[0] if others else 1)
    has_edges = found[:1] == [EDGES]
    if EDGES in found[1:]:
        raise NotShown
    whole = found[1:] if has_edges else found
    for sizes in padded:
        own = list(sizes[1:] if has_edges else sizes)
        if has_edges and sizes[0] is not EDGES and not _is_one(sizes[0]):
            raise NotShown
        if own != whole and not all(_is_one(size) for size in own):
            raise NotShown
    return tuple(found)


def _viewed(of: Rows, sizes: tuple[Any, ...]) -> Rows:
    """Return rows with other sizes, if each edge keeps its numbers."""
    if of.sizes[:1] != (EDGES,) or not sizes:
        raise NotShown
    first, others = sizes[0], list(sizes[1:])
    if not all(type(size) in (int, _AnySize) for size in others):
        raise NotShown
    whole = _product(of.flat)
    if first is EDGES and others.count(-1) == 1:
        rest = _product(size for size in others if size != -1)
        others[others.index(-1)] = ANY if whole is ANY or rest is ANY else whole // max(rest, 1)
    elif first is not EDGES and first != -1:
        raise NotShown
    if any(size < 0 for size in others) or (whole is not ANY and _product(others) != whole):
        raise NotShown
    last = others[-1] if others else 1
    if of.segments is not None and len(of.segments) > 1 and last != of.sizes[-1]:
        raise NotShown
    widths = (last,) if of.segments is not None and len(of.segments) == 1 else of.widths
    return replace(of, sizes=(EDGES, *others), widths=widths)


def _indexed(of: Any, index: Any) -> Any:
    """Return rows[:, None], rows[..., None], rows[:, i] of [edges, parts, features], or modules[i]."""
    if type(of) is _Module and of.part.kind in (torch.nn.ModuleList, torch.nn.Sequential):
        if type(index) is not int or not 0 <= index < len(of.part.options):
            raise NotShown
        path, part = of.part.options[index]
        return _Module((*of.path, path), part)
    if type(of) is not Rows or type(index) is not tuple or of.sizes[:1] != (EDGES,):
        raise NotShown
    if index in ((*(slice(None),) * len(of.sizes), None), (..., None)):
        return _viewed(of, (*of.sizes, 1))
    if len(of.sizes) != 3 or len(index) != 2 or index[0] != slice(None) or type(index[1]) is not int:
        raise NotShown
    if of.segments is None or not 0 <= index[1] < of.sizes[1]:
        raise NotShown
    segments = []
    for terms, width in zip(of.segments, of.widths, strict=True):
        segments.append(tuple(_column(term, index[1], width, of.sizes[1]) for term in terms))
    return Rows((EDGES, of.sizes[2]), tuple(segments), of.widths)


def _column(term: _Term, part: int, width: int, parts: Any) -> _Term:
    if term.source[0] == "repeated":
        return replace(term, source=term.source[1], mapped=term.source[2])
    if _is_one(parts):
        return term
    if term.side == "shared":
        raise NotShown
    return replace(term, source=("columns", ("split", term.source, width), part), mapped=None)


def _joined(name: str, tensors: Any, dim: Any = 0) -> Any:
    """Return torch.cat of rows in the last dimension, or torch.stack, whose list is returned."""
    if type(tensors) not in (list, tuple) or not tensors:
        raise NotShown
    if name == "stack":
        if dim != 1 or not all(type(x) is Rows and len(x.sizes) == 2 for x in tensors):
            raise NotShown
        return _viewed(tensors[0], (EDGES, 1, tensors[0].sizes[1])) if len(tensors) == 1 else list(tensors)
    rows = [x for x in tensors if type(x) is Rows]
    if len(rows) < len(tensors):
        raise NotShown
    count = len(rows[0].sizes)
    if type(dim) is not int or dim not in (-1, count - 1) or count < 2:
        raise NotShown
    segments: tuple[Any, ...] = ()
    widths: tuple[int, ...] = ()
    for x in rows:
        if x.segments is None or x.sizes[:-1] != rows[0].sizes[:-1]:
            raise NotShown
        segments, widths = segments + x.segments, widths + x.widths
    total = ANY if any(width is ANY for width in widths) else sum(widths)
    return Rows((*rows[0].sizes[:-1], total), segments, widths)


def _undropped(x: Any, p: Any = 0.5, training: Any = True, inplace: Any = False) -> Any:
    if type(x) is not Rows or inplace is not False or not (p == 0 or training is False):
        raise NotShown
    return x
