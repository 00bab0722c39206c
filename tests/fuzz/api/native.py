"""The functions of gnnsparse._native with tensors, sizes and handles that do not fit together.

Native code checks dtypes, lengths, devices and numbers. What the tensors contain is checked before, in
Python, where they are made; so contents are valid here: offsets ascend, and orders are permutations.
"""

from __future__ import annotations

import inspect
import re
from functools import cache
from typing import Any

import torch

from gnnsparse import _native
from tests.fuzz.common import Draw, Trial

#: Not called: `set_cpu_isa` acts on the rest of the process, and the others write as many elements as the
#: contents of other arrays say, which the caller has counted.
_LEFT_OUT = ("set_cpu_isa", "fill_blocked", "fill_entries")
_ORDERS = ("order", "row_ids", "window_rows", "residual", "source", "nnz_index", "nnz_index_map", "map")
_OFFSETS = ("indptr", "panel_ptr", "brick_ptr", "value_ptr")
_FLOATS = (
    "scores", "grad", "weights", "values", "col_scale", "row_scale", "stats", "delta", "x", "y", "q", "k",
    "out",
)  # fmt: skip
_ATTACHED = (
    "panel_rows", "panel_ptr", "columns", "bitmap", "brick_ptr", "brick_rows", "value_ptr", "values",
    "slot_scale",
)  # fmt: skip
_LENGTHS = (8, 0, 1, 2, 3, 7, 9, 16, 17, 32, 64, 256, 4096)


@cache
def signature(name: str) -> tuple[tuple[str, str], ...]:
    """The arguments of a function or constructor as pairs (name, type), from its docstring."""
    what = getattr(_native, name)
    text = (what.__init__.__doc__ if inspect.isclass(what) else what.__doc__) or ""
    inside = text.splitlines()[0].partition("(")[2].rpartition(")")[0]
    pairs = re.findall(r"(\w+): ((?:[^,\[]|\[[^\]]*\])+)", inside)
    return tuple((name, kind.split("=")[0].strip()) for name, kind in pairs if name != "self")


def is_array(kind: str) -> bool:
    """Whether an argument of this type is a tensor."""
    return "Tensor" in kind or kind == "object"


@cache
def functions() -> tuple[str, ...]:
    """The functions that take tensors and run on the CPU."""
    names = [n for n in vars(_native) if not n.startswith(("__", "cuda_")) and n not in _LEFT_OUT]
    return tuple(n for n in names if inspect.isbuiltin(getattr(_native, n)))


def takes_tensors() -> bool:
    """Whether the native module was built from sources whose arrays are tensors, and not addresses."""
    return is_array(dict(signature("cpu_softmax"))["scores"])


class _Arguments:
    """Draws the arguments of one call, whose sizes are often those of one matrix."""

    def __init__(self, draw: Draw) -> None:
        self._draw = draw
        self._length = draw.choice(_LENGTHS)
        self._nnz = draw.choice(_LENGTHS)

    def tensor(self, name: str) -> Any:
        """A tensor whose dtype and length are those that the name stands for, mostly."""
        draw = self._draw
        if draw.chance(0.06):
            return draw.choice(
                (None, [1, 2], 8, "x", torch.zeros(3, device="meta"), torch.zeros(4).to_sparse())
            )
        length = self._length + 1 if name in _OFFSETS else draw.choice((self._length, self._nnz))
        length = draw.choice(_LENGTHS) if draw.chance(0.15) else length
        if name in _OFFSETS:
            made = (torch.arange(length) * self._nnz) // max(length - 1, 1)
        elif name in _ORDERS:
            made = torch.arange(length, dtype=torch.int32)
        elif name in _FLOATS:
            made = torch.zeros(length)
        else:
            made = torch.zeros(length, dtype=draw.choice((torch.int32, torch.int64, torch.uint8)))
        if draw.chance(0.05):
            made = made.to(draw.choice((torch.float16, torch.float64, torch.int16, torch.bool)))
        if draw.chance(0.05):
            made = made[::2]
        if name in ("tensor", "x", "y", "q", "k", "data"):
            rows = draw.choice((1, 2, 4))
            made = made[: len(made) // rows * rows].reshape(rows, -1)
        return made

    def number(self, name: str) -> Any:
        if name in ("threads", "lanes", "row_lanes"):
            return self._draw.choice((1, 2, 0, -1, 2**31 - 1))
        if name in ("rows", "cols"):  # indices are 0, and scratch memory is in proportion to the columns
            return self._draw.choice((self._length, 1, 3, 16, 4096, -1, 2**31, 2**62, -(2**63))) or 1
        if self._draw.chance(0.1):
            return self._draw.choice((2**31 - 1, 2**31, 2**40, 2**62, 2**63 - 1, -(2**63)))
        return self._draw.choice((self._length, self._nnz, 1, 2, 3, 4, 8, 16, 32, 0, -1, -7, 5))

    def of(self, trial: Trial, name: str, kind: str) -> Any:
        draw = self._draw
        if draw.chance(0.01):
            return draw.choice((None, "x", 1.5, 2**70, [], object()))
        if is_array(kind):
            return self.tensor(name)
        if "bool" in kind:
            return draw.choice((False, True))
        if "_native." in kind:
            return self.handle(trial, kind.rpartition(".")[2])
        if kind.startswith("str"):
            return "x"
        if "Sequence" in kind or "Annotated" in kind:
            return [draw.choice((0, 1, 2**32 - 1, 2**32, -1)) for _ in range(draw.choice((4, 3)))]
        if "Float" in kind:
            return draw.choice((1.0, 0.5, 0.0, -1.0, float("nan"), float("inf"), 1e308))
        if name in ("dtype", "precision", "encoding", "out_dtype"):
            return draw.choice((0, 1, 2, 3, 4, -1, 9))
        return self.number(name)

    def handle(self, trial: Trial, name: str) -> Any:
        values = {a: self.of(trial, a, kind) for a, kind in signature(name)}
        trial.calls.append(f"{name} " + ", ".join(f"{a}={_short(value)}" for a, value in values.items()))
        made = getattr(_native, name)(**values)
        if name == "Blocked" and self._draw.chance(0.7):
            made.attach(*(self.tensor(a) if self._draw.chance(0.7) else None for a in _ATTACHED))
        return made


def _short(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    return repr(value)[:40]


def native(trial: Trial) -> None:
    draw = trial.draw
    for _ in range(draw.integer(1, 10) if takes_tensors() else 0):
        name = draw.choice(functions())
        arguments = _Arguments(draw)
        trial.attempt(f"_native.{name}", lambda: _call(trial, name, arguments), _unfit)  # noqa: B023


def _call(trial: Trial, name: str, arguments: _Arguments) -> Any:
    values = {a: arguments.of(trial, a, kind) for a, kind in signature(name)}
    trial.calls.append(f"{name} " + ", ".join(f"{a}={_short(value)}" for a, value in values.items()))
    return getattr(_native, name)(**values)


def _unfit(error: Exception) -> bool:
    """Whether pybind11 refuses the type of an argument, or a message names two arguments."""
    text = str(error)
    return isinstance(error, (TypeError, ValueError)) and (
        "incompatible" in text or re.match(r"^\w+(, \w+)* and \w+: ", text) is not None
    )
