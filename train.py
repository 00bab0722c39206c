"""Trains a model on a data set: python train.py model=gcn dataset=cora precision=fp16 device=auto seed=0.

configs/ has the options and their defaults, and `python train.py --help` shows them. With `-m` and lists of
values all combinations run. A run writes result.json, logs and checkpoints to its own folder below outputs/,
or to the folder of hydra.run.dir=DIR. The exit status is 0, or 1 for options that hydra refuses, or 2 for
errors that this program reports.
"""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import hydra
from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from omegaconf import MISSING, DictConfig, OmegaConf

if TYPE_CHECKING:
    import torch

    from gnnsparse.training import FitResult, PreparedData, TaskModule
    from gnnsparse.training.task import RunOptions, Task

#: The largest seed that NumPy accepts.
MAX_SEED = 2**32 - 1
CONFIGS = Path(__file__).resolve().parent / "configs"


def refuse(problem: Exception | str) -> NoReturn:
    """Ends the process with an error message of one line; HYDRA_FULL_ERROR=1 raises the error instead."""
    if os.environ.get("HYDRA_FULL_ERROR") == "1" and isinstance(problem, Exception):
        raise problem
    print(f"train.py: {' '.join(str(problem).split())}", file=sys.stderr)
    raise SystemExit(2)


def choices() -> dict[str, Sequence[str]]:
    """Returns the options that accept names, with these names, as the library defines them."""
    from gnnsparse import Precision
    from gnnsparse.environment import DEVICES
    from gnnsparse.training.config import SECTIONS, choices_of

    found: dict[str, Sequence[str]] = {"precision": Precision.names(), "device": DEVICES}
    for section, kind in SECTIONS.items():
        found |= {f"{section}.{name}": accepted for name, accepted in choices_of(kind).items()}
    return found


def counts() -> dict[str, int]:
    """Returns the options that are integers, with the least value of each."""
    from gnnsparse.training.config import SECTIONS, counts_of

    found = {"seed": 0}
    for section, kind in SECTIONS.items():
        found |= {f"{section}.{name}": least for name, least in counts_of(kind).items()}
    return found


def offer_registered() -> None:
    """Adds registered data sets and models without a file in configs/ to hydra, and the names for `--help`.

    It imports the library, which takes about two seconds, but no module that only training needs.
    """
    from gnnsparse.data import CATALOG
    from models import MODELS

    for group, entries in (("dataset", CATALOG), ("model", MODELS)):
        for name, entry in entries.items():
            if not (CONFIGS / group / f"{name}.yaml").exists():
                node = {"name": name, **_defaults(entry.options)}
                ConfigStore.instance().store(name, node, group, provider="gnnsparse")
    OmegaConf.register_new_resolver(
        "accepted", lambda: "\n".join(f"{o}: {', '.join(c)}" for o, c in choices().items()), replace=True
    )


def _defaults(options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns options in hydra's form, in which those without a default are marked as missing."""
    from models.registry import REQUIRED

    return {name: MISSING if default is REQUIRED else default for name, default in options.items()}


def check_quickly(cfg: DictConfig) -> None:
    """Refuses wrong options before the imports that take many seconds."""
    for option, accepted in choices().items():
        if (value := OmegaConf.select(cfg, option)) not in accepted:
            refuse(f"{option}: got {value!r}; accepted: {', '.join(accepted)}")
    for option, least in counts().items():
        value = OmegaConf.select(cfg, option)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            refuse(f"{option}: got {value!r}; accepted: an integer, at least {least}")
    if cfg.seed > MAX_SEED:
        refuse(f"seed: got {cfg.seed}; accepted: at most {MAX_SEED}")
    if cfg.resume is not None and not Path(cfg.resume).is_file():
        refuse(f"resume: there is no file {cfg.resume}")
    for option in sorted(OmegaConf.missing_keys(cfg)):
        refuse(f"{option}: got nothing; accepted: a value, as in {option}=1")


def section(cfg: DictConfig, name: str, kind: type[Any]) -> Any:
    """Makes a settings object of gnnsparse.training from a group of options.

    Raises:
        TypeError: an option is of another type.
        ValueError: an option is unknown or out of range.
    """
    options = {str(key): value for key, value in cfg[name].items()}
    known = [field.name for field in dataclasses.fields(kind)]
    for option in options:
        if option not in known:
            raise ValueError(f"{name}.{option}: no such option; accepted: {', '.join(known)}")
    return kind(**options)


def options_of(group: DictConfig) -> dict[str, Any]:
    """Returns the options of a group without its name."""
    return {str(key): value for key, value in group.items() if key != "name"}


def task_name(cfg: DictConfig) -> str:
    """Returns the task that the model and the data set are for; raises ValueError if they differ."""
    from gnnsparse.data import CATALOG
    from models import MODELS

    task = CATALOG[CATALOG.check(cfg.dataset.name)].task
    if MODELS[MODELS.check(cfg.model.name)].task != task:
        fitting = ", ".join(name for name, model in MODELS.items() if model.task == task)
        raise ValueError(
            f"model: got {cfg.model.name} for {cfg.dataset.name}, a data set of {task}s; accepted: {fitting}"
        )
    return task


def build_model(cfg: DictConfig, in_channels: int, out_channels: int) -> torch.nn.Module:
    """Builds the model that the options describe."""
    from gnnsparse.errors import naming
    from models import MODELS

    with naming("model"):
        return MODELS[cfg.model.name].build(in_channels, out_channels=out_channels, **options_of(cfg.model))


def read_settings(cfg: DictConfig) -> RunOptions:
    """Checks all options that can be checked without data, and returns them."""
    from gnnsparse.training import resolve_device
    from gnnsparse.training.config import SECTIONS
    from gnnsparse.training.task import RunOptions
    from models import MODELS

    task_name(cfg)
    build_model(cfg, 1, 1)  # raises if an option of the model is wrong
    own = {"model", "dataset", *SECTIONS}
    groups = {
        str(name): {str(key): value for key, value in group.items()}
        for name, group in cfg.items()
        if isinstance(group, DictConfig) and name not in own
    }
    return RunOptions(
        device=resolve_device(cfg.device),
        precision=cfg.precision,
        seed=cfg.seed,
        values=MODELS[cfg.model.name].values,
        groups=groups,
        **{name: section(cfg, name, kind) for name, kind in SECTIONS.items()},
    )


def identity_of(cfg: DictConfig, task: Task[Any, Any], run: RunOptions) -> dict[str, Any]:
    """Returns the values that a run and the run whose checkpoint it resumes must share."""
    from gnnsparse.training.task import text_of

    data = {str(key): value for key, value in cfg.dataset.items() if key not in ("name", "root")}
    identity = {"model": text_of(cfg.model), "dataset": cfg.dataset.name, **data, "precision": cfg.precision}
    return identity | task.identity(run)


def set_up(cfg: DictConfig, task: Task[Any, Any], run: RunOptions) -> tuple[TaskModule, PreparedData]:
    """Loads and prepares the data, and builds the model; returns the Lightning module and data module."""
    import lightning

    from gnnsparse.errors import naming
    from gnnsparse.training import check_checkpoint

    task.check(run)
    if cfg.resume is not None:
        check_checkpoint(Path(cfg.resume), run.trainer, identity_of(cfg, task, run), task.steps_per_epoch)
    with naming("dataset"):
        dataset = task.load(cfg.dataset.name, options_of(cfg.dataset))
    data = task.make_data(dataset, run)
    lightning.seed_everything(cfg.seed, verbose=False)
    model = build_model(cfg, *task.model_sizes(dataset))
    return task.make_module(model, data, run), data


def report(
    cfg: DictConfig, task: Task[Any, Any], run: RunOptions, data: PreparedData, result: FitResult
) -> dict[str, Any]:
    """Returns the content of result.json."""
    from gnnsparse.environment import describe_environment

    return {
        "model": cfg.model.name,
        "dataset": cfg.dataset.name,
        **task.describe(data, run),
        "precision": cfg.precision,
        "seed": cfg.seed,
        **dataclasses.asdict(result),
        "preprocess_seconds": data.preprocess_seconds,
        "cache_hit": data.cache_hit,
        **describe_environment(data.device),
    }


def show(content: dict[str, Any], task: Task[Any, Any], file: Path) -> None:
    """Prints the table of scores, and the time and memory that the run took."""
    from rich.console import Console

    console = Console()
    console.print(task.table(content))
    cached = "read from the cache" if content["cache_hit"] else "prepared"
    console.print(
        f"{content['epoch_milliseconds']:.2f} ms an epoch (median), {content['fit_seconds']:.1f} s in all; "
        f"{task.prepared} {cached} in {content['preprocess_seconds']:.3f} s; "
        f"{content['peak_memory_bytes'] / 2**20:.0f} MiB at most\n{file}",
        highlight=False,
        soft_wrap=True,
    )


def run(cfg: DictConfig, folder: Path) -> float:
    """Trains and scores a model, writes to a folder, and returns the test score."""
    file = folder / "result.json"
    file.unlink(missing_ok=True)  # an earlier run may have used this folder
    check_quickly(cfg)
    try:
        settings = read_settings(cfg)
    except (ValueError, TypeError) as error:
        refuse(error)

    # Importing a task imports Lightning and PyG, which takes seconds, so it comes after the checks.
    from gnnsparse.data import DatasetUnavailableError
    from gnnsparse.tasks import TASKS
    from gnnsparse.training import CheckpointError, fit

    resume = None if cfg.resume is None else Path(cfg.resume)
    try:
        task = TASKS[TASKS.check(task_name(cfg))]
        module, data = set_up(cfg, task, settings)
    except (ValueError, TypeError, ImportError, OSError, DatasetUnavailableError) as error:
        refuse(error)
    try:
        identity = identity_of(cfg, task, settings)
        result = fit(module, data, settings.trainer, folder=folder, resume=resume, identity=identity)
    except (CheckpointError, FloatingPointError) as error:
        refuse(error)

    from gnnsparse.environment import write_json

    content = report(cfg, task, settings, data, result)
    write_json(file, content)
    show(content, task, file)
    return result.metrics["test"][module.score_name]


@hydra.main(version_base="1.3", config_path="configs", config_name="train")
def main(cfg: DictConfig) -> float:
    """Runs with the options of the command line; returns the test score, which hydra's sweepers use."""
    return run(cfg, Path(HydraConfig.get().runtime.output_dir))


if __name__ == "__main__":
    offer_registered()
    main()
