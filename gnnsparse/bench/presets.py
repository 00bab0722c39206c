"""Cases that figures of the papers compare: formats with row orders, heights and policies of their own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any

from gnnsparse.bench.candidates import UnavailableError
from gnnsparse.bench.check import Reference, Sample
from gnnsparse.bench.kernels import Bench, prepare_subject, release
from gnnsparse.bench.workload import Workload
from gnnsparse.formats import PRESETS
from gnnsparse.plan import Plan
from gnnsparse.sparse.operand import SparseOperand

__all__ = ["PAPER_FORMATS", "FormatCase", "PresetBench", "precision_of"]

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
    """Returns the first of some precisions that a format has, or the first one if it has none of them.

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
        """Measures one case; raises UnavailableError if the format does not have the operation."""
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
