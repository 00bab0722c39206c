"""The command `gnnsparse bench fit`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from gnnsparse.bench.fit.cases import Case, measure_cases, read_cases, write_cases
from gnnsparse.bench.fit.memory import measure_memory
from gnnsparse.bench.fit.solve import Fit, Quality, fit_record
from gnnsparse.bench.matrices import MatrixSpec
from gnnsparse.plan.gpu_records import GpuRecord, record_for, save_record, user_folder, using
from gnnsparse.runtime.device import Device, describe_device
from gnnsparse.runtime.environment import describe_environment

__all__ = ["file_of", "run_fit"]


def file_of(gpu: GpuRecord) -> Path:
    """Returns the file that a GPU's record is written to by default, in the folder of the user's records."""
    name = "".join(c if c.isalnum() else "-" for c in gpu.name.lower())
    return user_folder() / f"{name}.json"


def _started(device: Device, start: GpuRecord) -> GpuRecord:
    """Returns the record that the fit starts from, with the name and properties of this GPU."""
    return replace(
        start,
        name=device.name,
        capability=device.capability,
        multiprocessors=device.multiprocessors,
        memory_bytes=device.memory,
        l2_bytes=device.l2,
    )


def _report(fit: Fit, start: str, console: Console) -> None:
    table = Table(title=f"{fit.record.name}, from the numbers of {start}", title_justify="left")
    for name in ("", "cases", "choices below 0.97", "worst", "mean", "error of times"):
        table.add_column(name, justify="left" if not name else "right")
    for name, quality in (("before", fit.before), ("fitted", fit.after)):
        table.add_row(name, *_cells(quality))
    console.print(table)


def _cells(quality: Quality) -> tuple[str, ...]:
    speeds = f"{quality.worst:.3f}", f"{quality.mean:.4f}"
    return str(quality.cases), str(quality.lost), *speeds, f"{100 * quality.error:.0f} %"


def _measured(
    more: tuple[MatrixSpec, ...], tell: Callable[[str], None]
) -> tuple[GpuRecord, list[Case], dict[str, Any]]:
    """Measures the current GPU; returns the record to start from, the cases, and the environment."""
    device = torch.device("cuda", torch.cuda.current_device())
    described = describe_device(device)
    nearest = record_for(described)
    tell(f"{described.name}: memory")
    start = replace(_started(described, nearest), memory=measure_memory(device))
    with using(start):
        cases = measure_cases(device, more, tell)
    return start, cases, {"from": nearest.name, **describe_environment(device)}


def run_fit(
    out: Path | None,
    more: tuple[MatrixSpec, ...] = (),
    *,
    keep: Path | None = None,
    measured: Path | None = None,
) -> int:
    """Measures, fits, prints how good the choices are, and writes the record.

    Args:
        out: the file to write; None: `file_of` this GPU, a record which plans are then chosen by.
        more: matrices to measure in addition to the suite's.
        keep: a file to write the measurements to; None: none.
        measured: a file of measurements to fit to, in place of measuring; None: this GPU is measured.

    Returns:
        The exit status: 1 if nothing could be measured.

    Raises:
        ValueError: `measured` is no file of measurements.
    """
    progress, console = Console(stderr=True), Console()

    def tell(line: str) -> None:
        progress.print(line, markup=False, highlight=False, soft_wrap=True)

    start, cases, about = read_cases(measured) if measured is not None else _measured(more, tell)
    if not cases:
        tell("nothing could be measured")
        return 1
    if keep is not None:
        write_cases(keep, start, cases, about)
    tell(f"fitting {sum(len(case.times) for case in cases)} times of {len(cases)} cases")
    fit = fit_record(start, cases)
    found = {**about, "matrices": len({case.name for case in cases}), "quality": asdict(fit.after)}
    file = out or file_of(start)
    save_record(replace(fit.record, fitted=found), file)
    _report(fit, str(about.get("from")), console)
    console.print(escape(str(file)), soft_wrap=True, highlight=False)
    return 0
