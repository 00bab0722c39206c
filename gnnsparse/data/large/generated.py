"""The edges of generated graphs part by part, for graphs that do not fit into memory.

The model is that of gnnsparse.data.generators. Edges are drawn in parts, each with random numbers of its own,
and no part knows of the others: an edge may be in two of them. `build_graph` merges these.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import torch

from gnnsparse.data.checks import check_seed
from gnnsparse.data.generators import (
    BLOCK_MODELS,
    check_scale_of,
    community_bounds,
    pareto_weights,
)
from gnnsparse.data.large.build import Progress, store
from gnnsparse.data.large.edges import Edges
from gnnsparse.data.large.folder import StoredGraph
from gnnsparse.data.pairs import Sampler
from gnnsparse.errors import check_memory
from gnnsparse.runtime.hashing import fingerprint

__all__ = ["EdgeStream", "edges_like", "generate_graph"]

#: Edges of a part. Another number makes other graphs.
_PART = 1 << 20
#: Bytes of memory that each node takes at the least.
_NODE_BYTES = 24


class EdgeStream:
    """The edges of a generated graph, as an iterable of tensors. Made by `edges_like`.

    Each iteration yields the same int32 tensors [2, n], n up to about a million. Every edge is in one
    direction, from a smaller to a larger node; an edge may be there a few times.

    Attributes:
        name: the name of the graph.
        scale: factor of the numbers of nodes and of edges.
        seed: seed of the graph.
        num_nodes: number of nodes.
        num_edges: about how many edges there are.
    """

    def __init__(self, name: str, scale: float, seed: int) -> None:
        self.name, self.scale, self.seed = name, scale, seed
        self._model = BLOCK_MODELS[name]
        self.num_nodes, self.num_edges = self._model.scaled(scale)

    def __repr__(self) -> str:
        about = f"{self.num_nodes} nodes, about {self.num_edges} edges"
        return f"EdgeStream({self.name}, scale={self.scale:g}, seed={self.seed}: {about})"

    def __iter__(self) -> Iterator[torch.Tensor]:
        what = f"generating edges of {self.num_nodes} nodes"
        check_memory("scale", _NODE_BYTES * self.num_nodes, what)
        model, host = self._model, torch.Generator().manual_seed(self.seed)
        bounds = community_bounds(self.num_nodes, model, host)
        weights = pareto_weights(self.num_nodes, model, host)
        sampler = Sampler(weights, bounds, self.seed, torch.device("cpu"))
        del weights
        inside = round(self.num_edges * model.inside)
        for number, (count, nodes) in enumerate(sampler.inside_parts(inside, _PART)):
            sampler.generator = self._generator("inside", number)
            yield self._ends(sampler.fill(count, nodes, sampler.own_community))
        span = sampler.span_within(model.reach)
        for number, (count, nodes) in enumerate(sampler.even_parts(self.num_edges - inside, _PART)):
            sampler.generator = self._generator("outside", number)
            yield self._ends(sampler.fill(count, nodes, span, between=True))

    def _generator(self, kind: str, number: int) -> torch.Generator:
        """Returns the random numbers of a part, which depend on the seed and on the part alone."""
        mixed = fingerprint([], "edges", self.seed, kind, number)
        return torch.Generator().manual_seed(int(mixed[:15], 16))

    def _ends(self, keys: torch.Tensor) -> torch.Tensor:
        small = keys // self.num_nodes
        return torch.stack([small, keys - small * self.num_nodes]).to(torch.int32)


def edges_like(name: str, scale: float = 1.0, seed: int = 0) -> EdgeStream:
    """Returns the edges of a random graph like a well-known one, which are generated part by part.

    The model and its parameters are those of `graph_like`, but the graph is another one, for other random
    numbers are drawn. Memory is used for the nodes, and for about a million edges at a time.

    "papers100m_like" has the numbers of nodes and edges of ogbn-papers100M (Hu et al. 2020), which counts
    as symmetric. Its communities and the tail of its degrees are those that were fitted to ogbn-arxiv,
    another graph of citations, with hubs of about a hundred thousand neighbours. It was not compared with
    ogbn-papers100M, and has nothing of its features, labels or topics.

    Args:
        name: a name of a block model, such as "papers100m_like" or one of GENERATED_GRAPHS.
        scale: factor of the numbers of nodes and of edges, above 0 and at most 1. The mean degree and the
            sizes of communities do not depend on it.
        seed: seed of the graph. Equal seeds make equal edges, in the same order and parts, on one release of
            torch.

    Returns:
        The edges, an iterable that `build_graph` takes.

    Raises:
        TypeError: an argument is of another type.
        ValueError: the name is unknown, `scale` is outside (0, 1] or too small for the graph's mean degree,
            or `seed` is negative.
    """
    return EdgeStream(BLOCK_MODELS.check(name), check_scale_of(name, scale), check_seed(seed))


def generate_graph(
    name: str,
    folder: str | os.PathLike[str],
    scale: float = 1.0,
    seed: int = 0,
    *,
    memory: int = 2**30,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> StoredGraph:
    """Generates a graph that need not fit into memory, and writes it to a folder.

    It is the symmetric graph of the edges of `edges_like`, without self-loops. The number of nonzeros is
    lower than the model's by the repeats among the edges. `open_graph` opens it.

    Args:
        name: a name of a block model, see `edges_like`.
        folder: the folder to make. The one above it must exist.
        scale: factor of the numbers of nodes and of edges, above 0 and at most 1.
        seed: seed of the graph.
        memory: bytes to sort in at a time, see `build_graph`. Besides, the generator takes up to 24 bytes for
            each node, and 200 MB.
        overwrite: whether a graph that is in the folder is replaced.
        progress: is called as `build_graph` calls it.

    Returns:
        What the folder says of the graph.

    Raises:
        TypeError: an argument is of another type.
        ValueError: an argument is out of range, the folder is in use, or something is in its place.
        MemoryError: the nodes need more memory than this process can get.
        NoSpaceError: the disk is too full, an OSError.
        OSError: a file can't be written.
    """
    stream = edges_like(name, scale, seed)
    return store(
        Edges(stream, stream.num_nodes, whole=False), folder, stream.num_nodes, symmetric=True,
        memory=memory, overwrite=overwrite, about=f"{name}, scale {stream.scale:g}, seed {stream.seed}",
        progress=progress, expected=stream.num_edges,
    )  # fmt: skip
