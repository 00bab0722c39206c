"""The command `python train.py experiment=NAME`: it trains a study's runs and reports their scores."""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import sys
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from gnnsparse.runtime.environment import describe_environment
from gnnsparse.train.folders import RunFolderError
from launch.console import exit_status
from launch.study.settings import Run, Store, StudyOptions, check_peers, peer_problem, read_options

__all__ = ["run_study"]

#: Characters of a line if the output is no terminal; in a narrower table numbers would be cut.
_WIDTH = 160
#: Errors of options, which end the study before anything is trained.
_REFUSED = (ValueError, TypeError, ImportError, OSError, MemoryError)


def run_study(arguments: Sequence[str]) -> int:
    """Train and reports a study.

    Args:
        arguments: the command line, without the name of the program.

    Returns:
        The exit status: 0; 1 if a run failed; 2 if an option was refused; 130 after Ctrl-C, 143
        after SIGTERM.
    """
    try:
        study = read_options(arguments)
        check_peers(study.peers, study.models)
        study, skipped = _without_missing(study)
        # Lightning and PyG are imported here, after the checks that take no seconds.
        from launch.study.training import compose_all

        configs = compose_all(study)
        trained = _Study(study, configs, skipped)
    except _REFUSED as error:
        if os.environ.get("HYDRA_FULL_ERROR") == "1":
            raise
        print(f"train.py: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    with trained.store:
        try:
            trained.train_all()
        except RunFolderError as error:
            print(f"train.py: {error}", file=sys.stderr)
            return 2
        except KeyboardInterrupt as stop:
            trained.report()
            kept = f"{len(trained.results)} of {len(trained.runs)} runs are kept in {trained.store.path}"
            print(f"train.py: interrupted; {kept}; the same command goes on", file=sys.stderr)
            return exit_status(stop)
        return trained.report()


def _without_missing(study: StudyOptions) -> tuple[StudyOptions, list[str]]:
    """Leave out peers that can't run here, and return why; raise ValueError if the user named them."""
    problems = {name: problem for name in study.peers if (problem := peer_problem(name)) is not None}
    if problems and study.peers_asked:
        name, problem = next(iter(problems.items()))
        raise ValueError(f"peers: got {name!r}, but {problem}")
    peers = tuple(name for name in study.peers if name not in problems)
    return dataclasses.replace(study, peers=peers), list(problems.values())


class _Study:
    """A study that is being trained.

    Attributes:
        runs: all its runs.
        results: what was kept of the finished ones.
        failed: why the others failed.
        store: the study's folder.
    """

    def __init__(self, study: StudyOptions, configs: Any, skipped: list[str]) -> None:
        import train
        from launch.study.training import Trainer, runs_of

        self.options, self._skipped = study, skipped
        self._trainer = Trainer(study, configs)
        self.runs: list[Run] = list(runs_of(study))
        self.results: dict[Run, dict[str, Any]] = {}
        self.failed: dict[Run, str] = {}
        self._no_data: dict[str, str] = {}
        device = train.read_settings(self._trainer.config(self.runs[0])).device
        self._environment = describe_environment(device)
        self.store = Store(study.folder or study.default_folder(), self._environment)

    def train_all(self) -> None:
        """Train the runs that are not finished; those that fail are noted.

        Raises:
            RunFolderError: the folder has runs with other options.
        """
        for run in self.runs:
            if (kept := self.store.finished(run, self._trainer.options(run))) is not None:
                self.results[run] = kept
        console = Console(stderr=True)
        left = [run for run in self.runs if run not in self.results]
        if len(left) < len(self.runs):
            _say(console, f"{len(self.results)} of {len(self.runs)} runs are finished in {self.store.path}")
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
        with Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=console) as progress:
            bar = progress.add_task("", total=len(self.runs), completed=len(self.results))
            for run in left:
                progress.update(bar, description=str(run))
                self._train(run)
                if not console.is_terminal or run in self.failed:
                    done = len(self.results) + len(self.failed)
                    _say(console, f"{done}/{len(self.runs)} {run}: {self._outcome(run)}")
                progress.advance(bar)

    def _outcome(self, run: Run) -> str:
        if run in self.failed:
            return f"FAILED: {self.failed[run]}"
        result = self.results[run]
        score = 100 * result["metrics"]["test"][result["score"]]
        return f"{score:.2f} %, {result['fit_seconds']:.1f} s"

    def _train(self, run: Run) -> None:
        from launch.study.training import DataError

        if run.dataset in self._no_data:  # a download is not tried again for each run
            self.failed[run] = self._no_data[run.dataset]
            return
        try:
            result = self._trainer.train(run)
            self.results[run] = self.store.keep(run, self._trainer.options(run), result)
        except DataError as error:
            self.failed[run] = self._no_data[run.dataset] = _line(error)
        except Exception as error:  # whatever a run fails with, the others are trained
            self.failed[run] = f"{type(error).__name__}: {_line(error)}"

    def content(self) -> dict[str, Any]:
        """Return the content of study.json."""
        from launch.study.report import paper_rows, rows_of

        rows = rows_of({run: self.results[run] for run in self.runs if run in self.results})
        commits = dict.fromkeys(result["commit"] for result in self.results.values())
        # Runs that were kept may be older than this report: it is of the time and commit of the last run.
        latest = max(self.results.values(), key=lambda result: result["date"], default=self._environment)
        settings = dataclasses.asdict(self.options)
        for name in ("data", "folder", "peers_asked", "paper"):
            del settings[name]  # places of this machine, and what stands elsewhere
        return {
            **self._environment,
            "commit": latest["commit"],
            "date": latest["date"],
            "commits": list(commits),
            "experiment": self.options.experiment,
            "settings": settings,
            "rows": rows,
            "paper": self.options.paper,
            "paper_rows": paper_rows(self.options, rows),
            "skipped": self._skipped,
            "unfinished": len(self.runs) - len(self.results) - len(self.failed),
            "failed": [{"run": str(run), "reason": reason} for run, reason in self.failed.items()],
        }

    def report(self) -> int:
        """Print and write the results, and return the exit status."""
        from launch.study.report import as_csv, as_markdown, draw, print_report, write_text

        content, console = self.content(), Console()
        console = console if console.is_terminal else Console(width=max(_WIDTH, console.width))
        print_report(content, console)
        folder = self.store.path
        try:
            files = [self.store.write(content), folder / "study.md", folder / "study.csv"]
            write_text(files[1], as_markdown(content))
            write_text(files[2], as_csv(content["rows"]))
            if content["rows"] and importlib.util.find_spec("matplotlib") is not None:
                files.append(folder / "study.png")
                draw(content, files[-1])
        except OSError as error:
            print(f"train.py: hydra.run.dir: {folder} can't be written to ({error})", file=sys.stderr)
            return 1
        for file in files:
            _say(console, str(file))
        return 1 if self.failed else 0


def _line(error: BaseException) -> str:
    return " ".join(str(error).split()) or "no message"


def _say(console: Console, line: str) -> None:
    console.print(line, markup=False, highlight=False, soft_wrap=True)
