"""Measures how much locality a reordering restores to a generated graph whose nodes have random ids.

python -m benchmarks.reorder [--graphs reddit_like products_like] [--scale 1] [--method community]
    [--threads N] [--out FILE]

Locality is the number of distinct columns in groups of 8 and of 32 rows. "natural" is that of the order of
the generated communities, "shuffled" that of random ids, and "found" that of the reordering. "back" is
(shuffled - found) / (shuffled - natural): 1 means as good as the natural order. The seconds are those of the
reordering alone.
"""

from __future__ import annotations

import argparse
import resource
from pathlib import Path
from typing import Any

import torch

from gnnsparse.data.generators import GENERATED_GRAPHS, graph_like
from gnnsparse.preprocess.reorder import REORDERINGS, reorder
from gnnsparse.runtime.environment import describe_environment, write_json


def measure(name: str, scale: float, method: str) -> dict[str, Any]:
    natural = reorder(graph_like(name, scale), "none").before
    graph = graph_like(name, scale, shuffled=True)
    found = reorder(graph, method)
    row: dict[str, Any] = {"graph": name, "scale": scale, "nodes": graph.num_rows, "nnz": graph.nnz}
    row |= {"method": method, "threads": torch.get_num_threads(), "seconds": found.seconds}
    for count in ("columns_8", "columns_32"):
        best, shuffled, now = (getattr(x, count) for x in (natural, found.before, found.after))
        row[count] = {"natural": best, "shuffled": shuffled, "found": now}
        row[count]["back"] = (shuffled - now) / max(shuffled - best, 1)
    row["peak_gb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument(
        "--graphs", nargs="+", default=["reddit_like", "products_like"], choices=GENERATED_GRAPHS
    )
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--method", default="community", choices=REORDERINGS[1:])
    parser.add_argument("--threads", type=int)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    rows = []
    for name in args.graphs:
        rows.append(measure(name, args.scale, args.method))
        print({k: round(v, 3) if isinstance(v, float) else v for k, v in rows[-1].items()}, flush=True)
    if args.out is not None:
        write_json(args.out, {"environment": describe_environment("cpu"), "rows": rows})


if __name__ == "__main__":
    main()
