"""What a PyG graph says of its edges: labels, split and features, for the task of edges."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from gnnsparse.data.custom.build import PARTS, Content
from gnnsparse.data.custom.readers import array_of, content_of_attributes
from gnnsparse.errors import bad_value

#: The attributes of labels of edges, and of the pairs of nodes that have them, if these are not all edges.
_LABEL, _PAIRS = "edge_label", "edge_label_index"
_MASKS = {part: f"{part}_mask" for part in PARTS}


def is_of_edges(graph: Mapping[str, Any], task: str) -> bool:
    """Return whether a graph's edges are to be learned: it is the task, or nothing else has labels."""
    only = graph.get(_LABEL) is not None and graph.get("y") is None
    return task == "edge" or (task == "auto" and only)


def content_of_edges(graph: Mapping[str, Any]) -> Content:
    """Make a content of a PyG graph, whose edge_label and masks have a row for each edge to learn.

    These are the edges of edge_label_index, int64 [2, k], or all. Features of edges are edge_attr.

    Raises:
        ValueError: an attribute has another shape or type, or an edge to learn is none between nodes.
    """
    own = {name: value for name, value in graph.items() if name not in ("y", _LABEL, *_MASKS.values())}
    content = content_of_attributes(own)
    pairs, attr = content.edges, graph.get("edge_attr")
    if graph.get(_PAIRS) is not None:
        pairs = array_of(_PAIRS, graph[_PAIRS])
        if pairs.ndim != 2 or pairs.shape[0] != 2 or pairs.dtype.kind not in "iu":
            bad_value(_PAIRS, f"is of shape {pairs.shape} and {pairs.dtype}; accepted: integers (2, edges)")
        if attr is not None:
            problem = f"edge_attr: it is not used, as {_PAIRS} has other edges"
            warnings.warn(problem, UserWarning, stacklevel=3)
            attr = None
    rows = pairs.shape[1]
    y = None if graph.get(_LABEL) is None else array_of(_LABEL, graph[_LABEL])
    if attr is not None:
        attr = array_of("edge_attr", attr).astype(np.float64)
        attr = attr[:, None] if attr.ndim == 1 else attr
    masks = {
        part: array_of(mask, graph[mask]) for part, mask in _MASKS.items() if graph.get(mask) is not None
    }
    for name, array in ((_LABEL, y), ("edge_attr", attr)):
        if array is not None and (array.ndim not in (1, 2) or len(array) != rows):
            bad_value(name, f"has shape {array.shape}; accepted: a row for each of {rows} edges")
    columns = {
        name: array_of(name, value)
        for name, value in graph.items()
        if isinstance(value, torch.Tensor) and value.shape == (rows,) and name not in ("y", _LABEL)
    }
    items = Content(rows, pairs.astype(np.int64), x=attr, y=y, masks=masks, columns=columns, item="edge")
    reason = "task=edge" if y is None else f"there is {_LABEL}"
    return replace(content, of_edges=items, learns_edges=True, reason=reason)
