"""`propagate` of an accelerated layer: messages that are recognised are one sparse product.

What is compiled has no tensor at hand to make an operand of, so that an operator of torch.library gets the
edges themselves, and finds the operand when it runs.
"""

from __future__ import annotations

import itertools
import operator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.nn.modules.module import _has_any_global_hook
from torch_geometric import EdgeIndex
from torch_geometric.nn import MessagePassing, aggr

from gnnsparse.interop.models import FallbackError, precision_of
from gnnsparse.interop.pyg.edge_aggregate import (
    REDUCING,
    EdgeProduct,
    edge_call,
    edges_compiled,
    note_compiled,
    reductions_of,
)
from gnnsparse.interop.pyg.functions import as_edges, is_sparse
from gnnsparse.interop.pyg.graphs import Settings, check_eager, memo, raw
from gnnsparse.interop.pyg.message import (
    Argument,
    Form,
    Message,
    Reading,
    arguments_of,
    form_of,
    read_message,
)
from gnnsparse.nn.adjacency import GcnRecipe, with_copies
from gnnsparse.nn.aggregation import Aggregation, Neighbours
from gnnsparse.nn.inputs import is_watched
from gnnsparse.ops import sddmm, spmm
from gnnsparse.ops.dispatch import register
from gnnsparse.precision import PRECISIONS, Precision
from gnnsparse.runtime.functorch import alive

#: Aggregations that a product computes.
REDUCTIONS = {
    aggr.SumAggregation: "sum",
    aggr.MeanAggregation: "mean",
    aggr.MaxAggregation: "max",
    aggr.MinAggregation: "min",
}
#: The most forms of arguments of which a layer remembers what its message computes.
_MOST_READINGS = 64
#: Methods of MessagePassing that PyG calls between `propagate` and the sum, besides those that are read.
_STEPS = tuple(
    name for name in (
        "_check_input", "_set_size", "_lift", "_collect", "_index_select", "_index_select_safe", "aggregate",
        "update",
    )
    if hasattr(MessagePassing, name)
)  # fmt: skip
#: Returns these methods of a class.
steps_of = operator.attrgetter(*_STEPS)
_PLAIN_STEPS = steps_of(MessagePassing)
#: What a function returns that leaves a call to PyG.
NOTHING = object()
_HOOKS = tuple(
    f"_{part}_forward{kind}_hooks"
    for part in ("propagate", "message", "aggregate", "message_and_aggregate", "edge_update")
    for kind in ("_pre", "")
)
_hooks_of = operator.itemgetter(*_HOOKS)


@dataclass
class LayerState:
    """What an accelerated layer remembers. It is copied and pickled with the layer."""

    settings: Settings
    arguments: tuple[Argument, ...]  # of its message
    runs_on: dict[str, int] = field(default_factory=dict)  # what its calls ran on, and how often
    fallbacks: dict[str, int] = field(default_factory=dict)  # why calls were left to PyG, and how often
    #: What the message was read to be, by the form of its arguments and the layer's mode.
    readings: dict[tuple[Form, bool], Reading] = field(default_factory=dict)
    known: tuple[Reading, ...] = ()  # the readings that torch.compile can use, see Reading.attributes
    #: How calls run, by the forms of their arguments.
    calls: dict[Any, Product | EdgeProduct] = field(default_factory=dict)
    #: What the parts of the call of `forward` that runs now ran on (True), or why they were left to PyG.
    parts: list[tuple[bool, str]] | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what was read: the code may be another where the layer is loaded."""
        return {**self.__dict__, "readings": {}, "known": (), "calls": {}, "parts": None}

    @property
    def is_weighted_only(self) -> bool:
        """Whether the message can have a weight, by which gcn_norm's edges of weight 0 do not count."""
        return any(r.message is not None and r.message.weight is not None for r in self.known)

    def reading(self, layer: Any, given: dict[str, Any], edges: int) -> Reading:
        """Return what the message of a call of `propagate` is read to be."""
        form = form_of(layer, self.arguments, given, edges)
        reading = self.readings.get((form, layer.training))
        if reading is None or not reading.holds(layer):
            reading = read_message(layer, self.arguments, form)
            self.remember({(form, layer.training): reading})
        return reading

    def remember(self, found: dict[tuple[Form, bool], Reading]) -> None:
        """Remember what a message was read to be."""
        self.readings.update(found)
        while len(self.readings) > _MOST_READINGS:
            self.readings.pop(next(iter(self.readings)))
        # A copy: another thread may call the layer with arguments of another form meanwhile.
        known = list(self.readings.values())
        self.known = tuple(r for r in known if r.message is not None and r.attributes is not None)

    def note(self, what: str) -> None:
        """Remember that a part of a call, or a call of `propagate` alone, ran on `what`."""
        self._add(True, what)

    def fall_back(self, reason: FallbackError) -> Any:
        """Remember that a part of a call, or a call of `propagate` alone, is left to PyG; return NOTHING."""
        self._add(False, str(reason))
        return NOTHING

    def _add(self, ran: bool, what: str) -> None:
        if self.parts is None:
            self.count([(ran, what)])
        else:
            self.parts.append((ran, what))

    def count(self, parts: list[tuple[bool, str]]) -> None:
        """Count what happened in a call of the layer as one, whatever its parts."""
        if len(parts) == 1:
            ((has_run, what),) = parts
        else:
            ran, left = (
                list(dict.fromkeys(what for is_ran, what in parts if is_ran is kind))
                for kind in (True, False)
            )
            has_run = bool(ran)
            what = " and ".join(ran) + (f"; in part on PyG: {left[0]}" if left else "") if ran else left[0]
        counts = self.runs_on if has_run else self.fallbacks
        if what not in counts and len(counts) >= 16:
            what = "other reasons"
        counts[what] = counts.get(what, 0) + 1


def watched(layer: Any, edges: Any) -> str | None:
    """Return why a call with these edges is PyG's own whatever the message is; None: it need not be."""
    own = layer.__dict__
    if any(_hooks_of(own)):
        name = next(name for name in _HOOKS if own[name])
        return f"hooks are registered ({name.strip('_')})"
    if _has_any_global_hook():
        return "hooks are registered for all modules"
    if isinstance(edges, EdgeIndex) and layer.fuse and layer.SUPPORTS_FUSED_EDGE_INDEX:
        fused = layer.message_and_aggregate
        if not getattr(fused, "__module__", "").startswith("torch_geometric."):
            return "PyG sums an EdgeIndex by its `message_and_aggregate`"
    if own["_explain"]:
        return "it is being explained"
    if own["_decomposed_layers"] != 1:
        return "its features are decomposed (decomposed_layers)"
    return None


def reduction_of(aggregation: Any) -> str | None:
    """Return the name in `REDUCTIONS` of an aggregation; None: it has none, or something was overridden."""
    kind, own = type(aggregation), aggregation.__dict__
    if torch.compiler.is_compiling():
        replaced = any(step in own for step in REDUCING)
    else:
        replaced = not own.keys().isdisjoint(REDUCING)
    if replaced:
        return None
    if (name := REDUCTIONS.get(kind)) is not None:
        return name
    for known, name in REDUCTIONS.items():  # torch.export puts objects of subclasses in the place of modules
        if issubclass(kind, known):
            return name if all(getattr(kind, step) is getattr(known, step) for step in REDUCING) else None
    return None


def _has_steps(layer: Any, steps: tuple[Any, ...] = _PLAIN_STEPS) -> bool:
    """Return whether the methods of a layer between `propagate` and the sum are `steps`."""
    return bool(steps_of(type(layer)) == steps and layer.__dict__.keys().isdisjoint(_STEPS))


def unsuitable(layer: Any, steps: tuple[Any, ...] = _PLAIN_STEPS, by_edges: bool = False) -> str | None:
    """Return why no call of a layer can be a product, whatever its message; None: calls can be.

    Its methods between `propagate` and the sum have to be `steps`. `by_edges`: or a function over edges, for
    which there are further aggregations.
    """
    kind, own, aggregation = type(layer), layer.__dict__, layer._modules["aggr_module"]
    if layer.flow != "source_to_target":
        return f"flow={layer.flow!r}"
    # Compared one after another where torch.compile watches, or something differs.
    if torch.compiler.is_compiling() or not _has_steps(layer, steps):
        for name, function in zip(_STEPS, steps, strict=True):
            if getattr(kind, name) is not function or name in own:
                return f"it overrides `{name}`"
    # What torch.compile traces asks for reductions later.
    other = by_edges and (torch.compiler.is_compiling() or reductions_of(aggregation))
    if reduction_of(aggregation) is None and not other:
        return f"its aggregation is {aggregation}"
    if is_watched(aggregation):
        return "its aggregation has hooks"
    return None


def sizes_of(layer: Any, state: LayerState, edges: Any, size: Any, given: dict[str, Any]) -> tuple[int, int]:
    """Return the numbers of sources and of targets, by PyG's rules."""
    refused = FallbackError("features of sizes that PyG refuses")
    found: list[int | None] = [None, None] if size is None else list(size)
    if isinstance(edges, EdgeIndex):
        found = list(edges.sparse_size())
    for argument in state.arguments:
        if not argument.name.endswith(("_i", "_j")) or argument.name == argument.source:
            continue
        value = given.get(argument.source)
        pair = value if isinstance(value, (tuple, list)) else None
        if pair is not None and len(pair) != 2:
            raise refused
        side = 0 if argument.role == "source" else 1
        for which, x in enumerate(pair) if pair is not None else ((side, value),):
            if not isinstance(x, torch.Tensor):
                continue
            if x.dim() < abs(layer.node_dim) or found[which] not in (None, x.shape[layer.node_dim]):
                raise refused
            found[which] = x.shape[layer.node_dim]
    sources, targets = found
    if sources is None:
        raise FallbackError("sizes that are not known")
    return sources, sources if targets is None else targets


def check_edges(edges: Any) -> torch.Tensor:
    """Return the tensor [2, edges] of a call, or raise FallbackError if its edges have another form."""
    plain = raw(edges)
    usual = isinstance(plain, torch.Tensor) and plain.layout == torch.strided
    if not usual or plain.dtype not in (torch.int64, torch.int32) or plain.dim() != 2:
        layout = getattr(edges, "layout", torch.strided)
        form = type(edges).__name__ if layout == torch.strided else f"tensor of layout {layout}"
        raise FallbackError(f"the adjacency is a {form}")
    # What torch.compile traces may not know how many there are.
    if plain.shape[0] != 2 or (not torch.compiler.is_compiling() and plain.shape[1] == 0):
        raise FallbackError("there are no edges")
    return plain


def propagate(layer: Any, state: LayerState, edges: Any, size: Any, given: dict[str, Any]) -> Any:
    """Compute PyG's `propagate` of a layer by a sparse product, or return NOTHING to leave it to PyG."""
    try:
        if is_sparse(edges):
            edges, size, given = as_edges(edges, given)
        if state.settings.convert == "auto":
            memo.check(edges)
        if (why := watched(layer, edges)) is not None:
            raise FallbackError(why)
        check_eager()
        key = _signature(layer, edges, size, given)
        call = None if key is None else state.calls.get(key)
        is_known = call is not None and call.settings is state.settings and _has_steps(layer)
        if call is None or not (is_known and layer.flow == "source_to_target" and call.holds(layer)):
            if (why := unsuitable(layer, by_edges=True)) is not None:
                raise FallbackError(why)
            call = _call(layer, state, edges, size, given)
            if key is not None:
                while len(state.calls) >= _MOST_READINGS:
                    state.calls.pop(next(iter(state.calls)), None)
                state.calls[key] = call
        return call.run(layer, state, edges, given)
    except FallbackError as reason:
        return state.fall_back(reason)


_PLAIN = (torch.Tensor, torch.nn.Parameter)


def _signature(layer: Any, edges: Any, size: Any, given: dict[str, Any]) -> Any:
    """Return all that `_call` depends on besides what is compared in each call; None: it is not told here."""
    if type(edges) is not torch.Tensor or not (size is None or type(size) is tuple):
        return None
    device = edges.device
    found = [
        layer.training, layer.node_dim, type(layer._modules["aggr_module"]), size, edges.shape, edges.dtype,
        edges.layout, device,
    ]  # fmt: skip
    if torch._C._is_any_autocast_enabled() and torch.is_autocast_enabled(device.type):
        found.append(torch.get_autocast_dtype(device.type))
    for name, value in given.items():
        found.append(name)
        for part in value if type(value) is tuple else (value,):
            kind = type(part)
            if kind in _PLAIN:
                found += (part.dtype, part.shape, part.device, part.layout)
            elif part is None or kind in (bool, int, float, str):
                found += (kind, part)
            else:
                return None
        found.append(type(value) is tuple)
    return tuple(found)


@dataclass(frozen=True, eq=False)
class Product:
    """A call of `propagate` that is a sparse product, and what follows from the forms of its arguments."""

    settings: Settings
    reading: Reading
    recipe: Aggregation
    sizes: tuple[int, int]  # of sources and of targets
    is_batch: bool  # features of several runs on one graph, [runs, nodes, width]
    dtype: torch.dtype  # of the features in the product
    weight_shape: tuple[int, ...] | None
    #: How weights are used that gcn_norm made of the edges alone; None: they are used as others.
    gcn: GcnRecipe | None
    note: str

    def holds(self, layer: Any) -> bool:
        """Return whether the message is what it was; of the aggregation, the class is in the signature."""
        aggregation = layer._modules["aggr_module"]
        is_own = aggregation.__dict__.keys().isdisjoint(REDUCING) and not is_watched(aggregation)
        return is_own and self.reading.holds(layer)

    def run(self, layer: Any, state: LayerState, edges: Any, given: dict[str, Any]) -> torch.Tensor:
        """Compute the product."""
        found: Any = self.reading.message
        x, recipe, weight = given[found.features], self.recipe, None  # type: Any, Any, Any
        x = x[0] if isinstance(x, (tuple, list)) else x
        if self.is_batch:
            x = x.transpose(0, 1)
        if x.dtype != self.dtype:
            x = x.to(self.dtype)
        graph = memo.graph(edges)
        if found.weight is not None:
            weight = given[found.weight]
            if self.gcn is not None and graph.is_gcn(weight, self.sizes[0]):
                recipe, weight = self.gcn, None
            elif weight.shape != self.weight_shape:
                weight = weight.reshape(self.weight_shape)
        width = x.shape[1] if x.dim() == 2 else x.shape[1] * x.shape[2]
        cached = graph.adjacency(edges, recipe, self.sizes, weight is not None, width, self.settings)
        made, values = cached.adjacency, cached.values(weight)
        state.note(self.note)
        reduce = self.recipe.reduce
        how = reduce if reduce in ("max", "min") else "sum"  # a mean's operand or values have been divided
        x = with_copies(x, made.copies)
        if x.dim() == 3 and (values is None or values.dim() == 1):  # columns, as spmm would find after checks
            out = spmm(made.operand, x.flatten(1), values, reduce=how).view(-1, *x.shape[1:])
        else:
            out = spmm(made.operand, x, values, reduce=how)
        return out.transpose(0, 1).contiguous() if self.is_batch else out


def _call(
    layer: Any, state: LayerState, edges: Any, size: Any, given: dict[str, Any]
) -> Product | EdgeProduct:
    plain = check_edges(edges)
    reading = state.reading(layer, given, plain.shape[1])
    if (found := reading.message) is None or reduction_of(layer.aggr_module) is None:
        return edge_call(layer, state, plain, sizes_of(layer, state, edges, size, given), given)
    x = given[found.features]
    x = x[0] if isinstance(x, (tuple, list)) else x
    if not isinstance(x, torch.Tensor) or x.layout != torch.strided or x.dtype not in PRECISIONS:
        raise FallbackError(f"features of dtype {getattr(x, 'dtype', None)}")
    if x.dim() not in (2, 3) or layer.node_dim not in (0, -x.dim(), -2):
        raise FallbackError(f"features of shape {tuple(x.shape)}")
    is_batch = x.dim() == 3 and layer.node_dim == -2
    if x.device != plain.device:
        raise FallbackError("features and edges are on two devices")
    sizes, shape, dtype = sizes_of(layer, state, edges, size, given), None, x.dtype
    if x.shape[int(is_batch)] != sizes[0]:
        raise FallbackError("features of sizes that PyG refuses")
    reduce = str(reduction_of(layer.aggr_module))
    precision, cast = precision_of(state.settings.precision, x)
    if found.weight is not None:
        weight = given[found.weight]
        if weight.dtype not in PRECISIONS:
            raise FallbackError(f"weights of dtype {weight.dtype}")
        heads = weight.numel() // plain.shape[1]
        shape = (plain.shape[1], heads) if found.by_head else (plain.shape[1],)
        if not torch.is_autocast_enabled(x.device.type):
            dtype = torch.promote_types(dtype, weight.dtype)
    is_usual = found.weight is not None and reduce == "sum" and not found.by_head and sizes[0] == sizes[1]
    return Product(
        state.settings, reading, Aggregation(reduce, precision, apart=True), sizes, is_batch, cast or dtype,
        shape, GcnRecipe(True, 1.0, precision) if is_usual else None, f"spmm, {reduce}, {precision.value}",
    )  # fmt: skip


def _cast(x: torch.Tensor, cast: torch.dtype | None, weight: torch.Tensor | None) -> torch.Tensor:
    """Return features in the dtype of a product: `cast`, or what their product with weights has in PyG."""
    if cast is not None:
        return x.to(cast)
    if weight is None or weight.dtype == x.dtype or torch.is_autocast_enabled(x.device.type):
        return x
    return x.to(torch.promote_types(x.dtype, weight.dtype))


def probe(layer: Any) -> dict[tuple[Form, bool], Reading]:
    """Read the message of a layer for the usual forms of its arguments; return those that are products."""
    if unsuitable(layer) is not None:
        return {}
    arguments, found = arguments_of(layer.inspector.get_param_names("message")), {}
    heads = getattr(layer, "heads", 1)
    heads = heads if type(heads) is int and heads > 0 else 1
    x_shapes, w_shapes = ((11, 5), (11, heads, 5)), (None, (7,), (7, 1), (7, heads))  # of 7 edges
    for x_shape, w_shape, training in itertools.product(x_shapes, w_shapes, (True, False)):
        x, w = (s and torch.empty(s, device="meta", dtype=torch.float32) for s in (x_shape, w_shape))
        given = {a.source: w if a.role == "edge" else x for a in arguments}
        form = form_of(layer, arguments, given, 7)
        reading = read_message(layer, arguments, form, training)
        if reading.message is not None:
            found[form, training] = reading
    return found


def left_compiled(layer: Any, what: str) -> Any:
    """Remember that PyG computes what torch.compile traces now, of which a report tells; return NOTHING."""
    note_compiled(id(layer), f"torch.compile traces {what}")
    return NOTHING


def has_code(of: Any, name: str, code: Any) -> bool:
    """Return whether a method is that of this code, so that torch.compile sees when it is replaced."""
    return getattr(getattr(of, name), "__code__", None) is code


def is_plain_compiled(layer: Any, of: Any = MessagePassing, steps: tuple[Any, ...] = _PLAIN_STEPS) -> bool:
    """Return whether all between `propagate` and the sum is that of a class, while torch.compile traces."""
    if not _is_plain_around(layer, of, steps) or reduction_of(layer.aggr_module) is None:
        return False
    kind = next(kind for kind in REDUCTIONS if isinstance(layer.aggr_module, kind))
    return has_code(layer.aggr_module, "forward", kind.forward.__code__) and has_code(
        layer.aggr_module, "reduce", kind.reduce.__code__
    )


def _is_plain_around(layer: Any, of: Any = MessagePassing, steps: tuple[Any, ...] = _PLAIN_STEPS) -> bool:
    """Return `is_plain_compiled` of a layer whatever its aggregation is."""
    if layer._explain or layer._decomposed_layers != 1 or any(getattr(layer, name) for name in _HOOKS):
        return False
    return (
        unsuitable(layer, steps, by_edges=True) is None
        and has_code(layer, "aggregate", of.aggregate.__code__)
        and has_code(layer, "update", of.update.__code__)
    )


def _compiled_message(layer: Any, state: LayerState, given: dict[str, Any], edges: int) -> Message | None:
    """Return `LayerState.message` while torch.compile traces, which guards what is compared here."""
    form = form_of(layer, state.arguments, given, edges)
    for reading in state.known:
        if reading.form == form and has_code(layer, "message", reading.code):
            now = [getattr(of or layer, name) for of, name, _ in reading.attributes or ()]
            then = [value for _, _, value in reading.attributes or ()]
            if now == then and [type(value) for value in now] == [type(value) for value in then]:
                return reading.message
    return None


def propagate_compiled(layer: Any, state: LayerState, edges: Any, size: Any, given: dict[str, Any]) -> Any:
    """Compute `propagate` while torch.compile traces by an operator that finds its operand when it runs."""
    if isinstance(edges, EdgeIndex) or not isinstance(edges, torch.Tensor) or edges.layout != torch.strided:
        return left_compiled(layer, "an adjacency that is no plain edge_index")
    out = _product_compiled(layer, state, edges, size, given) if is_plain_compiled(layer) else NOTHING
    if out is not NOTHING:
        return out
    if not _is_plain_around(layer):
        return left_compiled(layer, "a layer that was changed")
    try:
        edges = check_edges(edges)
        return edges_compiled(layer, state, edges, sizes_of(layer, state, edges, size, given), given)
    except FallbackError:
        return left_compiled(layer, "a message that does not compile")


def _product_compiled(layer: Any, state: LayerState, edges: Any, size: Any, given: dict[str, Any]) -> Any:
    reduce = reduction_of(layer.aggr_module)
    found = _compiled_message(layer, state, given, edges.shape[1])
    if found is None or reduce not in ("sum", "mean"):
        return NOTHING
    x = given[found.features]
    x = x[0] if isinstance(x, (tuple, list)) else x
    if x.dtype not in PRECISIONS or x.dim() not in (2, 3) or layer.node_dim not in (0, -x.dim()):
        return NOTHING
    sizes = sizes_of(layer, state, edges, size, given)
    precision, cast = precision_of(state.settings.precision, x)
    weight = None if found.weight is None else given[found.weight]
    if weight is not None:
        if weight.dtype not in PRECISIONS:
            return NOTHING
        weight = weight.flatten(1) if found.by_head else weight.flatten()
    x = _cast(x, cast, weight)
    return torch.ops.gnnsparse.pyg_aggregate(x, edges, weight, *sizes, reduce, precision.value)


def _neighbours(
    edges: torch.Tensor, weighted: bool, sources: int, targets: int, reduce: str, precision: str
) -> Neighbours:
    recipe = Aggregation(reduce, Precision.parse(precision), apart=True)
    return memo.adjacency(edges, recipe, (sources, targets), weighted)


def _run(x: torch.Tensor, edges: torch.Tensor, weight: torch.Tensor | None, *how: Any) -> torch.Tensor:
    made = _neighbours(edges, weight is not None, *how)
    return spmm(made.operand, x, made.values(weight))


def _fake(x: torch.Tensor, edges: torch.Tensor, weight: torch.Tensor | None, *how: Any) -> torch.Tensor:
    return x.new_empty((how[1], *x.shape[1:]))


def _run_grad(
    grad: torch.Tensor, x: torch.Tensor, edges: torch.Tensor, weight: torch.Tensor | None, *how: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    *how, of_x, of_weight = how  # type: ignore[assignment]
    made = _neighbours(edges, weight is not None, *how)
    operand, values = made.operand.unquantized, made.values(weight)
    grad = grad.contiguous()
    grad_x, grad_weight = x.new_empty(0), x.new_empty(0)
    if of_x:
        turned = None if values is None else operand.transpose_values(values)
        grad_x = spmm(operand.T, grad, turned).to(x.dtype)
    if of_weight and weight is not None:
        grad_weight = made.values_grad(sddmm(operand, grad, x)).to(weight.dtype)
    return grad_x, grad_weight


def _fake_grad(
    grad: torch.Tensor, x: torch.Tensor, edges: torch.Tensor, weight: torch.Tensor | None, *how: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    *_, of_x, of_weight = how
    grad_x = torch.empty_like(x, memory_format=torch.contiguous_format) if of_x else x.new_empty(0)
    return grad_x, x.new_empty(0) if weight is None or not of_weight else weight.new_empty(weight.shape)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    x, edges, weight, *ctx.how = inputs
    ctx.save_for_backward(x, edges, weight)


def _backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
    of_x, of_weight = ctx.needs_input_grad[0], ctx.needs_input_grad[2]
    saved = alive(ctx.saved_tensors)
    found = torch.ops.gnnsparse.pyg_aggregate_grad(grad, *saved, *ctx.how, of_x, of_weight)
    return found[0] if of_x else None, None, found[1] if of_weight else None, *(None,) * 4


_ARGUMENTS = (
    "Tensor x, Tensor edge_index, Tensor? weight, SymInt sources, SymInt targets, str reduce, str precision"
)
register(f"pyg_aggregate({_ARGUMENTS}) -> Tensor", _run, _fake, _setup, _backward)
register(
    f"pyg_aggregate_grad(Tensor grad, {_ARGUMENTS}, bool of_x, bool of_weight) -> (Tensor, Tensor)",
    _run_grad,
    _fake_grad,
)
