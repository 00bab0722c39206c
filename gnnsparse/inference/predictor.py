"""Predictor, which replays a model's forward pass as a CUDA graph.

It stands alone: it takes any model, trained here or not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from gnnsparse.errors import bad_type, bad_value, check_choice
from gnnsparse.precision import Precision
from gnnsparse.runtime.timing import CaptureError, capture
from gnnsparse.sparse.operand import SparseOperand
from gnnsparse.train.device import numerics
from gnnsparse.train.settings import CAPTURES
from gnnsparse.train.trained import LoadedModel


class Predictor:
    """A model's forward pass for inputs of fixed shapes, which a GPU replays without waiting for the CPU.

    On a GPU the pass is captured in a CUDA graph when the predictor is made: each call copies the inputs to
    where the graph reads them, and replays it. On a CPU each call calls the model. Weights that are changed
    in place later take part; a model with other tensors for weights needs a new predictor.

    Args:
        model: a model in evaluation mode, or one that `gnnsparse.load` returned.
        x: an example of the features [nodes, F] or tokens [batch, length], on the operand's device.
        adj: the operand, which is the same in all calls.
        more: more arguments of the model: tensors, of which calls may give others, or None.
        precision: precision of dense layers on a GPU, as in training; None: of a loaded model its own, else
            that of the operand.
        capture: "auto": on a GPU, if it can be done; "on": it must be; "off".

    Attributes:
        captured: whether calls replay a CUDA graph.
        problem: why they do not; None if they do.

    Raises:
        TypeError: an argument is of another type.
        ValueError: the model is in training mode, arguments are on several devices, or `capture` is "on" and
            the pass can't be captured.
    """

    def __init__(
        self,
        model: torch.nn.Module | LoadedModel,
        x: torch.Tensor,
        adj: SparseOperand,
        *more: torch.Tensor | None,
        precision: Precision | str | None = None,
        capture: str = "auto",
    ) -> None:
        check_choice("capture", capture, CAPTURES)
        if not isinstance(adj, SparseOperand):
            bad_type("adj", adj, "a SparseOperand, from gnnsparse.prepare")
        own: Precision | str = adj.precision
        if isinstance(model, LoadedModel):
            x, adj, *more = model.inputs(x, adj, *more)  # type: ignore[assignment]
            own, model = model.recipe.precision, model.module
        if not isinstance(model, torch.nn.Module):
            bad_type("model", model, "a torch.nn.Module, or what gnnsparse.load returns")
        if model.training:
            bad_value("model", "is in training mode; accepted: one after model.eval()")
        self._model, self._adj, self._device = model, adj, adj.device
        self._precision = Precision.parse(own if precision is None else precision)
        self._inputs = [self._own(f"argument {i}" if i else "x", t) for i, t in enumerate((x, *more))]
        self._out = torch.empty(0, device=self._device, dtype=torch.float32)
        self.problem: str | None = None
        self._replay = self._captured(capture)
        self.captured = self._replay is not None

    def _own(self, name: str, tensor: Any) -> torch.Tensor | None:
        if tensor is None and name != "x":
            return None
        if not isinstance(tensor, torch.Tensor):
            bad_type(name, tensor, "a tensor")
        if tensor.device != self._device:
            bad_value(name, f"is on {tensor.device}; accepted: {self._device}, where the operand is")
        return tensor.detach().clone(memory_format=torch.contiguous_format)

    def _captured(self, wanted: str) -> Callable[[], None] | None:
        """Capture the pass, and return what replays it; None: calls are to run it."""
        if wanted == "off":
            self.problem = "capture is 'off'"
        elif self._device.type != "cuda":
            self.problem = f"CUDA graphs need a GPU, and the operand is on {self._device}"
        else:
            try:
                with torch.cuda.device(self._device):
                    return capture(self._run, 1)
            except CaptureError as error:
                self.problem = f"the model can't be captured in a CUDA graph: {error}"
        if wanted == "on":
            bad_value("capture", f"got 'on', but {self.problem}; accepted: auto, off")
        return None

    def _run(self) -> None:
        with torch.no_grad(), numerics(self._precision, self._device):
            self._out = self._model(self._inputs[0], self._adj, *self._inputs[1:])

    def __call__(self, x: torch.Tensor | None = None, *more: torch.Tensor | None) -> torch.Tensor:
        """Compute the model's output.

        Args:
            x: features or tokens with the shape and dtype of the example, on its device or on the CPU; None:
                those of the last call.
            more: the model's other arguments in their order; None, or left out: those of the last call.

        Returns:
            What the model returns. A captured predictor returns the same tensor in each call, which the next
            call overwrites: clone it to keep it.

        Raises:
            TypeError: an argument is no tensor.
            ValueError: an argument has another shape, dtype or device than its example.
        """
        given = (x, *more)
        if len(given) > len(self._inputs):
            bad_value("more", f"got {len(more)} arguments; accepted: at most {len(self._inputs) - 1}")
        for i, (new, own) in enumerate(zip(given, self._inputs, strict=False)):
            if new is not None:
                self._check(f"argument {i}" if i else "x", new, own)
        with torch.no_grad():
            for new, own in zip(given, self._inputs, strict=False):
                if new is not None and own is not None:
                    own.copy_(new, non_blocking=True)
        if self._replay is None:
            self._run()
        else:
            self._replay()
        return self._out

    def _check(self, name: str, new: Any, own: torch.Tensor | None) -> None:
        if not isinstance(new, torch.Tensor):
            bad_type(name, new, "a tensor")
        if own is None:
            bad_value(name, "got a tensor; accepted: None, as in the example")
        is_here = new.device in (own.device, torch.device("cpu"))
        if (new.shape, new.dtype) != (own.shape, own.dtype) or not is_here:
            got, want = (f"{t.dtype} {list(t.shape)} on {t.device}"[len("torch.") :] for t in (new, own))
            bad_value(name, f"got {got}; accepted: {want}, as in the example")
