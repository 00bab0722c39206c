"""How long `prepare` takes to build a graph, and to read it from the cache: at first and later in a process.

    python -m benchmarks.cache DATA/graphs/ogbl_ddi.npz --out benchmarks/results/cache_cpu.json

The graph is an npz with `indptr` and `indices`, and gets "gcn" weights. Each repeat is a process of its own.
Times are the least of all repeats, by the clock and of the process's CPU, since other work may share the
machine; the second adds up the threads that build. Parts of a hit are timed by themselves: the hash of
the graph, mapping or reading with checksums, and the checks of the structure, which are part of a hit only of
a file that was not stored here.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

import gnnsparse
from gnnsparse.runtime.cache_files import open_file
from gnnsparse.runtime.environment import describe_environment, write_json
from gnnsparse.runtime.hashing import fingerprint
from gnnsparse.sparse.saved import check_file

#: Hits after the first one, and builds, of a process.
HITS, BUILDS = 15, 5


def _timed(work: Callable[[], object], count: int) -> list[float]:
    """Return the least milliseconds by the clock and of the CPU."""
    found = []
    for _ in range(count):
        clock, cpu = time.perf_counter(), time.process_time()
        work()
        found.append((time.perf_counter() - clock, time.process_time() - cpu))
    return [round(1e3 * min(column), 2) for column in zip(*found, strict=True)]


def _measure(graph: Path, form: str, folder: Path) -> dict[str, list[float]]:
    """Measure all steps in this process."""
    arrays = np.load(graph)
    indptr, indices = torch.from_numpy(arrays["indptr"]).long(), torch.from_numpy(arrays["indices"])
    data: Any = (indptr, indices)
    options: dict[str, Any] = {}
    if form == "edge_index":
        rows = torch.repeat_interleave(torch.arange(len(indptr) - 1), indptr.diff())
        order = torch.randperm(len(indices), generator=torch.Generator().manual_seed(0))
        data = torch.stack([indices.long(), rows])[:, order].contiguous()
        options = {"num_nodes": len(indptr) - 1}
    prepare = lambda cache: gnnsparse.prepare(data, values="gcn", cache=cache, **options)  # noqa: E731
    prepare(folder)
    time.sleep(0.5)  # torch's threads wait for more work for a time, which counts as CPU time
    found = {"first hit": _timed(lambda: prepare(folder), 1), "hit": _timed(lambda: prepare(folder), HITS)}
    (path,) = folder.glob("*.safetensors")

    def read() -> tuple[dict[str, torch.Tensor], dict[str, object]]:
        with open_file(path) as file:
            return file.read()

    tensors, metadata = read()
    del metadata["key"]
    found["hash"] = _timed(lambda: fingerprint([*data]), HITS)
    found["file and checksums"] = _timed(read, HITS)
    found["structure"] = _timed(lambda: check_file(tensors, metadata), HITS)
    return {"build": _timed(lambda: prepare(False), BUILDS), **found}


def main() -> None:
    """Measure each form of the graph in processes of their own, and write the least times."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("graph", type=Path)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--in-process", nargs=2, metavar=("FORM", "FOLDER"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.in_process:
        print(json.dumps(_measure(options.graph, options.in_process[0], Path(options.in_process[1]))))
        return
    rows = []
    for form in ("edge_index", "csr"):
        with tempfile.TemporaryDirectory() as folder:
            command = [
                sys.executable,
                "-m",
                "benchmarks.cache",
                str(options.graph),
                "--in-process",
                form,
                folder,
            ]
            runs = [
                json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
                for _ in range(options.repeats + 1)
            ][1:]  # the first process stores the graph
        for step in runs[0]:
            clock, cpu = (min(run[step][which] for run in runs) for which in (0, 1))
            rows.append({"form": form, "step": step, "ms": round(clock, 2), "cpu_ms": round(cpu, 2)})
            print(f"{form:10} {step:18} {clock:8.2f} ms {cpu:8.2f} ms of CPU")
    if options.out:
        content = {"graph": options.graph.name, "repeats": options.repeats, "rows": rows}
        write_json(options.out, {**content, **describe_environment(torch.device("cpu"))})


if __name__ == "__main__":
    main()
