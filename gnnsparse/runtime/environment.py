"""The environment that a result was obtained in (device, versions, commit, date), and writing JSON files."""

from __future__ import annotations

import contextlib
import datetime
import json
import logging
import os
import platform
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

#: What a `device` option accepts; "auto" is CUDA if a GPU can be used, else the CPU.
DEVICES = ("auto", "cpu", "cuda")

_PACKAGES = ("lightning", "torch-geometric")
_ROOT = Path(__file__).resolve().parents[2]


def commit_of(folder: Path) -> str | None:
    """Return $GNNSPARSE_COMMIT or a checkout's commit, with "-dirty" if files differ, or None."""
    if copied := os.environ.get("GNNSPARSE_COMMIT"):
        return copied
    if not (folder / ".git").exists():
        return None
    describe = ["git", "-C", str(folder), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        return subprocess.run(describe, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def device_name(device: torch.device | str) -> str:
    """Return the name of a GPU, or of the processor."""
    device = torch.device(device)
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    models = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(models, platform.processor() or platform.machine())


def describe_environment(device: torch.device | str) -> dict[str, Any]:
    """Return the device and its name, threads, versions of packages, commit, and date (UTC, ISO 8601)."""
    import gnnsparse

    versions = {"gnnsparse": gnnsparse.__version__, "torch": torch.__version__}
    for name in _PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return {
        "device": torch.device(device).type,
        "device_name": device_name(device),
        "threads": torch.get_num_threads(),
        "versions": {**versions, "python": platform.python_version(), "cuda": torch.version.cuda},
        "commit": commit_of(_ROOT),
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
    }


def write_json(path: Path, content: Any) -> None:
    """Write a JSON file atomically; raise ValueError for a number that is not finite."""
    write_text(path, json.dumps(content, indent=2, allow_nan=False) + "\n")


def write_text(path: Path, text: str) -> None:
    """Write a text file in UTF-8 atomically; what has no encoding becomes a question mark."""
    # A name from a file may hold half of a surrogate pair.
    write_bytes(path, text.encode("utf-8", "replace"))


def write_bytes(path: Path, content: bytes | memoryview) -> None:
    """Write a file atomically: it appears whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=path.name, suffix=".part", delete=False) as file:
        file.write(content)
    try:
        os.chmod(file.name, 0o644)  # temporary files are readable by their owner alone
        os.replace(file.name, path)
    except OSError:
        os.unlink(file.name)
        raise


@contextlib.contextmanager
def log_shown(name: str, show: Callable[[str], object]) -> Iterator[None]:
    """Show what a logger says at the level INFO by `show`, inside a `with` block, and nowhere else.

    Warnings of this package are shown in one line there, without a place in its code.
    """
    usual = warnings.formatwarning

    def formatted(
        message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
    ) -> str:
        own = category is UserWarning and f"{os.sep}gnnsparse{os.sep}" in filename
        return f"warning: {message}\n" if own else usual(message, category, filename, lineno, line)

    log, handler = logging.getLogger(name), logging.Handler()
    handler.emit = lambda record: show(record.getMessage())  # type: ignore[method-assign, assignment]
    before = log.level, log.propagate
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    log.propagate = False  # hydra shows what comes to the root
    warnings.formatwarning = formatted
    try:
        yield
    finally:
        warnings.formatwarning = usual
        log.removeHandler(handler)
        log.setLevel(before[0])
        log.propagate = before[1]


def without_pipe() -> None:
    """Send what is printed from now on nowhere: Python would report a closed pipe once more when it ends."""
    with contextlib.suppress(OSError, ValueError):  # an output that is no file
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
