"""Layers whose messages are gated, scaled or shifted by targets and edges, found by `gnnsparse.nn`."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812

from gnnsparse.errors import bad_type, bad_value, check_choice, check_flag, check_integer, check_number
from gnnsparse.nn.adjacency import Preparation, Recipe, check_edges
from gnnsparse.nn.aggregation import AGGREGATIONS
from gnnsparse.nn.edges import EdgeLayer, both, by_activation, edge_rows, optional_rows, reset
from gnnsparse.nn.inputs import MOST_FEATURES, Nodes, check_channels, check_edge_dim, check_nodes, graph_size
from gnnsparse.ops import aggregate_edges
from gnnsparse.ops.edges.trace import fixed
from gnnsparse.precision import Precision
from gnnsparse.sparse.operand import SparseOperand

__all__ = ["CGConv", "FiLMConv", "GENConv", "ResGatedGraphConv"]


@by_activation
def _gated(act: Any) -> Callable[..., Any]:
    def message(k_i: Any, q_j: Any, v_j: Any) -> Any:
        return act(k_i + q_j) * v_j

    return message


@by_activation
def _gated_with_edges(act: Any) -> Callable[..., Any]:
    def message(k_i: Any, q_j: Any, v_j: Any, e_ij: Any, gate: Any, value: Any) -> Any:
        return act(k_i + q_j + F.linear(e_ij, gate)) * (v_j + F.linear(e_ij, value))

    return message


class ResGatedGraphConv(EdgeLayer):
    """y_i = W_1 x_i + sum_j(sigma(W_3 x_i + W_4 x_j) * W_2 x_j) + b (Bresson and Laurent 2017).

    "Residual Gated Graph ConvNets", in the form of PyG's ResGatedGraphConv: arguments, parameters and
    `state_dict` (`lin_key`, of W_3, `lin_query`, of W_4, `lin_value`, of W_2, with weights [out, in +
    edge_dim] and biases [out], `lin_skip.weight` [out, in] of W_1, `bias` [out]) are those of PyG's, and
    outputs agree with it. Edge features are further inputs of the three. No message is stored; what
    `lin_value` makes of edge features is, and of more than 16 features what the others make of them.

    Args:
        in_channels: features of a node in x, or a pair: of a source and of a target.
        out_channels: features of a node in y.
        act: sigma, an elementwise function of tensors that `aggregate_edges` can read. None: there is none.
        edge_dim: features of an edge; None: there are none.
        root_weight: whether there is the term W_1 x_i.
        bias: whether b is learned; False: there is none.
        precision: as in GCNConv; the errors are also as there.
    """

    lin_skip: torch.nn.Linear | None
    bias: torch.nn.Parameter | None

    def __init__(
        self,
        in_channels: int | tuple[int, int],
        out_channels: int,
        act: Callable[[Any], Any] | None = torch.nn.Sigmoid(),  # noqa: B008  (as PyG's; it has no state)
        edge_dim: int | None = None,
        root_weight: bool = True,
        bias: bool = True,
        *,
        precision: Precision | str | None = None,
    ) -> None:
        super().__init__(precision)
        self.in_channels, self._channels = in_channels, check_channels(in_channels)
        self.out_channels = check_integer("out_channels", out_channels, most=MOST_FEATURES)
        self.act, self.edge_dim = act, check_edge_dim(edge_dim)
        of_edges = edge_dim or 0
        sources, targets = self._channels
        self.lin_key = torch.nn.Linear(targets + of_edges, out_channels)
        self.lin_query = torch.nn.Linear(sources + of_edges, out_channels)
        self.lin_value = torch.nn.Linear(sources + of_edges, out_channels)
        self.root_weight, self.lin_skip = check_flag("root_weight", root_weight), None
        if root_weight:
            self.lin_skip = torch.nn.Linear(targets, out_channels, bias=False)
        own = torch.nn.Parameter(torch.empty(out_channels)) if check_flag("bias", bias) else None
        self.register_parameter("bias", own)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the weights anew, set the bias to 0, and drop a cached operand."""
        super().reset_parameters()
        if self.bias is not None:
            torch.nn.init.zeros_(self.bias)

    def forward(
        self,
        x: torch.Tensor | Nodes,
        adj: SparseOperand | torch.Tensor,
        edge_attr: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Compute the layer's output.

        Args:
            x: the argument of SAGEConv.forward, but the features of targets are needed.
            adj: the argument of GINEConv.forward.
            edge_attr: [edges, edge_dim], in the order of the edge_index, or of the edges that the operand was
                prepared from; None without `edge_dim`.

        Returns:
            [targets, out_channels].

        Raises:
            TypeError: an argument is of another type or dtype.
            ValueError: an argument has another shape or device, or the operand another precision than the
                layer's.
        """
        nodes = check_nodes(x, self._channels, self.lin_key.weight)
        sources, targets = both(nodes)
        operand = self._operand(adj, graph_size(nodes, None, adj))
        edges = optional_rows(operand, edge_attr, self.edge_dim, self.lin_key.weight)
        key, query, value = self.lin_key, self.lin_query, self.lin_value
        (w_k, e_k), (w_q, e_q), (w_v, e_v) = (
            linear.weight.tensor_split([x.shape[1]], dim=1)
            for linear, x in ((key, targets), (query, sources), (value, sources))
        )
        terms: dict[str, Any] = {
            "k_i": F.linear(targets, w_k, key.bias), "q_j": F.linear(sources, w_q, query.bias),
            "v_j": F.linear(sources, w_v, value.bias),
        }  # fmt: skip
        if edges is None:
            out: torch.Tensor = aggregate_edges(operand, _gated(self.act), **terms)
        else:
            message = _gated_with_edges(self.act)
            out = aggregate_edges(operand, message, **terms, e_ij=edges, gate=e_k + e_q, value=e_v)
        if self.lin_skip is not None:
            out = out + self.lin_skip(targets)
        return out if self.bias is None else out + self.bias.to(out.dtype)


@fixed
def _crystal(f_i: Any, f_j: Any, s_i: Any, s_j: Any) -> Any:
    return torch.sigmoid(f_i + f_j) * F.softplus(s_i + s_j)


@fixed
def _crystal_with_edges(f_i: Any, f_j: Any, s_i: Any, s_j: Any, e_ij: Any, gate: Any, core: Any) -> Any:
    return torch.sigmoid(f_i + f_j + F.linear(e_ij, gate)) * F.softplus(s_i + s_j + F.linear(e_ij, core))


class CGConv(EdgeLayer):
    """y_i = x_i + sum_j(sigmoid(W_f z_ij + b_f) * softplus(W_s z_ij + b_s)) for z_ij = [x_i, x_j, e_ij].

    The crystal graph layer of Xie and Grossman (2018, equation 5). Arguments, parameters and `state_dict`
    (`lin_f` and `lin_s` with weights [targets' features, all features of z] and biases, with `batch_norm`
    also those of `bn`) are those of PyG's CGConv, and outputs agree with it. W_f and W_s are split into
    products with nodes and with edges, so that no z_ij is stored. Nodes without neighbours have the sum 0.

    Args:
        channels: features of a node, or a pair: of a source and of a target.
        dim: features of an edge; 0: there are none.
        aggr: how messages are reduced: "add" or "sum", "mean", "max", "min".
        batch_norm: whether reduced messages pass a batch norm before x_i is added.
        bias: whether b_f and b_s are learned; False: there are none.
        precision: as in GCNConv; the errors are also as there.
    """

    bn: torch.nn.BatchNorm1d | None

    def __init__(
        self,
        channels: int | tuple[int, int],
        dim: int = 0,
        aggr: str = "add",
        batch_norm: bool = False,
        bias: bool = True,
        *,
        precision: Precision | str | None = None,
    ) -> None:
        super().__init__(precision)
        self.channels, self._channels = channels, check_channels(channels)
        self.dim = check_integer("dim", dim, least=0, most=MOST_FEATURES)
        self.aggr, self._reduce = aggr, AGGREGATIONS[check_choice("aggr", aggr, tuple(AGGREGATIONS))]
        sources, targets = self._channels
        self.lin_f = torch.nn.Linear(sources + targets + dim, targets, bias=check_flag("bias", bias))
        self.lin_s = torch.nn.Linear(sources + targets + dim, targets, bias=bias)
        self.batch_norm = check_flag("batch_norm", batch_norm)
        self.bn = torch.nn.BatchNorm1d(targets) if batch_norm else None
        self.reset_parameters()

    def forward(
        self,
        x: torch.Tensor | Nodes,
        adj: SparseOperand | torch.Tensor,
        edge_attr: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Compute the layer's output, [targets, features of a target].

        The arguments and errors are those of ResGatedGraphConv.forward, with edge_attr [edges, dim].
        """
        nodes = check_nodes(x, self._channels, self.lin_f.weight)
        sources, targets = both(nodes)
        operand = self._operand(adj, graph_size(nodes, None, adj))
        edges = optional_rows(operand, edge_attr, self.dim or None, self.lin_f.weight)
        terms: dict[str, Any] = {}
        of_edges: list[torch.Tensor] = []
        for name, linear in (("f", self.lin_f), ("s", self.lin_s)):
            w_i, w_j, w_e = linear.weight.split([targets.shape[1], sources.shape[1], self.dim], dim=1)
            terms |= {f"{name}_i": F.linear(targets, w_i, linear.bias), f"{name}_j": F.linear(sources, w_j)}
            of_edges.append(w_e)
        if edges is None:
            out = aggregate_edges(operand, _crystal, reduce=self._reduce, **terms)
        else:
            out = aggregate_edges(
                operand, _crystal_with_edges, reduce=self._reduce, **terms, e_ij=edges, gate=of_edges[0],
                core=of_edges[1],
            )  # fmt: skip
        out = out if self.bn is None else self.bn(out)
        return out + targets

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.channels}, dim={self.dim})"


@by_activation
def _modulated(act: Any) -> Callable[..., Any]:
    def message(gamma_i: Any, beta_i: Any, x_j: Any) -> Any:
        return act(gamma_i * x_j + beta_i)

    return message


@dataclass(frozen=True)
class _ByType(Recipe):
    """Makes an operand for each type of edges; it gets the types below the edges."""

    types: int
    precision: Precision
    preparation: Preparation | None = None

    def make(self, edge_index: torch.Tensor, size: tuple[int, int], weighted: bool) -> list[SparseOperand]:
        """See Recipe."""
        kind = edge_index[2]
        return [self.prepare(edge_index[:2, kind == i], size) for i in range(self.types)]


class FiLMConv(EdgeLayer):
    """y_i = sigma(c_i * W x_i + d_i) + sum_r mean_j(sigma(c_ri * W_r x_j + d_ri)), where r are edge types.

    "GNN-FiLM: Graph Neural Networks with Feature-wise Linear Modulation" (Brockschmidt 2020), where [d_ri,
    c_ri] = g_r(x_i) and [d_i, c_i] = g(x_i). Arguments, parameters and `state_dict` (`lins.r.weight` and
    `lin_skip.weight` [out, in] of the W, `films.r` and `film_skip` of the g) are those of PyG's FiLMConv, and
    outputs agree with it. No message is stored.

    Args:
        in_channels: features of a node in x, or a pair: of a source and of a target.
        out_channels: features of a node in y.
        num_relations: how many types edges have.
        nn: the g, of which each is a copy with parameters of its own, a module that maps [nodes, in] to
            [nodes, 2 * out]; None: a linear layer.
        act: sigma, as that of ResGatedGraphConv.
        aggr: how the messages of a relation are reduced: "add" or "sum", "mean", "max", "min".
        precision: as in GCNConv; the errors are also as there.
    """

    _shown = ("num_relations",)

    def __init__(
        self,
        in_channels: int | tuple[int, int],
        out_channels: int,
        num_relations: int = 1,
        nn: torch.nn.Module | None = None,
        act: Callable[[Any], Any] | None = torch.nn.ReLU(),  # noqa: B008  (as PyG's; it has no state)
        aggr: str = "mean",
        *,
        precision: Precision | str | None = None,
    ) -> None:
        super().__init__(precision)
        self.in_channels, self._channels = in_channels, check_channels(in_channels)
        self.out_channels = check_integer("out_channels", out_channels, most=MOST_FEATURES)
        self.num_relations = check_integer("num_relations", num_relations)
        self.act = act
        self.aggr, self._reduce = aggr, AGGREGATIONS[check_choice("aggr", aggr, tuple(AGGREGATIONS))]
        sources, targets = self._channels
        self.lins, self.films = torch.nn.ModuleList(), torch.nn.ModuleList()

        def film(bias: bool) -> torch.nn.Module:
            return torch.nn.Linear(targets, 2 * out_channels, bias) if nn is None else copy.deepcopy(nn)

        for _ in range(num_relations):
            self.lins.append(torch.nn.Linear(sources, out_channels, bias=False))
            self.films.append(film(True))
        self.lin_skip = torch.nn.Linear(targets, out_channels, bias=False)
        self.film_skip = film(False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw all parameters anew, and drop a cached operand."""
        for lin, film in zip(self.lins, self.films, strict=True):
            reset(lin)
            reset(film)
        reset(self.lin_skip)
        reset(self.film_skip)
        self._memo.clear()

    def forward(
        self,
        x: torch.Tensor | Nodes,
        adj: SparseOperand | torch.Tensor,
        edge_type: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Compute the layer's output.

        Args:
            x: the argument of ResGatedGraphConv.forward.
            adj: an edge_index [2, edges], see GCNConv.forward; with a single relation also a SparseOperand
                [targets, sources], whose weights are not used. Repeated edges count several times.
            edge_type: int64 or int32 [edges], the relations of the edges, from 0 on. Edges of no relation
                play no part. With a single one it is not used.

        Returns:
            [targets, out_channels].

        The errors are those of ResGatedGraphConv.forward.
        """
        nodes = check_nodes(x, self._channels, self.lin_skip.weight)
        sources, targets = both(nodes)
        size = graph_size(nodes, None, adj)
        beta, gamma = self.film_skip(targets).chunk(2, dim=-1)
        out: torch.Tensor = gamma * self.lin_skip(targets) + beta
        out = out if self.act is None else self.act(out)
        operands = self._operands(adj, size, edge_type)
        for operand, lin, film in zip(operands, self.lins, self.films, strict=True):
            beta, gamma = film(targets).chunk(2, dim=-1)
            terms = {"gamma_i": gamma, "beta_i": beta, "x_j": lin(sources)}
            out = out + aggregate_edges(operand, _modulated(self.act), reduce=self._reduce, **terms)
        return out

    def _operands(self, adj: Any, size: tuple[int, int], edge_type: Any) -> list[SparseOperand]:
        if self.num_relations == 1:
            return [self._operand(adj, size)]
        if isinstance(adj, SparseOperand):
            bad_type("adj", adj, "an edge_index [2, edges], whose edges have types")
        check_edges(adj)
        if not isinstance(edge_type, torch.Tensor) or edge_type.dtype not in (torch.int64, torch.int32):
            bad_type("edge_type", edge_type, "an int64 or int32 tensor [edges]")
        if edge_type.shape != adj.shape[1:] or edge_type.device != adj.device:
            got = f"has shape {tuple(edge_type.shape)} on {edge_type.device}"
            bad_value("edge_type", f"{got}; accepted: {tuple(adj.shape[1:])} on {adj.device}, as the edges")
        recipe = _ByType(self.num_relations, self.precision or Precision.FP32)
        return self._memo.adjacency(size, adj, recipe, edge_type)


@fixed
def _general(x_j: Any, eps: Any) -> Any:
    return F.relu(x_j) + eps


@fixed
def _general_with_edges(x_j: Any, e_ij: Any, eps: Any) -> Any:
    return F.relu(x_j + e_ij) + eps


@fixed
def _general_with_map(x_j: Any, e_ij: Any, eps: Any, weight: Any) -> Any:
    return F.relu(x_j + F.linear(e_ij, weight)) + eps


class _Temperature(torch.nn.Module):
    """Holds the learned inverse temperature, or power, by the name that PyG's aggregation has for it."""

    def __init__(self, name: str, first: float) -> None:
        super().__init__()
        self._name, self._first = name, first
        self.register_parameter(name, torch.nn.Parameter(torch.empty(1)))
        self.reset_parameters()

    @property
    def value(self) -> torch.Tensor:
        return getattr(self, self._name)

    def reset_parameters(self) -> None:
        torch.nn.init.constant_(self.value, self._first)


class _MessageNorm(torch.nn.Module):
    """Gives rows of messages the lengths of those of x, times a scale."""

    def __init__(self, learn_scale: bool) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.empty(1), requires_grad=learn_scale)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        torch.nn.init.ones_(self.scale)

    def forward(self, x: torch.Tensor, message: torch.Tensor) -> torch.Tensor:
        return F.normalize(message, dim=-1) * x.norm(dim=-1, keepdim=True) * self.scale


_NORMS: dict[str, Callable[[int], torch.nn.Module]] = {
    "batch": torch.nn.BatchNorm1d, "layer": torch.nn.LayerNorm, "instance": torch.nn.InstanceNorm1d,
}  # fmt: skip


class GENConv(EdgeLayer):
    """y_i = h(x_i + reduce_j(relu(x_j + e_ij) + eps)), where h is a network (Li et al. 2020).

    "DeeperGCN: All You Need to Train Deeper GCNs", equation 6. Arguments, parameters and `state_dict` (those
    of h below `mlp.`, `aggr_module.t` [1] with `learn_t`, `aggr_module.p` [1] with `learn_p`,
    `msg_norm.scale` [1] with `msg_norm`, and where widths differ from `out_channels` those of `lin_src`,
    `lin_edge` and `lin_dst`) are those of PyG's GENConv, and outputs agree with it. No message is stored, nor
    up to 16 mapped features of edges.

    Args:
        in_channels: features of a node in x, or a pair: of a source and of a target.
        out_channels: features of a node in y, and of messages.
        aggr: how messages are reduced: "softmax", the sum weighted by their softmax over a target's edges,
            feature by feature; "powermean", the root of the mean of powers; "add" or "sum", "mean", "max",
            "min".
        t: the factor of messages in the exponents of the softmax, at first.
        learn_t: whether t is learned.
        p: the power of the power mean, at first, other than 0.
        learn_p: whether p is learned.
        msg_norm: whether rows of reduced messages get the length of x_i, times a scale.
        learn_msg_scale: whether this scale, 1 at first, is learned.
        norm: the layers between those of h: "batch", "layer", "instance", or None.
        num_layers: linear layers of h.
        expansion: how many times `out_channels` features those have between.
        eps: added to messages.
        bias: whether linear layers have a bias.
        edge_dim: features of an edge, which a linear layer maps to `out_channels` if they are not as many;
            None: they are, or there are none.
        precision: as in GCNConv; the errors are also as there.
    """

    eps_of_messages: torch.Tensor
    _shown = ("aggr",)

    def __init__(
        self,
        in_channels: int | tuple[int, int],
        out_channels: int,
        aggr: str = "softmax",
        t: float = 1.0,
        learn_t: bool = False,
        p: float = 1.0,
        learn_p: bool = False,
        *,
        msg_norm: bool = False,
        learn_msg_scale: bool = False,
        norm: str | None = "batch",
        num_layers: int = 2,
        expansion: int = 2,
        eps: float = 1e-7,
        bias: bool = False,
        edge_dim: int | None = None,
        precision: Precision | str | None = None,
    ) -> None:
        super().__init__(precision)
        self.in_channels, self._channels = in_channels, check_channels(in_channels)
        self.out_channels = out = check_integer("out_channels", out_channels, most=MOST_FEATURES)
        names = AGGREGATIONS | {"softmax": "softmax", "powermean": "powermean"}
        self.aggr, self._reduce = aggr, names[check_choice("aggr", aggr, tuple(names))]
        self.t, self.p = check_number("t", t), check_number("p", p)
        self.learn_t, self.learn_p = check_flag("learn_t", learn_t), check_flag("learn_p", learn_p)
        if p == 0:
            bad_value("p", "got 0; accepted: a number other than 0")
        if learn_t and aggr == "softmax":
            self.aggr_module = _Temperature("t", t)
        elif aggr == "powermean" and learn_p:
            self.aggr_module = _Temperature("p", p)
        elif aggr == "powermean" and p == 1:
            self._reduce = "mean"  # as PyG, which clamps nothing then
        self.eps = check_number("eps", eps)
        # A tensor: messages use nothing but their arguments.
        eps_of_messages = torch.tensor([eps], dtype=torch.float32, device=None)
        self.register_buffer("eps_of_messages", eps_of_messages, persistent=False)
        sources, targets = self._channels
        self.edge_dim = check_edge_dim(edge_dim)
        check_flag("bias", bias)
        linear: Callable[[Any], torch.nn.Linear] = lambda width: torch.nn.Linear(width, out, bias)  # noqa: E731
        self.lin_src = linear(sources) if sources != out else None
        self.lin_edge = linear(edge_dim) if edge_dim not in (None, out) else None
        self.lin_dst = linear(targets) if targets != out else None
        if norm is not None:
            check_choice("norm", norm, tuple(_NORMS))
        hidden = out * check_integer("expansion", expansion)
        widths = [out, *[hidden] * (check_integer("num_layers", num_layers) - 1), out]
        layers: list[torch.nn.Module] = []
        for i, width in enumerate(widths[1:]):
            layers.append(torch.nn.Linear(widths[i], width, bias=bias))
            if i < num_layers - 1:
                layers += [] if norm is None else [_NORMS[norm](width)]
                layers += [torch.nn.ReLU(), torch.nn.Dropout(0.0)]
        self.mlp = torch.nn.Sequential(*layers)
        self.msg_norm = _MessageNorm(learn_msg_scale) if check_flag("msg_norm", msg_norm) else None

    def forward(
        self,
        x: torch.Tensor | Nodes,
        adj: SparseOperand | torch.Tensor,
        edge_attr: torch.Tensor | None = None,
        size: tuple[int, int] | None = None,
    ) -> torch.Tensor:
        """Compute the layer's output.

        Args:
            x: the argument of SAGEConv.forward; without features of targets x_i is not added.
            adj: the argument of GINEConv.forward.
            edge_attr: [edges, edge_dim], or [edges, out_channels] without `edge_dim`, in the order of the
                edge_index, or of the edges that the operand was prepared from; None: e_ij is 0.
            size: the argument of SAGEConv.forward.

        Returns:
            [targets, out_channels].

        The errors are those of ResGatedGraphConv.forward.
        """
        weight: torch.Tensor = self.mlp[0].weight  # type: ignore[assignment]
        nodes = check_nodes(x, self._channels, weight)
        operand = self._operand(adj, graph_size(nodes, size, adj))
        sources, targets = nodes
        sources = sources if self.lin_src is None else self.lin_src(sources)
        out = self._reduced(operand, sources, edge_attr, weight)
        if self.msg_norm is not None:
            out = self.msg_norm(sources if targets is None else targets, out)
        if targets is not None:
            out = out + (targets if self.lin_dst is None else self.lin_dst(targets))
        return self.mlp(out)

    def _reduced(
        self, operand: SparseOperand, sources: torch.Tensor, edge_attr: Any, weight: torch.Tensor
    ) -> torch.Tensor:
        terms: dict[str, Any] = {"x_j": sources, "eps": self.eps_of_messages}
        message, lin = _general, self.lin_edge
        if edge_attr is not None and lin is None:
            message, terms["e_ij"] = _general_with_edges, edge_rows(operand, edge_attr, self.out_channels)
        elif edge_attr is not None and lin is not None:
            edges = edge_rows(operand, edge_attr, lin.in_features, weight)
            if lin.bias is not None:
                terms["x_j"] = sources + lin.bias.to(sources.dtype)
            message, terms = _general_with_map, {**terms, "e_ij": edges, "weight": lin.weight}
        own = self._modules.get("aggr_module")
        number = self.p if self.aggr == "powermean" else self.t
        temperature: Any = own.value if isinstance(own, _Temperature) else number
        return aggregate_edges(operand, message, reduce=self._reduce, temperature=temperature, **terms)
