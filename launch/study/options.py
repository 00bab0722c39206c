"""The options of a study, from configs/experiment/NAME.yaml and the command line."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from gnnsparse import Precision
from gnnsparse.data.datasets import CLASS_METRICS
from gnnsparse.errors import bad_value
from gnnsparse.precision import ROUNDED_PRECISIONS
from launch.study.peers import PEERS

__all__ = ["REFERENCE", "StudyOptions", "experiments", "names_experiment", "read_options"]

EXPERIMENTS = Path(__file__).resolve().parents[2] / "configs" / "experiment"
#: The precision that the others are compared with.
REFERENCE = "fp32"
#: Options that a list may be given for, and what one of their values is called.
_LISTS = {"dataset": "a data set", "model": "a model", "precision": "a precision", "peers": "a peer"}
#: Options of a run that a study sets itself, and what to use instead.
_OWN = {
    "seed": "seeds=N, for the seeds 0 to N - 1",
    "resume": "the same command again, which goes on with the study",
    "resume_data": "a new folder, by hydra.run.dir=DIR, for data that have changed",
    "dataset.root": "data=DIR, a folder below which all data sets are looked for",
    "hydra.sweep.dir": "hydra.run.dir=DIR",
}


@dataclass
class _File:
    """The content of configs/experiment/NAME.yaml, by which OmegaConf checks the types of options."""

    dataset: list[str] = field(default_factory=list)
    model: list[str] = field(default_factory=list)
    precision: list[str] = field(default_factory=lambda: [p.value for p in ROUNDED_PRECISIONS])
    peers: list[str] = field(default_factory=list)
    seeds: int = 10
    data: str | None = None
    metric: str | None = None
    options: list[str] = field(default_factory=list)
    paper: Any = None


@dataclass(frozen=True)
class StudyOptions:
    """The options of a study.

    Attributes:
        experiment: name of the file in configs/experiment.
        datasets, models, precisions, peers: names, each once.
        peers_asked: whether the command line named the peers: one that is missing is then refused.
        seeds: the seeds are 0 to seeds - 1.
        data: folder below which raw files are looked for; None: they are downloaded.
        metric: the score that is reported; None: the data set's own.
        options: options of every run, as on a command line.
        paper: scores to compare with, or None.
        folder: the study's folder that was asked for; None: one by the options.
    """

    experiment: str
    datasets: tuple[str, ...]
    models: tuple[str, ...]
    precisions: tuple[str, ...]
    peers: tuple[str, ...]
    peers_asked: bool
    seeds: int
    data: Path | None
    metric: str | None
    options: tuple[str, ...]
    paper: dict[str, Any] | None
    folder: Path | None

    @property
    def variants(self) -> tuple[str, ...]:
        """What a model is trained with: the precisions, then the peers."""
        return (*self.precisions, *self.peers)

    def default_folder(self) -> Path:
        """Returns the folder of a study with these options, whatever its lists and number of seeds are."""
        about = json.dumps([self.experiment, sorted(self.options), str(self.data), self.metric])
        digest = hashlib.blake2b(about.encode(), digest_size=4).hexdigest()
        return Path("outputs") / "studies" / f"{self.experiment}-{digest}"


def experiments() -> tuple[str, ...]:
    """Returns the names of the studies."""
    return tuple(sorted(file.stem for file in EXPERIMENTS.glob("*.yaml")))


def names_experiment(arguments: Sequence[str]) -> bool:
    """Returns whether a command line asks for a study."""
    return any(argument.lstrip("+").startswith("experiment=") for argument in arguments)


def _values(override: Any, option: str) -> list[str]:
    if override.is_sweep_override():
        if not override.is_choice_sweep():
            bad_value(option, f"got {override.input_line}; accepted: names, as in {option}=A,B")
        return [str(value) for value in override.sweep_string_iterator()]
    value = override.value()
    if value is None or value == "none":
        return []
    return [str(item) for item in value] if isinstance(value, list) else [str(value)]


def _file_of(name: str) -> Any:
    if name not in experiments():
        bad_value("experiment", f"got {name!r}; accepted: {', '.join(experiments())}")
    return OmegaConf.merge(OmegaConf.structured(_File), OmegaConf.load(EXPERIMENTS / f"{name}.yaml"))


def read_options(arguments: Sequence[str]) -> StudyOptions:
    """Reads the command line of a study.

    Args:
        arguments: options as `dataset=cora,pubmed` or `optimizer.lr=0.02`.

    Raises:
        ValueError: an option is not accepted; the message has its name.
    """
    for argument in arguments:
        if argument.startswith("-"):
            bad_value(
                argument, "a study takes no flags; accepted: options as dataset=cora,pubmed, without -m"
            )
    try:
        overrides = OverridesParser.create().parse_overrides(list(arguments))
    except HydraException as error:
        raise ValueError(f"options: {' '.join(str(error).split())}") from error
    given: dict[str, Any] = {}
    options: list[str] = []
    for override in overrides:
        key, text = override.key_or_group, override.input_line or ""
        if key in _OWN:
            bad_value(key, f"a study sets it itself; accepted: {_OWN[key]}")
        if key in given:
            bad_value(key, "is given twice; accepted: once")
        if key in _LISTS and not override.is_delete():
            given[key] = _values(override, key)
        elif override.is_sweep_override():
            accepted = f"one value; lists are for {', '.join(_LISTS)}"
            bad_value(key, f"got {text.partition('=')[2]}; accepted: {accepted}")
        elif key in ("experiment", "hydra.run.dir", *(f.name for f in fields(_File))):
            given[key] = override.value()
        else:
            options.append(text)
    return _checked(given, options)


def _checked(given: dict[str, Any], options: list[str]) -> StudyOptions:
    name, folder = str(given.pop("experiment")), given.pop("hydra.run.dir", None)
    if "options" in given or "paper" in given:
        bad_value("options", "is for files in configs/experiment; accepted: the options themselves")
    file = _file_of(name)
    try:
        merged = OmegaConf.to_object(OmegaConf.merge(file, given))
    except OmegaConfBaseException as error:
        option = getattr(error, "full_key", None) or "options"
        raise ValueError(f"{option}: {str(error).splitlines()[0]}") from error
    assert isinstance(merged, _File)
    for option, what in _LISTS.items():
        if option != "peers" and not getattr(merged, option):
            bad_value(option, f"got nothing; accepted: at least {what}")
    _check_names("precision", merged.precision, Precision.names())
    _check_names("peers", merged.peers, tuple(PEERS))
    if REFERENCE not in merged.precision:
        got = ", ".join(merged.precision)
        bad_value("precision", f"got {got}; accepted: a list with {REFERENCE}, to compare the others with")
    if not 1 <= merged.seeds <= 10_000:
        bad_value("seeds", f"got {merged.seeds}; accepted: a number of seeds, from 1 to 10000")
    if merged.metric is not None:
        _check_names("metric", [merged.metric], CLASS_METRICS)
    data = None if merged.data is None else Path(merged.data).expanduser().absolute()
    if data is not None and not data.is_dir():
        bad_value("data", f"there is no folder {merged.data}")
    return StudyOptions(
        experiment=name,
        datasets=tuple(dict.fromkeys(merged.dataset)),
        models=tuple(dict.fromkeys(merged.model)),
        precisions=tuple(dict.fromkeys(merged.precision)),
        peers=tuple(dict.fromkeys(merged.peers)),
        peers_asked="peers" in given,
        seeds=merged.seeds,
        data=data,
        metric=merged.metric,
        options=(*merged.options, *options),
        paper=merged.paper,
        folder=None if folder is None else Path(str(folder)),
    )


def _check_names(option: str, names: Sequence[str], accepted: Sequence[str]) -> None:
    for name in names:
        if name not in accepted:
            bad_value(option, f"got {name!r}; accepted: {', '.join(accepted)}")
