"""The messages on docs/howto/troubleshooting.md are those that the package gives."""

from __future__ import annotations

import doctest
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import gnnsparse
import train
from gnnsparse.data import CATALOG, load_dataset
from gnnsparse.nn import GATConv, GCNConv
from gnnsparse.ops import arguments
from gnnsparse.sparse.operand import operand_of
from gnnsparse.train import resolve_device
from gnnsparse.train.folders import RunFolder
from launch.words import check_words
from models import MODELS
from tests.configs import CONFIGS
from tests.docs.blocks import ROOT

PAGE = ROOT / "docs" / "howto" / "troubleshooting.md"
EDGES = torch.tensor([[0, 1], [1, 2]])


def quoted() -> list[str]:
    """The messages of the page, which are its headings."""
    return re.findall(r"^### `(.*)`$", PAGE.read_text(), re.MULTILINE)


def prepare(edges: torch.Tensor = EDGES, **options: Any) -> gnnsparse.SparseOperand:
    return gnnsparse.prepare(edges, **{"num_nodes": 3, "cache": False, **options})


def without_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arguments, "_native", type("Native", (), {"has_cuda": False}))
    arguments.require_kernels("cuda")


def without_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    resolve_device("cuda")


def twice(folder: Path) -> None:
    RunFolder.claim(folder, option="hydra.run.dir").finish()
    (folder / "result.json").write_text("{}")
    RunFolder.claim(folder, option="hydra.run.dir")


def diverge() -> None:
    dataset = load_dataset("digits")
    gnnsparse.fit(GCNConv(dataset.num_features, dataset.num_classes), dataset, lr=1e30, epochs=3)


def capture(monkeypatch: pytest.MonkeyPatch) -> None:
    from gnnsparse.train import FullGraphData, NodeClassifier, OptimizerConfig, TrainerConfig, fit

    dataset = load_dataset("digits")
    data = FullGraphData(dataset, values="gcn", device="cpu")
    model = GCNConv(dataset.num_features, dataset.num_classes)
    settings = OptimizerConfig(decay="all")
    fit(NodeClassifier(model, dataset, settings, 1), data, TrainerConfig(max_epochs=1, capture="on"))


def load_cora(folder: Path) -> None:
    try:
        load_dataset("cora", root=str(folder))
    except RuntimeError as error:
        train.refuse_data(error)


def test_every_message_is_raised(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GNNSPARSE_DATA_DIR", str(tmp_path / "data"))
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    (tmp_path / "file").touch()
    adj, x = prepare(), torch.randn(3, 4)
    raised: list[Callable[[], Any]] = [
        lambda: without_kernels(monkeypatch),
        lambda: without_gpu(monkeypatch),
        lambda: prepare(torch.tensor([[0, 1], [1, 7]])),
        lambda: prepare(torch.tensor([[0, 10**9], [1, 2]]), num_nodes=None),
        lambda: adj @ x.double(),
        lambda: adj @ torch.randn(5, 4),
        lambda: prepare(values=torch.tensor([1e6, 1.0]), precision="fp16"),
        lambda: operand_of(12345),
        lambda: GCNConv(4, 2)(x, adj),
        lambda: GATConv(4, 2)(x, adj),
        lambda: check_words(["model.hiden=3"], CONFIGS, {"dataset": CATALOG, "model": MODELS}),
        lambda: load_cora(tmp_path / "nothing"),
        lambda: twice(tmp_path / "run"),
        diverge,
        lambda: capture(monkeypatch),
        lambda: prepare(cache=tmp_path / "file" / "cache"),
        lambda: prepare(cache=shared),
    ]
    messages = quoted()
    assert len(messages) == len(raised)
    same = doctest.OutputChecker().check_output
    for message, call in zip(messages, raised, strict=True):
        with warnings.catch_warnings():
            warnings.simplefilter("error", gnnsparse.CacheWarning)
            with pytest.raises(Exception) as got:  # noqa: PT011, the message is compared below
                call()
        assert same(f"{message}\n", f"{got.value}\n", doctest.ELLIPSIS), f"{message}\n{got.value}"
