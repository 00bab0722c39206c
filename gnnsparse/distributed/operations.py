"""The operations of gnnsparse on one rank's part of a matrix: on its rows, or on a slice of the features.

It stands alone because it computes on shards that exist; api.py divides graphs and checks options.
"""

from __future__ import annotations

import weakref
from dataclasses import replace
from typing import Any, NoReturn

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812
from torch.autograd.function import once_differentiable

from gnnsparse.distributed.cost import Choice, slices_of
from gnnsparse.distributed.exchange import (
    Extend,
    FeatureExchange,
    GatherExchange,
    HaloExchange,
    Pending,
    gather_ranks,
)
from gnnsparse.distributed.shard import Shard
from gnnsparse.errors import available_memory, bad_value, check_tensor
from gnnsparse.formats.csr import Csr, coo_to_csr
from gnnsparse.ops import attention, edge_softmax, graph_attention, sddmm, spmm
from gnnsparse.ops.arguments import FLOATS, check_features
from gnnsparse.ops.edges.trace import side_of
from gnnsparse.ops.spmm_kernels import spmm_into
from gnnsparse.precision import Precision
from gnnsparse.preprocess.api import Recipe, prepare_weighted
from gnnsparse.preprocess.normalize import Weighted
from gnnsparse.runtime.device import VECTOR_BYTES, path
from gnnsparse.runtime.functorch import outside
from gnnsparse.runtime.memo import cached_property
from gnnsparse.sparse.graph import SparseGraph
from gnnsparse.sparse.kernel_cache import KernelCache
from gnnsparse.sparse.operand import SparseOperand
from gnnsparse.sparse.prepared import Prepared, assemble


def global_columns(shard: Shard) -> torch.Tensor:
    """Return the node of each column of a shard in the new numbering, int64 [rows + halo]."""
    start = shard.facts.starts[shard.facts.rank]
    own = torch.arange(start, start + shard.facts.rows, dtype=torch.int64, device="cpu")
    return torch.cat([own, shard.halo])


def _gathered_columns(shard: Shard) -> torch.Tensor:
    """Return the column of a GatherExchange for each column of a shard, int64 [rows + halo]."""
    facts, nodes = shard.facts, global_columns(shard)
    starts = torch.tensor(facts.starts, dtype=torch.int64, device="cpu")
    # The last range that begins at or before a node: empty ranges before it begin there too.
    owner = torch.searchsorted(starts, nodes, right=True) - 1
    owner = owner.clamp(max=facts.ranks - 1)
    return owner * facts.most_rows + (nodes - starts[owner])


def _one_sided(weights: Weighted, recipe: Recipe) -> Prepared:
    """Prepare a matrix by which nothing but products are computed: its transpose is left empty."""
    graph = weights.graph
    csr, device = graph.csr, graph.device
    matrix = KernelCache(csr, None, None, graph.values, None, weights.row_scale, weights.col_scale)
    spec = recipe.spec(graph.nnz / max(graph.num_rows * graph.num_cols, 1))
    none = torch.zeros(0, dtype=torch.int32, device=device)
    empty = Csr(torch.zeros(csr.cols + 1, dtype=torch.int64, device=device), none, csr.rows)
    return assemble(matrix.in_format(recipe.precision, spec), empty, none, precision=recipe.precision)


class RowProduct:
    """The own rows of A X, of the own rows of X, for one orientation of a matrix.

    In one product, all columns are multiplied as soon as their features are there, one chunk of the features
    after the other. Split, the own columns are multiplied while the features of the others travel, and these
    then; their product is added to the first one. Results have the same bits in every run.
    """

    def __init__(
        self, shard: Shard, choice: Choice, precision: Precision, format: str, device: torch.device,
        group: dist.ProcessGroup | None, packs: bool,
    ) -> None:  # fmt: skip
        self._shard, self._choice, self._device, self._group = shard, choice, device, group
        self.packs = packs
        self._precision, self._format = precision, format
        gathers = choice.way == "gather"
        self.exchange = GatherExchange(shard.facts, group) if gathers else HaloExchange(shard, device, group)
        self._constant: tuple[Any, int] = (lambda: None, 0)  # a weak reference, and the tensor's version
        self._fetched: list[Pending] | None = None
        self._in_graphs: list[list[Pending]] = []
        self._made: dict[str, SparseOperand] = {}
        # Features travel as the products round them anyway; None: as they are.
        self.wire = precision.storage if precision.storage.itemsize < 4 else None

    def operand(self, which: str, *, transposes: bool) -> SparseOperand:
        """Make an operand of the "own" columns, of those of "others", or of the "whole" of them."""
        shard, rows, device = self._shard, self._shard.facts.rows, self._device
        # Nonzeros are chosen and sorted where products run: a GPU takes milliseconds, and the host seconds.
        csr = shard.csr.to(device)
        values, row_scale, scale = (
            None if one is None else one.to(device)
            for one in (shard.values, shard.row_scale, shard.col_scale)
        )
        if which != "whole":
            first, last = (0, rows) if which == "own" else (rows, csr.cols)
            taken = (csr.indices >= first) & (csr.indices < last)
            before = F.pad(taken.cumsum(0), (1, 0))
            csr = Csr(before[csr.indptr], csr.indices[taken] - first, last - first)
            values = None if values is None else values[taken]
            scale = None if scale is None else scale[first:last]
        if self.exchange.has_own and which != "own":
            place = _gathered_columns(shard)[0 if which == "whole" else rows :].to(device)
            count = shard.facts.ranks * shard.facts.most_rows
            index = place[csr.indices.long()].int()
            # Places ascend with the nodes, so that columns of others ascend in each row as before.
            csr, order = coo_to_csr(csr.row_index().int(), index, csr.rows, count)
            if values is not None:
                values = values.new_empty(csr.nnz).index_copy_(0, order.long(), values)
            scale = None if scale is None else scale.new_zeros(count).index_copy_(0, place, scale)
        with outside():  # operands outlive the call
            weights = Weighted(SparseGraph(csr, values), row_scale, scale)
            auto = self._format == "auto"
            recipe = Recipe(format="csr" if auto else self._format, precision=self._precision)
            prepared = prepare_weighted(weights, recipe) if transposes else _one_sided(weights, recipe)
            return SparseOperand.on(replace(prepared, auto_format=auto), device)

    def _operand(self, which: str) -> SparseOperand:
        """Return an operand without its transpose, made when first needed."""
        if which not in self._made:
            self._made[which] = self.operand(which, transposes=False)
        return self._made[which]

    def multiply(self, x: torch.Tensor, packs: bool) -> torch.Tensor:
        """Return the own rows of the product, [rows, n], of the own rows of X, [rows, n].

        `packs`: the others of X travel in 8 bits.
        """
        width, dtype = x.shape[1], self.wire or x.dtype
        parts = slices_of(width, dtype.itemsize, self._choice.chunks)
        split = self._choice.split
        is_constant = x is self._constant[0]() and x._version == self._constant[1]
        pending = self._fetched if is_constant else None
        captures = is_constant and path().takes(x.device) and path().is_capturing()
        if captures and pending is not None:
            self._in_graphs.append(pending)  # a CUDA graph reads it as long as it may be replayed
        if pending is None:
            pending = [
                self.exchange.start(_in_vectors(x[:, part], dtype), dtype, not split, packs) for part in parts
            ]
            if is_constant and not captures:  # what a graph receives belongs to the graph
                self._fetched = pending
        y = x.new_empty(self._shard.facts.rows, width)
        if split:
            spmm_into(self._operand("own"), x, y)
        operand = self._operand("others" if split else "whole")
        for part, transfer in zip(parts, pending, strict=True):
            of_others = transfer.wait()[:, : part.stop - part.start]
            if operand.nnz or not split:
                spmm_into(operand, of_others, y[:, part], add=split)
        return y

    def fetch_once(self, x: torch.Tensor) -> None:
        """See `DistributedOperand.fetch_once`."""
        width, device = x.shape[1:].numel(), self._device
        needed = (self.exchange.columns + x.shape[0]) * width * (self.wire or x.dtype).itemsize
        on_gpu = path().takes(device)
        free = path().free_memory(device) if on_gpu else available_memory().free // self._shard.facts.ranks
        fits = torch.tensor([needed <= free // _LEAST_FREE], dtype=torch.uint8, device=device)
        fits_all = bool(gather_ranks(fits, self._group).all())
        self._constant = (weakref.ref(x) if fits_all else lambda: None), x._version
        self._fetched = None


#: Features of other ranks are kept if they take at most one part in so many of the free memory.
_LEAST_FREE = 10


def _in_vectors(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Pad features, so that rows of `dtype` are whole vectors: kernels would copy all of X otherwise."""
    rest = -x.shape[1] % (VECTOR_BYTES // dtype.itemsize)
    return F.pad(x, (0, rest)) if rest and x.is_cuda else x


def _refuse_plan(plan: Any) -> None:
    """Raise a ValueError if a plan is given: each rank has operands of its own, with plans of their own."""
    if plan is not None:
        bad_value("plan", "goes with an operand of one process; accepted with several: None")


class _Product(torch.autograd.Function):
    """The product of a matrix, whose gradient is that of the transpose's own rows: nothing travels back."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, matrix: RowProduct, transposed: RowProduct) -> torch.Tensor:
        ctx.transposed = transposed
        return matrix.multiply(x, matrix.packs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return ctx.transposed.multiply(grad.contiguous(), False), None, None


class RowOperations:
    """The operations of gnnsparse on the rows of one rank; the arguments are those of RowProduct."""

    def __init__(self, shard: Shard, *how: Any) -> None:
        self._merged = shard.facts.merged
        self._product = self._transposed = RowProduct(shard, *how)
        if shard.transposed is not None:
            self._transposed = RowProduct(shard.transposed, *how)

    @cached_property
    def whole(self) -> SparseOperand:
        """The operand of all columns, whose order edge values are in."""
        return self._product.operand("whole", transposes=True)

    def fetch_once(self, x: torch.Tensor) -> None:
        """See `DistributedOperand.fetch_once`."""
        self._product.fetch_once(x)

    def extended(self, x: torch.Tensor, exact: bool = False) -> torch.Tensor:
        """Return the features of the columns of `whole`, of those of the own nodes [rows, ...].

        They travel as products round them unless they are to be `exact`.
        """
        wire, packs = (None, False) if exact else (self._product.wire, self._product.packs)
        found: torch.Tensor = Extend.apply(x, self._product.exchange, wire, packs)
        return found

    def of_edges(self, arguments: dict[str, Any]) -> tuple[SparseOperand, dict[str, Any]]:
        """Return `whole` for `gnnsparse.aggregate_edges`, and its arguments with those of all sources.

        Edges are the own nonzeros in their order.
        """
        if self._merged:
            bad_value(
                "A", "is of several ranks, and edges that were repeated are one; accepted: without repeats"
            )
        rows, found = self.whole.shape[0], dict(arguments)
        for name, x in arguments.items():
            if side_of(name) == "source":
                check_tensor(name, x, dtypes=FLOATS, device=self.whole.device)
                if x.dim() not in (1, 2) or x.shape[0] != rows:
                    bad_value(name, f"has shape {tuple(x.shape)}; accepted: ({rows},) or ({rows}, features)")
                found[name] = self.extended(x, exact=x.shape[1:].numel() == 1)  # numbers are not rounded
        return self.whole, found

    def _extended_along(self, dim: int, k: Any, v: Any) -> list[torch.Tensor]:
        """Extend keys and values in one exchange along their dimension of nodes, after checking it."""
        rows = self.whole.shape[0]
        accepted = f"({rows}, ..)" if dim == 0 else f"(.., {rows}, any)"
        for name, x in (("k", k), ("v", v)):
            check_tensor(name, x, dtypes=(*FLOATS, torch.float64), device=self.whole.device)
            if x.dim() < 2 or x.shape[dim] != rows:
                bad_value(name, f"has shape {tuple(x.shape)}; accepted: {accepted} for this A")
        first = [x.movedim(dim, 0) for x in (k, v)]
        dtype = torch.promote_types(k.dtype, v.dtype)
        both = self.extended(torch.cat([x.flatten(1).to(dtype) for x in first], dim=1))
        columns = both.split([x.shape[1:].numel() for x in first], dim=1)
        return [
            part.unflatten(1, x.shape[1:]).movedim(0, dim).to(x.dtype)
            for x, part in zip(first, columns, strict=True)
        ]

    def spmm(
        self, x: torch.Tensor, values: torch.Tensor | None, reduce: str, impl: str, plan: Any
    ) -> torch.Tensor:
        """Compute the own rows of A x; `gnnsparse.spmm` documents the arguments, and has checked x."""
        _refuse_plan(plan)
        if values is not None or reduce != "sum" or impl == "reference":
            return spmm(self.whole, self.extended(x), values, reduce=reduce, impl=impl)
        y: torch.Tensor = _Product.apply(x.flatten(1), self._product, self._transposed)
        return y.unflatten(1, x.shape[1:]) if x.dim() == 3 else y

    def sddmm(self, q: torch.Tensor, k: torch.Tensor, impl: str, plan: Any) -> torch.Tensor:
        """Compute dot products at the own rows' nonzeros; `gnnsparse.sddmm` documents the arguments."""
        _refuse_plan(plan)
        k = check_features("k", k, self.whole, self.whole.shape[0], impl)
        return sddmm(self.whole, q, self.extended(k), impl=impl)

    def edge_softmax(self, scores: torch.Tensor, impl: str) -> torch.Tensor:
        """Compute the softmax over the own rows' nonzeros, for which nothing has to travel."""
        return edge_softmax(self.whole, scores, impl=impl)

    def attention(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, options: dict[str, Any]) -> Any:
        """Compute attention of the own nodes; `gnnsparse.attention` documents the arguments."""
        _refuse_plan(options.pop("plan"))
        _refuse_causal(options)
        k, v = self._extended_along(-2, k, v)
        return attention(self.whole, q, k, v, **options)

    def graph_attention(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, options: dict[str, Any]
    ) -> Any:
        """Compute attention of the own nodes; `gnnsparse.graph_attention` documents the arguments."""
        _refuse_causal(options)
        edge_terms = ("bias", "edge_features", "gate")
        has_terms = options["return_weights"] or any(options[name] is not None for name in edge_terms)
        if has_terms and options["edge_order"] == "coo":
            accepted = "'operand', its own order"
            bad_value("edge_order", f"got 'coo', but a rank has a part of the edges; accepted: {accepted}")
        k, v = self._extended_along(0, k, v)
        if (mask := options["key_padding_mask"]) is not None:
            device, rows = self.whole.device, self.whole.shape[0]
            check_tensor("key_padding_mask", mask, dtypes=(torch.bool,), device=device, shape=(rows,))
            options["key_padding_mask"] = self.extended(mask.float(), exact=True).bool()
        return graph_attention(self.whole, q, k, v, **options)


def _refuse_causal(options: dict[str, Any]) -> None:
    if options["is_causal"]:
        bad_value("is_causal", "got True, but ranks have renumbered nodes, without an order; accepted: False")


class FeatureOperations:
    """The operations of gnnsparse by all-to-all exchanges of rows against features."""

    def __init__(self, whole: SparseOperand, exchange: FeatureExchange) -> None:
        self.whole, self._exchange = whole, exchange
        self._ranks, self._rank = len(exchange.sizes), exchange.rank

    def fetch_once(self, x: torch.Tensor) -> None:
        """Do nothing: what travels is no part of x alone."""

    def spmm(
        self, x: torch.Tensor, values: torch.Tensor | None, reduce: str, impl: str, plan: Any
    ) -> torch.Tensor:
        """Compute the own rows of A x; `gnnsparse.spmm` documents the arguments, and has checked x."""
        _refuse_plan(plan)
        if values is not None:
            self._refuse("values")
        if x.dim() == 3:
            return self.spmm(x.flatten(1), None, reduce, impl, plan).unflatten(1, x.shape[1:])
        width = x.shape[1]
        padded = F.pad(x, (0, -width % self._ranks))
        y = spmm(self.whole, self._exchange.to_features(padded), reduce=reduce, impl=impl)
        return self._exchange.to_rows(y)[:, :width]

    def sddmm(self, q: torch.Tensor, k: torch.Tensor, impl: str, plan: Any) -> torch.Tensor:
        """Refuse: a sum over features would have to travel for each nonzero."""
        self._refuse("sddmm")

    def edge_softmax(self, scores: torch.Tensor, impl: str) -> torch.Tensor:
        """Refuse: no rank has scores of its own rows."""
        self._refuse("edge_softmax")

    def of_edges(self, arguments: dict[str, Any]) -> Any:
        """Refuse: a message may use all features."""
        self._refuse("message")

    def attention(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, options: dict[str, Any]) -> Any:
        """Compute attention of the own nodes, each rank for a share of the heads [..., heads, L, D]."""
        _refuse_plan(options.pop("plan"))
        self._check_terms(options, ("bias",))
        if not all(isinstance(x, torch.Tensor) and x.dim() == 3 for x in (q, k, v)):
            bad_value("q", f"has no heads to divide among {self._ranks} ranks; accepted: {_INSTEAD}")
        heads_last = [x.transpose(0, 1) for x in (q, k, v)]
        q, k, v = (self._by_heads(name, x).transpose(0, 1) for name, x in zip("qkv", heads_last, strict=True))
        out = attention(self.whole, q, k, v, **options)
        return self._exchange.to_rows(out.transpose(0, 1)).transpose(0, 1)

    def graph_attention(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, options: dict[str, Any]
    ) -> Any:
        """Compute attention of the own nodes, each rank for a share of the heads."""
        self._check_terms(options, ("bias", "edge_features", "gate", "edge_weight", "key_padding_mask"))
        heads = v.shape[1] if isinstance(v, torch.Tensor) and v.dim() == 3 else 0
        q, k, v = (self._by_heads(name, x) for name, x in zip("qkv", (q, k, v), strict=True))
        mine = slice(self._rank * v.shape[1], (self._rank + 1) * v.shape[1])
        for name in ("att", "scale"):
            if isinstance(options[name], torch.Tensor) and options[name].shape[:1] == (heads,):
                options[name] = options[name][mine]
        return self._exchange.to_rows(graph_attention(self.whole, q, k, v, **options))

    def _by_heads(self, name: str, x: Any) -> torch.Tensor:
        """Return all rows of this rank's heads, of the own rows of all heads [rows, heads, ...]."""
        if not isinstance(x, torch.Tensor) or x.dim() < 2 or x.shape[1] == 0 or x.shape[1] % self._ranks:
            has = f"{x.shape[1]} heads" if isinstance(x, torch.Tensor) and x.dim() > 1 else "no heads"
            bad_value(name, f"has {has} to divide among {self._ranks} ranks; accepted: {_INSTEAD}")
        return self._exchange.to_features(x)

    def _check_terms(self, options: dict[str, Any], terms: tuple[str, ...]) -> None:
        if options["is_causal"]:
            bad_value("is_causal", "got True with an operand of several ranks; accepted: False")
        if options["return_weights"]:
            self._refuse("return_weights")
        for name in terms:
            if options[name] is not None:
                self._refuse(name)

    def _refuse(self, name: str) -> NoReturn:
        bad_value(name, f"edge values can't be divided by features; accepted: {_INSTEAD}")


_INSTEAD = "a number of heads that the ranks divide, or an operand with way='halo' or 'gather'"
