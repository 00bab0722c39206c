"""`accelerate`, `restore`, `report` and `backend`."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch_geometric.nn import MessagePassing

from gnnsparse.errors import check_choice, check_flag
from gnnsparse.interop.models import check_model
from gnnsparse.interop.pyg.layers import is_accelerated, outlook, state_of, swap, swap_back, why_not
from gnnsparse.interop.pyg.policy import CONVERSIONS, Settings
from gnnsparse.interop.pyg.reports import Report, Row
from gnnsparse.precision import Precision
from gnnsparse.preprocess.reorder import REORDERINGS
from gnnsparse.runtime.memo import ForkLock

__all__ = ["accelerate", "backend", "report", "restore"]

_Module = TypeVar("_Module", bound=torch.nn.Module)
_log = logging.getLogger("gnnsparse.interop")


def _read_settings(precision: Any, reorder: Any, cache: Any, convert: Any) -> Settings:
    if precision is not None and precision != "auto":
        precision = Precision.parse(precision).value
    return Settings(
        None if precision == "auto" else precision,
        check_choice("reorder", reorder, REORDERINGS),
        check_flag("cache", cache),
        check_choice("convert", convert, CONVERSIONS),
    )


def accelerate(
    model: _Module,
    precision: Precision | str | None = None,
    reorder: str = "none",
    cache: bool = True,
    *,
    convert: str = "auto",
) -> _Module:
    """Makes the layers of a PyG model run on sparse products and fused attention.

    The model stays the same object: parameters, state_dict, inputs and outputs are what they were. Each layer
    that passes messages gets a class derived from its own, whose `propagate`, and `forward` of attention
    layers, run on kernels of this library where the layer computes what they compute, and else are PyG's.
    What a layer computes is found out from its `message`, so that classes of your own are accelerated too.
    Graphs are an edge_index, an EdgeIndex, or a sparse adjacency matrix of torch. The report is logged, as
    "gnnsparse.interop" at level INFO, see `report`. A model can be accelerated again with other arguments.

    Args:
        model: a module; layers are looked for in all of it.
        precision: what operands of products are rounded to, see gnnsparse.Precision; None or "auto": under
            autocast the dtype of autocast, else the dtype of the features.
        reorder: row order of graphs that are used for long, see gnnsparse.prepare.
        cache: whether what is prepared of graphs that are used for long is stored in the user's cache folder.
        convert: "auto" converts a graph when that pays (gnnsparse.interop.pyg.policy.decide); "always"
            converts each graph in the first call.

    Returns:
        The model.

    Raises:
        TypeError: an argument is of another type.
        ValueError: an argument is none of those accepted.
    """
    check_model(model)
    settings = _read_settings(precision, reorder, cache, convert)
    for module in model.modules():
        swap(module, settings)
    _log.info("%s", report(model))
    return model


def restore(model: _Module) -> _Module:
    """Undoes `accelerate`: all layers get their own classes again.

    Returns:
        The model.

    Raises:
        TypeError: `model` is no module.
    """
    check_model(model)
    for module in model.modules():
        swap_back(module)
    return model


def report(model: torch.nn.Module) -> Report:
    """Returns which layers of a model run on what, what their calls so far ran on, and why not.

    Raises:
        TypeError: `model` is no module.
    """
    check_model(model)
    rows = []
    for name, module in model.named_modules():
        if is_accelerated(module):
            state = state_of(module)
            runs_on, left = outlook(module), dict(state.left)
            why = max(left, key=left.__getitem__) if runs_on == "PyG" else ""
            rows.append(Row(name, type(module).__name__, runs_on, why, dict(state.runs_on), left))
        elif isinstance(module, MessagePassing):
            rows.append(Row(name, type(module).__name__, "PyG", why_not(module), {}, {}))
    return Report(tuple(rows))


class _Backend:
    """The `backend` blocks that are active in the process."""

    def __init__(self) -> None:
        self.lock = ForkLock()
        self.active: list[Settings] = []
        self.swapped: weakref.WeakSet[Any] = weakref.WeakSet()

    def enter(self, settings: Settings) -> None:
        with self.lock:
            self.active.append(settings)
            if len(self.active) == 1:
                MessagePassing.__call__ = _call

    def leave(self, settings: Settings) -> None:
        with self.lock:
            for place in reversed(range(len(self.active))):
                if self.active[place] is settings:
                    del self.active[place]
                    break
            for layer in list(self.swapped):
                if self.active and is_accelerated(layer):
                    state_of(layer).settings = self.active[-1]
                elif not self.active:
                    swap_back(layer)
            if not self.active:
                self.swapped.clear()
                del MessagePassing.__call__

    def take(self, layer: Any) -> None:
        """Accelerates a layer that is called, for as long as a block is active."""
        with self.lock:
            if self.active and not is_accelerated(layer) and swap(layer, self.active[-1]) is None:
                self.swapped.add(layer)


_backend = _Backend()


def _call(self: Any, *arguments: Any, **options: Any) -> Any:
    """Calls a layer of PyG inside a `backend` block."""
    if not is_accelerated(self) and not torch.compiler.is_compiling():
        _backend.take(self)
    return torch.nn.Module.__call__(self, *arguments, **options)


@contextmanager
def backend(
    precision: Precision | str | None = None,
    reorder: str = "none",
    cache: bool = True,
    *,
    convert: str = "auto",
) -> Iterator[None]:
    """Accelerates every PyG layer that is called inside a `with` block, in all threads, until it ends.

    Blocks may be nested; the innermost one counts. The arguments and errors are those of `accelerate`. What
    torch.compile traces inside a block is accelerated if it was called in the block before.
    """
    settings = _read_settings(precision, reorder, cache, convert)
    settings = Settings(**vars(settings))
    _backend.enter(settings)
    try:
        yield
    finally:
        _backend.leave(settings)
