"""Measures the formats of the five papers beside `auto` and cuSPARSE, and of pruned weights beside cuBLAS.

    python benchmarks/presets.py graphs --out FILE.json
    python benchmarks/presets.py dlmc --data FOLDER --out FILE.json
    python benchmarks/presets.py sparsity --data FOLDER --out FILE.json
    python benchmarks/presets.py policies --out FILE.json

These are option sets of `gnnsparse bench kernels --format`. graphs: the five large generated graphs, N = 128.
dlmc: every matrix of FOLDER/dlmc, N = 128. sparsity: those of DLMC with a sparsity of 0.7 to 0.98, N = 512,
beside cuBLAS's product with all zeros. policies: each switch of the papers' policies changed, on two of the
graphs. Each takes up to four minutes on an H200.

The file is written after each matrix; a run with the same file goes on with the matrices that it lacks. It
must be of the same machine, versions and options. The exit status is that of `gnnsparse bench kernels`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from gnnsparse.bench.arguments import MatrixSpec, device_option, parse_matrix, unique_names
from gnnsparse.bench.kernels import Settings
from gnnsparse.bench.kernels_command import run_kernels
from gnnsparse.data import GENERATED_GRAPHS
from papers.speed import PAPER_FORMATS

#: Sparsities at which the dense product and the sparse one meet.
SPARSITIES = ("0.7", "0.8", "0.9", "0.95", "0.98")
#: What `policies` measures: graphs that a switch is felt on, and formats whose kernels have switches.
POLICY_GRAPHS, POLICY_FORMATS = ("arxiv_like", "amazon_like"), ("me-bcrs", "cvse", "tiled-csr")
PRECISIONS = ("fp16", "bf16", "tf32")


def matrices_of(subject: str, data: Path | None, scale: float) -> list[MatrixSpec]:
    if subject in ("graphs", "policies"):
        names = GENERATED_GRAPHS if subject == "graphs" else POLICY_GRAPHS
        texts = (f"{name}:scale={scale}" if scale < 1 else name for name in names)
        return [spec for text in texts for spec in parse_matrix(text)]
    if data is None:
        raise ValueError(f"--data: {subject} needs the folder that has a folder dlmc")
    found = parse_matrix(str(data / "dlmc"))
    return [spec for spec in found if subject == "dlmc" or spec.name.split("/")[-2] in SPARSITIES]


def settings_of(options: argparse.Namespace) -> Settings:
    cuda, policies = options.device == "cuda", options.subject == "policies"
    peers = ("cusparse-best", "cusparse") if cuda else ("sparse_mm",)
    if cuda and options.subject == "sparsity":
        peers = (*peers, "cublas")
    return Settings(
        matrices=tuple(unique_names(matrices_of(options.subject, options.data, options.scale))),
        device=options.device,
        precisions=("fp16",) if policies else tuple(options.precision),
        widths=(512 if options.subject == "sparsity" else 128,),
        values=("random",),  # stored values, which every format has
        kernels=("auto",),
        peers=peers,
        repeats=options.repeats,
        timing="graph" if cuda else "events",
        formats=POLICY_FORMATS if policies else tuple(options.formats),
        ablate=policies,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("subject", choices=("graphs", "dlmc", "sparsity", "policies"))
    parser.add_argument("--data", type=Path, metavar="FOLDER")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE.json")
    parser.add_argument("--precision", nargs="+", choices=PRECISIONS, default=["fp16", "tf32"])
    parser.add_argument("--formats", nargs="+", choices=tuple(PAPER_FORMATS), default=list(PAPER_FORMATS))
    parser.add_argument("--device", type=device_option, default="auto")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--scale", type=float, default=1.0, help="of generated graphs")
    options = parser.parse_args(arguments)
    try:
        return run_kernels(settings_of(options), options.out, resume=True)
    except ValueError as error:
        parser.error(str(error))


if __name__ == "__main__":
    sys.exit(main())
