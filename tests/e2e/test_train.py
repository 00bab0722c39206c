"""train.py as a user runs it, in processes of its own."""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.data_folder import data_file, requires_data
from tests.e2e.started import Run

#: Packages that take longest to import: what a user mistyped is refused, and the help printed, before any of
#: them. The seconds themselves depend on the machine.
SLOW_IMPORTS = {
    "dgl", "lightning", "lightning.pytorch", "matplotlib", "ogb", "pandas", "pytorch_lightning", "scipy",
    "sklearn", "tensorboard", "torch._dynamo", "torch._inductor", "torch_geometric", "torchmetrics", "triton",
}  # fmt: skip

PROFILED = {"PYTHONPROFILEIMPORTTIME": "1"}

#: Key of result.json -> its type.
SCHEMA: dict[str, type | tuple[type, ...]] = {
    "model": str, "dataset": str, "task": str, "nodes": int, "nonzeros": int, "precision": str, "device": str,
    "device_name": str, "threads": int, "seed": int, "epochs": int, "best_epoch": int, "metrics": dict,
    "epoch_milliseconds": float, "fit_seconds": float, "peak_memory_bytes": int, "parameters": int,
    "capture": str, "classes": list,
    "preprocess_seconds": float, "cache_hit": bool, "versions": dict, "commit": (str, type(None)),
    "date": str,
}  # fmt: skip


def imports_of(run: Run) -> set[str]:
    """The modules that a run which was `PROFILED` has imported."""
    return {line.rpartition("|")[2].strip() for line in run.errors.splitlines() if "|" in line}


@pytest.fixture(scope="module")
def default_run(train: Callable[..., Run]) -> Run:
    return train(fresh=True)


def test_the_default_run(default_run: Run) -> None:
    """It learns digits in seconds; what it says, writes and prints."""
    result, folder = default_run.result, default_run.folder
    assert (result["model"], result["dataset"], result["precision"]) == ("gcn", "digits", "fp32")
    accuracy = result["metrics"]["test"]["accuracy"]
    assert accuracy >= 0.95
    assert result["fit_seconds"] < 30
    assert set(result) == set(SCHEMA)
    for name, kind in SCHEMA.items():
        assert isinstance(result[name], kind), name
    assert set(result["metrics"]) == {"train", "val", "test"}
    assert all(set(of) == {"accuracy", "macro_f1"} for of in result["metrics"].values())
    assert set(result["versions"]) == {"gnnsparse", "torch", "lightning", "torch-geometric", "python", "cuda"}
    assert result["epochs"] == 100
    assert 1 <= result["best_epoch"] <= 100
    assert result["parameters"] == 64 * 64 + 64 + 64 * 10 + 10
    assert result["cache_hit"] is False
    age = datetime.datetime.now(datetime.timezone.utc) - datetime.datetime.fromisoformat(result["date"])
    assert datetime.timedelta(0) <= age < datetime.timedelta(hours=1)
    files = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert files == {
        "README.md", "classes.csv", "result.json", "run.lock", "checkpoints/last.ckpt",
        "checkpoints/best.ckpt",
        "logs/csv/version_0/metrics.csv", ".hydra/config.yaml", ".hydra/hydra.yaml", ".hydra/overrides.yaml",
    }  # fmt: skip
    card = (folder / "README.md").read_text()
    for text in ("# gcn on digits\n", f" {accuracy:.4f} |\n", "* Optimizer: `lr="):
        assert text in card
    assert f"{100 * accuracy:.2f} %" in default_run.output
    assert [row["class"] for row in result["classes"]] == list(range(10))
    assert "classes.csv (scores of each class), README.md (model card), checkpoints/best.ckpt (for gnnsp" in (
        default_run.output
    )
    assert str(folder / "result.json") in default_run.output
    assert default_run.errors == ""


@pytest.mark.parametrize("precision", ["int8", "fp8"])
def test_features_of_eight_bits_learn_digits(train: Callable[..., Run], precision: str) -> None:
    result = train(f"precision={precision}", "trainer.max_epochs=60").result
    assert result["precision"] == precision
    assert result["metrics"]["test"]["accuracy"] >= 0.93


#: Words of a command line, in whose place `{}` stands for the folder of the default run -> what is refused.
REFUSED = {
    "precision=fp17": "precision: got 'fp17'; accepted: fp32, tf32, fp16, bf16, int8, fp8\n",
    "model=gnc": "model: got 'gnc'; nearest: gin, gcn",
    "dataset.scale=0.5": "dataset.scale: got 0.5 for digits; accepted: 1, as only generated",
    "dataset=listops": "model: got gcn for listops, a data set of sequences; accepted: transformer",
    "trainer.capture=on": "trainer.capture: got 'on', but CUDA graphs need a GPU",
    "resume=nowhere": "resume: there is no file nowhere; accepted: last, the folder of a run",
    "resume=last": "resume: got last, but there is no run in ",
    "resume=../b": "resume: ../b has no checkpoint checkpoints/last.ckpt; accepted",
    "mode=predict checkpoint={} model=gat": "model: is the checkpoint's with mode=predict",
    "mode=predict checkpoint={} precision=fp16": "precision: is the checkpoint's",
    "mode=predict checkpoint={} dataset=arxiv_like dataset.scale=0.05":
        "dataset: arxiv_like has 128 inputs and 40 outputs; accepted by the checkpoint: 64 and 10",
    "experiment=precision dataset=digits model=transformer": "model: got transformer for digits",
    "experiment=precision dataset=nowhere": "gcn on nowhere: ",
    "experiment=precision dataset=digits trainer.max_epochs=0": "trainer.max_epochs: got 0",
    "experiment=precision dataset=digits model.depth=3": "gcn on digits: Could not override 'model.depth'",
    "experiment=precision dataset=digits peers=dgl model=gin": "peers: got 'dgl' for the model",
    "-m experiment=precision": "-m: a study takes no flags; accepted: options as dataset=cora,pubmed,",
}  # fmt: skip


@pytest.mark.parametrize("words", REFUSED)
def test_a_refusal_is_one_line_and_leaves_no_folder(
    words: str, train: Callable[..., Run], default_run: Run, tmp_path: Path
) -> None:
    folder = tmp_path / "a" / "b"
    folder.mkdir(parents=True)
    run = train("device=cpu", *words.format(default_run.folder).split(), own_folder=True, folder=folder)
    assert (run.status, run.output, run.errors.count("\n")) == (2, "", 1)
    assert run.errors.startswith(f"train.py: {REFUSED[words]}")
    assert {path.name for path in tmp_path.rglob("*")} == {"a", "b"}


def test_a_refused_run_leaves_no_folder_above_its_own_unless_it_was_there(
    train: Callable[..., Run], tmp_path: Path
) -> None:
    (tmp_path / "mine").mkdir()
    given = f"hydra.run.dir={tmp_path / 'mine' / 'a' / 'b'}"
    assert train("dataset.scale=0.5", given, own_folder=True, folder=tmp_path).status == 2
    assert [path.name for path in tmp_path.rglob("*")] == ["mine"]


@pytest.mark.parametrize("option", ["model.dropout=2", "model=gnc", "--help"])
def test_refusals_and_help_come_before_slow_imports(train: Callable[..., Run], option: str) -> None:
    """A refused value comes after all checks of options; a wrong word and the help come before torch."""
    run = train(option, fresh=True, **PROFILED)
    assert run.status == (0 if option == "--help" else 2)
    assert ("torch" in imports_of(run)) == (option == "model.dropout=2")
    assert not SLOW_IMPORTS & imports_of(run)
    if option == "--help":
        assert all(word in run.output for word in ("dataset: ", "cora", "precision: fp32", "max_epochs: 100"))


def test_the_tab_key_completes_options(train: Callable[..., Run]) -> None:
    run = train("-sc", "query=bash", fresh=True, COMP_LINE="python train.py model=gc", COMP_POINT="24")
    assert (run.status, run.output.strip()) == (0, "model=gcn")


@requires_data
def test_minesweeper_is_scored_by_roc_auc(train: Callable[..., Run]) -> None:
    root = data_file("heterophilous")
    options = ["dataset=minesweeper", f"dataset.root={root}", "dataset.split=3", "trainer.max_epochs=10"]
    result = train(*options, "trainer.val_every=5", "model.num_layers=2").result
    assert set(result["metrics"]["test"]) == {"roc_auc", "accuracy", "macro_f1"}
    assert 0.4 < result["metrics"]["test"]["roc_auc"] < 1
    assert result["best_epoch"] in (5, 10)


@requires_data
@pytest.mark.parametrize(
    ("model", "epochs", "least"),
    [
        ("gcn precision=fp16", 200, 0.775),
        ("agnn", 200, 0.79),
        ("graph_transformer", 60, 0.6),
        ("gat", 60, 0.76),
        ("gps", 60, 0.72),
        ("exphormer", 60, 0.72),
    ],
)
def test_models_on_cora(train: Callable[..., Run], model: str, epochs: int, least: float) -> None:
    """Four deviations of single runs below what GCN and AGNN reach; others far above chance, 0.3 at most."""
    more = [] if epochs == 200 else [f"trainer.max_epochs={epochs}"]
    words = f"model={model} dataset=cora dataset.root={data_file('planetoid', 'cora')}"
    run = train(*words.split(), *more)
    assert run.result["metrics"]["test"]["accuracy"] >= least
    assert run.result["epochs"] == epochs
    assert run.errors.replace("Processing...\nDone!\n", "") == ""


def test_a_transformer_on_listops(train: Callable[..., Run], tmp_path: Path) -> None:
    """Two epochs, and two more from the checkpoint, are four; and predictions."""
    options = [
        "model=transformer", "dataset=listops", "pattern=bigbird", "pattern.block_size=8",
        "dataset.train_size=96", "dataset.val_size=32", "dataset.test_size=32", "dataset.max_length=64",
        "model.hidden_channels=16", "model.num_layers=1", "optimizer.schedule=none",
    ]  # fmt: skip
    whole = train(*options, "trainer.max_epochs=4")
    result = whole.result
    assert whole.errors == ""
    assert set(result) == {*SCHEMA, "sequences", "length", "pattern"} - {"nodes"}
    assert (result["sequences"], result["length"], result["pattern"]) == (96, 64, "bigbird")
    assert result["epochs"] == 4
    assert "pattern prepared in" in " ".join(whole.output.split())
    half = train(*options, "trainer.max_epochs=2")
    last = half.folder / "checkpoints" / "last.ckpt"
    resumed = train(*options, "trainer.max_epochs=4", f"resume={last}").result
    assert (resumed["best_epoch"], resumed["metrics"]) == (result["best_epoch"], result["metrics"])
    other = train(*options, "pattern.seed=1", "trainer.max_epochs=4", f"resume={last}")
    assert other.status == 2
    assert "is of a run with pattern=" in other.errors
    run = train("mode=predict", f"checkpoint={whole.folder}")
    # One is a float32 on the device, the other a quotient of counts.
    assert run.result["metrics"]["test"] == pytest.approx(result["metrics"]["test"], abs=1e-6)
    with np.load(run.folder / "predictions.npz") as file:
        assert {name: a.shape for name, a in file.items()} == {
            "sequences": (32,), "classes": (32,), "probabilities": (32, 10),
        }  # fmt: skip


def test_a_second_run_imports_what_it_uses(train: Callable[..., Run], default_run: Run) -> None:
    """The digits are in the cache by now, so that scikit-learn's data sets are not needed."""
    run = train("trainer.max_epochs=2", fresh=True, **PROFILED)
    assert run.result["cache_hit"] is True
    imported = imports_of(run)
    assert "lightning.pytorch.trainer.trainer" in imported
    unused = ("sklearn.datasets", "torch_geometric", "ogb", "dgl", "torch.utils.tensorboard", "scipy.signal")
    for module in (*unused, "transformers", "torchmetrics.classification"):
        assert module not in imported


def test_predictions(train: Callable[..., Run], default_run: Run) -> None:
    """By the best weights of a run, on its data, whatever the defaults of this run's options are."""
    run = train("mode=predict", f"checkpoint={default_run.folder}")
    result, whole = run.result, default_run.result
    assert result["metrics"] == whole["metrics"]
    assert (result["mode"], result["model"], result["dataset"]) == ("predict", "gcn", "digits")
    with np.load(run.folder / "predictions.npz") as file:
        arrays = dict(file)
    assert {name: (a.dtype.name, a.shape) for name, a in arrays.items()} == {
        "nodes": ("int64", (1797,)), "classes": ("int64", (1797,)), "probabilities": ("float32", (1797, 10)),
    }  # fmt: skip
    assert (arrays["nodes"] == np.arange(1797)).all()
    assert (arrays["probabilities"].argmax(axis=1) == arrays["classes"]).all()
    assert f"{100 * whole['metrics']['test']['accuracy']:.2f} %" in run.output
    again = train("mode=predict", f"checkpoint={default_run.folder}", folder=run.folder)
    assert again.status == 2
    assert "hydra.run.dir" in again.errors


def test_predictions_of_another_model_and_split(train: Callable[..., Run], tmp_path: Path) -> None:
    data = ("dataset=arxiv_like", "dataset.scale=0.05", "precision=fp16", "trainer.max_epochs=3")
    first = train("model=agnn", "model.hidden_channels=8", *data)
    assert first.status == 0, first.errors
    last = first.folder / "checkpoints" / "last.ckpt"
    run = train("mode=predict", f"checkpoint={last}", "dataset.split=1", own_folder=True, folder=tmp_path)
    assert run.status == 0, run.errors
    (file,) = tmp_path.glob("outputs/*/*-predict/result.json")
    result = json.loads(file.read_text())
    assert (result["model"], result["dataset"], result["precision"]) == ("agnn", "arxiv_like", "fp16")
    assert result["nodes"] == first.result["nodes"] == round(0.05 * 169_343)
