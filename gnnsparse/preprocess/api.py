"""`prepare` makes a SparseOperand from a graph in any supported form."""

from __future__ import annotations

import math
import os
from dataclasses import replace
from typing import Any

import torch

from gnnsparse.errors import bad_type, bad_value, check_choice, check_flag, check_integer, check_number
from gnnsparse.formats import FORMAT_NAMES, PRESETS, check_precision, format_spec
from gnnsparse.plan.store import PlanStore
from gnnsparse.plan.window import BALANCES
from gnnsparse.precision import Precision
from gnnsparse.preprocess.prepare import Recipe, check_size, prepare_arrays
from gnnsparse.preprocess.reorder import METHODS, REORDERINGS
from gnnsparse.preprocess.source import read_source
from gnnsparse.registry import check_options
from gnnsparse.runtime.cache import GraphCache
from gnnsparse.runtime.functorch import runs_outside
from gnnsparse.sparse.operand import SparseOperand
from gnnsparse.sparse.prepared import NORMALIZATIONS


@runs_outside
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
) -> SparseOperand:
    """Prepare a graph for sparse products: check it, compute weights, order rows, transpose, convert.

    Args:
        graph: PyG's `edge_index` (int [2, edges], source over target, any order: A[target, source]);
            or, with `num_nodes`, DGL's pair of int arrays `(sources, targets)`, [edges] each;
            or a matrix, which is not transposed: a SparseGraph, a CSR pair `(indptr, indices)` or triple with
            values, a scipy.sparse matrix, or a torch sparse tensor; or PyG's Data, of which edge_index,
            num_nodes and, if there is one, edge_weight are read (or else its sparse tensor adj_t). Tensors
            may be on a GPU. Repeated edges are merged and their values summed.
        num_nodes: with an edge_index: the number of nodes, or (sources, targets); None: one more than the
            largest index. With a pair of arrays it says that these are the ends of edges; without it they
            are a CSR pair.
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
        The operand, on the device of the input.

    Raises:
        TypeError: an argument is of a type or dtype that is not accepted.
        ValueError: an argument is out of range, not finite, too large for the precision (fp16 ends at
            65504), or does not go with another argument; or the format does not have the precision.
        MemoryError: on the CPU, a matrix with so many rows needs more memory than this process can get.
        ImportError: the reordering needs a package that is not installed.
    """
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
    known = PRESETS[format].options if format in PRESETS else {}
    recipe = Recipe(
        normalization=kind,
        self_loop_weight=check_number("self_loop_weight", self_loop_weight),
        reorder=reorder,
        reorder_options=tuple(sorted(_order_options(reorder, reorder_options).items())),
        format="csr" if format == "auto" else format,
        panel=panel,
        format_options=tuple(sorted(check_options("format_options", format, known, format_options).items())),
        precision=precision,
    )
    source = read_source(graph, num_nodes, num_cols, weights)
    if _device_of(source.arrays).type == "cpu":
        check_size(num_nodes, recipe)
    folder = None if isinstance(cache, bool) else cache
    store = None if cache is False else GraphCache(folder)
    prepared = prepare_arrays(source, recipe, store)
    _check_range(prepared.forward.given_values, precision)
    plans = None
    if autotune:
        plans = PlanStore("" if store is None else recipe.key(source), store)
    prepared = replace(prepared, auto_format=format == "auto", plans=plans, balance=balance)
    return SparseOperand.on(prepared, _device_of(source.arrays))


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


def _order_options(reorder: str, given: Any) -> dict[str, Any]:
    if reorder == "none":
        return check_options("reorder_options", reorder, {}, given)
    return METHODS[reorder].check_options(given, "reorder_options")


def _read_values(values: Any, edge_weight: Any) -> tuple[str | None, Any]:
    """Return (name of the normalisation or None, edge values or weights) from the two arguments."""
    if isinstance(values, str):
        return check_choice("values", values, NORMALIZATIONS), edge_weight
    if edge_weight is not None:
        bad_value("edge_weight", "goes with values='gcn' or 'mean'; plain weights go into values=")
    return None, values
