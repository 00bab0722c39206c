"""Passes of edge functions on the CPU against their interpretation by torch's operations."""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Callable, Sequence

import pytest
import torch

from gnnsparse import _native
from gnnsparse.ops.edges import cpu
from gnnsparse.ops.edges.program import OPERATIONS, Pass, Step
from gnnsparse.ops.edges.rows import Rows
from gnnsparse.testing import assert_all_accurate
from tests.helpers import assert_same_by_threads, same
from tests.ops.edge_oracle import WINNERS, interpret, make_arguments, make_outputs, make_rows, passes

PASSES = passes()
DTYPES = [torch.float32, torch.float16, torch.bfloat16]
#: Edges of rows: none, one, whole batches of edges and parts of them, a hub.
DEGREES = [0, 1, 5, 0, 32, 33, 200, 3, 0, 7]
#: So few that a batch has edges of several rows; one goes on in the next batch, before empty ones.
SHORT = [0, 1, 5, 0, 3, 70, 0, 0, 2, *[2] * 20, 0, 1]


def run(
    pass_: Pass, rows: Rows, arguments: Sequence[torch.Tensor], width: int, dtype: torch.dtype = torch.float32
) -> list[torch.Tensor]:
    outputs = make_outputs(pass_, rows, width, dtype)
    cpu.bind(pass_, rows, width)(arguments, outputs)
    return outputs


def check(pass_: Pass, rows: Rows, width: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> None:
    """Winners are compared where no rounding decides: where all values are small integers."""
    number: Callable[[torch.Tensor], torch.Tensor] = lambda x: x  # noqa: E731
    has_winners = any(kind in WINNERS for kind, _ in pass_.outputs)
    if has_winners:
        number = torch.round
    arguments = make_arguments(pass_, rows, width, dtype, seed=seed, number=number)
    found = run(pass_, rows, arguments, width, dtype)
    plain = interpret(pass_, rows, arguments, width, torch.float32)
    stored = [p.to(f.dtype) for p, f in zip(plain, found, strict=True)]
    if has_winners:
        assert same(found, stored)
        return
    assert_all_accurate(found, stored, lambda: interpret(pass_, rows, arguments, width))


@pytest.mark.parametrize("name", PASSES)
def test_passes_of_messages(isa: str, name: str) -> None:
    assert _native.cpu_isa() == isa
    for width in (1, 3, 16, 100, 128, 300):
        for degrees in (DEGREES, SHORT):
            check(PASSES[name], make_rows(degrees, 23, reordered=width % 2 == 0), width)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", PASSES)
def test_storage_types(isa: str, name: str, dtype: torch.dtype) -> None:
    assert _native.cpu_isa() == isa
    for width in (5, 64):
        for degrees in (DEGREES, SHORT):
            check(PASSES[name], make_rows(degrees, 23, numbered=False), width, dtype)


UNBOUNDED = ("div", "log", "log1p", "sqrt", "exp", "expm1")


def random_pass(seed: int) -> Pass:
    """Random code over inputs of all kinds, whose values stay small."""
    draw = random.Random(seed)
    kinds = ["gathered", "row", "edge", "gathered_number", "row_number", "edge_number", "vector"]
    kinds += ["vector_number", "gathered_winner", "row_winner", "gathered_wide", "row_wide"]
    inputs = [draw.choice(kinds) for _ in range(draw.randint(1, 6))]
    sizes = [0] * len(inputs)
    mapped = draw.random() < 0.6
    if mapped:
        inputs.append("mapped")
        sizes.append(draw.randint(1, 16))
    steps: list[Step] = []
    for _ in range(draw.randint(1, 14)):
        name = draw.choice([o for o in OPERATIONS if o not in UNBOUNDED])
        values = tuple(draw.randrange(len(inputs) + len(steps)) for _ in range(OPERATIONS[name]))
        steps.append(Step(name, values, draw.uniform(-2, 2) if name == "const" else 0.0))
        if name in ("add", "sub", "mul", "neg"):  # of tanh, so that products of products stay small
            steps.append(Step("tanh", (len(inputs) + len(steps) - 1,)))
    outputs = ["sum", "edge", "row_number", "edge_number", "vector"]
    outputs += ["mapped_edge", "mapped_weight"] if mapped else []
    stored = tuple(
        (draw.choice(outputs), draw.randrange(len(inputs) + len(steps))) for _ in range(draw.randint(1, 5))
    )
    return Pass(tuple(inputs), tuple(sizes), tuple(steps), stored, (), ())


@pytest.mark.parametrize("seed", range(40))
def test_random_passes(seed: int) -> None:
    width = [1, 2, 15, 17, 64, 257, 520][seed % 7]
    rows = make_rows(DEGREES, 23, seed=seed, numbered=seed % 2 == 0, reordered=seed % 3 == 0)
    check(random_pass(seed), rows, width, DTYPES[seed % 3], seed)


@pytest.mark.parametrize("rows", [make_rows([], 3), make_rows([0, 0], 3), make_rows([2, 1], 1)])
@pytest.mark.parametrize("name", PASSES)
def test_few_rows(name: str, rows: Rows) -> None:
    check(PASSES[name], rows, 4)


@pytest.mark.usefixtures("any_threads")
@pytest.mark.parametrize("name", PASSES)
def test_same_bits_with_any_number_of_threads(name: str) -> None:
    rows = make_rows(DEGREES * 60, 500)
    arguments = make_arguments(PASSES[name], rows, 40)
    assert_same_by_threads(lambda: run(PASSES[name], rows, arguments, 40))


def test_rows_that_lie_apart(isa: str) -> None:
    """Arguments and outputs may be parts of wider arrays; what lies between stays as it was."""
    assert _native.cpu_isa() == isa
    pass_, rows = PASSES["gated_gcn-0"], make_rows(DEGREES, 23)
    arguments = make_arguments(pass_, rows, 21)
    right = run(pass_, rows, arguments, 21)
    apart = [torch.cat([t, torch.full((t.shape[0], 11), torch.nan)], 1)[:, :21] for t in arguments]
    wide = [torch.full((t.shape[0], 32), 5.0) for t in right]
    cpu.bind(pass_, rows, 21)(apart, [w[:, :21] for w in wide])
    assert same([w[:, :21] for w in wide], right)
    assert all(torch.equal(w[:, 21:], torch.full_like(w[:, 21:], 5.0)) for w in wide)
    turned = [t.T.contiguous().T for t in arguments]
    assert same(run(pass_, rows, turned, 21), right)


def test_nan_wins_and_the_first_of_equal_ones(isa: str) -> None:
    assert _native.cpu_isa() == isa
    rows = make_rows([4, 3, 2], 1, numbered=False)
    x = torch.tensor([1.0, 5.0, 5.0, 2.0, 1.0, torch.nan, torch.nan, -torch.inf, -torch.inf])[:, None]
    pass_ = Pass(("edge",), (0,), (), (("max", 0), ("min", 0)), (), ())
    largest, first, smallest, last = run(pass_, rows, [x], 1)
    assert first.flatten().tolist() == [1, 5, 7]
    assert last.flatten().tolist() == [0, 5, 7]
    for found, finite in ((largest, 5), (smallest, 1)):
        assert torch.equal(found.flatten().nan_to_num(9), torch.tensor([finite, 9, -torch.inf]).nan_to_num(9))


#: For each function the units in the last place that it may be wrong.
ULPS = {
    "exp": 3, "expm1": 3, "log": 2, "log1p": 4, "sqrt": 1, "tanh": 5, "sigmoid": 4, "softplus": 5, "erf": 3,
    "sin": 2, "cos": 2,
}  # fmt: skip


@pytest.mark.parametrize("name", ULPS)
def test_functions_over_the_whole_range(isa: str, name: str) -> None:
    """Every exponent, both signs, denormals, infinities, NaN."""
    assert _native.cpu_isa() == isa
    bits = torch.arange(0, 1 << 31, 30011, dtype=torch.int64)
    size = bits.to(torch.int32).view(torch.float32)
    size = torch.cat([size, torch.linspace(0, 110, 30_001), torch.tensor([torch.inf, torch.nan, 0.0])])
    x = torch.cat([size, -size])
    x = torch.nn.functional.pad(x, (0, -x.numel() % 100)).view(-1, 100)
    pass_ = Pass(("edge",), (0,), (Step(name, (0,)),), (("edge", 1),), (), ())
    rows = make_rows([x.shape[0]], 1, numbered=False)
    (found,) = run(pass_, rows, [x], 100)
    (exact,) = interpret(pass_, rows, [x], 100)
    if name == "softplus":  # torch's is x above 20
        exact = torch.where(x < 700, x.double().exp().log1p(), x.double())
    right = exact.float()
    special = ~right.isfinite()
    assert torch.equal(found[special].nan_to_num(9), right[special].nan_to_num(9))
    # Exponentials below e^-87.3 are 0; sine and cosine are exact beside 1.
    error, unit = (found.double() - exact).abs(), right.abs().double() * torch.finfo(torch.float32).eps
    least = math.exp(-87.3) if name not in ("sin", "cos") else 2.0**-25
    wrong = ~special & ~(error <= ULPS[name] * unit + least)
    assert not wrong.any(), (x[wrong][:5], found[wrong][:5], exact[wrong][:5])


EDGE = Pass(("edge",), (0,), (Step("neg", (0,)),), (("sum", 1),), (), ())


@pytest.mark.parametrize(
    ("pass_", "message"),
    [
        (dataclasses.replace(EDGE, inputs=("edges",)), "inputs: have no kind edges"),
        (dataclasses.replace(EDGE, sizes=()), "sizes: must be as many as inputs"),
        (dataclasses.replace(EDGE, inputs=("mapped",)), r"sizes: got 0; accepted: 1 to 16 mapped numbers"),
        (dataclasses.replace(EDGE, steps=(Step("sign", (0,)),)), "steps: have no operation sign"),
        (
            dataclasses.replace(EDGE, steps=(Step("neg", (1,)),)),
            "steps: read value 1; accepted: those before the step",
        ),
        (dataclasses.replace(EDGE, steps=(Step("add", (0,)),)), "steps: add is made of 2 values, got 1"),
        (
            dataclasses.replace(EDGE, outputs=(("sum", 2),)),
            "outputs: store value 2; accepted: an input or a step",
        ),
        (
            dataclasses.replace(EDGE, outputs=(("mapped_edge", 1),)),
            "outputs: mapped_edge needs a mapped input",
        ),
    ],
)
def test_what_is_no_program(pass_: Pass, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        _native.EdgeProgram(pass_.inputs, pass_.sizes, pass_.steps, pass_.outputs)


def test_wrong_arguments() -> None:
    rows, x, y = make_rows([2, 1], 3), torch.ones(3, 4), torch.zeros(2, 4)
    for given, stored, message in (
        ([x[:2]], [y], r"arguments\[0\]: has shape \(2, 4\)"),
        ([x[:, :3]], [y], r"arguments\[0\]: has shape \(3, 3\)"),
        ([x.double()], [y], r"arguments\[0\]: "),
        ([x], [y[:1]], r"outputs\[0\]: has shape \(1, 4\)"),
        ([x], [y.int()], r"outputs\[0\]: "),
    ):
        with pytest.raises(ValueError, match=message):
            cpu.bind(EDGE, rows, 4)(given, stored)
    with pytest.raises(TypeError, match=r"arguments\[0\]: .* 2 dimensions"):
        cpu.bind(EDGE, rows, 4)([x[0]], [y])
    with pytest.raises(ValueError, match="num_edges: got 2"):
        cpu.bind(EDGE, rows._replace(edge_ids=None, num_edges=2), 4)([x], [y])
