"""The command `gnnsparse profile`."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import itertools
import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F  # noqa: N812

import gnnsparse
from gnnsparse import nn
from gnnsparse.bench.arguments import MatrixSpec, add_device, at_least_one, import_file, matrices_option
from gnnsparse.bench.latency_tasks import GraphStack
from gnnsparse.errors import bad_value
from gnnsparse.precision import Precision
from gnnsparse.runtime.nvtx import ranges_are_on
from gnnsparse.runtime.profiler import print_profile, profile_steps, wide_console
from gnnsparse.train.device import matmul_precision
from gnnsparse_cli import file_option

DESCRIPTION = """\
Profiles a training step with torch.profiler: writes a trace, which https://ui.perfetto.dev and
chrome://tracing show, and prints what each operation costs host and GPU. The step is that of a stack of
layers of gnnsparse.nn on a graph, or a function of your own.
"""


def _matrix(text: str) -> MatrixSpec:
    found = matrices_option(text)
    if len(found) != 1:
        raise argparse.ArgumentTypeError(f"{text!r} has {len(found)} matrices; accepted: one matrix")
    return found[0]


def _callable(text: str) -> tuple[str, str]:
    module, colon, name = text.rpartition(":")
    if not colon or not module or not name.isidentifier():
        raise argparse.ArgumentTypeError(
            f"got {text!r}; accepted: MODULE:FUNCTION or FILE.py:FUNCTION, a function without arguments"
        )
    return module, name


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `gnnsparse profile`."""
    parser.add_argument(
        "--call", type=_callable, metavar="MODULE:FUNCTION",
        help="a function of yours without arguments that does one step, also as FILE.py:FUNCTION; the "
        "options of the model and the graph do not apply to it",
    )  # fmt: skip
    parser.add_argument(
        "--model", choices=tuple(MODELS), default="gcn", metavar="NAME",
        help=f"{', '.join(MODELS)}; default: gcn",
    )  # fmt: skip
    parser.add_argument(
        "--matrix", type=_matrix, default="arxiv_like:scale=0.1", metavar="MATRIX",
        help="a generated graph or a file, as in `gnnsparse bench kernels`; default: arxiv_like:scale=0.1",
    )  # fmt: skip
    names = Precision.names()
    parser.add_argument(
        "--precision", choices=names, default="fp32", metavar="NAME",
        help=f"{', '.join(names)}; default: fp32",
    )  # fmt: skip
    add_device(parser)
    counts = {
        "--layers": (3, ""), "--width": (128, "hidden features; "), "--features": (128, "input features; "),
        "--steps": (5, "profiled steps; "), "--warmup": (3, "steps before; "),
        "--top": (15, "rows of a table; "),
    }  # fmt: skip
    for name, (default, text) in counts.items():
        parser.add_argument(
            name, type=at_least_one, default=default, metavar="N", help=f"{text}default: {default}"
        )
    parser.add_argument(
        "--out", type=partial(file_option, endings=(".json", ".json.gz")), default=Path("trace.json"),
        metavar="FILE.json",
        help="the trace, also as FILE.json.gz; default: trace.json",
    )  # fmt: skip


# The steps that `gnnsparse profile` runs: a stack of layers on a graph, or a function of the user's.

#: Classes of the nodes that the model learns.
_CLASSES = 16
_HEADS = 4


def _gin(inputs: int, outputs: int) -> torch.nn.Module:
    return nn.GINConv(torch.nn.Sequential(torch.nn.Linear(inputs, outputs), torch.nn.ReLU()))


def _in_heads(layer: Callable[..., torch.nn.Module]) -> Callable[[int, int], torch.nn.Module]:
    """Return a layer whose heads give all output features together, as many heads as divide them."""

    def make(inputs: int, outputs: int) -> torch.nn.Module:
        heads = next(count for count in (_HEADS, 2, 1) if outputs % count == 0)
        return layer(inputs, outputs // heads, heads=heads)

    return make


#: For each model its layer, made of (input, output features), and the weights that its operand needs.
MODELS: dict[str, tuple[Callable[[int, int], torch.nn.Module], str | None]] = {
    "gcn": (nn.GCNConv, "gcn"),
    "graphsage": (nn.SAGEConv, "mean"),
    "gin": (_gin, None),
    "agnn": (lambda inputs, outputs: nn.AGNNConv(), "gcn"),
    "gat": (_in_heads(nn.GATConv), "gcn"),
    "gatv2": (_in_heads(nn.GATv2Conv), "gcn"),
    "graph_transformer": (_in_heads(nn.TransformerConv), "gcn"),
}


def _stack(model: str, features: int, width: int, layers: int) -> GraphStack:
    make, _ = MODELS[model]
    widths = [features, *[width] * (layers - 1), _CLASSES]
    dense: tuple[torch.nn.Linear, ...] = ()
    if model == "agnn":  # its layers keep the number of features
        dense = torch.nn.Linear(features, width), torch.nn.Linear(width, _CLASSES)
        widths = [width] * (layers + 1)
    return GraphStack(model, [make(a, b) for a, b in itertools.pairwise(widths)], *dense)


def make_step(options: argparse.Namespace) -> Callable[[], object]:
    """Prepare the graph; return a function of a training step on random features and labels."""
    graph, precision = options.matrix.load(options.device), Precision(options.precision)
    if graph.num_rows != graph.num_cols:
        bad_value(
            "matrix", f"is {graph.num_rows} x {graph.num_cols}; accepted: a square matrix, which a graph is"
        )
    adj = gnnsparse.prepare(graph, values=MODELS[options.model][1], precision=precision, cache=False)
    device = torch.device(options.device)
    generator = torch.Generator(device).manual_seed(0)
    nodes = graph.num_rows
    x = torch.randn(nodes, options.features, generator=generator, device=device, dtype=torch.float32)
    y = torch.randint(_CLASSES, (nodes,), generator=generator, device=device, dtype=torch.int64)
    torch.manual_seed(0)
    model = _stack(options.model, options.features, options.width, options.layers).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, fused=True)
    on_gpu = device.type == "cuda"
    half = on_gpu and precision.rounded in (Precision.FP16, Precision.BF16)
    scaler = torch.amp.GradScaler(device.type, enabled=on_gpu and precision.rounded is Precision.FP16)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        with matmul_precision(precision, device):
            with torch.autocast(device.type, precision.storage) if half else contextlib.nullcontext():
                loss = F.cross_entropy(model(x, adj).float(), y)
            scaler.scale(loss).backward()  # not under autocast, as in training
        scaler.step(optimizer)
        scaler.update()

    return step


def load_callable(module: str, name: str) -> Callable[[], object]:
    """Import a function of the user's from a module, found from the current folder too, or from a file."""
    path = Path(module)
    if path.suffix == ".py":
        if not path.is_file():
            bad_value("call", f"there is no file {module}")
        found = import_file(path.resolve())
    else:
        sys.path.insert(0, "")
        try:
            found = importlib.import_module(module)
        except ModuleNotFoundError as error:
            bad_value("call", f"there is no module {module!r} ({error})")
    function = getattr(found, name, None)
    if not callable(function):
        bad_value("call", f"{module} has no function {name!r}")
    return function


def run(options: argparse.Namespace) -> int:
    """Profile a step, write the trace and print the tables.

    Ranges of operations are decided on when gnnsparse is imported, so where they are off the command runs
    again in a process in which they are on.
    """
    if not ranges_are_on():
        # Kineto, the library behind torch.profiler, reports its own progress on stderr below this level.
        environment = {"KINETO_LOG_LEVEL": "6", **os.environ, "GNNSPARSE_NVTX": "1"}
        command = [sys.executable, "-m", "gnnsparse.cli.main", *options.arguments]
        return subprocess.run(command, env=environment).returncode
    step = make_step(options) if options.call is None else load_callable(*options.call)
    profile = profile_steps(
        step, options.device, steps=options.steps, warmup=options.warmup, trace=options.out
    )
    print_profile(profile, wide_console(), options.top)
    return 0
