"""PygSampler: PyG's NodeLoader draws with NeighborSampler. Alone: nothing here is of accelerated models."""

from __future__ import annotations

from typing import Any

import torch
from torch_geometric.sampler import BaseSampler, NodeSamplerInput, SamplerOutput

from gnnsparse.errors import bad_type
from gnnsparse.sampling import NeighborSampler


class PygSampler(BaseSampler):
    """A sampler of nodes for torch_geometric.loader.NodeLoader.

    `NodeLoader(data, node_sampler=PygSampler(sampler), input_nodes=..., batch_size=...)` yields such
    batches as PyG's NeighborLoader, which itself needs pyg-lib or torch-sparse: Data with the seeds as its
    first `batch_size` nodes, `n_id`, `e_id` and the numbers of nodes and edges of each hop. The edges of
    `edge_index` are drawn, so that a repeated edge stays repeated, with the attributes of each repeat. A
    batch draws by a step that torch's default generator says, so that torch.manual_seed and PyG's seeds of
    workers decide.

    Args:
        sampler: a sampler of the graph's `edge_index` on the CPU, without values="gcn".

    Raises:
        TypeError: `sampler` is no NeighborSampler.
        ValueError: it is of a matrix that is not square, or adds self-loops (values="gcn").
    """

    def __init__(self, sampler: NeighborSampler) -> None:
        if not isinstance(sampler, NeighborSampler):
            bad_type("sampler", sampler, "a gnnsparse.sampling.NeighborSampler")
        self._sampler = sampler
        # A sampler of no use here is refused now, and what it draws from is made before workers are forked.
        sampler.sample_subgraph([])

    def sample_from_nodes(self, index: NodeSamplerInput, **options: Any) -> SamplerOutput:
        """Draw the neighbourhoods of the nodes of a batch, which have to be different.

        Raises:
            NotImplementedError: the nodes have times, before which neighbours would have to be.
        """
        if index.time is not None:
            raise NotImplementedError(
                "input_time: PygSampler draws whatever the times of edges and nodes are"
            )
        step = int(torch.randint(2**32, (), dtype=torch.int64, device="cpu"))
        found = self._sampler.sample_subgraph(index.node, step)
        return SamplerOutput(
            found.nodes,
            *found.edge_index,
            found.edge_ids,
            num_sampled_nodes=found.num_nodes,
            num_sampled_edges=found.num_edges,
            metadata=(index.input_id, index.time),
        )

    def sample_from_edges(self, index: Any, neg_sampling: Any = None) -> SamplerOutput:
        """Raise NotImplementedError: NeighborSampler.sample_links draws for links."""
        raise NotImplementedError("PygSampler samples nodes; links: NeighborSampler.sample_links")
