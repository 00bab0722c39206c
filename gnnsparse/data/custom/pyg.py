"""A data set of a PyG graph that is in memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from gnnsparse.data.custom.build import BuildOptions, build_dataset
from gnnsparse.data.custom.saved import content_of_arrays
from gnnsparse.data.dataset import NodeDataset
from gnnsparse.errors import bad_type, bad_value
from gnnsparse.preprocess.source import is_pyg_data

__all__ = ["dataset_of_pyg"]


def dataset_of_pyg(
    data: Any,
    *,
    features: str = "file",
    label_kind: str = "auto",
    classes: int | Sequence[str] | None = None,
    metric: str | None = None,
    split: str = "auto",
    train_fraction: float = 0.6,
    val_fraction: float = 0.2,
    seed: int = 0,
    directed: bool | None = None,
    normalize_features: bool = False,
) -> NodeDataset:
    """Makes a data set of nodes of a torch_geometric.data.Data, as `load_custom` does of a saved one.

    Args:
        data: the graph, on any device: edge_index, x, y, and if there are such edge_weight, and train_mask,
            val_mask and test_mask, bool [N] or [N, splits].
        features: "file" (x), "degree", "constant" or "identity", see `load_custom`.
        label_kind: "auto", "class", "multilabel" or "regression".
        classes: the number of classes or labels, or their names; None: those of y.
        metric: the metric; None: the usual one.
        split: "auto", "given", "given:NUMBER", "random", "stratified" or "time:COLUMN".
        train_fraction: share of the training nodes, where the split is made.
        val_fraction: share of the validation nodes; the others are for the test.
        seed: seed of the split.
        directed: False adds the reverse of each edge; None or True: the edges are as they are.
        normalize_features: whether features are divided by the sum of the magnitudes in their row.

    Returns:
        The data set, on the CPU.

    Raises:
        TypeError: an argument is of another type.
        ValueError: an argument is out of range, or an attribute of the graph is missing, of another shape, or
            holds what a model can't be trained on.
    """
    options = BuildOptions(
        features, label_kind, classes, metric, split, train_fraction, val_fraction, seed, directed,
        normalize_features,
    )  # fmt: skip
    if not is_pyg_data(data):
        bad_type("data", data, "a torch_geometric.data.Data with edge_index")
    arrays: dict[str, np.ndarray] = {}
    known = ("edge_index", "edge_weight", "x", "y", "train_mask", "val_mask", "test_mask")
    for name, value in data.to_dict().items():
        if name == "num_nodes" and isinstance(value, int):
            arrays[name] = np.array(value)
        if not isinstance(value, torch.Tensor):
            continue
        if name in known or value.dim() == 1 or (value.dim() == 2 and value.shape[1] == 1):
            arrays[name] = _array(name, value)
    return build_dataset("data", content_of_arrays(arrays), options)


def _array(name: str, value: torch.Tensor) -> np.ndarray:
    if value.layout != torch.strided or value.is_complex():
        bad_value(
            name, f"is a {value.layout} tensor of {value.dtype}; accepted: a dense tensor of real numbers"
        )
    value = value.detach().cpu()
    return (value.float() if value.dtype == torch.bfloat16 else value).contiguous().numpy()
