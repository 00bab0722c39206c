"""Epochs of GraphSAGE on sampled neighbours, for benchmarks.sampling: what they take, and what steps spend.

Steps take the way that they take in `train.py sampler=neighbor`: gnnsparse.train.sampled.NodeBatches draws
neighbours in a thread and, on a GPU, on a stream of its own, and gnnsparse.train.steps.Steps makes the
steps, captured in a CUDA graph or launched one by one. Lightning, which takes its time once for a block of
captured steps and once for each of those that are launched one by one, is left out.
"""

from __future__ import annotations

import contextlib
import itertools
import statistics
import time
import warnings
from collections import Counter, deque
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from lightning.pytorch.plugins.precision import MixedPrecision
from lightning.pytorch.plugins.precision import Precision as PrecisionPlugin

from gnnsparse import SparseGraph
from gnnsparse.precision import Precision
from gnnsparse.sampling import FeatureStore, NeighborSampler, Sample
from gnnsparse.train.callbacks import BestEpoch, EpochTimer, History
from gnnsparse.train.data import BatchSource, StepInput
from gnnsparse.train.device import matmul_precision
from gnnsparse.train.sampled import DrawnBatch, NodeBatch, NodeBatches
from gnnsparse.train.settings import OptimizerConfig, SamplerConfig
from gnnsparse.train.steps import Chunks, Recorder, Steps
from gnnsparse.train.tasks.node import NodeClassifier
from models import GraphSAGE

#: Of ogbn-products.
SEEDS, NODES, FEATURES, CLASSES = 196_571, 2_449_029, 100, 47
HIDDEN = 256
STAGES = ("sample", "gather", "compute")
#: Steps whose losses are kept at a time.
_ROWS = 64
#: What torch says of an operation that makes the host wait for a GPU.
_WAITS = "called a synchronizing CUDA operation"
_ROOT = Path(__file__).resolve().parents[1]


class Clock:
    """Says when to stop, so that a run on a lent GPU ends in time.

    Args:
        seconds: time from now on.
    """

    def __init__(self, seconds: float) -> None:
        self._end = time.perf_counter() + seconds

    @property
    def is_over(self) -> bool:
        return time.perf_counter() >= self._end


class Trained:
    """A model, its optimiser and the batches that it is trained on.

    Args:
        graph: the graph, on the device to train on.
        fanouts: neighbours in each layer, from the last one to the first.
        batch_size: nodes of a step.
        precision: of products; features on a GPU are stored in its dtype.
        features: where they are kept, the placement of a FeatureStore.
        cache_share: of features in pinned memory, the share of rows of which the GPU keeps copies.
        capture: whether steps are captured, on a GPU; on a CPU they take the same arrays, and are called.
    """

    def __init__(
        self,
        graph: SparseGraph,
        fanouts: list[int],
        batch_size: int,
        precision: Precision,
        features: str,
        cache_share: float,
        capture: bool = False,
    ) -> None:
        device = torch.empty(0, device=graph.device).device
        self.device, self.precision, self.batch_size = device, precision, batch_size
        self.capture = capture
        torch.manual_seed(0)
        order = torch.randperm(graph.num_rows, generator=torch.Generator().manual_seed(1))
        self.nodes = order[: max(1, round(SEEDS / NODES * graph.num_rows))].to(device)
        dtype = precision.storage if device.type == "cuda" else torch.float32
        x = torch.randn(graph.num_rows, FEATURES, device=device).to(dtype)
        self.y = torch.randint(CLASSES, (self.nodes.numel(),), device=device)
        model = GraphSAGE(FEATURES, HIDDEN, CLASSES, num_layers=len(fanouts)).to(device)
        config = SamplerConfig("neighbor", fanouts=fanouts, batch_size=batch_size)
        self.sampler = NeighborSampler(graph, fanouts, values="mean", precision=precision)
        self._data = SimpleNamespace(device=device, trainer=None, peers=None)
        self.store = FeatureStore(
            x if features in ("auto", "device") else x.cpu(),
            features,
            device=device,
            uses=self.sampler.source_degrees,
            cache_share=cache_share,
        )
        self.loader = NodeBatches(self._data, self.sampler, config, self.store, self.nodes, self.y, seed=0)  # type: ignore[arg-type]
        targets: Any = SimpleNamespace(
            num_classes=CLASSES, metric="accuracy", multi_label=False, regression=False, y=self.y,
            train_mask=torch.ones(len(self.y), dtype=torch.bool, device=self.y.device),
        )  # fmt: skip
        plain = OptimizerConfig(lr=0.003, weight_decay=0.0, decay="all")
        self.module = NodeClassifier(model, targets, plain, max_steps=1)
        self._given: deque[StepInput] = deque()
        self._steps, self._made = self._make_steps(), 0

    def _make_steps(self) -> Steps:
        """Make what trains in a run of `fit`, without Lightning's loop."""
        strategy = SimpleNamespace(
            lightning_module=self.module, root_device=self.device, lr_scheduler_configs=[],
            optimizers=[self.module.configure_optimizers()], precision_plugin=self._plugin(),
        )  # fmt: skip
        recorder: Any = Recorder(self.device, required=True)
        if self.device.type != "cuda" or not self.capture:
            recorder = _Caller(None if self.capture else "off")
        chunks = Chunks(
            _ROWS, _ROWS, False, BestEpoch(self.module.score_name, None), History(_ROWS), EpochTimer()
        )
        return Steps(strategy, BatchSource(iter(self._given.popleft, None), None), recorder, chunks)

    def _plugin(self) -> PrecisionPlugin:
        """Make Lightning's plugin of the precision, which has autocast and the gradient scaler."""
        if self.device.type == "cpu" or self.precision.storage == torch.float32:
            return PrecisionPlugin()
        half = self.precision.storage == torch.float16
        return MixedPrecision("16-mixed" if half else "bf16-mixed", self.device.type)

    def wait(self) -> None:
        """Wait for all work on the device."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def inputs(self) -> Iterator[StepInput]:
        """Yield the inputs of steps, which a thread makes ahead."""
        if self.capture:
            return self.loader.inputs()
        return (StepInput(partial(_same, batch)) for batch in self.loader)

    def step(self, given: StepInput) -> torch.Tensor:
        """Make a training step; returns its loss, which is still being computed."""
        row = self._made % _ROWS
        if row == 0:
            self._steps.next_row.zero_()
        self._given.append(given)
        with matmul_precision(self.precision, self.device):
            self._steps.train()
        self._made += 1
        return self._steps.losses[row]

    def sample(self, ids: torch.Tensor, step: int) -> Sample | DrawnBatch:
        """Draw the neighbours of nodes by their indices; steps that are captured need no operands."""
        if self.capture:
            return self.loader.draw(step, ids)
        return self.sampler.sample(self.nodes[ids], step)

    def gather(self, ids: torch.Tensor, drawn: Sample | DrawnBatch) -> StepInput:
        """Gather the features of what was drawn. A captured step gathers those on the GPU once more."""
        if isinstance(drawn, DrawnBatch):
            if drawn.x is None:
                self.store.gather(drawn.blocks[0].sources.long())
            return self.loader.input_of(drawn)
        batch = NodeBatch(self.store.gather(drawn.nodes), drawn.adjs, self.y[ids], self._data)
        return StepInput(partial(_same, batch))

    def release(self) -> None:
        """Free the graphs."""
        self._steps.release()


class _Caller:
    """Stands in for a Recorder where nothing is captured.

    Args:
        problem: why steps take batches that do not keep their places; None: they take those that do.
    """

    is_recording = False

    def __init__(self, problem: str | None) -> None:
        self.problem = problem

    def run_first(self, call: Callable[[], None]) -> None:
        """Run a call."""
        call()

    def record(self, call: Callable[[], None], undo: Callable[[], None]) -> Callable[[], None]:
        """Return the call."""
        return call


def _same(batch: NodeBatch) -> NodeBatch:
    return batch


def _sizes(drawn: Sample | DrawnBatch) -> tuple[int, int]:
    """The numbers of nodes whose features are read, and of edges."""
    if isinstance(drawn, DrawnBatch):
        return drawn.blocks[0].sources.numel(), sum(block.csr.nnz for block in drawn.blocks)
    return drawn.nodes.numel(), sum(block.adj.nnz for block in drawn.blocks)


def measure_epochs(trained: Trained, epochs: int, warmup: int, clock: Clock) -> dict[str, Any]:
    """Time whole epochs with batches that are made ahead.

    Args:
        trained: what is trained.
        epochs: number of epochs.
        warmup: steps before them.
        clock: ends the measurement; an epoch that it ends has no time.

    Returns:
        The seconds of each epoch, the number of steps, the time that the loop waited for batches, the last
        loss of each epoch, and on a GPU the most memory that tensors took.
    """
    batches, steps = trained.inputs(), trained.loader.steps
    for given in itertools.islice(batches, warmup):
        trained.step(given)
    trained.wait()
    if trained.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(trained.device)
    seconds, starved, losses, done = [], [], [], 0
    for _ in range(epochs):
        trained.wait()
        start, waited, loss, done = time.perf_counter(), 0.0, None, 0
        while done < steps and not clock.is_over:
            asked = time.perf_counter()
            given = next(batches)
            waited += time.perf_counter() - asked
            loss = trained.step(given)
            done += 1
        trained.wait()
        if done < steps or loss is None:
            break
        seconds.append(time.perf_counter() - start)
        starved.append(waited)
        losses.append(float(loss))
    del batches
    found: dict[str, Any] = {
        "steps": steps, "epoch_seconds": seconds, "waited_for_batches_seconds": starved, "losses": losses,
        "steps_of_unfinished_epoch": done if done < steps else 0,
        "best_epoch_seconds": min(seconds, default=None),
    }  # fmt: skip
    if trained.device.type == "cuda":
        found["peak_bytes"] = torch.cuda.max_memory_allocated(trained.device)
    return found


def _steps_of(trained: Trained, count: int, clock: Clock) -> Iterator[tuple[int, torch.Tensor]]:
    order = torch.randperm(trained.nodes.numel(), generator=torch.Generator().manual_seed(2))
    order = order.to(trained.device)
    for step, ids in enumerate(itertools.islice(itertools.cycle(order.split(trained.batch_size)), count)):
        if clock.is_over:
            return
        yield step, ids


def measure_stages(trained: Trained, count: int, clock: Clock) -> dict[str, Any]:
    """Measure the stages of steps without making batches ahead, after two steps that are not measured.

    Returns:
        For each stage the median milliseconds between CUDA events at its ends ("ms"; on a CPU by the clock)
        and of the host's time in it ("host_ms"), and its share of the step; the numbers of nodes and
        edges. A captured step gathers features that are on the GPU by itself, which "gather" does once more
        and is left out of the share of "compute".
    """
    on_gpu = trained.device.type == "cuda"
    marks: list[list[Any]] = []
    hosts, nodes, edges = [], 0, 0
    for step, ids in _steps_of(trained, count + 2, clock):
        trained.wait()
        events: list[Any] = [torch.cuda.Event(enable_timing=True) if on_gpu else None for _ in range(4)]
        times = []

        def mark(events: list[Any] = events, times: list[float] = times) -> None:
            if on_gpu:
                events[len(times)].record()
            times.append(time.perf_counter())

        mark()
        drawn = trained.sample(ids, step)
        mark()
        given = trained.gather(ids, drawn)
        mark()
        trained.step(given)
        mark()
        trained.wait()
        if step >= 2:
            marks.append(events)
            hosts.append(times)
            of_step = _sizes(drawn)
            nodes, edges = nodes + of_step[0], edges + of_step[1]
    if not hosts:
        return {}
    found: dict[str, Any] = {"steps": len(hosts), "nodes": nodes / len(hosts), "edges": edges / len(hosts)}
    for at, name in enumerate(STAGES):
        host = [1e3 * (times[at + 1] - times[at]) for times in hosts]
        gpu = [events[at].elapsed_time(events[at + 1]) for events in marks] if on_gpu else host
        found[name] = {"ms": statistics.median(gpu), "host_ms": statistics.median(host)}
    shares = {name: found[name]["ms"] for name in STAGES}
    if trained.capture and trained.store.placement == "device":
        shares["compute"] = max(0.0, shares["compute"] - shares["gather"])
    whole = sum(shares.values())
    return found | {f"{name}_share": ms / whole for name, ms in shares.items()}


def measure_alone(trained: Trained, count: int, clock: Clock) -> dict[str, Any]:
    """Time steps on one batch that was drawn before them, over and over.

    Returns:
        The seconds that an epoch of such steps would take; nothing if the clock was over.
    """
    drawn = [trained.gather(ids, trained.sample(ids, step)) for step, ids in _steps_of(trained, 1, clock)]
    for given in drawn:
        for _ in range(3):
            trained.step(given)
        trained.wait()
        start = time.perf_counter()
        for _ in range(count):
            trained.step(given)
        trained.wait()
        seconds = (time.perf_counter() - start) / count
        return {"epoch_of_steps_alone_seconds": seconds * trained.loader.steps}
    return {}


@contextlib.contextmanager
def noting_waits(found: Counter[str]) -> Iterator[None]:
    """Count the times that the host waits for a GPU in a `with` block, by the line of Python."""
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode(before)
    for warning in caught:
        if _WAITS in str(warning.message):
            file = Path(warning.filename)
            name = file.relative_to(_ROOT).as_posix() if file.is_relative_to(_ROOT) else file.name
            found[f"{name}:{warning.lineno}"] += 1


def count_waits(trained: Trained, count: int, clock: Clock) -> dict[str, Any]:
    """Count how often the host waits for the GPU in a step, by stage and by the line of Python."""
    stages: dict[str, Counter[str]] = {name: Counter() for name in STAGES}
    done = 0
    for step, ids in _steps_of(trained, count, clock):
        with noting_waits(stages["sample"]):
            drawn = trained.sample(ids, step)
        with noting_waits(stages["gather"]):
            given = trained.gather(ids, drawn)
        with noting_waits(stages["compute"]):
            trained.step(given)
        done += 1
    if not done:
        return {}
    return {
        name: {"per_step": found.total() / done, "lines": {k: v / done for k, v in found.most_common()}}
        for name, found in stages.items()
    }


def profile_kernels(trained: Trained, count: int, clock: Clock) -> dict[str, Any]:
    """Sum the time of the kernels and copies of each stage on a GPU, by torch's profiler.

    Returns:
        For each stage and a step: the milliseconds that the GPU was busy, the number of kernels and copies,
        and the ten that take longest with their milliseconds.
    """
    steps = list(_steps_of(trained, count, clock))
    kept: dict[str, list[Any]] = {"samples": [], "batches": []}

    def sample() -> None:
        kept["samples"] = [trained.sample(ids, step) for step, ids in steps]

    def gather() -> None:
        kept["batches"] = [
            trained.gather(ids, drawn) for (_, ids), drawn in zip(steps, kept["samples"], strict=True)
        ]

    def compute() -> None:
        for given in kept["batches"]:
            trained.step(given)

    found: dict[str, Any] = {}
    for name, call in zip(STAGES, (sample, gather, compute), strict=True):
        if steps and not clock.is_over:
            found[name] = _profiled(call, len(steps), trained.wait)
    return found


def _profiled(call: Callable[[], None], steps: int, wait: Callable[[], None]) -> dict[str, Any]:
    from torch.autograd import DeviceType
    from torch.profiler import ProfilerActivity, profile

    wait()
    with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as profiler:
        call()
        wait()
    events = [event for event in profiler.events() if event.device_type == DeviceType.CUDA]
    of_gpu = [event for event in events if not event.is_user_annotation]  # spans of several kernels
    longest: Counter[str] = Counter()
    for event in of_gpu:
        longest[event.name[:80]] += event.device_time_total  # type: ignore[assignment]
    return {
        "busy_ms": sum(longest.values()) / 1e3 / steps,
        "launches": len(of_gpu) / steps,
        "longest_ms": {name: us / 1e3 / steps for name, us in longest.most_common(10)},
    }


def measure_training(
    graph: SparseGraph, fanouts: list[int], batch_size: int, name: str, options: Any, clock: Clock
) -> dict[str, Any]:
    """Measure epochs and stages of training in a precision, with features in a place.

    Args:
        graph: the graph, on the device to train on.
        fanouts: neighbours in each layer, from the last one to the first.
        batch_size: nodes of a step.
        name: the precision and the place, as in "fp16 pinned".
        options: `epochs`, `batches` (steps of which stages are measured), `kernels` (whether the profiler is
            asked for kernels), `cache_share` and `capture` (whether steps are captured).
        clock: ends the measurement.

    Returns:
        What the functions above return; "sampling_share" is the share of an epoch's time that is more than
        that of steps on a batch that was drawn before: what drawing takes where it is not hidden by steps.
    """
    precision, features = name.split()
    trained = Trained(
        graph, fanouts, batch_size, Precision.parse(precision), features, options.cache_share, options.capture
    )
    warmup = min(20, trained.loader.steps)
    found = {"features": trained.store.explain().splitlines(), "device_bytes": trained.store.device_bytes}
    try:
        found |= {"captured": options.capture} | measure_epochs(trained, options.epochs, warmup, clock)
        found |= measure_alone(trained, options.batches, clock)
        alone, best = found.get("epoch_of_steps_alone_seconds"), found["best_epoch_seconds"]
        found["sampling_share"] = None if alone is None or best is None else max(0.0, 1 - alone / best)
        found["stages"] = measure_stages(trained, options.batches, clock)
        if trained.device.type == "cuda":
            found["waits"] = count_waits(trained, 3, clock)
            if options.kernels:
                found["kernels"] = profile_kernels(trained, 5, clock)
    finally:
        trained.release()
    return found
