"""Measures the formats of the five papers beside `auto` and cuSPARSE, and of pruned weights beside cuBLAS.

    python benchmarks/presets.py graphs --out FILE.json
    python benchmarks/presets.py dlmc --data FOLDER --out FILE.json
    python benchmarks/presets.py sparsity --data FOLDER --out FILE.json
    python benchmarks/presets.py policies --out FILE.json

graphs: the five large generated graphs, N = 128. dlmc: every matrix of FOLDER/dlmc, N = 128. sparsity: those
of DLMC with a sparsity of 0.7 to 0.98, N = 512, beside cuBLAS's product with all zeros. policies: what each
switch of FlashSparse's, SSpMM's and Tiled-CSR's kernels is worth, on two of the graphs. Each takes up to four
minutes on an H200. A format is measured in the first precision of --precision that it has.

The file is written after each matrix; a run with the same file goes on with the matrices that it lacks. It
must be of the same machine, versions and options. The exit status is 1 if a result of ours is wrong.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from gnnsparse.bench.kernels import Settings
from gnnsparse.bench.matrices import MatrixSpec, parse_matrix, unique_names
from gnnsparse.bench.options import device_option
from gnnsparse.bench.presets import PAPER_FORMATS, FormatCase, PresetBench, paper_formats
from gnnsparse.bench.report import add_ratios, as_json, print_report
from gnnsparse.bench.resume import go_on
from gnnsparse.data import GENERATED_GRAPHS
from gnnsparse.environment import write_json

#: Sparsities at which the dense product and the sparse one meet.
SPARSITIES = ("0.7", "0.8", "0.9", "0.95", "0.98")
PRECISIONS = ("fp16", "bf16", "tf32")
#: The cases of `policies`: a format, and the fields of its plan's policy that are changed.
POLICIES: dict[str, dict[str, Any]] = {
    "me-bcrs": {},
    "me-bcrs plain": {"x_load": "plain", "shuffle": False},
    "me-bcrs 16x1": {"swapped": False},
    "cvse": {},
    "cvse stage_a=none": {"stage_a": "none"},
    "cvse stage_a=single": {"stage_a": "single"},
    "cvse without shuffle": {"shuffle": False, "stage_x": True},
    "tiled-csr": {},
    "tiled-csr flat": {"grid": "flat"},
    "tiled-csr stage_a=none": {"stage_a": "none"},
}


def policy_cases() -> tuple[FormatCase, ...]:
    return tuple(
        FormatCase(
            label.split()[0], label, panel=16 if "16x1" in label else None, policy=policy, precision="fp16"
        )
        for label, policy in POLICIES.items()
    )


def matrices_of(subject: str, data: Path | None, scale: float) -> list[MatrixSpec]:
    if subject in ("graphs", "policies"):
        names = GENERATED_GRAPHS if subject == "graphs" else ("arxiv_like", "amazon_like")
        return [
            spec for name in names for spec in parse_matrix(f"{name}:scale={scale}" if scale < 1 else name)
        ]
    if data is None:
        raise ValueError(f"--data: {subject} needs the folder that has a folder dlmc")
    found = parse_matrix(str(data / "dlmc"))
    return [spec for spec in found if subject == "dlmc" or spec.name.split("/")[-2] in SPARSITIES]


def settings_of(
    options: argparse.Namespace, matrices: list[MatrixSpec], cases: tuple[FormatCase, ...]
) -> Settings:
    peers: Sequence[str] = ("cusparse-best", "cusparse") if options.device == "cuda" else ("sparse_mm",)
    if options.subject == "sparsity" and options.device == "cuda":
        peers = (*peers, "cublas")
    return Settings(
        matrices=tuple(unique_names(matrices)), device=options.device,
        ops=("spmm", "sddmm") if options.subject == "policies" else ("spmm",),
        precisions=tuple(dict.fromkeys(case.precision or "fp16" for case in cases)),
        widths=(512 if options.subject == "sparsity" else 128,),
        # Stored values, which every format has.
        values=("random",), kernels=("auto",), peers=tuple(peers), repeats=options.repeats,
        timing="graph" if options.device == "cuda" else "events",
    )  # fmt: skip


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
        policies = options.subject == "policies"
        cases = policy_cases() if policies else paper_formats(options.formats, options.precision)
        settings = settings_of(options, matrices_of(options.subject, options.data, options.scale), cases)
    except ValueError as error:
        parser.error(str(error))
    console, progress = Console(width=160), Console(stderr=True, soft_wrap=True)
    bench = PresetBench(settings, lambda line: progress.print(line, markup=False, highlight=False))
    bench.cases = cases
    try:
        done = go_on(bench, options.out)
    except ValueError as error:
        parser.error(str(error))
    for spec in settings.matrices:
        if spec.name in done:
            continue
        bench.run_matrix(spec)
        add_ratios(bench.rows, settings.device)
        write_json(options.out, as_json(bench))
    add_ratios(bench.rows, settings.device)
    print_report(bench, console)
    return 1 if any(row["ours"] and not row["ok"] for row in bench.rows) else 0


if __name__ == "__main__":
    sys.exit(main())
