"""Steps of a run: captured in CUDA graphs, and many of them, validations included, in one of Lightning's.

Lightning takes 2 to 3 ms for each of its steps, and a captured step of a small graph 0.1 ms. So Lightning's
step is a chunk of steps that ends where somebody on the host has to see the outcome: the loggers, early
stopping, or the end. Losses, scores and the best epoch stay on the device within a chunk.
"""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Callable, Generator, Hashable
from dataclasses import dataclass
from typing import Any

import lightning.pytorch as pl
import torch
import torch.distributed as dist
from lightning.pytorch.strategies import SingleDeviceStrategy
from torch.nn.modules import module as torch_modules

from gnnsparse.distributed.training import Peers, agreed_problem
from gnnsparse.runtime.timing import CaptureError, capture
from gnnsparse.train.callbacks import BestEpoch, EpochTimer, History, StepRows, validate
from gnnsparse.train.data import BatchSource, PreparedData, StepInput
from gnnsparse.train.module import TaskModule

_log = logging.getLogger("gnnsparse.train")

#: Methods of a Lightning module that run in each step, of which a captured step makes no call.
_PER_STEP = (
    "backward", "configure_gradient_clipping", "lr_scheduler_step", "on_after_backward", "on_before_backward",
    "on_before_optimizer_step", "on_before_zero_grad", "on_train_batch_end", "on_train_batch_start",
    "optimizer_step", "optimizer_zero_grad",
)  # fmt: skip
#: Where modules and parameters keep their hooks.
_HOOKS = (
    "_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks",
    "_post_accumulate_grad_hooks",
)  # fmt: skip


class UncapturableError(ValueError):
    """A run with trainer.capture=on can't be captured; the message says why."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"trainer.capture: got 'on', but {reason}; accepted: auto, off")


def obstacle(module: TaskModule, data: PreparedData) -> str | None:
    """Return why a run's steps can't be captured, as far as it shows before they are; None: they can."""
    if data.device.type != "cuda":
        return f"CUDA graphs need a GPU, and the run is on {data.device}"
    if (reason := data.capture_obstacle(module)) is not None:
        return reason
    if data.peers is not None and (backend := dist.get_backend(data.peers.group)) != "nccl":
        return f"a CUDA graph can't hold exchanges by {backend}"
    if os.environ.get("CUDA_LAUNCH_BLOCKING") == "1":
        return "CUDA_LAUNCH_BLOCKING=1 makes every launch wait"
    if torch.is_anomaly_enabled():
        return "torch's anomaly detection waits for the GPU"
    for name in _PER_STEP:
        if getattr(type(module), name) is not getattr(TaskModule, name):
            return f"{type(module).__name__}.{name} would not run in each step"
    # A hook would run when a step is captured.
    if torch_modules._has_any_global_hook():
        return "a hook of all modules would not run in each step"
    for name, part in (*module.named_modules(), *module.named_parameters()):
        if any(getattr(part, hooks, None) for hooks in _HOOKS):
            return f"a hook of {name or 'the module'} would not run in each step"
    return None


class Recorder:
    """Captures calls in CUDA graphs on one GPU; with `required` a capture that fails ends the run."""

    # After a failure, which is `problem`, the calls of all programs run as they are. Several ranks capture a
    # call on all of them or on none: NCCL does not allow anything between. A capture launches nothing, so
    # that a rank whose capture fails leaves no other one waiting.

    def __init__(self, device: torch.device, required: bool, peers: Peers | None = None) -> None:
        self.problem: str | None = None
        self.is_recording = False
        self._device, self._required, self._peers = device, required, peers
        self._stream: torch.cuda.Stream | None = None

    def run_first(self, call: Callable[[], None]) -> None:
        """Run a call for the first time, on the stream on which it is captured later."""
        if self._stream is None:
            self._stream = torch.cuda.Stream(self._device)
        current = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            call()
        current.wait_stream(self._stream)

    def record(self, call: Callable[[], None], undo: Callable[[], None]) -> Callable[[], None]:
        """Capture a call that has run before; return what replays it, or the call itself if that fails."""
        # Then `undo` puts right what half a call has left in Python's objects.
        # What the first run has allocated on its stream would be kept for calls that no longer come.
        torch.cuda.empty_cache()
        replay, problem, cause = call, None, None
        self.is_recording = True
        try:
            replay = capture(call, 1, self._stream)
        except CaptureError as error:
            problem, cause = f"a step can't be captured in a CUDA graph: {error}", error
        finally:
            self.is_recording = False
        self.problem = agreed_problem(problem, self._peers)
        if self.problem is None:
            return replay
        undo()
        if self._required:
            raise UncapturableError(self.problem) from cause
        # Its traceback has this frame, which would keep half a step's gradients until garbage is collected.
        del cause
        _log.warning("trainer.capture: %s; steps are launched one by one", self.problem)
        return call


class Program:
    """A call that runs as it is the first time, is captured the second time, and replayed from then on."""

    # It queues its work on the current stream, and its tensors have the same memory in each call.

    def __init__(
        self, call: Callable[[], None], recorder: Recorder, undo: Callable[[], None] = lambda: None
    ) -> None:
        self._call, self._recorder, self._undo = call, recorder, undo
        self._has_run = False
        self._replay: Callable[[], None] | None = None

    def __call__(self) -> None:
        """Run, capture or replay the call; see `Recorder.record` for a capture that fails."""
        # Ranks that train together have all failed then: NCCL wants a call captured on all of them, or none.
        # Graphs of before a failed capture share torch's generator with it, and can't be replayed either.
        if self._recorder.problem is not None:
            self._replay = self._call
        elif not self._has_run:
            self._has_run = True
            self._recorder.run_first(self._call)
            return
        elif self._replay is None:
            self._replay = self._recorder.record(self._call, self._undo)
        self._replay()

    def release(self) -> None:
        """Free the graph. The next call captures it again."""
        self._replay = None


#: Most steps of a chunk, so that checkpoints and the progress bar are not late.
_MOST = 64


@dataclass(frozen=True)
class Chunks:
    """How a run is divided into chunks of steps, and who is told of their steps."""

    validate_every: int
    log_every: int
    stops_early: bool
    best: BestEpoch
    history: History
    timer: EpochTimer

    @property
    def longest(self) -> int:
        """Most steps of a chunk."""
        return min(self.log_every, _MOST)

    def count(self, done: int, end: int) -> int:
        """Return the steps of the chunk after `done` steps of a run of `end` steps."""
        count = min(self.longest, end - done)
        if self.stops_early:
            count = min(count, self.validate_every - done % self.validate_every)
        return count


class Steps:
    """The training steps and the validation of a ChunkStrategy as programs, with results on the device."""

    def __init__(
        self, strategy: Any, source: BatchSource, recorder: Recorder, chunks: Chunks, done: int = 0
    ) -> None:
        self._module: TaskModule = strategy.lightning_module
        self._strategy, self._source, self._recorder, self._best = strategy, source, recorder, chunks.best
        device = strategy.root_device
        self._optimizer = strategy.optimizers[0]
        groups = self._optimizer.param_groups if strategy.lr_scheduler_configs else []
        self._written = [float(group["lr"]) for group in groups]
        # A graph has the numbers of its capture, except those that it reads from the device.
        self._rates = [torch.tensor(rate, dtype=torch.float32, device=device) for rate in self._written]
        self.losses = torch.zeros(chunks.longest, dtype=torch.float32, device=device)
        self.scores = torch.zeros(chunks.longest, 0, dtype=torch.float32, device=device)
        self.names: tuple[str, ...] = ()
        self.next_row = torch.zeros(1, dtype=torch.int64, device=device)  # where the next results go
        self._step = torch.tensor(done, dtype=torch.int64, device=device)
        self._programs: dict[Hashable, Program] = {}
        self._validation = Program(self._validate, recorder)

    def begin(self, step: int) -> None:
        """Do what a step needs of the host, before it is launched or replayed."""
        for index, rate in enumerate(self._rates):  # a graph reads the learning rates from the device
            now = float(self._optimizer.param_groups[index]["lr"])
            if now != self._written[index]:
                rate.fill_(now)
                self._written[index] = now
        self._module.begin_step(step)

    def train(self) -> None:
        """Make the next step: by the program of its static buffers, or by itself if it has none."""
        given: StepInput = next(self._source.steps)
        if given.buffers is None or self._recorder.problem is not None:
            self._train(given.single)
            return
        given.load()
        if given.buffers not in self._programs:
            call = functools.partial(self._train, given.static)
            self._programs[given.buffers] = Program(call, self._recorder, self._renew_scaler)
        self._programs[given.buffers]()

    def validate(self) -> None:
        """Score the model after the step that was made last."""
        if self._source.captures_validation:
            self._validation()
        else:
            self._validate()

    def _train(self, make_batch: Callable[[], Any]) -> None:
        module, plugin = self._module, self._strategy.precision_plugin
        self._optimizer.zero_grad(set_to_none=True)
        with plugin.train_step_context():
            loss: Any = module.training_step(make_batch())
        scaler = getattr(plugin, "scaler", None)
        (loss if scaler is None else scaler.scale(loss)).backward()
        module.share_gradients()
        if scaler is None:
            self._update(self._optimizer.step)
        else:
            self._update(lambda: scaler.step(self._optimizer))
            scaler.update()
        self.losses.index_copy_(0, self.next_row, loss.detach().float().reshape(1))
        self.next_row.add_(1)
        self._step.add_(1)

    def _update(self, step: Callable[[], Any]) -> None:
        """Make the optimiser's step, in a capture, and no longer, with the settings that it needs."""
        # The fused optimiser computes the same with `capturable`; checkpoints must not hold it.
        if not self._recorder.is_recording:
            step()
            return
        groups = self._optimizer.param_groups
        before = [(group["lr"], group["capturable"]) for group in groups]
        try:
            for index, group in enumerate(groups):
                group["capturable"] = True
                group["lr"] = self._rates[index] if self._rates else group["lr"]
            step()
        finally:
            for group, (rate, capturable) in zip(groups, before, strict=True):
                group["lr"], group["capturable"] = rate, capturable

    def _renew_scaler(self) -> None:
        """Replace a gradient scaler that half a step has left where it takes no other step."""
        plugin: Any = self._strategy.precision_plugin
        if getattr(plugin, "scaler", None) is not None:
            state = plugin.scaler.state_dict()
            plugin.scaler = torch.amp.GradScaler(self._strategy.root_device.type)
            plugin.scaler.load_state_dict(state)

    def release(self) -> None:
        """Free the graphs now, and not when Python collects garbage: NCCL can't end before them."""
        for program in (*self._programs.values(), self._validation):
            program.release()
        if isinstance(self._source.steps, Generator):
            self._source.steps.close()  # and with it a thread that makes batches

    def _validate(self) -> None:
        scores = validate(self._strategy.precision_plugin, self._module, self._source.validation)
        self._best.update(scores, self._step, self._module)
        row = torch.stack([value.float() for value in scores.values()])
        if not self.names:
            self.names = tuple(scores)
            self.scores = row.new_zeros(self.losses.numel(), len(scores))
        self.scores.index_copy_(0, self.next_row - 1, row[None])


class ChunkStrategy(SingleDeviceStrategy):
    """Lightning's strategy for one device, whose training step is a chunk of steps."""

    # Lightning's own calls of backward and the optimiser are left out: a chunk has made them. Its counters
    # and schedules go on as if it had made each step.

    def __init__(
        self, device: torch.device, chunks: Chunks, recorder: Recorder, source: Callable[[], BatchSource]
    ) -> None:
        super().__init__(device)
        self._chunks, self._recorder, self._source = chunks, recorder, source
        self._steps: Steps | None = None
        self._made = 0

    def training_step(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Make the steps of a chunk, and return the last loss."""
        chunks, trainer = self._chunks, self._trainer
        if self._steps is None:
            self._steps = Steps(self, self._source(), self._recorder, chunks, trainer.global_step)
        steps, done, end = self._steps, trainer.global_step, trainer.max_steps
        count, validated = chunks.count(done, end), set()
        steps.next_row.zero_()
        for step in range(done + 1, done + count + 1):
            chunks.timer.mark(self.root_device, step - 1)
            steps.begin(step - 1)
            steps.train()
            if step < done + count:  # after the last one Lightning does it
                for config in self.lr_scheduler_configs:
                    schedule: Any = config.scheduler
                    schedule.step()
            if step % chunks.validate_every == 0 or step == end:
                steps.validate()
                validated.add(step)
        values = torch.cat([steps.losses[:count, None], steps.scores[:count]], dim=1)
        names = ("train/loss", *(f"val/{name}" for name in steps.names))
        chunks.history.add(trainer, StepRows(done + 1, names, values, frozenset(validated)))
        if done + count in validated:
            chunks.best.stop_if_worse(trainer, done + count)
        self._made = count
        return steps.losses[count - 1].clone()

    def backward(self, closure_loss: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Return the loss: the chunk has computed its gradients."""
        return closure_loss

    def optimizer_step(self, optimizer: Any, closure: Any, model: Any = None, **kwargs: Any) -> Any:
        """Make the chunk, whose optimiser steps are counted: Lightning counts one itself."""
        loss = closure()
        progress = self._trainer.fit_loop.epoch_loop.automatic_optimization.optim_progress
        for counter in (progress.optimizer.step.total, progress.optimizer.step.current):
            counter.ready += self._made - 1
            counter.completed += self._made - 1
        return loss

    @property
    def _trainer(self) -> pl.Trainer:
        assert self.lightning_module is not None
        return self.lightning_module.trainer

    def release(self) -> None:
        """Free the graphs and the gradients, whose memory is that of the graphs."""
        if self._steps is not None:
            self._steps.release()
            self._steps = None
        if self.lightning_module is not None:
            self.lightning_module.zero_grad(set_to_none=True)
