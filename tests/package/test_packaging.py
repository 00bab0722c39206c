"""What the project says of itself, and the check of a wheel's contents."""

from __future__ import annotations

import struct
import sys
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

import gnnsparse
from tests.helpers import needs_installed_module
from tests.scripts import load_script

ROOT = Path(__file__).resolve().parents[2]
pytest.importorskip("elftools", reason="pyelftools is not installed")
check_wheel = load_script("check_wheel")


def test_the_version_comes_from_one_place_and_the_package_is_typed() -> None:
    assert metadata.version("gnnsparse") == gnnsparse.__version__
    assert f'"{gnnsparse.__version__}"' not in (ROOT / "pyproject.toml").read_text()
    assert (Path(gnnsparse.__file__).parent / "py.typed").exists()
    assert "Typing :: Typed" in (metadata.metadata("gnnsparse").get_all("Classifier") or [])


def code(kind: int, architecture: int, nbytes: int = 24, compressed: bool = True) -> bytes:
    """One image of a unit, as nvcc writes it: a header of 64 bytes, then the code."""
    head = struct.pack("<HHIQIIHHI", kind, 0x101, 64, nbytes, nbytes * compressed, 0, 8, 1, architecture)
    return head.ljust(64, b"\0") + b"\x7f" * nbytes


def unit(*codes: bytes) -> bytes:
    body = b"".join(codes)
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body


def test_the_gpu_code_of_a_module_is_read() -> None:
    large, small = unit(code(2, 80), code(1, 120), code(2, 120, compressed=False)), unit(code(2, 75, 40))
    first, second = check_wheel.device_units(large + b"\0" * 8 + small)
    assert [(c.kind, c.architecture, c.compressed) for c in first] == [
        ("machine code", 80, True),
        ("PTX", 120, True),
        ("machine code", 120, False),
    ]
    assert [(c.architecture, c.nbytes) for c in second] == [(75, 40)]


@pytest.mark.parametrize(
    ("architectures", "ptx"), [(["75", "90a", "120"], [120]), (["120", "80"], [120]), (["90a"], []), ([], [])]
)
def test_ptx_is_expected_for_the_newest_architecture_alone(architectures: list[str], ptx: list[int]) -> None:
    found = check_wheel.expected_codes(architectures)
    assert [number for kind, number in found if kind == "PTX"] == ptx
    assert sum(found.values()) == len(architectures) + len(ptx)


@needs_installed_module
def test_the_native_module_here_has_what_it_says() -> None:
    from gnnsparse import _native

    architectures = [name for name in _native.cuda_architectures.split(",") if name]
    if "native" in architectures:
        pytest.skip("built for the GPU of this machine")
    problems = list(check_wheel.module_problems(Path(_native.__file__), architectures))
    assert [p for p in problems if ".symtab" not in p and ".debug" not in p] == []


def test_every_file_is_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [tmp_path / f"gnnsparse-0-cp{tag}-cp{tag}-linux_aarch64.whl" for tag in (312, 313)]
    for file in files:
        with zipfile.ZipFile(file, "w") as wheel:
            wheel.writestr("gnnsparse-0.dist-info/METADATA", "Classifier: Programming Language :: Python")
    monkeypatch.setattr(sys, "argv", ["check_wheel.py", *map(str, files)])
    assert check_wheel.main() == 1
    problems = capsys.readouterr().err
    assert all(f"{file.name} has no manylinux tag" in problems for file in files)
