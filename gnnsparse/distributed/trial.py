"""What a model computes with an operand, found by calling it once: its products, and ways that suit it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch.overrides import TorchFunctionMode

from gnnsparse.distributed.cost import Choice
from gnnsparse.distributed.exchange import FeatureExchange
from gnnsparse.distributed.operand import DistributedOperand
from gnnsparse.distributed.operations import FeatureOperations, RowOperations
from gnnsparse.distributed.shard import ShardFacts
from gnnsparse.ops import spmm
from gnnsparse.preprocess.api import prepare
from gnnsparse.sparse.graph import SparseGraph
from gnnsparse.sparse.operand import SparseOperand

#: Names of methods that change the numbers of a tensor in place; what reads one among them does no harm.
_CHANGES = re.compile(r"(?!requires_grad_|detach_)[a-z]\w*_|__i\w+__|__setitem__")
#: Nodes of the operand that a model is tried on.
_NODES = 8


@dataclass
class Found:
    """What a trial found.

    Attributes:
        widths: features that other ranks' nodes have in each product, in the order of the products.
        obstacle: why the model does not run by features; None: it does.
    """

    widths: list[int] = field(default_factory=list)
    obstacle: str | None = None


class _Rows(RowOperations):
    """Operations by rows of a rank that has all of them; what would travel is counted."""

    def __init__(self, whole: SparseOperand, found: Found) -> None:
        self.whole, self._found, self._merged = whole, found, False

    def extended(self, x: torch.Tensor, exact: bool = False) -> torch.Tensor:
        self._found.widths.append(x.shape[1:].numel())
        return x

    def spmm(self, x: torch.Tensor, values: Any, reduce: str, impl: str, plan: Any) -> torch.Tensor:
        return spmm(self.whole, self.extended(x), values, reduce=reduce, impl=impl)


class _Alone(FeatureExchange):
    """An exchange of the first of some ranks, which has all rows, so that nothing has to travel."""

    def to_features(self, x: torch.Tensor) -> torch.Tensor:
        return x[:, : x.shape[1] // len(self.sizes)]

    def to_rows(self, y: torch.Tensor) -> torch.Tensor:
        return torch.cat([y] * len(self.sizes), dim=1)


class _Operations:
    """Calls operations by features, until one is refused, and then by rows, whose results count."""

    def __init__(self, whole: SparseOperand, ranks: int, found: Found) -> None:
        sizes = (whole.shape[0], *(0,) * (ranks - 1))
        self.whole, self._found, self._rows = whole, found, _Rows(whole, found)
        self._features = FeatureOperations(whole, _Alone(sizes, 0, None))

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            if self._found.obstacle is None:
                # Options are taken out of the dictionary that they come in.
                own = [dict(arg) if isinstance(arg, dict) else arg for arg in args]
                try:
                    getattr(self._features, name)(*own)
                except ValueError as error:
                    self._found.obstacle = str(error)
            return getattr(self._rows, name)(*args)

        return call


class _Restored(TorchFunctionMode):
    """Gives tensors that are changed in place inside, as statistics are, what they held before."""

    def __init__(self) -> None:
        super().__init__()
        self._before: dict[int, tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call a function of torch, after what it may change has been copied."""
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        changed = [kwargs.get("out")]
        if func in (F.batch_norm, F.instance_norm):
            changed += [*args[1:3], kwargs.get("running_mean"), kwargs.get("running_var")]
        elif _CHANGES.fullmatch(name):
            changed += args[:1]
        for x in changed:
            if isinstance(x, torch.Tensor) and id(x) not in self._before:
                # What it holds is seen through a tensor of its own, as its shape may be changed in place too.
                self._before[id(x)] = x, x.detach(), x.detach().clone()
        return func(*args, **kwargs)

    def __exit__(self, *problem: Any) -> None:
        super().__exit__(*problem)
        with torch.no_grad():
            for _, held, before in self._before.values():
                # Tensors of inference mode are of the call itself, and can't be changed here.
                if not held.is_inference():
                    held.copy_(before)


def tried(trial: Callable[[SparseOperand], object], ranks: int, weighted: bool, **options: Any) -> Found:
    """Find what a function computes with an operand of some ranks, by calling it with a small one.

    Args:
        trial: the function. What it can't compute with so few nodes runs by rows, or not at all.
        ranks: number of ranks.
        weighted: whether the graph has weights.
        options: those of `gnnsparse.prepare` that the operand is made with.
    """
    found, nodes = Found(), torch.arange(_NODES, dtype=torch.int64, device="cpu")
    weights = torch.ones(_NODES, dtype=torch.float32, device="cpu") if weighted else None
    graph = SparseGraph.from_edge_index(torch.stack([nodes, nodes.roll(1)]), _NODES, weights)
    whole = prepare(graph, cache=False, **options)
    facts = ShardFacts(
        0, (0, _NODES), (whole.nnz,), (0,), (0,), _NODES, "contiguous", whole.normalization,
        whole.added_loops, whole.has_self_loops,
    )  # fmt: skip
    operations: Any = _Operations(whole, ranks, found)
    operand = DistributedOperand(
        facts, nodes, operations, whole.precision, whole.device, Choice("halo", 1, {}, ()), cache_hit=False
    )
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]), _Restored():
            trial(operand)
    except Exception as error:  # of the caller's code, which may be for its own graph alone
        found.widths.clear()
        found.obstacle = f"a trial on {_NODES} nodes failed: {type(error).__name__}: {error}"
    return found
