"""The data set "digits": scikit-learn's handwritten digits as a graph, which needs no download."""

from __future__ import annotations

import torch

from gnnsparse.data.dataset import NodeDataset
from gnnsparse.data.generated import Generated, keep_generated
from gnnsparse.data.optional import import_optional
from gnnsparse.data.registry import register_dataset
from gnnsparse.data.splits import split_by_class
from gnnsparse.formats.csr import coo_to_csr
from gnnsparse.sparse.graph import SparseGraph

__all__ = ["load_digits"]

#: To be raised when other data are made.
_VERSION = 1
_NEIGHBOURS = 8
_TRAIN_PER_CLASS, _VAL_PER_CLASS = 60, 30
#: The largest value of a pixel; pixels are integers from 0.
_BRIGHTEST = 16


@register_dataset("digits", task="node")
def load_digits(split: int = 0) -> NodeDataset:
    """Loads 1,797 images of digits with 8 x 8 pixels, each joined with its 8 nearest others by edges.

    The graph is kept in the package's cache with the images, so that a second call does not need
    scikit-learn, whose import takes longer than training.

    Args:
        split: number of a random split, from 0 on: 60 training and 30 validation nodes of each class, the
            others for testing.

    Raises:
        ImportError: the images are not in the cache, and scikit-learn is not installed.
    """
    made = keep_generated("digits", "", (_VERSION, _NEIGHBOURS, _BRIGHTEST), _read_images)
    train, val, test = split_by_class(made.y, split, _TRAIN_PER_CLASS, _VAL_PER_CLASS)
    return NodeDataset(
        name="digits",
        graph=made.graph,
        x=made.x,
        y=made.y,
        train_mask=train,
        val_mask=val,
        test_mask=test,
        num_classes=made.classes,
    )


def _read_images() -> Generated:
    source = import_optional("sklearn.datasets", "digits")
    pixels, labels = source.load_digits(return_X_y=True)
    pixels, y = torch.from_numpy(pixels), torch.from_numpy(labels).to(torch.int64)
    graph = nearest_neighbours(pixels, _NEIGHBOURS)
    return Generated(graph, (pixels / _BRIGHTEST).to(torch.float32), y, 10)


def nearest_neighbours(points: torch.Tensor, count: int) -> SparseGraph:
    """Makes the symmetric graph that joins every point with its `count` nearest others.

    All N x N distances are held in memory, so it is for thousands of points. Among points at equal distances
    those with smaller indices are chosen. Distances between points of small integers are exact, so that every
    machine makes an equal graph.

    Args:
        points: [N, F].
        count: neighbours of each point, before the graph is made symmetric.
    """
    nodes = points.shape[0]
    square = (points * points).sum(dim=1)
    distance = square[:, None] + square[None, :] - 2 * points @ points.T
    distance.fill_diagonal_(float("inf"))
    nearest = distance.argsort(dim=1, stable=True)[:, :count].reshape(-1)
    point = torch.arange(nodes).repeat_interleave(count)
    csr, _ = coo_to_csr(torch.cat([point, nearest]), torch.cat([nearest, point]), nodes, nodes)
    return SparseGraph(csr)
