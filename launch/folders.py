"""The folders of runs and sweeps: hydra's callback that claims them before hydra writes to them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf, open_dict, read_write
from omegaconf.errors import OmegaConfBaseException

from launch.refusing import refuse
from launch.resuming import mark_of, quoted
from launch.sweeps import Sweep

if TYPE_CHECKING:
    from gnnsparse.train import RunFolder

__all__ = ["claimed", "resume_of"]

#: The folders that RunFolders has claimed for runs that have not begun.
claimed: dict[Path, RunFolder] = {}


def resume_of(cfg: DictConfig) -> Path | None:
    """Returns the option `resume`; None: there is none, or it is no path, which is refused later."""
    value = OmegaConf.select(cfg, "resume")
    return Path(value) if isinstance(value, str) and value and "\0" not in value else None


class RunFolders(Callback):
    """Gives each run and each sweep a folder of its own, before hydra writes to it.

    A folder that was not given is one that did not exist. A folder that was given must not be that of another
    run, unless the run resumes that one; then the options in `.hydra` are kept, and the new ones are beside
    them. A sweep ends with a table.
    """

    def on_run_start(self, config: DictConfig, **_: Any) -> None:
        """Claims the folder of a run."""
        folder = self._claim(config, "hydra.run.dir")
        claimed[folder.path.resolve()] = folder
        if (subdir := config.hydra.output_subdir) is not None:
            free = folder.first_free(subdir)
            folder.remove_on_release(free)  # hydra writes it, whatever the options are
            _set(config, "hydra.output_subdir", free)

    def on_multirun_start(self, config: DictConfig, **_: Any) -> None:
        """Claims the folder of a sweep, in which each run has one."""
        folder = self._claim(config, "hydra.sweep.dir")
        with read_write(config), open_dict(config):
            config.hydra.overrides.hydra.append(f"hydra.sweep.dir={quoted(folder.path)}")  # for the runs
        folder.finish()
        Sweep.begin(folder.path)

    def on_multirun_end(self, config: DictConfig, **_: Any) -> None:
        """Ends the process with status 1 if a run of the sweep has failed, after the table of all."""
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
