"""Random messages of PyG's layers: an accelerated layer computes, and leaves behind, what PyG's does.

A case writes the source of a layer whose `message` may be a product, or have side effects, test types, read
attributes, globals and closures that change, or draw random numbers. It makes it twice, accelerates one
of the two, changes and calls both in the same way, and compares results, errors, and all that was touched.
"""

from __future__ import annotations

import linecache
import random
import sys
import types
from collections.abc import Callable
from typing import Any

import torch

from tests.fuzz import worker
from tests.fuzz.common import Trial

NODES, EDGES, WIDTH = 9, 30, 4

SOURCE = """
import random

import torch
from torch import Tensor
from torch_geometric.nn import MessagePassing

SCALE = 1
LOG = []


def make(flag):
    class Made(MessagePassing):
        LIMIT = 3

        def __init__(self):
            super().__init__(aggr={aggr!r})
            self.register_buffer("steps", torch.zeros(()))
            self.mode, self.power, self.count, self.seen = "a", 1, 0, []
            self.kept = None

        @property
        def computed(self):
            self.count += 100
            return self.power

        def forward(self, x, edge_index, w=None):
            return self.propagate(edge_index, x=x, w=w)

        def message(self, x_j, w=None):
{body}

    return Made
"""

#: What a message may return: products, and anything else.
PRODUCTS = [
    "x_j", "x_j if w is None else w.view(-1, 1) * x_j", "w.view(-1, 1) * x_j", "x_j * w.unsqueeze(-1)",
    "torch.mul(w[:, None], x_j)", "x_j.mul(w.view((-1, 1)))", "w.reshape(w.size(0), 1) * x_j",
]  # fmt: skip
OTHERS = [
    "2 * x_j", "x_j + 1", "x_j.relu()", "self.power * x_j", "SCALE * x_j", "x_j.view(-1, x_j.size(1))",
    "w.abs()[:, None] * x_j", "self.computed * x_j", "w.view(-1, 1).expand_as(x_j) * x_j", "x_j.double()",
    "w * x_j.t()", "(lambda: x_j)()", "torch.where(x_j > 0, x_j, -x_j / 3)", "x_j ** 2 - x_j ** self.power",
    "torch.exp(-x_j.abs()) * torch.sigmoid(SCALE * x_j)", "x_j.clamp(min=-1, max=SCALE)", "x_j > 0",
    "1 - x_j", "w + x_j.mul(2)", "(w.view(-1, 1) - 0.5).tanh() * x_j", "torch.maximum(x_j, w[..., None])",
    "torch.add(x_j, x_j, alpha=self.power)", "torch.cat([x_j, 2 * x_j], -1)", "x_j.sub(1).square()",
]  # fmt: skip
#: What may stand before it, without side effects and with them; {0} is what a message may return.
TESTS = [
    "pass", "x_j = x_j", "v = w", "if w is None: return x_j", "if isinstance(w, torch.Tensor): return {0}",
    "if isinstance(w, Tensor) and self.power == 1: return {0}", "if torch.is_tensor(w): return {0}",
    "if self.mode == 'a': return {0}", "if self.power > 1 or not self.training: return {0}",
    "if SCALE > 1: return {0}", "if flag: return {0}", "if self.LIMIT == 3: return {0}",
    "if x_j.dim() == 2: return {0}",
]  # fmt: skip
EFFECTS = [
    "if type(w) is torch.Tensor: return {0}", "if hasattr(w, 'view'): return {0}",
    "if x_j.size(0) > 3: return {0}", "if random.random() < .5: return {0}",
    "if torch.rand(()) < .5: return {0}", "if x_j.sum() > 0: return {0}", "self.count += 1",
    "self.steps += 1", "self.seen.append(type(x_j).__name__)", "LOG.append(tuple(x_j.shape))",
    "self.kept = x_j",
    "self.kept = w", "self.kept = w * 2 - 1",
    "if self.computed == 1: return {0}", "self.mode = 'b' if self.mode == 'a' else 'a'",
    "try:\n    return {0}\nexcept Exception:\n    return -x_j", "for _ in range(2): x_j = x_j * 1",
    "del w; w = None", "globals()['SCALE'] += 1", "assert self.power",
]  # fmt: skip


def written(trial: Trial) -> str:
    draw = trial.draw

    def value() -> str:
        return draw.choice(OTHERS if draw.chance(0.25) else PRODUCTS)

    lines: list[str] = []
    for _ in range(draw.below(4)):
        lines += draw.choice(EFFECTS if draw.chance(0.25) else TESTS).format(value()).split("\n")
    body = "\n".join(" " * 12 + line for line in (*lines, f"return {value()}"))
    return SOURCE.format(aggr=draw.choice(["sum", "mean", "max"]), body=body)


def module_of(source: str, name: str) -> types.ModuleType:
    """A module with this source, which its functions find as in a notebook. PyG imports it by its name."""
    linecache.cache[name] = len(source), None, source.splitlines(keepends=True), name
    module = sys.modules[name] = types.ModuleType(name)
    exec(compile(source, name, "exec"), vars(module))
    return module


class Side:
    """One of the two layers, with its module and its random numbers."""

    def __init__(self, source: str, name: str, flag: bool, accelerated: bool) -> None:
        import gnnsparse.interop.pyg as interop

        self.module = module_of(source, name)
        self.layer = self.module.make(flag)()
        random.seed(5)
        torch.manual_seed(5)
        if accelerated:
            interop.accelerate(self.layer, convert="always")
        self.random = random.getstate(), torch.get_rng_state()

    def change(self, what: int) -> None:
        """Changes something that a message may depend on."""
        layer, module, of = self.layer, self.module, self.layer.aggr_module
        before = of.forward
        changes: list[Callable[[], Any]] = [
            lambda: setattr(layer, "mode", "b" if layer.mode == "a" else "a"),
            lambda: setattr(layer, "power", layer.power + 1),
            lambda: setattr(module, "SCALE", 5 - module.SCALE),
            lambda: layer.train(not layer.training),
            lambda: setattr(type(layer), "message", lambda self, x_j, w=None: -x_j),
            lambda: setattr(layer, "message", lambda x_j, w=None: x_j * 3),
            lambda: of.register_forward_hook(lambda module, inputs, out: out * 2),
            lambda: of.register_full_backward_hook(lambda module, grads, _: (grads[0] * 2, *grads[1:])),
            lambda: setattr(of, "forward", lambda *args, **options: before(*args, **options) + 1),
        ]
        changes[what]()

    def called(self, x: torch.Tensor, edges: torch.Tensor, w: torch.Tensor | None, compiled: bool) -> Any:
        """What a call gives, its gradient, and what it leaves behind; or the error that it raises."""
        random.setstate(self.random[0])
        torch.set_rng_state(self.random[1])
        x = x.clone().requires_grad_()
        run = torch.compile(self.layer, backend="eager") if compiled else self.layer
        try:
            out = run(x, edges, w)
            found: Any = out.detach(), torch.autograd.grad(out.square().sum(), x)[0]
        except Exception as error:
            found = type(error)
        self.random = random.getstate(), torch.get_rng_state()
        return found

    def left(self) -> Any:
        """All that the code of the layer may have touched."""
        kept = self.layer.__dict__.get("kept")
        return (
            self.layer.mode, self.layer.power, self.layer.count, self.layer.seen, float(self.layer.steps),
            self.module.SCALE, self.module.LOG, type(kept), self.random[0], self.random[1].tolist(),
        )  # fmt: skip


def same(want: Any, got: Any) -> bool:
    if isinstance(want, type) or isinstance(got, type):
        return want is got
    pairs = zip(want, got, strict=True)
    return all(a.dtype == b.dtype and torch.allclose(a, b, 1e-4, 1e-5) for a, b in pairs)


def case(trial: Trial) -> None:
    compare(trial, compiles=0.03)


def compare(trial: Trial, compiles: float) -> int:
    """Compares an accelerated layer with PyG's; returns how many of its calls ran on a product."""
    draw = trial.draw
    source, flag = written(trial), draw.chance(0.5)
    sides = [Side(source, f"messages_{id(trial)}_{i}", flag, i == 1) for i in range(2)]
    trial.check(sides[0].left() == sides[1].left(), f"accelerate has changed something:{source}")
    generator = torch.Generator().manual_seed(draw.seed())
    edges = torch.randint(0, NODES, (2, EDGES), generator=generator).unique(dim=1)
    compiled = draw.chance(compiles)
    steps: list[str] = []
    for _ in range(1 + draw.below(5)):
        if draw.chance(0.4):
            change = draw.below(9)
            steps.append(f"change {change}")
            for side in sides:
                side.change(change)
        x = torch.randn(NODES, WIDTH, generator=generator)
        w = torch.rand(edges.shape[1], generator=generator) if draw.chance(0.6) else None
        steps.append("call" if w is None else "call with w")
        trial.counts.calls += 1
        want, got = (side.called(x, edges, w, compiled) for side in sides)
        label = f"{', '.join(steps)}{' compiled' if compiled else ''}:{source}"
        trial.check(same(want, got), f"another result: {label}")
        if not compiled:  # torch.compile runs code at other times, whoever wrote it
            trial.check(sides[0].left() == sides[1].left(), f"another state: {label}")
    if compiled:
        torch._dynamo.reset()
    for side in sides:
        del sys.modules[side.module.__name__], linecache.cache[side.module.__name__]
    state = sides[1].layer.__dict__.get("_gnnsparse")
    return sum(state.runs_on.values()) if state is not None else 0


GENERATOR = worker.Generator("messages", case, case_seconds=120.0, batch_seconds=20.0, memory=3 << 30)
