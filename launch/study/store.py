"""The folder of a study, in which each finished run has a file."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gnnsparse.runtime.environment import write_json
from gnnsparse.train.folders import RunFolder, RunFolderError

__all__ = ["Run", "Store"]

#: The file that marks a folder as that of a study, and later holds its results.
_STUDY = "study.json"
#: What must be equal in all runs of a study besides their options.
_SHARED = ("device_name", "threads", "versions")


@dataclass(frozen=True)
class Run:
    """One training of a study.

    Attributes:
        dataset, model: their names.
        variant: a precision of this library, or a peer.
        seed: the seed of weights and dropout.
    """

    dataset: str
    model: str
    variant: str
    seed: int

    @property
    def key(self) -> str:
        """The name of the run's file."""
        return f"{self.dataset}-{self.model}-{self.variant}-seed{self.seed}"

    def __str__(self) -> str:
        return f"{self.model} on {self.dataset}, {self.variant}, seed {self.seed}"


def _flat(options: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Returns nested options by names as model.num_layers."""
    flat: dict[str, Any] = {}
    for name, value in options.items():
        flat |= _flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {f"{prefix}{name}": value}
    return flat


class Store:
    """The folder of a study, locked while the study runs. A run's file appears whole or not at all.

    Args:
        path: the folder, which is made if it is missing.
        environment: what `describe_environment` returns.

    Attributes:
        path: the folder.

    Raises:
        RunFolderError: another study is writing to the folder, it is that of something else, or it can't be
            written to.
    """

    def __init__(self, path: Path, environment: dict[str, Any]) -> None:
        self.path, self._environment = path.absolute(), environment
        mark = self.path / _STUDY
        if self.path.is_dir() and any(self.path.iterdir()) and not mark.exists():
            problem = f"{self.path} has files of something else; accepted: a new folder, or that of a study"
            raise RunFolderError(f"hydra.run.dir: {problem}")
        self._folder = RunFolder.claim(self.path, option="hydra.run.dir", resume=mark)
        if not mark.exists():
            self.write({})

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self._folder.finish()

    def _file(self, run: Run) -> Path:
        return self.path / "runs" / f"{run.key}.json"

    def finished(self, run: Run, options: dict[str, Any]) -> dict[str, Any] | None:
        """Returns what was kept of a run, or None if it has not been finished.

        Args:
            run: the run.
            options: its options, which must be those that it was trained with.

        Raises:
            RunFolderError: it was trained with other options or elsewhere, or its file is damaged.
        """
        file = self._file(run)
        try:
            kept = json.loads(file.read_text())
            before = _flat({**kept["options"], **{name: kept[name] for name in _SHARED}})
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            accepted = "a study's own files; remove it, and the run is trained again"
            raise RunFolderError(
                f"hydra.run.dir: {file} can't be read ({error!r}); accepted: {accepted}"
            ) from None
        now = _flat({**options, **{name: self._environment[name] for name in _SHARED}})
        for name in sorted(before.keys() | now.keys()):
            if before.get(name) != now.get(name):
                got = f"has runs with {name} = {before.get(name)}, and this study has {now.get(name)}"
                raise RunFolderError(f"hydra.run.dir: {self.path} {got}; accepted: another folder")
        return dict(kept)

    def keep(self, run: Run, options: dict[str, Any], result: dict[str, Any]) -> dict[str, Any]:
        """Writes the file of a finished run, and returns its content.

        Raises:
            OSError: it can't be written.
            ValueError: a number is not finite.
        """
        shared = {name: self._environment[name] for name in (*_SHARED, "commit", "date")}
        content = {"run": run.key, **result, **shared, "options": options}
        write_json(self._file(run), content)
        return content

    def write(self, content: dict[str, Any]) -> Path:
        """Writes the study's results, and returns their file."""
        write_json(self.path / _STUDY, content)
        return self.path / _STUDY
