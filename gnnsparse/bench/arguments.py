"""Types of options that commands share: counts, numbers in a range, devices, matrices, and files to write.

A matrix is a generated graph, a file, or one of a folder.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from gnnsparse import _native
from gnnsparse.data.generators import BLOCK_MODELS, check_scale_of, graph_like
from gnnsparse.data.matrix_files import load_matrix
from gnnsparse.errors import bad_value
from gnnsparse.runtime.environment import DEVICES
from gnnsparse.sparse.graph import SparseGraph
from gnnsparse_cli import file_option

#: Endings of the names of figures.
PLOT_ENDINGS = (".png", ".pdf", ".svg")


class Several(argparse.Action):
    """Stores a tuple of the values, each once; an option's type may return several at a time."""

    def __call__(self, parser: Any, options: argparse.Namespace, values: Any, option: Any = None) -> None:
        """Store the values of an option."""
        flat = (value for group in values for value in (group if isinstance(group, list) else [group]))
        setattr(options, self.dest, tuple(dict.fromkeys(flat)))


def add_names(
    parser: argparse.ArgumentParser, option: str, dest: str, accepted: Sequence[str], default: Any,
    about: str, also: Mapping[str, Callable[[str], bool]] | None = None,
) -> None:  # fmt: skip
    """Declare an option that takes several of the accepted names, with commas or spaces between them.

    `also` are further forms of names, each with a function that tells whether a name has it.
    """
    forms = also or {}

    def parse(text: str) -> list[str]:
        names = text.split(",")
        for name in names:
            if name not in accepted and not any(fits(name) for fits in forms.values()):
                choices = ", ".join((*accepted, *forms))
                raise argparse.ArgumentTypeError(f"invalid choice: {name!r} (choose from {choices})")
        return names

    parser.add_argument(
        option, dest=dest, nargs="+", action=Several, type=parse, default=default, metavar="NAME", help=about
    )


def number_option(
    accepted: str, fits: Callable[[Any], bool], kind: type[int] | type[float] = float
) -> Callable[[str], Any]:
    """Return a parser of numbers that `fits` accepts, which is given NaN for what is no number."""

    def parse(text: str) -> Any:
        try:
            value = kind(text)
        except ValueError:
            value = float("nan")
        if not fits(value):
            raise argparse.ArgumentTypeError(f"got {text!r}; accepted: {accepted}")
        return value

    return parse


#: Parses an integer from 1 on.
at_least_one = number_option("an integer from 1 on", lambda value: value >= 1, int)
#: Parses the size of a generated graph.
scale_option = number_option("a number above 0 and at most 1", lambda value: 0 < value <= 1)
#: Parses a seed of random numbers.
seed_option = number_option("an integer from 0 to 2^63 - 1", lambda value: 0 <= value < 2**63, int)


def matrices_option(text: str) -> list[MatrixSpec]:
    """Parse the name of a matrix, of which a folder has several, without loading it."""
    try:
        return parse_matrix(text)
    except (ValueError, TypeError) as error:
        raise argparse.ArgumentTypeError(str(error).removeprefix("matrix: ")) from None


def devices_here() -> tuple[str, ...]:
    """Return the types of devices that can be measured here."""
    return ("cpu", "cuda") if torch.cuda.is_available() and _native.has_cuda else ("cpu",)


def device_option(text: str) -> str:
    """Read the option --device: return "cpu" or "cuda", which "auto" stands for."""
    if text not in DEVICES:
        raise argparse.ArgumentTypeError(f"got {text!r}; accepted: {', '.join(DEVICES)}")
    usable = "cuda" in devices_here()
    if text == "cuda" and not usable:
        problem = "no NVIDIA GPU here" if _native.has_cuda else "gnnsparse was built without CUDA kernels"
        raise argparse.ArgumentTypeError(problem)
    return text if text != "auto" else "cuda" if usable else "cpu"


def add_device(parser: argparse.ArgumentParser) -> None:
    """Declare the option --device."""
    parser.add_argument(
        "--device", type=device_option, default="auto", metavar="NAME",
        help=f"{', '.join(DEVICES)}; default: auto",
    )  # fmt: skip


def add_outputs(parser: argparse.ArgumentParser, drawn: str) -> None:
    """Declare the options --out, and --plot, which draws what `drawn` says."""
    parser.add_argument("--out", type=file_option, metavar="FILE.json", help="write all measurements")
    parser.add_argument(
        "--plot", type=plot_option, metavar="FILE.png", help=f"draw the {drawn} (needs matplotlib)"
    )


def folder_option(text: str) -> Path:
    """Read an option that names a folder which is there."""
    path = Path(text)
    if not path.is_dir():
        raise argparse.ArgumentTypeError(f"there is no folder {text!r}")
    return path


def plot_option(text: str) -> Path:
    """Read an option that names a figure to write, which needs matplotlib."""
    path = file_option(text, PLOT_ENDINGS)
    if importlib.util.find_spec("matplotlib") is None:
        raise argparse.ArgumentTypeError("needs matplotlib: pip install 'gnnsparse[bench]'")
    return path


#: Files that a folder is searched for.
ENDINGS = (".mtx", ".mtx.gz", ".smtx", ".smtx.gz", ".npz")


# Matrices: generated graphs, files, and folders of files.


@dataclass(frozen=True)
class MatrixSpec:
    """The source of a matrix, which `load` reads from `path`, or generates by `gnnsparse.data.graph_like`.

    Names of files lack the folders above them, which must not be published.
    """

    name: str
    generator: str = ""
    path: Path | None = None
    scale: float = 1.0
    shuffled: bool = False
    seed: int = 0

    def load(self, device: torch.device | str) -> SparseGraph:
        """Load the structure of the matrix, without values: workloads have their own."""
        if self.path is not None:
            graph = load_matrix(self.path).to(device)
        else:
            graph = graph_like(self.generator, self.scale, self.seed, device, self.shuffled)
        return SparseGraph(graph.csr)


def import_file(path: Path) -> ModuleType:
    """Run a file of the user's as a module, which may import from beside it."""
    name = path.stem if path.stem not in sys.modules else f"{path.stem}_of_file"  # such as random.py
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.parent))
    sys.modules[name] = module  # code of layers is read from there
    spec.loader.exec_module(module)
    return module


def parse_matrix(text: str) -> list[MatrixSpec]:
    """Parse `--matrix`: a generated graph (`NAME:scale=0.1:shuffled:seed=1`), a file or a folder."""
    name, *parameters = text.split(":")
    if name in BLOCK_MODELS:
        return [_generated(text, name, parameters)]
    path = Path(text)
    if path.is_dir():
        found = sorted(p for p in path.rglob("*") if p.name.endswith(ENDINGS) and p.is_file())
        if not found:
            bad_value("matrix", f"the folder {text!r} has no file {', '.join(ENDINGS)}")
        return [MatrixSpec(file.relative_to(path).as_posix(), path=file) for file in found]
    if not path.is_file():
        bad_value("matrix", f"got {text!r}; accepted: {', '.join(BLOCK_MODELS)}, a file or a folder")
    if not path.name.endswith(ENDINGS):
        bad_value("matrix", f"got {text!r}; accepted: files {', '.join(ENDINGS)}")
    return [MatrixSpec(path.name, path=path)]


def _generated(text: str, name: str, parameters: list[str]) -> MatrixSpec:
    spec = MatrixSpec(text, generator=name)
    for parameter in parameters:
        key, _, value = parameter.partition("=")
        if key == "shuffled" and not value:
            spec = replace(spec, shuffled=True)
        elif key == "scale":
            spec = replace(spec, scale=check_scale_of(name, scale_option(value)))
        elif key == "seed" and value.isdecimal():
            spec = replace(spec, seed=int(value))
        else:
            bad_value("matrix", f"got {parameter!r} in {text!r}; accepted: scale=S, shuffled, seed=N")
    return spec


def unique_names(specs: Iterable[MatrixSpec]) -> list[MatrixSpec]:
    """Remove repeated specs, and appends numbers to the names of different ones that have equal names."""
    counts: dict[str, int] = {}
    named = []
    for spec in dict.fromkeys(specs):
        count = counts[spec.name] = counts.get(spec.name, 0) + 1
        named.append(spec if count == 1 else replace(spec, name=f"{spec.name}#{count}"))
    return named
