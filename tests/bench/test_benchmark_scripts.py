"""The scripts of benchmarks/ at small sizes: what they measure, repeat and write."""

from __future__ import annotations

import copy
import itertools
import json
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
import torch

import gnnsparse
from benchmarks import encoder, few_columns, loss_curves, published_levels
from benchmarks.dense import dense_bias, make_dense
from benchmarks.sampled_epoch import STAGES, Clock, Trained, measure_training
from gnnsparse import masks
from gnnsparse.data import graph_like
from gnnsparse.nn import TransformerEncoder, TransformerEncoderLayer, edge_bias
from gnnsparse.precision import Precision
from gnnsparse.testing import Errors, assert_accurate, measure_errors

pytest.importorskip("matplotlib")


# The sparse encoder beside the dense one


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


# Plans for few columns, on a CPU, which ignores their parameters

TINY = ["--device", "cpu", "--scale", "0.01", "--graphs", "dd_like", "--precisions", "fp32", "--repeats", "1"]


def test_every_plan_and_kernel_is_timed(tmp_path: Path) -> None:
    out = tmp_path / "few.json"
    few_columns.main([*TINY, "--values", "random", "--widths", "3", "7", "--out", str(out)])
    content = json.loads(out.read_text())
    assert content["scale"] == 0.01
    for row, width in zip(content["rows"], (3, 7), strict=True):
        assert (row["graph"], row["values"], row["width"]) == ("dd_like", "random", width)
        assert row["auto"]["ms"] > 0
        assert all(plan["ms"] > 0 for plan in row["plans"])
        assert any(plan["narrow"] for plan in row["plans"]) is (width <= few_columns.MOST_NARROW)
    few_columns.main([*TINY, "--values", "gcn", "--widths", "4", "--kernels", "--out", str(out)])
    (row,) = json.loads(out.read_text())["rows"]
    assert [plan["kernel"] for plan in row["plans"]] == ["csr"]


@pytest.mark.parametrize(("width", "itemsize", "lanes"), [(3, 4, 1), (7, 4, 2), (16, 2, 2), (16, 4, 4)])
def test_lanes_have_room_for_a_row(width: int, itemsize: int, lanes: int) -> None:
    plans = list(few_columns.csr_plans(width, itemsize))
    assert len(set(plans)) == len(plans)
    vectors = [plan for plan in plans if not plan.narrow]
    assert {plan.lanes for plan in vectors} == {lanes}
    assert {plan.row_lanes for plan in vectors if not plan.group} == {
        n for n in (1, 2, 4, 8, 16, 32) if n >= lanes
    }


# Epochs on samples, and their stages

OPTIONS = Namespace(epochs=2, batches=3, kernels=True, cache_share=0.2, capture=False)


@pytest.mark.parametrize("capture", [True, False])
@pytest.mark.parametrize("place", ["fp32 device", "fp16 device", "fp32 host"])
def test_epochs_and_stages_are_measured(place: str, capture: bool, device: str) -> None:
    graph = graph_like("products_like", scale=0.001, device=device)
    options = Namespace(**{**vars(OPTIONS), "capture": capture})
    found = measure_training(graph, [5, 3], 64, place, options, Clock(300))
    assert found["captured"] == capture
    # 196,571 of 2,449,029 nodes are seeds.
    assert found["steps"] == -(-round(graph.num_rows * 0.0802649) // 64)
    assert len(found["epoch_seconds"]) == len(found["losses"]) == 2
    assert found["best_epoch_seconds"] == min(found["epoch_seconds"])
    assert all(
        0 <= s <= e for s, e in zip(found["waited_for_batches_seconds"], found["epoch_seconds"], strict=True)
    )
    stages = found["stages"]
    assert stages["steps"] == 3
    assert sum(stages[f"{name}_share"] for name in STAGES) == pytest.approx(1)
    alone = found["epoch_of_steps_alone_seconds"]
    assert alone > 0
    assert found["sampling_share"] == pytest.approx(max(0, 1 - alone / found["best_epoch_seconds"]))
    assert found["features"][1].startswith(f"placement: {place.split()[1]}")
    assert ("waits" in found) == ("kernels" in found) == (device == "cuda")
    if device == "cuda":
        assert found["waits"]["compute"]["per_step"] == 0
        assert found["waits"]["sample"]["per_step"] <= 2
        # A captured step's features come with the sample, unless they are on the GPU.
        empty = {"gather"} if capture and place == "fp32 host" else set()
        assert {name for name in STAGES if not found["kernels"][name]["launches"]} <= empty


def test_captured_steps_learn_what_others_do() -> None:
    graph = graph_like("products_like", scale=0.001)
    losses = []
    for capture in (True, False):
        trained = Trained(graph, [5, 3], 64, Precision.FP32, "device", 0.1, capture)
        trained.module.model.dropout = 0.0
        losses.append([float(trained.step(given)) for given in itertools.islice(trained.inputs(), 7)])
        trained.release()
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    assert losses[0][-1] < losses[0][0]


def test_a_clock_that_is_over_leaves_no_times() -> None:
    graph = graph_like("products_like", scale=0.001)
    found = measure_training(graph, [5, 3], 64, "fp32 device", OPTIONS, Clock(0))
    assert (found["epoch_seconds"], found["best_epoch_seconds"], found["stages"]) == ([], None, {})
    assert found["sampling_share"] is None


# Published levels: which runs are repeated, and what rows say of their scores

#: Stands in for train.py: it writes its result and its curve into the folder of the run, as a new version.
TRAIN = """
import json, pathlib, sys
run = pathlib.Path(sys.argv[-1].partition("=")[2])
logs = run / "logs" / "csv"
log = logs / f"version_{len(list(logs.glob('*')))}"
log.mkdir(parents=True)
(log / "metrics.csv").write_text("epoch,val/accuracy\\n0,0.5\\n0,\\n1,0.75\\n")
if "fail" in sys.argv:
    sys.exit(3)
(run / "result.json").write_text(json.dumps({"seconds": 1}))
"""


def test_a_run_that_was_interrupted_is_begun_anew_and_one_that_ended_is_kept(tmp_path: Path) -> None:
    command = [sys.executable, "-c", TRAIN]
    with pytest.raises(RuntimeError, match=r"output\.txt: train\.py ended with status 3"):
        published_levels.run_once([*command, "fail"], tmp_path)
    assert published_levels.run_once(command, tmp_path) == {"seconds": 1}
    assert published_levels.curve_of(tmp_path, "accuracy") == [0.5, 0.75]
    assert published_levels.run_once(["nothing would run"], tmp_path) == {"seconds": 1}


def result(score: float) -> dict[str, Any]:
    return {
        "metrics": {"test": {"accuracy": score}},
        "fit_seconds": 2.0,
        **dict.fromkeys(published_levels.ENVIRONMENT, "here"),
    }


def test_a_row_has_the_mean_beside_the_published_one() -> None:
    case = published_levels.CASES["gin-proteins"]
    row = published_levels.row_of("gin-proteins", case, [result(0.70), result(0.72)], [])
    assert row["scores"] == pytest.approx([70, 72])
    assert (row["mean"], row["standard_deviation"]) == pytest.approx((71, 2**0.5))
    assert row["within_deviation"]  # of 73.3 +- 4.0
    assert not published_levels.row_of("gin-proteins", case, [result(0.69), result(0.69)], [])[
        "within_deviation"
    ]


def test_the_epoch_of_the_best_mean_counts_with_folds_as_validation(tmp_path: Path) -> None:
    folders = [tmp_path / str(fold) for fold in range(2)]
    for folder, curve in zip(folders, ("0.9,0.6", "0.1,0.6"), strict=True):
        folder.mkdir()
        (folder / "metrics.csv").write_text("val/accuracy\n" + curve.replace(",", "\n") + "\n")
    row = published_levels.row_of(
        "gin-proteins-xu", published_levels.CASES["gin-proteins-xu"], [result(0.0)] * 2, folders
    )
    assert (row["epoch"], row["scores"]) == (2, pytest.approx([60, 60]))


def test_each_case_has_its_commands_and_other_rows_are_kept(tmp_path: Path) -> None:
    for case in published_levels.CASES.values():
        commands = published_levels.commands_of(case, tmp_path, "cpu")
        assert len({tuple(command) for command in commands}) == published_levels.RUNS
        assert all(("trainer.val_every=1" in command) == case.best_mean for command in commands)
    file = tmp_path / "rows.json"
    assert published_levels.kept_rows(file, []) == published_levels.kept_rows(None, []) == []
    file.write_text(json.dumps({"rows": [{"case": "gin-dd"}, {"case": "sage-ddi"}]}))
    assert published_levels.kept_rows(file, ["gin-dd"]) == [{"case": "sage-ddi"}]
