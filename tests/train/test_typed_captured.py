"""Steps on samples of typed graphs in static buffers: what is drawn, what is learned, what forbids them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gnnsparse.runtime.timing import CaptureError
from gnnsparse.sampling import TypedNeighborSampler
from gnnsparse.sampling.blocks import ROW_LIMIT
from gnnsparse.sampling.typed import PaddedTypedDraw
from gnnsparse.sparse.typed import TypedGraph
from gnnsparse.train import SamplerConfig, TrainerConfig, fit
from gnnsparse.train.data import StepInput
from gnnsparse.train.device import numerics
from gnnsparse.train.steps import obstacle
from gnnsparse.train.tasks.typed_node import columns_of, room_of
from tests import emulated
from tests.sampling.test_typed_sampling import NODES, RELATIONS, drawn_graph
from tests.tasks import PlainRecorder, run_in_chunks, typed_nodes
from tests.train.test_typed_tasks import made, run_of

SAMPLES = SamplerConfig(name="neighbor", fanouts=(3, 2), batch_size=8, prefetch=0)
MODELS = ["rgcn", "hgt"]


@pytest.fixture(params=["emulated", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> Iterator[str]:
    """Where samples are drawn: by the emulator's kernels, and on a GPU."""
    is_gpu = request.param == "cuda"
    with nullcontext() if is_gpu else emulated.running(request.getfixturevalue("late")):
        yield "cuda" if is_gpu else "cpu"


def data_of(
    name: str, device: str, dataset: Any = None, sampler: SamplerConfig = SAMPLES, precision: str = "fp32",
    options: dict[str, Any] | None = None,
) -> Any:  # fmt: skip
    """A module and the data of a run; `options` are those of the model."""
    run = replace(run_of(name, sampler), device=torch.device(device), precision=precision)
    _, module, data = made(name, dataset or typed_nodes(), run, dropout=0.0, **(options or {}))
    return module.to(device), data


def steps_of(data: Any, count: int = 6) -> list[StepInput]:
    return list(itertools.islice(data.batch_source().steps, count))


def check_draws(sampler: TypedNeighborSampler, kind: str, seeds: Sequence[torch.Tensor], mean: bool) -> None:
    """The nodes of samples, and their edges in a matrix and its transpose, with padding behind each type."""
    samples, device = (
        [sampler.sample({kind: nodes}, step) for step, nodes in enumerate(seeds)],
        sampler.device,
    )
    room = room_of(samples, sampler, mean=mean)
    draw, number = PaddedTypedDraw(sampler, kind, room), torch.zeros(1, dtype=torch.int64, device=device)
    rows, cols, nnz = room.size
    firsts = dict(zip(room.nodes, itertools.accumulate(room.nodes.values(), initial=0), strict=False))
    for step, (nodes, sample) in enumerate(zip(seeds, samples, strict=True)):
        flat, fits = draw(nodes.int(), number.fill_(step))
        assert bool(fits)
        of_all, indptr, indices, back, sources, index, *weights = (array.cpu() for array in flat)
        assert [len(array) for array in (indptr, back, indices)] == [rows + 1, cols + 1, nnz]
        for of, own in zip(room.nodes, of_all.split(list(room.nodes.values())), strict=True):
            count = len(sample.nodes[of])
            assert torch.equal(own[:count], sample.nodes[of].cpu().int())
            assert not own[count:].any()
            assert count < room.nodes[of]
        want, count = torch.zeros(rows, cols, dtype=torch.float64), int(indptr[-1])
        for key, (source, target) in sample.edge_index.items():
            first, stride = room.columns[key]
            row, col = target.cpu() + firsts[key[2]], first + stride * source.cpu()
            share = (
                1 / torch.bincount(row, minlength=rows).double()[row]
                if mean
                else torch.ones(len(row)).double()
            )
            want.index_put_((row, col), share, accumulate=True)
        assert count == int(back[-1]) == sum(of.shape[1] for of in sample.edge_index.values())
        row, col = (torch.repeat_interleave(offsets.diff()) for offsets in (indptr, back))
        values = weights[0][:count].double() if mean else torch.ones(count, dtype=torch.float64)
        found = torch.zeros_like(want).index_put_((row, indices[:count].long()), values, accumulate=True)
        torch.testing.assert_close(found, want, rtol=1e-6, atol=0.0)
        assert torch.equal(indices[index[:count].long()].long(), col)
        assert torch.equal(row[index[:count].long()].int(), sources[:count])


@pytest.mark.parametrize("mean", [False, True])
def test_padded_draws_are_those_of_samples(device: str, mean: bool) -> None:
    _, data = data_of("hgt", device)
    seeds = torch.randperm(80, generator=torch.Generator().manual_seed(0)).split(8)
    check_draws(data._samples._sampler, "paper", [part.to(device) for part in seeds], mean)


@settings(max_examples=20)
@given(st.integers(1, 40), st.integers(0, 2**16), st.booleans())
def test_padded_draws_of_any_types(late: ModuleType, count: int, seed: int, mean: bool) -> None:
    """Also of types without nodes, of relations without edges, and where hops draw none of a relation."""
    edges, _, draw = drawn_graph(count, seed)
    sizes = torch.tensor([0, 1, 2, 5])
    fanouts = {key: sizes[torch.randint(4, (3,), generator=draw)].tolist() for key in RELATIONS}
    with emulated.running(late):
        sampler = TypedNeighborSampler(edges, fanouts, num_nodes=NODES, seed=seed)
        if sampler.padding_obstacle("item", 3) is None:
            check_draws(sampler, "item", [torch.randperm(7, generator=draw)[:3] for _ in range(8)], mean)


def static_batch(step: StepInput) -> Any:
    """The batch in static buffers; the single one without room."""
    if step.buffers is None:
        return step.single()
    step.load()
    return step.static()


def results(module: Any, batch: Any) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """The loss of a step and the gradients."""
    module.zero_grad()
    with numerics(batch.data.precision, batch.data.device):
        loss = module.training_step(batch)
    loss.backward()
    grads = {name: of.grad.clone() for name, of in module.named_parameters() if of.grad is not None}
    return loss.detach(), grads


@pytest.mark.parametrize("mean", [False, True])
def test_what_has_no_room_stays_in_its_arrays(device: str, mean: bool) -> None:
    """A kernel that sorts by numbers out of range would write anywhere."""
    _, data = data_of("hgt", device)
    sampler, seeds = data._samples._sampler, torch.arange(8, device=device)
    room = room_of([sampler.sample({"paper": seeds})], sampler, mean=mean)
    for kind in room.nodes:
        nodes = {**room.nodes, kind: 9 if kind == "paper" else 2}
        small = replace(room, nodes=nodes, columns=columns_of(nodes, sampler.relations, mean))
        for fewer in (small, replace(small, reached={of: [8, 1] for of in nodes})):
            flat, fits = PaddedTypedDraw(sampler, "paper", fewer)(seeds.int(), torch.zeros_like(seeds[:1]))
            assert not bool(fits)
            rows, cols, nnz = fewer.size
            for array, most in zip(flat[1:6], (nnz, cols - 1, nnz, rows - 1, nnz - 1), strict=True):
                assert 0 <= int(array.min()) <= int(array.max()) <= most
    tight = replace(room, edges={key: [min(of, 3) for of in sizes] for key, sizes in room.edges.items()})
    assert not bool(PaddedTypedDraw(sampler, "paper", tight)(seeds.int(), torch.zeros_like(seeds[:1]))[1])


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_padded_steps_are_launched_steps(device: str, name: str, precision: str) -> None:
    module, data = data_of(name, device, precision=precision)
    steps = steps_of(data)
    full = [step for step in steps if step.buffers is not None]
    assert [step.buffers is None for step in steps] == [False, False, True] * 2  # an epoch's last is smaller
    rtol = 1e-4 if precision == "fp32" else 2e-2
    for step in full:
        want, found = results(module, step.single()), results(module, static_batch(step))
        torch.testing.assert_close(found[0], want[0], rtol=rtol, atol=rtol / 10)
        unused = {key: of for key, of in found[1].items() if key not in want[1]}
        assert not any(of.any() for of in unused.values())
        torch.testing.assert_close(
            {key: found[1][key] for key in want[1]}, want[1], rtol=rtol, atol=rtol / 10
        )


def test_without_room_steps_are_launched(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"_DEVIATIONS": 0, "_MORE": 0, "_MULTIPLE": 1, "_LOOKED_AT": 1}.items():
        monkeypatch.setattr(f"gnnsparse.train.sampled.{name}", value)
    module, data = data_of("hgt", device)
    steps = steps_of(data, 36)
    fits = [step.buffers is not None for step in steps if len(step.single().y) == SAMPLES.batch_size]
    assert 0 < sum(fits) < len(fits) == 24
    for step in steps:
        want, found = (results(module, of)[0] for of in (step.single(), static_batch(step)))
        torch.testing.assert_close(found, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("name", MODELS)
def test_a_captured_step_waits_for_nothing(name: str, precision: str, late: ModuleType) -> None:
    """Also with a column of more nonzeros than rows that are cut have: here it is kept whole."""
    with emulated.running(late) as path:
        sampler = replace(SAMPLES, batch_size=500)
        module, data = data_of(name, "cpu", typed_nodes(2000), sampler, precision=precision)
        launched = []
        for step in steps_of(data, 3):
            buffers: Any = step.buffers
            step.load()
            longest = int(buffers._blocks._prepared.backward.csr.degrees.max())
            path.waits, path.called = 0, set()
            with emulated.NotingWaits() as noted:
                module.training_step(step.static()).backward()
                buffers.draws._run()
            assert (path.waits, noted.found) == (0, [])
            launched.append(path.called)
    assert longest > ROW_LIMIT
    assert launched[0] >= launched[1] == launched[2]
    assert launched[1]


def trained(name: str, device: str, capture: str, **options: Any) -> tuple[Any, dict[str, torch.Tensor]]:
    module, data = data_of(name, device, typed_nodes(120), **options)
    config = TrainerConfig(max_epochs=3, progress=False, logger="none", capture=capture)
    return fit(module, data, config), {key: of.cpu() for key, of in module.state_dict().items()}


@pytest.mark.parametrize("name", MODELS)
def test_captured_runs_learn_what_launched_ones_do(
    device: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorders: list[PlainRecorder] = []
    if device == "cpu":
        recorders = run_in_chunks(monkeypatch, lambda module, data: data.capture_obstacle(module))
    one, of_one = trained(name, device, "off")
    two, of_two = trained(name, device, "auto")
    _, of_again = trained(name, device, "auto", sampler=replace(SAMPLES, prefetch=2))
    assert (one.capture, two.capture) == ("off", "on")
    torch.testing.assert_close(of_two, of_one, rtol=1e-3, atol=1e-4 if device == "cpu" else 5e-3)
    torch.testing.assert_close(of_again, of_two, rtol=0.0, atol=0.0)
    if recorders:  # 30 papers to train on, 8 in a step
        assert recorders[0].counts == {"first": 1, "recorded": 1, "replayed": 3 * 3 - 1}


def test_draws_that_can_not_be_captured_are_launched(
    late: ModuleType, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*_: Any) -> None:
        raise CaptureError("operation not permitted")

    monkeypatch.setattr("gnnsparse.train.sampled.PaddedDraws", fails)
    with emulated.running(late):
        _, data = data_of("hgt", "cpu")
        assert [step.buffers for step in steps_of(data)] == [None] * 6
    assert "operation not permitted" in caplog.text
    assert "larger than most" not in caplog.text


def test_what_forbids_a_capture(late: ModuleType) -> None:
    """Each is said in the report of a run."""
    cases: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
        ("each seed has a tree of its own", {"dataset": typed_nodes(times=True)}, {}),
        ("a row may have any number of edges", {"sampler": replace(SAMPLES, fanouts=(-1, 2))}, {}),
        ("a row may have any number of edges", {"sampler": replace(SAMPLES, method="labor")}, {}),
        ("a row may have any number of edges", {"sampler": replace(SAMPLES, replace=True)}, {}),
        ("there may be more than 16777216 edges", {"sampler": replace(SAMPLES, fanouts=(9**9, 2))}, {}),
        ("RGCN does not say that it ignores padding", {}, {"norm": "batch"}),
        ("in int8 features are scaled by all rows", {"precision": "int8"}, {}),
    ]
    with emulated.running(late):
        for says, given, options in cases:
            module, data = data_of("rgcn", "cpu", options=options, **given)
            assert str(data.capture_obstacle(module)).startswith(says)
            assert "CUDA graphs need a GPU" in str(obstacle(module, data))
        module, data = data_of("rgcn", "cpu")
        assert data.capture_obstacle(module) is None
        own = type("Own", (type(module),), {"outputs": lambda self, batch: batch})
        module.__class__ = own
        says = "Own.outputs is not that of TypedNodeClassifier, which knows padding"
        assert data.capture_obstacle(module) == says
        nothing = torch.zeros(2, 3, dtype=torch.int64)
        none = TypedGraph({"paper": 80, "author": 10, "venue": 6}, {("paper", "by", "author"): nothing})
        module, data = data_of("rgcn", "cpu", replace(typed_nodes(), graph=none))
        assert data.capture_obstacle(module) == "no edge ends at nodes of type 'paper'"
    module, data = data_of("rgcn", "cpu")
    assert data.capture_obstacle(module) == "samples are drawn on cpu"
    assert fit(module, data, TrainerConfig(max_epochs=1, progress=False)).capture.startswith("CUDA graphs")


def test_a_layer_that_wants_another_operand_is_refused(device: str) -> None:
    module, data = data_of("rgcn", device)
    step = steps_of(data, 1)[0]
    x, graph = static_batch(step).x, static_batch(step).adj
    conv = module.model.convs[0]
    rows = torch.zeros(sum(len(of) for of in x.values()), 16, device=device)
    assert conv(rows, graph).shape == rows.shape
    other = type(conv)(16, 16, len(graph.relations), aggr="sum").to(device)
    with pytest.raises(
        ValueError, match=r"^graph: a captured step has the means of relations; accepted: aggr"
    ):
        other(rows, graph)
    half = type(conv)(16, 16, len(graph.relations), precision="bf16").to(device)
    with pytest.raises(ValueError, match=r"^graph: a captured step has no operand in bf16; accepted"):
        half(rows, graph)
    with pytest.raises(ValueError, match=r"^graph: a captured step has no rows by relation"):
        graph.adjacency(None, by_relation=True)
