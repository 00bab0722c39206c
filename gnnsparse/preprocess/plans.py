"""Plans that were measured, kept in the process and in the cache of prepared graphs."""

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
        graph: its key in the cache, or any other string that stands for it.
        cache: None keeps plans in this process alone.
    """

    def __init__(self, graph: str, cache: GraphCache | None) -> None:
        self.graph = graph
        self.cache = cache
        self._found: dict[str, Plan] = {}

    def key(self, problem: Problem, direction: str, device: torch.device) -> str:
        """What a plan is kept under: graph, problem, direction, the device's name, this library's version."""
        import gnnsparse

        parts = ("plan", CACHE_VERSION, gnnsparse.__version__, self.graph, direction, device_name(device))
        return fingerprint([], *parts, problem)

    def find(self, key: str, accepted: Iterable[Plan]) -> Plan | None:
        """The plan of a key, if it is one of the accepted ones, reasons aside.

        Anything else under this key is told in a CacheWarning; the next `keep` replaces it.
        """
        if key in self._found:
            return self._found[key]
        found = None if self.cache is None else self.cache.load(key)
        if self.cache is None or found is None:
            return None
        plan = plan_from_plain(found[1].get("plan"))
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
        """Keeps a plan."""
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
