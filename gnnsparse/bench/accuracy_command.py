"""The command `gnnsparse bench accuracy`: what each precision does to results, measured against float64.

Operands have numbers that are easy or hard for a precision, and errors stand beside those of a plain run. The
effects of 16 bits are sums in float16, small gradients, and overflow.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from rich.text import Text

from gnnsparse import SparseGraph, SparseOperand, attention, graph_attention, prepare, sddmm, spmm
from gnnsparse.bench.arguments import add_device, add_names, add_outputs, seed_option
from gnnsparse.bench.figures import ACCUMULATORS, accuracy_panels, form_of, plot
from gnnsparse.bench.latency_reference import Arithmetic, softmax_by_row
from gnnsparse.bench.session import Row, new_table, progress
from gnnsparse.precision import ROUNDED_PRECISIONS, Precision
from gnnsparse.runtime.environment import describe_environment, write_json
from gnnsparse.runtime.profiler import wide_console
from gnnsparse.testing import measure_errors, random_graph

#: Rows, columns and features of the operands, but where a range says otherwise.
_SIZE, _WIDTH, _DENSITY = 256, 64, 0.1
#: Heads of graph attention.
HEADS = 4
#: Terms of a sum in the range "degree".
_TERMS = 4096
#: Pairs of terms cancel but for about this part of them.
_LEFT = 2.0**-7


@dataclass(frozen=True, eq=False)
class Operands:
    """Operands of all operations, float32: a graph [m, n] with values, q [m, D], k [n, D] and v [n, F]."""

    graph: SparseGraph
    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor

    def to(self, device: torch.device | str) -> Operands:
        """Return the operands on another device."""
        return Operands(self.graph.to(device), self.q.to(device), self.k.to(device), self.v.to(device))


def _draws(seed: int) -> tuple[Callable[..., torch.Tensor], Callable[..., torch.Tensor]]:
    """Return what draws standard normal numbers, and numbers in [0, 1), of a shape."""
    generator = torch.Generator("cpu").manual_seed(seed)
    on_cpu: Any = {"generator": generator, "dtype": torch.float32, "device": "cpu"}
    return functools.partial(torch.randn, **on_cpu), functools.partial(torch.rand, **on_cpu)


def _normal(op: str, seed: int) -> Operands:
    (normal, _), graph = _draws(seed), random_graph(_SIZE, _SIZE, _DENSITY, seed=seed)
    return Operands(graph, *(normal(_SIZE, _WIDTH) for _ in range(3)))


def _wide(op: str, seed: int) -> Operands:
    """Features of V, and rows of Q, from 2^-24 to 2^8 in size; float16 has normal numbers from 2^-14."""
    made = _normal(op, seed)
    sizes = torch.logspace(-24, 8, _WIDTH, base=2.0, dtype=torch.float32, device="cpu")
    rows = torch.logspace(-24, 8, _SIZE, base=2.0, dtype=torch.float32, device="cpu")
    q = made.q * rows[:, None] if op == "sddmm" else made.q
    return Operands(made.graph, q, made.k, made.v * sizes)


def _degree(op: str, seed: int) -> Operands:
    """Draw sums of 4,096 terms that do not cancel: values and features in [0, 1)."""
    normal, uniform = _draws(seed)
    if op == "sddmm":
        graph = random_graph(64, 64, 0.25, seed=seed)
        return Operands(graph, uniform(64, _TERMS), uniform(64, _TERMS), uniform(64, 1))
    columns, rows = 2 * _TERMS, 16
    chosen = torch.stack([uniform(columns).topk(_TERMS).indices for _ in range(rows)])
    targets = torch.arange(rows, dtype=torch.int64, device="cpu").repeat_interleave(_TERMS)
    graph = SparseGraph.from_edge_index(
        torch.stack([chosen.flatten(), targets]), (columns, rows), uniform(rows * _TERMS)
    )
    return Operands(graph, normal(rows, 16), normal(columns, 16), uniform(columns, 16))


def _cancellation(op: str, seed: int) -> Operands:
    """Draw sums whose terms come in pairs that cancel to about a hundredth."""
    (normal, _), half = _draws(seed), _SIZE // 2
    left = 1.0 + _LEFT * normal(half, _WIDTH)
    if op == "sddmm":
        graph, a = random_graph(_SIZE, half, _DENSITY, seed=seed), normal(_SIZE, _WIDTH)
        b = normal(half, _WIDTH)
        return Operands(graph, torch.cat([a, a], 1), torch.cat([b, -b * left], 1), b)
    # Columns 2j and 2j + 1 stand beside each other in every row that has one of them.
    pairs = random_graph(_SIZE, half, _DENSITY, seed=seed)
    rows, columns = pairs.csr.row_index(), pairs.csr.indices.long()
    ends = torch.stack([torch.cat([2 * columns, 2 * columns + 1]), torch.cat([rows, rows])])
    assert pairs.values is not None
    graph = SparseGraph.from_edge_index(ends, (_SIZE, _SIZE), torch.cat([pairs.values, pairs.values]))
    v = normal(half, _WIDTH)
    v = torch.stack([v, -v * left], 1).flatten(0, 1)
    k = normal(half, _WIDTH).repeat_interleave(2, 0)  # both of a pair have the same weight
    return Operands(graph, 0.1 * normal(_SIZE, _WIDTH), k, v)


#: What makes the operands of an operation from a seed, by the name of the range: standard normal numbers;
#: features from 2^-24 to 2^8; sums of 4,096 terms of one sign; terms that cancel to about a hundredth.
RANGES: dict[str, Callable[[str, int], Operands]] = {
    "normal": _normal,
    "wide": _wide,
    "degree": _degree,
    "cancellation": _cancellation,
}


# Plain torch operations over edges: in float64, which is exact here, and in the precision of a kernel.

#: Slope of graph attention's leaky ReLU below 0.
SLOPE = 0.2


def by_head(x: torch.Tensor) -> torch.Tensor:
    """Divide features [n, F] among the heads of graph attention: [n, heads, F / heads]."""
    return x.unflatten(1, (HEADS, -1))


class PlainOperations:
    """The operations on gathered rows, one after another, over nonzeros (`index`) of any order.

    Operands of products are rounded to `precision`, with float32 sums; None: float64 without rounding.
    """

    def __init__(
        self, operands: Operands, index: torch.Tensor, values: torch.Tensor, precision: Precision | None
    ) -> None:
        self._operands, self._values, self._how = operands, values, Arithmetic(precision)
        self._row, self._column = index

    def run(self, op: str) -> torch.Tensor:
        """Compute an operation: [m, F], or for sddmm [nnz] in the order of `index`."""
        return self._add(op, self._terms(op))

    def sizes(self, op: str) -> torch.Tensor:
        """Compute the root of the sum of the squares of each element's terms."""
        return self._add(op, self._terms(op).square()).sqrt()

    def _terms(self, op: str) -> torch.Tensor:
        q, k, v = self._operands.q, self._operands.k, self._operands.v
        operand = self._how.operand
        if op == "sddmm":
            return operand(q)[self._row] * operand(k)[self._column]
        if op == "graph_attention":
            of_row, of_column = (x[:, :HEADS].to(self._how.dtype) for x in (q, k))
            scores = of_row[self._row] + of_column[self._column]
            weights = softmax_by_row(torch.nn.functional.leaky_relu(scores, SLOPE), self._row, len(q))
            return operand(weights)[:, :, None] * operand(by_head(v))[self._column]
        weights = self._values
        if op == "attention":
            weights = softmax_by_row(self._terms("sddmm").sum(1) / q.shape[1] ** 0.5, self._row, len(q))
        return operand(weights)[:, None] * operand(v)[self._column]

    def _add(self, op: str, terms: torch.Tensor) -> torch.Tensor:
        if op == "sddmm":
            return terms.sum(1)
        rows = terms.new_zeros(self._operands.q.shape[0], *terms.shape[1:])
        return rows.index_add_(0, self._row, terms).flatten(1)


# Errors of operations in each precision, against float64 and beside those of a plain run.

#: Computes an operation of the library from an operand and the dense operands.
Operation = Callable[[SparseOperand, Operands], torch.Tensor]

#: The largest relative error of rounding one number to a precision: half the distance from 1 to the next one.
ROUNDING = {"fp32": 2.0**-24, "tf32": 2.0**-11, "fp16": 2.0**-11, "bf16": 2.0**-8}


def _graph_attention(a: SparseOperand, x: Operands) -> torch.Tensor:
    q, k = x.q[:, :HEADS], x.k[:, :HEADS]
    out: torch.Tensor = graph_attention(a, q, k, by_head(x.v), score="additive", negative_slope=SLOPE)
    return out.flatten(1)


OPERATIONS: dict[str, Operation] = {
    "spmm": lambda a, x: spmm(a, x.v),
    "sddmm": lambda a, x: sddmm(a, x.q, x.k),
    "attention": lambda a, x: attention(a, x.q, x.k, x.v),
    "graph_attention": _graph_attention,
}


def outputs_of(precision: Precision) -> tuple[torch.dtype, ...]:
    """Return the dtypes that results of a precision are measured in: those of dense operands in training."""
    return tuple(dict.fromkeys((torch.float32, precision.storage)))


def operation_rows(
    ops: Sequence[str],
    ranges: Sequence[str],
    precisions: Sequence[str],
    seed: int,
    device: torch.device | str,
) -> Iterator[Row]:
    """Measure operations on operands of each range, in each precision, with results of each dtype."""
    for op, name in itertools.product(ops, ranges):
        operands = RANGES[name](op, seed).to(device)
        for precision in map(Precision, precisions):
            for dtype in outputs_of(precision):
                about = {"op": op, "range": name, "precision": precision.value}
                row = _measure(op, OPERATIONS[op], operands, precision, dtype)
                yield {**about, "output": str(dtype).removeprefix("torch."), **row}


def _measure(op: str, run: Operation, operands: Operands, precision: Precision, dtype: torch.dtype) -> Row:
    a = prepare(operands.graph, precision=precision, cache=False)
    index, values = a.indices(), operands.graph.values
    assert values is not None
    given = Operands(operands.graph, *(x.to(dtype) for x in (operands.q, operands.k, operands.v)))
    try:
        actual = run(a, given)
    except Exception as error:  # a kernel that fails is a result, and the others are measured
        return _failed(f"{type(error).__name__}: {' '.join(str(error).split())}")
    # The operands that the exact result is of were not rounded: their rounding is a part of the error.
    exact = PlainOperations(operands, index, values, None)
    seen = Operands(operands.graph, *(x.float() for x in (given.q, given.k, given.v)))
    plain = PlainOperations(seen, index, values, precision).run(op).to(dtype)
    return judge(actual, plain, exact.run(op), exact.sizes(op), _truncation(op, operands, precision))


def _truncation(op: str, operands: Operands, precision: Precision) -> float:
    """The relative error of a sum that Tensor Cores truncate, which a plain run, that rounds it, has not.

    Each instruction adds at least 8 terms, and cuts what is below 2^-23 of the sum off. Kernels of fp32 add
    short sums of Tensor Cores up in float32.
    """
    if operands.q.device.type != "cuda" or precision is Precision.FP32:
        return 0.0
    longest = operands.q.shape[1] if op == "sddmm" else int(operands.graph.csr.degrees.max())
    return longest / 8 * 2.0**-23


def _most_elements(result: torch.Tensor, exact: torch.Tensor) -> float:
    """The relative error that 90 % of the elements do not exceed, without those that should be 0."""
    counted = exact != 0
    if not counted.any():
        return 0.0
    errors = ((result.double() - exact) / exact)[counted].abs()
    return float(errors.kthvalue(-(-9 * errors.numel() // 10)).values)


def _failed(problem: str) -> Row:
    names = ("error", "largest", "elements", "of_terms", "plain", "allowed", "lost", "infinite")
    return {**dict.fromkeys(names), "ok": False, "problem": problem}


def judge(
    actual: torch.Tensor,
    plain: torch.Tensor,
    exact: torch.Tensor,
    sizes: torch.Tensor,
    truncation: float = 0.0,
) -> Row:
    """Compare a result with that of a plain run and that in float64; notes/benchmarks.md lists the keys.

    `sizes` is the root of the sum of the squares of each element's terms, and `truncation` a relative error
    that is allowed besides. Errors are of finite elements, None if there are none.
    """
    if actual.shape != plain.shape or actual.dtype != plain.dtype:
        return _failed(
            f"the result is {actual.dtype} {tuple(actual.shape)}, not {plain.dtype} {tuple(plain.shape)}"
        )
    finite = actual.isfinite() & plain.isfinite()
    unequal = int((actual.isfinite() != plain.isfinite()).sum())
    some = bool(finite.any())
    measure = functools.partial(torch.masked_select, mask=finite)
    measured, right, terms = measure(actual), measure(exact), measure(sizes)
    # Two roundings are always allowed, as in gnnsparse.bench.workload.
    floor = max(torch.finfo(actual.dtype).eps, 1e-6, truncation)
    errors = measure_errors(measured, measure(plain), right, floor=floor, scale=terms)
    scale = float(terms.norm()) or 1.0
    problem = "" if errors.ok else f"error {max(errors.actual):.1e}, accepted {max(errors.allowed):.1e}"
    if unequal:
        problem = f"{unequal} elements are finite in it or in a plain run only"
    return {
        "error": errors.actual[0] if some else None,
        "largest": errors.actual[1] if some else None,
        "elements": _most_elements(measured, right) if some else None,
        "of_terms": float((measured.double() - right).norm()) / scale if some else None,
        "plain": errors.plain[0] if some else None,
        "allowed": errors.allowed[0] if some else None,
        "lost": float(((actual == 0) & (exact != 0)).double().mean()) if actual.numel() else 0.0,
        "infinite": int((~actual.isfinite()).sum()),
        "ok": not problem,
        "problem": problem,
    }  # fmt: skip


#: Numbers of terms of a sum.
TERMS = (256, 1024, 4096, 16384, 65536)
#: Sums of one case, each of other numbers.
_SUMS = 32
_BLOCK = 16
#: What makes the terms of sums, [terms, sums], from a seed, by name.
SERIES: dict[str, Callable[[int, int], torch.Tensor]] = {
    "ones": lambda terms, _: torch.ones(terms, _SUMS, dtype=torch.float32, device="cpu"),
    "uniform": lambda terms, seed: _draws(seed)[1](terms, _SUMS),
    "normal": lambda terms, seed: _draws(seed)[0](terms, _SUMS),
}


def half_sums(terms: torch.Tensor, block: int = 1) -> torch.Tensor:
    """Add up float16 terms [n, sums] in float16; `block` of them are added exactly before each rounding."""
    total = torch.zeros(terms.shape[1], dtype=torch.float64, device=terms.device)
    for part in terms.double().split(block):
        # An exact sum is rounded (by way of float32, as torch does); what does not fit becomes infinite.
        total = (total + part.sum(0)).half().double()
    return total.half()


def _relative(result: torch.Tensor, exact: torch.Tensor) -> float | None:
    """The relative error in the Euclidean norm; None if a sum is not finite."""
    if not result.isfinite().all():
        return None
    return float((result.double() - exact).norm() / exact.norm())


def accumulation_rows(device: torch.device | str, seed: int) -> Iterator[Row]:
    """Measure sums of TERMS products of float16 operands, by the kernel and with emulated accumulators.

    Errors are None where a sum is not finite. The kernel has to keep the bound of float32 sums in any order:
    terms * 2^-24 times the sum of the magnitudes (Higham, "Accuracy and Stability of Numerical Algorithms",
    2002, section 4.2).
    """
    for name, count in itertools.product(SERIES, TERMS):
        x = SERIES[name](count, seed).half()
        exact = x.double().sum(0)
        columns = torch.arange(count, dtype=torch.int64, device="cpu")
        graph = SparseGraph.from_edge_index(torch.stack([columns, torch.zeros_like(columns)]), (count, 1))
        a = prepare(graph.to(device), precision="fp16", cache=False)
        summed = spmm(a, x.float().to(device))[0].cpu()
        sequential, blocks = half_sums(x), half_sums(x, _BLOCK)
        bound = count * 2.0**-24 * x.double().abs().sum(0)
        yield {
            "series": name, "terms": count, "kernel": _relative(summed, exact),
            "half_blocks": _relative(blocks, exact), "half": _relative(sequential, exact),
            "ok": bool(((summed.double() - exact).abs() <= bound).all()),
        }  # fmt: skip


# Gradients that are too small for float16, and what scaling of the loss saves of them.
#
# A float16 number below 2^-24 is 0, and below 2^-14 it has less than 11 bits. Loss scaling (Micikevicius et
# al., "Mixed Precision Training", ICLR 2018, section 3.2) multiplies the loss, and with it all gradients,
# by a factor, and divides the gradients of the float32 parameters by it. torch's GradScaler begins with
# 2^16, and halves the factor after a step in which a gradient was not finite.

#: Sizes of the gradient of the loss by the product, as powers of two.
MAGNITUDES = (4, 0, -8, -14, -20, -24, -28, -32)
#: The first factor of torch's GradScaler.
INITIAL_SCALE = 2.0**16
#: The factor stays between 2 to the power of minus this and of this.
_MOST = 60
_NODES, _FEATURES, _FILL = 256, 32, 0.05


@dataclass(frozen=True, eq=False)
class _Case:
    """A product y = A x whose gradients are measured; `values` are the weights of A's nonzeros."""

    operand: SparseOperand
    values: torch.Tensor
    parameter: torch.Tensor

    def transposed(self, gradient: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        """Compute A^T times a gradient, in the dtype of both."""
        row, column = self.operand.indices()
        out = gradient.new_zeros(self.parameter.shape)
        return out.index_add_(0, column, values[:, None] * gradient[row])

    def gradient(self, gradient: torch.Tensor, scale: float) -> torch.Tensor:
        """The gradient of the parameter by the kernels, whose loss is scaled, divided by the scale."""
        leaf = self.parameter.detach().clone().requires_grad_()
        y = spmm(self.operand, leaf.to(self.operand.precision.storage))
        (found,) = torch.autograd.grad((y.float() * gradient).sum() * scale, leaf)
        return found / scale

    def plain(self, gradient: torch.Tensor, scale: float) -> torch.Tensor:
        """The same by plain operations: a gradient in 16 bits, float32 sums of rounded products, 16 bits."""
        dtype = self.operand.precision.storage
        rounded = (gradient * scale).to(dtype).float(), self.values.to(dtype).float()
        return self.transposed(*rounded).to(dtype).float() / scale


def _gradient_row(
    found: torch.Tensor, plain: torch.Tensor, exact: torch.Tensor, scale: float, dtype: torch.dtype
) -> Row:
    finite, counted = found.isfinite(), exact != 0
    both = finite & plain.isfinite()
    errors = measure_errors(found[both], plain[both], exact[both], floor=torch.finfo(dtype).eps)
    # Near the largest number, the order of a sum decides which side of it an element is on. An infinite
    # operand may spread to the row window (docs/numerics.md), so that more elements than in a plain run are.
    near = (exact.abs() * scale / torch.finfo(dtype).max - 1).abs() < 0.01
    spread = ~finite & bool((~plain.isfinite()).any())
    return {
        "error": errors.actual[0] if bool(finite.all()) else None,
        "lost": float((counted & (found == 0)).double().sum() / counted.double().sum()),
        "infinite": float((~finite).double().mean()),
        "ok": errors.ok and bool(((finite == plain.isfinite()) | near | spread).all()),
    }


def _dynamic_scale(case: _Case, gradient: torch.Tensor) -> tuple[float, int]:
    """GradScaler's factor in the end, the largest that is finite, and the steps that it skips before."""
    scale, skipped = INITIAL_SCALE, 0
    while not case.gradient(gradient, scale).isfinite().all() and scale > 2.0**-_MOST:
        scale, skipped = scale / 2, skipped + 1
    while skipped == 0 and scale < 2.0**_MOST and case.gradient(gradient, 2 * scale).isfinite().all():
        scale *= 2
    return scale, skipped


def scaling_rows(device: torch.device | str, seed: int, precisions: Sequence[str]) -> Iterator[Row]:
    """Measure gradients by a float32 x of y = A x in 16 bits, by the way that the loss is scaled.

    The gradient of the loss by y is standard normal times 2 to the power of each of MAGNITUDES. "scaled" is
    by INITIAL_SCALE, "dynamic" by the factor that GradScaler arrives at.
    """
    graph = random_graph(_NODES, _NODES, _FILL, seed=seed)
    normal, _ = _draws(seed)
    parameter, unit = (normal(_NODES, _FEATURES).to(device) for _ in range(2))
    moved = graph.to(device)
    assert moved.values is not None
    for precision in map(Precision, precisions):
        if precision.storage == torch.float32:
            continue
        case = _Case(prepare(moved, precision=precision, cache=False), moved.values, parameter)
        for power in MAGNITUDES:
            gradient = unit * 2.0**power
            exact = case.transposed(gradient.double(), case.values.double())
            ways, skipped = {"unscaled": 1.0}, 0
            if precision is Precision.FP16:  # the range of bfloat16 is that of float32
                dynamic, skipped = _dynamic_scale(case, gradient)
                ways |= {"scaled": INITIAL_SCALE, "dynamic": dynamic}
            for way, scale in ways.items():
                found, plain = (make(gradient, scale) for make in (case.gradient, case.plain))
                yield {
                    "precision": precision.value, "magnitude": power, "way": way, "scale": scale,
                    "skipped": skipped if way == "dynamic" else 0,
                    **_gradient_row(found, plain, exact, scale, precision.storage),
                }  # fmt: skip


# Sums that exceed the largest number of a result's dtype.

#: Nonzeros of each row.
DEGREES = (1024, 4096, 8192, 16384)
#: Each term of a sum: with it a row of 8,188 nonzeros has the sum 65,504, the largest number of float16.
TERM = 8.0
_ROWS, _OVERFLOW_COLUMNS = 4, 16


def overflow_rows(device: torch.device | str, precisions: Sequence[str]) -> Iterator[Row]:
    """Measure sums and means over rows of DEGREES nonzeros whose terms are all TERM.

    A result is right if exactly the elements are infinite whose sum rounds to infinity, and the others are
    off by at most two roundings.
    """
    for degree in DEGREES:
        columns = torch.arange(degree, dtype=torch.int64, device="cpu").repeat(_ROWS)
        rows = torch.arange(_ROWS, dtype=torch.int64, device="cpu").repeat_interleave(degree)
        graph = SparseGraph.from_edge_index(torch.stack([columns, rows]), (degree, _ROWS)).to(device)
        for precision in map(Precision, precisions):
            a = prepare(graph, precision=precision, cache=False)
            for dtype, reduce in itertools.product(outputs_of(precision), ("sum", "mean")):
                x = torch.full((degree, _OVERFLOW_COLUMNS), TERM, dtype=dtype, device=device)
                exact = TERM * (degree if reduce == "sum" else 1)
                result = spmm(a, x, reduce=reduce)
                infinite = int((~result.isfinite()).sum())
                if torch.tensor(exact, dtype=torch.float64, device="cpu").to(dtype).isfinite():
                    off = (result.double() - exact).abs()
                    ok = bool((off <= 2 * torch.finfo(dtype).eps * exact).all())
                else:
                    ok = infinite == result.numel()
                yield {
                    "precision": precision.value, "output": str(dtype).removeprefix("torch."),
                    "reduce": reduce, "degree": degree, "exact": exact,
                    "result": None if infinite else float(result.flatten()[0]),
                    "elements": result.numel(), "infinite": infinite, "ok": ok,
                }  # fmt: skip


#: What the file says of the options.
_SETTINGS = ("parts", "ops", "ranges", "precisions", "device", "seed")


# The options of `gnnsparse bench accuracy`.

DESCRIPTION = """\
Measures what each precision does to results: errors of operations against float64, sums in float32 beside
sums in float16 (emulated), gradients with and without scaling of the loss, and overflow (docs/numerics.md).
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `gnnsparse bench accuracy`."""
    precisions = tuple(p.value for p in ROUNDED_PRECISIONS)
    for option, dest, accepted, text in (
        ("--part", "parts", tuple(PARTS), "what to measure"),
        ("--op", "ops", tuple(OPERATIONS), "operations of the part operations"),
        ("--range", "ranges", tuple(RANGES), "operands of the part operations"),
        ("--precision", "precisions", precisions, "of all parts but accumulation, which is of fp16"),
    ):
        add_names(parser, option, dest, accepted, accepted, f"{text}: {', '.join(accepted)}; default: all")
    add_device(parser)
    parser.add_argument(
        "--seed", type=seed_option, default=0, metavar="N", help="of all operands; default: 0"
    )
    add_outputs(parser, "errors")


def check_options(options: argparse.Namespace) -> None:
    """Call `options.fail` if parsed options do not go together."""
    if "operations" not in options.parts:
        for name, given, everything in (("op", options.ops, OPERATIONS), ("range", options.ranges, RANGES)):
            if given != tuple(everything):
                options.fail(f"argument --{name}: goes with --part operations")
    if options.parts == ("scaling",) and not {"fp16", "bf16"} & set(options.precisions):
        options.fail("argument --precision: scaling is of fp16 and bf16; accepted: one of them")


# The report of `gnnsparse bench accuracy`.

_SCALINGS = {"unscaled": "unscaled", "scaled": "times 2^16", "dynamic": "by GradScaler"}


def _error(value: float | None) -> str:
    return "inf" if value is None else f"{value:.1e}"


def _percent(value: float) -> str:
    percent = 100 * value
    return f"{percent:.3g} %" if percent >= 0.01 else "< 0.01 %"


def _pivot(
    title: str, heads: Iterable[str], rows: Iterable[Row], down: Callable[[Row], tuple[str, ...]],
    across: Callable[[Row], str], cell: Callable[[Row], str], caption: str,
) -> Table:  # fmt: skip
    found: dict[tuple[str, ...], dict[str, Text]] = {}
    for row in rows:
        text = Text(cell(row)) if row["ok"] else Text(f"WRONG {cell(row)}", style="red")
        found.setdefault(down(row), {})[across(row)] = text
    columns = list(dict.fromkeys(name for cells in found.values() for name in cells))
    table = new_table(title, heads, columns, title_justify="left", caption=caption, caption_justify="left")
    for names, cells in found.items():
        table.add_row(*names, *(cells.get(name, "") for name in columns))
    return table


def _operation_tables(rows: list[Row]) -> Iterable[Table]:
    caption = "relative error (Frobenius norm), and in brackets that which 90 % of the elements do not exceed"
    for op in dict.fromkeys(row["op"] for row in rows):
        yield _pivot(
            f"{op}: error against float64", ["precision"], (row for row in rows if row["op"] == op),
            lambda row: (form_of(row),), lambda row: row["range"], _operation_cell, caption,
        )  # fmt: skip


def _operation_cell(row: Row) -> str:
    if row["error"] is None:
        return "(failed)" if row["problem"] else "no finite element"
    notes = [f"{_percent(row['lost'])} lost"] if row["lost"] else []
    notes += [f"{row['infinite']} infinite"] if row["infinite"] else []
    return ", ".join([f"{_error(row['error'])} ({_error(row['elements'])})", *notes])


def _accumulation_tables(rows: list[Row]) -> Iterable[Table]:
    yield _pivot(
        "Sums of products of float16 operands, by accumulator: relative error", ["terms", "count"],
        ({**row, "accumulator": key} for row in rows for key in ACCUMULATORS),
        lambda row: (row["series"], str(row["terms"])), lambda row: ACCUMULATORS[row["accumulator"]],
        lambda row: _error(row[row["accumulator"]]), "sums in float16 are emulated",
    )  # fmt: skip


def _scaling_tables(rows: list[Row]) -> Iterable[Table]:
    def cell(row: Row) -> str:
        lost = f", {_percent(row['lost'])} lost" if row["lost"] else ""
        scale = f" at 2^{math.log2(row['scale']):g}" if row["way"] == "dynamic" else ""
        return f"{_error(row['error'])}{lost}{scale}"

    if rows:
        yield _pivot(
            "Gradients of a product, by their size and the scaling of the loss", ["size"], rows,
            lambda row: (f"2^{row['magnitude']}",), lambda row: f"{row['precision']} {_SCALINGS[row['way']]}",
            cell, "relative error, and the part of the elements that became 0",
        )  # fmt: skip


def _overflow_tables(rows: list[Row]) -> Iterable[Table]:
    def cell(row: Row) -> str:
        return f"{row['infinite']} of {row['elements']} inf" if row["infinite"] else f"{row['result']:g}"

    yield _pivot(
        "Overflow of results", ["precision", "reduce"], rows, lambda row: (form_of(row), row["reduce"]),
        lambda row: f"degree {row['degree']}", cell,
        "the result of equal terms of 8; float16 ends at 65504",
    )  # fmt: skip


#: What measures each part, and what makes its tables, by the key of its rows in the file.
PARTS: dict[
    str, tuple[Callable[[argparse.Namespace], Iterator[Row]], Callable[[list[Row]], Iterable[Table]]]
] = {
    "operations": (
        lambda s: operation_rows(s.ops, s.ranges, s.precisions, s.seed, s.device), _operation_tables
    ),
    "accumulation": (lambda s: accumulation_rows(s.device, s.seed), _accumulation_tables),
    "scaling": (lambda s: scaling_rows(s.device, s.seed, s.precisions), _scaling_tables),
    "overflow": (lambda s: overflow_rows(s.device, s.precisions), _overflow_tables),
}  # fmt: skip
#: What names a result in a line about it.
_PLACE = (
    "op", "range", "series", "terms", "precision", "output", "reduce", "degree", "magnitude", "way",
)  # fmt: skip


def problems(content: Row) -> list[str]:
    """Return a line for each result that is less exact than its precision promises, or failed."""
    return [
        f"WRONG: {part}: {', '.join(str(row[name]) for name in _PLACE if name in row)}: "
        f"{row.get('problem') or 'less exact than its precision'}"
        for part in PARTS
        for row in content.get(part, ())
        if not row["ok"]
    ]


def print_report(content: Row, console: Console) -> None:
    """Print the tables of all measured parts, and what is wrong."""
    for part, (_, make) in PARTS.items():
        if part in content:
            for table in make(content[part]):
                console.print(table)
    for line in problems(content):
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def run(options: argparse.Namespace) -> int:
    """Run the command; the status is 1 if a result is less exact than its precision promises, or failed."""
    check_options(options)
    say, settings = progress(), {name: getattr(options, name) for name in _SETTINGS}
    content = {**describe_environment(options.device), "settings": settings, "rounding": ROUNDING}
    for part in options.parts:
        say(f"measuring {part}")
        content[part] = list(PARTS[part][0](options))
    if options.out is not None:
        write_json(options.out, content)
    print_report(content, wide_console(160))
    if options.plot is not None:
        plot(accuracy_panels(content), options.plot)
    return 1 if problems(content) else 0
