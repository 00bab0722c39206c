"""Pytest plugin (`-p tests.native_build`): the tests run on another build of the native module.

$GNNSPARSE_TEST_NATIVE is the module's file, or its folder. `scripts/sanitize.sh` uses it.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import sysconfig
from pathlib import Path

NAME = "gnnsparse._native"


def load(place: Path) -> None:
    """Puts the module where `from gnnsparse import _native` finds it, before the package is imported."""
    if place.is_dir():
        place /= f"_native{sysconfig.get_config_var('EXT_SUFFIX')}"
    assert "gnnsparse" not in sys.modules, "the plugin comes too late: gnnsparse is imported"
    spec = importlib.util.spec_from_file_location(NAME, place)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[NAME] = module
    spec.loader.exec_module(module)


def pytest_report_header() -> str:
    return f"native module: {sys.modules[NAME].__file__}"


load(Path(os.environ["GNNSPARSE_TEST_NATIVE"]).resolve())
