"""The trainings of a study: their options, which are those of train.py, and one after another."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lightning
import torch
from hydra import compose, initialize_config_dir
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

import train
from gnnsparse.data import DatasetUnavailableError
from gnnsparse.errors import bad_value
from gnnsparse.train import PreparedData, fit
from gnnsparse.train.metrics import make_scores
from gnnsparse.train.tasks import TASKS, RunOptions, Task
from launch.checks import check_quickly
from launch.study.options import REFERENCE, StudyOptions
from launch.study.peer_layers import LAYERS, PeerData
from launch.study.peers import PEERS
from launch.study.places import find_root
from launch.study.store import Run

__all__ = ["DataError", "Trainer", "compose_all", "runs_of"]

#: Options of every run: nothing is written by it, and the study has the progress bar.
_QUIET = ("trainer.progress=false", "trainer.checkpoint=false", "trainer.logger=none")


class DataError(RuntimeError):
    """A data set can't be loaded; the message says why."""


def compose_all(study: StudyOptions) -> dict[tuple[str, str], DictConfig]:
    """Composes and checks the options of each (data set, model), in the order of their training.

    Raises:
        TypeError: an option is of another type.
        ValueError: an option is not accepted.
        MemoryError: a model does not fit into memory.
    """
    found = {}
    with initialize_config_dir(str(train.CONFIGS), version_base="1.3"):
        for dataset in study.datasets:
            for model in study.models:
                names = [f"dataset={dataset}", f"model={model}", f"precision={REFERENCE}"]
                try:
                    cfg = compose("train", [*names, *_QUIET, *study.options])
                except (HydraException, OmegaConfBaseException) as error:
                    raise ValueError(f"{model} on {dataset}: {' '.join(str(error).split())}") from error
                check_quickly(cfg)
                task = TASKS[TASKS.check(train.task_name(cfg))]
                task.check(train.read_settings(cfg))
                if study.metric is not None and task.name != "node":
                    bad_value(
                        "metric", f"got {study.metric!r} for {dataset}; accepted: null, as it has no nodes"
                    )
                found[dataset, model] = cfg
    return found


def runs_of(study: StudyOptions) -> Iterator[Run]:
    """Yields the runs in an order in which those with equal data follow one another."""
    for dataset in study.datasets:
        for model in study.models:
            for variant in study.variants:
                for seed in range(study.seeds):
                    yield Run(dataset, model, variant, seed)


class Trainer:
    """Trains the runs of a study; data are kept as long as runs follow that use them.

    Args:
        study: the options of the study.
        configs: what `compose_all` returned.
    """

    def __init__(self, study: StudyOptions, configs: dict[tuple[str, str], DictConfig]) -> None:
        self._study, self._configs = study, configs
        self._dataset: tuple[Any, Any] = (None, None)
        self._data: tuple[Any, PreparedData | None] = (None, None)

    def config(self, run: Run) -> DictConfig:
        """Returns the options of a run."""
        cfg = copy.deepcopy(self._configs[run.dataset, run.model])
        cfg.seed = run.seed
        cfg.precision = REFERENCE if run.variant in PEERS else run.variant
        return cfg

    def options(self, run: Run) -> dict[str, Any]:
        """Returns the options that a kept result must have been obtained with, as plain values."""
        plain: Any = OmegaConf.to_container(self.config(run), resolve=True)
        data = None if self._study.data is None else str(self._study.data)
        return {**plain, "variant": run.variant, "metric": self._study.metric, "data": data}

    def train(self, run: Run) -> dict[str, Any]:
        """Trains a run, and returns its scores, times and memory as plain values.

        Besides the errors of `fit` it raises those of memory that is short.

        Raises:
            DataError: the data set can't be loaded.
        """
        cfg = self.config(run)
        options = train.read_settings(cfg)
        task = TASKS[train.task_name(cfg)]
        if run.variant in PEERS and PEERS[run.variant].on_cpu:
            options = dataclasses.replace(options, device=torch.device("cpu"))
        dataset = self._load(cfg, task)
        train.check_model(cfg, *task.model_sizes(dataset))
        data = self._prepare(run, task, dataset, options)
        reset_peak_memory()
        lightning.seed_everything(run.seed, verbose=False)
        model = train.build_model(cfg, *task.model_sizes(dataset))
        if run.variant in PEERS:
            model = LAYERS[run.variant][1](model)
        module = task.make_module(model, data, options)
        result = fit(module, data, options.trainer)
        return {
            "dataset": run.dataset, "model": run.model, "variant": run.variant, "seed": run.seed,
            "device": options.device.type, "score": module.score_name, **dataclasses.asdict(result),
        }  # fmt: skip

    def _load(self, cfg: DictConfig, task: Task[Any, Any]) -> Any:
        key = (cfg.dataset.name, train.options_of(cfg.dataset))
        if self._dataset[0] != key:
            self._dataset, self._data = (None, None), (None, None)
            try:
                self._dataset = (key, self._read(*key, task))
            except DatasetUnavailableError as error:
                raise DataError(f"{error} (in a study: data=DIR)") from error
            except (ValueError, TypeError, ImportError, OSError) as error:
                raise DataError(str(error)) from error
        return self._dataset[1]

    def _read(self, name: str, options: dict[str, Any], task: Task[Any, Any]) -> Any:
        if self._study.data is not None and (root := find_root(name, self._study.data)):
            options = {**options, "root": str(root)}
        dataset = task.load(name, options)
        if self._study.metric is not None:
            dataset = dataclasses.replace(dataset, metric=self._study.metric)
            make_scores(dataset)  # raises if the metric does not go with the labels
        return dataset

    def _prepare(self, run: Run, task: Task[Any, Any], dataset: Any, options: RunOptions) -> PreparedData:
        """Returns the data module, that of the run before if it differs in the seed of the weights alone."""
        values = (options.values, options.preprocess, options.device, task.identity(options))
        key = (run.dataset, run.variant, values)
        kept, data = self._data
        if data is None or kept != key:
            self._data = (None, None)  # its memory is free before the next one takes some
            if run.variant in PEERS:
                data = PeerData(dataset, options.device, LAYERS[run.variant][0])
            else:
                data = task.make_data(dataset, options)
            self._data = (key, data)
        return data


def reset_peak_memory() -> None:
    """Makes the largest resident size of the process that of now, where Linux allows it."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        pass  # the size is then the largest since the process began
