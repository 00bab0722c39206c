"""Graphs and operands with valid arguments: constructors, `prepare` with all its options, methods."""

from __future__ import annotations

import copy
import pickle
from dataclasses import replace
from typing import Any

import numpy as np
import torch

import gnnsparse
from gnnsparse.formats import FORMAT_NAMES, exclusive_preset
from gnnsparse.plan.window import BALANCES
from gnnsparse.preprocess.reorder import METHODS, REORDERINGS
from tests.fuzz.api.env import Env, check_equal
from tests.fuzz.api.graphs import Form, draw_form, weighted
from tests.fuzz.common import Draw, Trial

PRECISIONS = ("fp32", "fp16", "bf16", "tf32")
#: Formats whose operands run every operation.
FORMATS = tuple(name for name in FORMAT_NAMES if exclusive_preset(name) is None)
ORDERS = tuple(REORDERINGS)


def draw_env(trial: Trial) -> Env | None:
    """Prepares a random matrix with random options; None where they are refused, as some have to be."""
    draw = trial.draw
    kind = draw.choice((None, None, "gcn", "mean"))
    form = draw_form(draw, square=draw.chance(0.3) or (kind == "gcn" and draw.chance(0.9)))
    options = dict(form.options)
    weight, loop = None, 1.0
    if kind is not None:
        weight = _normalisation(draw, form, kind, options)
        if kind == "gcn" and draw.chance(0.4):
            loop = options["self_loop_weight"] = draw.choice((1.0, 2, 0.5, 0.0))
    order = draw.choice(("none", "none", "none", *ORDERS))
    options |= {"reorder": order, "format": draw.choice(FORMATS), "precision": draw.choice(PRECISIONS)}
    if order in METHODS and draw.chance(0.3):
        options["reorder_options"] = _order_options(draw, order)
    if options["format"] not in ("auto", "csr"):
        options["balance"] = draw.choice(BALANCES)
    how = f"{order} {options['format']} {options['precision']}"
    label = f"prepare {form.name} {kind} {how} {form.truth.rows}x{form.truth.cols} edges={form.truth.edges}"
    square = form.truth.rows == form.truth.cols
    if not square and (kind == "gcn" or (order in METHODS and METHODS[order].square)):
        trial.refuse(label, lambda: gnnsparse.prepare(form.graph, cache=False, **options))
        return None
    truth = form.truth if kind is None or weight is None else replace(form.truth, values=weight)
    dense = weighted(truth, kind, None, float(loop))
    largest = float(dense.matrix.abs().max()) if dense.matrix.numel() else 0.0
    # Normalised weights may exceed what fp16 holds; then they have to be refused.
    run = trial.attempt if largest > 6e4 else trial.call
    a = run(label, lambda: gnnsparse.prepare(form.graph, cache=False, **options))
    if a is None:
        return None
    index = trial.call("indices", lambda: a.indices())
    env = Env(a, dense, index[0].clone(), index[1].clone(), label)
    _check_structure(trial, env)
    return env


def _normalisation(draw: Draw, form: Form, kind: str, options: dict[str, Any]) -> torch.Tensor | None:
    """Sets the options of a normalisation; returns its weights, or None for those of the matrix."""
    own = options.pop("values", None)
    options["values"] = kind
    graph = form.graph
    is_plain = isinstance(graph, (np.ndarray, tuple)) and len(graph) != 3
    is_plain |= isinstance(graph, torch.Tensor) and graph.layout == torch.strided
    if is_plain and own is None:
        return torch.ones(form.truth.edges, dtype=torch.float64)
    if own is not None:
        options["edge_weight"] = own
    return form.truth.weights


def _order_options(draw: Draw, order: str) -> dict[str, Any]:
    some: dict[str, tuple[Any, ...]] = {
        "part_size": (128, 1, 4, 1000), "rounds": (10, 1, 3), "resolution": (1.0, 0.1, 5),
        "threshold": (0.25, 0, 10), "bin": (256, 1, 3), "fill": (True, False), "neighbors": (8, 1, 64),
        "alpha": (0.5, 0, 3), "tree": (True, False), "two_opt": (True, False), "window": (32, 4, 5),
        "isolation": (True, False), "isolated": (0.1, 0, 1), "group": (128, 1, 3),
        "least_gain": (0.02, 0, 1), "height": (0, 1, 8, 100), "width": (0, 1, 16),
    }  # fmt: skip
    return {name: draw.choice(some[name]) for name in METHODS[order].options if name in some}


def _check_structure(trial: Trial, env: Env) -> None:
    """The operand's nonzeros are those of the matrix, each once."""
    a, dense = env.a, env.dense
    trial.check(a.shape == tuple(dense.matrix.shape), f"shape {a.shape}, not {tuple(dense.matrix.shape)}")
    trial.check(a.num_edges == dense.truth.edges, f"{a.num_edges} edges, not {dense.truth.edges}")
    found = torch.zeros(dense.pattern.shape, dtype=torch.int64)
    found.index_put_((env.row, env.col), torch.ones(a.nnz, dtype=torch.int64), accumulate=True)
    trial.check(torch.equal(found, dense.pattern.long()), "the nonzeros are others")


def orders(trial: Trial, env: Env, grads: bool) -> None:
    """to_coo_order, from_coo_order and transpose_values move values to where they belong."""
    draw, a, truth = trial.draw, env.a, env.dense.truth
    generator = torch.Generator().manual_seed(draw.seed())
    wide = draw.choice(((), (3,), (2, 2)))
    values = torch.randn(a.nnz, *wide, generator=generator).to(draw.choice((torch.float32, torch.float64)))
    place = torch.full(env.dense.pattern.shape, -1)
    place[env.row, env.col] = torch.arange(a.nnz)
    of_edge = place[truth.row, truth.col]
    coo = trial.call(f"to_coo_order {env.name}", lambda: a.to_coo_order(values))
    check_equal(trial, f"to_coo_order {env.name}", coo, values[of_edge])
    given = torch.randint(-9, 9, (truth.edges, *wide), generator=generator).to(values.dtype)
    own = trial.call(f"from_coo_order {env.name}", lambda: a.from_coo_order(given))
    wanted = torch.zeros(a.nnz, *wide, dtype=values.dtype).index_add(0, of_edge, given)
    check_equal(trial, f"from_coo_order {env.name}", own, wanted)
    turned = trial.call(f"transpose_values {env.name}", lambda: a.transpose_values(values))
    other = env.transposed()
    check_equal(trial, f"transpose_values {env.name}", turned, values[place[other.col, other.row]])
    back = trial.call(f"transpose_values {env.name}.T", lambda: a.T.transpose_values(turned))
    check_equal(trial, f"transpose_values {env.name}.T", back, values)
    if wide == () and not torch.is_inference_mode_enabled():
        got = trial.call(
            "registered transpose_values", lambda: torch.ops.gnnsparse.transpose_values(values, a.handle)
        )
        check_equal(trial, "registered transpose_values", got, turned)


def reports(trial: Trial, env: Env, grads: bool) -> None:
    draw, a = trial.draw, env.a
    width = draw.choice((1, 2, 8, 64, 128, 1000))
    op = draw.choice(("spmm", "sddmm", "attention", "attention_grad"))
    trial.call(f"plan {op}", lambda: str(a.plan(width, op)))
    if op in ("spmm", "sddmm"):
        trial.call(f"tune {op}", lambda: a.tune(width, op))
    stats = trial.call(f"stats {env.name}", lambda: a.stats(width))
    density, slots = stats["density"], stats["columns"]
    trial.check(stats["nnz"] == a.nnz and (stats["rows"], stats["cols"]) == a.shape, "stats: sizes")
    trial.check(0 <= density <= 1, f"stats: density is {density}")
    trial.check(slots is None or slots >= 0, f"stats: columns is {slots}")
    trial.call("repr", lambda: repr(a))


def copies(trial: Trial, env: Env, grads: bool) -> None:
    a = env.a
    x = torch.randn(a.shape[1], 4, generator=torch.Generator().manual_seed(trial.draw.seed()))
    makers: dict[str, Any] = {
        "pickle": lambda: pickle.loads(pickle.dumps(a)),
        "deepcopy": lambda: copy.deepcopy({"a": a})["a"],
        "copy": lambda: copy.copy(a),
        "to": lambda: a.to(torch.device("cpu")),
        "cpu": lambda: a.cpu(),
        "T.T": lambda: a.T.T,
    }
    kind = trial.draw.choice(tuple(makers))
    other = trial.call(f"{kind} {env.name}", makers[kind])
    got = trial.call(f"spmm of {kind}", lambda: other @ x)
    check_equal(trial, f"{kind} {env.name}", got, gnnsparse.spmm(a, x))
    check_equal(trial, f"{kind} {env.name} indices", other.indices(), torch.stack([env.row, env.col]))


def graph(trial: Trial) -> None:
    draw = trial.draw
    form = draw_form(draw)
    label = f"construct {form.name} {form.truth.rows}x{form.truth.cols}"
    made = trial.call(label, form.make)
    truth = form.truth if not form.name.startswith("graph") else None
    pattern = form.truth.pattern()
    matrix = torch.from_numpy(trial.call("to_scipy", made.to_scipy).toarray()).double()
    trial.check(tuple(matrix.shape) == (form.truth.rows, form.truth.cols), f"{label}: shape")
    if truth is not None:
        exact = truth.spread(truth.weights)
        size = truth.spread(truth.weights.abs())
        trial.check(bool(((matrix - exact).abs() <= 1e-6 * size).all()), f"{label}: values")
        trial.check(made.num_edges == truth.edges, f"{label}: edges")
    trial.check(made.nnz == int(pattern.sum()), f"{label}: nnz")
    symmetric = trial.call("is_symmetric", lambda: made.is_symmetric)
    trial.check(symmetric == torch.equal(pattern, pattern.T), f"{label}: is_symmetric")
    trial.call("fingerprint", lambda: made.fingerprint)
    trial.check(trial.call("to", lambda: made.to("cpu")) is made, f"{label}: to")
    method = draw.choice(ORDERS)
    square = pattern.shape[0] == pattern.shape[1]
    name = f"reorder {method} {label}"
    if method in METHODS and METHODS[method].square and not square:
        trial.refuse(name, lambda: gnnsparse.reorder(made, method))
        return
    found = trial.call(name, lambda: gnnsparse.reorder(made, method))
    if found.order is not None:
        every = torch.arange(made.num_rows, dtype=torch.int32)
        trial.check(torch.equal(found.order.sort().values, every), f"{name}: no permutation")
    trial.call("report", found.report)
