"""What `python train.py mode=predict checkpoint=FOLDER` does: the predictions of a trained model."""

from __future__ import annotations

import copy
import math
from typing import TYPE_CHECKING, Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf, open_dict

from startup import import_task

if TYPE_CHECKING:
    from gnnsparse.train import RunFolder
    from gnnsparse.train.trained import ModelRecipe

__all__ = ["predict"]

#: Groups and options that are the checkpoint's, and that the command line can't set.
_FIXED = ("model", "precision", "trainer", "optimizer")


def predict(cfg: DictConfig, folder: RunFolder) -> float:
    """Write predictions.npz and result.json to a folder, and return the test score.

    Raises:
        ValueError: the checkpoint can't be loaded, or the data do not fit its model.
    """
    import gnnsparse
    import train
    from gnnsparse.data import DatasetUnavailableError
    from gnnsparse.errors import naming
    from gnnsparse.inference.predict import predict_dataset, write_predictions
    from gnnsparse.runtime.environment import describe_environment, write_json
    from gnnsparse.train.metrics import shown_score
    from gnnsparse.train.tasks import TASKS

    model = gnnsparse.load(cfg.checkpoint, device=cfg.device)
    own = _options_of_the_run(cfg, model.recipe)
    task = import_task(TASKS, TASKS.check(model.recipe.task))
    run = train.read_settings(own)
    task.check(run)
    try:
        with naming("dataset"):
            dataset = task.load(own.dataset.name, train.options_of(own.dataset))
    except DatasetUnavailableError as error:
        train.refuse_data(error)
    found = predict_dataset(model, task, run, dataset, own.dataset.name)
    file = folder.path / "predictions.npz"
    content = {
        "mode": "predict", "checkpoint": str(cfg.checkpoint), "model": model.recipe.name,
        "dataset": own.dataset.name, **found.details, "precision": model.recipe.precision,
        "metrics": found.metrics, "predictions": file.name, **describe_environment(model.device),
    }  # fmt: skip
    write_predictions(file, found.arrays, found.names)
    write_json(folder.path / "result.json", content)
    folder.finish()
    of_test = found.metrics.get("test", {})  # data without labels have no scores
    scores = ", ".join(f"{name} {shown_score(name, value)}" for name, value in of_test.items())
    count = len(next(iter(found.arrays.values())))
    print(f"{count} predictions; {f'test: {scores}' if scores else 'no labels'}\n{file}")
    return float(next(iter(of_test.values()), math.nan))


def _options_of_the_run(cfg: DictConfig, recipe: ModelRecipe) -> DictConfig:
    """Return the options, with those of the run that a checkpoint is of where the command line sets none.

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
            OmegaConf.update(own, group, _literal(content), merge=False, force_add=True)
            for option in given:
                if option.startswith(f"{group}."):
                    OmegaConf.update(own, option, OmegaConf.select(cfg, option), force_add=True)
        if OmegaConf.select(own, "dataset.task") == "auto":  # another data set than that of the training
            own.dataset.task = recipe.task
    return own


def _literal(content: Any) -> Any:
    """Return plain values whose texts are no references of OmegaConf to other options."""
    if isinstance(content, dict):
        return {key: _literal(value) for key, value in content.items()}
    if isinstance(content, (list, tuple)):
        return [_literal(value) for value in content]
    return content.replace("${", "\\${") if isinstance(content, str) else content
