"""Imports files that are in no package, such as those of scripts/."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

FOLDER = Path(__file__).resolve().parents[1] / "scripts"


def import_file(name: str, path: Path) -> ModuleType:
    """Imports a file under a name, by which dataclasses look their module up."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def load_script(name: str) -> ModuleType:
    """Returns the module of `scripts/NAME.py`."""
    return import_file(f"scripts_{name}", FOLDER / f"{name}.py")
