"""Times epochs of a GCN on a CPU: train.py, and the same model in PyG, alone and beside a busy process.

    python -m benchmarks.cpu_epochs --root cora=DIR [--root pubmed=DIR ...] [--out FILE.json]

An epoch is a training step on the whole graph and a validation, of two layers with 16 features between and
dropout. PyG's layers keep the normalised weights (`cached=True`); its loop is that of PyG's example. Each run
is a process of its own, with two threads. The busy process computes without an end on one core.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.script import ROOT, record, roots_of, run_train, script_parser

EPOCHS, THREADS = 200, 2
#: Who trains, and the option of train.py that tells them apart; None: PyG.
TRAINERS = {"gnnsparse": "auto", "gnnsparse, dense features": "off", "pyg": None}
_BUSY = "while True: pass"


def train(dataset: str, root: Path, sparse_features: str) -> dict[str, float]:
    """Run train.py, and return the milliseconds of an epoch and the score."""
    result = run_train(
        "model=gcn", f"dataset={dataset}", f"dataset.root={root}", "device=cpu",
        f"trainer.max_epochs={EPOCHS}", f"trainer.sparse_features={sparse_features}",
    )  # fmt: skip
    return {"milliseconds": result["epoch_milliseconds"], "test": result["metrics"]["test"]["accuracy"]}


def train_pyg(dataset: str, root: Path) -> dict[str, float]:
    """Train PyG's GCN in this process, and return the same."""
    import torch
    import torch.nn.functional as F  # noqa: N812
    from torch_geometric.nn import GCNConv

    from gnnsparse.data import load_dataset

    data = load_dataset(dataset, root=root)
    csr = data.graph.csr
    edges, x, y = torch.stack([csr.indices.long(), csr.row_index()]), data.x, data.y
    torch.manual_seed(0)
    convs = torch.nn.ModuleList(
        [GCNConv(x.shape[1], 16, cached=True), GCNConv(16, data.num_classes, cached=True)]
    )
    groups: list[dict[str, Any]] = [
        {"params": convs[0].parameters(), "weight_decay": 5e-4},
        {"params": convs[1].parameters()},
    ]
    optimizer = torch.optim.Adam(groups, lr=0.01)

    def outputs() -> torch.Tensor:
        hidden = convs[0](F.dropout(x, training=convs.training), edges).relu()
        return convs[1](F.dropout(hidden, training=convs.training), edges)

    times, best = [], (0.0, 0.0)
    for _ in range(EPOCHS):
        start = time.perf_counter()
        convs.train()
        optimizer.zero_grad()
        F.cross_entropy(outputs()[data.train_mask], y[data.train_mask]).backward()
        optimizer.step()
        convs.eval()
        with torch.no_grad():
            right = (outputs().argmax(1) == y).float()
        scores = float(right[data.val_mask].mean()), float(right[data.test_mask].mean())
        best = max(best, scores, key=lambda pair: pair[0])
        times.append(time.perf_counter() - start)
    return {"milliseconds": 1e3 * statistics.median(times), "test": best[1]}


def run(trainer: str, dataset: str, root: Path) -> dict[str, float]:
    """Train in another process."""
    choice = TRAINERS[trainer]
    if choice is not None:
        return train(dataset, root, choice)
    command = [sys.executable, "-m", "benchmarks.cpu_epochs", "--pyg", dataset, "--root", f"{dataset}={root}"]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    return json.loads(done.stdout)


def rows(roots: dict[str, Path]) -> Iterator[dict[str, Any]]:
    for busy in (0, 1):
        others = [subprocess.Popen([sys.executable, "-c", _BUSY]) for _ in range(busy)]
        try:
            for dataset, root in roots.items():
                for trainer in TRAINERS:
                    found = run(trainer, dataset, root)
                    yield {"dataset": dataset, "trainer": trainer, "busy": busy, **found}
        finally:
            for other in others:
                other.kill()


def main() -> None:
    parser = script_parser(__doc__)
    parser.add_argument("--root", action="append", required=True, help="a data set and its folder: cora=DIR")
    parser.add_argument("--pyg", help=argparse.SUPPRESS)
    options = parser.parse_args()
    roots = roots_of(options.root)
    if options.pyg:
        print(json.dumps(train_pyg(options.pyg, roots[options.pyg])))
        return
    os.environ["OMP_NUM_THREADS"] = str(THREADS)
    record(rows(roots), options.out, "cpu", epochs=EPOCHS)


if __name__ == "__main__":
    main()
