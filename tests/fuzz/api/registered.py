"""torch.ops.gnnsparse.* with senseless arguments, as a program that was exported or altered may call them."""

from __future__ import annotations

from typing import Any

import torch

from tests.fuzz.api.junk import OPERANDS, tensor
from tests.fuzz.common import Draw, Trial

OPS = torch.ops.gnnsparse
NAMES = (
    "spmm", "sddmm", "edge_softmax", "edge_softmax_grad", "transpose_values", "attention", "attention_grad",
)  # fmt: skip


def _tensor(draw: Draw, *shape: int) -> torch.Tensor:
    """A float tensor of a shape that fits, or nearly, or not at all."""
    if draw.chance(0.15):
        return tensor(draw)
    sizes = list(shape)
    if draw.chance(0.3) and sizes:
        at = draw.below(len(sizes))
        sizes[at] = draw.choice((0, 1, max(sizes[at] - 1, 0), sizes[at] + 1, 2 * sizes[at], 64))
    dtype = draw.choice((torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int64))
    x = torch.randn(sizes).to(dtype if draw.chance(0.3) else torch.float32)
    return x.mT if x.dim() >= 2 and draw.chance(0.1) else x


def _number(draw: Draw, *usual: Any) -> Any:
    return draw.choice((float("nan"), -1.0, 2.0, 1e300)) if draw.chance(0.1) else draw.choice(usual)


def _arguments(draw: Draw, name: str, a: Any) -> list[Any]:
    m, n = a.shape
    if name == "spmm":
        return [_tensor(draw, n, 3), draw.choice((None, _tensor(draw, a.nnz)))]
    if name == "sddmm":
        return [_tensor(draw, m, 4), _tensor(draw, n, 4)]
    if name in ("edge_softmax", "transpose_values"):
        return [_tensor(draw, a.nnz)]
    if name == "edge_softmax_grad":
        return [_tensor(draw, a.nnz), _tensor(draw, a.nnz)]
    lead = draw.choice(((1, 1), (2, 3), (2,), ()))
    q, k, v = (_tensor(draw, *lead, *size) for size in ((m, 4), (n, 4), (n, 3)))
    bias = draw.choice((None, _tensor(draw, 1, 1, a.nnz)))
    seed = draw.choice((None, torch.tensor([5]), torch.tensor([5.0]), torch.zeros(0, dtype=torch.int64)))
    rest = [_number(draw, 1.0, 0.5), _number(draw, 0.0, 0.5), draw.choice((False, True))]
    if name == "attention":
        return [q, k, v, bias, seed, *rest]
    out, grad = _tensor(draw, *lead, m, 3), _tensor(draw, *lead, m, 3)
    stats = _tensor(draw, *lead, m, 2)
    return [q, k, v, bias, out, stats, grad, seed, *rest, [draw.chance(0.5) for _ in range(4)]]


def registered(trial: Trial) -> None:
    draw = trial.draw
    for _ in range(draw.integer(1, 6)):
        a = draw.choice(OPERANDS)
        name = draw.choice(NAMES)
        arguments = _arguments(draw, name, a)
        handle = draw.choice((-1, 2**40, 2**62)) if draw.chance(0.05) else a.handle
        at = {"attention": 5, "attention_grad": 8}.get(name, len(arguments))
        arguments.insert(at, handle)
        label = f"torch.ops.gnnsparse.{name} on {a.shape} nnz={a.nnz}: " + ", ".join(
            f"{tuple(x.shape)} {x.dtype}" if isinstance(x, torch.Tensor) else str(x) for x in arguments
        )
        trial.attempt(label, lambda: getattr(OPS, name)(*arguments), _of_dispatcher)  # noqa: B023


def _of_dispatcher(error: Exception) -> bool:
    """Whether torch's dispatcher refused the call, or the handle stands for no operand."""
    text = str(error)
    return isinstance(error, RuntimeError) and (
        text.startswith("gnnsparse::")
        or "no longer exists" in text
        or "Could not run 'gnnsparse::" in text
        or "Attempted to call" in text
    )
