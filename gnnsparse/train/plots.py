"""Plots of a run as PNG files: curves of losses and scores, and the confusion matrix of a classifier."""

from __future__ import annotations

import importlib.util
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from gnnsparse.train.folders import RunFolderWarning

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from gnnsparse.data.datasets import GraphDataset, NodeDataset

__all__ = ["Curves", "confusion_matrix", "write_plots"]

#: Most classes whose counts are written into the cells of a confusion matrix, and named on its axes.
_MOST_NAMED = 20
#: Dots an inch.
_DPI = 120


class Curves:
    """The losses and validation scores of a run, step by step, as they reach the host.

    Attributes:
        loss: the steps, and the training loss of each.
        scores: by name, such as "val/loss" or "val/accuracy", the steps that were validated and the values.
    """

    def __init__(self) -> None:
        self.loss: tuple[list[int], list[float]] = ([], [])
        self.scores: dict[str, tuple[list[int], list[float]]] = {}

    def add(self, step: int, row: dict[str, float]) -> None:
        """Store the values of a step by name, of which "train/loss" is the training loss."""
        for name, value in row.items():
            curve = self.loss if name == "train/loss" else self.scores.setdefault(name, ([], []))
            curve[0].append(step)
            curve[1].append(value)


def confusion_matrix(
    dataset: NodeDataset | GraphDataset, logits: torch.Tensor, y: torch.Tensor
) -> torch.Tensor | None:
    """Return how many known items of a row's class were given a column's; None of other targets."""
    if dataset.multi_label or dataset.regression:
        return None
    classes, known = dataset.num_classes, y >= 0
    pairs = (y * classes + logits.argmax(dim=1))[known]
    return torch.bincount(pairs, minlength=classes**2).reshape(classes, classes).cpu()


def write_plots(
    folder: Path, curves: Curves, confusion: torch.Tensor | None, *, steps_per_epoch: int, title: str
) -> list[Path]:
    """Write curves.png, and confusion.png if there is a matrix, to a new folder; return what was written."""
    # Without matplotlib, and where a file can't be written, a RunFolderWarning says so.
    if importlib.util.find_spec("matplotlib") is None:
        _warn("no plots are drawn, as matplotlib is missing (pip install matplotlib, or trainer.plots=false)")
        return []
    figures = {"curves.png": _curves(curves, steps_per_epoch, title)}
    if confusion is not None and confusion.numel():
        figures["confusion.png"] = _confusion(confusion, title)
    written = []
    for name, figure in figures.items():
        try:
            folder.mkdir(exist_ok=True)
            figure.savefig(folder / name, dpi=_DPI)
            written.append(folder / name)
        except OSError as error:
            _warn(f"{folder / name} can't be written ({error.strerror or error})")
    return written


def _warn(problem: str) -> None:
    warnings.warn(problem, RunFolderWarning, stacklevel=3)


def _figure(width: float, height: float) -> Figure:
    """Make a figure without pyplot, which keeps every figure and looks for a display."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def _curves(curves: Curves, steps_per_epoch: int, title: str) -> Figure:
    figure = _figure(8, 3.2)
    left, right = figure.subplots(1, 2)
    steps, losses = curves.loss
    _line(left, steps, losses, steps_per_epoch, "training")
    for name, (steps, values) in curves.scores.items():
        part, _, score = name.partition("/")
        if score == "loss":
            _line(left, steps, values, steps_per_epoch, "validation")
        else:
            _line(right, steps, values, steps_per_epoch, f"{part} {score}".replace("_", " "))
    left.set_ylabel("loss")
    right.set_ylabel("score of the validation part")
    for axes in (left, right):
        axes.set_xlabel("epoch")
        axes.grid(alpha=0.3)
        if axes.lines:
            axes.legend(frameon=False)
    figure.suptitle(title)
    return figure


def _line(axes: Any, steps: list[int], values: list[float], steps_per_epoch: int, label: str) -> None:
    marker = "." if len(steps) < 3 else ""  # one point has no line
    axes.plot([step / steps_per_epoch for step in steps], values, marker=marker, label=label)


def _confusion(confusion: torch.Tensor, title: str) -> Figure:
    classes = confusion.shape[0]
    side = min(3 + 0.45 * classes, 12)
    figure = _figure(side + 0.8, side)
    axes = figure.subplots()
    fractions = confusion / confusion.sum(dim=1, keepdim=True).clamp(min=1)
    image = axes.imshow(fractions.numpy(), cmap="Blues", vmin=0, vmax=1)
    figure.colorbar(image, ax=axes, label="fraction of the class")
    axes.set_xlabel("predicted class")
    axes.set_ylabel("class")
    axes.set_title(f"{title}, test part")
    if classes <= _MOST_NAMED:
        axes.set_xticks(range(classes))
        axes.set_yticks(range(classes))
        for row, counts in enumerate(confusion.tolist()):
            for column, count in enumerate(counts):
                color = "white" if float(fractions[row, column]) > 0.5 else "black"
                axes.text(column, row, str(count), ha="center", va="center", color=color)
    return figure
