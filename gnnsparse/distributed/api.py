"""`distribute`, which divides a graph among the ranks of a process group, and `measure_rates`.

It stands alone because the package imports its names when they are first used.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from gnnsparse.distributed.cost import Rates, choose_way, known_rates
from gnnsparse.distributed.exchange import FeatureExchange, gather_ranks
from gnnsparse.distributed.names import PARTITIONS, WAYS, WIRES
from gnnsparse.distributed.operand import DistributedOperand
from gnnsparse.distributed.operations import FeatureOperations, RowOperations
from gnnsparse.distributed.partition import Partition
from gnnsparse.distributed.shard import (
    Shard,
    ShardFacts,
    ShardRecipe,
    content_of,
    make_shard,
    read_shard,
    store_shard,
)
from gnnsparse.distributed.trial import tried
from gnnsparse.errors import (
    bad_type,
    bad_value,
    check_choice,
    check_flag,
    check_integer,
    check_number,
    device_of,
)
from gnnsparse.formats import FORMAT_NAMES, check_precision
from gnnsparse.ops import spmm
from gnnsparse.ops.arguments import check_operand
from gnnsparse.precision import ROUNDED_PRECISIONS, Precision
from gnnsparse.preprocess.api import prepare
from gnnsparse.preprocess.source import read_source
from gnnsparse.runtime.cache import GraphCache
from gnnsparse.runtime.functorch import outside
from gnnsparse.runtime.hashing import fingerprint
from gnnsparse.runtime.serialization import to_plain
from gnnsparse.runtime.timing import measure
from gnnsparse.sparse.graph import SparseGraph
from gnnsparse.sparse.operand import SparseOperand
from gnnsparse.sparse.prepared import NORMALIZATIONS

#: Ways that every operation runs by.
_BY_ROWS = ("halo", "gather")


def group_of(group: Any) -> dist.ProcessGroup | None:
    """Return the process group that an argument means: a group, a DeviceMesh of one dimension, or None."""
    if not dist.is_available() or not dist.is_initialized():
        raise RuntimeError(
            "torch.distributed has no process group: call torch.distributed.init_process_group before"
        )
    if group is None or isinstance(group, dist.ProcessGroup):
        return group
    if isinstance(group, DeviceMesh):
        if group.ndim != 1:
            bad_value("group", f"is a mesh of {group.ndim} dimensions; accepted: one, as in mesh['name']")
        return group.get_group()
    bad_type("group", group, "a ProcessGroup, a DeviceMesh, or None for all processes")


def distribute(
    graph: Any,
    group: Any = None,
    *,
    num_nodes: int | None = None,
    values: Any = None,
    self_loop_weight: float = 1.0,
    precision: Precision | str = "fp32",
    format: str = "auto",
    device: torch.device | str | None = None,
    way: str = "auto",
    parts: str = "auto",
    width: int = 128,
    chunks: int | None = None,
    split: bool | None = None,
    wire: str = "auto",
    rates: Rates | None = None,
    trial: Callable[[SparseOperand], object] | None = None,
    cache: bool | str | os.PathLike[str] = True,
) -> DistributedOperand:
    """Divide a graph among processes, and prepare this process's part for products.

    All processes of the group call it with equal arguments. The nodes are renumbered so that each process
    owns a range: `operand.nodes` are those of this process, and `x[operand.nodes]` are their features.

    Args:
        graph: a square graph in a form that `gnnsparse.prepare` accepts.
        group: the processes: a ProcessGroup, a DeviceMesh of one dimension, or None for all of them.
        num_nodes: with an edge_index: the number of nodes; None: one more than the largest index.
        values: None, a tensor of values of the edges, "gcn" or "mean", see `gnnsparse.prepare`.
        self_loop_weight: with values="gcn": weight of the self-loops that are added.
        precision: "fp32", "tf32", "fp16" or "bf16": what operands are rounded to. Sums are float32.
        format: format of the operands, see `gnnsparse.prepare`.
        device: device of the features; None: the current GPU with NCCL, else the CPU.
        way: "halo": rows are divided, and each process fetches the features of the columns that its rows
            touch; "gather": it fetches those of all nodes; "features": each process multiplies the whole
            matrix by its share of the features; "auto": a cost model chooses, whose reasons
            `operand.explain()` returns. Edge values need rows, and attention by features heads that the
            processes divide: "auto" takes "features" only after a `trial`.
        parts: how nodes are divided: "auto", "contiguous", "community" or "metis", see `partition_rows`. With
            way="features" ranges of equal size.
        width: features of a product, for the choice of the way without a trial.
        chunks: in how many chunks of the features those of other processes travel, each while the one before
            it is multiplied; None: the model chooses. There are no more than a row of features has slices of
            128 bytes.
        split: whether own columns are multiplied while features travel, in a product of their own to which
            that of the other columns is added; False: all columns in one product; None: the model chooses.
        wire: what features of other processes travel as: "auto": as products round them; "int8": as integers
            of 8 bits with a scale for each row (and chunk), whose error is at most 1/254 of the row's largest
            magnitude. Own features and gradients are not rounded. It needs rows: "auto" takes no "features".
        rates: rates of the machine; None: those that are stored for the backend.
        trial: what the operand is for, a function that calls a model on the CPU with an operand A of a few
            nodes, as in `lambda A: model(torch.zeros(A.shape[0], 16), A)`: "auto" leaves out what the model
            does not run by, and estimates the time of all of its products. Tensors that the call changes in
            place, as a batch norm its statistics, get what they held before.
        cache: True: shards are stored in the user's cache folder, a path: in that one; False: they are not.

    Returns:
        The operand of this process.

    Raises:
        TypeError: an argument is of another type.
        ValueError: an argument is out of range, the precision stores 8 bits, the graph is not square,
            or the processes gave other graphs or options.
        RuntimeError: torch.distributed has not been initialised.
        ImportError: parts is "metis", and pymetis is not installed.
    """
    group = group_of(group)
    precision = Precision.parse(precision)
    if precision.quantizes:
        accepted = ", ".join(one.value for one in ROUNDED_PRECISIONS)
        bad_value(
            "precision", f"got {precision.value!r}, whose scales depend on all ranks; accepted: {accepted}"
        )
    check_choice("way", way, ("auto", *WAYS))
    check_choice("parts", parts, PARTITIONS)
    packs = check_choice("wire", wire, WIRES) == "int8"
    if packs and way == "features":
        bad_value("wire", "got 'int8' with way='features'; accepted: 'auto', or way='halo' or 'gather'")
    check_choice("format", format, FORMAT_NAMES)
    check_precision(format, precision)
    check_integer("width", width)
    if trial is not None and not callable(trial):
        bad_type("trial", trial, "a function of an operand, or None")
    if rates is not None and not isinstance(rates, Rates):
        bad_type("rates", rates, "Rates, as known_rates and measure_rates return them, or None")
    if chunks is not None:
        check_integer("chunks", chunks)
    if split is not None:
        check_flag("split", split)
    if not isinstance(cache, (bool, str, os.PathLike)):
        bad_type("cache", cache, "True, False or a folder")
    backend = dist.get_backend(group)
    is_name = isinstance(values, str)
    kind = check_choice("values", values, NORMALIZATIONS) if is_name else None
    weight = check_number("self_loop_weight", self_loop_weight)
    recipe = ShardRecipe(kind, weight, dist.get_world_size(group), parts)
    rank = dist.get_rank(group)
    default = "cuda" if backend == "nccl" else "cpu"
    device = device_of("device", default if device is None else device)
    if device.type == "cpu" and backend == "nccl":
        bad_value("device", "got 'cpu' with the backend nccl; accepted: cuda, or a group with gloo")
    rates = known_rates("nccl" if backend == "nccl" else "gloo") if rates is None else rates
    with outside():
        made = read_source(graph, num_nodes, None, None if is_name else values).build()
        if made.num_rows != made.num_cols:
            bad_value("graph", f"is {made.num_rows} x {made.num_cols}; accepted: a square matrix")
        content = content_of(made, recipe)
        # With other options that decide what travels, processes would wait for each other for ever. What the
        # rates are about may name the device of a rank.
        widths, ways, left_out = _asked(way, width, trial, recipe, made, precision, packs)
        options = (way, precision.value, widths, ways, chunks, split, wire, replace(rates, about=""))
        if _differ(fingerprint([], content, options), device, group):
            bad_value("graph", "differs between the processes, or their options do; accepted: equal ones")
        choose = functools.partial(
            choose_way, width=widths, itemsize=precision.storage.itemsize, rates=rates, packs=packs
        )
        choice = None
        if way != "features":
            store = None if cache is False else GraphCache(None if cache is True else cache)
            shard, hit = _shard_of(made, recipe, content, store, device, group)
            choice = choose(shard.facts, ways=ways)
            choice = replace(choice, reasons=(*choice.reasons, *left_out))
            if choice.way != "features":
                given: dict[str, Any] = {"chunks": chunks, "split": split}
                choice = replace(choice, **{name: one for name, one in given.items() if one is not None})
                rows = RowOperations(shard, choice, precision, format, device, group, packs)
                return DistributedOperand(
                    shard.facts, shard.nodes, rows, precision, device, choice, cache_hit=hit
                )
        # By features: each rank has the whole matrix, whose rows stay in the graph's order.
        partition = Partition.even(made.num_rows, recipe.parts)
        whole = prepare(
            made.to(device), values=kind, self_loop_weight=weight, precision=precision, format=format,
            cache=cache,
        ).to(device)  # fmt: skip
        starts = torch.tensor(partition.starts, dtype=torch.int64, device="cpu")
        none = (0,) * recipe.parts
        facts = ShardFacts(
            rank, partition.starts, tuple(whole.kernels.csr.indptr.cpu()[starts].diff().tolist()), none, none,
            made.num_edges, partition.method, whole.normalization, whole.added_loops, whole.has_self_loops,
            whole.merges_edges,
        )  # fmt: skip
        return DistributedOperand(
            facts, partition.owned(rank),
            FeatureOperations(whole, FeatureExchange(partition.sizes, rank, group)), precision, device,
            choice or choose(facts, ways=("features",)), cache_hit=whole.cache_hit,
        )  # fmt: skip


def _asked(
    way: str, width: int, trial: Callable[[SparseOperand], object] | None, recipe: ShardRecipe,
    graph: SparseGraph, precision: Precision, packs: bool,
) -> tuple[tuple[int, ...], tuple[str, ...], tuple[str, ...]]:  # fmt: skip
    """Return the features of each product, the ways to compare, and reasons for what is left out."""
    if way != "auto":
        return (width,), (way,), ()
    if trial is None:
        return (width,), _BY_ROWS, ("features: left out, as no trial has shown that the model runs by them",)
    found = tried(
        trial, recipe.parts, graph.values is not None, values=recipe.normalization,
        self_loop_weight=recipe.self_loop_weight, precision=precision,
    )  # fmt: skip
    # A model that multiplies nothing by the matrix, or that can't be tried, has products of some width.
    widths = tuple(one for one in found.widths if one) or (width,)
    obstacle = "rows alone travel in 8 bits" if packs else found.obstacle
    if obstacle is None:
        return widths, WAYS, ()
    return widths, _BY_ROWS, (f"features: left out: {obstacle}",)


def _shard_of(
    graph: SparseGraph, recipe: ShardRecipe, content: str, store: GraphCache | None, device: torch.device,
    group: dist.ProcessGroup | None,
) -> tuple[Shard, bool]:  # fmt: skip
    """Return this rank's shard, and whether it was read: if all ranks have one, and of one division.

    Otherwise each rank cuts its own and stores it. One division may have been stored before pymetis was
    installed, and some of its shards have been deleted since.
    """
    rank = dist.get_rank(group)
    shard = None if store is None else read_shard(store, content, rank, device)
    facts = None if shard is None else to_plain(replace(shard.facts, rank=0))
    differs = _differ(fingerprint([], facts), device, group)
    if shard is not None and not differs:
        return shard, True

    def agreed(divide: Callable[[], Partition]) -> Partition:
        found: list[Any] = [None]
        if rank == 0:
            own = torch.get_num_threads()
            torch.set_num_threads(max(own, min(own * recipe.parts, os.cpu_count() or 1)))  # others wait
            try:
                found = [divide()]
            except Exception as error:
                found = [error]
            finally:
                torch.set_num_threads(own)
        first = 0 if group is None else dist.get_global_rank(group, 0)
        dist.broadcast_object_list(found, first, group, device)
        if isinstance(found[0], Exception):
            raise found[0]
        partition: Partition = found[0]
        return partition

    shard = make_shard(graph, recipe, rank, device, agreed)
    if store is not None:
        store_shard(store, content, shard)
    return shard, False


def _differ(content: str, device: torch.device, group: dist.ProcessGroup | None) -> bool:
    """Return whether the processes have different hashes, of 32 hexadecimal digits."""
    numbers = [int(content[at : at + 8], 16) for at in range(0, len(content), 8)]
    own = torch.tensor(numbers, dtype=torch.int64, device=device)
    return bool((gather_ranks(own, group) != own).any())


#: Bytes that each rank sends to each other one, to tell latency from bandwidth.
_SMALL, _LARGE = 2**10, 2**24
#: Features of a product that is too narrow to be faster.
_NARROW = 16


def measure_rates(operand: SparseOperand, group: Any = None, *, width: int = 128, repeats: int = 5) -> Rates:
    """Measure how fast ranks exchange features and how fast each of them multiplies.

    All ranks of the group call it. It takes about a second on GPUs of one host.

    Args:
        operand: an operand of one process that is like the graph to be divided, on the device to be used.
        group: the ranks, see `distribute`.
        width: features of a product.
        repeats: how often each measurement is repeated; the median counts, and the slowest rank.

    Returns:
        The rates, equal on all ranks.

    Raises:
        TypeError: an argument is of another type.
        ValueError: an argument is out of range, or the operand is of several ranks or has no nonzeros.
        RuntimeError: torch.distributed has not been initialised.
    """
    group = group_of(group)
    check_operand(operand)
    if operand.operations is not None or operand.nnz == 0:
        bad_value("operand", "is of several ranks or empty; accepted: one of a process, with nonzeros")
    check_integer("width", width)
    check_integer("repeats", repeats)
    timed = functools.partial(_seconds, device=operand.device, group=group, repeats=repeats)
    ranks, dtype = dist.get_world_size(group), operand.precision.storage
    seconds = []
    for nbytes in (_SMALL, _LARGE):
        sent = torch.zeros(ranks * nbytes, dtype=torch.uint8, device=operand.device)
        exchange = functools.partial(dist.all_to_all_single, torch.empty_like(sent), sent, group=group)
        seconds.append(timed(exchange))
    by_width = {}
    for features in (_NARROW, width):
        x = torch.zeros((operand.shape[1], features), dtype=dtype, device=operand.device)
        by_width[features] = timed(functools.partial(spmm, operand, x))
    block = torch.zeros(_LARGE, dtype=torch.uint8, device=operand.device)
    copied = timed(block.clone)
    received_bytes = max(ranks - 1, 1) * (_LARGE - _SMALL)
    product = operand.nnz * width * dtype.itemsize / by_width[width]
    return Rates(
        link_bytes=received_bytes / max(seconds[1] - seconds[0], 1e-9),
        latency=seconds[0],
        product_bytes=product,
        # The width at which the time of the narrow product would be that of its bytes.
        narrow_bytes=max(1.0, by_width[_NARROW] * product / operand.nnz),
        copy_bytes=2 * _LARGE / copied,
        add_passes=1.0 if operand.device.type == "cuda" else 3.0,  # as ops/spmm/into.py adds
        about=f"measured on {ranks} ranks, {dist.get_backend(group)}, {operand!r}",
    )


def _seconds(
    call: Callable[[], Any], device: torch.device, group: dist.ProcessGroup | None, repeats: int
) -> float:
    """Return the median time of a call on the slowest rank, after one call that is not timed."""

    def complete() -> None:
        call()
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    found = measure(complete, "cpu", warmup=1, repeats=repeats)  # by the host's clock, on a GPU too
    own = torch.tensor([1e-3 * found.median], dtype=torch.float64, device=device)
    return float(gather_ranks(own, group).max())
