"""Measures what a call costs the host: from Python to the driver, without waiting for the GPU.

    python -m benchmarks.host_path --out benchmarks/results/host_path.json
    python -m benchmarks.host_path --replay --out benchmarks/results/host_path_cpu.json

Times are those of the calling thread, on a graph of Cora's size. Calls are timed in groups of 50, and the
GPU is waited for after each group, outside of the time, so that its queue stays short. A time is the median
of the groups, and "fastest" the fastest group: on a machine that other work shares it is the one to compare.

With --replay there is no GPU: operands on the CPU take the GPU's path up to native functions that check their
arguments and queue nothing (native/emulator/idle.cpp). torch's own operations compute on the CPU then. The
graph of a training step has 128 nodes there, so that this takes little of the time.

The plain step has the layers of the GCN's without its products: its time is torch's own.
"""

from __future__ import annotations

import contextlib
import importlib.util
import shutil
import statistics
import subprocess
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812

import gnnsparse
from benchmarks.script import record, script_parser
from gnnsparse.nn import dropout
from gnnsparse.runtime import device as device_module
from models import GCN

NATIVE = Path(__file__).resolve().parents[1] / "native"
NODES, EDGES, FEATURES, CLASSES = 2708, 5278, 128, 7
#: Calls between two waits for the GPU, and how often so many are timed.
GROUP, GROUPS = 50, 40
STEP_GROUP = 10
#: What the module of --replay is made of: pybind11's headers take longest, so that it is one unit.
SOURCES = (
    "emulator/idle.cpp", "bindings/memory.cpp", "bindings/attention_args.cpp", "bindings/spmm_launch.cpp",
    "bindings/cuda_spmm.cpp",
)  # fmt: skip
_HERE = contextlib.nullcontext()


class IdlePath(device_module.CudaPath):
    """Takes CPU tensors for those of an H200, whose native functions queue nothing."""

    def __init__(self, native: Any) -> None:
        super().__init__()
        self.native = native

    def takes(self, device: torch.device) -> bool:
        return True

    def describe(self, device: torch.device) -> device_module.Device:
        return device_module.Device("cuda", (9, 0), 132, 140 * 2**30, "NVIDIA H200", 60 * 2**20)

    def stream(self, device: torch.device) -> int:
        return 0

    def queue(self, device: torch.device) -> tuple[Callable[[], int], int, Callable[[], int]]:
        return int, 0, int

    def current(self, device: torch.device) -> AbstractContextManager[None]:
        return _HERE

    def is_capturing(self) -> bool:
        return False

    def finish(self, device: torch.device) -> None:
        pass


class _Native:
    """The native module, with the functions of another one in front."""

    def __init__(self, idle: Any) -> None:
        from gnnsparse import _native

        for module in (_native, idle):
            self.__dict__.update({name: getattr(module, name) for name in dir(module) if name[0] != "_"})


def idle_native() -> _Native:
    """Compile and load the native functions that queue nothing."""
    import pybind11

    compiler = shutil.which("c++")
    if compiler is None:
        raise SystemExit("--replay needs a C++ compiler")
    folders = [
        *(NATIVE / name for name in ("emulator", "include", "cuda", "bindings")),
        pybind11.get_include(),
    ]
    includes = [f"-I{folder}" for folder in (*folders, sysconfig.get_path("include"))]
    flags = ("-std=c++17", "-O3", "-fPIC", "-shared", "-fvisibility=hidden", "-DGNNSPARSE_EMULATED")
    text = "".join(f'#include "{NATIVE / name}"\n' for name in SOURCES)
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / f"_idle{sysconfig.get_config_var('EXT_SUFFIX')}"
        command = [compiler, *flags, *includes, "-x", "c++", "-", "-o", str(target)]
        subprocess.run(command, input=text, text=True, check=True)
        spec = importlib.util.spec_from_file_location("_idle", target)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return _Native(module)


def cora_sized(nodes: int, precision: str, device: str) -> gnnsparse.SparseOperand:
    generator = torch.Generator().manual_seed(0)
    half = torch.randint(nodes, (2, EDGES * nodes // NODES), generator=generator)
    graph = gnnsparse.SparseGraph.from_edge_index(torch.cat([half, half.flip(0)], dim=1), nodes)
    return gnnsparse.prepare(graph, values="gcn", precision=precision, cache=False).to(device)


def host_times(call: Callable[[], object], wait: Callable[[], object], group: int) -> dict[str, float]:
    """Time a call; microseconds of the host."""
    for _ in range(group):
        call()
    wait()
    times = []
    for _ in range(GROUPS):
        start = time.perf_counter()
        for _ in range(group):
            call()
        times.append((time.perf_counter() - start) / group * 1e6)
        wait()
    return {"median": round(statistics.median(times), 2), "fastest": round(min(times), 2)}


def product_calls(precision: str, width: int, device: str) -> dict[str, Callable[[], object]]:
    """The calls that are timed of one operand and one width."""
    a = cora_sized(NODES, precision, device)
    dtype = a.dtype
    x = torch.randn(NODES, width, device=device).to(dtype)
    other = x.to(torch.float32 if dtype != torch.float32 else torch.float16)
    values = torch.randn(a.nnz, device=device).to(dtype)
    leaf, seed = x.clone().requires_grad_(), torch.randn_like(x)

    def both() -> None:
        leaf.grad = None
        (a @ leaf).backward(seed)

    return {
        "product": lambda: a @ x,
        "product of a converted X": lambda: a @ other,
        "product with edge values": lambda: gnnsparse.spmm(a, x, values),
        "mean": lambda: gnnsparse.spmm(a, x, reduce="mean"),
        "forward with a gradient": lambda: a @ leaf,
        "forward and backward": both,
    }


def make_step(nodes: int, precision: str, device: str) -> Callable[[], object]:
    """A training step of a GCN with two layers and 16 hidden features."""
    a = cora_sized(nodes, precision, device)
    torch.manual_seed(0)
    model = GCN(FEATURES, 16, CLASSES).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, fused=True)
    x, y = torch.rand(nodes, FEATURES, device=device), torch.randint(CLASSES, (nodes,), device=device)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        F.cross_entropy(model(x, a), y).backward()
        optimizer.step()

    return step


def make_plain_step(nodes: int, device: str) -> Callable[[], object]:
    """A step of the same layers in torch alone, without products and modules: what no GCN can go below."""
    torch.manual_seed(0)
    widths = ((16, FEATURES), (CLASSES, 16))
    weights = [torch.nn.Parameter(torch.randn(shape, device=device)) for shape in widths]
    biases = [torch.nn.Parameter(torch.zeros(shape[0], device=device)) for shape in widths]
    optimizer = torch.optim.Adam([*weights, *biases], lr=1e-2, fused=True)
    x, y = torch.rand(nodes, FEATURES, device=device), torch.randint(CLASSES, (nodes,), device=device)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        hidden = F.relu(F.linear(dropout(x, 0.5, True), weights[0]) + biases[0])
        out = F.linear(dropout(hidden, 0.5, True), weights[1]) + biases[1]
        F.cross_entropy(out, y).backward()
        optimizer.step()

    return step


def measure(replay: bool, device: str) -> Iterator[dict[str, Any]]:
    def wait() -> None:
        if not replay:
            torch.cuda.synchronize()

    nodes = 128 if replay else NODES

    def timed(
        name: str, precision: str, width: int, call: Callable[[], object], group: int
    ) -> dict[str, Any]:
        times = host_times(call, wait, group)
        return {"call": name, "precision": precision, "width": width, "microseconds": times}

    for precision in ("fp16", "fp32"):
        for width in (7, 16, 64):
            for name, call in product_calls(precision, width, device).items():
                yield timed(name, precision, width, call, GROUP)
        yield timed("GCN step", precision, 16, make_step(nodes, precision, device), STEP_GROUP)
    yield timed("plain torch step", "fp32", 16, make_plain_step(nodes, device), STEP_GROUP)


def shown(row: dict[str, Any]) -> str:
    times = row["microseconds"]
    case = f"{row['call']:26} {row['precision']} {row['width']:3}"
    return f"{case}  {times['median']:8.2f} {times['fastest']:8.2f} us"


def main() -> None:
    parser = script_parser(__doc__)
    parser.add_argument("--replay", action="store_true", help="no GPU: native functions queue nothing")
    args = parser.parse_args()
    device = "cpu" if args.replay else "cuda"
    torch.set_num_threads(1)
    path = IdlePath(idle_native()) if args.replay else device_module.path()
    with device_module.use(path):
        record(measure(args.replay, device), args.out, device, show=shown, replay=args.replay)


if __name__ == "__main__":
    main()
