"""The benchmark of `gnnsparse bench kernels`: this package's kernels and peers on equal workloads."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any

import torch

import gnnsparse
from gnnsparse.bench.candidates import KERNELS, Candidate, UnavailableError, our_kernel, same_run
from gnnsparse.bench.check import KERNEL_FACTOR, PEER_FACTOR, Reference, Sample, poisoned_call
from gnnsparse.bench.floors import floor_measured, floor_model, rates_of
from gnnsparse.bench.matrices import MatrixSpec
from gnnsparse.bench.peers import PEERS, peer_candidate, peer_precision
from gnnsparse.bench.workload import Subject, Workload, make_subject
from gnnsparse.environment import device_name
from gnnsparse.graph import SparseGraph
from gnnsparse.kernel_cache import Product
from gnnsparse.operand import SparseOperand
from gnnsparse.precision import Precision
from gnnsparse.timing import cache_flusher, measure

__all__ = ["Bench", "Settings", "Skipped"]

#: Seconds that the repeats of a candidate may take; calls of a second or more are repeated 3 times.
_SECONDS = 3.0


@dataclass(frozen=True)
class Settings:
    """What to measure: the options of the command.

    Attributes:
        matrices: the matrices.
        device: "cpu" or "cuda".
        ops, precisions, widths, values, kernels, peers: every combination of these is measured.
        repeats: number of timed calls of a candidate.
        cache: "warm": calls follow one another, as the layers of a training step do; "cold": the last-level
            cache is flushed before each call.
        timing: "events": each call is timed on its own; "graph": CUDA graphs of several calls are timed, with
            warm caches.
        reorder: row order of this package's operands; peers get the matrix in its own order.
    """

    matrices: tuple[MatrixSpec, ...]
    device: str = "cpu"
    ops: tuple[str, ...] = ("spmm",)
    precisions: tuple[str, ...] = ("fp16", "fp32")
    widths: tuple[int, ...] = (64, 128, 256)
    values: tuple[str, ...] = ("gcn",)
    kernels: tuple[str, ...] = tuple(KERNELS)
    peers: tuple[str, ...] = ()
    repeats: int = 20
    cache: str = "warm"
    timing: str = "events"
    reorder: str = "none"


@dataclass(frozen=True)
class Skipped:
    """A combination that was asked for and not measured.

    Attributes:
        graph: name of the matrix.
        reason: why it was not measured.
        op, values, precision, width, name: the combination; "" or 0 stands for all.
        ours: whether `name` is a kernel of this package.
        failed: True: an error occurred; False: a known limit was met.
    """

    graph: str
    reason: str
    op: str = ""
    values: str = ""
    precision: str = ""
    width: int = 0
    name: str = ""
    ours: bool = False
    failed: bool = False


@dataclass
class Bench:
    """A run of the benchmark; `rows` and `skipped` grow with each matrix.

    Attributes:
        settings: what to measure.
        tell: called with a line of text when a matrix begins.
        rows: the measurements, as they are written to the JSON file (docs/benchmarks.md lists the keys).
        skipped: what was not measured.
    """

    settings: Settings
    tell: Callable[[str], None] = lambda line: None
    rows: list[dict[str, Any]] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._rates = rates_of(device_name(self.settings.device))
        cold = self.settings.cache == "cold"
        self._before = cache_flusher(self.settings.device) if cold else lambda: None

    def run(self) -> None:
        """Measures all matrices."""
        for spec in self.settings.matrices:
            self.run_matrix(spec)

    def run_matrix(self, spec: MatrixSpec) -> None:
        """Measures all combinations for one matrix."""
        try:
            graph = spec.load(self.settings.device)
        except (ValueError, OSError, RuntimeError, MemoryError) as error:
            # The message begins with the whole path, which must not get into published results.
            reason = _line(error).removeprefix(f"{spec.path}: ")
            self.skipped.append(Skipped(spec.name, reason, failed=True))
            return
        self.tell(f"{spec.name}: {graph.num_rows} x {graph.num_cols}, {graph.nnz} nonzeros")
        for op in self.settings.ops:
            # SDDMM ignores the weights.
            for kind in self.settings.values if op == "spmm" else ("none",):
                self._run_subject(spec.name, graph, op, kind)
        del graph
        _release()

    def _run_subject(self, name: str, graph: SparseGraph, op: str, kind: str) -> None:
        try:
            subject = make_subject(name, graph, kind)
            sample = Sample.of(subject)
        except (ValueError, RuntimeError, MemoryError) as error:
            limit = isinstance(error, ValueError)
            self.skipped.append(Skipped(name, _line(error), op, kind, ours=True, failed=not limit))
            return
        measured: set[tuple[str, Precision, int]] = set()
        for precision in map(Precision, self.settings.precisions):
            try:
                a = _prepare(subject, precision, self.settings.reorder)
            except (ValueError, RuntimeError, MemoryError) as error:
                limit = isinstance(error, ValueError)  # for example, "rcm" needs a square matrix
                case = Skipped(name, _line(error), op, kind, precision.value, ours=True, failed=not limit)
                self.skipped.append(case)
                continue
            for width in self.settings.widths:
                work = Workload(subject, op, precision, width)
                self._run_peers(work, sample, measured)
                self._run_kernels(a, work, sample)
            del a
            _release()

    def _run_peers(self, work: Workload, sample: Sample, measured: set[tuple[str, Precision, int]]) -> None:
        references = {work.precision: Reference(work, sample)}
        for name in self.settings.peers:
            if work.op not in PEERS[name].ops:
                continue
            precision = peer_precision(name, work.precision)
            key = (name, precision, work.width)
            if key in measured:  # peers run fp32 for tf32 as well as for fp32
                continue
            measured.add(key)
            if precision not in references:
                theirs = work if precision is work.precision else replace(work, precision=precision)
                references[precision] = Reference(theirs, sample)
            reference = references[precision]
            self._add(name, reference, False, partial(peer_candidate, name, reference.work))
            _release()

    def _run_kernels(self, a: SparseOperand, work: Workload, sample: Sample) -> None:
        reference, done = Reference(work, sample), dict[str, dict[str, Any]]()
        problem = a.kernels.problem(Product(work.op, work.width))
        plans = {name: KERNELS[name](problem) for name in self.settings.kernels}
        for name, plan in plans.items():
            same = [n for n in done if plan and (p := plans[n]) and same_run(p, plan, work.device)]
            if same:
                self.rows.append({**done[same[0]], "kernel": name, "plan": str(plan), "same_as": same[0]})
                continue
            row = self._add(name, reference, True, partial(our_kernel, name, plan, a, work))
            if row is not None:
                done[name] = row

    def _add(
        self, name: str, reference: Reference, ours: bool, make: Callable[[], Candidate]
    ) -> dict[str, Any] | None:
        """Measures a candidate; adds its row and returns it, or adds why it was skipped and returns None."""
        work = reference.work
        subject = work.subject
        skipped = Skipped(
            subject.name, "", work.op, subject.kind, work.precision.value, work.width, name, ours
        )
        try:
            # torch warns that its CSR support is in beta, and other libraries warn when they are imported.
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                row = self._measure(make(), reference)
        except UnavailableError as error:
            self.skipped.append(replace(skipped, reason=_line(error)))
            return None
        # Other libraries raise errors of any type; the run goes on, and the report lists them.
        except Exception as error:
            reason = f"{type(error).__name__}: {_line(error)}"
            self.skipped.append(replace(skipped, reason=reason, failed=True))
            return None
        self.rows.append(row)
        return row

    def _measure(self, who: Candidate, reference: Reference) -> dict[str, Any]:
        work = reference.work
        result = who.in_caller_order(poisoned_call(who.call, work, fill_all=who.ours))
        verdict = reference.judge(result, KERNEL_FACTOR if who.ours else PEER_FACTOR)
        del result
        repeats, graph = self.settings.repeats, self.settings.timing == "graph"
        time = measure(
            who.call, work.device, repeats=repeats, before=self._before, seconds=_SECONDS, graph=graph
        )
        model = None if self._rates is None else floor_model(work, who.gathered, self._rates)
        measured = floor_measured(work, who, repeats, time.method == "graph")
        floor = model if measured is None else measured
        subject = work.subject
        return {
            "graph": subject.name, "nodes": subject.csr.rows, "cols": subject.csr.cols,
            "nnz": subject.graph.nnz, "product_nnz": subject.csr.nnz,
            "op": work.op, "values": subject.kind, "precision": work.precision.value, "width": work.width,
            "kernel": who.name, "ours": who.ours, "plan": None if who.plan is None else str(who.plan),
            "same_as": None, "repeats": time.repeats, "timing": time.method, "timing_problem": time.problem,
            "ms": time.median, "fastest_ms": time.fastest, "slowest_ms": time.slowest,
            "lower_quartile_ms": time.lower_quartile, "upper_quartile_ms": time.upper_quartile,
            "gflops": 2 * subject.csr.nnz * work.width / time.median / 1e6,
            "gathered_gbs": who.gathered * work.row_bytes / time.median / 1e6,
            "floor_model_ms": model, "floor_measured_ms": measured,
            "of_floor": None if floor is None else floor / time.median,
            **asdict(verdict),
        }  # fmt: skip


def _prepare(subject: Subject, precision: Precision, reorder: str) -> SparseOperand:
    values = "gcn" if subject.kind == "gcn" else None
    return gnnsparse.prepare(subject.graph, values=values, precision=precision, reorder=reorder, cache=False)


def _line(error: BaseException) -> str:
    """Returns the first line of an error's message, 200 characters at most."""
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0][:200]


def _release() -> None:
    """Frees a GPU's cached memory, so that copies made by one candidate do not leave the next without."""
    if torch.cuda.is_initialized():
        gc.collect()
        torch.cuda.empty_cache()
