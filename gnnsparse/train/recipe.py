"""ModelRecipe, by which a checkpoint says what model its weights are of."""

from __future__ import annotations

import dataclasses
import importlib
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from gnnsparse.errors import bad_value
from gnnsparse.precision import Precision
from gnnsparse.preprocess.normalize import NORMALIZATIONS
from gnnsparse.registry import Registry

__all__ = ["ModelRecipe"]

_REGISTRY = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")
_LARGEST = 2**31 - 1
#: What models of nodes can take beside the features.
_INPUTS = (("operand",), (), ("edge_index",), ("edge_index", "edge_weight"), ("edge_index", "edge_attr"),
           ("edge_index", "edge_weight", "edge_attr"))  # fmt: skip
#: Attributes that files of earlier versions do not have.
_LATER: dict[str, Any] = {"regression": False, "inputs": ["operand"], "feature_names": None}


@dataclass(frozen=True)
class ModelRecipe:
    """What a model is made of, and what it is called with, as plain values.

    Attributes:
        registry: where the model is registered, as "MODULE:NAME": a Registry in a module that can be
            imported, whose entries have a method `build(in_channels, out_channels=..., **options)`, or for
            several tasks a method `for_task(task)` that returns such an entry. None: it is in no registry,
            and has to be given to load it.
        name: the model's name in the registry, or of its class.
        options: the options of `build`.
        in_channels: features of a node, or size of a vocabulary.
        out_channels: number of classes or labels.
        task: the task that the model is for, a name in gnnsparse.train.tasks.
        values: weights of the operand that the model needs: "gcn", "mean" or None.
        precision: the precision that it was trained in, a name in gnnsparse.Precision.
        several_labels: whether a node can have several labels.
        regression: whether the model predicts numbers, not classes.
        inputs: what a model of nodes takes beside the features: ("operand",), ("edge_index",) and after it
            "edge_weight" and "edge_attr" by name, or ().
        feature_names: the names of the features, in_channels different texts in the order in which the model
            takes them; None: they have none.
        run: the options of the run by group, for `train.py mode=predict`; nothing else reads them.

    Raises:
        ValueError: an attribute is of another type or out of range; the message names it.
    """

    registry: str | None
    name: str
    options: Mapping[str, Any]
    in_channels: int
    out_channels: int
    task: str = "node"
    values: str | None = None
    precision: str = "fp32"
    several_labels: bool = False
    regression: bool = False
    inputs: Sequence[str] = ("operand",)
    feature_names: Sequence[str] | None = None
    run: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.registry is not None and not (
            isinstance(self.registry, str) and _REGISTRY.fullmatch(self.registry)
        ):
            bad_value("registry", f"got {_short(self.registry)}; accepted: 'MODULE:NAME', or None")
        if not isinstance(self.inputs, (list, tuple)) or tuple(self.inputs) not in _INPUTS:
            bad_value("inputs", f"got {_short(self.inputs)}; accepted: {', '.join(map(str, _INPUTS))}")
        choices: dict[str, tuple[Any, ...]] = {
            "values": (None, *NORMALIZATIONS),
            "precision": tuple(Precision.names()),
            "several_labels": (False, True),
            "regression": (False, True),
        }
        for name, accepted in choices.items():
            value = getattr(self, name)
            if not any(type(value) is type(one) and value == one for one in accepted):
                bad_value(name, f"got {_short(value)}; accepted: {', '.join(map(str, accepted))}")
        for name in ("in_channels", "out_channels"):
            count = getattr(self, name)
            if type(count) is not int or not 0 <= count <= _LARGEST:
                bad_value(name, f"got {_short(count)}; accepted: an integer from 0 to {_LARGEST}")
        features = self.feature_names
        if features is not None and not (
            isinstance(features, (list, tuple))
            and all(isinstance(feature, str) for feature in features)
            and len(set(features)) == len(features) == self.in_channels
        ):
            problem = f"got {_short(features)}; accepted: {self.in_channels} different texts, or None"
            bad_value("feature_names", problem)
        for name, what in (("name", "model"), ("task", "task")):
            if not isinstance(text := getattr(self, name), str) or not text:
                bad_value(name, f"got {_short(text)}; accepted: the name of a {what}")
        for name in ("options", "run"):
            _check_plain(name, getattr(self, name), 0)

    def plain(self) -> dict[str, Any]:
        """Returns the attributes as plain values by name, for a checkpoint."""
        return {item.name: _copy(getattr(self, item.name)) for item in dataclasses.fields(self)}

    @classmethod
    def read(cls, content: Any) -> ModelRecipe:
        """Makes a recipe of what `plain` returned.

        Raises:
            ValueError: a value is missing, unknown, of another type or out of range.
        """
        names = [item.name for item in dataclasses.fields(cls)]
        given = {**_LATER, **content} if isinstance(content, dict) else {}
        if set(given) != set(names):
            got = ", ".join(sorted(map(str, content))) if isinstance(content, dict) else _short(content)
            bad_value("recipe", f"has {got[:200]}; accepted: {', '.join(names)}")
        for name in ("inputs", "feature_names"):
            if isinstance(given[name], list):
                given[name] = tuple(given[name])
        return cls(**given)

    def build(self, registry: Mapping[str, Any] | None = None) -> torch.nn.Module:
        """Makes the model, with initial weights.

        Args:
            registry: the registry to look the model up in; None: the one that the recipe names, whose module
                is imported.

        Raises:
            ValueError: the registry can't be imported or is none, it has no such model, or the options are
                not those of the model; or the model is in no registry.
        """
        if self.registry is None:
            accepted = "gnnsparse.load(..., model=...) in Python, with one made as it was for the training"
            bad_value("model", f"is a {self.name}, which is in no registry; accepted: {accepted}")
        models = self._find(self.registry) if registry is None else registry
        if self.name not in models:
            bad_value("name", f"got {_short(self.name)}; accepted by {self.registry}: {', '.join(models)}")
        try:
            entry = models[self.name]
            if hasattr(entry, "for_task"):  # one model may be for several tasks
                entry = entry.for_task(self.task)
            return entry.build(self.in_channels, out_channels=self.out_channels, **_copy(self.options))
        except (TypeError, ValueError) as error:
            raise ValueError(f"options of {self.name}: {error}") from error

    @staticmethod
    def _find(registry: str) -> Mapping[str, Any]:
        module, _, name = registry.partition(":")
        try:
            found = getattr(importlib.import_module(module), name, None)
        except ImportError as error:
            raise ValueError(
                f"registry: {module} can't be imported ({error}); accepted: a module on sys.path (run in the "
                "folder of train.py, or set PYTHONPATH to it), or the argument registry="
            ) from error
        if not isinstance(found, Registry):
            bad_value("registry", f"{registry} is no Registry; accepted: one of gnnsparse.registry")
        return found


def _short(value: Any) -> str:
    return repr(value)[:100]


def _copy(value: Any) -> Any:
    """Returns a value with mappings as dicts."""
    if isinstance(value, Mapping):
        return {key: _copy(item) for key, item in value.items()}
    return [_copy(item) for item in value] if isinstance(value, (list, tuple)) else value


def _check_plain(name: str, value: Any, depth: int) -> None:
    """Raises ValueError unless a value is a dict of names, down to texts, finite numbers, flags and None."""
    accepted = "texts, numbers, true, false, null, and lists and dicts of them"
    if depth > 8:
        bad_value(name, f"is nested too deeply; accepted: {accepted}")
    if isinstance(value, Mapping):
        for key, item in value.items():
            if not isinstance(key, str):
                bad_value(name, f"has the key {_short(key)}; accepted: texts")
            _check_plain(f"{name}.{key}"[:100], item, depth + 1)
    elif depth == 0:
        bad_value(name, f"got {_short(value)}; accepted: a dict")
    elif isinstance(value, (list, tuple)):
        for item in value:
            _check_plain(name, item, depth + 1)
    elif isinstance(value, float):
        if not math.isfinite(value):
            bad_value(name, f"got {value}; accepted: finite numbers")
    elif value is not None and type(value) not in (str, int, bool):
        bad_value(name, f"got {_short(value)}; accepted: {accepted}")
