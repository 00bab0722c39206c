"""The command `gnnsparse doctor`."""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.text import Text

from gnnsparse.cli.doctor.findings import BROKEN, NOTE, OK, Finding, Section
from gnnsparse.cli.doctor.hardware import check_cpu, check_gpu
from gnnsparse.cli.doctor.self_test import CaseResult, self_test, usable_devices
from gnnsparse.cli.doctor.software import check_cache, check_packages

__all__ = ["examine", "run_doctor"]

_MARKS = {OK: ("ok", "green"), NOTE: ("note", "yellow"), BROKEN: ("BROKEN", "bold red")}


def check_kernels(seconds: float) -> Section:
    """Runs the self-test."""
    section = Section("Self-test")
    if seconds == 0:
        section.note("no kernel was tested", "give --seconds more than 0")
        return section
    begin = time.perf_counter()
    results, left_out = self_test(seconds)
    took = time.perf_counter() - begin
    wrong = [result for result in results if not result.ok]
    section.facts = {
        "cases": len(results), "left_out": left_out, "seconds": round(took, 2),
        "devices": list(usable_devices()), "results": [asdict(result) for result in results],
    }  # fmt: skip
    for result in wrong:
        section.broken(
            f"{result}: {result.problem}",
            "do not trust its results; report it with `gnnsparse doctor --json`",
        )
    for device in usable_devices():
        right = [result for result in results if result.device == device and result.ok]
        section.ok(f"{device}: {len(right)} cases of {len({_kernel(r) for r in right})} kernels are right")
    if left_out:
        section.note(f"{left_out} cases were left out: the time was over", "give more, as in --seconds 60")
    section.ok(f"{took:.1f} s")
    return section


def _kernel(result: CaseResult) -> tuple[str, str, str]:
    return result.isa, result.op, result.kernel


def examine(seconds: float = 10.0) -> list[Section]:
    """Makes all checks; one that fails itself is a finding, and the others go on.

    Args:
        seconds: most seconds of the self-test; 0: none.
    """
    checks: dict[str, Callable[[], Section]] = {
        "Packages": check_packages, "GPU": check_gpu, "CPU": check_cpu, "Cache": check_cache,
        "Self-test": lambda: check_kernels(seconds),
    }  # fmt: skip
    sections = []
    for name, check in checks.items():
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # they are findings where they matter
                sections.append(check())
        except Exception as error:  # whatever is wrong with the machine
            failed = Section(name)
            failed.broken(f"the check itself failed: {type(error).__name__}: {error}")
            sections.append(failed)
    return sections


def run_doctor(*, as_json: bool = False, seconds: float = 10.0) -> int:
    """Makes all checks and prints what they found.

    Args:
        as_json: prints one JSON object in place of text.
        seconds: most seconds of the self-test; 0: none.

    Returns:
        The exit status: 1 if something is broken, else 0.
    """
    sections = examine(seconds)
    findings = [finding for section in sections for finding in section.findings]
    broken = sum(finding.level == BROKEN for finding in findings)
    console = Console(soft_wrap=True, highlight=False)
    if as_json:
        console.print(json.dumps(_plain(sections, broken), indent=2), markup=False)
    else:
        for section in sections:
            console.print(Text(section.name, style="bold"))
            for finding in section.findings:
                _print_finding(console, finding)
        notes = sum(finding.level == NOTE for finding in findings)
        console.print(f"{broken} broken, {notes} notes")
    return 1 if broken else 0


def _plain(sections: list[Section], broken: int) -> dict[str, Any]:
    described = {
        section.name: {"facts": section.facts, "findings": [asdict(f) for f in section.findings]}
        for section in sections
    }
    return {"broken": broken, "sections": described}


def _print_finding(console: Console, finding: Finding) -> None:
    mark, style = _MARKS[finding.level]
    console.print(Text.assemble("  ", (f"{mark:7}", style), " ", finding.text))
    if finding.advice:
        console.print(Text(f"          -> {finding.advice}", style="dim" if finding.level == NOTE else ""))
