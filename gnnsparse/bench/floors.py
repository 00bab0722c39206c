"""The time below which a kernel that gathers rows can't come: that of the gather alone."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from gnnsparse import _native
from gnnsparse.bench.contestants import Contestant
from gnnsparse.bench.workload import Workload
from gnnsparse.csr import address, stream_of
from gnnsparse.precision import dense_view
from gnnsparse.timing import measure

__all__ = ["RATES", "Rates", "floor_measured", "floor_model", "rates_of"]


@dataclass(frozen=True)
class Rates:
    """Measured ceilings of a device in bytes a second: copy through DRAM, random rows out of L2."""

    dram: float
    gather: float


#: By a part of the device's name. A device that nobody measured has no model.
RATES = {"H200": Rates(4.31e12, 9.2e12)}


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
    """The ceilings of the device of that name, None where they are not known."""
    return next((rates for part, rates in RATES.items() if part in name), None)


def floor_measured(work: Workload, contestant: Contestant, repeats: int, graph: bool = False) -> float | None:
    """Milliseconds of the gather alone on this device; None where it can't be measured.

    The native `cuda_gather_floor` loads the rows of the dense operand that the contestant's `columns`
    list, in this order, slice by slice of 128 bytes, and adds their words up: nothing else binds it.
    A gather made of torch operations writes what it reads, which is no floor.

    Args:
        graph: times it in CUDA graphs, as the contestant was.
    """
    if work.device.type != "cuda" or contestant.columns is None or not _native.has_cuda:
        return None
    x, columns = _whole_vectors(work.dense[-1]), contestant.columns
    processors = torch.cuda.get_device_properties(work.device).multi_processor_count
    out = torch.empty(processors, _native.GATHER_FLOOR_WORDS, dtype=torch.int32, device=work.device)

    def call() -> None:
        _native.cuda_gather_floor(
            address(columns), columns.numel(), dense_view(x), work.width, address(out),
            stream_of(work.device),
        )  # fmt: skip

    return measure(call, work.device, repeats=repeats, graph=graph).median


def _whole_vectors(x: torch.Tensor) -> torch.Tensor:
    """`x` with rows of whole 16-byte vectors, as the kernels are given it."""
    per_vector = _native.VECTOR_BYTES // x.dtype.itemsize
    return torch.nn.functional.pad(x, (0, -x.shape[1] % per_vector))
