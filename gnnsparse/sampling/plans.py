"""Plans of sampled blocks, whose products make a GPU compute nothing that the host would wait for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gnnsparse.plan import CsrPlan, Plan, Problem, choose_plan
from gnnsparse.runtime.memo import ForkLock
from gnnsparse.sparse.kernel_cache import KernelCache
from gnnsparse.sparse.kernel_keys import Product

__all__ = ["ROW_LIMIT", "BlockPlans"]

#: Rows of blocks with more nonzeros are cut into parts, whatever the width of X, so that their parts can be
#: made with the block.
ROW_LIMIT = 256
#: Leading bits of a size by which plans are kept.
_BITS = 3
#: Plans that are kept at most.
_MOST = 512


def _rounded(count: int) -> int:
    """Returns a size with its leading bits alone."""
    shift = max(0, count.bit_length() - _BITS)
    return count >> shift << shift


class BlockPlans:
    """Chooses the plans of blocks on a GPU, as the attribute `tuner` of their KernelCaches.

    The blocks of a layer differ little from step to step. A plan is chosen for sizes that are rounded, so
    that few are, and depends on the block alone: not on blocks that were there before, and a resumed run has
    the plans of one that was not interrupted.
    """

    def __init__(self) -> None:
        self._found: dict[Problem, Plan] = {}
        self._lock = ForkLock()

    def __reduce__(self) -> Any:
        return BlockPlans, ()  # each process chooses its own

    def __call__(self, kernels: KernelCache, product: Product) -> Plan:
        """Returns the plan of a product."""
        given = kernels.problem(product)
        problem = replace(
            given, rows=_rounded(given.rows), cols=_rounded(given.cols), nnz=_rounded(given.nnz)
        )
        plan = self._found.get(problem)
        if plan is None:
            plan = choose_plan(problem)
            if isinstance(plan, CsrPlan):
                plan = replace(plan, row_limit=ROW_LIMIT)
            with self._lock:
                if len(self._found) >= _MOST:
                    self._found.clear()
                self._found[problem] = plan
        longest = kernels.longest_row
        if isinstance(plan, CsrPlan) and (longest is None or longest > ROW_LIMIT):
            return replace(plan, group=0, narrow=False)  # which rows form groups depends on which are cut
        return plan
