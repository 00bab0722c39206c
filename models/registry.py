"""The registry of models: the class and the task of each."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from gnnsparse.registry import Registry

__all__ = ["MODELS", "REQUIRED", "Model", "register_model"]

Build = TypeVar("Build", bound=Callable[..., torch.nn.Module])

#: Stands for the default of an option that has none and must be given.
REQUIRED = inspect.Parameter.empty
#: The arguments of a model that the data set decides.
_SIZES = ("in_channels", "out_channels")


@dataclass(frozen=True)
class Model:
    """A model that train.py can train.

    Attributes:
        build: the class, which is called with in_channels, out_channels and the options of the group `model`.
        task: the training task that it is for, a name in gnnsparse.tasks. A model for "node" maps x [nodes,
            in_channels] and an operand to logits [nodes, out_channels]. A model for "sequence" maps tokens
            [batch, length] below in_channels, the operand of a pattern and a padding mask to logits [batch,
            out_channels].
        values: the weights of the operand that the model needs, an argument of `gnnsparse.prepare`, with the
            default options.
        values_by: the name of an option that decides the weights, and the weights for each of its values;
            None: they are always the same.
    """

    build: Callable[..., torch.nn.Module]
    task: str
    values: str | None = None
    values_by: tuple[str, Mapping[str, str | None]] | None = None

    def values_with(self, options: Mapping[str, Any]) -> str | None:
        """Returns the weights of the operand that the model needs with these options, which were checked."""
        if self.values_by is None or self.values_by[0] not in options:
            return self.values
        option, values = self.values_by
        return values[options[option]]

    @property
    def options(self) -> dict[str, Any]:
        """The options with their defaults, REQUIRED for those without one."""
        parameters = inspect.signature(self.build).parameters
        return {name: option.default for name, option in parameters.items() if name not in _SIZES}


#: The models by name.
MODELS: Registry[Model] = Registry("model")


def register_model(
    name: str,
    *,
    task: str,
    values: str | None = None,
    values_by: tuple[str, Mapping[str, str | None]] | None = None,
) -> Callable[[Build], Build]:
    """Registers the decorated class as a model; the arguments are the attributes of Model.

    train.py offers a model without a file in configs/model with the defaults of the class's parameters.

    Raises:
        ValueError: the name is taken.
    """

    def keep(build: Build) -> Build:
        MODELS.register(name, Model(build, task, values, values_by))
        return build

    return keep
