"""What the scripts of this folder share: parsers, devices, runs of train.py, and files of rows."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch

from gnnsparse.runtime.environment import describe_environment, write_json
from gnnsparse.train import resolve_device

ROOT = Path(__file__).resolve().parents[1]


def script_parser(doc: str | None, device: str | None = None) -> argparse.ArgumentParser:
    """Return a parser with a script's docstring as help and --out; `device` is the default of --device."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--out", type=Path, metavar="FILE.json", help="JSON file to write")
    if device is not None:
        parser.add_argument("--device", default=device, help="auto, cpu or cuda")
    return parser


def device_of(name: str) -> torch.device:
    """Return the device of an option, a GPU with its number."""
    return torch.empty(0, device=resolve_device(name)).device


def roots_of(pairs: Iterable[str]) -> dict[str, Path]:
    """Return the folders of data sets by name, which NAME=DIR say."""
    return {name: Path(folder) for name, _, folder in (pair.partition("=") for pair in pairs)}


def record(
    rows: Iterable[dict[str, Any]], out: Path | None, device: torch.device | str, key: str = "rows",
    show: Callable[[dict[str, Any]], str] = str, **about: Any,
) -> list[dict[str, Any]]:  # fmt: skip
    """Print each row, write all so far beside the environment and `about`, and return them in the end."""
    content: dict[str, Any] = {**describe_environment(device), **about, key: []}
    for row in rows:
        print(show(row), flush=True)
        content[key].append(row)
        if out is not None:  # after each row, because a run may take long
            write_json(out, content)
    return list(content[key])


def run_train(*options: str) -> dict[str, Any]:
    """Run train.py in a process of its own and a folder that is removed, and return its result.json."""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        command = [sys.executable, str(ROOT / "train.py"), "trainer.progress=false", f"hydra.run.dir={run}"]
        subprocess.run([*command, *options], check=True, stdout=subprocess.DEVNULL)
        return json.loads((run / "result.json").read_text())


def options_of_train(overrides: list[str]) -> Any:
    """Return the options of train.py with what the overrides change."""
    from hydra import compose, initialize_config_dir

    with initialize_config_dir(str(ROOT / "configs"), version_base="1.3"):
        return compose("train", overrides)
