"""Every convolution of PyG and its basic models give the same numbers before and after `accelerate`."""

from __future__ import annotations

import inspect

import pytest
import torch

from tests.interop import pyg_table
from tests.interop.pyg_cases import CASES, MODELS, NOT_CALLED, WIDTH, Case, Graph, both, judge, made, pyg

# On a GPU: PyG's, and torch's in a thread's first backward pass.
pytestmark = [
    pytest.mark.filterwarnings("ignore:The usage of `scatter:UserWarning"),
    pytest.mark.filterwarnings("ignore:Attempting to run cuBLAS:UserWarning"),
]

#: In these calls a graph is new, and known; what a layer caches is made, and used.
CALLS = 3


def random_graph(device: str) -> Graph:
    """Random edges without repeats, with self-loops, in random order; the last nodes have none."""
    generator = torch.Generator().manual_seed(0)
    edges = torch.randint(0, 55, (2, 300), generator=generator)
    edges = torch.cat([edges, torch.arange(4).expand(2, -1)], dim=1).unique(dim=1)
    return Graph(edges[:, torch.randperm(edges.shape[1], generator=generator)].to(device), 60)


def test_every_class_has_a_case() -> None:
    classes = {name for name in pyg.conv.__all__ if inspect.isclass(getattr(pyg.conv, name))}
    assert classes == set(CASES) | set(NOT_CALLED)
    assert not set(CASES) & set(NOT_CALLED)


@pytest.mark.parametrize(
    ("name", "case"),
    [pytest.param(n, c, id=f"{n}-{i}") for n, of in {**CASES, **MODELS}.items() for i, c in enumerate(of)],
)
def test_same_numbers(name: str, case: Case, device: str) -> None:
    """Of a layer and its accelerated copy, where float64 judges."""
    torch.manual_seed(0)
    theirs, ours = both(made(name, case, device))
    assert repr(ours) == repr(theirs)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    graph = random_graph(device)
    judge(theirs, ours, torch.randn(graph.nodes, WIDTH, device=device), graph, case.call, CALLS)


def test_table_is_what_the_code_says() -> None:
    """At least 25 convolutions are accelerated, the four attention layers fused; the docs page says so."""
    rows = pyg_table.rows()
    convs = [row for row in rows if row.name in CASES]
    fused = {row.name for row in convs if row.runs_on == "graph_attention"}
    assert {"GATConv", "GATv2Conv", "TransformerConv", "AGNNConv"} <= fused
    assert sum(row.runs_on != "PyG" for row in convs) >= 25
    assert pyg_table.markdown(rows) in pyg_table.PAGE.read_text(), "run python -m tests.interop.pyg_table"
