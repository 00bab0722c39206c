"""Times training steps on 1 to N GPUs of one host.

    python -m benchmarks.scaling --gpus 1 2 --out benchmarks/results/scaling.json
    python -m benchmarks.scaling --gpus 1 2 --models gcn --ways halo gather features
    python -m benchmarks.scaling --gpus 1 2 --models gcn --graphs products_like --hidden 1536 --steps 5

Models: a GCN (5 layers of 128 features), an AGNN (4 of 32), a graph Transformer (2 blocks of 128, 4 heads),
which train on the whole graph, and GraphSAGE (3 layers of 256) on sampled neighbours (fan-outs 15, 10, 5;
1,024 nodes on each GPU). All train by `gnnsparse.train.fit`, which train.py calls, with Adam and without
dropout, from the same weights on any number of GPUs. "ms" is the median time of a step on the slowest rank,
by CUDA events. Where steps can be captured in CUDA graphs, "captured_ms" is the same for these, and
"captured_loss_difference" the largest relative difference of their losses from those of steps that are
launched one by one: 0 on the whole graph, and rounding on samples, whose arrays are padded then.

"unhidden_ms" is the part of a step in which a rank's computations wait for other ranks' data, on the rank
that waits most: CUDA events on the stream of the computations, before and after it is made to wait. What
travels behind a product takes none of it; waiting for a rank that is late counts. It is measured in the
second of two equal runs without CUDA graphs, whose losses must have equal bits. "predicted_ms" is what
`gnnsparse plan-cluster` estimates.

"ready_seconds" is from the start of a case, with the graph in memory, to its second step: "connect_seconds"
for the ranks to connect, in the first case alone, "prepare_seconds" for shards, operands, features and the
model, and the first step. With "cache_hit" shards came from the cache: an earlier case's, or --folder's.

A case that does not fit into a GPU's memory has "error" in place of times, as any that fails.

With --profile, "profile" has the milliseconds and calls of a step on rank 0, of all kernels and of the 15
that take the most time, by torch.profiler in a run of its own.

Cases run in the order of their importance, and the results are written after each. With --budget, a case
that probably would not end in time is left out, and so are all after it.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import math
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.scaling_ranks import JobError, Ranks
from benchmarks.scaling_steps import (
    BATCH,
    FEATURES,
    SIZES,
    WARMUP,
    Case,
    captured,
    environment,
    full_graph,
    sampled,
    store_graph,
)
from gnnsparse.distributed.cost import WAYS
from gnnsparse.distributed.partition import PARTITIONS
from gnnsparse.runtime.environment import write_json

SAMPLED = "graphsage"
#: Seconds after which a case that has not ended hangs.
_MOST_SECONDS = 300.0
#: The same for its steps in CUDA graphs, for which everything is prepared.
_CAPTURE_SECONDS = 60.0
PRECISIONS = ("fp16", "fp32", "bf16", "tf32")


def cases_of(options: argparse.Namespace) -> Iterator[Case]:
    """Yield the cases, the most important ones first."""
    for precision, model, graph in itertools.product(options.precisions, options.models, options.graphs):
        for way in ("auto",) if model == SAMPLED else options.ways:
            yield Case(graph, model, precision, way, options.parts, options.hidden)


def merged(found: list[dict[str, Any]], one: dict[str, Any] | None) -> dict[str, Any]:
    """Make the row of a case of what its ranks have found.

    Args:
        found: for each rank.
        one: the row of one GPU; None: there is none.
    """
    row = dict(found[0])
    slowest = ("connect_seconds", "prepare_seconds", "ready_seconds")
    for name in ("ms", "again_ms", "unhidden_ms", "captured_ms", *slowest):
        if name in row:
            row[name] = max(rank[name] for rank in found)
    for name in ("unhidden_ms", "peak_bytes", "captured_peak_bytes", "run_peak_bytes", "used_bytes"):
        if name in row:
            row[f"{name}_by_rank"] = [rank[name] for rank in found]
    if "captured_loss_difference" in row:
        row["captured_loss_difference"] = max(rank["captured_loss_difference"] for rank in found)
    # All ranks compute the loss of all; it may not differ in a bit.
    row["bitwise_equal"] = all(r["bitwise_equal"] and r["losses"] == row["losses"] for r in found)
    row["cache_hit"] = all(rank["cache_hit"] for rank in found)
    row["last_loss"], row["losses"] = row["losses"][-1], row["losses"][:3]
    if "steps_of_epoch" in row:
        row["epoch_ms"] = row["steps_of_epoch"] * best_ms(row)
    if one is not None:
        row |= compared(row, one)
    if "predicted_ms" in row:
        row["predicted_ratio"] = row["predicted_ms"] / best_ms(row)
    return row


def best_ms(row: dict[str, Any]) -> float:
    """Return the time of a step as train.py makes it: captured if it can be."""
    return row.get("captured_ms", row["ms"])


def compared(row: dict[str, Any], one: dict[str, Any]) -> dict[str, Any]:
    """Compare a row with that of one GPU."""
    found: dict[str, Any] = {}
    if "epoch_ms" in row:
        found["speedup"] = one["epoch_ms"] / row["epoch_ms"]
    else:
        found["speedup"] = best_ms(one) / best_ms(row)
        found["speedup_launched"] = one["ms"] / row["ms"]
        found["loss_difference"] = largest_difference(row["losses"], one["losses"])
    if row["peak_bytes"] is not None:
        found["memory_ratio"] = max(row["peak_bytes_by_rank"]) / one["peak_bytes"]
    return found


def largest_difference(losses: list[float], others: list[float]) -> float:
    """Return the largest relative difference of two runs' losses."""
    return max(abs(a - b) / max(abs(b), 1e-12) for a, b in zip(losses, others, strict=True))


def line_of(row: dict[str, Any]) -> str:
    name = "{graph:14s} {model:18s} {precision:5s} {way_asked:9s} {gpus} GPUs".format(**row)
    if "error" in row:
        return f"{name} {row['error']}"
    parts = [f"{row['ms']:8.2f} ms"]
    if "captured_ms" in row:
        off = row.get("captured_loss_difference", 0.0)
        parts.append(f"captured {row['captured_ms']:.2f}" + (f" (losses differ by {off:.1e})" if off else ""))
    parts.append(f"unhidden {row['unhidden_ms']:.2f}")
    parts.append(f"ready in {row['ready_seconds']:.2f} s{', cached' if row['cache_hit'] else ''}")
    if "speedup" in row:
        parts.append(f"{row['speedup']:.2f}x")
    if row["peak_bytes"] is not None:
        parts.append(f"{max(row['peak_bytes_by_rank']) / 1e9:.2f} GB")
    if "predicted_ms" in row:
        parts.append(f"predicted {row['predicted_ms']:.2f}")
    parts.append(f"loss {row['losses'][0]:.4f}, {'equal' if row['bitwise_equal'] else 'UNEQUAL'} bits")
    return f"{name} {', '.join(parts)} ({row['seconds']:.0f} s)"


class _Benchmark:
    """Runs cases and keeps their rows."""

    def __init__(self, options: argparse.Namespace, folder: Path, ranks: Ranks) -> None:
        self._options, self._folder, self._ranks = options, folder, ranks
        self._start = time.monotonic()
        self.content: dict[str, Any] = {"scale": options.scale, "steps": options.steps, "left_out": []}
        self.rows: list[dict[str, Any]] = []

    def write(self) -> None:
        if self._options.out is not None:
            seconds = time.monotonic() - self._start
            write_json(self._options.out, {**self.content, "seconds": seconds, "rows": self.rows})

    def _fits(self, graph: str) -> bool:
        """Return whether a case of a graph probably ends in time: as the longest one before."""
        of_graph = [row["seconds"] for row in self.rows if row["graph"] == graph]
        others = [1.5 * row["seconds"] for row in self.rows]
        expected = max(of_graph or others or [0.0])
        return time.monotonic() - self._start + expected <= self._options.budget

    def run(self) -> None:
        self.content |= self._ranks.run(1, environment)[0]
        left = [(case, gpus) for case in cases_of(self._options) for gpus in self._options.gpus]
        while True:
            self.content["left_out"] = [f"{case} on {gpus}" for case, gpus in left]
            self.write()
            if not left or not self._fits(left[0][0].graph):
                break
            self._case(*left.pop(0))

    def _case(self, case: Case, gpus: int) -> None:
        options, start = self._options, time.monotonic()
        about = {
            "graph": case.graph, "model": case.model, "precision": case.precision, "way_asked": case.way,
            "gpus": gpus, "hidden": case.sizes["hidden_channels"],
        }  # fmt: skip
        try:
            stored = self._ranks.run(1, store_graph, self._folder, case.graph, options.scale)[0]
            job: Callable[..., Any] = full_graph
            if case.model == SAMPLED:
                job = functools.partial(sampled, batch=options.batch)
            job = functools.partial(job, profile=options.profile)
            limit = min(_MOST_SECONDS, max(options.budget - (start - self._start), 30.0))
            arguments = self._folder, case, options.scale, options.steps
            found = self._ranks.run(gpus, job, *arguments, limit=limit)
            if found[0]["capture"] == "off" and options.capture == "auto":
                self._capture(gpus, found)
            row = about | merged(found, self._one(about)) | {"generate_seconds": stored}
        except JobError as error:
            row = about | {"error": str(error)}
        row["seconds"] = time.monotonic() - start
        self.rows.append(row)
        print(line_of(row), flush=True)

    def _capture(self, gpus: int, found: list[dict[str, Any]]) -> None:
        """Add what the same steps take in CUDA graphs to what each rank has found."""
        try:
            replayed = self._ranks.run(gpus, captured, limit=_CAPTURE_SECONDS)
        except JobError as error:
            for rank in found:
                rank["capture"] = str(error)
            return
        for rank, more in zip(found, replayed, strict=True):
            losses = more.pop("captured_losses", None)
            rank |= more
            if losses is not None:
                rank["captured_loss_difference"] = largest_difference(losses, rank["losses"])

    def _one(self, about: dict[str, Any]) -> dict[str, Any] | None:
        """Return the row of the same case on one GPU."""
        wanted = {**about, "gpus": 1}
        for row in self.rows:
            if all(row[name] == value for name, value in wanted.items()) and "error" not in row:
                return row
        return None


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gpus", type=int, nargs="+", default=[1, 2], help="numbers of devices")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--graphs", nargs="+", choices=tuple(FEATURES), default=list(FEATURES))
    parser.add_argument("--models", nargs="+", choices=tuple(SIZES), default=list(SIZES))
    parser.add_argument("--hidden", type=int, help="features of hidden layers; default: those of each model")
    parser.add_argument("--precisions", nargs="+", choices=PRECISIONS, default=["fp16", "fp32"])
    parser.add_argument("--ways", nargs="+", choices=("auto", *WAYS), default=["auto"])
    parser.add_argument("--parts", choices=PARTITIONS, default="auto")
    parser.add_argument("--capture", choices=("auto", "off"), default="auto", help="CUDA graphs")
    parser.add_argument("--profile", action="store_true", help="break a step down by kernels")
    parser.add_argument("--scale", type=float, default=1.0, help="factor of the graphs' nodes and edges")
    parser.add_argument("--steps", type=int, default=24, help="steps at least; epochs of samples are whole")
    parser.add_argument("--batch", type=int, default=BATCH, help="nodes of a step on sampled neighbours")
    parser.add_argument("--budget", type=float, default=math.inf, help="seconds")
    parser.add_argument("--folder", type=Path, help="where graphs and their parts are kept; default: nowhere")
    parser.add_argument("--out", type=Path)
    return parser


def main(arguments: list[str] | None = None) -> None:
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.steps <= WARMUP:
        parser.error(f"--steps: got {options.steps}; accepted: more than {WARMUP}")
    if min(options.gpus) < 1:
        parser.error(f"--gpus: got {min(options.gpus)}; accepted: 1 or more")
    with tempfile.TemporaryDirectory() as made:
        folder = options.folder or Path(made)
        folder.mkdir(parents=True, exist_ok=True)
        ranks = Ranks(options.gpus, options.device)
        try:
            _Benchmark(options, folder, ranks).run()
        finally:
            ranks.close()


if __name__ == "__main__":
    main()
