"""`accelerate`, `restore`, `report` and `backend`: layers of a PyG model get other classes.

These stand for PyG's layers: the same layers with other `propagate` and `forward` methods. Alone: the package
checks that PyG is installed before it imports this module.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch_geometric.nn import MessagePassing

from gnnsparse.errors import check_choice, check_flag
from gnnsparse.interop.models import Model, check_model, give_class_back, log
from gnnsparse.interop.pyg.aggregate import (
    NOTHING,
    LayerState,
    probe,
    propagate,
    propagate_compiled,
    unsuitable,
)
from gnnsparse.interop.pyg.attention import attend, attend_compiled, is_own, unsuitable_attention
from gnnsparse.interop.pyg.functions import is_sparse, multiplying, rebound
from gnnsparse.interop.pyg.graphs import CONVERSIONS, Settings
from gnnsparse.interop.pyg.message import NO_PRODUCT, arguments_of
from gnnsparse.precision import Precision
from gnnsparse.preprocess.reorder import REORDERINGS
from gnnsparse.runtime.memo import ForkLock


@dataclass(frozen=True)
class Row:
    """A layer of a model.

    Attributes:
        name: its name in the model; "" for the model itself.
        kind: its class.
        runs_on: "spmm" or "graph_attention" if it is accelerated, else "PyG", also where all calls so far
            were left to PyG, unless it did not pay yet to convert a graph.
        why: why it is left to PyG, of several reasons the most frequent one; "" if it is accelerated.
        calls: what its calls so far ran on, and how often.
        fallbacks: why calls so far were left to PyG though the layer is accelerated, and how often.
    """

    name: str
    kind: str
    runs_on: str
    why: str
    calls: dict[str, int]
    fallbacks: dict[str, int]


@dataclass(frozen=True)
class Report:
    """The layers of a model that pass messages. `print(report)` shows a line for each.

    Attributes:
        rows: the layers, in the order of the model.
    """

    rows: tuple[Row, ...]

    @property
    def accelerated(self) -> tuple[Row, ...]:
        """The layers that run on sparse products or fused attention."""
        return tuple(row for row in self.rows if row.runs_on != "PyG")

    def __str__(self) -> str:
        if not self.rows:
            return "no layers that pass messages"
        lines = [f"{len(self.accelerated)} of {len(self.rows)} layers accelerated"]
        for row in self.rows:
            why = f": {row.why}" if row.why else ""
            lines.append(f"{row.name or '(model)'}  {row.kind}  {row.runs_on}{why}")
            lines += [f"    {count} on {what}" for what, count in row.calls.items()]
            lines += [f"    {count} on PyG: {why}" for why, count in row.fallbacks.items()]
        return "\n".join(lines)


_lock = ForkLock()


def is_accelerated(layer: Any) -> bool:
    """Return whether a layer was accelerated; then `_gnnsparse` is its LayerState."""
    return "_gnnsparse" in layer.__dict__


def _make_propagate(base: Any) -> Callable[..., Any]:
    def propagate_(self: Any, edge_index: Any, size: Any = None, **given: Any) -> Any:
        state = self._gnnsparse
        is_compiling = torch.compiler.is_compiling()
        if is_sparse(edge_index) and not is_compiling:
            with multiplying(state, edge_index):
                return base.propagate(self, edge_index, size=size, **given)
        run = propagate_compiled if is_compiling else propagate
        out = run(self, state, edge_index, size, given)
        return base.propagate(self, edge_index, size=size, **given) if out is NOTHING else out

    propagate_.__name__ = "propagate"
    # The name that PyG gives the module of the method that it generates.
    propagate_.__module__ = f"{base.__module__}_{base.__name__}_propagate"
    propagate_.__doc__ = MessagePassing.propagate.__doc__
    return propagate_


def _make_forward(kind: type, plain: Callable[..., Any]) -> Callable[..., Any]:
    def forward(self: Any, x: Any, edge_index: Any, *arguments: Any, **options: Any) -> Any:
        state = self._gnnsparse
        is_compiling = torch.compiler.is_compiling()
        run = attend_compiled if is_compiling else attend
        out = run(self, kind, state, x, edge_index, arguments, options)
        if out is not NOTHING:
            return out
        if is_compiling:
            return plain(self, x, edge_index, *arguments, **options)
        try:
            return plain(self, x, edge_index, *arguments, **options)
        finally:  # one call counts once, whatever its `propagate` ran on
            why, state.why = state.why, None
            if why is not None:
                state.fall_back(why)

    forward.__wrapped__ = plain  # type: ignore[attr-defined]
    forward.__doc__ = plain.__doc__
    return forward


def _reduce(self: Any, protocol: Any) -> Any:
    """Pickle a layer as its PyG class and its state; the class that stands for it is made by reading it."""
    return _unpickled, (type(self)._gnnsparse_base,), self.__getstate__()


def _unpickled(base: type) -> Any:
    accelerated = class_for(base)
    return accelerated.__new__(accelerated)


def _set_state(self: Any, state: dict[str, Any]) -> None:
    """Set the attributes as PyG does, which may make the methods of its class that it generates."""
    own = type(self)
    object.__setattr__(self, "__class__", own._gnnsparse_base)
    try:
        self.__setstate__(state)
    finally:
        object.__setattr__(self, "__class__", own)
    self._gnnsparse.remember(probe(self))


def _generated(base: type) -> bool:
    """Return whether `propagate` of a class is PyG's own, which it generates for each class."""
    function: Any = base.propagate  # type: ignore[attr-defined]
    if function is MessagePassing.propagate:
        return True
    return any(
        issubclass(owner, MessagePassing)
        and function.__module__ == f"{owner.__module__}_{owner.__name__}_propagate"
        for owner in base.__mro__
    )


@functools.cache
def _class_for(base: Any) -> Any:
    methods: dict[str, Any] = rebound(base)
    kind = is_own(base)
    if kind is not None:
        methods["forward"] = _make_forward(kind, methods.get("forward", base.forward))
    methods["propagate"] = methods["_jinja_propagate"] = _make_propagate(base)
    namespace = {
        **methods,
        "__module__": base.__module__,
        "__qualname__": base.__qualname__,
        "__doc__": base.__doc__,
        "__reduce_ex__": _reduce,
        "__setstate__": _set_state,
        "__prepare_scriptable__": _scriptable,
        # PyG would generate other methods in place of those here.
        "_set_jittable_templates": lambda self, raise_on_error=False: None,
        "_gnnsparse_base": base,
        "_gnnsparse_kind": kind,
    }
    return type(base)(base.__name__, (base,), namespace)


def class_for(base: type) -> Any:
    """Return the class that stands for a class of PyG's layers; there is one for each."""
    with _lock:  # so that two threads do not make two
        return _class_for(base)


def _scriptable(self: Any) -> Any:
    """Return what torch.jit.script compiles in place of a layer: PyG's layer with the same parameters."""
    base = type(self)._gnnsparse_base
    plain = base.__new__(base)
    plain.__dict__.update(self.__dict__)
    del plain.__dict__["_gnnsparse"]
    return plain


def refusal(layer: Any) -> str | None:
    """Return why a layer stays as it is; None: it can be accelerated."""
    if not isinstance(layer, MessagePassing):
        return "it passes no messages of its own"
    kind: Any = type(layer)
    is_generated = True
    if "propagate" in layer.__dict__:  # PyG sets it when it explains
        own = getattr(layer.propagate, "__func__", None)
        is_generated = own in (kind._orig_propagate, kind._jinja_propagate)
    if not is_generated or not _generated(kind):
        return "it has a `propagate` of its own"
    if kind.__dict__.get("__reduce_ex__") is not None:
        return "its class is pickled in a way of its own"
    if is_own(kind) is not None:
        return unsuitable(layer) if unsuitable_attention(layer) is not None else None
    return unsuitable(layer) or (None if probe(layer) else NO_PRODUCT)


def swap(layer: Any, settings: Settings) -> str | None:
    """Make a layer an accelerated one, with other settings if it is one; return why it stays as it is."""
    if is_accelerated(layer):
        old = layer._gnnsparse
        layer._gnnsparse = LayerState(settings, old.arguments, readings=old.readings, known=old.known)
        return None
    if (why := refusal(layer)) is not None:
        return why
    accelerated = class_for(type(layer))
    state = LayerState(settings, arguments_of(layer.inspector.get_param_names("message")))
    state.remember(probe(layer))
    _forget_propagate(layer)
    layer.__dict__["_gnnsparse"] = state
    layer.__class__ = accelerated
    return None


def _forget_propagate(layer: Any) -> None:
    """Remove the `propagate` of its class that PyG has set in a layer after it was explained."""
    own = getattr(layer.__dict__.get("propagate"), "__func__", None)
    if own is not None and own is type(layer)._jinja_propagate:
        del layer.__dict__["propagate"]


def swap_back(layer: Any) -> None:
    """Make an accelerated layer what it was; other layers stay as they are."""
    if is_accelerated(layer):
        _forget_propagate(layer)
        give_class_back(layer, lambda kind: "_gnnsparse_base" in vars(kind))
        layer.__dict__.pop("_gnnsparse", None)


def _read_settings(precision: Any, reorder: Any, cache: Any, convert: Any) -> Settings:
    is_auto = precision is None or precision == "auto"
    return Settings(
        None if is_auto else Precision.parse(precision).value,
        check_choice("reorder", reorder, REORDERINGS),
        check_flag("cache", cache),
        check_choice("convert", convert, CONVERSIONS),
    )


def accelerate(
    model: Model,
    precision: Precision | str | None = None,
    reorder: str = "none",
    cache: bool = True,
    *,
    convert: str = "auto",
) -> Model:
    """Make the layers of a PyG model run on sparse products and fused attention.

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
        convert: "auto" converts a graph when that pays (gnnsparse.interop.pyg.graphs.decide); "always"
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
    log.info("%s", report(model))
    return model


def restore(model: Model) -> Model:
    """Undo `accelerate`: all layers get their own classes again.

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
    """Return what each layer of a model runs on, what its calls so far ran on, and why it is left to PyG.

    Raises:
        TypeError: `model` is no module.
    """
    check_model(model)
    rows = []
    for name, module in model.named_modules():
        if is_accelerated(module):
            state = module._gnnsparse
            fallbacks, runs_on = dict(state.fallbacks), "spmm"
            if fallbacks and not state.runs_on and not state.is_waiting:
                runs_on = "PyG"
            elif type(module)._gnnsparse_kind is not None and unsuitable_attention(module) is None:
                runs_on = "graph_attention"
            why = max(fallbacks, key=fallbacks.__getitem__) if runs_on == "PyG" else ""
            rows.append(Row(name, type(module).__name__, runs_on, why, dict(state.runs_on), fallbacks))
        elif isinstance(module, MessagePassing):
            why = refusal(module) or "it was not accelerated"
            rows.append(Row(name, type(module).__name__, "PyG", why, {}, {}))
    return Report(tuple(rows))


#: What the `backend` blocks that are active were entered with, and the layers that they have accelerated.
_active: list[Settings] = []
_swapped: weakref.WeakSet[Any] = weakref.WeakSet()


def _call(self: Any, *arguments: Any, **options: Any) -> Any:
    if not is_accelerated(self) and not torch.compiler.is_compiling():
        with _lock:
            if _active and not is_accelerated(self) and swap(self, _active[-1]) is None:
                _swapped.add(self)
    return torch.nn.Module.__call__(self, *arguments, **options)


@contextmanager
def backend(
    precision: Precision | str | None = None,
    reorder: str = "none",
    cache: bool = True,
    *,
    convert: str = "auto",
) -> Iterator[None]:
    """Accelerate every PyG layer that is called inside a `with` block, in all threads, until it ends.

    Blocks may be nested; the innermost one counts. The arguments and errors are those of `accelerate`. What
    torch.compile traces inside a block is accelerated if it was called in the block before.
    """
    settings = _read_settings(precision, reorder, cache, convert)  # told by its identity
    with _lock:
        _active.append(settings)
        MessagePassing.__call__ = _call
    try:
        yield
    finally:
        with _lock:
            _active[:] = [other for other in _active if other is not settings]
            for layer in list(_swapped):
                if _active and is_accelerated(layer):
                    layer._gnnsparse.settings = _active[-1]
                elif not _active:
                    swap_back(layer)
            if not _active:
                _swapped.clear()
                del MessagePassing.__call__
