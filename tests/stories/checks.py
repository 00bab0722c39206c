"""The table of checks: what each story of docs/stories.md is given, what it needs, and what comes out."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gnnsparse
from tests.own_graphs import NAMES, NODES, write_mtx, write_npz
from tests.stories import given
from tests.stories.running import Outcome
from tests.train.test_task_link import write_ddi
from tests.tu_files import write_text


@dataclass(frozen=True)
class Check:
    """What is known of a story beside its page.

    `check` asserts what its last block left. It may need packages, and files that `given` makes in the folder
    that it runs in. `warns` is of the standard error.
    """

    check: Callable[[Outcome], object]
    given: Callable[[Path], object] | None = None
    needs: tuple[str, ...] = ()
    status: int = 0
    warns: bool = False


#: The checks by the titles of the stories.
STORIES: dict[str, Check] = {}


def story(title: str, **known: Any) -> Callable[[Callable[[Outcome], object]], Callable[[Outcome], object]]:
    """Make the decorated function the check of a story; the arguments are the attributes of Check."""

    def keep(check: Callable[[Outcome], object]) -> Callable[[Outcome], object]:
        assert title not in STORIES, title
        STORIES[title] = Check(check, **known)
        return check

    return keep


def prints(title: str, output: str, **known: Any) -> None:
    """Make it the check of a story that it prints this and nothing else."""

    @story(title, **known)
    def _(outcome: Outcome) -> None:
        assert outcome.output == output


def measures(title: str, pattern: str, *bounds: tuple[float, float], **known: Any) -> None:
    """Make it the check of a story that it prints a pattern and nothing else, with numbers between bounds."""

    @story(title, **known)
    def _(outcome: Outcome) -> None:
        found = re.fullmatch(pattern, outcome.output)
        assert found is not None, outcome.output
        for number, (low, high) in zip(found.groups(), bounds, strict=True):
            assert low < float(number) < high


prints("Multiply one matrix", "[2.0, 2.5, 2.0] [0.5, 2.0, 0.5]\n")
prints("Graphs of my own", "True False\n")
prints("Users and films", "(3, 5) [2.0, 1.0, 2.0]\n[0.5, 1.0, 1.0, 0.0, 0.5]\n")
prints("Export", "True\n")
prints("Try it for one block of code", "torch_geometric.nn.conv.gcn_conv\n")
prints("In the place of nn.MultiheadAttention", "13% of all pairs\n")
prints("Padding", "torch.Size([2, 50, 32])\n")
prints("Write one token after another", "20 of 128 tokens are kept\n")
prints("The same bits again", "True\n")
prints("A model of Hugging Face", "torch.Size([2, 128, 32]) True\n", needs=("transformers",))
prints("My DGL model", "GATConv\n", needs=("dgl",))

_OF_NODES = rf"{NODES} {{'accuracy': (\S+), 'macro_f1': \S+}}\n"
_LIKELY = (0.6, 1.01)  # a third of the nodes is right by chance, of NetworkX's graph a half
measures("An archive of NumPy", _OF_NODES, _LIKELY, given=write_npz)
measures("A graph of DGL", _OF_NODES, _LIKELY, given=given.dgl_file, needs=("dgl",))
measures("A graph of NetworkX", r"(\S+) right, of \('Mr. Hi', 'Officer'\)\n", _LIKELY, needs=("networkx",))
names = rf"{{'accuracy': (\S+), 'macro_f1': \S+}} {re.escape(str(NAMES))}\n"
measures("The same from Python", names, _LIKELY, given=given.papers, needs=("pandas",))
measures("Several labels a node", r"{.*'micro_f1': ([\d.]+).*} torch.Size\(\[300, 3\]\)\n", (0.85, 1.01))
scores = r".*\bmean=([\d.]+).*\bstandard_deviation=([\d.]+).*\n"
measures("How sure is the score?", scores, (0.7, 1.01), (0, 0.2), given=given.papers, needs=("pandas",))
near = [(wanted - 0.02, wanted + 0.02) for wanted in (2, 1, 3, 4)]
measures("Weights of edges that are learned", r"\[(\S+), (\S+), (\S+), (\S+)\]\n", *near)
prints("From SciPy and back", "0.0\n")
measures("Load it in another program", r"torch.Size\(\[1797, 10\]\) (\S+)\n", (0.9, 1.01))
measures("Latency", r"(\S+) ms a call; in a CUDA graph: (?:True|False)\n", (0, 1000))
measures("Replace the layers, and keep the weights", r"fp16 differs by (\S+)\n", (0, 1e-2))
measures("Cross-attention", r"torch.Size\(\[2, 40, 32\]\) (\d+)% left out\n", (40, 90))
# The bias, and a tenth of 64 x 32.
measures("Sparse weights", r"(\S+) (\S+)\n", (32 + 199, 32 + 211), (0.89, 0.91))


# The installation, and graphs of users.


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


@story("A Data of PyG, from a file", given=given.pyg_file)
def _(outcome: Outcome) -> None:
    result = outcome.result()
    assert (result["nodes"], result["dataset"]) == (NODES, "custom")
    assert result["metrics"]["test"]["accuracy"] > 0.6


@story("Numbers in place of classes", given=given.loads, needs=("pandas",))
def _(outcome: Outcome) -> None:
    scores = scores_in(outcome.output)
    assert set(scores) == {"mae", "mse", "r2"}
    assert scores["r2"] > 0.5  # 0 is the mean of all nodes
    assert outcome.output.endswith(f"torch.Size([{given.PAPERS}, 1])\n")


@story("New nodes, after the training", given=given.papers_and_new, needs=("pandas",))
def _(outcome: Outcome) -> None:
    assert f"{given.PAPERS} predictions on" in outcome.output
    found = outcome.arrays("new.npz")
    assert found["class_names"].tolist() == list(NAMES)
    assert found["probabilities"].sum(1) == pytest.approx(np.ones(given.PAPERS), abs=1e-5)
    _, _, classes = given.cited(seed=1)
    assert np.mean(found["classes"] == classes) > 0.6


# Other tasks, and runs of train.py.


def steps_of(outcome: Outcome, run: str = "run") -> list[int]:
    """Returns the steps of a run's log that have a loss."""
    return [
        int(row["step"]) for row in outcome.rows(f"{run}/logs/csv/version_0/metrics.csv") if row["train/loss"]
    ]


@story("Graphs of TU Dortmund", given=lambda folder: write_text(folder / "tu", count=60))
def _(outcome: Outcome) -> None:
    result = outcome.result()
    assert (result["task"], result["graphs"], result["model"]) == ("graph", 60, "gin")
    assert set(result["metrics"]) == {"train", "val", "test"}
    assert result["metrics"]["test"]["accuracy"] >= 0.8  # a half by chance
    assert {"curves.png", "confusion.png"} <= outcome.files("run/plots")


@story("Missing links", given=lambda folder: write_ddi(folder / "ddi" / "ogbl_ddi.npz"))
def _(outcome: Outcome) -> None:
    result = outcome.result()
    assert (result["task"], result["nodes"], result["train_edges"]) == ("link", 60, 500)
    assert result["metrics"]["test"]["hits@20"] > 0.9
    assert set(result["metrics"]["test"]) == {"auc", "hits@20", "mrr"}


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


@story("A wrong column", given=given.papers, status=2, needs=("pandas",), warns=True)
def _(outcome: Outcome) -> None:
    assert outcome.errors.startswith("train.py: dataset.label: there is no column 'field'")
    assert outcome.errors.endswith("nodes.csv has id, f0, f1, f2, label, year\n")
    assert outcome.errors.count("\n") == 1


# Trained models, and models of PyG and DGL.


@story("Load a model of my own")
def _(outcome: Outcome) -> None:
    refused, same = outcome.output.splitlines()
    assert (
        "model: is a SAGEConv, which is in no registry; accepted: gnnsparse.load(..., model=...)" in refused
    )
    assert same == "True"


@story("A model card")
def _(outcome: Outcome) -> None:
    card = outcome.output[outcome.output.index("---\nlibrary_name: gnnsparse") :]
    score = outcome.result()["metrics"]["test"]["accuracy"]
    assert f"{score:.4f}" in card
    for text in ("# gcn on digits", "gnnsparse.load(", "hidden_channels", "## Environment", "seed"):
        assert text in card


@story("The Hugging Face Hub", needs=("huggingface_hub",))
def _(outcome: Outcome) -> None:
    assert outcome.output == "True\n"
    assert outcome.files("published") == {"README.md", "config.json", "model.safetensors"}
    assert (
        json.loads((outcome.folder / "published" / "config.json").read_text())["gnnsparse"]["name"] == "gcn"
    )


@story("Speed it up as it is")
def _(outcome: Outcome) -> None:
    assert len(re.findall(r"GATConv +PyG: the graph is so small", outcome.output)) == 2


@story("A layer of my own")
def _(outcome: Outcome) -> None:
    assert re.search(r"^\(model\) +Mine +PyG: converting the graph pays after", outcome.output, re.MULTILINE)


@story("Train it with one call")
def _(outcome: Outcome) -> None:
    assert scores_in(outcome.output)["accuracy"] > 0.8  # a quarter by chance
    assert len(outcome.output.partition("[")[2].split(",")) == 8


@story("A loader of small graphs")
def _(outcome: Outcome) -> None:
    assert outcome.output.count("GINConv") == 2 or outcome.output.count("convs") == 2


# Transformers.


@story("In torch's own encoder")
def _(outcome: Outcome) -> None:
    first, last = map(float, outcome.output.split())
    assert last < 0.9 * first


@story("Lengths without padding", warns=True)
def _(outcome: Outcome) -> None:
    assert all("is_fx_tracing" in line for line in outcome.errors.splitlines())  # torch 2.13, of itself
    assert outcome.output == "[100, 3, 57]\n"


@story("Make a trained model sparse")
def _(outcome: Outcome) -> None:
    first, _, report = outcome.output.partition("\n")
    assert first == "tensor(True)"
    assert report.count("window(radius=4)") == 2


# Measurements and plans.


@story("What does a step cost?")
def _(outcome: Outcome) -> None:
    assert "gnnsparse.spmm" in outcome.output
    assert json.loads((outcome.folder / "trace.json").read_text())["traceEvents"]


@story("Measure my matrix, and report it", given=lambda folder: write_mtx(folder / "graph.mtx"), warns=True)
def _(outcome: Outcome) -> None:
    assert outcome.errors.startswith("graph.mtx: 60 x 60, ")  # what is measured just now
    page = (outcome.folder / "report.html").read_text()
    assert "<html" in page
    assert "graph" in page
    rows = outcome.json("result.json")["rows"]
    assert {row["kernel"] for row in rows} >= {"auto", "sparse_mm"}
    assert all(row["ok"] for row in rows)


@story("Which kernel, and why?")
def _(outcome: Outcome) -> None:
    assert outcome.output.split()[1] == "degree"
    assert "csr" in outcome.output
