"""The model card of a run: what was trained on what, how well, and how to load it."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gnnsparse.runtime.environment import write_text
from gnnsparse.train.trained import ModelRecipe

#: The name of a card's file, which hubs of models show.
CARD = "README.md"
#: The line by which a card of ours is known: a file without it is somebody else's, and is kept.
_MARK = "<!-- Written by gnnsparse. -->"
#: The options of a run that the card repeats, with what it calls them.
_GROUPS = {"dataset": "Data set", "preprocess": "Preparation of the graph"}


def card_text(recipe: ModelRecipe, result: Mapping[str, Any], options: Mapping[str, Any]) -> str:
    """Return the card of a trained model in Markdown, with the metadata that hubs of models read.

    `result` is the content of result.json, of which what is missing is left out, and `options` are others of
    the run by group, such as {"optimizer": {"lr": 0.01}}.
    """
    dataset = str(result.get("dataset", recipe.run.get("dataset", {}).get("name", "its data")))
    metrics: Mapping[str, Mapping[str, float]] = result.get("metrics", {})
    parts = [
        _metadata(recipe, dataset, metrics),
        f"{_MARK}\n\n# {recipe.name} on {dataset}\n",
        f"A model of the task *{recipe.task}*, trained with gnnsparse in {recipe.precision}.\n",
    ]
    if metrics:
        parts.append(_scores(metrics, result))
    groups: dict[str, Mapping[str, Any]] = {"Model": {"name": recipe.name, **recipe.options}}
    groups |= {title: recipe.run[name] for name, title in _GROUPS.items() if recipe.run.get(name)}
    groups |= {name.capitalize(): group for name, group in options.items() if group}
    parts.append("## Options\n\n" + "\n".join(_options(name, group) for name, group in groups.items()))
    if environment := _environment(result):
        parts.append(environment)
    parts.append(_loading(recipe))
    return "\n".join(parts)


def write_card(
    folder: Path, recipe: ModelRecipe, result: Mapping[str, Any], options: Mapping[str, Any]
) -> Path:
    """Write the card of a run, see `card_text`, into its folder, and return the file.

    The file is README.md; if the folder has one of somebody else, README-1.md or with the next free number.
    """
    file, number = folder / CARD, 0
    while os.path.lexists(file) and not _is_ours(file):
        number += 1
        file = folder / f"README-{number}.md"
    write_text(file, card_text(recipe, result, options))
    return file


def _is_ours(file: Path) -> bool:
    try:
        return file.is_file() and _MARK in file.read_text(errors="replace")
    except OSError:
        return False


def _metadata(recipe: ModelRecipe, dataset: str, metrics: Mapping[str, Mapping[str, float]]) -> str:
    """Return the front matter: YAML whose texts are in JSON, which YAML includes."""
    names = list(metrics.get("test", {}))
    lines = ["---", "library_name: gnnsparse", "tags:"]
    lines += [f"- {json.dumps(tag)}" for tag in ("graph-neural-network", recipe.name, recipe.task)]
    lines += ["datasets:", f"- {json.dumps(dataset)}"]
    if names:
        lines += ["metrics:", *(f"- {json.dumps(name)}" for name in names)]
    return "\n".join([*lines, "---", ""])


def _scores(metrics: Mapping[str, Mapping[str, float]], result: Mapping[str, Any]) -> str:
    rows = list(dict.fromkeys(name for scores in metrics.values() for name in scores))
    head = f"| score | {' | '.join(metrics)} |\n|---|{'---|' * len(metrics)}"
    lines = [
        f"| {row} | {' | '.join(_number(scores.get(row)) for scores in metrics.values())} |" for row in rows
    ]
    after = ""
    if "best_epoch" in result and "epochs" in result:
        after = (
            f"\nAfter epoch {result['best_epoch']}, the best on the validation part, of {result['epochs']}.\n"
        )
    return "\n".join(["## Scores\n", head, *lines, after])


def _number(value: Any) -> str:
    return "" if value is None else f"{value:.4f}"


def _options(name: str, group: Mapping[str, Any]) -> str:
    values = ", ".join(f"`{key}={_shown(value)}`" for key, value in group.items())
    return f"* {name}: {values}"


def _shown(value: Any) -> str:
    """Return a value in one line; of a path of a machine its last part, because cards are published."""
    if isinstance(value, str) and os.path.isabs(value):
        return Path(value).name
    return " ".join(str(value).replace("`", "'").split())


def _environment(result: Mapping[str, Any]) -> str:
    rows = {
        "device": result.get("device_name"), "seed": result.get("seed"),
        "trained values": result.get("parameters"),
        "commit": result.get("commit"), "date": result.get("date"),
        "versions": ", ".join(f"{name} {v}" for name, v in result.get("versions", {}).items() if v),
    }  # fmt: skip
    lines = [f"| {name} | {value} |" for name, value in rows.items() if value not in (None, "")]
    return "\n".join(["\n## Environment\n", "| | |\n|---|---|", *lines, ""]) if lines else ""


def _loading(recipe: ModelRecipe) -> str:
    call = "predict(tokens, pattern)" if recipe.task == "sequence" else "predict(x, edge_index)"
    return f"""\
## How to load it

```python
import gnnsparse

model = gnnsparse.load("FOLDER")  # this folder
prediction = model.{call}
```

`gnnsparse predict FOLDER --data NAME_OR_FILE --out predictions.csv` writes predictions to a file. The model
is registered in `{recipe.registry}`, which has to be importable.
"""
