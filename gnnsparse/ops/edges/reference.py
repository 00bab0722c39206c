"""The readable specification of functions over edges, in plain torch, with a row of features for each edge.

It is slow and needs memory, runs on any device, and is differentiable any number of times.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812

from gnnsparse.ops.edges.program import Function, Step

_OPERATIONS: dict[str, Callable[..., Any]] = {
    "neg": torch.neg, "abs": torch.abs, "exp": torch.exp, "expm1": torch.expm1, "log": torch.log,
    "log1p": torch.log1p, "sqrt": torch.sqrt, "tanh": torch.tanh, "sigmoid": torch.sigmoid,
    "softplus": F.softplus, "erf": torch.erf, "sin": torch.sin, "cos": torch.cos, "relu": torch.relu,
    "add": torch.add, "sub": torch.sub, "mul": torch.mul, "div": torch.div, "maximum": torch.maximum,
    "minimum": torch.minimum,
}  # fmt: skip
_COMPARISONS: dict[str, Callable[..., Any]] = {"gt": torch.gt, "ge": torch.ge, "eq": torch.eq}


class Edges(NamedTuple):
    """The edges of a graph in the caller's order: int64 [edges] target and source, and how many targets."""

    target: torch.Tensor
    source: torch.Tensor
    targets: int


def evaluate(steps: Sequence[Step], arguments: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return all values of code, the arguments first."""
    values = list(arguments)
    for step in steps:
        taken = [values[v] for v in step.values]
        if step.operation == "const":
            values.append(arguments[0].new_full((), step.constant))
        elif step.operation == "where":
            values.append(torch.where(taken[0] != 0, taken[1], taken[2]))
        elif step.operation in _COMPARISONS:
            values.append(_COMPARISONS[step.operation](*taken).to(arguments[0].dtype))
        else:
            values.append(_OPERATIONS[step.operation](*taken))
    return values


def compute(
    function: Function, edges: Edges, tensors: Sequence[torch.Tensor], winners: Sequence[torch.Tensor] = ()
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Return the results of a function, in the dtype of its tensors (they are of one dtype), and the winners.

    Winners are int64 [targets, F] for each "max" and "min" in turn: numbers of edges, -1 where there is none.
    Unless they are given, the first of equal ones wins.
    """
    arguments = []
    for x, tensor in zip(function.inputs, tensors, strict=False):
        place = {"source": edges.source, "target": edges.target}.get(x.side)
        value = tensor if place is None else tensor.index_select(0, place)
        if x.form == "number" and x.side != "shared":
            value = value[:, None]
        arguments.append(value @ tensors[-1] if x.form == "mapped" else value)
    values, found, results = evaluate(function.steps, arguments), list(winners), []
    width = max((value.shape[-1] for value in values if value.dim()), default=1)
    left = iter(winners)
    for how, at in function.results:
        terms = values[at].expand(edges.target.numel(), width)
        if how == "edge":
            results.append(terms)
        elif how == "sum":
            results.append(terms.new_zeros(edges.targets, width).index_add(0, edges.target, terms))
        else:
            winner = next(left, None)
            if winner is None:
                winner = find_winners(terms.detach(), edges, largest=how == "max")
                found.append(winner)
            results.append(F.pad(terms, (0, 0, 0, 1)).gather(0, winner.remainder(terms.shape[0] + 1)))
    return results, found


def find_winners(terms: torch.Tensor, edges: Edges, largest: bool) -> torch.Tensor:
    """Return the number of the first largest or smallest term of each target, int64 [targets, F], or -1."""
    count, at = terms.shape[0], edges.target[:, None].expand_as(terms)
    key = terms if largest else -terms
    best = key.new_full((edges.targets, terms.shape[1]), -torch.inf).scatter_reduce(0, at, key, "amax")
    is_best = (key == best[edges.target]) | key.isnan()
    number = torch.arange(count, dtype=torch.int64, device=terms.device)[:, None]
    first = torch.full(best.shape, count, dtype=torch.int64, device=terms.device)
    first = first.scatter_reduce(0, at, torch.where(is_best, number, count), "amin")
    return torch.where(first < count, first, -1)
