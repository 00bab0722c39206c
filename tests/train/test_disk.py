"""Graphs on disk: what is read of their folders, and that nothing of theirs is whole in memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gnnsparse import prepare
from gnnsparse.data import build_graph, load_custom
from gnnsparse.nn import GCNConv
from gnnsparse.sampling import FeatureStore
from gnnsparse.train.settings import OptimizerConfig, SamplerConfig
from gnnsparse.train.tasks import RunOptions
from gnnsparse.train.tasks.node import NodeClassifier, NodeTask, StoredGraphData

NODES = 90
DRAW = np.random.default_rng(0)
Y = np.arange(NODES) % 3
X = (np.eye(5)[Y] + DRAW.standard_normal((NODES, 5))).astype(np.float16)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    build_graph(DRAW.integers(0, NODES, (2, 400)), tmp_path / "g", NODES, symmetric=True)
    np.save(tmp_path / "g" / "x.npy", X)
    np.save(tmp_path / "g" / "y.npy", Y)
    return tmp_path / "g"


def test_labels_and_the_split_are_those_of_the_files(folder: Path) -> None:
    np.save(folder / "train_mask.npy", np.arange(NODES) < 40)
    np.save(folder / "val_idx.npy", np.arange(40, 60))
    np.save(folder / "test_idx.npy", np.arange(60, 70, dtype=np.int32))
    found = load_custom(folder)
    assert found.on_disk
    assert torch.equal(found.y, torch.from_numpy(Y))
    assert torch.equal(found.x, torch.from_numpy(X))
    assert [int(mask.sum()) for mask in (found.train_mask, found.val_mask, found.test_mask)] == [40, 20, 10]
    np.save(folder / "y.npy", np.where(np.arange(NODES) < 50, Y, -1))
    (folder / "train_mask.npy").unlink()
    drawn = load_custom(folder, split="random", train_fraction=0.5)
    assert int(drawn.train_mask.sum()) == 25
    assert not drawn.train_mask[50:].any()


@pytest.mark.parametrize("weighted", [False, True])
def test_a_graph_that_is_read_whole_is_trained_on_as_others_are(weighted: bool, tmp_path: Path) -> None:
    ends, weights = DRAW.integers(0, NODES, (2, 400)), DRAW.random(400).astype(np.float32)
    build_graph(ends, tmp_path / "g", NODES, symmetric=True, weights=weights if weighted else None)
    np.save(tmp_path / "g" / "x.npy", X)
    np.save(tmp_path / "g" / "y.npy", Y)
    stored, whole = load_custom(tmp_path / "g"), load_custom(tmp_path / "g", in_memory=True)
    assert (stored.on_disk, whole.on_disk) == (True, False)
    assert (whole.x.dtype, whole.graph.is_symmetric) == (torch.float32, True)
    assert torch.equal(whole.x, stored.x.float())
    for name in ("indptr", "indices"):
        own, mapped = getattr(whole.graph.csr, name), getattr(stored.graph.csr, name)
        assert torch.equal(own, mapped)
        assert own.data_ptr() != mapped.data_ptr()
    assert (whole.graph.values is None) == (not weighted)
    assert not weighted or torch.equal(whole.graph.values, stored.graph.values)
    data = NodeTask().make_data(whole, RunOptions(torch.device("cpu"), values="gcn"))
    assert data.fixed_batch is not None
    with pytest.raises(TypeError, match=r"^in_memory: got int"):
        load_custom(tmp_path / "g", in_memory=1)


#: A file, what is written into it (None: it is removed), options, and what is said.
REFUSED: list[tuple[str, Any, dict[str, Any], str]] = [
    ("x.npy", None, {}, r"^path: .*g is a graph on disk, and has no x\.npy, but indices\.npy, indptr\.npy, "
     r"y\.npy; accepted: x\.npy with features: float32 or float16 \[90, features\]"),
    ("y.npy", None, {}, r"has no y\.npy, .*accepted: y\.npy with labels: integers \[90\], .*or classes="),
    ("x.npy", X[:80], {}, r"x\.npy: array: has shape \(80, 5\); accepted: \(90, any\)"),
    ("x.npy", X.astype(np.float64), {}, r"x\.npy: array: is of type float64; accepted: float32 or float16"),
    ("x.npy", np.where(X[7, 2] == X, np.nan, X), {}, r"x\.npy: element \[7, 2\] is nan; accepted: finite"),
    ("y.npy", Y[:80], {}, r"path: .*y: has shape \(80,\); accepted: a row for each of 90 nodes"),
    ("val_idx.npy", np.array([90]), {}, r"val_idx\.npy: "),
    ("y.npy", Y, {"standardize": True}, r"^standardize: got True, and .* on disk; accepted: false"),
    ("y.npy", Y, {"id": "name"}, r"^id: got 'name', and .*g is a graph on disk; accepted: null"),
    ("y.npy", Y, {"task": "link"}, r"^task: got 'link', and g is a graph on disk; accepted: auto, node"),
    ("y.npy", Y, {"features": "degree"}, r"^features: got 'degree', .*accepted: file, as x\.npy has"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "content", "options", "said"), REFUSED)
def test_what_is_missing_or_wrong_is_named(
    name: str, content: Any, options: dict[str, Any], said: str, folder: Path
) -> None:
    (folder / name).unlink(missing_ok=True)
    if content is not None:
        np.save(folder / name, content)
    with pytest.raises(ValueError, match=said):
        load_custom(folder, **options)


class Net(torch.nn.Module):
    """Two convolutions, over the whole graph or the blocks of a sample."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = GCNConv(5, 4), GCNConv(4, 3)

    def forward(self, x: torch.Tensor, adj: Any) -> torch.Tensor:
        first, second = adj if isinstance(adj, list) else (adj, adj)
        return self.second(self.first(x, first).relu(), second)


def test_scores_of_all_neighbours_are_those_of_the_whole_graph(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = load_custom(folder)
    monkeypatch.setattr(FeatureStore, "whole", lambda _: pytest.fail("the features are read whole"))
    sampler = SamplerConfig("neighbor", fanouts=[-1, -1], batch_size=32)
    data = StoredGraphData(dataset, sampler=sampler)
    assert data.store is not None
    assert data.store.placement == "host", "rows become float32 when they are taken"
    model = Net()
    module = NodeClassifier(model, dataset, OptimizerConfig(decay="all"), 1)
    with torch.no_grad():
        scored = module.scored(data.batch)
        found = {part: float(module.score(part, scored)["loss"]) for part in ("train", "val", "test")}
        whole = model(dataset.x.float(), prepare(dataset.graph, values="gcn"))
    masks = {"train": dataset.train_mask, "val": dataset.val_mask, "test": dataset.test_mask}
    for part, mask in masks.items():
        wanted = torch.nn.functional.cross_entropy(whole[mask], dataset.y[mask])
        assert found[part] == pytest.approx(float(wanted), abs=1e-4)
    with pytest.raises(
        ValueError, match=r"^sampler: got 'none', and g is a graph on disk; accepted: neighbor"
    ):
        StoredGraphData(dataset, sampler=SamplerConfig())
