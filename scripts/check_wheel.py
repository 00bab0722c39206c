"""Checks what is in a wheel: its size and files, the libraries it needs, the GPU code of its native module.

    python scripts/check_wheel.py FILE.whl ... [--architectures "80;90a;120"]
    python scripts/check_wheel.py _native.so --architectures 90a    the module alone

Prints the sizes and exits with 1 if something is wrong.
"""

from __future__ import annotations

import argparse
import struct
import sys
import tempfile
import zipfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from email.parser import BytesParser
from pathlib import Path

from elftools.elf.elffile import ELFFile
from trove_classifiers import classifiers

PACKED_LIMIT, UNPACKED_LIMIT = 50e6, 130e6
#: Libraries that every system has, and the OpenMP runtime, which the wheel brings.
LIBRARIES = {
    *("ld-linux-aarch64.so.1", "ld-linux-x86-64.so.2", "libc.so.6", "libdl.so.2", "libm.so.6"),
    *("libpthread.so.0", "librt.so.1", "libgcc_s.so.1", "libgomp.so.1", "libstdc++.so.6"),
}
REQUIRED_FILES = (
    "gnnsparse/py.typed", "gnnsparse/_native.pyi", "gnnsparse/libgomp.so.1",
    "gnnsparse/_include/kernels/edges/edge_rows.cuh",
)  # fmt: skip
MACHINE_CODE, PTX = "machine code", "PTX"


@dataclass(frozen=True)
class DeviceCode:
    """The code of one compilation unit for one architecture."""

    kind: str
    architecture: int
    nbytes: int
    compressed: bool


def device_units(section: bytes) -> Iterator[list[DeviceCode]]:
    """Read a section .nv_fatbin: for each compilation unit, a header and the code for each architecture."""
    magic, header, kinds = 0xBA55ED50, struct.Struct("<IHHQ"), {1: PTX, 2: MACHINE_CODE}
    position = 0
    while position + header.size <= len(section):
        found, _, header_size, size = header.unpack_from(section, position)
        if found != magic:  # padding between units
            position += 8
            continue
        position, end = position + header_size, position + header_size + size
        codes = []
        while position < end:
            kind, entry_header, nbytes, compressed = struct.unpack_from("<H2xIQI", section, position)
            (architecture,) = struct.unpack_from("<I", section, position + 28)
            codes.append(DeviceCode(kinds.get(kind, f"kind {kind}"), architecture, nbytes, compressed > 0))
            position += entry_header + nbytes
        yield codes


def expected_codes(architectures: list[str]) -> Counter[tuple[str, int]]:
    """Return what a unit should have: machine code for each one, and PTX for the newest without a letter."""
    numbers = [int(name.rstrip("af")) for name in architectures]
    plain = [int(name) for name in architectures if name.isdigit()]
    newest = [(PTX, max(plain))] if plain else []
    return Counter([(MACHINE_CODE, number) for number in numbers] + newest)


def module_problems(path: Path, architectures: list[str]) -> Iterator[str]:
    with path.open("rb") as file:
        elf = ELFFile(file)
        dynamic = list(elf.get_section_by_name(".dynamic").iter_tags())
        for tag in dynamic:
            if tag.entry.d_tag == "DT_NEEDED" and tag.needed not in LIBRARIES:
                yield f"{path.name} needs {tag.needed}; accepted: {', '.join(sorted(LIBRARIES))}"
        for section in elf.iter_sections():
            if section.name.startswith((".debug", ".symtab", ".nv_debug")):
                yield f"{path.name} has the section {section.name}"
        section = elf.get_section_by_name(".nv_fatbin")
        units = list(device_units(section.data())) if section else []
    if bool(units) != bool(architectures):
        yield f"{path.name} has {len(units)} units of GPU code; the architectures are {architectures}"
    wanted = expected_codes(architectures)
    for number, unit in enumerate(units):
        if (found := Counter((code.kind, code.architecture) for code in unit)) != wanted:
            yield f"unit {number} of {path.name} has {dict(found)}; accepted: {dict(wanted)}"
        if not all(code.compressed for code in unit):
            yield f"unit {number} of {path.name} is not compressed"
    sizes: Counter[tuple[str, int]] = Counter()
    for code in (code for unit in units for code in unit):
        sizes[code.kind, code.architecture] += code.nbytes
    for (kind, architecture), nbytes in sizes.items():
        print(f"  {kind} for {architecture}: {nbytes / 1e6:.1f} MB in {len(units)} units")


def wheel_problems(path: Path, architectures: list[str]) -> Iterator[str]:
    if "manylinux" not in path.name:
        yield f"{path.name} has no manylinux tag"
    with zipfile.ZipFile(path) as wheel, tempfile.TemporaryDirectory() as folder:
        members = wheel.infolist()
        names = {member.filename for member in members}
        packed, unpacked = path.stat().st_size, sum(member.file_size for member in members)
        print(f"{path.name}: {packed / 1e6:.1f} MB, {unpacked / 1e6:.1f} MB unpacked, {len(names)} files")
        for what, size, limit in (("", packed, PACKED_LIMIT), (" unpacked", unpacked, UNPACKED_LIMIT)):
            if size > limit:
                yield f"{path.name} has {size / 1e6:.1f} MB{what}; accepted: {limit / 1e6:.0f} MB"
        yield from (f"{path.name} lacks {name}" for name in REQUIRED_FILES if name not in names)
        info = path.name.split("-")[1]
        tops = {f"gnnsparse-{info}.dist-info", "gnnsparse", "gnnsparse_cli"}
        yield from (f"{path.name} installs {name}" for name in names if name.split("/")[0] not in tops)
        metadata = BytesParser().parsebytes(wheel.read(f"gnnsparse-{info}.dist-info/METADATA"))
        for classifier in metadata.get_all("Classifier", []):
            if classifier not in classifiers:
                yield f"{path.name} has the unknown classifier {classifier}"
        modules = [name for name in names if name.startswith("gnnsparse/_native.") and name.endswith(".so")]
        if len(modules) != 1:
            yield f"{path.name} has {len(modules)} native modules; accepted: one"
        for name in modules:
            yield from module_problems(Path(wheel.extract(name, folder)), architectures)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", type=Path, nargs="+", metavar="FILE")
    parser.add_argument("--architectures", default="", help="those of the GPU code; empty: there is none")
    options = parser.parse_args()
    architectures = [name for name in options.architectures.split(";") if name]
    problems = []
    for file in options.files:
        check = wheel_problems if file.suffix == ".whl" else module_problems
        problems += check(file, architectures)
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
