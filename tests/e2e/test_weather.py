"""examples/weather.py: what it builds, and that it learns to forecast."""

from __future__ import annotations

import runpy
from typing import Any

import pytest
import torch

from examples import weather

#: Large bumps in a fast wind, which a small model learns in a second.
SMALL = [
    "--grid=300", "--mesh=60", "--hidden=32", "--batch=4", "--steps=100", "--lr=0.005", "--lead=3",
    "--angle=0.25", "--sharpness=4",
]  # fmt: skip


def world(**options: Any) -> weather.World:
    given = {"grid": 300, "mesh": 60, "batch": 2, "angle": 0.25, "sharpness": 4.0, "precision": "fp32",
             "device": "cpu", "seed": 0, **options}  # fmt: skip
    return weather.World(**given)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_forecast_beats_persistence(precision: str, device: str) -> None:
    """By a third after one step, and still by a quarter after three steps, each from the one before."""
    errors = weather.main([*SMALL, f"--precision={precision}", f"--device={device}"])
    model, persistence = errors["model"], errors["persistence"]
    assert len(model) == len(persistence) == 3
    assert model[0] < 0.67 * persistence[0]
    assert model[2] < 0.75 * persistence[2]
    assert persistence[0] < persistence[1] < persistence[2]


def test_a_run_can_be_repeated_as_a_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    options = [*SMALL, "--steps=5"]
    assert weather.main(options) == weather.main(options)
    monkeypatch.setattr("sys.argv", ["weather.py", *options])
    runpy.run_path(weather.__file__, run_name="__main__")
    printed = capsys.readouterr().out
    assert printed.count("encoder    300 to 60 nodes, 900 edges") == 3
    assert printed.count("1 ahead: root mean square error") == 3
    assert weather.main(options) != weather.main([*options, "--seed=1"])


def test_a_new_model_is_persistence() -> None:
    here = world()
    now = here.weather(1)[0]
    assert torch.equal(weather.Forecast(32, 4, 2)(now, here), now)


def test_the_wind_carries_the_weather() -> None:
    """After a whole turn the weather is what it was, in steps of equal change; its variance is 1."""
    here = world(angle=2 * torch.pi / 10)
    fields = here.weather(10)
    assert torch.allclose(fields[10], fields[0], atol=1e-5)
    assert not torch.allclose(fields[5], fields[0], atol=0.1)
    many = torch.stack([here.weather(0)[0] for _ in range(200)])
    assert many.square().mean().item() == pytest.approx(1, rel=0.15)


def test_targets_see_their_nearest_sources() -> None:
    grid, mesh = weather.fibonacci(50), weather.fibonacci(12)
    assert torch.allclose(grid.norm(dim=1), torch.ones(50, dtype=torch.float64))
    edges = weather.nearest(grid, mesh, 7, 2, "fp32", "cpu")
    assert edges.adj.shape == (24, 100)
    target, source = edges.adj.indices()
    distance = torch.cdist(mesh, grid)
    for node in range(24):
        found = source[target == node]
        assert torch.equal(found // 50, torch.full((7,), node // 12)), "of its own graph"
        wanted = distance[node % 12].topk(7, largest=False).indices
        assert set((found % 50).tolist()) == set(wanted.tolist())
    # The features are in the order in which the edges were given: by targets, the nearest source first.
    lengths = edges.features[:, 3].view(24, 7)
    wanted = distance.topk(7, largest=False).values.float().repeat(2, 1)
    assert torch.allclose(lengths, wanted / wanted.mean(), rtol=1e-4)
    assert torch.allclose(edges.features[:, :3].norm(dim=1), edges.features[:, 3], rtol=1e-4)


def test_displacements_are_east_north_and_up() -> None:
    here = torch.tensor([[1.0, 0.0, 0.0]], dtype=torch.float64)
    for other, wanted in (((0.0, 1.0, 0.0), (1, 0, -1)), ((0.0, 0.0, 1.0), (0, 1, -1))):
        there = torch.tensor([other], dtype=torch.float64)
        assert weather.seen_from(here, there).tolist() == [list(wanted)]
    points, others = weather.fibonacci(40), weather.fibonacci(40).flip(0)
    turn = torch.linalg.matrix_exp(torch.tensor([[0.0, -1, 0], [1, 0, 0], [0, 0, 0]], dtype=torch.float64))
    turned = weather.seen_from(points @ turn.T, others @ turn.T)
    assert torch.allclose(turned, weather.seen_from(points, others)), "a turn of the globe changes nothing"


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--mesh=400", "--mesh: got 400; accepted: at most 300, the points of the grid"),
        ("--heads=3", "--heads: got 3; accepted: a divisor of --hidden, 32"),
        ("--steps=0", "--steps: got 0; accepted: an integer, at least 1"),
        ("--grid=1", "--grid: got 1; accepted: an integer, at least 2"),
        ("--precision=fp17", "argument --precision: invalid choice: 'fp17'"),
    ],
)
def test_bad_options(option: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        weather.main([*SMALL, option])
    assert message in capsys.readouterr().err
