"""Steps in chunks: they are single steps, who sees them, what forbids a capture, and one that fails."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch

from gnnsparse.data import NodeDataset
from gnnsparse.train import (
    FitResult,
    FullGraphData,
    GraphBatch,
    NodeClassifier,
    TrainerConfig,
    UncapturableError,
)
from gnnsparse.train.callbacks import BestEpoch, EpochTimer, History
from gnnsparse.train.steps import Chunks, obstacle
from models import AGNN
from tests.helpers import PRECISIONS
from tests.tasks import (
    PlainRecorder,
    classifier,
    prepared,
    rows_of,
    toy_task,
    train_toy,
)


@pytest.fixture(params=["single", "chunks"])
def way(request: pytest.FixtureRequest) -> str:
    """Runs go step by step, or in chunks."""
    if request.param == "chunks":
        request.getfixturevalue("in_chunks")
    return request.param


def run(
    folder: Path,
    epochs: int = 30,
    *,
    task: NodeDataset | None = None,
    made: dict[str, Any] | None = None,
    data: dict[str, str] | None = None,
    resume: Path | None = None,
    **config: Any,
) -> tuple[FitResult, dict[str, torch.Tensor]]:
    """Trains what `classifier` makes with the options `made`."""
    task = task or toy_task()
    module, given = classifier(task, **{"epochs": epochs, **(made or {})}), {"resume": resume}
    result, trained = train_toy(folder, task, epochs, module=module, data=data, given=given, **config)
    return result, {name: tensor.cpu() for name, tensor in trained.model.state_dict().items()}


def last(folder: Path) -> dict[str, Any]:
    return torch.load(folder / "checkpoints" / "last.ckpt", weights_only=True)


def same(a: Any, b: Any, rounding: float = 0.0) -> None:
    """Asserts that values of checkpoints are equal, numbers to a relative and absolute `rounding`."""
    torch.testing.assert_close(a, b, rtol=rounding, atol=rounding)


def curve(folder: Path) -> torch.Tensor:
    """The training losses of all steps, then the validation losses."""
    columns = [
        [float(row[name]) for row in rows_of(folder) if row[name]] for name in ("train/loss", "val/loss")
    ]
    return torch.tensor(columns[0] + columns[1])


#: A device holds a scheduled learning rate in float32, the optimiser's own is a float64.
RATE = 1e-5


CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "rarely validated": {"val_every": 4},
    "never in between": {"val_every": 100},
    "short chunks": {"log_every": 7, "val_every": 3},
    "schedule": {"made": {"schedule": "cosine", "decay": "all"}},
    "dropout": {"made": {"options": {"dropout": 0.5}}},
    "norm, rarely validated": {"made": {"options": {"norm": "batch", "dropout": 0.2}}, "val_every": 5},
    "agnn": {"made": {"model": AGNN}},
    "patience": {"patience": 15, "epochs": 120},
    "patience, rarely validated": {"patience": 16, "val_every": 4, "epochs": 120},
}
ON_CPU = [*((case, "fp32", "cpu") for case in CASES), ("plain", "fp16", "cpu")]
ON_GPU = [
    pytest.param(case, precision, "cuda", marks=pytest.mark.gpu)
    for case in ("dropout", "norm, rarely validated", "agnn", "schedule", "patience", "short chunks")
    for precision in PRECISIONS
]


@pytest.mark.parametrize(("case", "precision", "device"), [*ON_CPU, *ON_GPU])
def test_chunks_are_single_steps(
    case: str, precision: str, device: str, tmp_path: Path, in_chunks: list[PlainRecorder]
) -> None:
    """With dropout, whose numbers must be new in each replay: those that single steps draw."""
    given: dict[str, Any] = {"data": {"device": device, "precision": precision}, **CASES[case]}
    given["task"] = toy_task(600 if device == "cuda" else 60)
    single, weights = run(tmp_path / "single", capture="off", **given)
    chunks, of_chunks = run(tmp_path / "chunks", **given)
    assert (single.capture, chunks.capture) == ("off", "on")
    assert chunks.epochs == single.epochs > 8
    rounding = 0.0
    if case == "schedule":
        rounding = RATE if device == "cpu" else 1e-3
    else:
        for name in ("best_epoch", "metrics", "parameters"):
            assert getattr(single, name) == getattr(chunks, name)
    steps = [
        [(row["step"], bool(row["val/loss"])) for row in rows_of(tmp_path / way)]
        for way in ("single", "chunks")
    ]
    assert steps[0] == steps[1]
    losses = curve(tmp_path / "single")
    assert losses.unique().numel() > 20
    same(losses, curve(tmp_path / "chunks"), rounding)
    if device == "cpu" or case != "schedule":
        same(weights, of_chunks, rounding)
    if device == "cuda":
        return
    a, b = last(tmp_path / "single"), last(tmp_path / "chunks")
    for part in ("state_dict", "optimizer_states", "lr_schedulers", "callbacks", "global_step", "epoch"):
        same(a[part], b[part], rounding)


def test_a_chunk_is_one_step_of_lightning(tmp_path: Path, in_chunks: list[PlainRecorder]) -> None:
    run(tmp_path, epochs=100, log_every=40, val_every=5)
    assert last(tmp_path)["loops"]["fit_loop"]["epoch_loop.batch_progress"]["total"]["ready"] == 3
    assert last(tmp_path)["global_step"] == 100
    (recorder,) = in_chunks
    assert recorder.counts == {"first": 2, "recorded": 2, "replayed": 100 + 20 - 2}


@pytest.mark.parametrize(
    ("device", "precision", "schedule"),
    [
        ("cpu", "fp32", "none"),
        ("cpu", "fp32", "cosine"),
        pytest.param("cuda", "fp32", "none", marks=pytest.mark.gpu),
        pytest.param("cuda", "fp16", "none", marks=pytest.mark.gpu),
    ],
)
@pytest.mark.parametrize("second", ["off", "on"])
@pytest.mark.parametrize("first", ["off", "on"])
def test_resumed_is_as_uninterrupted(
    first: str, second: str, device: str, precision: str, schedule: str, tmp_path: Path,
    in_chunks: list[PlainRecorder],
) -> None:  # fmt: skip
    """In either way, whichever it was begun in; the random numbers are the checkpoint's."""
    settings: dict[str, Any] = {
        "made": {"epochs": 31, "schedule": schedule, "decay": "all"}, "val_every": 7,
        "data": {"device": device, "precision": precision}, "task": toy_task(600 if device == "cuda" else 60),
    }  # fmt: skip
    whole, weights = run(
        tmp_path / "whole", epochs=31, capture="off" if device == "cpu" else "on", **settings
    )
    run(tmp_path / "first", epochs=14, capture=first, **settings)
    begun = tmp_path / "first" / "checkpoints" / "last.ckpt"
    torch.manual_seed(999)
    resumed, of_resumed = run(tmp_path / "second", epochs=31, resume=begun, capture=second, **settings)
    assert resumed.capture == second
    assert resumed.epochs == whole.epochs == 31
    exact = schedule == "none" or (first, second) == ("off", "off")
    rounding = 0.0 if exact else RATE
    if exact:
        assert (resumed.best_epoch, resumed.metrics) == (whole.best_epoch, whole.metrics)
        assert rows_of(tmp_path / "second") == rows_of(tmp_path / "whole")[14:]
    same(weights, of_resumed, rounding)
    if device == "cpu":
        states = [last(tmp_path / name)["optimizer_states"] for name in ("whole", "second")]
        same(*states, rounding)
    losses = [[float(row["train/loss"]) for row in rows_of(tmp_path / name)] for name in ("whole", "second")]
    same(losses[0][14:], losses[1], rounding)


def test_a_loss_that_is_not_finite(tmp_path: Path, way: str) -> None:
    with pytest.raises(FloatingPointError, match=r"training diverged: the loss of epoch \d is (nan|inf)"):
        run(tmp_path, made={"lr": 1e38}, log_every=5)
    assert not (tmp_path / "checkpoints").exists()


def test_the_host_asks_for_nothing_in_an_ordinary_epoch(
    way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU each question would wait: there are as many for 60 steps as for 20, also in chunks."""
    asked: list[str] = []
    for name in ("item", "tolist", "cpu", "numpy", "__bool__", "__int__", "__float__", "__index__"):
        original = getattr(torch.Tensor, name)

        def counting(self: torch.Tensor, *args: Any, _name: str = name, _do: Any = original) -> Any:
            asked.append(_name)
            return _do(self, *args)

        monkeypatch.setattr(torch.Tensor, name, counting)
    counts = []
    for length in (20, 60):
        asked.clear()
        if way == "single":
            train_toy(epochs=length, log_every=1000)
        else:
            run(tmp_path / str(length), epochs=2 * length, log_every=length)
        counts.append(len(asked))
    assert counts[0] == counts[1] > 0  # reading the results


def test_how_a_run_is_cut() -> None:
    def cut(end: int, begin: int = 0, **options: Any) -> list[int]:
        settings = {"validate_every": 5, "log_every": 50, "stops_early": False, **options}
        chunks = Chunks(best=BestEpoch("x", None), history=History(1), timer=EpochTimer(), **settings)
        counts, done = [], begin
        while done < end:
            counts.append(chunks.count(done, end))
            done += counts[-1]
        return counts

    assert cut(120) == [50, 50, 20]
    assert cut(120, 30) == [50, 40]
    assert cut(200, log_every=1000) == [64, 64, 64, 8]
    assert cut(12, stops_early=True) == [5, 5, 2]
    assert cut(12, 3, stops_early=True) == [2, 5, 2]


def test_the_time_of_a_step_has_its_share_of_validation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps of 1 ms with a validation of 10 ms after every fifth one take 3 ms; the first period is slow."""
    now = [0.0]
    monkeypatch.setattr("gnnsparse.train.callbacks.time.perf_counter", lambda: now[0])
    timer, device = EpochTimer(5), torch.device("cpu")
    assert timer.median_milliseconds() is None
    for step in range(1, 23):
        timer.mark(device, step - 1)
        now[0] += 1e-3 + (10e-3 if step % 5 == 0 else 0) + (1.0 if step == 1 else 0)
    timer.mark(device, 22, always=True)
    assert timer.median_milliseconds() == pytest.approx(3.0)


# What forbids a capture.


def test_what_forbids_a_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, data = classifier(toy_task()), prepared(toy_task())
    data.device = torch.device("cuda", 0)
    assert obstacle(plain, data) is None
    with monkeypatch.context() as patch:
        patch.setattr(FullGraphData, "fixed_batch", None)
        assert obstacle(plain, data) == "the batches of this task differ from step to step"
    forward, backward, tensor = (classifier(toy_task()) for _ in range(3))
    forward.model.convs[1].register_forward_hook(lambda *_: None)
    backward.model.register_full_backward_hook(lambda *_: None)
    tensor.model.convs[0].lin.weight.register_hook(lambda grad: grad)
    clips = type("Clips", (NodeClassifier,), {"on_after_backward": lambda self: None})
    for module, what in (
        (forward, "a hook of model.convs.1"),
        (backward, "a hook of model"),
        (tensor, "a hook of model.convs.0.lin.weight"),
        (classifier(toy_task(), kind=clips), "Clips.on_after_backward"),
    ):
        assert obstacle(module, data) == f"{what} would not run in each step"
    with torch.autograd.set_detect_anomaly(True, check_nan=False):
        assert "anomaly" in str(obstacle(plain, data))
    handle = torch.nn.modules.module.register_module_forward_hook(lambda *_: None)
    assert obstacle(plain, data) == "a hook of all modules would not run in each step"
    handle.remove()
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", "1")
    assert "CUDA_LAUNCH_BLOCKING" in str(obstacle(plain, data))


def test_on_is_refused_where_it_can_not_be_and_auto_logs_why(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    why = "CUDA graphs need a GPU, and the run is on cpu"
    with pytest.raises(
        UncapturableError, match=f"^trainer.capture: got 'on', but {why}; accepted: auto, off"
    ):
        run(tmp_path / "run", capture="on")
    assert not (tmp_path / "run").exists()
    with pytest.raises(ValueError, match=r"trainer\.capture: got 'no'; accepted: auto, on, off"):
        TrainerConfig(capture="no")
    with caplog.at_level(logging.DEBUG, "gnnsparse.train"):
        assert run(tmp_path / "a", epochs=2, capture="off")[0].capture == "off"
        assert caplog.messages == []
        run(tmp_path / "b", epochs=2)
    assert caplog.messages == [f"trainer.capture: {why}; steps are launched one by one"]


# A capture that fails.


@pytest.mark.parametrize(("fails_at", "precision"), [(1, "fp32"), (2, "fp16")])
def test_a_failed_capture_changes_nothing_but_the_speed(
    fails_at: int, precision: str, tmp_path: Path, caplog: pytest.LogCaptureFixture,
    in_chunks: list[PlainRecorder], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Of the step (the first capture) or of the validation: the run goes on, in chunks, without graphs."""
    given = {"data": {"precision": precision}}
    single, weights = run(tmp_path / "single", capture="off", **given)
    monkeypatch.setattr(PlainRecorder, "fails_at", fails_at)
    result, of_chunks = run(tmp_path / "chunks", **given)
    assert result.capture == "a step can't be captured in a CUDA graph: operation not permitted"
    assert (result.metrics, result.best_epoch) == (single.metrics, single.best_epoch)
    assert rows_of(tmp_path / "single") == rows_of(tmp_path / "chunks")
    same(weights, of_chunks)
    assert "operation not permitted" in caplog.text
    (recorder,) = in_chunks
    assert recorder.counts["recorded"] == fails_at
    with pytest.raises(UncapturableError, match=r"trainer\.capture: got 'on', but a step can't be captured"):
        run(tmp_path / "required", capture="on", **given)


# On a GPU.


class _Asks(NodeClassifier):
    """Waits for the GPU in each step, which a capture forbids."""

    def training_step(self, batch: GraphBatch) -> torch.Tensor:
        loss = super().training_step(batch)
        return loss * (1.0 if float(loss.detach()) > -1 else 2.0)


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_a_model_that_waits_for_the_gpu(precision: str, tmp_path: Path) -> None:
    """The run goes on, dropout and gradient scaler too, and so does the process."""
    given = {"data": {"device": "cuda", "precision": precision}, "task": toy_task(nodes=600)}
    asks: dict[str, Any] = {"made": {"kind": _Asks}, **given}
    _, weights = run(tmp_path / "single", capture="off", **asks)
    result, fallen_back = run(tmp_path / "auto", capture="auto", **asks)
    assert result.capture.startswith("a step can't be captured in a CUDA graph: ")
    same(weights, fallen_back)
    assert torch.equal(curve(tmp_path / "single"), curve(tmp_path / "auto"))
    with pytest.raises(UncapturableError, match=r"trainer\.capture: got 'on'"):
        run(tmp_path / "on", capture="on", **asks)
    again, captured = run(tmp_path / "again", capture="on", **given)
    assert again.capture == "on"
    same(weights, captured)
