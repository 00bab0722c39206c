"""The settings of a training run. Each class checks its values, and its errors name the option.

What an option accepts is stored in its field, where train.py reads the names (`choices_of`).
"""

from __future__ import annotations

import dataclasses
import importlib.util
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gnnsparse.distributed.names import PARTITIONS, WAYS, WIRES
from gnnsparse.errors import bad_type, bad_value, check_choice, check_integer
from gnnsparse.formats import FORMAT_NAMES
from gnnsparse.plan.window import BALANCES
from gnnsparse.preprocess.reorder import REORDERINGS
from gnnsparse.sampling.features import PLACEMENTS

#: Values of `trainer.capture` and `trainer.sparse_features`.
CAPTURES = ("auto", "on", "off")
#: Services that `trainer.logger` may name, packages that have to be installed.
SERVICES = ("wandb", "mlflow")
#: Neighbours that are drawn in each layer, unless an option says how many.
_FANOUT = 10
#: The largest integer that an option accepts, so that products with counts of steps fit into 64 bits.
_MOST = 2**31 - 1


def _option(default: float | str | None, **accepts: Any) -> Any:
    """Return a field that accepts one of `choices`, integers from `least` on, or numbers, `zero` or not.

    With `numbers` a list of numbers is accepted beside the choices.
    """
    return dataclasses.field(default=default, metadata=accepts)


def choices_of(section: type[Any]) -> dict[str, Sequence[str]]:
    """Return the options of a settings class that accept names, with these names."""
    fields = dataclasses.fields(section)
    return {f.name: f.metadata["choices"] for f in fields if "choices" in f.metadata}


def _check_fields(section: str, settings: Any) -> None:
    """Check flags, and the options whose fields say what they accept."""
    for field in dataclasses.fields(settings):
        name, value, accepts = f"{section}.{field.name}", getattr(settings, field.name), field.metadata
        if field.type == "bool":
            _check_type(name, value, isinstance(value, bool), "True or False")
        elif accepts.get("numbers") and value not in accepts["choices"]:
            _check_numbers(name, value, f"{', '.join(accepts['choices'])}, or a list of numbers from 0 on")
        elif "choices" in accepts:
            check_choice(name, value, accepts["choices"])
        elif "zero" in accepts:
            accepted = "a number, 0 or more" if accepts["zero"] else "a number above 0"
            is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
            _check_type(name, value, is_number, accepted)
            if isinstance(value, int) and abs(value) > _MOST:
                bad_value(name, f"got an integer of {value.bit_length()} bits; accepted: {accepted}")
            if not math.isfinite(value) or value < 0 or (value == 0 and not accepts["zero"]):
                bad_value(name, f"got {value}; accepted: {accepted}")
        elif "least" in accepts and not (value is None and field.default is None):
            accepted = f"an integer, at least {accepts['least']}"
            _check_type(name, value, isinstance(value, int) and not isinstance(value, bool), accepted)
            if check_integer(name, value, accepts["least"], accepted) > _MOST:
                bad_value(name, f"got {value}; accepted: at most {_MOST}")


def _check_numbers(name: str, value: Any, accepted: str) -> None:
    is_list = isinstance(value, Sequence) and all(type(item) in (int, float) for item in value)
    _check_type(name, value, is_list, accepted)
    if not value or not all(0 <= item <= _MOST for item in value):  # NaN is refused too
        bad_value(name, f"got {list(value)}; accepted: {accepted}")


def _check_type(name: str, value: Any, fits: bool, accepted: str) -> None:
    """Refuse a value of another type, by the value: it is what somebody typed."""
    if not fits:
        raise TypeError(f"{name}: got {value!r}; accepted: {accepted}")


@dataclass(frozen=True)
class OptimizerConfig:
    """Settings of the optimiser, Adam (Kingma and Ba 2015).

    Attributes:
        lr: learning rate.
        weight_decay: factor of the L2 penalty: this times a parameter is added to its gradient.
        decay: parameters with weight decay: "first": those of the model's first layer, as in Kipf and Welling
            (2017); "all".
        schedule: schedule of the learning rate: "none"; "cosine": from `lr` down to 0 at the last epoch.

    Raises:
        TypeError: an attribute is of another type.
        ValueError: an attribute is out of range.
    """

    lr: float = _option(0.01, zero=False)
    weight_decay: float = _option(5e-4, zero=True)
    decay: str = _option("first", choices=("first", "all"))
    schedule: str = _option("none", choices=("none", "cosine"))

    def __post_init__(self) -> None:
        _check_fields("optimizer", self)


@dataclass(frozen=True)
class TrainerConfig:
    """Settings of the training loop: its length, validation, logs and checkpoints.

    An epoch is one optimiser step on a whole graph, or one step on each mini-batch.

    Attributes:
        max_epochs: number of epochs, which includes those before a resumed checkpoint.
        batch_size: sequences, graphs or links of a step; not of one on all nodes of a graph. None:
            32; of links a sixteenth of those to train on, from 32 to 65536.
        val_every: epochs from one validation to the next; the last epoch is validated as well. The best epoch
            is chosen among the validated ones.
        patience: training stops when the validation score has not improved for this many epochs; None: it
            does not.
        logger: where losses and metrics are logged: "csv", "tensorboard" or "both"; "wandb" or "mlflow",
            where they are installed, beside "csv"; or "none".
        log_every: steps from one write to the loggers to the next. Until then metrics stay on the device, and
            a loss that is not finite is not noticed.
        checkpoint: whether checkpoints/last.ckpt, to resume from, and checkpoints/best.ckpt, the weights of
            the best epoch, are written, during training and at its end.
        checkpoint_seconds: least seconds between two writes of checkpoints during training, after which what
            a run that is killed has to train again is little more than that.
        progress: whether a progress bar is shown on a terminal, and elsewhere a line every few seconds.
        plots: whether curves of losses and scores, and the confusion matrix of a classifier, are drawn to
            plots/*.png in the run's folder at its end; it needs matplotlib.
        profile: number of steps whose trace is written to profile/trace.json in the run's folder, with a
            table of what they cost, after a few steps at the start; None: no profile.
        capture: whether steps are captured in a CUDA graph and replayed in blocks, which do not wait for the
            CPU: "auto": where it can be done; "on": it must be; "off".
        sparse_features: whether features of the nodes of a whole graph are kept as a sparse matrix, which the
            model's first linear layer multiplies: "auto": on a CPU, if at most an eighth of them are not 0;
            "on"; "off".
        class_weights: how much a node or graph of each class counts in the loss: "none": all alike;
            "balanced": all classes alike, whatever number of training nodes they have; or a number for each
            class, which are scaled so that their mean over the training nodes is 1. Of several labels it is
            how much a 1 counts beside a 0, and "balanced" is the number of zeros by that of ones. Scores
            count all alike.
        devices: number of GPUs, or of processes on a CPU, that train one graph together, each with a part of
            its nodes, or of the nodes of each step where steps take samples.
        way: how they share products: "halo", "gather", "features", or "auto", see
            gnnsparse.distributed.distribute; "auto" where steps take samples.
        parts: how nodes are divided among them: "contiguous", "community", "metis", or "auto"; "auto" where
            steps take samples.
        wire: what features travel as between them: "auto": as products round them; "int8": in 8 bits, with a
            scale for each row.
        shard_optimizer: whether each of several devices has the optimiser's state of some parameters alone
            (ZeRO, Rajbhandari et al. 2020), which saves memory with many parameters. Steps are not captured.

    Raises:
        TypeError: an attribute is of another type.
        ValueError: an attribute is out of range.
    """

    max_epochs: int = _option(200, least=1)
    batch_size: int | None = _option(None, least=1)
    val_every: int = _option(1, least=1)
    patience: int | None = _option(None, least=1)
    logger: str = _option("csv", choices=("csv", "tensorboard", "both", *SERVICES, "none"))
    log_every: int = _option(50, least=1)
    checkpoint: bool = True
    checkpoint_seconds: float = _option(5.0, zero=True)
    progress: bool = True
    plots: bool = False
    profile: int | None = _option(None, least=1)
    capture: str = _option("auto", choices=CAPTURES)
    sparse_features: str = _option("auto", choices=CAPTURES)
    class_weights: str | Sequence[float] = _option("none", choices=("none", "balanced"), numbers=True)
    devices: int = _option(1, least=1)
    way: str = _option("auto", choices=("auto", *WAYS))
    parts: str = _option("auto", choices=PARTITIONS)
    wire: str = _option("auto", choices=WIRES)
    shard_optimizer: bool = False

    def __post_init__(self) -> None:
        _check_fields("trainer", self)
        if self.logger in SERVICES and importlib.util.find_spec(self.logger) is None:
            install = f"accepted: csv, tensorboard, both, none, or pip install {self.logger}"
            bad_value("trainer.logger", f"{self.logger} is not installed; {install}")


@dataclass(frozen=True)
class PreprocessConfig:
    """Options of `gnnsparse.prepare`, which documents them.

    Attributes:
        reorder: row order of the operand.
        format: format of the operand.
        balance: how long windows of a blocked format are cut into parts on a GPU.
        cache: True: the prepared graph is stored in the user's cache folder; a path: in that folder; False:
            it is not stored.

    Raises:
        TypeError: an attribute is of another type.
        ValueError: an attribute is unknown, or the format has no windows for `balance`.
    """

    reorder: str = _option("none", choices=REORDERINGS)
    format: str = _option("auto", choices=FORMAT_NAMES)
    balance: str = _option("auto", choices=BALANCES)
    cache: bool | str = True

    def __post_init__(self) -> None:
        _check_fields("preprocess", self)
        if self.balance != "auto" and self.format in ("auto", "csr"):
            got = f"got {self.balance!r} for preprocess.format={self.format}, which has no windows"
            bad_value("preprocess.balance", f"{got}; accepted: auto")
        if not isinstance(self.cache, (bool, str)):
            bad_type("preprocess.cache", self.cache, "true, false or a folder")
        if self.cache == "" or (isinstance(self.cache, str) and "\0" in self.cache):
            bad_value("preprocess.cache", f"got {self.cache!r}; accepted: true, false or a folder")


@dataclass(frozen=True)
class SamplerConfig:
    """Which neighbours a training step takes. Validation and tests take the whole graph.

    Attributes:
        name: "none": all of them; "neighbor": those that gnnsparse.sampling.NeighborSampler draws for a batch
            of nodes or edges. The other options go with it.
        fanouts: neighbours that are drawn in each layer, from the model's last one to the first; -1: all.
            None: 10 in each layer, however many the model has (`with_fanouts` writes them).
        relations: in a graph with types, whether "each" relation draws so many neighbours for a node, or they
            are "shared" among the relations that lead to its type, rounded up; "auto": shared if `fanouts`
            is None, since else samples grow with the number of relations in each layer.
        batch_size: nodes, or edges, of a training step, on all devices together; the last step of an epoch
            may have fewer.
        method: how neighbours are drawn, an argument of NeighborSampler.
        replace: whether they are drawn with replacement.
        temporal_strategy: of the edges that are not too late, where data have times, an argument of
            NeighborSampler.
        prefetch: batches that a thread makes ahead, on a GPU on a stream of its own; 0: steps make theirs.
        features: where the features of nodes are kept, the placement of gnnsparse.sampling.FeatureStore.
        cache_share: with features in pinned memory: of the rows, the share that a GPU keeps copies of.

    Raises:
        TypeError: an attribute is of another type.
        ValueError: an attribute is out of range, or differs from its default where nothing is sampled.
    """

    name: str = _option("none", choices=("none", "neighbor"))
    fanouts: Sequence[int] | None = None
    relations: str = _option("auto", choices=("auto", "each", "shared"))
    batch_size: int = _option(1024, least=1)
    method: str = _option("uniform", choices=("uniform", "labor"))  # those that need no weights
    replace: bool = False
    temporal_strategy: str = _option("uniform", choices=("uniform", "last"))
    prefetch: int = _option(2, least=0)
    features: str = _option("auto", choices=PLACEMENTS)
    cache_share: float = _option(0.1, zero=True)

    def __post_init__(self) -> None:
        from gnnsparse.sampling.sampler import check_fanouts  # the library is imported without samplers

        _check_fields("sampler", self)
        if self.fanouts is not None:
            object.__setattr__(self, "fanouts", check_fanouts("sampler.fanouts", self.fanouts))
        if self.cache_share > 1:
            bad_value("sampler.cache_share", f"got {self.cache_share}; accepted: a number from 0 to 1")
        if self.replace and self.method == "labor":
            bad_value("sampler.replace", "got true with sampler.method=labor; accepted: false")
        for option in dataclasses.fields(self):
            if self.name == "none" and getattr(self, option.name) != option.default:
                bad_value(f"sampler.{option.name}", "goes with sampler=neighbor")

    def with_fanouts(self, model: Any) -> SamplerConfig:
        """Return the settings with fan-outs for a model of so many `num_convolutions`, if they have none."""
        layers = getattr(model, "num_convolutions", None)
        if not self.draws or self.fanouts is not None or layers is None:
            return self
        shared = "shared" if self.relations == "auto" else self.relations
        return dataclasses.replace(self, fanouts=(_FANOUT,) * layers, relations=shared)

    def check_times(self, has_times: bool) -> None:
        """Raise ValueError if edges are to be chosen by times that there are not."""
        if self.temporal_strategy != "uniform" and not has_times:
            problem = f"got {self.temporal_strategy!r}, and the data have no times"
            bad_value("sampler.temporal_strategy", f"{problem}; accepted: uniform")

    @property
    def draws(self) -> bool:
        """Whether training steps take drawn neighbours."""
        return self.name != "none"


#: The groups of options that every task has, with their settings classes.
SECTIONS: dict[str, type[Any]] = {
    "trainer": TrainerConfig,
    "optimizer": OptimizerConfig,
    "preprocess": PreprocessConfig,
    "sampler": SamplerConfig,
}
