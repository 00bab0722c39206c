"""DGL's graphs as ours, and what is kept of them."""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import gnnsparse
from gnnsparse.interop.dgl import accelerate, from_dgl, graphs, import_dgl
from tests.interop.dgl_graphs import dgl_or_skip, homogeneous, multigraph, operands

dgl = dgl_or_skip()
import dgl.function as fn  # noqa: E402
import dgl.nn.pytorch as dnn  # noqa: E402


def message_sums(graph: Any, x: torch.Tensor, weight: torch.Tensor | None, etype: Any = None) -> torch.Tensor:
    """The sums over incoming edges that DGL's update_all computes."""
    with graph.local_scope():
        part = graph if etype is None else graph[etype]
        part.srcdata["x"] = x
        if weight is None:
            part.update_all(fn.copy_u("x", "m"), fn.sum("m", "y"))
        else:
            part.edata["w"] = weight
            part.update_all(fn.u_mul_e("x", "w", "m"), fn.sum("m", "y"))
        return part.dstdata["y"]


@given(
    nodes=st.tuples(st.integers(1, 9), st.integers(1, 9)),
    edges=st.integers(0, 40),
    layout=st.sampled_from(["coo", "csr", "csc"]),
    small=st.booleans(),
    weighted=st.booleans(),
)
def test_any_graph(nodes: tuple[int, int], edges: int, layout: str, small: bool, weighted: bool) -> None:
    graph = multigraph(dgl, *nodes, edges)
    graph = graph.int() if small else graph
    weight = torch.randn(edges)
    graph.edata["w"] = weight
    found = from_dgl(graph.formats(layout), weight="w" if weighted else None)
    assert (found.num_cols, found.num_rows, found.num_edges) == (*nodes, edges)
    x = torch.randn(nodes[0], 3)
    right = message_sums(graph, x.double(), weight.double() if weighted else None)
    torch.testing.assert_close(torch.from_numpy(found.to_scipy() @ x.numpy()), right.float())


@pytest.mark.parametrize("layout", ["coo", "csr", "csc"])
def test_features_of_edges_go_with_ours(layout: str) -> None:
    graph, x = multigraph(dgl, 9, 7, 40), torch.randn(9, 4)
    weight = torch.randn(40)
    found = from_dgl(graph.formats(layout))
    a = gnnsparse.prepare(found, cache=False)
    right = message_sums(graph, x, weight)
    torch.testing.assert_close(gnnsparse.spmm(a, x, a.from_coo_order(weight)), right)
    torch.testing.assert_close(gnnsparse.prepare(found, values=weight, cache=False) @ x, right)


def heterograph() -> Any:
    ends = torch.randint(0, 5, (2, 12))
    return dgl.heterograph(
        {("u", "r", "i"): (ends[0], ends[1]), ("i", "r", "u"): (ends[1], ends[0]),
         ("u", "t", "u"): (ends[0], ends[0])}, {"u": 5, "i": 6},
    )  # fmt: skip


def test_relations_of_a_heterograph() -> None:
    graph = heterograph()
    graph.edges["t"].data["w"] = torch.rand(12, 1)
    assert from_dgl(graph, ("u", "r", "i")).num_cols == 5
    assert from_dgl(graph, ("i", "r", "u")).num_cols == 6
    weighted = from_dgl(graph, "t", weight="w")
    x = torch.randn(5, 2)
    got = torch.from_numpy(weighted.to_scipy() @ x.numpy())
    torch.testing.assert_close(got, message_sums(graph, x, graph.edges["t"].data["w"], "t"))


@pytest.mark.filterwarnings("ignore:Dataloader CPU affinity")
def test_blocks() -> None:
    dgl.seed(0)
    graph = homogeneous(dgl, 40, 200)
    loader = dgl.dataloading.DataLoader(
        graph, torch.arange(40), dgl.dataloading.NeighborSampler([3, 3]), batch_size=16
    )
    for _, _, blocks in loader:
        for block in blocks:
            found, x = from_dgl(block), torch.randn(block.num_src_nodes(), 3)
            assert found.num_rows == block.num_dst_nodes()
            torch.testing.assert_close(
                torch.from_numpy(found.to_scipy() @ x.numpy()), message_sums(block, x, None)
            )


BAD = {
    "no graph": (lambda: from_dgl(torch.ones(2, 2)), TypeError, "graph: got a tensor"),
    "several relations": (
        lambda: from_dgl(heterograph()),
        ValueError,
        r"etype: got None; accepted: \('i', 'r'",
    ),
    "an ambiguous name": (lambda: from_dgl(heterograph(), "r"), ValueError, "etype: got 'r'; accepted"),
    "another name": (lambda: from_dgl(heterograph(), "z"), ValueError, "etype: got 'z'; accepted"),
    "another type": (lambda: from_dgl(heterograph(), 3), TypeError, "etype: got int"),
    "no feature": (lambda: from_dgl(heterograph(), "t", "w"), ValueError, "weight: got 'w'; accepted: None"),
    "no name": (lambda: from_dgl(heterograph(), "t", 3), TypeError, "weight: got int"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_arguments(name: str) -> None:
    call, error, message = BAD[name]
    with pytest.raises(error, match=message):
        call()


@pytest.mark.parametrize(
    ("shape", "message"), [((12, 2), "one number for each edge"), ((12,), "finite float32 numbers")]
)
def test_bad_weights(shape: tuple[int, ...], message: str) -> None:
    graph = heterograph()
    graph.edges["t"].data["w"] = torch.full(shape, torch.inf)
    with pytest.raises(ValueError, match=message):
        from_dgl(graph, "t", "w")


def test_layers_share_what_is_made_of_a_graph() -> None:
    """A relation that DGL makes anew in each call is known too."""
    graph, x = homogeneous(dgl, 30, 90), torch.randn(30, 4)
    first, second = accelerate(dnn.SAGEConv(4, 4, "mean")), accelerate(dnn.SAGEConv(4, 4, "mean"))
    relations = heterograph()
    for a, b in ((graph, graph.local_var()), (relations["t"], relations["t"])):
        first(a, x[: a.num_nodes()])
        made = [operand.handle for operand in operands(first)]
        for layer, again in ((second, b), (first, a)):
            layer(again, x[: a.num_nodes()])
            assert [operand.handle for operand in operands(layer)] == made


def test_changes_of_a_graph_are_seen() -> None:
    graph, x = homogeneous(dgl, 30, 90), torch.randn(30, 4)
    layer = dnn.GINConv(None, "sum")
    ours = accelerate(dnn.GINConv(None, "sum"))
    ours(graph, x)
    graph.add_edges(torch.tensor([3, 4]), torch.tensor([5, 5]))
    torch.testing.assert_close(ours(graph, x), layer(graph, x))
    graph.remove_edges(torch.arange(40))
    torch.testing.assert_close(ours(graph, x), layer(graph, x))


def test_graphs_that_are_gone_leave_nothing() -> None:
    layer, x = accelerate(dnn.GINConv(None, "sum")), torch.randn(30, 4)
    gc.collect()
    before, seen = len(graphs._by_index), []
    for seed in range(200):
        layer(homogeneous(dgl, 30, 40, seed=seed), x)
        seen.append(weakref.ref(layer.gnnsparse_options.structure))
    gc.collect()
    assert len(graphs._by_index) <= before + 1
    assert sum(reference() is not None for reference in seen) <= 1


SHIM = """
import sys
{first}
from gnnsparse.interop.dgl import import_dgl
dgl = import_dgl()
assert import_dgl() is dgl
import dgl as again
assert again is dgl
assert {quiet} or "outdated" not in sys.modules  # by which ogb asks the network for a newer release
graph = dgl.graph(([0, 1], [1, 0]))
try:
    import dgl.graphbolt as graphbolt
    graphbolt.load_graphbolt
except AttributeError as error:
    print(error)
"""


@pytest.mark.parametrize(
    "first", ["", "try:\n    import dgl\nexcept ImportError:\n    pass\nexcept Exception: pass"]
)
def test_the_import_of_dgl(first: str, tmp_path: Any) -> None:
    code = SHIM.format(first=first, quiet=bool(first))
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True,
        env={"HOME": str(tmp_path), "PATH": ""},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "graphbolt has no library for torch" in done.stdout


def test_an_installation_without_dgl_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name == "dgl" or name.startswith("dgl.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"pip install --no-deps dgl==2\.1\.0"):
        import_dgl()


def test_what_dgl_lacks_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    before = {name: module for name, module in sys.modules.items() if name.split(".")[0] == "dgl"}
    for name in before:
        monkeypatch.delitem(sys.modules, name)

    def fails(name: str) -> None:
        raise OSError("libdgl.so: cannot open shared object file")

    monkeypatch.setattr("importlib.import_module", fails)
    with pytest.raises(ImportError, match=r"DGL can't be imported \(libdgl\.so.*pip install --no-deps"):
        import_dgl()
    assert not any(name.startswith("dgl.") for name in sys.modules)  # no stub is left
