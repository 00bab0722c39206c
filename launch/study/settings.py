"""A study: its options, the peers that it trains beside this library, and the folder of its finished runs."""

from __future__ import annotations

import hashlib
import importlib.util
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
from gnnsparse.runtime.environment import write_json
from gnnsparse.train.folders import RunFolder, RunFolderError

__all__ = [
    "PEERS", "REFERENCE", "Peer", "Run", "Store", "StudyOptions", "check_peers", "experiments",
    "peer_problem", "read_options",
]  # fmt: skip


@dataclass(frozen=True)
class Peer:
    """Another library that trains the models; launch.study.training has its layers.

    Attributes:
        title: its name in tables.
        models: the models that it has layers for.
        package: the package that it needs.
        on_cpu: whether it always runs on the CPU.
    """

    title: str
    models: tuple[str, ...]
    package: str
    on_cpu: bool = False


PEERS = {
    "pyg": Peer("PyG", ("gcn", "agnn", "gat", "gatv2", "graphsage", "gin"), "torch_geometric"),
    # The releases on PyPI have no CUDA kernels for a current torch.
    "dgl": Peer("DGL", ("gcn", "agnn", "gat"), "dgl", on_cpu=True),
}


def peer_problem(name: str) -> str | None:
    """Return why a peer can't run here, or None."""
    peer = PEERS[name]
    if importlib.util.find_spec(peer.package) is None:
        return f"{peer.title} is not installed"
    if name == "dgl":
        from gnnsparse.interop.dgl import import_dgl

        try:
            import_dgl()
        except ImportError as error:
            return f"DGL can't be imported: {' '.join(str(error).split())}"
    return None


def check_peers(peers: Sequence[str], models: Sequence[str]) -> None:
    """Raise a ValueError if a peer has no layers for one of the models."""
    for name in peers:
        for model in models:
            if model not in PEERS[name].models:
                accepted = ", ".join(PEERS[name].models)
                bad_value("peers", f"got {name!r} for the model {model}; accepted with {name}: {accepted}")


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
        """Return the folder of a study with these options, whatever its lists and number of seeds are."""
        about = json.dumps([self.experiment, sorted(self.options), str(self.data), self.metric])
        digest = hashlib.blake2b(about.encode(), digest_size=4).hexdigest()
        return Path("outputs") / "studies" / f"{self.experiment}-{digest}"


def experiments() -> tuple[str, ...]:
    """Return the names of the studies."""
    return tuple(sorted(file.stem for file in EXPERIMENTS.glob("*.yaml")))


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
    """Read the command line of a study.

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
    """Return nested options by names as model.num_layers."""
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
        """Return what was kept of a run, or None if it has not been finished.

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
        """Write the file of a finished run, and return its content.

        Raises:
            OSError: it can't be written.
            ValueError: a number is not finite.
        """
        shared = {name: self._environment[name] for name in (*_SHARED, "commit", "date")}
        content = {"run": run.key, **result, **shared, "options": options}
        write_json(self._file(run), content)
        return content

    def write(self, content: dict[str, Any]) -> Path:
        """Write the study's results, and return their file."""
        write_json(self.path / _STUDY, content)
        return self.path / _STUDY
