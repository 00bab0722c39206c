"""Passes of edge functions on the CPU, which executes their code for some edges of a row at a time."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from gnnsparse import _native
from gnnsparse.errors import bad_value
from gnnsparse.ops.edges.program import FEATURES, Pass, kinds_of
from gnnsparse.ops.edges.rows import Rows

#: What has no size that is the number of features.
_NUMBERS = ("gathered_number", "row_number", "edge_number", "vector_number", "mapped", "mapped_edge")


class _Known(NamedTuple):
    """The native program of a pass, and what each tensor is, of arguments and of outputs."""

    program: _native.EdgeProgram
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@functools.lru_cache(1024)
def _known(pass_: Pass) -> _Known:
    program = _native.EdgeProgram(pass_.inputs, pass_.sizes, pass_.steps, pass_.outputs)
    return _Known(program, kinds_of(pass_.inputs), kinds_of(kind for kind, _ in pass_.outputs))


def _check_count(name: str, kinds: Sequence[str], tensors: Sequence[torch.Tensor]) -> None:
    if len(kinds) != len(tensors):
        bad_value(name, f"got {len(tensors)} tensors; accepted: {len(kinds)}, of {', '.join(kinds)}")


def _width(known: _Known, arguments: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> int:
    """Return the number of features, the last size of a tensor that has features; 1 if none has."""
    for kinds, tensors in ((known.outputs, outputs), (known.inputs, arguments)):
        for kind, tensor in zip(kinds, tensors, strict=True):
            if kind not in _NUMBERS:
                return tensor.shape[-1]
    return 1


def _readable(kind: str, tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor as the kernel reads it: features may have rows that lie apart."""
    if tensor.is_contiguous():
        return tensor
    has_rows = tensor.dim() == 2 and tensor.stride(1) == 1 and tensor.stride(0) >= tensor.shape[1]
    return tensor if kind in FEATURES and has_rows else tensor.contiguous()


def run_pass(
    pass_: Pass, rows: Rows, arguments: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]
) -> None:
    """Compute a pass over the rows of a matrix on the CPU. The same bits for any number of threads.

    Args:
        pass_: what is computed.
        rows: the matrix; the caller's numbers of edges are those of its nonzeros.
        arguments: one tensor for each input of the pass in turn, of the shapes that `Pass` says, but two for
            a "mapped" one: numbers [edges, size] and map [size, F].
        outputs: one tensor for each output in turn, which is overwritten, but two for a "max" or "min": the
            values and the winners. "sum", "max", "min" and "edge" are in any storage dtype, with rows that
            may lie apart; the others have no gaps.

    Raises:
        ValueError: a tensor has another dtype, device or size than it must have.
    """
    known = _known(pass_)
    _check_count("arguments", known.inputs, arguments)
    _check_count("outputs", known.outputs, outputs)
    bind(pass_, rows, _width(known, arguments, outputs))(arguments, outputs)


def bind(
    pass_: Pass, rows: Rows, width: int, dtype: torch.dtype | None = None
) -> Callable[[Sequence[torch.Tensor], Sequence[torch.Tensor]], None]:
    """Return what computes a pass of arguments and outputs, see `run_pass`, with `width` features."""
    known, kernels = _known(pass_), rows.kernels
    kinds, native = known.inputs, _native.cpu_edges
    place = known.program, kernels.csr.view, kernels.row_ids, rows.edge_ids, rows.num_edges, width

    def run(arguments: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> None:
        if width == 0:  # sums of no features
            for output in outputs:
                output.zero_()
            return
        given = [_readable(kind, tensor) for kind, tensor in zip(kinds, arguments, strict=True)]
        native(*place, given, list(outputs), torch.get_num_threads())

    return run
