"""Reads a GPU's counters for products that cuSPARSE at its best computes faster, of ours and of it.

    python -m benchmarks.counters --data DATA --out benchmarks/results/counters.json

The cases are those of issue 45. All of them run in one process below Nsight Compute (`ncu`), which reads
counters of one call after the usual measurement; a launch of `torch.cuda._sleep` stands between two calls.
Caches and clocks are left as they are. Where there is no `ncu`, or where it can't read counters, as under
gVisor, the file has times alone and "problem" says why.
"""

from __future__ import annotations

import argparse
import csv
import json
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.script import script_parser
from gnnsparse import SparseGraph
from gnnsparse.bench.arguments import MatrixSpec
from gnnsparse.bench.candidates import Candidate
from gnnsparse.bench.kernels import Bench, Settings
from gnnsparse.bench.session import Row
from gnnsparse.bench.workload import Reference, Verdict
from gnnsparse.runtime.environment import describe_environment, write_json

#: What is read of each launch, by the metrics of ncu.
METRICS = {
    "ns": "gpu__time_duration.sum",
    "dram_read": "dram__bytes_read.sum",
    "dram_written": "dram__bytes_write.sum",
    "l2_bytes": "lts__t_bytes.sum",
    "l2_hits_percent": "lts__t_sector_hit_rate.pct",
    "instructions": "smsp__inst_executed.sum",
    "issue_percent": "smsp__issue_active.avg.pct_of_peak_sustained_active",
    "sm_percent": "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    "warps_percent": "sm__warps_active.avg.pct_of_peak_sustained_active",
    "registers": "launch__registers_per_thread",
    "blocks": "launch__grid_size",
}
#: Why a warp waits: mean warps that do for each instruction that is issued.
STALL = "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio"
STALLS = (
    "long_scoreboard", "short_scoreboard", "wait", "barrier", "lg_throttle", "mio_throttle",
    "math_pipe_throttle", "not_selected", "no_instruction",
)  # fmt: skip
#: A part of the name of the kernel between two calls.
MARK = "spin_kernel"
#: The pruned matrix of 512 x 512 with 971 nonzeros.
PRUNED = "body_encoder_layer_0_self_attention_multihead_attention_q.smtx.gz"


class Hubs(MatrixSpec):
    """A graph with a few rows of very many neighbours, which are drawn at random."""

    def load(self, device: torch.device | str, nodes: int = 500_000, hubs: int = 16) -> SparseGraph:
        """Generate it: of equal neighbours one is left, some 110,000 of a hub, and up to 8 of other rows."""
        generator = torch.Generator(device).manual_seed(0)
        targets = torch.arange(nodes, dtype=torch.int64, device=device)
        targets = targets.repeat_interleave(torch.where(targets < hubs, nodes * 31 // 125, 8))
        sources = torch.randint(nodes, targets.shape, generator=generator, dtype=torch.int64, device=device)
        return SparseGraph.from_edge_index(torch.stack([sources, targets]), nodes)


def cases(options: argparse.Namespace) -> list[Settings]:
    """Return what to measure: products with stored weights."""
    graphs = [MatrixSpec(name, generator=name) for name in ("amazon_like", "dd_like")]
    pruned = options.data / "dlmc/transformer/l0_regularization/0.98" / PRUNED
    asked = (
        ((Hubs("hubs"),), "fp32", (128,)),
        (graphs, "fp32", (602, 1)),
        ((MatrixSpec(pruned.name, path=pruned),), "fp16", (512,)),
    )
    on_gpu = options.device == "cuda"
    common: dict[str, Any] = {
        "device": options.device, "values": ("random",), "kernels": tuple(options.kernels),
        "peers": ("cusparse-best",) if on_gpu else (), "repeats": options.repeats,
        "timing": "graph" if on_gpu else "events",
    }  # fmt: skip
    return [
        Settings(tuple(matrices), precisions=(precision,), widths=widths, **common)
        for matrices, precision, widths in asked
    ]


@dataclass
class CountedBench(Bench):
    """The benchmark of kernels, which calls each candidate once more where `ncu` reads counters."""

    def _measure(self, who: Candidate, reference: Reference, verdict: Verdict) -> Row:
        row = {**super()._measure(who, reference, verdict), "counted": True}
        if self.settings.device == "cuda":
            torch.cuda.profiler.start()
            who.call()
            torch.cuda._sleep(1000)
            torch.cuda.profiler.stop()
        return row


def measure(options: argparse.Namespace) -> None:
    """Measure all cases in this process, which `ncu` may have begun."""
    rows, skipped = list[Row](), list[Row]()
    for settings in cases(options):
        bench = CountedBench(settings, lambda line: print(line, flush=True))
        bench.run()
        rows += bench.rows
        skipped += bench.skipped
        content = {**describe_environment(options.device), "rows": rows, "skipped": skipped}
        write_json(options.out, content)  # after each, because the run may be cut off


def launches(text: str) -> list[list[Row]]:
    """Return the launches of each call with their counters, of the table that `ncu` wrote."""
    lines = [line for line in text.splitlines() if line.startswith('"')]
    found, call = list[list[Row]](), list[Row]()
    for row in list(csv.DictReader(lines))[1:]:  # the first one has the units
        if MARK in row["Kernel Name"]:
            found.append(call)
            call = []
            continue
        numbers = {key: float(row[name].replace(",", "")) for key, name in METRICS.items() if row.get(name)}
        stalls = {why: float(row[STALL.format(why)]) for why in STALLS if row.get(STALL.format(why))}
        call.append({"kernel": row["Kernel Name"][:160], **numbers, "stalls": stalls})
    return found


def run(options: argparse.Namespace) -> int:
    """Measure below `ncu`, and add what it read to the rows."""
    options.out.unlink(missing_ok=True)
    ncu, problem, texts, status = shutil.which("ncu"), "", list[str](), 0
    stalls = [STALL.format(why) for why in STALLS]
    # Where ncu has not all metrics it begins nothing: then without the stalls, and at last without it.
    tries = [[*METRICS.values(), *stalls], [*METRICS.values()]] if ncu and options.device == "cuda" else []
    for metrics in (*tries, []):
        with tempfile.TemporaryDirectory() as folder:
            log = Path(folder, "ncu.csv")
            below = [
                str(ncu), "--csv", "--page", "raw", "--print-units", "base", "--log-file", str(log),
                "--profile-from-start", "off", "--clock-control", "none", "--cache-control", "none",
                "--metrics", ",".join(metrics),
            ] if metrics else []  # fmt: skip
            here = [sys.executable, "-m", "benchmarks.counters", *options.given, "--here"]
            status = subprocess.run([*below, *here]).returncode
            texts.append(log.read_text() if log.exists() else "without ncu")
        if options.out.exists():
            break
    if not options.out.exists():
        return status or 1
    content = json.loads(options.out.read_text())
    # A kernel that the plan takes is not called again: its row is that of the plan.
    counted = [row for row in content["rows"] if row.pop("counted", False) and row["same_as"] is None]
    found = launches(texts[-1])
    if len(found) != len(counted):
        said = [line for line in "\n".join(texts).splitlines() if not line.startswith('"')]
        problem = f"{len(found)} of {len(counted)} calls have counters: {' '.join(said)[-500:]}"
        print(problem)
    for row, calls in zip(counted, found, strict=False):
        row["launches"] = calls
        print(f"{row['graph']}, {row['width']} columns, {row['kernel']} {row['variant']}: {row['ms']:.4f} ms")
        for one in calls:
            print("   ", {key: value for key, value in one.items() if key != "stalls"}, one["stalls"])
    write_json(options.out, {**content, "problem": problem})
    return status


def main(arguments: list[str] | None = None) -> int:
    parser = script_parser(__doc__, device="cuda")
    parser.add_argument("--data", type=Path, default=Path("../shared/data"), help="folder with dlmc")
    parser.add_argument("--kernels", nargs="+", default=["auto", "csr", "panel16", "panel32"])
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--here", action="store_true", help="measure in this process, without ncu")
    options = parser.parse_args(arguments)
    options.given = sys.argv[1:] if arguments is None else arguments
    if options.out is None:
        parser.error("--out is needed")
    if options.here:
        measure(options)
        return 0
    return run(options)


if __name__ == "__main__":
    sys.exit(main())
