"""Content, what a file or a folder of a user's own graph holds, before labels and splits are made of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from gnnsparse.errors import bad_value, check_memory

__all__ = ["MISSING_WORDS", "PARTS", "Content", "column_of_ids", "dense_features"]

#: The parts of a split.
PARTS = ("train", "val", "test")
#: Words, in small letters, that programs write where a value is missing, and that may be names as well.
MISSING_WORDS = ("na", "n/a", "nan", "null", "none")


@dataclass(frozen=True, eq=False)
class Content:
    """A graph of N nodes as its file has it.

    Attributes:
        nodes: N.
        edges: int64 [2, edges], sources over targets; they are checked when a graph is made of them.
        weights: real [edges]; None: the edges have none.
        x: real [N, F]; None: the nodes have no features.
        y: what the file says of each node: integers, real numbers or texts, [N] or [N, columns]; None:
            nothing.
        masks: of each of PARTS, bool [N] or, with several splits, [N, splits]; empty: the file has no split.
        columns: other columns of the nodes by name, [N] each.
        ids: the names of the nodes; None: they are numbered.
        feature_names: the names of the features, F different texts; None: they have none.
        label_columns: the names of the columns of `y`, if it has several with names.
        directed: whether an edge stands for one direction, unless the user says otherwise.
        named: whether each value of `y` is the name of a class; otherwise integers are numbers of classes.
        uses: for each table that was read a line that says what its columns are used for.

    Raises:
        ValueError: an array is not that of N nodes; the message names it.
    """

    nodes: int
    edges: np.ndarray
    weights: np.ndarray | None = None
    x: np.ndarray | None = None
    y: np.ndarray | None = None
    masks: Mapping[str, np.ndarray] = field(default_factory=dict)
    columns: Mapping[str, np.ndarray] = field(default_factory=dict)
    ids: tuple[str, ...] | None = None
    feature_names: tuple[str, ...] | None = None
    label_columns: tuple[str, ...] | None = None
    directed: bool = True
    named: bool = False
    uses: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        rows = {"x": self.x, "y": self.y, **{f"{name}_mask": mask for name, mask in self.masks.items()}}
        for name, array in rows.items():
            if array is not None and (array.ndim not in (1, 2) or len(array) != self.nodes):
                bad_value(name, f"has shape {array.shape}; accepted: a row for each of {self.nodes} nodes")
        if self.x is not None and self.x.ndim != 2:
            bad_value("x", f"has shape {self.x.shape}; accepted: ({self.nodes}, features)")
        if self.edges.ndim != 2 or self.edges.shape[0] != 2:
            bad_value("edge_index", f"has shape {self.edges.shape}; accepted: (2, edges)")
        if self.weights is not None and self.weights.shape != self.edges.shape[1:]:
            bad_value(
                "edge_weight",
                f"has shape {self.weights.shape}; accepted: ({self.edges.shape[1]}), one an edge",
            )


def column_of_ids(name: str, ids: np.ndarray, nodes: int) -> np.ndarray:
    """Makes a mask, bool [nodes], of the numbers of nodes.

    Raises:
        ValueError: a number is that of no node.
    """
    wrong = (ids < 0) | (ids >= nodes)
    if wrong.any():
        at = int(wrong.argmax())
        bad_value(name, f"element {at} is {ids[at]}; accepted: the nodes 0 to {nodes - 1}")
    mask = np.zeros(nodes, bool)
    mask[ids.astype(np.int64)] = True
    return mask


def dense_features(x: np.ndarray) -> np.ndarray:
    """Returns features as float32 [N, F], those beyond its range as infinity."""
    check_memory("x", 4 * x.size, f"features of shape {x.shape}")
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(x, dtype=np.float32)
