"""What `gnnsparse plan-cluster` does."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass

import torch
from rich.console import Console
from rich.table import Table

from gnnsparse.data import load_dataset, open_graph
from gnnsparse.distributed.estimate.model import (
    Estimate,
    Workload,
    default_machines,
    estimate,
    random_facts,
    with_network,
)
from gnnsparse.distributed.estimate.streamed import StreamedCounts
from gnnsparse.distributed.partition import Partition, community_order, cut_sizes, ranges_along
from gnnsparse.distributed.shard import ShardFacts
from gnnsparse.errors import bad_value
from gnnsparse.formats.csr import Csr
from gnnsparse.plan.gpu_records import GpuRecord, records
from gnnsparse.precision import Precision
from gnnsparse.preprocess.normalize import normalize

__all__ = ["run_plan_cluster"]

#: Height of the panels whose distinct columns are the rows that a product reads.
_PANEL = 32
_DEFAULT_GPU = "NVIDIA H200"


def _record(name: str | None) -> GpuRecord:
    known = {record.name: record for record in records()}
    if (name or _DEFAULT_GPU) not in known:
        bad_value("--gpu", f"got {name!r}; accepted: {', '.join(known)}")
    return known[name or _DEFAULT_GPU]


def counted_facts(csr: Csr, partition: Partition) -> ShardFacts:
    """Counts what a division of a graph makes travel, without making the shards."""
    nnz, outside, halo = zip(*cut_sizes(csr, partition), strict=True)
    return ShardFacts(
        0, partition.starts, nnz, outside, halo, csr.nnz, partition.method, "gcn", 1.0, True, False
    )


@dataclass(frozen=True)
class _Subject:
    """What is estimated: the model and its graph, counts of a division among GPUs, and a remark on these."""

    load: Workload
    facts: Callable[[int], ShardFacts]
    remark: str = ""


def _of_dataset(options: argparse.Namespace) -> _Subject:
    dataset = load_dataset(options.dataset, **({} if options.root is None else {"root": options.root}))
    csr = normalize(dataset.graph.to(torch.device("cpu")), "gcn").graph.csr
    order = community_order(csr)
    gathers = int(csr.count_columns(_PANEL, order.int()).sum())
    load = _load(options, csr.rows, csr.nnz, gathers, dataset.num_features, dataset.num_classes)
    return _Subject(load, lambda gpus: counted_facts(csr, ranges_along(csr, order, gpus, "community")))


def _of_graph(options: argparse.Namespace) -> _Subject:
    counts = StreamedCounts(csr := open_graph(options.graph).csr)
    gathers, looked, panels = counts.gathers(_PANEL)
    remark = "nodes are divided in their own order; nonzeros and halos are counted"
    if looked < panels:
        remark += f", rows that products read are estimated from {looked} of {panels} panels"
    return _Subject(_load(options, csr.rows, counts.nonzeros, gathers), counts.facts, remark)


def _of_counts(options: argparse.Namespace) -> _Subject:
    nodes, nonzeros = options.nodes, options.edges + options.nodes
    load = _load(options, nodes, nonzeros, nonzeros)
    return _Subject(load, lambda gpus: random_facts(nodes, nonzeros, gpus))


def _load(
    options: argparse.Namespace, nodes: int, nonzeros: int, gathers: int, features: int = 128,
    classes: int = 64,
) -> Workload:  # fmt: skip
    """Returns the workload of the options; `features` and `classes` are those that are not given."""
    return Workload(
        nodes, nonzeros, gathers, options.features or features, options.hidden, options.classes or classes,
        options.layers, Precision.parse(options.precision),
    )  # fmt: skip


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
            str(one.gpus), one.way, str(max(facts.halo)), f"{one.product_ms:.3g}", f"{one.dense_ms:.3g}",
            f"{one.milliseconds:.3g}", f"{ratio:.2f}", f"{one.nbytes / 1e9:.3g}",
            "yes" if one.nbytes < gpu.memory_bytes else "no",
        )  # fmt: skip
    return table


def run_plan_cluster(options: argparse.Namespace) -> int:
    """Prints the estimates for all numbers of GPUs, and returns the exit status 0.

    Raises:
        ValueError: an option does not go with another one, or there is no such data set or record.
    """
    given = (options.nodes is not None) + (options.edges is not None)
    if given == 1 or (options.dataset is not None) + (options.graph is not None) + (given == 2) != 1:
        bad_value("DATASET", "accepted: a data set, or --nodes and --edges, or --graph in its place")
    gpu = _record(options.gpu)
    machines = with_network(default_machines(), options.link_gbs, options.network_gbs, options.machine_gpus)
    read = (
        _of_dataset if options.dataset is not None else _of_graph if options.graph is not None else _of_counts
    )
    subject, found = read(options), []
    for gpus in sorted(set(options.gpus)):
        facts = subject.facts(gpus)
        found.append((facts, estimate(subject.load, facts, gpu, machines)))
    console = Console()
    console.print(_table(subject.load, gpu, found))
    if subject.remark:
        console.print(subject.remark, soft_wrap=True, highlight=False, markup=False)
    console.print(
        f"{machines.link_gbs:g} GB/s in machines of {machines.machine_gpus}, {machines.network_gbs:g} GB/s "
        f"between them; speedup over {found[0][1].gpus}; {machines.about}",
        soft_wrap=True, highlight=False, markup=False,
    )  # fmt: skip
    return 0
