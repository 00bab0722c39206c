"""load_dataset and load_sequences: one call for every data set of nodes, one for those of sequences."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch

from gnnsparse.csr import coo_to_csr
from gnnsparse.data.checks import check_scale, check_seed, check_split
from gnnsparse.data.dataset import NodeDataset
from gnnsparse.data.digits import load_digits
from gnnsparse.data.listops import load_listops
from gnnsparse.data.sequences import SequenceDataset
from gnnsparse.data.sources import SOURCES, Source
from gnnsparse.data.splits import Masks, split_by_class
from gnnsparse.data.storage import DatasetUnavailableError, read_source
from gnnsparse.data.synthetic import SYNTHETIC_DATASETS, make_dataset
from gnnsparse.data.text import load_text_bytes
from gnnsparse.errors import bad_value, check_choice, check_flag
from gnnsparse.graph import SparseGraph

__all__ = ["DATASETS", "SEQUENCE_DATASETS", "load_dataset", "load_sequences"]

#: The names that `load_dataset` knows.
DATASETS = ("digits", *SOURCES, *SYNTHETIC_DATASETS)
#: The names that `load_sequences` knows, with what loads each.
SEQUENCE_DATASETS: dict[str, Callable[..., SequenceDataset]] = {
    "listops": load_listops,
    "lra_text_bytes": load_text_bytes,
}

#: The usual split of data sets without a published one: nodes a class.
_TRAIN_PER_CLASS, _VAL_PER_CLASS = 20, 30


def load_dataset(
    name: str,
    *,
    root: str | os.PathLike[str] | None = None,
    split: int = 0,
    seed: int = 0,
    scale: float = 1.0,
    normalize_features: bool | None = None,
    download: bool = True,
) -> NodeDataset:
    """Loads a data set by name.

    `digits` comes with scikit-learn, the names ending in `_like` are generated, all others are
    published data sets, read by PyG's or OGB's classes.

    Args:
        name: one of DATASETS.
        root: a folder with the raw files of a published data set, directly, in `raw`, or where PyG
            or OGB would have them below it. It is only read. None: they are downloaded, once, to
            $GNNSPARSE_DATA_DIR or the user's cache folder. Planetoid's files (cora, citeseer,
            pubmed) are pickles: name no folder whose files you don't trust.
        split: which split: 0 to 9 of minesweeper and tolokers; 0 where one is published; any number
            where the split is random (digits, amazon_*, coauthor_*, *_like).
        seed: of generated data sets. The others are the same for every seed.
        scale: factor on the numbers of nodes and edges of generated data sets, at most 1.
        normalize_features: divide features by the sum of magnitudes of their row; None: where that
            is usual (cora, citeseer, pubmed).
        download: whether files that are missing may be downloaded.

    Returns:
        The data set, on the CPU.

    Raises:
        TypeError: an argument is of another type.
        ValueError: an argument is none of the accepted ones, or does not apply to this data set.
        DatasetUnavailableError: the raw files are not in `root`, or can't be downloaded or read.
        ImportError: scikit-learn (digits), torch-geometric or ogb is not installed.
    """
    check_choice("name", name, DATASETS)
    check_seed(seed)
    check_flag("download", download)
    if normalize_features is not None:
        check_flag("normalize_features", normalize_features)
    source = SOURCES.get(name)
    splits = None if source is None else source.splits
    check_split(split, splits)
    if check_scale(scale) != 1 and name not in SYNTHETIC_DATASETS:
        bad_value("scale", f"got {scale:g} for {name}; accepted: 1, as only generated data sets have a scale")
    if source is None and root is not None:
        bad_value("root", f"got {str(root)!r} for {name}; accepted: None, as it needs no files")
    if source is not None:
        return _published(source, root, split, normalize_features, download)
    dataset = load_digits(split) if name == "digits" else make_dataset(name, scale, seed, split)
    if normalize_features:
        _normalize_rows(dataset.x)
    return dataset


def _published(
    source: Source,
    root: str | os.PathLike[str] | None,
    split: int,
    normalize_features: bool | None,
    download: bool,
) -> NodeDataset:
    data, node_ids = read_source(source, root, download)
    x = data.x.to(torch.float32).contiguous()
    if source.normalize if normalize_features is None else normalize_features:
        _normalize_rows(x)
    several = data.y.dim() == 2 and data.y.shape[1] > 1
    if several != (source.metric == "micro_f1"):  # flickr's and yelp's files have the same names
        raise DatasetUnavailableError(f"root: the files in {root} are not those of {source.name}")
    y = data.y.to(torch.float32) if several else data.y.reshape(-1).to(torch.int64)
    train, val, test = _masks(data, y, split, node_ids)
    return NodeDataset(
        name=source.name,
        graph=_graph(data.edge_index, x.shape[0], source.directed),
        x=x,
        y=y,
        train_mask=train,
        val_mask=val,
        test_mask=test,
        num_classes=y.shape[1] if several else int(y.max()) + 1,
        metric=source.metric,
    )


def _normalize_rows(x: torch.Tensor) -> None:
    """Divides each row by the sum of its magnitudes, in place; rows of zeros stay."""
    total = torch.linalg.vector_norm(x, ord=1, dim=1, keepdim=True)
    x.div_(total.where(total > 0, 1.0))


def _masks(data: Any, y: torch.Tensor, split: int, node_ids: dict[str, torch.Tensor] | None) -> Masks:
    if node_ids is not None:
        train, val, test = (torch.zeros(y.shape[0], dtype=torch.bool) for _ in range(3))
        for mask, part in ((train, "train"), (val, "valid"), (test, "test")):
            mask[node_ids[part]] = True
        return train, val, test
    if "train_mask" not in data:
        return split_by_class(y, split, _TRAIN_PER_CLASS, _VAL_PER_CLASS)
    masks = (data.train_mask, data.val_mask, data.test_mask)
    if data.train_mask.dim() == 2:  # a column for each split
        masks = tuple(mask[:, split].contiguous() for mask in masks)
    return masks[0].bool(), masks[1].bool(), masks[2].bool()


def _graph(edge_index: torch.Tensor, nodes: int, directed: bool) -> SparseGraph:
    """The graph of PyG's edges, without the values that merged repeats would give it."""
    source, target = edge_index
    if directed:
        source, target = torch.cat([source, target]), torch.cat([target, source])
    csr, _ = coo_to_csr(target.contiguous(), source.contiguous(), nodes, nodes)
    return SparseGraph(csr)


def load_sequences(name: str, **options: Any) -> SequenceDataset:
    """Loads a data set of sequences by name.

    `listops` is generated, `lra_text_bytes` reads a folder of text files.

    Args:
        name: one of SEQUENCE_DATASETS.
        options: of listops: seed, min_length, max_length, train_size, val_size, test_size; of
            lra_text_bytes: root, max_length, split. See gnnsparse.data.load_listops, load_text_bytes.

    Raises:
        TypeError, ValueError: an argument is none of the accepted ones.
        DatasetUnavailableError: the files are not in `root`, or the data folder can't be written.
    """
    return SEQUENCE_DATASETS[check_choice("name", name, tuple(SEQUENCE_DATASETS))](**options)
