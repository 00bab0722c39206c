"""CSR arrays on one device, the native operations on them, and checks of arrays that come from outside."""

from __future__ import annotations

import itertools
import pickle
from dataclasses import dataclass
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch

from gnnsparse import _native
from gnnsparse.errors import bad_value, check_memory
from gnnsparse.runtime.device import path
from gnnsparse.runtime.functorch import outside
from gnnsparse.runtime.memo import cached_property

_MAX_INT32 = 2**31 - 1

#: Nonzeros that `Csr.count_near` takes at a time, and fewer on a CPU, where they stay in its cache.
_NEAR_PART, _NEAR_PART_CPU = 1 << 24, 1 << 18


def index_dtype(count: int) -> torch.dtype:
    """Return the smallest of int32 and int64 that holds every index below `count`."""
    return torch.int32 if count <= _MAX_INT32 else torch.int64


def send_by_value(kind: type) -> None:
    """Make torch.multiprocessing send objects of a class as bytes, as an ordinary pickle holds them.

    It would move the memory of their tensors to shared memory, and kernels hold addresses of that memory.
    """

    def reduce(thing: Any) -> Any:
        return pickle.loads, (pickle.dumps(thing, pickle.HIGHEST_PROTOCOL),)

    ForkingPickler.register(kind, reduce)


@dataclass(frozen=True, eq=False)
class Csr:
    """A sparse matrix in CSR form, with ascending columns and no repeats in each row.

    Attributes:
        indptr: int64 [rows + 1].
        indices: int32 [nnz].
        cols: number of columns.
    """

    indptr: torch.Tensor
    indices: torch.Tensor
    cols: int

    @property
    def rows(self) -> int:
        """Number of rows."""
        return self.indptr.numel() - 1

    @property
    def nnz(self) -> int:
        """Number of nonzeros."""
        return self.indices.numel()

    @property
    def device(self) -> torch.device:
        """The device of the arrays."""
        return self.indptr.device

    @property
    def nbytes(self) -> int:
        """Bytes of both arrays."""
        return self.indptr.nbytes + self.indices.nbytes

    @cached_property
    def view(self) -> _native.Csr:
        """The handle of the matrix for native functions."""
        return _native.Csr(self.indptr, self.indices, self.cols)

    @property
    def degrees(self) -> torch.Tensor:
        """Nonzeros of each row, int64 [rows]."""
        with outside():
            return self.indptr.diff()

    @property
    def is_canonical(self) -> bool:
        """Whether the columns of each row ascend without repeats."""
        if self.device.type == "cpu":
            return _native.is_canonical(self.indptr, self.indices, torch.get_num_threads())
        if self.nnz < 2:
            return True
        starts = torch.zeros(self.nnz + 1, dtype=torch.bool, device=self.device)
        starts[self.indptr] = True
        return bool(((self.indices.diff() > 0) | starts[1:-1]).all())

    def __repr__(self) -> str:
        return f"Csr({self.rows} x {self.cols}, nnz={self.nnz}, device={self.device})"

    def __reduce__(self) -> Any:
        return type(self), (self.indptr, self.indices, self.cols)  # without the native handle

    def equals(self, other: Csr) -> bool:
        """Return whether the offsets and the columns are those of another matrix on the same device."""
        return torch.equal(self.indptr, other.indptr) and torch.equal(self.indices, other.indices)

    def to(self, device: torch.device) -> Csr:
        """Return the matrix on `device`: this object if it is there already."""
        if device == self.device:
            return self
        return Csr(self.indptr.to(device), self.indices.to(device), self.cols)

    def row_index(self) -> torch.Tensor:
        """Return the row of each nonzero, int64 [nnz]."""
        rows = torch.arange(self.rows, device=self.device)
        # Not `degrees`: torch.compile can't trace the making of a cached property.
        return torch.repeat_interleave(rows, self.indptr.diff(), output_size=self.nnz)

    def count_near(self, reach: int) -> int:
        """Count the nonzeros (i, j) near the diagonal: |j - i * cols // rows| <= reach."""
        # In parts, because the intermediate tensors take many times the bytes of the indices.
        part = _NEAR_PART_CPU if self.device.type == "cpu" else _NEAR_PART
        parts = torch.arange(0, self.nnz, part, device=self.device)
        bounds = [*torch.searchsorted(self.indptr, parts, right=True).sub(1).tolist(), self.rows]
        found = 0
        for first, last in itertools.pairwise(bounds):
            diagonal = torch.arange(first, last, device=self.device) * self.cols // max(self.rows, 1)
            degrees = self.indptr[first : last + 1].diff()
            begin, end = self.indptr[first], self.indptr[last]
            distance = self.indices[begin:end] - torch.repeat_interleave(diagonal, degrees)
            found += int((distance.abs() <= reach).sum())
        return found

    def _empty(self, rows: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return empty offsets, indices and sources for a matrix of as many nonzeros."""
        indptr = torch.empty(rows + 1, dtype=torch.int64, device=self.device)
        indices = torch.empty(self.nnz, dtype=torch.int32, device=self.device)
        return indptr, indices, torch.empty(self.nnz, dtype=index_dtype(self.nnz), device=self.device)

    def transpose(self) -> tuple[Csr, torch.Tensor]:
        """Return the transpose, and for each of its nonzeros the index here, int32 or int64 [nnz]."""
        self.check_scratch(bytes_per_column=24)
        out = indptr, indices, source = self._empty(self.cols)
        if self.device.type == "cpu":
            _native.transpose(self.view, *out, torch.get_num_threads())
        else:
            run_cuda(self.device, lambda *ws: _native.cuda_transpose(self.view, *out, *ws))
        return Csr(indptr, indices, self.rows), source

    def permute_rows(self, order: torch.Tensor) -> tuple[Csr, torch.Tensor]:
        """Return the matrix whose row i is row `order[i]` here, and its nonzeros' indices here, int [nnz]."""
        order = order.to(device=self.device, dtype=torch.int32)
        if self.device.type != "cpu":
            csr, source = self._gather_rows(order.long(), self.nnz)
            return csr, source.to(index_dtype(self.nnz))
        indptr, indices, source = self._empty(self.rows)
        _native.permute_rows(self.view, order.contiguous(), indptr, indices, source, torch.get_num_threads())
        return Csr(indptr, indices, self.cols), source

    def select_rows(self, rows: torch.Tensor) -> tuple[Csr, torch.Tensor]:
        """Return chosen rows, int64 [k] with repeats, as a matrix, and its nonzeros' indices here, int64."""
        nnz = int((self.indptr[rows + 1] - self.indptr[rows]).sum())
        if self.device.type == "cpu":
            check_memory("rows", 24 * nnz, f"a matrix of {rows.numel()} rows and {nnz} nonzeros")
        return self._gather_rows(rows, nnz)

    def _gather_rows(self, rows: torch.Tensor, nnz: int) -> tuple[Csr, torch.Tensor]:
        start = self.indptr[rows]
        degrees = self.indptr[rows + 1] - start
        indptr = torch.nn.functional.pad(degrees.cumsum(0), (1, 0))
        source = torch.arange(nnz, device=self.device)
        source += torch.repeat_interleave(start - indptr[:-1], degrees, output_size=nnz)
        return Csr(indptr, self.indices[source], self.cols), source

    def check_scratch(self, bytes_per_column: int, bytes_per_row: int = 0) -> None:
        """Raise MemoryError if scratch memory for each column, and for each row, does not fit on the CPU."""
        if self.device.type == "cpu":
            check_memory("num_cols", bytes_per_column * self.cols, f"a matrix of {self.cols} columns")
            check_memory("num_nodes", bytes_per_row * self.rows, f"a matrix of {self.rows} rows")

    def add_self_loops(self) -> tuple[Csr, torch.Tensor]:
        """Return the matrix with its whole diagonal, and the index there of each nonzero here, int [nnz]."""
        if self.device.type != "cpu":
            return self._add_self_loops_by_sorting()
        indptr = torch.empty(self.rows + 1, dtype=torch.int64, device="cpu")
        _native.add_self_loops(self.view, indptr, None, None, torch.get_num_threads())
        nnz = int(indptr[-1])
        indices = torch.empty(nnz, dtype=torch.int32, device="cpu")
        places = torch.empty(self.nnz, dtype=index_dtype(nnz), device="cpu")
        if nnz:
            _native.add_self_loops(self.view, indptr, indices, places, torch.get_num_threads())
        return Csr(indptr, indices, self.cols), places

    def _add_self_loops_by_sorting(self) -> tuple[Csr, torch.Tensor]:
        rows = self.row_index()
        lacks = torch.ones(self.rows, dtype=torch.bool, device=self.device)
        lacks[rows[rows == self.indices]] = False
        loops = lacks.nonzero().flatten()
        csr, nnz_index = coo_to_csr(
            torch.cat([rows, loops]), torch.cat([self.indices.long(), loops]), self.rows, self.cols
        )
        return csr, nnz_index[: self.nnz].to(index_dtype(csr.nnz))

    def count_columns(self, height: int, order: torch.Tensor | None = None) -> torch.Tensor:
        """Count the distinct columns of each `height` rows, in an order or the stored one, int64 [groups]."""
        host = self.to(torch.device("cpu"))
        host.check_scratch(bytes_per_column=12 * torch.get_num_threads())
        counts = torch.zeros(-(-self.rows // height), dtype=torch.int64, device="cpu")
        if order is not None:
            order = order.to(device="cpu", dtype=torch.int32).contiguous()
        _native.count_columns(host.view, order, height, counts, torch.get_num_threads())
        return counts


send_by_value(Csr)


class PaddedCsr(Csr):
    """A matrix whose last rows are empty, and whose last nonzeros belong to no row.

    Its arrays keep their sizes while the number of rows and nonzeros that count changes from batch to batch.
    Nonzeros behind the last offset may have any column in range.
    """

    def row_index(self) -> torch.Tensor:
        """Return the row of each nonzero, int64 [nnz]; of those that belong to no row the last row."""
        places = torch.arange(self.nnz, dtype=torch.int64, device=self.device)
        return torch.searchsorted(self.indptr[1:], places, right=True).clamp(max=self.rows - 1)


def run_cuda(device: torch.device, call) -> None:  # type: ignore[no-untyped-def]
    """Run `call(scratch, stream)` on a GPU's current stream; for the scratch None it returns its bytes."""
    if not _native.has_cuda:
        raise RuntimeError(
            "gnnsparse was built without its CUDA kernels: build it again with GNNSPARSE_CUDA=on"
        )
    with path().current(device):
        stream = path().stream(device)
        scratch = torch.empty(call(None, stream), dtype=torch.uint8, device=device)
        call(scratch, stream)


def coo_to_csr(row: torch.Tensor, col: torch.Tensor, rows: int, cols: int) -> tuple[Csr, torch.Tensor]:
    """Sort edges by (row, column), int32 or int64 and in range, and merge repeated ones.

    The second result has for each edge the index of its nonzero, int32 or int64. There are at most 2^32 - 1.
    """
    edges, device = row.numel(), row.device
    if device.type == "cpu":
        check_memory("num_nodes", 24 * rows + 24 * edges, f"a matrix of {rows} rows and {edges} edges")
    indptr = torch.zeros(rows + 1, dtype=torch.int64, device=device)
    indices = torch.empty(edges, dtype=torch.int32, device=device)
    nnz_index = torch.empty(edges, dtype=index_dtype(edges), device=device)
    pairs, out = _native.Edges(row, col), (indptr, indices, nnz_index)
    if edges == 0:
        nnz = 0
    elif device.type == "cpu":
        nnz = _native.coo_to_csr(pairs, rows, *out, torch.get_num_threads())
    else:
        run_cuda(device, lambda *ws: _native.cuda_coo_to_csr(pairs, rows, cols, *out, *ws))
        nnz = int(indptr[-1])
    if nnz < edges:
        indices = indices[:nnz].clone()
    return Csr(indptr, indices, cols), nnz_index


#: The dtypes of indices.
INDEX_DTYPES = (torch.int32, torch.int64)


def check_host_array(
    name: str, array: Any, dtypes: tuple[torch.dtype, ...], count: int | None = None
) -> torch.Tensor:
    """Check that an array is a contiguous tensor [count] (None: any) of a dtype on the CPU, and return it."""
    names = " or ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
    accepted = f"{names} [{'any' if count is None else count}], contiguous, on the CPU"
    if not isinstance(array, torch.Tensor) or array.layout != torch.strided:
        bad_value(name, f"got {type(array).__name__}; accepted: {accepted}")
    right = array.dtype in dtypes and array.dim() == 1 and (count is None or array.numel() == count)
    if not right or not array.is_contiguous() or array.device.type != "cpu":
        got = f"{str(array.dtype).removeprefix('torch.')} {list(array.shape)} on {array.device}"
        bad_value(name, f"got {got}; accepted: {accepted}")
    return array


def check_range(name: str, indices: torch.Tensor, limit: int, of: str = "") -> None:
    """Raise a ValueError that names the first index outside [0, limit); `of` names what `limit` counts."""
    if indices.device.type == "cpu":
        at = _native.first_out_of_range(indices, limit, torch.get_num_threads())
    else:
        bad = ((indices < 0) | (indices >= limit)).nonzero()
        at = int(bad[0]) if bad.numel() else -1
    if at >= 0:
        accepted = f"0 to {limit - 1}" if limit > 0 else "nothing"
        why = f", as {of} is {limit}" if of else ""
        bad_value(name, f"element {at} is {int(indices[at])}; accepted: {accepted}{why}")


def are_in(ascending: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
    """Return for each number whether it is among the ascending ones, bool."""
    if ascending.numel() == 0:
        return torch.zeros_like(numbers, dtype=torch.bool)
    at = torch.searchsorted(ascending, numbers).clamp_(max=ascending.numel() - 1)
    return ascending[at] == numbers


def check_offsets(name: str, offsets: torch.Tensor, last: int) -> None:
    """Raise ValueError unless int64 offsets begin with 0, never decrease and end with `last`."""
    if offsets.numel() == 0:
        bad_value(name, "is empty; accepted: at least one offset")
    first, end = int(offsets[0]), int(offsets[-1])
    if first != 0 or end != last:
        bad_value(name, f"runs from {first} to {end}; accepted: 0 to {last}")
    if offsets.device.type == "cpu":
        at = _native.first_decreasing(offsets, torch.get_num_threads())
    else:
        bad = (offsets.diff() < 0).nonzero()
        at = int(bad[0]) if bad.numel() else -1
    if at >= 0:
        bad_value(name, f"decreases after element {at}; accepted: offsets that never decrease")


def check_ascending(name: str, indices: torch.Tensor, limit: int, step: int = 1) -> None:
    """Raise ValueError unless each index is in [0, limit) and at least `step` above the one before it."""
    check_range(name, indices, limit)
    close = (indices.diff() < step).nonzero()
    if close.numel():
        bad_value(
            name, f"element {int(close[0])} is too close to the next; accepted: steps of {step} or more"
        )


def check_permutation(name: str, indices: torch.Tensor, count: int) -> None:
    """Raise ValueError unless an int32 or int64 array holds each number below `count` once."""
    check_host_array(name, indices, INDEX_DTYPES, count)
    if not _native.is_permutation(indices, torch.get_num_threads()):
        check_range(name, indices, count)
        bad_value(name, f"repeats an element; accepted: each number below {count} once")


def check_csr(name: str, csr: Csr) -> None:
    """Raise ValueError unless a matrix on the CPU has valid offsets and ascending columns in range."""
    indptr, indices = f"{name}.indptr", f"{name}.indices"
    check_host_array(indptr, csr.indptr, (torch.int64,))
    check_host_array(indices, csr.indices, (torch.int32,))
    check_offsets(indptr, csr.indptr, csr.nnz)
    check_range(indices, csr.indices, csr.cols)
    if not csr.is_canonical:
        bad_value(indices, "do not ascend in a row; accepted: ascending columns without repeats")


@dataclass(frozen=True)
class Locality:
    """Counts of the columns in groups of rows, which are the rows of X that a kernel has to gather.

    Attributes:
        columns_8, columns_32: sums of the distinct columns of each group of 8, and of 32, consecutive rows.
        blocks: number of 8 x 16 blocks of the window format.
        density: nonzeros per element of the columns of 8-row groups.
    """

    columns_8: int
    columns_32: int
    blocks: int
    density: float


def measure_locality(csr: Csr, order: torch.Tensor | None) -> Locality:
    """Measure the locality of a matrix on the CPU in a row order; None: in its own order."""
    of_8, of_32 = csr.count_columns(8, order), csr.count_columns(32, order)
    columns_8, blocks = int(of_8.sum()), int(((of_8 + 15) // 16).sum())
    return Locality(columns_8, int(of_32.sum()), blocks, density=csr.nnz / max(8 * columns_8, 1))
