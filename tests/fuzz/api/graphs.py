"""Random matrices in all forms that `prepare` accepts, and what they stand for in float64."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch

from gnnsparse import SparseGraph
from tests.fuzz.common import Draw

SIZES = (1, 2, 3, 5, 7, 8, 9, 12, 16, 17, 0, 31, 32, 33, 40, 65)
VALUE_DTYPES = (
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.uint8,
    torch.bool,
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class Truth:
    """A matrix as a list of edges, in the order in which a graph gets them; without `values`, of 1 each."""

    rows: int
    cols: int
    row: torch.Tensor
    col: torch.Tensor
    values: torch.Tensor | None

    @property
    def edges(self) -> int:
        return self.row.numel()

    @property
    def weights(self) -> torch.Tensor:
        return torch.ones(self.edges, dtype=torch.float64) if self.values is None else self.values

    def spread(self, values: torch.Tensor) -> torch.Tensor:
        """Sums values of the edges into a dense matrix."""
        flat = values.new_zeros(self.rows * self.cols).index_add(0, self.row * self.cols + self.col, values)
        return flat.view(self.rows, self.cols)

    def pattern(self) -> torch.Tensor:
        return self.spread(torch.ones(self.edges, dtype=torch.float64)) > 0


@dataclass(frozen=True, eq=False)
class Dense:
    """What an operand stands for; `size` is how large the terms of merged edges are."""

    matrix: torch.Tensor
    pattern: torch.Tensor
    size: torch.Tensor
    truth: Truth

    @property
    def T(self) -> Dense:  # noqa: N802
        turned = replace(
            self.truth, rows=self.truth.cols, cols=self.truth.rows, row=self.truth.col, col=self.truth.row
        )
        return Dense(self.matrix.T, self.pattern.T, self.size.T, turned)


def _structure(draw: Draw, rows: int, cols: int, generator: torch.Generator) -> torch.Tensor:
    density = draw.choice((0.2, 0.05, 0.5, 0.9, 1.0, 0.0))
    mask = torch.rand(rows, cols, generator=generator) < density
    if rows and cols and draw.chance(0.2):
        mask[draw.below(rows)] |= torch.rand(cols, generator=generator) < 0.9
    if rows and cols and draw.chance(0.1):
        mask[:, draw.below(cols)] = True
    if rows and draw.chance(0.2):
        mask[torch.rand(rows, generator=generator) < 0.5] = False
    if rows == cols and draw.chance(0.3):
        mask |= mask.T.clone()
    return mask


def draw_truth(draw: Draw, square: bool = False) -> Truth:
    """A random matrix: of any shape, with hubs, empty rows, repeated edges and stored zeros."""
    rows = draw.choice(SIZES)
    cols = rows if square or draw.chance(0.5) else draw.choice(SIZES)
    generator = torch.Generator().manual_seed(draw.seed())
    row, col = _structure(draw, rows, cols, generator).nonzero(as_tuple=True)
    if row.numel() and draw.chance(0.25):
        again = torch.randint(row.numel(), (draw.integer(1, 2 * row.numel()),), generator=generator)
        row, col = torch.cat([row, row[again]]), torch.cat([col, col[again]])
    if draw.chance(0.5):
        order = torch.randperm(row.numel(), generator=generator)
        row, col = row[order], col[order]
    values = None
    if draw.chance(0.6):
        values = torch.randn(row.numel(), generator=generator, dtype=torch.float64)
        if draw.chance(0.3):
            values = values.abs() + 0.1
        if draw.chance(0.1):
            values[torch.rand(row.numel(), generator=generator) < 0.3] = 0.0
    return Truth(rows, cols, row, col, values)


def draw_strided(draw: Draw, tensor: torch.Tensor) -> torch.Tensor:
    kind = draw.choice(("plain", "step", "offset", "turned", "neg", "imag", "plain", "frozen"))
    if kind in ("step", "offset") and tensor.dim():
        size = tensor.shape[-1]
        wide = tensor.new_zeros(*tensor.shape[:-1], 2 * size + 3)
        view = wide[..., 1 : 2 * size + 1 : 2] if kind == "step" else wide[..., 1 : size + 1]
        return view.copy_(tensor)
    if kind == "turned" and tensor.dim() >= 2:
        return tensor.mT.contiguous().mT
    if kind == "neg" and tensor.is_floating_point():
        return torch._neg_view(-tensor)
    if kind == "imag" and tensor.dtype in (torch.float32, torch.float64):
        return torch.complex(torch.zeros_like(tensor), -tensor).conj().imag
    if kind == "frozen":
        with torch.inference_mode():
            return tensor.clone()
    return tensor


def _as_values(draw: Draw, truth: Truth) -> tuple[Any, Truth]:
    """The values in a random dtype and container, and the truth with what that rounds them to."""
    if truth.values is None:
        return None, truth
    tensor = truth.values.to(draw.choice(VALUE_DTYPES))
    truth = replace(truth, values=tensor.double())
    kind = draw.choice(("tensor", "numpy", "list", "tensor"))
    if kind == "numpy" and tensor.dtype != torch.bfloat16:
        return tensor.numpy(), truth
    if kind == "list" and tensor.dtype in (torch.float32, torch.float64) and tensor.numel():
        return tensor.tolist(), truth
    return draw_strided(draw, tensor), truth


@dataclass(frozen=True, eq=False)
class Form:
    """A matrix in a form that a caller may hand over: arguments of prepare, and a call of a constructor.

    The edges of `truth` are in the order that `to_coo_order` returns.
    """

    name: str
    graph: Any
    options: dict[str, Any]
    truth: Truth
    make: Callable[[], SparseGraph]


def _edge_index(draw: Draw, truth: Truth) -> Form:
    values, truth = _as_values(draw, truth)
    edges: Any = torch.stack([truth.col, truth.row]).to(draw.choice((torch.int64, torch.int32)))
    edges = edges.numpy() if draw.chance(0.2) else draw_strided(draw, edges)
    nodes: Any = (truth.cols, truth.rows)
    if truth.rows == truth.cols and draw.chance(0.5):
        nodes = truth.rows
    options = {"num_nodes": nodes, "values": values}
    return Form(
        "edge_index", edges, options, truth, lambda: SparseGraph.from_edge_index(edges, nodes, values)
    )


def _csr(draw: Draw, truth: Truth) -> Form:
    order = torch.argsort(truth.row, stable=True)
    own = None if truth.values is None else truth.values[order]
    truth = replace(truth, row=truth.row[order], col=truth.col[order], values=own)
    values, truth = _as_values(draw, truth)
    counts = torch.bincount(truth.row, minlength=truth.rows)
    dtype = draw.choice((torch.int64, torch.int32))
    indptr: Any = torch.nn.functional.pad(counts.cumsum(0), (1, 0)).to(dtype)
    indices: Any = truth.col.to(dtype)
    if draw.chance(0.2):
        indptr, indices = indptr.numpy(), indices.numpy()
    else:
        indptr, indices = draw_strided(draw, indptr), draw_strided(draw, indices)
    options: dict[str, Any] = {"num_cols": truth.cols}
    graph: Any = (indptr, indices)
    if values is not None and draw.chance(0.5):
        graph = (indptr, indices, values)
    else:
        options["values"] = values
    return Form(
        "csr", graph, options, truth, lambda: SparseGraph.from_csr(indptr, indices, values, truth.cols)
    )


def _scipy(draw: Draw, truth: Truth) -> Form:
    # Short numbers, whose sums are exact: SciPy adds up repeats in an order of its own.
    short = np.round(truth.weights.numpy() * 1024) / 1024
    weights = short.astype(draw.choice((np.float32, np.float64, np.int32)))
    array = draw.choice((True, False))
    kind = draw.choice(("csr", "csc", "coo", "bsr", "lil", "dok", "dia"))
    if min(truth.rows, truth.cols) == 0:
        kind = "csr"
    coo_type = sp.coo_array if array else sp.coo_matrix
    coo = coo_type((weights, (truth.row.numpy(), truth.col.numpy())), shape=(truth.rows, truth.cols))
    matrix = coo if kind == "coo" else coo.asformat(kind)
    # What SciPy itself makes of the format, repeats and stored zeros included.
    csr = matrix.tocsr()
    row = np.repeat(np.arange(truth.rows), np.diff(csr.indptr))
    parts = [torch.from_numpy(np.asarray(part).astype(np.int64)) for part in (row, csr.indices)]
    given = Truth(truth.rows, truth.cols, *parts, torch.from_numpy(np.asarray(csr.data).astype(np.float64)))
    return Form(f"scipy {kind}", matrix, {}, given, lambda: SparseGraph.from_scipy(matrix))


def _torch_sparse(draw: Draw, truth: Truth) -> Form:
    dtype = draw.choice((torch.float32, torch.float64, torch.float16, torch.int64))
    truth = replace(truth, values=truth.weights.to(dtype).double())
    shape = (truth.rows, truth.cols)
    kind = draw.choice(("coo", "csr", "csc"))
    matrix = torch.sparse_coo_tensor(torch.stack([truth.row, truth.col]), truth.weights.to(dtype), shape)
    if kind != "coo" or draw.chance(0.3):
        matrix = matrix.coalesce()
        row, col = matrix.indices()
        order = torch.argsort(col, stable=True) if kind == "csc" else torch.arange(col.numel())
        truth = Truth(*shape, row[order], col[order], matrix.values().double()[order])
        matrix = {"coo": lambda: matrix, "csr": matrix.to_sparse_csr, "csc": matrix.to_sparse_csc}[kind]()
    return Form(f"torch {kind}", matrix, {}, truth, lambda: SparseGraph.from_torch_sparse(matrix))


def _sparse_graph(draw: Draw, truth: Truth) -> Form:
    form = draw.choice((_edge_index, _csr))(draw, truth)
    with torch.inference_mode(False):
        graph = form.make()
    options: dict[str, Any] = {}
    given = form.truth
    if draw.chance(0.2):
        options["values"] = torch.randn(given.edges, generator=torch.Generator().manual_seed(draw.seed()))
        given = replace(given, values=options["values"].double())
    return Form(f"graph of {form.name}", graph, options, given, lambda: graph)


def draw_form(draw: Draw, square: bool = False) -> Form:
    truth = draw_truth(draw, square)
    make = draw.choice((_edge_index, _csr, _sparse_graph, _scipy, _torch_sparse))
    return make(draw, truth)


def _cancelled(size: torch.Tensor, sums: torch.Tensor) -> torch.Tensor:
    """By how much the error of a weight grows where the sum of its row is smaller than the terms."""
    return torch.where(sums == 0, 1.0, size.sum(1) / sums.abs()).clamp(min=1.0)


def weighted(truth: Truth, kind: str | None, weight: torch.Tensor | None, loop: float) -> Dense:
    """What `prepare(values=kind, edge_weight=weight, self_loop_weight=loop)` makes of a matrix."""
    if weight is not None:
        truth = replace(truth, values=weight.double())
    matrix, pattern = truth.spread(truth.weights.float().double()), truth.pattern()
    size = truth.spread(truth.weights.square()).sqrt()
    if kind == "gcn":
        missing = ~pattern.diagonal()
        matrix = matrix + torch.diag(torch.where(missing, loop, 0.0).double())
        size = size + torch.diag(torch.where(missing, abs(loop), 0.0).double())
        pattern = pattern | torch.eye(truth.rows, dtype=torch.bool)
        sums = matrix.sum(1)
        scale = torch.where(sums > 0, sums.clamp(min=1e-300).rsqrt(), 0.0)
        factor = scale[:, None] * scale
        grown = _cancelled(size, sums)
        matrix, size = matrix * factor, size * factor * (grown[:, None] + grown)
    elif kind == "mean":
        sums = matrix.sum(1)
        scale = torch.where(sums == 0, 0.0, 1 / sums)[:, None]
        matrix, size = matrix * scale, size * scale.abs() * _cancelled(size, sums)[:, None]
    return Dense(matrix, pattern, size, truth)
