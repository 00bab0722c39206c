"""PygSampler: PyG's NodeLoader draws with NeighborSampler, without pyg-lib and torch-sparse."""

from __future__ import annotations

from typing import Any

import torch
from torch_geometric.sampler import BaseSampler, NodeSamplerInput, SamplerOutput

from gnnsparse.errors import bad_type
from gnnsparse.sampling import NeighborSampler

__all__ = ["PygSampler"]


class PygSampler(BaseSampler):
    """A sampler of nodes for torch_geometric.loader.NodeLoader.

    `NodeLoader(data, node_sampler=PygSampler(sampler), input_nodes=..., batch_size=...)` yields such
    batches as PyG's NeighborLoader, which itself needs pyg-lib or torch-sparse: Data with the seeds as its
    first `batch_size` nodes, `n_id`, `e_id` and the numbers of nodes and edges of each hop. A batch draws by
    a step that torch's default generator says, so that torch.manual_seed and PyG's seeds of workers decide.

    Args:
        sampler: a sampler of the graph's `edge_index` on the CPU, without values="gcn".

    Raises:
        TypeError: `sampler` is no NeighborSampler.
    """

    def __init__(self, sampler: NeighborSampler) -> None:
        if not isinstance(sampler, NeighborSampler):
            bad_type("sampler", sampler, "a gnnsparse.sampling.NeighborSampler")
        self._sampler = sampler

    def sample_from_nodes(self, index: NodeSamplerInput, **options: Any) -> SamplerOutput:
        """Draws the neighbourhoods of the nodes of a batch, which have to be different."""
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
        """Is not there: NeighborSampler.sample_links draws for links."""
        raise NotImplementedError("PygSampler samples nodes; links: NeighborSampler.sample_links")
