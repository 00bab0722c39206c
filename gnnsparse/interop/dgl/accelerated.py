"""The classes of DGL's layers on our kernels, such as `GraphConv`.

They are made of DGL's classes when they are first asked for, by `accelerate` or by a pickle of a model.
"""

from __future__ import annotations

import functools
import importlib
from typing import Any

from gnnsparse.interop.dgl.layers import LAYERS, OPTIONS, LeftToDgl
from gnnsparse.interop.dgl.shim import import_dgl

__all__ = ["accelerated_class"]


@functools.cache
def accelerated_class(name: str) -> type:
    """Returns the subclass of DGL's layer `name` whose forward runs on our kernels.

    It has the name of DGL's class, by which its modules show themselves, and is found in this module by
    pickle.
    """
    import_dgl()
    original: Any = getattr(importlib.import_module("dgl.nn.pytorch.conv"), name)
    forward = LAYERS[name].forward

    @functools.wraps(original.forward)
    def call(self: Any, *arguments: Any, **options: Any) -> Any:
        held = self.__dict__[OPTIONS]
        try:
            out = forward(self, *arguments, **options)
        except LeftToDgl as why:
            held.reason = str(why)
        else:
            held.reason = None
            return out
        return original.forward(self, *arguments, **options)

    return type(name, (original,), {"forward": call, "__module__": __name__, "__doc__": original.__doc__})


def __getattr__(name: str) -> Any:
    if name in LAYERS:
        return accelerated_class(name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
