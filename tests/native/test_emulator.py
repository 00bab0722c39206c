"""The emulator finds the errors that it is there for, and is built once for each state of its sources."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType

import pytest

from tests import emulator_build

REVERSED = [float(i) for i in reversed(range(64))]
REVERSED_IN_WARPS = [*REVERSED[32:], *REVERSED[:32]]
_PARTS = (*range(15, -1, -1), *range(23, 15, -1), *range(24, 32))
REVERSED_IN_PARTS = [float(32 * warp + i) for warp in range(2) for i in _PARTS]


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("right", REVERSED),
        ("right in warps", REVERSED_IN_WARPS),
        ("right copies", REVERSED),
        ("right by barriers", REVERSED),
        ("right in parts of warps", REVERSED_IN_PARTS),
    ],
)
def test_what_is_right_stays_right(module: ModuleType, name: str, wanted: list[float]) -> None:
    assert module.run_fault(name) == wanted


def test_missing_barriers_show_and_what_nobody_wrote(built: ModuleType) -> None:
    assert built.run_fault("no block barrier") != REVERSED
    assert built.run_fault("no warp barrier") != REVERSED_IN_WARPS
    assert all(x != x for x in built.run_fault("reads what nobody wrote"))
    found = built.run_fault("asks an absent lane")
    assert all(x != x for x in found[:4])
    assert found[4:32] == [float(i) for i in range(4, 32)]


def test_copies_that_are_read_too_soon_or_overwrite_show(module: ModuleType) -> None:
    assert module.run_fault("overwrites too soon") != REVERSED
    module.set_late(True)
    assert all(x != x for x in module.run_fault("no wait"))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("leaves a copy", "ended before its copies"),
        ("reads beyond", "beyond memory"),
        ("reads between", "no multiple"),
        ("writes nowhere", "memory that is not there"),
        ("ends early", "wait for others that have ended"),
        ("does not arrive", "wait for others that have ended"),
        ("makes no barrier", "there is no barrier"),
        ("meets elsewhere", "in different functions"),
        ("leaves lanes out", "leave it out"),
    ],
)
def test_impossible_programs_raise(late: ModuleType, name: str, message: str) -> None:
    with pytest.raises(RuntimeError, match=message):
        late.run_fault(name)
    assert late.run_fault("right") == REVERSED  # nothing is left of it


@pytest.fixture
def builds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Builds into a folder of the test, by a compiler that takes a while; the folders it was called with."""
    folders: list[Path] = []

    def compile_slowly(folder: Path) -> None:
        folders.append(folder)
        time.sleep(0.05)
        (folder / emulator_build.library_name()).touch()

    monkeypatch.setattr(emulator_build, "BUILDS", tmp_path / "builds")
    monkeypatch.setattr(emulator_build, "compile_into", compile_slowly)
    return folders


def test_builds_once_for_all_who_wait_and_takes_no_interrupted_build(
    builds: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(folder: Path) -> None:
        (folder / emulator_build.library_name()).touch()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(emulator_build, "compile_into", stop)
        with pytest.raises(KeyboardInterrupt):
            emulator_build.library()
    with ThreadPoolExecutor(4) as pool:
        (found,) = {f.result() for f in [pool.submit(emulator_build.library) for _ in range(4)]}
    assert len(builds) == 1
    assert found.is_file()
    assert not list(emulator_build.BUILDS.glob("*.partial"))


def test_keeps_the_builds_that_were_used_last(builds: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    for i, name in enumerate("abcdef"):
        with monkeypatch.context() as patch:
            patch.setattr(emulator_build, "fingerprint", lambda name=name: name)
            made = emulator_build.library().parent
            os.utime(made, (i, i))
    kept = {path.name for path in emulator_build.BUILDS.iterdir() if path.is_dir()}
    assert kept == {"c", "d", "e", "f"}


def test_any_change_of_the_sources_makes_a_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    native = tmp_path / "native"
    shutil.copytree(emulator_build.NATIVE, native)
    monkeypatch.setattr(emulator_build, "NATIVE", native)
    found = [emulator_build.fingerprint()]
    assert emulator_build.fingerprint() == found[0]
    (native / "cuda/kernels/softmax.cu").write_text("// another kernel")
    found.append(emulator_build.fingerprint())
    (native / "include/gnnsparse/a_new_header.h").touch()
    found.append(emulator_build.fingerprint())
    (native / "emulator/device/mma.cuh").unlink()
    found.append(emulator_build.fingerprint())
    assert len(set(found)) == 4


# The table of fragment layouts by which it multiplies, against the formulas of the PTX ISA.

#: PTX ISA, "Matrix Fragments for mma.m16n8k...": for each shape and operand the number of elements of a lane,
#: and (row, column) of element i in the lane with groupID g and threadID_in_group t.
PTX: dict[tuple[str, str], tuple[int, Callable[[int, int, int], tuple[int, int]]]] = {
    ("m16n8k32", "a"): (16, lambda g, t, i: (g + 8 * (i // 4 % 2), t * 4 + (i & 3) + (0 if i < 8 else 16))),
    ("m16n8k32", "b"): (8, lambda g, t, i: (t * 4 + (i & 3) + (0 if i < 4 else 16), g)),
    ("m16n8k16", "a"): (8, lambda g, t, i: (g + 8 * (i // 2 % 2), t * 2 + (i & 1) + (0 if i < 4 else 8))),
    ("m16n8k16", "b"): (4, lambda g, t, i: (t * 2 + (i & 1) + (0 if i < 2 else 8), g)),
    ("m16n8k8", "a"): (4, lambda g, t, i: (g if i in (0, 2) else g + 8, t if i < 2 else t + 4)),
    ("m16n8k8", "b"): (2, lambda g, t, i: (t if i == 0 else t + 4, g)),
    ("m16n8k8 halves", "a"): (4, lambda g, t, i: (g if i < 2 else g + 8, t * 2 + (i & 1))),
    ("m16n8k8 halves", "b"): (2, lambda g, t, i: (t * 2 + i, g)),
    ("m16n8k4", "a"): (2, lambda g, t, i: (g if i == 0 else g + 8, t)),
    ("m16n8k4", "b"): (1, lambda g, t, i: (t, g)),
}
for shape in {shape for shape, _ in PTX}:
    PTX[shape, "c"] = 4, lambda g, t, i: (g if i < 2 else g + 8, t * 2 + (i & 1))


def test_fragment_tables_are_those_of_the_ptx_isa(built: ModuleType) -> None:
    for (shape, operand), (count, place) in PTX.items():
        wanted = [place(lane >> 2, lane % 4, i) for lane in range(32) for i in range(count)]
        assert built.fragment_map(shape, operand) == wanted, (shape, operand)


def test_unknown_fragments_are_refused(built: ModuleType) -> None:
    with pytest.raises(ValueError, match="shape"):
        built.fragment_map("m8n8k4", "a")
    with pytest.raises(ValueError, match="operand"):
        built.fragment_map("m16n8k8", "d")
