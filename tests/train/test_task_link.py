"""The task "link": negatives, scores by their definitions, training, prediction."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gnnsparse import SparseGraph
from gnnsparse.data import DatasetUnavailableError, LinkDataset
from gnnsparse.data.datasets import edge_keys, has_edges, sample_negatives
from gnnsparse.data.ddi import load_ddi
from gnnsparse.inference import load
from gnnsparse.train import OptimizerConfig, PreprocessConfig, SamplerConfig, TrainerConfig, fit
from gnnsparse.train.tasks import TASKS, RunOptions
from gnnsparse.train.tasks.link import (
    LinkData,
    LinkPredictor,
    hits_at,
    mean_reciprocal_rank,
)
from gnnsparse.train.trained import ModelRecipe
from models import MODELS
from tests.data_folder import data_file, requires_data

NODES = 60


def link_dataset(**change: Any) -> LinkDataset:
    """Two groups of nodes; edges join nodes of one group, and negatives nodes of both."""
    generator = torch.Generator().manual_seed(0)
    half = NODES // 2
    pairs = torch.combinations(torch.arange(half))
    pairs = torch.cat([pairs, pairs + half])
    pairs = pairs[torch.randperm(len(pairs), generator=generator)]
    train, val, test = pairs[:500], pairs[500:560], pairs[560:620]
    graph = SparseGraph.from_edge_index(torch.cat([train, train.flip(1)]).T, NODES)
    apart = torch.cartesian_prod(torch.arange(half), torch.arange(half, NODES))
    apart = apart[torch.randperm(len(apart), generator=generator)]
    parts = {
        "train_edges": train, "val_edges": val, "val_negatives": apart[:200],
        "test_edges": test, "test_negatives": apart[200:400],
    }  # fmt: skip
    return LinkDataset("toy", graph, **{**parts, **change})


def data_of(dataset: LinkDataset | None = None, **options: Any) -> LinkData:
    options = {"batch_size": 200, "preprocess": PreprocessConfig(cache=False), "values": "mean", **options}
    return LinkData(dataset or link_dataset(), **options)


def test_scores_by_definition(device: str) -> None:
    torch.manual_seed(0)
    positive, negative = torch.randn(50).round(decimals=1), torch.randn(40).round(decimals=1)
    scores, others = positive.to(device), negative.to(device)
    for k in (1, 3, 20):
        bar = sorted(negative.tolist(), reverse=True)[k - 1]
        want = sum(score > bar for score in positive.tolist()) / 50
        assert float(hits_at(scores, others, k)) == pytest.approx(want)
    assert float(hits_at(scores, others, 41)) == 1  # with fewer negatives than that
    ranks = [
        1 + sum(n > p for n in negative.tolist()) + 0.5 * sum(n == p for n in negative.tolist())
        for p in positive.tolist()
    ]
    want = sum(1 / rank for rank in ranks) / len(ranks)
    assert float(mean_reciprocal_rank(scores, others)) == pytest.approx(want, rel=1e-6)


@given(st.integers(3, 30), st.floats(0, 0.8), st.integers(0, 2**31), st.integers(0, 300))
@settings(max_examples=40, deadline=None)
def test_negatives_are_never_edges(nodes: int, density: float, seed: int, count: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    dense = torch.rand(nodes, nodes, generator=generator) < density
    graph = SparseGraph.from_edge_index(dense.nonzero().T, nodes)
    matrix = graph.to_dense() != 0
    keys = edge_keys(graph)
    every = torch.cartesian_prod(torch.arange(nodes), torch.arange(nodes))
    assert torch.equal(has_edges(keys, every, nodes), matrix.reshape(-1))
    if int((~matrix).sum()) - nodes < 0.02 * nodes**2:
        return
    pairs = sample_negatives(keys, nodes, count, torch.Generator().manual_seed(seed))
    assert pairs.shape == (count, 2)
    assert not bool(matrix[pairs[:, 0], pairs[:, 1]].any())
    assert not bool((pairs[:, 0] == pairs[:, 1]).any())
    assert torch.equal(pairs, sample_negatives(keys, nodes, count, torch.Generator().manual_seed(seed)))


def test_negatives_are_uniform_and_there_are_none_in_a_full_graph() -> None:
    """On a path of 4 nodes 6 of 16 pairs are edges, 4 are loops, and 6 are left."""
    graph = SparseGraph.from_edge_index(torch.tensor([[0, 1, 1, 2, 2, 3], [1, 0, 2, 1, 3, 2]]), 4)
    pairs = sample_negatives(edge_keys(graph), 4, 6000, torch.Generator().manual_seed(0))
    counts = torch.bincount(pairs[:, 0] * 4 + pairs[:, 1], minlength=16)
    assert int((counts > 0).sum()) == 6
    assert int(counts[counts > 0].min()) > 850  # expected 1000, deviation 29
    full = SparseGraph.from_edge_index(torch.ones(5, 5).nonzero().T, 5)
    with pytest.raises(ValueError, match="edges: join nearly all pairs of the 5 nodes"):
        sample_negatives(edge_keys(full), 5, 3, torch.Generator())


def test_negatives_of_a_batch_are_as_many_and_no_edges(device: str) -> None:
    data = data_of(device=device)
    matrix = data.dataset.graph.to_dense()
    batches = list(itertools.islice(data.train_dataloader(), 3))
    for batch in batches:
        assert batch.negative.shape == batch.positive.shape
        assert not bool(matrix[batch.negative[:, 0].cpu(), batch.negative[:, 1].cpu()].any())
    again = next(iter(data_of(device=device).train_dataloader()))
    assert torch.equal(again.negative, batches[0].negative)


@pytest.mark.parametrize(("name", "fanouts"), [("graphsage", None), ("gcn", None), ("graphsage", (8, 8))])
def test_it_learns_two_groups(
    device: str, name: str, fanouts: tuple[int, int] | None, tmp_path: Path
) -> None:
    """From the whole graph, or from samples of it."""
    torch.manual_seed(0)
    dataset, entry = link_dataset(hits_at=5), MODELS[name].for_task("link")
    sampler = None if fanouts is None else SamplerConfig("neighbor", fanouts=fanouts)
    data = data_of(dataset, batch_size=100, values=entry.values, device=device, sampler=sampler)
    batch = next(iter(data.train_dataloader()))
    assert batch.positive.shape == batch.negative.shape == (100, 2)
    assert (batch.nodes is None) == (fanouts is None)
    options = {"hidden_channels": 16, "dropout": 0.0}
    model = entry.build(NODES, out_channels=1, **options)
    optimizer = OptimizerConfig(lr=0.01, weight_decay=0.0, decay="all")
    module = LinkPredictor(model, dataset, optimizer, 100)
    recipe = ModelRecipe("models:MODELS", name, options, NODES, 1, task="link", values=entry.values)
    config = TrainerConfig(max_epochs=20, progress=False, logger="none")
    result = fit(module, data, config, folder=tmp_path / "run", recipe=recipe)
    assert set(result.metrics["test"]) == {"hits@5", "mrr", "auc"}
    assert result.metrics["test"]["hits@5"] > 0.9
    loaded = load(tmp_path / "run", device=device)
    arrays, scores = TASKS["link"].predict(loaded, data)
    assert scores["test"]["hits@5"] == pytest.approx(result.metrics["test"]["hits@5"], abs=0.02)
    assert arrays["pairs"].shape == (260, 2)
    assert int(arrays["is_edge"].sum()) == 60
    assert arrays["probabilities"].shape == (260,)
    with pytest.raises(ValueError, match="task: 'link' is unknown here"):
        loaded.predict(torch.zeros(NODES, NODES), data.adj)


@pytest.mark.parametrize(("edges", "given", "size"), [(640, None, 40), (200, None, 32), (640, 7, 7)])
def test_a_step_takes_a_sixteenth_of_the_edges_or_what_is_given(
    edges: int, given: int | None, size: int
) -> None:
    pairs = torch.combinations(torch.arange(NODES))[:edges]
    options = RunOptions(
        torch.device("cpu"), trainer=TrainerConfig(batch_size=given), preprocess=PreprocessConfig(cache=False)
    )
    graph = SparseGraph.from_edge_index(torch.cat([pairs, pairs.flip(1)]).T, NODES)
    data = TASKS["link"].make_data(replace(link_dataset(), graph=graph, train_edges=pairs), options)
    assert data.batch_size == size


def test_gradients_are_clipped() -> None:
    model = MODELS["graphsage"].for_task("link").build(NODES, hidden_channels=8, out_channels=1)
    module = LinkPredictor(model, link_dataset(), OptimizerConfig(decay="all"), 1)
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 100.0)
    module.on_before_optimizer_step(torch.optim.SGD(model.parameters(), lr=0.1))
    for part in model.children():
        norm = torch.stack([p.grad.norm() for p in part.parameters()]).norm()
        assert float(norm) == pytest.approx(1.0, rel=1e-4)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"graph": 1}, TypeError, "graph: got int; accepted: a SparseGraph"),
        ({"val_edges": torch.zeros(0, 2, dtype=torch.int64)}, ValueError, "val_edges: is empty"),
        ({"test_negatives": torch.tensor([[0, NODES]])}, ValueError, "test_negatives: element 1 is 60"),
        ({"test_edges": torch.zeros(2, 3, dtype=torch.int64)}, ValueError, "test_edges: has shape (2, 3)"),
        ({"train_edges": torch.tensor([[0, 59]])}, ValueError, "train_edges: has an edge that the"),
        ({"hits_at": 0}, ValueError, "hits_at: got 0"),
    ],
)
def test_what_is_refused(change: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=re.escape(message)):
        replace(link_dataset(), **change)


def write_ddi(file: Path, **change: Any) -> Path:
    """The toy data set in the form of ogbl_ddi.npz."""
    data = link_dataset()
    arrays = {
        "indptr": data.graph.csr.indptr.int().numpy(),
        "indices": data.graph.csr.indices.numpy(),
        "valid_edge": data.val_edges.int().numpy(),
        "valid_edge_neg": data.val_negatives.int().numpy(),
        "test_edge": data.test_edges.int().numpy(),
        "test_edge_neg": data.test_negatives.int().numpy(),
        **change,
    }
    file.parent.mkdir(parents=True, exist_ok=True)
    np.savez(file, **{name: array for name, array in arrays.items() if array is not None})
    return file


@pytest.mark.parametrize("place", ["ogbl_ddi.npz", "graphs/ogbl_ddi.npz"])
def test_the_file_of_ddi(tmp_path: Path, place: str) -> None:
    with pytest.raises(DatasetUnavailableError, match=r"root: there is no ogbl_ddi\.npz in"):
        load_ddi(tmp_path)
    write_ddi(tmp_path / place)
    data, want = load_ddi(tmp_path), link_dataset()
    assert (data.name, data.hits_at) == ("ogbl_ddi", 20)
    assert torch.equal(data.test_negatives, want.test_negatives)
    assert sorted(map(tuple, data.train_edges.tolist())) == sorted(map(tuple, want.train_edges.tolist()))
    assert load_ddi(tmp_path / place).num_nodes == NODES
    with pytest.raises(TypeError, match="root: got int"):
        load_ddi(3)  # type: ignore[arg-type]
    for change, message in (
        ({"valid_edge": None}, "valid_edge: is missing"),
        ({"test_edge": np.zeros((3, 3), np.int32)}, r"test_edge: has shape \(3, 3\)"),
        ({"test_edge": np.full((3, 2), 99)}, "test_edges: element 0 is 99"),
    ):
        write_ddi(tmp_path / place, **change)
        with pytest.raises(DatasetUnavailableError, match=message):
            load_ddi(tmp_path)


@requires_data
def test_published_counts_of_ddi() -> None:
    data = load_ddi(data_file())
    assert (data.num_nodes, len(data.train_edges)) == (4267, 1067911)
    assert (len(data.val_edges), len(data.test_edges)) == (133489, 133489)
    assert (len(data.val_negatives), len(data.test_negatives)) == (101882, 95599)
