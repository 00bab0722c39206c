"""What a rank of `benchmarks.scaling` does: graphs on disk, training steps, and the time that it waits."""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity

from benchmarks.scaling_ranks import Place
from gnnsparse.data import NodeDataset, graph_like
from gnnsparse.distributed import DistributedOperand, ShardFacts, exchange, gather_ranks
from gnnsparse.distributed.estimate import Workload, counted_facts, default_machines, estimate
from gnnsparse.distributed.shard import ShardRecipe
from gnnsparse.formats.csr import Csr
from gnnsparse.plan.gpu_records import GpuRecord, records
from gnnsparse.precision import Precision
from gnnsparse.preprocess.normalize import normalize
from gnnsparse.runtime.environment import describe_environment
from gnnsparse.sparse.graph import SparseGraph
from gnnsparse.train import FitResult, PreprocessConfig, SamplerConfig, TrainerConfig, fit
from gnnsparse.train.steps import obstacle
from gnnsparse.train.tasks import RunOptions
from gnnsparse.train.tasks.node import FullGraphData, NodeTask
from models import MODELS

__all__ = [
    "BATCH", "FEATURES", "SIZES", "Case", "KernelSums", "Runs", "Waits", "captured", "environment",
    "full_graph", "launched", "sampled", "store_graph", "stored_graph",
]  # fmt: skip

#: Steps before those that are profiled, as many as `scaling_steps.WARMUP`, and one in which the profiler
#: itself starts; steps that are profiled; kernels that are named.
_BEFORE, _STEPS, _MOST = 4, 5, 15
#: Characters of a kernel's name that are kept.
_NAME = 160


class KernelSums:
    """Profiles some steps of a training, as `Waits` times waits: each is told when a step begins.

    On a GPU the sums are of kernels, copies and fills, those of NCCL among them, which run beside others and
    whose time includes waiting for other ranks. On a CPU they are of torch's operations.

    Args:
        device: the device of the rank.
    """

    def __init__(self, device: torch.device) -> None:
        self._device, self._begun = device, 0
        self._on_gpu = device.type == "cuda"
        activity = ProfilerActivity.CUDA if self._on_gpu else ProfilerActivity.CPU
        self._profiler = torch.profiler.profile(activities=[activity], acc_events=True)
        self._running = False
        self._rows: list[dict[str, Any]] = []

    def begin_step(self) -> None:
        if self._begun == _BEFORE:
            self._finish()
            self._profiler.start()
            self._running = True
        if self._begun == _BEFORE + _STEPS:
            self._stop()
        self._begun += 1

    def end(self) -> None:
        """End the last step: what comes is validation."""
        if self._running:
            self._stop()

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """End the profile with a `with` block, however that ends."""
        try:
            yield
        finally:
            self.end()

    def _finish(self) -> None:
        if self._on_gpu:
            torch.cuda.synchronize(self._device)

    def _stop(self) -> None:
        self._finish()
        self._profiler.stop()
        self._running = False
        steps = min(self._begun - _BEFORE, _STEPS)
        for event in self._profiler.key_averages():
            if event.device_type != (DeviceType.CUDA if self._on_gpu else DeviceType.CPU):
                continue
            if getattr(event, "is_user_annotation", False):  # a range, whose kernels are counted too
                continue
            microseconds = event.self_device_time_total if self._on_gpu else event.self_cpu_time_total
            self._rows.append(
                {"kernel": event.key[:_NAME], "ms": microseconds / 1e3 / steps, "calls": event.count / steps}
            )

    def found(self) -> dict[str, Any]:
        """Return milliseconds and calls of a step, of all kernels and of those that take the most time."""
        rows = sorted(self._rows, key=lambda row: -row["ms"])
        top = [row for row in rows if row["ms"] > 0][:_MOST]
        return {
            "ms": sum(row["ms"] for row in rows), "calls": sum(row["calls"] for row in rows), "top": top
        }  # fmt: skip


# What a rank of `benchmarks.scaling` does: graphs on disk, training steps, and the time that it waits.

#: Features, classes, and the share of nodes to train on, of the data sets that the graphs are like.
FEATURES = {"reddit_like": (602, 41, 0.66), "products_like": (100, 47, 0.08)}
#: Options of the models.
SIZES: dict[str, dict[str, Any]] = {
    "gcn": {"hidden_channels": 128, "num_layers": 5, "dropout": 0.0},
    "agnn": {"hidden_channels": 32, "num_layers": 4, "dropout": 0.0},
    "graph_transformer": {"hidden_channels": 128, "num_layers": 2, "heads": 4, "dropout": 0.0},
    "graphsage": {"hidden_channels": 256, "num_layers": 3, "dropout": 0.0},
}
#: Steps whose waits do not count: libraries allocate and connect in them.
WARMUP = 3
#: Height of the panels by whose distinct columns `plan-cluster` counts what a product reads.
_PANEL = 32


@dataclass(frozen=True)
class Case:
    """What is trained.

    Attributes:
        graph: a key of FEATURES.
        model: a key of SIZES; "graphsage" takes sampled neighbours.
        precision: precision of products.
        way, parts: how ranks share products and nodes.
        hidden: features of the hidden layers; None: those of SIZES.
    """

    graph: str
    model: str
    precision: str
    way: str
    parts: str
    hidden: int | None = None

    @property
    def sizes(self) -> dict[str, Any]:
        """Options of the model."""
        given = {} if self.hidden is None else {"hidden_channels": self.hidden}
        return SIZES[self.model] | given


def environment(place: Place) -> dict[str, Any]:
    """Describe the machine, as a rank sees it."""
    about = describe_environment(place.device)
    if place.device.type == "cuda":
        about["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
    return about


def graph_file(folder: Path, name: str, scale: float) -> Path:
    return folder / f"{name}_{scale:g}.pt"


def store_graph(place: Place, folder: Path, name: str, scale: float) -> float:
    """Generate a graph with random features, labels and parts, and stores them; returns the seconds."""
    start, (features, classes, share) = time.perf_counter(), FEATURES[name]
    file = graph_file(folder, name, scale)
    if file.exists():
        return 0.0
    graph = graph_like(name, scale=scale, device=place.device)
    with_loops = normalize(graph, "gcn").graph.csr
    generator = torch.Generator(place.device).manual_seed(0)
    options = {"device": place.device, "generator": generator}
    content = {
        "indptr": graph.csr.indptr, "indices": graph.csr.indices,
        "x": torch.randn(graph.num_rows, features, **options),
        "y": torch.randint(classes, (graph.num_rows,), **options),
        "draw": torch.rand(graph.num_rows, **options),
        "gathers": with_loops.count_columns(_PANEL).sum(), "share": torch.tensor(share),
        "classes": torch.tensor(classes),
    }  # fmt: skip
    part = file.with_suffix(".part")
    torch.save({name: tensor.cpu() for name, tensor in content.items()}, part)
    part.replace(file)
    return time.perf_counter() - start


def stored_graph(folder: Path, name: str, scale: float) -> tuple[NodeDataset, int]:
    """Maps a stored graph into memory; returns it with the number of Workload.gathers."""
    content = torch.load(graph_file(folder, name, scale), mmap=True, weights_only=True)
    draw, share = content["draw"], content["share"]
    val = (draw >= share) & (draw < share + 0.02)
    graph = SparseGraph(Csr(content["indptr"], content["indices"], draw.numel()))
    masks = (draw < share, val, ~val & (draw >= share))
    dataset = NodeDataset(name, graph, content["x"], content["y"], *masks, int(content["classes"]))
    return dataset, int(content["gathers"])


class Waits:
    """The time for which a rank's computations stand still until an exchange has ended, step by step.

    On a GPU an event is recorded on the stream of the computations before it is made to wait for the
    exchange, and one after that: between them is the time from the end of what was computed before to the
    arrival of the data. An exchange that ended behind a product takes none of it. The time includes that
    for which another rank is late. On a CPU it is that of the call that waits.

    Args:
        device: the device of the rank.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._steps: list[list[tuple[Any, Any]]] = []
        self._counts = False

    def begin_step(self) -> None:
        self._steps.append([])
        self._counts = True

    def end(self) -> None:
        """End the last step: what comes is validation."""
        self._counts = False

    def _now(self) -> Any:
        if self._device.type != "cuda":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def timed(self, call: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """Call something that makes the computations wait."""
        if not self._counts:
            return call(*args, **options)
        begin = self._now()
        found = call(*args, **options)
        self._steps[-1].append((begin, self._now()))
        return found

    def milliseconds(self) -> float:
        """Return the median over the steps after the first ones of their waits, each added up."""
        sums = []
        for step in self._steps[WARMUP:]:
            if self._device.type == "cuda":
                torch.cuda.synchronize(self._device)
                sums.append(sum(begin.elapsed_time(end) for begin, end in step))
            else:
                sums.append(1e3 * sum(end - begin for begin, end in step))
        return statistics.median(sums)

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Time what gnnsparse.distributed waits for inside a `with` block."""
        gather, exchanged = exchange._all_gather, dist.all_to_all_single
        exchange._all_gather, dist.all_to_all_single = self._watched(gather), self._watched(exchanged)
        try:
            yield
        finally:
            exchange._all_gather, dist.all_to_all_single = gather, exchanged

    def _watched(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, async_op: bool = False, **options: Any) -> Any:
            if async_op:
                return _Work(function(*args, async_op=True, **options), self)
            return self.timed(function, *args, **options)

        return call


class _Work:
    """A transfer that has begun, whose `wait` is timed."""

    def __init__(self, work: Any, waits: Waits) -> None:
        self._work, self._waits = work, waits

    def wait(self) -> None:
        self._waits.timed(self._work.wait)


def peak(device: torch.device) -> int | None:
    """Return the most bytes that torch has allocated on a GPU since the count was reset."""
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None


def used(device: torch.device) -> int | None:
    """Return the bytes of a GPU that are not free: NCCL's buffers and torch's reserve among them."""
    if device.type != "cuda":
        return None
    free, total = torch.cuda.mem_get_info(device)
    return total - free


class Runs:
    """Trainings of one case, each by `fit`, the function that train.py calls.

    Args:
        place: where they run.
        case: what is trained.
        dataset: the graph.
        steps: training steps at least; whole epochs are trained.
        folder: where parts of the graph are kept.
        sampler: which neighbours a step takes.
    """

    def __init__(
        self, place: Place, case: Case, dataset: NodeDataset, steps: int, folder: Path,
        sampler: SamplerConfig | None = None,
    ) -> None:  # fmt: skip
        self._place, self._case, self._dataset, self._task = place, case, dataset, NodeTask()
        entry = MODELS[case.model]
        trainer = TrainerConfig(
            logger="none", checkpoint=False, progress=False, devices=place.ranks, way=case.way,
            parts=case.parts,
        )  # fmt: skip
        run = RunOptions(
            device=place.device, precision=case.precision, values=entry.values_with(case.sizes),
            trainer=trainer, peers=place.peers, sampler=sampler or SamplerConfig(),
            preprocess=PreprocessConfig(cache=False if place.peers is None else str(folder)),
            model=None if place.peers is None else self._model(),
        )  # fmt: skip
        self.data = self._task.make_data(dataset, run)
        epochs = -(-steps // self.data.steps_per_epoch)
        trainer = replace(trainer, max_epochs=epochs, val_every=epochs, log_every=steps)
        self._run = replace(run, trainer=trainer)

    def _model(self) -> torch.nn.Module:
        torch.manual_seed(0)
        sizes = self._dataset.num_features, self._dataset.num_classes
        return MODELS[self._case.model].build(sizes[0], out_channels=sizes[1], **self._case.sizes)

    def _module(self) -> Any:
        return self._task.make_module(self._model(), self.data, self._run)

    def capturable(self) -> str | None:
        """Return why steps can't be captured; None: nothing is known to forbid it."""
        return obstacle(self._module(), self.data)

    def train(self, capture: str, waits: Waits | KernelSums | None = None) -> dict[str, Any]:
        """Train from the same weights as every run, and return what was measured."""
        module, device = self._module(), self._place.device
        curves: list[tuple[int, dict[str, float]]] = []
        began: list[float] = []
        found: dict[str, Any] = {}
        step, validate = module.training_step, module.validation_step

        def training_step(batch: Any) -> Any:
            began.append(time.perf_counter())
            if waits is not None:
                waits.begin_step()
            return step(batch)

        def validation_step(batch: Any) -> Any:
            if waits is not None:
                waits.end()
            found.setdefault("peak_bytes", peak(device))  # before scores need memory
            return validate(batch)

        module.training_step, module.validation_step = training_step, validation_step
        with contextlib.nullcontext() if waits is None else waits.watching():
            result = fit(module, self.data, replace(self._run.trainer, capture=capture), curves=curves)
        losses = [values["train/loss"] for _, values in curves if "train/loss" in values]
        found |= {
            "ms": step_milliseconds(result, self.data), "losses": losses, "capture": result.capture,
            "run_peak_bytes": peak(device), "used_bytes": used(device),
        }  # fmt: skip
        self.second_step = began[1]  # the first one makes operands, and tries kernels
        return found


def step_milliseconds(result: FitResult, data: FullGraphData) -> float:
    """Return the median time of a step."""
    assert result.epoch_milliseconds is not None
    return result.epoch_milliseconds / data.steps_per_epoch


#: The case that was trained last, which `captured` goes on with.
_kept: list[Runs] = []


def launched(place: Place, make_runs: Callable[[], Runs], profile: bool) -> tuple[Runs, dict[str, Any]]:
    """Train twice with steps that are launched one by one; with `profile` once more, under torch.profiler.

    Returns:
        What was trained, and what was measured.
    """
    _kept.clear()
    start = time.perf_counter()
    if place.peers is not None:  # in its first exchange NCCL connects, once for all cases
        gather_ranks(torch.zeros(1, dtype=torch.int64, device=place.device), place.peers.group).tolist()
    connected = time.perf_counter()
    runs = make_runs()
    prepared = time.perf_counter()
    first, waits = runs.train("off"), Waits(place.device)
    ready = runs.second_step
    again = runs.train("off", waits)
    found = {
        **first, "again_ms": again["ms"], "bitwise_equal": first["losses"] == again["losses"],
        "unhidden_ms": waits.milliseconds() if place.ranks > 1 else 0.0,
        "connect_seconds": connected - start, "prepare_seconds": prepared - connected,
        "ready_seconds": ready - start, "cache_hit": runs.data.cache_hit,
    }  # fmt: skip
    if profile:
        sums = KernelSums(place.device)
        runs.train("off", sums)
        found["profile"] = sums.found()
    reason = runs.capturable()
    found["capture"] = "off" if reason is None else reason
    if reason is None:
        _kept.append(runs)
    return runs, found


def full_graph(
    place: Place, folder: Path, case: Case, scale: float, steps: int, profile: bool = False
) -> dict[str, Any]:
    """Train on a whole graph, see `launched`."""
    dataset, gathers = stored_graph(folder, case.graph, scale)
    runs, found = launched(place, lambda: Runs(place, case, dataset, steps, folder), profile)
    if isinstance(adj := runs.data.adj, DistributedOperand):
        found |= {"way": adj.choice.way, "chunks": adj.choice.chunks, "parts": adj.facts.method}
    if place.rank == 0:
        facts = facts_of(runs.data.adj, dataset, place, case)
        found |= {"halo": list(facts.halo), "nnz": list(facts.nnz), "nodes": facts.nodes}
        found |= predicted(case, dataset, gathers, facts, place.device)
    return found


def captured(place: Place) -> dict[str, Any]:
    """Train the last case once more, by CUDA graphs: a job of its own, since it may fail."""
    found = _kept.pop().train("auto")
    if found["capture"] != "on":
        return {"capture": found["capture"]}
    return {
        "capture": "on", "captured_ms": found["ms"], "captured_peak_bytes": found["peak_bytes"],
        "captured_losses": found["losses"],
    }  # fmt: skip


def facts_of(adj: Any, dataset: NodeDataset, place: Place, case: Case) -> ShardFacts:
    """Return the counts of the division of the rows, by which the cost model chooses the way."""
    if not isinstance(adj, DistributedOperand):
        nodes, none = dataset.num_nodes, (0,)
        counts = (adj.nnz,), none, none
        return ShardFacts(0, (0, nodes), *counts, adj.num_edges, "contiguous", "gcn", 1.0, True, False)
    if adj.choice.way != "features":
        return adj.facts
    recipe = ShardRecipe(adj.facts.normalization, 1.0, place.ranks, case.parts)
    weights = recipe.weights(dataset.graph.to(place.device))
    return counted_facts(weights.graph.csr, recipe.partition(weights))


def record_of(device: torch.device) -> GpuRecord | None:
    if device.type != "cuda":
        return None
    name = torch.cuda.get_device_name(device)
    return next((record for record in records() if record.name == name), None)


def predicted(
    case: Case, dataset: NodeDataset, gathers: int, facts: ShardFacts, device: torch.device
) -> dict[str, Any]:
    """Return what the model of `gnnsparse plan-cluster` says of a step; nothing for what it is not of."""
    gpu = record_of(device)
    if case.model != "gcn" or case.way != "auto" or gpu is None:
        return {}
    return estimated(case, dataset, gathers, facts, gpu)


def estimated(
    case: Case, dataset: NodeDataset, gathers: int, facts: ShardFacts, gpu: GpuRecord
) -> dict[str, Any]:
    """Return time and memory of a step of a GCN by the model of `gnnsparse plan-cluster`."""
    sizes = case.sizes
    load = Workload(
        dataset.num_nodes, sum(facts.nnz), gathers, dataset.num_features, sizes["hidden_channels"],
        dataset.num_classes, sizes["num_layers"], Precision.parse(case.precision),
    )  # fmt: skip
    found = estimate(load, facts, gpu, default_machines())
    return {
        "predicted_ms": found.milliseconds, "predicted_product_ms": found.product_ms,
        "predicted_way": found.way, "predicted_bytes": found.nbytes,
    }  # fmt: skip


# Steps on sampled neighbours in `benchmarks.scaling`: each rank draws for its share of a step's nodes.

FANOUTS, BATCH = [15, 10, 5], 1024


def sampled(
    place: Place,
    folder: Path,
    case: Case,
    scale: float,
    steps: int,
    batch: int = BATCH,
    profile: bool = False,
) -> dict[str, Any]:
    """Train GraphSAGE on sampled neighbours, see `launched`; each rank has the graph, features and model.

    A step takes `batch` nodes on each rank, and the ranks' gradients are added up: with more ranks an epoch
    has fewer steps. The features are where `sampler.features=auto` puts them.
    """
    dataset, _ = stored_graph(folder, case.graph, scale)
    sampler = SamplerConfig(name="neighbor", fanouts=FANOUTS, batch_size=batch * place.ranks)
    runs, found = launched(place, lambda: Runs(place, case, dataset, steps, folder, sampler), profile)
    return found | {"steps_of_epoch": runs.data.steps_per_epoch, "nodes": dataset.num_nodes}
