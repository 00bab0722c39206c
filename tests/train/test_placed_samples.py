"""Samples in arrays that keep their places: their steps are those on samples of their own size."""

from __future__ import annotations

import itertools
import logging
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from gnnsparse.data import NodeDataset
from gnnsparse.formats.csr import Csr
from gnnsparse.runtime.device import use
from gnnsparse.sampling.blocks import BlockArrays
from gnnsparse.train import FitResult, OptimizerConfig, PreprocessConfig, SamplerConfig, TrainerConfig, fit
from gnnsparse.train.data import StepInput
from gnnsparse.train.device import numerics
from gnnsparse.train.sampled import NodeBatch, bounds_of
from gnnsparse.train.tasks.node import FullGraphData, NodeClassifier
from models import MODELS
from tests.gpu_paths import RecordingPath
from tests.helpers import PRECISIONS
from tests.tasks import PlainRecorder, toy_task
from tests.train.test_graph_feed import WAITS, _Operations

NODE_MODELS = [name for name, model in MODELS.items() if "node" in model.tasks]
SAMPLING = [
    name for name in NODE_MODELS
    if hasattr(MODELS[name].build(8, out_channels=3, hidden_channels=8), "num_convolutions")
]  # fmt: skip
PLAIN = OptimizerConfig(lr=0.01, weight_decay=0.0, decay="all")


def data_of(
    name: str, dataset: NodeDataset | None = None, sampler: dict[str, Any] | None = None, **options: Any
) -> FullGraphData:
    config = SamplerConfig(**{"name": "neighbor", "fanouts": [5, 4], "batch_size": 16, **(sampler or {})})
    preprocess = PreprocessConfig(cache=False)
    options = {"values": MODELS[name].values, **options}
    return FullGraphData(dataset or toy_task(300), preprocess=preprocess, sampler=config, **options)


def module_of(
    data: FullGraphData, name: str, kind: type[NodeClassifier] = NodeClassifier, **options: Any
) -> NodeClassifier:
    torch.manual_seed(0)
    dataset = data.dataset
    sizes = {"out_channels": dataset.num_classes, "hidden_channels": 16}
    model = MODELS[name].build(dataset.num_features, **{"dropout": 0.0, **sizes, **options})
    return kind(model.to(data.device), dataset, PLAIN, 1000)


def steps_of(data: FullGraphData, count: int) -> list[StepInput]:
    """The inputs of steps; those that have a place are loaded one by one, since they share it."""
    return list(itertools.islice(data.batch_source().steps, count))


def in_place(step: StepInput) -> NodeBatch:
    step.load()
    batch: NodeBatch = step.static()
    return batch


# The parts.


def _block(rows: int, cols: int, nnz: int) -> BlockArrays:
    csr = Csr(torch.zeros(rows + 1, dtype=torch.int64), torch.zeros(nnz, dtype=torch.int32), cols)
    return BlockArrays(torch.zeros(rows), torch.zeros(cols), csr, csr, torch.zeros(nnz))


def test_bounds_are_hardly_exceeded_and_grow_from_layer_to_layer() -> None:
    draw = torch.Generator().manual_seed(0)

    def sample() -> list[BlockArrays]:
        middle = int(torch.normal(3000.0, 100.0, (), generator=draw))
        outer = int(torch.normal(9000.0, 200.0, (), generator=draw))
        return [_block(middle, outer, 4 * outer), _block(100, middle, 2 * middle)]

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
    samples = [[_block(60, 500, 90), _block(5, 60, 10)], [_block(90, 600, 120), _block(5, 90, 20)]]
    bounds = bounds_of(samples, 620, [(2, 620), (3, 620)])
    assert [(bound.rows, bound.cols, bound.nnz) for bound in bounds] == [(192, 640, 256), (64, 192, 64)]
    # A graph of 7 nodes: each block has more columns than rows all the same.
    (one, two) = bounds_of([[_block(7, 7, 14), _block(7, 7, 14)]], 7, [(2, 2), (2, 2)])
    assert (two.rows, two.cols, one.rows, one.cols) == (64, 128, 128, 192)


CASES: dict[str, dict[str, Any]] = {
    "sum": {"values": None},
    "mean": {"values": "mean"},
    "gcn": {"values": "gcn"},
    "mean of repeats": {"values": "mean", "sampler": {"replace": True}},
    "all neighbours": {"values": "mean", "sampler": {"fanouts": [-1, 3]}},
    "labor": {"values": "gcn", "sampler": {"method": "labor"}},
    "three layers, fp16": {"values": "gcn", "precision": "fp16", "sampler": {"fanouts": [3, 3, 3]}},
}


@pytest.mark.parametrize("case", CASES)
def test_samples_in_place_are_the_samples(device: str, case: str) -> None:
    data = data_of("graphsage", device=device, **CASES[case])
    steps = steps_of(data, 9)
    # 100 nodes to train on: six batches of 16 and one of 4, which is launched by itself.
    assert [step.buffers is None for step in steps] == [False] * 6 + [True] + [False] * 2
    assert len({step.buffers for step in steps}) == 2
    addresses = set()
    for step in steps:
        if step.buffers is None:
            continue
        want, found = step.single(), in_place(step)
        assert torch.equal(found.y, want.y)
        nodes = want.x.shape[0]
        assert torch.equal(found.x[:nodes], want.x)
        counts = [nodes, *(adj.shape[0] for adj in want.adj)]
        assert [int(padding.count) for padding in found.paddings] == counts
        assert [padding.rows for padding in found.paddings] == [
            found.x.shape[0], *(adj.shape[0] for adj in found.adj)
        ]  # fmt: skip
        for ours, alone in zip(found.adj, want.adj, strict=True):
            for a, b in ((ours, alone), (ours.T, alone.T)):
                rows, cols = b.shape
                x = torch.randn(a.shape[1], 5, device=device)
                y = a @ x
                torch.testing.assert_close(y[:rows], b @ x[:cols], rtol=1e-5, atol=1e-5)
                assert not y[rows:].any()
            weights = torch.randn(ours.nnz, device=device)
            assert torch.equal(
                ours.transpose_values(weights)[: alone.nnz], alone.transpose_values(weights[: alone.nnz])
            )
            assert torch.equal(
                ours.T.transpose_values(weights)[: alone.nnz], alone.T.transpose_values(weights[: alone.nnz])
            )
            assert torch.equal(ours.indices()[:, : alone.nnz], alone.indices())
        addresses.add(tuple(adj.kernels.csr.indptr.data_ptr() for adj in found.adj))
    assert len(addresses) == 1


def test_the_next_sample_leaves_nothing_of_the_one_before() -> None:
    """A small sample after a large one."""
    data = data_of("gat", sampler={"fanouts": [4, 4], "method": "labor"})
    large, small = sorted(
        (step for step in steps_of(data, 6) if step.buffers), key=lambda step: -step.single().adj[0].nnz
    )[::5]
    alone = [tensor.clone() for tensor in _results(in_place(small))]
    in_place(large)
    again = _results(in_place(small))
    assert small.single().adj[0].nnz < large.single().adj[0].nnz
    for before, after in zip(alone, again, strict=True):
        assert torch.equal(before, after)


def _results(batch: NodeBatch) -> list[torch.Tensor]:
    found = []
    for adj in batch.adj:
        found += [adj @ torch.ones(adj.shape[1], 3), adj.T @ torch.ones(adj.shape[0], 3)]
        found.append(adj.transpose_values(torch.arange(adj.nnz).float()))
    return found


# Steps.


OPTIONS: dict[str, dict[str, Any]] = {
    "no norm": {"norm": "none"},
    "batch norm": {"norm": "batch"},
    "layer norm, residual": {"norm": "layer", "residual": True},
}


def same_steps(
    data: FullGraphData, name: str, rounding: float, options: dict[str, Any], count: int = 6
) -> None:
    """Losses, gradients and running statistics, of one sample after another of different sizes."""
    modules = [module_of(data, name, **options) for _ in range(2)]
    for step in steps_of(data, count):
        assert step.buffers is not None
        losses = []
        for module, batch in zip(modules, (step.single(), in_place(step)), strict=True):
            module.zero_grad()
            with numerics(data.precision, data.device):
                losses.append(module.training_step(batch))
            losses[-1].backward()
        torch.testing.assert_close(losses[1], losses[0], rtol=rounding, atol=0.1 * rounding)
        pairs = list(zip(*(module.parameters() for module in modules), strict=True))
        largest = max(float(want.grad.abs().max()) for want, _ in pairs if want.grad is not None)
        for want, found in pairs:
            assert (want.grad is None) == (found.grad is None)
            if want.grad is not None:
                torch.testing.assert_close(
                    found.grad, want.grad, rtol=10 * rounding, atol=10 * rounding * largest
                )
        torch.testing.assert_close(
            modules[1].state_dict(), modules[0].state_dict(), rtol=rounding, atol=rounding
        )


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("name", SAMPLING)
def test_a_step_in_place_is_a_step(device: str, name: str, options: str) -> None:
    same_steps(data_of(name, device=device), name, 1e-5, OPTIONS[options])


@pytest.mark.parametrize("precision", ["tf32", "fp16", "bf16"])
@pytest.mark.parametrize("name", ["graphsage", "gcn", "gat"])
def test_a_step_in_place_is_a_step_in_other_precisions(device: str, name: str, precision: str) -> None:
    """On the CPU sparse products round their operands, which padding changes in nothing.

    Dense products of more rows are rounded otherwise on some CPUs: then an operand here and there is rounded
    to the other side.
    """
    rounding = 1e-4 if device == "cpu" else 2e-2
    same_steps(data_of(name, device=device, precision=precision), name, rounding, {"norm": "batch"})


@pytest.mark.parametrize("metric", ["accuracy", "micro_f1", "mae"])
def test_targets_of_every_kind(metric: str) -> None:
    dataset = toy_task(300, metric="micro_f1" if metric == "micro_f1" else "accuracy")
    if metric == "mae":
        dataset = replace(dataset, y=dataset.x[:, :3].contiguous(), metric="mae")
    same_steps(data_of("graphsage", dataset), "graphsage", 1e-5, {})


def test_edge_weights_and_features_elsewhere() -> None:
    dataset = toy_task(300)
    weights = torch.rand(dataset.graph.nnz, generator=torch.Generator().manual_seed(1)) + 0.5
    weighted = replace(dataset, graph=replace(dataset.graph, values=weights))
    for name in ("graphsage", "gcn"):
        same_steps(data_of(name, weighted, sampler={"features": "host"}), name, 1e-5, {})


# Runs.


@pytest.fixture
def in_blocks(monkeypatch: pytest.MonkeyPatch) -> list[PlainRecorder]:
    """Runs on the CPU go in blocks, by stand-ins that call what a graph would replay, and are returned."""
    made: list[PlainRecorder] = []

    def recorder(device: torch.device, required: bool) -> PlainRecorder:
        made.append(PlainRecorder(required))
        return made[-1]

    monkeypatch.setattr(
        "gnnsparse.train.fitting.obstacle", lambda module, data: data.capture_obstacle(module)
    )
    monkeypatch.setattr("gnnsparse.train.fitting.Recorder", recorder)
    return made


def run(
    name: str = "graphsage",
    epochs: int = 3,
    folder: Path | None = None,
    resume: Path | None = None,
    **given: Any,
) -> tuple[FitResult, NodeClassifier]:
    settings = {key: given.pop(key) for key in ("capture", "val_every") if key in given}
    options = given.pop("options", {"norm": "layer"})
    data = data_of(name, **given)
    module = module_of(data, name, **options)
    config = TrainerConfig(max_epochs=epochs, progress=False, logger="none", **settings)
    return fit(module, data, config, folder=folder, resume=resume), module


def learnt(module: NodeClassifier) -> dict[str, torch.Tensor]:
    """The state without biases of keys, which add the same to all scores of a row and change no weight.

    Their gradients are rounding errors alone, of which Adam makes steps as large as any.
    """
    state = dict(module.state_dict())
    for name in [name for name in state if name.endswith("in_proj_bias")]:
        queries, _, values = state.pop(name).chunk(3)
        state |= {f"{name}, queries": queries, f"{name}, values": values}
    return state


def close(a: NodeClassifier, b: NodeClassifier, rtol: float = 1e-3, atol: float = 1e-4) -> None:
    torch.testing.assert_close(learnt(a), learnt(b), rtol=rtol, atol=atol)


@pytest.mark.parametrize("name", ["graphsage", "gcn", "gat"])
def test_a_run_in_blocks_is_a_run(name: str, in_blocks: list[PlainRecorder]) -> None:
    single, of_single = run(name, capture="off")
    blocks, of_blocks = run(name)
    _, of_again = run(name)
    assert (single.capture, blocks.capture) == ("off", "on")
    close(of_single, of_blocks)
    assert blocks.epochs == single.epochs == 3
    torch.testing.assert_close(of_again.state_dict(), of_blocks.state_dict(), rtol=0.0, atol=0.0)
    # Of seven steps of an epoch the last is smaller. Validations are not captured.
    assert in_blocks[0].counts == {"first": 1, "recorded": 1, "replayed": 3 * 6 - 1}
    assert not any(thread.name == "gnnsparse-prefetch" for thread in threading.enumerate())


def test_a_run_in_blocks_is_resumed_within_its_steps(tmp_path: Path, in_blocks: list[PlainRecorder]) -> None:
    options = {"norm": "batch", "dropout": 0.3}
    _, whole = run(epochs=6, options=options)
    run(epochs=3, folder=tmp_path / "first", options=options)
    last = tmp_path / "first" / "checkpoints" / "last.ckpt"
    _, resumed = run(epochs=6, resume=last, options=options)
    close(whole, resumed, 0.0, 0.0)


def test_a_sample_without_room_is_launched_by_itself(
    in_blocks: list[PlainRecorder], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    _, of_single = run(capture="off")
    for name, value in (("sampled._DEVIATIONS", 0), ("sampled._MORE", 0), ("sampled._MULTIPLE", 4)):
        monkeypatch.setattr(f"gnnsparse.train.{name}", value)
    monkeypatch.setattr("gnnsparse.train.sampled._LOOKED_AT", 2)
    with caplog.at_level(logging.INFO, "gnnsparse.train"):
        blocks, of_blocks = run()
    assert blocks.capture == "on"
    close(of_single, of_blocks)
    assert 0 < in_blocks[0].counts["replayed"] < 3 * 6 - 1
    assert len([line for line in caplog.messages if "larger than most" in line]) == 1


def test_a_failed_capture_goes_on_without_padding(
    in_blocks: list[PlainRecorder], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, of_single = run(capture="off")
    monkeypatch.setattr(PlainRecorder, "fails_at", 1)
    blocks, of_blocks = run()
    assert "operation not permitted" in blocks.capture
    close(of_single, of_blocks)


@pytest.mark.parametrize("options", [{"sampler": {"prefetch": 0}}, {"sampler": {"features": "host"}}])
def test_how_batches_are_made_changes_nothing(
    options: dict[str, Any], in_blocks: list[PlainRecorder]
) -> None:
    _, one = run()
    _, other = run(**options)
    close(one, other, 0.0, 0.0)


class _OwnStep(NodeClassifier):
    def training_step(self, batch: Any) -> torch.Tensor:
        return super().training_step(batch) * 2


class _OwnOutputs(NodeClassifier):
    def outputs(self, batch: Any) -> torch.Tensor:
        return super().outputs(batch) - super().outputs(batch).mean(0)


def test_what_forbids_samples_in_place(in_blocks: list[PlainRecorder]) -> None:
    data = data_of("gcn")
    assert data.capture_obstacle(module_of(data, "gcn")) is None
    for kind, name in ((_OwnStep, "training_step"), (_OwnOutputs, "outputs")):
        says = data.capture_obstacle(module_of(data, "gcn", kind))
        assert says == f"{kind.__name__}.{name} is not that of NodeClassifier, which knows padding"
    module = module_of(data, "gcn")
    module.model.ignores_padding = False
    says = "GCN does not say that it ignores padding (ignores_padding)"
    assert data.capture_obstacle(module) == says
    assert fit(module, data, TrainerConfig(max_epochs=2, progress=False)).capture == says
    assert in_blocks == []
    eight = data_of("gcn", precision="int8")
    assert "padding included" in str(eight.capture_obstacle(module_of(eight, "gcn")))
    assert all(MODELS[name].build(8, out_channels=3, hidden_channels=8).ignores_padding for name in SAMPLING)


# What the host does in a step on a GPU.


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("name", SAMPLING)
def test_every_step_is_the_same_work_and_never_waits(name: str, precision: str) -> None:
    """The graph of a step does what its capture has done: the same operations, on the same arrays."""
    drawn = steps_of(data_of(name, precision=precision), 4)
    recording, done, launched = RecordingPath(), [], []
    with use(recording):
        data = data_of(name, precision=precision)
        module = module_of(data, name, norm="batch", **({"train_eps": True} if name == "gin" else {}))
        place = _placed_on_gpu(data, drawn)
        for step in drawn:
            before = len(recording.calls)
            place.load(_drawn_of(step))
            with _Operations() as operations:
                module.training_step(place.batch()).backward()
            done.append(operations.names)
            launched.append(recording.names()[before:])
            module.zero_grad()
    assert done[1] == done[2] == done[3]
    assert launched[1] == launched[2] == launched[3]
    assert launched[1]
    waits = [found for found in done[1] if any(name in found for name in WAITS)]
    assert waits == []


def _drawn_of(step: StepInput) -> Any:
    return step.load.args[0]  # type: ignore[attr-defined]


def _placed_on_gpu(data: FullGraphData, drawn: list[StepInput]) -> Any:
    """Places for samples that were drawn on the CPU: the stand-in for a GPU draws nothing."""
    from gnnsparse.train.sampled import StaticBatch, StaticBlocks

    samples, own = [_drawn_of(step).blocks for step in drawn], data._samples
    assert own is not None
    sampler = own._sampler
    bounds = bounds_of(samples, sampler.num_nodes, sampler.most_edges)
    blocks = StaticBlocks(sampler, bounds, samples[0][0])
    return StaticBatch(blocks, 16, own._store, own._y, data)


def test_the_host_puts_a_sample_into_place_by_few_operations() -> None:
    """Beside the replay of the graph it is all that a captured step needs."""
    step = steps_of(data_of("graphsage"), 1)[0]
    with _Operations() as operations:
        step.load()
    copies = [name for name in operations.names if "copy" in name]
    # Offsets, columns, maps and nodes, weights; the sizes; the nodes to train on.
    assert copies == ["aten._foreach_copy_.default"] * 4 + ["aten.copy_.default"] * 2
    assert len(operations.names) <= 12


# On a GPU.


@pytest.mark.gpu
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", SAMPLING)
def test_captured_as_launched_one_by_one(name: str, precision: str) -> None:
    options = {"device": "cuda", "precision": precision, "epochs": 6}
    single, of_single = run(name, capture="off", **options)
    captured, of_captured = run(name, capture="on", **options)
    assert (single.capture, captured.capture) == ("off", "on")
    tolerance = 1e-3 if precision == "fp32" else 0.1
    close(of_single, of_captured, tolerance, tolerance)
    _, again = run(name, capture="on", **options)
    torch.testing.assert_close(again.state_dict(), of_captured.state_dict(), rtol=0.0, atol=0.0)


@pytest.mark.gpu
@pytest.mark.parametrize("features", ["device", "pinned", "host"])
@pytest.mark.parametrize("prefetch", [0, 2])
def test_a_captured_run_with_dropout_repeats_itself(features: str, prefetch: int) -> None:
    options = {"dropout": 0.5, "norm": "batch", "num_layers": 3}
    sampler = {"features": features, "prefetch": prefetch, "fanouts": [5, 4, 3]}
    runs = [
        run(capture="on", device="cuda", options={**options, "num_layers": 3}, sampler=sampler)
        for _ in range(2)
    ]
    assert [result.capture for result, _ in runs] == ["on", "on"]
    close(runs[0][1], runs[1][1], 0.0, 0.0)


@pytest.mark.gpu
def test_a_captured_run_is_resumed(tmp_path: Path) -> None:
    options = {"options": {"norm": "batch", "dropout": 0.3}, "device": "cuda", "capture": "on"}
    _, whole = run(epochs=6, **options)
    run(epochs=3, folder=tmp_path / "first", **options)
    last = tmp_path / "first" / "checkpoints" / "last.ckpt"
    _, resumed = run(epochs=6, resume=last, **options)
    close(whole, resumed, 1e-5, 1e-6)
