"""What a layer's `message` computes, read from its source code. The message is never run to find out.

A message is taken for a product only if its code shows that it is one: a small interpreter follows the code
with what is known of the arguments (their shapes, and constants) and with the constants that the code reads
from the layer, from modules and from its closure. Code that does anything else, such as calling a function
that is not known here, assigning an attribute or testing the value of a tensor, is left to PyG, which runs it
as often as it would without us.
"""

from __future__ import annotations
import __future__

import ast
import builtins
import contextlib
import functools
import inspect
import linecache
import operator
import types
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812
from torch_geometric.nn import MLP
from torch_geometric.nn.conv.ppf_conv import point_pair_features
from torch_geometric.utils import softmax

from gnnsparse.nn.inputs import is_watched
from gnnsparse.ops.edges.elementwise import ELEMENTWISE

NO_PRODUCT = "its message is none that is recognised"

#: Arguments that PyG makes of the edges. A message that uses one is none that is recognised.
_OF_EDGES = {
    "edge_index", "adj_t", "edge_index_i", "edge_index_j", "size", "size_i", "size_j", "ptr", "index",
    "dim_size",
}  # fmt: skip
#: Types of the constants that code may read, whose values can be compared.
_CONSTANTS = (type(None), bool, int, float, str)
#: Functions that a message over edges may call, and how those of torch are called as methods.
PASSED_ON = {
    **{getattr(of, name): name for of in (F, torch) for name in ELEMENTWISE if hasattr(of, name)},
    torch.cat: "cat", torch.stack: "stack", F.dropout: "dropout", torch.unsqueeze: "unsqueeze",
    torch.squeeze: "squeeze", torch.reshape: "reshape", torch.flatten: "flatten", F.softmax: "softmax",
    torch.softmax: "softmax", softmax: "softmax of targets", point_pair_features: "pairs",
}  # fmt: skip
#: What a message may name besides constants. They are compared by identity.
_KNOWN = (torch.Tensor, isinstance, hasattr, enumerate, torch.is_tensor, *PASSED_ON)
_IDS_OF_KNOWN = frozenset(map(id, _KNOWN))
_COMPARISONS: dict[type, Callable[[Any, Any], Any]] = {
    ast.Is: operator.is_, ast.IsNot: operator.is_not, ast.Eq: operator.eq, ast.NotEq: operator.ne,
    ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge,
}  # fmt: skip
#: The flags of `from __future__ import ...`. Code that is executed may have them from where that is done.
_FUTURES = sum(getattr(__future__, name).compiler_flag for name in __future__.all_feature_names)

#: What is known of the arguments of a message: for each argument a tuple whose first element is its kind.
Form = tuple[tuple[Any, ...], ...]
ABSENT, OPAQUE = ("absent",), ("opaque",)
#: In symbolic values: the number of edges, and an argument of which nothing is known.
EDGES, UNKNOWN = object(), object()


class NotShown(Exception):  # noqa: N818  (it reports no error)
    """The code does something that is not known to be a product."""


@dataclass(frozen=True)
class Message:
    """A message that was recognised: the features of the source, times a weight of the edge or not."""

    features: str  # name of the argument of `propagate` with the features
    weight: str | None = None  # name of the argument with the weights; None: there are none
    by_head: bool = False  # whether there is a weight for each head, [edges, heads], or one for each edge


@dataclass(frozen=True)
class Argument:
    """An argument of `message`."""

    name: str
    source: str  # name of the argument of `propagate` that it is made of
    role: str  # "source" (features of sources, one row for each edge), "edge" (passed as it is), "other"

    @property
    def is_target(self) -> bool:
        """Whether it has features of targets, one row for each edge."""
        return self.name.endswith("_i") and self.name not in _OF_EDGES


def arguments_of(names: list[str]) -> tuple[Argument, ...]:
    """Return the arguments of a `message` that has parameters of these names, by PyG's rules."""
    found = []
    for name in names:
        side = name[-2:] if name not in _OF_EDGES else ""
        role = "other" if name in _OF_EDGES or side == "_i" else "source" if side == "_j" else "edge"
        found.append(Argument(name, name[:-2] if side in ("_i", "_j") else name, role))
    return tuple(found)


def form_of(layer: Any, arguments: tuple[Argument, ...], given: dict[str, Any], edges: int) -> Form:
    """Return what the message of a layer may depend on in a call of `propagate` with these arguments."""
    return tuple(_form_of(layer.node_dim, argument, given, edges) for argument in arguments)


def _form_of(node_dim: int, argument: Argument, given: dict[str, Any], edges: int) -> tuple[Any, ...]:
    if argument.role == "other":
        return OPAQUE
    if argument.source not in given:
        return ABSENT
    value = given[argument.source]
    is_source = argument.role == "source"
    if is_source and isinstance(value, (tuple, list)) and len(value) == 2:
        value = value[0]
    if type(value) in _CONSTANTS:
        return "constant", type(value), value
    # A subclass of Tensor may define its own products. Tracing puts subclasses of its own in.
    is_tensor = isinstance(value, torch.Tensor) and torch.compiler.is_compiling()
    if not is_tensor and type(value) not in (torch.Tensor, torch.nn.Parameter):
        return OPAQUE
    if is_source and value.dim() == 3 and node_dim == -2:  # one graph for a batch of features
        return ("batch",)
    if is_source and value.dim() > 0:
        return ("features", *value.shape[1:-1]) if value.dim() > 1 else OPAQUE
    if value.dim() > 0 and value.shape[0] == edges:
        return ("weights", *value.shape[1:])
    return OPAQUE


@dataclass(frozen=True)
class Reading:
    """What a message computes for arguments of one form, as long as what its code read stays as it is."""

    form: Form
    message: Message | None  # the product that it is; None: none that is recognised
    function: Any  # the method that was read
    code: Any
    #: What the code read besides its arguments: where, as `_looked_up` takes it, the name, and the value.
    reads: tuple[tuple[Any, str, Any], ...] = ()
    edges: Any = None  # the EdgeMessage that it is, if it was read as one

    @functools.cached_property
    def attributes(self) -> list[tuple[Any, str, Any]] | None:
        """The constants that were read, if torch.compile can watch all: of the layer (None) or of modules."""
        constants = [read for read in self.reads if type(read[2]) in _CONSTANTS]
        if not all(where == "layer" or type(where) is types.ModuleType for where, _, _ in constants):
            return None
        return [(None if where == "layer" else where, name, value) for where, name, value in constants]

    def holds(self, layer: Any) -> bool:
        """Return whether a layer's message would be read in the same way now."""
        is_own = type(layer).message is self.function and "message" not in layer.__dict__
        if not is_own or self.function.__code__ is not self.code:
            return False
        for where, name, value in self.reads:
            try:
                now = _looked_up(where, layer, self.function, name)
            except NotShown:
                return False
            if now is not value and (type(now) is not type(value) or now != value):
                return False
        return True


def message_of(layer: Any) -> Any:
    """Return the function that is a layer's `message`; None: it is another object, or set in the layer."""
    function = _of_class(type(layer), "message")
    return None if type(function) is not types.FunctionType or "message" in layer.__dict__ else function


def read_message(
    layer: Any, arguments: tuple[Argument, ...], form: Form, training: bool | None = None
) -> Reading:
    """Read what a layer's `message` computes for arguments of a form; `training` None: as it is now."""
    if (function := message_of(layer)) is None:
        found = getattr(type(layer), "message", None)
        return Reading(form, None, found, getattr(found, "__code__", None))
    reader = Reader(layer, function, training)
    try:
        found = reader.run(_symbols(arguments, form))
    except NotShown:
        found = None
    if type(found) is _Symbol and found.is_features:
        found = Message(found.source)
    reads = tuple((where, name, value) for (where, name), value in reader.reads.items())
    message = found if type(found) is Message else None
    return Reading(form, message, function, function.__code__, reads)


class Part(NamedTuple):
    """What is known of a module or a parameter of a layer.

    `options`: what it computes by. Of a linear layer (inputs, outputs, whether there is a bias), nothing as
    long as it has no sizes; the constants of an activation; the parts of a list, or those that an MLP applies
    in turn, with their paths; of dropout that drops something its own; the shape of a parameter.
    """

    kind: type
    is_watched: bool
    options: tuple[Any, ...]


#: Options of activations, by their names in `ELEMENTWISE` and in modules.
_OPTIONS = ("negative_slope", "alpha", "approximate", "beta", "threshold", "inplace")


def _part(of: Any) -> Part:
    kind = type(of)
    if not isinstance(of, torch.nn.Module):
        return Part(torch.nn.Parameter, False, () if torch.nn.parameter.is_lazy(of) else tuple(of.shape))
    options: tuple[Any, ...] = ()
    own, weight = vars(of), of._parameters.get("weight")
    if kind in (torch.nn.Sequential, torch.nn.ModuleList):
        options = tuple((name, _part(child)) for name, child in of._modules.items())
    elif kind is MLP:
        options = tuple((path, _part(of.get_submodule(path))) for path in _steps_of(of))
    elif kind is torch.nn.Dropout:
        options = (own["p"], own["inplace"]) if own["training"] and own["p"] > 0 else ()
    elif weight is not None:
        if not torch.nn.parameter.is_lazy(weight) and weight.dim() == 2:
            options = (weight.shape[1], weight.shape[0], of._parameters.get("bias") is not None)
    else:
        options = tuple((name, own[name]) for name in _OPTIONS if type(own.get(name)) in _CONSTANTS[1:])
    return Part(kind, is_watched(of), options)


def _steps_of(mlp: Any) -> list[str]:
    """Return the paths of the modules that an MLP of PyG applies in turn; none if it does anything else."""
    lins, norms, found = len(mlp.lins), len(mlp.norms), []
    has_act = isinstance(mlp._modules.get("act"), torch.nn.Module)
    is_known = has_act or mlp.act is None
    if not is_known or lins != norms + bool(mlp.plain_last) or (mlp.training and any(mlp.dropout)):
        return []
    for i in range(lins):
        found.append(f"lins.{i}")
        if i < norms:
            more = [f"norms.{i}", *(["act"] if has_act else [])]
            found += reversed(more) if mlp.act_first else more
    return found


@dataclass(frozen=True)
class _Symbol:
    """A tensor with one row for each edge."""

    source: str  # the argument of `propagate` that it is made of
    #: Its sizes, of one graph of a batch: `EDGES` first; None: the number of features, not to be used.
    sizes: tuple[Any, ...]
    is_features: bool  # whether it holds features of sources; False: it holds weights of edges
    is_batch: bool = False  # whether it has a size before that of the edges


def _symbols(arguments: tuple[Argument, ...], form: Form) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for argument, (kind, *sizes) in zip(arguments, form, strict=True):
        if kind == "constant":
            found[argument.name] = sizes[1]
        elif kind in ("features", "batch"):
            found[argument.name] = _Symbol(argument.source, (EDGES, *sizes, None), True, kind == "batch")
        elif kind == "weights":
            found[argument.name] = _Symbol(argument.source, (EDGES, *sizes), False)
        elif kind == "opaque":
            found[argument.name] = UNKNOWN
    return found


def _of_class(kind: type, name: str) -> Any:
    """Return an attribute of a class as it is written there, or None."""
    return next((vars(base)[name] for base in kind.__mro__ if name in vars(base)), None)


def _looked_up(where: Any, layer: Any, function: Any, name: str) -> Any:
    """Return a constant, a module or a known function that `message` reads, else raise NotShown."""
    if type(where) is tuple:  # of a method that `message` calls
        inner, where = where
        function = _of_class(type(layer), inner)
    code = function.__code__
    found: Any = NotShown
    if where == "has":
        if type(layer).__getattr__ is not torch.nn.Module.__getattr__:  # which would run to find out
            raise NotShown
        places = (layer.__dict__, layer._modules, layer._parameters, layer._buffers)
        return any(name in place for place in places) or hasattr(type(layer), name)
    if where == "method":
        function = _of_class(type(layer), name)
        if type(function) is not types.FunctionType or name in layer.__dict__:
            raise NotShown
        return function.__code__
    if where == "layer":
        # `hasattr` finds more than the class's own attributes, but none of these, and takes less time.
        of_class = _of_class(type(layer), name) if hasattr(type(layer), name) else None
        of_module = layer._modules.get(name, layer._parameters.get(name))
        if of_module is not None and of_class is None and name not in layer.__dict__:
            if type(layer).__getattr__ is not torch.nn.Module.__getattr__:
                raise NotShown
            return _part(of_module)
        found = layer.__dict__.get(name, of_class)
        is_computed = hasattr(type(of_class), "__set__")  # a property, or a descriptor that comes first
        if is_computed or type(found) not in _CONSTANTS or (found is None and name not in layer.__dict__):
            raise NotShown
    elif where == "default":
        defaults, positional = function.__defaults__ or (), code.co_varnames[: code.co_argcount]
        known = dict(zip(positional[len(positional) - len(defaults) :], defaults, strict=True))
        found = {**known, **(function.__kwdefaults__ or {})}.get(name, NotShown)
    elif where == "closure":
        with contextlib.suppress(ValueError):  # it has no value yet
            found = function.__closure__[code.co_freevars.index(name)].cell_contents
    elif where == "global":
        found = function.__globals__.get(name, vars(builtins).get(name, NotShown))
    else:
        found = vars(where).get(name, NotShown)
    if type(found) not in (*_CONSTANTS, types.ModuleType) and id(found) not in _IDS_OF_KNOWN:
        raise NotShown
    return found


#: Functions' code -> their syntax trees.
_definitions: weakref.WeakKeyDictionary[types.CodeType, ast.FunctionDef | None] = weakref.WeakKeyDictionary()


def _definition(function: Any) -> ast.FunctionDef | None:
    """Return the syntax tree of a function; None: its source is not at hand, or is not what was compiled."""
    code = function.__code__
    if code not in _definitions:
        linecache.checkcache(code.co_filename)
        source = "".join(linecache.getlines(code.co_filename, function.__globals__))
        _definitions[code] = _found(source, code)
    return _definitions[code]


def _found(source: str, code: types.CodeType) -> ast.FunctionDef | None:
    try:  # the file may have changed since it was imported: it has to give the same code again
        tree = ast.parse(source)
        known = [compile(tree, code.co_filename, "exec", code.co_flags & _FUTURES, dont_inherit=True)]
    except (SyntaxError, ValueError):
        return None
    while known and code not in known:
        known = [c for outer in known for c in outer.co_consts if type(c) is types.CodeType]
    for node in ast.walk(tree) if known else ():
        if isinstance(node, ast.FunctionDef) and node.name == code.co_name:
            lines = [node.lineno, *(decorator.lineno for decorator in node.decorator_list)]
            if min(lines) == code.co_firstlineno:
                return node
    return None


class Reader:
    """Follows the code of a message; `reads` has what it read besides arguments: (where, name) -> value."""

    def __init__(self, layer: Any, function: Any, training: bool | None) -> None:
        self.layer, self.function, self.training = layer, function, training
        self.reads: dict[tuple[Any, str], Any] = {}
        self.names: dict[str, Any] = {}
        self._inner: str | None = None  # the method that is followed; None: `message`

    def run(self, symbols: dict[str, Any]) -> Any:
        """Return what the function returns for its arguments."""
        code = self.function.__code__
        kind: Any = type(self.layer)
        plain = kind.__getattribute__ is object.__getattribute__
        tree = _definition(self.function)
        if tree is None or not plain or code.co_flags & (inspect.CO_VARARGS | inspect.CO_VARKEYWORDS):
            raise NotShown
        first, *others = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        if first in symbols:
            raise NotShown
        self.names = {first: self.layer, **symbols}
        for name in others:
            if name not in symbols:
                self.names[name] = self._read("default", name)
        return self._block(tree.body)

    def method(self, name: str) -> Any:
        """Return a method of the layer's class by its name, or None."""
        function = _of_class(type(self.layer), name)
        return function if type(function) is types.FunctionType else None

    def inlined(self, function: Any, values: list[Any], options: dict[str, Any]) -> Any:
        """Return what a method of the layer returns, whose code is followed."""
        if self._inner is not None:
            raise NotShown
        self._read("method", name := function.__name__)
        code, before = function.__code__, (self.function, self.names)
        names = code.co_varnames[1 : code.co_argcount + code.co_kwonlyargcount]
        given = dict(zip(names, values, strict=False))
        if self.method(name) is not function or len(values) >= code.co_argcount or given.keys() & options:
            raise NotShown
        if not options.keys() <= set(names):
            raise NotShown
        self.function, self._inner = function, name
        found = self.run({**given, **options})
        (self.function, self.names), self._inner = before, None
        return found

    def _read(self, where: Any, name: str) -> Any:
        if self._inner is not None and where in ("default", "closure", "global"):
            where = self._inner, where
        if (where, name) == ("layer", "training") and self.training is not None:
            found: Any = self.training
        else:
            found = _looked_up(where, self.layer, self.function, name)
        self.reads[where, name] = found
        return found

    def _block(self, body: list[ast.stmt]) -> Any:
        """Return what a list of statements returns; `NotShown` itself if it comes to its end."""
        for statement in body:
            match statement:
                case ast.Return(value=ast.expr() as value):
                    return self._value(value)
                case ast.Assign(targets=[ast.Name(id=name)], value=value):
                    self.names[name] = self._value(value)
                case ast.Assign(targets=[ast.Tuple(elts=targets)], value=ast.Tuple(elts=values)):
                    names = [target.id for target in targets if isinstance(target, ast.Name)]
                    if not len(names) == len(targets) == len(values):
                        raise NotShown
                    self.names.update(zip(names, [self._value(value) for value in values], strict=True))
                case ast.Assign(targets=[ast.Attribute(value=of, attr=name)], value=value):
                    self._store(self._value(of), name, self._value(value))
                case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                    self.names[name] = self._value(value)
                case ast.If(test=test, body=then, orelse=otherwise):
                    found = self._block(then if self._truth(test) else otherwise)
                    if found is not NotShown:
                        return found
                case ast.Assert(test=test):
                    if not self._truth(test):
                        raise NotShown
                case ast.Pass() | ast.Expr(value=ast.Constant()):
                    pass
                case _:
                    raise NotShown
        return NotShown

    def _store(self, of: Any, name: str, value: Any) -> None:
        raise NotShown

    def _truth(self, node: ast.expr) -> bool:
        found = self._value(node)
        if type(found) not in _CONSTANTS:
            raise NotShown
        return bool(found)

    def _value(self, node: ast.expr) -> Any:
        """Return the value of an expression: a constant, a tuple, a symbol, a message, or one of `_KNOWN`."""
        match node:
            case ast.Constant(value=value) if type(value) in _CONSTANTS or value is Ellipsis:
                return value
            case ast.Name(id=name):
                return self._named(name)
            case ast.Attribute(value=of, attr=name):
                return self._attribute(self._value(of), name)
            case ast.Tuple(elts=elements):
                return tuple(self._value(element) for element in elements)
            case ast.Slice(lower=None, upper=None, step=None):
                return slice(None)
            case ast.Subscript(value=of, slice=index):
                return _item(self._value(of), self._value(index))
            case ast.IfExp(test=test, body=then, orelse=otherwise):
                return self._value(then if self._truth(test) else otherwise)
            case ast.BoolOp(op=op, values=[*parts, last]):
                for part in parts:
                    if self._truth(part) is isinstance(op, ast.Or):
                        return self._value(part)
                return self._value(last)
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return not self._truth(operand)
            case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() as value)):
                return -value
            case ast.Compare(left=left, ops=[op], comparators=[right]):
                return self._compared(op, self._value(left), self._value(right))
            case ast.BinOp(left=left, op=ast.Mult(), right=right):
                return _multiplied(self._value(left), self._value(right))
            case ast.Call(func=function, args=arguments, keywords=[]):
                return self._call(function, arguments)
        raise NotShown

    def _named(self, name: str) -> Any:
        code = self.function.__code__
        if name in self.names:
            return self.names[name]
        if name in code.co_varnames or name in code.co_cellvars:  # it has no value yet
            raise NotShown
        return self._read("closure" if name in code.co_freevars else "global", name)

    def _attribute(self, of: Any, name: str) -> Any:
        if of is self.layer:
            return self._read("layer", name)
        if type(of) is types.ModuleType:
            return self._read(of, name)
        if type(of) is _Symbol and not of.is_batch and name in ("shape", "ndim"):
            return of.sizes if name == "shape" else len(of.sizes)
        raise NotShown

    def _compared(self, op: ast.cmpop, left: Any, right: Any) -> Any:
        return _compared(type(op), left, right)

    def _call(self, function: ast.expr, arguments: list[ast.expr]) -> Any:
        if isinstance(function, ast.Attribute):
            of = self._value(function.value)
            if type(of) is _Symbol:
                return _method(of, function.attr, [self._value(a) for a in arguments])
            called = self._attribute(of, function.attr)
        else:
            called = self._value(function)
        values = [self._value(argument) for argument in arguments]
        match values:
            case [value, kind] if called is isinstance and kind is torch.Tensor and _has_type(value):
                return type(value) is _Symbol
            case [value] if called is torch.is_tensor and _has_type(value):
                return type(value) is _Symbol
            case [left, right] if called in (torch.mul, torch.multiply):
                return _multiplied(left, right)
            case [_Symbol() as weights, int() as dim] if called is torch.unsqueeze:
                return _unsqueezed(weights, dim)
        raise NotShown


def is_constant(value: Any) -> bool:
    """Return whether a value is a constant that code may read."""
    return type(value) in _CONSTANTS


def _has_type(value: Any) -> bool:
    return type(value) is _Symbol or type(value) in _CONSTANTS


def _compared(kind: type, left: Any, right: Any) -> bool:
    if kind not in _COMPARISONS:
        raise NotShown
    if kind in (ast.Is, ast.IsNot):
        # Equal constants of other types may be one object or two.
        is_clear = left is None or right is None or type(left) is type(right) is bool
        if not (is_clear and _has_type(left) and _has_type(right)):
            raise NotShown
    elif type(left) not in _CONSTANTS or type(right) not in _CONSTANTS:
        raise NotShown
    with contextlib.suppress(TypeError):  # which PyG's call raises
        return bool(_COMPARISONS[kind](left, right))
    raise NotShown


def _method(of: _Symbol, name: str, values: list[Any]) -> Any:
    if name in ("mul", "multiply") and len(values) == 1:
        return _multiplied(of, values[0])
    if of.is_batch:
        raise NotShown
    if name == "dim" and not values:
        return len(of.sizes)
    if name == "size" and len(values) <= 1:
        return _item(of.sizes, values[0]) if values else of.sizes
    if name in ("view", "reshape") and values:
        sizes = values[0] if len(values) == 1 and type(values[0]) is tuple else tuple(values)
        return _viewed(of, sizes)
    if name == "unsqueeze" and len(values) == 1:
        return _unsqueezed(of, values[0])
    raise NotShown


def _item(of: Any, index: Any) -> Any:
    """Return a size, or weights with a size of 1 appended (w[:, None])."""
    if type(of) is tuple and type(index) is int and -len(of) <= index < len(of) and of[index] is not None:
        return of[index]
    if type(of) is not _Symbol or type(index) is not tuple:
        raise NotShown
    if index not in ((*(slice(None),) * len(of.sizes), None), (..., None)):
        raise NotShown
    return _unsqueezed(of, -1)


def _unsqueezed(of: _Symbol, dim: Any) -> _Symbol:
    """Return weights with a size of 1 appended."""
    if of.is_features or type(dim) is not int or dim not in (-1, len(of.sizes)):
        raise NotShown
    return _Symbol(of.source, (*of.sizes, 1), False)


def _viewed(of: _Symbol, sizes: tuple[Any, ...]) -> _Symbol:
    """Return weights with other sizes of 1 at the end, and all other sizes as they are."""
    first, *others = sizes
    if of.is_features or first not in (EDGES, -1) or not all(type(size) is int for size in others):
        raise NotShown
    own = of.sizes
    while len(own) > 1 and own[-1] == 1:
        own = own[:-1]
    shape = (EDGES, *others)
    if shape[: len(own)] != own or any(size != 1 for size in shape[len(own) :]):
        raise NotShown
    return _Symbol(of.source, shape, False)


def _multiplied(left: Any, right: Any) -> Message:
    """Return the message that multiplies features by weights which do not depend on the feature."""
    if type(left) is not _Symbol or type(right) is not _Symbol or left.is_features == right.is_features:
        raise NotShown
    x, w = (left, right) if left.is_features else (right, left)
    if len(w.sizes) != len(x.sizes) or w.sizes[-1] != 1 or len(x.sizes) not in (2, 3):
        raise NotShown
    heads = w.sizes[1:-1]
    if all(size == 1 for size in heads):
        return Message(x.source, w.source)
    if heads != x.sizes[1:-1]:
        raise NotShown
    return Message(x.source, w.source, by_head=True)
