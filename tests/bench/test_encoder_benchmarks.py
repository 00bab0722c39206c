"""The scripts that compare the sparse encoder with the dense one, at small sizes."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest
import torch

import gnnsparse
from benchmarks import encoder, loss_curves
from benchmarks.dense import dense_bias, make_dense
from gnnsparse import masks
from gnnsparse.nn import TransformerEncoder, TransformerEncoderLayer, edge_bias
from gnnsparse.testing import Errors, assert_accurate, measure_errors

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
    x = torch.randn(2, 12, 16)
    for pattern, masked in ((masks.random(12, 4, seed=0), True), (masks.full(12), False)):
        a, sparse = gnnsparse.prepare(pattern, cache=False), TransformerEncoder(layer, 2)
        assert errors_beside_dense(sparse, x, a, masked).ok


def errors_beside_dense(
    sparse: TransformerEncoder, x: torch.Tensor, a: gnnsparse.SparseOperand, masked: bool = True
) -> Errors:
    dense = make_dense(copy.deepcopy(sparse), masked)
    plain = dense(x, a)
    return measure_errors(sparse(x, a), plain, dense.double()(x.double(), a))


def test_encoder_latency(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, figure = tmp_path / "encoder.json", tmp_path / "encoder.png"
    sizes = ["--lengths", "64", "--heads", "2", "--batches", "1", "2", "--layers", "2", "--repeats", "2"]
    encoder.main([*sizes, "--device", "cpu", "--out", str(out), "--plot", str(figure)])
    rows = json.loads(out.read_text())["rows"]
    sparse = [row for row in rows if row["name"] == "sparse"]
    assert [(row["batch"], row["sparsity"]) for row in sparse] == [
        (batch, sparsity) for batch in (1, 2) for sparsity in (0.9, 0.95, 0.98)
    ]
    # Neither of two results is further from the exact one than the rule allows for such an encoder.
    pattern = gnnsparse.prepare(masks.vector_wise(64, 0.9, 8, seed=0), cache=False)
    model = encoder.make_encoder(2, 2, torch.float32, torch.device("cpu"))
    limit = 2 * errors_beside_dense(model, torch.randn(1, 64, 128), pattern).allowed[1]
    assert all(0 <= row["error"] < limit and row["ms"] > 0 for row in sparse)
    for row in rows:
        mine = [r for r in rows if r["batch"] == row["batch"] and r["name"] != "sparse"]
        assert row["speed"] == pytest.approx(min(r["ms"] for r in mine) / row["ms"])
    assert figure.stat().st_size > 10_000
    assert capsys.readouterr().out.count("\n") == len(rows)


def test_loss_curves_agree(tmp_path: Path, dataset_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out, figure = tmp_path / "curves.json", tmp_path / "curves.png"
    sizes = ["--max-length", "32", "--min-length", "8", "--train", "64", "--val", "32", "--epochs", "3"]
    options = ["pattern.block_size=4", "model.num_layers=1", "model.hidden_channels=16"]
    sizes += ["--device", "cpu"]
    loss_curves.main([*sizes, "--out", str(out), "--plot", str(figure), "--", *options])
    content = json.loads(out.read_text())
    curves = {row["variant"]: torch.tensor(row["losses"]) for row in content["rows"]}
    assert set(curves) == {"fused", "unfused", "masked", "dense"}
    assert all(curve.numel() == 6 for curve in curves.values())
    monkeypatch.setattr(loss_curves, "make_dense", lambda *args, **how: make_dense(*args, **how).double())
    cfg = loss_curves.options_of(loss_curves.parse([*sizes, "--", *options]))
    exact = torch.tensor(loss_curves.run(cfg, "masked")[0], dtype=torch.float64)
    for name in ("fused", "unfused"):
        assert_accurate(curves[name], curves["masked"], exact)
    assert not measure_errors(curves["dense"], curves["masked"], exact).ok
    apart = [float((curves[name] - curves["fused"]).abs().max()) for name in ("unfused", "masked")]
    assert content["largest_difference"] == max(apart)
    assert figure.stat().st_size > 10_000
