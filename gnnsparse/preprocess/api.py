"""`prepare` makes a SparseOperand of a graph: checks, weights, order, transpose, format, and the cache."""

from __future__ import annotations

import functools
import math
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, overload

import torch

from gnnsparse.errors import (
    bad_type,
    bad_value,
    check_choice,
    check_flag,
    check_integer,
    check_memory,
    check_number,
)
from gnnsparse.formats import FORMAT_NAMES, PRESETS, FormatSpec, check_precision, format_spec
from gnnsparse.formats.csr import Csr
from gnnsparse.plan.store import PlanStore
from gnnsparse.plan.window import BALANCES
from gnnsparse.precision import Precision
from gnnsparse.preprocess.normalize import Weighted, normalize, symmetric_scales
from gnnsparse.preprocess.reorder import METHODS, REORDERINGS, Reordering, reorder
from gnnsparse.preprocess.source import Source, read_source
from gnnsparse.registry import check_options
from gnnsparse.runtime.cache import CACHE_VERSION, GraphCache
from gnnsparse.runtime.functorch import runs_outside
from gnnsparse.runtime.hashing import fingerprint
from gnnsparse.sparse.graph import SparseGraph
from gnnsparse.sparse.kernel_cache import KernelCache
from gnnsparse.sparse.operand import SparseOperand
from gnnsparse.sparse.prepared import NORMALIZATIONS, Prepared, inverse
from gnnsparse.sparse.saved import is_finite, pack, plain_format, unpack
from gnnsparse.sparse.typed import Relation, TypedGraph, read_typed

#: Bytes of memory on the CPU that each row of a matrix takes at the least while it is prepared: with each
#: normalisation, in a blocked format, and when rows are reordered. Each is a measured peak, rounded down.
_ROW_BYTES = {None: 24, "mean": 40, "gcn": 56}
_BLOCKED_ROW_BYTES, _ORDERED_ROW_BYTES = 44, 72


@overload
def prepare(
    graph: TypedGraph | Mapping[Relation, Any],
    *,
    num_nodes: Mapping[str, int] | None = None,
    values: Any = None,
    precision: Precision | str = "fp32",
    reorder: str = "none",
    reorder_options: dict[str, Any] | None = None,
    format: str = "auto",
    cache: bool | str | os.PathLike[str] = True,
    autotune: bool = False,
) -> TypedGraph: ...


@overload
def prepare(
    graph: Any,
    *,
    num_nodes: int | tuple[int, int] | None = None,
    num_cols: int | None = None,
    values: Any = None,
    edge_weight: Any = None,
    self_loop_weight: float = 1.0,
    precision: Precision | str = "fp32",
    reorder: str = "none",
    reorder_options: dict[str, Any] | None = None,
    format: str = "auto",
    panel: int | None = None,
    format_options: dict[str, Any] | None = None,
    balance: str = "auto",
    cache: bool | str | os.PathLike[str] = True,
    autotune: bool = False,
) -> SparseOperand: ...


@runs_outside
def prepare(
    graph: Any,
    *,
    num_nodes: Any = None,
    num_cols: int | None = None,
    values: Any = None,
    edge_weight: Any = None,
    self_loop_weight: float = 1.0,
    precision: Precision | str = "fp32",
    reorder: str = "none",
    reorder_options: dict[str, Any] | None = None,
    format: str = "auto",
    panel: int | None = None,
    format_options: dict[str, Any] | None = None,
    balance: str = "auto",
    cache: bool | str | os.PathLike[str] = True,
    autotune: bool = False,
) -> Any:
    """Prepare a graph for sparse products: check it, compute weights, order rows, transpose, convert.

    Args:
        graph: PyG's `edge_index` (int [2, edges], source over target, any order: A[target, source]);
            or, with `num_nodes`, DGL's pair of int arrays `(sources, targets)`, [edges] each;
            or a matrix, which is not transposed: a SparseGraph, a CSR pair `(indptr, indices)` or triple with
            values, a scipy.sparse matrix, or a torch sparse tensor; or PyG's Data, of which edge_index,
            num_nodes and, if there is one, edge_weight are read (or else its sparse tensor adj_t). Tensors
            may be on a GPU. Repeated edges are merged and their values summed. Or a graph with types: PyG's
            HeteroData (whose edge_weight is not read), a DGL heterograph, a TypedGraph, or a dict of
            edge_index by relation (source type, name, target type): one operand is made of all relations.
        num_nodes: with an edge_index: the number of nodes, or (sources, targets); None: one more than the
            largest index. With a pair of arrays it says that these are the ends of edges; without it they
            are a CSR pair. With a dict of relations: the number of nodes of each type.
        num_cols: with a CSR pair: the number of columns; None: square.
        values: None (the values that the matrix has, or 1 for each edge); real numbers [edges] in the
            order of the edges given; "gcn" for D^-1/2 (A + I) D^-1/2; "mean" for D^-1 A.
        edge_weight: with values="gcn" or "mean": weights [edges] to normalise; None: 1 each.
        self_loop_weight: with values="gcn": weight of the self-loops that are added.
        precision: "fp32", "tf32", "fp16" or "bf16": what operands are rounded to. Sums are float32. "int8"
            or "fp8": as fp16, but SpMM stores X, and attention K and V, in 8 bits with a scale for each
            feature (gnnsparse.Precision).
        reorder: row order: "none", "degree", "rcm", "metis", "community", "row-shuffle", "jaccard", "tca",
            "auto" (the best of several by counts, or none), or another registered reordering
            (gnnsparse.preprocess.reorder.REORDERINGS). Results stay in the caller's order.
        reorder_options: options of the reordering, such as {"part_size": 128} for "metis";
            `gnnsparse.reorder` documents them.
        format: "auto" (CSR on the CPU; on a GPU the window format as well), "csr", "window", a published
            format ("me-bcrs", "sr-bcrs", "cvse", "tiled-csr", "hrpb" or "rs-tile"), or another registered
            format (gnnsparse.formats.FORMAT_NAMES). Products of a published format run in it on every device,
            or raise: it has the precisions and the operations of its paper (docs/format.md).
        panel: rows of a panel: with format="hrpb" 16 (default) or 32; with "cvse" 8 or 16, the length of
            vectors, by default 16 from a density of 0.1 on; with "me-bcrs" 8 (default) or 16.
        format_options: options of the format: for "rs-tile" {"threshold": 4} keeps rows of at most 4 nonzeros
            out of the windows, unless they add {"new_columns": 3} or more columns to theirs.
        balance: how the window kernel cuts long windows of a blocked format into parts on a GPU: "auto": by
            a limit on their length; "none": not at all; "wave": by the number of waves in which they run
            (cuTeSpMM); "adaptive": super-long windows alone (RSH-SpMM). Parts are added up in a fixed order.
        cache: True stores the prepared graph in the user's cache folder (GNNSPARSE_CACHE_DIR), a path in
            the folder of that path; False does not store it.
        autotune: on a GPU, the first product of each width measures every kernel (about a second), uses the
            fastest, and keeps the choice in the cache; False: a cost model picks the kernel from counts of
            the matrix. `SparseOperand.tune` measures ahead of time.

    Returns:
        The operand, on the device of the input; of a graph with types a TypedGraph, whose `operand` is the
        matrix of all relations [targets of all types, a block of columns for the sources of each relation].

    Raises:
        TypeError: an argument is of a type or dtype that is not accepted.
        ValueError: an argument is out of range, not finite, too large for the precision (fp16 ends at
            65504), or does not go with another argument; or the format does not have the precision.
        MemoryError: on the CPU, a matrix with so many rows needs more memory than this process can get.
        ImportError: the reordering needs a package that is not installed.
    """
    if (typed := read_typed(graph, num_nodes)) is not None:
        if num_cols is not None:
            bad_value("num_cols", "goes with a CSR pair only; a typed graph has its own shape")
        graph, num_nodes = typed.block_edges(), typed.block_size
    precision = Precision.parse(precision)
    check_choice("reorder", reorder, REORDERINGS)
    check_choice("format", format, FORMAT_NAMES)
    if not isinstance(cache, (bool, str, os.PathLike)):
        bad_type("cache", cache, "True, False or a folder")
    check_flag("autotune", autotune)
    check_choice("balance", balance, BALANCES)
    if balance != "auto" and format in ("auto", "csr"):
        bad_value("balance", f"got {balance!r} for format={format!r}, which has no windows; accepted: auto")
    if panel is not None:
        check_integer("panel", panel)
        format_spec(format, precision, panel=panel)  # raises if the format has no panels of that height
    check_precision(format, precision)
    kind, weights = _read_values(values, edge_weight)
    if reorder == "none":
        order_options = check_options("reorder_options", reorder, {}, reorder_options)
    else:
        order_options = METHODS[reorder].check_options(reorder_options, "reorder_options")
    known = PRESETS[format].options if format in PRESETS else {}
    recipe = Recipe(
        normalization=kind,
        self_loop_weight=check_number("self_loop_weight", self_loop_weight),
        reorder=reorder,
        reorder_options=tuple(sorted(order_options.items())),
        format="csr" if format == "auto" else format,
        panel=panel,
        format_options=tuple(sorted(check_options("format_options", format, known, format_options).items())),
        precision=precision,
    )
    source = read_source(graph, num_nodes, num_cols, weights)
    if _device_of(source.arrays).type == "cpu":
        check_size(num_nodes, recipe)
    store = None if cache is False else GraphCache(None if cache is True else cache)
    prepared = prepare_arrays(source, recipe, store)
    _check_range(prepared.forward.given_values, precision)
    plans = PlanStore("" if store is None else recipe.key(source), store) if autotune else None
    prepared = replace(prepared, auto_format=format == "auto", plans=plans, balance=balance)
    operand = SparseOperand.on(prepared, _device_of(source.arrays))
    return operand if typed is None else typed.of_checked(typed.num_nodes, typed.edges, operand)


def _check_range(values: torch.Tensor | None, precision: Precision) -> None:
    """Refuse values that are not finite after merging, normalisation and rounding to the precision."""
    if values is None or values.numel() == 0:
        return
    low, high = values.aminmax()  # NaN if a value is
    largest = float(torch.maximum(-low, high))
    if not math.isfinite(float(torch.tensor(largest, dtype=precision.storage, device="cpu"))):
        limit = torch.finfo(precision.storage).max
        bad_value(
            "values",
            f"the largest, merged and normalised, is {largest:g}; accepted with precision="
            f"'{precision.value}': at most {limit:g} (scale them, or take a precision with more range)",
        )


def _device_of(arrays: list[torch.Tensor | None]) -> torch.device:
    return next((a.device for a in arrays if a is not None), torch.device("cpu"))


def _read_values(values: Any, edge_weight: Any) -> tuple[str | None, Any]:
    """Return (name of the normalisation or None, edge values or weights) from the two arguments."""
    if isinstance(values, str):
        return check_choice("values", values, NORMALIZATIONS), edge_weight
    if edge_weight is not None:
        bad_value("edge_weight", "goes with values='gcn' or 'mean'; plain weights go into values=")
    return None, values


@dataclass(frozen=True)
class Recipe:
    """The parameters that a prepared graph depends on; options are sorted pairs (name, value)."""

    normalization: str | None = None
    self_loop_weight: float = 1.0
    reorder: str = "none"
    reorder_options: tuple[tuple[str, Any], ...] = ()
    format: str = "csr"
    panel: int | None = None
    format_options: tuple[tuple[str, Any], ...] = ()
    precision: Precision = Precision.FP32

    @property
    def settings(self) -> dict[str, Any]:
        """Attributes of Prepared that a recipe stands for."""
        loops = self.self_loop_weight if self.normalization == "gcn" else None
        return {"normalization": self.normalization, "added_loops": loops, "precision": self.precision}

    def spec(self, density: float) -> FormatSpec | None:
        """Return the parameters of the format for a density, nnz / (rows * columns); None for "csr"."""
        if self.format == "csr":
            return None
        return format_spec(self.format, self.precision, density, self.panel, dict(self.format_options))

    def key(self, source: Source) -> str:
        """Return the cache key of a source that is prepared by this recipe."""
        spec = self.spec(0.0)
        # If the format stores no values, nothing that is stored depends on the precision.
        precision = self.precision.value if spec is not None and spec.stores_values else "any"
        parts = (CACHE_VERSION, source.parameters, replace(self, precision=Precision.FP32), precision)
        # The parameters of a preset may change between versions while its name stays.
        return fingerprint(source.arrays, *parts, *(() if spec is None else (spec,)))


def _order(graph: SparseGraph, recipe: Recipe, spec: FormatSpec | None) -> Reordering:
    """Return the row order, looked for with the sizes of the format where they are left to it."""
    options = dict(recipe.reorder_options)
    sizes = {} if spec is None else {"height": spec.panel, "width": max(spec.block, spec.pad)}
    options |= {name: size for name, size in sizes.items() if options.get(name) == 0}
    return reorder(graph, recipe.reorder, **options)


def _permuted(csr: Csr, order: torch.Tensor | None) -> tuple[Csr, torch.Tensor | None]:
    return (csr, None) if order is None else csr.permute_rows(order)


def check_size(num_nodes: Any, recipe: Recipe) -> None:
    """Raise MemoryError if a matrix of so many rows can't be prepared, before minutes are spent."""
    rows = num_nodes[-1] if isinstance(num_nodes, (tuple, list)) and num_nodes else num_nodes
    if isinstance(rows, bool) or not isinstance(rows, int) or not 0 <= rows < 2**31:
        return
    row_bytes = max(
        _ROW_BYTES.get(recipe.normalization, 0),
        _BLOCKED_ROW_BYTES if recipe.format != "csr" else 0,
        _ORDERED_ROW_BYTES if recipe.reorder != "none" else 0,
    )
    check_memory("num_nodes", row_bytes * rows, f"preparing a matrix of {rows} rows")


def build(source: Source, recipe: Recipe) -> Prepared:
    """Prepare a graph by a recipe, on the device of the source."""
    start = time.perf_counter()
    weights = normalize(source.build(), recipe.normalization, recipe.self_loop_weight)
    return prepare_weighted(weights, recipe, start)


def prepare_weighted(weights: Weighted, recipe: Recipe, start: float | None = None) -> Prepared:
    """Prepare a matrix whose weights are computed; it began at `start` of time.perf_counter, None: now."""
    start = time.perf_counter() if start is None else start
    graph = weights.graph
    spec = recipe.spec(graph.nnz / max(graph.num_rows * graph.num_cols, 1))
    ordering: dict[str, Any] = {"method": "none"}
    order = None
    if recipe.reorder != "none":  # else the time of the report is saved
        found = _order(graph, recipe, spec)
        ordering, order = found.report(), None if found.order is None else found.order.to(graph.device)
    csr, from_given = _permuted(graph.csr, order)
    values, edge_map, to_own = graph.values, graph.nnz_index_of_edge, None
    if from_given is not None:
        to_own = inverse(from_given)
        values = None if values is None else values.index_select(0, from_given)
        edge_map = to_own if edge_map is None else to_own.index_select(0, edge_map)
    forward = KernelCache(csr, order, None, values, None, weights.row_scale, weights.col_scale)

    given, index = graph.csr.transpose()
    # A counts as symmetric if its structure is, whatever its values.
    symmetric = given.rows == given.cols and given.equals(graph.csr)
    transposed = csr
    if not symmetric:
        if order is not None and not METHODS[recipe.reorder].symmetric:
            other = _order(replace(graph, csr=given, values=None, nnz_index_of_edge=None), recipe, spec).order
            order = None if other is None else other.to(graph.device)
        transposed, from_given = _permuted(given, order)
    index = index if from_given is None else index.index_select(0, from_given)
    index = index if to_own is None else to_own.index_select(0, index)
    backward = forward.transposed(transposed, order, index)
    shares = symmetric and (spec is None or not spec.stores_values or _same_values(weights, backward))
    forward = forward.in_format(recipe.precision, spec)
    if shares:
        backward = backward.with_blocked(forward.blocked)
    else:
        backward = backward.in_format(recipe.precision, spec)
    seconds = time.perf_counter() - start
    report = {"symmetric": symmetric, "reorder": ordering, "seconds": seconds, "edges": graph.num_edges}
    return Prepared(forward, backward, index, edge_map, report, **recipe.settings)


def _same_values(weights: Weighted, backward: KernelCache) -> bool:
    """Return whether the values of a matrix with symmetric structure are symmetric."""
    values = backward.given_values
    same = values is None or torch.equal(values, values.index_select(0, backward.value_index))  # type: ignore[arg-type]
    return same and symmetric_scales(weights)


def _load(cache: GraphCache, key: str, recipe: Recipe) -> Prepared | None:
    def read(tensors: dict[str, torch.Tensor], metadata: dict[str, Any], checked: bool = False) -> Prepared:
        # The key stands for the recipe, so that the file need not hold its settings.
        prepared = unpack(tensors, metadata, checked=checked, cache_hit=True, **recipe.settings)
        csr = prepared.forward.csr
        spec = recipe.spec(csr.nnz / max(csr.rows * csr.cols, 1))
        found, wanted = metadata["format"], plain_format(spec, recipe.precision.storage)
        if spec is not None and found is not None and not spec.stores_values:
            found, wanted = found["spec"], wanted["spec"]  # the dtype plays no part
        if found != wanted:
            bad_value("metadata.format", f"is not that of {recipe.format} in {recipe.precision.value}")
        return prepared

    return cache.load(key, read, unpack_checked=functools.partial(read, checked=True))


def prepare_arrays(source: Source, recipe: Recipe, cache: GraphCache | None) -> Prepared:
    """Read a prepared graph from the cache, or build it and store it there; `cache_hit` says which."""
    if cache is None:
        return build(source, recipe)
    cache.check_folder()
    key = recipe.key(source)
    if (prepared := _load(cache, key, recipe)) is not None:
        return prepared
    with cache.lock(key) as locked:
        # Another process may have built it while this one waited for the lock.
        if locked and (prepared := _load(cache, key, recipe)) is not None:
            return prepared
        prepared = build(source, recipe)
        # Values that are not finite, as sums of large ones may be, are refused by `prepare` in any precision.
        if locked and is_finite(prepared.forward.given_values):
            packed = pack(prepared, recipe.precision.storage)
            unpack(*packed)  # checked once, here
            cache.store(key, *packed, checked=True)
    return prepared
