"""Functions of torch on the features of edges, as steps of code."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from gnnsparse.ops.edges.program import Code

__all__ = ["ELEMENTWISE", "Unknown"]


class Unknown(Exception):  # noqa: N818  (it reports no error)
    """A function, or a value of its options, that has no steps here."""


class Emitter:
    """Emits steps; arguments are values, or Python's numbers as floats."""

    def __init__(self, code: Code) -> None:
        self.code = code

    def __getattr__(self, operation: str) -> Callable[..., int]:
        def emit(*values: int | float) -> int:
            found = (self.code.constant(v) if isinstance(v, float) else v for v in values)
            return self.code.emit(operation, *found)

        return emit


#: Functions and methods of torch by name. Each takes an Emitter, then what torch's takes: values as integers,
#: numbers as floats.
ELEMENTWISE: dict[str, Callable[..., int]] = {}


def _named(*names: str) -> Callable[[Callable[..., int]], Callable[..., int]]:
    def register(function: Callable[..., int]) -> Callable[..., int]:
        ELEMENTWISE.update(dict.fromkeys(names, function))
        return function

    return register


def _of_one_step(operation: str) -> Callable[..., int]:
    return lambda c, *values: getattr(c, operation)(*values)


for _operation in (
    "abs", "exp", "expm1", "log", "log1p", "sqrt", "tanh", "sigmoid", "erf", "sin", "cos", "neg", "mul",
    "maximum", "minimum", "gt", "ge", "eq", "where",
):  # fmt: skip
    ELEMENTWISE[_operation] = _of_one_step(_operation)
for _name, _operation in (
    ("negative", "neg"), ("absolute", "abs"), ("multiply", "mul"), ("truediv", "div"), ("true_divide", "div"),
    ("greater", "gt"), ("greater_equal", "ge"),
):  # fmt: skip
    ELEMENTWISE[_name] = _of_one_step(_operation)
ELEMENTWISE |= {
    **dict.fromkeys(("lt", "less"), lambda c, x, y: c.gt(y, x)),
    **dict.fromkeys(("le", "less_equal"), lambda c, x, y: c.ge(y, x)),
    **dict.fromkeys(("ne", "not_equal"), lambda c, x, y: c.sub(1.0, c.eq(x, y))),
    "rsub": lambda c, x, y, *, alpha=1.0: c.sub(y, _scaled(c, x, alpha)),
    "square": lambda c, x: c.mul(x, x),
    "reciprocal": lambda c, x: c.div(1.0, x),
    "rsqrt": lambda c, x: c.div(1.0, c.sqrt(x)),
    "logsigmoid": lambda c, x: c.neg(c.softplus(c.neg(x))),
}


def _scaled(c: Any, y: int | float, alpha: float) -> int | float:
    return y if alpha == 1 else c.mul(y, float(alpha))


@_named("add")
def _add(c: Any, x: int | float, y: int | float, *, alpha: float = 1.0) -> int:
    return c.add(x, _scaled(c, y, alpha))


@_named("sub", "subtract")
def _sub(c: Any, x: int | float, y: int | float, *, alpha: float = 1.0) -> int:
    return c.sub(x, _scaled(c, y, alpha))


@_named("div", "divide")
def _div(c: Any, x: int | float, y: int | float, *, rounding_mode: None = None) -> int:
    if rounding_mode is not None:
        raise Unknown
    return c.div(x, y)


@_named("pow")
def _pow(c: Any, x: int, exponent: float) -> int:
    match exponent:
        case 2.0:
            return c.mul(x, x)
        case 3.0:
            return c.mul(c.mul(x, x), x)
        case 0.5:
            return c.sqrt(x)
        case -1.0:
            return c.div(1.0, x)
    raise Unknown


@_named("clamp", "clip")
def _clamp(c: Any, x: int, min: float | None = None, max: float | None = None) -> int:
    # A bound that is reached passes the gradient, as torch's.
    if min is not None:
        x = c.where(c.gt(min, x), min, x)
    return x if max is None else c.where(c.gt(x, max), max, x)


@_named("clamp_min")
def _clamp_min(c: Any, x: int, min: float) -> int:
    return _clamp(c, x, min=min)


# Activations.


def _in_place(inplace: bool) -> None:
    """Refuse a function that overwrites its argument, which later code might read again."""
    if inplace:
        raise Unknown


@_named("relu")
def _relu(c: Any, x: int, inplace: bool = False) -> int:
    _in_place(inplace)
    return c.relu(x)


@_named("leaky_relu")
def _leaky_relu(c: Any, x: int, negative_slope: float = 0.01, inplace: bool = False) -> int:
    _in_place(inplace)
    return c.where(c.gt(x, 0.0), x, c.mul(x, float(negative_slope)))


@_named("elu")
def _elu(c: Any, x: int, alpha: float = 1.0, inplace: bool = False) -> int:
    _in_place(inplace)
    is_positive = c.gt(x, 0.0)
    # The exponential of a positive number is not taken: it may be infinite, and so its gradient NaN.
    below = c.expm1(c.where(is_positive, 0.0, x))
    return c.where(is_positive, x, c.mul(below, float(alpha)))


@_named("silu")
def _silu(c: Any, x: int, inplace: bool = False) -> int:
    _in_place(inplace)
    return c.mul(x, c.sigmoid(x))


@_named("gelu")
def _gelu(c: Any, x: int, approximate: str = "none") -> int:
    if approximate == "none":
        inner = c.erf(c.mul(x, math.sqrt(0.5)))
    elif approximate == "tanh":
        cubic = c.add(x, c.mul(c.mul(c.mul(x, x), x), 0.044715))
        inner = c.tanh(c.mul(cubic, math.sqrt(2 / math.pi)))
    else:
        raise Unknown
    return c.mul(c.mul(x, 0.5), c.add(inner, 1.0))


@_named("softplus")
def _softplus(c: Any, x: int, beta: float = 1.0, threshold: float = 20.0) -> int:
    # From the threshold on torch returns x, which there equals the function to float32's precision.
    if threshold < 20.0 or beta <= 0:
        raise Unknown
    return c.softplus(x) if beta == 1 else c.div(c.softplus(c.mul(x, float(beta))), float(beta))
