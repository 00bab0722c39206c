"""The benchmark of kernels, with the least times that memory allows and the formats of papers beside it.

It stands alone because the papers' figures run it without the command.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import TypeVar

import torch

import gnnsparse
from gnnsparse import _native
from gnnsparse.bench.arguments import MatrixSpec
from gnnsparse.bench.candidates import (
    KERNELS,
    PEERS,
    Candidate,
    first_line,
    our_kernel,
    our_variants,
    peer_candidates,
    peer_precision,
    release,
    same_run,
)
from gnnsparse.bench.session import Row, Session, spread_of
from gnnsparse.bench.workload import (
    KERNEL_FACTOR,
    PEER_FACTOR,
    Reference,
    Sample,
    Subject,
    UnavailableError,
    UnsupportedError,
    Verdict,
    Workload,
    make_subject,
    poisoned_call,
)
from gnnsparse.formats import PRESETS
from gnnsparse.formats.policy import packed_changes, packed_kernel, policy_changes
from gnnsparse.plan import Plan, WindowPlan
from gnnsparse.precision import Precision, dense_view
from gnnsparse.runtime.device import GATHER_FLOOR_WORDS, path
from gnnsparse.runtime.timing import Timing, cache_flusher, measure
from gnnsparse.sparse.graph import SparseGraph
from gnnsparse.sparse.kernel_cache import Product
from gnnsparse.sparse.operand import SparseOperand

_T = TypeVar("_T")


def floor_measured(work: Workload, candidate: Candidate, repeats: int, graph: bool = False) -> float | None:
    """Measure the floor in milliseconds; returns None if it can't be measured.

    The native function `cuda_gather_floor` reads the rows of the dense operand that are listed in the
    candidate's `columns`, in that order and in slices of 128 bytes, and adds up their words. Nothing but the
    reading bounds its time. A gather by torch operations also writes what it reads, so it is no floor.
    """
    if work.device.type != "cuda" or not _native.has_cuda:
        return None
    x = work.dense[-1]
    # X of 8 bits has as many bytes as half of its columns in 16.
    width = -(-work.row_bytes // x.element_size())
    return gather_floor(candidate.columns, x if width == work.width else x[:, :width], width, repeats, graph)


def gather_floor(columns: torch.Tensor, x: torch.Tensor, width: int, repeats: int, graph: bool) -> float:
    """Measure the milliseconds in which a GPU reads `width` columns of the named rows of x."""
    # Rows padded to whole 16-byte vectors, which is how the kernels read them.
    x = torch.nn.functional.pad(x, (0, -x.shape[1] % (16 // x.element_size()))).contiguous()
    processors = torch.cuda.get_device_properties(x.device).multi_processor_count
    out = torch.empty(processors, GATHER_FLOOR_WORDS, dtype=torch.int32, device=x.device)

    def call() -> None:
        _native.cuda_gather_floor(columns, dense_view(x), width, out, path().stream(x.device))

    return measure(call, x.device, repeats=repeats, graph=graph).median


# Published formats in the benchmark: by their papers' policies, and with one switch of them changed.

#: Rows of the windows that are measured for comparison where a preset has them (FlashSparse, figure 1).
TALL = 16


def format_plans(a: SparseOperand, op: str, width: int, ablate: bool) -> dict[str, Plan]:
    """Return the plans to measure of an operand in a published format, by the names of their rows.

    With `ablate`, for spmm on a GPU, each switch of the policy is changed, one at a time. Raises
    UnavailableError if another kernel than that of the format would run.
    """
    blocked = a.kernels.blocked
    name = "csr" if blocked is None else blocked.spec.name
    plan = a.plan(width, op)
    if a.device.type == "cuda" and not isinstance(plan, WindowPlan):
        raise UnavailableError(f"{name} has no {op} in {a.precision.value}: the plan would be {plan.label}")
    plans = {name: plan}
    if not (ablate and op == "spmm" and blocked is not None and isinstance(plan, WindowPlan)):
        return plans
    if packed_kernel(blocked.spec):
        changes = packed_changes(plan.policy, a.precision, blocked.spec)
        plans |= {f"{name} {change}": replace(plan, policy=p) for change, p in changes.items()}
        if blocked.residual_rows is not None:
            plans[f"{name} residual_mode=after"] = replace(plan, residual_mode="after")
    elif blocked.spec.encoding == "dense" and a.precision is not Precision.BF16:
        changes = policy_changes(plan.policy, a.precision, blocked.spec.window)
        plans |= {f"{name} {change}": replace(plan, policy=p) for change, p in changes.items()}
    return plans


def tall_plans(a: SparseOperand, width: int) -> dict[str, Plan]:
    """Return the plans of a preset with `panel=TALL`, A the right or the left operand of the mma."""
    plan, name = a.plan(width), a.kernels.require_blocked().spec.name
    if not isinstance(plan, WindowPlan):
        return {}
    unswapped = replace(plan, policy=replace(plan.policy, swapped=False))
    return {f"{name} panel=16": plan, f"{name} panel=16 swapped=False": unswapped}


def has_tall(name: str) -> bool:
    """Return whether a preset has windows of 8 rows, and of 16 for comparison."""
    preset = PRESETS[name]
    return preset.spec.window == 8 and preset.spec.encoding == "dense" and TALL in preset.panels


# The benchmark of `gnnsparse bench kernels`: this package's kernels and peers on equal workloads.

#: The keys of a combination that is skipped, with what stands for all.
SKIPPED = {
    "graph": "", "op": "", "values": "", "precision": "", "width": 0, "name": "", "ours": False, "reason": "",
    "failed": False,
}  # fmt: skip
#: Seconds that the repeats of a candidate may take; calls of a second or more are repeated 3 times.
_SECONDS = 3.0
#: Timed calls of each variant of a candidate, by which the fastest one is found that is then measured.
_TRIALS = 5


@dataclass(frozen=True)
class Settings:
    """What to measure: every combination of the options; only this package's operands are reordered."""

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
    formats: tuple[str, ...] = ()
    ablate: bool = False


@dataclass
class Bench(Session):
    """A run of the benchmark; `commits` are those of a run that this one goes on with."""

    who = "name"
    commits: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__post_init__()
        cold = self.settings.cache == "cold"
        self._before = cache_flusher(self.settings.device) if cold else lambda: None

    def run(self) -> None:
        """Measure all matrices."""
        for spec in self.settings.matrices:
            self.run_matrix(spec)

    def run_matrix(self, spec: MatrixSpec) -> None:
        """Measure all combinations for one matrix."""
        try:
            graph = spec.load(self.settings.device)
        except (ValueError, OSError, RuntimeError, MemoryError) as error:
            # The message begins with the whole path, which must not get into published results.
            self._skip({"graph": spec.name}, first_line(error).removeprefix(f"{spec.path}: "), failed=True)
            return
        self.tell(f"{spec.name}: {graph.num_rows} x {graph.num_cols}, {graph.nnz} nonzeros")
        for op in self.settings.ops:
            # SDDMM ignores the weights.
            for kind in self.settings.values if op == "spmm" else ("none",):
                self._run_subject(spec.name, graph, op, kind)
        del graph
        release()
        self.noise.read()

    def _skip(self, case: Row, reason: str, failed: bool = False) -> None:
        self.skipped.append({**SKIPPED, **case, "reason": reason, "failed": failed})

    def _attempt(self, make: Callable[[], _T], case: Row) -> _T | None:
        """Return what `make` returns; None if it raises, which is told. A ValueError is a known limit."""
        try:
            return make()
        except (ValueError, RuntimeError, MemoryError) as error:
            self._skip({**case, "ours": True}, first_line(error), failed=not isinstance(error, ValueError))
            return None

    def _run_subject(self, name: str, graph: SparseGraph, op: str, kind: str) -> None:
        case = {"graph": name, "op": op, "values": kind}
        # GCN's weights are of square matrices.
        sample = self._attempt(lambda: Sample.of(make_subject(name, graph, kind)), case)
        if sample is None:
            return
        subject, reorder = sample.subject, self.settings.reorder
        measured: set[tuple[str, Precision, int]] = set()
        for precision in map(Precision, self.settings.precisions):
            # "rcm" needs a square matrix, for example.
            made = self._attempt(
                partial(prepare_subject, subject, precision, reorder), {**case, "precision": precision.value}
            )
            if made is None:
                continue
            for width in self.settings.widths:
                work = Workload(subject, op, precision, width)
                self._run_peers(work, sample, measured)
                self._run_kernels(*made, work, sample)
            del made
            release()
            for format in self.settings.formats:
                self._run_format(format, precision, op, sample)
                release()

    def _run_format(self, name: str, precision: Precision, op: str, sample: Sample) -> None:
        """Measure a published format, and with `ablate` each switch of its policy and windows of 16 rows."""
        subject, reorder = sample.subject, self.settings.reorder
        case = {
            "graph": subject.name, "op": op, "values": subject.kind, "precision": precision.value,
            "name": name,
        }  # fmt: skip
        ablate = self.settings.ablate and op == "spmm"
        for panel in (None, TALL) if ablate and has_tall(name) else (None,):
            # A paper may not have the precision.
            made = self._attempt(partial(prepare_subject, subject, precision, reorder, name, panel), case)
            if made is None:
                return
            a, prepare_ms = made
            for width in self.settings.widths:
                reference = Reference(Workload(subject, op, precision, width), sample)
                try:
                    plans = format_plans(a, op, width, ablate) if panel is None else tall_plans(a, width)
                except (UnavailableError, ValueError) as error:
                    self._skip({**case, "width": width, "ours": True}, first_line(error))
                    continue
                for label, plan in plans.items():
                    row = self._add(
                        label, reference, True, partial(self._ours, label, plan, a, prepare_ms, reference)
                    )
                    if row is not None:
                        row["format"] = None if a.kernels.blocked is None else a.kernels.blocked.spec.name
                        if row["format"] and op == "spmm" and isinstance(plan, WindowPlan):
                            row["policy"] = asdict(plan.policy)
            del a, made
            release()

    def _run_peers(self, work: Workload, sample: Sample, measured: set[tuple[str, Precision, int]]) -> None:
        references = {work.precision: Reference(work, sample)}
        for name in self.settings.peers:
            if work.op not in PEERS[name].ops:
                continue
            # What a library does not have in this precision is measured in fp32.
            for precision in dict.fromkeys((peer_precision(name, work.precision), Precision.FP32)):
                key = (name, precision, work.width)
                if key in measured:  # peers run fp32 for tf32 as well as for fp32
                    break
                measured.add(key)
                if precision not in references:
                    references[precision] = Reference(replace(work, precision=precision), sample)
                reference = references[precision]
                try:
                    self._add(name, reference, False, partial(self._fastest, name, reference))
                except UnsupportedError:
                    continue
                finally:
                    release()
                break

    def _run_kernels(self, a: SparseOperand, prepare_ms: float, work: Workload, sample: Sample) -> None:
        reference = Reference(work, sample)
        problem = a.kernels.problem(Product(work.op, work.width))
        plans = {name: KERNELS[name](problem) for name in self.settings.kernels}
        for variant in our_variants(work):
            done = dict[str, Row]()
            for name, plan in plans.items():
                same = [n for n in done if plan and (p := plans[n]) and same_run(p, plan, work.device)]
                if same:
                    self.rows.append({**done[same[0]], "kernel": name, "plan": str(plan), "same_as": same[0]})
                    continue
                make = partial(self._ours, name, plan, a, prepare_ms, reference, variant)
                row = self._add(name, reference, True, make)
                if row is not None:
                    done[name] = row

    def _ours(
        self, name: str, plan: Plan | None, a: SparseOperand, prepare_ms: float, reference: Reference,
        variant: str = "",
    ) -> Row:  # fmt: skip
        """Measure a kernel of this package; raises UnavailableError without a plan for it."""
        who = replace(our_kernel(name, plan, a, reference.work, variant), preprocess_ms=prepare_ms)
        return self._measure(who, reference, _check(who, reference))

    def _fastest(self, name: str, reference: Reference) -> Row:
        """Measure the fastest variant of a peer that is right; raises UnavailableError if none can run."""
        tried: list[Row] = []
        best: tuple[float, Candidate, Verdict] | None = None
        makes = peer_candidates(name, reference.work)
        for number, make in enumerate(makes):
            try:
                who = make()
            except UnavailableError:
                if number == len(makes) - 1 and best is None:
                    raise
                continue
            verdict = _check(who, reference)
            ms = self._time(who, _TRIALS).median if len(makes) > 1 else 0.0
            tried.append(
                {"name": who.variant, "ms": ms, "ok": verdict.ok, "preprocess_ms": who.preprocess_ms}
            )
            if best is None or (not verdict.ok, ms) < (not best[2].ok, best[0]):
                best = ms, who, verdict
        assert best is not None
        row = self._measure(best[1], reference, best[2])
        return {**row, "variants": tried if len(makes) > 1 else []}

    def _add(self, name: str, reference: Reference, ours: bool, measured: Callable[[], Row]) -> Row | None:
        """Add and return the row that `measured` returns, or add why it was skipped and return None."""
        work = reference.work
        case = {
            "graph": work.subject.name, "op": work.op, "values": work.subject.kind,
            "precision": work.precision.value, "width": work.width, "name": name, "ours": ours,
        }  # fmt: skip
        try:
            # torch warns that its CSR support is in beta, and other libraries warn when they are imported.
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                row = measured()
        except UnavailableError as error:
            self._skip(case, first_line(error))
            if isinstance(error, UnsupportedError):
                raise
            return None
        # Other libraries raise errors of any type; the run goes on, and the report lists them.
        except Exception as error:
            self._skip(case, f"{type(error).__name__}: {first_line(error)}", failed=True)
            return None
        self.rows.append(row)
        return row

    def _time(self, who: Candidate, repeats: int) -> Timing:
        return measure(
            who.call, self.settings.device, repeats=repeats, before=self._before, seconds=_SECONDS,
            graph=self.settings.timing == "graph",
        )  # fmt: skip

    def _measure(self, who: Candidate, reference: Reference, verdict: Verdict) -> Row:
        work, repeats = reference.work, self.settings.repeats
        timing = self._time(who, repeats)
        floor = floor_measured(work, who, repeats, timing.method == "graph")
        subject = work.subject
        return {
            "graph": subject.name, "nodes": subject.csr.rows, "cols": subject.csr.cols,
            "nnz": subject.graph.nnz, "product_nnz": subject.csr.nnz,
            "op": work.op, "values": subject.kind, "precision": work.precision.value, "width": work.width,
            "kernel": who.name, "ours": who.ours, "plan": None if who.plan is None else str(who.plan),
            "variant": who.variant, "variants": [], "preprocess_ms": who.preprocess_ms,
            "same_as": None, "repeats": timing.repeats,
            "timing": timing.method, "timing_problem": timing.problem,
            "ms": timing.median, "fastest_ms": timing.fastest, "slowest_ms": timing.slowest,
            "lower_quartile_ms": timing.lower_quartile, "upper_quartile_ms": timing.upper_quartile,
            "spread": spread_of(timing.lower_quartile, timing.median, timing.upper_quartile),
            "gflops": 2 * subject.csr.nnz * work.width / timing.median / 1e6,
            "gathered_gbs": who.columns.numel() * work.row_bytes / timing.median / 1e6,
            "floor_measured_ms": floor,
            "of_floor": None if floor is None else floor / timing.median,
            **asdict(verdict),
        }  # fmt: skip


def _check(who: Candidate, reference: Reference) -> Verdict:
    result = who.in_caller_order(poisoned_call(who.call, reference.work, fill_all=who.ours))
    return reference.judge(result, KERNEL_FACTOR if who.ours else PEER_FACTOR)


def prepare_subject(
    subject: Subject, precision: Precision, reorder: str, format: str = "auto", panel: int | None = None
) -> tuple[SparseOperand, float]:
    """Return the prepared matrix, and the milliseconds that its preparation took."""
    wait = torch.cuda.synchronize if subject.csr.device.type == "cuda" else lambda: None
    values = "gcn" if subject.kind == "gcn" else None
    wait()
    begin = time.perf_counter()
    a = gnnsparse.prepare(
        subject.graph, values=values, precision=precision, reorder=reorder, format=format, panel=panel,
        cache=False,
    )  # fmt: skip
    wait()
    return a, 1e3 * (time.perf_counter() - begin)
