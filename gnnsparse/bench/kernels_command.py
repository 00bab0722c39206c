"""The command `gnnsparse bench kernels`."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console

from gnnsparse.bench.arguments import (
    at_least_one,
    device_option,
    devices_here,
    file_option,
    matrices_option,
    plot_option,
)
from gnnsparse.bench.candidates import KERNEL_DEVICES
from gnnsparse.bench.figures import plot_ratios
from gnnsparse.bench.kernels import Bench, Settings, Skipped
from gnnsparse.bench.kernels_report import add_ratios, as_json, print_report
from gnnsparse.bench.matrices import parse_matrix, unique_names
from gnnsparse.bench.peers import PEERS
from gnnsparse.bench.workload import OPS, VALUES
from gnnsparse.data.generators import GENERATED_GRAPHS
from gnnsparse.errors import bad_value
from gnnsparse.formats import FORMAT_NAMES
from gnnsparse.precision import Precision
from gnnsparse.preprocess.reorder import METHODS, REORDERINGS
from gnnsparse.runtime.environment import DEVICES, describe_environment, write_json
from gnnsparse.runtime.profiler import wide_console

__all__ = ["DESCRIPTION", "add_arguments", "go_on", "run", "run_kernels", "settings_of"]


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


def _widths(text: str) -> tuple[int, ...]:
    return USERS_WIDTHS if text == "users" else (at_least_one(text),)


def _found_here(devices: dict[str, tuple[str, ...]]) -> tuple[str, ...]:
    """Return the names among kernels or peers that run on a device of this machine."""
    return tuple(name for name, found in devices.items() if set(found) & set(devices_here()))


def _reorder(text: str) -> str:
    if text not in REORDERINGS:
        raise argparse.ArgumentTypeError(f"got {text!r}; accepted: {', '.join(REORDERINGS)}")
    if text in METHODS and (package := METHODS[text].missing_package):
        raise argparse.ArgumentTypeError(f"{text} needs the package {package}: pip install {package}")
    return text


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `gnnsparse bench kernels`."""

    def several(name: str, choices: tuple[str, ...], default: tuple[str, ...], text: str) -> None:
        parser.add_argument(name, nargs="+", choices=choices, default=default, metavar="NAME", help=text)

    several("--op", OPS, ("spmm",), f"{', '.join(OPS)}; default: spmm")
    parser.add_argument(
        "--matrix", nargs="+", action="extend", type=matrices_option, metavar="MATRIX",
        help=f"may be repeated; a generated graph ({', '.join(GENERATED_GRAPHS)}), also as NAME:scale=0.1, "
        "NAME:shuffled, NAME:seed=1; a file .mtx, .smtx (both also .gz) or .npz; a folder of such files. "
        "Default: all generated graphs on a GPU, arxiv_like on a CPU",
    )  # fmt: skip
    names = Precision.names()
    several("--precision", names, ("fp16", "fp32"), f"{', '.join(names)}; default: fp16 fp32")
    parser.add_argument(
        "--width", nargs="+", type=_widths, default=((64,), (128,), (256,)), metavar="N",
        help="columns of X, or features of Q and K; 'users' stands for 41 47 100 602, the classes and "
        "features of two published graphs; default: 64 128 256",
    )  # fmt: skip
    several(
        "--values", VALUES, ("gcn", "random"),
        f"weights of spmm: {', '.join(VALUES)}; default: gcn random, which are of rank 1 and stored",
    )  # fmt: skip
    parser.add_argument(
        "--device",
        type=device_option,
        default="auto",
        metavar="NAME",
        help=f"{', '.join(DEVICES)}; default: auto",
    )
    kernels = _found_here(KERNEL_DEVICES)
    several(
        "--kernels", kernels, (),
        f"{', '.join(kernels)}; default: all of the device. auto is what users get, the others are forced",
    )  # fmt: skip
    peers = _found_here({name: peer.devices for name, peer in PEERS.items()})
    several(
        "--peers", ("all", "none", *PEERS), ("all",),
        f"all (default: those for the device), none, or {', '.join(peers)}",
    )  # fmt: skip
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
    several(
        "--format", _FORMATS, (),
        f"published formats to measure beside the kernels, by the policies of their papers: "
        f"{', '.join(_FORMATS)}; default: none",
    )  # fmt: skip
    parser.add_argument(
        "--ablate", action="store_true",
        help="measure each switch of a format's policy changed, one at a time, and windows of 16 rows; needs "
        "--format and an NVIDIA GPU",
    )  # fmt: skip
    parser.add_argument(
        "--profile", action="store_true",
        help="read sectors and instructions of SpMM in the formats from the GPU's counters, by ncu; needs "
        "--format and an NVIDIA GPU",
    )  # fmt: skip
    parser.add_argument("--out", type=file_option, metavar="FILE.json", help="write all measurements")
    parser.add_argument(
        "--resume", action="store_true",
        help="keep what the file of --out has, and measure the matrices that it lacks; it must be of the "
        "same machine, versions and options",
    )  # fmt: skip
    parser.add_argument(
        "--plot", type=plot_option, metavar="FILE.png", help="draw the ratios (needs matplotlib)"
    )


def _peers(
    names: list[str], ops: tuple[str, ...], device: str, fail: Callable[[str], object]
) -> tuple[str, ...]:
    if len(names) > 1 and {"all", "none"} & set(names):
        fail("argument --peers: 'all' and 'none' stand alone")
    if "none" in names:
        return ()
    takes_part = {n: device in p.devices and bool(set(ops) & set(p.ops)) for n, p in PEERS.items()}
    if "all" in names:
        return tuple(name for name in PEERS if takes_part[name])
    for name in names:
        if not takes_part[name]:
            where = f"{' and '.join(PEERS[name].ops)} on {' and '.join(PEERS[name].devices)}"
            fail(f"argument --peers: {name} computes {where}; this run is of {', '.join(ops)} on {device}")
    return tuple(dict.fromkeys(names))


def _kernels(names: Sequence[str], device: str, fail: Callable[[str], object]) -> tuple[str, ...]:
    fitting = tuple(name for name, devices in KERNEL_DEVICES.items() if device in devices)
    for name in names:
        if name not in fitting:
            where = " and ".join(KERNEL_DEVICES[name])
            accepted = ", ".join(fitting)
            fail(f"argument --kernels: {name} runs on {where}; accepted on {device}: {accepted}")
    return tuple(dict.fromkeys(names)) or fitting


def settings_of(options: argparse.Namespace, fail: Callable[[str], object]) -> Settings:
    """Make the settings of parsed options, without loading any matrix.

    Args:
        options: the parsed options.
        fail: called with a message if options do not go together, as ArgumentParser.error.
    """
    ops = tuple(dict.fromkeys(options.op))
    if options.timing == "graph" and options.device != "cuda":
        fail("argument --timing: graph needs an NVIDIA GPU; this run is on the CPU")
    if options.timing == "graph" and options.cache == "cold":
        fail("argument --timing: the calls of a graph follow one another: graph goes with --cache warm")
    if options.resume and options.out is None:
        fail("argument --resume: needs --out, the file to go on with")
    for name, why in (("ablate", "policies change nothing"), ("profile", "there are no such counters")):
        if getattr(options, name) and not options.format:
            fail(f"argument --{name}: needs --format, the formats whose policies run")
        if getattr(options, name) and options.device != "cuda":
            fail(f"argument --{name}: needs an NVIDIA GPU; on the CPU {why}")
    groups = options.matrix or [parse_matrix(name) for name in _DEFAULT_MATRICES[options.device]]
    return Settings(
        matrices=tuple(unique_names(spec for group in groups for spec in group)),
        device=options.device,
        ops=ops,
        precisions=tuple(dict.fromkeys(options.precision)),
        widths=tuple(dict.fromkeys(width for group in options.width for width in group)),
        values=tuple(dict.fromkeys(options.values)),
        kernels=_kernels(options.kernels, options.device, fail),
        peers=_peers(options.peers, ops, options.device, fail),
        repeats=options.repeats,
        cache=options.cache,
        timing=options.timing,
        reorder=options.reorder,
        formats=tuple(dict.fromkeys(options.format)),
        ablate=options.ablate,
        profile=options.profile,
    )


def run(options: argparse.Namespace) -> int:
    """Run the command with parsed options, and return its exit status."""
    settings = settings_of(options, options.fail)
    return run_kernels(settings, options.out, options.plot, resume=options.resume)


def run_kernels(
    settings: Settings, out: Path | None = None, plot: Path | None = None, *, resume: bool = False
) -> int:
    """Measure, print the report, and write it to files.

    Args:
        settings: what to measure.
        out: the JSON file to write; None: none.
        plot: the figure to write; None: none.
        resume: whether matrices that the file `out` has are left out, and its measurements kept.

    Returns:
        The exit status: 1 if a kernel of this package is wrong or failed, or a matrix could not be read.

    Raises:
        ValueError: `resume`, and the file `out` can't be gone on with.
    """
    progress = Console(stderr=True)
    bench = Bench(settings, lambda line: progress.print(line, markup=False, highlight=False, soft_wrap=True))
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
    if plot is not None:
        plot_ratios(bench.rows, plot)
    wrong = any(row["ours"] and not row["ok"] for row in bench.rows)
    failed = any(case.failed and (case.ours or not case.name) for case in bench.skipped)
    return 1 if wrong or failed else 0


# Going on with a benchmark whose file has some of the matrices already.

#: What a file and the run that goes on with it must agree on, beside the settings; on a CPU also the threads.
_SAME = ("device", "device_name", "versions")


def go_on(bench: Bench, file: Path) -> set[str]:
    """Add the measurements of a file to a run.

    Args:
        bench: the run, which has measured nothing yet.
        file: what a run with equal settings, but for the matrices, wrote to the file of --out; or a file that
            does not exist yet.

    Returns:
        The names of the matrices that need not be measured again. One of which nothing could be measured is
        not among them.

    Raises:
        ValueError: the file is none of this benchmark, or of another machine, versions or options.
            `bench` is as it was.
    """
    if not file.exists():
        return set()
    found = _read(file, bench.settings)
    bench.rows += found.rows
    bench.skipped += found.skipped
    bench.noise.earlier += found.medians
    bench.commits += found.commits
    return {row["graph"] for row in found.rows}


class _Found(NamedTuple):
    """What a file has: rows, what was skipped, the medians of the noise's reference, and the commits."""

    rows: list[dict[str, Any]]
    skipped: list[Skipped]
    medians: list[float]
    commits: list[str]


def _read(file: Path, settings: Settings) -> _Found:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        rows, medians = [dict(row) for row in found["rows"]], list(map(float, found["noise"]["reference_ms"]))
        names = {str(row["graph"]) for row in rows}
        skipped = [case for case in (Skipped(**case) for case in found["skipped"]) if case.graph in names]
        commits = list(map(str, found.get("commits", [found["commit"]])))
        _check_same(file, found, settings)
    except (OSError, UnicodeDecodeError, json.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
        bad_value("resume", f"{file} is no file that this benchmark wrote ({type(error).__name__}: {error})")
    return _Found(rows, skipped, medians, commits)


def _check_same(file: Path, found: dict[str, Any], settings: Settings) -> None:
    here = describe_environment(settings.device)
    for name in (*_SAME, *(("threads",) if settings.device == "cpu" else ())):
        if found[name] != here[name]:
            bad_value("resume", f"{file} has the {name} {found[name]}, this run {here[name]}")
    wanted = json.loads(json.dumps({**asdict(settings), "matrices": None}))
    for name in (field.name for field in fields(settings) if field.name != "matrices"):
        if found["settings"][name] != wanted[name]:
            bad_value(
                "resume", f"{file} was measured with {name} {found['settings'][name]}, not {wanted[name]}"
            )
