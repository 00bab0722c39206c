"""The command `gnnsparse bench kernels`."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from gnnsparse.bench.arguments import (
    Several,
    add_device,
    add_outputs,
    at_least_one,
    devices_here,
    matrices_option,
)
from gnnsparse.bench.candidates import KERNEL_DEVICES
from gnnsparse.bench.figures import plot, ratio_panels
from gnnsparse.bench.kernels import SKIPPED, Bench, Settings
from gnnsparse.bench.kernels_report import add_ratios, as_json, print_report
from gnnsparse.bench.matrices import parse_matrix, unique_names
from gnnsparse.bench.peers import PEERS
from gnnsparse.bench.session import progress
from gnnsparse.bench.workload import OPS, VALUES
from gnnsparse.data.generators import GENERATED_GRAPHS
from gnnsparse.errors import bad_value
from gnnsparse.formats import FORMAT_NAMES
from gnnsparse.precision import Precision
from gnnsparse.preprocess.reorder import METHODS, REORDERINGS
from gnnsparse.runtime.environment import describe_environment, write_json
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


_SETTINGS = {field.name for field in fields(Settings)}
#: Widths that users have, which are no powers of two: classes of reddit and of products, features of products
#: and of reddit.
USERS_WIDTHS = (41, 47, 100, 602)


def _widths(text: str) -> list[int]:
    return list(USERS_WIDTHS) if text == "users" else [at_least_one(text)]


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

    precisions, kernels = Precision.names(), _found_here(KERNEL_DEVICES)
    peers = _found_here({name: peer.devices for name, peer in PEERS.items()})
    several: dict[str, tuple[str, tuple[str, ...], tuple[str, ...], str]] = {
        "--op": ("ops", OPS, ("spmm",), f"{', '.join(OPS)}; default: spmm"),
        "--precision": (
            "precisions", precisions, ("fp16", "fp32"), f"{', '.join(precisions)}; default: fp16 fp32"
        ),
        "--values": (
            "values", VALUES, ("gcn", "random"),
            f"weights of spmm: {', '.join(VALUES)}; default: gcn random, which are of rank 1 and stored",
        ),
        "--kernels": (
            "kernels", kernels, (),
            f"{', '.join(kernels)}; default: all of the device. auto is what users get, others are forced",
        ),
        "--peers": (
            "peers", ("all", "none", *PEERS), ("all",),
            f"all (default: those for the device), none, or {', '.join(peers)}",
        ),
        "--format": (
            "formats", _FORMATS, (),
            f"published formats to measure beside the kernels, by the policies of their papers: "
            f"{', '.join(_FORMATS)}; default: none",
        ),
    }  # fmt: skip
    for name, (dest, choices, default, text) in several.items():
        parser.add_argument(
            name, dest=dest, nargs="+", action=Several, choices=choices, default=default, metavar="NAME",
            help=text,
        )  # fmt: skip
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


def settings_of(options: argparse.Namespace, fail: Callable[[str], object]) -> Settings:
    """Make the settings of parsed options; `fail` is called with a message if they do not go together."""
    if options.timing == "graph" and options.device != "cuda":
        fail("argument --timing: graph needs an NVIDIA GPU; this run is on the CPU")
    if options.timing == "graph" and options.cache == "cold":
        fail("argument --timing: the calls of a graph follow one another: graph goes with --cache warm")
    if options.resume and options.out is None:
        fail("argument --resume: needs --out, the file to go on with")
    if options.ablate and not options.formats:
        fail("argument --ablate: needs --format, the formats whose policies run")
    if options.ablate and options.device != "cuda":
        fail("argument --ablate: needs an NVIDIA GPU; on the CPU policies change nothing")
    groups = options.matrix or [parse_matrix(name) for name in _DEFAULT_MATRICES[options.device]]
    return Settings(**{
        **{name: value for name, value in vars(options).items() if name in _SETTINGS},
        "matrices": tuple(unique_names(spec for group in groups for spec in group)),
        "kernels": _kernels(options.kernels, options.device, fail),
        "peers": _peers(options.peers, options.ops, options.device, fail),
    })  # fmt: skip


def run(options: argparse.Namespace) -> int:
    """Run the command with parsed options, and return its exit status."""
    settings = settings_of(options, options.fail)
    return run_kernels(settings, options.out, options.plot, resume=options.resume)


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
    bench.noise.earlier += medians
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
