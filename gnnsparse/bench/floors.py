"""Lower bounds on the time of a kernel: the time of gathering its rows of the dense operand alone."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from gnnsparse import _native
from gnnsparse.bench.candidates import Candidate
from gnnsparse.bench.workload import Workload
from gnnsparse.plan.gpu_records import records
from gnnsparse.precision import dense_view
from gnnsparse.runtime.device import GATHER_FLOOR_WORDS, path
from gnnsparse.runtime.timing import measure

__all__ = ["Rates", "floor_measured", "floor_model", "rates_of"]


@dataclass(frozen=True)
class Rates:
    """Measured ceilings of a device, in bytes a second.

    Attributes:
        dram: a large copy through DRAM.
        gather: random rows read through L2.
    """

    dram: float
    gather: float


def floor_model(work: Workload, gathered: int, rates: Rates) -> float:
    """Models the floor in milliseconds: the larger of the least traffic to DRAM and the gather through L2.

    The model has no L1 cache: a kernel can be faster if neighbouring rows have common columns.

    Args:
        work: the workload.
        gathered: number of rows of a dense operand that the kernel reads.
        rates: ceilings of the device.
    """
    csr = work.subject.csr
    dram = (csr.rows + csr.cols) * work.row_bytes + 4 * min(gathered, csr.nnz)
    if work.op == "sddmm":
        dram += csr.nnz * work.precision.storage.itemsize
    return 1e3 * max(dram / rates.dram, gathered * work.row_bytes / rates.gather)


def rates_of(name: str) -> Rates | None:
    """Returns the ceilings of the GPU called `name` by its record; None if it has no record."""
    found = next((record.memory for record in records() if record.name == name), None)
    return None if found is None else Rates(1e12 * found.dram_tbs, 1e12 * found.gather_tbs)


def floor_measured(work: Workload, candidate: Candidate, repeats: int, graph: bool = False) -> float | None:
    """Measures the floor in milliseconds; returns None if it can't be measured.

    The native function `cuda_gather_floor` reads the rows of the dense operand that are listed in the
    candidate's `columns`, in that order and in slices of 128 bytes, and adds up their words. Nothing but the
    reading bounds its time. A gather by torch operations also writes what it reads, so it is no floor.

    Args:
        work: the workload.
        candidate: the candidate whose rows are gathered.
        repeats: number of timed calls.
        graph: whether it is timed in CUDA graphs, as the candidate should be, too.
    """
    if work.device.type != "cuda" or candidate.columns is None or not _native.has_cuda:
        return None
    x, columns = _whole_vectors(work.dense[-1]), candidate.columns
    # X of 8 bits has as many bytes as half of its columns in 16.
    width = -(-work.row_bytes // x.element_size())
    x = x if width == work.width else _whole_vectors(x[:, :width])
    processors = torch.cuda.get_device_properties(work.device).multi_processor_count
    out = torch.empty(processors, GATHER_FLOOR_WORDS, dtype=torch.int32, device=work.device)

    def call() -> None:
        stream = path().stream(work.device)
        _native.cuda_gather_floor(columns, dense_view(x), width, out, stream)

    return measure(call, work.device, repeats=repeats, graph=graph).median


def _whole_vectors(x: torch.Tensor) -> torch.Tensor:
    """Returns `x` with rows padded to whole 16-byte vectors, which is how the kernels read it."""
    per_vector = 16 // x.dtype.itemsize
    return torch.nn.functional.pad(x, (0, -x.shape[1] % per_vector)).contiguous()
