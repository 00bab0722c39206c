"""Functions over edges whose kernels the emulator is built with: those of layers, and every form of input."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import NamedTuple

import torch

from gnnsparse.ops.edges.cuda import Variant, program_text, variant_of
from gnnsparse.ops.edges.program import (
    OPERATIONS,
    Code,
    Function,
    Input,
    Pass,
    column_pass,
    forward_pass,
    function_of,
    row_pass,
)


def _gine(size: int) -> Function:
    code = Code(2)
    message = code.emit("relu", code.emit("add", 0, 1))
    return function_of(
        (Input("source"), Input("edge", "mapped", size)), tuple(code.steps), (("sum", message),)
    )


def _resgated() -> Function:
    code = Code(3)
    message = code.emit("mul", code.emit("sigmoid", code.emit("add", 0, 1)), 2)
    inputs = Input("target"), Input("source"), Input("source")
    return function_of(inputs, tuple(code.steps), (("sum", message),))


def _gated_gcn() -> Function:
    code = Code(4)
    edge = code.emit("add", code.emit("add", 0, 1), 2)
    gate = code.emit("sigmoid", edge)
    inputs = Input("target"), Input("source"), Input("edge"), Input("source")
    results = ("sum", code.emit("mul", gate, 3)), ("sum", gate), ("edge", edge)
    return function_of(inputs, tuple(code.steps), results)


def _extremes() -> Function:
    code = Code(3)
    value = code.emit("add", code.emit("mul", 0, 1), 2)
    inputs = Input("source"), Input("edge", "number"), Input("target")
    return function_of(inputs, tuple(code.steps), (("max", value), ("min", value), ("sum", value)))


def _numbers() -> Function:
    code = Code(6)
    weight = code.emit("mul", code.emit("exp", code.emit("add", 1, 2)), 3)
    value = code.emit("add", code.emit("mul", 0, weight), code.emit("tanh", code.emit("mul", 4, 5)))
    inputs = (
        Input("source"), Input("source", "number"), Input("target", "number"), Input("edge", "number"),
        Input("shared"), Input("shared", "number"),
    )  # fmt: skip
    return function_of(inputs, tuple(code.steps), (("sum", value),))


def _softmax() -> Function:
    code = Code(2)
    weight = code.emit("exp", code.emit("sub", 0, 1))
    results = ("sum", code.emit("mul", weight, 0)), ("sum", weight)
    return function_of((Input("source"), Input("target", "wide")), tuple(code.steps), results)


def _everything() -> Function:
    """Every operation, of values for which it is defined."""
    code = Code(2)
    a, b = code.emit("sin", 0), code.emit("cos", 1)
    above = code.emit("add", code.emit("abs", a), code.constant(0.5))
    found = [code.emit(name, a) for name, count in OPERATIONS.items() if count == 1 and "log" not in name]
    found += [code.emit(name, a, b) for name, count in OPERATIONS.items() if count == 2 and name != "div"]
    found += [code.emit(name, above) for name in ("log", "log1p", "sqrt")]
    found += [code.emit("div", b, above), code.emit("where", code.emit("gt", a, b), a, code.constant(1e30))]
    found.remove(code.emit("sqrt", a))
    total = code.constant(0.25)
    for value in found[:-1]:
        total = code.emit("add", total, value)
    total = code.emit("minimum", total, code.emit("abs", found[-1]))
    return function_of((Input("source"), Input("target")), tuple(code.steps), (("edge", total),))


class Case(NamedTuple):
    """A function, in a storage dtype, with so many features."""

    name: str
    dtype: torch.dtype
    width: int


FUNCTIONS = {
    "gine": _gine(8), "gine 3": _gine(3), "resgated": _resgated(), "gated_gcn": _gated_gcn(),
    "extremes": _extremes(), "numbers": _numbers(), "everything": _everything(), "softmax": _softmax(),
}  # fmt: skip
_WIDTHS = {
    "gine": ((128, 200), (30,)), "gine 3": ((4, 30), ()), "resgated": ((30,), (128,)),
    "gated_gcn": ((128,), (200,)), "extremes": ((4, 128), (30,)), "numbers": ((30, 200), (4,)),
    "everything": ((30,), ()), "softmax": ((30,), (30, 128)),
}  # fmt: skip
CASES = [
    Case(name, dtype, width)
    for name, widths in _WIDTHS.items()
    for dtype, of in zip((torch.float32, torch.float16), widths, strict=True)
    for width in of
]


def passes_of(function: Function) -> list[Pass]:
    """The passes for the results, and for the gradients of all inputs."""
    needs = (*(x.form != "wide" for x in function.inputs), True)
    found = forward_pass(function), row_pass(function, needs), column_pass(function, needs)
    return [pass_ for pass_ in found if pass_ is not None]


def variants(name: str) -> Iterator[Variant]:
    """Yield what is compiled for the cases of a function."""
    for case in CASES:
        if case.name == name:
            for pass_ in passes_of(FUNCTIONS[name]):
                yield variant_of(pass_, case.dtype, case.width)


def kernel_name(program: str) -> str:
    return hashlib.sha256(program.encode()).hexdigest()[:16]


def emulated_units() -> dict[str, str]:
    """The units that the emulator is built of beside its own: their names and texts."""
    made = {}
    for name in FUNCTIONS:
        text = '#include "edge_kernels.h"\nnamespace gnnsparse::cuda {\n'
        for variant in dict.fromkeys(variants(name)):
            message = variant.text()
            kernel = kernel_name(program_text(message))
            text += f"namespace k{kernel} {{\n{message}"
            text += f'const bool added = add_edge_kernel<Message>("{kernel}");\n}}\n'
        made[f"edges_{name.replace(' ', '_')}.cu"] = text + "}\n"
    return made
