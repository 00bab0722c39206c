"""The layer of principal neighbourhood aggregation (PNA), found by `gnnsparse.nn`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812

from gnnsparse.errors import bad_type, bad_value, check_choice, check_flag, check_integer
from gnnsparse.nn.aggregation import AGGREGATIONS
from gnnsparse.nn.edges import EdgeLayer, counts_of, optional_rows
from gnnsparse.nn.inputs import MOST_FEATURES, check_edge_dim, check_features, graph_size
from gnnsparse.ops import aggregate_edges
from gnnsparse.ops.edges.trace import fixed
from gnnsparse.precision import Precision
from gnnsparse.sparse.operand import SparseOperand

__all__ = ["PNAConv"]

_AGGREGATORS = {**AGGREGATIONS, "var": "var", "std": "std"}
_SCALERS = ("identity", "amplification", "attenuation", "linear", "inverse_linear")


@fixed
def _source(q_j: Any) -> Any:
    return q_j


@fixed
def _source_and_edge(q_j: Any, e_ij: Any, weight: Any) -> Any:
    return q_j + F.linear(e_ij, weight)


@fixed
def _pair(p_i: Any, q_j: Any) -> Any:
    return p_i + q_j


@fixed
def _pair_and_edge(p_i: Any, q_j: Any, e_ij: Any, weight: Any) -> Any:
    return p_i + q_j + F.linear(e_ij, weight)


@fixed
def _row(m_ij: Any) -> Any:
    return m_ij


class _DegreeScaler(torch.nn.Module):
    """The mean degree, and the mean of log(degree + 1), by which scalers divide."""

    avg_deg_lin: torch.Tensor
    avg_deg_log: torch.Tensor

    def __init__(self, deg: torch.Tensor, train_norm: bool) -> None:
        super().__init__()
        deg = deg.to("cpu", torch.float64)
        degree = torch.arange(len(deg), dtype=torch.float64, device="cpu")
        self._first = [float((values * deg).sum() / deg.sum()) for values in (degree, degree.log1p())]
        for name in ("avg_deg_lin", "avg_deg_log"):
            if train_norm:
                self.register_parameter(name, torch.nn.Parameter(torch.empty(1)))
            else:
                self.register_buffer(name, torch.empty(1))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for tensor, value in zip((self.avg_deg_lin, self.avg_deg_log), self._first, strict=True):
            torch.nn.init.constant_(tensor, value)


def _scale(means: Any, degree: torch.Tensor, scaler: str) -> torch.Tensor | None:
    """Return factors of rows whose nodes have these degrees, 1 or more, by the means of a _DegreeScaler.

    None: they are all 1.
    """
    match scaler:
        case "amplification":
            return degree.log1p() / means.avg_deg_log
        case "attenuation":
            return means.avg_deg_log / degree.log1p()
        case "linear":
            return degree / means.avg_deg_lin
        case "inverse_linear":
            return means.avg_deg_lin / degree
    return None


class PNAConv(EdgeLayer):
    """y_i = U [x_i, s_1(d_i) r_i, ..., s_S(d_i) r_i], where r_i has several reductions of V [x_i, x_j, e_ij].

    "Principal Neighbourhood Aggregation for Graph Nets" (Corso et al. 2020): the scalers s depend on the
    number d_i of a node's neighbours. Arguments, parameters and `state_dict` (of the networks V and U of
    towers below `pre_nns.` and `post_nns.`, `edge_encoder`, `lin`, and `aggr_module.avg_deg_lin` and
    `aggr_module.avg_deg_log` [1]) are those of PyG's PNAConv, and outputs agree with it. V is split into
    products with nodes and with edges, all reductions share one pass over the neighbours, and no message is
    stored, nor what is made of up to 16 edge features, nor what scalers make.

    Args:
        in_channels: features of a node in x.
        out_channels: features of a node in y, a multiple of `towers`.
        aggregators: the reductions: "sum" or "add", "mean", "min", "max", "var", "std".
        scalers: "identity", "amplification" (log(d + 1), divided by its mean), "attenuation" (its inverse),
            "linear" (d divided by its mean), "inverse_linear".
        deg: how many nodes of the training graphs have 0, 1, 2, ... neighbours, see `get_degree_histogram`.
        edge_dim: features of an edge; None: there are none.
        towers: how many networks there are side by side, which a last linear layer mixes.
        pre_layers: linear layers of V, with activations between them. With more than one the messages are
            stored.
        post_layers: linear layers of U, with activations between them.
        divide_input: whether each tower has a part of the features of x.
        act: the activation in V and U, a module, or the name of one of torch's in small letters.
        act_kwargs: the arguments of a named one.
        train_norm: whether the means by which scalers divide are learned.
        precision: as in GCNConv; the errors are also as there.
    """

    edge_encoder: torch.nn.Linear | None
    _shown = ("towers", "edge_dim")

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        aggregators: Sequence[str],
        scalers: Sequence[str],
        deg: torch.Tensor,
        edge_dim: int | None = None,
        towers: int = 1,
        pre_layers: int = 1,
        post_layers: int = 1,
        divide_input: bool = False,
        act: str | torch.nn.Module = "relu",
        act_kwargs: dict[str, Any] | None = None,
        train_norm: bool = False,
        *,
        precision: Precision | str | None = None,
    ) -> None:
        super().__init__(precision)
        self.in_channels = check_integer("in_channels", in_channels, most=MOST_FEATURES)
        self.out_channels = check_integer("out_channels", out_channels, most=MOST_FEATURES)
        self.towers = check_integer("towers", towers)
        self.divide_input = check_flag("divide_input", divide_input)
        for name, count in (
            ("in_channels", in_channels if divide_input else towers),
            ("out_channels", out_channels),
        ):
            if count % towers:
                bad_value(name, f"got {count}; accepted: a multiple of towers, {towers}")
        self._reduce = [_AGGREGATORS[n] for n in _names("aggregators", aggregators, tuple(_AGGREGATORS))]
        self._scalers = _names("scalers", scalers, _SCALERS)
        if not isinstance(deg, torch.Tensor) or deg.dim() != 1 or not deg.numel() or deg.sum() <= 0:
            bad_value("deg", "is no histogram of degrees; accepted: a tensor [largest degree + 1] of counts")
        check_integer("pre_layers", pre_layers)
        check_integer("post_layers", post_layers)
        self.edge_dim, self.edge_encoder = check_edge_dim(edge_dim), None
        self.aggr_module = _DegreeScaler(deg, check_flag("train_norm", train_norm))
        self.F_in = width = in_channels // towers if divide_input else in_channels
        self.F_out = out = out_channels // towers
        if edge_dim is not None:
            self.edge_encoder = torch.nn.Linear(edge_dim, width)
        self.pre_nns, self.post_nns = torch.nn.ModuleList(), torch.nn.ModuleList()
        reduced = (len(self._reduce) * len(self._scalers) + 1) * width
        for _ in range(towers):
            terms = 2 if edge_dim is None else 3
            for networks, inputs, size, count in (
                (self.pre_nns, terms * width, width, pre_layers), (self.post_nns, reduced, out, post_layers),
            ):  # fmt: skip
                layers: list[torch.nn.Module] = [torch.nn.Linear(inputs, size)]
                for _ in range(count - 1):
                    layers += [_activation(act, act_kwargs), torch.nn.Linear(size, size)]
                networks.append(torch.nn.Sequential(*layers))
        self.lin = torch.nn.Linear(out_channels, out_channels)
        self.reset_parameters()

    def forward(
        self, x: torch.Tensor, adj: SparseOperand | torch.Tensor, edge_attr: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Compute the layer's output.

        Args:
            x: [nodes, in_channels], float32, float16 or bfloat16, on the device of `adj`.
            adj: the argument of GINEConv.forward.
            edge_attr: [edges, edge_dim], in the order of the edge_index, or of the edges that the operand was
                prepared from; None without `edge_dim`.

        Returns:
            [nodes, out_channels].

        The errors are those of ResGatedGraphConv.forward.
        """
        x = check_features("x", x, self.in_channels, self.lin.weight)
        operand = self._operand(adj, graph_size((x, x), None, adj))
        edges = optional_rows(operand, edge_attr, self.edge_dim, self.lin.weight)
        degree = counts_of(operand, x).clamp(min=1)
        scales = [_scale(self.aggr_module, degree, scaler) for scaler in self._scalers]
        parts = x.chunk(self.towers, dim=1) if self.divide_input else [x] * self.towers
        # Of each reduction the features of each tower.
        reduced: list[Any] = [[reduction] for reduction in self._reduced(operand, x, edges)]
        if self.towers > 1:
            reduced = [of.unflatten(1, (self.towers, -1)).unbind(1) for (of,) in reduced]
        outs = []
        for own, network, *found in zip(parts, self.post_nns, *reduced, strict=True):
            first, *others = network.children()
            out = self._scaled(own, found, scales, first)
            for layer in others:
                out = layer(out)
            outs.append(out)
        return self.lin(outs[0] if len(outs) == 1 else torch.cat(outs, dim=1))

    def _reduced(
        self, operand: SparseOperand, x: torch.Tensor, edges: torch.Tensor | None
    ) -> list[torch.Tensor]:
        """Return the reductions of messages, each [nodes, towers * features]."""
        names = self._reduce
        networks: list[list[Any]] = [list(network.children()) for network in self.pre_nns]
        w_i, w_j, *w_e = torch.stack([first.weight for first, *_ in networks]).split(self.F_in, dim=2)
        bias = torch.cat([first.bias for first, *_ in networks])
        terms: dict[str, Any] = {"q_j": self._of_towers(x, w_j)}
        if edges is not None and self.edge_encoder is not None:
            bias = bias + (w_e[0] @ self.edge_encoder.bias).flatten()
            terms |= {"e_ij": edges, "weight": (w_e[0] @ self.edge_encoder.weight).flatten(0, 1)}
        own = self._of_towers(x, w_i, bias)
        if len(networks[0]) > 1:
            message = _pair if edges is None else _pair_and_edge
            hidden = aggregate_edges(operand, message, reduce="none", p_i=own, **terms)
            rows = list(hidden.unflatten(1, (self.towers, -1)).unbind(1))
            for i, (_, *others) in enumerate(networks):
                for layer in others:
                    rows[i] = layer(rows[i])
            return aggregate_edges(operand, _row, reduce=names, m_ij=torch.cat(rows, dim=1))
        message = _source if edges is None else _source_and_edge
        found = aggregate_edges(operand, message, reduce=names, **terms)
        # The target's term is added behind the reductions: it is the same for all edges, and a variance of
        # what is near 0 is more accurate.
        counts = counts_of(operand, x).to(own.dtype)
        has_some = counts.clamp(max=1)
        for i, name in enumerate(names):
            if name not in ("var", "std"):
                found[i] = torch.addcmul(found[i], own, counts if name == "sum" else has_some)
        return found

    def _of_towers(
        self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Return products with the matrices of towers [towers, features, features], side by side."""
        if not self.divide_input:
            return F.linear(x, weight.flatten(0, 1), bias)
        out = torch.einsum("ntf,tgf->ntg", x.unflatten(1, (self.towers, self.F_in)), weight).flatten(1)
        return out if bias is None else out + bias.to(out.dtype)

    def _scaled(
        self,
        x: torch.Tensor,
        reduced: Sequence[torch.Tensor],
        scales: Sequence[torch.Tensor | None],
        linear: Any,
    ) -> torch.Tensor:
        """Return a linear map of x beside the reductions times each scale, none of which is stored."""
        own, others = linear.weight.split([self.F_in, linear.weight.shape[1] - self.F_in], dim=1)
        # For each reduction the maps of all scales, one below the other.
        maps = others.unflatten(1, (len(scales), len(reduced), self.F_in)).permute(2, 1, 0, 3).flatten(1, 2)
        first, *more = zip(reduced, maps.unbind(0), strict=True)
        product = F.linear(*first)
        for found, weight in more:
            product.addmm_(found.to(product.dtype), weight.t().to(product.dtype))
        out = F.linear(x, own, linear.bias)
        for scale, of in zip(scales, product.unflatten(1, (len(scales), -1)).unbind(1), strict=True):
            # Not in place: under vmap x may be one for all of several reductions.
            out = out + of if scale is None else torch.addcmul(out, of, scale.to(out.dtype))
        return out

    @staticmethod
    def get_degree_histogram(loader: Iterable[Any]) -> torch.Tensor:
        """Return `deg` of graphs with an `edge_index` and `num_nodes`, as a loader of PyG gives: int64."""
        total = torch.zeros(1, dtype=torch.int64, device="cpu")
        for data in loader:
            found = data.edge_index[1].bincount(minlength=data.num_nodes).bincount().cpu()
            size = max(len(total), len(found))
            total = sum(F.pad(counts, (0, size - len(counts))) for counts in (total, found))  # type: ignore[assignment]
        return total


def _names(name: str, given: Any, accepted: tuple[str, ...]) -> list[str]:
    if not isinstance(given, (list, tuple)) or not given:
        bad_type(name, given, f"a list of some of {', '.join(accepted)}")
    return [check_choice(name, one, accepted) for one in given]


def _activation(act: Any, options: dict[str, Any] | None) -> torch.nn.Module:
    if isinstance(act, torch.nn.Module):
        return act
    names = {name.lower(): name for name in torch.nn.modules.activation.__all__}
    chosen = act.lower().replace("_", "") if isinstance(act, str) else act
    kind = getattr(torch.nn, names[check_choice("act", chosen, tuple(names))])
    return kind(**(options or {}))
