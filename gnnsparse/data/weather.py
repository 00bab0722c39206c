"""Fields on a sphere that winds mix along circles of latitude, on a mesh whose edges have positions."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F  # noqa: N812

from gnnsparse.data.catalog import register_dataset
from gnnsparse.data.datasets import EdgeFeatures, NodeDataset, check_seed, check_split
from gnnsparse.data.splits import random_split, split_generator
from gnnsparse.errors import check_integer
from gnnsparse.sparse.graph import SparseGraph

#: The neighbours of a point: on a mesh of 40,962 points 327,696 edges, as a weather model's processor has.
_NEIGHBOURS = 8
#: The width of a bump in mean distances of points, and how many points there are for each bump.
_WIDTH, _POINTS_OF_BUMP = 1.0, 4


@register_dataset("generated_weather", task="node")
def load_weather(
    points: int = 642, fields: int = 10, steps: int = 4, seed: int = 0, split: int = 0
) -> NodeDataset:
    """Generate fields on a sphere, and what they are after winds have mixed them along circles of latitude.

    Each field is a sum of round bumps, of variance 1, on a mesh of its own of points that are spread evenly;
    an edge leads to each point from each of its 8 nearest others. In a step half of what is at a point is
    replaced by what is at its neighbours, which count by the square of the cosine of their direction with the
    east: a diffusion in one direction. The one feature of a node is the field, those of an edge tell where
    its source is as seen from its target, to the east, north and up, and how far away, in mean distances of
    points. The number to predict is the field after all steps, which as many layers can follow.

    Args:
        points: points of the mesh, at least 9; 40962 is the size of the mesh of a weather model.
        fields: how many fields there are, at least 3.
        steps: of the mixing, at least 1.
        seed: of the fields.
        split: number of a random split: 80 percent of the fields for training, 10 for validation, of few
            fields one each for validation and test.

    Raises:
        TypeError: an argument is of another type.
        ValueError: an argument is out of range.
    """
    check_integer("points", points, _NEIGHBOURS + 1, f"an integer, at least {_NEIGHBOURS + 1}")
    check_integer("fields", fields, 3, "an integer, at least 3")
    check_integer("steps", steps)
    check_split(split, None)
    generator = torch.Generator("cpu").manual_seed(check_seed(seed))
    at, spacing = fibonacci(points), math.sqrt(4 * math.pi / points)
    (source, target), attr = _mesh(at, spacing)
    now = torch.stack([_field(at, _WIDTH * spacing, generator) for _ in range(fields)], dim=1)
    later, weight = now, (attr[:, 0] / attr[:, 3]).square().unflatten(0, (points, _NEIGHBOURS))
    weight = weight / weight.sum(dim=1, keepdim=True)
    for _ in range(steps):
        found = later[source].unflatten(0, (points, _NEIGHBOURS))
        later = (later + torch.einsum("pk,pkf->pf", weight, found)) / 2
    edges = torch.stack([source, target])[:, None] + points * torch.arange(fields, device="cpu")[:, None]
    edges, transform = edges.flatten(1), {"columns": ["east", "north", "up", "distance"]}
    more = EdgeFeatures(edges, attr.float().repeat(fields, 1), None, transform)
    graph = SparseGraph(SparseGraph.from_edge_index(edges, points * fields).csr)
    parts = random_split(fields, split_generator(split, seed), min(0.8, 1 - 2 / fields), 0.1)
    train, val, test = (mask.repeat_interleave(points) for mask in parts)
    x, y = (of.T.reshape(-1).float() for of in (now, later))
    return NodeDataset(
        "generated_weather", graph, x[:, None], y, train, val, test, 1, "mse", class_names=("later",),
        feature_names=("now",), edge_features=more,
    )  # fmt: skip


def fibonacci(count: int) -> torch.Tensor:
    """Spread points evenly over the sphere on a spiral (Gonzalez 2010, equation 1).

    Returns:
        float64 [count, 3], unit vectors, none of which is a pole.
    """
    number = torch.arange(count, dtype=torch.float64, device="cpu")
    height = 1 - (2 * number + 1) / count
    turn = number * math.pi * (3 - math.sqrt(5))
    across = (1 - height**2).sqrt()
    return torch.stack([across * turn.cos(), across * turn.sin(), height], dim=1)


def seen_from(points: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
    """Return the displacements from points to others in the points' own directions east, north and up.

    Args:
        points: float64 [n, 3], unit vectors, none of which is a pole.
        others: float64 [n, 3].

    Returns:
        float64 [n, 3].
    """
    x, y, _ = points.unbind(1)
    flat = (x**2 + y**2).sqrt()
    east = torch.stack([-y / flat, x / flat, torch.zeros_like(x)], dim=1)
    north = torch.linalg.cross(points, east, dim=1)
    away = others - points
    return torch.stack([(away * axis).sum(1) for axis in (east, north, points)], dim=1)


def _field(at: torch.Tensor, width: float, generator: torch.Generator) -> torch.Tensor:
    """Draw a field, float64 [points]."""
    bumps, sharpness = max(1, len(at) // _POINTS_OF_BUMP), width**-2
    drawn = torch.randn(bumps, 4, generator=generator, dtype=torch.float64, device="cpu")
    centres, heights = F.normalize(drawn[:, :3], dim=1), drawn[:, 3]
    # The mean over the sphere of a bump's square, times the number of bumps, is the variance.
    heights = heights / math.sqrt(bumps * -math.expm1(-4 * sharpness) / (4 * sharpness))
    # By parts of the points, so that a mesh of 40,962 needs no product of gigabytes.
    return torch.cat([torch.exp(sharpness * (of @ centres.T - 1)) @ heights for of in at.split(2**12)])


def _mesh(at: torch.Tensor, spacing: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the edges from the nearest points, int64 [2, edges], and their features, float64 [edges, 4]."""
    from scipy.spatial import cKDTree

    found = torch.from_numpy(cKDTree(at.numpy()).query(at.numpy(), k=_NEIGHBOURS + 1)[1])
    source = found[:, 1:].flatten()  # a point is its own nearest one
    target = torch.arange(len(at), device="cpu").repeat_interleave(_NEIGHBOURS)
    away = seen_from(at[target], at[source]) / spacing
    return torch.stack([source, target]), torch.cat([away, away.norm(dim=1, keepdim=True)], dim=1)
