"""Times the sampling of neighbours and training on what was drawn, beside DGL and PyG where they run.

    python -m benchmarks.sampling --scale 0.1 --threads 2 --out benchmarks/results/sampling.json
    python -m benchmarks.sampling --device cuda --scale 1 --out benchmarks/results/sampling_h200.json

The graph is products-like; batches have 1,024 nodes, and fan-outs are 15, 10, 5. Times are wall-clock and of
the process's CPU, the best and the median of the batches: on a machine with other load the CPU's time is what
to compare. A step is SAGE with 3 layers of 256 features, forward, backward and Adam, on features of 100
numbers. "dgl" is DGL's NeighborSampler, whose blocks are no operands yet; "pyg" that of NeighborLoader, which
needs pyg-lib or torch-sparse. With --accuracy FOLDER, a folder with Amazon's raw files, the same model is
trained on neighbours that we and DGL draw.

On a GPU whole epochs are timed, by the way that `train.py sampler=neighbor` takes, then the stages of steps
whose batches are not made ahead, and how often the host waits for the GPU in them (benchmarks/sampled_epoch).
Steps are captured in CUDA graphs there, unless --no-capture says otherwise. The graph is generated on the
GPU. --epochs asks for epochs on a CPU, too. After --seconds nothing new begins.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812

import gnnsparse
from benchmarks.sampled_epoch import CLASSES, FEATURES, HIDDEN, Clock, measure_training
from benchmarks.script import script_parser
from gnnsparse import SparseGraph
from gnnsparse.data import graph_like, load_dataset
from gnnsparse.runtime.environment import describe_environment, write_json
from gnnsparse.sampling import PLACEMENTS, NeighborSampler
from models import GraphSAGE

FANOUTS, BATCH = [15, 10, 5], 1024


def timed(call: Callable[[int], int], batches: int) -> dict[str, float]:
    """Call with 0, which is not measured, and the numbers from 1 on; the calls return numbers of edges."""
    call(0)
    wall, cpu, edges = [], [], 0
    for step in range(1, batches):
        start, used = time.perf_counter(), time.process_time()
        edges += call(step)
        wall.append(1e3 * (time.perf_counter() - start))
        cpu.append(1e3 * (time.process_time() - used))
    mean_edges = edges / (batches - 1)
    return {
        "ms": min(wall), "ms_median": statistics.median(wall), "cpu_ms": min(cpu),
        "cpu_ms_median": statistics.median(cpu), "edges": mean_edges,
        "edges_per_cpu_second": 1e3 * mean_edges / statistics.median(cpu),
    }  # fmt: skip


def dgl_sampler(graph: SparseGraph, fanouts: list[int]) -> Callable[[torch.Tensor], Any] | None:
    """A function that draws DGL's blocks; None: DGL is not installed."""
    try:
        from gnnsparse.interop.dgl import import_dgl

        dgl = import_dgl()
    except ImportError:
        return None
    row, col = graph.csr.row_index(), graph.csr.indices.long()
    whole = dgl.graph((col, row), num_nodes=graph.num_rows).formats("csc")
    drawer = dgl.dataloading.NeighborSampler(fanouts[::-1])
    return lambda seeds: drawer.sample_blocks(whole, seeds)


def pyg_sampler(graph: SparseGraph, fanouts: list[int]) -> Callable[[torch.Tensor], Any] | None:
    """A function that draws as NeighborLoader does; None: what it needs is not installed."""
    from torch_geometric.data import Data
    from torch_geometric.sampler import NeighborSampler as Drawer
    from torch_geometric.sampler import NodeSamplerInput
    from torch_geometric.typing import WITH_PYG_LIB, WITH_TORCH_SPARSE

    if not (WITH_PYG_LIB or WITH_TORCH_SPARSE):
        return None
    edge_index = torch.stack([graph.csr.indices.long(), graph.csr.row_index()])
    drawer = Drawer(Data(edge_index=edge_index, num_nodes=graph.num_rows), fanouts)
    return lambda seeds: drawer.sample_from_nodes(NodeSamplerInput(None, seeds))


def throughput(graph: SparseGraph, batches: int) -> dict[str, dict[str, float]]:
    order = torch.randperm(graph.num_rows, generator=torch.Generator().manual_seed(1))
    seeds = order[: batches * BATCH].split(BATCH)
    found = {}
    for name, options in {"uniform": {}, "replaced": {"replace": True}, "labor": {"method": "labor"}}.items():
        sampler = NeighborSampler(graph, FANOUTS, values="mean", **options)  # type: ignore[arg-type]
        found[name] = timed(
            lambda i, s=sampler: sum(b.adj.nnz for b in s.sample(seeds[i], i).blocks), batches
        )
    if (draw := dgl_sampler(graph, FANOUTS)) is not None:
        found["dgl"] = timed(lambda i: sum(b.num_edges() for b in draw(seeds[i])[2]), batches)
    if (drawn := pyg_sampler(graph, FANOUTS)) is not None:
        found["pyg"] = timed(lambda i: drawn(seeds[i]).row.numel(), batches)
    return found


def step_shares(graph: SparseGraph, batches: int) -> dict[str, float]:
    """Milliseconds of the CPU of sampling, of gathering features, and of the rest of a step."""
    torch.manual_seed(0)
    x, y = torch.randn(graph.num_rows, FEATURES), torch.randint(CLASSES, (graph.num_rows,))
    model = GraphSAGE(FEATURES, HIDDEN, CLASSES, num_layers=3)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
    sampler = NeighborSampler(graph, FANOUTS, values="mean")
    seeds = torch.randperm(graph.num_rows)[: batches * BATCH].split(BATCH)
    parts: dict[str, list[float]] = {"sample": [], "gather": [], "compute": []}
    for step in range(batches):
        times = [time.process_time()]
        sample = sampler.sample(seeds[step], step)
        times.append(time.process_time())
        inputs = x.index_select(0, sample.nodes)
        times.append(time.process_time())
        loss = F.cross_entropy(model(inputs, sample.adjs), y[seeds[step]])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        times.append(time.process_time())
        for name, first, last in zip(parts, times, times[1:], strict=False):
            parts[name].append(1e3 * (last - first))
    medians = {name: statistics.median(of[1:]) for name, of in parts.items()}
    return medians | {"sample_share": medians["sample"] / sum(medians.values())}


def operands_of_dgl(blocks: Any) -> list[gnnsparse.SparseOperand]:
    """DGL's blocks as our operands, so that both train the same layers."""
    found = []
    for block in blocks:
        source, target = block.edges()
        size = block.num_src_nodes(), block.num_dst_nodes()
        found.append(
            gnnsparse.prepare(torch.stack([source, target]), num_nodes=size, values="mean", cache=False)
        )
    return found


def accuracy(folder: Path, seeds: int, epochs: int) -> dict[str, list[float]]:
    """Test accuracies on Amazon Photo of models that are trained on neighbours that we and DGL draw."""
    found: dict[str, list[float]] = {"ours": [], "dgl": [], "whole": []}
    for seed in range(seeds):
        data = load_dataset("amazon_photo", root=str(folder), split=seed)
        # Bags of words of one length: with the counts as they are, results differ much from run to run.
        x = data.x / data.x.sum(1, keepdim=True).clamp(min=1) * data.num_features**0.5
        whole = gnnsparse.prepare(data.graph, values="mean", cache=False)
        train, test = (mask.nonzero().flatten() for mask in (data.train_mask, data.test_mask))
        ours = NeighborSampler(data.graph, [10, 10], values="mean", seed=seed)
        theirs = dgl_sampler(data.graph, [10, 10])
        for name in found:
            if name == "dgl" and theirs is None:
                continue
            torch.manual_seed(seed)
            model = GraphSAGE(data.num_features, 64, data.num_classes)
            optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
            step = 0
            for _ in range(epochs):
                model.train()
                for nodes in train[torch.randperm(len(train))].split(80):
                    if name == "ours":
                        sample = ours.sample(nodes, step)
                        out = model(x[sample.nodes], sample.adjs)
                    elif name == "dgl":
                        assert theirs is not None
                        inputs, _, blocks = theirs(nodes)
                        out = model(x[inputs], operands_of_dgl(blocks))
                    else:
                        out = model(x, whole)[nodes]
                    optimizer.zero_grad()
                    F.cross_entropy(out, data.y[nodes]).backward()
                    optimizer.step()
                    step += 1
            model.eval()
            with torch.no_grad():
                right = model(x, whole)[test].argmax(1) == data.y[test]
            found[name].append(float(right.float().mean()))
    return {name: values for name, values in found.items() if values}


def trained(graph: SparseGraph, options: argparse.Namespace, clock: Clock) -> list[dict[str, Any]]:
    """What epochs of training take, by precision and place of the features, while the clock leaves time."""
    rows = []
    for features, precision in itertools.product(options.features, options.precisions):
        name = f"{precision} {features}"
        if not clock.is_over:
            found = measure_training(graph, FANOUTS, BATCH, name, options, clock)
            rows.append({"precision": precision, "placement": features, **found})
            print(name, found, flush=True)
        gc.collect()
    return rows


def on_cpu(graph: SparseGraph, options: argparse.Namespace) -> dict[str, Any]:
    """What sampling and steps take on the CPU, and the accuracies of trained models if they are asked for."""
    found: dict[str, Any] = {
        "throughput": throughput(graph, options.batches),
        "step": step_shares(graph, options.batches),
    }
    if options.accuracy is not None:
        found["accuracy"] = accuracy(options.accuracy, options.seeds, options.accuracy_epochs)
    for name, content in found.items():
        print(name, content)
    return found


def read_options() -> argparse.Namespace:
    parser = script_parser(__doc__, device="cpu")
    parser.add_argument("--scale", type=float, default=0.1)
    parser.add_argument("--batches", type=int, default=12, help="steps whose parts are measured")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--epochs", type=int, help="epochs that are timed; on a GPU 3, on a CPU none")
    parser.add_argument("--precisions", nargs="+", default=["fp32", "fp16"], help="of the epochs")
    places = PLACEMENTS[1:]
    parser.add_argument("--features", nargs="+", choices=places, help="where they are kept in the epochs")
    parser.add_argument("--cache-share", type=float, default=0.1, help="of pinned rows, those the GPU copies")
    parser.add_argument("--seconds", type=float, default=80, help="after which no other epoch or part begins")
    parser.add_argument("--kernels", action="store_true", help="profile the kernels of five steps on a GPU")
    text = "whether the epochs' steps are captured in CUDA graphs; on a GPU they are"
    parser.add_argument("--capture", action=argparse.BooleanOptionalAction, default=None, help=text)
    parser.add_argument("--accuracy", type=Path)
    parser.add_argument("--accuracy-epochs", type=int, default=40)
    parser.add_argument("--seeds", type=int, default=8)
    options = parser.parse_args()
    if options.features is None:
        options.features = ["device", "pinned"] if options.device == "cuda" else ["device"]
    if options.capture is None:
        options.capture = options.device == "cuda"
    if options.epochs is None:
        options.epochs = 3 if options.device == "cuda" else 0
    return options


def main() -> None:
    options = read_options()
    clock = Clock(options.seconds)
    torch.set_num_threads(options.threads)
    device = torch.device(options.device)
    start = time.perf_counter()
    graph = graph_like("products_like", scale=options.scale, device=device)
    if device.type == "cuda":
        torch.cuda.synchronize()
    content: dict[str, Any] = {
        "nodes": graph.num_rows, "edges": graph.nnz, "batch": BATCH, "fanouts": FANOUTS,
        "generate_seconds": time.perf_counter() - start,
    }  # fmt: skip
    print(content, flush=True)
    if device.type == "cpu":
        content |= on_cpu(graph, options)
    if options.epochs:
        content["rows"] = trained(graph, options, clock)
    content |= describe_environment(device)
    if options.out is not None:
        write_json(options.out, content)


if __name__ == "__main__":
    main()
