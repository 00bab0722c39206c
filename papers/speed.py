"""Cases that figures of the papers compare: formats with row orders, heights and policies of their own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from statistics import geometric_mean
from typing import Any

from gnnsparse.bench.arguments import MatrixSpec
from gnnsparse.bench.candidates import release
from gnnsparse.bench.kernels import Bench, Settings, prepare_subject
from gnnsparse.bench.kernels_command import add_ratios
from gnnsparse.bench.workload import Reference, Sample, UnavailableError, Workload
from gnnsparse.formats import PRESETS
from gnnsparse.plan import Plan
from gnnsparse.sparse.graph import SparseGraph
from gnnsparse.sparse.operand import SparseOperand
from papers.figures import Missing, Outcome
from papers.session import Found, Session

__all__ = [
    "PAPER_FORMATS", "FormatCase", "PresetBench", "compare_cases", "over_peer", "precision_of",
    "speed_rows",
]  # fmt: skip

#: The formats of the five papers, and the papers that they are of.
PAPER_FORMATS = {
    "me-bcrs": "FlashSparse",
    "cvse": "SSpMM",
    "tiled-csr": "Tiled-CSR",
    "hrpb": "cuTeSpMM",
    "rs-tile": "RSH-SpMM",
}


@dataclass(frozen=True)
class FormatCase:
    """An operand to measure: a format, and what is changed of its plan.

    Attributes:
        format: name of the format.
        label: name of the case in rows.
        panel: rows of a panel; None: the format's default.
        policy: fields of the plan's policy that are changed (gnnsparse.formats.WindowPolicy).
        reorder: row order of the operand.
    """

    format: str
    label: str
    panel: int | None = None
    policy: Mapping[str, Any] | None = None
    reorder: str = "none"


def precision_of(name: str, wanted: Iterable[str] = ("fp16", "tf32")) -> str:
    """Return the first of some precisions that a format has, or the first one if it has none of them.

    Raises:
        ValueError: there is no such format.
    """
    has = {precision.value for precision in PRESETS[PRESETS.check(name)].precisions}
    wanted = tuple(wanted)
    return next((precision for precision in wanted if precision in has), wanted[0])


@dataclass
class PresetBench(Bench):
    """The benchmark of kernels with further cases, each an operand of its own.

    `Settings.formats` measures formats as they are, and `Settings.ablate` one switch at a time. A case may
    have a row order, a height and several switches, for SDDMM as well. Its rows have its label as `kernel`,
    and the time of its own preparation as `preprocess_ms`.

    Attributes:
        cases: the cases.
    """

    cases: tuple[FormatCase, ...] = ()

    def _run_kernels(self, a: SparseOperand, prepare_ms: float, work: Workload, sample: Sample) -> None:
        super()._run_kernels(a, prepare_ms, work, sample)
        reference = Reference(work, sample)
        for case in self.cases:
            self._add(case.label, reference, True, partial(self._case, case, reference))
            release()  # operands of large graphs take gigabytes

    def _case(self, case: FormatCase, reference: Reference) -> dict[str, Any]:
        """Measure one case; raises UnavailableError if the format does not have the operation."""
        work = reference.work
        try:
            a, prepare_ms = prepare_subject(
                work.subject, work.precision, case.reorder, case.format, case.panel
            )
            plan = self._plan(case, a, work)
        except (ValueError, NotImplementedError) as error:  # a precision or an operation the paper lacks
            raise UnavailableError(str(error)) from error
        return self._ours(case.label, plan, a, prepare_ms, reference)

    def _plan(self, case: FormatCase, a: SparseOperand, work: Workload) -> Plan:
        plan = a.plan(work.width, work.op)
        if not case.policy:
            return plan
        if "policy" not in {field.name for field in fields(plan)}:
            raise UnavailableError(f"the plan of {plan.kernel} has no policy to change")
        changed: Any = plan
        policy = replace(changed.policy, **case.policy)
        spec = a.kernels.blocked.spec if a.kernels.blocked is not None else PRESETS[case.format].spec
        if problem := policy.why_not(work.precision, spec.encoding, spec.window):
            raise UnavailableError(problem)
        return replace(changed, policy=policy)


# Figures of speed: the papers' formats measured by the benchmark of kernels, with every result checked.


@dataclass(frozen=True)
class _Loaded(MatrixSpec):
    """A matrix that has been read already."""

    graph: SparseGraph | None = field(default=None, compare=False)

    def load(self, device: Any) -> SparseGraph:
        """Return the matrix on a device."""
        assert self.graph is not None
        return self.graph.to(device)


def speed_rows(
    session: Session, outcome: Outcome, matrices: Iterable[Found], cases: Sequence[FormatCase], *,
    peers: tuple[str, ...] = ("cusparse-best", "cusparse"), op: str = "spmm", width: int = 128,
    precision: str = "fp16", auto: bool = False,
) -> list[dict[str, Any]]:  # fmt: skip
    """Measure formats and peers on matrices with stored values.

    Args:
        session: the device and the number of repeats.
        outcome: gets what could not be measured, and why.
        matrices: the matrices.
        cases: the formats.
        peers: names of peers.
        op, width, precision: the product.
        auto: whether the plan's own choice is measured, too.

    Returns:
        The right rows, as `gnnsparse bench kernels` writes them.
    """
    specs = tuple(_Loaded(found.name, graph=SparseGraph(found.csr)) for found in matrices)
    settings = Settings(
        specs, device=session.device, ops=(op,), precisions=(precision,), widths=(width,), values=("random",),
        kernels=("auto",) if auto else (), peers=peers, repeats=session.repeats,
        timing="graph" if session.device == "cuda" else "events",
    )  # fmt: skip
    bench = PresetBench(settings)
    bench.cases = tuple(cases)
    bench.run()
    add_ratios(bench.rows, session.device)
    for skipped in bench.skipped:
        where = " on ".join(filter(None, (skipped["name"], skipped["graph"])))
        gone = Missing(f"{where} ({skipped['op']} {skipped['precision']})", skipped["reason"])
        if gone not in outcome.missing:
            outcome.missing.append(gone)
    wrong = [row for row in bench.rows if not row["ok"]]
    outcome.notes.extend(f"WRONG: {row['kernel']} on {row['graph']}: {row['problem']}" for row in wrong)
    return [row for row in bench.rows if row["ok"]]


def over_peer(
    session: Session, outcome: Outcome, matrices: Iterable[Found], name: str, paper: float | None = None, *,
    peer: str = "cusparse-best", label: str = "cuSPARSE at its best", **product: Any,
) -> list[dict[str, Any]]:  # fmt: skip
    """Add the speeds of a paper's format over a peer's, and their geometric mean beside the paper's.

    Args:
        session, outcome: as of `speed_rows`.
        matrices: the matrices.
        name: name of the format.
        paper: the paper's mean.
        peer: the peer that speeds are relative to.
        label: what rows call it.
        product: `op`, `width`, `precision` and `peers`.

    Returns:
        The right rows.
    """
    found = list(matrices)
    rows = speed_rows(session, outcome, found, [FormatCase(name, name)], **product)
    what = f"{product.get('precision', 'fp16')}: speed over {label}"
    _add_speeds(outcome, what, found, rows, (name, peer), paper)
    return rows


def compare_cases(
    session: Session, outcome: Outcome, matrices: Iterable[Found], cases: tuple[FormatCase, FormatCase],
    paper: float | None = None, **product: Any,
) -> None:  # fmt: skip
    """Add the speeds of one case over another, and their geometric mean beside the paper's.

    Args:
        session, outcome: as of `speed_rows`.
        matrices: the matrices.
        cases: the mechanism, and what it is compared with.
        paper: the paper's mean.
        product: `op`, `width` and `precision`.
    """
    found = list(matrices)
    rows = speed_rows(session, outcome, found, cases, peers=(), **product)
    with_it, without = (case.label for case in cases)
    what = f"{product.get('op', 'spmm')}: speed of {with_it} over {without}"
    _add_speeds(outcome, what, found, rows, (with_it, without), paper)


def _add_speeds(
    outcome: Outcome, what: str, matrices: Iterable[Found], rows: Iterable[Mapping[str, Any]],
    kernels: tuple[str, str], paper: float | None,
) -> None:  # fmt: skip
    """Add the speeds of the first kernel over the second, and their geometric mean beside the paper's."""
    times = {(row["graph"], row["kernel"]): row["ms"] for row in rows}
    speeds = []
    for name, origin in {matrix.name: matrix.origin for matrix in matrices}.items():
        ours, theirs = (times.get((name, kernel)) for kernel in kernels)
        if ours and theirs:
            speeds.append(theirs / ours)
            outcome.add(what, name, origin, speeds[-1], unit="x")
    if speeds:
        outcome.add(f"{what}, mean", f"{len(speeds)} matrices", "subset", geometric_mean(speeds), paper, "x")
