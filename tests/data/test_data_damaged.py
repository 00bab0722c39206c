"""Files that others wrote are checked before native code, SciPy or an unpickler sees them."""

from __future__ import annotations

import gzip
import pickle
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from gnnsparse.data import DatasetUnavailableError, load_dataset, load_matrix
from tests.data.raw_files import NODES, WRITERS, rewritten, write_minesweeper

pytestmark = pytest.mark.usefixtures("dataset_cache")


def changed(array: np.ndarray, at: Any, value: Any) -> np.ndarray:
    array = array.copy()
    array[at] = value
    return array


EDGES = np.array([[0, 1], [2, 3]])
ONES, ZEROS = np.ones((NODES, 3)), np.zeros(NODES, int)
BAD_ARRAYS: dict[str, tuple[dict[str, Any], str]] = {
    "edge just out": ({"edges": changed(EDGES, (0, 0), NODES)}, "edges: element 0 is 12"),
    "negative edge": ({"edges": changed(EDGES, (0, 0), -7)}, "edges: element 0 is -7"),
    "edges beyond int64": ({"edges": EDGES.astype(np.uint64) + np.uint64(2**63)}, "edges: "),
    "edges of floats": ({"edges": EDGES * 1.0}, "edges: is of type float64"),
    "three columns": ({"edges": np.zeros((2, 3), int)}, r"edges: has shape \(2, 3\)"),
    "pickled edges": ({"edges": np.array([[0, None]])}, "edges: .*Object arrays can"),
    "no edges": ({"edges": None}, "edge_index: is missing; the archive has .*accepted: .*edges .edges, 2."),
    "nan": ({"node_features": changed(ONES, (4, 1), np.nan)}, "features: .*4, 1. is nan"),
    "complex": ({"node_features": ONES.astype("c8")}, "node_features: is of type complex64"),
    "no dimensions": ({"node_features": np.float32(3)}, r"node_features: has shape \(\)"),
    "label": ({"node_labels": changed(ZEROS, 3, 10**9)}, "labels: element 3 is 1000000000"),
    "negative label": ({"node_labels": changed(ZEROS, 3, -1)}, "labels: element 3 is -1"),
    "few labels": ({"node_labels": ZEROS[1:]}, r"y: has shape \(11,\)"),
    "no labels": ({"node_labels": None}, "features, labels: are missing, or of another type"),
    "labels of texts": ({"node_labels": np.full(NODES, "a")}, "features, labels: are missing, or of another"),
    "several labels": ({"node_labels": np.zeros((NODES, 2))}, r"labels: have shape \(12, 2\)"),
    "fractions": ({"node_labels": np.full(NODES, 0.5)}, "labels: element 0 is 0.5"),
    "short mask": ({"val_masks": np.zeros((10, NODES - 1), bool)}, r"val_mask: has shape \(10, 11\)"),
    "other splits": ({"val_masks": np.zeros((3, NODES), bool)}, "val_masks: has 3 splits"),
    "no mask": ({"test_masks": None}, "test_masks: has no mask"),
    "mask of integers": ({"test_masks": np.full((10, NODES), 2)}, "test_masks: holds other numbers than 0"),
    "overlap": ({"test_masks": np.ones((10, NODES), bool)}, "masks: a node is in two"),
}


@pytest.mark.parametrize("case", BAD_ARRAYS)
def test_bad_arrays_of_a_data_set_are_named(tmp_path: Path, case: str) -> None:
    arrays, problem = BAD_ARRAYS[case]
    write_minesweeper(tmp_path, **arrays)
    with pytest.raises(DatasetUnavailableError, match=rf"minesweeper: the raw files in .*: .*{problem}"):
        load_dataset("minesweeper", root=tmp_path)


def test_other_byte_orders_layouts_and_bytes_of_bools_are_read(tmp_path: Path) -> None:
    features = np.arange(NODES * 3, dtype=">f4").reshape(NODES, 3)
    mask, none = np.full((10, NODES), 0, np.uint8), np.zeros((10, NODES), bool)
    mask[:, 0] = 200  # the byte of a bool
    masks = {"train_masks": mask.view(bool), "val_masks": none, "test_masks": none}
    edges = np.asfortranarray(EDGES.astype(">i4"))
    write_minesweeper(tmp_path, edges=edges, node_features=features, **masks)
    data = load_dataset("minesweeper", root=tmp_path)
    assert data.train_mask.view(torch.uint8).tolist() == [1] + [0] * (NODES - 1)
    assert data.graph.csr.row_index().tolist() == [0, 1, 2, 3]
    assert data.x.tolist() == features.tolist()


def matrix(folder: Path, write: Any = np.savez) -> Path:
    write(folder / "m.npz", indptr=np.array([0, 1, 2]), indices=np.array([1, 0]))
    return folder / "m.npz"


def header(shape: str, dtype: str = "'<i8'") -> bytes:
    text = f"{{'descr': {dtype}, 'fortran_order': False, 'shape': {shape}, }}".encode().ljust(117) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (header(f"({10**18},)") + bytes(16), "indices: is no whole array"),
        (header(f"({2**63},)") + bytes(16), "indices: "),
        (header("(-1,)") + bytes(16), "indices: is no whole array"),
        (header("(True,)") + bytes(8), "indices: "),
        (header(f"({10**18},)", "'S0'"), "indices: is of type"),
        (header("(1,)", "'|O'") + pickle.dumps([1]), "indices: .*Object arrays can"),
        (header("(1,)", "[('a', '<i8')]") + bytes(8), "indices: is of type"),
        (header("(2,)") + bytes(15), "indices: is no whole array"),
        (header("(2,)") + bytes(17), "indices: has bytes after"),
        (header("__import__('os').getpid()") + bytes(8), "indices: is no whole array"),
        (header("(" * 5000) + bytes(8), "indices: is no whole array"),
        (b"no array", "indices: is no whole array"),
        (b"", "indices: is no whole array"),
    ],
)
def test_heads_of_arrays_are_checked_before_memory_is_allocated(
    tmp_path: Path, content: bytes, problem: str
) -> None:
    path = matrix(tmp_path)
    rewritten(path, lambda members: [(n, content if n == "indices.npy" else data) for n, data in members])
    with pytest.raises(ValueError, match=rf"m\.npz: {problem}"):
        load_matrix(path)


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize(
    ("change", "method", "problem"),
    [
        (lambda members: [*members, members[0]], zipfile.ZIP_STORED, "indptr: is in the archive twice"),
        (list, zipfile.ZIP_LZMA, "compressed by another method"),
        (lambda members: [(n, d + bytes(10**7)) for n, d in members], zipfile.ZIP_DEFLATED, "indptr: has"),
    ],
)
def test_archives_of_other_kinds_are_refused(tmp_path: Path, change: Any, method: int, problem: str) -> None:
    path = matrix(tmp_path)
    rewritten(path, change, method)
    with pytest.raises(ValueError, match=rf"m\.npz: .*{problem}"):
        load_matrix(path)


def test_promised_sizes_of_members_are_checked(tmp_path: Path) -> None:
    path = matrix(tmp_path, np.savez_compressed)
    content = bytearray(path.read_bytes())
    at = content.index(b"PK\x01\x02") + 24  # the unpacked size in the list of members
    content[at : at + 4] = struct.pack("<I", 2**32 - 2)
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"m\.npz: indptr: promises 4294967294 bytes in \d+ bytes"):
        load_matrix(path)


@pytest.mark.parametrize(
    ("name", "file", "content", "problem"),
    [
        ("flickr", "role.json", b'{"tr": [0, 99], "va": [], "te": []}', "train: element 1 is 99; acc"),
        ("flickr", "role.json", b'{"tr": [0.5]}', "tr: is missing, or something else"),
        ("flickr", "role.json", b"[" * 100_000, ""),
        ("flickr", "class_map.json", b'{"0": 1}', "nodes: are 1 others"),
        ("yelp", "class_map.json", b"[]", "holds list; accepted: an object"),
        ("flickr", "feats.npy", header("(12, 3)", "'<f8'") + bytes(10), "array: is no whole array"),
        ("reddit", "reddit_graph.npz", b"", "is damaged"),
    ],
)
def test_bad_files_of_large_sets_are_named(
    tmp_path: Path, name: str, file: str, content: bytes, problem: str
) -> None:
    WRITERS[name](tmp_path)
    (tmp_path / "raw" / file).write_bytes(content)
    with pytest.raises(DatasetUnavailableError, match=f"^{name}: the raw files in .*{file}: .*{problem}"):
        load_dataset(name, root=tmp_path)
    assert (tmp_path / "raw" / file).read_bytes() == content, "it stays as it is"


@pytest.mark.parametrize(
    ("file", "text", "problem"),
    [
        ("raw/edge.csv.gz", "0,1\n" * 8 + "0,99\n", "edges: .*99"),
        ("raw/edge.csv.gz", "0,1\n", "1 rows; accepted: 9"),
        ("raw/edge.csv.gz", "0,1,2\n" * 9, "has 3 columns; accepted: 2"),
        ("raw/num-node-list.csv.gz", f"{10**15}\n", "promises 1000000000000000 nodes"),
        ("raw/num-node-list.csv.gz", "-3\n", "promises -3 nodes"),
        ("raw/node-feat.csv.gz", "1,2,nan\n" * NODES, "features: .*nan"),
        ("raw/node-label.csv.gz", "77\n" * NODES, "labels: element 0 is 77"),
        ("split/time/test.csv.gz", "12\n", "test: element 0 is 12"),
        ("split/time/test.csv.gz", "0\n", "masks: a node is in two"),
    ],
)
def test_bad_tables_of_ogb_are_named(tmp_path: Path, file: str, text: str, problem: str) -> None:
    WRITERS["ogbn_arxiv"](tmp_path)
    (tmp_path / "ogbn_arxiv" / file).write_bytes(gzip.compress(text.encode()))
    with pytest.raises(DatasetUnavailableError, match=rf"ogbn_arxiv: .*{problem}"):
        load_dataset("ogbn_arxiv", root=tmp_path)


def test_stored_arrays_are_checked_and_made_again(tmp_path: Path, dataset_cache: Path) -> None:
    def read() -> list[torch.Tensor]:
        data = load_dataset("minesweeper", root=tmp_path)
        return [data.graph.csr.indices, data.x, data.y, data.train_mask, data.test_mask]

    write_minesweeper(tmp_path)
    whole = read()
    (path,) = dataset_cache.rglob("*.safetensors")
    content, arrays = path.read_bytes(), load_file(path)
    others = [content[: len(content) // 2], b""]
    others += [content[:at] + b"?" + content[at + 1 :] for at in (0, 200, len(content) - 9)]
    for array in arrays:
        save_file({**arrays, array: arrays[array].clone()}, path)  # without checksums
        others.append(path.read_bytes())
    for other in others:
        path.write_bytes(other)
        assert all(map(torch.equal, read(), whole))
        assert path.read_bytes() == content, "it was repaired"
