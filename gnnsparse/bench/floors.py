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

    This is where a measured floor goes: the native module has to offer

        cuda_gather_floor(columns, count, x: Dense, width, out, stream)

    which sums the rows of x that `columns` (int32 [count]) lists, in this order and as fast as the
    device loads them, and writes something that depends on all of them to `out` (float32, at least
    one row of x's width for each multiprocessor, 4 KB a row). A gather made of torch operations
    writes what it reads, which is no floor.
    """
    gather = getattr(_native, "cuda_gather_floor", None)
    if gather is None or work.device.type != "cuda" or contestant.columns is None:
        return None
    x, columns = work.dense[-1], contestant.columns
    processors = torch.cuda.get_device_properties(work.device).multi_processor_count
    out = torch.empty(processors, max(1024, work.width), dtype=torch.float32, device=work.device)

    def call() -> None:
        gather(
            address(columns), columns.numel(), dense_view(x), work.width, address(out), stream_of(work.device)
        )

    return measure(call, work.device, repeats=repeats, graph=graph).median
