"""CPU tensors on the path of a GPU, whose kernels native/emulator runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from gnnsparse import Precision
from gnnsparse.plan import AttentionGradPlan, AttentionPlan
from gnnsparse.runtime import device as device_module
from gnnsparse.runtime.device import Device
from tests.gpu_paths import H200, RunningPath


@contextmanager
def running(emulated: ModuleType, device: Device = H200) -> Iterator[RunningPath]:
    """Operands on the CPU take the path of a GPU inside a `with` block."""
    path, (major, minor) = RunningPath(emulated, device), device.capability
    emulated.set_capability(100 * major + 10 * minor)
    try:
        with device_module.use(path):
            yield path
    finally:
        emulated.set_capability(900)


#: Operators whose results have sizes that a GPU computes, or that hand over numbers, so that the host waits.
_WAITING = ("_local_scalar_dense", "nonzero", "masked_select", "unique", "bincount", "equal.default")


class NotingWaits(TorchDispatchMode):
    """Notes the names of torch's operators for which the host would wait, of those inside a `with` block."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, kwargs = str(func).removeprefix("aten."), kwargs or {}
        unsized = name == "repeat_interleave.Tensor" and kwargs.get("output_size") is None
        if name.startswith(_WAITING) or unsized:
            self.found.append(name)
        return func(*args, **kwargs)


def attention_plan(tall: bool, limit: int) -> AttentionPlan:
    """Attention and its gradients over panels of 64 or 16 rows, those of more than `limit` K tiles cut."""
    rows = AttentionPlan(64 if tall else 16, limit, longest_first=limit % 2 == 0)
    return AttentionPlan(rows.height, limit, rows.longest_first, backward=AttentionGradPlan(rows, rows))


def padded(x: torch.Tensor, precision: str) -> torch.Tensor:
    """`x` in the storage dtype as the kernels take it: NaN fills its rows to whole 16 bytes."""
    dtype = Precision.parse(precision).storage
    per_vector = 16 // dtype.itemsize
    wide = torch.full((x.shape[0], -(-x.shape[1] // per_vector) * per_vector), float("nan"), dtype=dtype)
    wide[:, : x.shape[1]] = x
    return wide[:, : x.shape[1]]
