"""Small valid files of every kind that the package reads, and what reads them."""

from __future__ import annotations

import functools
import gzip
import pickle
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from gnnsparse.bench.fit_measure import read_cases, write_cases
from gnnsparse.data import load_dataset, load_matrix, load_sequences
from gnnsparse.plan.gpu_records.record import load_record, records, save_record
from tests.data.raw_files import write_raw
from tests.data_folder import data_folder as published_folder
from tests.fuzz.common import Draw

_REAL_BYTES = 150_000


@dataclass
class Subject:
    """Valid files and what reads them.

    Attributes:
        name: the kind.
        files: the files that may be mutated.
        read: reads them.
        rebuilt: whether damaged files are made again, so that reading them always succeeds.
    """

    name: str
    files: list[Path]
    read: Callable[[], Any]
    rebuilt: bool = False


def _rng(draw: Draw) -> np.random.Generator:
    return np.random.default_rng(draw.seed())


def _random_matrix(draw: Draw, square: bool = False) -> sp.coo_array:
    rows = draw.integer(1, 12)
    cols = rows if square else draw.integer(1, 12)
    rng = _rng(draw)
    return sp.random_array(
        (rows, cols), density=0.3, rng=rng, data_sampler=lambda size: rng.normal(size=size)
    )


def _matrix(path: Path) -> Subject:
    return Subject("load_matrix " + path.name, [path], lambda: load_matrix(path))


def matrix_market(draw: Draw, folder: Path) -> Subject:
    layout, field = draw.choice([("coordinate", "real"), ("coordinate", "integer"), ("coordinate", "pattern"),
                                 ("array", "real"), ("array", "integer")])  # fmt: skip
    storage = draw.choice(
        ["general", "symmetric"] if field == "pattern" else ["general", "symmetric", "skew-symmetric"]
    )
    dense = _random_matrix(draw, storage != "general").toarray().round(2)
    if storage != "general":
        dense = np.tril(dense, -1 if storage == "skew-symmetric" else 0)
    dense = (dense * 10).astype(int) if field == "integer" else dense
    rows, cols = dense.shape
    if layout == "coordinate":
        places = np.argwhere(dense)
        lines = [f"{i + 1} {j + 1}" + ("" if field == "pattern" else f" {dense[i, j]}") for i, j in places]
        sizes = f"{rows} {cols} {len(lines)}"
    else:
        first = {"general": [0] * cols, "symmetric": range(cols), "skew-symmetric": range(1, cols + 1)}[
            storage
        ]
        lines = [str(dense[i, j]) for j in range(cols) for i in range(first[j], rows)]
        sizes = f"{rows} {cols}"
    text = "\n".join([f"%%MatrixMarket matrix {layout} {field} {storage}", "% a comment", sizes, *lines, ""])
    return _text_file(draw, folder / "m.mtx", text)


def _text_file(draw: Draw, path: Path, text: str) -> Subject:
    if draw.chance(0.3):
        path = path.with_name(path.name + ".gz")
        path.write_bytes(gzip.compress(text.encode()))
    else:
        path.write_text(text)
    return _matrix(path)


def smtx(draw: Draw, folder: Path) -> Subject:
    csr = _random_matrix(draw).tocsr()
    head = f"{csr.shape[0]}, {csr.shape[1]}, {csr.nnz}"
    lines = [head, " ".join(map(str, csr.indptr)), " ".join(map(str, csr.indices)), ""]
    return _text_file(draw, folder / "m.smtx", "\n".join(lines))


def matrix_archive(draw: Draw, folder: Path) -> Subject:
    """An npz archive of SciPy's, of gnn-benchmark's or of plain CSR arrays."""
    path, form = folder / "m.npz", draw.choice(["plain", "benchmark", "csr", "csc", "coo", "bsr", "dia"])
    matrix = _random_matrix(draw, form == "plain")
    csr = matrix.tocsr()
    if form == "plain":
        np.savez(path, indptr=csr.indptr, indices=csr.indices, num_nodes=np.int64(csr.shape[0]))
    elif form == "benchmark":
        np.savez(path, adj_indptr=csr.indptr, adj_indices=csr.indices, adj_data=csr.data, adj_shape=csr.shape)
    else:
        sp.save_npz(path, matrix.asformat(form), compressed=draw.chance(0.5))
    return _matrix(path)


def real_matrix(draw: Draw, folder: Path) -> Subject:
    """A copy of a published file, where there is a folder of them; else a generated one."""
    base = published_folder()
    patterns = ("graphs/*.npz", "tu/*.npz", "suitesparse/*.mtx.gz", "dlmc/**/*.smtx.gz", "attributed/*.npz")
    found = [f for pattern in patterns for f in sorted(base.glob(pattern))] if base else []
    found = [file for file in found if file.stat().st_size < _REAL_BYTES]
    if not found:
        return matrix_archive(draw, folder)
    file = draw.choice(found)
    shutil.copyfile(file, folder / file.name)
    return _matrix(folder / file.name)


def _data_set(name: str, folder: Path) -> Subject:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return Subject(f"load_dataset {name}", files, lambda: load_dataset(name, root=folder))


def heterophilous(draw: Draw, folder: Path) -> Subject:
    """The archive of minesweeper, generated or a copy."""
    base = published_folder()
    if base and draw.chance(0.1):
        shutil.copyfile(base / "heterophilous" / "minesweeper.npz", folder / "minesweeper.npz")
        return _data_set("minesweeper", folder)
    rng, nodes = _rng(draw), draw.integer(3, 30)
    part = rng.integers(0, 3, (10, nodes))
    part[:, :3] = [0, 1, 2]
    np.savez(
        folder / "minesweeper.npz",
        node_features=rng.normal(size=(nodes, 3)).astype(np.float32),
        node_labels=rng.integers(0, 2, nodes),
        edges=rng.integers(0, nodes, (2 * nodes, 2)),
        train_masks=part == 0,
        val_masks=part == 1,
        test_masks=part == 2,
    )
    return _data_set("minesweeper", folder)


def benchmark(draw: Draw, folder: Path) -> Subject:
    """The archive of amazon_photo: adjacency, features and labels."""
    rng, nodes = _rng(draw), draw.integer(12, 30)
    arrays: dict[str, Any] = {"labels": np.arange(nodes) % 4}
    for prefix, width in (("adj", nodes), ("attr", 5)):
        csr = sp.random_array((nodes, width), density=0.3, rng=rng, dtype=np.float32).tocsr()
        arrays |= {f"{prefix}_{part}": getattr(csr, part) for part in ("data", "indices", "indptr", "shape")}
    np.savez_compressed(folder / "amazon_electronics_photo.npz", **arrays)
    return _data_set("amazon_photo", folder)


def planetoid(draw: Draw, folder: Path) -> Subject:
    """The eight files of cora, generated or a copy."""
    base = published_folder()
    if base and draw.chance(0.05):
        shutil.copytree(base / "planetoid" / "cora" / "raw", folder / "raw")
        return _data_set("cora", folder)
    write_planetoid(folder, _rng(draw), draw.integer(5, 30), draw.integer(1, 9), protocol=draw.integer(2, 4))
    return _data_set("cora", folder)


def write_planetoid(
    folder: Path, rng: np.random.Generator, known: int, tests: int, protocol: int = 2
) -> None:
    """Writes files in Planetoid's layout: of `known` nodes, and of `tests` more whose order is shuffled."""

    def features(rows: int) -> sp.csr_matrix:
        return sp.csr_matrix(rng.random((rows, 4)).round() * 0.5, dtype=np.float32)

    def labels(rows: int) -> np.ndarray:
        return np.eye(3, dtype=np.int32)[rng.integers(0, 3, rows)]

    nodes, train = known + tests, max(1, known // 3)
    graph = {node: rng.integers(0, nodes, 3).tolist() for node in range(nodes)}
    parts = {"x": features(train), "tx": features(tests), "allx": features(known), "y": labels(train),
             "ty": labels(tests), "ally": labels(known), "graph": graph}  # fmt: skip
    for name, part in parts.items():
        (folder / f"ind.cora.{name}").write_bytes(pickle.dumps(part, protocol=protocol))
    order = known + rng.permutation(tests)
    (folder / "ind.cora.test.index").write_text("".join(f"{node}\n" for node in order))


def raw_files(draw: Draw, folder: Path) -> Subject:
    name = draw.choice(["reddit", "flickr", "yelp", "ogbn_arxiv", "ogbn_products"])
    write_raw(name, folder)
    return _data_set(name, folder)


def stored_data_set(draw: Draw, folder: Path) -> Subject:
    """The arrays that are stored of a data set when it is first read."""
    subject = heterophilous(draw, folder)
    subject.read()
    files = sorted((folder / "data" / "processed").glob("*/*.safetensors"))
    return replace(subject, name="stored arrays", files=files, rebuilt=True)


def stored_sequences(draw: Draw, folder: Path) -> Subject:
    """The sequences that are stored when they are first generated."""
    sizes = {"min_length": 3, "max_length": 20, "train_size": 5, "val_size": 2, "test_size": 2}
    read = functools.partial(load_sequences, "listops", seed=draw.below(9), **sizes)
    read()
    files = sorted((folder / "data" / "generated").glob("*.safetensors"))
    return Subject("stored sequences", files, read, rebuilt=True)


def texts(draw: Draw, folder: Path) -> Subject:
    files = [folder / "texts" / kind / f"{i}.txt" for kind in ("good", "bad") for i in range(5)]
    for number, file in enumerate(files):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"the text number {number} " * draw.integer(0, 9))
    read = functools.partial(load_sequences, "lra_text_bytes", root=folder / "texts", max_length=50)
    return Subject("load_text_bytes", files, read, rebuilt=True)


def gpu_record(draw: Draw, folder: Path) -> Subject:
    path = folder / "gpu.json"
    save_record(draw.choice(records()), path)
    return Subject("load_record", [path], lambda: load_record(path))


def fit_cases(draw: Draw, folder: Path) -> Subject:
    path = folder / "cases.json"
    write_cases(path, records()[0], [], {"date": "2026-01-01"})
    return Subject("read_cases", [path], lambda: read_cases(path))


KINDS = (
    matrix_market, matrix_market, smtx, matrix_archive, matrix_archive, real_matrix, heterophilous,
    heterophilous, benchmark, planetoid, planetoid, raw_files, raw_files, stored_data_set,
    stored_sequences, texts, gpu_record, fit_cases,
)  # fmt: skip
