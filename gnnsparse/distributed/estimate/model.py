"""Estimates of a training step on several GPUs, from counts of a graph and rates of the machines."""

from __future__ import annotations

import functools
import importlib.resources
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from gnnsparse.distributed.cost import Choice, Rates, choose_way, known_rates
from gnnsparse.distributed.shard import ShardFacts
from gnnsparse.plan.gpu_records import GpuRecord
from gnnsparse.precision import Precision
from gnnsparse.runtime.serialization import from_plain

__all__ = ["Estimate", "Machines", "Workload", "default_machines", "estimate", "random_facts"]

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
    """Rates of the network and of dense products.

    Attributes:
        about: where the numbers come from.
        link_gbs: GB/s that a GPU receives from others of its machine.
        network_gbs: GB/s that a GPU receives from other machines.
        latency_us: microseconds that an exchange takes at the least.
        matmul: TFLOP/s of dense products by precision.
        machine_gpus: GPUs of a machine.
    """

    about: str
    link_gbs: float
    network_gbs: float
    latency_us: float
    matmul: Mapping[str, float]
    machine_gpus: int = 8


@functools.cache
def default_machines() -> Machines:
    """Returns the rates that are stored: H200s with NVLink in machines of 8, and InfiniBand between these."""
    content = json.loads(
        importlib.resources.files("gnnsparse.distributed.estimate").joinpath("rates.json").read_text()
    )
    link = known_rates("nccl")
    measured = {"link_gbs": link.link_bytes / 1e9, "latency_us": 1e6 * link.latency, "machine_gpus": 8}
    machines: Machines = from_plain(Machines, {**content, **measured}, "rates")
    return machines


@dataclass(frozen=True)
class Workload:
    """A model of graph convolutions and the graph that it is trained on.

    Attributes:
        nodes, nonzeros: of the graph, self-loops included.
        gathers: rows of features that a product reads, as the distinct columns of panels of 32 rows; at most
            the nonzeros.
        features, hidden, classes: widths of the input, between layers, and of the output.
        layers: number of convolutions.
        precision: precision of products and features.
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
    """What a step is estimated to take.

    Attributes:
        gpus: number of GPUs.
        way: how they share the products of the widest layer.
        product_ms: sparse products with their exchanges, forward and backward.
        dense_ms: linear layers and passes over activations, and the sum of gradients.
        nbytes: bytes on the GPU that needs most.
    """

    gpus: int
    way: str
    product_ms: float
    dense_ms: float
    nbytes: float

    @property
    def milliseconds(self) -> float:
        """Time of a step."""
        return self.product_ms + self.dense_ms


def random_facts(nodes: int, nonzeros: int, gpus: int) -> ShardFacts:
    """Returns the counts of a graph whose edges join random nodes, which divisions cut alike.

    A rank's rows have nonzeros in the columns of others in proportion to the number of these; the number of
    different columns is that of urns that have a ball.
    """
    starts = tuple(nodes * gpu // gpus for gpu in range(gpus + 1))
    own = nonzeros / gpus
    outside = own * (1 - 1 / gpus)
    others = nodes * (1 - 1 / gpus)
    halo = round(others * -math.expm1(-outside / others)) if others else 0
    counts = (round(own),) * gpus, (round(outside),) * gpus, (halo,) * gpus
    return ShardFacts(0, starts, *counts, nonzeros, "contiguous", "gcn", 1.0, True, False)


def _rates(load: Workload, width: int, gpus: int, gpu: GpuRecord, machines: Machines) -> Rates:
    """Returns the rates of a product of some width on several GPUs."""
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
    """Returns the seconds of a product, and how it is shared; None: by nobody."""
    rates = _rates(load, width, facts.ranks, gpu, machines)
    size = load.precision.storage.itemsize
    if facts.ranks == 1:
        return rates.product(load.nonzeros, width * size), None
    choice = choose_way(facts, width, size, rates=rates)
    return choice.seconds[choice.way], choice


def estimate(load: Workload, facts: ShardFacts, gpu: GpuRecord, machines: Machines) -> Estimate:
    """Estimates a training step: forward, backward and Adam.

    A layer multiplies by the matrix on the side of its linear layer that is narrower, once forward and once
    backward. Time that other ranks' features take behind a product is not counted twice.

    Args:
        load: the model and the graph.
        facts: counts of the graph's division among the GPUs.
        gpu: the record of a GPU.
        machines: rates of the network.
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
    return Estimate(facts.ranks, way, 1e3 * products, 1e3 * dense, _nbytes(load, facts, way, parameters))


def _nbytes(load: Workload, facts: ShardFacts, way: str, parameters: int) -> float:
    size, rows, widest = load.precision.storage.itemsize, facts.most_rows, max(load.widths[1:])
    nonzeros = sum(facts.nnz) if way == "features" else max(facts.nnz)
    others = {"halo": max(facts.halo), "gather": facts.nodes, "features": facts.nodes / facts.ranks}.get(
        way, 0
    )
    activations = rows * (load.features + _KEPT * sum(load.widths[1:])) * size
    logits = 2 * 4 * rows * load.classes
    return (
        activations + logits + _NONZERO_BYTES * nonzeros + 2 * others * widest * size
        + _PARAMETER_BYTES * parameters
    )  # fmt: skip


def with_network(machines: Machines, link: float | None, network: float | None, gpus: int | None) -> Machines:
    """Returns machines with other rates where they are given."""
    return replace(
        machines,
        link_gbs=machines.link_gbs if link is None else link,
        network_gbs=machines.network_gbs if network is None else network,
        machine_gpus=machines.machine_gpus if gpus is None else gpus,
    )
