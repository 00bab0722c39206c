"""What a result was obtained with (device, versions, commit, date), and writing it to a file."""

from __future__ import annotations

import datetime
import json
import os
import platform
import subprocess
import tempfile
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

__all__ = ["DEVICES", "commit_of", "describe_environment", "device_name", "write_json"]

#: What a `device` option accepts; "auto" is CUDA where that can be used.
DEVICES = ("auto", "cpu", "cuda")

_PACKAGES = ("lightning", "torch-geometric")
_ROOT = Path(__file__).resolve().parent.parent


def commit_of(folder: Path) -> str | None:
    """The git commit of the checkout that `folder` is the root of, with "-dirty" where files differ.

    None where it is no checkout. GNNSPARSE_COMMIT, where set, says what the sources are a copy of.
    """
    if copied := os.environ.get("GNNSPARSE_COMMIT"):
        return copied
    if not (folder / ".git").exists():
        return None
    git = ["git", "-C", str(folder)]
    try:
        commit = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
        status = [*git, "status", "--porcelain", "--untracked-files=no"]
        changed = subprocess.run(status, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return commit.stdout.strip() + ("-dirty" if changed.stdout.strip() else "")


def device_name(device: torch.device | str) -> str:
    """The name of a GPU, or of the processor."""
    device = torch.device(device)
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    models = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(models, platform.processor() or platform.machine())


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def describe_environment(device: torch.device | str) -> dict[str, Any]:
    """Device and its name, threads, versions of what is installed, commit, date (UTC, ISO 8601)."""
    import gnnsparse

    versions = {"gnnsparse": gnnsparse.__version__, "torch": torch.__version__}
    versions |= {name: found for name in _PACKAGES if (found := _version(name)) is not None}
    return {
        "device": torch.device(device).type,
        "device_name": device_name(device),
        "threads": torch.get_num_threads(),
        "versions": {**versions, "python": platform.python_version(), "cuda": torch.version.cuda},
        "commit": commit_of(_ROOT),
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
    }


def write_json(path: Path, content: Any) -> None:
    """Writes a file that appears whole or not at all.

    Raises:
        ValueError: a number is not finite: JSON has no such.
    """
    text = json.dumps(content, indent=2, allow_nan=False) + "\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(
        "w", dir=path.parent, prefix=path.name, suffix=".part", delete=False
    ) as file:
        file.write(text)
    try:
        os.chmod(file.name, 0o644)  # a temporary file is for its owner alone
        os.replace(file.name, path)
    except OSError:
        os.unlink(file.name)
        raise
