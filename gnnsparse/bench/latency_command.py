"""The command `gnnsparse bench latency`: its options, its report and its figure."""

from __future__ import annotations

import argparse
import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from gnnsparse.bench.arguments import (
    Several,
    add_device,
    add_names,
    add_outputs,
    at_least_one,
    folder_option,
    number_option,
    scale_option,
)
from gnnsparse.bench.figures import latency_panels, plot
from gnnsparse.bench.latency_measure import COMPILED, LatencyBench
from gnnsparse.bench.latency_own import PRECISIONS, is_own, own_arguments, own_latency
from gnnsparse.bench.latency_tasks import (
    BACKENDS,
    CACHES,
    CORA_LIKE,
    GRAPH_MODELS,
    MODELS,
    MODES,
    LatencySettings,
)
from gnnsparse.bench.session import (
    LOSS,
    SPREAD_LIMIT,
    Row,
    new_table,
    no_losses,
    printer,
    progress,
    shown_error,
    skipped_lines,
)
from gnnsparse.data import DATASETS, GENERATED_GRAPHS
from gnnsparse.precision import Precision
from gnnsparse.runtime.environment import describe_environment, write_json
from gnnsparse.runtime.profiler import wide_console

# The options of `gnnsparse bench latency`, checked before anything is measured.

DESCRIPTION = """\
Measures how long models take from a call to its result, ours beside PyG's and torch's with the same weights:
percentiles of single calls, throughput, the time to the first result, and memory. Every result is checked
against float64, and a wrong one is not compared. Options that take several names take them with commas or
spaces. A model of yours, --model FILE.py:NAME --graph FILE, is measured as it is, compiled and accelerated.
"""
#: Options that go with a model of the user's own, beside those that every model has.
_OF_OWN = ("graph", "weights", "model_args")
#: Tokens of a sequence on a CPU, where 8,192 would take seconds a call.
_CPU_TOKENS = 1024


def _counts(text: str) -> list[int]:
    return [at_least_one(part) for part in text.split(",")]


def _existing(text: str) -> Path:
    path = Path(text)
    if not path.exists():
        raise argparse.ArgumentTypeError(f"there is no file {text!r}")
    return path


def _pairs(text: str) -> list[tuple[str, Any]]:
    try:
        return own_arguments(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error).removeprefix("--model-args: ")) from None


_fraction = number_option("a number from 0 on, below 1", lambda value: 0 <= value < 1)
_seconds = number_option("a number of seconds above 0", lambda value: 0 < value < 1e6)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `gnnsparse bench latency`."""
    datasets = (CORA_LIKE, *dict.fromkeys((*DATASETS, *GENERATED_GRAPHS)))
    precisions = Precision.names()
    several: tuple[tuple[str, str, Sequence[str], Any, str], ...] = (
        (
            "--dataset", "datasets", datasets, (CORA_LIKE,),
            "cora_like (default), a random graph of Cora's size, or a data set of train.py: cora, pubmed, "
            "reddit_like, arxiv_like, ...; the transformer has none",
        ),
        ("--precision", "precisions", precisions, ("fp32",), f"{', '.join(precisions)}; default: fp32"),
        (
            "--backend", "backends", BACKENDS, None,
            "gnnsparse; pyg: an edge_index; pyg-csr: a torch CSR adjacency; pyg-compile: torch.compile with "
            "CUDA graphs, in a process of its own; dense: a dense matrix, or dense attention by torch's best "
            "kernel. Default: all, on a CPU all but pyg-compile",
        ),
        (
            "--mode", "modes", MODES, None,
            "eager: each call from Python; captured: a CUDA graph. Default: both on a GPU",
        ),
        (
            "--cache", "caches", CACHES, CACHES,
            "warm, cold: the last-level cache is flushed before each call; default: both",
        ),
    )  # fmt: skip
    known = f"{', '.join(MODELS)}; default: gcn; or FILE.py:NAME, a class in a file of yours, with --graph"
    add_names(parser, "--model", "models", MODELS, ("gcn",), known, {"FILE.py:NAME": is_own})
    for option in several:
        add_names(parser, *option)
    for name, metavar, text in (
        ("--graph", "FILE", "of a model of yours: a file or folder as dataset.path of train.py"),
        ("--weights", "FILE", "of a model of yours: its state_dict, saved by torch.save"),
    ):
        parser.add_argument(name, type=_existing, metavar=metavar, help=text)
    parser.add_argument(
        "--model-args", type=_pairs, default=(), metavar="NAME=VALUE,...",
        help="of a model of yours: arguments of NAME, such as hidden=64; numbers of features and of classes "
        "(in_channels, out_channels) are known from the graph",
    )  # fmt: skip
    parser.add_argument(
        "--batch", dest="batches", nargs="+", action=Several, type=_counts, default=(1,), metavar="N",
        help="sequences of a call; default: 1",
    )  # fmt: skip
    add_device(parser)
    single: dict[str, tuple[Any, Any, str, str]] = {
        "--layers": (at_least_one, None, "N", "default: 3, of the transformer 4"),
        "--hidden": (
            at_least_one, None, "N", "features of a layer; default: 128, of the transformer 64 a head"
        ),
        "--heads": (at_least_one, 8, "N", "heads of gat and transformer; default: 8"),
        "--seq-len": (
            at_least_one, None, "N", f"tokens of a sequence; default: 8192, on a CPU {_CPU_TOKENS}"
        ),
        "--sparsity": (
            _fraction, 0.95, "S", "fraction of the pairs that the pattern leaves out; default: 0.95"
        ),
        "--vector": (at_least_one, 8, "N", "rows of a vector of the pattern; default: 8"),
        "--root": (
            folder_option, None, "DIR",
            "a folder with the files of the data set, or with one for each data set",
        ),
        "--scale": (scale_option, 1.0, "S", "size of generated data sets, at most 1 (default)"),
        "--features": (at_least_one, None, "N", "features of a node of cora_like and of generated graphs"),
        "--calls": (at_least_one, 200, "N", "calls of each row; default: 200, fewer of slow ones"),
        "--seconds": (_seconds, 5.0, "S", "time that the calls of a row may take; default: 5"),
        "--timeout": (_seconds, 300.0, "S", "time that a compiled peer may take in all; default: 300"),
    }  # fmt: skip
    for name, (kind, default, metavar, text) in single.items():
        parser.add_argument(name, type=kind, default=default, metavar=metavar, help=text)
    add_outputs(parser, "latencies")


def _settings_of(options: argparse.Namespace) -> LatencySettings:
    """Make the settings of parsed options; `options.fail` is called if they do not go together."""
    fail = options.fail
    cuda = options.device == "cuda"
    given = {field.name: getattr(options, field.name) for field in fields(LatencySettings)}
    given["modes"] = options.modes or (MODES if cuda else ("eager",))
    given["backends"] = options.backends or tuple(b for b in BACKENDS if cuda or b != "pyg-compile")
    given["seq_len"] = options.seq_len or (8192 if cuda else _CPU_TOKENS)
    settings = LatencySettings(**given)
    if not cuda and "captured" in settings.modes:
        fail("argument --mode: captured needs an NVIDIA GPU; this run is on the CPU")
    for model in settings.models:
        hidden, heads = settings.hidden_of(model), settings.heads
        if model in ("gat", "transformer") and hidden % heads:
            fail(f"argument --hidden: got {hidden} for {model}; accepted: a multiple of --heads {heads}")
    length, vector = settings.seq_len, settings.vector
    if "transformer" in settings.models and length % vector:
        fail(f"argument --seq-len: got {length}; accepted: a multiple of --vector {vector}")
    made = set(settings.datasets) & set(GENERATED_GRAPHS)
    on_graphs = bool(set(settings.models) & set(GRAPH_MODELS))
    if on_graphs and settings.scale != 1 and not made:
        fail(f"argument --scale: goes with generated graphs: {', '.join(GENERATED_GRAPHS)}")
    if on_graphs and settings.features and not made and CORA_LIKE not in settings.datasets:
        fail(f"argument --features: goes with {CORA_LIKE} and generated graphs; published ones have theirs")
    return settings


# The report of `gnnsparse bench latency`: ratios to the fastest peer, break-even, and where we lose.


def _case(row: Row) -> tuple[Any, ...]:
    return row["model"], row["dataset"], row["batch"], row["cache"]


def _competes(peer: Row, row: Row) -> bool:
    """Return whether a right row of a peer is compared with `row`: in its precision, or in fp32.

    What is launched from Python is compared with what is launched from Python; what is captured in a CUDA
    graph, with everything.
    """
    right = not peer["ours"] and peer["ok"] and _case(peer) == _case(row)
    precise = peer["precision"] in (row["precision"], "fp32")
    return right and precise and (row["mode"] == "captured" or peer["mode"] == "eager")


def break_even(ours: Row, peer: Row) -> int | None:
    """Return after how many inferences ours took less time than a peer, preprocessing included, or None."""
    ahead = ours["preprocess_ms"] - peer["preprocess_ms"]
    gain = peer["p50_ms"] - ours["p50_ms"]
    if gain <= 0:
        # A head start that every inference makes smaller: it counts while it lasts for one inference.
        return 1 if ahead < gain else None
    return max(1, math.floor(ahead / gain) + 1)


def add_ratios(rows: list[Row]) -> None:
    """Add to each row its speed relative to the fastest right peer and to PyG's: above 1 is faster.

    `over_pyg` is relative to PyG with an edge_index, not captured, in the row's precision if it is right
    there, else in fp32. Wrong results are never compared; what has no peer is None.
    """
    for row in rows:
        row |= {"baseline": None, "over_baseline": None, "over_pyg": None, "break_even": None}
        if not row["ok"]:
            continue
        peers = [peer for peer in rows if _competes(peer, row)]
        if best := min(peers, key=lambda peer: peer["p50_ms"], default=None):
            row["baseline"] = f"{best['backend']} {best['precision']} {best['mode']}"
            row["over_baseline"] = best["p50_ms"] / row["p50_ms"]
            row["break_even"] = break_even(row, best) if row["ours"] else None
        plain = [peer for peer in peers if (peer["backend"], peer["mode"]) == ("pyg", "eager")]
        if found := min(plain, key=lambda peer: peer["precision"] != row["precision"], default=None):
            row["over_pyg"] = found["p50_ms"] / row["p50_ms"]


def lost_cases(rows: list[Row], drift: float = 0.0) -> list[Row]:
    """Find right rows of ours that are slower than LOSS times their baseline, worst first."""
    keys = ("model", "dataset", "batch", "precision", "mode", "cache", "p50_ms", "baseline")
    lost = []
    for row in rows:
        speed = row["over_baseline"]
        if row["ours"] and speed is not None and speed < LOSS:
            noisy = row["spread"] > SPREAD_LIMIT or (1 + drift) * speed >= 1
            lost.append({**{key: row[key] for key in keys}, "speed": speed, "noisy": noisy})
    return sorted(lost, key=lambda case: case["speed"])


def as_json(bench: LatencyBench) -> Row:
    """Return the content of the JSON file: environment, settings, rows, what was skipped, losses, noise."""
    add_ratios(bench.rows)
    settings = asdict(bench.settings)
    del settings["root"]  # a path of this machine
    return bench.content(settings, lost=lost_cases(bench.rows, bench.noise.drift))


def _ms(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.3f}" if value < 10 else f"{value:.1f}" if value < 1e3 else f"{value:.0f}"


def _table(rows: list[Row]) -> Table:
    first = rows[0]
    batch = f", batch {first['batch']}" if first["model"] == "transformer" else ""
    about = f"{first['model']}, {first['dataset']}{batch}: {first['layers']} layers, hidden {first['hidden']}"
    numbers = (
        "p50, ms", "p90", "p99", "max", "calls", "GPU, ms", "samples/s", "first, ms", "prep., ms",
        "even after", "MB", "x best peer", "x PyG", "error",
    )  # fmt: skip
    table = new_table(escape(about), ("backend", "precision", "mode", "cache"), numbers)

    def shown(value: float | None, form: str, unit: float = 1.0) -> str:
        return "" if value is None else format(value / unit, form)

    for r in rows:
        name = f"{r['backend']} ({r['variant']})" if r["variant"] and not r["ours"] else r["backend"]
        noisy = "~" if r["spread"] > SPREAD_LIMIT else ""
        table.add_row(
            escape(name), r["precision"], r["mode"], r["cache"], _ms(r["p50_ms"]) + noisy, _ms(r["p90_ms"]),
            _ms(r["p99_ms"]), _ms(r["max_ms"]), str(r["calls"]), _ms(r["gpu_ms"]),
            shown(r["samples_per_s"], ".0f"), _ms(r["first_result_ms"]), _ms(r["preprocess_ms"]),
            shown(r["break_even"], ".0f"), shown(r["peak_bytes"], ".1f", 1e6),
            shown(r["over_baseline"], ".2f"), shown(r["over_pyg"], ".2f"), shown_error(r),
            style=None if r["ours"] else "dim",
        )  # fmt: skip
    return table


def print_report(bench: LatencyBench, console: Console) -> None:
    """Print the tables, what is wrong or was skipped, the noise, and where we lose."""
    say = printer(console)
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
    skipped = skipped_lines(bench.skipped, "backend", ("model", "dataset", "precision"))
    few = _call_lines(bench.rows, bench.settings.calls, bench.settings.seconds)
    bench.say_end(say, [*few, *skipped])
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


def _call_lines(rows: list[Row], calls: int, seconds: float) -> Iterator[str]:
    """Yield lines of the rows with fewer calls than asked for, and of those that did not become stable."""
    if few := [row["calls"] for row in rows if row["calls"] < calls]:
        least = f"{min(few)} at the least, because they took more than {seconds:g} s"
        yield f"{len(few)} of {len(rows)} rows have fewer than {calls} calls, {least}"
    if unstable := sum(not row["stable"] for row in rows):
        yield f"{unstable} of {len(rows)} rows were not stable within 2 % when the warm-up ended"


def run(options: argparse.Namespace) -> int:
    """Measure, print the report, and write it to files; the status is 1 if ours is wrong or failed."""
    if any(map(is_own, options.models)):
        return _run_own(options)
    for name in _OF_OWN:
        if getattr(options, name):
            option = f"--{name.replace('_', '-')}"
            options.fail(f"argument {option}: goes with a model of your own; accepted: --model FILE.py:NAME")
    bench = LatencyBench(_settings_of(options), progress())
    for _ in bench.run():
        if options.out is not None:  # after each task, because a run may be ended
            write_json(options.out, as_json(bench))
    print_report(bench, wide_console(200))
    if options.plot is not None:
        plot(latency_panels(bench.rows), options.plot)
    return bench.status


def _run_own(options: argparse.Namespace) -> int:
    """Measure a model of the user's own; the status is 1 if a row is wrong."""
    fail, precisions = options.fail, options.precisions
    if len(options.models) > 1:
        fail("argument --model: has several models; accepted: one FILE.py:NAME at a time")
    for name in ("hidden", "layers", "features", "seq-len", "root"):
        if getattr(options, name.replace("-", "_")) is not None:
            fail(f"argument --{name}: is for models of this package; accepted: --model-args NAME=VALUE")
    if options.graph is None:
        fail("argument --graph: is missing; accepted: a file or folder with your graph")
    if wrong := [name for name in precisions if name not in PRECISIONS]:
        accepted = f"of a model of your own {', '.join(PRECISIONS)}"
        fail(f"argument --precision: got {wrong[0]!r}; accepted: {accepted}")
    if options.datasets != (CORA_LIKE,):
        fail("argument --dataset: is for models of this package; accepted: --graph FILE")
    if options.plot is not None:
        fail("argument --plot: is for the models of this package; accepted: --out FILE.json")
    try:
        found = own_latency(
            options.models[0], options.graph, options.device, weights=options.weights,
            arguments=dict(options.model_args), precisions=precisions, calls=options.calls,
            seconds=options.seconds, compiles=options.backends is None or COMPILED in options.backends,
        )  # fmt: skip
    except (ValueError, TypeError, OSError) as error:
        if not str(error).startswith("--"):  # an error of the user's code is shown as it is
            raise
        fail(f"argument {error}")
    wide_console(160).print(found.table())
    if options.out is not None:
        write_json(options.out, {**describe_environment(options.device), **asdict(found)})
    return int(any(row.note.startswith("WRONG") for row in found.rows))
