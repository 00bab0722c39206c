"""torch.vmap of operations that have no wider form: one call for each entry of the batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

__all__ = ["loop"]


def loop(
    info: Any, in_dims: tuple[int | None, ...], call: Callable[..., Any], *arguments: torch.Tensor | None
) -> tuple[Any, Any]:
    """Calls a function for each entry of a batch, as a rule of torch.vmap.

    Args:
        info: what vmap hands to a rule; it has the size of the batch.
        in_dims: the dimension of the batch in each argument; None: the argument has none.
        call: takes the arguments of one entry, and returns a tensor or a tuple of tensors.
        arguments: tensors, or None.

    Returns:
        The results, stacked, and the dimension of the batch in each of them, which is 0.
    """
    results = []
    for at in range(info.batch_size):
        pairs = zip(arguments, in_dims, strict=True)
        results.append(call(*(a if a is None or dim is None else a.select(dim, at) for a, dim in pairs)))
    if isinstance(results[0], tuple):
        return tuple(map(torch.stack, zip(*results, strict=True))), (0,) * len(results[0])
    return torch.stack(results), 0
