"""Trainings on several ranks with gloo on CPUs: on samples, of which they compute shares, or the whole graph.

In blocks of steps, with captures that fail, with a divided optimiser, and resumed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from gnnsparse.train.tasks.node import NodeTask
from tests.distributed import trainings
from tests.distributed.ranks import Ranks
from tests.distributed.trainings import same_weights


@pytest.mark.slow
@pytest.mark.parametrize("way", ["halo", "features"])
def test_blocks_of_steps_compute_what_single_steps_do(ranks: Ranks, way: str) -> None:
    """With dropout and batch normalisation; every rank replays as often as the others."""
    for found in ranks.run(2, trainings.in_blocks, {"samples": False, "way": way, "schedule": "none"}):
        # 12 steps and 4 validations
        assert found["counts"] == {"first": 2, "recorded": 2, "replayed": 14}


@pytest.mark.slow
def test_a_capture_that_fails_on_one_rank_is_used_on_none(ranks: Ranks) -> None:
    why = "a step can't be captured in a CUDA graph: operation not permitted"
    for rank, (called, problem, refused, last) in enumerate(ranks.run(3, trainings.failed_captures)):
        assert (called, last) == ("called", "called")
        assert problem == (why if rank == 1 else f"on rank 1 {why}")
        assert refused == f"trainer.capture: got 'on', but {problem}; accepted: auto, off"


def test_ranks_agree_on_a_problem(ranks: Ranks) -> None:
    assert ranks.run(3, trainings.problems, [None] * 3) == [None] * 3
    found = ranks.run(3, trainings.problems, [None, "it rains", "it snows"])
    assert found == ["on rank 1 it rains", "it rains", "it snows"]


@pytest.mark.slow
def test_capture_is_refused_on_all_ranks_on_a_cpu(ranks: Ranks) -> None:
    for said in ranks.run(2, trainings.refused_capture):
        assert said.startswith("trainer.capture: got 'on', but CUDA graphs need a GPU")


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 3])
def test_a_divided_optimiser_computes_the_same_bits(ranks: Ranks, size: int) -> None:
    found = ranks.run(size, trainings.divided)
    whole = {count for count, _ in found}
    assert whole == {sum(share for _, share in found)}
    assert max(share for _, share in found) < 0.75 * max(whole)


@pytest.mark.parametrize(("before", "after"), [(True, False), (False, True), (True, True)])
def test_checkpoints_do_not_say_how_the_optimiser_was_divided(
    ranks: Ranks, tmp_path: Path, before: bool, after: bool
) -> None:
    folder, run = str(tmp_path / "run"), {"samples": False, "way": "halo"}
    ranks.run(2, trainings.begun, folder, {**run, "shard_optimizer": before, "max_epochs": 6})
    whole = ranks.run(2, trainings.resumed, None, run)[0]
    run["shard_optimizer"] = after
    for losses in ranks.run(2, trainings.resumed, folder, run):
        assert losses == whole[6:]
    # Three ranks have other numbers of dropout, and other shares.
    assert [len(losses) for losses in ranks.run(3, trainings.resumed, folder, run)] == [6] * 3


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize(
    "options", [{}, {"missing": True}, {"batch_size": 33}], ids=["", "missing", "of one"]
)
def test_ranks_compute_the_steps_of_one_process(ranks: Ranks, size: int, options: dict[str, Any]) -> None:
    """With 33 nodes a step, the last one of an epoch has one node, and all ranks but one have none."""
    one = trainings.train(None, **options)
    first, *others = ranks.run(size, trainings.shared, options)
    assert len(one["losses"]) == 12
    torch.testing.assert_close(first["losses"], one["losses"], rtol=1e-4, atol=1e-5)
    for name, tensor in one["weights"].items():
        torch.testing.assert_close(first["weights"][name], tensor, rtol=2e-3, atol=2e-4)
    for part, scores in one["metrics"].items():
        for name, score in scores.items():
            assert abs(first["metrics"][part][name] - score) <= 0.02
    for other in others:
        assert (other["losses"], other["metrics"]) == (first["losses"], first["metrics"])
        same_weights(first, other)
    assert first["described"]["devices"] == size
    assert "devices" not in one["described"]


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize(
    "options", [{}, {"missing": True}, {"norm": "batch"}], ids=["", "missing", "batch norm"]
)
def test_steps_in_place_are_those_of_single_samples(ranks: Ranks, size: int, options: dict[str, Any]) -> None:
    """Of four steps of an epoch the last one is smaller, and is launched by itself."""
    first, *others = ranks.run(size, trainings.in_blocks, options)
    assert first["counts"] == {"first": 1, "recorded": 1, "replayed": 3 * 3 - 1}
    for other in others:
        assert (other["counts"], other["losses"]) == (first["counts"], first["losses"])
        same_weights(first, other)


def test_a_sample_without_room_on_one_rank_is_replayed_on_none(ranks: Ranks) -> None:
    first, other = ranks.run(2, trainings.in_blocks, {}, True)
    assert other["counts"] == first["counts"]
    assert 0 < first["counts"]["replayed"] < 3 * 3 - 1


@pytest.mark.parametrize("batch_size", [16, 33])
def test_an_epoch_takes_every_training_node_once(ranks: Ranks, batch_size: int) -> None:
    found = ranks.run(3, trainings.taken, batch_size)
    nodes = trainings.dataset_of(False).train_mask.nonzero().flatten().tolist()
    # A share of 0 stands for a rank that no node was left for.
    assert sorted(n for steps in found for own, share in steps for n in own if share) == nodes
    for step in zip(*found, strict=True):
        assert sum(share for _, share in step) == pytest.approx(1)
        counts = [len(own) for own, share in step if share]
        assert max(counts) - min(counts) <= 1


def test_checkpoints_go_on_with_another_number_of_ranks(ranks: Ranks, tmp_path: Path) -> None:
    whole, folder = trainings.train(None)["losses"], str(tmp_path / "run")
    assert [len(losses) for losses in ranks.run(2, trainings.begun, folder, {"max_epochs": 1})] == [4, 4]
    for losses in ranks.run(3, trainings.resumed, folder, {}):
        assert len(losses) == 8
        torch.testing.assert_close(losses, whole[4:], rtol=1e-4, atol=1e-5)


def test_batch_normalisation_counts_nodes_anew(ranks: Ranks) -> None:
    for size in (2, 3):
        ranks.run(size, trainings.batch_norms)


def test_batch_normalisation_of_samples_repeats_bit_for_bit(ranks: Ranks) -> None:
    first, *others = ranks.run(3, trainings.shared, {"norm": "batch", "batch_size": 33})
    for other in others:
        same_weights(first, other)


@pytest.mark.parametrize(("name", "got"), [("way", "halo"), ("parts", "metis")])
def test_how_products_are_shared_has_no_meaning_on_samples(name: str, got: str) -> None:
    expected = rf"trainer\.{name}: got '{got}'; accepted: auto, as each device has the whole graph"
    with pytest.raises(ValueError, match=expected):
        NodeTask().check(trainings.run_of(None, **{name: got}))
