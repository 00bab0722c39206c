"""A trained model as a folder without code: its weights as safetensors, and its recipe as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from gnnsparse.inference.edges import EdgeModel
from gnnsparse.runtime.environment import write_json
from gnnsparse.train.recipe import ModelRecipe

__all__ = ["CONFIG", "WEIGHTS", "read_exported", "write_exported"]

#: The names of the files, which are those of the Hugging Face Hub.
WEIGHTS, CONFIG = "model.safetensors", "config.json"


def write_exported(
    folder: Path, recipe: ModelRecipe, module: torch.nn.Module, result: Mapping[str, Any]
) -> None:
    """Writes the weights and the recipe of a model, and the result of its run, to a folder.

    Raises:
        OSError: a file can't be written.
    """
    model = module.model if isinstance(module, EdgeModel) else module
    weights = {name: tensor.detach().cpu().clone() for name, tensor in model.state_dict().items()}
    save_file(weights, folder / WEIGHTS, {"format": "pt"})
    write_json(folder / CONFIG, {"gnnsparse": recipe.plain(), "result": dict(result)})


def read_exported(config: Path, weights: Path) -> tuple[ModelRecipe, dict[str, torch.Tensor], dict[str, Any]]:
    """Reads what `write_exported` has written.

    Args:
        config: the file with the recipe.
        weights: the file with the weights.

    Returns:
        The recipe, the state dict, and the result, which is empty if there is none.

    Raises:
        OSError: a file is missing.
        ValueError: a file is of something else, or damaged.
    """
    try:
        content = json.loads(config.read_text())
        recipe, state = ModelRecipe.read(content["gnnsparse"]), load_file(weights)
    except (KeyError, TypeError, SafetensorError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error
    result = content.get("result")
    return recipe, state, result if isinstance(result, dict) else {}
