"""The folders of runs and sweeps, and sweeps, which go on past a run that fails and end with a table."""

from __future__ import annotations

import contextlib
import csv
import gc
import io
import json
import math
import shutil
import statistics
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from hydra.core.hydra_config import HydraConfig
from hydra.experimental.callback import Callback
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, open_dict, read_write
from omegaconf.errors import OmegaConfBaseException

from launch.console import RefusedError, refuse
from launch.ranks import Leader
from launch.words import ONCE, key_of, mark_of, quoted

if TYPE_CHECKING:
    from gnnsparse.train import RunFolder

__all__ = ["Sweep", "claimed", "resume_of"]

#: The folders that RunFolders has claimed for runs that have not begun.
claimed: dict[Path, RunFolder] = {}


def resume_of(cfg: DictConfig) -> Path | None:
    """Return the option `resume`; None: there is none, or it is no path, which is refused later."""
    value = OmegaConf.select(cfg, "resume")
    return Path(value) if isinstance(value, str) and value and "\0" not in value else None


class RunFolders(Callback):
    """Gives each run and each sweep a folder of its own, before hydra writes to it.

    A folder that was not given is one that did not exist. A folder that was given must not be that of another
    run, unless the run resumes that one; then the options in `.hydra` are kept, and the new ones are beside
    them. A sweep ends with a table.
    """

    def on_run_start(self, config: DictConfig, **_: Any) -> None:
        """Start the other ranks of a run, and claim its folder."""
        with contextlib.suppress(OmegaConfBaseException):  # which is refused later
            ranks = OmegaConf.select(config, "trainer.devices")
            if type(ranks) is int and ranks > 1 and OmegaConf.select(config, "mode") == "train":
                Leader.early = Leader(ranks)
        folder = self._claim(config, "hydra.run.dir")
        claimed[folder.path.resolve()] = folder
        if (subdir := config.hydra.output_subdir) is not None:
            free = folder.first_free(subdir)
            folder.remove_on_release(free)  # hydra writes it, whatever the options are
            _set(config, "hydra.output_subdir", free)

    def on_multirun_start(self, config: DictConfig, **_: Any) -> None:
        """Claim the folder of a sweep, in which each run has one."""
        folder = self._claim(config, "hydra.sweep.dir")
        with read_write(config), open_dict(config):
            config.hydra.overrides.hydra.append(f"hydra.sweep.dir={quoted(folder.path)}")  # for the runs
        folder.finish()
        Sweep.begin(folder.path)

    def on_multirun_end(self, config: DictConfig, **_: Any) -> None:
        """End the process with status 1 if a run of the sweep has failed, after the table of all."""
        if (sweep := Sweep.present) is not None and sweep.report():
            raise SystemExit(1)

    @staticmethod
    def _claim(config: DictConfig, option: str) -> RunFolder:
        from gnnsparse.train.folders import RunFolder

        given = any(
            override.lstrip("+").startswith(f"{option}=") for override in config.hydra.overrides.hydra
        )
        resume = resume_of(config)
        try:
            resume = None if resume is None else mark_of(resume)
            path = Path(str(OmegaConf.select(config, option))).absolute()
            if not given and OmegaConf.select(config, "mode") == "predict":
                path = path.with_name(f"{path.name[:8]}-predict")  # the time, not the defaults' names
            folder = RunFolder.claim(path, option=option, resume=resume, new=not given)
        except (ValueError, OmegaConfBaseException) as error:
            refuse(error)
        _set(config, option, str(folder.path))
        return folder


def _set(config: DictConfig, option: str, value: str) -> None:
    with read_write(config), open_dict(config):
        OmegaConf.update(config, option, value)


#: Characters of a line if the output is no terminal; in a narrower table numbers would be cut.
_WIDTH = 160


@dataclass(frozen=True)
class Job:
    """A run of a sweep.

    Attributes:
        number: its number in the sweep.
        words: the options that the sweep set in it.
        scores: test scores by name; empty if it failed.
        reason: why it failed; None if it did not.
    """

    number: int
    words: tuple[str, ...]
    scores: dict[str, float] = field(default_factory=dict)
    reason: str | None = None


@dataclass(frozen=True)
class Group:
    """The runs of a sweep that differ by their seeds alone.

    Attributes:
        options: what they have in common, as it was typed.
        runs: how many came to their end.
        failed: how many did not.
        means: mean of each test score.
        deviations: its standard deviation over the runs, with n - 1; NaN of a single one.
    """

    options: str
    runs: int
    failed: int
    means: dict[str, float]
    deviations: dict[str, float]


def groups_of(jobs: Sequence[Job]) -> list[Group]:
    """Put runs that differ by their seeds alone together, in the order of the sweep."""
    found: dict[str, list[Job]] = {}
    varied = [word for word in dict.fromkeys(w for job in jobs for w in job.words) if _varies(word, jobs)]
    for job in jobs:
        found.setdefault(" ".join(word for word in job.words if word in varied), []).append(job)
    groups = []
    for options, mine in found.items():
        finished = [job.scores for job in mine if job.reason is None]
        values = {name: [scores[name] for scores in finished if name in scores] for name in _names(mine)}
        means = {name: statistics.fmean(of) for name, of in values.items()}
        spreads = {name: statistics.stdev(of) if len(of) > 1 else math.nan for name, of in values.items()}
        groups.append(Group(options, len(finished), len(mine) - len(finished), means, spreads))
    return groups


def _varies(word: str, jobs: Sequence[Job]) -> bool:
    """Return whether a word tells groups apart: it is not of the seed, and not of all runs."""
    return key_of(word) != "seed" and not all(word in job.words for job in jobs)


def _names(jobs: Sequence[Job]) -> list[str]:
    return list(dict.fromkeys(name for job in jobs for name in job.scores))


class Sweep:
    """The sweep of this process.

    Args:
        folder: its folder.

    Attributes:
        present: the sweep that has begun; None: there is none.
        folder: the argument.
        jobs: the runs that have ended.
    """

    present: ClassVar[Sweep | None] = None

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.jobs: list[Job] = []

    @classmethod
    def begin(cls, folder: Path) -> None:
        """Begin a sweep."""
        cls.present = cls(folder)

    @classmethod
    def of_this_run(cls) -> Sweep | None:
        """Return the sweep that hydra runs a job of; None: it runs one alone."""
        return cls.present if HydraConfig.get().mode == RunMode.MULTIRUN else None

    def run(self, cfg: DictConfig, folder: Path, train: Callable[[DictConfig, Path], float]) -> float:
        """Train a job, whatever it ends with; in a sweep that goes on, unless it has its results.

        Args:
            cfg: the options.
            folder: the job's folder.
            train: trains, and returns the test score.

        Returns:
            The test score; NaN if the job failed.
        """
        job = HydraConfig.get().job
        number, words = int(job.num), tuple(HydraConfig.get().overrides.task)
        words = tuple(word for word in words if key_of(word) not in ONCE)
        if cfg.get("resume") is not None and (kept := _scores_in(folder)):
            self.jobs.append(Job(number, words, kept))
            return next(iter(kept.values()))
        gc.collect()  # what a run that failed leaves in cycles may be most of the memory
        try:
            score = train(cfg, folder)
        except RefusedError as refusal:
            return self._failed(number, words, folder, refusal.reason)
        except KeyboardInterrupt:
            _remove_if_released(folder)
            if scores := _scores_in(folder):  # the signal came after the last epoch
                self.jobs.append(Job(number, words, scores))
            self.report()
            raise
        except Exception as error:  # whatever a run fails with, the others are trained
            traceback.print_exc()
            line = " ".join(f"{type(error).__name__}: {error}".split())
            return self._failed(number, words, folder, line)
        self.jobs.append(Job(number, words, _scores_in(folder) or {"score": score}))
        return score

    def _failed(self, number: int, words: tuple[str, ...], folder: Path, reason: str) -> float:
        _remove_if_released(folder)
        self.jobs.append(Job(number, words, reason=reason))
        return math.nan

    def report(self) -> bool:
        """Print the table, write it to summary.csv, and return whether a job has failed."""
        if not self.jobs:
            return False
        from launch.console import make_console

        console = make_console(_WIDTH)
        groups = groups_of(self.jobs)
        console.print("Test scores: mean and standard deviation over the runs of a row", soft_wrap=True)
        console.print(_table(groups, _names(self.jobs)))
        for job in self.jobs:
            if job.reason is not None:
                line = f"failed: {job.number} ({' '.join(job.words)}): {job.reason}"
                console.print(line, markup=False, highlight=False, soft_wrap=True)
        file = self.folder / "summary.csv"
        from gnnsparse.runtime.environment import write_text

        try:
            write_text(file, _as_csv(groups, _names(self.jobs)))
            console.print(str(file), markup=False, highlight=False, soft_wrap=True)
        except OSError as error:
            print(f"train.py: hydra.sweep.dir: {file} can't be written ({error})", file=sys.stderr)
        return any(job.reason is not None for job in self.jobs)


def _scores_in(folder: Path) -> dict[str, float]:
    """Return the test scores of a folder's result.json; none if there is no such file, or it is damaged."""
    try:
        metrics = json.loads((folder / "result.json").read_text())["metrics"]["test"]
        return {str(name): float(value) for name, value in metrics.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def _remove_if_released(folder: Path) -> None:
    """Remove what hydra has written for a run that did not begin, which has given its mark up."""
    from gnnsparse.train.folders import MARK

    if not (folder / MARK).exists():
        shutil.rmtree(folder / ".hydra", ignore_errors=True)
        with contextlib.suppress(OSError):  # it has files of somebody else
            folder.rmdir()


def _table(groups: Sequence[Group], names: Sequence[str]) -> Any:
    from rich.table import Table
    from rich.text import Text

    table = Table()
    table.add_column("options", overflow="fold")
    for name in ("runs", "failed", *names):
        table.add_column(name, justify="right", no_wrap=True)
    for group in groups:
        cells = [_cell(group.means.get(name), group.deviations.get(name)) for name in names]
        table.add_row(Text(group.options), str(group.runs), str(group.failed or ""), *cells)
    return table


def _cell(mean: float | None, deviation: float | None) -> str:
    if mean is None or deviation is None:
        return ""
    return f"{mean:.4f}" if math.isnan(deviation) else f"{mean:.4f} ± {deviation:.4f}"


def _as_csv(groups: Sequence[Group], names: Sequence[str]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    scores = [f"{name} {part}" for name in names for part in ("mean", "standard deviation")]
    writer.writerow(["options", "runs", "failed", *scores])
    for group in groups:
        cells: list[Any] = [group.options, group.runs, group.failed]
        for name in names:
            cells += [group.means.get(name, ""), group.deviations.get(name, "")]
        writer.writerow(["" if isinstance(c, float) and math.isnan(c) else c for c in cells])
    return text.getvalue()
