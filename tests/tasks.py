"""Small classification tasks."""

from __future__ import annotations

import torch

from gnnsparse import SparseGraph
from gnnsparse.data import NodeDataset, SequenceDataset, SequencePart


def toy_task(nodes: int = 60, classes: int = 3, metric: str = "accuracy", name: str = "toy") -> NodeDataset:
    """Noisy features around the mean of a node's class, and edges that mostly join nodes of one class."""
    generator = torch.Generator().manual_seed(0)
    y = torch.randint(classes, (nodes,), generator=generator)
    means = torch.randn(classes, 8, generator=generator)
    x = means[y] + 2 * torch.randn(nodes, 8, generator=generator)
    order = torch.randperm(nodes, generator=generator)
    masks = [torch.zeros(nodes, dtype=torch.bool) for _ in range(3)]
    for mask, chosen in zip(masks, order.chunk(3), strict=True):
        mask[chosen] = True
    several = metric == "micro_f1"
    labels = torch.nn.functional.one_hot(y, classes).float() if several else y
    pairs = torch.randint(nodes, (2, 6 * nodes), generator=generator)
    stray = torch.rand(6 * nodes, generator=generator) < 0.1
    pairs = pairs[:, (y[pairs[0]] == y[pairs[1]]) | stray]
    graph = SparseGraph.from_edge_index(torch.cat([pairs, pairs.flip(0)], dim=1), nodes)
    return NodeDataset(name, graph, x, labels, *masks, num_classes=classes, metric=metric)


def toy_sequences(length: int = 12, sizes: tuple[int, int, int] = (50, 20, 20)) -> SequenceDataset:
    """Sequences of the tokens 1 to 4, padded; the class is whether there are more of 1 than of 2."""
    generator = torch.Generator().manual_seed(0)

    def part(count: int) -> SequencePart:
        tokens = torch.randint(1, 5, (count, length), generator=generator)
        lengths = torch.randint(length // 2, length + 1, (count, 1), generator=generator)
        tokens[torch.arange(length) >= lengths] = 0
        more = (tokens == 1).sum(dim=1) > (tokens == 2).sum(dim=1)
        return SequencePart(tokens.to(torch.int16), more.long())

    train, val, test = (part(count) for count in sizes)
    return SequenceDataset("toy", train, val, test, vocabulary=5, num_classes=2)
