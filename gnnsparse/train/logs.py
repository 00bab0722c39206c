"""The loggers of a run, which go on with the files of the run that is resumed."""

from __future__ import annotations

import csv
import io
import os
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers import CSVLogger, Logger, TensorBoardLogger
from lightning.pytorch.loggers.csv_logs import ExperimentWriter

from gnnsparse.runtime.environment import write_text
from gnnsparse.train.config import TrainerConfig
from gnnsparse.train.folders import RunFolder

__all__ = ["make_loggers"]


def make_loggers(config: TrainerConfig, folder: RunFolder | None, done: int) -> list[Logger]:
    """Returns the loggers of a run.

    Args:
        config: settings of the training loop.
        folder: the run's folder; None: there are no loggers.
        done: the steps that a resumed run has done. What was logged of later ones, before the run was killed,
            is dropped, because they are trained again.
    """
    loggers: list[Logger] = []
    if folder is None or config.logger == "none":
        return loggers
    where = folder.path / "logs"
    for name in ("csv", "tensorboard"):
        if config.logger not in (name, "both"):
            continue
        folder.make(f"logs/{name}")  # the logger warns if it is missing
        if name == "csv":
            loggers.append(_CsvLogger(where, done))
        else:
            loggers.append(TensorBoardLogger(where, name=name, version=0, purge_step=done + 1))
    return loggers


class _CsvLogger(CSVLogger):
    """Lightning's logger, which does not begin its file anew if it has rows of steps up to `done`."""

    def __init__(self, where: Path, done: int) -> None:
        super().__init__(where, name="csv", version=0)
        self._done = done

    @property
    def experiment(self) -> Any:
        """Returns what writes the file."""
        if self._experiment is None:
            os.makedirs(self.root_dir, exist_ok=True)
            self._experiment = _Writer(self.log_dir, self._done)
        return self._experiment


class _Writer(ExperimentWriter):
    """Lightning's writer of metrics.csv, which keeps the rows of steps up to `done`."""

    def __init__(self, log_dir: str, done: int) -> None:
        self._done = done
        super().__init__(log_dir)

    def _check_log_dir_exists(self) -> None:
        """Keeps the rows of the run before, in place of Lightning's warning that they will be deleted."""
        file = Path(self.metrics_file_path)
        if not file.is_file():
            return
        with file.open(newline="", encoding="utf-8", errors="replace") as source:
            reader = csv.DictReader(source, restkey="more")
            rows = [row for row in reader if self._is_kept(row)]
            columns = list(reader.fieldnames or [])
        if not rows:
            file.unlink()
            return
        self.metrics_keys = columns
        kept = io.StringIO(newline="")
        writer = csv.DictWriter(kept, columns, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)
        write_text(file, kept.getvalue())

    def _is_kept(self, row: dict[str, str]) -> bool:
        """Returns whether a row is of a step that was done; a row that a kill has cut is none."""
        step = row.get("step") or ""
        return step.isdecimal() and int(step) <= self._done and None not in row.values()
