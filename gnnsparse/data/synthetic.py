"""Data sets on generated graphs: labels depend on communities, and features on labels."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch

from gnnsparse.data.dataset import NodeDataset
from gnnsparse.data.generated import Generated, keep_generated
from gnnsparse.data.generators import BLOCK_MODELS, check_scale_of, sample_named
from gnnsparse.data.registry import register_dataset
from gnnsparse.data.splits import random_split, split_generator
from gnnsparse.errors import check_memory

__all__ = ["make_dataset", "sizes_of"]

#: Share of the nodes that get a random class instead of their community's, which bounds the score of a model.
_STRAY = 0.15
#: Length of a class's mean feature vector; the noise of each feature has standard deviation 1.
_SIGNAL = 1.5
#: To be raised when equal arguments make other data.
_VERSION = 1
#: Rows of features that are made at a time.
_ROWS = 2**16


@dataclass(frozen=True)
class _Task:
    """Numbers of classes and features, and shares of training and validation nodes, of the real data set."""

    classes: int
    features: int
    train: float
    val: float


_TASKS = {
    "reddit_like": _Task(41, 602, 153_431 / 232_965, 23_831 / 232_965),
    "products_like": _Task(47, 100, 196_615 / 2_449_029, 39_323 / 2_449_029),
    "arxiv_like": _Task(40, 128, 90_941 / 169_343, 29_799 / 169_343),
}


def sizes_of(name: str) -> tuple[int, int]:
    """Returns the numbers of features and classes of the graph that a generated graph stands for.

    Generated graphs without such a data set have 128 features and 16 classes.
    """
    task = _TASKS.get(name)
    return (128, 16) if task is None else (task.features, task.classes)


def make_dataset(name: str, scale: float = 1.0, seed: int = 0, split: int = 0) -> NodeDataset:
    """Generates a graph with a node classification task that can be learned, on the CPU, or reads it again.

    What was generated is kept in the package's cache.

    Each community has a class, which most of its nodes share. A node's features are a mean vector of its
    class plus noise, so strong that the class can be told from the features of a neighbourhood only, not from
    those of a single node.

    Args:
        name: name of a generated graph: "reddit_like", "products_like" or "arxiv_like".
        scale: factor of the numbers of nodes and edges, at most 1.
        seed: seed of the graph, the labels and the features.
        split: number of the random split.

    Raises:
        ValueError: `scale` is too small for the graph's mean degree.
        MemoryError: the features or the graph need more memory than this process can get.
    """
    task = _TASKS[name]
    nodes = BLOCK_MODELS[name].scaled(check_scale_of(name, scale))[0]
    check_memory("scale", 4 * nodes * task.features, f"{task.features} features of {nodes} nodes")
    recipe = (_VERSION, BLOCK_MODELS[name], task, float(scale), seed, _STRAY, _SIGNAL)
    about = f"scale {scale:g}, seed {seed}"
    made = keep_generated(name, about, recipe, lambda: _generate(name, scale, seed))
    train, val, test = random_split(made.y.numel(), split_generator(split, seed), task.train, task.val)
    return NodeDataset(
        name=name,
        graph=made.graph,
        x=made.x,
        y=made.y,
        train_mask=train,
        val_mask=val,
        test_mask=test,
        num_classes=task.classes,
    )


def _generate(name: str, scale: float, seed: int) -> Generated:
    task = _TASKS[name]
    graph, community = sample_named(name, scale, seed)
    generator = torch.Generator().manual_seed(seed)
    y = _plant_labels(community, task.classes, generator)
    return Generated(graph, _features(y, task, generator), y, task.classes)


def _plant_labels(community: torch.Tensor, classes: int, generator: torch.Generator) -> torch.Tensor:
    count = int(community.max()) + 1
    class_of = torch.randperm(count, generator=generator) % classes
    stray = torch.rand(community.numel(), generator=generator) < _STRAY
    anything = torch.randint(classes, community.shape, generator=generator)
    return torch.where(stray, anything, class_of[community])


def _features(y: torch.Tensor, task: _Task, generator: torch.Generator) -> torch.Tensor:
    means = torch.randn(task.classes, task.features, generator=generator)
    means *= _SIGNAL / means.norm(dim=1, keepdim=True)
    x = torch.empty(y.numel(), task.features)
    for at in range(0, y.numel(), _ROWS):
        rows = x[at : at + _ROWS]
        torch.randn(rows.shape, generator=generator, out=rows)
        rows += means[y[at : at + _ROWS]]
    return x


for _name in _TASKS:
    register_dataset(_name, task="node")(partial(make_dataset, _name))
