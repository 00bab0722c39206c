"""When it pays to convert a graph, in place of leaving its products to PyG."""

from __future__ import annotations

import math
from dataclasses import dataclass

from gnnsparse.nn.adjacency import Preparation

__all__ = ["Decision", "Lifetimes", "Settings", "decide"]

#: What `accelerate` accepts as `convert`.
CONVERSIONS = ("auto", "always")


@dataclass(frozen=True)
class Settings:
    """What a layer was accelerated with, see `accelerate`."""

    precision: str | None = None
    reorder: str = "none"
    cache: bool = True
    convert: str = "auto"


@dataclass(frozen=True)
class _Costs:
    """Microseconds of a conversion, and those that a product with its gradient saves beside PyG's.

    Attributes:
        fixed, edge: of a conversion: for each graph, for each edge.
        saved, saved_edge, saved_feature: that a product saves: in any case, for each edge, for each edge and
            feature.
    """

    fixed: float
    edge: float
    saved: float
    saved_edge: float
    saved_feature: float


#: Measured on a core with graphs of 400 to a million edges, the first calls of kernels included; on a GPU
#: estimated from times of layers on arxiv-like.
_COSTS = {
    "cpu": _Costs(fixed=700, edge=0.03, saved=20, saved_edge=0.005, saved_feature=0.0009),
    "cuda": _Costs(fixed=1500, edge=0.001, saved=40, saved_edge=0.0003, saved_feature=2e-5),
}
#: Products after which a graph is taken for one that is used for long, and prepared in full.
_LONG = 4
_NEVER = 2**62


class Lifetimes:
    """How many products the graphs were used for that are gone: a mean in which recent ones weigh more."""

    def __init__(self) -> None:
        self.mean: float | None = None

    def add(self, products: int) -> None:
        """Counts a graph that is gone."""
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
) -> Decision:
    """Decides whether a graph is converted in a call, and how much work goes into the operand.

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
    """
    full = Preparation(settings.reorder, "auto", settings.cache)
    has_more = device == "cuda" or settings.reorder != "none"
    usual = lifetimes.mean
    if has_more and products >= max(_LONG, 0 if usual is None else 2 * usual):
        return Decision(full, f"used for {products} products: prepared in full")
    quick = Preparation(format="csr")
    if settings.convert == "always":
        return Decision(quick, "convert='always'")
    costs = _COSTS[device]
    cost = costs.fixed + costs.edge * edges
    saved = costs.saved - overhead + edges * (costs.saved_edge + costs.saved_feature * width)
    if saved <= 0:
        return Decision(None, "the graph is so small that nothing is saved", _NEVER)
    expected, margin = (products + 1, 1) if usual is None else (usual, 4)
    if expected * saved >= cost or (products + 1) * saved >= margin * cost:
        return Decision(quick, f"a conversion pays after {cost / saved:.0f} products")
    until = math.ceil(margin * cost / saved) - 1
    so_far = "it has had few" if usual is None else f"graphs had {usual:.0f} in the mean"
    return Decision(None, f"converting the graph pays after {cost / saved:.0f} products, {so_far}", until)
