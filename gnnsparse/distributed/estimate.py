"""Estimates of the time and memory of training a graph on 1 to 1,024 GPUs: `gnnsparse plan-cluster`.

They are made of counts of a graph, which may be too large for memory, and of the rates of machines.
"""

from __future__ import annotations

import argparse
import bisect
import functools
import importlib.resources
import itertools
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from gnnsparse.data import load_dataset, open_graph
from gnnsparse.data.large.folder import row_parts
from gnnsparse.distributed.cost import Choice, Rates, choose_way, known_rates
from gnnsparse.distributed.partition import Partition, community_order, cut_sizes, ranges_along
from gnnsparse.distributed.shard import ShardFacts
from gnnsparse.errors import bad_value
from gnnsparse.formats.csr import Csr
from gnnsparse.plan.gpu_records import GpuRecord, records
from gnnsparse.precision import ROUNDED_PRECISIONS, Precision
from gnnsparse.preprocess.normalize import normalize
from gnnsparse.runtime.serialization import from_plain

#: Bytes on a GPU for each nonzero of an operand: indices of the rows and of the transpose, the map between
#: them, and the formats of the kernels.
_NONZERO_BYTES = 16
#: Arrays of a layer's output that are kept for the backward pass: input, product, masks, gradient.
_KEPT = 5
#: Passes over a layer's output for normalisation, activation and dropout, forward and backward.
_PASSES = 8
#: Bytes of a parameter: weight, gradient and Adam's two moments in float32.
_PARAMETER_BYTES = 16


@dataclass(frozen=True)
class Machines:
    """Rates of the network, of what one GPU receives, and of dense products by precision, in TFLOP/s."""

    about: str
    link_gbs: float
    network_gbs: float
    latency_us: float
    matmul: Mapping[str, float]
    machine_gpus: int = 8


@functools.cache
def default_machines() -> Machines:
    """Return the rates that are stored: H200s with NVLink in machines of 8, and InfiniBand between these."""
    content = json.loads(
        importlib.resources.files("gnnsparse.distributed").joinpath("network_rates.json").read_text()
    )
    link = known_rates("nccl")
    measured = {"link_gbs": link.link_bytes / 1e9, "latency_us": 1e6 * link.latency, "machine_gpus": 8}
    machines: Machines = from_plain(Machines, {**content, **measured}, "rates")
    return machines


@dataclass(frozen=True)
class Workload:
    """A model of graph convolutions and the graph that it is trained on, whose nonzeros include self-loops.

    `gathers` are the rows of features that a product reads, the distinct columns of panels of 32 rows.
    """

    nodes: int
    nonzeros: int
    gathers: int
    features: int
    hidden: int
    classes: int
    layers: int
    precision: Precision

    @property
    def widths(self) -> list[int]:
        """Features of the input and of each layer's output."""
        return [self.features, *[self.hidden] * (self.layers - 1), self.classes]


@dataclass(frozen=True)
class Estimate:
    """What a step is estimated to take; the memory, in bytes, is that of the GPU that needs most."""

    way: str
    product_ms: float
    dense_ms: float
    nbytes: float

    @property
    def milliseconds(self) -> float:
        """Time of a step."""
        return self.product_ms + self.dense_ms


def random_facts(nodes: int, nonzeros: int, gpus: int) -> ShardFacts:
    """Return the counts of a graph whose edges join random nodes, which divisions cut alike.

    A rank's rows have nonzeros in the columns of others in proportion to the number of these; the number of
    different columns is that of urns that have a ball.
    """
    starts = tuple(nodes * gpu // gpus for gpu in range(gpus + 1))
    own = nonzeros / gpus
    outside = own * (1 - 1 / gpus)
    others = nodes * (1 - 1 / gpus)
    halo = round(others * -math.expm1(-outside / others)) if others else 0
    counts = (round(own),) * gpus, (round(outside),) * gpus, (halo,) * gpus
    return ShardFacts(0, starts, *counts, nonzeros, "contiguous")


def _rates(load: Workload, width: int, gpus: int, gpu: GpuRecord, machines: Machines) -> Rates:
    """Return the rates of a product of some width on several GPUs."""
    size = load.precision.storage.itemsize
    sizes, speeds = zip(*gpu.memory.l2, strict=True)
    gathered = float(np.interp(load.nodes * width * size, sizes, speeds)) * 1e12
    # Of what a rank receives, a part comes from its own machine; both come at once.
    inside = min(1.0, (machines.machine_gpus - 1) / max(gpus - 1, 1))
    slowest = max(inside / machines.link_gbs, (1 - inside) / machines.network_gbs)
    return Rates(
        link_bytes=1e9 / slowest,
        latency=1e-6 * machines.latency_us * max(1.0, math.log2(gpus)),
        product_bytes=gathered * load.nonzeros / max(load.gathers, 1),
        narrow_bytes=known_rates("nccl").narrow_bytes,
        copy_bytes=gpu.memory.dram_tbs * 1e12,
        add_passes=known_rates("nccl").add_passes,
    )


def product(
    load: Workload, facts: ShardFacts, width: int, gpu: GpuRecord, machines: Machines
) -> tuple[float, Choice | None]:
    """Return the seconds of a product, and how it is shared; None: by nobody."""
    rates = _rates(load, width, facts.ranks, gpu, machines)
    size = load.precision.storage.itemsize
    if facts.ranks == 1:
        return rates.product(load.nonzeros, width * size), None
    choice = choose_way(facts, width, size, rates=rates)
    return choice.seconds[choice.way], choice


def estimate(load: Workload, facts: ShardFacts, gpu: GpuRecord, machines: Machines) -> Estimate:
    """Estimate a training step: forward, backward and Adam.

    A layer multiplies by the matrix on the side of its linear layer that is narrower, once forward and once
    backward. Time that other ranks' features take behind a product is not counted twice.
    """
    size, rows = load.precision.storage.itemsize, facts.most_rows
    flops, copy = machines.matmul[load.precision.value] * 1e12, gpu.memory.dram_tbs * 1e12
    products = dense = 0.0
    ways = []
    for before, after in zip(load.widths, load.widths[1:], strict=False):
        seconds, choice = product(load, facts, min(before, after), gpu, machines)
        products += 2 * seconds
        ways.append((seconds, "-" if choice is None else choice.way))
        linear = max(2 * rows * before * after / flops, 2 * rows * (before + after) * size / copy)
        dense += 3 * linear + _PASSES * rows * after * size / copy
    parameters = sum(a * b for a, b in zip(load.widths, load.widths[1:], strict=False))
    if facts.ranks > 1:
        rates = _rates(load, load.hidden, facts.ranks, gpu, machines)
        dense += 2 * (rates.latency + 4 * parameters / rates.link_bytes)
    way = max(ways)[1]
    return Estimate(way, 1e3 * products, 1e3 * dense, _nbytes(load, facts, way, parameters))


def _nbytes(load: Workload, facts: ShardFacts, way: str, parameters: int) -> float:
    size, rows, widest = load.precision.storage.itemsize, facts.most_rows, max(load.widths[1:])
    nonzeros = sum(facts.nnz) if way == "features" else max(facts.nnz)
    received = {"halo": max(facts.halo), "gather": facts.nodes, "features": facts.nodes / facts.ranks}
    others = received.get(way, 0)
    activations = rows * (load.features + _KEPT * sum(load.widths[1:])) * size
    logits = 2 * 4 * rows * load.classes
    stored = _NONZERO_BYTES * nonzeros + _PARAMETER_BYTES * parameters
    return activations + logits + stored + 2 * others * widest * size


#: Panels whose distinct columns are counted; of more than these a sample is taken.
_PANELS = 1 << 14


class StreamedCounts:
    """Counts of a square matrix to which the self-loops that it lacks are added."""

    def __init__(self, csr: Csr) -> None:
        self._csr = csr
        self._offsets: np.ndarray[Any, Any] = csr.indptr.numpy()
        self._indices: np.ndarray[Any, Any] = csr.indices.numpy()
        found = [np.empty(0, np.int32)]
        for first, last, begin, end in row_parts(csr):
            degrees = np.diff(self._offsets[first : last + 1])
            rows = np.repeat(np.arange(first, last, dtype=np.int32), degrees)
            found.append(rows[rows == self._indices[begin:end]])
        self._loops = np.concatenate(found)
        self.nonzeros = csr.nnz + csr.rows - len(self._loops)

    def _nonzeros_before(self, row: int) -> int:
        """Return the nonzeros of the rows before one, self-loops included."""
        return int(self._offsets[row]) + row - int(np.searchsorted(self._loops, row))

    def facts(self, parts: int) -> ShardFacts:
        """Count what travels if ranks own ranges of about equal work (`balanced_ranges`)."""
        rows = self._csr.rows

        def work_around(row: int) -> float:
            """Return the work of the rows before one and half of its own."""
            return (self._nonzeros_before(row) + self._nonzeros_before(row + 1) + 2 * row + 1) / 2

        goals = ((self.nonzeros + rows) * part / parts for part in range(1, parts))
        starts = (0, *(bisect.bisect_left(range(rows), goal, key=work_around) for goal in goals), rows)
        touched = np.zeros(rows, np.bool_)
        nnz, outside, halo = [], [], []
        for start, stop in itertools.pairwise(starts):
            elsewhere = 0
            for _, _, begin, end in row_parts(self._csr, start, stop):
                columns = self._indices[begin:end]
                others = columns[(columns < start) | (columns >= stop)]
                elsewhere += len(others)
                touched[others] = True
            nnz.append(self._nonzeros_before(stop) - self._nonzeros_before(start))
            outside.append(elsewhere)
            halo.append(int(np.count_nonzero(touched)))
            touched[:] = False
        return ShardFacts(0, starts, tuple(nnz), tuple(outside), tuple(halo), self.nonzeros, "contiguous")

    def gathers(self, height: int) -> tuple[int, int, int]:
        """Estimate the rows that a product reads; also how many panels were counted, and how many exist."""
        rows = self._csr.rows
        panels = -(-rows // height)
        looked = min(panels, _PANELS)
        found = 0
        for number in range(looked):
            first = number * panels // looked * height
            last = min(first + height, rows)
            columns = self._indices[self._offsets[first] : self._offsets[last]]
            found += len(np.unique(np.concatenate([columns, np.arange(first, last, dtype=np.int32)])))
        return round(found * panels / max(looked, 1)), looked, panels


DESCRIPTION = """\
Estimates the time of a training step and the memory of a GPU, for a model of graph convolutions on 1 to 1,024
GPUs. With a data set, its graph is divided along communities for each number of GPUs and its halos are
counted; with --graph, a graph on disk is divided into ranges of consecutive nodes, without being read into
memory; with --nodes and --edges, edges join random nodes, and halos are large. Nothing is run: the rates of
kernels are those of a GPU's record, those of the network are options.
"""
MOST_GPUS = 1024
#: Those in which distribute makes operands.
_PRECISIONS = tuple(precision.value for precision in ROUNDED_PRECISIONS)


def _positive(kind: Callable[[str], Any], below: float, accepted: str) -> Callable[[str], Any]:
    """Return the type of an option that is a positive number below a bound."""

    def read(text: str) -> Any:
        try:
            value = kind(text)
        except ValueError:
            value = 0
        if not 0 < value < below:
            raise argparse.ArgumentTypeError(f"got {text!r}; accepted: {accepted}")
        return value

    return read


_count = _positive(int, 2**40, "a positive integer")
_gpus = _positive(int, MOST_GPUS + 1, f"a positive integer, at most {MOST_GPUS}")
_speed = _positive(float, math.inf, "a number above 0")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("dataset", nargs="?", metavar="DATASET", help="a data set of nodes of train.py")
    parser.add_argument("--root", metavar="DIR", help="the folder with the files of a published data set")
    parser.add_argument("--graph", metavar="FOLDER", help="a graph that `gnnsparse graph` has made")
    parser.add_argument("--nodes", type=_count, metavar="N", help="nodes of a graph that is not there")
    parser.add_argument("--edges", type=_count, metavar="E", help="its edges, both directions counted")
    parser.add_argument("--features", type=_count, metavar="F", help="features of its nodes; default: 128")
    parser.add_argument("--classes", type=_count, metavar="C", help="its classes; default: 64")
    parser.add_argument(
        "--gpus", type=_gpus, nargs="+", default=[1, 2, 4, 8, 64, 1024], metavar="G",
        help=f"numbers of GPUs, up to {MOST_GPUS}; default: 1 2 4 8 64 1024",
    )  # fmt: skip
    parser.add_argument("--hidden", type=_count, default=128, metavar="H", help="default: 128")
    parser.add_argument("--layers", type=_count, default=5, metavar="L", help="convolutions; default: 5")
    parser.add_argument(
        "--precision", choices=_PRECISIONS, default="fp16", metavar="NAME",
        help=f"{', '.join(_PRECISIONS)}; default: fp16",
    )  # fmt: skip
    default = "NVIDIA H200"
    parser.add_argument(
        "--gpu", default=default, metavar="NAME", help=f"the record of a GPU; default: {default}"
    )
    parser.add_argument("--link-gbs", type=_speed, metavar="GB/S", help="received from GPUs of one machine")
    parser.add_argument("--network-gbs", type=_speed, metavar="GB/S", help="received from other machines")
    parser.add_argument("--machine-gpus", type=_count, metavar="N", help="GPUs of a machine; default: 8")


#: Height of the panels whose distinct columns are the rows that a product reads.
_PANEL = 32


def counted_facts(csr: Csr, partition: Partition) -> ShardFacts:
    """Count what a division of a graph makes travel, without making the shards."""
    nnz, outside, halo = zip(*cut_sizes(csr, partition), strict=True)
    return ShardFacts(0, partition.starts, nnz, outside, halo, csr.nnz, partition.method)


class _Subject(NamedTuple):
    """The graph of an estimate, counts of its division among GPUs, and a remark on these."""

    nodes: int
    nonzeros: int
    gathers: int
    facts: Callable[[int], ShardFacts]
    features: int = 128
    classes: int = 64
    remark: str = ""


def _of_dataset(options: argparse.Namespace) -> _Subject:
    dataset = load_dataset(options.dataset, **({} if options.root is None else {"root": options.root}))
    csr = normalize(dataset.graph.to(torch.device("cpu")), "gcn").graph.csr
    order = community_order(csr)
    gathers = int(csr.count_columns(_PANEL, order.int()).sum())

    def facts(gpus: int) -> ShardFacts:
        return counted_facts(csr, ranges_along(csr, order, gpus, "community"))

    return _Subject(csr.rows, csr.nnz, gathers, facts, dataset.num_features, dataset.num_classes)


def _of_graph(options: argparse.Namespace) -> _Subject:
    counts = StreamedCounts(csr := open_graph(options.graph).csr)
    gathers, looked, panels = counts.gathers(_PANEL)
    remark = "nodes are divided in their own order; nonzeros and halos are counted"
    if looked < panels:
        remark += f", rows that products read are estimated from {looked} of {panels} panels"
    return _Subject(csr.rows, counts.nonzeros, gathers, counts.facts, remark=remark)


def _of_counts(options: argparse.Namespace) -> _Subject:
    nodes, nonzeros = options.nodes, options.edges + options.nodes
    return _Subject(nodes, nonzeros, nonzeros, functools.partial(random_facts, nodes, nonzeros))


def _table(load: Workload, gpu: GpuRecord, found: list[tuple[ShardFacts, Estimate]]) -> Table:
    title = (
        f"{load.layers} convolutions of {load.hidden} features, {load.precision.value}, {load.nodes} nodes, "
        f"{load.nonzeros} nonzeros, estimated for {gpu.name}"
    )
    table = Table(title=title, title_justify="left")
    for name in ("GPUs", "way", "halo", "products", "dense", "step ms", "speedup", "GB a GPU", "fits"):
        table.add_column(name, justify="left" if name == "way" else "right", no_wrap=True)
    first = found[0][1]
    for facts, one in found:
        ratio = first.milliseconds / one.milliseconds
        table.add_row(
            str(facts.ranks), one.way, str(max(facts.halo)), f"{one.product_ms:.3g}", f"{one.dense_ms:.3g}",
            f"{one.milliseconds:.3g}", f"{ratio:.2f}", f"{one.nbytes / 1e9:.3g}",
            "yes" if one.nbytes < gpu.memory_bytes else "no",
        )  # fmt: skip
    return table


def run(options: argparse.Namespace) -> int:
    """Print the estimates for all numbers of GPUs, and return the exit status 0."""
    given = (options.nodes is not None) + (options.edges is not None)
    if given == 1 or (options.dataset is not None) + (options.graph is not None) + (given == 2) != 1:
        bad_value("DATASET", "accepted: a data set, or --nodes and --edges, or --graph in its place")
    known = {record.name: record for record in records()}
    if options.gpu not in known:
        bad_value("--gpu", f"got {options.gpu!r}; accepted: {', '.join(known)}")
    gpu = known[options.gpu]
    rates = {name: getattr(options, name) for name in ("link_gbs", "network_gbs", "machine_gpus")}
    machines = replace(default_machines(), **{name: rate for name, rate in rates.items() if rate is not None})
    read = (
        _of_dataset if options.dataset is not None else _of_graph if options.graph is not None else _of_counts
    )
    subject = read(options)
    load = Workload(
        *subject[:3], options.features or subject.features, options.hidden,
        options.classes or subject.classes, options.layers, Precision.parse(options.precision),
    )  # fmt: skip
    divided = [subject.facts(gpus) for gpus in sorted(set(options.gpus))]
    found = [(facts, estimate(load, facts, gpu, machines)) for facts in divided]
    console = Console()
    console.print(_table(load, gpu, found))
    if subject.remark:
        console.print(subject.remark, soft_wrap=True, highlight=False, markup=False)
    console.print(
        f"{machines.link_gbs:g} GB/s in machines of {machines.machine_gpus}, {machines.network_gbs:g} GB/s "
        f"between them; speedup over {divided[0].ranks}; {machines.about}",
        soft_wrap=True, highlight=False, markup=False,
    )  # fmt: skip
    return 0
