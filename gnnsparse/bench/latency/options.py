"""The options of `gnnsparse bench latency`, checked before anything is measured."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gnnsparse.bench.latency.settings import (
    BACKENDS,
    CACHES,
    CORA_LIKE,
    GRAPH_MODELS,
    MODELS,
    MODES,
    LatencySettings,
)
from gnnsparse.bench.options import at_least_one, device_option, file_option, plot_option
from gnnsparse.data import DATASETS, GENERATED_GRAPHS
from gnnsparse.precision import Precision
from gnnsparse.runtime.environment import DEVICES

__all__ = ["LATENCY_DESCRIPTION", "add_latency_arguments", "latency_settings"]

LATENCY_DESCRIPTION = """\
Measures how long models take from a call to its result, ours beside PyG's and torch's with the same weights:
percentiles of single calls, throughput, the time to the first result, and memory. Every result is checked
against float64, and a wrong one is not compared. Options that take several names take them with commas or
spaces.
"""
#: Tokens of a sequence on a CPU, where 8,192 would take seconds a call.
_CPU_TOKENS = 1024


def _names(choices: tuple[str, ...]) -> Callable[[str], list[str]]:
    """Returns a parser of names between commas."""

    def parse(text: str) -> list[str]:
        names = text.split(",")
        for name in names:
            if name not in choices:
                raise argparse.ArgumentTypeError(f"got {name!r}; accepted: {', '.join(choices)}")
        return names

    return parse


def _counts(text: str) -> list[int]:
    return [at_least_one(part) for part in text.split(",")]


def _folder(text: str) -> Path:
    path = Path(text)
    if not path.is_dir():
        raise argparse.ArgumentTypeError(f"there is no folder {text!r}")
    return path


def _share(text: str) -> float:
    return _number(text, "a number from 0 on, below 1", lambda value: 0 <= value < 1)


def _scale(text: str) -> float:
    return _number(text, "a number above 0, at most 1", lambda value: 0 < value <= 1)


def _seconds(text: str) -> float:
    return _number(text, "a number of seconds above 0", lambda value: 0 < value < 1e6)


def _number(text: str, accepted: str, fits: Callable[[float], bool]) -> float:
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not fits(value):
        raise argparse.ArgumentTypeError(f"got {text!r}; accepted: {accepted}")
    return value


def add_latency_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options of `gnnsparse bench latency`."""
    parser.description = LATENCY_DESCRIPTION
    datasets = (CORA_LIKE, *dict.fromkeys((*DATASETS, *GENERATED_GRAPHS)))

    def several(name: str, choices: tuple[str, ...], default: tuple[str, ...] | None, text: str) -> None:
        parser.add_argument(
            name, nargs="+", type=_names(choices), default=None if default is None else [default],
            metavar="NAME", help=text,
        )  # fmt: skip

    def number(name: str, kind: Callable[[str], Any], default: Any, metavar: str, text: str) -> None:
        parser.add_argument(name, type=kind, default=default, metavar=metavar, help=text)

    several("--model", MODELS, ("gcn",), f"{', '.join(MODELS)}; default: gcn")
    several(
        "--dataset", datasets, (CORA_LIKE,),
        "cora_like (default), a random graph of Cora's size, or a data set of train.py: cora, pubmed, "
        "reddit_like, arxiv_like, ...; the transformer has none",
    )  # fmt: skip
    several("--precision", Precision.names(), ("fp32",), f"{', '.join(Precision.names())}; default: fp32")
    several(
        "--backend", BACKENDS, None,
        "gnnsparse; pyg: an edge_index; pyg-csr: a torch CSR adjacency; pyg-compile: torch.compile with CUDA "
        "graphs, in a process of its own; dense: a dense matrix, or dense attention by torch's best kernel. "
        "Default: all, on a CPU all but pyg-compile",
    )  # fmt: skip
    number("--device", device_option, "auto", "NAME", f"{', '.join(DEVICES)}; default: auto")
    several(
        "--mode", MODES, None, "eager: each call from Python; captured: a CUDA graph. Default: both on a GPU"
    )
    several(
        "--cache", CACHES, None, "warm, cold: the last-level cache is flushed before each call; default: both"
    )
    number("--layers", at_least_one, None, "N", "default: 3, of the transformer 4")
    number(
        "--hidden", at_least_one, None, "N", "features of a layer; default: 128, of the transformer 64 a head"
    )
    number("--heads", at_least_one, 8, "N", "heads of gat and transformer; default: 8")
    parser.add_argument(
        "--batch", nargs="+", type=_counts, default=[[1]], metavar="N", help="sequences of a call; default: 1"
    )
    number(
        "--seq-len", at_least_one, None, "N", f"tokens of a sequence; default: 8192, on a CPU {_CPU_TOKENS}"
    )
    number("--sparsity", _share, 0.95, "S", "share of the pairs that the pattern leaves out; default: 0.95")
    number("--vector", at_least_one, 8, "N", "rows of a vector of the pattern; default: 8")
    number(
        "--root",
        _folder,
        None,
        "DIR",
        "a folder with the files of the data set, or with one for each data set",
    )
    number("--scale", _scale, 1.0, "S", "size of generated data sets, at most 1 (default)")
    number("--features", at_least_one, None, "N", "features of a node of cora_like and of generated graphs")
    number("--calls", at_least_one, 200, "N", "calls of each row; default: 200, fewer of slow ones")
    number("--seconds", _seconds, 5.0, "S", "time that the calls of a row may take; default: 5")
    number("--timeout", _seconds, 300.0, "S", "time that a compiled peer may take in all; default: 300")
    number("--out", file_option, None, "FILE.json", "write all measurements")
    number("--plot", plot_option, None, "FILE.png", "draw the latencies (needs matplotlib)")


def _flat(groups: list[Any] | None, default: tuple[Any, ...] = ()) -> tuple[Any, ...]:
    return default if groups is None else tuple(dict.fromkeys(name for group in groups for name in group))


def latency_settings(options: argparse.Namespace, fail: Callable[[str], object]) -> LatencySettings:
    """Makes the settings of parsed options, without loading anything.

    Args:
        options: the parsed options.
        fail: called with a message if options do not go together, as ArgumentParser.error.
    """
    cuda = options.device == "cuda"
    modes = _flat(options.mode, MODES if cuda else ("eager",))
    if not cuda and "captured" in modes:
        fail("argument --mode: captured needs an NVIDIA GPU; this run is on the CPU")
    backends = _flat(options.backend, BACKENDS if cuda else tuple(b for b in BACKENDS if b != "pyg-compile"))
    models = _flat(options.model)
    tokens = options.seq_len or (8192 if cuda else _CPU_TOKENS)
    settings = LatencySettings(
        models=models,
        datasets=_flat(options.dataset),
        precisions=_flat(options.precision),
        backends=backends,
        device=options.device,
        modes=modes,
        caches=_flat(options.cache, CACHES),
        layers=options.layers,
        hidden=options.hidden,
        heads=options.heads,
        batches=_flat(options.batch),
        seq_len=tokens,
        sparsity=options.sparsity,
        vector=options.vector,
        root=options.root,
        scale=options.scale,
        features=options.features,
        calls=options.calls,
        seconds=options.seconds,
        timeout=options.timeout,
    )
    _check_widths(settings, fail)
    return settings


def _check_widths(settings: LatencySettings, fail: Callable[[str], object]) -> None:
    for model in settings.models:
        hidden, heads = settings.hidden_of(model), settings.heads
        if model not in ("gat", "transformer") or hidden % heads == 0:
            continue
        fail(f"argument --hidden: got {hidden} for {model}; accepted: a multiple of --heads {heads}")
    if "transformer" in settings.models and settings.seq_len % settings.vector:
        fail(
            f"argument --seq-len: got {settings.seq_len}; accepted: a multiple of --vector {settings.vector}"
        )
    made = set(settings.datasets) & set(GENERATED_GRAPHS)
    on_graphs = bool(set(settings.models) & set(GRAPH_MODELS))
    if on_graphs and settings.scale != 1 and not made:
        fail(f"argument --scale: goes with generated graphs: {', '.join(GENERATED_GRAPHS)}")
    if on_graphs and settings.features and not made and CORA_LIKE not in settings.datasets:
        fail(f"argument --features: goes with {CORA_LIKE} and generated graphs; published ones have theirs")
