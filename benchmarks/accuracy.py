"""Measures the test accuracy of a model in each precision, and PyG's on equal data with an equal protocol.

python -m benchmarks.accuracy --planetoid DIR [--model gcn] [--datasets cora citeseer pubmed]
    [--precisions fp32 tf32 fp16] [--seeds 10] [--device auto] [--out benchmarks/results/accuracy_cpu.json]

Model and training are those of `python train.py model=MODEL dataset=NAME`, on the public split, and are
scored at the first epoch with the best validation accuracy. The models are Kipf and Welling's GCN and the
AGNN of PyG's example. PyG's accuracy of the GCN is a constant in this file. Its accuracy of the AGNN is
measured here, by training the model with PyG's layers in fp32 from equal seeds. DIR has a folder for each
data set, such as DIR/cora with the raw files of Cora; --root-of NAME=DIR names the folder of one data set.
Without either the files are downloaded.
"""

from __future__ import annotations

import argparse
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
    """Trains with all seeds on one data module, and returns the statistics of their scores."""
    results = [run(cfg, dataset, data, seed) for seed in range(seeds)]
    accuracies = [100 * result.metrics["test"]["accuracy"] for result in results]
    return {
        "epochs": results[0].epochs,
        "mean": statistics.fmean(accuracies),
        "standard_deviation": statistics.pstdev(accuracies),
        "accuracies": accuracies,
        "best_epochs": [result.best_epoch for result in results],
        "epoch_milliseconds": statistics.median(result.epoch_milliseconds or 0.0 for result in results),
    }


def baseline_of(cfg: DictConfig, dataset: NodeDataset, seeds: int, device: Any) -> dict[str, Any]:
    """Returns PyG's accuracies; {"baseline": None} if there are none."""
    if cfg.model.name == "agnn":
        found = scores_of(cfg, dataset, PygData(dataset, device=device), seeds)
        return {
            "baseline": found["mean"],
            "baseline_standard_deviation": found["standard_deviation"],
            "baseline_accuracies": found["accuracies"],
            "baseline_epoch_milliseconds": found["epoch_milliseconds"],
        }
    if cfg.model.name == "gcn" and dataset.name in BASELINE:
        mean, deviation = BASELINE[dataset.name]
        return {"baseline": mean, "baseline_standard_deviation": deviation}
    return {"baseline": None}


def table_of(rows: list[dict[str, Any]], model: str, device: str) -> Table:
    table = Table(title=f"Test accuracy of {model} in per cent, {device}", title_justify="left")
    for column in ("data set", "precision", "mean ± deviation", "PyG fp32", "difference", "ms an epoch"):
        table.add_column(column, justify="left" if column in ("data set", "precision") else "right")
    for row in rows:
        mean, deviation = row["baseline"], row.get("baseline_standard_deviation")
        table.add_row(
            row["dataset"],
            row["precision"],
            f"{row['mean']:.2f} ± {row['standard_deviation']:.2f}",
            "" if mean is None else f"{mean:.2f} ± {deviation:.2f}",
            "" if mean is None else f"{row['mean'] - mean:+.2f}",
            f"{row['epoch_milliseconds']:.1f}",
        )
    return table


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="benchmarks.accuracy", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--model", default="gcn", choices=[n for n, m in MODELS.items() if m.task == "node"])
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
    device = resolve_device(args.device)
    console, rows = Console(), []
    header = describe_environment(device)
    for name in args.datasets:
        cfg = options_of(args.model, name, roots.get(name), args.device)
        dataset = load_dataset(name, root=roots.get(name))
        baseline = baseline_of(cfg, dataset, args.seeds, device)
        if baseline["baseline"] is not None:
            console.print(f"{name} PyG: {baseline['baseline']:.2f}")
        for precision in args.precisions:
            data = FullGraphData(
                dataset, values=MODELS[args.model].values, precision=precision, device=device
            )
            scores = scores_of(cfg, dataset, data, args.seeds)
            about = {"model": args.model, "dataset": name, "precision": precision, "seeds": args.seeds}
            rows.append({**about, **scores, **baseline})
            console.print(f"{name} {precision}: {scores['mean']:.2f} ± {scores['standard_deviation']:.2f}")
            if args.out:  # written after each row, because a run takes long
                write_json(args.out, {**header, "rows": rows})
    console.print(table_of(rows, args.model, header["device_name"]))


if __name__ == "__main__":
    main()
