"""What `python train.py mode=predict checkpoint=FOLDER` does: the predictions of a trained model."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import numpy as np
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf, open_dict

from startup import import_task

if TYPE_CHECKING:
    from gnnsparse.training import RunFolder
    from gnnsparse.training.recipe import ModelRecipe

__all__ = ["predict"]

#: Groups and options that are the checkpoint's, and that the command line can't set.
_FIXED = ("model", "precision", "trainer", "optimizer")


def predict(cfg: DictConfig, folder: RunFolder) -> float:
    """Writes predictions.npz and result.json to a folder, and returns the test score.

    Raises:
        ValueError: the checkpoint can't be loaded, or the data do not fit its model.
    """
    import gnnsparse
    import train
    from gnnsparse.data import DatasetUnavailableError
    from gnnsparse.environment import describe_environment, write_json
    from gnnsparse.errors import naming
    from gnnsparse.tasks import TASKS
    from gnnsparse.training.metrics import shown_score

    model = gnnsparse.load(cfg.checkpoint, device=cfg.device)
    own = _options_of_the_run(cfg, model.recipe)
    task = import_task(TASKS, TASKS.check(model.recipe.task))
    run = train.read_settings(own)
    task.check(run)
    try:
        with naming("dataset"):
            dataset = task.load(own.dataset.name, train.options_of(own.dataset))
    except DatasetUnavailableError as error:
        raise ValueError(str(error)) from error
    _check_sizes(own.dataset.name, task.model_sizes(dataset), model.recipe)
    data = task.make_data(dataset, run)
    try:
        arrays, metrics = task.predict(model, data)
    except NotImplementedError:
        raise ValueError(f"checkpoint: the task {task.name!r} has no method predict") from None
    file = folder.path / "predictions.npz"
    content = {
        "mode": "predict", "checkpoint": str(cfg.checkpoint), "model": model.recipe.name,
        "dataset": own.dataset.name, **task.describe(data, run), "precision": model.recipe.precision,
        "metrics": metrics, "predictions": file.name, **describe_environment(model.device),
    }  # fmt: skip
    with open(file, "xb") as target:
        named: Any = {name: array.numpy() for name, array in arrays.items()} | task.names(dataset)
        np.savez(target, **named)
    write_json(folder.path / "result.json", content)
    folder.finish()
    of_test = metrics.get("test", {})  # data without labels have no scores
    scores = ", ".join(f"{name} {shown_score(name, value)}" for name, value in of_test.items())
    count = len(next(iter(arrays.values())))
    print(f"{count} predictions; {f'test: {scores}' if scores else 'no labels'}\n{file}")
    return float(next(iter(of_test.values()), float("nan")))


def _check_sizes(name: str, got: tuple[int, int], recipe: ModelRecipe) -> None:
    """Raises a ValueError unless a data set has the numbers of inputs and outputs of the model."""
    own = (recipe.in_channels, recipe.out_channels)
    if got != own:
        raise ValueError(
            f"dataset: {name} has {got[0]} inputs and {got[1]} outputs; accepted by the checkpoint: "
            f"{own[0]} and {own[1]}"
        )


def _options_of_the_run(cfg: DictConfig, recipe: ModelRecipe) -> DictConfig:
    """Returns the options, with those of the run that a checkpoint is of where the command line sets none.

    Raises:
        ValueError: the command line sets an option that is the checkpoint's.
    """
    own = copy.deepcopy(cfg)
    given = [override.lstrip("+~").partition("=")[0] for override in HydraConfig.get().overrides.task]
    for option in given:
        if option.partition(".")[0] in _FIXED:
            raise ValueError(f"{option}: is the checkpoint's with mode=predict; accepted: no such option")
    with open_dict(own):
        own.model = {"name": recipe.name, **recipe.options}
        own.precision = recipe.precision
        for group, content in recipe.run.items():
            if group in given and OmegaConf.select(cfg, f"{group}.name") != content.get("name"):
                continue  # another data set, say, with all of its options
            OmegaConf.update(own, group, content, merge=False, force_add=True)
            for option in given:
                if option.startswith(f"{group}."):
                    OmegaConf.update(own, option, OmegaConf.select(cfg, option), force_add=True)
    return own
