"""Generated fields on a sphere: the mesh, features of edges, and what becomes of a field."""

from __future__ import annotations

import pytest
import torch

from gnnsparse.data import CATALOG, load_dataset
from gnnsparse.data.weather import fibonacci, load_weather

POINTS, FIELDS = 60, 5


def test_edges_lead_from_the_nearest_points_and_tell_where_they_are() -> None:
    dataset = load_weather(POINTS, FIELDS)
    more, at = dataset.edge_features, fibonacci(POINTS)
    assert more is not None
    field, edges = more.edge_index // POINTS, more.edge_index % POINTS
    assert torch.equal(field[0], field[1])
    source, target = edges[:, field[0] == 3]
    distances = torch.cdist(at, at)
    nearest = distances.topk(9, largest=False).indices[:, 1:].sort().values
    assert torch.equal(source.view(POINTS, 8).sort().values, nearest)
    assert torch.equal(target, torch.arange(POINTS).repeat_interleave(8))
    attr = more.edge_attr[field[0] == 3].double()
    spacing = (4 * torch.pi / POINTS) ** 0.5
    torch.testing.assert_close(attr[:, 3] * spacing, distances[target, source], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(attr[:, :3].norm(dim=1), attr[:, 3])
    assert bool((attr[:, 2] < 0).all())  # all of the sphere lies below a plane on it
    north = (at[target, 2].abs() < 0.5) & (at[source, 2] > at[target, 2] + 0.1)
    assert north.sum() > 20
    assert bool((attr[north, 1] > 0).all())
    east = (at[target, 0] * at[source, 1] - at[target, 1] * at[source, 0]) > 0
    assert torch.equal(attr[:, 0] > 0, east)


@pytest.mark.parametrize("steps", [1, 3])
def test_fields_are_mixed_to_the_east_and_west(steps: int) -> None:
    dataset = load_weather(POINTS, FIELDS, steps, seed=2)
    more = dataset.edge_features
    assert more is not None
    source, target = more.edge_index
    nodes = POINTS * FIELDS
    east = more.edge_attr[:, 0].double() / more.edge_attr[:, 3].double()
    weight = torch.zeros(nodes, nodes, dtype=torch.float64)
    weight[target, source] = east.square()
    later = dataset.x.double()
    for _ in range(steps):
        later = later / 2 + weight @ later / weight.sum(dim=1, keepdim=True) / 2
    torch.testing.assert_close(dataset.y.double(), later[:, 0], rtol=1e-5, atol=1e-6)
    assert 0.7 < load_weather(2000, 3).x.var() < 1.4


def test_seeds_splits_and_refusals() -> None:
    first, other = load_weather(POINTS, FIELDS), load_weather(POINTS, FIELDS, seed=1)
    assert not torch.equal(first.x, other.x)
    again = load_weather(POINTS, FIELDS, split=1)
    assert torch.equal(first.x, again.x)
    assert not torch.equal(first.train_mask, again.train_mask)
    masks = torch.stack([first.train_mask, first.val_mask, first.test_mask]).view(3, FIELDS, POINTS)
    assert torch.equal(masks.all(dim=2), masks.any(dim=2))  # a field is in one part
    assert masks[:, :, 0].sum(dim=1).tolist() == [3, 1, 1]
    assert [int(of.sum()) for of in (load_weather(9, 3).train_mask, load_weather(9, 20).val_mask)] == [9, 18]
    assert (first.metric, first.regression, CATALOG["generated_weather"].task) == ("mse", True, "node")
    assert load_dataset("generated_weather", points=20, fields=3).num_nodes == 60
    for name, value, least in (
        ("points", 8, ", at least 9"),
        ("fields", 2, ", at least 3"),
        ("steps", 0, ""),
    ):
        with pytest.raises(ValueError, match=f"{name}: got {value}; accepted: .*integer{least}"):
            load_weather(**{name: value})
