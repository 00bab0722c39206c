"""What passes over edges compute, in float64 and edge by edge: slow, and as the docstring of Pass says."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from gnnsparse.ops.edges.program import Pass, Step
from gnnsparse.ops.edges.rows import Rows

_OPERATIONS: dict[str, Callable[..., torch.Tensor]] = {
    "neg": torch.neg, "abs": torch.abs, "exp": torch.exp, "expm1": torch.expm1, "log": torch.log,
    "log1p": torch.log1p, "sqrt": torch.sqrt, "tanh": torch.tanh, "sigmoid": torch.sigmoid,
    "softplus": lambda x: torch.nn.functional.softplus(x, threshold=1e9), "erf": torch.erf,
    "sin": torch.sin, "cos": torch.cos, "relu": torch.relu, "add": torch.add, "sub": torch.sub,
    "mul": torch.mul, "div": torch.div, "maximum": torch.maximum, "minimum": torch.minimum,
    "gt": lambda a, b: (a > b).double(), "ge": lambda a, b: (a >= b).double(),
    "eq": lambda a, b: (a == b).double(), "where": lambda c, a, b: torch.where(c != 0, a, b),
}  # fmt: skip


def _value(step: Step, values: list[torch.Tensor], shape: tuple[int, int]) -> torch.Tensor:
    if step.operation == "const":
        return torch.full(shape, step.constant, dtype=torch.float64)
    return _OPERATIONS[step.operation](*(values[v] for v in step.values)).expand(shape)


def expected_outputs(pass_: Pass, rows: Rows, arguments: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return the outputs of a pass, in float64 and int64, on the CPU; 0 for edges that no row has."""
    csr = rows.kernels.csr
    stored = csr.row_index().cpu().long()
    ids = rows.kernels.row_ids
    row = stored if ids is None else ids.cpu().long()[stored]
    column, nnz = csr.indices.cpu().long(), csr.nnz
    edge = torch.arange(nnz) if rows.edge_ids is None else rows.edge_ids.cpu().long()
    places = {"gathered": column, "row": row, "edge": edge}
    left = iter([t.cpu() if t.dtype == torch.int32 else t.cpu().double() for t in arguments])
    values: list[torch.Tensor] = []
    numbers = weight = torch.empty(0)
    for kind in pass_.inputs:
        tensor, side = next(left), kind.split("_")[0]
        if kind == "mapped":
            numbers, weight = tensor[edge], next(left)
            values.append(numbers @ weight)
        elif kind.endswith("winner"):
            values.append((tensor[places[side]] == edge[:, None]).double())
        elif kind.startswith("vector"):
            values.append(tensor.expand(nnz, -1))
        else:
            values.append(tensor[places[side]].reshape(nnz, -1))
    shape = nnz, max(v.shape[1] for v in values)
    for step in pass_.steps:
        values.append(_value(step, values, shape))
    found = []
    for kind, of in pass_.outputs:
        value = values[of].expand(shape)
        by_row = torch.zeros(csr.rows, shape[1], dtype=torch.float64)
        by_edge = torch.zeros(rows.num_edges, shape[1], dtype=torch.float64)
        if kind in ("sum", "row_number"):
            by_row.index_add_(0, row, value)
            found.append(by_row if kind == "sum" else by_row.sum(1))
        elif kind in ("edge", "edge_number"):
            by_edge[edge] = value
            found.append(by_edge if kind == "edge" else by_edge.sum(1))
        elif kind in ("max", "min"):
            found += _extreme(value if kind == "max" else -value, row, edge, csr.rows)
            found[-2] = found[-2] if kind == "max" else -found[-2]
        elif kind == "vector":
            found.append(value.sum(0))
        elif kind == "mapped_edge":
            by_number = torch.zeros(rows.num_edges, numbers.shape[1], dtype=torch.float64)
            by_number[edge] = value @ weight.T
            found.append(by_number)
        else:
            found.append(numbers.T @ value)
    return found


def _extreme(
    value: torch.Tensor, row: torch.Tensor, edge: torch.Tensor, rows: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the maximum of each row, 0 for none, and its first edge, -1 for none. NaN wins."""
    best = torch.zeros(rows, value.shape[1], dtype=torch.float64)
    winner = torch.full((rows, value.shape[1]), -1)
    for r in row.unique().tolist():
        own = (row == r).nonzero().flatten()
        of_row = value[own].nan_to_num(nan=torch.inf, posinf=1e300, neginf=-torch.inf)
        first = (of_row == of_row.amax(0)).int().argmax(0)  # the first of equal ones
        best[r] = value[own].gather(0, first[None])[0]
        winner[r] = edge[own[first]]
    return best, winner
