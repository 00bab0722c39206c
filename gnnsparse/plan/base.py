"""The base class of plans, and the interface by which a kernel describes itself to the choice."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

from gnnsparse.errors import bad_value
from gnnsparse.plan.problem import Problem
from gnnsparse.precision import Precision

__all__ = ["CanRun", "Kernel", "Plan", "plan_types", "takes_stored_operands"]

#: Classes of plans by the names of their kernels.
_types: dict[str, type[Plan]] = {}
#: Former names of fields, which are still accepted, with their present names.
_FORMER = {"step_limit": "tile_limit", "at_once": "concurrent_panels"}


class _PlanType(type):
    """Makes `Plan("panel", height=16)` a PanelPlan."""

    def __call__(cls, *arguments: Any, **values: Any) -> Any:
        if cls.__name__ != "Plan":
            return super().__call__(*arguments, **values)
        if not arguments or arguments[0] not in _types:
            raise TypeError(f"Plan: got {arguments}; accepted: {', '.join(_types)}, then fields by name")
        kind = _types[arguments[0]]
        values = {_FORMER.get(name, name): value for name, value in values.items()}
        accepted = [f.name for f in fields(kind)]
        for name in values:
            if name not in accepted:
                raise TypeError(
                    f"{name}: no field of a plan of {arguments[0]}; accepted: {', '.join(accepted)}"
                )
        return kind(*arguments[1:], **values)


@dataclass(frozen=True)
class Plan(metaclass=_PlanType):
    """How an operation runs: a kernel and its parameters, which subclasses add as fields.

    `Plan("csr", lanes=8)` makes a CsrPlan.

    Attributes:
        kernel: name of the kernel.
        reasons: why the plan was chosen, in short statements.
    """

    kernel: ClassVar[str] = ""
    reasons: tuple[str, ...] = field(default=(), kw_only=True)

    def __init_subclass__(cls) -> None:
        if cls.kernel:
            _types[cls.kernel] = cls

    def __str__(self) -> str:
        return f"{self.kernel}: " + "; ".join(self.reasons)

    @property
    def label(self) -> str:
        """The kernel's name, followed by the height of its panels if it has panels."""
        height = getattr(self, "height", None)
        return self.kernel if height is None else f"{self.kernel} {height}"


def plan_types() -> dict[str, type[Plan]]:
    """Returns the classes of plans by the names of their kernels."""
    return dict(_types)


@dataclass(frozen=True)
class CanRun:
    """Whether a kernel can run a problem; true in a condition if it can.

    Attributes:
        problem: why it can't; "" if it can.
    """

    problem: str = ""

    def __bool__(self) -> bool:
        return not self.problem


def takes_stored_operands(precision: Precision) -> CanRun:
    """Returns whether Tensor Core kernels run a precision: they multiply stored elements as these are."""
    if precision.operands_are_stored:
        return CanRun()
    stored = str(precision.storage).removeprefix("torch.")
    return CanRun(f"Tensor Core kernels do not convert {stored}, which {precision.value} stores")


class Kernel(ABC):
    """A kernel's description of itself: which problems it can run, with which plans, and how fast.

    Attributes:
        name: the kernel's name, with the height of its panels: "csr", "window", "panel16", ...
        plan_type: the class of its plans.
        devices: types of devices that it runs on.
        yields_to: names (`Plan.kernel`) of other kernels. If one of them can run a problem, this kernel is
            not chosen, because its model does not compare with theirs.
        for_formats: whether it runs operands alone whose format was asked for; the plans of others do not
            speak of it.
    """

    name: str
    plan_type: type[Plan]
    devices: tuple[str, ...] = ("cuda",)
    yields_to: tuple[str, ...] = ()
    for_formats: bool = False

    @abstractmethod
    def can_run(self, problem: Problem) -> CanRun:
        """Returns whether the kernel can run a problem, or why not."""

    @abstractmethod
    def default(self, problem: Problem) -> Plan:
        """Returns the kernel's plan for a problem that it can run."""

    def variants(self, problem: Problem) -> list[Plan]:
        """Returns the plans that autotuning measures."""
        return [self.default(problem)]

    def time_us(self, problem: Problem, plan: Plan) -> float | None:
        """Returns the modelled microseconds of a plan; None if the kernel has no model.

        Among kernels without a model the first in KERNELS that can run is chosen.
        """
        return None

    def is_asked_for(self, problem: Problem) -> str:
        """Returns why the problem must be run by this kernel, whatever its time; "" if it need not be."""
        return ""

    def check(self, problem: Problem, plan: Plan) -> None:
        """Raises ValueError if the kernel can't run a problem by a plan that the caller gave."""
        if problem.device.type not in self.devices:
            bad_value("plan", f"{plan.label} can't run on {problem.device.type}")
        if not (answer := self.can_run(problem)):
            bad_value("plan", f"{plan.label} can't run here: {answer.problem}")
