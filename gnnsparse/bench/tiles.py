"""Measures what a 128 x 128 tile costs the kernels of attention over tiles: `gnnsparse bench fit --tiles`.

It stands alone because it asks the kernels by name, while the fit of the other costs asks their plans.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from gnnsparse import attention, prepare
from gnnsparse.formats.tiles import TILE
from gnnsparse.patterns import masks
from gnnsparse.plan.gpu_records.record import TileRates
from gnnsparse.runtime.timing import measure
from gnnsparse.sparse.operand import SparseOperand

#: The kernels, as `impl=` of attention names them. Those of libraries are compiled, which takes longest.
NAMES = ("panels", "blocks", "fa4", "flex")
#: Heads of all batch entries, tokens, and the part of the tiles that are kept in the pattern of full ones.
_BATCH, _HEADS, _LENGTH, _KEPT, _FEATURES = 8, 8, 8192, 0.094, 64
_REPEATS = 10


def _times(a: SparseOperand, name: str, tensors: list[torch.Tensor]) -> tuple[float, float]:
    """Return the microseconds of a forward and of a backward pass by a kernel, in fp16."""
    *leaves, grad = tensors

    def both() -> None:
        torch.autograd.grad(attention(a, *leaves, impl=name), leaves, grad)

    def forward() -> None:
        with torch.no_grad():
            attention(a, *leaves, impl=name)

    us = [1000 * measure(call, a.device, repeats=_REPEATS, graph=True).median for call in (forward, both)]
    return us[0], max(0.0, us[1] - us[0])


def measure_tiles(
    device: torch.device, tell: Callable[[str], None], names: Sequence[str] = NAMES, length: int = _LENGTH
) -> dict[str, TileRates]:
    """Measure those of the kernels that can run, on full tiles and on a window with partial ones."""
    count, generator = length // TILE, torch.Generator("cpu").manual_seed(0)
    kept = torch.rand(count, count, generator=generator, device="cpu", dtype=torch.float32) < _KEPT
    kept.fill_diagonal_(True)
    graphs = masks.block(kept, TILE), masks.window(length, TILE)
    blocks, window = (
        prepare(graph.to(device), precision="fp16", reorder="none", cache=False) for graph in graphs
    )
    size, heads, found = (_BATCH, _HEADS, length, _FEATURES), _BATCH * _HEADS, {}
    tensors = [torch.randn(size, device=device, dtype=torch.float16, requires_grad=i < 3) for i in range(4)]
    for name in names:
        try:
            times = [_times(a, name, tensors) for a in (blocks, window)]
        except ValueError as error:  # the kernel can't run here
            tell(f"{name}: {error}")
            continue
        passes = []
        for of_blocks, of_window in zip(*times, strict=True):
            full = of_blocks / (heads * blocks.kernels.tiles.full)
            tiles = window.kernels.tiles
            passes.append((full, max(0.0, of_window / heads - full * tiles.full) / tiles.partial))
        found[name] = TileRates(*passes)
        tell(f"{name}: blocks {times[0]}, window {times[1]} us")
    return found
