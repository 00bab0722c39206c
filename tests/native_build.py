"""Pytest plugin (`-p tests.native_build`): the tests run on another build of the native module.

$GNNSPARSE_TEST_NATIVE is the module's file, or its folder. `scripts/sanitize.sh` uses it.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from pathlib import Path

from tests.scripts import import_file

place = Path(os.environ["GNNSPARSE_TEST_NATIVE"]).resolve()
if place.is_dir():
    place /= f"_native{sysconfig.get_config_var('EXT_SUFFIX')}"
assert "gnnsparse" not in sys.modules, "the plugin comes too late: gnnsparse is imported"
# `from gnnsparse import _native` finds it.
import_file("gnnsparse._native", place)


def pytest_report_header() -> str:
    return f"native module: {place}"
