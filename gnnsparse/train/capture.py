"""Steps as CUDA graphs: what forbids it, and calls that are captured after their first run."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Iterator

import torch
import torch.distributed as dist
from torch.nn.modules import module as torch_modules

from gnnsparse.runtime.timing import CaptureError, capture
from gnnsparse.train.data import PreparedData
from gnnsparse.train.module import TaskModule

__all__ = ["Program", "Recorder", "UncapturableError", "obstacle"]

_log = logging.getLogger("gnnsparse.train")

#: Methods of a Lightning module that run in each step, of which a captured step makes no call.
_PER_STEP = (
    "backward", "configure_gradient_clipping", "lr_scheduler_step", "on_after_backward", "on_before_backward",
    "on_before_optimizer_step", "on_before_zero_grad", "on_train_batch_end", "on_train_batch_start",
    "optimizer_step", "optimizer_zero_grad",
)  # fmt: skip
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_TENSOR_HOOKS = ("_backward_hooks", "_post_accumulate_grad_hooks")


class UncapturableError(ValueError):
    """A run with trainer.capture=on can't be captured; the message says why."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"trainer.capture: got 'on', but {reason}; accepted: auto, off")


def obstacle(module: TaskModule, data: PreparedData) -> str | None:
    """Returns why the steps of a run can't be captured in CUDA graphs; None: nothing is known to forbid it.

    What only shows in a step, such as a model that waits for the GPU, is found when it is captured.
    """
    if data.device.type != "cuda":
        return f"CUDA graphs need a GPU, and the run is on {data.device}"
    if (reason := data.feed_obstacle(module)) is not None:
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
    return _hook(module)


def _hook(module: torch.nn.Module) -> str | None:
    """Returns a sentence on a hook, which would run when a step is captured and not in each step."""
    if torch_modules._has_any_global_hook():
        return "a hook of all modules would not run in each step"
    for name, part in module.named_modules():
        if any(getattr(part, hooks, None) for hooks in _HOOKS):
            return f"a hook of {name or 'the module'} would not run in each step"
    for name, parameter in module.named_parameters():
        if any(getattr(parameter, hooks, None) for hooks in _TENSOR_HOOKS):
            return f"a hook of {name} would not run in each step"
    return None


class Recorder:
    """Captures calls in CUDA graphs on one GPU.

    When a capture fails, the calls of all programs run as they are from then on.

    Args:
        device: the GPU.
        required: whether a capture that fails ends the run.

    Attributes:
        problem: why a capture failed; None: none did.
        is_recording: whether a call is being captured.
    """

    def __init__(self, device: torch.device, required: bool) -> None:
        self.problem: str | None = None
        self.is_recording = False
        self._device, self._required = device, required
        self._stream: torch.cuda.Stream | None = None

    def run_first(self, call: Callable[[], None]) -> None:
        """Runs a call for the first time, on the stream on which it is captured later."""
        if self._stream is None:
            self._stream = torch.cuda.Stream(self._device)
        current = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            call()
        current.wait_stream(self._stream)

    def record(self, call: Callable[[], None], undo: Callable[[], None]) -> Callable[[], None]:
        """Captures a call that has run before.

        Args:
            call: the call.
            undo: called after a failure, to put right what half a call has left in Python's objects.

        Returns:
            What replays the call; `call` itself if it can't be captured.

        Raises:
            UncapturableError: it can't be captured, and the recorder was made with `required`.
        """
        # What the first run has allocated on its stream would be kept for calls that no longer come.
        torch.cuda.empty_cache()
        replay, problem, cause = call, None, None
        try:
            with self._recording():
                replay = capture(call, 1, self._stream)
        except CaptureError as error:
            problem, cause = f"a step can't be captured in a CUDA graph: {error}", error
        self.problem = self._agreed(problem)
        if self.problem is None:
            return replay
        undo()
        if self._required:
            raise UncapturableError(self.problem) from cause
        # Its traceback has this frame, which would keep half a step's gradients until garbage is collected.
        del cause
        _log.warning("trainer.capture: %s; steps are launched one by one", self.problem)
        return call

    def _agreed(self, problem: str | None) -> str | None:
        """Returns why this call is not replayed, after the capture; None: it is."""
        return problem

    @contextlib.contextmanager
    def _recording(self) -> Iterator[None]:
        self.is_recording = True
        try:
            yield
        finally:
            self.is_recording = False


class Program:
    """A call that runs as it is the first time, and is captured the second time and replayed from then on.

    Args:
        call: queues its work on the current stream. Its tensors keep their places from call to call.
        recorder: captures it.
        undo: called after a capture that failed.
    """

    def __init__(
        self, call: Callable[[], None], recorder: Recorder, undo: Callable[[], None] = lambda: None
    ) -> None:
        self._call, self._recorder, self._undo = call, recorder, undo
        self._has_run = False
        self._replay: Callable[[], None] | None = None

    def __call__(self) -> None:
        """Runs the call.

        Raises:
            UncapturableError: see `Recorder.record`.
        """
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
        """Frees the graph. The next call captures it again."""
        self._replay = None
