"""A model meets the features that it was trained with by their names, whatever their order in a table."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import gnnsparse
from gnnsparse.cli.main import main
from gnnsparse.data import NodeDataset, load_custom
from gnnsparse.inference.predict import match_features, predict_run
from gnnsparse.train.trained import ModelRecipe
from models import GCN
from tests.own_graphs import arrays, write_tables

ORDER = ("f2", "label", "f0", "id", "f1", "split")


def tables(folder: Path, columns: tuple[str, ...], more: str | None = None) -> Path:
    """The tables of `write_tables` with these columns of the nodes in this order."""
    write_tables(folder)
    rows = [line.split(",") for line in (folder / "nodes.csv").read_text().splitlines()]
    places = [rows[0].index(name) for name in columns]
    lines = [",".join(row[place] for place in places) for row in rows]
    if more is not None:
        lines = [f"{line},{more if number == 0 else 'text'}" for number, line in enumerate(lines)]
    (folder / "nodes.csv").write_text("\n".join(lines) + "\n")
    return folder


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> NodeDataset:
    return load_custom(write_tables(tmp_path_factory.mktemp("papers")))


@pytest.fixture(scope="module")
def run(dataset: NodeDataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run on the columns f0, f1 and f2."""
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("runs") / "run"
    gnnsparse.fit(GCN(3, 16, 3), dataset, epochs=30, folder=folder, device="cpu")
    return folder


def test_a_data_set_and_a_recipe_have_the_names(dataset: NodeDataset, run: Path) -> None:
    assert dataset.feature_names == ("f0", "f1", "f2")
    recipe = gnnsparse.load(run, device="cpu").recipe
    assert recipe.feature_names == ("f0", "f1", "f2")
    assert ModelRecipe.read(recipe.to_dict()) == recipe
    for names, accepted in ((("f0",), "3 different texts"), (("a", "a", "b"), "3 different texts")):
        with pytest.raises(ValueError, match=f"^feature_names: got .*; accepted: {accepted}, or None"):
            replace(recipe, feature_names=names)
    with pytest.raises(ValueError, match=r"^feature_names: accepted: a tuple of 3 texts, or None"):
        replace(dataset, feature_names=("f0",))


@pytest.mark.parametrize("more", [None, "comment"])
def test_columns_in_another_order_are_the_same_features(run: Path, more: str | None, tmp_path: Path) -> None:
    first = predict_run(run, str(tables(tmp_path / "same", ("id", "f0", "f1", "f2", "label", "split"))))
    other = predict_run(run, str(tables(tmp_path / "other", ORDER, more)))
    assert torch.equal(other.arrays["probabilities"], first.arrays["probabilities"])
    assert other.metrics == first.metrics
    assert other.metrics["test"]["accuracy"] > 0.5  # a third by chance


def test_the_command_says_what_columns_are_used_for(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, out = tables(tmp_path / "new", ORDER, "comment"), tmp_path / "found.csv"
    assert main(["predict", str(run), "--data", str(folder), "--out", str(out)]) == 0
    assert capsys.readouterr().out.splitlines()[:2] == [
        "edges.csv: source, target = ends; weight = weights",
        "nodes.csv: id = ids; f0, f1, f2 = features; label = labels; split = split; not used: comment",
    ]
    assert not logging.getLogger("gnnsparse.data").handlers


def test_a_feature_that_is_missing_is_named(run: Path, tmp_path: Path) -> None:
    folder = tables(tmp_path / "new", ("id", "f2", "f0", "label", "split"))
    said = r"^data\.feature_columns: there is no column 'f1'; nodes.csv has id, f2, f0, label, split"
    with pytest.raises(ValueError, match=said):
        predict_run(run, str(folder))


def test_data_sets_are_matched_by_name(run: Path, dataset: NodeDataset) -> None:
    recipe = gnnsparse.load(run, device="cpu").recipe
    turned = replace(dataset, x=dataset.x[:, [2, 0, 1]], feature_names=("f2", "f0", "f1"))
    assert torch.equal(match_features("new", turned, recipe).x, dataset.x)
    wide = torch.cat([torch.ones(60, 1), turned.x], dim=1)
    more = replace(dataset, x=wide, feature_names=("g", "f2", "f0", "f1"))
    with pytest.warns(UserWarning, match=r"^dataset: not used, as the model does not take them: g$"):
        found = match_features("new", more, recipe)
    assert torch.equal(found.x, dataset.x)
    assert found.feature_names == dataset.feature_names
    other = replace(dataset, feature_names=("f2", "f0", "year"))
    with pytest.raises(
        ValueError, match=r"^dataset: new has no feature 'f1', but f2, f0, year; accepted by the"
    ):
        match_features("new", other, recipe)
    plain = replace(dataset, feature_names=None)
    assert match_features("new", plain, recipe) is plain
    assert match_features("new", turned, replace(recipe, feature_names=None)) is turned


def test_files_without_names_are_matched_by_number(run: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "graph.npz", **arrays())
    assert predict_run(run, str(tmp_path / "graph.npz")).metrics["test"]["accuracy"] > 0.5
    np.savez(tmp_path / "graph.npz", **{**arrays(), "x": arrays()["x"][:, :2]})
    with pytest.raises(
        ValueError, match=r"^dataset: custom has 2 inputs and 3 outputs; accepted by the check"
    ):
        predict_run(run, str(tmp_path / "graph.npz"))


def test_training_nodes_of_one_class_are_refused(dataset: NodeDataset) -> None:
    y = torch.where(dataset.y == 1, 1, -1)
    with pytest.raises(
        ValueError, match=r"^dataset: .*: all training nodes have the class 'math'; accepted: tw"
    ):
        gnnsparse.fit(GCN(3, 16, 3), replace(dataset, y=y), epochs=1, device="cpu")
