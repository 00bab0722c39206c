"""Records loss curves of fused, unfused and dense attention on ListOps, with equal seeds and batches.

    python -m benchmarks.loss_curves --out benchmarks/results/loss_curves.json --plot FILE.png

`fused` and `unfused` are this package's attention over the pattern, and `masked` is torch's dense attention
with the pattern as a mask. Without dropout these three compute equal functions, so their curves agree.
`dense` is torch's attention over all pairs, which shows what the pattern costs in accuracy. The default is a
small run for a CPU; the published comparison is --max-length 512 --train 20000 --epochs 10 on a GPU. Options
of train.py follow after --, as in: -- pattern=window model.num_layers=2.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.callbacks import Callback
from omegaconf import DictConfig, OmegaConf

import train
from benchmarks.dense import make_dense
from benchmarks.script import options_of_train, script_parser
from gnnsparse.bench.figures import drawing
from gnnsparse.runtime.environment import describe_environment, write_json
from gnnsparse.train import FitResult, SequenceClassifier, TrainerConfig, fit
from gnnsparse.train.tasks import TASKS

VARIANTS = ("fused", "unfused", "masked", "dense")
#: Variants that compute equal functions.
EQUIVALENT = ("fused", "unfused", "masked")


class Losses(Callback):
    """Keeps the loss of each step on the device."""

    def __init__(self) -> None:
        self.kept: list[torch.Tensor] = []

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, *_: Any) -> None:
        self.kept.append(outputs["loss"].detach().float())


class Recorded(SequenceClassifier):
    """A classifier that keeps the loss of each step."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.losses = Losses()

    def configure_callbacks(self) -> list[Callback]:
        return [self.losses]


def options_of(options: argparse.Namespace) -> DictConfig:
    overrides = [
        "model=transformer", "dataset=listops", f"precision={options.precision}", f"device={options.device}",
        f"seed={options.seed}", f"dataset.max_length={options.max_length}",
        f"dataset.min_length={options.min_length}", f"dataset.train_size={options.train}",
        f"dataset.val_size={options.val}", f"dataset.test_size={options.val}",
        f"trainer.max_epochs={options.epochs}", "model.dropout=0.0", *options.overrides,
    ]  # fmt: skip
    return options_of_train(overrides)


def run(cfg: DictConfig, variant: str) -> tuple[list[float], FitResult]:
    """Train one variant; all variants start from equal weights and get equal batches."""
    cfg.model.fused = False if variant == "unfused" else None
    if variant == "dense":
        OmegaConf.update(cfg, "pattern", {"name": "full"}, merge=False, force_add=True)
    settings = train.read_settings(cfg)
    module, data = train.set_up(cfg, TASKS[train.task_name(cfg)], settings)
    model = module.model if variant in ("fused", "unfused") else make_dense(module.model, masked=True)
    steps = settings.trainer.max_epochs * data.steps_per_epoch
    module = Recorded(model, data.dataset, settings.optimizer, steps)
    quiet = TrainerConfig(
        max_epochs=settings.trainer.max_epochs, batch_size=settings.trainer.batch_size, progress=False
    )
    result = fit(module, data, quiet)
    return torch.stack(module.losses.kept).tolist(), result


def plot(curves: dict[str, list[float]], path: Path) -> None:
    with drawing(path, (7.0, 4.0)) as figure:
        axes = figure.add_subplot()
        for width, (name, losses) in zip((5.0, 3.0, 1.0, 1.0), curves.items(), strict=False):
            axes.plot(range(1, len(losses) + 1), losses, label=name, linewidth=width, alpha=0.7)
        axes.set(xlabel="step", ylabel="training loss")
        axes.legend()


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = script_parser(__doc__, device="auto")
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--min-length", type=int, default=16)
    parser.add_argument("--max-length", type=int, default=64)
    parser.add_argument("--train", type=int, default=1024, help="training expressions")
    parser.add_argument("--val", type=int, default=256, help="validation and test expressions, each")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--plot", type=Path, help="figure to draw")
    parser.add_argument("overrides", nargs="*", metavar="-- option=value")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> None:
    options = parse(arguments)
    cfg = options_of(options)
    device = train.read_settings(cfg).device
    header, curves, rows = describe_environment(device), {}, []
    for variant in options.variants:
        losses, result = run(cfg.copy(), variant)
        scores = {part: of["accuracy"] for part, of in result.metrics.items()}
        rows.append(
            {"variant": variant, "losses": losses, "accuracy": scores, "best_epoch": result.best_epoch}
        )
        curves[variant], test = losses, 100 * scores["test"]
        print(f"{variant:8s} loss {losses[0]:.4f} -> {losses[-1]:.4f}  test {test:.2f} %", flush=True)
    compared = [torch.tensor(curves[name]) for name in EQUIVALENT if name in curves]
    apart = max((float((a - compared[0]).abs().max()) for a in compared), default=0.0)
    print(f"largest difference of {', '.join(name for name in EQUIVALENT if name in curves)}: {apart:.2e}")
    if options.out:
        about = {"pattern": dict(cfg.pattern), "dataset": dict(cfg.dataset), "model": dict(cfg.model)}
        about |= {"precision": cfg.precision, "largest_difference": apart}
        write_json(options.out, {**header, **about, "rows": rows})
    if options.plot:
        plot(curves, options.plot)


if __name__ == "__main__":
    main()
