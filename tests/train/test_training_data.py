"""FullGraphData: one batch, prepared once, on the device once."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
import torch

from gnnsparse.testing import assert_accurate
from gnnsparse.train import FullGraphData, PreprocessConfig
from tests.helpers import PRECISIONS, dense_matrix, plain_product
from tests.tasks import prepared, toy_task


def test_the_batch_is_the_data_set(device: str) -> None:
    task = toy_task()
    batch = prepared(task, device=device).batch
    masks = {"train": task.train_mask, "val": task.val_mask, "test": task.test_mask}
    assert torch.equal(batch.x.cpu(), task.x)
    for name, part in batch.parts.items():
        assert torch.equal(part.nodes.cpu(), masks[name].nonzero().flatten())
        assert torch.equal(part.y.cpu(), task.y[masks[name]])
        assert part.nodes.device.type == device
    x = torch.randn(task.num_nodes, 5, device=device)
    dense = dense_matrix(task.graph, "gcn")
    assert_accurate(batch.adj @ x, plain_product(dense, x.cpu(), "fp32"), dense @ x.double().cpu())


@pytest.mark.parametrize("precision", PRECISIONS)
def test_precision(device: str, precision: str) -> None:
    """Features in 16 bits on a GPU alone: the CPU's dense layers stay float32."""
    data = prepared(toy_task(), precision=precision, device=device)
    assert data.batch.adj.precision == precision
    want = data.precision.storage if device == "cuda" else torch.float32
    assert data.batch.x.dtype == want


def test_the_second_time_comes_from_the_cache_wherever_it_is(own_cache: Path, tmp_path: Path) -> None:
    for folder, cache in ((tmp_path / "elsewhere", str(tmp_path / "elsewhere")), (own_cache, True)):
        FullGraphData(toy_task(), preprocess=PreprocessConfig(cache=False))
        assert not own_cache.exists()
        options = PreprocessConfig(cache=cache)
        first, second = (FullGraphData(toy_task(), precision=p, preprocess=options) for p in ("fp32", "fp16"))
        assert (first.cache_hit, second.cache_hit) == (False, True)
        assert first.preprocess_seconds > 0
        assert len(list(folder.glob("*.safetensors"))) == 1


@pytest.mark.parametrize(
    "options",
    [{"reorder": "degree"}, {"reorder": "rcm"}, {"format": "hrpb"}, {"format": "hrpb", "balance": "wave"}],
    ids=str,
)
def test_preprocessing_does_not_change_results(options: dict[str, str]) -> None:
    task, x = toy_task(), torch.randn(60, 4)
    precision = "tf32" if "format" in options else "fp32"  # that of cuTeSpMM's paper
    data = FullGraphData(task, precision=precision, preprocess=PreprocessConfig(cache=False, **options))
    stats = data.batch.adj.stats()
    assert options.get("format", "csr") == stats["format"]
    assert options.get("balance", "auto") == stats["balance"]
    assert options.get("reorder", "none") == stats["reorder"]["method"]
    dense = dense_matrix(task.graph, "gcn")
    assert_accurate(data.batch.adj @ x, plain_product(dense, x, precision), dense @ x.double())


def test_loaders_hand_out_the_batch_itself() -> None:
    data = prepared(toy_task())
    batch = data.batch
    assert all(item is batch for item in itertools.islice(data.train_dataloader(), 50))
    for loader in (data.val_dataloader(), data.test_dataloader()):
        assert [item is batch for item in loader] == [True]
    assert data.transfer_batch_to_device(batch, torch.device("cpu"), 0) is batch
    with pytest.raises(ValueError, match="device: the trainer runs on meta, the data was put on cpu"):
        data.transfer_batch_to_device(data.batch, torch.device("meta"), 0)
