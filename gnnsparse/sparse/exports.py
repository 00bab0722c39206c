"""Sparse matrices of this package in the forms of SciPy and PyTorch."""

from __future__ import annotations

from typing import Any, overload

import numpy as np
import torch

from gnnsparse.errors import bad_type, bad_value, check_choice, check_memory
from gnnsparse.runtime.functorch import runs_outside
from gnnsparse.sparse.csr import Csr

__all__ = ["Exported"]

_LAYOUTS = ("csr", "coo", "csc")


class Exported:
    """The sizes and conversions that a SparseGraph and a SparseOperand have in common.

    Results own their memory, hold every nonzero, those with the value 0 too, and have the rows and columns in
    the caller's order.
    """

    @property
    def shape(self) -> tuple[int, int]:
        """(rows, columns)."""
        raise NotImplementedError

    @overload
    def size(self, dim: None = None) -> torch.Size: ...

    @overload
    def size(self, dim: int) -> int: ...

    def size(self, dim: int | None = None) -> torch.Size | int:
        """Returns the shape, or one size of it: `A.size()`, `A.size(0)`, as of a tensor.

        Args:
            dim: 0 or -2 for the rows, 1 or -1 for the columns; None: both.

        Raises:
            TypeError: `dim` is no integer.
            ValueError: it is another one.
        """
        if dim is None:
            return torch.Size(self.shape)
        accepted = "0 or -2 (rows), 1 or -1 (columns)"
        if isinstance(dim, bool) or not isinstance(dim, int):
            bad_type("dim", dim, accepted)
        if not -2 <= dim <= 1:
            bad_value("dim", f"got {dim}; accepted: {accepted}")
        return self.shape[dim]

    def dim(self) -> int:
        """Returns the number of dimensions, 2."""
        return 2

    @property
    def ndim(self) -> int:
        """Number of dimensions, 2."""
        return 2

    def _canonical(self) -> tuple[Csr, torch.Tensor | None]:
        """Returns the structure, ascending in each row, and float32 values [nnz]; None: all are 1."""
        raise NotImplementedError

    def _with_values(self) -> tuple[Csr, torch.Tensor]:
        csr, values = self._canonical()
        if values is None:
            values = torch.ones(csr.nnz, dtype=torch.float32, device=csr.device)
        return csr, values

    def to_scipy(self) -> Any:
        """Returns the matrix as a scipy.sparse.csr_array of float32, with ascending columns in each row."""
        import scipy.sparse

        csr, values = self._with_values()
        host = csr.to(torch.device("cpu"))
        arrays = (values.numpy(force=True), host.indices.numpy(), host.indptr.numpy())
        return scipy.sparse.csr_array(arrays, shape=(csr.rows, csr.cols), copy=True)

    @runs_outside
    def to_torch_sparse(self, layout: str = "csr") -> torch.Tensor:
        """Returns the matrix as a sparse tensor of PyTorch, on the same device.

        Args:
            layout: "csr", "coo" (coalesced) or "csc".

        Returns:
            float32 [rows, columns] with int64 indices.

        Raises:
            TypeError: `layout` is no text.
            ValueError: it is another one.
        """
        check_choice("layout", layout, _LAYOUTS)
        csr, values = self._with_values()
        size = csr.rows, csr.cols
        if layout == "csc":
            transposed, source = csr.transpose()
            return torch.sparse_csc_tensor(
                transposed.indptr.clone(), transposed.indices.long(), values[source.long()], size,
                dtype=torch.float32, device=csr.device, check_invariants=False,
            )  # fmt: skip
        indices = csr.indices.long()
        if layout == "coo":
            return torch.sparse_coo_tensor(
                torch.stack([csr.row_index(), indices]), values.clone(), size, dtype=torch.float32,
                device=csr.device, is_coalesced=True, check_invariants=False,
            )  # fmt: skip
        return torch.sparse_csr_tensor(
            csr.indptr.clone(), indices, values.clone(), size, dtype=torch.float32, device=csr.device,
            check_invariants=False,
        )  # fmt: skip

    @runs_outside
    def to_dense(self) -> torch.Tensor:
        """Returns the matrix as a dense tensor, float32 [rows, columns], on the same device.

        Raises:
            MemoryError: on the CPU, it needs more memory than this process can get.
        """
        csr, values = self._with_values()
        if csr.device.type == "cpu":
            nbytes = np.dtype(np.float32).itemsize * csr.rows * csr.cols
            check_memory("to_dense", nbytes, f"a dense matrix of {csr.rows} rows and {csr.cols} columns")
        dense = torch.zeros(csr.rows, csr.cols, dtype=torch.float32, device=csr.device)
        dense[csr.row_index(), csr.indices.long()] = values
        return dense
