"""Small valid files of every kind that the package reads, and what reads them."""

from __future__ import annotations

import gzip
import io
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import scipy.io
import scipy.sparse as sp

from gnnsparse.bench.fit_command import read_cases, write_cases
from gnnsparse.data import load_dataset, load_matrix
from gnnsparse.plan.gpu_records.record import load_record, records, save_record
from tests.data.raw_files import WRITERS, write_planetoid
from tests.data_folder import data_folder as published_folder
from tests.fuzz.common import Draw

_REAL_BYTES = 150_000


@dataclass
class Subject:
    """Valid files of a kind, what reads them, and whether damaged ones are made again, without an error."""

    name: str
    files: list[Path]
    read: Callable[[], Any]
    rebuilt: bool = False


def _random_matrix(draw: Draw, square: bool = False) -> sp.coo_array:
    rows = draw.integer(1, 12)
    cols = rows if square else draw.integer(1, 12)
    rng = np.random.default_rng(draw.seed())
    return sp.random_array(
        (rows, cols), density=0.3, rng=rng, data_sampler=lambda size: rng.normal(size=size)
    )


def _matrix(path: Path) -> Subject:
    return Subject("load_matrix " + path.name, [path], lambda: load_matrix(path))


def matrix_market(draw: Draw, folder: Path) -> Subject:
    field, is_dense = draw.choice(["real", "integer", "pattern"]), draw.chance(0.4)
    storages = ("general", "symmetric", "skew-symmetric")[: 2 if field == "pattern" else 3]
    storage = draw.choice(storages)
    matrix = 10 * _random_matrix(draw, storage != "general").tocsr()
    if storage != "general":
        lower = sp.tril(matrix, -1)
        matrix = lower - lower.T if storage == "skew-symmetric" else lower + lower.T
    if field == "integer":
        matrix = matrix.astype(int)
    stream = io.BytesIO()
    written = matrix.toarray() if is_dense and field != "pattern" else matrix.tocoo()
    scipy.io.mmwrite(stream, written, comment="a comment", field=field, precision=3, symmetry=storage)
    return _text_file(draw, folder / "m.mtx", stream.getvalue().decode())


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


def raw_files(draw: Draw, folder: Path) -> Subject:
    name = draw.choice(list(WRITERS))
    if name == "cora":
        write_planetoid(folder, protocol=draw.integer(2, 4))
    else:
        WRITERS[name](folder)
    return _data_set(name, folder)


def stored_data_set(draw: Draw, folder: Path) -> Subject:
    """The arrays that are stored of a data set when it is first read."""
    WRITERS["minesweeper"](folder)
    subject = _data_set("minesweeper", folder)
    subject.read()
    files = sorted((folder / "data" / "processed").glob("*.safetensors"))
    return replace(subject, name="stored arrays", files=files, rebuilt=True)


def gpu_record(draw: Draw, folder: Path) -> Subject:
    path = folder / "gpu.json"
    save_record(draw.choice(records()), path)
    return Subject("load_record", [path], lambda: load_record(path))


def fit_cases(draw: Draw, folder: Path) -> Subject:
    path = folder / "cases.json"
    write_cases(path, records()[0], [], {"date": "2026-01-01"})
    return Subject("read_cases", [path], lambda: read_cases(path))


KINDS = (
    *[raw_files] * 8, *[matrix_archive] * 2, *[matrix_market] * 2, smtx, real_matrix, stored_data_set,
    gpu_record, fit_cases,
)  # fmt: skip
