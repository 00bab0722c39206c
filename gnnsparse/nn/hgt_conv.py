"""The layer of heterogeneous graph Transformers, found by `gnnsparse.nn`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812

from gnnsparse.errors import bad_type, bad_value, check_integer
from gnnsparse.nn.adjacency import GraphLayer, check_precision
from gnnsparse.nn.edges import EdgeRecipe, Edges, attend
from gnnsparse.nn.inputs import MOST_FEATURES, check_features, check_heads
from gnnsparse.precision import Precision
from gnnsparse.sparse.typed import Relation, TypedGraph

__all__ = ["HGTConv"]

#: How many times wider than the output an input is mapped once, and not for each relation.
_WIDE = 2


#: Names that no module or parameter in a dictionary of torch can have.
_TAKEN = frozenset(["", *dir(torch.nn.ModuleDict()), *dir(torch.nn.ParameterDict())])


def _name_of(kind: str) -> str:
    """Return the name of a type's module or parameter: its own, unless torch refuses it."""
    return (f"<{kind}>" if kind in _TAKEN else kind).replace(".", "#")


class ModulesOfTypes(torch.nn.ModuleDict):
    """Modules by the names of types, which may be those of attributes, such as "items", and have dots."""

    def __getitem__(self, kind: str) -> torch.nn.Module:
        return super().__getitem__(_name_of(kind))

    def __setitem__(self, kind: str, module: torch.nn.Module) -> None:
        super().__setitem__(_name_of(kind), module)

    def __contains__(self, kind: str) -> bool:
        return super().__contains__(_name_of(kind))


class _ParametersOfTypes(torch.nn.ParameterDict):
    def __getitem__(self, kind: str) -> Any:
        return super().__getitem__(_name_of(kind))

    def __setitem__(self, kind: str, parameter: Any) -> None:
        super().__setitem__(_name_of(kind), parameter)


class _Maps(torch.nn.Module):
    """A linear map for each type of nodes, under the names that PyG gives them."""

    def __init__(self, channels: dict[str, int], out: int) -> None:
        super().__init__()
        self.lins = ModulesOfTypes({kind: torch.nn.Linear(n, out) for kind, n in channels.items()})

    def reset_parameters(self) -> None:
        for linear in self.lins.values():
            linear.reset_parameters()  # type: ignore[operator]


class _Matrices(torch.nn.Module):
    """Square matrices of each head and relation, those of a head together: [heads * relations, dim, dim]."""

    def __init__(self, count: int, dim: int) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.empty(count, dim, dim))

    def reset_parameters(self) -> None:
        bound = 1 / math.sqrt(self.weight.shape[1])
        torch.nn.init.uniform_(self.weight, -bound, bound)


class HGTConv(GraphLayer):
    """y_i = W_out gelu(sum_r sum_j p_ijr M_r v_j), p the softmax over r and j of m_r q_i . A_r k_j / sqrt(d).

    "Heterogeneous Graph Transformer" (Hu et al. 2020), equations 3 to 5, the attention of all relations in
    a single launch. q, k and v are linear maps of the features by type; A_r, M_r and m_r are of the
    relation and the head. With s_t a gate of the type, y_i is sigmoid(s_t) y_i + (1 - sigmoid(s_t)) x_i where
    both have as many features. The matrices of a relation are multiplied by those of the type first, so that
    k and v are stored for the sources of each relation, and nothing for edges. Arguments, parameters and
    `state_dict` are those of PyG's HGTConv, and outputs agree with it, which needs relations in the order of
    the metadata: `kqv_lin.lins.<type>` [3 * out, in], `out_lin.lins.<type>` [out, out], both with biases;
    `k_rel.weight` and `v_rel.weight` [heads * relations, d, d]; `skip.<type>` [1];
    `p_rel.<source type>__<name>__<target type>` [1, heads].

    Args:
        in_channels: features of a node, or a dict: of each type of nodes.
        out_channels: features of a node in y, d = out_channels / heads in a head.
        metadata: the types of nodes, and the relations (source type, name, target type), as PyG's
            `HeteroData.metadata()` returns them.
        heads: number of heads.
        precision: the argument of GCNConv.

    Raises:
        TypeError: an argument is of another type.
        ValueError: an argument is out of range, or types are missing.
    """

    in_channels: dict[str, int]

    def __init__(
        self,
        in_channels: int | dict[str, int],
        out_channels: int,
        metadata: tuple[list[str], list[Relation]],
        heads: int = 1,
        *,
        precision: Precision | str | None = None,
    ) -> None:
        super().__init__(precision)
        channels, self.edge_types = check_typed(in_channels, out_channels, heads, metadata)
        self.node_types = list(metadata[0])
        self.in_channels, self.out_channels, self.heads = channels, out_channels, heads
        self.dst_node_types = {relation[2] for relation in self.edge_types}
        self.kqv_lin = _Maps(self.in_channels, 3 * out_channels)
        self.out_lin = _Maps(dict.fromkeys(self.node_types, out_channels), out_channels)
        count, dim = heads * len(self.edge_types), out_channels // heads
        self.k_rel, self.v_rel = _Matrices(count, dim), _Matrices(count, dim)
        self.skip = _ParametersOfTypes({kind: torch.nn.Parameter(torch.empty(1)) for kind in self.node_types})
        self.p_rel = torch.nn.ParameterDict()
        for relation in self.edge_types:
            self.p_rel[key_of(relation)] = torch.nn.Parameter(torch.empty(1, heads))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the weights uniformly from +-1/sqrt(inputs), set m and s to 1, and drop a cached operand."""
        for module in (self.kqv_lin, self.out_lin, self.k_rel, self.v_rel):
            module.reset_parameters()
        for parameter in (*self.skip.values(), *self.p_rel.values()):
            torch.nn.init.ones_(parameter)
        self._memo.clear()

    def forward(
        self, x_dict: dict[str, torch.Tensor], edge_index_dict: dict[Relation, torch.Tensor] | TypedGraph
    ) -> dict[str, torch.Tensor]:
        """Compute the layer's outputs.

        Args:
            x_dict: features [nodes, in] of types of nodes, float32, float16 or bfloat16.
            edge_index_dict: an edge_index [2, edges] for relations of the layer between these types, of which
                some may be missing or empty; repeated edges count several times. Or a TypedGraph of these
                types, prepared or not.

        Returns:
            [nodes, out_channels] of each type that a relation of the metadata ends at.

        Raises:
            TypeError: an argument is of another type or dtype.
            ValueError: an argument has another shape or device, or a type is not known.
        """
        counts = typed_counts(x_dict, self.kqv_lin.lins)
        edges, relations, kinds = typed_edges(self, counts, edge_index_dict, self.edge_types)
        q, k, v = self._projected(x_dict, relations, kinds)
        sums = attend(edges, q, k, v, None, False, score="dot")[0].flatten(1)
        parts = zip(kinds, sums.split([counts[kind] for kind in kinds]), strict=True)
        return {
            kind: self._out(kind, part, x_dict[kind]) for kind, part in parts if kind in self.dst_node_types
        }

    def _projected(
        self, x_dict: Mapping[str, torch.Tensor], relations: list[Relation], kinds: list[str]
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return queries of all nodes, and keys and values of the sources of each relation in turn."""
        out, heads = self.out_channels, (self.heads, self.out_channels // self.heads)
        matrices = torch.stack([self.k_rel.weight, self.v_rel.weight]).unflatten(1, (self.heads, -1))
        given: dict[str, tuple[torch.Tensor, ...]] = {}
        for kind in kinds:
            x, linear = x_dict[kind], self.kqv_lin.lins[kind]
            weight: Any = linear.weight
            bias: Any = linear.bias
            if weight.shape[1] > _WIDE * out:
                x = F.linear(x, weight, bias)
                weight = torch.eye(3 * out, dtype=weight.dtype, device=weight.device)
                bias = torch.zeros(3 * out, dtype=weight.dtype, device=weight.device)
            given[kind] = x, weight.unflatten(0, (3, *heads)), bias.unflatten(0, (3, *heads))
        q = torch.cat([F.linear(x, w[1].flatten(0, 1), b[1].flatten()) for x, w, b in given.values()])
        found = []
        for relation in relations:
            x, w, b = given[relation[0]]
            k_rel, v_rel = matrices[:, :, self.edge_types.index(relation)].unbind()
            both = torch.stack([k_rel * self.p_rel[key_of(relation)].reshape(-1, 1, 1), v_rel])
            weight = torch.einsum("rhde,rhdx->rhex", both, w[::2]).flatten(0, 2)
            found.append(F.linear(x, weight, torch.einsum("thde,thd->the", both, b[::2]).flatten()))
        k, v = torch.cat(found).unflatten(1, (2, *heads)).unbind(1)
        return q.unflatten(1, heads), k, v

    def _out(self, kind: str, sums: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.out_lin.lins[kind](F.gelu(sums))
        if y.shape[-1] != x.shape[-1]:
            return y
        gate = self.skip[kind].sigmoid()
        return gate * y + (1 - gate) * x

    def __repr__(self) -> str:
        return f"{type(self).__name__}(-1, {self.out_channels}, heads={self.heads})"


def key_of(relation: Relation) -> str:
    """Return the name of a relation's parameter as PyG has it, which has no dots."""
    return "__".join(relation).replace(".", "#")


def check_typed(
    in_channels: Any, out_channels: Any, heads: Any, metadata: Any
) -> tuple[dict[str, int], list[Relation]]:
    """Return the features of each type of nodes, and the relations; or raise if arguments do not fit."""
    check_heads(heads, out_channels)
    if out_channels % heads:
        bad_value("heads", f"got {heads} for {out_channels} features; accepted: a divisor of out_channels")
    if not isinstance(metadata, (tuple, list)) or len(metadata) != 2 or not all(metadata):
        bad_type("metadata", metadata, "(types of nodes, relations), as HeteroData.metadata()")
    kinds, relations = list(metadata[0]), [tuple(relation) for relation in metadata[1]]
    channels = in_channels if isinstance(in_channels, Mapping) else dict.fromkeys(kinds, in_channels)
    if set(channels) != set(kinds):
        bad_value("in_channels", f"has {sorted(channels)}; accepted: {sorted(kinds)}")
    for kind, features in channels.items():
        check_integer(f"in_channels[{kind!r}]", features, most=MOST_FEATURES)
    for relation in relations:
        if len(relation) != 3 or not {relation[0], relation[2]} <= {*kinds}:
            bad_value("metadata", f"has {relation}; accepted: triples of types in {kinds}")
    return dict(channels), relations


def typed_counts(x_dict: Any, maps: Any) -> dict[str, int]:
    """Return the number of nodes of each type that has features, for each of which there is a linear map."""
    if not isinstance(x_dict, Mapping):
        bad_type("x_dict", x_dict, "a dict of features by the type of nodes")
    for kind, x in x_dict.items():
        if kind not in maps:
            bad_value("x_dict", f"has the type {kind!r}; accepted: {', '.join(map(repr, maps))}")
        weight = maps[kind].weight
        check_features(f"x_dict[{kind!r}]", x, weight.shape[1], weight)
    return {kind: x.shape[0] for kind, x in x_dict.items()}


def typed_edges(
    layer: GraphLayer, counts: dict[str, int], given: Any, known: list[Relation], by_relation: bool = False
) -> tuple[Edges, list[Relation], list[str]]:
    """Return the edges of all relations, these, and the types of nodes, in the order of the operand."""
    recipe = EdgeRecipe(False, layer.precision or Precision.FP32)
    if not isinstance(given, (TypedGraph, Mapping)) or given == {}:
        bad_type("edge_index_dict", given, "a dict of edge_index by relation, not empty, or a TypedGraph")
    relations = given.relations if isinstance(given, TypedGraph) else list(given)
    for relation in relations:
        if relation not in known:
            bad_value("edge_index_dict", f"has {relation}; accepted: {', '.join(map(str, known))}")
        for kind in (relation[0], relation[2]):
            if kind not in counts:
                bad_value("x_dict", f"lacks {kind!r}; accepted: features of both types of {relation}")
    if not isinstance(given, TypedGraph):
        return layer._memo.typed(counts, given, recipe, by_relation), relations, list(counts)
    if given.num_nodes != counts:
        bad_value("x_dict", f"has nodes {counts}, the graph {given.num_nodes}; accepted: as the graph")
    if given.operand is not None:
        check_precision(given.operand, layer.precision)
        recipe = replace(recipe, precision=given.operand.precision)
    if given.operand is None or by_relation:
        return given.adjacency(recipe, by_relation), relations, list(given.num_nodes)
    return Edges(given.operand, given.operand.num_edges), relations, list(given.num_nodes)
