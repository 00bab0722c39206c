"""Small classification tasks, and stand-ins for the capture of their steps."""

from __future__ import annotations

import csv
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from gnnsparse import SparseGraph
from gnnsparse.data import (
    EdgeDataset,
    NodeDataset,
    SequenceDataset,
    SequencePart,
    TypedLinkDataset,
    TypedNodeDataset,
)
from gnnsparse.sparse.typed import TypedGraph
from gnnsparse.train import (
    FitResult,
    FullGraphData,
    NodeClassifier,
    OptimizerConfig,
    PreprocessConfig,
    TrainerConfig,
    UncapturableError,
    fit,
)
from models import GCN


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


def prepared(task: NodeDataset, **options: Any) -> FullGraphData:
    return FullGraphData(task, preprocess=PreprocessConfig(cache=False), **options)


def classifier(
    task: NodeDataset,
    epochs: int = 12,
    kind: type[NodeClassifier] = NodeClassifier,
    model: Callable[..., torch.nn.Module] = GCN,
    options: dict[str, Any] | None = None,
    **optimizer: Any,
) -> NodeClassifier:
    """A model of 16 hidden channels, by default a GCN, with weights of seed 0."""
    torch.manual_seed(0)
    built = model(task.num_features, 16, task.num_classes, **(options or {}))
    return kind(built, task, OptimizerConfig(**optimizer), epochs)


def train_toy(
    folder: Path | None = None,
    task: NodeDataset | None = None,
    epochs: int = 12,
    *,
    module: NodeClassifier | None = None,
    data: dict[str, Any] | None = None,
    given: dict[str, Any] | None = None,
    **config: Any,
) -> tuple[FitResult, NodeClassifier]:
    """Trains a classifier of a small task by `fit`."""
    task = task or toy_task()
    module = module or classifier(task, epochs)
    settings = TrainerConfig(max_epochs=epochs, progress=False, **config)
    return fit(module, prepared(task, **(data or {})), settings, folder=folder, **(given or {})), module


def rows_of(folder: Path) -> list[dict[str, str]]:
    """The rows of a run's log."""
    (file,) = folder.glob("logs/csv/*/metrics.csv")
    with file.open(newline="") as lines:
        return list(csv.DictReader(lines))


class PlainRecorder:
    """Stands in for a Recorder where there is no GPU: what a graph would replay is called."""

    fails_at: int | None = None

    def __init__(self, required: bool) -> None:
        self.problem: str | None = None
        self.is_recording = False
        self.counts = {"first": 0, "recorded": 0, "replayed": 0}
        self._required = required

    def run_first(self, call: Callable[[], None]) -> None:
        self.counts["first"] += 1
        call()

    def record(self, call: Callable[[], None], undo: Callable[[], None]) -> Callable[[], None]:
        self.counts["recorded"] += 1
        if self.counts["recorded"] == self.fails_at:
            self.problem = "a step can't be captured in a CUDA graph: operation not permitted"
            undo()
            if self._required:
                raise UncapturableError(self.problem)
            logging.getLogger("gnnsparse.train").warning(self.problem)
            return call

        def replay() -> None:
            # With the settings of a capture: they must compute the same.
            self.counts["replayed"] += 1
            self.is_recording = True
            call()
            self.is_recording = False

        return replay


def run_in_chunks(
    monkeypatch: pytest.MonkeyPatch, obstacle: Callable[[Any, Any], str | None]
) -> list[PlainRecorder]:
    """Makes runs on the CPU go in chunks, whose steps stand-ins call, and returns these as they are made."""
    made: list[PlainRecorder] = []

    def recorder(device: torch.device, required: bool, peers: Any = None) -> PlainRecorder:
        made.append(PlainRecorder(required))
        return made[-1]

    monkeypatch.setattr("gnnsparse.train.fitting.obstacle", obstacle)
    monkeypatch.setattr("gnnsparse.train.fitting.Recorder", recorder)
    return made


def edge_dataset(nodes: int = 60, edges: int = 400) -> EdgeDataset:
    """Pairs whose class says which of two kinds their ends are of, told by the first feature of nodes.

    The edges of the graph itself join nodes of one kind.
    """
    generator = torch.Generator().manual_seed(0)
    kind = torch.arange(nodes) % 2
    x = torch.randn(nodes, 4, generator=generator) * 0.3
    x[:, 0] += 2 * kind - 1
    pairs = torch.randint(nodes, (2, edges), generator=generator)
    y = kind[pairs[0]] - kind[pairs[1]] + 1
    part = torch.arange(edges) % 3
    masks = [part == number for number in range(3)]
    graph = SparseGraph.from_edge_index(pairs[:, kind[pairs[0]] == kind[pairs[1]]], nodes)
    return EdgeDataset("edges", graph, x, pairs, y, *masks, 3)


def typed_nodes(papers: int = 80, *, times: bool = False) -> TypedNodeDataset:
    """Papers whose class only the features of their venue tell, beside authors without features.

    Some papers cite themselves or one twice, the last author has no papers, and no edge is of "edits".
    """
    generator = torch.Generator().manual_seed(0)
    y = torch.randint(3, (papers,), generator=generator)
    venue = 3 * torch.randint(2, (papers,), generator=generator) + y
    author = torch.randint(9, (2 * papers,), generator=generator)
    cites = torch.randint(papers, (2, 4 * papers), generator=generator)
    cites = torch.cat([cites, cites[:, :5]], dim=1)
    paper = torch.arange(papers)
    edges = {
        ("venue", "publishes", "paper"): torch.stack([venue, paper]),
        ("author", "writes", "paper"): torch.stack([author, paper.repeat(2)]),
        ("paper", "written_by", "author"): torch.stack([paper.repeat(2), author]),
        ("paper", "cites", "paper"): cites,
        ("author", "edits", "venue"): torch.empty(2, 0, dtype=torch.int64),
    }
    graph = TypedGraph({"paper": papers, "author": 10, "venue": 6}, edges)
    x = {
        "paper": torch.randn(papers, 4, generator=generator),
        "venue": torch.eye(3)[torch.arange(6) % 3],
    }
    train, val, test = (torch.arange(papers) % 4 == part for part in range(3))
    when = {"paper": torch.arange(papers) // 2} if times else None
    return TypedNodeDataset("papers", graph, x, "paper", y, train, val, test, num_classes=3, times=when)


def typed_links(*, times: bool = False, **options: Any) -> TypedLinkDataset:
    """Users who buy items of their own kind, of three, each edge of another time; items have features."""
    generator = torch.Generator().manual_seed(0)
    pairs = torch.cartesian_prod(torch.arange(20), torch.arange(15))
    pairs = pairs[(pairs[:, 0] - pairs[:, 1]) % 3 == 0]
    pairs = pairs[torch.randperm(len(pairs), generator=generator)]
    train, val, test = pairs.split([len(pairs) - 30, 15, 15])
    edges = {("user", "buys", "item"): train.T, ("item", "bought_by", "user"): train.T.flip(0)}
    if times:
        when = torch.arange(len(pairs)).split([len(pairs) - 30, 15, 15])
        options["edge_times"] = dict.fromkeys(edges, when[0])  # those of both ways
        options |= dict(zip(("train_times", "val_times", "test_times"), when, strict=True))
    x = {"item": torch.randn(15, 4, generator=generator)}
    graph = TypedGraph({"user": 20, "item": 15}, edges)
    relation = ("user", "buys", "item")
    return TypedLinkDataset("shop", graph, x, relation, train, val, test, **options)
