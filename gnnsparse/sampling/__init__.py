"""Sampled neighbourhoods: mini-batches of a graph as operands for the layers of `gnnsparse.nn`.

The names in this package are imported when they are first used: `import gnnsparse` needs few of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gnnsparse.registry import lazy_names

if TYPE_CHECKING:
    from gnnsparse.sampling.blocks import Block
    from gnnsparse.sampling.feature_rows import FEATURE_DTYPES
    from gnnsparse.sampling.features import FeatureStore
    from gnnsparse.sampling.placement import PLACEMENTS
    from gnnsparse.sampling.prefetching import prefetch
    from gnnsparse.sampling.sampler import METHODS, LinkSample, NeighborSampler, Sample, Subgraph

__all__ = [
    "FEATURE_DTYPES",
    "METHODS",
    "PLACEMENTS",
    "Block",
    "FeatureStore",
    "LinkSample",
    "NeighborSampler",
    "Sample",
    "Subgraph",
    "prefetch",
]

__getattr__ = lazy_names(
    __name__,
    {
        "gnnsparse.sampling.blocks": ("Block",),
        "gnnsparse.sampling.feature_rows": ("FEATURE_DTYPES",),
        "gnnsparse.sampling.features": ("FeatureStore",),
        "gnnsparse.sampling.placement": ("PLACEMENTS",),
        "gnnsparse.sampling.prefetching": ("prefetch",),
        "gnnsparse.sampling.sampler": ("METHODS", "LinkSample", "NeighborSampler", "Sample", "Subgraph"),
    },
)
