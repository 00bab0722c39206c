"""What a run leaves to look at: plots as PNG files, and the scores of each class as a CSV file."""

from __future__ import annotations

import csv
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from gnnsparse.train.folders import RunFolderWarning

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from gnnsparse.data.datasets import GraphDataset, NodeDataset

#: Most classes whose counts are written into the cells of a confusion matrix, and named on its axes.
_MOST_NAMED = 20
#: Characters of a class's name on an axis.
_LONGEST = 24
#: Dots an inch.
_DPI = 120
#: What the losses are called in the plot.
_LOSSES = {"train/loss": "training", "val/loss": "validation"}
#: The losses and validation scores of a run: a step, counted from 1, and its values by name ("train/loss").
Curves = list[tuple[int, dict[str, float]]]


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
    folder: Path,
    curves: Curves,
    confusion: torch.Tensor | None,
    *,
    steps_per_epoch: int,
    title: str,
    classes: Sequence[str] | None = None,
) -> None:
    """Write curves.png, and confusion.png with the names of the classes if there is a matrix, to a folder."""
    # Without matplotlib, and where a file can't be written, a RunFolderWarning says so.
    try:
        from matplotlib.figure import Figure  # not pyplot, which keeps every figure and looks for a display
    except ImportError:
        _warn("no plots are drawn, as matplotlib is missing (pip install matplotlib, or trainer.plots=false)")
        return
    figures = {"curves.png": Figure(figsize=(8, 3.2), layout="constrained")}
    _draw_curves(figures["curves.png"], curves, steps_per_epoch, title)
    if confusion is not None and confusion.numel():
        side = min(3 + 0.45 * len(confusion), 12)
        figures["confusion.png"] = Figure(figsize=(side + 0.8, side), layout="constrained")
        _draw_confusion(figures["confusion.png"], confusion, title, classes)
    for name, figure in figures.items():
        try:
            folder.mkdir(exist_ok=True)
            figure.savefig(folder / name, dpi=_DPI)
        except OSError as error:
            _warn(f"{folder / name} can't be written ({error.strerror or error})")


def write_classes(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Write the rows of `gnnsparse.train.metrics.class_rows` as CSV; a RunFolderWarning says if it fails."""
    try:
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    except OSError as error:
        _warn(f"{path} can't be written ({error.strerror or error})")


def _warn(problem: str) -> None:
    warnings.warn(problem, RunFolderWarning, stacklevel=3)


def _draw_curves(figure: Figure, curves: Curves, steps_per_epoch: int, title: str) -> None:
    left, right = figure.subplots(1, 2)
    for name in dict.fromkeys(name for _, row in curves for name in row):
        label = _LOSSES.get(name, name.replace("/", " ").replace("_", " "))
        steps = [step / steps_per_epoch for step, row in curves if name in row]
        values = [row[name] for _, row in curves if name in row]
        marker = "." if len(steps) < 3 else ""  # one point has no line
        (left if name in _LOSSES else right).plot(steps, values, marker=marker, label=label)
    left.set_ylabel("loss")
    right.set_ylabel("score of the validation part")
    for axes in (left, right):
        axes.set_xlabel("epoch")
        axes.grid(alpha=0.3)
        if axes.lines:
            axes.legend(frameon=False)
    figure.suptitle(title)


def _draw_confusion(figure: Figure, confusion: torch.Tensor, title: str, names: Sequence[str] | None) -> None:
    classes = confusion.shape[0]
    axes = figure.subplots()
    fractions = confusion / confusion.sum(dim=1, keepdim=True).clamp(min=1)
    image = axes.imshow(fractions.numpy(), cmap="Blues", vmin=0, vmax=1)
    figure.colorbar(image, ax=axes, label="fraction of the class")
    axes.set_xlabel("predicted class")
    axes.set_ylabel("class")
    axes.set_title(f"{title}, test part")
    if classes <= _MOST_NAMED:
        # A dollar sign would begin a formula.
        shown = [name[:_LONGEST].replace("$", r"\$") for name in names or map(str, range(classes))]
        axes.set_xticks(range(classes), shown, rotation=90 if max(map(len, shown)) > 3 else 0)
        axes.set_yticks(range(classes), shown)
        for row, counts in enumerate(confusion.tolist()):
            for column, count in enumerate(counts):
                color = "white" if float(fractions[row, column]) > 0.5 else "black"
                axes.text(column, row, str(count), ha="center", va="center", color=color)
