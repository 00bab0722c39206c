"""Passes of edge functions on the CPU, which executes their code for some edges of a row at a time."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch

from gnnsparse import _native
from gnnsparse.errors import bad_value
from gnnsparse.ops.edges.program import Pass
from gnnsparse.ops.edges.rows import Rows

_FEATURES = ("gathered", "row", "edge")
#: Inputs and outputs that are two tensors each.
_PAIRS = ("mapped", "max", "min")


@functools.lru_cache(1024)
def _program(pass_: Pass) -> _native.EdgeProgram:
    return _native.EdgeProgram(pass_.inputs, pass_.sizes, pass_.steps, pass_.outputs)


def _by_kind(
    name: str, kinds: Sequence[str], tensors: Sequence[torch.Tensor]
) -> list[tuple[str, tuple[torch.Tensor, ...]]]:
    """Return each kind with its tensors."""
    counts = [2 if kind in _PAIRS else 1 for kind in kinds]
    if sum(counts) != len(tensors):
        bad_value(name, f"got {len(tensors)} tensors; accepted: {sum(counts)}, of {', '.join(kinds)}")
    left = iter(tensors)
    return [(kind, tuple(next(left) for _ in range(n))) for kind, n in zip(kinds, counts, strict=True)]


def _width(
    inputs: Sequence[tuple[str, tuple[torch.Tensor, ...]]],
    outputs: Sequence[tuple[str, tuple[torch.Tensor, ...]]],
) -> int:
    """Return the number of features, the last size of a tensor that has features; 1 if none has."""
    for kind, tensors in (*outputs, *inputs):
        if kind != "mapped_edge" and not kind.endswith("number"):
            return tensors[-1].shape[-1]
    return 1


def _readable(kind: str, tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor as the kernel reads it: features may have rows that lie apart."""
    has_rows = tensor.dim() == 2 and tensor.stride(1) == 1 and tensor.stride(0) >= tensor.shape[1]
    return tensor if kind in _FEATURES and has_rows else tensor.contiguous()


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
    given = _by_kind("arguments", pass_.inputs, arguments)
    stored = _by_kind("outputs", [kind for kind, _ in pass_.outputs], outputs)
    csr = rows.kernels.csr
    width = _width(given, stored)
    if width:
        _native.cpu_edges(
            _program(pass_), csr.view, rows.kernels.row_ids, rows.edge_ids, rows.num_edges, width,
            [_readable(kind, tensor) for kind, tensors in given for tensor in tensors], list(outputs),
            torch.get_num_threads(),
        )  # fmt: skip
        return
    for output in outputs:  # sums of no features
        output.zero_()
