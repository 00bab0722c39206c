"""Senseless arguments: each call returns, or raises an error that names the argument."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch

import gnnsparse
from gnnsparse import SparseGraph, masks
from gnnsparse import nn as layers
from gnnsparse.preprocess.reorder import REORDERINGS
from gnnsparse.runtime.device import path
from gnnsparse.testing import random_graph
from tests.fuzz.common import Draw, Trial

DTYPES = (torch.float32, torch.int64, torch.int32, torch.int16, torch.uint8, torch.bool, torch.float16,
          torch.float64, torch.bfloat16, torch.complex64, torch.int8)  # fmt: skip
EXTREMES = (0, 1, 2, 3, 5, -1, -(2**31), -(2**63), 2**31 - 1, 2**31, 2**62)
#: Numbers that are used as sizes: none of them is large and valid, for that would take the time it takes.
NUMBERS: tuple[Any, ...] = (
    None, 0, 1, 2, 3, 6, 5, -1, -(2**31), -(2**63), 2**31, 2**62, 2**63, 2**70, 10**400, 0.5, 1.5, -0.0,
    float("nan"), float("inf"), 1e300, True, False, np.int64(3), np.float32(2.5), "3", torch.tensor(3), [3],
)  # fmt: skip
OBJECTS: tuple[Any, ...] = (
    None, (), [], {}, "gcn", "", "x", b"x", object(), int, lambda: 1, [[0, 1], [1]], ([0, 1], [0]),
    {"rounds": 1}, {1: 2}, (1, 2, 3, 4), np.zeros((2, 0), np.int64), np.array(["a"]), np.eye(3),
    np.zeros(3, object), np.arange(4, dtype=">i8").reshape(2, 2), sp.eye_array(3).tocsr(),
    sp.coo_array((0, 5)),
    sp.csr_array((2, 3), dtype=complex), [1, None], ["a", "b"], [float("nan")], range(4), set(), slice(3),
)  # fmt: skip


def tensor(draw: Draw) -> torch.Tensor:
    """A random tensor of any dtype, shape, layout and device that there is without hardware."""
    shape = [draw.choice((0, 1, 2, 3, 5, 6, 7, 9)) for _ in range(draw.choice((2, 1, 0, 3, 4)))]
    dtype = draw.choice(DTYPES)
    generator = torch.Generator().manual_seed(draw.seed())
    if dtype in (torch.int64, torch.int32) and draw.chance(0.5):
        picks = torch.randint(len(EXTREMES), shape, generator=generator)
        made = torch.tensor(EXTREMES)[picks]
        made = made.clamp(-(2**31), 2**31 - 1).to(dtype) if dtype == torch.int32 else made
    elif dtype in (torch.float32, torch.float16, torch.float64) and draw.chance(0.2):
        some = torch.tensor([1.0, 0.0, float("nan"), float("inf"), -float("inf"), 1e30, 1e-40])
        made = some[torch.randint(7, shape, generator=generator)].to(dtype)
    else:
        made = torch.randint(-3, 5, shape, generator=generator).to(dtype)
    kind = draw.choice(
        ("plain",) * 6 + ("turned", "step", "meta", "sparse", "neg", "grad", "parameter", "csr")
    )
    floating, dims = made.is_floating_point(), made.dim()
    fits: dict[str, tuple[bool, Callable[[], torch.Tensor]]] = {
        "turned": (dims >= 2, lambda: made.mT),
        "step": (dims > 0, lambda: made[:: draw.integer(1, 3)]),
        "meta": (True, lambda: made.to("meta")),
        "sparse": (dims > 0, made.to_sparse),
        "csr": (dims == 2 and dtype == torch.float32, made.to_sparse_csr),
        "neg": (floating, lambda: torch._neg_view(made)),
        "grad": (floating, made.requires_grad_),
        "parameter": (floating, lambda: torch.nn.Parameter(made)),
    }
    does_fit, change = fits.get(kind, (False, made.clone))
    return change() if does_fit else made


def anything(draw: Draw) -> Any:
    kind = draw.choice(("tensor", "tensor", "number", "object", "pair"))
    if kind == "number":
        return draw.choice(NUMBERS)
    if kind == "object":
        return draw.choice(OBJECTS)
    if kind == "pair":
        return tuple(tensor(draw) for _ in range(draw.integer(2, 3)))
    return tensor(draw)


def number(draw: Draw) -> Any:
    return draw.choice(NUMBERS) if draw.chance(0.9) else anything(draw)


def _or_junk(draw: Draw, *usual: Any) -> Any:
    return anything(draw) if draw.chance(0.25) else draw.choice(usual)


#: Operands that senseless arguments meet; made once in the parent process, without running a product.
OPERANDS = tuple(
    gnnsparse.prepare(random_graph(rows, cols, 0.5, seed=1), cache=False, **options)
    for rows, cols, options in (
        (6, 5, {}), (6, 6, {"values": "gcn", "precision": "fp16"}), (5, 7, {"format": "window"}),
        (9, 9, {"reorder": "degree", "precision": "bf16"}), (0, 3, {}), (3, 0, {}),
    )
)  # fmt: skip
GRAPH = random_graph(6, 6, 0.5, seed=1)


def _fitting(draw: Draw, *shape: int) -> Any:
    """A tensor that fits, mostly, of a dtype that does."""
    if draw.chance(0.3):
        return anything(draw)
    return torch.randn(shape).to(draw.choice((torch.float32, torch.float16, torch.bfloat16, torch.float64)))


Call = tuple[str, Callable[[], Any]]


def _given(draw: Draw, function: Callable[..., Any], usual: dict[str, Any]) -> dict[str, Any]:
    """Arguments by name, those that a function needs and some of the others: mostly of their usual values.

    Those without usual values are numbers.
    """
    found: dict[str, Any] = {}
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.default is parameter.empty or draw.chance(0.2):
            found[name] = _or_junk(draw, *usual[name]) if name in usual else number(draw)
    return found


def _prepare(draw: Draw) -> Call:
    usual = {
        "graph": (GRAPH, torch.randint(0, 5, (2, 7))),
        "num_nodes": (number(draw), (number(draw), number(draw))),
        "values": ("gcn", "mean", None), "edge_weight": (anything(draw),),
        "precision": ("fp16", "fp32", "FP16"), "reorder": REORDERINGS,
        "reorder_options": ({"rounds": number(draw)}, {"part_size": number(draw)}, {}),
        "format": ("window", "hrpb", "rs-tile", "csr", "panel"), "balance": ("none", "wave", "adaptive"),
        "format_options": ({"threshold": number(draw)}, {"new_columns": 3}, {}), "autotune": (True, False),
    }  # fmt: skip
    options = _given(draw, gnnsparse.prepare, usual) | {"cache": False}

    def call() -> Any:
        a = gnnsparse.prepare(**options)
        return a @ torch.ones(a.shape[1], 2)

    return f"prepare {options}"[:500], call


def _graph(draw: Draw) -> Call:
    kind = draw.choice(("from_edge_index", "from_csr", "from_scipy", "from_torch_sparse"))
    many = {"from_edge_index": 3, "from_csr": 4}.get(kind, 1)
    arguments = [
        anything(draw) if i < 2 else draw.choice((None, number(draw), tensor(draw))) for i in range(many)
    ]

    def call() -> Any:
        graph = getattr(SparseGraph, kind)(*arguments)
        graph.csr.transpose()
        return graph.to_scipy(), graph.fingerprint, graph.is_symmetric

    return f"SparseGraph.{kind}", call


def _operation(draw: Draw) -> Call:
    a: Any = draw.choice(OPERANDS)
    a = a.T if draw.chance(0.3) else a
    if draw.chance(0.2):
        x, dense = anything(draw), tensor(draw)
        return "matmul", draw.choice((lambda: a @ x, lambda: x @ a, lambda: torch.matmul(a, dense)))
    m, n = a.shape
    methods = ("to_coo_order", "from_coo_order", "transpose_values", "to", "plan", "tune", "stats")
    name = draw.choice((*("spmm", "sddmm", "edge_softmax", "attention") * 2, *methods))
    # Queries and keys of several heads, or of batches, where attention takes them.
    lead = draw.choice(((), (2,), (2, 3), (1, 1, 2))) if name == "attention" else ()
    sizes = {
        "x": (n, 3), "q": (*lead, m, 4), "k": (*lead, n, 4), "v": (*lead, n, 3), "scores": (a.nnz,),
        "bias": (a.nnz,), "values": (draw.choice((a.nnz, a.num_edges, 3)),),
    }  # fmt: skip
    usual = {argument: (_fitting(draw, *size),) for argument, size in sizes.items()}
    usual |= dict.fromkeys(("is_causal", "return_weights", "fused", "edge_values"), (True, False))
    usual |= {
        "A": (a,) * 9, "plan": (a.plan(4, "sddmm"), a.plan(2), None), "reduce": ("sum", "mean", "max"),
        "impl": ("auto", "cpu", "cuda", "reference", "AUTO"), "op": ("spmm", "sddmm", "attention", "x"),
        "device": ("cpu", "x", "meta", "cuda", 3, None, -1, object(), "cpu:1"),
    }  # fmt: skip
    function = getattr(a if name in methods else gnnsparse, name)
    options = _given(draw, function, usual)
    return f"{name} {', '.join(options)}", lambda: function(**options)


def _mask(draw: Draw) -> Call:
    name = draw.choice([name for name in masks.__all__ if name != "PATTERNS"])
    function = getattr(masks, name)
    if name in ("union", "intersection"):
        graphs = [_or_junk(draw, GRAPH) for _ in range(draw.below(4))]
        return f"masks.{name}", lambda: function(*graphs)
    given = _given(draw, function, {array: (anything(draw),) for array in ("mask", "edges", "blocks")})
    return f"masks.{name} {given}"[:300], lambda: function(**given)


def _layer(draw: Draw) -> Call:
    kind = draw.choice(("GCNConv", "AGNNConv", "SparseLinear", "SparseAttention", "TransformerEncoderLayer"))
    if draw.chance(0.5):
        count = {"SparseLinear": 1, "AGNNConv": 0}.get(kind, 2)
        arguments = [number(draw) if draw.chance(0.8) else anything(draw) for _ in range(count)]
        if draw.chance(0.3):
            arguments.append(anything(draw))
        return f"{kind}() {arguments}"[:200], lambda: getattr(layers, kind)(*arguments)
    x = _fitting(draw, 6, 4)
    a: Any = _or_junk(draw, OPERANDS[1], OPERANDS[0], torch.randint(0, 6, (2, 8)))
    weight = draw.choice((None, None, anything(draw)))
    calls: dict[str, Callable[[], Any]] = {
        "GCNConv": lambda: layers.GCNConv(4, 3)(x, a, weight),
        "AGNNConv": lambda: layers.AGNNConv()(x, a),
        "SparseLinear": lambda: layers.SparseLinear(GRAPH)(x),
        "SparseAttention": lambda: layers.SparseAttention(4, 2)(x, x, x, a, weight),
        "TransformerEncoderLayer": lambda: layers.TransformerEncoderLayer(4, 2, 8)(x, a, weight),
    }
    return kind, calls[kind]


def _torchs_call(draw: Draw) -> Call:
    """Calls of attention with torch's arguments, patterns by description, and caches."""
    names = ("key_padding_mask", "need_weights", "attn_mask", "average_attn_weights", "is_causal", "bias")
    given = {name: anything(draw) for name in names if draw.chance(0.2)}
    name = draw.choice(("window", "global_tokens", "dilated", "causal", "windows"))
    option = draw.choice(("radius", "tokens", "segment", "dilation", "keys", "x"))
    pattern: Any = _or_junk(draw, {"name": name, option: number(draw)}, [name], GRAPH, OPERANDS[1], name)
    most, x, q = draw.choice((None, 6, number(draw))), _fitting(draw, 6, 4), _fitting(draw, 2, 2, 3, 4)
    lengths = draw.choice((None, [3, 1], anything(draw)))

    def layer() -> Any:
        return layers.SparseAttention(4, 2, pattern=pattern)(x, x, x, **given)

    def cache() -> Any:
        found = layers.KeyValueCache(pattern, max_length=most)
        found.attend(q, q, q, lengths=lengths)
        return found.attend(q, q, q), found.select(lengths)

    return draw.choice(
        ((f"SparseAttention {pattern} {given}"[:200], layer), (f"KeyValueCache {pattern}", cache))
    )


def _rest(draw: Draw) -> Call:
    value = anything(draw)
    options = {draw.choice(("rounds", "part_size", "resolution", "x")): number(draw)}
    method = _or_junk(draw, "metis", "rcm", "community")
    calls: tuple[Call, ...] = (
        ("reorder", lambda: gnnsparse.reorder(GRAPH, method, **options)),
        ("Precision.parse", lambda: gnnsparse.Precision.parse(value)),
        ("edge_bias", lambda: layers.edge_bias(OPERANDS[1], value)),
    )
    return draw.choice(calls)


def junk(trial: Trial) -> None:
    for _ in range(trial.draw.integer(1, 8)):
        makers = (_operation, _prepare, _graph, _mask, _layer, _torchs_call, _operation, _rest)
        make = trial.draw.choice(makers)
        label, call = make(trial.draw)
        trial.attempt(label, call, _of_torch)


def _of_torch(error: Exception) -> bool:
    """Whether torch itself refuses the call before the package sees it, or a device that is not there."""
    text = str(error)
    return isinstance(error, (RuntimeError, AssertionError)) and (
        "device" in text.lower()
        or "CUDA" in text
        or "Storage size calculation overflowed" in text
        or ("tried to allocate" in text and path().takes(torch.device("cpu")))  # as a GPU runs out of memory
    )
