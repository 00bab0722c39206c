"""When it pays to convert a graph, in place of leaving its products to PyG."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from gnnsparse.nn.adjacency import Preparation
from gnnsparse.plan.gpu_records.record import ConversionRates, record_for
from gnnsparse.runtime.device import describe_device, path

__all__ = ["Decision", "Lifetimes", "Settings", "conversion_rates", "decide"]

#: What `accelerate` accepts as `convert`.
CONVERSIONS = ("auto", "always")


@dataclass(frozen=True)
class Settings:
    """What a layer was accelerated with, see `accelerate`."""

    precision: str | None = None
    reorder: str = "none"
    cache: bool = True
    convert: str = "auto"


#: Those of a CPU: measured on a core with graphs of 400 to a million edges, first calls of kernels included.
_OF_CPU = ConversionRates(
    graph_us=700, edge_us=0.03, saved_us=20, saved_edge_us=0.005, saved_feature_us=0.0009
)
#: Products after which a graph is taken for one that is used for long, and prepared in full.
_LONG = 4
_NEVER = 2**62


def conversion_rates(device: torch.device) -> ConversionRates:
    """Return what conversions take and save on a device: those of a GPU are in its record."""
    return record_for(describe_device(device)).conversion if path().takes(device) else _OF_CPU


class Lifetimes:
    """How many products the graphs were used for that are gone: a mean in which recent ones weigh more."""

    def __init__(self) -> None:
        self.mean: float | None = None

    def add(self, products: int) -> None:
        """Count a graph that is gone."""
        self.mean = float(products) if self.mean is None else 0.9 * self.mean + 0.1 * products


@dataclass(frozen=True)
class Decision:
    """What becomes of a graph in a call.

    Attributes:
        preparation: how its operand is prepared; None: the call is left to PyG.
        why: the reason, for the report.
        until: as long as the graph was used for fewer products, it is left to PyG again.
    """

    preparation: Preparation | None
    why: str
    until: int = 0


def decide(
    settings: Settings,
    device: str,
    edges: int,
    width: int,
    products: int,
    lifetimes: Lifetimes,
    overhead: float = 0.0,
    rates: ConversionRates = _OF_CPU,
) -> Decision:
    """Decide whether a graph is converted in a call, and how much work goes into the operand.

    A conversion pays if the products that will use it save more time than it takes. How many there will be is
    not known. As long as no graph has come and gone (training on one graph), a graph is converted in the call
    in which the time that its products would have saved so far reaches the cost, so that at most twice the
    best time is spent; large graphs are converted in the first call by this rule. If graphs come and go
    (mini-batches), the mean number of products of those before says whether this one will pay: then it is
    converted in the first call, or else left to PyG unless it outlives the others by far.

    The first operand is a CSR of the edges in their order, which takes little more than a sort and is not
    stored. A graph that is used for longer is prepared in full, where that is more: with the reordering asked
    for, with the formats that a GPU's kernels need, and stored in the cache.

    Args:
        settings: what the layer was accelerated with; convert="always" converts in the first call.
        device: "cpu" or "cuda".
        edges: number of edges.
        width: number of features that a product gathers for an edge.
        products: how many products the graph was used for, those left to PyG included.
        lifetimes: those of earlier graphs.
        overhead: microseconds that a call of this layer takes more than PyG's on a tiny graph.
        rates: those of the device.
    """
    full = Preparation(settings.reorder, "auto", settings.cache)
    has_more = device == "cuda" or settings.reorder != "none"
    usual = lifetimes.mean
    if has_more and products >= max(_LONG, 0 if usual is None else 2 * usual):
        return Decision(full, f"used for {products} products: prepared in full")
    quick = Preparation(format="csr")
    if settings.convert == "always":
        return Decision(quick, "convert='always'")
    cost = rates.graph_us + rates.edge_us * edges
    saved = rates.saved_us - overhead + edges * (rates.saved_edge_us + rates.saved_feature_us * width)
    if saved <= 0:
        return Decision(None, "the graph is so small that nothing is saved", _NEVER)
    expected, margin = (products + 1, 1) if usual is None else (usual, 4)
    if expected * saved >= cost or (products + 1) * saved >= margin * cost:
        return Decision(quick, f"a conversion pays after {cost / saved:.0f} products")
    until = math.ceil(margin * cost / saved) - 1
    so_far = "it has had few" if usual is None else f"graphs had {usual:.0f} in the mean"
    return Decision(None, f"converting the graph pays after {cost / saved:.0f} products, {so_far}", until)
