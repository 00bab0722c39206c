from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from filelock import FileLock

from tests import warm
from tests.docs.blocks import ROOT
from tests.scripts import FOLDER


@pytest.fixture
def site() -> Iterator[Path]:
    """The built site, which no other process builds meanwhile; it is built if a page is newer."""
    pytest.importorskip("zensical", reason="zensical is not installed; it needs Python 3.11")
    folder = ROOT / "build" / "site"
    folder.parent.mkdir(exist_ok=True)
    with FileLock(folder.with_suffix(".lock"), timeout=300):
        sources = [ROOT / "zensical.toml", *(path for path in (ROOT / "docs").rglob("*") if path.is_file())]
        built = folder / "objects.inv"
        if not built.exists() or built.stat().st_mtime < max(path.stat().st_mtime for path in sources):
            done = subprocess.run([warm.python(), FOLDER / "build_docs.py"], capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
        yield folder
