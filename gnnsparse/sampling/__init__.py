"""Sampled neighbourhoods: mini-batches of a graph as operands for the layers of `gnnsparse.nn`."""

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
