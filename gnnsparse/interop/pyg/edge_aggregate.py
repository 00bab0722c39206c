"""`propagate` of a layer whose message is elementwise: a function over edges, reduced as PyG does.

torch.compile takes what was read of a layer for a constant, and watches all that it depends on. Operators
find the operand of the edges when they run.
"""

from __future__ import annotations

import copy
import math
import weakref
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch_geometric.nn import aggr

from gnnsparse.interop.models import FallbackError, precision_of
from gnnsparse.interop.pyg.edge_message import EdgeMessage, attribute, multiply, tensor_of
from gnnsparse.interop.pyg.edge_reader import ANY, EdgeReader, edge_form_of
from gnnsparse.interop.pyg.graphs import Settings, memo, raw
from gnnsparse.interop.pyg.message import (
    ABSENT,
    NO_PRODUCT,
    OPAQUE,
    Argument,
    Form,
    NotShown,
    Reading,
    is_constant,
    message_of,
)
from gnnsparse.nn.edge_conv import linear_of_sums
from gnnsparse.nn.edges import EdgeRecipe
from gnnsparse.nn.inputs import is_watched
from gnnsparse.ops.dispatch import register
from gnnsparse.ops.edges.api import POWER_RANGE, plan_of, run_plan, run_plan_by
from gnnsparse.ops.edges.schema import edge_counts, register_functions
from gnnsparse.ops.edges.trace import Form as TensorForm
from gnnsparse.ops.edges.trace import Message
from gnnsparse.precision import PRECISIONS, Precision
from gnnsparse.runtime.functorch import constant_when_traced
from gnnsparse.sparse.operand import SparseOperand

#: Methods of aggregations that PyG calls.
REDUCING = (
    "__call__", "forward", "reduce", "assert_index_present", "assert_sorted_index",
    "assert_two_dimensional_input",
)  # fmt: skip


#: Microseconds that a call takes more than PyG's on a tiny graph on a CPU, forward and backward.
_OVERHEAD = 60.0


@dataclass(frozen=True)
class Reductions:
    """What an aggregation computes of messages: reductions side by side, by name."""

    names: tuple[str, ...]
    temperature: Any = 1.0  # see aggregate_edges: a number, or where it is learned the module that has it
    shape: tuple[int, ...] | None = None  # of a temperature that is learned
    scaler: Any = None  # the DegreeScalerAggregation, whose scaling follows


_SIMPLE = {
    aggr.SumAggregation: Reductions(("sum",)), aggr.MeanAggregation: Reductions(("mean",)),
    aggr.MaxAggregation: Reductions(("max",)), aggr.MinAggregation: Reductions(("min",)),
}  # fmt: skip
_VAR, _STD = Reductions(("var",)), Reductions(("std",))


def _is_plain(module: torch.nn.Module) -> bool:
    """Return whether nothing watches an aggregation and its parts, or replaces their methods."""
    if is_watched(module) or not module.__dict__.keys().isdisjoint(REDUCING):
        return False
    for part in module._modules.values():  # noqa: SIM110  (`all` takes twice as long)
        if part is not None and not _is_plain(part):
            return False
    return True


def reductions_of(aggregation: Any) -> Reductions | None:
    """Return what an aggregation computes; None: it is none that is known, or something watches it."""
    return reductions_in(aggregation) if _is_plain(aggregation) else None


def reductions_in(aggregation: Any) -> Reductions | None:
    """Return what an aggregation computes that nothing watches, see `reductions_of`."""
    kind = type(aggregation)
    if (simple := _SIMPLE.get(kind)) is not None:
        return simple
    if kind is aggr.DegreeScalerAggregation:
        inner = reductions_in(aggregation.aggr)
        return None if inner is None or inner.scaler else replace(inner, scaler=aggregation)
    if kind is aggr.MultiAggregation:
        parts = [reductions_in(part) for part in aggregation.aggrs]
        known = [part for part in parts if part is not None and part.scaler is None]
        if aggregation.mode != "cat" or len(known) < len(parts):
            return None
        # There is one temperature.
        by = [part for part in known if part.names in (("softmax",), ("powermean",))] or known[:1]
        names = tuple(name for part in known for name in part.names)
        return replace(by[0], names=names) if all(part == by[0] for part in by) else None
    if kind in (aggr.VarAggregation, aggr.StdAggregation):
        variance = aggregation if kind is aggr.VarAggregation else aggregation.var_aggr
        return None if variance.semi_grad else _VAR if variance is aggregation else _STD
    if kind is aggr.PowerMeanAggregation:
        if (aggregation.min_value, aggregation.max_value) != POWER_RANGE:
            return None
        own: tuple[str, ...] = ("powermean",)
    elif kind is aggr.SoftmaxAggregation and not aggregation.semi_grad:
        own = ("softmax",)
    else:
        return None
    by = _temperature(aggregation)
    if type(by) is torch.nn.Parameter:
        return Reductions(own, aggregation, tuple(by.shape))
    if type(by) not in (int, float) or (by == 0 and own == ("powermean",)):
        return None
    # PyG's power mean of power 1 clamps nothing.
    return Reductions(own, float(by)) if by != 1 or own == ("softmax",) else Reductions(("mean",))


def _temperature(aggregation: Any) -> Any:
    return aggregation.p if isinstance(aggregation, aggr.PowerMeanAggregation) else aggregation.t


def read_edges(
    layer: Any, arguments: tuple[Argument, ...], form: Form, training: bool | None = None
) -> Reading:
    """Read what a layer's `message` computes for arguments of a form of `edge_form_of`."""
    function = message_of(layer)
    if function is None:
        return Reading(form, None, getattr(type(layer), "message", None), None)
    reader = EdgeReader(layer, function, training)
    try:
        found = reader.read(arguments, form)
    except NotShown:
        found = None
    reads = tuple((where, name, value) for (where, name), value in reader.reads.items())
    return Reading(form, None, function, function.__code__, reads, found)


def probe_edges(layer: Any, arguments: tuple[Argument, ...]) -> bool:
    """Return whether the message of a layer is elementwise for some of the usual forms of its arguments."""
    parts = getattr(layer, "towers", getattr(layer, "heads", 1))
    for middle in ((), (parts if type(parts) is int else 1,)):
        for of_edges in (ABSENT, ("constant", type(None), None), ("rows", "edge"), ("rows", "edge", ANY)):
            forms = {"source": ("rows", "source", *middle, ANY), "edge": of_edges}
            for training in (False, True):
                form = tuple(
                    ("rows", "target", *middle, ANY) if a.is_target else forms.get(a.role, OPAQUE)
                    for a in arguments
                )
                if read_edges(layer, arguments, (("edges",), *form), training).edges is not None:
                    return True
    return False


@dataclass(frozen=True, eq=False)
class EdgeProduct:
    """A call of `propagate` by a function over edges, and what follows from the forms of its arguments."""

    settings: Settings
    reading: Reading
    recipe: EdgeRecipe
    sizes: tuple[int, int]  # of sources and of targets
    reductions: Reductions
    message: EdgeMessage
    stages: _Stages
    dtype: torch.dtype  # of the results
    note: str

    def holds(self, layer: Any) -> bool:
        """Return whether the message and the aggregation are what they were."""
        found = reductions_of(layer._modules["aggr_module"])
        return (found is self.reductions or found == self.reductions) and self.reading.holds(layer)

    def run(self, layer: Any, state: Any, edges: Any, given: dict[str, Any]) -> torch.Tensor:
        """Compute the function, and reduce it."""
        message, reductions = self.message, self.reductions
        width = math.prod(message.sizes)
        overhead = _OVERHEAD if edges.device.type == "cpu" else 0.0
        made = memo.graph(edges).adjacency(
            edges, self.recipe, self.sizes, False, width, self.settings, overhead
        )
        operand = made.adjacency.operand
        known = {**given, "edge_index": raw(edges)}
        temperature = None if reductions.shape is None else _temperature(reductions.temperature)
        state.note(self.note)
        if message.pieces or message.products:
            multiply(message, layer, known)
        run = lambda plan, tensors: run_plan(plan, operand, tensors, self.dtype)  # noqa: E731
        found = _staged(self.stages, message.made_of, layer, known, temperature, run)
        joined = _joined(found, message.sizes, message.is_stacked, len(reductions.names))
        if message.last is not None:
            counts = lambda: edge_counts(operand, joined)  # noqa: E731
            return _behind(message.last, joined, layer, known, reductions.names[0], counts)
        if (scaler := reductions.scaler) is None:
            return joined
        return _scaled(scaler, joined, raw(edges)[1], self.sizes[1], layer.node_dim)


#: Of each stage of a message the names of its tensors, its plan, and what `Staged` says.
_Stages = tuple[tuple[tuple[str, ...], Any, Any, tuple[Any, ...]], ...]


def _stages(message: EdgeMessage, reductions: Reductions) -> _Stages:
    """Return how a message and its reductions are computed."""
    return tuple(
        (names, _plan(of, reductions) if key is None else plan_of(of, "none"), key, sizes)
        for names, of, key, sizes in message.stages
    )


def _staged(
    stages: _Stages, made_of: dict[str, Any], layer: Any, known: dict[Any, Any], temperature: Any,
    run: Callable[[Any, dict[str, torch.Tensor]], Any],
) -> list[torch.Tensor]:  # fmt: skip
    """Return what the last stage gives; `known`: see `tensor_of`."""
    tensors: dict[str, torch.Tensor] = {} if temperature is None else {"temperature": temperature}
    found: Any = None
    for names, plan, key, sizes in stages:
        for name in names:
            if name not in tensors:
                tensors[name] = tensor_of(made_of[name], layer, known)
        found = run(plan, tensors)
        if isinstance(key, str):
            setattr(layer, key, found.reshape(-1, *sizes))
        elif key is not None:
            known[key] = found
    return found


def _behind(
    last: tuple[Any, Any], sums: torch.Tensor, layer: Any, known: dict[Any, Any], reduce: str,
    counts: Callable[[], torch.Tensor],
) -> torch.Tensor:  # fmt: skip
    """Return what the linear layer of `EdgeMessage.last` makes of sums."""
    weight, bias = (None if of is None else tensor_of(of, layer, known) for of in last)
    assert weight is not None
    return linear_of_sums(sums, weight, bias, reduce, counts)


def _suited(message: EdgeMessage, reductions: Reductions) -> EdgeMessage:
    """Return the message that is computed for an aggregation, or raise FallbackError."""
    is_sum = reductions.names in (("sum",), ("mean",)) and reductions.scaler is None
    if message.exponent is not None and not (is_sum and reductions.names == ("sum",)):
        raise FallbackError(f"its aggregation is {' '.join(reductions.names)}, of what a softmax weights")
    return message.summed if is_sum and message.summed is not None else message


def _joined(found: list[torch.Tensor], sizes: tuple[int, ...], is_stacked: bool, count: int) -> torch.Tensor:
    """Return what `count` reductions side by side make of messages of these sizes."""
    if len(sizes) > 1:
        found = [part.reshape(part.shape[0], *sizes) for part in found]
    if is_stacked:
        found = [torch.stack(found[i::count], dim=1) for i in range(count)]
    return found[0] if len(found) == 1 else torch.cat(found, dim=-1)


class _Scaler:
    """Stands for a DegreeScalerAggregation, given what it would have aggregated."""

    def __init__(self, scaler: Any, joined: torch.Tensor) -> None:
        self.scaler, self._joined = scaler.scaler, joined
        self.avg_deg_log, self.avg_deg_lin = scaler.avg_deg_log, scaler.avg_deg_lin

    def assert_index_present(self, index: torch.Tensor) -> None:
        """Accept any."""

    def aggr(self, *_: Any) -> torch.Tensor:
        """Return what was aggregated."""
        return self._joined


def _scaled(scaler: Any, joined: torch.Tensor, index: torch.Tensor, targets: int, dim: int) -> torch.Tensor:
    """Return PyG's own scaling of what was aggregated."""
    return type(scaler).forward(_Scaler(scaler, joined), None, index, None, targets, dim)


def edge_call(
    layer: Any, state: Any, edges: torch.Tensor, sizes: tuple[int, int], given: dict[str, Any]
) -> EdgeProduct:
    """Return how a call of `propagate` is computed by a function over edges, or raise FallbackError."""
    form = edge_form_of(layer, state.arguments, given, edges.shape[1])
    reading = state.readings.get((form, layer.training))
    if reading is None or not reading.holds(layer):
        reading = read_edges(layer, state.arguments, form)
        state.remember({(form, layer.training): reading})
    dtypes = dtypes_of(state.arguments, edges, given)
    if reading.edges is None:
        raise FallbackError(NO_PRODUCT)
    reductions = reductions_of(layer.aggr_module)
    if reductions is None:
        raise FallbackError(f"its aggregation is {layer.aggr_module}")
    message = _suited(reading.edges, reductions)
    if layer.node_dim not in (0, -message.dim):
        raise FallbackError("messages are not reduced along their first dimension")
    precision, dtype = precision_of_call(state.settings, dtypes, edges)
    return EdgeProduct(
        state.settings, reading, EdgeRecipe(False, precision), sizes, reductions, message,
        _stages(message, reductions), dtype,
        f"aggregate_edges, {' '.join(reductions.names)}, {precision.value}",
    )  # fmt: skip


def dtypes_of(
    arguments: tuple[Argument, ...], edges: torch.Tensor, given: dict[str, Any]
) -> list[torch.dtype]:
    """Return the floating-point dtypes of tensors, or raise FallbackError."""
    dtypes: list[torch.dtype] = []
    for value in [given[a.source] for a in arguments if a.source in given]:
        for tensor in value if isinstance(value, (tuple, list)) else [value]:
            if not isinstance(tensor, torch.Tensor):
                continue
            if tensor.is_floating_point():
                if tensor.dtype not in PRECISIONS:
                    raise FallbackError(f"features of dtype {tensor.dtype}")
                if tensor.dtype not in dtypes:
                    dtypes.append(tensor.dtype)
            if tensor.device != edges.device:
                raise FallbackError("features and edges are on two devices")
    return dtypes


def precision_of_call(
    settings: Settings, dtypes: list[torch.dtype], edges: torch.Tensor
) -> tuple[Precision, torch.dtype]:
    """Return the precision of a function of features of these dtypes, and the dtype of its results."""
    if len(dtypes) > 1 and not torch.is_autocast_enabled(edges.device.type):
        raise FallbackError("features of dtypes that differ")
    dtype = torch.float32 if torch.float32 in dtypes else dtypes[0]
    precision, cast = precision_of(settings.precision, torch.empty(0, dtype=dtype, device=edges.device))
    return precision, cast or dtype


def _plan(message: Message, reductions: Reductions) -> Any:
    by = reductions.temperature
    if reductions.shape is not None:
        by = TensorForm.of("temperature", _temperature(by))
    repeated = copy.copy(message)
    repeated.results = [result for result in message.results for _ in reductions.names]
    names = reductions.names if message.exponent is None else ("softmax",)
    return plan_of(repeated, names * len(message.results), by)


# What torch.compile traces.


def _watch_module(module: torch.nn.Module, path: tuple[str, ...], watch: dict[str, list[Any]]) -> None:
    """Add a module to what is watched: its class, the constants in it, and its parts."""
    watch["kinds"].append((path, type(module), len(module._modules)))
    for name in ("forward", "reduce"):
        if (function := getattr(type(module), name, None)) is not None:
            watch["codes"].append((path, name, function.__code__))
    own = {k: v for k, v in vars(module).items() if not k.startswith("_") and k != "training"}
    watch["values"] += [(path, k, v) for k, v in own.items() if is_constant(v)]
    watch["values"] += [(path, k, None) for k, v in module._parameters.items() if v is None]
    for name, part in module._modules.items():
        if part is not None:
            _watch_module(part, (*path, name), watch)


def _basis(layer: Any, reading: Reading) -> Any:
    """Return what a reading and the aggregation depend on, for `_is_unchanged`; None: it can't be watched."""
    watch: dict[str, list[Any]] = {
        "kinds": [],
        "codes": [((), "message", reading.code)],
        "values": [],
        "has": [],
    }
    for where, name, value in reading.reads:
        *inner, kind = where if type(where) is tuple else (where,)
        if kind == "method":
            watch["codes"].append(((), name, value))
        elif kind == "has":
            watch["has"].append((name, value))
        elif kind == "layer" and is_constant(value):
            watch["values"].append(((), name, value))
        elif kind == "layer":
            # A parameter is an input of what is compiled, and watched as all of them.
            if isinstance(part := getattr(layer, name), torch.nn.Module):
                _watch_module(part, (name,), watch)
        elif is_constant(value):
            path = tuple(inner) or ("message",)
            function = attribute(layer, path)
            defaults = function.__defaults__ or ()
            if kind != "default" or function.__kwdefaults__ or not all(map(is_constant, defaults)):
                return None  # of a module, say
            watch["values"].append((path, "__defaults__", defaults))
    _watch_module(layer.aggr_module, ("aggr_module",), watch)
    # Types by their names: torch.compile can't compare those of Python in a constant.
    values = tuple((path, name, type(value).__name__, value) for path, name, value in watch["values"])
    return tuple(watch["kinds"]), tuple(watch["codes"]), values, tuple(watch["has"])


#: Accelerated layers by their id, which torch.compile takes for a constant; before torch 2.12 not a layer.
_layers: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()


def remember_layer(layer: Any) -> None:
    """Remember a layer that torch.compile may trace."""
    _layers[id(layer)] = layer


@constant_when_traced
def note_compiled(number: int, why: str) -> None:
    """Count that a layer is left to PyG by what torch.compile traces now, once for each time it does."""
    _layers[number]._gnnsparse.count([(False, why)])


@constant_when_traced
def _read_compiled(number: int, form: Form) -> Any:
    """Read what a call computes, in types that torch.compile takes for constants; None: nothing known."""
    layer = _layers[number]
    reading = read_edges(layer, layer._gnnsparse.arguments, form)
    message, reductions = reading.edges, reductions_of(layer.aggr_module)
    basis = None if message is None or reductions is None else _basis(layer, reading)
    if message is None or reductions is None or basis is None:
        return None
    message = _suited(message, reductions)
    paths = {module: tuple(name.split(".")) for name, module in layer.named_modules()}
    return (
        basis, _stages(message, reductions), tuple(message.made_of.items()),
        message.dim, message.sizes, message.is_stacked, reductions.names, message.last,
        None if reductions.shape is None else paths[reductions.temperature], reductions.scaler is not None,
    )  # fmt: skip


#: Types of constants by their names: torch.compile before torch 2.12 can't ask for a type.
_KINDS = {of.__name__: of for of in (bool, int, float, str, tuple)}


def _is_equal(value: Any, kind: str, wanted: Any) -> bool:
    """Compare constants with their types: True is 1, which is 1.0, and torch.compile has symbols for both."""
    if wanted is None or value is None:
        return value is wanted
    of_kind = isinstance(value, _KINDS[kind]) and isinstance(value, bool) == (kind == "bool")
    return of_kind and value == wanted


def _is_unchanged(layer: Any, basis: Any) -> bool:
    """Return whether all is as it was read. It was read now: torch.compile guards what is compared."""
    kinds, codes, values, has = basis
    for path, kind, count in kinds:
        module = attribute(layer, path)
        if type(module) is not kind or len(module._modules) != count or is_watched(module):
            return False
    for path, name, code in codes:
        if getattr(getattr(attribute(layer, path), name), "__code__", None) is not code:
            return False
    for path, name, kind, value in values:
        now = getattr(attribute(layer, path), name)
        if not _is_equal(now, kind, value):
            return False
    return all(hasattr(layer, name) == value for name, value in has)


def edges_compiled(
    layer: Any, state: Any, edges: torch.Tensor, sizes: tuple[int, int], given: dict[str, Any]
) -> torch.Tensor:
    """Compute `propagate` while torch.compile traces, or raise FallbackError."""
    found = _read_compiled(id(layer), edge_form_of(layer, state.arguments, given, edges.shape[1]))
    if found is None:
        raise FallbackError(NO_PRODUCT)
    basis, stages, made_of, dim, shape, is_stacked, names, last, temperature, is_scaled = found
    if not _is_unchanged(layer, basis) or layer.node_dim not in (0, -dim):
        raise FallbackError(NO_PRODUCT)
    precision, dtype = precision_of_call(state.settings, dtypes_of(state.arguments, edges, given), edges)
    known = {**given, "edge_index": edges}
    where = edges, *sizes, precision.value

    def run(text: str, of: Any, result: torch.dtype) -> Any:
        return torch.ops.gnnsparse.pyg_edges(list(of), *where, text, result)

    def counts(inverse: bool) -> torch.Tensor:
        return torch.ops.gnnsparse.pyg_edge_counts(*where, inverse)

    def run_stage(plan: Any, tensors: dict[str, torch.Tensor]) -> Any:
        return run_plan_by(plan, tensors, dtype, precision.storage, run, lambda like: counts(True))

    by = None if temperature is None else _temperature(attribute(layer, temperature))
    results = _staged(stages, dict(made_of), layer, known, by, run_stage)
    joined = _joined(results, shape, is_stacked, len(names))
    if last is not None:
        return _behind(last, joined, layer, known, names[0], lambda: counts(False))
    return _scaled(layer.aggr_module, joined, edges[1], sizes[1], layer.node_dim) if is_scaled else joined


def _operand(edges: torch.Tensor, sources: int, targets: int, precision: str) -> SparseOperand:
    recipe = EdgeRecipe(False, Precision.parse(precision))
    return memo.adjacency(edges, recipe, (sources, targets), False).operand


_PLACE = "Tensor edge_index, SymInt sources, SymInt targets, str precision"
register_functions(
    "pyg_edges", _PLACE, _operand, lambda edges, sources, targets, _: (targets, edges.shape[1])
)
register(
    f"pyg_edge_counts({_PLACE}, bool inverse) -> Tensor",
    # A copy: compiled code may write into what an operator returns.
    lambda *where: edge_counts(_operand(*where[:-1]), where[0], inverse=where[-1]).clone(),
    lambda edges, sources, targets, _, __: edges.new_empty((targets, 1), dtype=torch.float32),
)
