"""Classes that stand for PyG's layers: the same layers with other `propagate` and `forward` methods."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch_geometric.nn import MessagePassing

from gnnsparse.interop.models import give_class_back
from gnnsparse.interop.pyg.aggregate import (
    NO_PRODUCT,
    NOTHING,
    LayerState,
    probe,
    propagate,
    propagate_compiled,
    unsuitable,
)
from gnnsparse.interop.pyg.attention import attend, attend_compiled, is_own, unsuitable_attention
from gnnsparse.interop.pyg.message import arguments_of
from gnnsparse.interop.pyg.normalize import rebound
from gnnsparse.interop.pyg.policy import Settings
from gnnsparse.interop.pyg.sparse import is_sparse, multiplying
from gnnsparse.runtime.memo import ForkLock

__all__ = ["is_accelerated", "outlook", "state_of", "swap", "swap_back", "why_not"]

_classes: dict[Any, Any] = {}
_lock = ForkLock()


def is_accelerated(layer: Any) -> bool:
    """Returns whether a layer is one that was accelerated."""
    return "_gnnsparse" in layer.__dict__


def state_of(layer: Any) -> LayerState:
    """Returns what an accelerated layer remembers."""
    return layer.__dict__["_gnnsparse"]


def _make_propagate(base: type) -> Callable[..., Any]:
    def propagate_(self: Any, edge_index: Any, size: Any = None, **given: Any) -> Any:
        state = self._gnnsparse
        if is_sparse(edge_index) and not torch.compiler.is_compiling():
            with multiplying(state, edge_index):
                return base.propagate(self, edge_index, size=size, **given)  # type: ignore[attr-defined]
        run = propagate_compiled if torch.compiler.is_compiling() else propagate
        out = run(self, state, edge_index, size, given)
        if out is not NOTHING:
            return out
        return base.propagate(self, edge_index, size=size, **given)  # type: ignore[attr-defined]

    propagate_.__name__ = "propagate"
    # The name that PyG gives the module of the method that it generates.
    propagate_.__module__ = f"{base.__module__}_{base.__name__}_propagate"
    propagate_.__doc__ = MessagePassing.propagate.__doc__
    return propagate_


def _make_forward(kind: type, plain: Callable[..., Any]) -> Callable[..., Any]:
    def forward(self: Any, x: Any, edge_index: Any, *arguments: Any, **options: Any) -> Any:
        state = self._gnnsparse
        if torch.compiler.is_compiling():
            out = attend_compiled(self, kind, state, x, edge_index, arguments, options)
            return out if out is not NOTHING else plain(self, x, edge_index, *arguments, **options)
        out = attend(self, kind, state, x, edge_index, arguments, options)
        if out is not NOTHING:
            return out
        try:
            return plain(self, x, edge_index, *arguments, **options)
        finally:  # one call counts once, whatever its `propagate` ran on
            why, state.why = state.why, None
            if why is not None:
                state.leave(why)

    forward.__wrapped__ = plain  # type: ignore[attr-defined]
    forward.__doc__ = plain.__doc__
    return forward


def _reduce(self: Any, protocol: Any) -> Any:
    """Pickles a layer as its PyG class and its state; the class that stands for it is made by reading it."""
    return _unpickled, (type(self)._gnnsparse_base,), self.__getstate__()


def _unpickled(base: type) -> Any:
    """Makes an accelerated layer of a class, whose attributes follow."""
    accelerated = class_for(base)
    return accelerated.__new__(accelerated)


def _set_state(self: Any, state: dict[str, Any]) -> None:
    """Sets the attributes as PyG does, which may make the methods of its class that it generates."""
    own = type(self)
    object.__setattr__(self, "__class__", own._gnnsparse_base)
    try:
        self.__setstate__(state)
    finally:
        object.__setattr__(self, "__class__", own)
    self._gnnsparse.remember(probe(self))


def _generated(base: type) -> bool:
    """Returns whether `propagate` of a class is PyG's own, which it generates for each class."""
    function: Any = base.propagate  # type: ignore[attr-defined]
    if function is MessagePassing.propagate:
        return True
    return any(
        issubclass(owner, MessagePassing)
        and function.__module__ == f"{owner.__module__}_{owner.__name__}_propagate"
        for owner in base.__mro__
    )


def class_for(base: Any) -> Any:
    """Returns the class that stands for a class of PyG's layers; there is one for each."""
    with _lock:
        if base in _classes:
            return _classes[base]
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
            "_set_jittable_templates": _keep_templates,
            "_gnnsparse_base": base,
            "_gnnsparse_kind": kind,
        }
        _classes[base] = type(base)(base.__name__, (base,), namespace)
        return _classes[base]


def _scriptable(self: Any) -> Any:
    """Returns what torch.jit.script compiles in place of a layer: PyG's layer with the same parameters."""
    base = type(self)._gnnsparse_base
    plain = base.__new__(base)
    plain.__dict__.update(self.__dict__)
    del plain.__dict__["_gnnsparse"]
    return plain


def _keep_templates(self: Any, raise_on_error: bool = False) -> None:
    """Does nothing: PyG would generate other methods in place of those here."""


def refusal(layer: Any) -> str | None:
    """Returns why a layer stays as it is; None: it can be accelerated."""
    if not isinstance(layer, MessagePassing):
        return "it passes no messages of its own"
    kind: Any = type(layer)
    own = getattr(layer.__dict__.get("propagate"), "__func__", None)  # PyG sets it when it explains
    is_own_propagate = own is None or own in (kind._orig_propagate, kind._jinja_propagate)
    if ("propagate" in layer.__dict__ and own is None) or not is_own_propagate or not _generated(kind):
        return "it has a `propagate` of its own"
    if type(layer).__dict__.get("__reduce_ex__") is not None:
        return "its class is pickled in a way of its own"
    if is_own(type(layer)) is not None and unsuitable_attention(layer) is None:
        return None
    return unsuitable(layer)


def why_not(layer: Any) -> str:
    """Returns why a layer that was not accelerated stays as it is."""
    why = refusal(layer)
    if why is None and not probe(layer) and is_own(type(layer)) is None:
        why = NO_PRODUCT
    return why or "it was not accelerated"


def swap(layer: Any, settings: Settings) -> str | None:
    """Makes a layer an accelerated one, with other settings if it is one; returns why it stays as it is."""
    if is_accelerated(layer):
        old = state_of(layer)
        layer._gnnsparse = LayerState(settings, old.arguments, readings=old.readings, known=old.known)
        return None
    why = refusal(layer)
    if why is not None:
        return why
    read = probe(layer)
    if not read and is_own(type(layer)) is None:
        return NO_PRODUCT
    accelerated = class_for(type(layer))
    _forget_propagate(layer)
    arguments = arguments_of(layer.inspector.get_param_names("message"))
    layer.__dict__["_gnnsparse"] = state = LayerState(settings, arguments)
    state.remember(read)
    layer.__class__ = accelerated
    return None


def _forget_propagate(layer: Any) -> None:
    """Removes the `propagate` of its class that PyG has set in a layer after it was explained."""
    own = getattr(layer.__dict__.get("propagate"), "__func__", None)
    if own is not None and own is type(layer)._jinja_propagate:
        del layer.__dict__["propagate"]


def swap_back(layer: Any) -> None:
    """Makes an accelerated layer what it was; other layers stay as they are."""
    if is_accelerated(layer):
        _forget_propagate(layer)
        give_class_back(layer, lambda kind: "_gnnsparse_base" in vars(kind))
        layer.__dict__.pop("_gnnsparse", None)


def outlook(layer: Any) -> str:
    """Return what the calls of an accelerated layer run on: PyG if all so far did, and not for being few."""
    state = state_of(layer)
    if state.left and not state.runs_on and not state.is_waiting:
        return "PyG"
    if type(layer)._gnnsparse_kind is not None and unsuitable_attention(layer) is None:
        return "graph_attention"
    return "spmm"
