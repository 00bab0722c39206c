"""Sampled neighbourhoods: mini-batches of a graph as operands for the layers of `gnnsparse.nn`.

The names in this package are imported when they are first used: `import gnnsparse` needs few of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gnnsparse.registry import lazy_names

if TYPE_CHECKING:
    from gnnsparse.sampling.blocks import Block
    from gnnsparse.sampling.features import FEATURE_DTYPES, PLACEMENTS, FeatureStore
    from gnnsparse.sampling.prefetching import prefetch
    from gnnsparse.sampling.sampler import METHODS, LinkSample, NeighborSampler, Sample, Subgraph
    from gnnsparse.sampling.typed import TypedLinkSample, TypedNeighborSampler, TypedSubgraph

__all__ = [
    "FEATURE_DTYPES", "METHODS", "PLACEMENTS", "Block", "FeatureStore", "LinkSample", "NeighborSampler",
    "Sample", "Subgraph", "TypedLinkSample", "TypedNeighborSampler", "TypedSubgraph", "prefetch",
]  # fmt: skip

__getattr__ = lazy_names(
    __name__,
    {
        "gnnsparse.sampling.blocks": ("Block",),
        "gnnsparse.sampling.features": ("FEATURE_DTYPES", "FeatureStore", "PLACEMENTS"),
        "gnnsparse.sampling.prefetching": ("prefetch",),
        "gnnsparse.sampling.sampler": ("LinkSample", "METHODS", "NeighborSampler", "Sample", "Subgraph"),
        "gnnsparse.sampling.typed": ("TypedLinkSample", "TypedNeighborSampler", "TypedSubgraph"),
    },
)
