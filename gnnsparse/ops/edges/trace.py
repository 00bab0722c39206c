"""A message that is written as a Python function of tensors, as code over edges."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, NoReturn

import torch
import torch.nn.functional as F  # noqa: N812

from gnnsparse.errors import bad_type, bad_value
from gnnsparse.ops.edges.elementwise import ELEMENTWISE, Emitter, Unknown
from gnnsparse.ops.edges.program import MOST_MAPPED, Code, Input, Step

#: Inputs are counted before the steps, of which there may be any number.
MOST_INPUTS = 32
#: The side of an argument by the end of its name; other arguments are shared by all edges.
_SIDES = {"_ij": "edge", "_i": "target", "_j": "source"}


def side_of(name: str) -> str:
    """Return whose rows an argument of this name has."""
    return next((side for end, side in _SIDES.items() if name.endswith(end)), "shared")


class Form(NamedTuple):
    """What tracing depends on of an argument; `rows`: the first size, of a shared one or of a table."""

    name: str
    dim: int
    rows: int
    width: int
    is_float: bool

    @classmethod
    def of(cls, name: str, tensor: torch.Tensor) -> Form:
        """Return the form of a tensor."""
        # Sizes that torch.compile takes for variable are fixed by index().
        dim = tensor.dim()
        rows = operator.index(tensor.shape[0]) if dim and side_of(name) == "shared" else -1
        width = operator.index(tensor.shape[-1]) if dim else 1
        return cls(name, dim, rows, width, tensor.is_floating_point())


#: Where the tensor of an input comes from: an argument of this name or a tensor from outside; or made of two
#: of them, ("linear" | "lookup", x, weight), or of one, ("one_hot", x, rows) and ("transposed", table).
Source = Any


def tensor_of(source: Source, arguments: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Return the tensor of a source."""
    if isinstance(source, str):
        return arguments[source]
    if isinstance(source, torch.Tensor):
        return source
    how, x, *rest = source
    x = tensor_of(x, arguments)
    if how == "transposed":
        return x.t()
    if how == "one_hot":
        return F.one_hot(x, rest[0]).to(torch.float32)
    weight = tensor_of(rest[0], arguments)
    return F.linear(x, weight) if how == "linear" else F.embedding(x, weight)


def renumbered(code: Code, inputs: int, results: list[int]) -> tuple[tuple[Step, ...], list[int]]:
    """Return steps and results of code that has fewer inputs than `MOST_INPUTS`, which it was begun with."""
    moved = lambda v: v if v < MOST_INPUTS else v - MOST_INPUTS + inputs  # noqa: E731
    steps = tuple(s._replace(values=tuple(map(moved, s.values))) for s in code.steps)
    return steps, [moved(value) for value in results]


class Message:
    """A message as code.

    Attributes:
        inputs: its inputs.
        sources: for each of them where its tensor comes from.
        map: where the weight [F, size] of a "mapped" one comes from, or None.
        steps: the steps, whose values are counted behind the inputs.
        results: the values that the message returned.
        is_tuple: whether it returned several.
        exponent: the value whose softmax over a target's edges weights the results; None: their own.
    """

    inputs: list[Input]
    sources: list[Source]
    map: Source
    steps: tuple[Step, ...]
    results: list[int]
    is_tuple: bool
    exponent: int | None = None


class Traced(Message):
    """A message that was called with symbols."""

    def __init__(self, message: Callable[..., Any], forms: tuple[Form, ...]) -> None:
        self.inputs: list[Input] = []
        self.sources: list[Source] = []
        self.map: Source = None
        self._code = Code(MOST_INPUTS)
        self._known: dict[Any, int] = {}
        self._widths: dict[int, str] = {}  # numbers of features, and an argument that has so many
        found = message(**{form.name: _Symbol(self, form) for form in forms})
        self.is_tuple = isinstance(found, (tuple, list))
        results = [self._value(x) for x in (found if self.is_tuple else [found])]
        if len(self._widths) > 1:
            (first, one), (second, other) = list(self._widths.items())[:2]
            problem = f"mixes features of widths {first} and {second} ({one} and {other})"
            bad_value("message", f"{problem}; accepted: one width, and single numbers")
        self.width = next(iter(self._widths), 1)  # of the message
        self.steps, self.results = renumbered(self._code, len(self.inputs), results)

    def emit(self, name: str, arguments: tuple[Any, ...], options: dict[str, Any]) -> _Symbol:
        """Return the symbol of a function of torch by its name."""
        if name not in ELEMENTWISE:
            self._unknown(name)
        taken = [self._argument(a) for a in arguments]
        more = {key: self._argument(a) for key, a in options.items()}
        try:
            return _Symbol(self, None, ELEMENTWISE[name](Emitter(self._code), *taken, **more))
        except (Unknown, TypeError):
            self._unknown(f"{name} with these arguments")

    def _unknown(self, name: str) -> NoReturn:
        bad_value(
            "message",
            f"calls {name}, which has no elementwise kernel; accepted: arithmetic, comparisons, torch.where, "
            f"linear and embedding of an edge's numbers, and {', '.join(sorted(ELEMENTWISE))}",
        )

    def _argument(self, a: Any) -> Any:
        if isinstance(a, (_Symbol, torch.Tensor)):
            return self._value(a)
        return float(a) if type(a) is int else a

    def _value(self, x: Any) -> int:
        """Return the value of a symbol, of a tensor that all edges share, or of a number."""
        if isinstance(x, torch.Tensor):
            return self._elementwise(x, Form.of("", x))
        if not isinstance(x, _Symbol):
            if isinstance(x, (int, float)):
                return self._code.constant(x)
            bad_type("message", x, "a function that returns tensors, computed from its arguments")
        return self._elementwise(x.form.name, x.form) if x.form is not None else x.found

    def _elementwise(self, source: Source, form: Form) -> int:
        side = side_of(form.name)
        least = 0 if side == "shared" else 1
        if not form.is_float or form.dim > least + 1:
            problem = f"uses {form.name or 'a tensor'} elementwise, which is none of features"
            bad_value("message", f"{problem}; accepted: floating-point [.., features]")
        is_number = form.dim == least or form.width == 1
        if not is_number:
            self._widths.setdefault(form.width, form.name or "a tensor")
        return self._add((id(source) if isinstance(source, torch.Tensor) else source), source,
                         Input(side, "number" if is_number else "features"))  # fmt: skip

    def _add(self, key: Any, source: Source, x: Input) -> int:
        if key not in self._known:
            if len(self.inputs) == MOST_INPUTS:
                bad_value("message", f"uses more than {MOST_INPUTS} tensors; accepted: at most so many")
            self._known[key] = len(self.inputs)
            self.inputs.append(x)
            self.sources.append(source)
        return self._known[key]

    def linear(self, input: Any, weight: Any, bias: Any = None) -> Any:
        """Return a linear map of the numbers of edges, which is not stored for each edge."""
        x, (of_weight, form) = self._of_edges(input, "linear", is_float=True), self._shared(weight, "linear")
        if form.dim != 2 or x.dim != 2 or form.width != x.width:
            bad_value(
                "message", f"puts {x.name} through a weight that does not fit; accepted: [F, {x.width}]"
            )
        self._widths.setdefault(form.rows, "a weight")
        found = self._mapped(("linear", x.name, of_weight), x.name, of_weight, x.width)
        return found if bias is None else found + bias

    def embedding(self, input: Any, weight: Any) -> Any:
        """Return the row of a table [rows, F] that an integer of each edge chooses."""
        x, (table, form) = (
            self._of_edges(input, "embedding", is_float=False),
            self._shared(weight, "embedding"),
        )
        if form.dim != 2 or x.dim != 1:
            bad_value("message", f"looks up {x.name} of {x.dim} dimensions; accepted: [edges] in [rows, F]")
        self._widths.setdefault(form.width, "a table")
        chosen, weight = ("one_hot", x.name, form.rows), ("transposed", table)
        return self._mapped(("lookup", x.name, table), chosen, weight, form.rows)

    def _of_edges(self, x: Any, function: str, is_float: bool) -> Form:
        form = x.form if isinstance(x, _Symbol) else None
        if form is None or side_of(form.name) != "edge" or form.is_float is not is_float:
            kind = "numbers" if is_float else "integers"
            bad_value(
                "message", f"calls {function} of something else than {kind} of edges; accepted: an argument "
                "whose name ends in _ij, and maps of nodes before the call",
            )  # fmt: skip
        return form

    def _shared(self, x: Any, function: str) -> tuple[Source, Form]:
        if isinstance(x, torch.Tensor):
            return x, Form.of("", x)
        if not isinstance(x, _Symbol) or x.form is None or side_of(x.form.name) != "shared":
            bad_value(
                "message", f"calls {function} with a computed weight; accepted: a tensor as it was given"
            )
        return x.form.name, x.form

    def _mapped(self, source: Source, numbers: Source, weight: Source, size: int) -> _Symbol:
        key = tuple(id(part) if isinstance(part, torch.Tensor) else part for part in source)
        if key not in self._known and self.map is None and size <= MOST_MAPPED:
            self.map = weight
            self._add(key, numbers, Input("edge", "mapped", size))
        return _Symbol(self, None, self._add(key, source, Input("edge")))


class _Symbol:
    """A tensor of a message: an argument, which has a form, or what was computed, which is a value."""

    def __init__(self, traced: Traced, form: Form | None, found: int = -1) -> None:
        self.traced, self.form, self.found = traced, form, found

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, arguments: Any = (), options: Any = None) -> Any:
        everything = [*arguments, *(options or {}).values()]
        traced = next(x.traced for x in everything if isinstance(x, _Symbol))
        if function is F.linear:
            return traced.linear(*arguments, **(options or {}))
        name = getattr(function, "__name__", str(function)).strip("_")
        if function is F.embedding:
            usual = {"input", "weight"}
            given = {key: value for key, value in (options or {}).items() if key in usual}
            return traced.embedding(*arguments[:2], **given)
        return traced.emit(name, tuple(arguments), options or {})

    def __getattr__(self, name: str) -> Any:
        if name not in ELEMENTWISE:
            raise AttributeError(
                f"message: takes the attribute {name!r} of a tensor, which is not elementwise; accepted: "
                f"{', '.join(sorted(ELEMENTWISE))}"
            )
        return lambda *arguments, **options: self.traced.emit(name, (self, *arguments), options)

    def __bool__(self) -> bool:
        bad_value(
            "message", "tests the value of a tensor; accepted: torch.where for a choice in each element"
        )


def _operator(name: str, reverse: bool) -> Callable[..., Any]:
    def apply(self: _Symbol, *others: Any) -> Any:
        return self.traced.emit(name, (*others, self) if reverse else (self, *others), {})

    return apply


for _name in ("add", "sub", "mul", "truediv", "pow", "neg", "abs", "gt", "ge", "lt", "le"):
    setattr(_Symbol, f"__{_name}__", _operator(_name, False))
for _name in ("add", "sub", "mul", "truediv"):
    setattr(_Symbol, f"__r{_name}__", _operator(_name, True))


#: Messages of layers, which use nothing but their arguments, so that they are traced once for each form.
_FIXED: set[Any] = set()


def fixed(message: Callable[..., Any]) -> Callable[..., Any]:
    """Declare that a message uses nothing but its arguments and constants that never change."""
    _FIXED.add(message)
    return message


def is_fixed(message: Any) -> bool:
    """Return whether a message was declared so."""
    return message in _FIXED
