"""What a PyG graph says of its edges: labels, split and features."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from gnnsparse.data.custom.build import PARTS, Content, text_of
from gnnsparse.data.custom.features import FeatureTransform
from gnnsparse.data.custom.readers import array_of, content_of_attributes
from gnnsparse.errors import bad_value

#: The attributes of labels of edges, and of the pairs of nodes that have them, if these are not all edges.
_LABEL, _PAIRS = "edge_label", "edge_label_index"
_MASKS = {part: f"{part}_mask" for part in PARTS}
#: Different integers of a column of edge_attr that are names of kinds, such as bond types; more are numbers.
_KINDS = 32


def columns_of_attr(attr: np.ndarray, transform: FeatureTransform | None = None) -> dict[str, np.ndarray]:
    """Return the columns of an edge_attr, real [edges] or [edges, D], as FeatureTransform.fit takes them.

    Their names are numbers from 0. A column of a few different integers has kinds, which are texts, unless
    they are 0 and 1 alone; with a transform those of its categories have.
    """
    found = {}
    for at, column in enumerate(attr.T if attr.ndim == 2 else [attr]):
        kinds = np.unique(column) if transform is None and column.dtype.kind in "iu" else np.empty(0)
        are_kinds = 0 < kinds.size <= _KINDS and not np.isin(kinds, (0, 1)).all()
        if are_kinds or (transform is not None and str(at) in transform.categories):
            found[str(at)] = np.array([text_of(kind) for kind in column.tolist()], dtype=object)
        else:
            found[str(at)] = column.astype(np.float64)
    return found


def features_of_attr(attr: torch.Tensor, transform: Mapping[str, Any]) -> torch.Tensor:
    """Return features, float32 [edges, D], of an edge_attr by the transform of a data set.

    One that was made of other columns, as of a table, says nothing of it: it is taken as it is.
    """
    made, given = FeatureTransform.read(transform, "edge_transform"), attr.detach().cpu().numpy()
    if made.columns != tuple(columns_of_attr(given)):
        return (attr[:, None] if attr.dim() == 1 else attr).float()
    return torch.from_numpy(made(columns_of_attr(given, made))).to(attr.device)


def with_edge_attr(
    content: Content, graphs: Sequence[Mapping[str, Any]], transform: FeatureTransform | None
) -> Content:
    """Return the content of PyG graphs with the features of their edges, if they have an edge_attr.

    Raises:
        ValueError: a graph has none, other columns than the first one, or not a row for each edge.
    """
    found = []
    for at, graph in enumerate(graphs):
        attr = None if graph.get("edge_attr") is None else array_of("edge_attr", graph["edge_attr"])
        edges = array_of("edge_index", graph["edge_index"]).shape[-1]
        if attr is not None and (attr.ndim not in (1, 2) or len(attr) != edges):
            bad_value("edge_attr", f"graph {at} has shape {attr.shape}; accepted: a row for each of {edges}")
        found.append(attr[:, None] if attr is not None and attr.ndim == 1 else attr)
    attr = together("edge_attr", found, "graph {}")
    if attr is None:
        return content
    items = Content(len(attr), content.edges, features=columns_of_attr(attr, transform), item="edge")
    return replace(content, of_edges=items)


def together(name: str, arrays: Sequence[np.ndarray | None], called: str) -> np.ndarray | None:
    """Put what all graphs have together; None: no graph has it. Errors call graph i `called.format(i)`."""
    if all(array is None for array in arrays):
        return None
    found = [array for array in arrays if array is not None]
    for at, array in enumerate(arrays):
        if array is None or array.shape[1:] != found[0].shape[1:]:
            has = f"no {name}" if array is None else f"{name} of shape {array.shape}"
            accepted = f"{found[0].shape[1]} columns in each graph" if found[0].ndim > 1 else "in all or none"
            bad_value(name, f"{called.format(at)} has {has}, and others have it; accepted: {accepted}")
    return np.concatenate(found)


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
