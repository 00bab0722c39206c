"""The layer of principal neighbourhood aggregation (PNA), found by `gnnsparse.nn`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812

from gnnsparse.errors import bad_type, bad_value, check_choice, check_flag, check_integer
from gnnsparse.nn.aggregation import AGGREGATIONS
from gnnsparse.nn.edges import EdgeLayer, optional_rows
from gnnsparse.nn.inputs import MOST_FEATURES, check_features, graph_size
from gnnsparse.ops import aggregate_edges
from gnnsparse.ops.edges.schema import edge_counts
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

    def forward(self, degree: torch.Tensor, scaler: str) -> torch.Tensor:
        """Return factors of rows whose nodes have these degrees, 1 or more."""
        match scaler:
            case "amplification":
                return degree.log1p() / self.avg_deg_log
            case "attenuation":
                return self.avg_deg_log / degree.log1p()
            case "linear":
                return degree / self.avg_deg_lin
            case "inverse_linear":
                return self.avg_deg_lin / degree
        return torch.ones_like(degree)


class PNAConv(EdgeLayer):
    """y_i = U [x_i, s_1(d_i) r_i, ..., s_S(d_i) r_i], where r_i has several reductions of V [x_i, x_j, e_ij].

    "Principal Neighbourhood Aggregation for Graph Nets" (Corso et al. 2020): the scalers s depend on the
    number d_i of a node's neighbours. Arguments, parameters and `state_dict` (of the networks V and U of
    towers below `pre_nns.` and `post_nns.`, `edge_encoder`, `lin`, and `aggr_module.avg_deg_lin` and
    `aggr_module.avg_deg_log` [1]) are those of PyG's PNAConv, and outputs agree with it. V is split into
    products with nodes and with edges, all reductions share one pass over the neighbours, and no message is
    stored, nor what is made of up to 16 edge features.

    Args:
        in_channels: features of a node in x.
        out_channels: features of a node in y, a multiple of `towers`.
        aggregators: the reductions: "sum" or "add", "mean", "min", "max", "var", "std".
        scalers: "identity", "amplification" (log(d + 1), divided by its mean), "attenuation" (its inverse),
            "linear" (d divided by its mean), "inverse_linear".
        deg: how many nodes of the training graphs have 0, 1, 2, ... neighbours, see `get_degree_histogram`.
        edge_dim: features of an edge; None: there are none.
        towers: how many networks there are side by side, which a last linear layer mixes.
        pre_layers: linear layers of V: 1. With more the messages would have to be stored.
        post_layers: linear layers of U, with activations between them.
        divide_input: whether each tower has a part of the features of x.
        act: the activation in U, a module, or the name of one of torch's in small letters.
        act_kwargs: the arguments of a named one.
        train_norm: whether the means by which scalers divide are learned.
        precision: the argument of GCNConv.

    Raises:
        TypeError: an argument is of another type.
        ValueError: an argument is out of range.
    """

    edge_encoder: torch.nn.Linear | None

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
        if check_integer("pre_layers", pre_layers) != 1:
            bad_value("pre_layers", f"got {pre_layers}; accepted: 1, whose messages need not be stored")
        self.edge_dim, self.edge_encoder = edge_dim, None
        self.aggr_module = _DegreeScaler(deg, check_flag("train_norm", train_norm))
        self.F_in = width = in_channels // towers if divide_input else in_channels
        self.F_out = out = out_channels // towers
        if edge_dim is not None:
            self.edge_encoder = torch.nn.Linear(
                check_integer("edge_dim", edge_dim, most=MOST_FEATURES), width
            )
        self.pre_nns, self.post_nns = torch.nn.ModuleList(), torch.nn.ModuleList()
        reduced = (len(self._reduce) * len(self._scalers) + 1) * width
        for _ in range(towers):
            terms = 2 if edge_dim is None else 3
            self.pre_nns.append(torch.nn.Sequential(torch.nn.Linear(terms * width, width)))
            layers: list[torch.nn.Module] = [torch.nn.Linear(reduced, out)]
            for _ in range(check_integer("post_layers", post_layers) - 1):
                layers += [_activation(act, act_kwargs), torch.nn.Linear(out, out)]
            self.post_nns.append(torch.nn.Sequential(*layers))
        self.lin = torch.nn.Linear(out_channels, out_channels)
        self.reset_parameters()

    def forward(
        self,
        x: torch.Tensor,
        adj: SparseOperand | torch.Tensor,
        edge_attr: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Compute the layer's output.

        Args:
            x: [nodes, in_channels], float32, float16 or bfloat16, on the device of `adj`.
            adj: the argument of GINEConv.forward.
            edge_attr: [edges, edge_dim], in the order of the edge_index, or of the edges that the operand was
                prepared from; None without `edge_dim`.

        Returns:
            [nodes, out_channels].

        Raises:
            TypeError: an argument is of another type or dtype.
            ValueError: an argument has another shape or device, or the operand another precision than the
                layer's.
        """
        x = check_features("x", x, self.in_channels, self.lin.weight)
        operand = self._operand(adj, graph_size((x, x), None, adj))
        edges = optional_rows(operand, edge_attr, self.edge_dim, self.lin.weight)
        reduced = self._reduced(operand, x, edges)
        degree = edge_counts(operand, x).clamp(min=1)
        scales = torch.stack([self.aggr_module(degree, scaler) for scaler in self._scalers], dim=1)
        parts = x.chunk(self.towers, dim=1) if self.divide_input else [x] * self.towers
        outs = []
        for i, (own, network) in enumerate(zip(parts, self.post_nns, strict=True)):
            layers: list[Any] = list(network.children())
            out = self._scaled(own, reduced[:, i].flatten(1), scales, layers[0])
            for layer in layers[1:]:
                out = layer(out)
            outs.append(out)
        y: torch.Tensor = self.lin(torch.cat(outs, dim=1))
        return y

    def _reduced(self, operand: SparseOperand, x: torch.Tensor, edges: torch.Tensor | None) -> torch.Tensor:
        """Return the reductions of messages, [nodes, towers, reductions, features]."""
        firsts: list[Any] = [network[0] for network in self.pre_nns]  # type: ignore[index]
        w_i, w_j, *w_e = torch.stack([linear.weight for linear in firsts]).split(self.F_in, dim=2)
        bias = torch.cat([linear.bias for linear in firsts])
        encoder, more = self.edge_encoder, {}
        if edges is not None and encoder is not None:
            bias = bias + (w_e[0] @ encoder.bias).flatten()
            more = {"e_ij": edges, "weight": (w_e[0] @ encoder.weight).flatten(0, 1)}
        terms: dict[str, Any] = {"q_j": self._of_towers(x, w_j), **more}
        message = _source_and_edge if more else _source
        found = aggregate_edges(operand, message, reduce=self._reduce, **terms)
        found = torch.stack([y.unflatten(1, (self.towers, self.F_in)) for y in found], dim=2)
        # The target's term is added behind the reductions: it is the same for all edges, and a variance of
        # what is near 0 is more accurate.
        own = (self._of_towers(x, w_i) + bias).unflatten(1, (self.towers, 1, self.F_in))
        counts = edge_counts(operand, x)
        factors = {"sum": counts, "var": torch.zeros_like(counts), "std": torch.zeros_like(counts)}
        factor = torch.cat([factors.get(name, counts.clamp(max=1)) for name in self._reduce], dim=1)
        result: torch.Tensor = torch.addcmul(found, own, factor.to(own.dtype)[:, None, :, None])
        return result

    def _of_towers(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """Return products with the matrices of towers [towers, features, features], side by side."""
        if not self.divide_input:
            return F.linear(x, weight.flatten(0, 1))
        return torch.einsum("ntf,tgf->ntg", x.unflatten(1, (self.towers, self.F_in)), weight).flatten(1)

    def _scaled(
        self, x: torch.Tensor, reduced: torch.Tensor, scales: torch.Tensor, linear: torch.nn.Linear
    ) -> torch.Tensor:
        """Return a linear map of x beside the reductions times each scale, which need not be stored."""
        own, *others = linear.weight.split([self.F_in, *[reduced.shape[1]] * len(self._scalers)], dim=1)
        products = F.linear(reduced, torch.cat(others)).unflatten(1, (len(others), self.F_out))
        return F.linear(x, own, linear.bias) + (products * scales.to(products.dtype)).sum(1)

    def __repr__(self) -> str:
        sizes = f"{self.in_channels}, {self.out_channels}, towers={self.towers}, edge_dim={self.edge_dim}"
        return f"{type(self).__name__}({sizes})"

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
    made: torch.nn.Module = kind(**(options or {}))
    return made
