"""The command `gnnsparse bench fit`."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from gnnsparse.bench.arguments import device_option, file_option, matrices_option
from gnnsparse.bench.fit_measure import Case, measure_cases, measure_memory, read_cases, write_cases
from gnnsparse.bench.fit_solve import fit_record
from gnnsparse.bench.matrices import MatrixSpec
from gnnsparse.bench.session import new_table, printer, progress
from gnnsparse.plan.gpu_records import GpuRecord, record_for, save_record, user_folder, using
from gnnsparse.runtime.device import describe_device
from gnnsparse.runtime.environment import describe_environment

__all__ = ["DESCRIPTION", "add_arguments", "run"]

DESCRIPTION = """\
Measures this GPU's memory and our kernels on it, fits the costs that plans are chosen by, and writes them as
a record (docs/gpu-records.md). Takes about six minutes and much of the GPU's memory.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `gnnsparse bench fit`."""
    parser.add_argument(
        "--matrix", nargs="+", action="extend", type=matrices_option, metavar="MATRIX",
        help="matrices to measure beside the built-in suite, as in `gnnsparse bench kernels`",
    )  # fmt: skip
    parser.add_argument(
        "--out", type=file_option, metavar="FILE.json",
        help="the record; default: a file in $GNNSPARSE_GPU_RECORDS or the user's data folder, which plans "
        "on this GPU are chosen by from then on",
    )  # fmt: skip
    parser.add_argument("--keep", type=file_option, metavar="FILE.json", help="write what was measured, too")
    parser.add_argument(
        "--measured", type=Path, metavar="FILE.json",
        help="fit to what --keep wrote, in place of measuring; needs no GPU",
    )  # fmt: skip


def _measured(
    more: tuple[MatrixSpec, ...], tell: Callable[[str], None]
) -> tuple[GpuRecord, list[Case], dict[str, Any]]:
    """Measure the current GPU; returns the record to start from, the cases, and the environment."""
    device = torch.device("cuda", torch.cuda.current_device())
    described = describe_device(device)
    nearest = record_for(described)
    tell(f"{described.name}: memory")
    # The record that the fit starts from, with the name, properties and memory rates of this GPU.
    start = replace(
        nearest, name=described.name, capability=described.capability,
        multiprocessors=described.multiprocessors, memory_bytes=described.memory, l2_bytes=described.l2,
        memory=measure_memory(nearest.memory, device),
    )  # fmt: skip
    with using(start):
        cases = measure_cases(device, more, tell)
    return start, cases, {"from": nearest.name, **describe_environment(device)}


def run(options: argparse.Namespace) -> int:
    """Measure, fit, print how good the choices are, and write the record; 1 if nothing could be measured."""
    if options.measured is None:
        try:
            device_option("cuda")
        except argparse.ArgumentTypeError as error:
            options.fail(f"{error}; accepted without one: --measured FILE.json")
    elif options.matrix or options.keep:
        options.fail("argument --measured: --matrix and --keep go with measuring")
    elif not options.measured.is_file():
        options.fail(f"argument --measured: there is no file {options.measured}")
    more = tuple(spec for group in options.matrix or () for spec in group)
    tell, console = progress(), Console()
    start, cases, about = read_cases(options.measured) if options.measured else _measured(more, tell)
    if not cases:
        tell("nothing could be measured")
        return 1
    if options.keep is not None:
        write_cases(options.keep, start, cases, about)
    tell(f"fitting {sum(len(case.times) for case in cases)} times of {len(cases)} cases")
    fit = fit_record(start, cases)
    found = {**about, "matrices": len({case.name for case in cases}), "quality": asdict(fit.after)}
    name = "".join(c if c.isalnum() else "-" for c in start.name.lower())
    file = options.out or user_folder() / f"{name}.json"
    save_record(replace(fit.record, fitted=found), file)
    title = f"{fit.record.name}, from the numbers of {about.get('from')}"
    numbers = ("cases", "choices below 0.97", "worst", "mean", "error of times")
    table = new_table(title, ("",), numbers, title_justify="left")
    for name, quality in (("before", fit.before), ("fitted", fit.after)):
        table.add_row(
            name, str(quality.cases), str(quality.lost), f"{quality.worst:.3f}", f"{quality.mean:.4f}",
            f"{100 * quality.error:.0f} %",
        )  # fmt: skip
    console.print(table)
    printer(console)(str(file))
    return 0
