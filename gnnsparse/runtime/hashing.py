"""Content hashes of tensors (XXH3, 128 bits)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import xxhash

from gnnsparse.runtime.functorch import materialised


def raw_bytes(tensor: torch.Tensor) -> memoryview:
    """Return the elements of a tensor as bytes, in row-major order. They are copied only if they must be."""
    host = materialised(tensor.detach()).resolve_conj().cpu().reshape(-1)
    if host.stride() != (1,):  # `contiguous` leaves any stride to tensors of 0 or 1 elements
        host = torch.empty(host.numel(), dtype=host.dtype, device="cpu").copy_(host)
    array: Any = host.view(torch.uint8).numpy()
    return memoryview(array)


def digest(tensor: torch.Tensor) -> str:
    """Return a hash of a tensor's bytes, 32 hexadecimal digits."""
    return xxhash.xxh3_128_hexdigest(raw_bytes(tensor))


def fingerprint(tensors: Iterable[torch.Tensor | None], *parts: object) -> str:
    """Return a hash of the contents, dtypes and shapes of tensors and of `repr(parts)`, 32 hex digits."""
    state = xxhash.xxh3_128(repr(parts).encode())
    for tensor in tensors:
        if tensor is None:
            state.update(b"none")
            continue
        state.update(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
        state.update(raw_bytes(tensor))
    return state.hexdigest()
