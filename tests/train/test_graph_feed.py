"""Batches of graphs in arrays that keep their places: their steps are those on batches of their own size."""

from __future__ import annotations

import copy
import itertools
import logging
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from gnnsparse.data import GraphDataset
from gnnsparse.nn import pool_graphs
from gnnsparse.nn.padded_norm import ignoring_padding
from gnnsparse.runtime.device import use
from gnnsparse.runtime.padding import Padding, padded
from gnnsparse.train import FitResult, OptimizerConfig, PreprocessConfig, TrainerConfig, fit
from gnnsparse.train.data import StepInput
from gnnsparse.train.plots import Curves
from gnnsparse.train.steps import obstacle
from gnnsparse.train.tasks.graph import GraphData, GraphPredictor, bound_of
from models import MODELS
from tests.gpu_paths import RecordingPath
from tests.helpers import PRECISIONS
from tests.tasks import PlainRecorder, run_in_blocks
from tests.tu_files import graph_dataset

GRAPH_MODELS = [name for name, model in MODELS.items() if "graph" in model.tasks]
PLAIN = OptimizerConfig(lr=0.01, weight_decay=0.0, decay="all")


def data_of(dataset: GraphDataset | None = None, **options: Any) -> GraphData:
    options = {"batch_size": 8, "preprocess": PreprocessConfig(cache=False), **options}
    return GraphData(dataset or graph_dataset(), **options)


def module_of(
    data: GraphData, name: str = "gin", kind: type[GraphPredictor] = GraphPredictor, **options: Any
) -> GraphPredictor:
    torch.manual_seed(0)
    sizes = {"hidden_channels": 16, "out_channels": data.dataset.num_classes}
    model = MODELS[name].for_task("graph").build(data.dataset.num_features, **sizes, **options)
    return kind(model.to(data.device), data.dataset, PLAIN, 1000)


def steps_of(data: GraphData, count: int) -> list[StepInput]:
    """The inputs of steps; those that have a place are loaded one by one, since they share it."""
    return list(itertools.islice(data.batch_source().steps, count))


def in_place(step: StepInput) -> Any:
    step.load()
    return step.static()


# The parts.


def test_a_bound_is_rarely_exceeded() -> None:
    sizes = torch.randint(1, 60, (1000,), generator=torch.Generator().manual_seed(0))
    bound = bound_of(sizes, 100)
    sums = torch.stack([sizes[torch.randperm(1000)[:100]].sum() for _ in range(300)])
    assert int(sums.max()) <= bound < 1.4 * float(sums.double().mean())
    assert bound_of(sizes, 1000) == int(sizes.sum())
    assert bound_of(torch.tensor([3, 5, 9]), 2) == 14
    assert bound_of(torch.tensor([7]), 1) == 7


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


def padding_of(count: int, rows: int, device: str = "cpu") -> Padding:
    return Padding.of(torch.tensor(count, device=device), rows)


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


@pytest.mark.parametrize("values", [None, "gcn", "mean"])
def test_batches_in_place_are_the_batches(device: str, values: str | None) -> None:
    data = data_of(values=values, device=device)
    steps = steps_of(data, 6)
    assert [step.buffers is None for step in steps] == [False] * 6
    assert len({step.buffers for step in steps}) == 2, "one for batches of 8 graphs, one for those of 4"
    assert steps[0].buffers is steps[4].buffers
    addresses = set()
    for step in steps:
        want, found = step.single(), in_place(step)
        nodes, nonzeros = want.x.shape[0], want.adj.nnz
        assert int(found.padding.count) == nodes < found.x.shape[0]
        assert torch.equal(found.x[:nodes], want.x)
        assert not found.x[nodes:].any()
        assert torch.equal(found.graph_ptr, want.graph_ptr)
        assert torch.equal(found.y, want.y)
        x = torch.randn(found.x.shape[0], 5, device=device)
        for ours, alone in ((found.adj, want.adj), (found.adj.T, want.adj.T)):
            y = ours @ x
            torch.testing.assert_close(y[:nodes], alone @ x[:nodes])
            assert not y[nodes:].any()
        weights = torch.randn(found.adj.nnz, device=device)
        assert torch.equal(
            found.adj.transpose_values(weights)[:nonzeros], want.adj.transpose_values(weights[:nonzeros])
        )
        rows = found.adj.indices()[0]
        assert torch.equal(rows[:nonzeros], want.adj.indices()[0])
        assert bool((rows[nonzeros:] == found.x.shape[0] - 1).all())
        if len(found.y) == 8:
            addresses.add((found.adj.kernels.csr.indptr.data_ptr(), found.graph_ptr.data_ptr()))
    assert len(addresses) == 1


# Steps.


OPTIONS: dict[str, dict[str, Any]] = {
    "batch norm, sum": {"norm": "batch", "pool": "sum"},
    "layer norm, mean": {"norm": "layer", "pool": "mean", "residual": True},
    "no norm, max": {"norm": "none", "pool": "max"},
}


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("name", GRAPH_MODELS)
def test_a_step_in_place_is_a_step(device: str, name: str, options: str) -> None:
    """Losses, gradients and running statistics, of one batch after another of different sizes.

    No two nodes have the same features: where a CPU rounds dense products of more rows otherwise, a maximum
    of nodes that are equal but for rounding takes one or the other of them, and with it other gradients.
    """
    dataset = graph_dataset()
    distinct = dataset.x + torch.rand(dataset.x.shape, generator=torch.Generator().manual_seed(0))
    dataset = replace(dataset, x=distinct)
    data = data_of(dataset, values=MODELS[name].for_task("graph").values, device=device)
    modules = [module_of(data, name, dropout=0.0, **OPTIONS[options]) for _ in range(2)]
    for step in steps_of(data, 4):
        losses = []
        for module, batch in zip(modules, (step.single(), in_place(step)), strict=True):
            module.zero_grad()
            losses.append(module.training_step(batch))
            losses[-1].backward()
        torch.testing.assert_close(losses[1], losses[0], rtol=1e-5, atol=1e-6)
        # A bias before batch norm has a gradient of 0, which is rounding alone.
        largest = max(float(parameter.grad.abs().max()) for parameter in modules[0].parameters())
        for want, found in zip(*(module.parameters() for module in modules), strict=True):
            torch.testing.assert_close(found.grad, want.grad, rtol=1e-3, atol=1e-4 * largest)
        torch.testing.assert_close(modules[1].state_dict(), modules[0].state_dict())


def test_dropped_scores_are_those_of_a_step() -> None:
    """GIN drops scores of graphs, of which there are as many with padding."""
    data = data_of()
    module = module_of(data, dropout=0.5)
    for step in steps_of(data, 2):
        losses = []
        for batch in (step.single(), in_place(step)):
            torch.manual_seed(5)
            losses.append(float(module.training_step(batch).detach()))
        assert losses[0] == pytest.approx(losses[1], rel=1e-4)


@pytest.fixture
def in_blocks(monkeypatch: pytest.MonkeyPatch) -> list[PlainRecorder]:
    """Runs on the CPU go in blocks, by stand-ins that call what a graph would replay, and are returned."""
    return run_in_blocks(monkeypatch, lambda module, data: data.capture_obstacle(module))


def run(
    name: str = "gin", epochs: int = 4, data: GraphData | None = None, options: Any = None, **more: Any
) -> tuple[FitResult, GraphPredictor]:
    dataset = graph_dataset(metric="accuracy")
    x = torch.randn(dataset.num_nodes, 3, generator=torch.Generator().manual_seed(3))
    dataset = replace(dataset, x=x)
    device = more.pop("device", "cpu")
    precision = more.pop("precision", "fp32")
    values = MODELS[name].for_task("graph").values
    data = data or data_of(dataset, values=values, device=device, precision=precision)
    module = module_of(data, name, **({"norm": "layer", "dropout": 0.0} if options is None else options))
    own = {name: more.pop(name) for name in ("folder", "resume", "curves") if name in more}
    config = TrainerConfig(max_epochs=epochs, progress=False, logger="none", **more)
    return fit(module, data, config, **own), module


def close(a: GraphPredictor, b: GraphPredictor, rtol: float = 1e-3, atol: float = 1e-4) -> None:
    torch.testing.assert_close(a.state_dict(), b.state_dict(), rtol=rtol, atol=atol)


@pytest.mark.parametrize("name", ["gin", "gcn", "gat"])
def test_a_run_in_blocks_is_a_run(name: str, in_blocks: list[PlainRecorder]) -> None:
    single, of_single = run(name, capture="off")
    blocks, of_blocks = run(name)
    _, of_again = run(name)
    assert (single.capture, blocks.capture) == ("off", "on")
    close(of_single, of_blocks)
    assert blocks.epochs == single.epochs == 4
    torch.testing.assert_close(of_again.state_dict(), of_blocks.state_dict(), rtol=0.0, atol=0.0)
    # Two sizes of batches, and the validation: each runs as it is first, and is captured then.
    assert in_blocks[0].counts == {"first": 3, "recorded": 3, "replayed": 3 * 4 + 4 - 3}


def test_losses_with_batch_norm(in_blocks: list[PlainRecorder]) -> None:
    """Not the weights: the gradient of a bias before batch norm is rounding, to which Adam gives any sign."""
    curves = []
    for capture in ("off", "auto"):
        curves.append(Curves())
        run(options={"norm": "batch", "dropout": 0.0}, capture=capture, curves=curves[-1], epochs=3)
    single, blocks = (torch.tensor(curve.loss[1]) for curve in curves)
    assert single.numel() == 9
    torch.testing.assert_close(blocks, single, rtol=1e-3, atol=1e-4)


def test_a_run_in_blocks_is_resumed_within_its_steps(tmp_path: Any, in_blocks: list[PlainRecorder]) -> None:
    _, whole = run(epochs=6)
    run(epochs=3, folder=tmp_path / "first")
    _, resumed = run(epochs=6, resume=tmp_path / "first" / "checkpoints" / "last.ckpt")
    close(whole, resumed, 1e-5, 1e-6)


def test_a_batch_without_room_is_launched_by_itself(
    in_blocks: list[PlainRecorder], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    _, of_single = run(capture="off")
    monkeypatch.setattr("gnnsparse.train.tasks.graph._DEVIATIONS", 0)
    monkeypatch.setattr("gnnsparse.train.tasks.graph._MULTIPLE", 1)
    with caplog.at_level(logging.INFO, "gnnsparse.train"):
        blocks, of_blocks = run()
    assert blocks.capture == "on"
    close(of_single, of_blocks)
    assert 0 < in_blocks[0].counts["replayed"] < 3 * 4 + 4 - 3
    assert len([line for line in caplog.messages if "larger than most" in line]) == 1


def test_a_failed_capture_goes_on_without_padding(
    in_blocks: list[PlainRecorder], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, of_single = run(capture="off")
    monkeypatch.setattr(PlainRecorder, "fails_at", 2)
    blocks, of_blocks = run()
    assert "operation not permitted" in blocks.capture
    close(of_single, of_blocks)


class _OwnStep(GraphPredictor):
    def training_step(self, batch: Any) -> torch.Tensor:
        return super().training_step(batch) * 2


def test_what_forbids_batches_in_place(in_blocks: list[PlainRecorder]) -> None:
    data = data_of()
    assert data.capture_obstacle(module_of(data)) is None
    assert "training_step is not that of GraphPredictor" in str(
        data.capture_obstacle(module_of(data, kind=_OwnStep))
    )
    module = module_of(data)
    module.model.ignores_padding = False
    says = "GraphGIN does not say that it ignores padding (ignores_padding)"
    assert data.capture_obstacle(module) == says
    assert fit(module, data, TrainerConfig(max_epochs=2, progress=False)).capture == says
    assert in_blocks == []
    quantized = data_of(precision="int8")
    says = "in int8 features are scaled by all rows, those of padding included"
    assert quantized.capture_obstacle(module_of(quantized)) == says
    assert "CUDA graphs need a GPU" in str(obstacle(module_of(data), data))


# What the host does in a step on a GPU.


class _Operations(TorchDispatchMode):
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
@pytest.mark.parametrize("name", GRAPH_MODELS)
def test_every_step_is_the_same_work_and_never_waits(
    name: str, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The graph of a step does what its capture has done: the same operations, on the same arrays."""
    # They read numbers on a CPU alone.
    monkeypatch.setattr("gnnsparse.nn.functional._check_offsets", lambda *_: None)
    options = {"train_eps": True} if name == "gin" else {}
    recording, done, launched = RecordingPath(), [], []
    with use(recording):
        data = data_of(values=MODELS[name].for_task("graph").values, precision=precision)
        module = module_of(data, name, norm="batch", **options)
        steps = [step for step in steps_of(data, 6) if step.single().y.numel() == 8]
        for step in steps:
            before = len(recording.calls)
            step.load()
            with _Operations() as operations:
                module.training_step(step.static()).backward()
            done.append(operations.names)
            launched.append(recording.names()[before:])
            module.zero_grad()
    assert len(steps) == 4
    assert done[1] == done[2] == done[3]
    assert launched[1] == launched[2] == launched[3]
    assert launched[1]
    waits = [found for found in done[1] if any(name in found for name in WAITS)]
    assert waits == []


def test_the_host_puts_the_numbers_of_graphs_into_place() -> None:
    """Beside the replay of the graph it is all that a captured step needs."""
    first = steps_of(data_of(), 1)[0]
    with _Operations() as operations:
        first.load()
    assert [name for name in operations.names if "copy" in name] == ["aten.copy_.default"]
    assert len(operations.names) <= 3


# On a GPU.


@pytest.mark.gpu
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", GRAPH_MODELS)
def test_captured_as_launched_one_by_one(name: str, precision: str) -> None:
    options = {"device": "cuda", "precision": precision, "epochs": 8}
    single, of_single = run(name, capture="off", **options)
    captured, of_captured = run(name, capture="on", **options)
    assert (single.capture, captured.capture) == ("off", "on")
    tolerance = 1e-3 if precision == "fp32" else 0.1
    close(of_single, of_captured, tolerance, tolerance)
    _, again = run(name, capture="on", **options)
    torch.testing.assert_close(again.state_dict(), of_captured.state_dict(), rtol=0.0, atol=0.0)


@pytest.mark.gpu
@pytest.mark.parametrize("name", GRAPH_MODELS)
def test_a_captured_run_with_dropout_repeats_itself(name: str) -> None:
    runs = [
        run(name, capture="on", device="cuda", options={"dropout": 0.5, "norm": "batch"}) for _ in range(2)
    ]
    assert [result.capture for result, _ in runs] == ["on", "on"]
    states = [module.state_dict() for _, module in runs]
    torch.testing.assert_close(states[0], states[1], rtol=0.0, atol=0.0)
