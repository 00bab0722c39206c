"""Seen, by which a layer tells whether it is given what it was given before."""

from __future__ import annotations

import weakref
from typing import Any

import torch

from gnnsparse.runtime.hashing import digest

__all__ = ["Seen"]


class Seen:
    """What is remembered of a tensor, to be compared with what is remembered of a tensor in a later call.

    On the CPU it is a hash of the contents, because torch does not count the changes that are made through
    NumPy, `.data`, DLPack or another process. It reads 20 GB/s and more, which is a few hundredths of the
    time of a sparse product. On a GPU a hash would make the host wait for the device, so that it is the
    tensor object, its version counter, address, shape, strides and dtype. Changes that torch does not count,
    through `.data`, DLPack or a kernel of another library, are not noticed there.

    Args:
        tensor: the tensor; None: there is none, which equals another None only.
    """

    __slots__ = ("_ref", "_what")

    def __init__(self, tensor: torch.Tensor | None) -> None:
        self._ref: weakref.ref[torch.Tensor] | None = None
        self._what: Any = None
        if tensor is None:
            return
        if tensor.device.type == "cpu" and tensor.layout == torch.strided:
            self._what = _contents(tensor)
        elif not tensor.is_inference():  # tensors made in inference mode have no version counter
            self._ref = weakref.ref(tensor)
            self._what = (tensor._version, *_place(tensor))
        else:
            self._what = object()  # equals nothing

    @property
    def is_gone(self) -> bool:
        """Whether no later tensor can equal this one, as it has been freed or has no version counter."""
        return (self._ref is not None and self._ref() is None) or type(self._what) is object

    def equals(self, other: Seen) -> bool:
        """Returns whether both are of equal tensors, or both of None."""
        if self._what != other._what:
            return False
        if self._ref is None or other._ref is None:
            return self._ref is other._ref
        return (tensor := self._ref()) is not None and tensor is other._ref()


def _contents(tensor: torch.Tensor) -> tuple[Any, ...]:
    if type(tensor) is not torch.Tensor:
        tensor = tensor.as_subclass(torch.Tensor)  # PyG's EdgeIndex is a subclass of Tensor
    turned = tensor.dim() == 2 and not tensor.is_contiguous()  # often the transpose of [edges, 2]
    return tensor.dtype, tensor.shape, turned, digest(tensor.t() if turned else tensor)


def _place(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Returns what changes when a tensor is made to show other memory, by `set_`, `resize_` or `.data = `."""
    strides = tensor.stride() if tensor.layout == torch.strided else None
    address = tensor.data_ptr() if tensor.layout == torch.strided else None
    return tensor.dtype, tensor.shape, strides, address
