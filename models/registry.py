"""The registry of models: what builds each one and which task it is for."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from gnnsparse.registry import Registry

__all__ = ["MODELS", "REQUIRED", "Model", "register_model"]

Build = TypeVar("Build", bound=Callable[..., torch.nn.Module])

#: The default of an option that has to be given.
REQUIRED = inspect.Parameter.empty
#: What the data set decides.
_SIZES = ("in_channels", "out_channels")


@dataclass(frozen=True)
class Model:
    """A model that train.py can train.

    Attributes:
        build: called with in_channels, out_channels and the options of the group `model`.
        task: what it is trained for, a name in gnnsparse.tasks. For "node", the module that `build` returns
            maps x [nodes, in_channels] and an operand to logits [nodes, out_channels]; for "sequence",
            tokens [batch, length] below in_channels, the operand of a pattern and a padding mask to logits
            [batch, out_channels].
        values: the weights of the operand it wants, as in `gnnsparse.prepare`.
    """

    build: Callable[..., torch.nn.Module]
    task: str
    values: str | None = None

    @property
    def options(self) -> dict[str, Any]:
        """The options with their defaults, REQUIRED where there is none."""
        parameters = inspect.signature(self.build).parameters
        return {name: option.default for name, option in parameters.items() if name not in _SIZES}


#: The models by name.
MODELS: Registry[Model] = Registry("model")


def register_model(name: str, *, task: str, values: str | None = None) -> Callable[[Build], Build]:
    """Registers the decorated class as a model; the arguments are the attributes of Model.

    A model without a file in configs/model is offered there with the defaults of the class's parameters.

    Raises:
        ValueError: the name is taken.
    """

    def keep(build: Build) -> Build:
        MODELS.register(name, Model(build, task, values))
        return build

    return keep
