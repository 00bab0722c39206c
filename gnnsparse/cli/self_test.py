"""The self-test: every kernel of every device, instruction set and precision beside a float64 reference.

Each case runs an operation with its gradients on a small matrix with long, short and empty rows. It is right
if the rule of `gnnsparse.testing` holds: an error of at most twice that of plain torch in the same precision,
measured against float64. Two runs have to be equal bit for bit.
It stands alone because it tests kernels, and knows nothing of findings and advice.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

import gnnsparse
from gnnsparse import _native
from gnnsparse.bench.arguments import devices_here
from gnnsparse.bench.candidates import first_line
from gnnsparse.formats import FORMAT_NAMES, exclusive_preset
from gnnsparse.plan import KERNELS, Plan, forced_plan
from gnnsparse.precision import Precision
from gnnsparse.sparse.kernel_cache import Product
from gnnsparse.sparse.operand import SparseOperand
from gnnsparse.testing import measure_errors, random_graph, with_gradients

#: Instruction sets of the CPU's kernels, the fastest last.
INSTRUCTION_SETS = ("portable", "avx2", "avx512")
_Shape = tuple[int, ...]
_ROWS = 160
#: Features: more than one slice of 128 bytes, and no multiple of a tile.
_WIDTH = 72
_HEADS = 2
#: The rule's floor in roundings of the result: kernels for fp32 on Tensor Cores hold an operand as two tf32
#: numbers, and attention rounds weights and scores in between.
_ROUNDINGS = {
    Precision.FP32: 2**-20, Precision.TF32: 2**-9, Precision.FP16: 2**-9, Precision.BF16: 2**-6,
    Precision.INT8: 2**-9, Precision.FP8: 2**-9,  # X of 8 bits is the reference's
}  # fmt: skip


@dataclass(frozen=True)
class CaseResult:
    """The outcome of one case: the largest relative error (Frobenius) of the result and its gradients.

    `isa` is "" on a GPU; `weights` are "stored", or "gcn" for products of a row's and a column's weight.
    """

    device: str
    isa: str
    op: str
    kernel: str
    weights: str
    precision: str
    ok: bool
    error: float | None
    allowed: float | None
    problem: str = ""

    def __str__(self) -> str:
        where = self.device if not self.isa else f"{self.device} {self.isa}"
        return f"{self.op} ({self.kernel}, weights {self.weights}) in {self.precision} on {where}"


@dataclass(frozen=True)
class Case:
    """An operation in the precision to test (`operand`) and in fp32 (`exact`); `plan` None: its own."""

    op: str
    kernel: str
    weights: str
    operand: SparseOperand
    exact: SparseOperand
    call: Callable[..., torch.Tensor]
    inputs: tuple[torch.Tensor, ...]
    plan: Plan | None = None

    def run(self) -> list[torch.Tensor]:
        """Return the result and its gradients by the kernel."""
        options: dict[str, Any] = {} if self.plan is None else {"plan": self.plan}
        return with_gradients(partial(self.call, self.operand, **options), self.inputs)

    def reference(self, dtype: torch.dtype) -> list[torch.Tensor]:
        """Return the result and its gradients by plain torch: in float64 exact, else in the precision."""
        operand = self.exact if dtype == torch.float64 else self.operand
        inputs = [x.to(dtype) for x in self.inputs]
        return with_gradients(partial(self.call, operand, impl="reference"), inputs)


def _draw(precision: Precision, device: str, *shapes: _Shape) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator("cpu").manual_seed(0)
    drawn = (torch.randn(s, generator=generator, dtype=torch.float32, device="cpu") for s in shapes)
    return tuple(x.to(precision.storage).to(device) for x in drawn)


def _operands(precision: Precision, device: str) -> Iterator[tuple[str, SparseOperand, SparseOperand]]:
    """Yield (weights, operand in the precision, operand in fp32)."""
    weighted = random_graph(_ROWS, _ROWS - 13, 0.05, hubs=2, empty_rows=0.1, seed=1)
    structure = random_graph(_ROWS, _ROWS, 0.05, hubs=2, weighted=False, seed=2)
    for weights, graph, values in (("stored", weighted, None), ("gcn", structure, "gcn")):
        made = [
            gnnsparse.prepare(graph.to(device), values=values, precision=p, cache=False)
            for p in (precision, Precision.FP32)
        ]
        yield weights, made[0], made[1]


def _graph_attention(score: str, a: SparseOperand, *x: torch.Tensor, **options: Any) -> torch.Tensor:
    q, k, v, *att = x
    options["att"] = att[0] if att else None
    return gnnsparse.graph_attention(a, q, k, v, score=score, **options)


def cases_of(precision: Precision, device: str) -> Iterator[Case]:
    """Yield the cases of a precision on a device; each is made when it is asked for."""
    draw = partial(_draw, precision, device)
    for weights, a, exact in _operands(precision, device):
        rows, cols = a.shape
        case = partial(Case, weights=weights, operand=a, exact=exact)
        for name, plan in _plans(a, Product("spmm", _WIDTH)):
            yield case("spmm", name, call=gnnsparse.spmm, inputs=draw((cols, _WIDTH)), plan=plan)
        if weights == "gcn":  # further operations do not read the operand's weights
            continue
        for name, plan in _plans(a, Product("sddmm", _WIDTH)):
            inputs = draw((rows, _WIDTH), (cols, _WIDTH))
            yield case("sddmm", name, call=gnnsparse.sddmm, inputs=inputs, plan=plan)
        for op, call, shapes in _further_operations(a):
            yield case(op, "auto", call=call, inputs=draw(*shapes))
        head = 64
        for name, plan in _plans(a, Product("attention", head, value_width=head, heads=_HEADS)):
            inputs = draw((_HEADS, rows, head), *[(_HEADS, cols, head)] * 2)
            yield case("attention", name, call=gnnsparse.attention, inputs=inputs, plan=plan)
    yield from _format_cases(precision, device)


def _format_cases(precision: Precision, device: str) -> Iterator[Case]:
    """Yield the products of the published formats that have the precision."""
    graph = random_graph(_ROWS, _ROWS - 13, 0.05, hubs=2, empty_rows=0.1, seed=1).to(device)
    exact = gnnsparse.prepare(graph, precision=Precision.FP32, cache=False)
    for name in FORMAT_NAMES:
        preset = exclusive_preset(name)
        if preset is None or precision not in preset.precisions:
            continue
        a = gnnsparse.prepare(graph, precision=precision, format=name, cache=False)
        for op, function in (("spmm", gnnsparse.spmm), ("sddmm", gnnsparse.sddmm)):
            if op in preset.ops:
                shapes = [(rows, _WIDTH) for rows in a.shape][1 if op == "spmm" else 0 :]
                kernel, inputs = a.plan(_WIDTH, op).kernel, _draw(precision, device, *shapes)
                yield Case(op, kernel, f"stored, {name}", a, exact, function, inputs)


def _further_operations(a: SparseOperand) -> Iterator[tuple[str, Callable[..., torch.Tensor], list[_Shape]]]:
    """Yield (operation, what calls it, shapes of its tensors) of those that have one kernel."""
    rows, cols = a.shape
    yield "spmm of edge values", gnnsparse.spmm, [(cols, _WIDTH), (a.nnz,)]
    yield "spmm, maximum", partial(gnnsparse.spmm, reduce="max"), [(cols, _WIDTH)]
    yield "edge_softmax", gnnsparse.edge_softmax, [(a.nnz,)]
    q, k = (rows, _HEADS, 16), (cols, _HEADS, 16)
    yield "graph_attention, dot", partial(_graph_attention, "dot"), [q, k, k]
    yield "graph_attention, additive", partial(_graph_attention, "additive"), [q[:2], k[:2], k]
    yield "graph_attention, gatv2", partial(_graph_attention, "gatv2"), [q, k, k, (_HEADS, 16)]


def _plans(a: SparseOperand, product: Product) -> list[tuple[str, Plan | None]]:
    """Return the kernels that can run a product, each with the plan that forces it."""
    problem = a.kernels.problem(product)
    kernels = [k for k in KERNELS[product.op] if a.device.type in k.devices and k.can_run(problem)]
    return [(k.name, forced_plan(problem, k.name)) for k in kernels]


def _judge(
    case: Case, precision: Precision, plain: list[torch.Tensor], exact: list[torch.Tensor], threads: int
) -> tuple[bool, float | None, float | None, str]:
    """Return (ok, error, allowed, problem) of a case that runs with `threads` threads, then with one."""
    torch.set_num_threads(threads)
    try:
        got = case.run()
    finally:
        torch.set_num_threads(1)
    again = case.run()
    worst, limit = 0.0, 0.0
    floor = max(_ROUNDINGS[precision], 4 * torch.finfo(case.inputs[0].dtype).eps)
    for number, (mine, rounded, right) in enumerate(zip(got, plain, exact, strict=True)):
        name = "the result" if number == 0 else f"gradient {number}"
        if not bool(mine.isfinite().all()):
            return False, None, None, f"{name} is not finite"
        errors = measure_errors(mine, rounded.to(mine.dtype), right, floor=floor)
        if not errors.ok:
            found, accepted = max(errors.actual), max(errors.allowed)
            problem = f"{name} has the relative error {found:.1e}, accepted: {accepted:.1e}"
            return False, errors.actual[0], errors.allowed[0], problem
        if errors.actual[0] >= worst:
            worst, limit = errors.actual[0], errors.allowed[0]
    if not all(map(torch.equal, got, again)):
        return False, worst, limit, "two runs differ"
    return True, worst, limit, ""


def run_case(
    case: Case, precision: Precision, device: str, sets: Sequence[str], threads: int
) -> Iterator[CaseResult]:
    """Yield the outcome of a case for each instruction set; of a GPU `sets` has one, called ""."""
    right = case.reference(torch.float32), case.reference(torch.float64)
    for isa in sets:
        if isa and not _native.set_cpu_isa(isa):
            continue
        try:
            verdict = _judge(case, precision, *right, threads)
        # What is wrong may raise an error of any type, and the other kernels are tested all the same.
        except Exception as error:
            verdict = False, None, None, f"{type(error).__name__}: {first_line(error)}"
        yield CaseResult(device, isa, case.op, case.kernel, case.weights, precision.value, *verdict)


def self_test(seconds: float) -> tuple[list[CaseResult], int]:
    """Test every kernel; return the outcomes, and how many cases were due after `seconds` and left out.

    References are computed in one thread: with more, small operations wait long where cores are busy. The
    cases of a GPU come first.
    """
    results, left_out, deadline = list[CaseResult](), 0, time.perf_counter() + seconds
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for device, precision in itertools.product(reversed(devices_here()), Precision):
            sets = INSTRUCTION_SETS if device == "cpu" else ("",)
            try:
                for case in cases_of(precision, device):
                    if time.perf_counter() > deadline:
                        left_out += 1
                    else:
                        results += run_case(case, precision, device, sets, threads)
            except Exception as error:  # of preparing a matrix, or of the reference
                failed = "prepare", "-", "-", precision.value, False, None, None
                problem = f"{type(error).__name__}: {first_line(error)}"
                results.append(CaseResult(device, "", *failed, problem))
    finally:
        _native.set_cpu_isa("auto")
        torch.set_num_threads(threads)
    return results, left_out
