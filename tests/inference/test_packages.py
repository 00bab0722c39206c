"""Loaded models as programs of torch.export and as packages: their results, and what is refused."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import gnnsparse
from gnnsparse import SparseGraph
from gnnsparse.inference.export import Package, export_model, load_package, notes
from gnnsparse.nn.traced_graph import graph_of
from gnnsparse.train.trained import EdgeModel, LoadedModel, ModelRecipe
from models import MODELS

# torch's exporter warns about itself.
pytestmark = pytest.mark.filterwarnings("ignore")

CPU = torch.device("cpu")
#: Numbers of nodes and edges of calls, other than those of the trace, the smallest among them.
SIZES = [(50, 20), (7, 300), (1, 0), (1, 3), (3, 1)]


def loaded(name: str, task: str = "node") -> LoadedModel:
    """A model of this name with random weights, as `load` returns one."""
    entry = MODELS[name].for_task(task)
    torch.manual_seed(0)
    model = entry.build(6, out_channels=3, hidden_channels=16).eval()
    recipe = ModelRecipe("models:MODELS", name, {}, 6, 3, task, values=entry.values)
    return LoadedModel(recipe, model, CPU)


def given(nodes: int, edges: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Features and an edge_index, which may have self-loops and repeats."""
    draws = torch.Generator().manual_seed(seed + 1000 * nodes + edges)
    return torch.randn(nodes, 6, generator=draws), torch.randint(nodes, (2, edges), generator=draws)


def exported(module: torch.nn.Module, *arguments: torch.Tensor) -> torch.nn.Module:
    nodes, edges = torch.export.Dim("nodes"), torch.export.Dim("edges")
    shapes = [{0: nodes}, {1: edges}, {0: edges}][: len(arguments)]
    program = torch.export.export(module, arguments, dynamic_shapes=shapes, strict=False)
    return program.module()


@pytest.mark.parametrize("name", ["gcn", "gin", "graphsage", "gat", "gatv2", "agnn", "graph_transformer"])
def test_a_loaded_model_exports_with_sizes_of_any_kind(name: str) -> None:
    model = loaded(name)
    with torch.no_grad():
        program = exported(model.for_edges(), *given(30, 100))
        for sizes in SIZES:
            x, edges = given(*sizes)
            graph = gnnsparse.prepare(edges, num_nodes=len(x), values=model.recipe.values, cache=False)
            assert torch.equal(program(x, edges), model.predict(x, graph).logits)


@pytest.mark.parametrize("values", ["gcn", "mean", None])
def test_weights_of_edges_are_an_argument(values: str | None) -> None:
    name = {"gcn": "gcn", "mean": "graphsage", None: "gin"}[values]
    model, draws = loaded(name), torch.Generator().manual_seed(3)
    with torch.no_grad():
        module = model.for_edges()
        program = exported(module, *given(30, 100), torch.rand(100, generator=draws))
        (x, edges), weight = given(20, 60), torch.rand(60, generator=draws)
        how = {"values": weight} if values is None else {"values": values, "edge_weight": weight}
        graph = gnnsparse.prepare(edges, num_nodes=20, cache=False, **how)  # type: ignore[arg-type]
        want = model.predict(x, graph).logits
        assert torch.equal(program(x, edges, weight), want)
        assert torch.equal(module(x, edges, weight), want)
        assert not torch.equal(module(x, edges), want)


@pytest.mark.parametrize("weighted", [False, True])
def test_a_graph_can_be_part_of_the_module(weighted: bool) -> None:
    """Its last node has no edge, and still is a node."""
    model, (x, edges) = loaded("gcn"), given(20, 60)
    x = torch.cat([x, x[:1]])
    weights = torch.rand(60, generator=torch.Generator().manual_seed(4)) if weighted else None
    graph = SparseGraph.from_edge_index(edges, num_nodes=21, values=weights)
    with torch.no_grad():
        program = torch.export.export(model.for_edges(graph), (x,), strict=False).module()
        torch.testing.assert_close(program(x), model.predict(x, graph).logits)


def test_a_model_of_pyg_exports_as_it_is() -> None:
    from torch_geometric.nn import GCN

    torch.manual_seed(0)
    net = GCN(6, 16, 2, 3).eval()
    recipe = ModelRecipe(None, "GCN", {}, 6, 3, inputs=("edge_index", "edge_weight"))
    model = LoadedModel(recipe, EdgeModel(net, recipe.inputs), CPU)
    (x, edges), weight = given(20, 60), torch.rand(60)
    with torch.no_grad():
        program = exported(model.for_edges(), *given(30, 100), torch.rand(100))
        torch.testing.assert_close(program(x, edges, weight), net(x, edges, edge_weight=weight))


def test_what_for_edges_refuses() -> None:
    model, (x, edges) = loaded("gcn"), given(5, 9)
    for other, said in (({"task": "link"}, "task: is 'link'"),
                        ({"inputs": ("edge_index", "edge_attr")}, "inputs: has edge_attr")):  # fmt: skip
        with pytest.raises(ValueError, match=said):
            replace(model, recipe=replace(model.recipe, **other)).for_edges()
    with pytest.raises(ValueError, match="graph: is an operand"):
        model.for_edges(model.prepare(edges))
    with pytest.raises(ValueError, match="graph: goes with models of nodes"):
        loaded("gcn", "graph").for_edges(edges)
    with pytest.raises(ValueError, match=r"graph_ptr: .*accepted: int64 \[graphs \+ 1\]"):
        loaded("gcn", "graph").for_edges()(x, edges)
    with pytest.raises(ValueError, match=r"graph_ptr: .*accepted: None, as the model is one of nodes"):
        model.for_edges()(x, edges, graph_ptr=torch.tensor([0, 5]))
    with pytest.raises(ValueError, match="edge_index: is missing"):
        model.for_edges()(x)
    with pytest.raises(TypeError, match="edge_index: got a tensor of dtype"):
        model.for_edges()(x, edges.int())


def test_operands_are_found_by_what_the_edges_are() -> None:
    _, edges = given(9, 30)
    first = graph_of(edges, None, 9, "gcn", "fp32")
    assert graph_of(edges.clone(), None, 9, "gcn", "fp32") is first
    others = [(edges.flip(0), None, 9, "gcn"), (edges, torch.rand(30), 9, "gcn"), (edges, None, 10, "gcn"),
              (edges, None, 9, "mean")]  # fmt: skip
    assert all(graph_of(*other, "fp32") is not first for other in others)
    for nodes in range(10, 18):  # as many as are kept
        graph_of(edges, None, nodes, "gcn", "fp32")
    assert graph_of(edges, None, 9, "gcn", "fp32") is not first


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> tuple[LoadedModel, Package]:
    model, file = loaded("gat"), tmp_path_factory.mktemp("package") / "model.pt2"
    assert export_model(model, file) < 1e-5
    return model, load_package(file, threads=2)


@pytest.mark.slow
def test_a_package_gives_the_models_predictions(package: tuple[LoadedModel, Package]) -> None:
    model, compiled = package
    assert compiled.inputs == ("x", "edge_index")
    for sizes in SIZES:
        x, edges = given(*sizes)
        graph = gnnsparse.prepare(edges, num_nodes=len(x), values="gcn", cache=False)
        want, got = model.predict(x, graph), compiled.predict(x, edges)
        torch.testing.assert_close(got.logits, want.logits)
        torch.testing.assert_close(got.probabilities, want.probabilities)


@pytest.mark.slow
def test_a_package_of_graphs_takes_one_or_several(tmp_path: Path) -> None:
    model = loaded("gin", "graph")
    assert export_model(model, tmp_path / "model.pt2") < 1e-5
    compiled = load_package(tmp_path / "model.pt2")
    compiled.warm_up()
    assert compiled.inputs == ("x", "edge_index", "graph_ptr")
    x, edges = given(20, 60)
    graph = gnnsparse.prepare(edges, num_nodes=20, cache=False)
    for offsets in ([0, 20], [0, 7, 20], [0, 3, 3, 11, 20]):
        graph_ptr = torch.tensor(offsets)
        got, want = compiled.predict(x, edges, graph_ptr), model.predict(x, graph, graph_ptr=graph_ptr)
        torch.testing.assert_close(got.logits, want.logits)
    for wrong in ([0, 21], [1, 20], [0, 9, 7, 20], []):
        with pytest.raises(ValueError, match="graph_ptr: does not ascend from 0 to 20"):
            compiled(x, edges, torch.tensor(wrong, dtype=torch.int64))


@pytest.mark.slow
def test_threads_call_one_package(package: tuple[LoadedModel, Package]) -> None:
    """More threads than calls run at once, each with graphs of its own size."""
    model, compiled = package
    module, wrong = model.for_edges(), []

    def serve(thread: int) -> None:
        for call in range(20):
            x, edges = given(100 + thread, 300 + call)
            with torch.no_grad():
                wrong.append(not torch.allclose(compiled(x, edges), module(x, edges), atol=1e-5))

    threads = [threading.Thread(target=serve, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(wrong) == 80
    assert not any(wrong)


@pytest.mark.slow
def test_what_a_package_refuses(package: tuple[LoadedModel, Package], tmp_path: Path) -> None:
    (x, edges), compiled = given(5, 9), package[1]
    for error, tensors, said in (
        (TypeError, (x,), "tensors: got 1; accepted: x, edge_index"),
        (TypeError, (x.double(), edges), "x: got a tensor of dtype torch.float64"),
        (ValueError, (x[:, :5], edges), r"x: has shape \(5, 5\); accepted: \(any, 6\)"),
        (TypeError, (x, edges.int()), "edge_index: got a tensor of dtype torch.int32"),
        (ValueError, (x[:2], edges), "edge_index: has nodes from 0 to 4; accepted: 0 to 1, the rows of x"),
        (ValueError, (x, edges - 1), "edge_index: has nodes from -1"),
    ):
        with pytest.raises(error, match=said):
            compiled(*tensors)
    file = tmp_path / "model.pt2"
    with pytest.raises(gnnsparse.inference.LoadError, match="there is no file"):
        load_package(file)
    torch.export.save(torch.export.export(torch.nn.Linear(2, 2), (torch.ones(1, 2),)), file)
    with pytest.raises(gnnsparse.inference.LoadError, match="is no package of gnnsparse export"):
        load_package(file)
    refused: dict[str, dict[str, Any]] = {
        "path: got 'model.pt'; accepted: a name that ends in .pt2": {"path": "model.pt"},
        "path: there is no folder": {"path": tmp_path / "none" / "model.pt2"},
        "edge_weight: goes without a graph": {"edge_weight": True, "graph": edges},
    }
    for said, options in refused.items():
        with pytest.raises(ValueError, match=said):
            export_model(package[0], **{"path": file, **options})


@pytest.mark.slow
def test_a_model_that_cannot_be_compiled_says_why(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="an input of an exported program, and this model attends beyond"):
        export_model(loaded("gps"), tmp_path / "model.pt2")
    broken = {"cpp.cxx": (None, "/nonexistent"), "force_disable_caches": True}
    refused = pytest.raises(ValueError, match=r"model: can't be compiled \(.*No working C\+\+ compiler found")
    with torch._inductor.config.patch(broken), refused:
        export_model(loaded("gcn"), tmp_path / "model.pt2")


def test_what_a_caller_has_to_know_of_the_training() -> None:
    scale = {"scale": {"size": [2.5, 0.5]}}
    run = {"dataset": {"transform": scale}, "edge_weights": True}
    recipe = ModelRecipe(None, "gcn", {}, 2, 2, feature_names=("size", "city=Graz"), run=run)
    lines = [
        "columns of x: size, city=Graz",
        "standardized, as in training, is to be: size (mean 2.5, deviation 0.5)",
        "warning: edges had weights in the training, and weigh 1 here; --edge-weight takes them",
    ]
    assert notes(recipe, ["x", "edge_index"]) == lines
    assert notes(recipe, ["x", "edge_index", "edge_weight"]) == notes(recipe, ["x"]) == lines[:2]
    assert notes(ModelRecipe(None, "gcn", {}, 2, 2), ["x", "edge_index"]) == []
