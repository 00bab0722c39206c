"""Operations and models on two GPUs against one, by NCCL. They need two GPUs of one machine."""

from collections.abc import Iterator

import pytest
import torch

from tests.distributed import test_products as checks
from tests.distributed import test_trainings as trainings
from tests.distributed.ranks import Ranks

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs"),
]


@pytest.fixture(scope="module")
def gpus() -> Iterator[Ranks]:
    found = Ranks([2], "cuda")
    yield found
    found.close()


@pytest.mark.parametrize("precision", ["fp32", "tf32", "fp16", "bf16"])
@pytest.mark.parametrize("nodes", [2, 90, 700])
def test_products(gpus: Ranks, nodes: int, precision: str) -> None:
    gpus.run(2, checks.products, nodes, 7, precision, 72)


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_features_that_stay_as_they_are(gpus: Ranks, precision: str) -> None:
    gpus.run(2, checks.fetched_once, precision, "auto")


@pytest.mark.parametrize("nodes", [2, 90])
def test_reductions_edge_values_and_attention(gpus: Ranks, nodes: int) -> None:
    gpus.run(2, checks.reductions, nodes, 13)
    gpus.run(2, checks.edge_operations, nodes, 17)
    gpus.run(2, checks.attentions, nodes, 19, 4)


@pytest.mark.parametrize("case", checks.CASES, ids=lambda case: f"{case[0]}-{case[1]}")
def test_two_steps_of_a_model(gpus: Ranks, case: tuple) -> None:
    gpus.run(2, checks.model_steps, *case)


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("way", ["halo", "gather", "features"])
def test_captured_as_launched_one_by_one(gpus: Ranks, way: str, precision: str) -> None:
    """With dropout, batch normalisation over both GPUs and a gradient scaler: the same bits."""
    options = {"samples": False, "way": way, "precision": precision, "schedule": "none"}
    gpus.run(2, trainings.captured, options)
    # The input of the first layer stays as it is, and is fetched before steps are captured.
    gpus.run(2, trainings.captured, {**options, "dropout": 0.0})


def test_samples(gpus: Ranks) -> None:
    """The steps of one GPU, on two, in CUDA graphs: most of their losses."""
    one = trainings.train(None, device="cuda")
    for found in gpus.run(2, trainings.shared, {"device": "cuda"}):
        torch.testing.assert_close(found["losses"], one["losses"], rtol=1e-4, atol=1e-5)
    gpus.run(2, trainings.shared, {"device": "cuda", "norm": "batch", "batch_size": 33})


@pytest.mark.parametrize("options", [{}, {"norm": "batch"}, {"missing": True}], ids=str)
def test_captured_steps_on_samples(gpus: Ranks, options: dict) -> None:
    """With a schedule; the last step of an epoch is smaller, and is launched by itself."""
    gpus.run(2, trainings.captured, options)
