"""An operand with what it stands for, random dense arguments, and checks by the accuracy rule."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from gnnsparse import Precision, SparseOperand
from gnnsparse.precision import round_operand
from gnnsparse.testing import measure_errors
from tests.fuzz.api.graphs import Dense, draw_strided
from tests.fuzz.common import Draw, Trial
from tests.helpers import ROUNDING

FLOATS = (torch.float32, torch.float16, torch.bfloat16)
WIDTHS = (1, 2, 3, 4, 7, 8, 9, 16, 17, 32, 33, 0, 64, 100)


@dataclass(frozen=True, eq=False)
class Env:
    """An operand in a trial, what it stands for, and its nonzeros in its own order."""

    a: SparseOperand
    dense: Dense
    row: torch.Tensor
    col: torch.Tensor
    name: str

    @property
    def precision(self) -> str:
        return self.a.precision.value

    def transposed(self) -> Env:
        row, col = self.a.T.indices()
        return Env(self.a.T, self.dense.T, row, col, self.name + ".T")

    def at_nonzeros(self, matrix: torch.Tensor) -> torch.Tensor:
        return matrix[self.row, self.col]

    def spread(self, values: torch.Tensor) -> torch.Tensor:
        """Edge values [nnz] as a dense matrix. Differentiable."""
        shape = self.dense.matrix.shape
        flat = values.new_zeros(shape[0] * shape[1]).index_put((self.row * shape[1] + self.col,), values)
        return flat.view(shape)

    def rounded(self, x: torch.Tensor) -> torch.Tensor:
        """An operand of a product in the operand's precision, as float32. The gradient passes unchanged."""
        x = x.float()
        return x + (round_operand(x.detach(), Precision.parse(self.precision)).float() - x.detach())


def draw_dense(draw: Draw, *shape: int, dtype: torch.dtype | None = None) -> torch.Tensor:
    dtype = dtype or draw.choice(FLOATS)
    x = torch.randn(shape, generator=torch.Generator().manual_seed(draw.seed()))
    if len(shape) == 2 and draw.chance(0.1):
        return (x[:, :1].expand(shape) if shape[1] else x).to(dtype)
    return draw_strided(draw, x.to(dtype))


def floor_of(precision: str, dtype: torch.dtype, roundings: int = 8) -> float:
    """An error that is always allowed, because the plain run of a few sums may be exact by luck."""
    return roundings * max(ROUNDING[precision], torch.finfo(dtype).eps)


def check_close(
    trial: Trial,
    what: str,
    got: torch.Tensor,
    plain: torch.Tensor,
    exact: torch.Tensor,
    floor: float,
    scale: torch.Tensor | None = None,
) -> None:
    trial.check(got.shape == exact.shape, f"{what}: shape {tuple(got.shape)}, not {tuple(exact.shape)}")
    if got.numel() == 0:
        return
    got = got.detach()
    if got.is_inference():
        got = got.clone()
    errors = measure_errors(got, plain.detach(), exact.detach(), floor=floor, scale=scale)
    trial.check(errors.ok, f"{what}: error {errors.actual}, allowed {errors.allowed}, plain {errors.plain}")


def check_equal(trial: Trial, what: str, got: torch.Tensor, wanted: torch.Tensor) -> None:
    """Judges a result that has to be the same bit for bit; NaN equals NaN."""
    same = got.shape == wanted.shape and got.dtype == wanted.dtype
    trial.check(same, f"{what}: {got.dtype} {tuple(got.shape)}, not {wanted.dtype} {tuple(wanted.shape)}")
    trial.check(
        torch.equal(got.detach().nan_to_num(7e7), wanted.detach().nan_to_num(7e7)), f"{what}: differs"
    )


def leaves_of(tensors: Sequence[torch.Tensor], needs: Sequence[bool]) -> list[torch.Tensor]:
    """Tensors of which some require a gradient; those keep their values in memory of their own."""
    # Autograd saves no tensor that was made in inference mode.
    own = [t.clone() if any(needs) and t.is_inference() else t for t in tensors]
    return [t.detach().requires_grad_() if need else t for t, need in zip(own, needs, strict=True)]


def gradients(out: torch.Tensor, leaves: Sequence[torch.Tensor], probe: torch.Tensor) -> list[torch.Tensor]:
    wanted = [x for x in leaves if x.requires_grad]
    return list(torch.autograd.grad(out, wanted, probe.to(out.dtype)))


# Settings of torch that a user may have changed. Each is a context manager around a single call.


@contextlib.contextmanager
def _set(*settings: tuple[Callable[[Any], Any], Any, Any]) -> Iterator[None]:
    """Calls each function with the first value, and afterwards with the second one."""
    for function, value, _ in settings:
        function(value)
    try:
        yield
    finally:
        for function, _, value in settings:
            function(value)


def _fills(value: bool) -> None:
    torch.utils.deterministic.fill_uninitialized_memory = value


def _poisoned() -> contextlib.AbstractContextManager[None]:
    before = torch.utils.deterministic.fill_uninitialized_memory
    return _set((torch.use_deterministic_algorithms, True, False), (_fills, True, before))


MODES: dict[str, Callable[[], contextlib.AbstractContextManager[Any]]] = {
    "": contextlib.nullcontext,
    "poisoned": _poisoned,
    "default float64": lambda: _set((torch.set_default_dtype, torch.float64, torch.float32)),
    "default meta": lambda: torch.device("meta"),
    "threads": lambda: _set((torch.set_num_threads, 3, torch.get_num_threads())),
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "no_grad": torch.no_grad,
    "inference": torch.inference_mode,
}
#: Modes in which autograd records nothing.
QUIET = ("no_grad", "inference")


def root(squares: torch.Tensor) -> torch.Tensor:
    """The square root of sums of squares, which rounding may have put below 0."""
    return squares.clamp(min=0).sqrt()
