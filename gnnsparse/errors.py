"""Checks of arguments. Every error names the argument, what it got and what is accepted."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

import numpy as np
import torch

__all__ = [
    "bad_type",
    "bad_value",
    "check_array",
    "check_choice",
    "check_device",
    "check_flag",
    "check_integer",
    "check_memory",
    "check_share",
    "check_tensor",
    "device_of",
    "naming",
]


def bad_value(name: str, problem: str) -> NoReturn:
    """Raises a ValueError about the argument `name`."""
    raise ValueError(f"{name}: {problem}")


def bad_type(name: str, got: Any, accepted: str) -> NoReturn:
    """Raises a TypeError about the argument `name`."""
    kind = f"a tensor of dtype {got.dtype}" if isinstance(got, torch.Tensor) else type(got).__name__
    raise TypeError(f"{name}: got {kind}; accepted: {accepted}")


def check_integer(
    name: str, value: Any, least: int = 1, accepted: str = "a positive integer", most: int = 2**63 - 1
) -> int:
    """Returns `value` if it is an integer from `least` to `most`, else raises."""
    if isinstance(value, bool) or not isinstance(value, int):
        bad_type(name, value, accepted)
    if not least <= value <= most:
        bad_value(name, f"got {value}; accepted: {accepted}")
    return value


def check_share(name: str, value: Any) -> float:
    """Returns `value` if it is a number in [0, 1), else raises."""
    accepted = "a number in [0, 1)"
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        bad_type(name, value, accepted)
    if not 0 <= value < 1:
        bad_value(name, f"got {value}; accepted: {accepted}")
    return float(value)


def check_choice(name: str, value: Any, choices: Sequence[str]) -> str:
    """Returns `value` if it is one of `choices`, else raises."""
    if not isinstance(value, str):
        bad_type(name, value, "one of " + ", ".join(choices))
    if value not in choices:
        bad_value(name, f"got {value!r}; accepted: {', '.join(choices)}")
    return value


def check_flag(name: str, value: Any) -> bool:
    """Returns `value` if it is a bool, else raises."""
    if not isinstance(value, bool):
        bad_type(name, value, "True or False")
    return value


def check_array(name: str, value: Any, accepted: str) -> np.ndarray[Any, Any]:
    """Returns a list, tuple or array as a NumPy array of a dtype that torch has too, else raises."""
    try:
        array = np.ascontiguousarray(value)
        torch.from_numpy(array)
    except (ValueError, TypeError, RuntimeError, OverflowError, NotImplementedError):
        # Rows of several lengths, tensors that NumPy can't read, texts and other objects.
        raise TypeError(
            f"{name}: got a {type(value).__name__} that is no array; accepted: {accepted}"
        ) from None
    return array


def device_of(name: str, value: Any) -> torch.device:
    """Returns the device that `value` is or names, with its index: "cuda" is the current GPU. Else raises."""
    accepted = "cpu, cuda or cuda:<number>"
    if not isinstance(value, (str, torch.device)):
        bad_type(name, value, accepted)
    try:
        empty = torch.empty(0, dtype=torch.uint8, device=value)
    except (RuntimeError, AssertionError) as error:  # no such device, or a torch without CUDA
        problem = str(error).splitlines()[0]
        raise ValueError(
            f"{name}: got {str(value)!r}; accepted: {accepted}; torch says: {problem}"
        ) from error
    return check_device(name, empty).device


def check_device(name: str, tensor: torch.Tensor) -> torch.Tensor:
    """Returns `tensor` if it has memory on the CPU or an NVIDIA GPU, else raises."""
    if tensor.device.type not in ("cpu", "cuda"):
        bad_value(name, f"is on {tensor.device}; accepted: cpu, cuda")
    return tensor


def check_memory(name: str, nbytes: int, what: str) -> None:
    """Raises MemoryError if an allocation on the CPU would need 90 % of the machine's memory or more.

    Without this check the operating system would end the process instead.
    """
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if nbytes > 0.9 * total:
        raise MemoryError(
            f"{name}: {what} needs {nbytes / 1e9:.1f} GB, this machine has {total / 1e9:.1f} GB"
        )


def check_tensor(
    name: str,
    value: Any,
    *,
    dtypes: tuple[torch.dtype, ...],
    device: torch.device | None = None,
    shape: tuple[int | None, ...] | None = None,
) -> torch.Tensor:
    """Returns `value` if it is a dense tensor of an accepted dtype, device and shape, else raises.

    `None` in `shape` accepts any size.
    """
    if not isinstance(value, torch.Tensor) or value.layout != torch.strided or value.dtype not in dtypes:
        names = ", ".join(str(d).removeprefix("torch.") for d in dtypes)
        bad_type(name, value, f"a dense tensor of dtype {names}")
    if shape is not None and (
        value.dim() != len(shape)
        or any(want is not None and want != got for want, got in zip(shape, value.shape, strict=True))
    ):
        wanted = ", ".join("any" if s is None else str(s) for s in shape)
        bad_value(name, f"has shape {tuple(value.shape)}; accepted: ({wanted})")
    if device is not None and value.device != device:
        bad_value(name, f"is on {value.device}; accepted: {device}, where the operand is")
    return value


@contextlib.contextmanager
def naming(group: str) -> Iterator[None]:
    """Prefixes errors about an argument `name` with `group.`, the name of the option in a configuration."""
    try:
        yield
    except (ValueError, TypeError) as error:
        dot = "." if re.match(r"\w+: ", str(error)) else ": "
        raise type(error)(f"{group}{dot}{error}") from error
