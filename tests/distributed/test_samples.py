"""Training on samples on several ranks, with gloo on CPUs: what one process computes, in shares."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from gnnsparse.train.tasks import RunOptions
from tests.distributed import samples
from tests.distributed.ranks import Ranks
from tests.distributed.trainings import same_weights


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize(
    "options", [{}, {"missing": True}, {"batch_size": 33}], ids=["", "missing", "of one"]
)
def test_ranks_compute_the_steps_of_one_process(ranks: Ranks, size: int, options: dict[str, Any]) -> None:
    """With 33 nodes a step, the last one of an epoch has one node, and all ranks but one have none."""
    one = samples.train(None, **options)
    first, *others = ranks.run(size, samples.shared, options)
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
    first, *others = ranks.run(size, samples.in_blocks, options)
    assert first["counts"] == {"first": 1, "recorded": 1, "replayed": 3 * 3 - 1}
    for other in others:
        assert (other["counts"], other["losses"]) == (first["counts"], first["losses"])
        same_weights(first, other)


def test_a_sample_without_room_on_one_rank_is_replayed_on_none(ranks: Ranks) -> None:
    first, other = ranks.run(2, samples.in_blocks, {}, True)
    assert other["counts"] == first["counts"]
    assert 0 < first["counts"]["replayed"] < 3 * 3 - 1


@pytest.mark.parametrize("batch_size", [16, 33])
def test_an_epoch_takes_every_training_node_once(ranks: Ranks, batch_size: int) -> None:
    found = ranks.run(3, samples.taken, batch_size)
    nodes = samples.dataset_of(False).train_mask.nonzero().flatten().tolist()
    # A share of 0 stands for a rank that no node was left for.
    assert sorted(n for steps in found for own, share in steps for n in own if share) == nodes
    for step in zip(*found, strict=True):
        assert sum(share for _, share in step) == pytest.approx(1)
        counts = [len(own) for own, share in step if share]
        assert max(counts) - min(counts) <= 1


def test_checkpoints_go_on_with_another_number_of_ranks(ranks: Ranks, tmp_path: Path) -> None:
    whole = samples.train(None)["losses"]
    folder = str(tmp_path / "run")
    ranks.run(2, samples.begun, folder)
    for losses in ranks.run(3, samples.resumed, folder):
        assert len(losses) == 8
        torch.testing.assert_close(losses, whole[4:], rtol=1e-4, atol=1e-5)


def test_batch_normalisation_counts_nodes_anew(ranks: Ranks) -> None:
    for size in (2, 3):
        ranks.run(size, samples.batch_norms)


def test_batch_normalisation_of_samples_repeats_bit_for_bit(ranks: Ranks) -> None:
    options = {"norm": "batch", "batch_size": 33}
    first, *others = ranks.run(3, samples.shared, options)
    for other in others:
        same_weights(first, other)


@pytest.mark.parametrize(("name", "got"), [("way", "halo"), ("parts", "metis")])
def test_how_products_are_shared_has_no_meaning_on_samples(name: str, got: str) -> None:
    run: RunOptions = samples.run_of(None, **{name: got})
    expected = rf"trainer\.{name}: got '{got}'; accepted: auto, as each device has the whole graph"
    with pytest.raises(ValueError, match=expected):
        samples.task().check(run)
