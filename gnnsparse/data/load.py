"""load_dataset and load_sequences: one call for every data set of nodes, one for those of sequences."""

from __future__ import annotations

import os
from typing import Any

from gnnsparse.data.checks import check_scale, check_seed, check_split
from gnnsparse.data.dataset import NodeDataset, normalize_rows
from gnnsparse.data.registry import CATALOG, Loaders, check_options, load_entry, names_for
from gnnsparse.data.sequences import SequenceDataset
from gnnsparse.errors import bad_value, check_choice, check_flag

__all__ = ["DATASETS", "SEQUENCE_DATASETS", "load_dataset", "load_sequences"]

#: The names that `load_dataset` knows.
DATASETS = names_for("node")
#: The names that `load_sequences` knows, with what loads each.
SEQUENCE_DATASETS = Loaders("sequence")


def load_dataset(
    name: str,
    *,
    root: str | os.PathLike[str] | None = None,
    split: int = 0,
    seed: int = 0,
    scale: float = 1.0,
    normalize_features: bool | None = None,
    download: bool = True,
    **options: Any,
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
        options: those that only some data sets have, and that are none of the above.

    Returns:
        The data set, on the CPU.

    Raises:
        TypeError: an argument is of another type, or an option is none of the data set.
        ValueError: an argument is none of the accepted ones, or does not apply to this data set.
        DatasetUnavailableError: the raw files are not in `root`, or can't be downloaded or read.
        ImportError: scikit-learn (digits), torch-geometric or ogb is not installed.
    """
    check_choice("name", name, DATASETS)
    check_seed(seed)
    check_flag("download", download)
    if normalize_features is not None:
        check_flag("normalize_features", normalize_features)
    entry = CATALOG[name]
    known = entry.options
    check_split(split, entry.split_count)
    if check_scale(scale) != 1 and "scale" not in known:
        bad_value("scale", f"got {scale:g} for {name}; accepted: 1, as only generated data sets have a scale")
    if root is not None and "root" not in known:
        bad_value("root", f"got {str(root)!r} for {name}; accepted: None, as it needs no files")
    check_options(entry, options)
    common = {
        "root": root, "split": split, "seed": seed, "scale": scale,
        "normalize_features": normalize_features, "download": download,
    }  # fmt: skip
    dataset: NodeDataset = entry.load(**{key: common[key] for key in common if key in known}, **options)
    if normalize_features and "normalize_features" not in known:
        normalize_rows(dataset.x)
    return dataset


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
    dataset: SequenceDataset = load_entry(check_choice("name", name, tuple(SEQUENCE_DATASETS)), options)
    return dataset
