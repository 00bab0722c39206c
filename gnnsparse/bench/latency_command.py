"""The command `gnnsparse bench latency`: its options, its report and its figure."""

from __future__ import annotations

import argparse
import math
from collections import defaultdict
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from gnnsparse.bench.arguments import at_least_one, device_option, file_option, number_option, plot_option
from gnnsparse.bench.figures import plot_latencies
from gnnsparse.bench.kernels_report import new_table, no_losses
from gnnsparse.bench.latency_run import LatencyBench, SkippedLatency
from gnnsparse.bench.latency_tasks import (
    BACKENDS,
    CACHES,
    CORA_LIKE,
    GRAPH_MODELS,
    MODELS,
    MODES,
    LatencySettings,
)
from gnnsparse.bench.noise import SPREAD_LIMIT, noise_lines
from gnnsparse.data import DATASETS, GENERATED_GRAPHS
from gnnsparse.precision import Precision
from gnnsparse.runtime.environment import DEVICES, describe_environment, write_json
from gnnsparse.runtime.profiler import wide_console

__all__ = [
    "DESCRIPTION", "LOSS", "add_arguments", "add_ratios", "as_json", "break_even", "lost_cases",
    "print_report", "run", "run_latency", "settings_of",
]  # fmt: skip


def run_latency(settings: LatencySettings, out: Path | None = None, plot: Path | None = None) -> int:
    """Measure, print the report, and write it to files.

    Args:
        settings: what to measure.
        out: the JSON file to write, after each task, because a run may be ended; None: none.
        plot: the figure to write; None: none.

    Returns:
        The exit status: 1 if a result of this package is wrong or failed, or a data set could not be loaded.
    """
    progress = Console(stderr=True)

    def save(bench: LatencyBench) -> None:
        if out is not None:
            write_json(out, as_json(bench))

    def tell(line: str) -> None:
        progress.print(line, markup=False, highlight=False, soft_wrap=True)

    bench = LatencyBench(settings, tell, save)
    bench.run()
    save(bench)
    print_report(bench, wide_console(200))
    if plot is not None:
        plot_latencies(bench.rows, plot)
    wrong = any(row["ours"] and not row["ok"] for row in bench.rows)
    failed = any(case.failed and case.backend in ("", "gnnsparse") for case in bench.skipped)
    return 1 if wrong or failed else 0


# The options of `gnnsparse bench latency`, checked before anything is measured.

DESCRIPTION = """\
Measures how long models take from a call to its result, ours beside PyG's and torch's with the same weights:
percentiles of single calls, throughput, the time to the first result, and memory. Every result is checked
against float64, and a wrong one is not compared. Options that take several names take them with commas or
spaces.
"""
#: Tokens of a sequence on a CPU, where 8,192 would take seconds a call.
_CPU_TOKENS = 1024


def _names(choices: tuple[str, ...]) -> Callable[[str], list[str]]:
    """Return a parser of names between commas."""

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


_fraction = number_option("a number from 0 on, below 1", lambda value: 0 <= value < 1)
_scale = number_option("a number above 0, at most 1", lambda value: 0 < value <= 1)
_seconds = number_option("a number of seconds above 0", lambda value: 0 < value < 1e6)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `gnnsparse bench latency`."""
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
    number(
        "--sparsity", _fraction, 0.95, "S", "fraction of the pairs that the pattern leaves out; default: 0.95"
    )
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


def settings_of(options: argparse.Namespace, fail: Callable[[str], object]) -> LatencySettings:
    """Make the settings of parsed options, without loading anything.

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


# The report of `gnnsparse bench latency`: ratios to the fastest peer, break-even, and where we lose.

#: A case is lost if our speed is below this fraction of the fastest peer's.
LOSS = 0.97

Row = dict[str, Any]


def _case(row: Row) -> tuple[Any, ...]:
    return row["model"], row["dataset"], row["batch"], row["cache"]


def _competes(peer: Row, row: Row) -> bool:
    """Return whether a right row of a peer is compared with `row`.

    A peer may run in fp32 in place of the precision. What is launched from Python is compared with what is
    launched from Python; what is captured in a CUDA graph, with everything.
    """
    right = not peer["ours"] and peer["ok"] and _case(peer) == _case(row)
    precise = peer["precision"] in (row["precision"], "fp32")
    return right and precise and (row["mode"] == "captured" or peer["mode"] == "eager")


def break_even(ours: Row, peer: Row) -> int | None:
    """Return after how many inferences ours has taken less time than a peer, preprocessing included.

    Args:
        ours, peer: rows with `preprocess_ms` and `p50_ms`.

    Returns:
        1 or more; None if that never happens.
    """
    ahead = ours["preprocess_ms"] - peer["preprocess_ms"]
    gain = peer["p50_ms"] - ours["p50_ms"]
    if gain <= 0:
        # A head start that every inference makes smaller: it counts while it lasts for one inference.
        return 1 if ahead < gain else None
    return max(1, math.floor(ahead / gain) + 1)


def add_ratios(rows: list[Row]) -> None:
    """Add to each row its speed relative to peers: above 1 is faster. Wrong results are never compared.

    The keys are `baseline`, the name of the fastest right peer, `over_baseline`, `over_pyg` (PyG with an
    edge_index, not captured, in the row's precision if it is right there, else in fp32), and `break_even`,
    the number of inferences after which a row of ours has made up for its preprocessing, beside the
    baseline's. All are None if there is no such peer, or if the row itself is wrong.
    """
    for row in rows:
        row |= {"baseline": None, "over_baseline": None, "over_pyg": None, "break_even": None}
        if not row["ok"]:
            continue
        peers = [peer for peer in rows if _competes(peer, row)]
        if best := min(peers, key=lambda peer: peer["p50_ms"], default=None):
            row["baseline"], row["over_baseline"] = _name(best), best["p50_ms"] / row["p50_ms"]
            row["break_even"] = break_even(row, best) if row["ours"] else None
        plain = [peer for peer in peers if (peer["backend"], peer["mode"]) == ("pyg", "eager")]
        if found := min(plain, key=lambda peer: peer["precision"] != row["precision"], default=None):
            row["over_pyg"] = found["p50_ms"] / row["p50_ms"]


def _name(row: Row) -> str:
    return f"{row['backend']} {row['precision']} {row['mode']}"


def lost_cases(rows: list[Row], drift: float = 0.0) -> list[Row]:
    """Find right rows of ours that are slower than LOSS times their baseline, worst first.

    Args:
        rows: the measurements.
        drift: how far the reference changed while they were made (`NoiseMeter.drift`).
    """
    keys = ("model", "dataset", "batch", "precision", "mode", "cache", "p50_ms", "baseline")
    lost = [
        {key: row[key] for key in keys}
        | {
            "speed": row["over_baseline"],
            "noisy": row["spread"] > SPREAD_LIMIT or (1 + drift) * row["over_baseline"] >= 1,
        }
        for row in rows
        if row["ours"] and row["over_baseline"] is not None and row["over_baseline"] < LOSS
    ]
    return sorted(lost, key=lambda case: case["speed"])


def as_json(bench: LatencyBench) -> dict[str, Any]:
    """Return the content of the JSON file: environment, settings, rows, what was skipped, losses, noise."""
    add_ratios(bench.rows)
    settings = asdict(bench.settings)
    del settings["root"]  # a path of this machine
    return {
        **describe_environment(bench.settings.device),
        "settings": settings,
        "rows": bench.rows,
        "skipped": [asdict(skipped) for skipped in bench.skipped],
        "lost": lost_cases(bench.rows, bench.noise.drift),
        "noise": bench.noise.summary([row["spread"] for row in bench.rows]),
    }


def _ms(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.3f}" if value < 10 else f"{value:.1f}" if value < 1e3 else f"{value:.0f}"


def _ratio(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _table(rows: list[Row]) -> Table:
    first = rows[0]
    batch = f", batch {first['batch']}" if first["model"] == "transformer" else ""
    about = f"{first['model']}, {first['dataset']}{batch}: {first['layers']} layers, hidden {first['hidden']}"
    numbers = (
        "p50, ms", "p90", "p99", "max", "calls", "GPU, ms", "samples/s", "first, ms", "prep., ms",
        "even after", "MB", "x best peer", "x PyG", "error",
    )  # fmt: skip
    table = new_table(escape(about), ("backend", "precision", "mode", "cache"), numbers)
    for r in rows:
        name = f"{r['backend']} ({r['variant']})" if r["variant"] and not r["ours"] else r["backend"]
        peak = "" if r["peak_bytes"] is None else f"{r['peak_bytes'] / 1e6:.1f}"
        error = "-" if r["error"] is None else f"{r['error']:.1e}"
        noisy = "~" if r["spread"] > SPREAD_LIMIT else ""
        table.add_row(
            escape(name), r["precision"], r["mode"], r["cache"], _ms(r["p50_ms"]) + noisy, _ms(r["p90_ms"]),
            _ms(r["p99_ms"]), _ms(r["max_ms"]), str(r["calls"]), _ms(r["gpu_ms"]),
            "" if r["samples_per_s"] is None else f"{r['samples_per_s']:.0f}", _ms(r["first_result_ms"]),
            _ms(r["preprocess_ms"]), "" if r["break_even"] is None else str(r["break_even"]), peak,
            _ratio(r["over_baseline"]), _ratio(r["over_pyg"]),
            error if r["ok"] else f"[red]WRONG[/red] {error}",
            style=None if r["ours"] else "dim",
        )  # fmt: skip
    return table


def print_report(bench: LatencyBench, console: Console) -> None:
    """Print the tables, what is wrong or was skipped, the noise, and where we lose."""

    def say(text: str) -> None:
        console.print(escape(text), soft_wrap=True, highlight=False)

    add_ratios(bench.rows)
    tables: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
    for row in bench.rows:
        tables[row["model"], row["dataset"], row["batch"]].append(row)
    for rows in tables.values():
        console.print(_table(rows))
    if bench.rows:
        say(
            "p50 to p99: one call after the other (single stream of MLPerf Inference, which counts p90); "
            "samples/s: calls that do not wait for each other (offline of MLPerf Inference)"
        )
    for row in bench.rows:
        if not row["ok"]:
            say(f"WRONG, and not compared: {_where(row)}, {row['backend']}: {row['problem']}")
    for line in [*_call_lines(bench), *_skipped_lines(bench.skipped)]:
        say(line)
    for line in noise_lines(bench.noise.summary([row["spread"] for row in bench.rows])):
        say(line)
    say("Where we lose:")
    for case in (cases := lost_cases(bench.rows, bench.noise.drift)):
        noisy = ", not larger than the measured noise" if case["noisy"] else ""
        speed = f"{case['p50_ms']:.3f} ms, {case['speed']:.2f}x {case['baseline']}"
        say(f"  {_where(case)}: {speed}{noisy}")
    if not cases:
        compared = sum(row["ours"] and row["over_baseline"] is not None for row in bench.rows)
        say(f"  {no_losses(len(bench.rows), compared)}")


def _where(row: Row) -> str:
    batch = f", batch {row['batch']}" if row["model"] == "transformer" else ""
    return f"{row['model']}, {row['dataset']}{batch}, {row['precision']}, {row['mode']}, {row['cache']}"


def _call_lines(bench: LatencyBench) -> list[str]:
    """Return lines of the rows with fewer calls than asked for, and of those that did not become stable."""
    lines = []
    few = [row for row in bench.rows if row["calls"] < bench.settings.calls]
    if few:
        least = min(row["calls"] for row in few)
        lines.append(
            f"{len(few)} of {len(bench.rows)} rows have fewer than {bench.settings.calls} calls, {least} at "
            f"the least, because they took more than {bench.settings.seconds:g} s"
        )
    if unstable := sum(not row["stable"] for row in bench.rows):
        lines.append(
            f"{unstable} of {len(bench.rows)} rows were not stable within 2 % when the warm-up ended"
        )
    return lines


def _skipped_lines(skipped: list[SkippedLatency]) -> list[str]:
    """Return a line for each backend and reason for which it was skipped."""
    groups: dict[tuple[str, str, bool], list[SkippedLatency]] = defaultdict(list)
    for case in skipped:
        groups[case.backend, case.reason, case.failed].append(case)
    lines = []
    for (name, reason, failed), cases in groups.items():
        parts = ([c.model for c in cases], [c.dataset for c in cases], [c.precision for c in cases])
        where = "; ".join(filter(None, (", ".join(dict.fromkeys(filter(None, part))) for part in parts)))
        lines.append(f"{'failed' if failed else 'skipped'}: {name + ' in ' if name else ''}{where}: {reason}")
    return lines


def run(options: argparse.Namespace) -> int:
    """Run the command with parsed options, and return its exit status."""
    return run_latency(settings_of(options, options.fail), options.out, options.plot)
