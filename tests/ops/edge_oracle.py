"""Any pass of an edge function by torch's operations, and its random arguments."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F  # noqa: N812

from gnnsparse.formats.csr import Csr
from gnnsparse.ops.edges.program import Pass
from gnnsparse.ops.edges.reference import Edges, evaluate, find_winners
from gnnsparse.ops.edges.rows import Rows
from gnnsparse.sparse.kernel_cache import KernelCache
from tests.ops.edge_passes import FUNCTIONS, passes_of

WINNERS = ("max", "min")


def make_rows(
    counts: Sequence[int], cols: int, *, seed: int = 0, numbered: bool = True, reordered: bool = False
) -> Rows:
    """Rows of so many random edges each, repeated ones among them, with random numbers and row order."""
    generator = torch.Generator("cpu").manual_seed(seed)
    degree = torch.tensor(counts, dtype=torch.int64, device="cpu")
    indptr = torch.cat([degree.new_zeros(1), degree.cumsum(0)])
    nnz = int(indptr[-1])
    row = torch.arange(len(counts), dtype=torch.int64, device="cpu").repeat_interleave(degree)
    col = torch.randint(0, cols, (nnz,), generator=generator, dtype=torch.int64, device="cpu")
    col = (row * cols + col).sort().values.remainder(cols).to(torch.int32)
    some = lambda n: torch.randperm(n, generator=generator, dtype=torch.int32, device="cpu")  # noqa: E731
    kernels = KernelCache(Csr(indptr, col, cols), some(len(counts)) if reordered else None)
    return Rows(kernels, some(nnz) if numbered else None, nnz)


def _nonzeros(rows: Rows) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The caller's row, the column and the caller's edge number of each nonzero."""
    csr, row_ids = rows.kernels.csr, rows.kernels.row_ids
    row = csr.row_index().long()
    if row_ids is not None:
        row = row_ids.long()[row]
    ids = torch.arange(csr.nnz, dtype=torch.int64, device=csr.device)
    return row, csr.indices.long(), ids if rows.edge_ids is None else rows.edge_ids.long()


def make_arguments(
    pass_: Pass, rows: Rows, width: int, dtype: torch.dtype = torch.float32, *, seed: int = 0,
    number: Callable[[torch.Tensor], torch.Tensor] = lambda x: x,
) -> list[torch.Tensor]:  # fmt: skip
    """Random arguments of a pass, `number` of standard normal ones."""
    generator = torch.Generator("cpu").manual_seed(seed)
    csr, edges = rows.kernels.csr, rows.num_edges
    sizes = {"gathered": csr.cols, "row": csr.rows, "edge": edges}
    device = csr.device

    def normal(*shape: int) -> torch.Tensor:
        made = torch.randn(shape, generator=generator, dtype=torch.float32, device="cpu")
        return number(made).to(device)

    found = []
    for kind, size in zip(pass_.inputs, pass_.sizes, strict=True):
        place, _, form = kind.partition("_")
        if kind == "mapped":
            found += [normal(edges, size), normal(size, width)]
        elif form == "winner":
            shape = (sizes[place], width)
            made = torch.randint(
                -1, max(edges, 1), shape, generator=generator, dtype=torch.int32, device="cpu"
            )
            row, col, ids = (t.cpu() for t in _nonzeros(rows))
            # Most rows have an edge of their own as winner.
            made[row if place == "row" else col] = ids.to(torch.int32)[:, None]
            found.append(made.to(device))
        elif place == "vector":
            found.append(normal(1 if form else width))
        elif form == "wide":
            found.append(normal(sizes[place], width))
        elif form:
            found.append(normal(sizes[place]))
        else:
            found.append(normal(sizes[place], width).to(dtype))
    return found


def make_outputs(
    pass_: Pass, rows: Rows, width: int, dtype: torch.dtype = torch.float32
) -> list[torch.Tensor]:
    """The outputs of a pass, full of NaN and of wrong winners."""
    csr, edges, size = rows.kernels.csr, rows.num_edges, max(pass_.sizes, default=0)
    shapes = {
        "row_number": (csr.rows,), "edge_number": (edges,), "vector": (width,), "edge": (edges, width),
        "mapped_edge": (edges, size), "mapped_weight": (size, width),
    }  # fmt: skip
    found = []
    for kind, _ in pass_.outputs:
        shape, of = shapes.get(kind, (csr.rows, width)), dtype
        if kind.endswith("number") or kind in ("vector", "mapped_edge", "mapped_weight"):
            of = torch.float32
        found.append(torch.full(shape, torch.nan, dtype=of, device=csr.device))
        if kind in WINNERS:
            found.append(torch.full(shape, -7, dtype=torch.int32, device=csr.device))
    return found


def interpret(
    pass_: Pass, rows: Rows, arguments: Sequence[torch.Tensor], width: int, dtype: torch.dtype = torch.float64
) -> list[torch.Tensor]:
    """Compute a pass in a dtype. Winners are int32."""
    csr = rows.kernels.csr
    row, col, ids = _nonzeros(rows)
    places = {"gathered": col, "row": row, "edge": ids}
    left, values = iter(arguments), []
    numbers = weights = torch.empty(0, 0, dtype=dtype, device=csr.device)
    for kind in pass_.inputs:
        place, _, form = kind.partition("_")
        tensor = next(left)
        if kind == "mapped":
            numbers, weights = tensor.to(dtype)[ids], next(left).to(dtype)
            values.append(numbers @ weights)
        elif form == "winner":
            values.append((tensor[places[place]] == ids[:, None]).to(dtype))
        elif place == "vector":
            values.append(tensor.to(dtype))
        else:
            taken = tensor.to(dtype)[places[place]]
            values.append(taken[:, None] if form == "number" else taken)
    if not values:  # constants alone
        values = [torch.zeros(1, dtype=dtype, device=csr.device)]
        pass_ = dataclasses.replace(
            pass_,
            steps=tuple(s._replace(values=tuple(v + 1 for v in s.values)) for s in pass_.steps),
            outputs=tuple((kind, value + 1) for kind, value in pass_.outputs),
        )
    values = evaluate(pass_.steps, values)
    found = []
    for kind, value in pass_.outputs:
        terms = values[value].expand(csr.nnz, width)
        by_row = terms.new_zeros(csr.rows, width)
        by_edge = terms.new_zeros(rows.num_edges, width)
        if kind in WINNERS:
            best = find_winners(terms, Edges(row, col, csr.rows), largest=kind == "max")
            # Behind the terms and the numbers of edges is what a row without edges has.
            best = best.remainder(csr.nnz + 1)
            found.append(F.pad(terms, (0, 0, 0, 1)).gather(0, best))
            found.append(F.pad(ids, (0, 1), value=-1)[best].to(torch.int32))
        elif kind == "mapped_edge":
            by_number = numbers.new_zeros(rows.num_edges, numbers.shape[1])
            found.append(by_number.index_copy(0, ids, terms @ weights.T))
        elif kind == "mapped_weight":
            found.append(numbers.T @ terms)
        else:
            at, of = (ids, by_edge) if kind.startswith("edge") else (row, by_row)
            total = terms.sum(0) if kind == "vector" else of.index_add(0, at, terms)
            found.append(total.sum(1) if kind.endswith("number") else total)
    return found


def passes() -> dict[str, Pass]:
    """All passes of the functions, by name: the first one of each computes its results."""
    return {
        f"{name}-{number}": pass_
        for name, function in FUNCTIONS.items()
        for number, pass_ in enumerate(passes_of(function))
    }
