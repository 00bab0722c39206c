"""A linear layer whose weight matrix was pruned."""

from __future__ import annotations

import math
from typing import Any

import torch

from gnnsparse.api import prepare
from gnnsparse.csr import Csr
from gnnsparse.errors import bad_type, bad_value, check_flag, check_integer
from gnnsparse.graph import SparseGraph
from gnnsparse.operand import SparseOperand
from gnnsparse.ops import spmm
from gnnsparse.precision import Precision

__all__ = ["SparseLinear"]


class SparseLinear(torch.nn.Module):
    """y = x W^T + b with a sparse W, through SpMM. The nonzeros of W are trained, their places stay.

    `weight` [nnz] holds them in CSR order, row by row; the places are buffers (`indptr` int64
    [out + 1], `indices` int32 [nnz]) and go with the `state_dict`.

    Args:
        graph: where W [out_features, in_features] has nonzeros; its values play no part.
        bias: learn b.
        precision: what x and W are rounded to in the product; see gnnsparse.Precision.

    Raises:
        TypeError: `graph` is no SparseGraph, or another argument of another type.
        ValueError: there is no such precision.
    """

    indptr: torch.Tensor
    indices: torch.Tensor

    def __init__(self, graph: SparseGraph, bias: bool = True, *, precision: Precision | str = "fp32") -> None:
        super().__init__()
        if not isinstance(graph, SparseGraph):
            bad_type("graph", graph, "a SparseGraph, from gnnsparse.masks for one")
        self.out_features, self.in_features = graph.num_rows, graph.num_cols
        self.precision = Precision.parse(precision)
        self.register_buffer("indptr", graph.csr.indptr.clone())
        self.register_buffer("indices", graph.csr.indices.clone())
        self.weight = torch.nn.Parameter(torch.empty(graph.nnz, device=graph.device))
        if check_flag("bias", bias):
            self.bias = torch.nn.Parameter(torch.empty(graph.num_rows, device=graph.device))
        else:
            self.register_parameter("bias", None)
        self._operand: SparseOperand | None = None
        self.reset_parameters()

    @classmethod
    def from_dense(
        cls,
        linear: torch.nn.Linear,
        sparsity: float,
        vector: int = 1,
        *,
        precision: Precision | str = "fp32",
    ) -> SparseLinear:
        """A layer with the largest weights of a dense one (magnitude pruning).

        Args:
            linear: the dense layer, which stays as it is.
            sparsity: share of the weights to leave out, in [0, 1].
            vector: weights that are kept or left out together, the same input of so many consecutive
                outputs; by the sum of their squares. 1: each by itself; 8 and 16 suit the kernels.
            precision: as of the layer.

        Raises:
            TypeError, ValueError: an argument is of another type or out of range.
        """
        if not isinstance(linear, torch.nn.Linear):
            bad_type("linear", linear, "a torch.nn.Linear")
        if isinstance(sparsity, bool) or not isinstance(sparsity, (int, float)):
            bad_type("sparsity", sparsity, "a number in [0, 1]")
        if not 0 <= sparsity <= 1:
            bad_value("sparsity", f"got {sparsity}; accepted: a number in [0, 1]")
        dense = linear.weight.detach()
        kept = _largest(dense, sparsity, check_integer("vector", vector))
        row, col = kept.nonzero(as_tuple=True)
        indptr = torch.nn.functional.pad(kept.sum(dim=1).cumsum(0), (1, 0))
        graph = SparseGraph(Csr(indptr, col.to(torch.int32), linear.in_features))
        layer = cls(graph, bias=linear.bias is not None, precision=precision).to(dense.dtype)
        with torch.no_grad():
            layer.weight.copy_(dense[row, col])
            if layer.bias is not None:
                layer.bias.copy_(linear.bias)
        return layer

    def reset_parameters(self) -> None:
        """Draws weights and bias anew: uniform, with the variance that keeps that of x in each output."""
        degree = self.indptr.diff()
        bound = degree.clamp(min=1).to(torch.float32).rsqrt()
        torch.nn.init.uniform_(self.weight, -1, 1)
        with torch.no_grad():
            self.weight.mul_(math.sqrt(3) * torch.repeat_interleave(bound, degree))
        if self.bias is not None:
            torch.nn.init.zeros_(self.bias)

    @property
    def operand(self) -> SparseOperand:
        """The structure of W, where the weights are."""
        made = self._operand
        if made is None:
            graph = SparseGraph(Csr(self.indptr, self.indices, self.in_features))
            # No part of a graph made in inference mode could be used in training later.
            with torch.inference_mode(False):
                made = prepare(graph, precision=self.precision, cache=False)
        self._operand = made.to(self.weight.device)
        return self._operand

    def to_dense(self) -> torch.Tensor:
        """W, [out_features, in_features]. Differentiable in `weight`."""
        dense = self.weight.new_zeros(self.out_features, self.in_features)
        row, col = self.operand.indices()
        return dense.index_put((row, col), self.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The layer's output.

        Args:
            x: [..., in_features], float32, float16 or bfloat16, where the weights are.

        Returns:
            [..., out_features] in the dtype of x.

        Raises:
            TypeError: x is of another type or dtype.
            ValueError: it has another last size or device.
        """
        if not isinstance(x, torch.Tensor):
            bad_type("x", x, f"a tensor [..., {self.in_features}]")
        if x.dim() == 0 or x.shape[-1] != self.in_features:
            bad_value("x", f"has shape {tuple(x.shape)}; accepted: (..., {self.in_features})")
        rows = x.reshape(-1, self.in_features)
        y = spmm(self.operand, rows.T, self.weight).T
        if self.bias is not None:
            y = y + self.bias.to(y.dtype)
        return y.reshape(*x.shape[:-1], self.out_features)

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        super()._load_from_state_dict(*args, **kwargs)
        self._operand = None  # the places may be others now

    def extra_repr(self) -> str:
        """What repr() shows."""
        size = self.out_features * self.in_features
        share = 1 - self.weight.numel() / size if size else 0.0
        return f"{self.in_features}, {self.out_features}, nnz={self.weight.numel()}, sparsity={share:.3f}"


def _largest(dense: torch.Tensor, sparsity: float, vector: int) -> torch.Tensor:
    """Bool, the shape of `dense`: the vectors of so many rows with the largest sums of squares."""
    rows, cols = dense.shape
    strips = -(-rows // vector)
    padded = torch.nn.functional.pad(dense.float(), (0, 0, 0, strips * vector - rows))
    size = padded.reshape(strips, vector, cols).square().sum(dim=1)
    kept = torch.zeros(size.numel(), dtype=torch.bool, device=dense.device)
    count = round((1 - sparsity) * size.numel())
    kept[size.flatten().argsort(descending=True, stable=True)[:count]] = True
    return kept.reshape(strips, 1, cols).expand(-1, vector, -1).reshape(-1, cols)[:rows]
