"""SparseGraph: a validated sparse matrix, made from the forms in which users hold graphs and matrices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, overload

import numpy as np
import torch

from gnnsparse.errors import (
    bad_type,
    bad_value,
    check_array,
    check_choice,
    check_device,
    check_memory,
    device_of,
    shown,
)
from gnnsparse.formats.csr import INDEX_DTYPES, Csr, check_offsets, check_range, coo_to_csr, send_by_value
from gnnsparse.runtime.functorch import runs_outside, unwrapped
from gnnsparse.runtime.hashing import fingerprint
from gnnsparse.runtime.memo import cached_property

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
        """Return the shape, or one size of it: `A.size()`, `A.size(0)`, as of a tensor.

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
        """Return the number of dimensions, 2."""
        return 2

    @property
    def ndim(self) -> int:
        """Number of dimensions, 2."""
        return 2

    def _canonical(self) -> tuple[Csr, torch.Tensor | None]:
        """Return the structure, ascending in each row, and float32 values [nnz]; None: all are 1."""
        raise NotImplementedError

    def _with_values(self) -> tuple[Csr, torch.Tensor]:
        csr, values = self._canonical()
        if values is None:
            values = torch.ones(csr.nnz, dtype=torch.float32, device=csr.device)
        return csr, values

    def to_scipy(self) -> Any:
        """Return the matrix as a scipy.sparse.csr_array of float32, with ascending columns in each row."""
        import scipy.sparse

        csr, values = self._with_values()
        host = csr.to(torch.device("cpu"))
        arrays = (values.numpy(force=True), host.indices.numpy(), host.indptr.numpy())
        return scipy.sparse.csr_array(arrays, shape=(csr.rows, csr.cols), copy=True)

    @runs_outside
    def to_torch_sparse(self, layout: str = "csr") -> torch.Tensor:
        """Return the matrix as a sparse tensor of PyTorch, on the same device.

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
        options: Any = {"size": (csr.rows, csr.cols), "dtype": torch.float32, "device": csr.device}
        options["check_invariants"] = False
        if layout == "csc":
            transposed, source = csr.transpose()
            arrays = transposed.indptr.clone(), transposed.indices.long(), values[source.long()]
            return torch.sparse_csc_tensor(*arrays, **options)
        indices = csr.indices.long()
        if layout == "coo":
            places = torch.stack([csr.row_index(), indices])
            return torch.sparse_coo_tensor(places, values.clone(), is_coalesced=True, **options)
        return torch.sparse_csr_tensor(csr.indptr.clone(), indices, values.clone(), **options)

    @runs_outside
    def to_dense(self) -> torch.Tensor:
        """Return the matrix as a dense tensor, float32 [rows, columns], on the same device.

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


_MAX_NODES = 2**31 - 1


def index_tensor(name: str, value: Any, dim: int = 1) -> torch.Tensor:
    """Return a contiguous int32 or int64 tensor of `dim` dimensions of a tensor, array or list."""
    accepted = f"a {dim}-dimensional integer tensor or array (int32 or int64)"
    if isinstance(value, torch.Tensor):
        if value.layout != torch.strided:
            bad_type(name, value, accepted)
        tensor = unwrapped(name, value)
    elif isinstance(value, (np.ndarray, list, tuple)):
        array = check_array(name, value, accepted)
        if array.size == 0 and isinstance(value, (list, tuple)):
            array = array.astype(np.int64)
        if array.dtype not in (np.int32, np.int64):
            raise TypeError(f"{name}: got dtype {array.dtype}; accepted: {accepted}")
        tensor = torch.from_numpy(array)
    else:
        bad_type(name, value, accepted)
    if tensor.dtype not in INDEX_DTYPES:
        bad_type(name, tensor, accepted)
    if tensor.dim() != dim:
        bad_value(name, f"has {tensor.dim()} dimensions; accepted: {accepted}")
    return check_device(name, tensor).detach().contiguous()


def node_count(name: str, value: Any) -> int:
    """Return a number of rows or columns; raise TypeError or ValueError if it is none."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        bad_type(name, value, "an integer")
    if not 0 <= int(value) <= _MAX_NODES:
        bad_value(name, f"got {shown(value)}; accepted: 0 to 2^31 - 1, for columns are stored as int32")
    return int(value)


def _infer_nodes(edges: torch.Tensor) -> int:
    """Return one more than the largest index; raise if that is implausibly large for the edges."""
    count = max(0, int(edges.max()) + 1 if edges.numel() else 0)
    if count > max(10**7, 1000 * edges.shape[1]):
        bad_value(
            "edge_index",
            f"has {edges.shape[1]} edges but an index of {count - 1}; pass num_nodes if that is meant",
        )
    return node_count("num_nodes", count)


def check_edge_index(edge_index: Any, num_nodes: Any) -> tuple[torch.Tensor, tuple[int, int] | None]:
    """Check an edge_index but for its range; return it contiguous, and (sources, targets) or None."""
    edges = index_tensor("edge_index", edge_index, dim=2)
    if edges.shape[0] != 2:
        bad_value("edge_index", f"has shape {tuple(edges.shape)}; accepted: (2, edges)")
    if num_nodes is None:
        return edges, None
    pair = num_nodes if isinstance(num_nodes, (tuple, list)) else (num_nodes, num_nodes)
    if len(pair) != 2:
        bad_value("num_nodes", "accepted: a number, or a pair (sources, targets)")
    return edges, (node_count("num_nodes", pair[0]), node_count("num_nodes", pair[1]))


def scipy_parts(matrix: Any) -> tuple[str, tuple[torch.Tensor, ...]]:
    """Return the arrays of a scipy.sparse object, unread by SciPy's compiled code, which checks no indices.

    They are "csr" or "csc" with offsets, indices and values, or "bsr" or "coo" with rows, columns and values.
    Indices may be out of range. A TypeError refuses other objects and complex numbers.
    """
    import scipy.sparse

    if not scipy.sparse.issparse(matrix) or matrix.ndim != 2 or matrix.dtype.kind == "c":
        bad_type("graph", matrix, "a two-dimensional scipy.sparse matrix of real numbers")
    if matrix.format == "lil":
        matrix = matrix.tocsr()
    if matrix.format in ("csr", "csc"):
        indices = index_tensor("graph.indices", matrix.indices)
        offsets = index_tensor("graph.indptr", matrix.indptr)
        parts: tuple[torch.Tensor, ...] = (offsets, indices)
        form, data = matrix.format, matrix.data
    else:
        coo = matrix.tocoo()
        parts = (index_tensor("graph.row", coo.row), index_tensor("graph.col", coo.col))
        form, data = "bsr" if matrix.format == "bsr" else "coo", coo.data
    count = parts[1].numel()
    return form, (*parts, value_tensor("graph.data", data, count, torch.device("cpu")))


def value_tensor(name: str, value: Any, count: int, device: torch.device) -> torch.Tensor:
    """Return finite float32 values [count], one for each edge, made from a tensor, an array or a list."""
    accepted = f"{count} real numbers, one for each edge"
    if isinstance(value, (np.ndarray, list, tuple)):
        value = torch.from_numpy(check_array(name, value, accepted))
    if not isinstance(value, torch.Tensor) or value.layout != torch.strided or value.is_complex():
        bad_type(name, value, accepted)
    if check_device(name, value).shape != (count,):
        bad_value(name, f"has shape {tuple(value.shape)}; accepted: ({count},), one for each edge")
    if value.device != device:
        bad_value(name, f"is on {value.device}; accepted: {device}, where the edges are")
    value = unwrapped(name, value)
    values = value.to(torch.float32).contiguous()
    finite = torch.isfinite(values)
    if not bool(finite.all()):
        at = int((~finite).nonzero()[0])
        bad_value(name, f"element {at} is {float(value[at])}; accepted: finite float32 numbers")
    return values


def merge_values(values: torch.Tensor | None, nnz_index: torch.Tensor, nnz: int) -> torch.Tensor | None:
    """Sum the values of the edges of each nonzero in the order of the edges; None stands for 1 each."""
    if values is None:
        if nnz == nnz_index.numel():
            return None
        return torch.bincount(nnz_index.long(), minlength=nnz).to(torch.float32)
    if nnz == nnz_index.numel():
        merged = torch.empty_like(values)
        merged[nnz_index.long()] = values
        return merged
    order = torch.argsort(nnz_index, stable=True)
    counts = torch.bincount(nnz_index.long(), minlength=nnz)
    return torch.segment_reduce(values[order], "sum", lengths=counts)


@dataclass(frozen=True, eq=False)
class SparseGraph(Exported):
    """A sparse matrix in canonical CSR form: ascending columns in each row, no repeats.

    As a graph, A[i, j] is the edge from node j to node i, so that `A @ x` sums over in-neighbours.

    Attributes:
        csr: offsets (int64) and columns (int32).
        values: float32 [nnz], or None if all are 1.
        nnz_index_of_edge: for each edge of the input the index of its nonzero, int32 or int64 [edges]; None
            if edge e is nonzero e.
    """

    csr: Csr
    values: torch.Tensor | None = None
    nnz_index_of_edge: torch.Tensor | None = None

    def __repr__(self) -> str:
        values = "no values" if self.values is None else "with values"
        rows, cols = self.shape
        return f"SparseGraph({rows} x {cols}, nnz={self.nnz}, {values}, device={self.device})"

    def __reduce__(self) -> Any:
        csr = self.csr
        return restore_graph, (csr.indptr, csr.indices, csr.cols, self.values, self.nnz_index_of_edge)

    @property
    def shape(self) -> tuple[int, int]:
        """(rows, columns)."""
        return self.csr.rows, self.csr.cols

    @property
    def num_rows(self) -> int:
        """Number of rows of the matrix: target nodes."""
        return self.csr.rows

    @property
    def num_cols(self) -> int:
        """Number of columns of the matrix: source nodes."""
        return self.csr.cols

    @property
    def nnz(self) -> int:
        """Number of nonzeros (stored elements)."""
        return self.csr.nnz

    @property
    def num_edges(self) -> int:
        """Number of edges of the input, repeats included."""
        return self.nnz if self.nnz_index_of_edge is None else self.nnz_index_of_edge.numel()

    @property
    def device(self) -> torch.device:
        """The device of the arrays."""
        return self.csr.device

    @cached_property
    def fingerprint(self) -> str:
        """A hash of shape, structure and values: equal for equal matrices."""
        return fingerprint([self.csr.indptr, self.csr.indices, self.values], self.num_cols)

    @cached_property
    def is_symmetric(self) -> bool:
        """Whether the structure (not the values) is symmetric."""
        return self.num_rows == self.num_cols and self.csr.transpose()[0].equals(self.csr)

    def to(self, device: torch.device | str) -> SparseGraph:
        """Return the graph on `device`: this object if it is there already."""
        device = device_of("device", device)
        if device == self.device:
            return self
        moved = [None if t is None else t.to(device) for t in (self.values, self.nnz_index_of_edge)]
        return SparseGraph(self.csr.to(device), *moved)

    def _canonical(self) -> tuple[Csr, torch.Tensor | None]:
        return self.csr, self.values

    @classmethod
    def _from_coo(
        cls, row: torch.Tensor, col: torch.Tensor, rows: int, cols: int, values: torch.Tensor | None
    ) -> SparseGraph:
        csr, nnz_index = coo_to_csr(row, col, rows, cols)
        return cls(csr, merge_values(values, nnz_index, csr.nnz), nnz_index)

    @classmethod
    @runs_outside
    def from_edge_index(
        cls,
        edge_index: Any,
        num_nodes: int | tuple[int, int] | None = None,
        values: Any = None,
    ) -> SparseGraph:
        """Make a graph from PyG's `edge_index`: edge e goes from node [0, e] to node [1, e].

        Args:
            edge_index: int32 or int64 [2, edges], in any order; repeats are merged, their values
                summed.
            num_nodes: number of nodes, or (sources, targets) of a bipartite graph. None: one more
                than the largest index.
            values: real [edges], finite; None: 1 each.

        Raises:
            TypeError: `edge_index` or `values` is of another type or dtype.
            ValueError: a shape is wrong, an index is negative or not below the number of nodes, or
                a value is not finite.
        """
        edges, counts = check_edge_index(edge_index, num_nodes)
        sources, targets = (_infer_nodes(edges),) * 2 if counts is None else counts
        check_range("edge_index", edges[0], sources, "num_nodes")
        check_range("edge_index", edges[1], targets, "num_nodes")
        if values is not None:
            values = value_tensor("values", values, edges.shape[1], edges.device)
        return cls._from_coo(edges[1], edges[0], targets, sources, values)

    @classmethod
    @runs_outside
    def from_csr(
        cls, indptr: Any, indices: Any, values: Any = None, num_cols: int | None = None
    ) -> SparseGraph:
        """Make a graph from CSR arrays: row i holds columns indices[indptr[i] : indptr[i+1]].

        Args:
            indptr: int32 or int64 [rows + 1].
            indices: int32 or int64 [nnz]; unsorted rows are sorted, repeats merged and their values summed.
            values: real [nnz], finite; None: 1 each.
            num_cols: number of columns; None: as many as rows.

        Raises:
            TypeError: an argument is of another type or dtype.
            ValueError: offsets do not start at 0, decrease, or do not end at nnz; a column is out
                of range; a value is not finite.
        """
        offsets = index_tensor("indptr", indptr).to(torch.int64)
        columns = index_tensor("indices", indices)
        if columns.device != offsets.device:
            bad_value("indices", f"is on {columns.device}; accepted: {offsets.device}, as indptr")
        rows = node_count("indptr", max(offsets.numel() - 1, 0))
        cols = rows if num_cols is None else node_count("num_cols", num_cols)
        check_offsets("indptr", offsets, columns.numel())
        check_range("indices", columns, cols, "num_cols")
        if values is not None:
            values = value_tensor("values", values, columns.numel(), offsets.device)
        csr = Csr(offsets, columns, cols)
        if csr.is_canonical:
            # Copies, so that later writes to the caller's arrays do not change the graph.
            owned = Csr(offsets.clone(), columns.to(torch.int32, copy=True), cols)
            return cls(owned, None if values is None else values.clone())
        return cls._from_coo(csr.row_index(), columns.long(), rows, cols, values)

    @classmethod
    @runs_outside
    def from_scipy(cls, matrix: Any) -> SparseGraph:
        """Make a graph from a scipy.sparse matrix or array, which is not transposed.

        Its edges are the elements of `matrix.tocsr()`, in their order.

        Raises:
            TypeError: `matrix` is not a two-dimensional scipy.sparse object of real numbers.
            ValueError: a value is not finite.
        """
        form, (first, second, values) = scipy_parts(matrix)
        rows, cols = (node_count("graph", n) for n in matrix.shape)
        if form == "csr":
            if first.numel() != rows + 1:
                bad_value("graph.indptr", f"has {first.numel()} offsets; accepted: {rows + 1}")
            return cls.from_csr(first, second, values, cols)
        if form == "csc":
            offsets = first.to(torch.int64)
            if offsets.numel() != cols + 1:
                bad_value("graph.indptr", f"has {offsets.numel()} offsets; accepted: {cols + 1}")
            check_offsets("indptr", offsets, second.numel())
            first, second = second, torch.repeat_interleave(torch.arange(cols, device="cpu"), offsets.diff())
        edge_index = torch.stack([second.long(), first.long()])
        made = cls.from_edge_index(edge_index, (cols, rows), values)
        if form == "coo" or (form == "csc" and made.nnz == made.num_edges):
            return cls(made.csr, made.values)  # edge e is nonzero e
        # SciPy's `tocsr` keeps the order in each row.
        assert made.nnz_index_of_edge is not None
        return cls(made.csr, made.values, made.nnz_index_of_edge[torch.argsort(first, stable=True)])

    @classmethod
    @runs_outside
    def from_torch_sparse(cls, matrix: Any) -> SparseGraph:
        """Make a graph from a torch sparse tensor (COO, CSR or CSC); it is not transposed.

        Raises:
            TypeError: `matrix` is not a sparse tensor of real numbers in one of these layouts.
            ValueError: it is not two-dimensional, or a value is not finite.
        """
        layouts = (torch.sparse_coo, torch.sparse_csr, torch.sparse_csc)
        if not isinstance(matrix, torch.Tensor) or matrix.layout not in layouts:
            bad_type("matrix", matrix, "a torch sparse tensor (COO, CSR or CSC)")
        if matrix.dim() != 2 or matrix.dense_dim() != 0:
            bad_value("matrix", f"has shape {tuple(matrix.shape)}; accepted: two sparse dimensions")
        matrix = check_device("matrix", matrix).detach()
        rows, cols = (node_count("matrix", n) for n in matrix.shape)
        if matrix.layout == torch.sparse_csr:
            return cls.from_csr(matrix.crow_indices(), matrix.col_indices(), matrix.values(), cols)
        if matrix.layout == torch.sparse_csc:
            offsets, row = matrix.ccol_indices().long(), matrix.row_indices()
            check_offsets("indptr", offsets, row.numel())
            edge_index = torch.stack([Csr(offsets, row, rows).row_index(), row.long()])
            values = matrix.values()
        else:
            edge_index, values = matrix._indices().flip(0), matrix._values()
        return cls.from_edge_index(edge_index, (cols, rows), values)


send_by_value(SparseGraph)


def restore_graph(indptr: Any, indices: Any, num_cols: Any, values: Any, nnz_index: Any) -> SparseGraph:
    """Make a graph of what was saved of one, and check it, for the file may hold anything."""
    graph = SparseGraph.from_csr(indptr, indices, values, num_cols)
    if graph.nnz_index_of_edge is not None:  # columns were sorted
        bad_value("indices", "do not ascend in each row; accepted: those of a saved SparseGraph")
    if nnz_index is None:
        return graph
    edges = index_tensor("nnz_index_of_edge", nnz_index)
    if edges.device != graph.device:
        bad_value("nnz_index_of_edge", f"is on {edges.device}; accepted: {graph.device}, as indices")
    check_range("nnz_index_of_edge", edges, graph.nnz, "nnz")
    return SparseGraph(graph.csr, graph.values, edges)


# torch.load with weights_only=True calls this function, which checks what it gets.
torch.serialization.add_safe_globals([restore_graph])
