"""What torch puts between a tensor and its memory: transforms of torch.func, forward-mode AD, lazy signs.

Native kernels read memory. Inside a transform a tensor is a wrapper that has none, a negative view stands for
other numbers than its memory holds, and a zero tensor has a shape and no memory at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import wraps
from typing import Any, TypeVar

import torch
from torch._C import _are_functorch_transforms_active as _in_torch_func
from torch._C import _functorch
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch.autograd import forward_ad


def is_eager() -> bool:
    """Return whether a call can go straight to a kernel: no trace, transform or forward-mode AD level."""
    return not (torch.compiler.is_compiling() or _in_torch_func() or forward_ad._current_level >= 0)


_Function = TypeVar("_Function", bound=Callable[..., Any])


def is_batch_of_gradients(grad: torch.Tensor) -> bool:
    """Return whether a backward pass got a batch (`is_grads_batched`), which needs dispatcher operators."""
    return _functorch.is_legacy_batchedtensor(grad)


def outside() -> AbstractContextManager[None]:
    """Return a context manager inside which neither a transform of torch.func nor inference mode is active.

    What outlives a call is made inside it: a transform wraps every new tensor, and what is made in inference
    mode could not be used in training later.
    """
    if torch.is_inference_mode_enabled() or _in_torch_func():
        return _left()
    return nullcontext()  # to leave what is not active would take as long as a small operation


@contextmanager
def _left() -> Iterator[None]:
    with (
        torch.inference_mode(False),
        temporarily_clear_interpreter_stack() if _in_torch_func() else nullcontext(),
    ):
        yield


def runs_outside(function: _Function) -> _Function:
    """Make a function run inside `outside()`; it unwraps its arguments itself."""

    @wraps(function)
    def call(*arguments: Any, **options: Any) -> Any:
        with outside():
            return function(*arguments, **options)

    return call  # type: ignore[return-value]


def untraced(function: _Function) -> _Function:
    """Make torch.compile call a function instead of tracing it."""

    @wraps(function)
    def call(*arguments: Any, **options: Any) -> Any:
        if torch.compiler.is_compiling():  # only then: `disable` imports modules, which takes seconds
            return torch.compiler.disable(function)(*arguments, **options)
        return function(*arguments, **options)

    return call  # type: ignore[return-value]


def constant_when_traced(function: _Function) -> _Function:
    """Make torch.compile run a function while it traces, and take what it returns for a constant.

    It is what torch.compiler.assume_constant_result does, a call of which imports the compiler for seconds.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


def materialised(t: torch.Tensor) -> torch.Tensor:
    """Return `t` with its numbers in memory, differentiably: negative views negated, zero tensors filled."""
    # While torch.compile traces, the dispatcher settles the arguments of registered operators.
    if torch.compiler.is_compiling() or not (t.is_neg() or t._is_zerotensor()):
        return t
    return t.resolve_neg() if t.is_neg() else t.clone()


def innermost(name: str, t: torch.Tensor) -> torch.Tensor:
    """Return the tensor that torch.func.grad or jvp wrap; refuse one that torch.vmap maps over."""
    while _functorch.is_gradtrackingtensor(t):
        t = _functorch.get_unwrapped(t)
    if _functorch.is_batchedtensor(t):
        raise ValueError(
            f"{name}: got a tensor that torch.vmap maps over; accepted: one graph for all (prepare several "
            "graphs outside of vmap)"
        )
    return t


def unwrapped(name: str, t: torch.Tensor) -> torch.Tensor:
    """Return what grad or jvp wrap as a detached Tensor with numbers in memory; see `innermost`."""
    return materialised(innermost(name, t).as_subclass(torch.Tensor).detach())


def alive(tensors: Iterable[torch.Tensor | None]) -> list[Any]:
    """Return tensors that autograd has saved, without the wrappers of transforms that have ended."""
    return [None if t is None else _functorch.unwrap_if_dead(t) for t in tensors]
