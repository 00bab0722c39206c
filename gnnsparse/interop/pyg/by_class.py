"""`propagate` of classes of PyG whose messages are told by the class, as no code here reads them.

They attend over the edges of a target, or multiply by a matrix of each edge. All around `propagate` stays
PyG's: what a layer makes of its nodes before, samples, stores and adds.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812
from torch_geometric.nn import conv
from torch_geometric.nn.conv.dna_conv import MultiHead
from torch_geometric.nn.dense import Linear

from gnnsparse.interop.models import FallbackError
from gnnsparse.interop.pyg.aggregate import LayerState, check_edges, sizes_of, steps_of, unsuitable, watched
from gnnsparse.interop.pyg.edge_aggregate import dtypes_of, precision_of_call, reductions_of
from gnnsparse.interop.pyg.graphs import Settings, check_eager, memo
from gnnsparse.nn.adjacency import Recipe, with_copies
from gnnsparse.nn.aggregation import Aggregation
from gnnsparse.nn.edges import EdgeRecipe, Edges, log_counts
from gnnsparse.nn.inputs import is_watched
from gnnsparse.nn.rgcn_conv import GATHER
from gnnsparse.ops import aggregate_edges, edge_softmax, sddmm, spmm
from gnnsparse.ops.attention.edges import summed_from_coo
from gnnsparse.ops.edges.trace import fixed
from gnnsparse.ops.segments import row_sums
from gnnsparse.precision import Precision
from gnnsparse.sparse.operand import SparseOperand


@dataclass
class Call:
    """A call of `propagate`: the layer, its edges between `sizes` (sources, targets), and how it is run."""

    layer: Any
    edges: Any
    sizes: tuple[int, int]
    settings: Settings
    precision: Precision
    runs_on: str
    overhead: float

    def made(self, recipe: Recipe, width: int, weighted: bool = False) -> Any:
        """Return what a recipe makes of the edges, or raise FallbackError; `width` numbers are gathered."""
        graph = memo.graph(self.edges)
        return graph.adjacency(self.edges, recipe, self.sizes, weighted, width, self.settings, self.overhead)

    def to_attend(self, width: int, has_features: bool = False) -> Edges:
        """Return the edges over which the layer attends; edges with features are not merged."""
        found: Edges = self.made(
            EdgeRecipe(False, self.precision, has_features=has_features), 3 * width
        ).adjacency
        return found

    def weighted(self, width: int) -> tuple[SparseOperand, Callable[[torch.Tensor], torch.Tensor]]:
        """Return the operand of weighted sums or means, and what makes edge values of weights."""
        (reduce,) = reductions_of(self.layer.aggr_module).names  # type: ignore[union-attr]
        made = self.made(Aggregation(reduce, self.precision), width, weighted=True)
        return made.adjacency.operand, made.values


def _sums_of_pairs(operand: SparseOperand, targets: torch.Tensor, sources: torch.Tensor) -> torch.Tensor:
    """Return targets_i + sources_j of numbers [nodes, heads] for the nonzeros, [nonzeros, heads].

    It is a product of pairs, whose gradient has the same bits in every run.
    """
    return sddmm(
        operand, F.pad(targets[..., None], (0, 1), value=1.0), F.pad(sources[..., None], (1, 0), value=1.0)
    )


def _attended(
    call: Call, operand: SparseOperand, scores: torch.Tensor, v: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return attention by scores [nonzeros, heads] before their leaky ReLU, and its weights."""
    scores = F.leaky_relu(scores, call.layer.negative_slope)
    if (counts := log_counts(operand)) is not None:
        scores = scores + counts[:, None].to(scores.dtype)
    weights = F.dropout(edge_softmax(operand, scores), call.layer.dropout, call.layer.training)
    return spmm(operand, v, weights), weights


def _supergat(call: Call, x: torch.Tensor) -> torch.Tensor:
    layer, operand = call.layer, call.to_attend(2 * x[0].numel()).operand
    products = sddmm(operand, x, x)
    if layer.attention_type == "MX":
        of_sources, of_targets = ((x * att).sum(-1) for att in (layer.att_l, layer.att_r))
        scores = _sums_of_pairs(operand, of_targets, of_sources) * products.sigmoid()
    else:
        scores = products / math.sqrt(layer.out_channels)
    return _attended(call, operand, scores, x)[0]


def _heat(call: Call, x: torch.Tensor, edge_type_emb: torch.Tensor, edge_attr: torch.Tensor) -> torch.Tensor:
    """Attend to nodes and to features of edges; what maps the latter is applied to their sums."""
    layer, width = call.layer, x.shape[1]
    edges = call.to_attend(layer.heads * width, has_features=True)
    features = F.leaky_relu(layer.edge_attr_emb(edge_attr), layer.negative_slope)
    of_edges = torch.cat([edge_type_emb, features], dim=-1)
    to_target, to_source, to_edge = layer.att.weight.split([width, width, of_edges.shape[1]], dim=1)
    from_source, from_edge = layer.lin.weight.split([width, features.shape[1]], dim=1)
    operand, x_all = edges.operand, with_copies(x, edges.copies)
    scores = _sums_of_pairs(operand, F.linear(x, to_target), F.linear(x_all, to_source))
    scores = scores + summed_from_coo(F.linear(of_edges, to_edge), operand)
    values = F.linear(x_all, from_source, layer.lin.bias)[:, None].expand(-1, layer.heads, -1)
    out, weights = _attended(call, operand, scores, values)
    weighted = weights[:, :, None] * summed_from_coo(features, operand)[:, None]
    summed = row_sums(operand, weighted.float()).to(x.dtype)
    return out + F.linear(summed, from_edge).to(out.dtype)


def _by_weights(call: Call, x: torch.Tensor, weights: Callable[[], torch.Tensor], width: int) -> torch.Tensor:
    """Return the sums over k of weights [edges, k] times features of sources [sources, k, features].

    PyG has `width` numbers for each edge.
    """
    operand, values = call.weighted(width)
    return spmm(operand, x, values(weights())).sum(1)


def _gmm(call: Call, x: Any, edge_attr: torch.Tensor) -> torch.Tensor:
    layer = call.layer
    if layer.separate_gaussians:
        raise FallbackError("its gaussians are others for each pair of features")

    def weights() -> torch.Tensor:
        squares = (edge_attr[:, None] - layer.mu).square() / (layer.sigma.square() + 1e-15)
        return (squares.sum(-1) * -0.5).exp()

    return _by_weights(
        call, x[0].unflatten(1, (layer.kernel_size, layer.out_channels)), weights, layer.g.shape[1]
    )


def _nn(call: Call, x: Any, edge_attr: torch.Tensor) -> torch.Tensor:
    """Sum (x_j W_k) h_k over edges and over the inputs h_k of the last layer, which makes their matrices."""
    layer, (sources, _) = call.layer, x
    modules: list[Any] = list(layer.nn) if isinstance(layer.nn, torch.nn.Sequential) else [layer.nn]
    *inner, last = modules
    (rows, size), (edges, inputs) = sources.shape, (edge_attr.shape[0], last.weight.shape[1])
    width, count = layer.out_channels, inputs + (last.bias is not None)
    if (rows * size + GATHER * edges) * count * width >= edges * size * width * (inputs + GATHER):
        raise FallbackError(
            "a matrix for each edge is cheaper than its sum over the inputs of the last layer"
        )
    if edge_attr.dim() != 2 or size != layer.in_channels_l or last.weight.shape[0] != size * width:
        raise FallbackError("features of sizes that PyG refuses")
    weight = last.weight.view(size, width, inputs)
    if last.bias is not None:
        weight = torch.cat([weight, last.bias.view(size, width, 1)], dim=2)
    mapped = F.linear(sources, weight.permute(2, 1, 0).reshape(count * width, size))

    def weights() -> torch.Tensor:
        found = edge_attr
        for module in inner:
            found = module(found)
        return found if last.bias is None else torch.cat([found, found.new_ones(edges, 1)], dim=1)

    return _by_weights(call, mapped.unflatten(1, (count, width)), weights, size * width)


def _dna(call: Call, x: torch.Tensor, edge_weight: torch.Tensor) -> torch.Tensor:
    """Attend at each edge over the layers of its source, whose maps are taken once for each node."""
    multi, layers = call.layer.multi_head, x.shape[1]
    operand, values = call.weighted(2 * x[0].numel())
    heads = layers * multi.heads
    q = multi.lin_q(x[:, -1:]).unflatten(2, (multi.heads, -1)).expand(-1, layers, -1, -1).flatten(1, 2)
    k, v = (linear(x).reshape(len(x), heads, -1) for linear in (multi.lin_k, multi.lin_v))
    scores = (sddmm(operand, q, k) / math.sqrt(k.shape[2])).unflatten(1, (layers, multi.heads))
    # Beside the layers there is one of score 0, whose value is 0.
    found = F.softmax(F.pad(scores, (0, 0, 0, 1)), dim=1)[:, :-1]
    found = F.dropout(found, multi.dropout, multi.training) * values(edge_weight).to(x.dtype)[:, None, None]
    return spmm(operand, v, found.flatten(1)).unflatten(1, (layers, -1)).sum(1).flatten(1)


@fixed
def _source(x_j: Any) -> Any:
    return x_j


def _eg(call: Call, x: torch.Tensor, symnorm_weight: torch.Tensor | None) -> torch.Tensor:
    names = call.layer.aggregators
    others = list(dict.fromkeys("var" if name == "std" else name for name in names if name != "symnorm"))
    found: dict[str, torch.Tensor] = {}
    if others:
        call.runs_on = "aggregate_edges" if "symnorm" not in names else "aggregate_edges and spmm"
        operand = call.made(EdgeRecipe(False, call.precision), x.shape[1]).adjacency.operand
        found = dict(zip(others, aggregate_edges(operand, _source, reduce=others, x_j=x), strict=True))
    if "std" in names:
        found["std"] = found["var"].clamp(min=1e-5).sqrt()
    if "symnorm" in names:
        operand, values = call.weighted(x.shape[1])
        found["symnorm"] = spmm(operand, x, values(symnorm_weight))  # type: ignore[arg-type]
    return torch.stack([found[name] for name in names], dim=1) if len(names) > 1 else found[names[0]]


class Computed(NamedTuple):
    """How `propagate` of a class is computed: of a Call, and the arguments of `propagate` by their names.

    `methods` of the class are stood for, and `modules` of it are not called as PyG would, so that they have
    to be of these classes; "nn" is of one, or a sequence that ends with one. `overhead` as of `Fused`.
    """

    compute: Callable[..., torch.Tensor]
    runs_on: str = "spmm"
    methods: tuple[str, ...] = ("message",)
    modules: tuple[tuple[str, tuple[type, ...]], ...] = ()
    reductions: tuple[str, ...] = ("sum",)
    overhead: float = 200.0


_LINEAR = torch.nn.Linear, Linear
COMPUTED: dict[type, Computed] = {
    conv.SuperGATConv: Computed(_supergat, methods=("message", "get_attention"), overhead=600.0),
    conv.HEATConv: Computed(
        _heat,
        modules=tuple((name, _LINEAR) for name in ("edge_attr_emb", "att", "lin")),
        overhead=1000.0,
    ),
    conv.GMMConv: Computed(_gmm, reductions=("sum", "mean"), overhead=300.0),
    conv.NNConv: Computed(_nn, modules=(("nn", _LINEAR),), reductions=("sum", "mean"), overhead=300.0),
    conv.DNAConv: Computed(_dna, modules=(("multi_head", (MultiHead,)),), overhead=100.0),
    conv.EGConv: Computed(_eg, overhead=100.0),
}


def computed_as(base: type) -> type | None:
    """Return the class in `COMPUTED` whose messages a class passes, its methods unchanged, or None."""
    for kind, how in COMPUTED.items():
        if issubclass(base, kind):
            return kind if all(getattr(base, n) is getattr(kind, n) for n in how.methods) else None
    return None


def unsuitable_as(layer: Any, kind: type) -> str | None:
    """Return why no call of a layer with the messages of PyG's `kind` can be computed; None: calls can be."""
    how = COMPUTED[kind]
    if not layer.__dict__.keys().isdisjoint(how.methods):
        return "a method was replaced in this layer"
    for name, kinds in how.modules:
        module = layer._modules[name]
        if name == "nn" and type(module) is torch.nn.Sequential and len(module) > 0:
            if is_watched(module):
                return "its `nn` has hooks"
            module = module[-1]
        if type(module) not in kinds or any(map(is_watched, module.modules())):
            return f"its `{name}` is of another class, or has hooks"
    why = unsuitable(layer, steps_of(kind), by_edges=True)
    found = None if why is not None else reductions_of(layer.aggr_module)
    if why is None and (found is None or len(found.names) > 1 or found.names[0] not in how.reductions):
        return f"its aggregation is {layer.aggr_module}"
    return why


def propagate_as(
    layer: Any, kind: type, state: LayerState, edges: Any, size: Any, given: dict[str, Any]
) -> Any:
    """Compute `propagate` of a layer with the messages of PyG's `kind`; NOTHING: it is left to PyG."""
    how = COMPUTED[kind]
    try:
        if state.settings.convert == "auto":
            memo.check(edges)
        if (why := watched(layer, edges) or unsuitable_as(layer, kind)) is not None:
            raise FallbackError(why)
        check_eager()
        plain = check_edges(edges)
        sizes = sizes_of(layer, state, edges, size, given)
        precision, dtype = precision_of_call(state.settings, dtypes_of(state.arguments, plain, given), plain)
        call = Call(layer, edges, sizes, state.settings, precision, how.runs_on, how.overhead)
        out = how.compute(call, **{name: _cast(value, dtype) for name, value in given.items()})
    except (FallbackError, TypeError, ValueError) as reason:
        return state.fall_back(reason if isinstance(reason, FallbackError) else FallbackError(str(reason)))
    state.note(f"{call.runs_on}, {precision.value}")
    return out


def _cast(value: Any, dtype: torch.dtype) -> Any:
    """Return a tensor, or each of a pair, in the dtype of the call if it is a floating one."""
    if isinstance(value, (tuple, list)):
        return tuple(_cast(part, dtype) for part in value)
    is_float = isinstance(value, torch.Tensor) and value.is_floating_point()
    return value.to(dtype) if is_float else value
