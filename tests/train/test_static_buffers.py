"""Batches in static buffers: their steps are those on batches of their own size, of graphs and of samples."""

from __future__ import annotations

import copy
import itertools
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from gnnsparse import SparseGraph, SparseOperand
from gnnsparse.data import GraphDataset, NodeDataset
from gnnsparse.data.datasets import EdgeFeatures
from gnnsparse.formats.csr import Csr
from gnnsparse.nn import pool_graphs
from gnnsparse.nn.padded_norm import ignoring_padding
from gnnsparse.runtime.device import use
from gnnsparse.runtime.padding import Padding, padded
from gnnsparse.sampling import NeighborSampler
from gnnsparse.sampling.blocks import ROW_LIMIT, BlockArrays
from gnnsparse.train import FitResult, OptimizerConfig, PreprocessConfig, SamplerConfig, TrainerConfig, fit
from gnnsparse.train.data import StepInput
from gnnsparse.train.device import numerics
from gnnsparse.train.sampled import StaticBatch, StaticBlocks, bounds_of
from gnnsparse.train.steps import obstacle
from gnnsparse.train.tasks import TASKS, RunOptions
from gnnsparse.train.tasks.graph import GraphData, GraphPredictor, bound_of
from gnnsparse.train.tasks.node import FullGraphData, NodeClassifier
from models import MODELS
from tests import emulated
from tests.gpu_paths import RecordingPath
from tests.helpers import PRECISIONS
from tests.tasks import PlainRecorder, toy_task
from tests.tu_files import graph_dataset

PLAIN = OptimizerConfig(lr=0.01, weight_decay=0.0, decay="all")
UNCACHED = PreprocessConfig(cache=False)


class Kind:
    """A kind of batches: how runs on a small data set are made, and what is expected of their steps."""

    def data(
        self, name: str | None = None, dataset: Any = None, device: str = "cpu", precision: str = "fp32",
        sampler: dict[str, Any] | None = None, **options: Any,
    ) -> Any:  # fmt: skip
        values = MODELS[name or self.default].for_task(self.task).values
        run = RunOptions(
            torch.device(device), precision, values=options.get("values", values), preprocess=UNCACHED,
            trainer=TrainerConfig(batch_size=8), sampler=SamplerConfig(**{**self.sampler, **(sampler or {})}),
        )  # fmt: skip
        return TASKS[self.task].make_data(dataset or self.dataset(), run)

    def module(self, data: Any, name: str | None = None, kind: Any = None, **options: Any) -> Any:
        torch.manual_seed(0)
        entry, dropout = MODELS[name or self.default].for_task(self.task), {"dropout": 0.0, **options}
        sizes = {"hidden_channels": 16, "out_channels": data.dataset.num_classes}
        model = entry.build(data.dataset.num_features, **sizes, **dropout)
        return (kind or TASKS[self.task].module)(model.to(data.device), data.dataset, PLAIN, 1000)


class Graphs(Kind):
    """Batches of 8 graphs, of which an epoch has two and one of 4."""

    task, epochs, default, sampler = "graph", 4, "gin", {}
    #: Two sizes of batches, and the validation: each runs as it is first, and is captured then.
    counts: ClassVar = {"first": 3, "recorded": 3, "replayed": 3 * 4 + 4 - 3}
    fails_at = 2
    no_room: ClassVar = {"tasks.graph._DEVIATIONS": 0, "tasks.graph._MULTIPLE": 1}
    copies: ClassVar = ["aten.copy_.default"]
    most_operations = 3

    def dataset(self) -> GraphDataset:
        """Of distinct nodes: a maximum of nodes that are equal but for rounding takes either's gradients."""
        dataset = graph_dataset(metric="accuracy")
        noise = torch.rand(dataset.x.shape, generator=torch.Generator().manual_seed(0))
        return replace(dataset, x=dataset.x + noise)

    def drawn(self, name: str, precision: str) -> None:
        """Draws nothing."""

    def on_gpu(self, data: GraphData, drawn: None) -> list[tuple[Callable[[], None], Callable[[], Any]]]:
        """What loads and makes the batches of the full size."""
        steps = [step for step in steps_of(data, 6) if step.single().y.numel() == 8]
        return [(step.load, step.static) for step in steps]


class Samples(Kind):
    """Batches of 16 of 100 nodes; the last one of an epoch is smaller, and validations are not captured."""

    task, epochs, default = "node", 3, "graphsage"
    sampler: ClassVar = {"name": "neighbor", "fanouts": [5, 4], "batch_size": 16}
    counts: ClassVar = {"first": 1, "recorded": 1, "replayed": 3 * 6 - 1}
    fails_at = 1
    no_room: ClassVar = {
        "sampled._DEVIATIONS": 0, "sampled._MORE": 0, "sampled._MULTIPLE": 4, "sampled._LOOKED_AT": 2,
    }  # fmt: skip
    #: Offsets, columns, maps and nodes, weights; the sizes; the nodes to train on.
    copies: ClassVar = ["aten._foreach_copy_.default"] * 4 + ["aten.copy_.default"] * 2
    most_operations = 12

    def dataset(self) -> NodeDataset:
        return toy_task(300)

    def drawn(self, name: str, precision: str) -> list[Any]:
        """What is drawn on the CPU: the stand-in for a GPU draws nothing."""
        return [step.load.args[0] for step in steps_of(self.data(name, precision=precision), 4)]

    def on_gpu(self, data: FullGraphData, drawn: list[Any]) -> list[tuple[Any, Any]]:
        samples, own = [one.blocks for one in drawn], data._samples
        assert own is not None
        bounds = bounds_of(samples, own._sampler.num_nodes, own._sampler.most_edges)
        blocks = StaticBlocks(own._sampler, bounds, samples[0][0])
        static = StaticBatch(blocks, 16, own._store, own._y, data)
        return [(partial(static.load, one), static.batch) for one in drawn]


class GraphsWithEdges(Graphs):
    """Graphs whose edges have features."""

    default = "gine"

    def dataset(self) -> GraphDataset:
        dataset = super().dataset()
        csr, draw = dataset.graph.csr, torch.Generator().manual_seed(1)
        order = torch.randperm(csr.nnz, generator=draw)
        edges = torch.stack([csr.indices.long(), csr.row_index()])[:, order]
        attr = torch.randn(csr.nnz, 3, generator=draw)
        return replace(dataset, edge_features=EdgeFeatures(edges, attr, None, {}))

    def module(self, data: Any, name: str | None = None, kind: Any = None, **options: Any) -> Any:
        return super().module(data, name, kind, **TASKS[self.task].model_options(data.dataset), **options)


GRAPHS, SAMPLES, WITH_EDGES = Graphs(), Samples(), GraphsWithEdges()
GRAPH_MODELS = [n for n, of in MODELS.items() if "graph" in of.tasks and of.edge_features == "none"]
SAMPLING = [
    name for name, model in MODELS.items()
    if "node" in model.tasks
    and hasattr(model.build(8, out_channels=3, hidden_channels=8), "num_convolutions")
]  # fmt: skip
EACH = [(GRAPHS, name) for name in GRAPH_MODELS] + [(SAMPLES, name) for name in SAMPLING]
of_each_model = pytest.mark.parametrize(("kind", "name"), EACH, ids=lambda v: getattr(v, "task", v))
of_each_kind = pytest.mark.parametrize("kind", [GRAPHS, SAMPLES], ids=["graph", "node"])


def steps_of(data: Any, count: int) -> list[StepInput]:
    """The inputs of steps; those that have buffers are loaded one by one, since they share them."""
    return list(itertools.islice(data.batch_source().steps, count))


def static_batch(step: StepInput) -> Any:
    step.load()
    return step.static()


def weighted_dataset() -> NodeDataset:
    """A data set whose edges have weights."""
    dataset = toy_task(300)
    weights = torch.rand(dataset.graph.nnz, generator=torch.Generator().manual_seed(1)) + 0.5
    return replace(dataset, graph=replace(dataset.graph, values=weights))


# The parts.


def test_a_bound_is_rarely_exceeded() -> None:
    sizes = torch.randint(1, 60, (1000,), generator=torch.Generator().manual_seed(0))
    bound = bound_of(sizes, 100)
    sums = torch.stack([sizes[torch.randperm(1000)[:100]].sum() for _ in range(300)])
    assert int(sums.max()) <= bound < 1.4 * float(sums.double().mean())
    assert bound_of(sizes, 1000) == int(sizes.sum())
    assert bound_of(torch.tensor([3, 5, 9]), 2) == 14
    assert bound_of(torch.tensor([7]), 1) == 7


def block(rows: int, cols: int, nnz: int) -> BlockArrays:
    csr = Csr(torch.zeros(rows + 1, dtype=torch.int64), torch.zeros(nnz, dtype=torch.int32), cols)
    return BlockArrays(torch.zeros(rows), torch.zeros(cols), csr, csr, torch.zeros(nnz))


def test_bounds_are_hardly_exceeded_and_grow_from_layer_to_layer() -> None:
    draw = torch.Generator().manual_seed(0)

    def sample() -> list[BlockArrays]:
        middle = int(torch.normal(3000.0, 100.0, (), generator=draw))
        outer = int(torch.normal(9000.0, 200.0, (), generator=draw))
        return [block(middle, outer, 4 * outer), block(100, middle, 2 * middle)]

    bounds = bounds_of([sample() for _ in range(16)], 50_000, [(1000, 9), (1000, 9)])
    assert bounds[1].rows == 128
    assert bounds[0].rows == bounds[1].cols
    assert 3200 < bounds[1].cols < 3700
    assert 9400 < bounds[0].cols < 10_500
    taken = [
        all(bound.takes(block) for bound, block in zip(bounds, sample(), strict=True)) for _ in range(200)
    ]
    assert sum(taken) >= 198


def test_bounds_are_no_larger_than_what_can_be_drawn() -> None:
    samples = [[block(60, 500, 90), block(5, 60, 10)], [block(90, 600, 120), block(5, 90, 20)]]
    bounds = bounds_of(samples, 620, [(2, 620), (3, 620)])
    assert [(bound.rows, bound.cols, bound.nnz) for bound in bounds] == [(192, 640, 256), (64, 192, 64)]
    # A graph of 7 nodes: each block has more columns than rows all the same.
    bounds = bounds_of([[block(7, 7, 14), block(7, 7, 14)]], 7, [(2, 2), (2, 2)])
    assert [(bound.rows, bound.cols) for bound in bounds] == [(128, 192), (64, 128)]


def padding_of(count: int, rows: int, device: str = "cpu") -> Padding:
    return Padding(torch.tensor(count, device=device), rows)


@pytest.mark.parametrize("pool", ["sum", "mean", "max"])
@pytest.mark.parametrize("sizes", [[3, 100, 0, 64, 33, 1], [32], [1, 1, 1]])
def test_pooling_leaves_padding_out(device: str, pool: str, sizes: list[int]) -> None:
    torch.manual_seed(0)
    ptr = torch.tensor([0, *sizes], device=device).cumsum(0)
    count = sum(sizes)
    x = torch.randn(count + 50, 4, device=device, requires_grad=True)
    own = x.detach()[:count].clone().requires_grad_()
    want = pool_graphs(own, ptr, pool)
    weights = torch.randn_like(want)
    (want * weights).sum().backward()
    with padded(padding_of(count, count + 50, device)):
        found = pool_graphs(x, ptr, pool)
    (found * weights).sum().backward()
    torch.testing.assert_close(found, want)
    torch.testing.assert_close(x.grad[:count], own.grad)
    assert not x.grad[count:].any()


@pytest.mark.parametrize("options", [{}, {"eps": 1e-2, "affine": False, "momentum": None}], ids=str)
def test_batch_norm_leaves_padding_out(device: str, options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    norm = torch.nn.BatchNorm1d(5, **options).to(device)
    own = copy.deepcopy(norm)
    for count in (20, 33, 7):
        x = 3 * torch.randn(40, 5, device=device) + 10
        alone = x[:count].clone().requires_grad_()
        x.requires_grad_()
        want = own(alone)
        with ignoring_padding(norm, padding_of(count, 40, device)):
            found = norm(x)
        grad = torch.randn_like(found)
        grad[count:] = 0
        want.backward(grad[:count])
        found.backward(grad)
        torch.testing.assert_close(found[:count], want, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(x.grad[:count], alone.grad, rtol=1e-4, atol=1e-5)
        assert not x.grad[count:].any()
    torch.testing.assert_close(norm.state_dict(), own.state_dict())
    for a, b in zip(norm.parameters(), own.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-4, atol=1e-4)
    assert "forward" not in vars(norm)
    with ignoring_padding(norm.eval(), padding_of(7, 40, device)):
        torch.testing.assert_close(norm(x), own.eval()(x))


def test_second_derivatives_of_padded_batch_norm_are_refused() -> None:
    x, norm = torch.randn(40, 5, requires_grad=True), torch.nn.BatchNorm1d(5)
    with ignoring_padding(norm, padding_of(20, 40)):
        y = norm(x)
    (slope,) = torch.autograd.grad(y[:20].square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        slope.sum().backward()


def same_products(ours: Any, alone: Any, device: str) -> None:
    """Products, weights and indices of an operand in static buffers, and of one without padding."""
    for a, b in ((ours, alone), (ours.T, alone.T)):
        rows, cols = b.shape
        x = torch.randn(a.shape[1], 5, device=device)
        y = a @ x
        torch.testing.assert_close(y[:rows], b @ x[:cols], rtol=1e-5, atol=1e-5)
        assert not y[rows:].any()
        weights = torch.randn(a.nnz, device=device)
        nonzeros = b.nnz
        assert torch.equal(a.transpose_values(weights)[:nonzeros], b.transpose_values(weights[:nonzeros]))
    assert torch.equal(ours.indices()[:, : alone.nnz], alone.indices())


CASES: dict[str, tuple[Kind, dict[str, Any]]] = {
    "graphs, sum": (GRAPHS, {"values": None}),
    "graphs, mean": (GRAPHS, {"values": "mean"}),
    "graphs, gcn": (GRAPHS, {"values": "gcn"}),
    "sum": (SAMPLES, {"values": None}),
    "mean": (SAMPLES, {"values": "mean"}),
    "gcn": (SAMPLES, {"values": "gcn"}),
    "mean of repeats": (SAMPLES, {"values": "mean", "sampler": {"replace": True}}),
    "all neighbours": (SAMPLES, {"values": "mean", "sampler": {"fanouts": [-1, 3]}}),
    "labor": (SAMPLES, {"values": "gcn", "sampler": {"method": "labor"}}),
    "three layers, fp16": (
        SAMPLES,
        {"values": "gcn", "precision": "fp16", "sampler": {"fanouts": [3, 3, 3]}},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_batches_in_buffers_are_the_batches(device: str, case: str) -> None:
    kind, options = CASES[case]
    steps = steps_of(kind.data(device=device, **options), 9)
    # Graphs have buffers for batches of 8 and of 4; a batch of 4 nodes is launched by itself.
    assert [step.buffers is None for step in steps] == [kind is SAMPLES and n == 6 for n in range(9)]
    assert len({step.buffers for step in steps}) == 2
    assert steps[0].buffers is steps[4].buffers
    addresses: dict[Any, set[Any]] = {}
    for step in steps:
        if step.buffers is None:
            continue
        want, found = step.single(), static_batch(step)
        alone, ours = ([batch.adj] if kind is GRAPHS else batch.adj for batch in (want, found))
        paddings, nodes = found.paddings[:1] if kind is GRAPHS else found.paddings, want.x.shape[0]
        assert torch.equal(found.x[:nodes], want.x)
        assert torch.equal(found.y, want.y)
        for sizes, adjs in (([int(padding.count) for padding in paddings], [want.x, *alone]),
                            ([padding.rows for padding in paddings], [found.x, *ours])):  # fmt: skip
            assert sizes == [adj.shape[0] for adj in adjs[: len(sizes)]]
        for a, b in zip(ours, alone, strict=True):
            same_products(a, b, device)
        kept = [adj.kernels.csr.indptr for adj in ours]
        if kind is GRAPHS:
            assert nodes < found.x.shape[0]
            assert not found.x[nodes:].any()
            assert torch.equal(found.graph_ptr, want.graph_ptr)
            assert bool((found.adj.indices()[0, want.adj.nnz :] == found.x.shape[0] - 1).all())
            kept.append(found.graph_ptr)
        addresses.setdefault(step.buffers, set()).add(tuple(array.data_ptr() for array in kept))
    assert all(len(places) == 1 for places in addresses.values())


@pytest.fixture(params=["emulated", pytest.param("cuda", marks=pytest.mark.gpu)])
def drawing(request: pytest.FixtureRequest) -> Iterator[str]:
    """A device on which CUDA graphs draw; by emulated kernels what they would replay is called."""
    if request.param == "cuda":
        yield "cuda"
        return
    with emulated.running(request.getfixturevalue("late")):
        yield "cpu"


@pytest.mark.parametrize("case", ["sum", "mean", "gcn", "mean of repeats", "three layers, fp16", "weighted"])
def test_samples_that_a_graph_draws_are_the_samples(drawing: str, case: str) -> None:
    weighted = (SAMPLES, {"values": "mean", "dataset": weighted_dataset()})
    steps = steps_of(SAMPLES.data(device=drawing, **{**CASES, "weighted": weighted}[case][1]), 9)
    assert [step.buffers is None for step in steps] == [n == 6 for n in range(9)]
    buffers: Any = steps[0].buffers
    with emulated.NotingWaits() as waits:
        buffers.draws._run()
    assert waits.found == []
    for step in (step for step in steps if step.buffers is not None):
        want, found = step.single(), static_batch(step)
        assert torch.equal(found.x[: want.x.shape[0]], want.x)
        assert torch.equal(found.y, want.y)
        assert [int(padding.count) for padding in found.paddings[1:]] == [adj.shape[0] for adj in want.adj]
        for ours, alone in zip(found.adj, want.adj, strict=True):
            same_products(ours, alone, drawing)


def test_a_graph_that_draws_sees_what_has_no_room(drawing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = [step.single() for step in steps_of(SAMPLES.data(device=drawing, values="gcn"), 24)]
    for name, value in {**SAMPLES.no_room, "sampled._LOOKED_AT": 1}.items():
        monkeypatch.setattr(f"gnnsparse.train.{name}", value)
    steps = steps_of(SAMPLES.data(device=drawing, values="gcn"), 24)
    assert 0 < sum(step.buffers is not None for step in steps) < 24 - 3
    for step, want in zip(steps, whole, strict=True):
        found = step.single() if step.buffers is None else static_batch(step)
        assert torch.equal(found.y, want.y)
        assert torch.equal(found.x[: want.x.shape[0]], want.x)


# Steps.


def same_steps(
    kind: Kind, data: Any, name: str, options: dict[str, Any], rounding: float = 1e-5,
    gradients: float = 1e-4, count: int = 6,
) -> None:  # fmt: skip
    """Losses, gradients and running statistics, of one batch after another of different sizes."""
    modules = [kind.module(data, name, **options) for _ in range(2)]
    for step in steps_of(data, count):
        assert step.buffers is not None
        losses = []
        for module, batch in zip(modules, (step.single(), static_batch(step)), strict=True):
            module.zero_grad()
            with numerics(data.precision, data.device):
                losses.append(module.training_step(batch))
            losses[-1].backward()
        torch.testing.assert_close(losses[1], losses[0], rtol=rounding, atol=0.1 * rounding)
        pairs = list(zip(*(module.parameters() for module in modules), strict=True))
        # A bias before batch norm has a gradient of 0, which is rounding alone.
        largest = max(float(want.grad.abs().max()) for want, _ in pairs if want.grad is not None)
        for want, found in pairs:
            assert (want.grad is None) == (found.grad is None)
            if want.grad is not None:
                torch.testing.assert_close(
                    found.grad, want.grad, rtol=gradients, atol=10 * rounding * largest
                )
        states = [module.state_dict() for module in modules]
        torch.testing.assert_close(states[1], states[0], rtol=rounding, atol=rounding)


OPTIONS: dict[str, dict[str, Any]] = {
    "batch norm, sum": {"norm": "batch", "pool": "sum"},
    "layer norm, mean": {"norm": "layer", "pool": "mean", "residual": True},
    "no norm, max": {"norm": "none", "pool": "max"},
}


@pytest.mark.parametrize("options", OPTIONS)
@of_each_model
def test_a_static_step_is_a_step(device: str, kind: Kind, name: str, options: str) -> None:
    data, given = kind.data(name, device=device), {"dropout": 0.0, **OPTIONS[options]}
    if kind is GRAPHS:
        same_steps(kind, data, name, given, gradients=1e-3, count=4)
    else:
        del given["pool"]
        same_steps(kind, data, name, given)


@pytest.mark.parametrize(
    ("name", "norm"),
    [
        ("gine", "batch"),
        ("gatedgcn", "batch"),
        ("gatedgcn", "none"),
        ("pna", "batch"),
        ("meshgraphnet", "layer"),
    ],
)
@pytest.mark.usefixtures("poisoned")
def test_a_static_step_with_features_of_edges_is_a_step(device: str, name: str, norm: str) -> None:
    """Batches are in buffers that have held others; edges of padding have features, but no row."""
    data = WITH_EDGES.data(name, device=device)
    assert data.capture_obstacle(WITH_EDGES.module(data, name)) is None
    same_steps(WITH_EDGES, data, name, {"norm": norm, "pool": "mean"}, gradients=1e-3)


def test_repeated_edges_with_features_have_no_buffers() -> None:
    dataset = WITH_EDGES.dataset()
    features = dataset.edge_features
    assert features is not None
    edges, attr = features.edge_index, features.edge_attr
    twice = EdgeFeatures(torch.cat([edges, edges[:, :1]], dim=1), torch.cat([attr, attr[:1]]), None, {})
    data = WITH_EDGES.data(dataset=replace(dataset, edge_features=twice))
    says = "features of edges that are repeated have no static buffers"
    assert data.capture_obstacle(WITH_EDGES.module(data)) == says


@pytest.mark.parametrize("precision", ["tf32", "fp16", "bf16"])
@pytest.mark.parametrize("name", ["graphsage", "gcn", "gat"])
def test_a_static_step_is_a_step_in_other_precisions(device: str, name: str, precision: str) -> None:
    """Dense products of more rows are rounded otherwise on some CPUs, and with them some operands."""
    rounding = 1e-4 if device == "cpu" else 2e-2
    data = SAMPLES.data(name, device=device, precision=precision)
    same_steps(SAMPLES, data, name, {"norm": "batch"}, rounding, 10 * rounding)


@pytest.mark.parametrize("case", ["accuracy", "micro_f1", "mae", "weights, graphsage", "weights, gcn"])
def test_targets_of_every_kind_edge_weights_and_features_elsewhere(case: str) -> None:
    dataset = toy_task(300, metric="micro_f1" if case == "micro_f1" else "accuracy")
    name, sampler = "graphsage", None
    if case == "mae":
        dataset = replace(dataset, y=dataset.x[:, :3].contiguous(), metric="mae")
    elif case.startswith("weights"):
        dataset = weighted_dataset()
        name, sampler = case.removeprefix("weights, "), {"features": "host"}
    same_steps(SAMPLES, SAMPLES.data(name, dataset, sampler=sampler), name, {})


def test_dropped_scores_are_those_of_a_step() -> None:
    """GIN drops scores of graphs, of which there are as many with padding."""
    data = GRAPHS.data()
    module = GRAPHS.module(data, dropout=0.5)
    for step in steps_of(data, 2):
        losses = []
        for batch in (step.single(), static_batch(step)):
            torch.manual_seed(5)
            losses.append(float(module.training_step(batch).detach()))
        assert losses[0] == pytest.approx(losses[1], rel=1e-4)


# Runs.


def run(
    kind: Kind, name: str | None = None, epochs: int | None = None, options: dict[str, Any] | None = None,
    **given: Any,
) -> tuple[FitResult, Any]:  # fmt: skip
    own = {key: given.pop(key) for key in ("folder", "resume", "curves") if key in given}
    settings = {key: given.pop(key) for key in ("capture",) if key in given}
    data = kind.data(name, **given)
    module = kind.module(data, name, **(options or {"norm": "layer"}))
    config = TrainerConfig(max_epochs=epochs or kind.epochs, progress=False, logger="none", **settings)
    return fit(module, data, config, **own), module


def learnt(module: Any) -> dict[str, torch.Tensor]:
    """The state without biases of keys: they change no weight, and their gradients are rounding alone."""
    state = dict(module.state_dict())
    for name in [name for name in state if name.endswith("in_proj_bias")]:
        queries, _, values = state.pop(name).chunk(3)
        state |= {f"{name}, queries": queries, f"{name}, values": values}
    return state


def close(a: Any, b: Any, rtol: float = 1e-3, atol: float = 1e-4) -> None:
    torch.testing.assert_close(learnt(a), learnt(b), rtol=rtol, atol=atol)


@pytest.mark.parametrize(
    ("kind", "name", "precision", "device"),
    [(GRAPHS, name, "fp32", "cpu") for name in ("gin", "gcn", "gat")]
    + [(WITH_EDGES, name, "fp32", "cpu") for name in ("gine", "meshgraphnet")]
    + [(SAMPLES, name, "fp32", "cpu") for name in ("graphsage", "gcn", "gat")]
    + [pytest.param(*each, precision, "cuda", marks=pytest.mark.gpu)
       for each in (*EACH, (WITH_EDGES, "gine"), (WITH_EDGES, "meshgraphnet")) for precision in PRECISIONS],
    ids=lambda value: getattr(value, "task", value),
)  # fmt: skip
def test_a_run_in_chunks_is_a_run(
    kind: Kind, name: str, precision: str, device: str, in_chunks: list[PlainRecorder]
) -> None:
    options = {"precision": precision, "device": device}
    single, of_single = run(kind, name, capture="off", **options)
    (chunks, of_chunks), (_, of_again) = (run(kind, name, **options) for _ in range(2))
    assert (single.capture, chunks.capture) == ("off", "on")
    # On a GPU padding changes the order of sums, and of a gradient near 0 Adam makes any part of a step.
    tolerance, step = (1e-3, PLAIN.lr / 2) if precision == "fp32" else (0.1, 0.1)
    close(of_single, of_chunks, tolerance, 1e-4 if device == "cpu" else step)
    assert chunks.epochs == single.epochs == kind.epochs
    torch.testing.assert_close(of_again.state_dict(), of_chunks.state_dict(), rtol=0.0, atol=0.0)
    assert device == "cuda" or in_chunks[0].counts == kind.counts
    left = [thread for thread in threading.enumerate() if thread.name == "gnnsparse-prefetch"]
    assert device == "cuda" or left == []  # there single steps take samples that a thread has made ahead


@pytest.mark.parametrize(
    ("kind", "device"),
    [(GRAPHS, "cpu"), (SAMPLES, "cpu"), pytest.param(SAMPLES, "cuda", marks=pytest.mark.gpu)],
    ids=lambda value: getattr(value, "task", value),
)
def test_a_run_in_chunks_is_resumed_within_its_steps(
    kind: Kind, device: str, tmp_path: Path, in_chunks: list[PlainRecorder]
) -> None:
    options = {"norm": "batch", "dropout": 0.3} if kind is SAMPLES else None
    given = {"options": options, "device": device, "capture": "on"}
    _, whole = run(kind, epochs=6, **given)
    run(kind, epochs=3, folder=tmp_path / "first", **given)
    last = tmp_path / "first" / "checkpoints" / "last.ckpt"
    _, resumed = run(kind, epochs=6, resume=last, **given)
    close(whole, resumed, *((0.0, 0.0) if kind is SAMPLES and device == "cpu" else (1e-5, 1e-6)))


@of_each_kind
def test_without_room_or_a_capture_steps_are_launched_one_by_one(
    kind: Kind, in_chunks: list[PlainRecorder], monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    """A batch that is larger than its buffers; or all, without padding, once a capture has failed."""
    _, of_single = run(kind, capture="off")
    with monkeypatch.context() as patch:
        patch.setattr(PlainRecorder, "fails_at", kind.fails_at)
        failed, of_failed = run(kind)
    assert "operation not permitted" in failed.capture
    close(of_single, of_failed)
    for name, value in kind.no_room.items():
        monkeypatch.setattr(f"gnnsparse.train.{name}", value)
    with caplog.at_level(logging.INFO, "gnnsparse.train"):
        chunks, of_chunks = run(kind)
    assert chunks.capture == "on"
    close(of_single, of_chunks)
    assert 0 < in_chunks[-1].counts["replayed"] < kind.counts["replayed"]
    assert len([line for line in caplog.messages if "larger than most" in line]) == 1


def test_how_batches_are_made_changes_nothing(in_chunks: list[PlainRecorder]) -> None:
    _, one = run(SAMPLES)
    for sampler in ({"prefetch": 0}, {"features": "host"}):
        _, other = run(SAMPLES, sampler=sampler)
        close(one, other, 0.0, 0.0)


@pytest.mark.parametrize(
    ("kind", "name", "base", "methods"),
    [(GRAPHS, "gin", GraphPredictor, ["training_step"]),
     (SAMPLES, "gcn", NodeClassifier, ["training_step", "outputs"])],
    ids=["graph", "node"],
)  # fmt: skip
def test_what_forbids_static_batches(
    kind: Kind, name: str, base: type[Any], methods: list[str], in_chunks: list[PlainRecorder]
) -> None:
    data = kind.data(name)
    assert data.capture_obstacle(kind.module(data, name)) is None
    for method in methods:
        own = type("Own", (base,), {method: lambda self, batch: batch})
        says = f"Own.{method} is not that of {base.__name__}, which knows padding"
        assert data.capture_obstacle(kind.module(data, name, own)) == says
    module = kind.module(data, name)
    module.model.ignores_padding = False
    says = f"{type(module.model).__name__} does not say that it ignores padding (ignores_padding)"
    assert data.capture_obstacle(module) == says
    assert fit(module, data, TrainerConfig(max_epochs=2, progress=False)).capture == says
    assert in_chunks == []
    assert all(kind.module(data, other).model.ignores_padding for k, other in EACH if k is kind)
    quantized = kind.data(name, precision="int8")
    says = "in int8 features are scaled by all rows, those of padding included"
    assert quantized.capture_obstacle(kind.module(quantized, name)) == says
    assert "CUDA graphs need a GPU" in str(obstacle(kind.module(data, name), data))


# What the host does in a step on a GPU.


class Operations(TorchDispatchMode):
    """Notes the operations of torch in a `with` block."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(function))
        return function(*args, **(kwargs or {}))


#: What the host would wait for a GPU in, and a capture forbids.
WAITS = ("_local_scalar_dense", "nonzero", "masked_select", "unique", "repeat_interleave.Tensor", "equal.")


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@of_each_model
def test_every_step_is_the_same_work_and_never_waits(
    kind: Kind, name: str, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The graph of a step does what its capture has done: the same operations, on the same arrays."""
    # They read numbers on a CPU alone.
    monkeypatch.setattr("gnnsparse.nn.functional._check_offsets", lambda *_: None)
    drawn: Any = kind.drawn(name, precision)
    recording, done, launched = RecordingPath(), [], []
    with use(recording):
        data: Any = kind.data(name, precision=precision)
        module: Any = kind.module(data, name, norm="batch", **({"train_eps": True} if name == "gin" else {}))
        for load, batch in kind.on_gpu(data, drawn):
            before = len(recording.calls)
            load()
            with Operations() as operations:
                module.training_step(batch()).backward()
            done.append(operations.names)
            launched.append(recording.names()[before:])
            module.zero_grad()
    assert len(done) == 4
    assert done[1] == done[2] == done[3]
    assert launched[1] == launched[2] == launched[3]
    assert launched[1]
    assert [found for found in done[1] if any(name in found for name in WAITS)] == []


@of_each_kind
def test_the_host_loads_a_batch_by_few_operations(kind: Kind) -> None:
    """Beside the replay of the graph it is all that a captured step needs."""
    step = steps_of(kind.data(), 1)[0]
    with Operations() as operations:
        step.load()
    assert [name for name in operations.names if "copy" in name] == kind.copies
    assert len(operations.names) <= kind.most_operations


# On a GPU.


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("kind", "name", "sampler"),
    [(GRAPHS, name, None) for name in GRAPH_MODELS]
    + [(SAMPLES, "graphsage", {"features": features, "prefetch": prefetch, "fanouts": [5, 4, 3]})
       for features in ("device", "pinned", "host") for prefetch in (0, 2)],
    ids=lambda value: getattr(value, "task", str(value)),
)  # fmt: skip
def test_a_captured_run_with_dropout_repeats_itself(
    kind: Kind, name: str, sampler: dict[str, Any] | None
) -> None:
    options = {"dropout": 0.5, "norm": "batch", **({} if sampler is None else {"num_layers": 3})}
    given = {} if sampler is None else {"sampler": sampler}
    runs = [run(kind, name, capture="on", device="cuda", options=options, **given) for _ in range(2)]
    assert [result.capture for result, _ in runs] == ["on", "on"]
    close(runs[0][1], runs[1][1], 0.0, 0.0)


# The CUDA source, run on the CPU, on samples in static buffers.


NODES, SEEDS = 900, 200
MODELS_ON_SAMPLES = ["graphsage", "gcn", "gin", "gat", "gatv2", "agnn", "graph_transformer"]


def graph(hub: bool) -> SparseGraph:
    edges = torch.randint(NODES, (2, 5000), generator=torch.Generator().manual_seed(1))
    if hub:  # a node that all draw
        edges = torch.cat([edges, torch.stack([torch.full((NODES,), 7), torch.arange(NODES)])], 1)
    return SparseGraph.from_edge_index(edges, NODES)


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize(
    ("name", "hub"), [*((name, False) for name in MODELS_ON_SAMPLES), ("graphsage", True), ("gat", True)]
)
def test_a_static_step_is_a_step_and_waits_for_nothing(
    name: str, hub: bool, precision: str, late: Any
) -> None:
    """Also with a column of more nonzeros than rows that are cut have: here it is kept whole."""
    torch.manual_seed(0)
    x = torch.randn(NODES, 20)
    model = MODELS[name].build(20, out_channels=3, hidden_channels=24, dropout=0.0, norm="batch")
    if name == "gin":  # a buffer on a CPU is read on the host
        model = MODELS[name].build(20, out_channels=3, hidden_channels=24, dropout=0.0, train_eps=True)

    def gradients(nodes: torch.Tensor, adjs: Sequence[SparseOperand], *paddings: Any) -> torch.Tensor:
        model.zero_grad()
        with ignoring_padding(model, *paddings):
            out = model(x[nodes.long()], list(adjs))[:SEEDS]
        out.logsumexp(1).sum().backward()
        return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])

    batches = torch.randperm(NODES, generator=torch.Generator().manual_seed(2))[: 3 * SEEDS].split(SEEDS)
    with emulated.running(late) as path:
        sampler = NeighborSampler(
            graph(hub), [300, 300] if hub else [8, 4], values=MODELS[name].values, precision=precision, seed=3
        )
        samples = [sampler.draw(seeds, step) for step, seeds in enumerate(batches)]
        static = StaticBlocks(sampler, bounds_of(samples, NODES, sampler.most_edges), samples[0][0])
        longest = max(int(block.transposed.degrees.max()) for block in samples[0])
        assert (longest > ROW_LIMIT) == hub
        launched = []
        for blocks in samples:
            assert static.takes(blocks)
            want = gradients(blocks[0].sources, sampler.operands(blocks))
            static.load(blocks)
            path.waits, before = 0, set(path.called)
            path.called.clear()
            with emulated.NotingWaits() as noted:
                static.assemble()
                found = gradients(static.nodes, static.adjs, *static.paddings)
            assert (path.waits, noted.found) == (0, [])
            launched.append(set(path.called))
            path.called |= before
            rounding = 1e-4 if precision == "fp32" else 1e-2
            torch.testing.assert_close(found, want, rtol=rounding, atol=rounding * float(want.abs().max()))
        assert launched[0] >= launched[1] == launched[2]
        assert launched[1]
