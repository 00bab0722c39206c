"""Linear layers of inference with less traffic: results in whole vectors, and activations in place.

Only calls without gradients, transforms and tracing take these paths; results are the same bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F  # noqa: N812

from gnnsparse.nn.inputs import is_plain_linear
from gnnsparse.runtime.device import VECTOR_BYTES
from gnnsparse.runtime.functorch import is_direct

__all__ = ["activated_linear", "linear_in_vectors"]

#: Activations, and functions that compute them in place.
_IN_PLACE: tuple[tuple[Callable[..., torch.Tensor], Callable[[torch.Tensor], torch.Tensor]], ...] = (
    (F.relu, torch.relu_),
    (F.gelu, torch._C._nn.gelu_),  # type: ignore[attr-defined]
)
_PLAIN = (torch.Tensor, torch.nn.Parameter)


def _is_inference(x: torch.Tensor, weight: torch.Tensor) -> bool:
    """Returns whether nothing but the numbers of a product is wanted, in the dtype of both factors."""
    return (
        not torch.is_grad_enabled()
        and type(x) in _PLAIN
        and type(weight) in _PLAIN
        and x.dtype == weight.dtype
        and is_direct()
        and not torch.is_autocast_enabled(x.device.type)
    )


def linear_in_vectors(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Computes x W^T, in inference on a GPU with rows that begin at whole vectors of 16 bytes.

    Kernels read such rows as they are; a matrix of 7 or 41 columns they would copy first.

    Args:
        x: [rows, in_features].
        weight: [out_features, in_features].

    Returns:
        [rows, out_features]; its rows may lie further apart than their elements take.
    """
    features = weight.shape[0]
    rest = features * weight.dtype.itemsize % VECTOR_BYTES
    if rest == 0 or not x.is_cuda or not _is_inference(x, weight):
        return F.linear(x, weight)
    return padded_linear(x, weight)


def padded_linear(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Computes x W^T with rows that begin at whole vectors; see `linear_in_vectors`."""
    features, per_vector = weight.shape[0], VECTOR_BYTES // weight.dtype.itemsize
    out = x.new_empty(x.shape[0], -(-features // per_vector) * per_vector)[:, :features]
    return torch.mm(x, weight.t(), out=out)


def activated_linear(
    x: torch.Tensor, linear: torch.nn.Linear, activation: Callable[[torch.Tensor], torch.Tensor]
) -> torch.Tensor:
    """Applies a linear layer and an activation, in inference in the memory of the layer's result.

    Args:
        x: [..., in_features].
        linear: the layer. If it has hooks, which may keep its result, that is left as it is.
        activation: the activation. F.relu and F.gelu can be computed in place.
    """
    in_place = next((quick for known, quick in _IN_PLACE if known is activation), None)
    if in_place is None or not is_plain_linear(linear) or not _is_inference(x, linear.weight):
        return activation(linear(x))
    return in_place(F.linear(x, linear.weight, linear.bias))
