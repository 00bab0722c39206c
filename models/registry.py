"""The registry of models: the class and the task of each."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import torch

from gnnsparse.errors import bad_value
from gnnsparse.registry import MADE_OF, Registry

__all__ = ["MODELS", "REGISTRY", "REQUIRED", "Model", "register_around", "register_model", "register_variant"]

Build = TypeVar("Build", bound=Callable[..., torch.nn.Module])

#: Stands for the default of an option that has none and must be given.
REQUIRED = inspect.Parameter.empty
#: Where checkpoints say that a model is registered.
REGISTRY = "models:MODELS"
#: The arguments of a model that the data set decides.
_SIZES = ("in_channels", "out_channels")


@dataclass(frozen=True)
class Variant:
    """The class of a model for another task than its first one.

    Attributes:
        build: the class.
        options: its options with their defaults.
    """

    build: Callable[..., torch.nn.Module]
    options: Mapping[str, Any]


@dataclass(frozen=True)
class Model:
    """A model that train.py can train.

    Attributes:
        build: the class, which is called with in_channels, out_channels and the options of the group `model`.
        task: the training task that it is for, a name in gnnsparse.train.tasks. A model for "node" maps x
            [nodes, in_channels] and an operand to logits [nodes, out_channels]. A model for "sequence" maps
            tokens [batch, length] below in_channels, the operand of a pattern and a padding mask to logits
            [batch, out_channels]. A model for "graph" maps x, the operand of a batch and graph_ptr
            [graphs + 1] to [graphs, out_channels]. A model for "link" has embeddings of in_channels nodes: it
            maps an operand to features of the nodes, and its method `score` maps these and pairs of nodes to
            logits.
        values: the weights of the operand that the model needs, an argument of `gnnsparse.prepare`, with the
            default options.
        values_by: the name of an option that decides the weights, and the weights for each of its values;
            None: they are always the same.
        variants: the classes of the model for other tasks, by the name of the task.
        own: the options with their defaults, where the signature of the class does not tell; None: it does.
        edge_weights: whether the model uses the weights of edges; attention over the edges ignores them.
        edge_features: whether it takes features of edges, [edges, edge_channels], behind its other arguments:
            "none", "optional" or "required".
    """

    build: Callable[..., torch.nn.Module]
    task: str
    values: str | None = None
    values_by: tuple[str, Mapping[str, str | None]] | None = None
    edge_weights: bool = True
    edge_features: str = "none"
    variants: dict[str, Variant] = field(default_factory=dict)
    own: Mapping[str, Any] | None = None

    @property
    def tasks(self) -> tuple[str, ...]:
        """The names of the tasks that there is a class for."""
        return (self.task, *self.variants)

    def for_task(self, task: str) -> Model:
        """Return the model for a task, which is one of `tasks`.

        Raises:
            ValueError: there is no class for the task.
        """
        if task == self.task:
            return self
        if task not in self.variants:
            bad_value("task", f"got {task!r}; accepted: {', '.join(self.tasks)}")
        return replace(self, build=self.variants[task].build, task=task, own=self.variants[task].options)

    def values_with(self, options: Mapping[str, Any]) -> str | None:
        """Return the weights of the operand that the model needs with these options, which were checked."""
        if self.values_by is None or self.values_by[0] not in options:
            return self.values
        option, values = self.values_by
        return values[options[option]]

    @property
    def options(self) -> dict[str, Any]:
        """The options with their defaults, REQUIRED for those without one."""
        return _options_of(self.build) if self.own is None else dict(self.own)


def _options_of(build: Callable[..., torch.nn.Module]) -> dict[str, Any]:
    parameters = inspect.signature(build).parameters
    decided = (*_SIZES, "edge_channels")
    return {name: option.default for name, option in parameters.items() if name not in decided}


#: The models by name.
MODELS: Registry[Model] = Registry("model")


def register_model(
    name: str,
    *,
    task: str,
    values: str | None = None,
    values_by: tuple[str, Mapping[str, str | None]] | None = None,
    edge_weights: bool = True,
    edge_features: str = "none",
) -> Callable[[Build], Build]:
    """Register the decorated class as a model; the arguments are the attributes of Model.

    train.py offers a model without a file in configs/model with the defaults of the class's parameters.

    Raises:
        ValueError: the name is taken.
    """

    def keep(build: Build) -> Build:
        MODELS.register(name, Model(build, task, values, values_by, edge_weights, edge_features))
        _remember(build, name)
        return build

    return keep


def _remember(kind: Any, name: str) -> None:
    """Let each model of a class know by which options it was made, which gnnsparse.fit writes down."""
    if not isinstance(kind, type):
        return
    make = kind.__init__  # type: ignore[misc]

    @functools.wraps(make)
    def remembering(self: torch.nn.Module, *given: Any, **named: Any) -> None:
        make(self, *given, **named)
        if type(self) is kind:
            bound = inspect.signature(make).bind(self, *given, **named)
            named_so = dict(list(bound.arguments.items())[1:])
            for option, parameter in bound.signature.parameters.items():
                if parameter.kind is parameter.VAR_KEYWORD:
                    named_so |= named_so.pop(option, {})
            own = {option: value for option, value in named_so.items() if option not in _SIZES}
            setattr(self, MADE_OF, (REGISTRY, name, own))

    kind.__init__ = remembering  # type: ignore[misc]


def register_variant(
    name: str, *, task: str, like: Mapping[str, Any] | None = None
) -> Callable[[Build], Build]:
    """Register the decorated class as a registered model for another task, as `gin` classifies graphs, too.

    It needs the same weights of the operand.

    Args:
        name: the name of the model.
        task: the task, a name in gnnsparse.train.tasks, which the model has no class for yet.
        like: the options of the class with their defaults; None: those of its signature.

    Raises:
        ValueError: there is no such model, or it has a class for the task.
    """

    def keep(build: Build) -> Build:
        model = MODELS[MODELS.check(name)]
        if task in model.tasks:
            bad_value("task", f"got {task!r} for {name} to register; accepted: one that it has no class for")
        model.variants[task] = Variant(build, _options_of(build) if like is None else like)
        _remember(build, name)
        return build

    return keep


def register_around(kind: type[torch.nn.Module], task: str, names: tuple[str, ...], **options: Any) -> None:
    """Register a class around models of nodes for another task: a class of its own for each of the models.

    Args:
        kind: the class, whose attribute `encoder_class` is the class of a model, and which takes its options.
        task: the task, a name in gnnsparse.train.tasks, which the models have no class for yet.
        names: the names of the models.
        options: the options of `kind` itself with their defaults.

    Raises:
        ValueError: there is no such model, or it has a class for the task.
    """
    for name in names:
        encoder: Any = MODELS[MODELS.check(name)].build
        around = type(f"{kind.__name__}{encoder.__name__}", (kind,), {"encoder_class": encoder})
        around.__module__ = kind.__module__
        setattr(sys.modules[kind.__module__], around.__name__, around)  # where pickles look for it
        register_variant(name, task=task, like={**_options_of(encoder), **options})(around)
