"""Model cards, models in folders of the hub's layout, without a network, and predictions on data sets."""

from __future__ import annotations

import contextlib
import importlib
import json
import logging
import math
import re
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pandas
import pytest
import torch
import yaml
from hypothesis import example, given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

import gnnsparse
from gnnsparse.cli.main import main
from gnnsparse.data import NodeDataset, load_custom, register_dataset
from gnnsparse.inference import LoadError
from gnnsparse.inference.card import card_text, write_card
from gnnsparse.inference.predict import match_features, predict_run, write_predictions
from gnnsparse.train.trained import ModelRecipe
from models import GCN, MODELS
from tests.own_graphs import arrays, write_tables
from tests.tasks import classifier, toy_task, train_toy

TASK = toy_task(nodes=60)
OPTIONS = {"hidden_channels": 8, "num_layers": 2}
TRAINED = {"dataset": {"name": "toy", "root": "/home/somebody/data/toy"}, "seed": 3}
INPUTS, OUTPUTS = TASK.num_features, TASK.num_classes
RECIPE = ModelRecipe("models:MODELS", "gcn", OPTIONS, INPUTS, OUTPUTS, values="gcn", run=TRAINED)
RESULT = {
    "dataset": "toy", "metrics": {"train": {"accuracy": 0.5}, "val": {"accuracy": 0.25},
    "test": {"accuracy": 0.125}}, "best_epoch": 3, "epochs": 7, "seed": 3, "device_name": "A CPU",
    "versions": {"gnnsparse": "1.2", "cuda": None}, "commit": "abc", "parameters": 12,
}  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run."""
    folder = tmp_path_factory.mktemp("run")
    module = classifier(TASK, 5, model=lambda inputs, _, outputs: GCN(inputs, 8, outputs))
    train_toy(folder, TASK, 5, module=module, given={"recipe": RECIPE})
    (folder / "result.json").write_text(json.dumps(RESULT))
    return folder


def test_a_card() -> None:
    text = card_text(RECIPE, RESULT, {"optimizer": {"lr": 0.5}})
    _, front, body = text.split("---\n", 2)
    assert yaml.safe_load(front) == {
        "library_name": "gnnsparse", "tags": ["graph-neural-network", "gcn", "node"], "datasets": ["toy"],
        "metrics": ["accuracy"],
    }  # fmt: skip
    assert (
        "| score | train | val | test |\n|---|---|---|---|\n| accuracy | 0.5000 | 0.2500 | 0.1250 |" in body
    )
    assert "After epoch 3, the best on the validation part, of 7." in body
    assert "* Model: `name=gcn`, `hidden_channels=8`, `num_layers=2`\n" in body
    assert "* Optimizer: `lr=0.5`\n" in body
    assert "`root=toy`" in body
    assert "somebody" not in body, "paths of a machine are not published"
    assert "| commit | abc |" in body
    assert "| versions | gnnsparse 1.2 |" in body
    assert 'gnnsparse.load("FOLDER")' in body
    assert "# gcn on toy" in body
    assert not re.search("## (Scores|Environment)", card_text(RECIPE, {}, {}))


def test_a_card_replaces_its_own_kind_alone(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("mine")
    assert write_card(tmp_path, RECIPE, RESULT, {}).name == "README-1.md"
    assert write_card(tmp_path, RECIPE, {**RESULT, "commit": "later"}, {}).name == "README-1.md"
    assert "later" in (tmp_path / "README-1.md").read_text()
    assert (tmp_path / "README.md").read_text() == "mine"


def test_a_folder_of_the_hub(run: Path, tmp_path: Path) -> None:
    """Weights, recipe and card; the loaded model computes the same."""
    hub = pytest.importorskip("gnnsparse.inference.hub")
    model = hub.HubModel.from_run(run, device="cpu")
    model.save_pretrained(tmp_path / "hub")
    names = {path.name for path in (tmp_path / "hub").iterdir()}
    assert names == {"README.md", "config.json", "model.safetensors"}
    card = (tmp_path / "hub" / "README.md").read_text()
    assert "| accuracy | 0.5000 | 0.2500 | 0.1250 |" in card
    want = gnnsparse.load(run, device="cpu").predict(TASK.x, TASK.graph).logits
    for loaded in (
        hub.HubModel.from_pretrained(tmp_path / "hub", device="cpu"),
        hub.HubModel.from_pretrained(str(tmp_path / "hub"), device="cpu", registry=MODELS),
        gnnsparse.load(tmp_path / "hub", device="cpu"),
    ):
        assert torch.equal(loaded.predict(TASK.x, TASK.graph).logits, want)
        assert loaded.recipe == model.recipe
        assert not loaded.module.training
    assert hub.HubModel.from_pretrained(tmp_path / "hub", device="cpu").result == RESULT


def test_an_upload_and_a_download(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mixin's, with a folder in the place of the network."""
    hub = pytest.importorskip("gnnsparse.inference.hub")
    import huggingface_hub.hub_mixin as mixin

    store, api = tmp_path / "store", mock.Mock()
    api.create_repo.return_value.repo_id = "somebody/toy"
    api.upload_folder.side_effect = lambda folder_path, **_: shutil.copytree(folder_path, store)

    def download(repo_id: str = "", filename: str = "", **_: Any) -> str:
        assert repo_id == "somebody/toy"
        return str(store / filename)

    monkeypatch.setattr(mixin, "HfApi", lambda **_: api)
    for module in (mixin, hub):
        monkeypatch.setattr(module, "hf_hub_download", download)
    assert hub.HubModel.from_run(run, device="cpu").push_to_hub("somebody/toy") == store
    loaded = hub.HubModel.from_pretrained("somebody/toy", device="cpu")
    want = gnnsparse.load(run, device="cpu").predict(TASK.x, TASK.graph).logits
    assert torch.equal(loaded.predict(TASK.x, TASK.graph).logits, want)


@pytest.mark.parametrize("damage", ["config", "weights", "recipe", "shape", "missing"])
def test_a_damaged_folder_is_refused(run: Path, tmp_path: Path, damage: str) -> None:
    hub = pytest.importorskip("gnnsparse.inference.hub")
    folder = tmp_path / "hub"
    hub.HubModel.from_run(run, device="cpu").save_pretrained(folder)
    config, weights = folder / "config.json", folder / "model.safetensors"
    if damage == "config":
        config.write_text("{")
    elif damage == "weights":
        weights.write_bytes(weights.read_bytes()[:50])
    elif damage == "recipe":
        config.write_text(json.dumps({"gnnsparse": {"name": "gcn"}}))
    elif damage == "shape":
        save_file({name: tensor[:1].clone() for name, tensor in load_file(weights).items()}, weights)
    else:
        weights.unlink()
    with pytest.raises(LoadError, match=r"model_id: .*hub is no model of gnnsparse \(\w+: "):
        hub.HubModel.from_pretrained(folder, device="cpu")
    with pytest.raises(LoadError, match="checkpoint: "):
        gnnsparse.load(folder, device="cpu")


def test_without_the_package_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    monkeypatch.delitem(sys.modules, "gnnsparse.inference.hub", raising=False)
    said = r"gnnsparse\.inference\.hub needs the package huggingface_hub: pip install 'gnnsparse\[hub\]'$"
    with pytest.raises(ImportError, match=said):
        importlib.import_module("gnnsparse.inference.hub")


@pytest.fixture
def toy(registrations: None) -> None:
    """The data set that the run was trained on."""
    register_dataset("toy", task="node")(lambda root=None: TASK)


def test_a_runs_predictions(toy: None, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As arrays and as a table, with what `predict` of the model computes."""
    want = gnnsparse.load(run, device="cpu").predict(TASK.x, TASK.graph)
    for name in ("p.npz", "p.csv"):
        assert main(["predict", str(run), "--out", str(tmp_path / name), "--device", "cpu"]) == 0
        assert capsys.readouterr().out.startswith("60 predictions on toy; test: accuracy ")
    with np.load(tmp_path / "p.npz") as file:
        found = dict(file)
    assert (found["nodes"] == np.arange(60)).all()
    assert (found["classes"] == want.classes.numpy()).all()
    assert (found["probabilities"] == want.probabilities.numpy()).all()
    head, *rows = (tmp_path / "p.csv").read_text().splitlines()
    assert head == "nodes,classes," + ",".join(f"probabilities_{c}" for c in range(TASK.num_classes))
    table = np.array([row.split(",") for row in rows], dtype=np.float32)
    assert (table[:, 1] == found["classes"]).all()
    assert (table[:, 2:] == found["probabilities"]).all(), "a table has all digits of float32"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--data", "nowhere"], r"data: got 'nowhere'; accepted: digits, .*cora, .*, a file or a folder"),
        (["nowhere"], r"data: got 'nowhere'; accepted"),
        (["tests", "dataset.idd=x"], r"dataset\.idd: no such option of custom; accepted: path"),
        (["tests", "dataset.id=3"], r"dataset\.id: got int"),
        (["--data", "digits"], r"dataset: digits has 64 inputs and 10 outputs; accepted by the checkpoint: "),
        (["--out", "p.txt"], r"argument --out: got 'p\.txt'; accepted: a name in \.npz, \.csv"),
        (["--out", "."], r"argument --out: got '\.'; accepted"),
        ([], "checkpoint: there is no file"),
    ],
)
def test_predictions_that_can_not_be(
    toy: None, run: Path, words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given, out = run if words else tmp_path, [] if "--out" in words else ["--out", str(tmp_path / "p.csv")]
    with pytest.raises(SystemExit) as end:
        main(["predict", str(given), "--device", "cpu", *words, *out])
    assert end.value.code == 2
    printed = capsys.readouterr().err
    assert re.match(f"gnnsparse predict: error: {said}", printed)
    assert printed.count("\n") == 1
    assert not (tmp_path / "p.csv").exists()


NAMES = {"ids": np.array(["a", "b"]), "class_names": np.array(["law", "art"])}


def test_names_of_nodes_and_classes_stand_in_the_rows(tmp_path: Path) -> None:
    """Also where there are as many classes as nodes."""
    classes, probabilities = torch.tensor([1, 0]), torch.tensor([[0.25, 0.75], [1, 0]])
    found = {"nodes": torch.arange(2), "classes": classes, "probabilities": probabilities}
    write_predictions(tmp_path / "p.csv", found, NAMES)
    assert (tmp_path / "p.csv").read_text().splitlines() == [
        "nodes,ids,classes,class_name,probabilities_law,probabilities_art",
        "0,a,1,art,0.25,0.75",
        "1,b,0,law,1,0",
    ]


@given(
    texts=st.lists(st.text("=+-@\t\r\n'\uff1d\"a1.,; ", min_size=1, max_size=6), min_size=1, max_size=6),
    numbers=st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=6, max_size=6),
)
@example(
    texts=['=HYPERLINK("x")', "-5", "+1.5e3", "'=1", "@a", "-a"], numbers=[-1.5, 0.1, -0.0, 1e-38, 3e38, 2]
)
def test_no_name_is_run_by_a_spreadsheet(
    texts: list[str], numbers: list[float], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Names come back as the documentation says, and numbers are as they were."""
    path = tmp_path_factory.mktemp("csv") / "p.csv"
    count = len(texts)
    values = torch.tensor(numbers[:count], dtype=torch.float32)
    found = {"nodes": torch.arange(count), "values": values, "classes": torch.arange(count)}
    write_predictions(path, found, {"ids": np.array(texts, object), "class_names": np.array(texts, object)})
    table = pandas.read_csv(path, dtype={"ids": str, "class_name": str}, keep_default_na=False)
    for name in ("ids", "class_name"):
        for cell, text in zip(table[name], texts, strict=True):
            assert cell.removeprefix("'") == text
            assert not cell.startswith(tuple("=+-@\t\r\n\uff1d")) or math.isfinite(float(cell))
    assert torch.equal(torch.tensor(table["values"].to_numpy(np.float32)), values)


def test_several_labels_and_lengths(tmp_path: Path) -> None:
    found = {"nodes": torch.arange(2), "classes": torch.tensor([[True, False], [False, True]])}
    write_predictions(tmp_path / "p.csv", found)
    assert (tmp_path / "p.csv").read_text() == "nodes,classes_0,classes_1\n0,1,0\n1,0,1\n"
    write_predictions(tmp_path / "p.csv", found, NAMES)
    assert (tmp_path / "p.csv").read_text() == "nodes,ids,classes_law,classes_art\n0,a,1,0\n1,b,0,1\n"
    with pytest.raises(ValueError, match=r"arrays: have the lengths \[2, 3\]; accepted: one length"):
        write_predictions(tmp_path / "q.csv", {"a": torch.zeros(2), "b": torch.zeros(3)})
    with pytest.raises(ValueError, match=r"path: got .*p\.txt'; accepted: a name in \.npz, \.csv"):
        write_predictions(tmp_path / "p.txt", arrays)
    assert [path.name for path in tmp_path.iterdir()] == ["p.csv"]


# A model meets the features that it was trained with by their names, whatever their order in a table.

_UNUSED = "^feature_columns: nodes.csv: columns that the model does not take are not used: comment$"
ORDER = ("f2", "label", "f0", "id", "f1", "split")


def tables(folder: Path, columns: tuple[str, ...], more: str | None = None) -> Path:
    """The tables of `write_tables` with these columns of the nodes in this order."""
    write_tables(folder)
    nodes = pandas.read_csv(folder / "nodes.csv", dtype=str, keep_default_na=False)
    if more is not None:
        nodes[more], columns = "text", (*columns, more)
    nodes[list(columns)].to_csv(folder / "nodes.csv", index=False)
    return folder


@pytest.fixture(scope="module")
def papers(tmp_path_factory: pytest.TempPathFactory) -> NodeDataset:
    return load_custom(write_tables(tmp_path_factory.mktemp("papers")))


@pytest.fixture(scope="module")
def named(papers: NodeDataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run on the columns f0, f1 and f2."""
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("runs") / "run"
    gnnsparse.fit(GCN(3, 16, 3), papers, epochs=30, folder=folder, device="cpu")
    return folder


def test_a_data_set_and_a_recipe_have_the_names(papers: NodeDataset, named: Path) -> None:
    assert papers.feature_names == ("f0", "f1", "f2")
    recipe = gnnsparse.load(named, device="cpu").recipe
    assert recipe.feature_names == ("f0", "f1", "f2")
    assert ModelRecipe.read(recipe.to_dict()) == recipe
    for names, accepted in ((("f0",), "3 different texts"), (("a", "a", "b"), "3 different texts")):
        with pytest.raises(ValueError, match=f"^feature_names: got .*; accepted: {accepted}, or None"):
            replace(recipe, feature_names=names)
    with pytest.raises(ValueError, match=r"^feature_names: accepted: a tuple of 3 texts, or None"):
        replace(papers, feature_names=("f0",))


@pytest.mark.parametrize("more", [None, "comment"])
def test_columns_in_any_order_are_the_same_features(named: Path, more: str | None, tmp_path: Path) -> None:
    first = predict_run(named, str(tables(tmp_path / "same", ("id", "f0", "f1", "f2", "label", "split"))))
    with contextlib.nullcontext() if more is None else pytest.warns(UserWarning, match=_UNUSED):
        other = predict_run(named, str(tables(tmp_path / "other", ORDER, more)))
    assert (first.dataset, len(first.arrays["classes"])) == ("custom", 60)
    assert torch.equal(other.arrays["probabilities"], first.arrays["probabilities"])
    assert other.metrics == first.metrics
    assert other.metrics["test"]["accuracy"] > 0.5  # a third by chance


def test_the_command_says_what_columns_are_used_for_and_names_a_missing_one(
    named: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, out = tables(tmp_path / "new", ORDER, "comment"), tmp_path / "found.csv"
    with pytest.warns(UserWarning, match=_UNUSED):
        assert main(["predict", str(named), "--out", str(out), str(folder)]) == 0
    assert capsys.readouterr().out.splitlines()[:2] == [
        "edges.csv: source, target = ends; weight = weights",
        "nodes.csv: id = ids; f0, f1, f2 = features; label = labels; split = split; not used: comment",
    ]
    assert not logging.getLogger("gnnsparse.data").handlers
    folder = tables(tmp_path / "less", ("id", "f2", "f0", "label", "split"))
    said = r"^dataset\.feature_columns: there is no column 'f1'; nodes.csv has id, f2, f0, label, split"
    with pytest.raises(ValueError, match=said):
        predict_run(named, str(folder))


def test_data_sets_are_matched_by_name(named: Path, papers: NodeDataset) -> None:
    recipe = gnnsparse.load(named, device="cpu").recipe
    turned = replace(papers, x=papers.x[:, [2, 0, 1]], feature_names=("f2", "f0", "f1"))
    assert torch.equal(match_features("new", turned, recipe).x, papers.x)
    wide = torch.cat([torch.ones(60, 1), turned.x], dim=1)
    more = replace(papers, x=wide, feature_names=("g", "f2", "f0", "f1"))
    with pytest.warns(UserWarning, match=r"^dataset: not used, as the model does not take them: g$"):
        found = match_features("new", more, recipe)
    assert torch.equal(found.x, papers.x)
    assert found.feature_names == papers.feature_names
    other = replace(papers, feature_names=("f2", "f0", "year"))
    said = r"^dataset: new has no feature 'f1', but f2, f0, year; accepted by the"
    with pytest.raises(ValueError, match=said):
        match_features("new", other, recipe)
    plain = replace(papers, feature_names=None)
    assert match_features("new", plain, recipe) is plain
    assert match_features("new", turned, replace(recipe, feature_names=None)) is turned


def test_files_without_names_are_matched_by_number(named: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "graph.npz", **arrays())
    assert predict_run(named, str(tmp_path / "graph.npz")).metrics["test"]["accuracy"] > 0.5
    np.savez(tmp_path / "graph.npz", **{**arrays(), "x": arrays()["x"][:, :2]})
    said = r"^dataset\.path: .*: x: has 2 columns of numbers; accepted: a table with the 3 columns of"
    with pytest.raises(ValueError, match=said):
        predict_run(named, str(tmp_path / "graph.npz"))


def test_training_nodes_of_one_class_are_refused(papers: NodeDataset) -> None:
    y = torch.where(papers.y == 1, 1, -1)
    said = r"^dataset: .*: all training nodes have the class 'math'; accepted: tw"
    with pytest.raises(ValueError, match=said):
        gnnsparse.fit(GCN(3, 16, 3), replace(papers, y=y), epochs=1, device="cpu")
