"""The model of training on several GPUs, against what was measured on H200s, and its command."""

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path

import numpy as np
import pytest
import torch

from gnnsparse import Precision, SparseGraph
from gnnsparse.cli.main import main
from gnnsparse.data import build_graph, generate_graph, open_graph
from gnnsparse.distributed.estimate import (
    StreamedCounts,
    Workload,
    counted_facts,
    default_machines,
    estimate,
    product,
    random_facts,
)
from gnnsparse.distributed.partition import partition_rows, ranges_along
from gnnsparse.distributed.shard import ShardRecipe
from gnnsparse.formats.csr import Csr
from gnnsparse.plan.gpu_records import records
from gnnsparse.preprocess.normalize import normalize
from gnnsparse.testing import random_graph
from tests.large import random_edges

H200 = next(record for record in records() if record.name == "NVIDIA H200")
#: Nodes, nonzeros and distinct columns of panels of 32 rows (millions), and milliseconds of a product of 128
#: features in fp16 on one H200 and of half of its rows (the project's anchors).
MEASURED = {
    "reddit-like": (232_965, 114.42, 45.0, 1.42, 0.726),
    "products-like": (2_449_029, 126.12, 66.7, 3.16, 1.59),
}


def load_of(name: str) -> Workload:
    nodes, nonzeros, gathers, *_ = MEASURED[name]
    return Workload(nodes, round(1e6 * nonzeros), round(1e6 * gathers), 128, 128, 64, 5, Precision.FP16)


@pytest.mark.parametrize("name", MEASURED)
def test_products_take_about_what_was_measured(name: str) -> None:
    """Within 30 % of a product on one GPU; two cannot be faster than their halves of the rows."""
    load, (*_, whole, half) = load_of(name), MEASURED[name]
    seconds, _ = product(load, random_facts(load.nodes, load.nonzeros, 1), 128, H200, default_machines())
    assert 1e3 * seconds == pytest.approx(whole, rel=0.3)
    shared, choice = product(load, random_facts(load.nodes, load.nonzeros, 2), 128, H200, default_machines())
    assert choice is not None
    assert 0.7 * half < 1e3 * shared < 1e3 * seconds


def test_more_gpus_need_less_memory_each_and_their_network_bounds_the_speed() -> None:
    load, machines = load_of("products-like"), default_machines()
    counts = (1, 2, 4, 8, 64, 1024)
    found = [estimate(load, random_facts(load.nodes, load.nonzeros, n), H200, machines) for n in counts]
    assert all(a.nbytes > b.nbytes for a, b in itertools.pairwise(found[:4]))
    assert found[1].nbytes < 0.7 * found[0].nbytes
    assert found[0].milliseconds > found[1].milliseconds
    slow = dataclasses.replace(machines, network_gbs=1.0)
    facts = random_facts(load.nodes, load.nonzeros, 64)
    assert estimate(load, facts, H200, slow).product_ms > 5 * found[4].product_ms


def test_counts_are_those_of_the_shards() -> None:
    graph = random_graph(60, 60, 0.1, seed=2, weighted=False)
    for parts in (1, 3, 64):
        partition = partition_rows(graph, parts, "community")
        facts, recipe = counted_facts(graph.csr, partition), ShardRecipe(None, 1.0, parts, "community")
        made = recipe.cut(recipe.weights(graph), partition, 0).facts
        assert (facts.starts, facts.nnz, facts.outside, facts.halo) == (
            made.starts, made.nnz, made.outside, made.halo,
        )  # fmt: skip


def test_a_random_graph_has_the_halo_that_balls_in_urns_say() -> None:
    generator = torch.Generator().manual_seed(0)
    rows, columns = torch.randint(0, 2000, (2, 8000), generator=generator)
    touched = columns[(rows < 1000) & (columns >= 1000)].unique().numel()
    assert random_facts(2000, 8000, 2).halo[0] == pytest.approx(touched, rel=0.05)


def test_the_command_prints_a_row_for_each_number_of_gpus(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "150")
    words = ["plan-cluster", "--nodes", "111059956", "--edges", "3231371744", "--gpus", "8", "64", "1024"]
    assert main(words) == 0
    printed = capsys.readouterr().out
    assert "111059956 nodes" in printed
    assert [line.split("│")[1].strip() for line in printed.splitlines() if line.startswith("│")] == [
        "8", "64", "1024",
    ]  # fmt: skip
    assert main(["plan-cluster", "digits", "--gpus", "1", "2"]) == 0
    assert "1797 nodes" in capsys.readouterr().out


@pytest.mark.parametrize("loops", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("nodes", [1, 70, 1500])
def test_counts_of_a_graph_on_disk_are_those_of_the_one_in_memory(
    nodes: int, loops: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    edges = random_edges(nodes, 9 * nodes, seed=nodes, hub=0.2)
    edges[0, : int(loops * nodes)] = edges[1, : int(loops * nodes)] = np.arange(int(loops * nodes))
    monkeypatch.setattr("gnnsparse.data.large.folder._NONZEROS", 100)
    csr = open_graph(build_graph(edges, tmp_path / "g", nodes).folder).csr
    made, counts = normalize(SparseGraph(csr), "gcn").graph.csr, StreamedCounts(csr)
    assert counts.nonzeros == made.nnz
    order = torch.arange(nodes)
    for parts in (1, 2, 3, 64, 1024):
        assert counts.facts(parts) == counted_facts(made, ranges_along(made, order, parts, "contiguous"))
    panels = made.count_columns(32)
    assert counts.gathers(32) == (int(panels.sum()), panels.numel(), panels.numel())
    monkeypatch.setattr("gnnsparse.distributed.estimate._PANELS", 10)
    estimated, looked, of = counts.gathers(32)
    assert (looked, of) == (min(10, panels.numel()), panels.numel())
    assert estimated == pytest.approx(int(panels.sum()), rel=0.1)


def test_a_graph_on_disk_is_planned_without_being_read_into_memory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "150")
    monkeypatch.setattr("gnnsparse.distributed.estimate._PANELS", 100)
    folder = generate_graph("papers100m_like", tmp_path / "g", 0.0002).folder
    # Of what copies a matrix, or needs arrays of its nonzeros, nothing may be called.
    for name in ("add_self_loops", "row_index", "transpose", "select_rows", "to"):
        monkeypatch.setattr(Csr, name, None)
    words = ["plan-cluster", "--graph", str(folder), "--features", "128", "--classes", "172"]
    assert main([*words, "--gpus", "1", "4"]) == 0
    printed = capsys.readouterr().out
    assert "22212 nodes" in printed
    found = {line.split("│")[1].strip(): line.split("│") for line in printed.splitlines() if "│" in line}
    assert found["1"][3].strip() == "0"
    assert 0 < int(found["4"][3]) < 22_212
    assert "nonzeros and halos are counted, rows that products read are estimated from 100 of 695" in printed
