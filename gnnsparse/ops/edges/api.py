"""`aggregate_edges`: what a layer's message is computed and reduced by, edge by edge."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from gnnsparse.errors import bad_type, bad_value, check_choice, check_number, check_tensor
from gnnsparse.ops.arguments import FLOATS, check_operand
from gnnsparse.ops.edges.elementwise import ELEMENTWISE, Emitter
from gnnsparse.ops.edges.program import Code, Function, Input, function_of
from gnnsparse.ops.edges.schema import edge_counts, for_gradients, run_text
from gnnsparse.ops.edges.trace import Form, Message, Traced, is_fixed, side_of, tensor_of
from gnnsparse.runtime.functorch import constant_when_traced, is_eager, materialised
from gnnsparse.sparse.operand import SparseOperand

__all__ = ["aggregate_edges"]

#: What messages are reduced by; "none": a result for each edge.
REDUCTIONS = ("sum", "mean", "max", "min", "var", "std", "softmax", "powermean", "none")
#: The least variance of which a standard deviation is taken; below it is 0.
_LEAST_VARIANCE = 1e-5
#: The range to which a power mean clamps messages, and the mean of their powers, as PyG's.
POWER_RANGE = 1e-4, 100.0
#: Below it a softmax takes no inverse of a temperature.
_LEAST_TEMPERATURE = 1e-30


def aggregate_edges(
    A: SparseOperand,  # noqa: N803
    message: Callable[..., Any],
    *,
    reduce: str | Sequence[str] = "sum",
    temperature: float | torch.Tensor | None = None,
    **arguments: torch.Tensor,
) -> Any:
    """Compute a message for each edge, feature by feature, and reduce the messages at each target.

    y_i = reduce over the edges (j -> i) of message(x_j, x_i, e_ij). Nothing of the size edges x features is
    stored but results for edges. `message` is called once with symbols in place of tensors, whose elementwise
    code a kernel executes: arithmetic, comparisons, torch.where, activations, exponentials. The gradients are
    kernels of the same kind. Results have the same bits in every run.

    Args:
        A: the graph, [targets, sources]; its weights are not used. Edges that were repeated in `prepare`
            count as often as they were given. Of a DistributedOperand edges are its own nonzeros.
        message: a function of the arguments below, by their names, that returns a tensor or a tuple of
            tensors. It may also use other tensors [F] or of one number, which all edges share, put the
            numbers of edges [edges, size] through `torch.nn.functional.linear(e_ij, weight, bias)` with a
            weight [F, size], and choose rows of a table by `torch.nn.functional.embedding(e_ij, table)`; up
            to 16 numbers, or rows, are then multiplied in the kernel, and their features never stored.
        reduce: "sum", "mean", "max", "min", "var", "std", "softmax" (the sum of messages weighted by their
            softmax over a target's edges, feature by feature), "powermean" (the root of the mean of powers,
            of messages and of means that are clamped to [1e-4, 100]), or "none" for a result for each edge. A
            sequence has one for each of the returned tensors, or several for a single one, which share its
            computation. A target without edges gets 0, of a power mean that of 0.
        temperature: of "softmax", by which messages are multiplied in the exponent, and of "powermean" the
            exponent: a number, or a tensor of one number or [F], which may need a gradient; None: 1.
        **arguments: tensors whose names say whose rows they have: those that end in `_j` have a row for each
            source, in `_i` for each target, in `_ij` for each edge in the order of the edges given to
            `prepare`. Others are shared by all edges. float32, float16 or bfloat16 (`embedding`: int64)
            [rows, F], or [rows] and [rows, 1] for one number a row. They are rounded to A's storage type
            where they have F features.

    Returns:
        A tensor [targets, F], or [edges, F] for "none", in the dtype of the widest floating-point argument
        with rows; a list of them if `reduce` is a sequence.

    Raises:
        TypeError: an argument is of another type.
        ValueError: an argument has another shape, dtype or device; the message is not elementwise, or A has
            self-loops that `prepare` added, which have no rows in arguments of edges.
    """
    if torch.compiler.is_compiling() and not is_fixed(message):
        # It can't be followed: it runs between what is compiled.
        return torch.compiler.disable(_aggregate)(A, message, reduce, temperature, arguments)
    return _aggregate(A, message, reduce, temperature, arguments)


def _aggregate(
    a: Any, message: Any, reduce: str | Sequence[str], temperature: Any, arguments: dict[str, torch.Tensor]
) -> Any:
    operand = check_operand(a)
    if not callable(message):
        bad_type("message", message, "a function")
    if not isinstance(reduce, (str, list, tuple)):
        bad_type("reduce", reduce, f"one of {', '.join(REDUCTIONS)}, or a list or tuple of them")
    names = [reduce] if isinstance(reduce, str) else reduce
    if operand.operations is not None:
        operand, arguments = operand.operations.of_edges(arguments)
    tensors = {name: _checked(name, tensor, operand) for name, tensor in arguments.items()}
    dtype = _dtype_of(tensors)
    if isinstance(temperature, torch.Tensor):
        check_tensor("temperature", temperature, dtypes=FLOATS, device=operand.device)
        tensors["temperature"], temperature = materialised(temperature).reshape(-1), None
    else:
        temperature = 1.0 if temperature is None else check_number("temperature", temperature)
        if temperature == 0 and "powermean" in names:
            bad_value("temperature", "got 0 for a power mean; accepted: a number other than 0")
    forms = tuple(Form.of(name, tensor) for name, tensor in tensors.items())
    if "none" in names:
        _refuse_loops("reduce", 'gives "none" rows for edges', operand)
    how = message, forms, reduce if isinstance(reduce, str) else tuple(reduce), temperature
    return run_plan(_constant(*how) if is_fixed(message) else _planned(*how), operand, tensors, dtype)


def _checked(name: str, tensor: Any, operand: SparseOperand) -> torch.Tensor:
    side = side_of(name)
    rows = {"source": operand.shape[1], "target": operand.shape[0], "edge": operand.num_edges}.get(side)
    dtypes = (*FLOATS, torch.int64) if side == "edge" else FLOATS
    check_tensor(name, tensor, dtypes=dtypes, device=operand.device)
    if rows is not None and (tensor.dim() not in (1, 2) or tensor.shape[0] != rows):
        bad_value(name, f"has shape {tuple(tensor.shape)}; accepted: ({rows},) or ({rows}, features)")
    if side == "edge":
        _refuse_loops(name, "has a row for each edge", operand)
    return materialised(tensor)


def _refuse_loops(name: str, problem: str, operand: SparseOperand) -> None:
    if operand.added_loops is not None:
        why = "and A has self-loops that prepare added, which have none"
        bad_value(name, f"{problem}, {why}; accepted: an operand of the edges alone")


def _dtype_of(tensors: dict[str, torch.Tensor]) -> torch.dtype:
    dtype = None
    for name, tensor in tensors.items():
        if side_of(name) != "shared" and tensor.is_floating_point():
            dtype = tensor.dtype if dtype is None else torch.promote_types(dtype, tensor.dtype)
    if dtype is None:
        bad_value("arguments", "has none with a row for each source, target or edge; accepted: at least one")
    return dtype


def _stored(side: str, form: str, tensor: torch.Tensor, storage: torch.dtype) -> torch.Tensor:
    """Return a tensor of an input as kernels take it."""
    of_rows = form == "features" and side != "shared"
    dtype = storage if of_rows else torch.float32
    tensor = tensor if tensor.dtype is dtype else tensor.to(dtype)
    return tensor if of_rows or form == "mapped" or tensor.dim() == 1 else tensor.reshape(-1)


class _Aggregation:
    """A message with its reductions. Sums, maxima and minima are a kernel's, and others are made of them.

    Attributes:
        is_one: whether the result is one tensor, and no list.
    """

    def __init__(self, found: Message, reduce: str | Sequence[str], temperature: float | Form) -> None:
        self._temperature, self._traced = temperature, found
        self.is_one = isinstance(reduce, str) and not found.is_tuple
        names = [reduce] if isinstance(reduce, str) else list(reduce)
        for name in names:
            check_choice("reduce", name, REDUCTIONS)
        count = max(len(names), len(found.results))
        for them in (names, found.results):
            if len(them) == 1:
                them *= count
        if len(names) != len(found.results) or (count > 1 and not isinstance(reduce, str) and not reduce):
            messages = f"{len(found.results)} messages"
            bad_value("reduce", f"has {len(names)} names for {messages}; accepted: one for each")
        code, values = self._code(0)
        places: dict[tuple[str, int], int] = {}
        place = lambda how, value: places.setdefault((how, value), len(places))  # noqa: E731
        #: For each result its name, and the places of what it is made of.
        self._parts: list[tuple[str, tuple[int, ...]]] = []
        #: Of each softmax or power mean its functions, which no other result shares.
        self._own: list[tuple[Function, ...]] = []
        for name, result in zip(names, found.results, strict=True):
            value = values[result]
            if name in ("softmax", "powermean"):
                self._parts.append((name, (len(self._own), self._is_centred)))
                make = self._softmax_functions if name == "softmax" else self._power_functions
                self._own.append(make(result))
            elif name in ("var", "std"):
                self._parts.append(
                    (name, (place("sum", value), place("sum", code.emit("mul", value, value))))
                )
            else:
                how = {"mean": "sum", "none": "edge"}.get(name, name)
                self._parts.append((name, (place(how, value),)))
        inputs = tuple(found.inputs)
        self._function = function_of(inputs, tuple(code.steps), tuple(places)) if places else None
        # What is computed further is not rounded before.
        self._is_plain = all(name in ("sum", "max", "min", "none") for name in names)

    def _code(self, more: int) -> tuple[Code, list[int]]:
        """Return the message's code with `more` inputs behind its own, and its values in it."""
        count = len(self._traced.inputs)
        code = Code(count + more)
        return code, code.append(self._traced.steps, list(range(count)))

    @property
    def _more(self) -> tuple[Input, ...]:
        """A temperature that is a tensor, behind the message's inputs."""
        by = self._temperature
        return (Input("shared", "number" if by.width == 1 else "features"),) if isinstance(by, Form) else ()

    @property
    def _is_centred(self) -> bool:
        """Whether exponents of a softmax are the messages times the temperature, see `_softmax`."""
        return self._traced.exponent is None

    def _power_functions(self, result: int) -> tuple[Function, ...]:
        """Return the function of the sum of powers."""
        inputs, by, more = tuple(self._traced.inputs), self._temperature, self._more
        code, values = self._code(len(more))
        c = Emitter(code)
        clamped = ELEMENTWISE["clamp"](c, values[result], *POWER_RANGE)
        power = c.exp(c.mul(c.log(clamped), by if isinstance(by, float) else len(inputs)))
        return (function_of((*inputs, *more), tuple(code.steps), (("sum", power),)),)

    def _softmax_functions(self, result: int) -> tuple[Function, ...]:
        """Return the functions of the largest exponent, and of the two sums whose quotient a softmax gives.

        See `_softmax`.
        """
        inputs, by, more = tuple(self._traced.inputs), self._temperature, self._more

        def exponent(code: Code, values: list[int]) -> int:
            if (own := self._traced.exponent) is not None:
                return values[own]
            factor = len(inputs) if isinstance(by, Form) else code.constant(by)
            return code.emit("mul", values[result], factor)

        code, values = self._code(len(more))
        top = (("max", exponent(code, values)),)
        first = function_of((*inputs, *more), tuple(code.steps), top)
        more *= 1 + self._is_centred  # the inverse of a temperature that is a tensor
        code, values = self._code(len(more) + 1)
        largest, value = len(inputs) + len(more), values[result]
        weight = code.emit("exp", code.emit("sub", exponent(code, values), largest))
        divisor = weight
        if self._is_centred:
            inverse = code.constant(_inverse(by)) if isinstance(by, float) else largest - 1
            value = code.emit("sub", value, code.emit("mul", largest, inverse))
            divisor = code.emit("mul", weight, inverse)
        sums = ("sum", code.emit("mul", weight, value)), ("sum", divisor)
        # The largest exponent, if it were rounded, could be infinite, or so far from the others that they
        # overflow.
        inputs = (*inputs, *more, Input("target", "wide"))
        return first, function_of(inputs, tuple(code.steps), sums)

    @property
    def plan(self) -> _Plan:
        """What `run_plan` needs, in types that torch.compile takes for constants."""
        found = self._traced
        return (
            self.is_one, self._is_plain, None if self._function is None else self._function.text,
            tuple(place for name, (place, *_) in self._parts if name == "sum"), tuple(self._parts),
            tuple(tuple(function.text for function in own) for own in self._own),
            tuple((*x[:2], source) for x, source in zip(found.inputs, found.sources, strict=True)),
            found.map, None if isinstance(self._temperature, Form) else self._temperature,
        )  # fmt: skip


_Plan = tuple[Any, ...]
_Run = Callable[[str, Sequence[torch.Tensor], torch.dtype], Sequence[torch.Tensor]]


def plan_of(message: Message, reduce: str | Sequence[str], temperature: float | Form = 1.0) -> _Plan:
    """Return the plan of a message and its reductions; a temperature that is a tensor by its form."""
    return _Aggregation(message, reduce, temperature).plan


def run_plan(
    plan: _Plan, operand: SparseOperand, arguments: dict[str, torch.Tensor], dtype: torch.dtype
) -> Any:
    """Return the results of an aggregation, in a dtype."""
    run, counts = functools.partial(run_text, operand), functools.partial(edge_counts, operand, inverse=True)
    return run_plan_by(plan, arguments, dtype, operand.precision.storage, run, counts)


def run_plan_by(
    plan: _Plan, arguments: dict[str, torch.Tensor], dtype: torch.dtype, storage: torch.dtype, run: _Run,
    counts: Callable[[torch.Tensor], torch.Tensor],
) -> Any:  # fmt: skip
    """Return the results of an aggregation by what runs its functions.

    Args:
        plan: see `plan_of`.
        arguments: see `run_plan`.
        dtype: of the results.
        storage: dtype of features in the functions.
        run: runs the function of a text, given tensors and the dtype of results, as `run_text` does.
        counts: returns what each target's sum is multiplied by for a mean, float32 [targets, 1], given any
            tensor on the device.
    """
    is_one, is_plain, text, given, parts, own, inputs, source_of_map, temperature = plan
    tensors = [_stored(side, form, tensor_of(source, arguments), storage) for side, form, source in inputs]
    # Passes take it without gaps: the forward pass and the backward pass would copy it.
    maps = [] if source_of_map is None else [tensor_of(source_of_map, arguments).t().contiguous().float()]
    results: Sequence[torch.Tensor] = ()
    if text is not None:
        stored = storage if is_plain else torch.float32
        results = _run_for_gradients(run, text, [*tensors, *maps], stored, given)
    means: dict[int, torch.Tensor] = {}  # which variances share
    made: list[torch.Tensor] = []
    for name, (place, *others) in parts:
        if name in ("softmax", "powermean"):
            more = [arguments["temperature"].float().reshape(-1)] if temperature is None else []
            rows = [*tensors, *more]
        if name == "softmax":
            by = (more[0] if more else temperature) if others[0] else None
            out = _softmax(run, own[place], rows, maps, by)
        elif name == "powermean":
            (total,) = _run_for_gradients(run, own[place][0], [*rows, *maps], torch.float32)[:1]
            root = 1 / (more[0] if more else temperature)
            out = (total * counts(total)).clamp(*POWER_RANGE).pow(root)
        else:
            out = results[place]
        if name in ("mean", "var", "std"):
            inverse = counts(out)
            out = means[place] if place in means else out * inverse
            means[place] = out
            if name != "mean":
                out = _spread(out, results[others[0]], inverse, name == "std")
        out = out if out.dtype is dtype else out.to(dtype)
        # One that is given twice may be changed once.
        made.append(out.clone() if made and any(out is other for other in made) else out)
    return made[0] if is_one else made


def _run_for_gradients(
    run: _Run, text: str, tensors: Sequence[torch.Tensor], dtype: torch.dtype, given: tuple[int, ...] = ()
) -> Sequence[torch.Tensor]:
    if torch.is_grad_enabled():
        text = for_gradients(text, tuple([t.requires_grad for t in tensors]), given)
    return run(text, tensors, dtype)


def _spread(mean: torch.Tensor, squares: torch.Tensor, inverse: torch.Tensor, is_root: bool) -> torch.Tensor:
    """Return a variance, or its root, of a mean, a sum of squares, and the factors that make sums means."""
    if is_eager():
        return _Spread.apply(mean, squares, inverse, is_root)
    variance = squares * inverse - mean * mean
    if not is_root:
        return variance
    # As PyG's: a variance below the least one is taken for 0.
    deviation = variance.clamp(min=_LEAST_VARIANCE).sqrt()
    return deviation.masked_fill(deviation <= math.sqrt(_LEAST_VARIANCE), 0.0)


class _Spread(torch.autograd.Function):
    """What `_spread` computes; for its backward pass it stores nothing but the arguments.

    Its result is the caller's, who may change it in place.
    """

    @staticmethod
    def forward(
        ctx: Any, mean: torch.Tensor, squares: torch.Tensor, inverse: torch.Tensor, is_root: bool
    ) -> torch.Tensor:
        out = (squares * inverse).addcmul_(mean, mean, value=-1)
        if is_root:
            out.clamp_(min=_LEAST_VARIANCE).sqrt_()
            out.masked_fill_(out <= math.sqrt(_LEAST_VARIANCE), 0.0)
        ctx.save_for_backward(mean, inverse, *([squares] if is_root else []))
        return out

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        mean, inverse, *squares = ctx.saved_tensors
        if squares:
            out = _Spread.apply(mean, *squares, inverse, True)
            grad = grad / torch.where(out > 0, 2 * out, math.inf)  # 0 without a deviation
        return (grad * mean).mul(-2), grad * inverse, None, None


def _softmax(
    run: _Run, texts: tuple[str, ...], tensors: Sequence[torch.Tensor], maps: Sequence[torch.Tensor],
    temperature: float | torch.Tensor | None,
) -> torch.Tensor:  # fmt: skip
    """Return the sums of messages weighted by their softmax, whose exponents are relative to the largest.

    So are messages, unless the temperature is None, of messages that others weight. With the largest exponent
    t c and W the sum of the weights w, it is c + (sum of w (m - c)) / t / (W / t): gradients of both sums are
    then of the size of the result's, or of exponents' differences, and can be rounded to 16 bits.
    """
    factor = 1.0
    with torch.no_grad():
        top = centre = run(texts[0], [*tensors, *maps], torch.float32)[0]
        if temperature is None:
            centre = top.new_zeros(1)
        elif isinstance(temperature, torch.Tensor):
            inverse = torch.where(temperature.abs() > _LEAST_TEMPERATURE, 1 / temperature, 1.0)
            tensors, centre = [*tensors, inverse], top * inverse
        elif (factor := _inverse(temperature)) != 1:
            centre = top * factor
    total, weights = _run_for_gradients(run, texts[1], [*tensors, top, *maps], torch.float32)[:2]
    if isinstance(temperature, torch.Tensor):
        total = total * inverse
    weights = weights + (weights == 0)  # of targets without edges
    if is_eager():
        return _Quotient.apply(centre, total, weights, factor)
    return torch.addcdiv(centre, total, weights, value=factor)


def _inverse(temperature: float) -> float:
    """Return an inverse of a temperature; of 0, with which all exponents are equal, any number would do."""
    return 1 / temperature if abs(temperature) > _LEAST_TEMPERATURE else 1.0


class _Quotient(torch.autograd.Function):
    """centre + factor * total / weights, whose backward pass computes less than torch's.

    Its result is not stored for it: that is the caller's, who may change it in place.
    """

    @staticmethod
    def forward(
        ctx: Any, centre: torch.Tensor, total: torch.Tensor, weights: torch.Tensor, factor: float
    ) -> torch.Tensor:
        ctx.save_for_backward(total, weights)
        ctx.factor = factor
        return torch.addcdiv(centre, total, weights, value=factor)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[None, torch.Tensor, torch.Tensor, None]:
        total, weights = ctx.saved_tensors
        part = grad / weights if ctx.factor == 1 else grad * ctx.factor / weights
        return None, part, part.mul(total / weights).neg(), None


def _planned(message: Any, forms: Any, reduce: Any, temperature: float | None) -> _Plan:
    # A temperature that is a tensor is the last argument, and the message has no such parameter.
    if temperature is None:
        traced, by = Traced(message, forms[:-1]), forms[-1]
        if by.width not in (1, traced.width):
            bad_value(
                "temperature", f"has {by.width} numbers; accepted: one, or {traced.width}, the features"
            )
        return plan_of(traced, reduce, by)
    return plan_of(Traced(message, forms), reduce, temperature)


_made_once = functools.lru_cache(1024)(_planned)


@constant_when_traced
def _constant(message: Any, forms: Any, reduce: Any, temperature: float | None) -> _Plan:
    return _made_once(message, forms, reduce, temperature)
