"""Data sets that are computed, and cached beside the prepared graphs.

What a data set is computed from is its key, so that a change of any of it makes another file. The split is
left out: it is drawn anew in no time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from gnnsparse.data.catalog import register_dataset
from gnnsparse.data.datasets import NodeDataset, check_finite, check_labels
from gnnsparse.data.generators import BLOCK_MODELS, check_scale_of, sample_graph
from gnnsparse.data.optional import import_optional
from gnnsparse.data.splits import random_split, split_by_class, split_generator
from gnnsparse.errors import bad_value, check_memory, check_tensor
from gnnsparse.formats.csr import Csr, check_csr, check_host_array
from gnnsparse.runtime.cache import CACHE_VERSION, GraphCache
from gnnsparse.runtime.hashing import fingerprint
from gnnsparse.sparse.graph import SparseGraph

_ARRAYS = ("indptr", "indices", "x", "y")


@dataclass(frozen=True, eq=False)
class Generated:
    """A graph of N nodes without values, x float32 [N, F], and y int64 [N], classes below `classes`."""

    graph: SparseGraph
    x: torch.Tensor
    y: torch.Tensor
    classes: int


def cached_data(name: str, about: str, recipe: object, make: Callable[[], Generated]) -> Generated:
    """Return the data set of a recipe: from the cache, or computed by `make` and stored there.

    A damaged file is reported, set aside and made anew. `recipe` is all that the data set depends on, with a
    `repr` that tells it from others; the release of torch, whose random numbers may change, is added. `about`
    are its options in a few words, for `gnnsparse cache ls`.
    """
    cache = GraphCache(what="the data set")
    cache.check_folder()
    key = fingerprint([], "data", CACHE_VERSION, torch.__version__, name, recipe)
    if (found := cache.load(key, unpack_generated)) is not None:
        return found
    with cache.lock(key) as locked:
        # Another process may have made it while this one waited for the lock.
        if locked and (found := cache.load(key, unpack_generated)) is not None:
            return found
        made = make()
        if locked:
            csr = made.graph.csr
            arrays = dict(zip(_ARRAYS, (csr.indptr, csr.indices, made.x, made.y), strict=True))
            metadata = {
                "rows": csr.rows, "cols": csr.cols, "edges": csr.nnz, "classes": made.classes,
                "reorder": {"method": ""}, "kind": f"data: {name}{', ' if about else ''}{about}",
                "data": name,
            }  # fmt: skip
            cache.store(key, {label: array.contiguous() for label, array in arrays.items()}, metadata)
    return made


def unpack_generated(tensors: dict[str, torch.Tensor], metadata: dict[str, Any]) -> Generated:
    """Make the data set of a file's arrays; raise ValueError if they can't be one."""
    if set(tensors) != set(_ARRAYS):
        bad_value("arrays", f"are {', '.join(sorted(tensors))}; accepted: {', '.join(_ARRAYS)}")
    indptr, indices, x, y = (tensors[name] for name in _ARRAYS)
    classes = metadata.get("classes")
    if type(classes) is not int or not 0 < classes < 2**31:
        bad_value("metadata.classes", f"got {classes!r}; accepted: an integer above 0")
    nodes = indptr.numel() - 1
    if nodes < 0:
        bad_value("indptr", "is empty; accepted: one element more than there are nodes")
    csr = Csr(indptr, indices, nodes)
    check_host_array("indptr", indptr, (torch.int64,), nodes + 1)
    check_csr("graph", csr)
    try:
        check_finite("x", check_tensor("x", x, dtypes=(torch.float32,), shape=(nodes, None)))
        check_labels("y", y, nodes, classes)
    except TypeError as error:
        raise ValueError(str(error)) from error
    return Generated(SparseGraph(csr), x, y, classes)


#: To be raised when other data are made.
_DIGITS_VERSION = 1
_NEIGHBOURS = 8
_TRAIN_PER_CLASS, _VAL_PER_CLASS = 60, 30
#: The largest value of a pixel; pixels are integers from 0.
_BRIGHTEST = 16


@register_dataset("digits", task="node")
def load_digits(split: int = 0) -> NodeDataset:
    """Load 1,797 images of digits with 8 x 8 pixels, each joined with its 8 nearest others by edges.

    It is cached, as the import of scikit-learn takes longer than training. A random split has 60 training and
    30 validation nodes of each class, the others are for testing.
    """
    made = cached_data("digits", "", (_DIGITS_VERSION, _NEIGHBOURS, _BRIGHTEST), _read_images)
    masks = split_by_class(made.y, split, _TRAIN_PER_CLASS, _VAL_PER_CLASS)
    return NodeDataset("digits", made.graph, made.x, made.y, *masks, made.classes)


def _read_images() -> Generated:
    source = import_optional("sklearn.datasets", "digits")
    pixels, labels = source.load_digits(return_X_y=True)
    pixels, y = torch.from_numpy(pixels), torch.from_numpy(labels).to(torch.int64)
    nodes, square = y.numel(), (pixels * pixels).sum(dim=1)
    # Distances of small integers are exact, and of equal ones smaller indices win: equal graphs everywhere.
    distance = square[:, None] + square[None, :] - 2 * pixels @ pixels.T
    distance.fill_diagonal_(float("inf"))
    nearest = distance.argsort(dim=1, stable=True)[:, :_NEIGHBOURS].reshape(-1)
    image = torch.arange(nodes).repeat_interleave(_NEIGHBOURS)
    both = torch.stack([torch.cat([nearest, image]), torch.cat([image, nearest])])
    graph = SparseGraph(SparseGraph.from_edge_index(both, nodes).csr)
    return Generated(graph, (pixels / _BRIGHTEST).to(torch.float32), y, 10)


#: Fraction of the nodes that get a random class instead of their community's, which bounds a model's score.
_STRAY = 0.15
#: Length of a class's mean feature vector; the noise of each feature has standard deviation 1.
_SIGNAL = 1.5
#: To be raised when equal arguments make other data.
_VERSION = 1
#: Rows of features that are made at a time.
_ROWS = 2**16


@dataclass(frozen=True)
class _Task:
    """Numbers of classes and features of the real data set, and fractions of its nodes for each part."""

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
    """Return the numbers of features and classes of a generated graph, 128 and 16 if it has no data set."""
    task = _TASKS.get(name)
    return (128, 16) if task is None else (task.features, task.classes)


def make_dataset(name: str, scale: float = 1.0, seed: int = 0, split: int = 0) -> NodeDataset:
    """Generate a graph with a node classification task that can be learned, on the CPU, or read it again.

    Each community has a class, which most of its nodes share. A node's features are a mean vector of its
    class plus noise, so strong that the class can be told from the features of a neighbourhood only, not from
    those of a single node.
    """
    task = _TASKS[name]
    nodes = BLOCK_MODELS[name].scaled(check_scale_of(name, scale))[0]
    check_memory("scale", 4 * nodes * task.features, f"{task.features} features of {nodes} nodes")
    recipe = (_VERSION, BLOCK_MODELS[name], task, float(scale), seed, _STRAY, _SIGNAL)
    about = f"scale {scale:g}, seed {seed}"
    made = cached_data(name, about, recipe, lambda: _generate(name, scale, seed))
    masks = random_split(made.y.numel(), split_generator(split, seed), task.train, task.val)
    return NodeDataset(name, made.graph, made.x, made.y, *masks, task.classes)


def _generate(name: str, scale: float, seed: int) -> Generated:
    task = _TASKS[name]
    graph, community = sample_graph(BLOCK_MODELS[name], scale, seed)
    generator = torch.Generator().manual_seed(seed)
    class_of = torch.randperm(int(community.max()) + 1, generator=generator) % task.classes
    stray = torch.rand(community.numel(), generator=generator) < _STRAY
    anything = torch.randint(task.classes, community.shape, generator=generator)
    y = torch.where(stray, anything, class_of[community])
    means = torch.randn(task.classes, task.features, generator=generator)
    means *= _SIGNAL / means.norm(dim=1, keepdim=True)
    x = torch.empty(y.numel(), task.features)
    for at in range(0, y.numel(), _ROWS):
        rows = x[at : at + _ROWS]
        torch.randn(rows.shape, generator=generator, out=rows)
        rows += means[y[at : at + _ROWS]]
    return Generated(graph, x, y, task.classes)


for _name in _TASKS:
    register_dataset(_name, task="node")(partial(make_dataset, _name))
