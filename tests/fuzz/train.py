"""Random runs of train.py: its options and command line, and runs that are resumed."""

from __future__ import annotations

import contextlib
import copy
import functools
import io
import json
import os
import tempfile
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import hydra
import torch
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

import train
from gnnsparse.data import CATALOG, register_dataset
from models import MODELS
from tests.configs import composed
from tests.fuzz import worker
from tests.fuzz.common import Trial
from tests.tasks import toy_sequences, toy_task

#: Small data sets for both tasks, of which a run takes a tenth of a second.
GRAPH, SEQUENCES = "fuzz_graph", "fuzz_sequences"

#: Values that suit few options, or none.
JUNK: list[Any] = [
    None, True, False, 0, 1, -1, 2, 0.5, 1.0, -0.0, 1e-30, 1e300, float("inf"), float("nan"), 2**31 - 1,
    2**31, 2**63, 10**400, -(10**30), "", " ", "x", "none", "fp32", "0", "1e3", "null", "a: b", "a,b", "../x",
    "\0", "é", "x" * 5000, "${seed}", "${nothing}", "???", [], [1, 2], {}, {"name": "x"}, {"a": {"b": 1}},
]  # fmt: skip
#: Values that one or another option accepts.
FITTING: list[Any] = [
    1, 2, 3, 4, 8, 16, 0.0, 0.1, 0.25, 0.5, True, False, None, "none", "all", "first", "layer", "batch",
    "cosine", "csv", "both", "csr", "auto", "rcm", "degree", "mean", "relu", "gelu",
]  # fmt: skip
#: Options that may take anything in a run that is carried out.
VARIED: dict[str, Sequence[Any]] = {
    "seed": [0, 1, 2**32 - 1],
    "precision": ["fp32", "tf32", "fp16", "bf16"],
    "optimizer.lr": [0.01, 1, 1e-6],
    "optimizer.weight_decay": [5e-4, 0.0, 3],
    "optimizer.decay": ["first", "all"],
    "optimizer.schedule": ["none", "cosine"],
    "trainer.batch_size": [4, 1, 100],
    "trainer.val_every": [1, 2],
    "trainer.patience": [None, 5],
    "trainer.logger": ["none", "csv"],
    "trainer.log_every": [1, 50],
    "trainer.checkpoint_seconds": [60, 0],
    "preprocess.format": ["auto", "csr", "window"],
    "preprocess.reorder": ["none", "rcm", "degree"],
}
#: Options of a run that takes no time.
SMALL = (
    "model.hidden_channels=8", "model.num_layers=1", "preprocess.cache=false", "device=cpu",
    "trainer.progress=false", "trainer.max_epochs=1",
)  # fmt: skip


def offer() -> None:
    if GRAPH not in CATALOG:
        register_dataset(GRAPH, task="node")(lambda: toy_task(30))
        register_dataset(SEQUENCES, task="sequence")(lambda: toy_sequences(8, (12, 6, 6)))


class RefusedError(ValueError):
    """An error that train.py reports in one line."""


def refused_by_hydra(error: Exception) -> bool:
    """Whether hydra raised an error, or OmegaConf: they name what they know, and have faults of their own."""
    inner = traceback.extract_tb(error.__traceback__)[-1].filename
    known = isinstance(error, (HydraException, OmegaConfBaseException))
    return known or Path(inner).is_relative_to(Path(hydra.__file__).parent)


@functools.cache
def base(model: str, data: str, *words: str) -> DictConfig:
    return composed(f"model={model}", f"dataset={data}", *words)


def options(trial: Trial, small: bool) -> DictConfig:
    """The options of one of the models, with a data set for its task; `small` is one that runs at once."""
    draw = trial.draw
    model = draw.choice(list(MODELS))
    task = MODELS[model].task
    data = GRAPH if task == "node" else SEQUENCES
    if not small and draw.chance(0.7):
        data = draw.choice([name for name, entry in CATALOG.items() if entry.task == task])
    words = (*SMALL, *(["pattern.block_size=4"] if task == "sequence" else [])) if small else ()
    return copy.deepcopy(base(model, data, *words))


def keys(cfg: DictConfig) -> list[str]:
    content: Any = OmegaConf.to_container(cfg, resolve=False)
    groups = {name: value for name, value in content.items() if isinstance(value, dict)}
    return [*map(str, content), *(f"{group}.{name}" for group, value in groups.items() for name in value)]


def option_case(trial: Trial) -> None:
    """Options of any type are accepted as they are, or refused with their name, before data is loaded."""
    draw = trial.draw
    cfg, changed = options(trial, small=False), []
    OmegaConf.set_struct(cfg, False)
    for _ in range(draw.integer(1, 3)):
        option = draw.choice(keys(cfg))
        value = draw.choice(FITTING if draw.chance(0.5) else JUNK)
        how = draw.choice(["set", "set", "set", "set", "remove", "add"])
        group, _, name = option.rpartition(".")
        if how == "remove":
            del (OmegaConf.select(cfg, group) if group else cfg)[name]
        else:
            option = f"{group}.more" if how == "add" and group else option
            with contextlib.suppress(OmegaConfBaseException):  # a value that OmegaConf can't hold
                OmegaConf.update(cfg, option, value, merge=False)
        changed.append(f"{how} {option}={str(value)[:60]!r}")
    OmegaConf.set_struct(cfg, True)
    trial.attempt(f"options {'; '.join(changed)}", lambda: checked(cfg))


def checked(cfg: DictConfig) -> Any:
    train.check_quickly(cfg)
    settings = train.read_settings(cfg)
    from gnnsparse.train.tasks import TASKS

    task = TASKS[TASKS.check(train.task_name(cfg))]
    task.check(settings)
    for name in ("max_epochs", "batch_size", "val_every", "log_every"):
        assert getattr(settings.trainer, name) == cfg.trainer.get(name, getattr(settings.trainer, name)), name
    assert (settings.seed, settings.precision) == (cfg.seed, cfg.precision)
    return train.identity_of(cfg, task, settings)


def command_case(trial: Trial) -> None:
    """A command line, as a user types it, is refused by hydra, refused by train.py, or accepted."""
    draw, words = trial.draw, []
    names = keys(base("gcn", GRAPH))
    for _ in range(draw.integer(1, 3)):
        option = draw.choice([*names, "model", "dataset", "hydra.run.dir", "nothing"])
        value = draw.choice(
            [*map(str, FITTING), *map(str, JUNK), "gcn", "digits", GRAPH, "'quoted", "[1,", "{", "$x"]
        )
        words.append(f"{draw.choice(['', '+', '++', '~'])}{option}={value}")
    cfg = trial.attempt(f"command {words}", lambda: composed(*words), refused_by_hydra)
    if cfg is not None:
        trial.attempt(f"options of {words}", lambda: checked(cfg))


@contextlib.contextmanager
def sandbox(trial: Trial) -> Iterator[Path]:
    """A folder to run in, with files beside those of runs, which have to stay as they are."""
    with tempfile.TemporaryDirectory(prefix="fuzz-train-", ignore_cleanup_errors=True) as folder:
        place = Path(folder)
        other = place / "other"
        other.mkdir()
        for name in ("result.json", "run.lock", "last.ckpt", "x.safetensors"):
            (other / name).write_bytes(os.urandom(50))
        before, working_folder = contents(other), Path.cwd()
        os.chdir(other)
        try:
            yield place
        finally:
            os.chdir(working_folder)
        trial.check(contents(other) == before, "files outside of the run folder were touched")
        more = {path.name for path in place.iterdir()} - {"other"}
        trial.check(all(name.startswith("run") for name in more), f"files outside of the run folder: {more}")


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and not path.is_symlink()
    }


def carried_out(cfg: DictConfig, folder: Path) -> dict[str, torch.Tensor]:
    """Runs train.py's function, and returns the weights that it leaves."""
    errors, output = io.StringIO(), io.StringIO()
    try:
        with contextlib.redirect_stderr(errors), contextlib.redirect_stdout(output):
            train.run(copy.deepcopy(cfg), folder)
    except SystemExit as end:
        lines = errors.getvalue().splitlines()
        if end.code != 2 or len(lines) != 1 or not lines[0].startswith("train.py: "):
            raise RuntimeError(f"exit status {end.code}, {lines}") from end
        raise RefusedError(lines[0].removeprefix("train.py: ")) from None
    result = json.loads((folder / "result.json").read_text())
    assert result["seed"] == cfg.seed
    last = torch.load(folder / "checkpoints" / "last.ckpt", weights_only=True)
    assert last["global_step"] > 0
    return last["state_dict"]


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def run_case(trial: Trial) -> None:
    """A run of two epochs, and one that is resumed after the first, end with the same weights."""
    draw = trial.draw
    cfg = options(trial, small=True)
    for option, values in VARIED.items():
        if draw.chance(0.3):
            OmegaConf.update(cfg, option, draw.choice(values))
    OmegaConf.update(cfg, "trainer.max_epochs", 2)
    # A schedule ends at the last epoch, so that a run that is planned for one epoch is another one.
    OmegaConf.update(cfg, "optimizer.schedule", "none")
    with sandbox(trial) as place:
        label = OmegaConf.to_yaml(cfg).replace("\n", " ")[:1500]
        whole = trial.call(f"run {label}", lambda: carried_out(cfg, place / "run-whole"))
        OmegaConf.update(cfg, "trainer.max_epochs", 1)
        trial.call("run, one epoch", lambda: carried_out(cfg, place / "run-half"))
        before = contents(place / "run-half")
        trial.refuse("run in the same folder", lambda: carried_out(cfg, place / "run-half"))
        trial.check(contents(place / "run-half") == before, "a refused run changed the files of another one")
        OmegaConf.update(cfg, "trainer.max_epochs", 2)
        OmegaConf.update(cfg, "resume", str(place / "run-half" / "checkpoints" / "last.ckpt"))
        folder = place / draw.choice(["run-half", "run-new"])
        resumed = trial.call("run, resumed", lambda: carried_out(cfg, folder))
        trial.check(same(whole, resumed), "a resumed run has other weights")


#: The kinds of cases, each with how often it comes.
CASES: dict[Callable[[Trial], None], int] = {
    option_case: 12,
    command_case: 1,
    run_case: 1,
}
_DECK = [kind for kind, share in CASES.items() for _ in range(share)]


@contextlib.contextmanager
def _warm() -> Iterator[None]:
    offer()  # before the processes are forked
    yield


GENERATOR = worker.Generator(
    "train", lambda trial: trial.draw.choice(_DECK)(trial), _warm,
    case_seconds=120.0, batch_seconds=20.0, memory=3 << 30,
)  # fmt: skip
