"""What is computed for each edge and feature: straight-line code, its gradients, and the passes of kernels.

A `Function` is the message of a layer: code over the features of an edge's source and target and of the edge
itself, and how its results are reduced over the edges of a target. Its gradients are code of the same kind.
So one kernel, which streams over the rows of a matrix, computes everything: a `Pass` over the rows of A gives
the results, and one over the rows of A^T the gradients of sources, of edges and of what all edges share. One
over the rows of A for the gradients of targets is only needed where they do not follow from sums that the
forward pass adds up besides, see `with_slopes`.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

__all__ = [
    "OPERATIONS", "Code", "Function", "Input", "Pass", "Slope", "Step", "column_pass", "forward_pass",
    "function_from", "function_of", "kinds_of", "row_pass", "with_slopes",
]  # fmt: skip

#: The operations of code, and of how many values each is made. Comparisons are 1 or 0; "where" takes its
#: second value where the first is not 0; "relu", "maximum" and "minimum" let NaN through.
OPERATIONS = {
    "const": 0,
    **dict.fromkeys(("neg", "abs", "exp", "expm1", "log", "log1p", "sqrt", "tanh", "sigmoid", "softplus"), 1),
    **dict.fromkeys(("erf", "sin", "cos", "relu"), 1),
    **dict.fromkeys(("add", "sub", "mul", "div", "maximum", "minimum", "gt", "ge", "eq"), 2),
    "where": 3,
}
#: The kinds of arguments of a pass that have a number for each feature, in the storage type.
FEATURES = ("gathered", "row", "edge")
#: Inputs and outputs of a pass that are two tensors each, and what the second one is.
_PAIRS = {"mapped": "map", "max": "winners", "min": "winners"}
#: Sums that a forward pass adds up for the gradients of targets. Each takes registers and an array of the
#: size of a result, and together they save a pass over the edges.
_MOST_SUMS = 2
#: Most numbers of an edge that a kernel puts through a linear map.
MOST_MAPPED = 16


class Input(NamedTuple):
    """An argument of a function.

    `side` is "source" (a row for each source), "target", "edge" or "shared" (the same for all edges). `form`
    is "features" (a number for each feature), of targets also "wide" (such in float32, whatever features are
    stored in, and without gradients), "number" (one number for all features), or, once in a function and of
    edges, "mapped": `size` numbers that a linear map [size, features] makes features of. The map is an
    argument behind the others.
    """

    side: str
    form: str = "features"
    size: int = 0


class Step(NamedTuple):
    """A value of code: an operation on earlier values, or a constant."""

    operation: str
    values: tuple[int, ...] = ()
    constant: float = 0.0


class Code:
    """Straight-line code that grows. Values are counted: first the `inputs`, then results of the steps."""

    def __init__(self, inputs: int) -> None:
        self.inputs = inputs
        self.steps: list[Step] = []
        self._known: dict[Step, int] = {}

    def emit(self, operation: str, *values: int, constant: float = 0.0) -> int:
        """Return the value of an operation, which a step that is there already may have."""
        step = Step(operation, values, constant)
        if (equal := self._simpler(step)) is not None:
            return equal
        if step not in self._known:
            self._known[step] = self.inputs + len(self.steps)
            self.steps.append(step)
        return self._known[step]

    def constant(self, number: float) -> int:
        """Return a value that is a number."""
        return self.emit("const", constant=float(number))

    def number(self, value: int) -> float | None:
        """Return the number that a value is, or None if it depends on an argument."""
        step = self.steps[value - self.inputs] if value >= self.inputs else None
        return step.constant if step is not None and step.operation == "const" else None

    def append(self, steps: Iterable[Step], values: list[int]) -> list[int]:
        """Emit the steps of other code, whose inputs are `values`; return all its values in this code."""
        values = list(values)
        for step in steps:
            taken = (values[v] for v in step.values)
            values.append(self.emit(step.operation, *taken, constant=step.constant))
        return values

    def _simpler(self, step: Step) -> int | None:
        """Return a value that a step equals whatever its arguments are, also where they are not finite."""
        numbers = [self.number(v) for v in step.values]
        match step.operation, numbers:
            case "neg", [float(x)]:
                return self.constant(-x)
            case (("add" | "sub"), [_, 0.0]):
                return step.values[0]
            case "add", [0.0, _]:
                return step.values[1]
            case "mul", [_, 1.0]:
                return step.values[0]
            case "mul", [1.0, _]:
                return step.values[1]
            case "div", [_, 1.0]:
                return step.values[0]
            case "where", [float(x), _, _]:
                return step.values[1] if x != 0 else step.values[2]
            case "where", [None, _, _] if step.values[1] == step.values[2]:
                return step.values[1]
        return None


class Slope(NamedTuple):
    """What a result's gradient is multiplied by, row by row, for a term of a target's gradient.

    It is `factor` times a sum over the target's edges: result `total` of the function, or a sum behind its
    results; -1: the number of the edges whose term the result has, which a maximum has one of, or none.
    """

    result: int
    input: int
    factor: float
    total: int


@dataclass(frozen=True, eq=False)
class Function:
    """A message and its reductions, see `function_of`, by which equal ones are one object.

    Attributes:
        inputs: the arguments, which are the first values.
        steps: the code.
        results: how each is reduced, and its value: "sum", "max", "min" over a target's edges, or "edge":
            it is a result for each edge.
        sums: values whose sums over a target's edges are results, too, but for `slopes` alone.
        slopes: the gradients of targets, see `with_slopes`; none: a pass computes them.
        text: the function as JSON, see `function_from`.
    """

    inputs: tuple[Input, ...]
    steps: tuple[Step, ...]
    results: tuple[tuple[str, int], ...]
    sums: tuple[int, ...]
    slopes: tuple[Slope, ...]
    text: str

    @property
    def stored(self) -> tuple[tuple[str, int], ...]:
        """The results, and the sums behind them."""
        return (*self.results, *(("sum", value) for value in self.sums))

    def of(self, kept: Iterable[int]) -> Function:
        """Return the function of some of the results alone, without sums."""
        return function_of(self.inputs, self.steps, tuple(self.results[k] for k in kept))


@functools.lru_cache(1024)
def function_of(
    inputs: tuple[Input, ...], steps: tuple[Step, ...], results: tuple[tuple[str, int], ...],
    sums: tuple[int, ...] = (), slopes: tuple[Slope, ...] = (),
) -> Function:  # fmt: skip
    """Return the function of these parts; steps that no result needs are left out."""
    code = Code(len(inputs))
    values = code.append(steps, list(range(len(inputs))))
    needed = {values[value] for value in (*(value for _, value in results), *sums)}
    kept, number = _pruned(code, needed, range(len(inputs)))
    found = tuple((how, number[values[value]]) for how, value in results)
    added = tuple(number[values[value]] for value in sums)
    text = json.dumps([inputs, kept, found, added, slopes])
    return Function(inputs, kept, found, added, slopes, text)


def _pruned(code: Code, needed: set[int], inputs: Iterable[int]) -> tuple[tuple[Step, ...], dict[int, int]]:
    """Return the steps that values need, and the new numbers of `inputs`, which are kept, and of values."""
    for i in reversed(range(len(code.steps))):
        if code.inputs + i in needed:
            needed.update(code.steps[i].values)
    number: dict[int, int] = {}
    for i in inputs:
        number[i] = len(number)
    steps = []
    for i, step in enumerate(code.steps):
        if code.inputs + i in needed:
            number[code.inputs + i] = len(number)
            steps.append(step._replace(values=tuple(number[v] for v in step.values)))
    return tuple(steps), number


@functools.lru_cache(1024)
def function_from(text: str) -> Function:
    """Return the function of a text."""
    inputs, steps, results, sums, slopes = json.loads(text)
    found = (Step(operation, tuple(values), constant) for operation, values, constant in steps)
    return function_of(
        tuple(Input(*x) for x in inputs), tuple(found), tuple((r[0], r[1]) for r in results), tuple(sums),
        tuple(Slope(*slope) for slope in slopes),
    )  # fmt: skip


@dataclass(frozen=True, eq=False)
class Pass:
    """One run of a kernel over the rows of a matrix. Passes of a function are made once.

    F is the number of features. Numbers of edges are counted as the caller has them.

    Attributes:
        inputs: what each argument is: in the storage type "gathered" (features [columns, F], of the edge's
            column), "row" [rows, F] and "edge" [edges, F]; in float32 "gathered_number" [columns],
            "row_number" [rows], "edge_number" [edges], "vector" [F] and "vector_number" [1]; "mapped", at
            most once: numbers of edges [edges, size] behind a map [size, F], two tensors in float32; such
            features, too, as "gathered_wide" [columns, F] and "row_wide" [rows, F]; in int32
            "gathered_winner" [columns, F] and "row_winner" [rows, F], whose value is 1 where it is the number
            of the edge, and else 0.
        sizes: the size of a "mapped", else 0.
        steps: the code over these values.
        outputs: what is stored, and of which value. "sum", "max", "min" [rows, F]: over the edges of a row, 0
            for a row without; max and min store the winner too, int32 [rows, F]: the number of an edge, or
            -1. "edge" [edges, F]. "row_number", float32 [rows]: the sum over edges and features;
            "edge_number", float32 [edges]: over features. "vector", float32 [F]: over all edges.
            "mapped_edge", float32 [edges, size]: over features, of the value times the map;
            "mapped_weight", float32 [size, F]: over all edges, of their numbers times the value.
        given: where each argument comes from: ("input", i), or of result k ("grad", k) or ("winner", k).
        found: for each output the input whose gradient it is; in a forward pass the result.
    """

    inputs: tuple[str, ...]
    sizes: tuple[int, ...]
    steps: tuple[Step, ...]
    outputs: tuple[tuple[str, int], ...]
    given: tuple[tuple[str, int], ...]
    found: tuple[int, ...]


def kinds_of(kinds: Iterable[str]) -> tuple[str, ...]:
    """Return what the tensors are of inputs or outputs of a pass, some of which are two tensors."""
    return tuple(x for kind in kinds for x in (kind, _PAIRS.get(kind)) if x is not None)


def _kind(side: str, form: str, by_column: bool) -> str:
    """Return the kind of an argument in a pass over the rows of A, or of A^T (`by_column`)."""
    if side == "shared":
        return "vector" if form == "features" else "vector_number"
    if form == "mapped":
        return form
    place = {"source": "row" if by_column else "gathered", "target": "gathered" if by_column else "row"}
    return place.get(side, "edge") + ("" if form == "features" else f"_{form}")


def _finished(
    arguments: list[tuple[Input, tuple[str, int]]],
    code: Code,
    outputs: list[tuple[str, int, int]],
    by_column: bool,
) -> Pass:
    """Make a pass of code with these arguments; steps and arguments that no output needs are left out."""
    needed = {value for _, value, _ in outputs}
    _pruned(code, needed, range(code.inputs))  # adds what these are made of
    # The gradient by the numbers of a map reads the map, and the other way round.
    mapped = any(kind.startswith("mapped") for kind, _, _ in outputs)
    kept = [i for i in range(code.inputs) if i in needed or (mapped and arguments[i][0].form == "mapped")]
    steps, number = _pruned(code, needed, kept)
    return Pass(
        tuple(_kind(arguments[i][0].side, arguments[i][0].form, by_column) for i in kept),
        tuple(arguments[i][0].size for i in kept),
        steps,
        tuple((kind, number[value]) for kind, value, _ in outputs),
        tuple(arguments[i][1] for i in kept),
        tuple(of for _, _, of in outputs),
    )


@functools.lru_cache(1024)
def forward_pass(function: Function) -> Pass:
    """Return the pass over the rows of A that computes the results."""
    code = Code(len(function.inputs))
    values = code.append(function.steps, list(range(len(function.inputs))))
    arguments = [(x, ("input", i)) for i, x in enumerate(function.inputs)]
    outputs = [(how, values[value], k) for k, (how, value) in enumerate(function.stored)]
    return _finished(arguments, code, outputs, by_column=False)


def _adjoints(function: Function) -> tuple[list[tuple[Input, tuple[str, int]]], Code, dict[int, int]]:
    """Return the arguments and the code of the gradients, and of each input that has one the value."""
    arguments = [(x, ("input", i)) for i, x in enumerate(function.inputs)]
    for k, (how, _) in enumerate(function.results):
        arguments.append((Input("edge" if how == "edge" else "target"), ("grad", k)))
        if how in ("max", "min"):
            arguments.append((Input("target", "winner"), ("winner", k)))
    code = Code(len(arguments))
    values = code.append(function.steps, list(range(len(function.inputs))))
    given = {of: i for i, (_, of) in enumerate(arguments)}
    grads = []
    for k, (how, value) in enumerate(function.results):
        grad = given["grad", k]
        if how in ("max", "min"):
            grad = code.emit("where", given["winner", k], grad, code.constant(0.0))
        grads.append((value, grad))
    return arguments, code, _differentiated(function, code, values, grads)


def _differentiated(
    function: Function, code: Code, values: list[int], grads: Iterable[tuple[int, int]]
) -> dict[int, int]:
    """Emit the gradients of a function's inputs; return the value of each one that has any.

    `values` are those of the function in `code`, and `grads` values of the function with their gradients.
    """
    adjoint: dict[int, int] = {}

    def add(value: int, grad: int) -> None:
        adjoint[value] = code.emit("add", adjoint[value], grad) if value in adjoint else grad

    for value, grad in grads:
        add(value, grad)
    count = len(function.inputs)
    for i in reversed(range(len(function.steps))):
        if (grad_ := adjoint.get(count + i)) is not None:
            step = function.steps[i]
            made = _Rule(code, grad_, values[count + i], tuple(values[v] for v in step.values))
            for value, part in zip(step.values, _RULES[step.operation](made), strict=True):
                if part is not None:
                    add(value, part)
    return {i: adjoint[i] for i in range(count) if i in adjoint}


class _Rule(NamedTuple):
    """What a rule of differentiation works with: the gradient, the result, and what it was made of."""

    code: Code
    grad: int
    result: int
    values: tuple[int, ...]

    def __getattr__(self, name: str) -> Callable[..., int]:
        """Emit an operation whose arguments are values, or numbers as floats."""
        emit = self.code.emit

        def of(*values: int | float) -> int:
            return emit(name, *(self.code.constant(v) if isinstance(v, float) else v for v in values))

        return of


def _select(r: _Rule, condition: int) -> tuple[int, int]:
    return r.where(condition, r.grad, 0.0), r.where(condition, 0.0, r.grad)


def _of_choice(r: _Rule, larger: int) -> tuple[int, int]:
    """Give the gradient to the value that was chosen, or half of it to each of two equal ones, as torch."""
    first, second = _select(r, larger)
    is_equal, half = r.eq(*r.values), r.mul(r.grad, 0.5)
    return r.where(is_equal, half, first), r.where(is_equal, half, second)


#: For each operation the gradients of what it was made of; None: it has none.
_RULES: dict[str, Callable[[_Rule], tuple[int | None, ...]]] = {
    "const": lambda r: (),
    "neg": lambda r: (r.neg(r.grad),),
    "abs": lambda r: (
        r.where(r.gt(r.values[0], 0.0), r.grad, r.where(r.gt(0.0, r.values[0]), r.neg(r.grad), 0.0)),
    ),
    "exp": lambda r: (r.mul(r.grad, r.result),),
    "expm1": lambda r: (r.mul(r.grad, r.add(r.result, 1.0)),),
    "log": lambda r: (r.div(r.grad, r.values[0]),),
    "log1p": lambda r: (r.div(r.grad, r.add(r.values[0], 1.0)),),
    "sqrt": lambda r: (r.div(r.mul(r.grad, 0.5), r.result),),
    "tanh": lambda r: (r.mul(r.grad, r.sub(1.0, r.mul(r.result, r.result))),),
    "sigmoid": lambda r: (r.mul(r.grad, r.mul(r.result, r.sub(1.0, r.result))),),
    "softplus": lambda r: (r.mul(r.grad, r.sigmoid(r.values[0])),),
    "erf": lambda r: (
        r.mul(r.grad, r.mul(r.exp(r.neg(r.mul(r.values[0], r.values[0]))), 2 / math.sqrt(math.pi))),
    ),
    "sin": lambda r: (r.mul(r.grad, r.cos(r.values[0])),),
    "cos": lambda r: (r.neg(r.mul(r.grad, r.sin(r.values[0]))),),
    "relu": lambda r: (r.where(r.gt(r.values[0], 0.0), r.grad, 0.0),),
    "add": lambda r: (r.grad, r.grad),
    "sub": lambda r: (r.grad, r.neg(r.grad)),
    "mul": lambda r: (r.mul(r.grad, r.values[1]), r.mul(r.grad, r.values[0])),
    "div": lambda r: (r.div(r.grad, r.values[1]), r.neg(r.mul(r.grad, r.div(r.result, r.values[1])))),
    "maximum": lambda r: _of_choice(r, r.gt(*r.values)),
    "minimum": lambda r: _of_choice(r, r.gt(*r.values[::-1])),
    "gt": lambda r: (None, None),
    "ge": lambda r: (None, None),
    "eq": lambda r: (None, None),
    "where": lambda r: (None, *_select(r, r.values[0])),
}

#: What a pass stores of the gradient of an input, by its side (a source's is a row of A^T) and form.
_GRADIENTS = {
    "features": {"target": "sum", "source": "sum", "edge": "edge", "shared": "vector"},
    "number": {"target": "row_number", "source": "row_number", "edge": "edge_number", "shared": "vector"},
}


@functools.lru_cache(1024)
def with_slopes(function: Function, needs: tuple[bool, ...], given: tuple[int, ...] = ()) -> Function:
    """Return the function with the sums by which the gradients of targets follow from those of the results.

    The sum y_i of messages m_ij has the gradient g_i * (sum over j of dm_ij / dx_i) for the features x_i of
    the target. Where all gradients of targets are of this kind, the backward pass is one over the rows of A^T
    alone, for the gradients of sources. Else the function is returned as it is.

    Args:
        function: a function without sums.
        needs: of which inputs, and last of the map, there will be gradients.
        given: results that a caller gets, who may change them in place: a sum of its own stands for each.
    """
    sides = [x.side if needed else "" for x, needed in zip(function.inputs, needs, strict=False)]
    if "source" not in sides or "target" not in sides:
        return function
    code = Code(len(function.inputs))
    values = code.append(function.steps, list(range(len(function.inputs))))
    results = list(enumerate(function.results))
    totals = {values[value]: k for k, (how, value) in results if how == "sum" and k not in given}
    sums: list[int] = []
    slopes = []
    for k, (how, value) in results:
        for i, slope in _differentiated(function, code, values, [(value, code.constant(1.0))]).items():
            if sides[i] != "target":
                continue
            factor, base = _without_factor(code, slope)
            if function.inputs[i].form != "features" or how == "edge" or (how != "sum" and base is not None):
                return function
            if base is not None and base not in totals:
                totals[base] = len(function.results) + len(sums)
                sums.append(base)
            slopes.append(Slope(k, i, factor, -1 if base is None else totals[base]))
    if len(sums) > _MOST_SUMS:
        return function
    stored = tuple((how, values[value]) for how, value in function.results)
    return function_of(function.inputs, tuple(code.steps), stored, tuple(sums), tuple(slopes))


def _without_factor(code: Code, value: int) -> tuple[float, int | None]:
    """Return a number and a value whose product a value is; None: it is the number itself."""
    if (number := code.number(value)) is not None:
        return number, None
    step = code.steps[value - code.inputs] if value >= code.inputs else None
    if step is not None and step.operation in ("mul", "neg"):
        numbers = [code.number(v) for v in step.values]
        for number, other in zip(numbers, reversed(step.values), strict=True):
            if step.operation == "neg" or number is not None:
                factor, base = _without_factor(code, other)
                return (-1.0 if number is None else number) * factor, base
    if step is not None and step.operation == "add" and step.values[0] == step.values[1]:
        factor, base = _without_factor(code, step.values[0])
        return 2.0 * factor, base
    return 1.0, value


@functools.lru_cache(1024)
def row_pass(function: Function, needs: tuple[bool, ...]) -> Pass | None:
    """Return the pass over the rows of A for gradients; None: none is needed.

    It gives those of targets, and where there are any or none of sources, those of edges and of what edges
    share. `needs` says of which inputs (of a mapped one: its numbers), and last of the map.
    """
    return _gradients(function, needs, by_column=False)


@functools.lru_cache(1024)
def column_pass(function: Function, needs: tuple[bool, ...]) -> Pass | None:
    """Return the pass over the rows of A^T for the gradients that `row_pass` does not give."""
    return _gradients(function, needs, by_column=True)


def _gradients(function: Function, needs: tuple[bool, ...], by_column: bool) -> Pass | None:
    arguments, code, adjoints = _adjoints(function)
    sides = {x.side for i, x in enumerate(function.inputs) if i in adjoints and needs[i]}
    sides_here = {"source"} if by_column else {"target"}
    if ("target" not in sides and "source" in sides) is by_column:
        sides_here |= {"edge", "shared"}
    outputs = []
    for i, x in enumerate(function.inputs):
        if i not in adjoints or x.side not in sides_here:
            continue
        if x.form != "mapped":
            outputs += [(_GRADIENTS[x.form][x.side], adjoints[i], i)] if needs[i] else []
            continue
        for kind, of in (("mapped_edge", i), ("mapped_weight", len(function.inputs))):
            outputs += [(kind, adjoints[i], of)] if needs[of] else []
    return _finished(arguments, code, outputs, by_column) if outputs else None
