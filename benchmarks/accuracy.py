"""Test accuracy of the GCN in each precision, beside that of PyG on the same data and protocol.

python -m benchmarks.accuracy --planetoid DIR [--datasets cora citeseer pubmed]
    [--precisions fp32 tf32 fp16] [--seeds 10] [--device auto] [--out benchmarks/results/accuracy_cpu.json]

Model and training are those of configs/dataset/NAME.yaml, what `python train.py dataset=NAME` runs:
Kipf and Welling's GCN on the public split, scored at the first epoch with the best validation accuracy.
DIR has a folder for each data set, DIR/cora with the raw files of Cora and so on; --root-of NAME=DIR
names one of them, and without either the files are downloaded.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path
from typing import Any

import lightning
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig
from rich.console import Console
from rich.table import Table

import train
from gnnsparse.data import NodeDataset, load_dataset
from gnnsparse.environment import describe_environment, write_json
from gnnsparse.training import (
    FitResult,
    FullGraphData,
    NodeClassifier,
    TrainerConfig,
    fit,
    resolve_device,
)
from models import MODELS

ROOT = Path(__file__).resolve().parent.parent
#: Test accuracy of PyG 2.8's GCNConv in fp32 on a CPU, in per cent: mean and population standard
#: deviation over seeds 0 to 9, on the same files, model, training and choice of the epoch.
BASELINE = {"cora": (81.64, 0.93), "citeseer": (70.69, 1.07), "pubmed": (79.09, 0.41)}


def options_of(dataset: str, root: Path | None, device: str) -> DictConfig:
    """What train.py would run."""
    overrides = [f"dataset={dataset}", f"device={device}"]
    with initialize_config_dir(str(ROOT / "configs"), version_base="1.3"):
        cfg = compose("train", overrides)
    if root is not None:
        cfg.dataset.root = str(root)
    return cfg


def run(cfg: DictConfig, dataset: NodeDataset, data: FullGraphData, seed: int) -> FitResult:
    settings = train.read_settings(cfg)
    lightning.seed_everything(seed, verbose=False)
    model = train.build_model(cfg, dataset.num_features, dataset.num_classes)
    epochs = settings.trainer.max_epochs
    module = NodeClassifier(model, dataset, settings.optimizer, epochs)
    quiet = TrainerConfig(max_epochs=epochs, val_every=settings.trainer.val_every, progress=False)
    return fit(module, data, quiet)


def measure(
    cfg: DictConfig, dataset: NodeDataset, data: FullGraphData, precision: str, seeds: int
) -> dict[str, Any]:
    """All seeds of one data set in one precision."""
    results = [run(cfg, dataset, data, seed) for seed in range(seeds)]
    accuracies = [100 * result.metrics["test"]["accuracy"] for result in results]
    return {
        "dataset": dataset.name,
        "precision": precision,
        "seeds": seeds,
        "epochs": results[0].epochs,
        "mean": statistics.fmean(accuracies),
        "standard_deviation": statistics.pstdev(accuracies),
        "accuracies": accuracies,
        "best_epochs": [result.best_epoch for result in results],
        "epoch_milliseconds": statistics.median(result.epoch_milliseconds or 0.0 for result in results),
        "baseline": BASELINE.get(dataset.name, (None, None))[0],
    }


def table_of(rows: list[dict[str, Any]], device: str) -> Table:
    table = Table(title=f"Test accuracy of the GCN in per cent, {device}", title_justify="left")
    for column in ("data set", "precision", "mean ± deviation", "PyG fp32", "difference", "ms an epoch"):
        table.add_column(column, justify="left" if column in ("data set", "precision") else "right")
    for row in rows:
        mean, deviation = BASELINE.get(row["dataset"], (None, None))
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
        cfg = options_of(name, roots.get(name), args.device)
        dataset = load_dataset(name, root=roots.get(name))
        values = MODELS[cfg.model.name].values
        for precision in args.precisions:
            data = FullGraphData(dataset, values=values, precision=precision, device=device)
            row = measure(cfg, dataset, data, precision, args.seeds)
            console.print(f"{name} {precision}: {row['mean']:.2f} ± {row['standard_deviation']:.2f}")
            rows.append(row)
            if args.out:  # as far as it got: all of it takes a while
                write_json(args.out, {**header, "rows": rows})
    console.print(table_of(rows, header["device_name"]))


if __name__ == "__main__":
    main()
