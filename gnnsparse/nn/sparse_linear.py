"""A linear layer with a sparse weight matrix, found by `gnnsparse.nn`."""

from __future__ import annotations

import math
from typing import Any

import torch

from gnnsparse.errors import bad_type, bad_value, check_flag, check_integer, check_number
from gnnsparse.formats.csr import Csr
from gnnsparse.nn.inputs import check_features
from gnnsparse.ops import spmm
from gnnsparse.precision import Precision
from gnnsparse.preprocess.api import prepare
from gnnsparse.sparse.graph import SparseGraph
from gnnsparse.sparse.operand import SparseOperand

__all__ = ["SparseLinear"]


class SparseLinear(torch.nn.Module):
    """y = x W^T + b with a sparse W, computed by SpMM. The values of W are trained, its structure is fixed.

    The parameter `weight` [nnz] holds the values in CSR order. The structure is in the buffers `indptr`,
    int64 [out_features + 1], and `indices`, int32 [nnz], which are part of the `state_dict`.

    Args:
        graph: structure of W [out_features, in_features]; its values are ignored.
        bias: whether b is learned; False: there is none.
        precision: precision that x and W are rounded to in the product; see gnnsparse.Precision.

    Raises:
        TypeError: an argument is of another type.
        ValueError: the precision is unknown.
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
        cls, linear: torch.nn.Linear, sparsity: float, vector: int = 1, *, precision: Precision | str = "fp32"
    ) -> SparseLinear:
        """Make a layer of the largest weights of a dense layer (magnitude pruning).

        Args:
            linear: the dense layer, which is not changed.
            sparsity: share of the weights that are left out, in [0, 1].
            vector: number of consecutive outputs whose weights of one input are kept or left out together, by
                the sum of their squares. 1: each weight is judged by itself; 8 and 16 make fast products.
            precision: precision that x and W are rounded to in the product.

        Raises:
            TypeError: an argument is of another type.
            ValueError: an argument is out of range.
        """
        if not isinstance(linear, torch.nn.Linear):
            bad_type("linear", linear, "a torch.nn.Linear")
        if check_number("sparsity", sparsity, "a number in [0, 1]") < 0 or sparsity > 1:
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
        """Draw the weights, and set the bias to 0.

        Weights are uniform, with a variance of 1 over the number of nonzeros in their row, so that outputs
        have the variance of x.
        """
        degree = self.indptr.diff()
        bound = degree.clamp(min=1).to(torch.float32).rsqrt()
        torch.nn.init.uniform_(self.weight, -1, 1)
        with torch.no_grad():
            self.weight.mul_(math.sqrt(3) * torch.repeat_interleave(bound, degree))
        if self.bias is not None:
            torch.nn.init.zeros_(self.bias)

    @property
    def operand(self) -> SparseOperand:
        """The prepared structure of W, on the device of the weights."""
        made = self._operand
        if made is None:
            # Copies: Module.share_memory and torch.multiprocessing move the memory of the buffers, and
            # kernels hold the addresses of the operand's arrays.
            graph = SparseGraph(Csr(self.indptr.clone(), self.indices.clone(), self.in_features))
            made = prepare(graph, precision=self.precision, cache=False)
        self._operand = made = made.to(self.weight.device)
        return made  # another thread may have loaded a state since

    def to_dense(self) -> torch.Tensor:
        """Return W as a dense matrix [out_features, in_features]. Differentiable in `weight`."""
        dense = self.weight.new_zeros(self.out_features, self.in_features)
        row, col = self.operand.indices()
        return dense.index_put((row, col), self.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Compute the layer's output.

        Args:
            x: [..., in_features], float32, float16 or bfloat16, on the device of the weights.

        Returns:
            [..., out_features] in the dtype of x.

        Raises:
            TypeError: x is of another type or dtype.
            ValueError: x has another last size or device.
        """
        check_features("x", x, self.in_features, dim=None)
        rows = x.reshape(x.shape[:-1].numel(), self.in_features)
        y = spmm(self.operand, rows.T, self.weight).T
        if self.bias is not None:
            y = y + self.bias.to(y.dtype)
        return y.reshape(*x.shape[:-1], self.out_features)

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        super()._load_from_state_dict(*args, **kwargs)
        self._operand = None  # the structure may have changed

    def extra_repr(self) -> str:
        """Return the text that repr() shows."""
        size = self.out_features * self.in_features
        share = 1 - self.weight.numel() / size if size else 0.0
        return f"{self.in_features}, {self.out_features}, nnz={self.weight.numel()}, sparsity={share:.3f}"


def _largest(dense: torch.Tensor, sparsity: float, vector: int) -> torch.Tensor:
    """Return a mask of the weights to keep: vectors of `vector` rows with the largest sums of squares."""
    rows, cols = dense.shape
    strips = -(-rows // vector)
    padded = torch.nn.functional.pad(dense.float(), (0, 0, 0, strips * vector - rows))
    size = padded.reshape(strips, vector, cols).square().sum(dim=1)
    kept = torch.zeros(size.numel(), dtype=torch.bool, device=dense.device)
    count = round((1 - sparsity) * size.numel())
    kept[size.flatten().argsort(descending=True, stable=True)[:count]] = True
    return kept.reshape(strips, 1, cols).expand(-1, vector, -1).reshape(-1, cols)[:rows]
