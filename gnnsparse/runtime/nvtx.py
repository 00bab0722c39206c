"""Named ranges around operations, which profilers show: NVTX ranges, and ranges of torch.profiler.

Ranges are decided on when the package is imported: the environment variable GNNSPARSE_NVTX=1 turns them on.
If it is not set, `ranged` returns functions as they are, so that an operation costs what it costs without
ranges.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable
from typing import Any, TypeVar

import torch

#: What the names of ranges begin with.
PREFIX = "gnnsparse."
_VARIABLE = "GNNSPARSE_NVTX"

_Function = TypeVar("_Function", bound=Callable[..., Any])


_setting = os.environ.get(_VARIABLE, "0")
if _setting not in ("", "0", "1"):
    raise ValueError(f"{_VARIABLE}: got {_setting!r}; accepted: 0 or 1")
_on = _setting == "1"


def ranges_are_on() -> bool:
    """Return whether operations run in named ranges in this process."""
    return _on


@functools.lru_cache(maxsize=1)
def _nvtx() -> Any:
    """Return what makes an NVTX range; without a GPU, or CUDA in torch, a context that does nothing."""
    return torch.cuda.nvtx.range if torch.cuda.is_available() else contextlib.nullcontext


def ranged(name: str) -> Callable[[_Function], _Function]:
    """Make a function run in a range called `name`, after PREFIX; where ranges are off it stays as it is."""
    if not _on:
        return lambda function: function
    return functools.partial(_in_range, PREFIX + name)


def _in_range(label: str, function: Any) -> Any:
    @functools.wraps(function)
    def call(*arguments: Any, **options: Any) -> Any:
        if torch.compiler.is_compiling():
            return function(*arguments, **options)
        with torch.profiler.record_function(label), _nvtx()(label):
            return function(*arguments, **options)

    return call
