"""Trainings on several ranks with gloo on CPUs: on samples, of which they compute shares, or the whole graph.

In blocks of steps, with captures that fail, with a divided optimiser, and resumed.
"""

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist

import gnnsparse
from gnnsparse.data import NodeDataset
from gnnsparse.distributed import share_batch_norm
from gnnsparse.distributed.training import Peers
from gnnsparse.inference import load
from gnnsparse.runtime.timing import CaptureError
from gnnsparse.train import OptimizerConfig, PreprocessConfig, SamplerConfig, TrainerConfig, fit
from gnnsparse.train.sampled import PaddedDraws
from gnnsparse.train.steps import Recorder, UncapturableError
from gnnsparse.train.tasks import RunOptions
from gnnsparse.train.tasks.node import NodeTask
from models import GCN, MODELS
from tests import emulated, emulator_build
from tests.distributed.ranks import Ranks
from tests.tasks import run_in_chunks, toy_task


def peers_of(group: dist.ProcessGroup, control: dist.ProcessGroup | None = None) -> Peers:
    return Peers(dist.get_rank(group), dist.get_world_size(group), group, control or group)


def dataset_of(missing: bool) -> NodeDataset:
    """100 training nodes; with `missing` nodes have several labels, of which every third is not known."""
    if not missing:
        return toy_task(nodes=300)
    dataset = toy_task(nodes=300, metric="micro_f1")
    y = dataset.y.clone()
    y.view(-1)[::7] = torch.nan
    return dataclasses.replace(dataset, y=y)


def run_of(
    peers: Peers | None, *, samples: bool = True, batch_size: int = 32, device: str = "cpu",
    precision: str = "fp32", schedule: str = "cosine", **options: Any,
) -> RunOptions:  # fmt: skip
    """The options of a run of 3 epochs on samples, or of 12 on the whole graph."""
    whole = {"max_epochs": 12, "val_every": 3, "log_every": 5, "capture": "off"}
    usual: dict[str, Any] = {"max_epochs": 3} if samples else whole
    trainer = {**usual, "logger": "none", "progress": False, "checkpoint": False, **options}
    sampler = {"name": "neighbor", "fanouts": [4, 3], "batch_size": batch_size} if samples else {}
    return RunOptions(
        device=torch.device(device), precision=precision, values="mean" if samples else "gcn", seed=7,
        trainer=TrainerConfig(**trainer), optimizer=OptimizerConfig(lr=0.01, schedule=schedule),
        preprocess=PreprocessConfig(cache=False), sampler=SamplerConfig(**sampler), peers=peers,
    )  # fmt: skip


def train(
    peers: Peers | None, *, samples: bool = True, missing: bool = False, norm: str = "none",
    dropout: float = 0.5, folder: Path | None = None, resume: Path | None = None, **options: Any,
) -> dict[str, Any]:  # fmt: skip
    """A run of GraphSAGE without dropout on samples, or of a GCN on the whole graph.

    The GCN has dropout, whose numbers differ in each step, and batch normalisation over all ranks.
    """
    dataset, task = dataset_of(missing), NodeTask()
    run = run_of(peers, samples=samples, checkpoint=folder is not None, **options)
    data = task.make_data(dataset, run)
    torch.manual_seed(0)
    more = (
        {"dropout": 0.0, "norm": norm} if samples else {"num_layers": 3, "norm": "batch", "dropout": dropout}
    )
    model = MODELS["graphsage" if samples else "gcn"].build(
        dataset.num_features, out_channels=dataset.num_classes, hidden_channels=16, **more
    )
    module, curves = task.make_module(model, data, run), list[tuple[int, dict[str, float]]]()
    # Also of a run that ends earlier, to be resumed.
    module._max_steps = (3 if samples else 12) * data.steps_per_epoch
    result = fit(module, data, run.trainer, curves=curves, folder=folder, resume=resume)
    optimizer = module.trainer.optimizers[0]
    states = getattr(optimizer, "optim", optimizer).state.values()
    return {
        "losses": [row["train/loss"] for _, row in curves], "rows": curves, "metrics": result.metrics,
        "weights": {name: tensor.to("cpu", copy=True) for name, tensor in module.model.state_dict().items()},
        "described": task.describe(data, run), "capture": result.capture,
        "moments": sum(one["exp_avg"].numel() for one in states),
    }  # fmt: skip


def same(one: dict[str, Any], other: dict[str, Any]) -> None:
    """Asserts that two runs computed the same bits."""
    for name in ("losses", "rows", "metrics"):
        assert one[name] == other[name]
    same_weights(one, other)


def same_weights(one: dict[str, Any], other: dict[str, Any]) -> None:
    for name, tensor in one["weights"].items():
        assert torch.equal(tensor, other["weights"][name]), name


def shared(group: dist.ProcessGroup, options: dict[str, Any]) -> dict[str, Any]:
    """Trains twice, and returns the first run if the second one has computed the same bits."""
    control = dist.new_group(backend="gloo") if dist.get_backend(group) == "nccl" else None
    first, again = (train(peers_of(group, control), **options) for _ in range(2))
    same(first, again)
    return first


def in_blocks(group: dist.ProcessGroup, options: dict[str, Any], tight: bool = False) -> dict[str, Any]:
    """Trains step by step, and in blocks of steps.

    With `tight` arrays have room for what rank 0 has drawn, and on other ranks for some samples alone.
    """
    peers, samples = peers_of(group), options.get("samples", True)
    single = train(peers, **options, capture="off")
    room = {"_DEVIATIONS": 0, "_MORE": 0, "_MULTIPLE": 4, "_LOOKED_AT": 2}
    with pytest.MonkeyPatch.context() as patch:
        made = run_in_chunks(patch, lambda module, data: data.capture_obstacle(module) if samples else None)
        for name, value in room.items() if tight and peers.rank else ():
            patch.setattr(f"gnnsparse.train.sampled.{name}", value)
        blocks, again = (train(peers, **options, capture="on") for _ in range(2))
    assert (single["capture"], blocks["capture"]) == ("off", "on")
    if samples:
        torch.testing.assert_close(blocks["losses"], single["losses"], rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(blocks["weights"], single["weights"], rtol=2e-3, atol=2e-4)
    else:
        assert len(set(single["losses"])) == len(single["losses"])  # with other dropout in each step
        same(single, blocks)
    same(blocks, again)
    return {"counts": made[0].counts, "losses": blocks["losses"], "weights": blocks["weights"]}


def drawn_by_graphs(group: dist.ProcessGroup, tight: bool) -> dict[str, Any]:
    """Trains as `in_blocks` does on the path of a GPU, where graphs draw, whose kernels are emulated."""
    with (
        emulated.running(emulator_build.load()),
        mock.patch.object(PaddedDraws, "__call__", autospec=True, side_effect=PaddedDraws.__call__) as draws,
    ):
        return {**in_blocks(group, {"max_epochs": 2}, tight), "draws": draws.call_count}


def captured(group: dist.ProcessGroup, options: dict[str, Any]) -> None:
    """Trains on GPUs step by step, and by CUDA graphs with NCCL's kernels in them."""
    peers = peers_of(group, dist.new_group(backend="gloo"))
    options = {"device": "cuda", **options}
    single, graphs, again = (train(peers, **options, capture=capture) for capture in ("off", "on", "on"))
    assert (single["capture"], graphs["capture"]) == ("off", "on")
    if options.get("samples", True):
        torch.testing.assert_close(graphs["losses"], single["losses"], rtol=1e-3, atol=1e-4)
    else:
        same(single, graphs)
    same(graphs, again)


def begun(group: dist.ProcessGroup, folder: str, options: dict[str, Any]) -> list[float]:
    """Trains for some of the epochs; rank 0 writes checkpoints."""
    peers = peers_of(group)
    return train(peers, **options, folder=None if peers.rank else Path(folder))["losses"]


def resumed(group: dist.ProcessGroup, folder: str | None, options: dict[str, Any]) -> list[float]:
    """Goes on to the last epoch, or without a folder trains all of them."""
    file = None if folder is None else Path(folder) / "checkpoints" / "last.ckpt"
    return train(peers_of(group), **options, resume=file)["losses"]


def divided(group: dist.ProcessGroup) -> tuple[int, int]:
    """Trains with an optimiser that is divided and one that is not; returns how many moments a rank has."""
    whole, shared = (
        train(peers_of(group), samples=False, way="halo", shard_optimizer=shards) for shards in (False, True)
    )
    same(whole, shared)
    assert shared["capture"] == "off"
    return whole["moments"], shared["moments"]


def taken(group: dist.ProcessGroup, batch_size: int) -> list[tuple[list[int], float]]:
    """The features, which tell nodes apart, and the share of each step of an epoch."""
    run = run_of(peers_of(group), batch_size=batch_size)
    data: Any = NodeTask().make_data(dataset_of(False), run)
    batches = itertools.islice(iter(data.train_dataloader()), data.steps_per_epoch)
    found = []
    for batch in batches:
        own = batch.x[: batch.adj[-1].shape[0]]
        found.append(((data.dataset.x[:, None] == own).all(-1).int().argmax(0).tolist(), batch.fraction))
    return found


def batch_norms(group: dist.ProcessGroup) -> None:
    """Batch normalisation of numbers of nodes that change on some ranks alone, against one of all nodes."""
    rank, ranks = dist.get_rank(group), dist.get_world_size(group)
    torch.manual_seed(3)
    one = torch.nn.BatchNorm1d(4)
    mine = torch.nn.Sequential(torch.nn.BatchNorm1d(4))
    assert share_batch_norm(mine, group, nodes_vary=True) == 1
    for sizes in ((5, 3, 4), (5, 6, 1), (1, 1, 1), (2, 6, 1)):
        x = torch.randn(sum(sizes[:ranks]), 4)
        parts = x.split(sizes[:ranks])
        leaf, own = x.clone().requires_grad_(), parts[rank].clone().requires_grad_()
        weight = torch.randn_like(x)
        (one(leaf) * weight).sum().backward()
        y = mine(own)
        (y * weight.split(sizes[:ranks])[rank]).sum().backward()
        torch.testing.assert_close(own.grad, leaf.grad.split(sizes[:ranks])[rank], rtol=1e-4, atol=1e-5)
    for name, buffer in one.named_buffers():
        torch.testing.assert_close(mine[0].get_buffer(name), buffer)


def failed_captures(group: dist.ProcessGroup) -> list[str]:
    """What each rank says after a capture that has failed on ranks 1 and 2, with capture=auto and capture=on.

    On a CPU capture=on is refused on all ranks.
    """
    peers, undone, said = peers_of(group), [], []

    def capture(call: Any, calls: int, stream: Any) -> Any:
        if peers.rank:
            raise CaptureError(f"operation {peers.rank} not permitted")
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
    with pytest.raises(UncapturableError, match=r"^trainer\.capture: got 'on', but CUDA graphs need a GPU"):
        train(peers, samples=False, way="halo", capture="on")
    return said


def fitted(group: dist.ProcessGroup | None, folder: str | None) -> dict[str, Any]:
    """What `gnnsparse.fit` makes of a model; one that has no products for the ranks to share is refused."""
    given: dict[str, Any] = {"device": "cpu", "group": group}
    own = Path(folder) if folder is not None and dist.get_rank(group) == 0 else None
    torch.manual_seed(0)
    result = gnnsparse.fit(GCN(8, 8, 3, dropout=0.0), toy_task(), epochs=4, folder=own, **given)
    found = {"metrics": result.metrics, "logits": result.predict().logits}
    found["losses"] = [row["train/loss"] for row in result.history]
    if group is not None:
        with pytest.raises(ValueError, match="group: goes with models that take an operand"):
            gnnsparse.fit(torch.nn.Linear(8, 3), toy_task().without_weights(), **given)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("way", ["halo", "features"])
def test_blocks_of_steps_compute_what_single_steps_do(ranks: Ranks, way: str) -> None:
    """With dropout and batch normalisation; every rank replays as often as the others."""
    for found in ranks.run(2, in_blocks, {"samples": False, "way": way, "schedule": "none"}):
        # 12 steps and 4 validations
        assert found["counts"] == {"first": 2, "recorded": 2, "replayed": 14}


@pytest.mark.slow
def test_a_capture_that_fails_on_some_ranks_is_used_on_none(ranks: Ranks) -> None:
    why = "a step can't be captured in a CUDA graph: operation {} not permitted"
    for rank, (called, problem, refused, last) in enumerate(ranks.run(3, failed_captures)):
        assert (called, last) == ("called", "called")
        assert problem == (why.format(rank) if rank else f"on rank 1 {why.format(1)}")
        assert refused == f"trainer.capture: got 'on', but {problem}; accepted: auto, off"


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 3])
def test_a_divided_optimiser_computes_the_same_bits(ranks: Ranks, size: int) -> None:
    found = ranks.run(size, divided)
    whole = {count for count, _ in found}
    assert whole == {sum(share for _, share in found)}
    assert max(share for _, share in found) < 0.75 * max(whole)


@pytest.mark.parametrize(("before", "after"), [(True, False), (False, True), (True, True)])
def test_checkpoints_do_not_say_how_the_optimiser_was_divided(
    ranks: Ranks, tmp_path: Path, before: bool, after: bool
) -> None:
    folder, run = str(tmp_path / "run"), {"samples": False, "way": "halo"}
    ranks.run(2, begun, folder, {**run, "shard_optimizer": before, "max_epochs": 6})
    whole = ranks.run(2, resumed, None, run)[0]
    run["shard_optimizer"] = after
    for losses in ranks.run(2, resumed, folder, run):
        assert losses == whole[6:]
    # Three ranks have other numbers of dropout, and other shares.
    assert [len(losses) for losses in ranks.run(3, resumed, folder, run)] == [6] * 3


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize(
    "options", [{}, {"missing": True}, {"batch_size": 33}], ids=["", "missing", "of one"]
)
def test_ranks_compute_the_steps_of_one_process(ranks: Ranks, size: int, options: dict[str, Any]) -> None:
    """With 33 nodes a step, the last one of an epoch has one node, and all ranks but one have none."""
    one = train(None, **options)
    first, *others = ranks.run(size, shared, options)
    assert len(one["losses"]) == 12
    torch.testing.assert_close(first["losses"], one["losses"], rtol=1e-4, atol=1e-5)
    for name, tensor in one["weights"].items():
        torch.testing.assert_close(first["weights"][name], tensor, rtol=2e-3, atol=2e-4)
    for part, scores in one["metrics"].items():
        for name, score in scores.items():
            assert abs(first["metrics"][part][name] - score) <= 0.02
    for other in others:
        assert (other["losses"], other["metrics"]) == (first["losses"], first["metrics"])
        same_weights(first, other)
    assert first["described"]["devices"] == size
    assert "devices" not in one["described"]


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize(
    "options", [{}, {"missing": True}, {"norm": "batch"}], ids=["", "missing", "batch norm"]
)
def test_steps_in_place_are_those_of_single_samples(ranks: Ranks, size: int, options: dict[str, Any]) -> None:
    """Of four steps of an epoch the last one is smaller, and is launched by itself."""
    first, *others = ranks.run(size, in_blocks, options)
    assert first["counts"] == {"first": 1, "recorded": 1, "replayed": 3 * 3 - 1}
    for other in others:
        assert (other["counts"], other["losses"]) == (first["counts"], first["losses"])
        same_weights(first, other)


def test_a_sample_without_room_on_one_rank_is_replayed_on_none(ranks: Ranks) -> None:
    first, other = ranks.run(2, in_blocks, {}, True)
    assert other["counts"] == first["counts"]
    assert 0 < first["counts"]["replayed"] < 3 * 3 - 1


@pytest.mark.slow
@pytest.mark.parametrize("tight", [False, True])
def test_steps_in_place_are_drawn_by_graphs(ranks: Ranks, built: ModuleType, tight: bool) -> None:
    """Each rank draws its share; a sample that one rank has no room for is launched by itself on all."""
    first, other = ranks.run(2, drawn_by_graphs, tight)
    assert (other["counts"], other["losses"]) == (first["counts"], first["losses"])
    same_weights(first, other)
    replayed = first["counts"]["replayed"]
    assert 0 < replayed < 5 if tight else replayed == 5
    assert min(first["draws"], other["draws"]) >= 2 * 6
    one = train(None, max_epochs=2)
    torch.testing.assert_close(first["losses"], one["losses"], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("batch_size", [16, 33])
def test_an_epoch_takes_every_training_node_once(ranks: Ranks, batch_size: int) -> None:
    found = ranks.run(3, taken, batch_size)
    nodes = dataset_of(False).train_mask.nonzero().flatten().tolist()
    # A share of 0 stands for a rank that no node was left for.
    assert sorted(n for steps in found for own, share in steps for n in own if share) == nodes
    for step in zip(*found, strict=True):
        assert sum(share for _, share in step) == pytest.approx(1)
        counts = [len(own) for own, share in step if share]
        assert max(counts) - min(counts) <= 1


def test_checkpoints_go_on_with_another_number_of_ranks(ranks: Ranks, tmp_path: Path) -> None:
    whole, folder = train(None)["losses"], str(tmp_path / "run")
    assert [len(losses) for losses in ranks.run(2, begun, folder, {"max_epochs": 1})] == [4, 4]
    for losses in ranks.run(3, resumed, folder, {}):
        assert len(losses) == 8
        torch.testing.assert_close(losses, whole[4:], rtol=1e-4, atol=1e-5)


def test_batch_normalisation_counts_nodes_anew(ranks: Ranks) -> None:
    for size in (2, 3):
        ranks.run(size, batch_norms)


def test_batch_normalisation_of_samples_repeats_bit_for_bit(ranks: Ranks) -> None:
    first, *others = ranks.run(3, shared, {"norm": "batch", "batch_size": 33})
    for other in others:
        same_weights(first, other)


@pytest.mark.parametrize(("name", "got"), [("way", "halo"), ("parts", "metis"), ("wire", "int8")])
def test_how_products_are_shared_has_no_meaning_on_samples(name: str, got: str) -> None:
    expected = rf"trainer\.{name}: got '{got}'; accepted: auto, as each device has the whole graph"
    with pytest.raises(ValueError, match=expected):
        NodeTask().check(run_of(None, **{name: got}))


def test_fit_trains_one_model_in_a_group(ranks: Ranks, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    first, second = ranks.run(2, fitted, str(folder))
    assert first["metrics"] == second["metrics"]
    assert torch.equal(first["logits"], second["logits"])
    alone = fitted(None, None)
    assert first["losses"] == pytest.approx(alone["losses"], rel=1e-5)
    assert load(folder, device="cpu").recipe.name == "gcn"
