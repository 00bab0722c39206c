"""The extras of the installed package keep the torch that is there and compile nothing.

Run with the Python of an environment that has the package, it asks pip what each extra would install.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path

#: What users install; the others are for developers.
EXTRAS = ("bench", "data", "dgl", "hub", "metis", "train", "transformers")
#: Packages that come as sources: Python alone, without a compiler.
PURE_SOURCES = {"antlr4-python3-runtime"}
#: torch, what it brings, and packages that are compiled for one torch.
OF_TORCH = re.compile(
    r"torch|triton|nvidia-.*|torch-(scatter|sparse|cluster|spline-conv)|torchvision|torchaudio|pyg-lib|dgl"
)


def installed_by(extra: str) -> list[tuple[str, str, str]]:
    """Returns (name, version, file) of what pip would install for the extra."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        wanted = f"gnnsparse[{extra}]=={metadata.version('gnnsparse')}"
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run"]
        subprocess.run([*pip, "--report", str(report), wanted], check=True)
        found = json.loads(report.read_text())["install"]
    items = ((item["metadata"], item["download_info"]["url"]) for item in found)
    return [(re.sub(r"[-_.]+", "-", data["name"]).lower(), data["version"], url) for data, url in items]


def main() -> None:
    provided = set(metadata.metadata("gnnsparse").get_all("Provides-Extra") or [])
    assert provided >= set(EXTRAS), provided
    for extra in EXTRAS:
        found = installed_by(extra)
        replaced = [f"{name} {version}" for name, version, _ in found if OF_TORCH.fullmatch(name)]
        assert not replaced, f"gnnsparse[{extra}] replaces torch {metadata.version('torch')}: {replaced}"
        sources = {name for name, _, url in found if not url.endswith(".whl")}
        assert sources <= PURE_SOURCES, f"gnnsparse[{extra}] compiles {sources - PURE_SOURCES}"
        print(f"gnnsparse[{extra}] adds {len(found)} packages beside torch {metadata.version('torch')}")


if __name__ == "__main__":
    main()
