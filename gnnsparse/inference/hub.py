"""Trained models on the Hugging Face Hub, or in a folder of its layout. It needs the package huggingface_hub.

The files are `model.safetensors`, the weights; `config.json`, what the model is made of, as plain values; and
`README.md`, the model card. None of them holds code.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from gnnsparse.inference import LoadedModel, LoadError, load
from gnnsparse.inference.card import card_text, write_card
from gnnsparse.inference.loading import CONFIG, WEIGHTS, make_model, read_exported, write_exported
from gnnsparse.runtime.safe_io import read_json
from gnnsparse.train.device import resolve_device
from gnnsparse.train.trained import ModelRecipe

try:
    from huggingface_hub import ModelCard, ModelHubMixin, hf_hub_download
except ImportError as error:
    raise ImportError(
        "gnnsparse.inference.hub needs the package huggingface_hub: pip install 'gnnsparse[hub]'"
    ) from error

__all__ = ["HubModel"]


class HubModel(LoadedModel, ModelHubMixin, library_name="gnnsparse", tags=["graph-neural-network"]):
    """A trained model that can be uploaded and downloaded. It is made by `from_run` or `from_pretrained`.

    `save_pretrained(folder)` writes it to a folder and `push_to_hub(name)` uploads it, as huggingface_hub
    documents them; everything else is as in `LoadedModel`.

    Args:
        recipe: what the model is made of.
        module: the model, with its weights, on the device.
        device: the device.
        result: the content of the run's result.json, which the model card repeats.
    """

    def __init__(
        self,
        recipe: ModelRecipe,
        module: torch.nn.Module,
        device: torch.device,
        result: Mapping[str, Any] | None = None,
    ) -> None:
        LoadedModel.__init__(self, recipe, module, device)
        self.result = dict(result or {})

    @classmethod
    def from_run(
        cls,
        source: str | os.PathLike[str],
        *,
        device: str = "auto",
        registry: Mapping[str, Any] | None = None,
    ) -> HubModel:
        """Load the model of a run, as `gnnsparse.load` does, with the scores that its card will have.

        Arguments and errors are those of `gnnsparse.load`; a result.json that is none is a ValueError.
        """
        model, file = load(source, device=device, registry=registry), Path(source) / "result.json"
        result = read_json(file) if file.is_file() else None
        return cls(model.recipe, model.module, model.device, result)

    def _save_pretrained(self, save_directory: Path) -> None:
        """Write weights, recipe and card; the mixin calls it."""
        write_exported(save_directory, self.recipe, self.module, self.result)
        write_card(save_directory, self.recipe, self.result, {})

    def generate_model_card(self, *args: Any, **kwargs: Any) -> Any:
        """Return the card that `_save_pretrained` writes, in the mixin's form."""
        return ModelCard(card_text(self.recipe, self.result, {}), ignore_metadata_errors=True)

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: str | Path, **options: Any) -> HubModel:
        """Read a model from a folder, or download it.

        Args:
            pretrained_model_name_or_path: the folder, or the name on the hub.
            options: those of huggingface_hub (`revision`, `token`, `cache_dir`, ...); `device`: "auto", "cpu"
                or "cuda"; `registry`: the models by name, in place of those that the files name, whose module
                is imported: pass it for a model whose origin you do not trust.

        Raises:
            LoadError: the files are those of something else, or the model can't be made.
        """
        try:
            found: HubModel = super().from_pretrained(pretrained_model_name_or_path, **options)
        except json.JSONDecodeError as error:  # the mixin reads the recipe, too
            raise _no_model(pretrained_model_name_or_path, error) from error
        return found

    @classmethod
    def _from_pretrained(
        cls, *, model_id: str, device: str = "auto", registry: Mapping[str, Any] | None = None, **options: Any
    ) -> HubModel:
        """Read the files of a folder or of the hub; the mixin calls it from `from_pretrained`."""
        place = resolve_device(device)
        known = ("revision", "cache_dir", "token", "force_download", "local_files_only")
        where = {name: value for name, value in options.items() if name in known}

        def file(name: str) -> Path:
            is_here = Path(model_id).is_dir()
            return Path(model_id, name) if is_here else Path(hf_hub_download(model_id, name, **where))

        try:
            recipe, weights, result = read_exported(file(CONFIG), file(WEIGHTS))
            module = make_model(recipe, registry, weights)
        except (OSError, ValueError, RuntimeError) as error:
            raise _no_model(model_id, error) from error
        there = torch.empty(0, dtype=torch.float32, device=place).device
        return cls(recipe, module.to(place).eval(), there, result)


def _no_model(model_id: str | Path, error: Exception) -> LoadError:
    reason = " ".join(f"{type(error).__name__}: {error}".split())[:400]
    return LoadError(f"model_id: {model_id} is no model of gnnsparse ({reason})")
