"""Passes of edge functions on the CPU, which executes their code for some edges of a row at a time."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import torch

from gnnsparse import _native
from gnnsparse.ops.edges.program import FEATURES, Pass, kinds_of
from gnnsparse.ops.edges.rows import Rows


@functools.lru_cache(1024)
def _known(pass_: Pass) -> tuple[_native.EdgeProgram, tuple[str, ...]]:
    """Return the native program of a pass, and what each of its arguments is."""
    return _native.EdgeProgram(pass_.inputs, pass_.sizes, pass_.steps, pass_.outputs), kinds_of(pass_.inputs)


def _readable(kind: str, tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor as the kernel reads it: features may have rows that lie apart."""
    if tensor.is_contiguous():
        return tensor
    has_rows = tensor.dim() == 2 and tensor.stride(1) == 1 and tensor.stride(0) >= tensor.shape[1]
    return tensor if kind in FEATURES and has_rows else tensor.contiguous()


def bind(
    pass_: Pass, rows: Rows, width: int, dtype: torch.dtype | None = None
) -> Callable[[Sequence[torch.Tensor], Sequence[torch.Tensor]], None]:
    """Return what computes a pass over the rows of a matrix, with `width` features, on the CPU.

    It takes a tensor for each input of the pass in turn, of the shapes that `Pass` says, but two for a
    "mapped" one: numbers [edges, size] and map [size, F]. And one for each output, which is overwritten, but
    two for a "max" or "min": the values and the winners. "sum", "max", "min" and "edge" are in any storage
    dtype, with rows that may lie apart; the others have no gaps. A tensor of another dtype, device or size is
    a ValueError. Bits are the same for any number of threads.
    """
    (program, kinds), kernels, native = _known(pass_), rows.kernels, _native.cpu_edges
    place = program, kernels.csr.view, kernels.row_ids, rows.edge_ids, rows.num_edges, width

    def run(arguments: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> None:
        if width == 0:  # sums of no features
            for output in outputs:
                output.zero_()
            return
        given = [_readable(kind, tensor) for kind, tensor in zip(kinds, arguments, strict=True)]
        native(*place, given, list(outputs), torch.get_num_threads())

    return run
