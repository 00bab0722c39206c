"""The scripts that compare the sparse encoder with the dense one, at small sizes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import gnnsparse
from benchmarks import encoder, loss_curves
from benchmarks.dense import dense_bias, make_dense
from gnnsparse import masks
from gnnsparse.nn import TransformerEncoder, TransformerEncoderLayer, edge_bias

pytest.importorskip("matplotlib")


def test_dense_bias_is_the_pattern() -> None:
    graph = masks.window(6, 1)
    a = gnnsparse.prepare(graph, cache=False)
    padding = torch.zeros(2, 6, dtype=torch.bool)
    padding[1, 2:] = True
    dense = dense_bias(a, edge_bias(a, padding), torch.float32)
    allowed = torch.from_numpy(graph.to_scipy().toarray()).bool() & ~padding[:, None, :]
    allowed[1, 3:] = True  # rows whose keys are all padding
    assert torch.equal(dense[:, 0] == 0, allowed)
    assert torch.equal(dense[:, 0] == float("-inf"), ~allowed)


def test_the_masked_encoder_is_the_sparse_one() -> None:
    layer = TransformerEncoderLayer(16, 2, 16, dropout=0.0, batch_first=True)
    sparse = TransformerEncoder(layer, 2)
    a, x = gnnsparse.prepare(masks.random(12, 4, seed=0), cache=False), torch.randn(2, 12, 16)
    want = sparse(x, a)
    assert torch.allclose(make_dense(sparse, masked=True)(x, a), want, atol=1e-5)
    everything = gnnsparse.prepare(masks.full(12), cache=False)
    sparse = TransformerEncoder(layer, 2)
    want = sparse(x, everything)
    assert torch.allclose(make_dense(sparse, masked=False)(x, None), want, atol=1e-5)  # type: ignore[arg-type]


def test_encoder_latency(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, figure = tmp_path / "encoder.json", tmp_path / "encoder.png"
    sizes = ["--lengths", "64", "--heads", "2", "--batches", "1", "2", "--layers", "2", "--repeats", "2"]
    encoder.main([*sizes, "--device", "cpu", "--out", str(out), "--plot", str(figure)])
    rows = json.loads(out.read_text())["rows"]
    sparse = [row for row in rows if row["name"] == "sparse"]
    assert [(row["batch"], row["sparsity"]) for row in sparse] == [
        (batch, sparsity) for batch in (1, 2) for sparsity in (0.9, 0.95, 0.98)
    ]
    assert all(row["error"] < 1e-5 and row["ms"] > 0 for row in sparse)
    for row in rows:
        mine = [r for r in rows if r["batch"] == row["batch"] and r["name"] != "sparse"]
        assert row["speed"] == pytest.approx(min(r["ms"] for r in mine) / row["ms"])
    assert figure.stat().st_size > 10_000
    assert capsys.readouterr().out.count("\n") == len(rows)


def test_loss_curves_agree(tmp_path: Path, dataset_cache: Path) -> None:
    out, figure = tmp_path / "curves.json", tmp_path / "curves.png"
    sizes = ["--max-length", "32", "--min-length", "8", "--train", "64", "--val", "32", "--epochs", "3"]
    options = ["pattern.block_size=4", "model.num_layers=1", "model.hidden_channels=16"]
    loss_curves.main([*sizes, "--device", "cpu", "--out", str(out), "--plot", str(figure), "--", *options])
    content = json.loads(out.read_text())
    curves = {row["variant"]: torch.tensor(row["losses"]) for row in content["rows"]}
    assert set(curves) == {"fused", "unfused", "masked", "dense"}
    assert all(curve.numel() == 6 for curve in curves.values())
    for name in ("unfused", "masked"):
        assert torch.allclose(curves[name], curves["fused"], atol=1e-5)
    assert not torch.allclose(curves["dense"], curves["fused"], atol=1e-4)
    assert content["largest_difference"] < 1e-5
    assert figure.stat().st_size > 10_000
