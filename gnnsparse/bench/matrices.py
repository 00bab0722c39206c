"""The matrices of a benchmark: generated graphs, files, and folders of files."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from gnnsparse.data.generators import BLOCK_MODELS, check_scale_of, graph_like
from gnnsparse.data.matrix_files import load_matrix
from gnnsparse.errors import bad_value
from gnnsparse.sparse.graph import SparseGraph

__all__ = ["ENDINGS", "MatrixSpec", "parse_matrix", "unique_names"]

#: Files that a folder is searched for.
ENDINGS = (".mtx", ".mtx.gz", ".smtx", ".smtx.gz", ".npz")


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


def parse_matrix(text: str) -> list[MatrixSpec]:
    """Parse `--matrix`: a generated graph, as `NAME:scale=0.1:shuffled:seed=1`, a file or a folder.

    A folder is searched recursively. ValueError: there is no such graph or file, a parameter is wrong, or the
    folder has no matrix.
    """
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
            spec = replace(spec, scale=check_scale_of(name, _number(parameter, value)))
        elif key == "seed" and value.isdecimal():
            spec = replace(spec, seed=int(value))
        else:
            bad_value("matrix", f"got {parameter!r} in {text!r}; accepted: scale=S, shuffled, seed=N")
    return spec


def _number(parameter: str, value: str) -> float:
    try:
        return float(value)
    except ValueError:
        bad_value("matrix", f"got {parameter!r}; accepted: scale=S with a number S")


def unique_names(specs: Iterable[MatrixSpec]) -> list[MatrixSpec]:
    """Remove repeated specs, and appends numbers to the names of different ones that have equal names."""
    counts: dict[str, int] = {}
    named = []
    for spec in dict.fromkeys(specs):
        count = counts[spec.name] = counts.get(spec.name, 0) + 1
        named.append(spec if count == 1 else replace(spec, name=f"{spec.name}#{count}"))
    return named
