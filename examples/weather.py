"""A forecast on the sphere by an encoder, a processor and a decoder, trained on generated weather.

    python examples/weather.py
    python examples/weather.py --grid 40962 --mesh 2562 --hidden 256 --batch 1 --precision bf16 --device cuda

The model has the structure of AIFS (Lang et al. 2024, "AIFS - ECMWF's data-driven forecasting system"): an
encoder takes the fields from a fine grid to a coarse mesh, a processor works on the mesh, and a decoder takes
the mesh's features back to the grid, where they become the change of the fields in one step. Each of them is
made of TransformerConv layers, over operands that are prepared once: grid to mesh and mesh to grid, which
have two kinds of nodes, and mesh to mesh. Every edge has features, the position of its source as seen from
its target. The layers never expand them to the width of the keys.

The weather is made of round bumps that a wind carries around the sphere. It is a rotation about a tilted
axis, whose exact solution is known (test case 1 of Williamson et al. 1992). The forecast is compared with
persistence, the forecast that nothing changes.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812
from scipy.spatial import cKDTree

import gnnsparse
from gnnsparse.data.weather import fibonacci, seen_from
from gnnsparse.nn import TransformerConv

#: Features of an edge: the displacement to the east, to the north and up, and its length.
EDGE_DIM = 4
#: Fields that the wind carries; they are independent of one another.
FIELDS = 2
#: The axis of the wind, a unit vector, 45 degrees from the poles' axis.
AXIS = (math.sqrt(0.5), 0.0, math.sqrt(0.5))


@dataclass(frozen=True)
class Edges:
    """The edges from one set of nodes to another, for a batch of equal graphs side by side.

    Attributes:
        adj: the operand, [batch * targets, batch * sources].
        features: [batch * edges, EDGE_DIM], in the order of the edges given to `prepare`.
    """

    adj: gnnsparse.SparseOperand
    features: torch.Tensor


def nearest(
    sources: torch.Tensor, targets: torch.Tensor, count: int, batch: int, precision: str, device: str
) -> Edges:
    """Joins each target to its nearest sources.

    Args:
        sources, targets: float64 [n, 3] and [m, 3], unit vectors.
        count: sources of each target.
        batch: number of graphs.
        precision: precision of the operand.
        device: device of the operand.
    """
    found = torch.from_numpy(cKDTree(sources.numpy()).query(targets.numpy(), k=count)[1]).reshape(-1)
    source, target = found, torch.arange(len(targets), device="cpu").repeat_interleave(count)
    away = seen_from(targets[target], sources[source])
    features = torch.cat([away, away.norm(dim=1, keepdim=True)], dim=1)
    features = (features / features[:, -1].mean()).float().repeat(batch, 1)
    graph = torch.arange(batch, device="cpu").repeat_interleave(len(source))
    edge_index = torch.stack([source.repeat(batch), target.repeat(batch)])
    edge_index += torch.stack([graph * len(sources), graph * len(targets)])
    sizes = batch * len(sources), batch * len(targets)
    adj = gnnsparse.prepare(edge_index, num_nodes=sizes, precision=precision, cache=False)
    return Edges(adj.to(device), features.to(device))


class Step(torch.nn.Module):
    """Attention from sources to targets and a feed-forward network, each with a norm before and a residual.

    Args:
        width: features of a node.
        heads: number of heads, a divisor of `width`.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.of_sources, self.of_targets = torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)
        self.conv = TransformerConv((width, width), width // heads, heads, edge_dim=EDGE_DIM)
        self.mlp = torch.nn.Sequential(
            torch.nn.LayerNorm(width),
            torch.nn.Linear(width, 2 * width),
            torch.nn.GELU(),
            torch.nn.Linear(2 * width, width),
        )

    def forward(self, sources: torch.Tensor, targets: torch.Tensor, edges: Edges) -> torch.Tensor:
        """Compute the new features of the targets, [targets, width]."""
        x = self.of_sources(sources), self.of_targets(targets)
        targets = targets + self.conv(x, edges.adj, edges.features)
        return targets + self.mlp(targets)


class Forecast(torch.nn.Module):
    """Encoder, processor and decoder; the forecast of a new model is persistence.

    Args:
        width: features of a node.
        heads: number of heads, a divisor of `width`.
        layers: layers of the processor.
    """

    def __init__(self, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.embed_grid = torch.nn.Linear(FIELDS + 3, width)
        self.embed_mesh = torch.nn.Linear(3, width)
        self.encoder, self.decoder = Step(width, heads), Step(width, heads)
        self.processor = torch.nn.ModuleList(Step(width, heads) for _ in range(layers))
        self.change = torch.nn.Linear(width, FIELDS)
        torch.nn.init.zeros_(self.change.weight)
        torch.nn.init.zeros_(self.change.bias)

    def forward(self, fields: torch.Tensor, world: World) -> torch.Tensor:
        """Forecasts the fields one step ahead.

        Args:
            fields: [batch * grid, FIELDS].
            world: the grid, the mesh and their edges.

        Returns:
            [batch * grid, FIELDS].
        """
        grid = self.embed_grid(torch.cat([fields, world.grid], dim=1))
        mesh = self.encoder(grid, self.embed_mesh(world.mesh), world.to_mesh)
        for step in self.processor:
            mesh = step(mesh, mesh, world.on_mesh)
        return fields + self.change(self.decoder(mesh, grid, world.to_grid))


class World:
    """A fine grid and a coarse mesh on the sphere, the edges between them, and the weather on the grid.

    Args:
        grid: number of points of the grid.
        mesh: number of points of the mesh, fewer.
        batch: number of equal graphs side by side.
        angle: angle in radians by which the wind turns the sphere in one step.
        sharpness: of a bump, exp(sharpness * (cos(distance) - 1)).
        precision: precision of the operands.
        device: device of all tensors.
        seed: seed of the weather.

    Attributes:
        grid, mesh: positions, float32 [batch * points, 3].
        to_mesh, on_mesh, to_grid: the edges. A mesh point has the grid points around it, so many that each of
            these has about 3 mesh points, and 12 mesh points; a grid point has 3 mesh points.
    """

    #: Bumps of a field.
    BUMPS = 12

    def __init__(
        self, grid: int, mesh: int, batch: int, angle: float, sharpness: float, precision: str, device: str,
        seed: int,
    ) -> None:  # fmt: skip
        self._points, self._batch = fibonacci(grid), batch
        coarse, options = fibonacci(mesh), (batch, precision, device)
        self.to_mesh = nearest(self._points, coarse, min(grid, -(-3 * grid // mesh)), *options)
        self.on_mesh = nearest(coarse, coarse, min(mesh, 13), *options)  # itself is the nearest one
        self.to_grid = nearest(coarse, self._points, min(mesh, 3), *options)
        self.grid, self.mesh = (p.float().repeat(batch, 1).to(device) for p in (self._points, coarse))
        self._sharpness, self._device = sharpness, device
        # The wind moves the weather, and thereby the centres of the bumps.
        x, y, z = (angle * a for a in AXIS)
        self._turn = torch.tensor([[0, -z, y], [z, 0, -x], [-y, x, 0]], dtype=torch.float64, device="cpu")
        self._turn = torch.linalg.matrix_exp(self._turn)
        self._generator = torch.Generator("cpu").manual_seed(seed)

    def weather(self, steps: int) -> torch.Tensor:
        """Draw weather, of variance 1 over the sphere, and let the wind carry it.

        Returns:
            float32 [steps + 1, batch * grid, FIELDS], from now on.
        """
        size = self._batch, FIELDS, self.BUMPS
        drawn = torch.randn(*size, 4, generator=self._generator, dtype=torch.float64, device="cpu")
        centres, heights = F.normalize(drawn[..., :3], dim=-1), drawn[..., 3]
        heights /= math.sqrt(self.BUMPS * (1 - math.exp(-4 * self._sharpness)) / (4 * self._sharpness))
        fields = []
        for _ in range(steps + 1):
            cosines = torch.einsum("bfcd,gd->bgfc", centres, self._points)
            bumps = torch.exp(self._sharpness * (cosines - 1))
            fields.append(torch.einsum("bgfc,bfc->bgf", bumps, heights).flatten(0, 1))
            centres = centres @ self._turn.T
        return torch.stack(fields).float().to(self._device)


def train(model: Forecast, world: World, steps: int, lr: float) -> float:
    """Train on new weather in each step, and return the seconds that it took."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=lr, total_steps=steps)
    start = time.perf_counter()
    for step in range(steps):
        now, later = world.weather(1)
        loss, nothing = F.mse_loss(model(now, world), later), F.mse_loss(now, later)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if (step + 1) % max(steps // 8, 1) == 0:
            print(f"step {step + 1:4d}   loss {loss.item():.4f}   of persistence {nothing.item():.4f}")
    return time.perf_counter() - start


@torch.no_grad()
def evaluate(model: Forecast, world: World, lead: int, draws: int) -> tuple[list[float], list[float]]:
    """Forecasts new weather several steps ahead, each step from the forecast of the one before.

    Returns:
        The root mean square errors after 1 to `lead` steps, of the model and of persistence.
    """
    errors = torch.zeros(2, lead, dtype=torch.float64, device="cpu")
    for _ in range(draws):
        weather = world.weather(lead)
        fields = weather[0]
        for step in range(lead):
            fields = model(fields, world)
            errors[0, step] += F.mse_loss(fields, weather[step + 1]).item()
            errors[1, step] += F.mse_loss(weather[0], weather[step + 1]).item()
    ours, nothing = (errors / draws).sqrt().tolist()
    return ours, nothing


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=str(__doc__).partition("\n")[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--grid", type=int, default=1024, help="points of the grid")
    parser.add_argument("--mesh", type=int, default=162, help="points of the mesh, fewer than of the grid")
    parser.add_argument("--hidden", type=int, default=64, help="features of a node")
    parser.add_argument("--heads", type=int, default=4, help="heads, a divisor of the features")
    parser.add_argument("--layers", type=int, default=2, help="layers of the processor")
    parser.add_argument("--batch", type=int, default=4, help="fields of weather in a step")
    parser.add_argument("--steps", type=int, default=300, help="training steps")
    parser.add_argument("--lr", type=float, default=3e-3, help="largest learning rate")
    parser.add_argument("--angle", type=float, default=0.15, help="angle that the wind turns in a step")
    parser.add_argument("--sharpness", type=float, default=8.0, help="of the bumps")
    parser.add_argument("--lead", type=int, default=4, help="steps of the forecasts at the end")
    precisions = gnnsparse.Precision.names()
    parser.add_argument("--precision", default="fp32", choices=precisions, help="of the operands")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"), help="where all of it runs")
    parser.add_argument("--seed", type=int, default=0, help="of the weights and of the weather")
    options = parser.parse_args(arguments)
    for name in ("grid", "mesh", "hidden", "heads", "layers", "batch", "steps", "lead"):
        least = 2 if name in ("grid", "mesh") else 1
        if getattr(options, name) < least:
            parser.error(f"--{name}: got {getattr(options, name)}; accepted: an integer, at least {least}")
    if options.mesh > options.grid:
        parser.error(f"--mesh: got {options.mesh}; accepted: at most {options.grid}, the points of the grid")
    if options.hidden % options.heads:
        parser.error(f"--heads: got {options.heads}; accepted: a divisor of --hidden, {options.hidden}")
    return options


def main(arguments: Sequence[str] | None = None) -> dict[str, list[float]]:
    """Train a model, and print how good its forecasts are.

    Returns:
        The root mean square errors of the "model" and of "persistence" after 1, 2, ... steps.
    """
    o = parse(arguments)
    torch.manual_seed(o.seed)
    world = World(o.grid, o.mesh, o.batch, o.angle, o.sharpness, o.precision, o.device, o.seed)
    for name, edges in (("encoder", world.to_mesh), ("processor", world.on_mesh), ("decoder", world.to_grid)):
        rows, cols = edges.adj.shape
        print(f"{name:9}  {cols // o.batch} to {rows // o.batch} nodes, {edges.adj.nnz // o.batch} edges")
    model = Forecast(o.hidden, o.heads, o.layers).to(o.device)
    seconds = train(model, world, o.steps, o.lr)
    print(f"{1000 * seconds / o.steps:.1f} ms a step")
    ours, nothing = evaluate(model, world, o.lead, draws=8)
    for step, (error, without) in enumerate(zip(ours, nothing, strict=True), 1):
        print(f"{step} ahead: root mean square error {error:.3f}, of persistence {without:.3f}")
    return {"model": ours, "persistence": nothing}


if __name__ == "__main__":
    main()
