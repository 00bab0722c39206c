"""Trains a model on a data set: python train.py model=gcn dataset=cora precision=fp16 device=auto seed=0.

configs/ has the options and their defaults, `python train.py --help` shows them, `-m` with lists runs
all combinations. A run leaves result.json, logs and checkpoints in its folder below outputs/, or in
hydra.run.dir=DIR. Exit status: 0, 1 for options that hydra refuses, 2 for those that we refuse.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

if TYPE_CHECKING:
    import torch

    from gnnsparse import SparseGraph
    from gnnsparse.training import (
        FitResult,
        FullGraphData,
        NodeClassifier,
        OptimizerConfig,
        PreprocessConfig,
        SequenceClassifier,
        SequenceData,
        TrainerConfig,
    )

#: What some options accept, to refuse a bad one before imports that take seconds. gnnsparse checks all
#: options itself; a test holds this table to what it accepts.
CHOICES = {
    "precision": ("fp32", "tf32", "fp16", "bf16"),
    "device": ("auto", "cpu", "cuda"),
    "optimizer.decay": ("first", "all"),
    "optimizer.schedule": ("none", "cosine"),
    "trainer.logger": ("csv", "tensorboard", "both", "none"),
    "preprocess.reorder": ("none", "degree", "rcm", "metis", "community"),
    "preprocess.format": ("auto", "csr", "window", "me-bcrs", "cvse", "tiled-csr", "hrpb", "rs-tile"),
}
#: The same of options that count something: the least value.
COUNTS = {
    "seed": 0,
    "trainer.max_epochs": 1,
    "trainer.batch_size": 1,
    "trainer.val_every": 1,
    "trainer.log_every": 1,
}
#: The largest seed that NumPy takes.
MAX_SEED = 2**32 - 1


class Settings(NamedTuple):
    """Options, checked."""

    trainer: TrainerConfig
    optimizer: OptimizerConfig
    preprocess: PreprocessConfig
    device: torch.device


def refuse(problem: Exception | str) -> NoReturn:
    """Ends the run with one line; HYDRA_FULL_ERROR=1 shows where it comes from."""
    if os.environ.get("HYDRA_FULL_ERROR") == "1" and isinstance(problem, Exception):
        raise problem
    print(f"train.py: {' '.join(str(problem).split())}", file=sys.stderr)
    raise SystemExit(2)


def check_quickly(cfg: DictConfig) -> None:
    """Refuses bad options without importing anything."""
    for option, choices in CHOICES.items():
        if (value := OmegaConf.select(cfg, option)) not in choices:
            refuse(f"{option}: got {value!r}; accepted: {', '.join(choices)}")
    for option, least in COUNTS.items():
        value = OmegaConf.select(cfg, option)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            refuse(f"{option}: got {value!r}; accepted: an integer, at least {least}")
    if cfg.seed > MAX_SEED:
        refuse(f"seed: got {cfg.seed}; accepted: at most {MAX_SEED}")
    if cfg.resume is not None and not Path(cfg.resume).is_file():
        refuse(f"resume: there is no file {cfg.resume}")


def section(cfg: DictConfig, name: str, kind: type[Any]) -> Any:
    """A group of options as a dataclass of gnnsparse.training."""
    options = {str(key): value for key, value in cfg[name].items()}
    known = [field.name for field in dataclasses.fields(kind)]
    for option in options:
        if option not in known:
            raise ValueError(f"{name}.{option}: no such option; accepted: {', '.join(known)}")
    return kind(**options)


def facts_of(cfg: DictConfig) -> dict[str, Any]:
    """What has to be the same for a run to go on from another one's checkpoint."""

    def text(group: DictConfig) -> str:
        return ",".join(f"{key!s}={value}" for key, value in group.items())

    data = {str(key): value for key, value in cfg.dataset.items() if key not in ("name", "root")}
    facts = {"model": text(cfg.model), "dataset": cfg.dataset.name, **data, "precision": cfg.precision}
    if has_sequences(cfg):
        facts |= {"pattern": text(cfg.pattern), "batch_size": cfg.trainer.batch_size, "order": cfg.seed}
    return facts


def read_settings(cfg: DictConfig) -> Settings:
    """Checks the options that need no data."""
    from gnnsparse.training import OptimizerConfig, PreprocessConfig, TrainerConfig, resolve_device

    check_task(cfg)
    build_model(cfg, 1, 1)  # complains of its options
    return Settings(
        section(cfg, "trainer", TrainerConfig),
        section(cfg, "optimizer", OptimizerConfig),
        section(cfg, "preprocess", PreprocessConfig),
        resolve_device(cfg.device),
    )


def options_of(group: DictConfig) -> dict[str, Any]:
    """The options of a group but for its name."""
    return {str(key): value for key, value in group.items() if key != "name"}


def has_sequences(cfg: DictConfig) -> bool:
    """Whether the data set is one of sequences rather than a graph."""
    from gnnsparse.data import SEQUENCE_DATASETS

    return cfg.dataset.name in SEQUENCE_DATASETS


def check_task(cfg: DictConfig) -> None:
    """Refuses a model of nodes for sequences, and the other way round."""
    from models import MODELS

    sequences = has_sequences(cfg)
    if MODELS[cfg.model.name].sequences != sequences:
        fitting = ", ".join(name for name, model in MODELS.items() if model.sequences == sequences)
        raise ValueError(
            f"model: got {cfg.model.name} for {cfg.dataset.name}, a data set of "
            f"{'sequences' if sequences else 'nodes'}; accepted: {fitting}"
        )


@contextlib.contextmanager
def naming(group: str) -> Iterator[None]:
    """Makes what goes wrong with `name:` say `group.name:`, as the option is called here."""
    try:
        yield
    except (ValueError, TypeError) as error:
        dot = "." if re.match(r"\w+: ", str(error)) else ": "
        raise type(error)(f"{group}{dot}{error}") from error


def build_model(cfg: DictConfig, in_channels: int, out_channels: int) -> torch.nn.Module:
    """The model of the options."""
    from models import MODELS

    with naming("model"):
        return MODELS[cfg.model.name].build(in_channels, out_channels=out_channels, **options_of(cfg.model))


def make_pattern(cfg: DictConfig, length: int) -> SparseGraph:
    """The attention pattern of the options, for sequences of a length."""
    from gnnsparse.errors import check_choice
    from gnnsparse.masks import PATTERNS

    with naming("pattern"):
        name = check_choice("name", cfg.pattern.name, tuple(PATTERNS))
        return PATTERNS[name](length, **options_of(cfg.pattern))


def set_up_sequences(cfg: DictConfig, settings: Settings) -> tuple[SequenceClassifier, SequenceData]:
    """Loads the sequences, prepares the pattern, and builds the model."""
    import lightning

    from gnnsparse.data import load_sequences
    from gnnsparse.training import SequenceClassifier, SequenceData

    make_pattern(cfg, 1)  # complains of its options
    with naming("dataset"):
        dataset = load_sequences(cfg.dataset.name, **options_of(cfg.dataset))
    data = SequenceData(
        dataset,
        make_pattern(cfg, dataset.length),
        batch_size=settings.trainer.batch_size,
        seed=cfg.seed,
        precision=cfg.precision,
        device=settings.device,
        preprocess=settings.preprocess,
    )
    lightning.seed_everything(cfg.seed, verbose=False)
    model = build_model(cfg, dataset.vocabulary, dataset.num_classes)
    steps = settings.trainer.max_epochs * data.steps_per_epoch
    return SequenceClassifier(model, dataset, settings.optimizer, steps), data


def set_up(
    cfg: DictConfig, settings: Settings
) -> tuple[NodeClassifier | SequenceClassifier, FullGraphData | SequenceData]:
    """Loads and prepares the data, and builds the model."""
    if has_sequences(cfg):
        return set_up_sequences(cfg, settings)
    import lightning

    from gnnsparse.data import load_dataset
    from gnnsparse.training import FullGraphData, NodeClassifier, check_checkpoint
    from models import MODELS

    if cfg.resume is not None:
        check_checkpoint(Path(cfg.resume), settings.trainer, facts_of(cfg))
    with naming("dataset"):
        dataset = load_dataset(**{str(key): value for key, value in cfg.dataset.items()})
    data = FullGraphData(
        dataset,
        values=MODELS[cfg.model.name].values,
        precision=cfg.precision,
        device=settings.device,
        preprocess=settings.preprocess,
    )
    lightning.seed_everything(cfg.seed, verbose=False)
    model = build_model(cfg, dataset.num_features, dataset.num_classes)
    return NodeClassifier(model, dataset, settings.optimizer, settings.trainer.max_epochs), data


def report(cfg: DictConfig, data: FullGraphData | SequenceData, result: FitResult) -> dict[str, Any]:
    """The content of result.json."""
    from gnnsparse.environment import describe_environment
    from gnnsparse.training import FullGraphData

    if isinstance(data, FullGraphData):
        size = {"nodes": data.dataset.num_nodes, "nonzeros": data.batch.adj.nnz}
    else:
        size = {"sequences": len(data.dataset.train), "length": data.dataset.length}
        size |= {"pattern": cfg.pattern.name, "nonzeros": data.adj.nnz}
    return {
        "model": cfg.model.name,
        "dataset": cfg.dataset.name,
        **size,
        "precision": cfg.precision,
        "seed": cfg.seed,
        **dataclasses.asdict(result),
        "preprocess_seconds": data.preprocess_seconds,
        "cache_hit": data.cache_hit,
        **describe_environment(data.device),
    }


def show(content: dict[str, Any], file: Path) -> None:
    """Prints the table that a run ends with."""
    from rich.console import Console
    from rich.table import Table

    title = "{model} on {dataset}, {precision}, {device_name}, seed {seed}".format(**content)
    table = Table(title=title, title_justify="left")
    table.add_column("best epoch {best_epoch} of {epochs}".format(**content))
    for part in content["metrics"]:
        table.add_column(part, justify="right")
    for score in content["metrics"]["test"]:
        table.add_row(score, *(f"{100 * of[score]:.2f} %" for of in content["metrics"].values()))
    console = Console()
    console.print(table)
    cached = "read from the cache" if content["cache_hit"] else "prepared"
    what = "pattern" if "pattern" in content else "graph"
    console.print(
        f"{content['epoch_milliseconds']:.2f} ms an epoch (median), {content['fit_seconds']:.1f} s in all; "
        f"{what} {cached} in {content['preprocess_seconds']:.3f} s; "
        f"{content['peak_memory_bytes'] / 2**20:.0f} MiB at most\n{file}",
        highlight=False,
        soft_wrap=True,
    )


@hydra.main(version_base="1.3", config_path="configs", config_name="train")
def main(cfg: DictConfig) -> float:
    """One run; returns the test score, for hydra's sweepers."""
    folder = Path(HydraConfig.get().runtime.output_dir)
    file = folder / "result.json"
    file.unlink(missing_ok=True)  # of an earlier run in the same folder
    check_quickly(cfg)
    try:
        settings = read_settings(cfg)
    except (ValueError, TypeError) as error:
        refuse(error)

    from gnnsparse.data import DatasetUnavailableError
    from gnnsparse.training import CheckpointError, fit

    resume = None if cfg.resume is None else Path(cfg.resume)
    try:
        module, data = set_up(cfg, settings)
    except (ValueError, TypeError, ImportError, OSError, DatasetUnavailableError) as error:
        refuse(error)
    try:
        result = fit(module, data, settings.trainer, folder=folder, resume=resume, facts=facts_of(cfg))
    except (CheckpointError, FloatingPointError) as error:
        refuse(error)

    from gnnsparse.environment import write_json

    content = report(cfg, data, result)
    write_json(file, content)
    show(content, file)
    return result.metrics["test"][module.score_name]


if __name__ == "__main__":
    main()
