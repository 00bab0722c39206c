"""The layer of relational graph convolutional networks, found by `gnnsparse.nn`."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812

from gnnsparse.errors import bad_type, bad_value, check_choice, check_flag, check_integer
from gnnsparse.nn.adjacency import GraphLayer, Preparation, Recipe, check_edges
from gnnsparse.nn.edges import glorot_
from gnnsparse.nn.inputs import MOST_FEATURES, check_channels, check_features
from gnnsparse.ops import spmm
from gnnsparse.ops.attention.edges import order_of
from gnnsparse.precision import Precision
from gnnsparse.sparse.operand import SparseOperand
from gnnsparse.sparse.typed import TypedGraph

__all__ = ["RGCNConv"]

_INTEGERS = (torch.int64, torch.int32)

#: Multiplications of a dense product that take as long as one of a sparse product, about, on CPUs and GPUs.
GATHER = 32
#: How many times fewer rows the dense factor must have for its rows to be gathered from those of the sources.
_FEW = 4
#: How many times fewer rows it must have for a dense product of each range of sources in place of one of all.
_FEWER = 1.25


@dataclass(frozen=True)
class RelationRecipe(Recipe):
    """How the operand of edges of several types is made; it gets int64 [3, edges], the types below.

    Its dense factor has a row for each source and relation, those of a source together. Where the nodes of a
    type have consecutive numbers, relations begin in ranges of the sources that are apart: then it has only
    the rows of each range and of the relations that begin there. If edges begin at few of these pairs, it has
    a row for each of them, those of a relation together. `form`: "auto"; "all": of all pairs; "bases": it has
    a row for each source, and the coefficients of the bases are edge values. `mean`: weights are 1 / (edges
    of a type at a target).
    """

    relations: int
    mean: bool
    form: str
    precision: Precision
    preparation: Preparation | None = None

    def make(self, edge_index: torch.Tensor, size: tuple[int, int], weighted: bool) -> Relations:
        """See Recipe."""
        source, target, kind = edge_index
        # What is out of range would be another column of the operand, and prepare could not tell.
        for name, numbers, count in (("edge_type", kind, self.relations), ("edge_index", source, size[0])):
            low, high = (int(end) for end in numbers.aminmax()) if len(numbers) > 0 else (0, 0)
            if low < 0 or high >= max(count, 1):
                what = "types" if numbers is kind else "sources"
                bad_value(name, f"has {what} from {low} to {high}; accepted: 0 to {count - 1}")
        exact, share = replace(self, precision=Precision.FP32, preparation=Preparation()), None
        if self.mean:
            _, which, count = (target * self.relations + kind).unique(return_inverse=True, return_counts=True)
            share = count.float().reciprocal()[which]
        if self.form == "bases":
            operand = self.prepare(torch.stack([source, target]), size)
            # The value of a nonzero is the sum of share * comp[kind] over its edges: a sparse product too, so
            # that its gradient has the same bits in every run.
            slots = torch.stack([kind, order_of(operand).nonzero_of])
            return Relations(operand, kinds=exact.prepare(slots, (self.relations, operand.nnz), share))
        whole = Ranges([(0, size[0])], None, [self.relations])
        ranges = whole if self.form == "all" else _ranges_of(source, kind, size[0], self.relations)
        if ranges.rows * _FEWER >= whole.rows:
            ranges = whole
        if self.form == "auto":
            pairs, place = (kind * size[0] + source).unique(return_inverse=True)
            if len(pairs) * _FEW <= ranges.rows:
                operand = self.prepare(torch.stack([place, target]), (len(pairs), size[1]), share)
                kind, source = pairs // size[0], pairs % size[0]
                rows = torch.arange(len(pairs), device=pairs.device, dtype=torch.int64)
                select = exact.prepare(torch.stack([source, rows]), (size[0], len(pairs)))
                counts = torch.bincount(kind, minlength=self.relations).tolist()
                return Relations(operand, None, None, (kind, source), select, counts)
        edges = torch.stack([ranges.rows_of(source, kind, self.relations), target])
        return Relations(self.prepare(edges, (ranges.rows, size[1]), share), None, ranges)


@dataclass(frozen=True, eq=False)
class Ranges:
    """Ranges of the sources, in their order and apart, and the relations that begin in each.

    `ends` are the first source of each range and the one behind the last; `relations` int64 those of all
    ranges in turn, so many of each in `counts`; None: all relations, in one range.
    """

    ends: list[tuple[int, int]]
    relations: torch.Tensor | None
    counts: list[int]

    @property
    def rows(self) -> int:
        """How many pairs of a source and a relation there are."""
        return sum((end - start) * count for (start, end), count in zip(self.ends, self.counts, strict=True))

    def rows_of(self, source: torch.Tensor, kind: torch.Tensor, relations: int) -> torch.Tensor:
        """Return the numbers of pairs, int64 [edges]: by range, then by source."""
        if self.relations is None:
            return source * relations + kind
        numbers = torch.empty((3, relations), dtype=torch.int64, device=source.device)
        first = 0
        for own, (start, end), count in zip(
            self.relations.split(self.counts), self.ends, self.counts, strict=True
        ):
            numbers[0, own] = torch.arange(count, dtype=torch.int64, device=own.device) + first
            numbers[1, own], numbers[2, own] = start, count
            first += (end - start) * count
        first_row, start_of, step = numbers[:, kind]
        return first_row + (source - start_of) * step

    def products(self, x: torch.Tensor | None, weight: torch.Tensor) -> torch.Tensor:
        """Return the products of the pairs, [rows, out], of nodes and matrices as of `mapped`."""
        own = (
            [weight] if self.relations is None else weight.index_select(0, self.relations).split(self.counts)
        )
        if x is None:
            parts = [mapped(None, w[:, start:end]) for w, (start, end) in zip(own, self.ends, strict=True)]
        elif self.relations is None:
            parts = [mapped(x, weight)]
        else:  # one operation, whose gradient is not a sum of arrays in the size of x
            bounds = [0, *(bound for ends in self.ends for bound in ends), len(x)]
            split = x.split([b - a for a, b in itertools.pairwise(bounds)])[1::2]
            parts = [mapped(of_range, w) for of_range, w in zip(split, own, strict=True)]
        rows = [part.reshape(-1, part.shape[1] // len(w)) for part, w in zip(parts, own, strict=True)]
        return rows[0] if len(rows) == 1 else torch.cat(rows)


def _ranges_of(source: torch.Tensor, kind: torch.Tensor, sources: int, relations: int) -> Ranges:
    """Return the ranges in which edges begin, those of relations whose ranges overlap made one."""
    ends = torch.empty((2, relations), dtype=torch.int64, device=source.device)
    ends[0].fill_(sources).scatter_reduce_(0, kind, source, "amin")
    ends[1].fill_(-1).scatter_reduce_(0, kind, source, "amax")
    found: list[tuple[int, int, list[int]]] = []
    for first, last, number in sorted(zip(*ends.tolist(), range(relations), strict=True)):
        if last < 0:
            break  # no edge, like those behind it
        if found and first < found[-1][1]:
            start, end, own = found.pop()
            found.append((start, max(end, last + 1), [*own, number]))
        else:
            found.append((first, last + 1, [number]))
    order = [number for *_, own in found for number in own]
    return Ranges(
        [(start, end) for start, end, _ in found],
        torch.tensor(order, dtype=torch.int64, device=source.device),
        [len(own) for *_, own in found],
    )


@dataclass(frozen=True, eq=False)
class Relations:
    """The operand of a RelationRecipe, [targets, rows of its dense factor].

    `kinds` [nonzeros, relations] makes edge values of the coefficients of bases. Rows are those of `ranges`;
    or they are of few pairs: `pairs` are the relation and the source of each, which `select` [rows, sources]
    takes, and relations have so many rows each in `counts`.
    """

    operand: SparseOperand
    kinds: SparseOperand | None = None
    ranges: Ranges | None = None
    pairs: tuple[torch.Tensor, torch.Tensor] | None = None
    select: SparseOperand | None = None
    counts: list[int] | None = None


class RGCNConv(GraphLayer):
    """y_i = sum_r sum_j W_r x_j / c_ir + W x_i + b, where j are the c_ir neighbours of i in relation r.

    "Modeling Relational Data with Graph Convolutional Networks" (Schlichtkrull et al. 2018), equation 2, in
    one sparse product for all relations. Arguments, parameters and `state_dict` (`weight` [relations, in,
    out]; with bases [bases, in, out], and `comp` [relations, bases]; with blocks [relations, blocks, in /
    blocks, out / blocks]; `root` [in, out]; `bias` [out]) are those of PyG's RGCNConv, and outputs agree with
    it.

    Args:
        in_channels: features of a node in x, or a pair: of a source and of a target. Of nodes without
            features it is their number.
        out_channels: features of a node in y.
        num_relations: number of types of edges.
        num_bases: the W_r are sums of so many matrices, with coefficients for each relation (equation 3);
            None: each relation has a matrix of its own.
        num_blocks: the W_r are block-diagonal, with so many blocks (equation 4); None: they are full.
        aggr: "mean" (the formula), or "sum" or "add": c_ir is 1.
        root_weight: whether there is the term W x_i.
        is_sorted: of no effect; PyG's layer is faster with edges in the order of their types.
        bias: whether b is learned; False: there is none.
        precision: the argument of GCNConv.

    Raises:
        TypeError: an argument is of another type.
        ValueError: an argument is out of range; num_bases and num_blocks are both given; or num_blocks does
            not divide the numbers of features.
    """

    _shown = ("num_relations",)
    weight: torch.Tensor
    comp: torch.Tensor | None
    root: torch.Tensor | None
    bias: torch.Tensor | None

    def __init__(
        self,
        in_channels: int | tuple[int, int],
        out_channels: int,
        num_relations: int,
        num_bases: int | None = None,
        num_blocks: int | None = None,
        aggr: str = "mean",
        root_weight: bool = True,
        is_sorted: bool = False,
        bias: bool = True,
        *,
        precision: Precision | str | None = None,
    ) -> None:
        super().__init__(precision)
        self.in_channels, self._channels = in_channels, check_channels(in_channels)
        sources, targets = self._channels
        self.out_channels = check_integer("out_channels", out_channels, most=MOST_FEATURES)
        self.num_relations = check_integer("num_relations", num_relations, most=MOST_FEATURES)
        self.num_bases, self.num_blocks = num_bases, num_blocks
        self.aggr = check_choice("aggr", aggr, ("mean", "sum", "add"))
        self.is_sorted = check_flag("is_sorted", is_sorted)
        shape: tuple[int, ...] = num_relations, sources, out_channels
        check_blocks(num_bases, num_blocks, sources, out_channels)
        if num_bases is not None:
            shape = num_bases, *shape[1:]
        if num_blocks is not None:
            shape = num_relations, num_blocks, sources // num_blocks, out_channels // num_blocks
        self.weight = torch.nn.Parameter(torch.empty(shape))
        of_bases = None if num_bases is None else torch.nn.Parameter(torch.empty(num_relations, num_bases))
        self.register_parameter("comp", of_bases)
        has_root, has_bias = check_flag("root_weight", root_weight), check_flag("bias", bias)
        root = torch.nn.Parameter(torch.empty(targets, out_channels)) if has_root else None
        self.register_parameter("root", root)
        self.register_parameter("bias", torch.nn.Parameter(torch.empty(out_channels)) if has_bias else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the weights (Glorot and Bengio 2010), set the bias to 0, and drop a cached operand."""
        for parameter in (self.weight, self.comp, self.root):
            if parameter is not None:
                glorot_(parameter)
        if self.bias is not None:
            torch.nn.init.zeros_(self.bias)
        self._memo.clear()

    def forward(
        self,
        x: torch.Tensor | tuple[torch.Tensor | None, torch.Tensor] | None,
        adj: torch.Tensor | TypedGraph,
        edge_type: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Compute the layer's output.

        Args:
            x: [nodes, in_channels], float32, float16 or bfloat16, on the device of `adj`; int64 or int32
                [nodes], places of the only 1 in rows that are else 0; None: that of node i is at place i; or
                a pair of what stands for sources and for targets, of which the latter is not None.
            adj: an edge_index [2, edges], see GCNConv.forward; repeated edges count several times. Or a
                TypedGraph of `num_relations` relations: x are those of its types, one after another, and
                layers with equal options share one operand.
            edge_type: with an edge_index: int64 or int32 [edges], the relations of the edges, from 0 on.
                Changes of it are noticed as those of `adj`.

        Returns:
            [targets, out_channels], in the dtype of the linear layers' outputs.

        The errors are those of GATConv.forward.
        """
        sources, targets = self._nodes(x)
        channels = self._channels
        size = (
            channels[0] if sources is None else sources.shape[0],
            channels[1] if targets is None else targets.shape[0],
        )
        if isinstance(adj, TypedGraph):
            self._check_typed(adj, edge_type, size)
            count = adj.num_edges
        else:
            check_typed_edges(adj, edge_type)
            count = adj.shape[1]
        form = "bases" if self._is_by_bases(sources, size[0], count) else "auto"
        recipe = RelationRecipe(self.num_relations, self._is_mean, form, self.precision or Precision.FP32)
        if isinstance(adj, TypedGraph):
            made = adj.of_relations(recipe)
        else:
            made = self._memo.adjacency(size, adj, recipe, edge_type)
        return self._with_root(self._of_neighbours(sources, made), targets)

    def _check_typed(self, graph: TypedGraph, edge_type: Any, size: tuple[int, int]) -> None:
        if edge_type is not None:
            bad_value("edge_type", "goes with an edge_index; a TypedGraph has its relations")
        if len(graph.relations) != self.num_relations:
            got = f"has {len(graph.relations)} relations"
            bad_value("adj", f"{got}; accepted: {self.num_relations}, as num_relations")
        if size != (nodes := graph.block_size[1],) * 2:
            bad_value("x", f"has {' and '.join(map(str, size))} rows; accepted: {nodes}, as the graph")

    @property
    def _is_mean(self) -> bool:
        return self.aggr == "mean"

    def _nodes(self, x: Any) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """Return what stands for sources and for targets: features, places, or None."""
        pair = x if isinstance(x, (tuple, list)) else (x, x)
        if len(pair) != 2:
            bad_value("x", f"has {len(pair)} elements; accepted: one of nodes, or of sources and of targets")
        if pair[1] is None and pair is x:
            bad_value("x", "has no features of targets; accepted: a pair of both")
        names = ("x", "x") if pair is not x else ("x[0]", "x[1]")
        for name, of_nodes, features in zip(names, pair, self._channels, strict=True):
            is_places = isinstance(of_nodes, torch.Tensor) and of_nodes.dtype in _INTEGERS
            if of_nodes is not None and not is_places:
                check_features(name, of_nodes, features, self.weight)
            elif self.num_blocks is not None:
                bad_type(name, of_nodes, "floating-point features, as the layer has blocks")
            elif is_places and of_nodes.dim() != 1:
                bad_value(name, f"has shape {tuple(of_nodes.shape)}; accepted: (nodes,), or features")
        return pair[0], pair[1]

    def _is_by_bases(self, sources: torch.Tensor | None, count: int, edges: int) -> bool:
        """Return whether neighbours are summed for each basis, and not with the matrices of the relations.

        That multiplies all nodes by fewer matrices, but has a sparse product for each.
        """
        if self.comp is None:
            return False
        relations, bases = self.comp.shape
        features = self.weight.shape[1]
        width = features if sources is not None and sources.is_floating_point() else 0
        apart = min(count * relations, edges) * width + relations * bases * features + GATHER * edges
        return bases < relations and count * bases * width + GATHER * edges * bases < apart

    def relation_weights(self) -> torch.Tensor:
        """Return the matrices of the relations, `weight` or made of the bases: [relations, in, out]."""
        if self.comp is None:
            return self.weight
        return (self.comp @ self.weight.flatten(1)).unflatten(1, self.weight.shape[1:])

    def _of_neighbours(self, x: torch.Tensor | None, made: Relations) -> torch.Tensor:
        weight = self.weight
        if made.kinds is not None:
            product = mapped(x, weight).reshape(-1, weight.shape[0], self.out_channels)
            return spmm(made.operand, product, spmm(made.kinds, self.comp)).sum(1)  # type: ignore[arg-type]
        return spmm(made.operand, products_of(x, self.relation_weights(), made))

    def _with_root(self, out: torch.Tensor, x: torch.Tensor | None) -> torch.Tensor:
        if self.root is not None and x is not None and x.is_floating_point():
            return out + F.linear(x, self.root.t(), self.bias)
        if self.root is not None:
            out = out + mapped(x, self.root[None])
        return out if self.bias is None else out + self.bias.to(out.dtype)


def check_blocks(num_bases: Any, num_blocks: Any, inputs: int, outputs: int) -> None:
    """Raise unless these are numbers of bases or of blocks (or None) of matrices [inputs, outputs]."""
    if num_bases is not None:
        check_integer("num_bases", num_bases, most=MOST_FEATURES)
    if num_blocks is None:
        return
    if num_bases is not None:
        bad_value("num_blocks", f"got {num_blocks} with num_bases={num_bases}; accepted: one of both")
    check_integer("num_blocks", num_blocks, most=MOST_FEATURES)
    if inputs % num_blocks or outputs % num_blocks:
        sizes = f"{inputs} and {outputs} features"
        bad_value("num_blocks", f"got {num_blocks} for {sizes}; accepted: a divisor of both")


def check_typed_edges(adj: Any, edge_type: Any) -> None:
    """Raise unless `adj` is an edge_index [2, edges], and `edge_type` has an integer for each edge."""
    if isinstance(adj, SparseOperand):
        bad_type("adj", adj, "an edge_index [2, edges], whose edges have types")
    check_edges(adj)
    if not isinstance(edge_type, torch.Tensor) or edge_type.dtype not in _INTEGERS:
        bad_type("edge_type", edge_type, "an int64 or int32 tensor [edges]")
    if edge_type.shape != adj.shape[1:]:
        bad_value("edge_type", f"has shape {tuple(edge_type.shape)}; accepted: {tuple(adj.shape[1:])}")
    if edge_type.device != adj.device:
        bad_value("edge_type", f"is on {edge_type.device}; accepted: {adj.device}, as the edges")


def products_of(x: torch.Tensor | None, weight: torch.Tensor, made: Relations) -> torch.Tensor:
    """Return the rows [rows, out] of the dense factor of relations, whose matrices are as of `mapped`."""
    if made.ranges is not None:
        return made.ranges.products(x, weight)
    if x is not None and x.is_floating_point():
        rows = spmm(made.select, x).split(made.counts)  # type: ignore[arg-type]
        return torch.cat([mapped(of, w[None]) for of, w in zip(rows, weight, strict=True)])
    kind, place = made.pairs  # type: ignore[misc]
    place = place if x is None else x.long()[place]
    return F.embedding(kind * weight.shape[1] + place, weight.flatten(0, 1))


def mapped(x: torch.Tensor | None, weight: torch.Tensor) -> torch.Tensor:
    """Return the products of nodes with K matrices [K, in, out], side by side: [nodes, K * out].

    `x` are features, or places of the only 1 of each node's features, or None: that of node i is at i. Block-
    diagonal matrices are [K, blocks, in / blocks, out / blocks].
    """
    if weight.dim() == 4:
        parts = x.unflatten(1, weight.shape[1:3])  # type: ignore[union-attr]
        return torch.einsum("nbi,kbio->nkbo", parts, weight).flatten(1)
    matrix = weight[0] if len(weight) == 1 else weight.transpose(0, 1).flatten(1)
    if x is None:
        return matrix
    # Its gradient has the same bits in every run, unlike that of x[places].
    return x @ matrix if x.is_floating_point() else F.embedding(x, matrix)
