"""The benchmark of scaling, at a tiny size with gloo on CPUs."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist

from benchmarks import scaling
from benchmarks.scaling_ranks import JobError, Place, Ranks
from benchmarks.scaling_steps import WARMUP, Case, Waits, estimated, store_graph, stored_graph
from gnnsparse.distributed import exchange, gather_ranks
from gnnsparse.distributed.cost import WAYS
from gnnsparse.distributed.estimate import random_facts
from gnnsparse.plan.gpu_records import records

TINY = ["--device", "cpu", "--graphs", "products_like", "--scale", "0.0005", "--precisions", "fp32"]


@pytest.mark.slow
def test_rows_of_one_and_two_ranks_agree(tmp_path: Path) -> None:
    out = tmp_path / "scaling.json"
    options = ["--steps", "6", "--batch", "16", "--models", "gcn", "graphsage", "--profile"]
    scaling.main([*TINY, *options, "--out", str(out)])
    content = json.loads(out.read_text())
    rows = {(row["model"], row["gpus"]): row for row in content["rows"]}
    assert content["left_out"] == []
    assert list(rows) == [("gcn", 1), ("gcn", 2), ("graphsage", 1), ("graphsage", 2)]
    assert all(row["bitwise_equal"] and row["ms"] > 0 for row in rows.values())
    one, two = rows["gcn", 1], rows["gcn", 2]
    assert two["loss_difference"] < 1e-5
    assert len(set(one["losses"])) == 3  # steps train
    assert one["unhidden_ms"] == 0 < two["unhidden_ms"]
    assert two["speedup"] == one["ms"] / two["ms"]
    for row in (one, two):
        top = [kernel["ms"] for kernel in row["profile"]["top"]]
        assert top == sorted(top, reverse=True)
        assert 0 < len(top) <= 15
        assert sum(top) <= row["profile"]["ms"]
    assert sum(two["nnz"]) == sum(one["nnz"])
    # Each of two ranks takes half of the steps of an epoch.
    assert rows["graphsage", 2]["steps_of_epoch"] == -(-rows["graphsage", 1]["steps_of_epoch"] // 2)


def _fails(place: Place) -> Any:
    if place.rank == 1:
        raise ValueError("no")
    assert place.peers is not None
    return gather_ranks(torch.zeros(1), place.peers.group)  # waits for a rank that does not come


def _sums(place: Place) -> int:
    assert place.peers is not None
    return int(gather_ranks(torch.tensor([place.rank]), place.peers.group).sum())


def _is_killed(place: Place) -> Any:
    if place.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return _fails(place)


def _fails_behind(place: Place) -> Any:
    """Fail on a rank that another one does not wait for, and leave an exchange that nobody answers."""
    assert place.peers is not None
    if place.rank == 0:
        raise ValueError("behind")
    dist.isend(torch.ones(3), dst=0, group=place.peers.group)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("job", "says"),
    [
        (_fails, "rank 1: ValueError: no"),
        (_is_killed, "rank 1 ended with status -9"),
        (_fails_behind, "rank 0: ValueError: behind"),
    ],
)
def test_a_rank_that_fails_ends_its_case_in_seconds_and_no_other(job: Any, says: str) -> None:
    ranks = Ranks([2], "cpu")
    try:
        assert ranks.run(2, _sums) == [1, 1]
        start = time.monotonic()
        with pytest.raises(JobError, match=f"^{says}"):
            ranks.run(2, job)
        assert time.monotonic() - start < 10  # seconds, of which 3 are waited for other messages
        assert ranks.run(2, _sums) == [1, 1]
    finally:
        ranks.close()


@pytest.mark.slow
def test_each_way_has_its_row(tmp_path: Path) -> None:
    out = tmp_path / "scaling.json"
    options = ["--models", "gcn", "--ways", *WAYS, "--gpus", "2", "--steps", "4", "--out", str(out)]
    scaling.main([*TINY, *options])
    rows = json.loads(out.read_text())["rows"]
    assert [row.get("error") for row in rows] == [None] * len(WAYS)
    assert [row["way"] for row in rows] == list(WAYS)
    halo, _, features = rows
    # The counts are those of rows also where each rank has the whole matrix.
    assert features["halo"] == halo["halo"]
    assert min(features["halo"]) > 0
    assert scaling.largest_difference(features["losses"], halo["losses"]) < 1e-4


def _ranks(answer: list[dict[str, Any]] | JobError) -> mock.Mock:
    """Stand in for ranks that capture their steps, which a CPU does not."""
    return mock.Mock(run=mock.Mock(side_effect=[answer]))


def test_what_does_not_fit_the_budget_is_left_out(tmp_path: Path) -> None:
    given = ["--models", "gcn", "agnn", "--gpus", "1", "--budget", "0", "--out", str(tmp_path / "out.json")]
    options = scaling._parser().parse_args([*TINY, *given])
    scaling._Benchmark(options, tmp_path, _ranks([{"torch": "2"}])).run()
    content = json.loads(options.out.read_text())
    assert (content["rows"], content["torch"]) == ([], "2")
    assert len(content["left_out"]) == 2


def test_captured_steps_are_added_to_a_row_or_why_there_are_none(tmp_path: Path) -> None:
    launched = {
        "ms": 8.0, "losses": [3.0, 2.0], "capture": "off", "peak_bytes": 9, "bitwise_equal": True,
        "cache_hit": True,
    }  # fmt: skip
    replayed = {"capture": "on", "captured_ms": 4.0, "captured_peak_bytes": 9}
    options = scaling._parser().parse_args([])
    for last, difference in ((2.0, 0.0), (2.5, 0.25)):
        found = [dict(launched), dict(launched)]
        answer = [{**replayed, "captured_losses": [3.0, loss]} for loss in (2.0, last)]
        scaling._Benchmark(options, tmp_path, _ranks(answer))._capture(2, found)
        row = scaling.merged(found, {"ms": 9.0, "captured_ms": 7.0, "losses": [3.0, 2.0], "peak_bytes": 18})
        found_here = row["captured_loss_difference"], row["speedup"], row["memory_ratio"]
        assert found_here == (difference, 7.0 / 4.0, 0.5)
        assert row["captured_peak_bytes_by_rank"] == [9, 9]
    found = [dict(launched)]
    scaling._Benchmark(options, tmp_path, _ranks(JobError("1 of 2 ranks did not end")))._capture(2, found)
    assert found[0] == {**launched, "capture": "1 of 2 ranks did not end"}


def test_waits_are_those_for_data_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = [0.0]

    def spend(more: float) -> None:
        seconds[0] += more

    late = mock.Mock(wait=lambda: spend(0.02))
    monkeypatch.setattr(time, "perf_counter", lambda: seconds[0])
    monkeypatch.setattr(dist, "all_to_all_single", lambda *args, async_op=False, **options: late)
    before, waits = dist.all_to_all_single, Waits(torch.device("cpu"))
    with waits.watching():
        for _ in range(WARMUP + 2):
            waits.begin_step()
            pending = exchange.exchange_rows(torch.zeros(2, 3), [1, 1], [1, 1], None)
            spend(0.05)  # what is computed meanwhile
            pending.wait()
        waits.end()
        exchange.exchange_rows(torch.zeros(2, 3), [1, 1], [1, 1], None).wait()
    assert waits.milliseconds() == pytest.approx(20)
    assert dist.all_to_all_single is before


def test_estimates_are_those_of_plan_cluster(tmp_path: Path) -> None:
    place = Place(0, 1, torch.device("cpu"), None)
    assert store_graph(place, tmp_path, "products_like", 0.001) > 0
    assert store_graph(place, tmp_path, "products_like", 0.001) == 0  # it is there
    dataset, gathers = stored_graph(tmp_path, "products_like", 0.001)
    nodes, nonzeros = dataset.num_nodes, dataset.graph.nnz + dataset.num_nodes
    assert nodes < gathers < nonzeros
    assert int(dataset.train_mask.sum() + dataset.val_mask.sum() + dataset.test_mask.sum()) == nodes
    case, gpu = Case("products_like", "gcn", "fp16", "auto", "contiguous"), records()[0]
    one, two = (estimated(case, dataset, gathers, random_facts(nodes, nonzeros, n), gpu) for n in (1, 2))
    assert one["predicted_way"] == "-"
    assert two["predicted_way"] in ("halo", "gather", "features")
    assert 0 < one["predicted_product_ms"] < one["predicted_ms"]
    assert two["predicted_bytes"] < one["predicted_bytes"]


def test_options_that_can_not_be(capsys: pytest.CaptureFixture[str]) -> None:
    for options, says in ((["--steps", str(WARMUP)], "--steps: got 3"), (["--gpus", "0"], "--gpus: got 0")):
        with pytest.raises(SystemExit):
            scaling.main([*TINY, *options])
        assert says in capsys.readouterr().err
