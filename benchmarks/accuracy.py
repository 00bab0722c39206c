"""Measures the test accuracy of models in each precision, and PyG's on equal data with an equal protocol.

python -m benchmarks.accuracy --planetoid DIR [--model gcn] [--datasets cora citeseer pubmed]
    [--precisions fp32 tf32 fp16] [--seeds 10] [--device auto]
    [--out benchmarks/results/accuracy_cpu.json]

Models and training are those of `python train.py model=MODEL dataset=NAME`, on the split 0 of a data set,
the public one if there is one, and are scored at the first epoch with the best validation score: accuracy,
or ROC AUC where the data set has it. PyG's scores are measured here, by training the model with PyG's layers
in fp32 from equal seeds and equal initial weights; those of the GCN on Planetoid's data sets are a constant
in this file.

DIR has a folder for each of these, such as DIR/cora with the raw files of Cora; --root-of NAME=DIR names the
folder of one data set. Without either the files are downloaded.

Seeds are trained one after another, or by --jobs processes that share the device.

A row of the results belongs to a model, a data set and a precision. If the file of --out exists and is of
the same device, versions and number of seeds, rows that are not measured anew are kept, so that a long run
can be divided.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import multiprocessing
import statistics
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import lightning
import torch
from omegaconf import DictConfig
from rich.console import Console
from rich.table import Table

import train
from benchmarks.pyg import with_pyg_layers
from benchmarks.script import options_of_train, roots_of, script_parser
from gnnsparse.data import NodeDataset, load_dataset
from gnnsparse.runtime.environment import describe_environment, write_json
from gnnsparse.train import (
    FitResult,
    FullGraphData,
    GraphBatch,
    NodeClassifier,
    TrainerConfig,
    fit,
    resolve_device,
)
from models import MODELS

#: Test accuracy of a GCN of PyG 2.8's GCNConv in fp32 on a CPU, in per cent: mean and population standard
#: deviation over seeds 0 to 9, with the files, model, training and choice of the epoch of this benchmark.
BASELINE = {"cora": (81.64, 0.93), "citeseer": (70.69, 1.07), "pubmed": (79.09, 0.41)}


class PygData(FullGraphData):
    """FullGraphData with an edge_index in place of the operand, for PyG's layers."""

    def _on_device(self, adj: Any) -> GraphBatch:
        csr = self.dataset.graph.csr
        edge_index = torch.stack([csr.indices.long(), csr.row_index()]).to(self.device)
        return replace(super()._on_device(adj), adj=edge_index)  # type: ignore[arg-type]


def options_of(model: str, dataset: str, root: Path | None, device: str) -> DictConfig:
    """Return the options of train.py for a model and a data set."""
    overrides = [f"model={model}", f"dataset={dataset}", f"device={device}"]
    cfg: DictConfig = options_of_train(overrides)
    if root is not None:
        cfg.dataset.root = str(root)
    return cfg


@dataclass(frozen=True)
class Subject:
    """What is trained: a model on a data set, in a precision, or with PyG's layers if that is None."""

    model: str
    dataset: str
    root: Path | None
    device: str
    precision: str | None = None


@functools.cache
def dataset_of(name: str, root: Path | None) -> NodeDataset:
    """Read a data set, once in each process."""
    return load_dataset(name, root=root)


@functools.lru_cache(1)
def data_of(subject: Subject) -> FullGraphData:
    """Prepare the data of a subject, once in each process while it is trained."""
    dataset, device = dataset_of(subject.dataset, subject.root), resolve_device(subject.device)
    if subject.precision is None:
        return PygData(dataset, device=device)
    cfg = options_of(subject.model, subject.dataset, subject.root, subject.device)
    values = MODELS[subject.model].values_with(train.options_of(cfg.model))
    return FullGraphData(dataset, values=values, precision=subject.precision, device=device)


def run(subject: Subject, seed: int) -> FitResult:
    """Train a model from a seed."""
    cfg = options_of(subject.model, subject.dataset, subject.root, subject.device)
    dataset, settings = dataset_of(subject.dataset, subject.root), train.read_settings(cfg)
    lightning.seed_everything(seed, verbose=False)
    model = train.build_model(cfg, dataset.num_features, dataset.num_classes)
    if subject.precision is None:
        model = with_pyg_layers(model)
    epochs = settings.trainer.max_epochs
    module = NodeClassifier(model, dataset, settings.optimizer, epochs)
    quiet = TrainerConfig(max_epochs=epochs, val_every=settings.trainer.val_every, progress=False)
    return fit(module, data_of(subject), quiet)


def scores_of_run(subject: Subject, seed: int) -> tuple[float, int, int, float]:
    """Train, and return the score in per cent, epochs, best epoch and milliseconds of an epoch."""
    result = run(subject, seed)
    score = result.metrics["test"][dataset_of(subject.dataset, subject.root).metric]
    return 100 * score, result.epochs, result.best_epoch, result.epoch_milliseconds or 0.0


@contextmanager
def workers(jobs: int) -> Iterator[Executor | None]:
    """Process that train; None: this one does."""
    if jobs == 1:
        yield None
        return
    with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        yield pool


def scores_of(subject: Subject, seeds: int, pool: Executor | None) -> dict[str, Any]:
    """Train with all seeds, and return the statistics of their scores, in per cent."""
    mapped = map if pool is None else pool.map
    found = list(mapped(functools.partial(scores_of_run, subject), range(seeds)))
    accuracies, epochs, best, milliseconds = zip(*found, strict=True)
    return {
        "metric": dataset_of(subject.dataset, subject.root).metric,
        "epochs": epochs[0],
        "mean": statistics.fmean(accuracies),
        "standard_deviation": statistics.pstdev(accuracies),
        "accuracies": list(accuracies),
        "best_epochs": list(best),
        "epoch_milliseconds": statistics.median(milliseconds),
    }


def baseline_of(subject: Subject, seeds: int, pool: Executor | None) -> dict[str, Any]:
    """Return PyG's scores."""
    if subject.model == "gcn" and subject.dataset in BASELINE:
        mean, deviation = BASELINE[subject.dataset]
        return {"baseline": mean, "baseline_standard_deviation": deviation}
    found = scores_of(subject, seeds, pool)
    return {
        "baseline": found["mean"],
        "baseline_standard_deviation": found["standard_deviation"],
        "baseline_accuracies": found["accuracies"],
        "baseline_epoch_milliseconds": found["epoch_milliseconds"],
    }


#: What a row is of; a file has one row for each.
KEY = ("model", "dataset", "precision")


def kept_rows(file: Path | None, header: dict[str, Any], seeds: int) -> list[dict[str, Any]]:
    """Return the rows of a file that can stand beside new ones.

    Raises:
        ValueError: the file is of another device, other versions or another number of seeds.
    """
    if file is None or not file.exists():
        return []
    found = json.loads(file.read_text())
    for name in ("device_name", "threads", "versions"):
        if found[name] != header[name]:
            raise ValueError(f"out: {file} has {name} {found[name]}, this run {header[name]}")
    if any(row["seeds"] != seeds for row in found["rows"]):
        raise ValueError(f"out: {file} has rows of another number of seeds than {seeds}")
    return list(found["rows"])


def with_row(rows: list[dict[str, Any]], row: dict[str, Any]) -> list[dict[str, Any]]:
    """Return rows in which a new one replaces the one of its key, or is the last."""
    keys = [[other[name] for name in KEY] for other in rows]
    key = [row[name] for name in KEY]
    return [row if other == key else old for other, old in zip(keys, rows, strict=True)] + (
        [] if key in keys else [row]
    )


def table_of(rows: list[dict[str, Any]], device: str) -> Table:
    table = Table(title=f"Test scores in per cent, {device}", title_justify="left")
    for column in (*KEY, "mean ± deviation", "PyG fp32", "difference", "ms an epoch"):
        table.add_column(column, justify="left" if column in KEY else "right")
    for row in rows:
        mean, deviation = row["baseline"], row["baseline_standard_deviation"]
        table.add_row(
            *(row[name] for name in KEY),
            f"{row['mean']:.2f} ± {row['standard_deviation']:.2f}",
            f"{mean:.2f} ± {deviation:.2f}",
            f"{row['mean'] - mean:+.2f}",
            f"{row['epoch_milliseconds']:.1f}",
        )
    return table


def parse() -> argparse.Namespace:
    parser = script_parser(__doc__, device="auto")
    names = [name for name, model in MODELS.items() if model.task == "node"]
    parser.add_argument("--model", nargs="+", default=["gcn"], choices=names)
    parser.add_argument("--datasets", nargs="+", default=list(BASELINE))
    parser.add_argument("--precisions", nargs="+", default=["fp32", "tf32", "fp16"])
    parser.add_argument("--seeds", type=int, default=10, help="number of seeds, from 0 on")
    parser.add_argument("--jobs", type=int, default=1, help="processes that train at a time")
    parser.add_argument("--planetoid", type=Path, metavar="DIR", help="has a folder for each data set")
    parser.add_argument("--root-of", action="append", default=[], metavar="NAME=DIR")
    return parser.parse_args()


def main() -> None:
    args = parse()
    roots = {name: args.planetoid / name for name in BASELINE} if args.planetoid else {}
    roots |= roots_of(args.root_of)
    console, header = Console(), describe_environment(resolve_device(args.device))
    rows = kept_rows(args.out, header, args.seeds)
    with workers(args.jobs) as pool:
        for model, name in itertools.product(args.model, args.datasets):
            subject = Subject(model, name, roots.get(name), args.device)
            baseline = baseline_of(subject, args.seeds, pool)
            console.print(f"{model} {name} PyG: {baseline['baseline']:.2f}")
            for precision in args.precisions:
                scores = scores_of(replace(subject, precision=precision), args.seeds, pool)
                about = {"model": model, "dataset": name, "precision": precision, "seeds": args.seeds}
                rows = with_row(rows, {**about, **scores, **baseline})
                console.print(
                    f"{model} {name} {precision}: {scores['mean']:.2f} ± {scores['standard_deviation']:.2f}"
                )
                if args.out:  # written after each row, because a run takes long
                    write_json(args.out, {**header, "rows": rows})
    console.print(table_of(rows, header["device_name"]))


if __name__ == "__main__":
    main()
