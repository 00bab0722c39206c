"""Times graphs that need not fit into memory: building, opening, sampling and planning, and their memory.

    python -m benchmarks.large_graph --folder DIR [--scale S] [--memory GB] [--name NAME] [--out FILE.json]

Each step is a process of its own:

- generate makes the graph from the generator;
- open checks it and maps it;
- plan counts halos for 1 to 1,024 GPUs;
- build makes it once more, from a .npy file of its edges, which is written before;
- memory, with --in-memory, makes it of the same file by SparseGraph.from_edge_index;
- sample trains GraphSAGE for some steps on samples, with features in float16 in a memory-mapped file.

For each: seconds of wall time and of the process, the growth of its anonymous memory (RssAnon, seen every 2
ms), which leaves out pages of files, and the most disk that it took beside the files before it. Files that
were just written are still in the memory of the system, from which they are read.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.script import record, script_parser
from gnnsparse import SparseGraph
from gnnsparse.data import build_graph, edges_like, generate_graph, graph_info, open_graph
from gnnsparse.distributed.estimate import StreamedCounts
from gnnsparse.nn import SAGEConv
from gnnsparse.sampling import FeatureStore, NeighborSampler

FEATURES, HIDDEN, CLASSES = 128, 256, 172
FANOUTS, BATCH, STEPS = (15, 10, 5), 1024, 10
GPUS = (1, 2, 4, 8, 64, 1024)
#: Rows of features that are written at a time.
_ROWS = 1 << 18


def anonymous() -> int:
    status = Path("/proc/self/status").read_text()
    found = re.search(r"RssAnon:\s+(\d+)", status)
    assert found is not None
    return 1024 * int(found[1])


def disk_of(folder: Path) -> int:
    """The bytes that the files of a folder take, while others come and go."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                total += os.stat(os.path.join(parent, name)).st_blocks * 512
    return total


@contextlib.contextmanager
def measured(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield what is filled with time, memory and disk of the `with` block."""
    found: dict[str, Any] = {}
    before, disk, most, done = anonymous(), disk_of(folder), [0, 0], threading.Event()

    def watch() -> None:
        rounds = 0
        while not done.wait(0.002):
            most[0] = max(most[0], anonymous() - before)
            if rounds % 50 == 0:
                most[1] = max(most[1], disk_of(folder) - disk)
            rounds += 1

    watcher = threading.Thread(target=watch)
    watcher.start()
    start, used = time.perf_counter(), time.process_time()
    try:
        yield found
    finally:
        found["seconds"] = round(time.perf_counter() - start, 2)
        found["cpu_seconds"] = round(time.process_time() - used, 2)
        done.set()
        watcher.join()
        found["memory_mb"] = round(most[0] / 1e6, 1)
        found["disk_mb"] = round(max(most[1], disk_of(folder) - disk) / 1e6, 1)


def write_edges(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    stream = edges_like(options.name, options.scale)
    count = sum(chunk.shape[1] for chunk in stream)
    edges, at = np.lib.format.open_memmap(folder / "edges.npy", "w+", np.int32, (2, count)), 0
    for chunk in stream:
        edges[:, at : at + chunk.shape[1]] = chunk.numpy()
        at += chunk.shape[1]
    return {"edges": count}


def write_features(folder: Path, nodes: int) -> None:
    x = np.lib.format.open_memmap(folder / "x.npy", "w+", np.float16, (nodes, FEATURES))
    draw = np.random.default_rng(0)
    for first in range(0, nodes, _ROWS):
        x[first : first + _ROWS] = draw.standard_normal(x[first : first + _ROWS].shape, np.float32)


def train(folder: Path) -> dict[str, Any]:
    """Train on samples; returns the milliseconds of their parts, and what was drawn."""
    graph = open_graph(folder / "generated")
    sampler = NeighborSampler(graph, FANOUTS, values="mean")
    store = FeatureStore(folder / "x.npy", "host")
    widths = (FEATURES, HIDDEN, HIDDEN, CLASSES)
    torch.manual_seed(0)
    layers = torch.nn.ModuleList(SAGEConv(a, b) for a, b in itertools.pairwise(widths))
    optimizer = torch.optim.Adam(layers.parameters())
    times, nodes, edges = np.zeros(3), 0, 0
    for step in range(STEPS):
        seeds = torch.randperm(graph.num_rows, generator=torch.Generator().manual_seed(step))[:BATCH]
        marks = [time.perf_counter()]
        sample = sampler.sample(seeds, step)
        marks.append(time.perf_counter())
        x = store.gather(sample.nodes).float()
        marks.append(time.perf_counter())
        for number, (layer, block) in enumerate(zip(layers, sample.blocks, strict=True)):
            x = layer((x, x[: len(block.targets)]), block.adj)
            x = x.relu() if number < len(layers) - 1 else x
        loss = torch.nn.functional.cross_entropy(x, seeds * CLASSES // graph.num_rows)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        marks.append(time.perf_counter())
        times += np.diff(marks)
        nodes, edges = nodes + len(sample.nodes), edges + sum(block.adj.nnz for block in sample.blocks)
    names = ("sample_ms", "gather_ms", "step_ms")
    parts = dict(zip(names, (1e3 * times / STEPS).round(1).tolist(), strict=True))
    return {**parts, "nodes": nodes // STEPS, "edges": edges // STEPS, "loss": round(loss.item(), 3)}


def plan(folder: Path) -> dict[str, Any]:
    counts = StreamedCounts(open_graph(folder / "generated").csr)
    gathers, looked, panels = counts.gathers(32)
    halos = {str(gpus): max(counts.facts(gpus).halo) for gpus in GPUS}
    return {"gathers": gathers, "panels": [looked, panels], "largest_halo": halos}


def run_step(options: argparse.Namespace) -> dict[str, Any]:
    """Measure one step in this process."""
    folder, memory, step = options.folder, int(options.memory * 1e9), options.step
    if step == "write":
        return write_edges(options, folder)
    if step == "sample":
        write_features(folder, graph_info(folder / "generated").num_nodes)
    with measured(folder) as found:
        if step == "generate":
            made = generate_graph(options.name, folder / "generated", options.scale, memory=memory)
            about: dict[str, Any] = {"nodes": made.num_nodes, "edges": made.num_edges, "nnz": made.nnz}
        elif step == "build":
            nodes = graph_info(folder / "generated").num_nodes
            edges = folder / "edges.npy"
            about = {"nnz": build_graph(edges, folder / "built", nodes, symmetric=True, memory=memory).nnz}
        elif step == "memory":
            nodes = graph_info(folder / "generated").num_nodes
            edges = np.load(folder / "edges.npy", mmap_mode="r")
            both = torch.from_numpy(np.concatenate([edges, edges[::-1]], axis=1))
            about = {"nnz": SparseGraph.from_edge_index(both, nodes).nnz}
        elif step == "open":
            about = {"nnz": open_graph(folder / "generated").nnz}
        else:
            about = train(folder) if step == "sample" else plan(folder)
    return {"name": step, **found, **about}


def run_steps(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    steps = ["generate", "open", "plan", "write", "build", "memory", "sample"]
    if not options.in_memory:
        steps.remove("memory")
    for step in steps:
        if step == "sample":  # the disk need not hold everything at once
            shutil.rmtree(options.folder / "built")
            (options.folder / "edges.npy").unlink()
        words = [
            "--folder", str(options.folder), "--name", options.name, "--scale", str(options.scale),
            "--memory", str(options.memory), "--step", step,
        ]  # fmt: skip
        command = [sys.executable, "-m", "benchmarks.large_graph", *words]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        if step != "write":
            yield json.loads(done.stdout)


def main() -> None:
    parser = script_parser(__doc__)
    parser.add_argument(
        "--folder", type=Path, required=True, metavar="DIR", help="a new folder for all files"
    )
    parser.add_argument("--name", default="papers100m_like")
    parser.add_argument("--scale", type=float, default=0.01)
    parser.add_argument("--memory", type=float, default=1.0, metavar="GB")
    parser.add_argument("--in-memory", action="store_true", help="make the graph in memory, too")
    parser.add_argument("--step", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.step:
        print(json.dumps(run_step(options)))
        return
    settings = {
        "graph": options.name, "scale": options.scale, "memory_gb": options.memory, "fanouts": list(FANOUTS),
        "batch_size": BATCH, "steps": STEPS, "features": FEATURES, "hidden": HIDDEN,
    }  # fmt: skip
    options.folder.mkdir()
    try:
        record(run_steps(options), options.out, "cpu", settings=settings)
    finally:
        shutil.rmtree(options.folder)


if __name__ == "__main__":
    main()
