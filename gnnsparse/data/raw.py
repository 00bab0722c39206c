"""What the raw files of published data sets hold, checked, and its storage in one file of arrays."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from gnnsparse.data.checks import check_finite, check_labels
from gnnsparse.errors import bad_value, check_tensor
from gnnsparse.sparse.graph import check_range

__all__ = ["RawNodes", "load_arrays", "load_raw", "save_raw"]

_MASKS = ("train_masks", "val_masks", "test_masks")


@dataclass(frozen=True, eq=False)
class RawNodes:
    """Features, labels and splits of N nodes, and the edges between them.

    Attributes:
        edges: int32 [2, edges], sources over targets, in any order and with repeats.
        x: float32 [N, F], finite.
        y: int64 [N], a class of each node below N; or float32 [N, labels] of 0 and 1.
        train_masks, val_masks, test_masks: bool [splits, N], without overlap in each split; None: the files
            have no split.

    Raises:
        TypeError: an attribute is of another type or dtype.
        ValueError: shapes do not agree, a node or a class is out of range, a feature is not finite, or a node
            is in two parts of a split.
    """

    edges: torch.Tensor
    x: torch.Tensor
    y: torch.Tensor
    train_masks: torch.Tensor | None = None
    val_masks: torch.Tensor | None = None
    test_masks: torch.Tensor | None = None

    def __post_init__(self) -> None:
        check_tensor("x", self.x, dtypes=(torch.float32,), shape=(None, None))
        nodes = self.x.shape[0]
        check_tensor("edges", self.edges, dtypes=(torch.int32,), shape=(2, None))
        check_range("edges", self.edges.reshape(-1), nodes, "the number of nodes")
        check_finite("x", self.x)
        if nodes == 0:
            bad_value("x", "has no rows; accepted: one node or more")
        if isinstance(self.y, torch.Tensor) and self.y.is_floating_point():
            check_labels("y", self.y, nodes, self.y.shape[1] if self.y.dim() == 2 else 0)
        else:
            check_labels("y", self.y, nodes, nodes)  # of more classes than nodes most would be empty
        masks = {name: getattr(self, name) for name in _MASKS if getattr(self, name) is not None}
        if len(masks) not in (0, len(_MASKS)):
            bad_value("masks", f"are {', '.join(masks)}; accepted: all of {', '.join(_MASKS)}, or none")
        for name, mask in masks.items():
            check_tensor(name, mask, dtypes=(torch.bool,), shape=(None, nodes))
            if mask.shape[0] != masks["train_masks"].shape[0]:
                bad_value(name, f"has {mask.shape[0]} splits; accepted: as many as train_masks")
        if masks and bool((sum(mask.to(torch.uint8) for mask in masks.values()) > 1).any()):
            bad_value("masks", "a node is in two of them; accepted: masks without overlap")


def load_arrays(path: Path, dtypes: dict[str, torch.dtype]) -> dict[str, torch.Tensor] | None:
    """Reads the arrays that this package has written to a safetensors file.

    Args:
        path: the file.
        dtypes: the arrays that the file may have, with their types.

    Returns:
        The arrays; None if there is no such file, it is damaged, or has other arrays or types.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        arrays = load_file(path) if path.is_file() else {}
    except (OSError, SafetensorError, ValueError, KeyError, RuntimeError):
        return None
    if not arrays or any(dtypes.get(name) != array.dtype for name, array in arrays.items()):
        return None
    # A byte of a bool that is neither 0 nor 1 would be undefined in native code.
    return {name: a.view(torch.uint8) != 0 if a.dtype == torch.bool else a for name, a in arrays.items()}


def save_raw(nodes: RawNodes, path: Path) -> None:
    """Writes nodes to a safetensors file, for `load_raw`."""
    from safetensors.torch import save_file

    save_file({name: array.contiguous() for name, array in vars(nodes).items() if array is not None}, path)


def load_raw(path: Path) -> RawNodes | None:
    """Reads what `save_raw` wrote; None if there is no file or it holds no valid nodes."""
    kinds = {"edges": torch.int32, "x": torch.float32, **dict.fromkeys(_MASKS, torch.bool)}
    for labels in (torch.int64, torch.float32):
        arrays = load_arrays(path, {**kinds, "y": labels})
        if arrays is not None and {"edges", "x", "y"} <= arrays.keys():
            try:
                return RawNodes(**arrays)
            except (ValueError, TypeError):
                return None
    return None
