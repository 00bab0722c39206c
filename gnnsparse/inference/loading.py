"""`load`, which makes the model of a checkpoint, and predictions by it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from gnnsparse.errors import bad_type, bad_value, path_of
from gnnsparse.runtime.environment import write_json
from gnnsparse.runtime.safe_io import read_json
from gnnsparse.train.checkpoint import MODEL, CheckpointError, read_trained
from gnnsparse.train.device import resolve_device
from gnnsparse.train.trained import EdgeModel, LoadedModel, ModelRecipe

#: The names of the files, which are those of the Hugging Face Hub.
WEIGHTS, CONFIG = "model.safetensors", "config.json"


def write_exported(
    folder: Path, recipe: ModelRecipe, module: torch.nn.Module, result: Mapping[str, Any]
) -> None:
    """Write the weights and the recipe of a model, and the result of its run, to a folder."""
    model = module.model if isinstance(module, EdgeModel) else module
    weights = {name: tensor.detach().cpu().clone() for name, tensor in model.state_dict().items()}
    save_file(weights, folder / WEIGHTS, {"format": "pt"})
    write_json(folder / CONFIG, {"gnnsparse": recipe.to_dict(), "result": dict(result)})


def read_exported(config: Path, weights: Path) -> tuple[ModelRecipe, dict[str, torch.Tensor], dict[str, Any]]:
    """Read what `write_exported` wrote; OSError if a file is missing, ValueError if it is damaged."""
    try:
        content = read_json(config)
        recipe, state = ModelRecipe.read(content["gnnsparse"]), load_file(weights)
    except (KeyError, TypeError, SafetensorError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error
    result = content.get("result")
    return recipe, state, result if isinstance(result, dict) else {}


class LoadError(ValueError):
    """A model can't be made from a checkpoint; the message says why."""


def load(
    source: str | os.PathLike[str],
    *,
    device: str = "auto",
    registry: Mapping[str, Any] | None = None,
    model: torch.nn.Module | None = None,
) -> LoadedModel:
    """Load a trained model, ready for `predict`.

    The file is read as tensors and plain values: code in it is not executed. It names the model by a registry
    and options. The registry's module is imported, so that a file whose origin you do not trust should be
    loaded with `registry`, which imports nothing.

    Args:
        source: the folder of a run, whose best weights are loaded; or its checkpoints/best.ckpt or
            checkpoints/last.ckpt; or a folder that `gnnsparse.inference.hub` has written.
        device: "auto" (a GPU if one can be used), "cpu" or "cuda".
        registry: the models by name, such as `models.MODELS`; None: those that the file names.
        model: a model that takes the weights, in place of one that is made: for one of `gnnsparse.fit` that
            is in no registry. It is made as it was for the training. If its `forward` takes an edge_index, or
            the features alone, `module` of the result is a module around it that takes an operand.

    Raises:
        TypeError: `source` is no path, or `model` is no module.
        LoadError: there is no such file, it is no checkpoint of a run or damaged, it does not say what its
            model is (those of earlier versions do not), or the model can't be made or has other weights.
        ValueError: the device is unknown, or can't be used, or both `registry` and `model` are given.
    """
    place = resolve_device(device)
    if model is not None and not isinstance(model, torch.nn.Module):
        bad_type("model", model, "a torch.nn.Module, or None")
    if model is not None and registry is not None:
        bad_value("model", "got one together with registry; accepted: one of the two")
    file = _file(source)
    try:
        if file.name == CONFIG:
            recipe, weights, _ = read_exported(file, file.with_name(WEIGHTS))
        else:
            weights, plain = read_trained(file)
            if plain is None:
                raise LoadError(
                    f"checkpoint: {file} does not say what its model is, as it was written by an earlier "
                    "version or without the argument `recipe` of fit; accepted: a file with "
                    f"{MODEL}. Its weights are torch.load(file, weights_only=True)['state_dict']"
                )
            recipe = ModelRecipe.read(plain)
        module = make_model(recipe, registry, weights, model)
    except LoadError:
        raise
    except CheckpointError as error:
        raise LoadError(str(error)) from None
    except OSError as error:
        raise LoadError(f"checkpoint: {file.parent} can't be read ({error})") from error
    except (ValueError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:400]
        raise LoadError(f"checkpoint: the model of {file} can't be made: {reason}") from error
    return LoadedModel(
        recipe, module.to(place).eval(), torch.empty(0, dtype=torch.float32, device=place).device
    )


def make_model(
    recipe: ModelRecipe,
    registry: Mapping[str, Any] | None,
    weights: dict[str, torch.Tensor],
    model: torch.nn.Module | None = None,
) -> torch.nn.Module:
    """Make the model of a recipe with given weights, or give them to a model; ValueError or RuntimeError."""
    if model is None:
        # Before the model takes any memory; one that computes while it is made can't be made without.
        with contextlib.suppress(NotImplementedError), torch.device("meta"):
            _compare_shapes(recipe.build(registry), weights)
        module = recipe.build(registry)
    else:
        _compare_shapes(model, weights)
        module = model
    module.load_state_dict(weights)
    return module if tuple(recipe.inputs) == ("operand",) else EdgeModel(module, recipe.inputs)


def _file(source: Any) -> Path:
    path = path_of("source", source, "the folder of a run, or a checkpoint")
    try:
        found = path / "checkpoints" / "best.ckpt" if path.is_dir() else path
        if path.is_dir() and not found.is_file() and (path / CONFIG).is_file():
            found = path / CONFIG
        is_file = found.is_file()
    except (OSError, ValueError):  # a name that is too long, or has a null character
        found, is_file = path, False
    if not is_file:
        raise LoadError(f"checkpoint: there is no file {str(found)!r}")
    return found


def _compare_shapes(model: torch.nn.Module, weights: dict[str, torch.Tensor]) -> None:
    """Raise ValueError if a model has other weights; one whose sizes the first call decides takes any."""
    if any(torch.nn.parameter.is_lazy(parameter) for parameter in model.parameters()):
        return
    own = model.state_dict()
    for name in (*own, *weights):
        if name not in own or name not in weights:
            bad_value(name, f"is a weight of the {'model' if name in own else 'file'} alone")
        if own[name].shape != weights[name].shape:
            bad_value(name, f"is {tuple(weights[name].shape)}; accepted: {tuple(own[name].shape)}")
