"""Content hashes of tensors (XXH3, 128 bits)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import xxhash

from gnnsparse.transforms import settled

__all__ = ["digest", "fingerprint"]


def _bytes(tensor: torch.Tensor) -> Any:
    """Returns the elements of a tensor in order, as an object with the buffer protocol."""
    tensor = settled(tensor.detach()).contiguous()
    try:
        return tensor.numpy(force=True)
    except TypeError:  # a dtype that NumPy lacks
        return tensor.cpu().reshape(-1).view(torch.uint8).numpy()


def digest(tensor: torch.Tensor) -> str:
    """Returns a hash of a tensor's bytes, 32 hexadecimal digits."""
    return xxhash.xxh3_128_hexdigest(_bytes(tensor))


def fingerprint(tensors: Iterable[torch.Tensor | None], *parts: object) -> str:
    """Returns a hash of the contents, dtypes and shapes of tensors and of `repr(parts)`, 32 hex digits."""
    state = xxhash.xxh3_128(repr(parts).encode())
    for tensor in tensors:
        if tensor is None:
            state.update(b"none")
            continue
        state.update(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
        state.update(_bytes(tensor))
    return state.hexdigest()
