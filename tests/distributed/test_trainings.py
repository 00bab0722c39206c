"""Trainings on several ranks: blocks of steps, captures, a divided optimiser, with gloo on CPUs."""

from pathlib import Path

import pytest

from tests.distributed import trainings
from tests.distributed.ranks import Ranks


@pytest.mark.slow
@pytest.mark.parametrize("way", ["halo", "features"])
def test_blocks_of_steps_compute_what_single_steps_do(ranks: Ranks, way: str) -> None:
    """With dropout and batch normalisation; every rank replays as often as the others."""
    for counts in ranks.run(2, trainings.in_blocks, way):
        assert counts == {"first": 2, "recorded": 2, "replayed": 14}  # 12 steps and 4 validations


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
    folder = str(tmp_path / "run")
    ranks.run(2, trainings.begun, folder, before)
    whole = ranks.run(2, trainings.uninterrupted)[0]
    for losses in ranks.run(2, trainings.resumed, folder, after):
        assert losses == whole[6:]
    # Three ranks have other numbers of dropout, and other shares.
    assert [len(losses) for losses in ranks.run(3, trainings.resumed, folder, after)] == [6] * 3
