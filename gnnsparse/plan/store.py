"""Storage of measured plans, in the process and in the cache of prepared graphs."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from gnnsparse.plan import Plan, Problem, plan_from_plain
from gnnsparse.runtime.cache import CACHE_VERSION, CacheWarning, GraphCache
from gnnsparse.runtime.environment import device_name
from gnnsparse.runtime.hashing import fingerprint
from gnnsparse.runtime.serialization import from_plain, to_plain


@dataclass(frozen=True)
class _Saved:
    """The content of a store as plain values."""

    graph: str
    plans: Mapping[str, Any]


def _plain_plan(plan: Plan) -> dict[str, Any]:
    return {"kernel": plan.kernel, **to_plain(plan)}


class PlanStore:
    """The plans that were measured on a graph of key `graph`, in `cache` or in this process (None)."""

    def __init__(self, graph: str, cache: GraphCache | None) -> None:
        self.graph = graph
        self.cache = cache
        self._found: dict[str, Plan] = {}
        self._saved: dict[str, Any] = {}

    def to_plain(self) -> dict[str, Any]:
        """Return what identifies the graph, and the measured plans by their keys, as plain values."""
        found = {key: _plain_plan(plan) for key, plan in self._found.items()}
        return {"graph": self.graph, "plans": {**self._saved, **found}}

    @classmethod
    def from_plain(cls, content: Any) -> PlanStore:
        """Make a store without a cache of what `to_plain` returned; plans are checked when looked up."""
        kept: _Saved = from_plain(_Saved, content, "plans")
        store = cls(kept.graph, None)
        store._saved = dict(kept.plans)
        return store

    def key(self, problem: Problem, direction: str, device: torch.device) -> str:
        """Return the key of a plan: a hash of graph, problem, orientation, device and version."""
        import gnnsparse

        parts = ("plan", CACHE_VERSION, gnnsparse.__version__, self.graph, direction, device_name(device))
        return fingerprint([], *parts, problem)

    def find(self, key: str, accepted: Iterable[Plan]) -> Plan | None:
        """Return the plan of a key if it is, but for its reasons, one of the accepted plans, else None."""
        if key in self._found:
            return self._found[key]
        where, stored = "what was saved with the operand", self._saved.get(key)
        if stored is None and self.cache is not None:
            where = f"the cache file {self.cache.path(key)}"
            metadata = self.cache.load(key, lambda _, metadata: metadata)
            stored = None if metadata is None else metadata.get("plan") or ""
        if stored is None:
            return None
        plan = plan_from_plain(stored)
        if plan is None or replace(plan, reasons=()) not in {replace(p, reasons=()) for p in accepted}:
            warnings.warn(
                f"{where} holds no plan that can run here; it is measured anew", CacheWarning, stacklevel=3
            )
            return None
        self._found[key] = plan
        return plan

    def keep(self, key: str, problem: Problem, plan: Plan) -> None:
        """Store the plan of a key."""
        self._found[key] = plan
        if self.cache is None:
            return
        metadata = {
            "rows": problem.rows, "cols": problem.cols, "edges": problem.nnz, "reorder": {"method": ""},
            "kind": f"plan: {problem.op} N = {problem.width}, {plan.label}",
            "plan": _plain_plan(plan),
        }  # fmt: skip
        with self.cache.lock(key) as locked:
            if locked:
                self.cache.store(key, {}, metadata)
