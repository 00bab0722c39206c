"""`accelerate`, `restore`, `report` and `backend`: layers of a PyG model get other classes.

These stand for PyG's layers: the same layers with other `propagate` and `forward` methods. Alone: the package
checks that PyG is installed before it imports this module.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.parameter import UninitializedParameter
from torch_geometric.nn import MessagePassing

from gnnsparse.errors import check_choice, check_flag
from gnnsparse.interop.models import Model, check_model, give_class_back, log
from gnnsparse.interop.pyg.aggregate import (
    NOTHING,
    LayerState,
    left_compiled,
    probe,
    propagate,
    propagate_compiled,
    unsuitable,
)
from gnnsparse.interop.pyg.attention import FUSED, attend, attend_compiled, is_own, is_whole, unsuitable_whole
from gnnsparse.interop.pyg.by_class import COMPUTED, computed_as, propagate_as, unsuitable_as
from gnnsparse.interop.pyg.edge_aggregate import probe_edges, remember_layer
from gnnsparse.interop.pyg.functions import is_sparse, multiplying, rebound
from gnnsparse.interop.pyg.graphs import CONVERSIONS, Settings
from gnnsparse.interop.pyg.hetero import HeteroConv, Relations, expected, join, part
from gnnsparse.interop.pyg.message import NO_PRODUCT, arguments_of
from gnnsparse.nn.bias import FastBiases, has_many_rows
from gnnsparse.precision import Precision
from gnnsparse.preprocess.reorder import REORDERINGS
from gnnsparse.runtime.memo import ForkLock

#: What one can do about a reason, by the words that it begins with; "": nothing.
_ADVICE = {
    NO_PRODUCT: "let `message` compute each feature of an edge from x_j, x_i and arguments of the edge alone",
    "converting the graph pays": "call it more often on this graph, or accelerate(model, convert='always')",
    "the graph is so small": "accelerate(model, convert='always'), though PyG is as fast",
    "features of dtype": "call the model with float32, float16 or bfloat16",
    "weights of dtype": "give weights of edges as float32, float16 or bfloat16",
    "features of sizes": "give each node of the graph a row of features",
    "flow=": "make the layer with flow='source_to_target', and swap the two rows of its edge_index",
    "it overrides": "do in `forward` what is done there",
    "a method was replaced": "do in a class of its own what the method does",
    "its aggregation is": "make the layer with aggr='sum', 'mean', 'max' or 'min'",
    "its aggregation has hooks": "remove the hooks",
    "hooks are registered": "remove the hooks",
    "its parameters are computed": "call torch.nn.utils.parametrize.remove_parametrizations",
    "its parameters have no sizes": "call it once more: the first call gives them their sizes",
    "its features are decomposed": "make the layer with decomposed_layers=1",
    "it has a `propagate`": "let `forward` call the `propagate` of MessagePassing",
    "a CUDA graph is captured": "run the model once before the capture",
    "weights are returned with an EdgeIndex": "pass the edge_index as a plain tensor",
    "PyG sums an EdgeIndex": "pass the edge_index as a plain tensor",
    "the adjacency is": "pass an edge_index, int64 [2, edges]",
    "features and edges are on two devices": "move both to one device",
    "torch.compile traces": "call the layer outside of what is compiled, as by torch.compiler.disable(layer)",
    "it was not accelerated": "call gnnsparse.interop.pyg.accelerate(model)",
}


@dataclass(frozen=True)
class Row:
    """A layer of a model.

    Attributes:
        name: its name in the model; "" for the model itself.
        kind: its class.
        runs_on: "spmm", "aggregate_edges" or "graph_attention" if calls ran on these, or the first call will;
            else "PyG".
        why: why it is left to PyG, of several reasons the most frequent one; "" if it is accelerated.
        calls: what its calls so far ran on, and how often. Calls of the layer, not of its products.
        fallbacks: why calls so far were left to PyG though the layer can be accelerated, and how often.
    """

    name: str
    kind: str
    runs_on: str
    why: str
    calls: dict[str, int]
    fallbacks: dict[str, int]

    @property
    def advice(self) -> str:
        """What one can do for the layer to be accelerated; "" if it is, or if nothing is known."""
        return next((text for words, text in _ADVICE.items() if self.why.startswith(words)), "")


@dataclass(frozen=True)
class Report:
    """The layers of a model that pass messages. `print(report)` shows a line for each.

    Attributes:
        rows: the layers, in the order of the model.
    """

    rows: tuple[Row, ...]

    @property
    def accelerated(self) -> tuple[Row, ...]:
        """The layers that ran on sparse products or fused attention, in a call at the least."""
        return tuple(row for row in self.rows if row.calls)

    @property
    def ready(self) -> tuple[Row, ...]:
        """The layers that will run so when they are called for the first time."""
        return tuple(row for row in self.rows if row.runs_on != "PyG" and not row.calls)

    def __str__(self) -> str:
        if not self.rows:
            return "no layers that pass messages"
        ready = f", {len(self.ready)} ready for the first call" if self.ready else ""
        lines = [f"{len(self.accelerated)} of {len(self.rows)} layers accelerated{ready}"]
        for row in self.rows:
            why = f": {row.why}" if row.why else ""
            lines.append(f"{row.name or '(model)'}  {row.kind}  {row.runs_on}{why}")
            lines += [f"    to accelerate it: {row.advice}"] if row.advice else []
            lines += [f"    {_calls(count)} on {what}" for what, count in row.calls.items()]
            lines += [f"    {_calls(count)} on PyG: {why}" for why, count in row.fallbacks.items()]
        return "\n".join(lines)


def _calls(count: int) -> str:
    return f"{count} call{'s' if count > 1 else ''}"


_lock = ForkLock()


def is_accelerated(layer: Any) -> bool:
    """Return whether a layer was accelerated; then `_gnnsparse` is its LayerState."""
    return "_gnnsparse" in layer.__dict__


def _make_propagate(base: Any, kind: type | None) -> Callable[..., Any]:
    """Make a `propagate`; `kind`: PyG's class whose messages it passes, if these are told by the class."""

    def propagate_(self: Any, edge_index: Any, size: Any = None, **given: Any) -> Any:
        state = self._gnnsparse
        is_compiling = torch.compiler.is_compiling()
        if is_sparse(edge_index) and self.fuse and not is_compiling:
            with multiplying(state, edge_index):
                return base.propagate(self, edge_index, size=size, **given)

        def run() -> Any:
            if kind is not None:
                if is_compiling:
                    return left_compiled(self, "a layer whose messages are told by its class")
                return propagate_as(self, kind, state, edge_index, size, given)
            return (propagate_compiled if is_compiling else propagate)(self, state, edge_index, size, given)

        if (out := run()) is not NOTHING:
            return out
        is_first = not (is_compiling or state.runs_on or state.fallbacks)
        is_lazy = is_first and any(type(p) is UninitializedParameter for p in self.parameters())
        out = base.propagate(self, edge_index, size=size, **given)
        # What has sizes now may be ours, and then the first call has the bits of those that follow.
        again = run() if is_lazy else NOTHING
        return out if again is NOTHING else again

    propagate_.__name__ = "propagate"
    # The name that PyG gives the module of the method that it generates.
    propagate_.__module__ = f"{base.__module__}_{base.__name__}_propagate"
    propagate_.__doc__ = MessagePassing.propagate.__doc__
    return propagate_


def _make_forward(kind: type | None, plain: Callable[..., Any]) -> Callable[..., Any]:
    """Make a `forward` that counts as one call, and is computed as a whole if PyG's class `kind` is."""
    fused = kind is not None

    @functools.wraps(plain)
    def forward(self: Any, *arguments: Any, **options: Any) -> Any:
        state = self._gnnsparse
        if torch.compiler.is_compiling():
            out = _attended(attend_compiled, self, kind, arguments, options) if fused else NOTHING
            return plain(self, *arguments, **options) if out is NOTHING else out
        is_outer = state.parts is None  # else a layer calls itself
        if is_outer:
            parts: list[tuple[bool, str]] = []
            state.parts = parts
        try:
            with FastBiases() if arguments and has_many_rows(arguments[0]) else nullcontext():
                out = _attended(attend, self, kind, arguments, options) if fused else NOTHING
                return plain(self, *arguments, **options) if out is NOTHING else out
        finally:
            if is_outer:
                state.parts = None
                if parts:
                    state.count(parts)

    return forward


def _attended(
    run: Callable[..., Any], layer: Any, kind: Any, arguments: tuple[Any, ...], options: dict[str, Any]
) -> Any:
    """Call `attend` or `attend_compiled` with the arguments of a `forward`."""

    def split(x: Any, edge_index: Any, *rest: Any, **more: Any) -> tuple[Any, ...]:
        return x, edge_index, rest, more

    suffix = FUSED[kind].stand_in.suffix
    options = {name.removesuffix(suffix): value for name, value in options.items()}
    return run(layer, kind, layer._gnnsparse, *split(*arguments, **options))


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
    remember_layer(self)


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
    kind, computed = is_own(base), computed_as(base)
    methods["forward"] = _make_forward(kind, methods.get("forward", base.forward))
    if not is_whole(kind):
        methods["propagate"] = methods["_jinja_propagate"] = _make_propagate(base, computed)
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
        "_gnnsparse_computed": computed,
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
    if (own_kind := is_own(kind)) is not None:
        why = unsuitable_whole(layer, own_kind)
        if why is None or is_whole(own_kind):
            return why
        return unsuitable(layer, by_edges=FUSED[own_kind].by_edges)
    if (computed := computed_as(kind)) is not None:
        return unsuitable_as(layer, computed)
    if (why := unsuitable(layer, by_edges=True)) is not None:
        return why
    arguments = arguments_of(layer.inspector.get_param_names("message"))
    return None if probe(layer) or probe_edges(layer, arguments) else NO_PRODUCT


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
    remember_layer(layer)
    return None


def _forget_propagate(layer: Any) -> None:
    """Remove the `propagate` of its class that PyG has set in a layer after it was explained."""
    own = getattr(layer.__dict__.get("propagate"), "__func__", None)
    if own is not None and own is type(layer)._jinja_propagate:
        del layer.__dict__["propagate"]


def swap_back(layer: Any) -> None:
    """Make an accelerated layer what it was; other layers stay as they are."""
    if is_accelerated(layer) and isinstance(layer, MessagePassing):
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
    for module in list(model.modules()):
        join(module, settings)
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
    for module in list(model.modules()):
        part(module)
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
            fallbacks = dict(state.fallbacks)
            is_joint = isinstance(module, (HeteroConv, Relations))
            is_product = any(reading.message is not None for reading in state.readings.values())
            usual = expected(module) if is_joint else "spmm" if is_product else "aggregate_edges"
            runs_on = next(iter(state.runs_on), usual).partition(",")[0]
            if fallbacks and not state.runs_on:
                runs_on = "PyG"
            elif is_joint:
                pass
            elif (kind := type(module)._gnnsparse_kind) is not None and unsuitable_whole(
                module, kind
            ) is None:
                runs_on = FUSED[kind].runs_on
            elif not state.runs_on and (kind := type(module)._gnnsparse_computed) is not None:
                runs_on = COMPUTED[kind].runs_on
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
