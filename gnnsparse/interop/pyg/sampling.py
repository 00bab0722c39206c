"""PygSampler: PyG's loaders draw with our samplers. Alone: nothing here is of accelerated models."""

from __future__ import annotations

from typing import Any

import torch
from torch_geometric.sampler import (
    BaseSampler,
    EdgeSamplerInput,
    HeteroSamplerOutput,
    NodeSamplerInput,
    SamplerOutput,
)
from torch_geometric.sampler.neighbor_sampler import edge_sample, node_sample

from gnnsparse.errors import bad_type, bad_value
from gnnsparse.sampling import NeighborSampler, TypedNeighborSampler


class PygSampler(BaseSampler):
    """A sampler of nodes and links for torch_geometric.loader.NodeLoader and LinkLoader.

    `NodeLoader(data, node_sampler=PygSampler(sampler), input_nodes=..., batch_size=...)` yields such
    batches as PyG's NeighborLoader, which itself needs pyg-lib or torch-sparse: Data with the seeds as its
    first `batch_size` nodes, `n_id`, `e_id` and the numbers of nodes and edges of each hop, and `batch`, the
    seed of each node, if the sampler is disjoint. `LinkLoader(data, link_sampler=PygSampler(sampler), ...)`
    yields those of LinkNeighborLoader, whose negatives PyG draws, of both modes: they may be edges. The edges
    of `edge_index` are drawn, so that a repeated edge stays repeated, with the attributes of each repeat.
    `input_time` and `edge_label_time` go with a sampler whose edges or nodes have times. A batch draws by a
    step that torch's default generator says, so that torch.manual_seed and PyG's seeds of workers decide.

    HeteroData needs a TypedNeighborSampler of it, and gets such batches of its types and relations.

    Args:
        sampler: a sampler of the graph's `edge_index` on the CPU, without values="gcn", or of HeteroData.

    Raises:
        TypeError: `sampler` is neither.
        ValueError: it is of a matrix that is not square, or adds self-loops (values="gcn").
    """

    def __init__(self, sampler: NeighborSampler | TypedNeighborSampler) -> None:
        if not isinstance(sampler, (NeighborSampler, TypedNeighborSampler)):
            bad_type("sampler", sampler, "a gnnsparse.sampling.NeighborSampler or TypedNeighborSampler")
        self._sampler = sampler
        # A sampler of no use here is refused now, and what it draws from is made before workers are forked.
        if isinstance(sampler, NeighborSampler):
            sampler.check_subgraphs()

    def sample_from_nodes(
        self, index: NodeSamplerInput, **options: Any
    ) -> SamplerOutput | HeteroSamplerOutput:
        """Draw the neighbourhoods of the nodes of a batch, different ones unless the sampler is disjoint.

        Raises:
            ValueError, TypeError: a node is repeated, or the nodes' times are not those that the sampler
                needs.
        """
        return node_sample(index, self._draw)

    def sample_from_edges(
        self, index: EdgeSamplerInput, neg_sampling: Any = None
    ) -> SamplerOutput | HeteroSamplerOutput:
        """Draw the neighbourhoods of the ends of the links of a batch, and of negatives.

        Raises:
            ValueError, TypeError: the links' times are not those that the sampler needs.
        """
        made = self._sampler
        if made.has_times and index.time is None:
            bad_value("edge_label_time", "is None; accepted: the links' times, for edges have times")
        if not made.has_times and index.time is not None:
            bad_value("edge_label_time", "is given, but the sampler's edges have no times")
        return edge_sample(index, self._draw, made.num_nodes, made.disjoint, made.node_time, neg_sampling)

    def _draw(self, seeds: Any, time: Any = None) -> SamplerOutput | HeteroSamplerOutput:
        step = int(torch.randint(2**32, (), dtype=torch.int64, device="cpu"))
        if isinstance(self._sampler, TypedNeighborSampler):
            typed = self._sampler.sample(seeds, step, time)
            row, col = ({key: ends[side] for key, ends in typed.edge_index.items()} for side in (0, 1))
            return HeteroSamplerOutput(
                typed.nodes,
                row,
                col,
                typed.edge_ids,
                typed.trees,
                num_sampled_nodes=typed.num_nodes,
                num_sampled_edges=typed.num_edges,
            )
        found = self._sampler.sample_subgraph(seeds, step, time)
        return SamplerOutput(
            found.nodes,
            *found.edge_index,
            found.edge_ids,
            found.trees,
            num_sampled_nodes=found.num_nodes,
            num_sampled_edges=found.num_edges,
        )
