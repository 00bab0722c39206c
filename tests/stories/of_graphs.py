"""Checks of the stories about the installation, and about graphs of users."""

from __future__ import annotations

import ast
import re

import numpy as np
import pytest

import gnnsparse
from tests.own_graphs import NAMES, NODES
from tests.stories import given
from tests.stories.checks import story
from tests.stories.running import Outcome


def scores_in(output: str) -> dict[str, float]:
    """Returns the scores that a story printed as a dict."""
    found = re.search(r"\{[^}]*\}", output)
    assert found is not None, output
    return ast.literal_eval(found[0])


@story("Is my installation right?")
def _(outcome: Outcome) -> None:
    assert outcome.output.rstrip().splitlines()[-1].startswith("0 broken")
    assert re.search(r"cpu: \d+ cases of \d+ kernels are right", outcome.output)


@story("What can I train?")
def _(outcome: Outcome) -> None:
    assert outcome.output.startswith(f"gnnsparse {gnnsparse.__version__}\n")
    for words in (
        "dataset: amazon",
        "custom",
        "model: agnn",
        "precision: fp32, tf32, fp16, bf16",
        "max_epochs: ",
    ):
        assert words in outcome.output


@story("Train something, without any files")
def _(outcome: Outcome) -> None:
    assert outcome.result()["metrics"]["test"]["accuracy"] > 0.9  # a tenth by chance
    assert outcome.result()["epochs"] == 30
    assert {"result.json", "README.md", "checkpoints", "logs", "plots"} <= outcome.files()
    assert "best epoch" in outcome.output


@story("Multiply one matrix")
def _(outcome: Outcome) -> None:
    assert outcome.output == "[2.0, 2.5, 2.0] [0.5, 2.0, 0.5]\n"


@story("From my tables to predictions by name", given=given.papers, needs=("pandas",))
def _(outcome: Outcome) -> None:
    result = outcome.result()
    assert result["metrics"]["test"]["accuracy"] > 0.6  # a third by chance
    rows = outcome.rows("predictions.csv")
    assert [row["ids"] for row in rows] == [f"n{i}" for i in range(given.PAPERS)]
    _, _, classes = given.cited()
    assert np.mean([row["class_name"] == NAMES[y] for row, y in zip(rows, classes, strict=True)]) > 0.7
    shares = [sum(float(row[f"probabilities_{name}"]) for name in NAMES) for row in rows]
    assert shares == pytest.approx([1.0] * given.PAPERS, abs=1e-5)
    assert "predictions on custom" in outcome.output


@story("The same from Python", given=given.papers, needs=("pandas",))
def _(outcome: Outcome) -> None:
    assert scores_in(outcome.output)["accuracy"] > 0.6
    assert str(NAMES) in outcome.output


@story("An archive of NumPy", given=given.archive)
def _(outcome: Outcome) -> None:
    assert outcome.output.startswith(f"{NODES} ")
    assert scores_in(outcome.output)["accuracy"] > 0.6


@story("A Data of PyG, from a file", given=given.pyg_file)
def _(outcome: Outcome) -> None:
    result = outcome.result()
    assert (result["nodes"], result["dataset"]) == (NODES, "custom")
    assert result["metrics"]["test"]["accuracy"] > 0.6


@story("A graph of NetworkX", needs=("networkx",))
def _(outcome: Outcome) -> None:
    assert float(outcome.output.split()[0]) > 0.6  # of 6 nodes, half by chance
    assert "('Mr. Hi', 'Officer')" in outcome.output


@story("A Matrix Market file with labels", given=given.matrix)
def _(outcome: Outcome) -> None:
    assert outcome.output.startswith(f"{NODES} ")
    assert scores_in(outcome.output)["accuracy"] > 0.6


@story("A graph of DGL", given=given.dgl_file, needs=("dgl",))
def _(outcome: Outcome) -> None:
    assert outcome.output.startswith(f"{NODES} ")
    assert scores_in(outcome.output)["accuracy"] > 0.6


@story("Numbers in place of classes", given=given.loads, needs=("pandas",))
def _(outcome: Outcome) -> None:
    scores = scores_in(outcome.output)
    assert set(scores) == {"mae", "mse", "r2"}
    assert scores["r2"] > 0.5  # 0 is the mean of all nodes
    assert outcome.output.endswith(f"torch.Size([{given.PAPERS}, 1])\n")


@story("Several labels a node")
def _(outcome: Outcome) -> None:
    assert scores_in(outcome.output)["micro_f1"] > 0.85
    assert outcome.output.endswith("torch.Size([300, 3])\n")


@story("New nodes, after the training", given=given.papers_and_new, needs=("pandas",))
def _(outcome: Outcome) -> None:
    assert f"{given.PAPERS} predictions on" in outcome.output
    found = outcome.arrays("new.npz")
    assert found["class_names"].tolist() == list(NAMES)
    assert found["probabilities"].sum(1) == pytest.approx(np.ones(given.PAPERS), abs=1e-5)
    _, _, classes = given.cited(seed=1)
    assert np.mean(found["classes"] == classes) > 0.6
