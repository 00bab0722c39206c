"""The time below which a kernel that gathers rows can't come: that of the gather alone."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from gnnsparse import _native
from gnnsparse.bench.candidates import Candidate
from gnnsparse.bench.workload import Workload
from gnnsparse.csr import address
from gnnsparse.cuda_path import path
from gnnsparse.gpus import records
from gnnsparse.precision import dense_view
from gnnsparse.tiles import GATHER_FLOOR_WORDS
from gnnsparse.timing import measure

__all__ = ["Rates", "floor_measured", "floor_model", "rates_of"]


@dataclass(frozen=True)
class Rates:
    """Measured ceilings of a device in bytes a second: copy through DRAM, random rows out of L2."""

    dram: float
    gather: float


def floor_model(work: Workload, gathered: int, rates: Rates) -> float:
    """Modelled milliseconds: the larger of what must cross DRAM once and the gather out of L2.

    It knows nothing of L1: where neighbouring rows share columns a kernel can be faster.

    Args:
        gathered: rows of a dense operand that the kernel reads.
    """
    csr = work.subject.csr
    dram = (csr.rows + csr.cols) * work.row_bytes + 4 * min(gathered, csr.nnz)
    if work.op == "sddmm":
        dram += csr.nnz * work.precision.storage.itemsize
    return 1e3 * max(dram / rates.dram, gathered * work.row_bytes / rates.gather)


def rates_of(name: str) -> Rates | None:
    """The ceilings of the GPU of that name by its record; None where it has none."""
    found = next((record.memory for record in records() if record.name == name), None)
    return None if found is None else Rates(1e12 * found.dram_tbs, 1e12 * found.gather_tbs)


def floor_measured(work: Workload, candidate: Candidate, repeats: int, graph: bool = False) -> float | None:
    """Milliseconds of the gather alone on this device; None where it can't be measured.

    The native `cuda_gather_floor` loads the rows of the dense operand that the candidate's `columns`
    list, in this order, slice by slice of 128 bytes, and adds their words up: nothing else binds it.
    A gather made of torch operations writes what it reads, which is no floor.

    Args:
        graph: times it in CUDA graphs, as the candidate was.
    """
    if work.device.type != "cuda" or candidate.columns is None or not _native.has_cuda:
        return None
    x, columns = _whole_vectors(work.dense[-1]), candidate.columns
    processors = torch.cuda.get_device_properties(work.device).multi_processor_count
    out = torch.empty(processors, GATHER_FLOOR_WORDS, dtype=torch.int32, device=work.device)

    def call() -> None:
        _native.cuda_gather_floor(
            address(columns), columns.numel(), dense_view(x), work.width, address(out),
            path().stream(work.device),
        )  # fmt: skip

    return measure(call, work.device, repeats=repeats, graph=graph).median


def _whole_vectors(x: torch.Tensor) -> torch.Tensor:
    """`x` with rows of whole 16-byte vectors, as the kernels are given it."""
    per_vector = 16 // x.dtype.itemsize
    return torch.nn.functional.pad(x, (0, -x.shape[1] % per_vector))
