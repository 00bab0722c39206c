"""benchmarks.sampled_epoch: what it measures of epochs and of stages, and that its clock ends it."""

from __future__ import annotations

import itertools
from argparse import Namespace

import pytest

from benchmarks.sampled_epoch import STAGES, Clock, Trained, measure_training
from gnnsparse.data import graph_like
from gnnsparse.precision import Precision

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
