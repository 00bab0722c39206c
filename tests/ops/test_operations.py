"""Operations are found by their folders."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import gnnsparse
import gnnsparse.ops


def test_every_folder_is_an_operation_and_exports_it() -> None:
    folders = [path.parent for path in Path(gnnsparse.ops.__file__).parent.glob("*/api.py")]
    for folder in folders:
        for name in sys.modules[f"gnnsparse.ops.{folder.name}.api"].__all__:
            assert callable(getattr(gnnsparse.ops, name))
            assert name in gnnsparse.ops.__all__
            assert hasattr(gnnsparse, name)


def test_two_operations_of_one_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "other"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "api.py").write_text('__all__ = ["spmm"]\n\n\ndef spmm():\n    pass\n')
    monkeypatch.setattr(gnnsparse.ops, "__path__", [*gnnsparse.ops.__path__, str(tmp_path)])
    before = gnnsparse.ops.spmm
    try:
        with pytest.raises(
            ValueError, match=r"operation: got 'spmm' in gnnsparse.ops.other.api; accepted: a name"
        ):
            gnnsparse.ops.find_operations()
    finally:
        for name in ("gnnsparse.ops.other", "gnnsparse.ops.other.api"):
            sys.modules.pop(name, None)
        del gnnsparse.ops.other
    assert gnnsparse.ops.spmm is before
