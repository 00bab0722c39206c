"""Sampled neighbourhoods: mini-batches of a graph as operands for the layers of `gnnsparse.nn`."""

from gnnsparse.sampling.blocks import Block
from gnnsparse.sampling.prefetching import prefetch
from gnnsparse.sampling.sampler import METHODS, LinkSample, NeighborSampler, Sample, Subgraph

__all__ = ["METHODS", "Block", "LinkSample", "NeighborSampler", "Sample", "Subgraph", "prefetch"]
