"""Accelerated PyG models in several processes, and exported."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.interop.pyg_cases import both, close, edges_of, interop, pyg
from tests.together import in_two_processes

# torch's exporter and PyG warn about themselves.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

NODES, WIDTH = 40, 8
MODELS = {
    "gcn": lambda: pyg.GCN(WIDTH, 8, num_layers=2),
    "sage": lambda: pyg.GraphSAGE(WIDTH, 8, num_layers=2),
    "gin": lambda: pyg.GIN(WIDTH, 8, num_layers=2),
    "gat": lambda: pyg.GAT(WIDTH, 8, num_layers=2, heads=2),
    "gatv2": lambda: pyg.GAT(WIDTH, 8, num_layers=2, heads=2, v2=True),
}


def _train(rank: int, folder: str) -> None:
    model, xs = torch.load(f"{folder}/given.pt", weights_only=False)
    parallel = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(parallel.parameters(), lr=0.1)
    for step in range(3):
        optimizer.zero_grad()
        parallel(xs[rank], edges_of(10 * step + rank)).square().mean().backward()
        optimizer.step()
    torch.save(model.state_dict(), f"{folder}/found{rank}.pt")


@pytest.mark.parametrize("name", ["sage", "gat"])
def test_two_processes_train_one_model(name: str, tmp_path: Path) -> None:
    """Each process has graphs of its own; the gradient is the mean of theirs."""
    plain = MODELS[name]()
    xs = [torch.randn(NODES, WIDTH), torch.randn(NODES, WIDTH)]
    torch.save((interop.accelerate(copy.deepcopy(plain), convert="always"), xs), tmp_path / "given.pt")
    in_two_processes(_train, str(tmp_path))
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
    for step in range(3):
        optimizer.zero_grad()
        losses = [plain(xs[rank], edges_of(10 * step + rank)).square().mean() for rank in range(2)]
        torch.stack(losses).mean().backward()
        optimizer.step()
    for rank in range(2):
        found = torch.load(tmp_path / f"found{rank}.pt", weights_only=True)
        for key, value in plain.state_dict().items():
            close(found[key], value)


def operators(program: Any) -> set[str]:
    """Names of the operators of this library in an exported program."""
    return {str(node.target) for node in program.graph.nodes if str(node.target).startswith("gnnsparse.")}


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_exported_programs_take_any_edges(name: str, strict: bool, tmp_path: Path) -> None:
    plain, ours = both(MODELS[name]().eval())
    x, edges = torch.randn(NODES, WIDTH), edges_of(0)
    with torch.no_grad():
        program = torch.export.export(ours, (x, edges), strict=strict)
        wanted = "pyg_attention" if name.startswith("gat") else "pyg_aggregate"
        assert operators(program) == {f"gnnsparse.{wanted}.default"}
        torch.export.save(program, tmp_path / "program.pt2")
        module = torch.export.load(tmp_path / "program.pt2").module()
        for seed in (0, 5):
            close(module(x, edges_of(seed)), plain(x, edges_of(seed)))


@pytest.mark.parametrize("name", ["gcn", "gat"])
def test_packages_of_aot_inductor(name: str, tmp_path: Path) -> None:
    plain, ours = both(MODELS[name]().eval())
    x = torch.randn(NODES, WIDTH)
    with torch.no_grad():
        program = torch.export.export(ours, (x, edges_of(0)))
        package = torch._inductor.aoti_compile_and_package(program, package_path=str(tmp_path / "model.pt2"))
        run = torch._inductor.aoti_load_package(package)
        for seed in (0, 5):
            close(run(x, edges_of(seed)), plain(x, edges_of(seed)))
