"""Compares all row orders on matrices in files: what kernels gather, and how unlike neighbouring rows are.

python -m benchmarks.row_orders FILE [FILE ...] [--methods none degree jaccard ...] [--threads N] [--out FILE]

"columns" are the distinct columns of groups of 8, 16 and 32 rows, "tiles" is the share of nonzeros in 8 x 16
tiles (Tiled-CSR's utilisation), and "path" is RSH-SpMM's objective, the mean of 1 - weighted Jaccard
similarity of neighbouring rows. The seconds are those of the reordering alone. Reorderings that need a square
matrix or a package that is missing are left out.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from gnnsparse.data import load_matrix
from gnnsparse.preprocess.reorder import METHODS, REORDERINGS, reorder
from gnnsparse.runtime.environment import describe_environment, write_json
from gnnsparse.sparse.graph import SparseGraph

#: All stages of the Jaccard order off: what is reported is the objective of the given order.
_OFF = {"tree": False, "two_opt": False, "isolation": False}


def path_length(graph: SparseGraph, order: torch.Tensor | None) -> float:
    """The sum of the distances of neighbouring rows in an order; None: the graph's own."""
    csr = graph.csr if order is None else graph.csr.permute_rows(order)[0]
    found = reorder(replace(graph, csr=csr, values=None, nnz_index_of_edge=None), "jaccard", **_OFF)
    return float(found.details.get("given", 0.0))


def measure(graph: SparseGraph, method: str) -> dict[str, Any]:
    found = reorder(graph, method)
    columns = {height: graph.csr.count_columns(height, found.order) for height in (8, 16, 32)}
    tiles = int(((columns[8] + 15) // 16).sum())
    return {
        "method": method,
        "seconds": found.seconds,
        "columns": {height: int(counts.sum()) for height, counts in columns.items()},
        "tiles": graph.nnz / max(128 * tiles, 1),
        "path": path_length(graph, found.order) / max(graph.num_rows - 1, 1),
        "details": found.details,
    }


def takes(graph: SparseGraph, method: str) -> bool:
    if method == "none":
        return True
    entry = METHODS[method]
    return entry.missing_package is None and not (entry.square and graph.num_rows != graph.num_cols)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--methods", nargs="+", default=list(REORDERINGS), choices=REORDERINGS)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    results = []
    for file in args.files:
        graph = load_matrix(file)
        print(f"{file.name}: {graph.num_rows} x {graph.num_cols}, {graph.nnz} nonzeros")
        print(f"  {'order':12} {'seconds':>8} {'columns 8':>10} {'16':>9} {'32':>9} {'tiles':>7} {'path':>7}")
        for method in (method for method in args.methods if takes(graph, method)):
            row = measure(graph, method)
            counts = " ".join(f"{count:9}" for count in row["columns"].values())
            chosen = row["details"].get("chosen", "")
            shares = f"{row['tiles']:7.3f} {row['path']:7.4f}"
            print(f"  {method:12} {row['seconds']:8.2f}  {counts} {shares} {chosen}", flush=True)
            results.append({"file": file.name, **row})
    if args.out is not None:
        write_json(args.out, {"environment": describe_environment("cpu"), "rows": results})


if __name__ == "__main__":
    main()
