"""What all kernels' plans share, and what a kernel tells about itself."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

from gnnsparse.errors import bad_value
from gnnsparse.plan.problem import Problem
from gnnsparse.precision import Precision

__all__ = ["CanRun", "Kernel", "Plan", "plan_types", "takes_stored_operands"]

#: Plans by the name of their kernel.
_types: dict[str, type[Plan]] = {}
#: Fields by the names they had before, which are still accepted.
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
    """How an operation runs: the fields of one kernel. `Plan("csr", lanes=8)` makes a CsrPlan.

    Attributes:
        kernel: the kernel's name.
        reasons: why it was chosen, one line each.
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
        """The kernel, with the height of its panels where it has some."""
        height = getattr(self, "height", None)
        return self.kernel if height is None else f"{self.kernel} {height}"


def plan_types() -> dict[str, type[Plan]]:
    """The classes of plans, by the names of their kernels."""
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
    """Whether Tensor Core kernels run a precision: they multiply stored elements without converting them."""
    if precision.operands_are_stored:
        return CanRun()
    stored = str(precision.storage).removeprefix("torch.")
    return CanRun(f"Tensor Core kernels do not convert {stored}, which {precision.value} stores")


class Kernel(ABC):
    """What a kernel tells about itself: whether it can run a problem, with which plans, and how fast.

    Attributes:
        name: what forces it: "csr", "window", "panel16", ...
        plan_type: the class of its plans.
        devices: types of devices that it runs on.
        yields_to: names of kernels beside which this one is not modelled, and not chosen.
    """

    name: str
    plan_type: type[Plan]
    devices: tuple[str, ...] = ("cuda",)
    yields_to: tuple[str, ...] = ()

    @abstractmethod
    def can_run(self, problem: Problem) -> CanRun:
        """Whether it can run a problem."""

    @abstractmethod
    def default(self, problem: Problem) -> Plan:
        """The plan that it runs a problem by, which it can."""

    def variants(self, problem: Problem) -> list[Plan]:
        """Plans that autotuning measures, the default first."""
        return [self.default(problem)]

    def time_us(self, problem: Problem, plan: Plan) -> float | None:
        """Modelled microseconds of a plan; None: there is no model, and the order of kernels decides."""
        return None

    def is_asked_for(self, problem: Problem) -> str:
        """Why the problem asks for this kernel whatever it takes; "" if it does not."""
        return ""

    def check(self, problem: Problem, plan: Plan) -> None:
        """Raises ValueError where the kernel can't run a problem by a plan that was given."""
        if problem.device.type not in self.devices:
            bad_value("plan", f"{plan.label} can't run on {problem.device.type}")
        if not (answer := self.can_run(problem)):
            bad_value("plan", f"{plan.label} can't run here: {answer.problem}")
