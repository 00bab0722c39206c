"""Attention layers with patterns, and models of them, beside dense ones with equal parameters."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator
from typing import Any

import torch

from gnnsparse import SparseGraph, masks
from gnnsparse.interop.transformers import sparsify
from gnnsparse.nn import SparseAttention
from gnnsparse.testing import assert_accurate, assert_all_accurate, in_float64, with_gradients
from tests.helpers import ROUNDING

WIDTH, HEADS = 16, 4
LENGTH, KEYS, BATCH = 12, 9, 3
WINDOW = {"name": "window", "radius": 3}


def allowed(graph: SparseGraph, device: str = "cpu") -> torch.Tensor:
    """The pattern as a matrix, bool, True where a query attends to a key."""
    return torch.from_numpy(graph.to_scipy().toarray() != 0).to(device)


def same_parameters(ours: torch.nn.Module, theirs: torch.nn.Module) -> None:
    """Random ones, also where torch starts with zeros and ones; the names have to be the same."""
    for parameter in theirs.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    ours.load_state_dict(theirs.state_dict())
    assert [n for n, _ in ours.named_parameters()] == [n for n, _ in theirs.named_parameters()]


def pair(device: str = "cpu", pattern: Any = WINDOW, own: Any = None, **options: Any) -> tuple[Any, Any]:
    """The layer with a pattern, and torch's, with equal random parameters."""
    options = {"batch_first": True, **options}
    theirs = torch.nn.MultiheadAttention(WIDTH, HEADS, device=device, **options)
    ours = SparseAttention(WIDTH, HEADS, device=device, pattern=pattern, **(own or {}), **options)
    same_parameters(ours, theirs)
    return ours, theirs


def flat(result: tuple[torch.Tensor, torch.Tensor | None]) -> torch.Tensor:
    return torch.cat([x.flatten() for x in result if x is not None])


def tokens(device: str = "cpu", length: int = LENGTH, width: int = WIDTH) -> torch.Tensor:
    return torch.randn(BATCH, length, width, device=device)


def blocked(device: str = "cpu", length: int = LENGTH, keys: int | None = None) -> torch.Tensor:
    return ~allowed(masks.window(length, 3, keys=keys), device)


def additive(mask: torch.Tensor) -> torch.Tensor:
    return torch.zeros(mask.shape, device=mask.device).masked_fill(mask, float("-inf"))


def padding(device: str = "cpu") -> torch.Tensor:
    """Every window keeps a key: without one torch gives NaN."""
    lengths = torch.tensor([LENGTH, LENGTH - 2, LENGTH - 3], device=device)
    return torch.arange(LENGTH, device=device) >= lengths[:, None]


def assert_near(got: Any, want: Any) -> None:
    """The numbers of another way to compute the same in fp32, which rounds at other places."""
    if isinstance(got, tuple):
        for one, other in zip(got, want, strict=True):
            assert_near(one, other)
        return
    got, want = got.detach(), want.detach()
    assert_accurate(got, want, want.double(), floor=32 * ROUNDING["fp32"])


def twins(model: Any, pattern: Any, device: str = "cpu", **options: Any) -> tuple[Any, Any]:
    """The model with a pattern and a dense copy; random are those that start as 0 or 1 too."""
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    model = model.to(device)
    dense = copy.deepcopy(model)
    return sparsify(model, pattern, **options), dense


def parameters(model: torch.nn.Module) -> list[torch.Tensor]:
    """All that need gradients, but biases of keys and of queries alone, whose sums over all tokens cancel."""
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
