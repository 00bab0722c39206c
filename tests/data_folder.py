"""Where the published data files are that some tests read, and a mark that skips these tests without them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


def data_folder() -> Path | None:
    """$GNNSPARSE_TEST_DATA, or `shared/data` beside the repository; None where there is no such folder."""
    if given := os.environ.get("GNNSPARSE_TEST_DATA"):
        folder = Path(given)
    else:
        folder = Path(__file__).resolve().parents[1].parent / "shared" / "data"
    return folder if folder.is_dir() else None


requires_data = pytest.mark.skipif(
    data_folder() is None,
    reason="no published data files: neither $GNNSPARSE_TEST_DATA nor shared/data beside the repository",
)


def data_file(*parts: str) -> Path:
    """A path in the data folder, in tests marked with `requires_data`."""
    folder = data_folder()
    assert folder is not None
    return folder.joinpath(*parts)
