"""Mutated files of every kind that the package reads: each is read as a valid one, or refused by name."""

from __future__ import annotations

import contextlib
import os
import resource
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch

import gnnsparse
from gnnsparse.data import DatasetUnavailableError, NodeDataset
from tests.fuzz import worker
from tests.fuzz.common import FailedCallError, Trial, describe
from tests.fuzz.mutations import mutate
from tests.fuzz.valid_files import KINDS, Subject

#: Errors by which a file is refused.
REFUSALS = (ValueError, OSError, MemoryError, DatasetUnavailableError)
#: Mutated files of one valid one.
_MUTATIONS = 12
#: Bytes of address space that a process may take beyond what it has at its first case.
_MEMORY = 3 << 29
#: What a pickle's code would leave behind in the working folder.
_TRACE = Path("executed")

_base = Path(tempfile.gettempdir())
_limited_process = 0


@contextlib.contextmanager
def _in_folder() -> Iterator[None]:
    """Makes a folder for the files, which is removed even if a process that has files there was killed."""
    global _base
    before = _base
    with tempfile.TemporaryDirectory(prefix="gnnsparse-readers-", ignore_cleanup_errors=True) as folder:
        _base = Path(folder)
        yield
    _base = before


def _limit_memory() -> None:
    """Gives the forked process a limit that the package sees, below the one at which it would be ended."""
    global _limited_process
    if _limited_process != os.getpid():
        _limited_process = os.getpid()
        size = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        resource.setrlimit(resource.RLIMIT_AS, (size + _MEMORY, resource.getrlimit(resource.RLIMIT_AS)[1]))


def _case(trial: Trial) -> None:
    _limit_memory()
    with (
        tempfile.TemporaryDirectory(dir=_base, ignore_cleanup_errors=True) as folder,
        mock.patch.dict(os.environ, GNNSPARSE_DATA_DIR=f"{folder}/data"),
    ):
        _mutations(trial, trial.draw.choice(KINDS)(trial.draw, Path(folder)), Path(folder))


def _mutations(trial: Trial, subject: Subject, folder: Path) -> None:
    _verify(trial, trial.call(f"{subject.name}, valid", subject.read))
    valid = {path: path.read_bytes() for path in subject.files}
    for _ in range(_MUTATIONS):
        path = trial.draw.choice(subject.files)
        path.write_bytes(mutate(trial.draw, path.name, valid[path]))
        label = f"{subject.name}, {path.name} mutated"
        if subject.rebuilt:
            _verify(trial, trial.call(label, subject.read))
        else:
            found = trial.attempt(label, lambda: _named(subject, folder), lambda e: isinstance(e, REFUSALS))
            _verify(trial, found)
        trial.check(not _TRACE.exists(), "a file ran code")
        path.write_bytes(valid[path])


def _named(subject: Subject, folder: Path) -> Any:
    """Reads the files; an error that does not say which file is wrong, and how, is a failure."""
    try:
        return subject.read()
    except REFUSALS as error:
        message = str(error)
        if str(folder) not in message or len(message) > 2000:
            raise FailedCallError("error", f"does not name the file: {describe(error)}") from error
        raise type(error)(message.replace(str(folder), "file")) from error


def _verify(trial: Trial, found: Any) -> None:
    """Checks what was read, and lets native code compute with it."""
    if isinstance(found, NodeDataset):
        trial.check(bool(torch.isfinite(found.x).all()), "a feature is not finite")
        trial.check(found.x.shape[0] == found.graph.num_rows == found.y.shape[0], "sizes differ")
        masks = torch.stack([found.train_mask, found.val_mask, found.test_mask])
        trial.check(int(masks.sum(0).max()) <= 1, "a node is in two parts")
        trial.check(set(masks.view(torch.uint8).unique().tolist()) <= {0, 1}, "a mask holds other bytes")
        found = found.graph
    if not isinstance(found, gnnsparse.SparseGraph):
        return
    indptr, indices = found.csr.indptr.numpy(), found.csr.indices.numpy()
    degrees, in_range = np.diff(indptr), bool(((indices >= 0) & (indices < found.num_cols)).all())
    trial.check(indptr[0] == 0 and indptr[-1] == indices.size, "the offsets do not end at nnz")
    trial.check(bool((degrees >= 0).all()) and in_range, "the offsets decrease, or a column is out of range")
    trial.check(found.values is None or bool(torch.isfinite(found.values).all()), "a value is not finite")
    if found.num_rows + found.num_cols < 100_000:
        operand = gnnsparse.prepare(gnnsparse.SparseGraph(found.csr), cache=False)
        product = (operand @ torch.ones(found.num_cols, 2))[:, 0]
        right = torch.equal(product, torch.from_numpy(degrees).float())
        trial.check(right, "a product with ones is not the degrees")


GENERATOR = worker.Generator("readers", _case, _in_folder, case_seconds=120.0)
