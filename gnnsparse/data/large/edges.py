"""The edges that a graph is built of: an array, a file or chunks, checked, in parts of bounded size."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gnnsparse.data.npz import map_npy
from gnnsparse.errors import bad_type, bad_value, check_device

__all__ = ["Edges", "Part", "read_edges"]

_ACCEPTED = "integers (2, edges), int32 or int64, without weights of edges"
_FORMS = f"{_ACCEPTED}: a tensor, an array, the path of a .npy file, or an iterable of tensors and arrays"

_END = object()
#: The sources and the targets of some edges.
Part = tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]


class Edges:
    """Edges that are read part by part. Made by `read_edges`.

    Attributes:
        count: the number of edges; None: it is not known before all of them were read.
        repeatable: whether `parts` can be called more than once.
    """

    def __init__(self, chunks: Iterable[Any], num_nodes: int, *, whole: bool) -> None:
        self._chunks, self._nodes, self._whole = chunks, num_nodes, whole
        self.repeatable = isinstance(chunks, (list, tuple))
        self.count: int | None = None
        if isinstance(chunks, (list, tuple)):
            self.count = sum(chunk.shape[1] for _, chunk in self._named())

    def _named(self) -> Iterator[tuple[str, Any]]:
        """Yields the chunks with their names, none of which is held while the next one is made."""
        number, chunks = 0, iter(self._chunks)
        while (found := next(chunks, _END)) is not _END:
            name = "edges" if self._whole else f"edges[{number}]"
            chunk = _checked(name, found)
            del found
            yield name, chunk
            del chunk
            number += 1

    def parts(self, size: int) -> Iterator[Part]:
        """Yields all edges in parts of at most `size`, whatever chunks they were given in.

        Raises:
            TypeError: a chunk is of another type or dtype.
            ValueError: a chunk has another shape, or an index is out of range.
        """
        for name, chunk in self._named():
            for first in range(0, chunk.shape[1], size):
                part = chunk[:, first : first + size]
                part = part.cpu().numpy() if isinstance(part, torch.Tensor) else part
                self._check_range(name, part, first)
                yield part[0], part[1]
                del part
            del chunk

    def _check_range(self, name: str, ends: np.ndarray[Any, Any], first: int) -> None:
        if ends.min() >= 0 and ends.max() < self._nodes:
            return
        row, at = np.argwhere((ends < 0) | (ends >= self._nodes))[0].tolist()
        accepted = f"0 to {self._nodes - 1}" if self._nodes else "nothing"
        bad_value(
            name,
            f"element [{row}, {first + at}] is {ends[row, at]}; accepted: {accepted}, as num_nodes is "
            f"{self._nodes}",
        )


def _checked(name: str, chunk: Any) -> Any:
    """Returns a chunk if it is a tensor or an array of edges; its indices may be out of range."""
    if isinstance(chunk, torch.Tensor):
        if chunk.layout != torch.strided or chunk.dtype not in (torch.int32, torch.int64):
            bad_type(name, chunk, _ACCEPTED)
        chunk = check_device(name, chunk.detach())
    elif isinstance(chunk, np.ndarray):
        if chunk.dtype not in (np.dtype(np.int32), np.dtype(np.int64)):
            raise TypeError(f"{name}: got dtype {chunk.dtype}; accepted: {_ACCEPTED}")
    else:
        bad_type(name, chunk, _FORMS if name == "edges" else _ACCEPTED)
    if chunk.ndim != 2 or chunk.shape[0] != 2:
        bad_value(name, f"has shape {tuple(chunk.shape)}; accepted: {_ACCEPTED}")
    return chunk


def read_edges(edges: Any, num_nodes: int) -> Edges:
    """Recognises the form in which edges are given. Nothing of a file is read but its header.

    Args:
        edges: the argument `edges` of `build_graph`.
        num_nodes: the number of nodes.

    Raises:
        TypeError: `edges` has none of the accepted forms, or an array is of another dtype.
        ValueError: an array has another shape, or the file can't be mapped.
        OSError: the file can't be opened.
    """
    if isinstance(edges, (str, os.PathLike)):
        mapped = map_npy(Path(edges), (np.int32, np.int64), (None, None))
        return Edges([mapped], num_nodes, whole=True)
    if isinstance(edges, (torch.Tensor, np.ndarray)):
        return Edges([edges], num_nodes, whole=True)
    if not isinstance(edges, Iterable) or isinstance(edges, (bytes, bytearray, dict)):
        bad_type("edges", edges, _FORMS)
    return Edges(edges, num_nodes, whole=False)
