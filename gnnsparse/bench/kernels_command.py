"""The command `gnnsparse bench kernels`."""

from __future__ import annotations

import argparse
import json
import statistics
from collections import defaultdict
from collections.abc import Callable, Sequence
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
    devices_here,
    matrices_option,
    parse_matrix,
    unique_names,
)
from gnnsparse.bench.candidates import BASELINES, KERNEL_DEVICES, PEERS, peer_precision
from gnnsparse.bench.figures import plot, ratio_panels
from gnnsparse.bench.kernels import SKIPPED, Bench, Settings
from gnnsparse.bench.session import (
    LOSS,
    SPREAD_LIMIT,
    Row,
    is_noise,
    new_table,
    no_losses,
    printer,
    progress,
    shown_error,
    skipped_lines,
)
from gnnsparse.bench.workload import OPS, VALUES
from gnnsparse.data.generators import GENERATED_GRAPHS
from gnnsparse.errors import bad_value
from gnnsparse.formats import FORMAT_NAMES
from gnnsparse.precision import Precision
from gnnsparse.preprocess.reorder import METHODS, REORDERINGS
from gnnsparse.runtime.environment import describe_environment, write_json
from gnnsparse.runtime.profiler import wide_console

DESCRIPTION = """\
Measures our kernels and their peers on the same matrices in one process, checks every result
against float64, and says where the plan's own choice (auto) is not the best.
"""
#: The formats of papers, by name.
_FORMATS = tuple(name for name in FORMAT_NAMES if name not in ("auto", "csr", "window"))
#: The matrices by type of device if none is named: on a CPU the large ones would take hours.
_DEFAULT_MATRICES: dict[str, Sequence[str]] = {"cuda": GENERATED_GRAPHS, "cpu": ("arxiv_like",)}


#: Widths that users have, which are no powers of two: classes of reddit and of products, features of products
#: and of reddit.
USERS_WIDTHS = (41, 47, 100, 602)


def _widths(text: str) -> list[int]:
    return list(USERS_WIDTHS) if text == "users" else [at_least_one(text)]


def _reorder(text: str) -> str:
    if text not in REORDERINGS:
        raise argparse.ArgumentTypeError(f"got {text!r}; accepted: {', '.join(REORDERINGS)}")
    if text in METHODS and (package := METHODS[text].missing_package):
        raise argparse.ArgumentTypeError(f"{text} needs the package {package}: pip install {package}")
    return text


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `gnnsparse bench kernels`."""
    precisions, here = Precision.names(), set(devices_here())
    kernels = tuple(name for name, devices in KERNEL_DEVICES.items() if here & {*devices})
    peers = [name for name, peer in PEERS.items() if here & {*peer.devices}]
    several: tuple[tuple[str, str, Sequence[str], tuple[str, ...], str], ...] = (
        ("--op", "ops", OPS, ("spmm",), f"{', '.join(OPS)}; default: spmm"),
        (
            "--precision", "precisions", precisions, ("fp16", "fp32"),
            f"{', '.join(precisions)}; default: fp16 fp32",
        ),
        (
            "--values", "values", VALUES, ("gcn", "random"),
            f"weights of spmm: {', '.join(VALUES)}; default: gcn random, which are of rank 1 and stored",
        ),
        (
            "--kernels", "kernels", kernels, (),
            f"{', '.join(kernels)}; default: all of the device. auto is what users get, others are forced",
        ),
        (
            "--peers", "peers", ("all", "none", *PEERS), ("all",),
            f"all (default: those for the device), none, or {', '.join(peers)}",
        ),
        (
            "--format", "formats", _FORMATS, (),
            f"published formats to measure beside the kernels, by the policies of their papers: "
            f"{', '.join(_FORMATS)}; default: none",
        ),
    )  # fmt: skip
    for option in several:
        add_names(parser, *option)
    parser.add_argument(
        "--matrix", nargs="+", action="extend", type=matrices_option, metavar="MATRIX",
        help=f"may be repeated; a generated graph ({', '.join(GENERATED_GRAPHS)}), also as NAME:scale=0.1, "
        "NAME:shuffled, NAME:seed=1; a file .mtx, .smtx (both also .gz) or .npz; a folder of such files. "
        "Default: all generated graphs on a GPU, arxiv_like on a CPU",
    )  # fmt: skip
    parser.add_argument(
        "--width", dest="widths", nargs="+", action=Several, type=_widths, default=(64, 128, 256),
        metavar="N",
        help="columns of X, or features of Q and K; 'users' stands for 41 47 100 602, the classes and "
        "features of two published graphs; default: 64 128 256",
    )  # fmt: skip
    add_device(parser)
    parser.add_argument(
        "--repeats", type=at_least_one, default=20, metavar="N", help="default: 20; fewer of slow calls"
    )
    parser.add_argument(
        "--cache", choices=("warm", "cold"), default="warm",
        help="warm (default): one repeat follows another, as the layers of a training step do; "
        "cold: the last cache (L2 on a GPU) is flushed before each",
    )  # fmt: skip
    parser.add_argument(
        "--timing", choices=("events", "graph"), default="events",
        help="events (default): each call on its own, with what Python costs where the product is "
        "small; graph: replays of a CUDA graph of several calls, which is what the GPU takes",
    )  # fmt: skip
    parser.add_argument(
        "--reorder", type=_reorder, default="none", metavar="NAME",
        help=f"row order of our operands: {', '.join(REORDERINGS)}; peers get the matrix as it is",
    )  # fmt: skip
    switches = {
        "--ablate": "measure each switch of a format's policy changed, one at a time, and windows of 16 "
        "rows; needs --format and an NVIDIA GPU",
        "--resume": "keep what the file of --out has, and measure the matrices that it lacks; it must be of "
        "the same machine, versions and options",
    }
    for name, text in switches.items():
        parser.add_argument(name, action="store_true", help=text)
    add_outputs(parser, "ratios")


def _peers(
    names: tuple[str, ...], ops: tuple[str, ...], device: str, fail: Callable[[str], object]
) -> tuple[str, ...]:
    if len(names) > 1 and {"all", "none"} & set(names):
        fail("argument --peers: 'all' and 'none' stand alone")
    if names == ("none",):
        return ()
    fitting = [name for name, peer in PEERS.items() if device in peer.devices and set(ops) & set(peer.ops)]
    if names == ("all",):
        return tuple(fitting)
    for name in names:
        if name not in fitting:
            where = f"{' and '.join(PEERS[name].ops)} on {' and '.join(PEERS[name].devices)}"
            fail(f"argument --peers: {name} computes {where}; this run is of {', '.join(ops)} on {device}")
    return names


def _kernels(names: tuple[str, ...], device: str, fail: Callable[[str], object]) -> tuple[str, ...]:
    fitting = tuple(name for name, devices in KERNEL_DEVICES.items() if device in devices)
    for name in names:
        if name not in fitting:
            where = " and ".join(KERNEL_DEVICES[name])
            accepted = ", ".join(fitting)
            fail(f"argument --kernels: {name} runs on {where}; accepted on {device}: {accepted}")
    return names or fitting


def _settings_of(options: argparse.Namespace) -> Settings:
    """Make the settings of parsed options; `options.fail` is called if they do not go together."""
    fail, device = options.fail, options.device
    if options.timing == "graph" and device != "cuda":
        fail("argument --timing: graph needs an NVIDIA GPU; this run is on the CPU")
    if options.timing == "graph" and options.cache == "cold":
        fail("argument --timing: the calls of a graph follow one another: graph goes with --cache warm")
    if options.resume and options.out is None:
        fail("argument --resume: needs --out, the file to go on with")
    if options.ablate and not options.formats:
        fail("argument --ablate: needs --format, the formats whose policies run")
    if options.ablate and device != "cuda":
        fail("argument --ablate: needs an NVIDIA GPU; on the CPU policies change nothing")
    groups = options.matrix or [parse_matrix(name) for name in _DEFAULT_MATRICES[device]]
    names = {field.name for field in fields(Settings)}
    return Settings(**{
        **{name: value for name, value in vars(options).items() if name in names},
        "matrices": tuple(unique_names(spec for group in groups for spec in group)),
        "kernels": _kernels(options.kernels, device, fail),
        "peers": _peers(options.peers, options.ops, device, fail),
    })  # fmt: skip


def run(options: argparse.Namespace) -> int:
    """Run the command with parsed options, and return its exit status."""
    return run_kernels(_settings_of(options), options.out, options.plot, resume=options.resume)


def run_kernels(
    settings: Settings, out: Path | None = None, figure: Path | None = None, *, resume: bool = False
) -> int:
    """Measure, print the report, and write the JSON file `out` and the figure.

    With `resume`, matrices that the file has are left out, and its measurements kept; ValueError: it can't be
    gone on with. The status is 1 if a kernel of this package is wrong or failed, or a matrix could not be
    read.
    """
    bench = Bench(settings, progress())
    done = go_on(bench, out) if resume and out is not None else set()
    for spec in settings.matrices:
        if spec.name in done:
            continue
        bench.run_matrix(spec)
        add_ratios(bench.rows, settings.device)
        if out is not None:  # after each matrix, because a run of hours may be killed
            write_json(out, as_json(bench))
    add_ratios(bench.rows, settings.device)
    print_report(bench, wide_console(160))
    if figure is not None:
        plot(ratio_panels(bench.rows), figure)
    return bench.status


# Going on with a benchmark whose file has some of the matrices already.

#: What a file and the run that goes on with it must agree on, beside the settings; on a CPU also the threads.
_SAME = ("device", "device_name", "versions")


def go_on(bench: Bench, file: Path) -> set[str]:
    """Add the measurements of a file to a run, and return the names of the matrices that are measured.

    One of which nothing could be measured is not among them. ValueError: the file is none of this benchmark,
    or of another machine, versions or options, and `bench` is as it was.
    """
    if not file.exists():
        return set()
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        rows, medians = [dict(row) for row in found["rows"]], list(map(float, found["noise"]["reference_ms"]))
        names = {str(row["graph"]) for row in rows}
        skipped = [{key: case[key] for key in SKIPPED} for case in found["skipped"]]
        commits = list(map(str, found.get("commits", [found["commit"]])))
        _check_same(file, found, bench.settings)
    except (OSError, UnicodeDecodeError, json.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
        bad_value("resume", f"{file} is no file that this benchmark wrote ({type(error).__name__}: {error})")
    bench.rows += rows
    bench.skipped += [case for case in skipped if case["graph"] in names]
    bench.noise.medians[:0] = medians
    bench.commits += commits
    return names


def _check_same(file: Path, found: dict[str, Any], settings: Settings) -> None:
    here = describe_environment(settings.device)
    for name in (*_SAME, *(("threads",) if settings.device == "cpu" else ())):
        if found[name] != here[name]:
            bad_value("resume", f"{file} has the {name} {found[name]}, this run {here[name]}")
    wanted = json.loads(json.dumps({**asdict(settings), "matrices": None}))
    for name, value in wanted.items():
        if name != "matrices" and (before := found["settings"][name]) != value:
            bad_value("resume", f"{file} was measured with {name} {before}, not {value}")


# The report: ratios to a baseline, means over matrices, and lost cases.


def _case(row: Row) -> tuple[Any, ...]:
    return row["graph"], row["op"], row["values"], row["width"]


def _variant_of(row: Row) -> str:
    """Return the variant of a kernel of ours: each is compared by itself. Peers' fastest one is in rows."""
    return str(row.get("variant", "")) if row["ours"] else ""


def add_ratios(rows: list[Row], device: str) -> None:
    """Add to each row its speed relative to the baseline's, above 1 is faster; None if there is no baseline.

    The baseline is the first of BASELINES that was measured and is right, in the row's precision or else in
    fp32; notes/benchmarks.md lists the keys.
    """
    right = {(*_case(r), r["kernel"], r["precision"]): r for r in rows if not r["ours"] and r["ok"]}
    for row in rows:
        peers = BASELINES[row["op"], device]
        base, torchs = _baseline(row, peers, right), _baseline(row, peers[-1:], right)
        ratio = None if base is None else base["ms"] / row["ms"]
        row["baseline"] = None if base is None else f"{base['kernel']} {base['precision']}"
        row["baseline_variant"] = None if base is None else base.get("variant", "")
        row["over_baseline"] = ratio
        row["over_cusparse"] = ratio if device == "cuda" else None
        row["over_torch"] = None if torchs is None else torchs["ms"] / row["ms"]


def _baseline(row: Row, peers: tuple[str, ...], right: dict[tuple[Any, ...], Row]) -> Row | None:
    """Return the right row of the first peer that has one for the case of `row`; None if none has."""
    for peer in peers:
        for precision in (peer_precision(peer, Precision(row["precision"])), Precision.FP32):
            if found := right.get((*_case(row), peer, precision.value)):
                return found
    return None


def means_of_auto(rows: list[Row]) -> list[Row]:
    """Compute geometric means of the ratios of `auto` over cases that are right and have a baseline."""
    groups: dict[tuple[str, str, str, str], list[Row]] = defaultdict(list)
    for row in rows:
        if row["kernel"] == "auto" and row["ok"] and row["over_baseline"] is not None:
            groups[row["op"], row["precision"], _variant_of(row), row["baseline"]].append(row)
    return [
        {
            "op": op, "precision": precision, "variant": variant, "baseline": baseline, "cases": len(group),
            "matrices": len({row["graph"] for row in group}),
            "mean": statistics.geometric_mean(row["over_baseline"] for row in group),
        }
        for (op, precision, variant, baseline), group in groups.items()
    ]  # fmt: skip


def lost_cases(rows: list[Row], drift: float = 0.0) -> list[Row]:
    """Find cases where `auto` is slower than LOSS times the best of the peers and of our forced kernels.

    Plans and kernels are judged by these cases, the worst first. Wrong results are left out. "noisy" is
    whether the two differ by no more than the measured noise.
    """
    lost = []
    for row, best in _compared(rows):
        if best["ms"] >= LOSS * row["ms"]:
            continue
        keys = ("graph", "op", "values", "precision", "width", "ms")
        peer = _with_variant(f"{best['kernel']} {best['precision']}", best)
        lost.append({
            **{key: row[key] for key in keys}, "variant": _variant_of(row),
            "best": best["kernel"] if best["ours"] else peer,
            "best_ms": best["ms"], "best_is_ours": best["ours"], "speed": best["ms"] / row["ms"],
            "noisy": is_noise(row, best, drift),
        })  # fmt: skip
    return sorted(lost, key=lambda case: case["speed"])


def _compared(rows: list[Row]) -> list[tuple[Row, Row]]:
    """Return the right rows of `auto` that have rivals, each with the fastest of them."""
    rivals: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
    for row in rows:
        if row["ok"] and row["kernel"] != "auto":
            rivals[_case(row)].append(row)
    found = []
    for row in (row for row in rows if row["ok"] and row["kernel"] == "auto"):
        if against := [rival for rival in rivals[_case(row)] if _competes(rival, row)]:
            found.append((row, min(against, key=lambda rival: rival["ms"])))
    return found


def _competes(rival: Row, row: Row) -> bool:
    """Return whether a candidate's row is in the precision that rows like `row` are compared with."""
    if rival["ours"]:
        return rival["precision"] == row["precision"] and _variant_of(rival) == _variant_of(row)
    wanted = peer_precision(rival["kernel"], Precision(row["precision"]))
    is_baseline = row.get("baseline") == f"{rival['kernel']} {rival['precision']}"
    return rival["precision"] == wanted.value or is_baseline


def _with_variant(name: str, row: Row, form: str = " ({})") -> str:
    return name + (form.format(row["variant"]) if row.get("variant") else "")


def as_json(bench: Bench) -> Row:
    """Return the content of the JSON file: environment, settings, rows, what was skipped, summary."""
    names = [*(row["graph"] for row in bench.rows), *(spec.name for spec in bench.settings.matrices)]
    # With the matrices of a file that the run went on with.
    settings = {**asdict(bench.settings), "matrices": list(dict.fromkeys(names))}
    means, lost = means_of_auto(bench.rows), lost_cases(bench.rows, bench.noise.drift)
    content = bench.content(settings, means=means, lost=lost)
    return {**content, "commits": list(dict.fromkeys([*bench.commits, content["commit"]]))}


def _table(op: str, rows: list[Row]) -> Table:
    numbers = ("ms", "quartiles", "GFLOP/s", "floor, ms", "of floor", "x baseline", "x torch", "error")
    table = new_table(op, ("matrix", "values", "N", "precision", "kernel"), numbers)
    # Sorted by case, since peers of one precision may be measured long before kernels of another.
    order = {case: number for number, case in enumerate(dict.fromkeys(map(_case, rows)))}
    for r in sorted(rows, key=lambda row: order[_case(row)]):
        table.add_row(
            escape(r["graph"]), r["values"], str(r["width"]), r["precision"],
            f"{r['kernel']} = {r['same_as']}" if r["same_as"] else _with_variant(r["kernel"], r),
            f"{r['ms']:.3f}" + ("~" if r["spread"] > SPREAD_LIMIT else ""),
            f"{r['lower_quartile_ms']:.3f}..{r['upper_quartile_ms']:.3f}", f"{r['gflops']:.0f}",
            _number(r["floor_measured_ms"], 3), _number(r["of_floor"]), _number(r["over_baseline"]),
            _number(r["over_torch"]), shown_error(r),
            style=None if r["ours"] else "dim",
        )  # fmt: skip
    return table


def _ablation_table(rows: list[Row]) -> Table:
    """Rows of formats: the time beside that of the paper's policy, and of the baseline."""
    texts = ("matrix", "values", "N", "precision", "format and change")
    table = new_table("policies of formats", texts, ("ms", "x its policy", "x baseline"))
    own = {(*_case(r), r["precision"], r["kernel"]): r["ms"] for r in rows}
    for r in rows:
        ms = own.get((*_case(r), r["precision"], r["format"]))
        table.add_row(
            escape(r["graph"]), r["values"], str(r["width"]), r["precision"], r["kernel"], f"{r['ms']:.3f}",
            "" if ms is None else f"{ms / r['ms']:.2f}", _number(r["over_baseline"]),
        )  # fmt: skip
    return table


def _number(value: float | None, digits: int = 2) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def print_report(bench: Bench, console: Console) -> None:
    """Print the tables, what is wrong or was skipped, means of `auto`, the noise, and where we lose."""
    say = printer(console)
    for op in bench.settings.ops:
        rows = [row for row in bench.rows if row["op"] == op]
        if rows:
            console.print(_table(op, rows))
            say(f"baseline of {op}: {_baseline_names(rows)}")
    if formats := [row for row in bench.rows if row.get("format")]:
        console.print(_ablation_table(formats))
    for row in bench.rows:
        if not row["ok"]:
            say(f"WRONG: {row['kernel']}, {_where(row)}: {row['problem']}")
    uncaptured = dict.fromkeys((r["kernel"], r["timing_problem"]) for r in bench.rows if r["timing_problem"])
    lines = [f"timed without a CUDA graph: {name}: {problem}" for name, problem in uncaptured]
    lines += skipped_lines(bench.skipped, "name", ("graph", "op", "precision"))
    for mean in means_of_auto(bench.rows):
        if mean["matrices"] > 1:
            about = f"{mean['cases']} cases of {mean['matrices']} matrices"
            which = _with_variant(f"{mean['op']} {mean['precision']}", mean)
            lines.append(f"auto, {which}: {mean['mean']:.2f} x {mean['baseline']} ({about})")
    bench.say_end(say, lines)
    cases = lost_cases(bench.rows, bench.noise.drift)
    clear = [case for case in cases if not case["noisy"]]
    for case in clear:
        best = f"{case['best']} takes {case['best_ms']:.3f} ms"
        say(f"  auto loses: {_where(case)}: {case['ms']:.3f} ms, {best} ({case['speed']:.2f}x)")
    if not clear:
        say(f"  {no_losses(len(bench.rows), len(_compared(bench.rows)))}")
    if noise := len(cases) - len(clear):
        say(f"  noise: {noise} more, in which the difference is not larger than the measured noise")


def _baseline_names(rows: list[Row]) -> str:
    found: dict[str, dict[str, None]] = defaultdict(dict)
    for row in rows:
        if row["baseline"] is not None:
            found[row["baseline"]][row["baseline_variant"]] = None
    names = [name + (f" ({', '.join(v)})" if any(v) else "") for name, v in found.items()]
    return "; ".join(names) or "none was measured and is right"


def _where(row: Row) -> str:
    case = f"{row['graph']}, {row['op']}, values {row['values']}, {row['precision']}, N = {row['width']}"
    return _with_variant(case, row, ", {}")
