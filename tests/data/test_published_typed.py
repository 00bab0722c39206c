"""Published graphs with types are read from small made files in their formats, as PyG reads them."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from gnnsparse.data import CATALOG, DatasetUnavailableError, TypedNodeDataset
from gnnsparse.data.catalog import load_entry
from tests.data.test_custom_typed import CITES, IN, WRITES, Papers, hetero, write_ogb_typed

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    from torch_geometric.datasets import DBLP, IMDB

SIZES = {
    "imdb": {"movie": 9, "director": 4, "actor": 6},
    "dblp": {"author": 8, "paper": 10, "term": 5, "conference": 3},
}
PYG = {"imdb": IMDB, "dblp": DBLP}


@pytest.fixture(autouse=True)
def folder_of_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GNNSPARSE_DATA_DIR", str(tmp_path / "data"))


def write_magnn(folder: Path, name: str) -> Path:
    """Random features, classes and split; edges join nodes of the first types to those of others."""
    folder.mkdir(parents=True)
    draw = np.random.default_rng(0)
    sizes = list(SIZES[name].values())
    for at, size in enumerate(sizes[:3]):
        x = draw.integers(0, 2, (size, 3 + at)).astype(np.float64)
        if (name, at) == ("dblp", 2):
            np.save(folder / f"features_{at}.npy", x + 0.5)
        else:
            sp.save_npz(folder / f"features_{at}.npz", sp.csr_matrix(x))
    kinds = np.repeat(np.arange(len(sizes)), sizes)
    dense = draw.random((len(kinds), len(kinds))) < 0.4
    dense &= (kinds[:, None] == int(name == "dblp")) & (kinds[None, :] != kinds[:, None])
    sp.save_npz(folder / "adjM.npz", sp.csr_matrix((dense | dense.T).astype(np.float64)))
    np.save(folder / "labels.npy", np.arange(sizes[0]) % 3)
    np.save(folder / "node_types.npy", kinds)
    parts = np.array_split(draw.permutation(sizes[0]), 3)
    np.savez(folder / "train_val_test_idx.npz", train_idx=parts[0], val_idx=parts[1], test_idx=parts[2])
    return folder


# PyG's, where nothing in the process has told torch that a HeteroData may be read.
@pytest.mark.filterwarnings("ignore:Weights only load failed:UserWarning")
@pytest.mark.parametrize("name", ["imdb", "dblp"])
def test_files_of_magnn(name: str, tmp_path: Path) -> None:
    """Features, edges, classes and masks are PyG's, and those of the second time are read from the store."""
    write_magnn(tmp_path / "own/raw", name)
    wanted = PYG[name](str(tmp_path / "own"))[0]
    for _ in range(2):
        data = load_entry(name, {"root": tmp_path / "own"})
        assert isinstance(data, TypedNodeDataset)
        target = next(iter(SIZES[name]))
        assert (data.target, data.num_classes, data.times) == (target, 3, None)
        assert data.graph.num_nodes == SIZES[name]
        assert {*data.graph.edges} == {*wanted.edge_types}
        for relation, edges in data.graph.edges.items():
            keys = [(ends[0] * 100 + ends[1]).sort().values for ends in (edges, wanted[relation].edge_index)]
            assert torch.equal(*keys)
        assert data.x.keys() == {*SIZES[name]} - {"conference"}
        for kind, x in data.x.items():
            assert torch.equal(x, wanted[kind].x)
        assert torch.equal(data.y, wanted[target].y)
        for part in ("train", "val", "test"):
            assert torch.equal(getattr(data, f"{part}_mask"), wanted[target][f"{part}_mask"])
    assert len(list((tmp_path / "data/processed").glob("*.safetensors"))) == 1
    scaled = load_entry(name, {"root": tmp_path / "own/raw", "normalize_features": True})
    assert torch.allclose(scaled.x[target].sum(dim=1).max(), torch.tensor(1.0))


def test_files_of_ogbn_mag(tmp_path: Path) -> None:
    """Each relation has its reverse, and papers have their years."""
    own = Papers()
    own.edges = {
        ("author", "affiliated_with", "institution"): [(a, ["x", "y"][int(a) % 2]) for a in own.authors],
        WRITES: own.edges[WRITES],
        CITES: own.edges[CITES],
        ("paper", "has_topic", "field_of_study"): own.edges[IN],
    }
    made = hetero(own, institution=["x", "y"], field_of_study=["Acta", "ICML", "NeurIPS"])
    made["paper"].y = torch.arange(40) % 5
    counts = {"author": 25, "field_of_study": 3, "institution": 2, "paper": 40}
    write_ogb_typed(tmp_path / "mag", made, counts)
    data = load_entry("ogbn_mag", {"root": tmp_path})
    assert isinstance(data, TypedNodeDataset)
    assert (data.graph.num_nodes, data.num_classes) == (counts, 5)
    assert len(data.graph.edges) == 8
    for source, name, target in own.edges:
        edges = data.graph.edges[source, name, target]
        assert torch.equal(edges, made[source, name, target].edge_index)
        assert torch.equal(data.graph.edges[target, f"rev_{name}", source], edges.flip(0))
    assert data.times is not None
    assert data.times["paper"].tolist() == own.year
    assert torch.equal(data.y, made["paper"].y)
    assert torch.equal(data.val_mask, made["paper"].val_mask)


@pytest.mark.parametrize("name", ["imdb", "dblp", "ogbn_mag"])
def test_what_is_missing(name: str, tmp_path: Path) -> None:
    assert CATALOG[name].task == "typed_node"
    with pytest.raises(DatasetUnavailableError, match=f"root: no complete raw files of {name} in "):
        load_entry(name, {"root": tmp_path})
    with pytest.raises(DatasetUnavailableError, match=f"{name}: the data set is not downloaded, and downl"):
        load_entry(name, {"download": False})


def damaged(file: str, array: Any) -> Any:
    return pytest.param(file, array, id=file)


@pytest.mark.parametrize(
    ("file", "array"),
    [
        damaged("labels.npy", np.arange(5)),
        damaged("labels.npy", np.full(9, np.nan)),
        damaged("adjM.npz", sp.csr_matrix(np.ones((3, 3)))),
        damaged("features_1.npz", sp.csr_matrix(np.full((4, 2), np.inf))),
        damaged("train_val_test_idx.npz", {"train_idx": [0], "val_idx": [0], "test_idx": [1]}),
        damaged("train_val_test_idx.npz", {"train_idx": [0], "val_idx": [99], "test_idx": [1]}),
    ],
)
def test_damaged_files(file: str, array: Any, tmp_path: Path) -> None:
    folder = write_magnn(tmp_path / "raw", "imdb")
    if isinstance(array, dict):
        np.savez(folder / file, **array)
    elif sp.issparse(array):
        sp.save_npz(folder / file, array)
    else:
        np.save(folder / file, array)
    with pytest.raises(DatasetUnavailableError, match=r"^imdb: the raw files in .* can't be read"):
        load_entry("imdb", {"root": tmp_path})
