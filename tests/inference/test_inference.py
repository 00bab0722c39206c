"""gnnsparse.load and Predictor: the model of a checkpoint and its predictions, and what is refused."""

from __future__ import annotations

import dataclasses
import functools
import os
from pathlib import Path
from typing import Any

import pytest
import torch

import gnnsparse
from gnnsparse import masks
from gnnsparse.data import NodeDataset
from gnnsparse.inference import LoadedModel, LoadError, Predictor
from gnnsparse.registry import Registry
from gnnsparse.train import (
    FullGraphData,
    OptimizerConfig,
    SequenceClassifier,
    SequenceData,
    TrainerConfig,
    fit,
)
from gnnsparse.train.checkpoint import MODEL, SUM, best_sum
from gnnsparse.train.trained import ModelRecipe
from models import GCN, MODELS, Transformer
from tests.helpers import PRECISIONS
from tests.tasks import prepared, toy_sequences, toy_task, train_toy

RECIPE = ModelRecipe("models:MODELS", "gcn", {"hidden_channels": 16}, 8, 3, values="gcn")


def trained(
    folder: Path, task: NodeDataset | None = None, device: str = "cpu", recipe: ModelRecipe | None = RECIPE
) -> tuple[torch.nn.Module, FullGraphData]:
    """A model after a short run, with the weights of the best epoch, and its data."""
    task = task or toy_task()
    precision = "fp32" if recipe is None else recipe.precision
    data = {"precision": precision, "device": device}
    _, module = train_toy(folder, task, data=data, given={"recipe": recipe})
    return module.model.to(device).eval(), prepared(task, **data)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, torch.nn.Module, FullGraphData]:
    folder = tmp_path_factory.mktemp("run")
    return folder, *trained(folder)


Run = tuple[Path, torch.nn.Module, FullGraphData]


@pytest.mark.parametrize("of", ["", "checkpoints/best.ckpt"])
def test_the_best_model_of_a_run(of: str, run: Run) -> None:
    folder, model, data = run
    loaded = gnnsparse.load(folder / of, device="cpu")
    assert isinstance(loaded, LoadedModel)
    assert isinstance(loaded.module, GCN)
    assert not loaded.module.training
    assert loaded.recipe == RECIPE
    with torch.no_grad():
        want = model(data.batch.x, data.batch.adj)
    prediction = loaded.predict(data.dataset.x, data.batch.adj)
    assert torch.equal(prediction.logits, want)
    assert torch.equal(prediction.classes, want.argmax(dim=1))
    assert torch.equal(prediction.probabilities, want.softmax(dim=1))
    assert not prediction.logits.requires_grad
    # A graph is prepared as the model needs it.
    assert torch.equal(loaded.predict(data.dataset.x, data.dataset.graph).logits, want)


def test_the_last_weights_of_a_run(run: Run) -> None:
    folder, _, data = run
    last = folder / "checkpoints" / "last.ckpt"
    weights = torch.load(last, weights_only=True)["state_dict"]
    loaded = gnnsparse.load(str(last), device="cpu")
    assert {f"model.{name}" for name in loaded.module.state_dict()} == set(weights)
    for name, tensor in loaded.module.state_dict().items():
        assert torch.equal(tensor, weights[f"model.{name}"])
    assert loaded.predict(data.dataset.x, data.batch.adj).logits.shape == (60, 3)


def test_several_labels(tmp_path: Path) -> None:
    task = toy_task(classes=4, metric="micro_f1")
    recipe = dataclasses.replace(RECIPE, out_channels=4, several_labels=True)
    _, data = trained(tmp_path, task, recipe=recipe)
    prediction = gnnsparse.load(tmp_path, device="cpu").predict(task.x, data.batch.adj)
    assert prediction.classes.dtype == torch.bool
    assert torch.equal(prediction.classes, prediction.probabilities > 0.5)
    assert prediction.classes.any()
    assert not torch.allclose(prediction.probabilities.sum(dim=1), torch.ones(60))


def test_sequences(tmp_path: Path) -> None:
    task = toy_sequences()
    data = SequenceData(task, masks.window(task.length, 2), batch_size=25)
    torch.manual_seed(0)
    model = Transformer(task.vocabulary, 8, task.num_classes, num_layers=1, heads=2)
    options = {"hidden_channels": 8, "num_layers": 1, "heads": 2}
    recipe = ModelRecipe("models:MODELS", "transformer", options, task.vocabulary, 2, task="sequence")
    module = SequenceClassifier(model, task, OptimizerConfig(decay="all"), 2)
    fit(module, data, TrainerConfig(max_epochs=1, progress=False), folder=tmp_path, recipe=recipe)
    loaded = gnnsparse.load(tmp_path, device="cpu")
    tokens = task.test.tokens
    with torch.no_grad():
        want = model.eval()(tokens, data.adj, tokens == 0)
    assert torch.equal(loaded.predict(tokens, data.adj).logits, want)
    assert torch.equal(loaded.predict(tokens, data.adj, tokens == 0).logits, want)
    predictor = Predictor(loaded, tokens, data.adj, tokens == 0)
    assert torch.equal(predictor(tokens.flip(0), (tokens == 0).flip(0)), want.flip(0))
    for bad in (tokens - 9, tokens + 99):
        with pytest.raises(ValueError, match=r"x: has tokens from .*; accepted: tokens from 0 to 4"):
            loaded.predict(bad, data.adj)
    with pytest.raises(ValueError, match="padding"):
        loaded.predict(tokens, data.adj, torch.zeros(3, 3, dtype=torch.bool))


def test_arguments_of_predict(run: Run) -> None:
    folder, _, data = run
    loaded, x, adj = gnnsparse.load(folder, device="cpu"), data.dataset.x, data.batch.adj
    wanted: Any = [
        (ValueError, "x: ", x[:9], adj), (ValueError, "x: ", x[:, :5], adj),
        (TypeError, "x: ", x.long(), adj),
        (TypeError, "x: ", x.tolist(), adj), (TypeError, "graph", x, "cora"),
        (ValueError, "padding: goes with models of sequences", x, adj, x > 0),
    ]  # fmt: skip
    for error, says, *arguments in wanted:
        with pytest.raises(error, match=says):
            loaded.predict(*arguments)
    other_task = dataclasses.replace(loaded.recipe, task="edge")
    with pytest.raises(ValueError, match="task: 'edge' is unknown here; accepted: node, graph, sequence"):
        LoadedModel(other_task, loaded.module, loaded.device).predict(x, adj)


def written(folder: Path, run: Run, resum: bool = True, **changes: Any) -> Path:
    """A best.ckpt with other contents, with a right checksum or without; a value of None removes a key."""
    content = torch.load(run[0] / "checkpoints" / "best.ckpt", weights_only=True)
    content = {name: value for name, value in {**content, **changes}.items() if value is not None}
    if resum:
        content[SUM] = best_sum(content)
    torch.save(content, folder / "changed.ckpt")
    return folder / "changed.ckpt"


def other(**changes: Any) -> dict[str, Any]:
    return {**RECIPE.to_dict(), **changes}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({MODEL: None}, "does not say what its model is"),
        ({"state_dict": None}, "no checkpoint of a run .the file lacks state_dict"),
        ({"state_dict": {"a": 1}}, "state_dict.a is a int, not a tensor"),
        ({MODEL: "gcn"}, "recipe: has 'gcn'"),
        ({MODEL: {"name": "gcn"}}, "recipe: has name"),
        ({MODEL: other(registry="no_such_package:MODELS")}, "registry: no_such_package can't be imported"),
        ({MODEL: other(registry="models:GCN")}, "registry: models:GCN is no Registry"),
        ({MODEL: other(registry="os:system")}, "registry: os:system is no Registry"),
        ({MODEL: other(registry="models")}, "registry: got 'models'; accepted: 'MODULE:NAME'"),
        ({MODEL: other(registry="../x:Y")}, "registry: got '../x:Y'"),
        ({MODEL: other(name="resnet")}, "name: got 'resnet'; accepted by models:MODELS: gcn"),
        ({MODEL: other(options={"width": 3})}, "options of gcn"),
        ({MODEL: other(options={"hidden_channels": -3})}, "options of gcn"),
        ({MODEL: other(options=[3])}, "options: got"),
        ({MODEL: other(options={"hidden_channels": 99})}, r"is \(16,\); accepted: \(99,\)"),
        ({MODEL: other(options={"hidden_channels": 16, "num_layers": 3})}, r"is \(3,\); accepted: \(16,\)"),
        ({MODEL: other(in_channels=2**30, options={"hidden_channels": 2**30})}, "accepted: "),
        ({MODEL: other(in_channels=2.5)}, "in_channels: got 2.5"),
        ({MODEL: other(task=3)}, "task: got 3; accepted: the name of a task"),
        ({MODEL: other(values="median")}, "values: got 'median'"),
        ({MODEL: other(several_labels=1)}, "several_labels: got 1"),
        ({MODEL: other(precision="fp7")}, "precision: got 'fp7'"),
        ({MODEL: other(run={"a": float("nan")})}, "run.a: got nan"),
    ],
    ids=lambda value: "" if isinstance(value, str) else str(value)[:60],
)  # fmt: skip
def test_checkpoints_that_name_no_model(changes: dict[str, Any], says: str, run: Run, tmp_path: Path) -> None:
    with pytest.raises(LoadError, match=says):
        gnnsparse.load(written(tmp_path, run, **changes), device="cpu")


def test_files_that_are_no_checkpoints(run: Run, tmp_path: Path) -> None:
    best = run[0] / "checkpoints" / "best.ckpt"
    for content in (b"", b"nonsense", best.read_bytes()[:-2000]):
        (tmp_path / "bad.ckpt").write_bytes(content)
        with pytest.raises(LoadError, match=r"bad\.ckpt is no checkpoint of a run"):
            gnnsparse.load(tmp_path / "bad.ckpt")
    with pytest.raises(LoadError, match="do not match their checksum"):
        gnnsparse.load(written(tmp_path, run, resum=False, epoch=3))
    for missing in (tmp_path / "none.ckpt", tmp_path, "a" * 5000, "a\0b"):
        with pytest.raises(LoadError, match="there is no file"):
            gnnsparse.load(missing)
    with pytest.raises(TypeError, match="source: got int"):
        gnnsparse.load(3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="device: got 'tpu'"):
        gnnsparse.load(best, device="tpu")


class _Code:
    """Pickled as a call, which an unpickler that runs code would make."""

    def __reduce__(self) -> Any:
        return os.mkdir, ("ran",)


@pytest.mark.parametrize("key", ["state_dict", MODEL, "epoch"])
def test_files_can_not_run_code(key: str, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    content = torch.load(run[0] / "checkpoints" / "best.ckpt", weights_only=True)
    torch.save({**content, key: _Code()}, "code.ckpt")
    with pytest.raises(LoadError, match="torch can't read it"):
        gnnsparse.load("code.ckpt")
    assert not Path("ran").exists()


def test_with_a_registry_none_is_imported(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "harmful.py").write_text("raise AssertionError('imported')")
    file = written(tmp_path, run, **{MODEL: other(registry="harmful:MODELS")})
    monkeypatch.syspath_prepend(tmp_path)
    loaded = gnnsparse.load(file, device="cpu", registry=MODELS)
    assert isinstance(loaded.module, GCN)
    with pytest.raises(LoadError, match="name: got 'gcn'"):
        gnnsparse.load(file, registry=Registry("model"))


def test_a_recipe_and_its_plain_values() -> None:
    recipe = dataclasses.replace(RECIPE, options={"a": [1, 2.5, None, "x", True]}, run={"dataset": {"b": 1}})
    assert ModelRecipe.read(recipe.to_dict()) == recipe
    nested: dict[str, Any] = {}
    for _ in range(20):
        nested = {"a": nested}
    with pytest.raises(ValueError, match=r"options\.a.*: is nested too deeply"):
        dataclasses.replace(RECIPE, options=nested)


def test_a_predictor_on_the_cpu(run: Run) -> None:
    _, model, data = run
    x, adj = data.dataset.x, data.batch.adj
    predictor = Predictor(model, x, adj)
    assert not predictor.captured
    assert predictor.problem == "CUDA graphs need a GPU, and the operand is on cpu"
    with torch.no_grad():
        for features in (x, x.flip(0), torch.randn_like(x)):
            kept = features.clone()
            assert torch.equal(predictor(features), model(features, adj))
            assert torch.equal(features, kept)
        assert torch.equal(predictor(), model(features, adj))  # those of the last call


def test_what_a_predictor_refuses(run: Run) -> None:
    _, model, data = run
    x, adj = data.dataset.x, data.batch.adj
    predictor, make = Predictor(model, x, adj), functools.partial(Predictor, model, x, adj)
    wanted: Any = [
        (r"x: got float32 \[9, 8\] on cpu; accepted: float32 \[60, 8\] on cpu, as in the", predictor, x[:9]),
        (r"x: got float64 \[60, 8\] on cpu", predictor, x.double()),
        ("x: got list", predictor, x.tolist()),
        ("more: got 1 arguments; accepted: at most 0", predictor, x, x),
        ("adj: got ", Predictor, model, x, data.dataset.graph),
        ("model: got ", Predictor, lambda x, adj: x, x, adj),
        ("model: is in training mode", Predictor, GCN(8, 16, 3), x, adj),
        ("capture: got 'on', but CUDA graphs need a GPU", lambda: make(capture="on")),
        ("capture: got 'maybe'", lambda: make(capture="maybe")),
    ]
    for says, call, *arguments in wanted:
        error = TypeError if says in ("x: got list", "adj: got ", "model: got ") else ValueError
        with pytest.raises(error, match=says):
            call(*arguments)


@pytest.mark.gpu
@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_captured_predictor(precision: str, tmp_path: Path) -> None:
    """As the model itself, with new features, on a GPU or the CPU, and after its weights were changed."""
    recipe = dataclasses.replace(RECIPE, precision=precision)
    task = toy_task(nodes=600)
    _, data = trained(tmp_path, task, "cuda", recipe)
    loaded = gnnsparse.load(tmp_path, device="cuda")
    adj = data.batch.adj
    predictor = Predictor(loaded, task.x.cuda(), adj, capture="on")
    assert (predictor.captured, predictor.problem) == (True, None)
    for _ in range(3):
        x = torch.randn(600, 8).to(data.batch.x.dtype)
        for features in (x.cuda(), x):
            want = loaded.predict(features, adj).logits
            assert torch.equal(predictor(features).float(), want)
        with torch.no_grad():
            next(loaded.module.parameters()).mul_(1.5)
    with pytest.raises(ValueError, match="x: got"):
        predictor(x[:5].cuda())


class _Asks(torch.nn.Module):
    """Waits for the GPU, which a capture forbids."""

    def forward(self, x: torch.Tensor, adj: Any) -> torch.Tensor:
        return adj @ x if float(x.sum()) > 0 else -x


@pytest.mark.gpu
def test_a_predictor_that_can_not_be_captured() -> None:
    data = prepared(toy_task(), device="cuda")
    x, adj = data.batch.x.abs(), data.batch.adj
    message = "capture: got 'on', but the model can't be captured in a CUDA graph"
    with pytest.raises(ValueError, match=message):
        Predictor(_Asks().eval(), x, adj, capture="on")
    predictor = Predictor(_Asks().eval(), x, adj)
    assert str(predictor.problem).startswith("the model can't be captured in a CUDA graph: ")
    assert torch.equal(predictor(2 * x), adj @ (2 * x))
