"""Stories of a graph on disk: built of a table of edges, trained on by samples, and predicted for."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.docs.blocks import Block
from tests.stories.running import Outcome, run_block

NODES = 1500


def run(command: str, folder: Path) -> Outcome:
    """What a shell does with a command in the folder of a checkout."""
    return run_block(Block(folder, 0, "sh", command, "", ""), folder)


@pytest.mark.slow
@pytest.mark.parametrize("model", ["gcn", "graphsage"])
def test_a_table_of_edges_becomes_a_graph_on_disk_that_is_trained_on(model: str, tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    y = draw.integers(0, 3, NODES)
    ends = draw.integers(0, NODES, (2, 20_000))
    ends = ends[:, (y[ends[0]] == y[ends[1]]) | (draw.random(20_000) < 0.1)]
    rows = "".join(f"u{s:04},u{t:04},{draw.integers(1, 5)}\n" for s, t in ends.T)
    (tmp_path / "edges.csv").write_text("From,To,Weight\n" + rows)
    done = run("gnnsparse graph build edges.csv net --symmetric", tmp_path)
    assert done.status == 0, done.errors
    assert "edges.csv: From, To = ends; Weight = weights" in done.output
    ids = [int(name[1:]) for name in (tmp_path / "net" / "ids.txt").read_text().split()]
    train = f"python train.py dataset=custom dataset.path=net model={model} device=cpu"
    short = "trainer.max_epochs=15 optimizer.lr=0.02 trainer.plots=false trainer.progress=false"
    done = run(f"{train} {short}", tmp_path)
    assert done.status == 2
    assert "dataset.path: net is a graph on disk, and has no x.npy, but indices.npy" in done.errors

    x = 0.5 * np.eye(8)[y] + draw.standard_normal((NODES, 8))
    np.save(tmp_path / "net" / "x.npy", x[ids].astype(np.float32 if model == "gcn" else np.float16))
    np.save(tmp_path / "net" / "y.npy", y[ids])
    done = run(f"{train} {short} hydra.run.dir=run", tmp_path)
    assert done.status == 0, done.errors
    assert "net is a graph on disk: sampler=neighbor sampler.fanouts=[10,10]" in done.output
    assert "net: x.npy = features; y.npy = labels" in done.output
    test = done.result()["metrics"]["test"]["accuracy"]
    assert test > 0.75, "features alone say it of about half"
    if model == "gcn":
        done = run(f"{train} {short} dataset.in_memory=true hydra.run.dir=whole", tmp_path)
        assert done.status == 0, done.errors
        assert "sampler" not in done.output
        assert done.result()["metrics"]["test"]["accuracy"] > 0.75
        done = run("gnnsparse predict whole --out whole.csv", tmp_path)
        assert done.status == 0, done.errors
    done = run("gnnsparse predict run --out found.csv", tmp_path)
    assert done.status == 0, done.errors
    rows_found = done.rows("found.csv")
    assert [row["ids"] for row in rows_found] == [f"u{node:04}" for node in ids]
    right = np.mean([int(row["classes"]) == y[node] for row, node in zip(rows_found, ids, strict=True)])
    assert abs(right - test) < 0.1
