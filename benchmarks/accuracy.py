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

A row of the results belongs to a model, a data set and a precision. If the file of --out exists and is of
the same device, versions and number of seeds, rows that are not measured anew are kept, so that a long run
can be divided.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

import lightning
import torch
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig
from rich.console import Console
from rich.table import Table

import train
from benchmarks.pyg import with_pyg_layers
from gnnsparse.data import NodeDataset, load_dataset
from gnnsparse.environment import describe_environment, write_json
from gnnsparse.training import (
    FitResult,
    FullGraphData,
    GraphBatch,
    NodeClassifier,
    TrainerConfig,
    fit,
    resolve_device,
)
from models import MODELS

ROOT = Path(__file__).resolve().parent.parent
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
    """Returns the options of train.py for a model and a data set."""
    overrides = [f"model={model}", f"dataset={dataset}", f"device={device}"]
    with initialize_config_dir(str(ROOT / "configs"), version_base="1.3"):
        cfg = compose("train", overrides)
    if root is not None:
        cfg.dataset.root = str(root)
    return cfg


def run(cfg: DictConfig, dataset: NodeDataset, data: FullGraphData, seed: int) -> FitResult:
    settings = train.read_settings(cfg)
    lightning.seed_everything(seed, verbose=False)
    model = train.build_model(cfg, dataset.num_features, dataset.num_classes)
    if isinstance(data, PygData):
        model = with_pyg_layers(model)
    epochs = settings.trainer.max_epochs
    module = NodeClassifier(model, dataset, settings.optimizer, epochs)
    quiet = TrainerConfig(max_epochs=epochs, val_every=settings.trainer.val_every, progress=False)
    return fit(module, data, quiet)


def scores_of(cfg: DictConfig, dataset: NodeDataset, data: FullGraphData, seeds: int) -> dict[str, Any]:
    """Trains with all seeds on one data module, and returns the statistics of their scores, in per cent."""
    results = [run(cfg, dataset, data, seed) for seed in range(seeds)]
    accuracies = [100 * result.metrics["test"][dataset.metric] for result in results]
    return {
        "metric": dataset.metric,
        "epochs": results[0].epochs,
        "mean": statistics.fmean(accuracies),
        "standard_deviation": statistics.pstdev(accuracies),
        "accuracies": accuracies,
        "best_epochs": [result.best_epoch for result in results],
        "epoch_milliseconds": statistics.median(result.epoch_milliseconds or 0.0 for result in results),
    }


def baseline_of(cfg: DictConfig, dataset: NodeDataset, seeds: int, device: Any) -> dict[str, Any]:
    """Returns PyG's scores."""
    if cfg.model.name == "gcn" and dataset.name in BASELINE:
        mean, deviation = BASELINE[dataset.name]
        return {"baseline": mean, "baseline_standard_deviation": deviation}
    found = scores_of(cfg, dataset, PygData(dataset, device=device), seeds)
    return {
        "baseline": found["mean"],
        "baseline_standard_deviation": found["standard_deviation"],
        "baseline_accuracies": found["accuracies"],
        "baseline_epoch_milliseconds": found["epoch_milliseconds"],
    }


#: What a row is of; a file has one row for each.
KEY = ("model", "dataset", "precision")


def kept_rows(file: Path | None, header: dict[str, Any], seeds: int) -> list[dict[str, Any]]:
    """Returns the rows of a file that can stand beside new ones.

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
    """Returns rows in which a new one replaces the one of its key, or is the last."""
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
    parser = argparse.ArgumentParser(
        prog="benchmarks.accuracy", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    names = [name for name, model in MODELS.items() if model.task == "node"]
    parser.add_argument("--model", nargs="+", default=["gcn"], choices=names)
    parser.add_argument("--datasets", nargs="+", default=list(BASELINE))
    parser.add_argument("--precisions", nargs="+", default=["fp32", "tf32", "fp16"])
    parser.add_argument("--seeds", type=int, default=10, help="number of seeds, from 0 on")
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda")
    parser.add_argument("--planetoid", type=Path, metavar="DIR", help="has a folder for each data set")
    parser.add_argument("--root-of", action="append", default=[], metavar="NAME=DIR")
    parser.add_argument("--out", type=Path, help="JSON file to write")
    return parser.parse_args()


def main() -> None:
    args = parse()
    roots = {name: args.planetoid / name for name in BASELINE} if args.planetoid else {}
    roots.update({name: Path(folder) for name, _, folder in (pair.partition("=") for pair in args.root_of)})
    device, console = resolve_device(args.device), Console()
    header = describe_environment(device)
    rows = kept_rows(args.out, header, args.seeds)
    for model, name in itertools.product(args.model, args.datasets):
        cfg = options_of(model, name, roots.get(name), args.device)
        dataset = load_dataset(name, root=roots.get(name))
        baseline = baseline_of(cfg, dataset, args.seeds, device)
        console.print(f"{model} {name} PyG: {baseline['baseline']:.2f}")
        for precision in args.precisions:
            values = MODELS[model].values_with(train.options_of(cfg.model))
            data = FullGraphData(dataset, values=values, precision=precision, device=device)
            scores = scores_of(cfg, dataset, data, args.seeds)
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
