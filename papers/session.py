"""The matrices of the papers: where they are below a folder, what stands in for them, and how to get them."""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from gnnsparse.bench.arguments import ENDINGS
from gnnsparse.data import DATASETS, graph_like, load_dataset, load_matrix
from gnnsparse.data.sources import SOURCES
from gnnsparse.errors import bad_value
from gnnsparse.formats.csr import Csr
from papers.figures import Missing, Outcome

__all__ = ["DLMC", "KNOWN", "Found", "Known", "Library", "Pruned", "Session", "by_sparsity", "one_of_each"]

_SUITESPARSE = "SuiteSparse Matrix Collection (sparse.tamu.edu)"
_TU = "TU Dortmund's graph data sets (chrsmrrs.github.io/datasets)"


@dataclass(frozen=True)
class Known:
    """A matrix of a paper.

    Attributes:
        name: its name in the papers.
        stems: names of files, without endings, that hold it.
        source: where it is published.
        dataset: the data set of gnnsparse.data that has it; "": none.
        self_loops: whether the papers' counts include a self-loop for each node.
        stand_in: another matrix of KNOWN, or a generated graph, that is like it; "": none.
    """

    name: str
    stems: tuple[str, ...]
    source: str
    dataset: str = ""
    self_loops: bool = False
    stand_in: str = ""

    def missing(self) -> Missing:
        """Return how to get the matrix."""
        files = f", as {self.stems[0]}.mtx or .npz" if self.stems else ""
        return Missing(self.name, f"{self.source}{files}")


def _collection(name: str, stand_in: str = "") -> Known:
    return Known(name, (name,), _SUITESPARSE, stand_in=stand_in)


_LIST = (
    Known("GitHub", ("github_musae", "GitHub"), "MUSAE (github.com/benedekrozemberczki/MUSAE), git_edges.csv",
          self_loops=True),
    Known("Artist", ("artist", "artist_edges"), "GEMSEC (github.com/benedekrozemberczki/GEMSEC), artist",
          stand_in="new_sites"),
    Known("new_sites", ("gemsec_new_sites",), "GEMSEC, new_sites_edges.csv"),
    Known("Blog", ("soc-BlogCatalog",), "networkrepository.com, soc-BlogCatalog", stand_in="BlogCatalog"),
    Known("BlogCatalog", ("blogcatalog_10312",), "the BlogCatalog graph of 10,312 nodes"),
    Known("Ell", ("elliptic_bitcoin",), "the Elliptic Bitcoin data set (kaggle.com)"),
    Known("Yelp", ("yelp",), "PyG's Yelp (GraphSAINT)", dataset="yelp"),
    Known("DD", ("DD",), _TU),
    Known("PROTEINS", ("PROTEINS", "PROTEINS_full"), _TU),
    Known("Reddit", ("reddit",), "PyG's Reddit", dataset="reddit", stand_in="reddit_like"),
    Known("Amazon", ("amazon0601",), f"{_SUITESPARSE}, SNAP/amazon0601", stand_in="amazon_like"),
    Known("amazon0505", ("amazon0505",), f"{_SUITESPARSE}, SNAP/amazon0505", stand_in="amazon_like"),
    Known("com-amazon", ("com-Amazon", "com-amazon"), f"{_SUITESPARSE}, SNAP/com-Amazon"),
    Known("Yeast", ("Yeast",), _TU, stand_in="DD"),
    Known("YeastH", ("YeastH",), _TU, stand_in="DD"),
    Known("OVCAR-8H", ("OVCAR-8H",), _TU, stand_in="DD"),
    Known("web-BerkStan", ("web-BerkStan",), f"{_SUITESPARSE}, SNAP/web-BerkStan", stand_in="cnr-2000"),
    Known("cnr-2000", ("cnr_2000", "cnr-2000"), f"{_SUITESPARSE}, LAW/cnr-2000"),
    Known("OGBProducts", ("ogbn-products",), "OGB's ogbn-products", dataset="ogbn_products",
          stand_in="products_like"),
    Known("AmazonProducts", ("AmazonProducts",), "PyG's AmazonProducts (GraphSAINT)"),
    Known("IGB-small", ("igb-small",), "Illinois Graph Benchmark"),
    Known("IGB-medium", ("igb-medium",), "Illinois Graph Benchmark"),
    Known("IGB-large", ("igb-large",), "Illinois Graph Benchmark"),
    Known("ddi", ("ogbl_ddi", "ogbl-ddi", "ddi"), "OGB's ogbl-ddi", self_loops=True),
    Known("NotreDame_www", ("notredame_www",), f"{_SUITESPARSE}, Barabasi/NotreDame_www"),
    Known("Emilia_923", ("Emilia_923",), f"{_SUITESPARSE}, Janna/Emilia_923", stand_in="bcsstk16"),
    Known("bcsstk16", ("bcsstk16",), f"{_SUITESPARSE}, HB/bcsstk16"),
    Known("cora", (), "Planetoid (github.com/kimiyoung/planetoid)", dataset="cora"),
    Known("citeseer", (), "Planetoid (github.com/kimiyoung/planetoid)", dataset="citeseer"),
    Known("pubmed", (), "Planetoid (github.com/kimiyoung/planetoid)", dataset="pubmed"),
    _collection("psmigr_1", "mbeacxc"),
    _collection("mbeacxc"),
    *map(_collection, ("circuit204", "poisson3Da", "mosfet2", "mip1", "2cubes_sphere", "filter3D")),
    _collection("cop20k_A"),
    _collection("scircuit", "memplus"),
    _collection("memplus"),
    *map(_collection, ("m133-b3", "mario002", "ASIC_680k")),
    _collection("eu-2005", "cnr-2000"),
    _collection("web-Google", "NotreDame_www"),
    _collection("in-2004", "cnr-2000"),
)  # fmt: skip

#: The matrices by name.
KNOWN: dict[str, Known] = {known.name: known for known in _LIST}


@dataclass(frozen=True, eq=False)
class Found:
    """A matrix that is there.

    Attributes:
        name: its name; for a stand-in "NAME for WANTED".
        csr: its structure.
        origin: one of ORIGINS.
    """

    name: str
    csr: Csr
    origin: str = "paper's"


@dataclass(frozen=True, eq=False)
class Pruned:
    """A matrix of DLMC.

    Attributes:
        name: its path below the folder dlmc.
        method: how the model was pruned.
        sparsity: the model's target sparsity; a layer's own may differ.
        csr: its structure.
    """

    name: str
    method: str
    sparsity: float
    csr: Csr


def by_sparsity(matrices: list[Pruned]) -> Iterator[tuple[float, list[Pruned]]]:
    """Yield the sparsities of DLMC with their matrices, so that each sparsity counts once in a mean."""
    groups: dict[float, list[Pruned]] = defaultdict(list)
    for matrix in matrices:
        groups[matrix.sparsity].append(matrix)
    yield from sorted(groups.items())


def one_of_each(matrices: list[Pruned], least: float = 0.0) -> list[Found]:
    """Return the largest matrix of up to 2048 rows of each sparsity from `least` on, which are measured."""
    found = []
    for sparsity, group in by_sparsity(matrices):
        small = [matrix for matrix in group if matrix.csr.rows <= 2048]
        if small and sparsity >= least:
            largest = max(small, key=lambda matrix: (matrix.csr.rows * matrix.csr.cols, matrix.name))
            found.append(Found(f"DLMC at {sparsity:g}", largest.csr, "subset"))
    return found


def _stem(path: Path) -> str:
    """Return the name of a matrix file without its ending, in lower case; "" for other files."""
    name = path.name.lower()
    longest_first = sorted(ENDINGS, key=len, reverse=True)
    return next((name.removesuffix(ending) for ending in longest_first if name.endswith(ending)), "")


class Library:
    """The matrices below a folder, which are read once.

    Args:
        folder: the folder; None: there are none.
        device: where generated graphs are made; matrices are on the CPU.
    """

    def __init__(self, folder: Path | None, device: str = "cpu") -> None:
        self._device = device
        self._matrices: dict[str, Path] = {}
        self._pruned: dict[str, Path] = {}
        self._named: dict[str, Path] = {}
        self._read: dict[Path, Csr] = {}
        self._generated: dict[str, Csr] = {}
        if folder is None:
            return
        for base, folders, names in os.walk(folder):
            folders.sort()
            for name in sorted(names):
                path = Path(base, name)
                self._named.setdefault(name, path)
                if ".smtx" in name:  # their names are repeated in the folders of methods and sparsities
                    self._pruned[path.relative_to(folder).as_posix()] = path
                elif stem := _stem(path):
                    self._matrices.setdefault(stem, path)

    def _load(self, path: Path) -> Csr:
        if path not in self._read:
            self._read[path] = load_matrix(path).csr
        return self._read[path]

    def _of_dataset(self, name: str) -> Csr | None:
        """Return the graph of a data set whose raw files are in the folder."""
        if name not in DATASETS or (source := SOURCES.get(name)) is None:
            return None
        first = self._named.get(source.files[0])
        if first is None:
            return None
        if first not in self._read:
            self._read[first] = load_dataset(name, root=first.parent, download=False).graph.csr
        return self._read[first]

    def find(self, name: str) -> Csr | None:
        """Return a matrix of KNOWN if it is there, with the self-loops that the papers count."""
        known = KNOWN[name]
        path = next((self._matrices[s.lower()] for s in known.stems if s.lower() in self._matrices), None)
        csr = self._load(path) if path is not None else self._of_dataset(known.dataset)
        return csr.add_self_loops()[0] if csr is not None and known.self_loops else csr

    def get(self, name: str, generate: bool = False) -> tuple[Found | None, Missing | None]:
        """Return a matrix of KNOWN or its stand-in, and what is missing.

        Args:
            name: name of the matrix.
            generate: whether a generated graph may stand in, which takes a while and much memory.
        """
        known = KNOWN[name]
        if (csr := self.find(name)) is not None:
            return Found(name, csr), None
        stand_in = known.stand_in
        if stand_in in KNOWN:
            csr = self.find(stand_in)
        elif stand_in and generate:
            if stand_in not in self._generated:
                graph = graph_like(stand_in, device=self._device)
                self._generated[stand_in] = graph.csr.to(torch.device("cpu"))
            csr = self._generated[stand_in]
        found = None if csr is None else Found(f"{stand_in} for {name}", csr, "stand-in")
        return found, known.missing()

    def of_file(self, name: str) -> Csr | None:
        """Return the matrix of a file by the name that it has in results: its path below a folder."""
        path = self._matrices.get(_stem(Path(name)))
        if ".smtx" in name:
            path = next((path for key, path in self._pruned.items() if f"/{key}".endswith(f"/{name}")), None)
        return None if path is None else self._load(path)

    def pruned(self) -> Iterator[Pruned]:
        """Read the matrices of DLMC, those of Transformers first."""
        for key, path in sorted(
            self._pruned.items(), key=lambda item: ("/transformer/" not in item[0], item[0])
        ):
            sparsity = path.parts[-2]
            if sparsity.replace(".", "", 1).isdecimal():
                yield Pruned(key, path.parts[-3], float(sparsity), self._load(path))

    def square(self, rows: int, nnz: int, cols: int | None = None) -> Iterator[Found]:
        """Read all matrices that are not pruned weights, and that are large enough.

        Files .mtx count as a part of the SuiteSparse collection, other files as stand-ins.

        Args:
            rows: least number of rows.
            nnz: least number of nonzeros.
            cols: least number of columns; None: as many as rows.
        """
        for key, path in sorted(self._matrices.items()):
            try:
                csr = self._load(path)
            except ValueError:  # an archive of features or labels
                continue
            if csr.rows >= rows and csr.cols >= (rows if cols is None else cols) and csr.nnz >= nnz:
                of_collection = path.name.endswith((".mtx", ".mtx.gz"))
                yield Found(key, csr, "subset" if of_collection else "stand-in")


# What a run of `python -m papers` has: the matrices, the device, and earlier results.

DLMC = Missing("DLMC", "storage.googleapis.com/sgk-sc2020/dlmc.tar.gz; unpack it into the folder of --data")


@dataclass
class Session:
    """What a run has.

    Attributes:
        data: the folder of the matrices; None: none is given.
        device: "cpu" or "cuda".
        results: a JSON file of `gnnsparse bench kernels` or benchmarks/presets.py, whose speeds models are
            compared with; None: there is none.
        repeats: number of timed calls of a kernel.
        generate: whether generated graphs stand in for large ones that are missing.
        seeds: number of seeds of a training.
    """

    data: Path | None = None
    device: str = "cpu"
    results: Path | None = None
    repeats: int = 20
    generate: bool = False
    seeds: int | None = None

    @cached_property
    def library(self) -> Library:
        """The matrices."""
        return Library(self.data, self.device)

    def each(self, names: Iterable[str], outcome: Outcome, stand_ins: bool = True) -> Iterator[Found]:
        """Yield the matrices that are there, or what stands in for them, and notes those that are missing.

        Args:
            names: names of KNOWN.
            outcome: gets what is missing.
            stand_ins: whether stand-ins are wanted. Each is yielded once.
        """
        seen = set()
        for name in names:
            found, missing = self.library.get(name, self.generate and stand_ins)
            if missing is not None and missing not in outcome.missing:
                outcome.missing.append(missing)
            if found is None or (found.origin == "stand-in" and not stand_ins):
                continue
            if id(found.csr) not in seen:
                seen.add(id(found.csr))
                yield found

    def sizes(self, published: Mapping[str, tuple[int, int]], nonzeros: str = "nonzeros") -> Outcome:
        """Count the nodes and the nonzeros of the graphs that are there, without stand-ins.

        Args:
            published: nodes and nonzeros by the paper, with a self-loop for each node where it has them.
            nonzeros: what the paper calls them.
        """
        outcome = Outcome()
        for found in self.each(published, outcome, stand_ins=False):
            nodes, nnz = published[found.name]
            outcome.add("nodes", found.name, found.origin, found.csr.rows, nodes)
            outcome.add(nonzeros, found.name, found.origin, found.csr.nnz, nnz)
        return outcome

    def pruned(self, outcome: Outcome) -> list[Pruned]:
        """Return the matrices of DLMC, and notes if there are none."""
        found = list(self.library.pruned())
        if not found:
            outcome.missing.append(DLMC)
        return found

    def measured(self) -> list[dict[str, Any]]:
        """Return the right rows of the file of results.

        Raises:
            ValueError: the file is none of results.
            OSError: it can't be read.
        """
        if self.results is None:
            return []
        try:
            rows = json.loads(self.results.read_text())["rows"]
            return [row for row in rows if row["ok"] and row["kernel"] and row["ms"] > 0]
        except (KeyError, TypeError, ValueError) as error:
            bad_value("results", f"{self.results.name} is no file of `gnnsparse bench kernels`: {error}")
