"""The options of `gnnsparse bench kernels` and `gnnsparse bench fit`, checked before anything is measured."""

from __future__ import annotations

import argparse
import importlib.util
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from gnnsparse import _native
from gnnsparse.bench.candidates import KERNEL_DEVICES
from gnnsparse.bench.kernels import Settings
from gnnsparse.bench.matrices import MatrixSpec, parse_matrix, unique_names
from gnnsparse.bench.peers import PEERS
from gnnsparse.bench.plot import PLOT_ENDINGS
from gnnsparse.bench.workload import OPS, VALUES
from gnnsparse.data.generators import GENERATED_GRAPHS
from gnnsparse.formats import FORMAT_NAMES
from gnnsparse.precision import Precision
from gnnsparse.preprocess.reorder import METHODS, REORDERINGS
from gnnsparse.runtime.environment import DEVICES

__all__ = [
    "DESCRIPTION", "FIT_DESCRIPTION", "add_arguments", "add_fit_arguments", "at_least_one", "check_fit",
    "device_option", "file_option", "plot_option", "settings_of",
]  # fmt: skip

DESCRIPTION = """\
Measures our kernels and their peers on the same matrices in one process, checks every result
against float64, and says where the plan's own choice (auto) is not the best.
"""
FIT_DESCRIPTION = """\
Measures this GPU's memory and our kernels on it, fits the costs that plans are chosen by, and writes them as
a record (docs/gpu-records.md). Takes about six minutes and much of the GPU's memory.
"""
#: The formats of papers, by name.
_FORMATS = tuple(name for name in FORMAT_NAMES if name not in ("auto", "csr", "window"))
#: The matrices by type of device if none is named: on a CPU the large ones would take hours.
_DEFAULT_MATRICES: dict[str, Sequence[str]] = {"cuda": GENERATED_GRAPHS, "cpu": ("arxiv_like",)}


def _matrix(text: str) -> list[MatrixSpec]:
    try:
        return parse_matrix(text)
    except (ValueError, TypeError) as error:
        message = str(error)
        raise argparse.ArgumentTypeError(message.removeprefix("matrix: ")) from None


#: Widths that users have, which are no powers of two: classes of reddit and of products, features of products
#: and of reddit.
USERS_WIDTHS = (41, 47, 100, 602)


def _widths(text: str) -> tuple[int, ...]:
    return USERS_WIDTHS if text == "users" else (at_least_one(text),)


def at_least_one(text: str) -> int:
    """Parses an integer from 1 on."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"got {text!r}; accepted: an integer from 1 on")
    return int(text)


def _devices() -> tuple[str, ...]:
    """Returns the types of devices that can be measured here."""
    return ("cpu", "cuda") if torch.cuda.is_available() and _native.has_cuda else ("cpu",)


def _found_here(devices: dict[str, tuple[str, ...]]) -> tuple[str, ...]:
    """Returns the names among kernels or peers that run on a device of this machine."""
    return tuple(name for name, found in devices.items() if set(found) & set(_devices()))


def device_option(text: str) -> str:
    """Reads the option --device: returns "cpu" or "cuda", which "auto" stands for."""
    if text not in DEVICES:
        raise argparse.ArgumentTypeError(f"got {text!r}; accepted: {', '.join(DEVICES)}")
    usable = "cuda" in _devices()
    if text == "cuda" and not usable:
        problem = "no NVIDIA GPU here" if _native.has_cuda else "gnnsparse was built without CUDA kernels"
        raise argparse.ArgumentTypeError(problem)
    return text if text != "auto" else "cuda" if usable else "cpu"


def _reorder(text: str) -> str:
    if text not in REORDERINGS:
        raise argparse.ArgumentTypeError(f"got {text!r}; accepted: {', '.join(REORDERINGS)}")
    if text in METHODS and (package := METHODS[text].missing_package):
        raise argparse.ArgumentTypeError(f"{text} needs the package {package}: pip install {package}")
    return text


def file_option(text: str) -> Path:
    """Reads an option that names a file to write."""
    path = Path(text)
    if path.is_dir():
        raise argparse.ArgumentTypeError(f"{text!r} is a folder; accepted: a file to write")
    return path


def plot_option(text: str) -> Path:
    """Reads an option that names a figure to write, which needs matplotlib."""
    if not text.endswith(PLOT_ENDINGS):
        raise argparse.ArgumentTypeError(f"got {text!r}; accepted: a name in {', '.join(PLOT_ENDINGS)}")
    if importlib.util.find_spec("matplotlib") is None:
        raise argparse.ArgumentTypeError("needs matplotlib: pip install 'gnnsparse[bench]'")
    return file_option(text)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options of `gnnsparse bench kernels`."""

    def several(name: str, choices: tuple[str, ...], default: tuple[str, ...], text: str) -> None:
        parser.add_argument(name, nargs="+", choices=choices, default=default, metavar="NAME", help=text)

    several("--op", OPS, ("spmm",), f"{', '.join(OPS)}; default: spmm")
    parser.add_argument(
        "--matrix", nargs="+", action="extend", type=_matrix, metavar="MATRIX",
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


def add_fit_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options of `gnnsparse bench fit`."""
    parser.description = FIT_DESCRIPTION
    parser.add_argument(
        "--matrix", nargs="+", action="extend", type=_matrix, metavar="MATRIX",
        help="matrices to measure beside the built-in suite, as in `gnnsparse bench kernels`",
    )  # fmt: skip
    parser.add_argument(
        "--out", type=file_option, metavar="FILE.json",
        help="the record; default: a file in $GNNSPARSE_GPU_RECORDS or the user's data folder, which plans "
        "on this GPU are chosen by from then on",
    )  # fmt: skip
    parser.add_argument("--keep", type=file_option, metavar="FILE.json", help="write what was measured, too")
    parser.add_argument(
        "--measured", type=Path, metavar="FILE.json",
        help="fit to what --keep wrote, in place of measuring; needs no GPU",
    )  # fmt: skip


def check_fit(options: argparse.Namespace) -> None:
    """Exits with an error message if options of `gnnsparse bench fit` do not go together."""
    if options.measured is None:
        try:
            device_option("cuda")
        except argparse.ArgumentTypeError as error:
            options.fail(f"{error}; accepted without one: --measured FILE.json")
    elif options.matrix or options.keep:
        options.fail("argument --measured: --matrix and --keep go with measuring")
    elif not options.measured.is_file():
        options.fail(f"argument --measured: there is no file {options.measured}")


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
    """Makes the settings of parsed options, without loading any matrix.

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
