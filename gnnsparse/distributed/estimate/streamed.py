"""Counts of a graph that is too large for memory, for the model: its arrays are read a part at a time.

They are those of the matrix that GCN multiplies by, with a self-loop on each node, which is never made.
"""

from __future__ import annotations

import bisect
import itertools
from typing import Any

import numpy as np

from gnnsparse.data.large.folder import row_parts
from gnnsparse.distributed.shard import ShardFacts
from gnnsparse.formats.csr import Csr

__all__ = ["StreamedCounts"]

#: Panels whose distinct columns are counted; of more than these a sample is taken.
_PANELS = 1 << 14


class StreamedCounts:
    """Counts of a square matrix with self-loops, from one without them or with some.

    Beside parts of its arrays, memory is used for a byte of each node, and for 4 bytes of each self-loop that
    the matrix has.

    Args:
        csr: the matrix, on the CPU; it may be memory-mapped.

    Attributes:
        nonzeros: number of nonzeros, with a self-loop on each node.
    """

    def __init__(self, csr: Csr) -> None:
        self._csr = csr
        self._offsets: np.ndarray[Any, Any] = csr.indptr.numpy()
        self._indices: np.ndarray[Any, Any] = csr.indices.numpy()
        found = [np.empty(0, np.int32)]
        for first, last, begin, end in row_parts(csr):
            degrees = np.diff(self._offsets[first : last + 1])
            rows = np.repeat(np.arange(first, last, dtype=np.int32), degrees)
            found.append(rows[rows == self._indices[begin:end]])
        self._loops = np.concatenate(found)
        self.nonzeros = csr.nnz + csr.rows - len(self._loops)

    def _nonzeros_before(self, row: int) -> int:
        """Returns the nonzeros of the rows before one, self-loops included."""
        return int(self._offsets[row]) + row - int(np.searchsorted(self._loops, row))

    def _work_around(self, row: int) -> float:
        """Returns the work of the rows before one and half of its own; a row's is its nonzeros and one."""
        return (self._nonzeros_before(row) + row + self._nonzeros_before(row + 1) + row + 1) / 2

    def even_ranges(self, parts: int) -> tuple[int, ...]:
        """Cuts the rows, in their order, into ranges of about equal work, as `balanced_ranges` does.

        Returns:
            The first row of each range, and the number of rows at the end.
        """
        rows = self._csr.rows
        work = self.nonzeros + rows
        cuts = (
            bisect.bisect_left(range(rows), work * part / parts, key=self._work_around)
            for part in range(1, parts)
        )
        return (0, *cuts, rows)

    def facts(self, parts: int) -> ShardFacts:
        """Counts what travels if ranks own ranges of consecutive nodes of about equal work."""
        starts = self.even_ranges(parts)
        touched = np.zeros(self._csr.rows, np.bool_)
        nnz, outside, halo = [], [], []
        for start, stop in itertools.pairwise(starts):
            elsewhere = 0
            for _, _, begin, end in row_parts(self._csr, start, stop):
                columns = self._indices[begin:end]
                others = columns[(columns < start) | (columns >= stop)]
                elsewhere += len(others)
                touched[others] = True
            nnz.append(self._nonzeros_before(stop) - self._nonzeros_before(start))
            outside.append(elsewhere)
            halo.append(int(np.count_nonzero(touched)))
            touched[:] = False
        return ShardFacts(
            0, starts, tuple(nnz), tuple(outside), tuple(halo), self.nonzeros, "contiguous", "gcn", 1.0, True,
            False,
        )  # fmt: skip

    def gathers(self, height: int) -> tuple[int, int, int]:
        """Estimates the rows of features that a product reads, the distinct columns of panels.

        Args:
            height: rows of a panel.

        Returns:
            The number of rows; of how many panels it was counted, evenly spaced; and how many there are. If
            both are equal, the number of rows is exact.
        """
        rows = self._csr.rows
        panels = -(-rows // height)
        looked = min(panels, _PANELS)
        found = 0
        for number in range(looked):
            first = number * panels // looked * height
            last = min(first + height, rows)
            columns = self._indices[self._offsets[first] : self._offsets[last]]
            found += len(np.unique(np.concatenate([columns, np.arange(first, last, dtype=np.int32)])))
        return round(found * panels / max(looked, 1)), looked, panels
