"""Where a result comes from: versions, commit, machine; and writing it to a file."""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import os
import platform
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import torch

import gnnsparse

__all__ = ["device_name", "git_commit", "provenance", "write_json"]


def device_name(device: torch.device) -> str:
    """The model of a GPU or of the processor."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor() or platform.machine()


def git_commit(folder: Path) -> str | None:
    """The commit of the checkout that `folder` is in; None where it is in none."""
    command = ["git", "-C", str(folder), "rev-parse", "HEAD"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return found.stdout.strip()


def provenance(folder: Path) -> dict[str, Any]:
    """Versions, commit of the checkout at `folder`, and date, for a file of results."""
    versions = {
        "gnnsparse": gnnsparse.__version__,
        "torch": torch.__version__,
        "lightning": importlib.metadata.version("lightning"),
        "python": platform.python_version(),
        "cuda": torch.version.cuda,
    }
    now = datetime.datetime.now(datetime.timezone.utc)
    return {"versions": versions, "commit": git_commit(folder), "date": now.isoformat(timespec="seconds")}


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
