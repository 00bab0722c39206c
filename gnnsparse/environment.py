"""What a result was obtained with: device, versions, commit, date."""

from __future__ import annotations

import datetime
import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

__all__ = ["commit_of_checkout", "describe_environment", "device_name"]

_PACKAGES = ("gnnsparse", "torch", "lightning", "torch-geometric")


def commit_of_checkout() -> str | None:
    """The git commit of the source tree this package runs from, with "-dirty" where files differ.

    None where it does not run from a checkout.
    """
    root = Path(__file__).resolve().parent.parent
    if not (root / ".git").exists():
        return None
    try:
        run = ["git", "-C", str(root)]
        commit = subprocess.run([*run, "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
        changed = subprocess.run(
            [*run, "status", "--porcelain", "--untracked-files=no"],
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return commit.stdout.strip() + ("-dirty" if changed.stdout.strip() else "")


def device_name(device: torch.device | str) -> str:
    """The name of a GPU, or of the processor."""
    device = torch.device(device)
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def describe_environment(device: torch.device | str) -> dict[str, Any]:
    """Device and its name, threads, versions of what is installed, commit, date (UTC, ISO 8601)."""
    versions = {name: found for name in _PACKAGES if (found := _version(name)) is not None}
    return {
        "device": torch.device(device).type,
        "device_name": device_name(device),
        "threads": torch.get_num_threads(),
        "versions": {**versions, "python": platform.python_version(), "cuda": torch.version.cuda},
        "commit": commit_of_checkout(),
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
    }
