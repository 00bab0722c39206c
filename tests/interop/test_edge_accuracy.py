"""The benchmark of models of edge functions beside PyG's layers: both compute the same, and what rows say."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest
import torch

from benchmarks import edge_accuracy
from benchmarks.edge_accuracy import MODELS, compared, ring_of_six, runs
from gnnsparse.data.molecules import load_molecules
from gnnsparse.train import PreprocessConfig
from gnnsparse.train.tasks.graph import GraphData

pytest.importorskip("torch_geometric")
pytest.importorskip("networkx")


@pytest.mark.parametrize("name", MODELS)
def test_both_sides_compute_the_same(name: str) -> None:
    data = GraphData(load_molecules(30), device="cpu", preprocess=PreprocessConfig(cache=False))
    batch = data.gather("train", torch.arange(20))
    found = {}
    for side, run in runs(data, "sum", name, 3).items():
        out = run.outputs(batch)
        loss = (out - batch.y).abs().sum()
        of = dict(run.model.named_parameters())
        found[side] = {
            "out": out.detach(),
            **dict(zip(of, torch.autograd.grad(loss, list(of.values())), strict=True)),
        }
    assert found["ours"].keys() == found["peer"].keys()
    scale = max(float(grad.abs().max()) for grad in found["peer"].values())
    for key, expected in found["peer"].items():
        torch.testing.assert_close(found["ours"][key], expected, rtol=1e-4, atol=1e-5 * scale, msg=key)


def test_rings_of_six_are_found_by_closed_walks() -> None:
    dataset = ring_of_six(60).dataset
    bounds = dataset.graph_ptr.tolist()
    dense = torch.from_numpy(dataset.graph.to_scipy().toarray()).double()
    for graph, (first, end) in enumerate(itertools.pairwise(bounds)):
        core = dense[first:end, first:end].clone()
        while bool((leaf := core.sum(0) == 1).any()):  # trees between and beside rings
            core[leaf], core[:, leaf] = 0, 0
        # Behind them rings and bridges are left; an edge is of a ring of six if without it its ends are
        # five steps apart.
        has_ring = False
        for one, other in core.triu().nonzero().tolist():
            rest, reached = core.clone(), torch.zeros(len(core), dtype=torch.float64)
            rest[one, other] = rest[other, one] = 0
            reached[one] = 1
            steps = 0
            while steps < len(core) and reached[other] == 0:
                reached, steps = ((rest @ reached + reached) > 0).double(), steps + 1
            has_ring |= steps == 5
        assert bool(dataset.y[graph]) == has_ring
    assert 0.2 < dataset.y.double().mean() < 0.9


def test_a_row_says_how_many_deviations_lie_between() -> None:
    row = compared([3.0, 5.0], [4.0, 6.0])
    assert row["ours"]["scores"] == [3.0, 5.0]
    assert (row["difference"], row["within_deviation"]) == (-1.0, True)
    assert row["difference_in_deviations"] == pytest.approx(-(2**-0.5))
    assert compared([3.0, 5.0], [4.0, 4.0])["difference_in_deviations"] is None


def test_the_script_writes_scores_that_can_be_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(edge_accuracy, "EPOCHS", 2)
    words = ["--tasks", "molecules", "--models", "gine", "--graphs", "40", "--seeds", "2", "--out"]
    found = []
    for name in ("one.json", "two.json"):
        edge_accuracy.main([*words, str(tmp_path / name)])
        found.append(json.loads((tmp_path / name).read_text())["rows"])
    assert [row["metric"] for row in found[0]] == ["mae of eccentricity", "mae of path"]
    assert [row["ours"] for row in found[0]] == [row["ours"] for row in found[1]]
    # Biases in front of a batch norm have gradients of roundings, of which Adam makes whole steps.
    assert all(row["ours"]["scores"] == pytest.approx(row["peer"]["scores"], rel=0.1) for row in found[0])
    for refused in (["--seeds", "1"], ["--seeds", "2"]):
        with pytest.raises(SystemExit):
            edge_accuracy.main(refused)
    said = capsys.readouterr().err
    assert "--seeds: one seed has no deviation" in said
    assert "--data: proteins is read from files" in said
