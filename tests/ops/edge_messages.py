"""Messages of aggregate_edges, which compute the same of plain tensors, and what they are to give."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812

from gnnsparse.ops.edges.trace import fixed, side_of

Arguments = dict[str, torch.Tensor]


@fixed
def gine(x_j: Any, a_ij: Any, weight: Any, bias: Any) -> Any:
    return (x_j + F.linear(a_ij, weight, bias)).relu()


def gated(k_i: Any, q_j: Any, v_j: Any, e_ij: Any) -> Any:
    return torch.sigmoid(k_i + q_j + e_ij) * v_j


def crystal(f_i: Any, f_j: Any, s_i: Any, s_j: Any) -> Any:
    return torch.sigmoid(f_i + f_j) * F.softplus(s_i + s_j)


def film(x_j: Any, gamma_i: Any, beta_i: Any) -> Any:
    return F.elu(gamma_i * x_j + beta_i, alpha=0.5)


def weighted(x_j: Any, w_ij: Any, p_i: Any, p_j: Any, scale: Any) -> Any:
    return torch.tanh(x_j) * w_ij * (p_i - p_j) * scale


def many(x_i: Any, x_j: Any, vector: Any) -> Any:
    y = torch.where(x_i > x_j, F.leaky_relu(x_i - x_j, 0.2), (x_j * vector).square())
    y = y + F.gelu(x_j) + F.silu(x_i) + torch.maximum(x_i, vector) - x_j.abs() / (1.5 + torch.cos(x_i))
    return (y + torch.exp(-x_j.square())).clamp(-3, 3) - 2.0 * torch.log1p(x_i.abs()) + (x_j**3).sin() / 4


def bonds(x_j: Any, kind_ij: Any, table: Any) -> Any:
    return x_j * F.embedding(kind_ij, table)


MESSAGES: dict[Callable[..., Any], dict[str, int]] = {  # with the features of each argument; 0: a number
    gine: {"x_j": 1, "a_ij": 5, "weight": -5, "bias": 1},
    gated: {"k_i": 1, "q_j": 1, "v_j": 1, "e_ij": 1},
    crystal: {"f_i": 1, "f_j": 1, "s_i": 1, "s_j": 1},
    film: {"x_j": 1, "gamma_i": 1, "beta_i": 1},
    weighted: {"x_j": 1, "w_ij": 0, "p_i": 0, "p_j": 0, "scale": 0},
    many: {"x_i": 1, "x_j": 1, "vector": 1},
    bonds: {"x_j": 1, "kind_ij": -1, "table": -4},
}
REDUCTIONS = ("sum", "mean", "max", "min", "var", "std", "softmax", "powermean", "none")


def arguments_of(
    message: Callable[..., Any], a: Any, width: int, dtype: torch.dtype = torch.float32
) -> Arguments:
    sizes = {"source": a.shape[1], "target": a.shape[0], "edge": a.num_edges}
    found = {}
    for name, size in MESSAGES[message].items():
        side = side_of(name)
        if name == "kind_ij":
            found[name] = torch.randint(0, 4, (a.num_edges,), device=a.device)
            continue
        if side == "shared":
            shape = (width, -size) if size < -4 else (-size, width) if size < 0 else (width,) if size else ()
        else:
            shape = (sizes[side], size if size > 1 else width) if size else (sizes[side], 1)
        found[name] = torch.randn(shape, device=a.device).to(dtype).requires_grad_()
    return found


def plain(
    message: Callable[..., Any], edges: torch.Tensor, targets: int, reduce: str, given: Arguments,
    temperature: Any = 1.0,
) -> torch.Tensor:  # fmt: skip
    """What aggregate_edges is to compute, by torch's operations in the dtype of the arguments."""
    source, target = edges
    places = {"source": source, "target": target}
    gathered = {
        name: x.index_select(0, places[side_of(name)]) if side_of(name) in places else x
        for name, x in given.items()
    }
    terms = message(**gathered)
    if reduce == "none":
        return terms
    zeros = terms.new_zeros(targets, terms.shape[1])
    index = target[:, None].expand_as(terms)
    if reduce in ("max", "min"):
        return zeros.scatter_reduce(0, index, terms, f"a{reduce}", include_self=False)
    if reduce == "softmax":
        exponent = terms * temperature
        top = zeros.scatter_reduce(0, index, exponent.detach(), "amax", include_self=False)
        weight = (exponent - top[target]).exp()
        total = zeros.index_add(0, target, weight)
        return zeros.index_add(0, target, weight * terms / total[target])
    if reduce == "powermean":
        terms = terms.clamp(1e-4, 100).pow(temperature)
    total = zeros.index_add(0, target, terms)
    if reduce == "sum":
        return total
    counts = target.bincount(minlength=targets).clamp(min=1).to(terms.dtype)[:, None]
    mean = total / counts
    if reduce == "powermean":
        return mean.clamp(1e-4, 100).pow(1 / temperature)
    if reduce == "mean":
        return mean
    variance = zeros.index_add(0, target, terms * terms) / counts - mean * mean
    return variance if reduce == "var" else variance.clamp(min=1e-5).sqrt().masked_fill(variance <= 1e-5, 0.0)
