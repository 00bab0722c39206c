"""Checks of the stories about other tasks, and about runs of train.py."""

from __future__ import annotations

import ast
import re

import pytest

from tests.stories import given
from tests.stories.checks import story
from tests.stories.of_graphs import scores_in
from tests.stories.running import Outcome


def steps_of(outcome: Outcome, run: str = "run") -> list[int]:
    """Returns the steps of a run's log that have a loss."""
    return [
        int(row["step"]) for row in outcome.rows(f"{run}/logs/csv/version_0/metrics.csv") if row["train/loss"]
    ]


@story("Graphs of TU Dortmund", given=given.text_of_graphs)
def _(outcome: Outcome) -> None:
    result = outcome.result()
    assert (result["task"], result["graphs"]) == ("graph", 60)
    assert result["metrics"]["test"]["accuracy"] >= 0.8  # a half by chance
    assert {"curves.png", "confusion.png"} <= outcome.files("run/plots")


@story("PROTEINS", data=("tu/PROTEINS.npz",))
def _(outcome: Outcome) -> None:
    result = outcome.result()
    assert result["graphs"] == 1113
    assert result["metrics"]["train"]["accuracy"] > 0.6  # the larger class has 0.596 of the graphs


@story("Graphs of my own")
def _(outcome: Outcome) -> None:
    assert outcome.output == "True False\n"


@story("Missing links", given=given.links)
def _(outcome: Outcome) -> None:
    result = outcome.result()
    assert (result["task"], result["nodes"]) == ("link", 60)
    assert result["metrics"]["test"]["hits@20"] > 0.9
    assert set(result["metrics"]["test"]) == {"hits@20", "mrr"}


@story("ogbl-ddi", data=("graphs/ogbl_ddi.npz",))
def _(outcome: Outcome) -> None:
    result = outcome.result()
    assert (result["nodes"], result["train_edges"]) == (4267, 1067911)
    assert 0 <= result["metrics"]["test"]["hits@20"] <= 1
    assert result["metrics"]["test"]["mrr"] > 1e-5


@story("Sequences")
def _(outcome: Outcome) -> None:
    result = outcome.result()
    assert (result["task"], result["epochs"]) == ("sequence", 2)
    losses = [
        float(row["train/loss"])
        for row in outcome.rows("run/logs/csv/version_0/metrics.csv")
        if row["train/loss"]
    ]
    assert losses[-1] < losses[0]


@story("The batch system stops my run", warns=True)
def _(outcome: Outcome) -> None:
    stopped = re.search(
        r"train.py: stopped by SIGTERM after epoch (\d+); to go on: python train.py resume=(\S+)",
        outcome.errors,
    )
    assert stopped is not None, outcome.errors
    assert (stopped[2], "exit status 143" in outcome.output) == ("run", True)
    assert 0 < int(stopped[1]) < 2000
    assert outcome.result()["epochs"] == 2000
    steps = steps_of(outcome)
    assert steps == sorted(set(steps))  # the log has each step one time, in order
    assert len(steps) == 2000
    assert outcome.result()["metrics"]["test"]["accuracy"] > 0.3


@story("Ctrl-C", warns=True)
def _(outcome: Outcome) -> None:
    assert re.search(
        r"train.py: stopped by SIGINT after epoch \d+; to go on: python train.py resume=run", outcome.errors
    )
    assert "exit status 130" in outcome.output
    assert "1797 predictions on digits" in outcome.output
    assert len(outcome.rows("predictions.csv")) == 1797
    assert not (outcome.folder / "run" / "result.json").exists()


@story("The machine is switched off", warns=True)
def _(outcome: Outcome) -> None:
    assert "exit status 137" in outcome.output
    (run,) = (path for path in (outcome.folder / "outputs").glob("*/*") if path.is_dir())
    name = str(run.relative_to(outcome.folder))
    assert outcome.result(name)["epochs"] == 1500
    steps = steps_of(outcome, name)
    assert steps == list(range(1500)) or steps == list(range(1, 1501))


@story("A sweep in which a job fails", status=1, warns=True)
def _(outcome: Outcome) -> None:
    rows = {row["options"]: row for row in outcome.rows("sweep/summary.csv")}
    done, failed = rows["model.dropout=0.5"], rows["model.dropout=2"]
    assert (done["runs"], done["failed"], failed["runs"], failed["failed"]) == ("2", "0", "0", "2")
    assert float(done["accuracy mean"]) > 0.9
    reason = "train.py: model.dropout: got 2; accepted: a number in [0, 1)"
    assert outcome.errors.splitlines() == [reason, reason]
    assert "failed: 1 (seed=0 model.dropout=2" in outcome.output
    assert len(list((outcome.folder / "sweep").glob("*/result.json"))) == 2


@story("My loggers", needs=("tensorboard",))
def _(outcome: Outcome) -> None:
    head = outcome.output.splitlines()[-3]
    assert {"epoch", "step", "train/loss", "val/accuracy"} <= set(head.split(","))
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    (folder,) = {path.parent for path in (outcome.folder / "run" / "logs").rglob("events.out.tfevents.*")}
    events = EventAccumulator(str(folder)).Reload()
    assert len(events.Scalars("train/loss")) == 20
    assert events.Scalars("val/accuracy")[-1].value > 0.8


@story("A Trainer of my own", warns=True)
def _(outcome: Outcome) -> None:
    assert scores_in(outcome.output.splitlines()[-1])["val/accuracy"] > 0.9
    rows = outcome.rows("mine/lightning_logs/version_0/metrics.csv")
    assert len([row for row in rows if row["train/loss"]]) == 30


@story("Stop when it gets no better")
def _(outcome: Outcome) -> None:
    epochs, best, same = outcome.output.split()
    assert int(epochs) == int(best) + 10 < 1000
    assert same == "True"


@story("Does fp16 cost accuracy?", warns=True)
def _(outcome: Outcome) -> None:
    study = outcome.json("study/study.json")
    text = (outcome.folder / "study" / "study.md").read_text()
    assert len(list((outcome.folder / "study" / "runs").glob("*.json"))) == 4
    assert study
    assert "minus fp32" in text


@story("Reorder, and look at the cache")
def _(outcome: Outcome) -> None:
    assert outcome.result()["epochs"] == 5
    assert "data: digits" in outcome.output
    assert "degree" in outcome.output
    assert not list((outcome.folder.parent / "cache").glob("*.safetensors"))


@story("Typing errors", warns=True)
def _(outcome: Outcome) -> None:
    first, second, third = outcome.errors.splitlines()
    assert first.startswith(
        "train.py: modle: got 'gcn', and there is no such option; nearest: mode, model; accepted: "
    )
    assert second.startswith("train.py: dataset: got 'coar'; nearest: cora")
    assert third.startswith("train.py: trainer.max_epochs: got 'ten'; accepted: an integer, at least 1")
    assert outcome.output.count("exit status 2") == 3
    assert "outputs" not in outcome.output  # a run that is refused leaves no folder


@story("Wrong tensors")
def _(outcome: Outcome) -> None:
    lines = outcome.output.splitlines()
    starts = ("edge_index: ", "values: ", "x: ")
    assert [line[: len(start)] for line, start in zip(lines, starts, strict=True)] == list(starts)
    assert all("accepted" in line for line in lines)


@story("How sure is the score?", given=given.papers, needs=("pandas",))
def _(outcome: Outcome) -> None:
    found = dict(re.findall(r"(\w+)=([\d.]+)", outcome.output))
    assert float(found["mean"]) > 0.7
    assert 0 < float(found["standard_deviation"]) < 0.2


@story("A wrong column", given=given.papers, status=2, needs=("pandas",), warns=True)
def _(outcome: Outcome) -> None:
    assert outcome.errors.startswith("train.py: dataset.label: there is no column 'field'")
    assert outcome.errors.endswith("nodes.csv has id, f0, f1, f2, label, year\n")
    assert outcome.errors.count("\n") == 1


@story("Weights of edges that are learned")
def _(outcome: Outcome) -> None:
    assert ast.literal_eval(outcome.output) == pytest.approx([2.0, 1.0, 3.0, 4.0], abs=0.02)


@story("Users and films")
def _(outcome: Outcome) -> None:
    assert outcome.output == "(3, 5) [2.0, 1.0, 2.0]\n[0.5, 1.0, 1.0, 0.0, 0.5]\n"


@story("From SciPy and back")
def _(outcome: Outcome) -> None:
    assert float(outcome.output) == 0
