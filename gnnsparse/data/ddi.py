"""The data set ogbl_ddi of the Open Graph Benchmark: interactions of drugs.

It stands alone as the example of a data set in one file, which `discover` finds.
"""

from __future__ import annotations

import os

import numpy as np
import torch

from gnnsparse.data.array_files import open_npz
from gnnsparse.data.catalog import register_dataset
from gnnsparse.data.datasets import LinkDataset
from gnnsparse.data.sources import DatasetUnavailableError
from gnnsparse.errors import path_of
from gnnsparse.sparse.graph import SparseGraph

_FILE = "ogbl_ddi.npz"
_ARRAYS = ("indptr", "indices", "valid_edge", "valid_edge_neg", "test_edge", "test_edge_neg")


@register_dataset("ogbl_ddi", task="link")
def load_ddi(root: str | os.PathLike[str]) -> LinkDataset:
    """Load ogbl-ddi (Hu et al. 2020) with its published split, by the proteins that drugs target.

    `root` is the file ogbl_ddi.npz, or a folder that has it, in itself or in `graphs`. Its arrays: the CSR
    arrays `indptr` and `indices` of the training graph, both directions of each edge, and `valid_edge`,
    `valid_edge_neg`, `test_edge` and `test_edge_neg`, integers [k, 2].
    """
    base = path_of("root", root, f"the file {_FILE}, or a folder that has it").expanduser().absolute()
    for file in (base, base / _FILE, base / "graphs" / _FILE):
        if file.is_file():
            break
    else:
        accepted = f"a file with {', '.join(_ARRAYS)}"
        raise DatasetUnavailableError(f"root: there is no {_FILE} in {base}; accepted: {accepted}")
    try:
        with open_npz(file) as arrays:
            offsets, columns = (arrays.read(n, "iu", (None,)).astype(np.int64) for n in _ARRAYS[:2])
            val, val_negatives, test, test_negatives = (
                torch.from_numpy(arrays.read(n, "iu", (None, 2)).astype(np.int64)) for n in _ARRAYS[2:]
            )
            graph = SparseGraph.from_csr(offsets, columns)
            pairs = torch.stack([graph.csr.row_index(), graph.csr.indices.long()], dim=1)
            train = pairs[pairs[:, 0] < pairs[:, 1]]
            return LinkDataset("ogbl_ddi", graph, train, val, val_negatives, test, test_negatives)
    except (ValueError, OSError) as error:
        raise DatasetUnavailableError(f"root: {error}") from error
