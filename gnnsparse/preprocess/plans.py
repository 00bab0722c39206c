"""Storage of measured plans, in the process and in the cache of prepared graphs."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from dataclasses import replace

import torch

from gnnsparse.environment import device_name
from gnnsparse.hashing import fingerprint
from gnnsparse.plain import to_plain
from gnnsparse.plan import Plan, Problem, plan_from_plain
from gnnsparse.preprocess.cache import CACHE_VERSION, CacheWarning, GraphCache

__all__ = ["PlanStore"]


class PlanStore:
    """The plans that were measured on one prepared graph.

    Args:
        graph: the key of the prepared graph in the cache, or another string that identifies it.
        cache: the cache to store plans in; None: they are kept in this process alone.
    """

    def __init__(self, graph: str, cache: GraphCache | None) -> None:
        self.graph = graph
        self.cache = cache
        self._found: dict[str, Plan] = {}

    def key(self, problem: Problem, direction: str, device: torch.device) -> str:
        """Returns the key of a plan: a hash of graph, problem, device name and library version.

        Args:
            problem: the problem.
            direction: "A", or "T" for the transpose.
            device: the device that plans are measured on.
        """
        import gnnsparse

        parts = ("plan", CACHE_VERSION, gnnsparse.__version__, self.graph, direction, device_name(device))
        return fingerprint([], *parts, problem)

    def find(self, key: str, accepted: Iterable[Plan]) -> Plan | None:
        """Returns the plan of a key; None if there is none, or it is not one of the accepted plans.

        Reasons are not compared. A plan that is not accepted is reported by a CacheWarning, and the next
        `keep` replaces it.
        """
        if key in self._found:
            return self._found[key]
        found = None if self.cache is None else self.cache.load(key, lambda _, metadata: metadata)
        if self.cache is None or found is None:
            return None
        plan = plan_from_plain(found.get("plan"))
        if plan is None or replace(plan, reasons=()) not in {replace(p, reasons=()) for p in accepted}:
            warnings.warn(
                f"the cache file {self.cache.path(key)} holds no plan that can run here; it is measured anew",
                CacheWarning,
                stacklevel=3,
            )
            return None
        self._found[key] = plan
        return plan

    def keep(self, key: str, problem: Problem, plan: Plan) -> None:
        """Stores the plan of a key."""
        self._found[key] = plan
        if self.cache is None:
            return
        metadata = {
            "rows": problem.rows, "cols": problem.cols, "edges": problem.nnz, "reorder": {"method": ""},
            "kind": f"plan: {problem.op} N = {problem.width}, {plan.label}",
            "plan": {"kernel": plan.kernel, **to_plain(plan)},
        }  # fmt: skip
        with self.cache.lock(key) as locked:
            if locked:
                self.cache.store(key, {}, metadata)
