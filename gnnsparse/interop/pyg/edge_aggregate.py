"""`propagate` of a layer whose message is elementwise: a function over edges, reduced as PyG does."""

from __future__ import annotations

import math
import types
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch_geometric.nn import aggr

from gnnsparse.interop.models import FallbackError, precision_of
from gnnsparse.interop.pyg.edge_message import ANY, EdgeMessage, EdgeReader, edge_form_of, tensor_of
from gnnsparse.interop.pyg.graphs import Settings, memo, raw
from gnnsparse.interop.pyg.message import (
    ABSENT,
    NO_PRODUCT,
    OPAQUE,
    Argument,
    Form,
    NotShown,
    Reading,
    message_of,
)
from gnnsparse.nn.edges import EdgeRecipe
from gnnsparse.nn.inputs import is_watched
from gnnsparse.ops.edges.api import plan_of, run_plan
from gnnsparse.ops.edges.trace import Form as TensorForm
from gnnsparse.precision import PRECISIONS

#: Methods of aggregations that PyG calls.
REDUCING = (
    "__call__", "forward", "reduce", "assert_index_present", "assert_sorted_index",
    "assert_two_dimensional_input",
)  # fmt: skip
_SIMPLE = {
    aggr.SumAggregation: "sum", aggr.MeanAggregation: "mean", aggr.MaxAggregation: "max",
    aggr.MinAggregation: "min", aggr.VarAggregation: "var", aggr.StdAggregation: "std",
    aggr.SoftmaxAggregation: "softmax",
}  # fmt: skip


@dataclass(frozen=True)
class Reductions:
    """What an aggregation computes of messages: reductions side by side, by name."""

    names: tuple[str, ...]
    temperature: Any = 1.0  # of softmax: a number, or where it is learned the module that has it
    shape: tuple[int, ...] | None = None  # of a temperature that is learned
    scaler: Any = None  # the DegreeScalerAggregation, whose scaling follows


def _is_plain(module: torch.nn.Module) -> bool:
    """Return whether nothing watches an aggregation and its parts, or replaces their methods."""
    is_own = not is_watched(module) and module.__dict__.keys().isdisjoint(REDUCING)
    return is_own and all(_is_plain(part) for part in module._modules.values() if part is not None)


def reductions_of(aggregation: Any) -> Reductions | None:
    """Return what an aggregation computes; None: it is none that is known, or something watches it."""
    return _reductions(aggregation) if _is_plain(aggregation) else None


def _reductions(aggregation: Any) -> Reductions | None:
    kind = type(aggregation)
    if kind is aggr.DegreeScalerAggregation:
        inner = _reductions(aggregation.aggr)
        return None if inner is None or inner.scaler else replace(inner, scaler=aggregation)
    if kind is aggr.MultiAggregation:
        parts = [_reductions(part) for part in aggregation.aggrs]
        known = [part for part in parts if part is not None and part.scaler is None]
        if aggregation.mode != "cat" or len(known) < len(parts):
            return None
        # There is one temperature.
        by = [part for part in known if part.names == ("softmax",)] or known[:1]
        names = tuple(name for part in known for name in part.names)
        return replace(by[0], names=names) if all(part == by[0] for part in by) else None
    if kind not in _SIMPLE or getattr(getattr(aggregation, "var_aggr", aggregation), "semi_grad", False):
        return None
    if kind is not aggr.SoftmaxAggregation:
        return Reductions((_SIMPLE[kind],))
    if type(aggregation.t) is torch.nn.Parameter:
        return Reductions(("softmax",), aggregation, tuple(aggregation.t.shape))
    return Reductions(("softmax",), float(aggregation.t)) if type(aggregation.t) in (int, float) else None


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
    plan: Any
    stored: dict[str, Any]  # of attributes that the message sets: the sizes for an edge, and the plan
    dtype: torch.dtype  # of the results
    note: str

    def holds(self, layer: Any) -> bool:
        """Return whether the message and the aggregation are what they were."""
        return self.reading.holds(layer) and reductions_of(layer.aggr_module) == self.reductions

    def run(self, layer: Any, state: Any, edges: Any, given: dict[str, Any]) -> torch.Tensor:
        """Compute the function, and reduce it."""
        message: EdgeMessage = self.reading.edges
        width = math.prod(message.sizes)
        made = memo.graph(edges).adjacency(edges, self.recipe, self.sizes, False, width, self.settings)
        operand = made.adjacency.operand
        tensors = {name: tensor_of(of, layer, given) for name, of in message.made_of.items()}
        reductions = self.reductions
        if reductions.shape is not None:
            tensors["temperature"] = reductions.temperature.t
        state.note(self.note)
        found = run_plan(self.plan, operand, tensors, self.dtype)
        for name, (size, plan) in self.stored.items():
            value = run_plan(plan, operand, tensors, self.dtype)
            setattr(layer, name, value.reshape(-1, *size))
        found = [part.reshape(part.shape[0], *message.sizes) for part in found]
        if message.is_stacked:
            count = len(reductions.names)
            found = [torch.stack(found[i::count], dim=1) for i in range(count)]
        joined = found[0] if len(found) == 1 else torch.cat(found, dim=-1)
        if (scaler := reductions.scaler) is None:
            return joined
        # PyG's own scaling, given what it would have aggregated.
        stand_in = types.SimpleNamespace(
            aggr=lambda *_: joined, assert_index_present=lambda *_: None, scaler=scaler.scaler,
            avg_deg_log=scaler.avg_deg_log, avg_deg_lin=scaler.avg_deg_lin,
        )  # fmt: skip
        return type(scaler).forward(stand_in, None, raw(edges)[1], None, self.sizes[1], layer.node_dim)


def edge_call(
    layer: Any, state: Any, edges: torch.Tensor, sizes: tuple[int, int], given: dict[str, Any]
) -> EdgeProduct:
    """Return how a call of `propagate` is computed by a function over edges, or raise FallbackError."""
    form = edge_form_of(layer, state.arguments, given, edges.shape[1])
    reading = state.readings.get((form, layer.training))
    if reading is None or not reading.holds(layer):
        reading = read_edges(layer, state.arguments, form)
        state.remember({(form, layer.training): reading})
    tensors = [
        part for a in state.arguments if a.source in given for value in [given[a.source]]
        for part in (value if isinstance(value, (tuple, list)) else [value])
        if isinstance(part, torch.Tensor)
    ]  # fmt: skip
    for tensor in tensors:
        if tensor.is_floating_point() and tensor.dtype not in PRECISIONS:
            raise FallbackError(f"features of dtype {tensor.dtype}")
        if tensor.device != edges.device:
            raise FallbackError("features and edges are on two devices")
    if (message := reading.edges) is None:
        raise FallbackError(NO_PRODUCT)
    reductions = reductions_of(layer.aggr_module)
    if reductions is None:
        raise FallbackError(f"its aggregation is {layer.aggr_module}")
    if layer.node_dim not in (0, -message.dim):
        raise FallbackError("messages are not reduced along their first dimension")
    dtypes = {t.dtype for t in tensors if t.is_floating_point()}
    if len(dtypes) > 1 and not torch.is_autocast_enabled(edges.device.type):
        raise FallbackError("features of dtypes that differ")
    dtype = max(dtypes, key=lambda dtype: dtype.itemsize)
    precision, cast = precision_of(state.settings.precision, torch.empty(0, dtype=dtype, device=edges.device))
    return EdgeProduct(
        state.settings, reading, EdgeRecipe(False, precision), sizes, reductions,
        _plan(message, reductions),
        {name: (size, plan_of(message.part(v), "none")) for name, (size, v) in message.stored.items()},
        cast or dtype,
        f"aggregate_edges, {' '.join(reductions.names)}, {precision.value}",
    )  # fmt: skip


def _plan(message: EdgeMessage, reductions: Reductions) -> Any:
    by = reductions.temperature
    if reductions.shape is not None:
        by = TensorForm.of("temperature", by.t)
    return plan_of(message.repeated(len(reductions.names)), reductions.names * len(message.results), by)
