"""Trains one classifier of graphs in several processes, one for each GPU, by torch's DistributedDataParallel.

    torchrun --nproc-per-node 2 examples/data_parallel.py

Each process has a copy of the model and takes another part of each batch of graphs. After the backward pass
torch averages the gradients over the processes, so that the copies stay equal. Where there is no GPU for each
process, all of them run on the CPU.

The graphs are rings and stars of 5 to 12 nodes, and the model has to tell them apart.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812
from torch.nn.parallel import DistributedDataParallel

import gnnsparse
from gnnsparse import SparseGraph
from gnnsparse.data import BlockBatches, block_diagonal
from gnnsparse.nn import GINConv, pool_graphs


def ring_or_star(number: int) -> SparseGraph:
    """Make a ring for an odd number and a star for an even one, with edges in both directions."""
    nodes = torch.arange(5 + number // 2 % 8, device="cpu")
    ends = (nodes + 1) % len(nodes) if number % 2 else torch.zeros_like(nodes)
    edges = torch.stack([nodes, ends])[:, nodes != ends]
    return SparseGraph.from_edge_index(torch.cat([edges, edges.flip(0)], dim=1), len(nodes))


class Classifier(torch.nn.Module):
    """Two GIN layers, the mean over the nodes of each graph, and a linear layer.

    Args:
        width: features of a node after the first layer.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        sizes = [(1, width), (width, width)]
        self.convs = torch.nn.ModuleList(
            GINConv(torch.nn.Sequential(torch.nn.Linear(*size), torch.nn.ReLU())) for size in sizes
        )
        self.last = torch.nn.Linear(width, 2)

    def forward(self, x: torch.Tensor, adj: gnnsparse.SparseOperand, graph_ptr: torch.Tensor) -> torch.Tensor:
        """Compute the logits of the graphs of a batch, [graphs, 2].

        Args:
            x: [nodes, 1].
            adj: the graphs of the batch as the blocks of one matrix. DistributedDataParallel hands it on as
                it is.
            graph_ptr: int64 [graphs + 1], the first node of each graph.
        """
        for conv in self.convs:
            x = conv(x, adj)
        return self.last(pool_graphs(x, graph_ptr, "mean"))


def train(device: torch.device, graphs: int, batch_size: int, epochs: int) -> tuple[float, bool]:
    """Train in a process group.

    Returns:
        The accuracy on all graphs, and whether all processes have the same weights at the end.
    """
    rank, processes = dist.get_rank(), dist.get_world_size()
    whole, graph_ptr = block_diagonal([ring_or_star(number) for number in range(graphs)])
    labels = torch.arange(graphs, device=device) % 2
    batches = BlockBatches(gnnsparse.prepare(whole, format="csr", cache=False).to(device), graph_ptr)
    torch.manual_seed(0)  # equal initial weights
    model = DistributedDataParallel(Classifier(16).to(device))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.03)
    order = torch.Generator("cpu").manual_seed(0)  # the same order everywhere, of which each takes its part

    def logits(selected: torch.Tensor) -> torch.Tensor:
        batch = batches.select(selected)
        return model(torch.ones(len(batch.nodes), 1, device=device), batch.adj, batch.graph_ptr)

    for _ in range(epochs):
        for selected in torch.randperm(graphs, generator=order, device="cpu").split(batch_size):
            mine = selected[rank::processes]
            loss = F.cross_entropy(logits(mine), labels[mine])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    with torch.no_grad():
        right = logits(torch.arange(graphs, device="cpu")).argmax(1) == labels
    weights = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    others = [torch.empty_like(weights) for _ in range(processes)]
    dist.all_gather(others, weights)
    return right.float().mean().item(), all(torch.equal(weights, other) for other in others)


def main(arguments: Sequence[str] | None = None) -> None:
    """Train in the process group that torchrun describes, and print the outcome in the first process."""
    parser = argparse.ArgumentParser(description="A classifier of graphs on several GPUs")
    parser.add_argument("--graphs", type=int, default=256, help="number of graphs")
    parser.add_argument("--batch", type=int, default=64, help="graphs of a step, in all processes together")
    parser.add_argument("--epochs", type=int, default=10, help="passes over the graphs")
    options = parser.parse_args(arguments)
    for name, value in vars(options).items():
        if value < 1:
            parser.error(f"--{name}: got {value}; accepted: an integer, at least 1")
    if "RANK" not in os.environ:
        parser.error("start it by torchrun, as in: torchrun --nproc-per-node 2 examples/data_parallel.py")
    processes, number = int(os.environ["LOCAL_WORLD_SIZE"]), int(os.environ["LOCAL_RANK"])
    if options.graphs % options.batch or options.batch % int(os.environ["WORLD_SIZE"]):
        parser.error(
            f"--batch: got {options.batch}; accepted: a multiple of the processes, divisor of --graphs"
        )
    on_gpu = torch.cuda.device_count() >= processes
    device = torch.device("cuda", number) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if on_gpu else "gloo")
    try:
        accuracy, equal = train(device, options.graphs, options.batch, options.epochs)
        if dist.get_rank() == 0:
            print(f"{dist.get_world_size()} processes on {device.type}, accuracy {accuracy:.0%}")
            print(f"equal weights in all processes: {equal}")
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
    # DistributedDataParallel keeps the threads of gloo alive, and one that frees its last tensors while the
    # interpreter shuts down aborts the process (pytorch pull request 179291). So nothing is shut down.
    sys.stdout.flush()
    os._exit(0)
