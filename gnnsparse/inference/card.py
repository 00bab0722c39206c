"""The model card of a run: what was trained on what, how well, and how to load it."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jinja2

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
    the run by group, such as {"optimizer": {"lr": 0.01}}. Texts in the metadata are in JSON, which YAML
    includes.
    """
    metrics: Mapping[str, Mapping[str, float]] = result.get("metrics", {})
    groups: dict[str, Mapping[str, Any]] = {"Model": {"name": recipe.name, **recipe.options}}
    for name, title in _GROUPS.items():
        if found := {key: v for key, v in recipe.run.get(name, {}).items() if key != "transform"}:
            groups[title] = found  # what a transform has is long, and in the recipe
    groups |= {name.capitalize(): group for name, group in options.items() if group}
    environment = {
        "device": result.get("device_name"), "seed": result.get("seed"),
        "trained values": result.get("parameters"),
        "commit": result.get("commit"), "date": result.get("date"),
        "versions": ", ".join(f"{name} {v}" for name, v in result.get("versions", {}).items() if v),
    }  # fmt: skip
    made = jinja2.Environment(trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True)
    made.filters.update(json=json.dumps, number=_number, shown=_shown)
    return made.from_string(Path(__file__).with_name("card.md.jinja").read_text()).render(
        recipe=recipe, result=result, metrics=metrics, groups=groups, mark=_MARK,
        dataset=str(result.get("dataset", recipe.run.get("dataset", {}).get("name", "its data"))),
        rows=dict.fromkeys(name for scores in metrics.values() for name in scores),
        environment={name: value for name, value in environment.items() if value not in (None, "")},
    )  # fmt: skip


def write_card(
    folder: Path, recipe: ModelRecipe, result: Mapping[str, Any], options: Mapping[str, Any]
) -> Path:
    """Write a run's card to README.md, or README-1.md if another's is there, and return the file."""
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


def _number(value: Any) -> str:
    return "" if value is None or isinstance(value, jinja2.Undefined) else f"{value:.4f}"


def _shown(value: Any) -> str:
    """Return a value in one line; of a path of a machine its last part, because cards are published."""
    if isinstance(value, str) and os.path.isabs(value):
        return Path(value).name
    return " ".join(str(value).replace("`", "'").split())
