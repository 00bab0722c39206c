"""Models whose attention layers have patterns, beside dense ones with equal parameters."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator
from typing import Any

import torch

from gnnsparse import SparseGraph
from gnnsparse.interop.transformers import sparsify
from gnnsparse.testing import assert_all_accurate, in_float64, with_gradients
from tests.helpers import ROUNDING

WIDTH, HEADS = 16, 4


def allowed(graph: SparseGraph, device: str = "cpu") -> torch.Tensor:
    """The pattern as a matrix, bool, True where a query attends to a key."""
    return torch.from_numpy(graph.to_scipy().toarray() != 0).to(device)


def twins(model: Any, pattern: Any, device: str = "cpu", **options: Any) -> tuple[Any, Any]:
    """The model with a pattern, and a dense copy.

    All parameters are random, those that start as 0 or 1 too, and large enough for weights that differ.
    """
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    model = model.to(device)
    dense = copy.deepcopy(model)
    return sparsify(model, pattern, **options), dense


def parameters(model: torch.nn.Module) -> list[torch.Tensor]:
    """All that need gradients, but the biases of keys alone and of queries alone.

    The gradient of the first is 0 but for roundings. That of the second is a sum over all tokens of what the
    gradient of the queries' weight has in it too, and in which most cancels.
    """
    without = tuple(f"{name}.bias" for name in ("key", "k_proj", "query", "q_proj"))
    named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    return [p for name, p in named if not name.endswith(without)]


def assert_same(
    sparse: tuple[Callable[..., torch.Tensor], torch.nn.Module],
    dense: tuple[Callable[..., torch.Tensor], torch.nn.Module],
    inputs: list[torch.Tensor],
    autocast: torch.dtype | None = None,
) -> None:
    """Outputs and all gradients of two functions and their models; the dense one in float64 judges."""
    device = next(dense[1].parameters()).device

    def run(call: Any, model: torch.nn.Module, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        context = contextlib.nullcontext() if autocast is None else torch.autocast(device.type, autocast)
        with context:
            return with_gradients(call, inputs, parameters(model))

    got, plain = run(*sparse, inputs), run(*dense, inputs)
    with in_float64(dense[1]) as model:
        exact = with_gradients(dense[0], [x.double() for x in inputs], parameters(model))
    # Sparse products round at other places than dense ones, on a GPU as sums of two tf32 numbers.
    floor = 32 * ROUNDING["fp32"]
    if autocast is not None:
        floor = 4 * torch.finfo(autocast).eps
    # A GPU rounds sums at other places: gradients in which most cancels are judged with the rest. On a CPU
    # these are those of the weights of queries and keys: their rounding depends on the CPU and its libraries.
    alone = [False] * len(parameters(sparse[1])) if device.type != "cpu" else _are_judged_alone(sparse[1])
    assert_all_accurate(*(_with_all_in_one(found, alone) for found in (got, plain, exact)), floor=floor)


def _are_judged_alone(model: torch.nn.Module) -> list[bool]:
    """Whether each of `parameters` is none of the weights of queries and of keys."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    cancelling = tuple(f"{name}.weight" for name in ("key", "k_proj", "query", "q_proj"))
    return [not names[id(parameter)].endswith(cancelling) for parameter in parameters(model)]


def _with_all_in_one(found: list[torch.Tensor], alone: list[bool]) -> list[torch.Tensor]:
    """Replaces the gradients of the parameters, which come last, by those of `alone` and a vector of all."""
    others, gradients = found[: -len(alone)], found[-len(alone) :]
    kept = [gradient for gradient, stays in zip(gradients, alone, strict=True) if stays]
    return [*others, *kept, torch.cat([gradient.flatten() for gradient in gradients])]


@contextlib.contextmanager
def masked_attention(pattern: torch.Tensor) -> Iterator[str]:
    """The name under which transformers finds dense attention masked by a pattern [L, L], bool."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.integrations.sdpa_attention import sdpa_attention_forward
    from transformers.masking_utils import sdpa_mask

    def attend(module: Any, q: Any, k: Any, v: Any, mask: Any, **options: Any) -> Any:
        kept = pattern.to(q.device)
        if mask is None and getattr(module, "is_causal", False):
            kept = kept & kept.new_ones(kept.shape).tril()
        return sdpa_attention_forward(module, q, k, v, kept if mask is None else mask & kept, **options)

    def mask(*arguments: Any, **options: Any) -> Any:
        options |= {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}
        return sdpa_mask(*arguments, **options)

    AttentionInterface.register("masked", attend)
    AttentionMaskInterface.register("masked", mask)
    yield "masked"
    del AttentionInterface._global_mapping["masked"], AttentionMaskInterface._global_mapping["masked"]
