"""One file of each kind in its folder: it is found, offered and used, without a change to another file."""

from __future__ import annotations

import contextlib
import importlib
import json
import runpy
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import gnnsparse
import gnnsparse.nn
import train
from gnnsparse.cli import main as cli
from gnnsparse.data import CATALOG, GENERATED_GRAPHS
from gnnsparse.formats import FORMAT_NAMES
from gnnsparse.preprocess.reorder import REORDERINGS
from gnnsparse.registry import discover
from gnnsparse.train.tasks import TASKS
from launch.study.settings import experiments
from models import MODELS
from tests.configs import composed

pytestmark = pytest.mark.usefixtures("registrations")

PACKAGES = ("formats", "preprocess.reorder", "data", "nn", "train.tasks")

FILES = {
    "formats/tall.py": """
        from gnnsparse.formats.registry import register_preset
        from gnnsparse.formats.spec import FormatSpec
        from gnnsparse.precision import Precision

        register_preset(
            FormatSpec("tall", window=16, panel=16, block=4, brick=4, encoding="dense"),
            source="a test",
            precisions=tuple(Precision),
        )
        """,
    "preprocess.reorder/backwards.py": """
        import torch

        from gnnsparse.preprocess.reorder.registry import register_reordering


        @register_reordering("backwards")
        def backwards(csr):
            return torch.arange(csr.rows - 1, -1, -1)
        """,
    "data/circle.py": """
        import torch

        from gnnsparse import SparseGraph
        from gnnsparse.data.datasets import NodeDataset
        from gnnsparse.data.catalog import register_dataset


        @register_dataset("circle", task="angle")
        def load_circle(nodes: int = 40, split: int = 0):
            ids = torch.arange(nodes)
            graph = SparseGraph.from_edge_index(torch.stack([ids, (ids + 1) % nodes]), nodes)
            angle = ids * (2 * torch.pi / nodes)
            x, part = torch.stack([angle.cos(), angle.sin()], 1), (ids + split) % 3
            masks = [part == k for k in range(3)]
            return NodeDataset("circle", graph, x, torch.zeros_like(ids), *masks, num_classes=2)
        """,
    "nn/next_conv.py": """
        import torch

        __all__ = ["NextConv", "HELP"]
        HELP = "no layer"


        class NextConv(torch.nn.Module):
            def __init__(self, in_channels, out_channels):
                super().__init__()
                self.lin = torch.nn.Linear(in_channels, out_channels)

            def forward(self, x, adj):
                return adj @ self.lin(x)
        """,
    "models/follower.py": """
        import torch

        from gnnsparse.nn.next_conv import NextConv
        from models.registry import register_model


        @register_model("follower", task="angle")
        class Follower(torch.nn.Module):
            def __init__(self, in_channels, out_channels, layers: int = 1):
                super().__init__()
                assert layers == 1
                self.conv = NextConv(in_channels, out_channels)

            @property
            def first_layer(self):
                return self.conv

            def forward(self, x, adj):
                return self.conv(x, adj)
        """,
    "train.tasks/angle.py": """
        from gnnsparse.train import FullGraphData, TaskModule
        from gnnsparse.train.tasks import Task, register_task


        class AngleModule(TaskModule):
            score_name = "closeness"

            def loss(self, batch, part):
                found = self.model(batch.x, batch.adj)
                return (found - batch.x.roll(2, 0))[part.nodes].square().mean()

            def training_step(self, batch):
                return self.loss(batch, batch.train)

            def validation_step(self, batch):
                loss = self.loss(batch, batch.val)
                return {"loss": loss, "closeness": 1 - loss}

            def test_step(self, batch):
                for part in ("train", "val", "test"):
                    loss = self.loss(batch, getattr(batch, part))
                    self.log(part + "/closeness", 1 - loss, logger=False, batch_size=1)


        class AngleTask(Task):
            name = "angle"
            data = FullGraphData
            steps_per_epoch = 1

            def make_module(self, model, data, run):
                return AngleModule(model, run.optimizer, run.trainer.max_epochs)

            def describe(self, data, run):
                return {"angles": data.dataset.num_nodes}


        register_task(AngleTask())
        """,
}


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """A folder with one file of each kind."""
    for name, text in FILES.items():
        path = tmp_path / "files" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
    return tmp_path / "files"


@pytest.fixture
def found(files: Path, monkeypatch: pytest.MonkeyPatch, registrations: None) -> Iterator[None]:
    """The files lie in their packages."""
    packages = [*(f"gnnsparse.{name}" for name in PACKAGES), "models"]
    exported = list(gnnsparse.nn.__all__)
    try:
        for name in packages:
            package = importlib.import_module(name)
            more = str(files / name.removeprefix("gnnsparse."))
            monkeypatch.setattr(package, "__path__", [*package.__path__, more])
            if name != "gnnsparse.train.tasks":
                discover(name)
        gnnsparse.nn.find_layers()
        yield
    finally:
        gnnsparse.nn.__all__[:] = exported
        for name in FILES:
            file = f"gnnsparse.{name}".removesuffix(".py").replace("/", ".")
            parent, _, child = file.replace("gnnsparse.models", "models").rpartition(".")
            if sys.modules.pop(f"{parent}.{child}", None) is not None:
                vars(sys.modules[parent]).pop(child, None)
        vars(gnnsparse.nn).pop("NextConv", None)
        TASKS._entries.pop("angle", None)


@pytest.mark.usefixtures("found")
def test_one_file_each_trains_together(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cfg = composed(
        "model=follower", "dataset=circle", "dataset.nodes=30", "preprocess.reorder=backwards",
        "preprocess.format=tall", "preprocess.cache=false", "trainer.max_epochs=300", "optimizer.lr=0.05",
        "optimizer.weight_decay=0", "trainer.progress=false", "device=cpu",
    )  # fmt: skip
    score = train.run(cfg, tmp_path)
    result = json.loads((tmp_path / "result.json").read_text())
    assert (result["model"], result["dataset"], result["angles"]) == ("follower", "circle", 30)
    assert result["metrics"]["test"]["closeness"] == score > 0.999
    assert "follower on circle" in capsys.readouterr().out
    refused = composed("model=gcn", "dataset=circle")
    with pytest.raises(ValueError, match="model: got gcn for circle, a data set of angles; accepted: foll"):
        train.read_settings(refused)


@pytest.mark.usefixtures("found")
def test_layers_are_found() -> None:
    from gnnsparse.nn import NextConv  # type: ignore[attr-defined]

    assert NextConv(2, 3)(torch.ones(4, 2), torch.eye(4)).shape == (4, 3)
    assert "NextConv" in gnnsparse.nn.__all__
    assert not hasattr(gnnsparse.nn, "HELP")


def test_two_layers_of_one_name(files: Path, request: pytest.FixtureRequest) -> None:
    path = files / "nn" / "next_conv.py"
    path.write_text(path.read_text().replace("NextConv", "GCNConv"))
    (files / "models" / "follower.py").unlink()
    with pytest.raises(ValueError, match=r"layer: got 'GCNConv' in gnnsparse.nn.next_conv; accepted: a name"):
        request.getfixturevalue("found")


@pytest.mark.usefixtures("found")
def test_help_shows_every_registry(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """That of train.py and of the benchmark, with what is in the tree and with one more file of each kind."""
    monkeypatch.setattr(sys, "argv", [train.__file__, "--help"])
    with contextlib.suppress(SystemExit):
        runpy.run_path(train.__file__, run_name="__main__")
    shown = " ".join(capsys.readouterr().out.split())
    studies = ", ".join(experiments())
    assert {"circle", "follower"} <= {*CATALOG, *MODELS}
    groups = f"dataset: {', '.join(sorted(CATALOG))} experiment: {studies} model: {', '.join(sorted(MODELS))}"
    assert f"{groups} optimizer:" in shown
    assert REORDERINGS[-1] == "backwards"
    assert f"preprocess.reorder: {', '.join(REORDERINGS)} preprocess.format:" in shown
    assert FORMAT_NAMES[-1] == "tall"
    assert f"preprocess.format: {', '.join(FORMAT_NAMES)} preprocess.balance:" in shown
    for option, names in train.choices().items():
        assert f"{option}: {', '.join(names)}" in shown
    with pytest.raises(SystemExit):
        cli.main(["bench", "kernels", "--help"])
    shown = " ".join(capsys.readouterr().out.split())
    assert ", ".join(REORDERINGS) in shown
    assert ", ".join(GENERATED_GRAPHS) in shown
