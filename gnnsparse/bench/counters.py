"""Sectors and instructions of a format's policies, read from the GPU's counters by Nsight Compute (ncu).

`ncu` runs this file as a program of its own, which prepares the format and runs each plan once; the n-th
kernel of the window family that ncu saw is the n-th plan's.
"""

from __future__ import annotations

import csv
import io
import pickle
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import gnnsparse
from gnnsparse.bench.candidates import UnavailableError
from gnnsparse.bench.matrices import MatrixSpec
from gnnsparse.bench.workload import Workload, make_subject
from gnnsparse.plan import Plan
from gnnsparse.precision import Precision

__all__ = ["METRICS", "Run", "count", "find_ncu", "run_once"]

#: What is read, by the names that rows of the benchmark have for it.
METRICS = {
    "dram_sectors": "dram__sectors_read.sum",
    "l2_sectors": "lts__t_sectors_op_read.sum",
    "instructions": "smsp__inst_executed.sum",
}
#: Where CUDA puts ncu, if it is not on the path.
_USUAL = Path("/usr/local/cuda/bin/ncu")
#: The kernels whose counters are read: one for each product, the sums of cut windows apart.
_KERNELS = "regex:(policy_direct|policy_staged|window_spmm|record_spmm|tile_spmm)_kernel"
#: Seconds that a profiled program may take; a matrix is generated and prepared in it.
_SECONDS = 300


@dataclass(frozen=True)
class Run:
    """What is profiled: one prepared format, and plans for it.

    Attributes:
        matrix: the matrix.
        kind: its weights (gnnsparse.bench.workload.VALUES).
        precision, width, reorder: of the product, and the row order.
        format, panel: the format, and the rows of its windows; None: the preset's.
        plans: the plans, each of which is run once.
    """

    matrix: MatrixSpec
    kind: str
    precision: str
    width: int
    reorder: str
    format: str
    panel: int | None
    plans: tuple[Plan, ...]


def find_ncu() -> str:
    """Return the path of ncu.

    Raises:
        UnavailableError: there is none.
    """
    found = shutil.which("ncu") or (str(_USUAL) if _USUAL.exists() else None)
    if found is None:
        raise UnavailableError("ncu is neither on the path nor in /usr/local/cuda/bin")
    return found


def count(run: Run, ncu: str) -> list[dict[str, int]]:
    """Run the plans under ncu, with warm caches as far as a first product warms them.

    Args:
        run: what to profile.
        ncu: the path of ncu.

    Returns:
        For each plan the counts by the names in METRICS.

    Raises:
        UnavailableError: ncu failed, for example because the driver keeps the counters for administrators, or
            saw another number of kernels than there are plans.
    """
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "run.pickle"
        file.write_bytes(pickle.dumps(run))
        command = [
            ncu, "--csv", "--cache-control", "none", "--clock-control", "none", "--kernel-name", _KERNELS,
            "--metrics", ",".join(METRICS.values()), sys.executable, "-m", __name__, str(file),
        ]  # fmt: skip
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise UnavailableError(f"ncu: {type(error).__name__}") from None
    told = [line for line in (done.stdout + done.stderr).splitlines() if line.startswith("==ERROR==")]
    if done.returncode != 0 or told:
        reason = told[0].removeprefix("==ERROR==").strip() if told else f"it ended with {done.returncode}"
        raise UnavailableError(f"ncu: {reason}")
    found = _read(done.stdout)
    if len(found) != len(run.plans):
        raise UnavailableError(f"ncu saw {len(found)} kernels of {len(run.plans)} plans")
    return found


def _read(text: str) -> list[dict[str, int]]:
    """Read the table of ncu: a line for each kernel and metric, in the order of the kernels."""
    lines = text.splitlines()
    start = next((i for i, line in enumerate(lines) if line.startswith('"ID"')), len(lines))
    names = {metric: name for name, metric in METRICS.items()}
    kernels: dict[str, dict[str, int]] = {}
    for line in csv.DictReader(io.StringIO("\n".join(lines[start:]))):
        if (name := names.get(line["Metric Name"])) is not None:
            value = float(line["Metric Value"].replace(",", ""))
            kernels.setdefault(line["ID"], {})[name] = int(value)
    return list(kernels.values())


def run_once(run: Run) -> None:
    """Prepare the format and run each plan once: what ncu profiles."""
    device, precision = "cuda", Precision(run.precision)
    subject = make_subject(run.matrix.name, run.matrix.load(device), run.kind)
    a = gnnsparse.prepare(
        subject.graph, values="gcn" if run.kind == "gcn" else None, precision=precision, reorder=run.reorder,
        format=run.format, panel=run.panel, cache=False,
    )  # fmt: skip
    (x,) = Workload(subject, "spmm", precision, run.width).dense
    for plan in run.plans:
        gnnsparse.spmm(a, x, plan=plan)


if __name__ == "__main__":
    run_once(pickle.loads(Path(sys.argv[1]).read_bytes()))
