"""What tests of trainings run on each of several ranks: launched step by step, in blocks, and captured."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist

from gnnsparse.distributed.training import Peers
from gnnsparse.runtime.timing import CaptureError
from gnnsparse.train import OptimizerConfig, PreprocessConfig, TrainerConfig, fit
from gnnsparse.train.ranks import agreed_problem
from gnnsparse.train.steps import Recorder, UncapturableError
from gnnsparse.train.tasks.node import SharedGraphData, SharedNodeClassifier
from models import GCN
from tests.tasks import PlainRecorder, toy_task


def peers_of(group: dist.ProcessGroup, control: dist.ProcessGroup | None = None) -> Peers:
    return Peers(dist.get_rank(group), dist.get_world_size(group), group, control or group)


def train(
    peers: Peers, way: str, precision: str = "fp32", capture: str = "off", *, shards: bool = False,
    schedule: str = "none", epochs: int = 12, folder: Path | None = None, resume: Path | None = None,
) -> dict[str, Any]:  # fmt: skip
    """A run with dropout, whose numbers differ in each step, and batch normalisation over all ranks."""
    device = "cuda" if dist.get_backend(peers.group) == "nccl" else "cpu"
    task = toy_task(nodes=300)
    preprocess = PreprocessConfig(cache=False)
    data = SharedGraphData(
        task, peers=peers, way=way, precision=precision, device=device, preprocess=preprocess
    )
    torch.manual_seed(0)
    model = GCN(task.num_features, 16, task.num_classes, num_layers=3, norm="batch")
    optimizer = OptimizerConfig(schedule=schedule)
    module = SharedNodeClassifier(model, task, optimizer, 12, peers, 7, shards)
    config = TrainerConfig(
        max_epochs=epochs, val_every=3, log_every=5, logger="none", progress=False,
        checkpoint=folder is not None, capture=capture,
    )  # fmt: skip
    curves: list[tuple[int, dict[str, float]]] = []
    result = fit(module, data, config, curves=curves, folder=folder, resume=resume)
    weights = {name: tensor.cpu() for name, tensor in module.model.state_dict().items()}
    return {
        "losses": [row["train/loss"] for _, row in curves], "rows": curves, "metrics": result.metrics,
        "optimizer": module.trainer.optimizers[0],
        "capture": result.capture, "weights": weights,
    }  # fmt: skip


def same(one: dict[str, Any], other: dict[str, Any]) -> None:
    """Asserts that two runs computed the same bits."""
    for name in ("losses", "rows", "metrics"):
        assert one[name] == other[name]
    same_weights(one, other)


def same_weights(one: dict[str, Any], other: dict[str, Any]) -> None:
    for name, tensor in one["weights"].items():
        assert torch.equal(tensor, other["weights"][name]), name


@contextmanager
def recorded(obstacle: Any) -> Iterator[list[PlainRecorder]]:
    """Steps are called where a GPU would replay them; what records them is noted."""
    made: list[PlainRecorder] = []

    def recorder(device: torch.device, required: bool, peers: Peers) -> PlainRecorder:
        made.append(PlainRecorder(required))
        return made[-1]

    with mock.patch.multiple("gnnsparse.train.fitting", obstacle=obstacle, Recorder=recorder):
        yield made


def in_blocks(group: dist.ProcessGroup, way: str) -> dict[str, int]:
    """Trains step by step, and in blocks of steps."""
    peers = peers_of(group)
    single = train(peers, way)
    with recorded(lambda module, data: None) as made:
        blocks = train(peers, way, capture="on")
    assert (single["capture"], blocks["capture"]) == ("off", "on")
    assert len(set(single["losses"])) == len(single["losses"])  # with other numbers of dropout in each step
    same(single, blocks)
    return made[0].counts


def captured(group: dist.ProcessGroup, way: str, precision: str) -> None:
    """Trains on GPUs step by step, and by CUDA graphs with NCCL's kernels in them."""
    peers = peers_of(group, dist.new_group(backend="gloo"))
    single, graphs = train(peers, way, precision), train(peers, way, precision, "on")
    assert graphs["capture"] == "on"
    same(single, graphs)


def failed_captures(group: dist.ProcessGroup) -> list[str]:
    """What each rank says after a capture that has failed on rank 1, with capture=auto and capture=on."""
    peers, undone, said = peers_of(group), [], []

    def capture(call: Any, calls: int, stream: Any) -> Any:
        if peers.rank == 1:
            raise CaptureError("operation not permitted")
        return lambda: said.append("replayed")

    def call() -> None:
        said.append("called")

    with mock.patch("gnnsparse.train.steps.capture", capture):
        recorder = Recorder(torch.device("cpu"), False, peers)
        recorder.record(call, lambda: undone.append(1))()
        said.append(str(recorder.problem))
        try:
            Recorder(torch.device("cpu"), True, peers).record(call, lambda: undone.append(2))
        except UncapturableError as error:
            said.append(str(error))
    assert undone == [1, 2]
    with mock.patch("gnnsparse.train.steps.capture", lambda call, calls, stream: call):
        Recorder(torch.device("cpu"), True, peers).record(call, lambda: None)()
    return said


def refused_capture(group: dist.ProcessGroup) -> str:
    """What capture=on says on a CPU."""
    try:
        train(peers_of(group), "halo", capture="on")
    except UncapturableError as error:
        return str(error)
    return "accepted"


def problems(group: dist.ProcessGroup, of_ranks: list[str | None]) -> str | None:
    peers = peers_of(group)
    return agreed_problem(of_ranks[peers.rank], peers)


def divided(group: dist.ProcessGroup) -> tuple[int, int]:
    """Trains with an optimiser that is divided and one that is not; returns how many moments a rank has."""
    peers = peers_of(group)
    whole, shared = (train(peers, "halo", schedule="cosine", shards=shards) for shards in (False, True))
    same(whole, shared)
    assert shared["capture"] == "off"
    states = whole["optimizer"].state, shared["optimizer"].optim.state
    return tuple(sum(one["exp_avg"].numel() for one in state.values()) for state in states)


def begun(group: dist.ProcessGroup, folder: str, shards: bool) -> None:
    """Trains for six of twelve epochs; rank 0 writes checkpoints."""
    peers = peers_of(group)
    own = Path(folder) if peers.rank == 0 else None
    train(peers, "halo", epochs=6, schedule="cosine", shards=shards, folder=own)


def resumed(group: dist.ProcessGroup, folder: str, shards: bool) -> list[float]:
    """Goes on to twelve epochs."""
    file = Path(folder) / "checkpoints" / "last.ckpt"
    return train(peers_of(group), "halo", schedule="cosine", resume=file, shards=shards)["losses"]


def uninterrupted(group: dist.ProcessGroup) -> list[float]:
    return train(peers_of(group), "halo", schedule="cosine")["losses"]
