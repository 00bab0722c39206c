"""What else is done with PyG models works with accelerated ones: hooks, copies, compilation, export."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers import copies_of
from tests.interop.pyg_cases import both, close, edges_of, interop, judge, left, pyg, used
from tests.together import in_two_processes

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # inductor and torch.jit
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*(TF32|TensorFloat32).*:UserWarning"),
    pytest.mark.filterwarnings("ignore:The usage of `scatter:UserWarning"),  # PyG's, on a GPU
    pytest.mark.filterwarnings("ignore:.*[Ss]parse.*:UserWarning"),
]

NODES, WIDTH = 40, 8
LAYERS: dict[str, Callable[[], Any]] = {
    "gcn": lambda: pyg.GCNConv(WIDTH, WIDTH),
    "sage": lambda: pyg.SAGEConv(WIDTH, WIDTH),
    "gin": lambda: pyg.GINConv(torch.nn.Linear(WIDTH, WIDTH)),
    "max": lambda: pyg.SAGEConv(WIDTH, WIDTH, aggr="max"),
    "gat": lambda: pyg.GATConv(WIDTH, 4, heads=2),
    "gatv2": lambda: pyg.GATv2Conv(WIDTH, 4, heads=2),
    "transformer": lambda: pyg.TransformerConv(WIDTH, 4, heads=2),
    "agnn": lambda: pyg.AGNNConv(),
}
EVERY = pytest.mark.parametrize("name", LAYERS)


class Net(torch.nn.Module):
    """Two layers."""

    def __init__(self, make: Callable[[], Any], make_last: Callable[[], Any] | None = None) -> None:
        super().__init__()
        self.first, self.last = make(), (make_last or make)()

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        return self.last(self.first(x, edge_index).relu(), edge_index)


def pair(name: str, device: str = "cpu") -> tuple[Any, Any, torch.Tensor, torch.Tensor]:
    """A model of layers of one kind or of two, its accelerated copy, features and edges."""
    return (
        *both(Net(*(LAYERS[kind] for kind in name.split(" and "))).to(device)),
        torch.randn(NODES, WIDTH, device=device),
        edges_of(device=device),
    )


@EVERY
@given(seed=st.integers(0, 99), count=st.sampled_from([0, 1, 7, 200]))
def test_random_graphs(name: str, seed: int, count: int) -> None:
    """Repeated edges, self-loops, nodes without edges, no edges."""
    torch.manual_seed(seed)
    plain, ours = both(LAYERS[name]())
    edges, x = edges_of(seed, count), torch.randn(NODES, WIDTH)

    judge(plain, ours, x, edges)


@EVERY
def test_copies_files_and_restored_models(name: str) -> None:
    plain, ours, x, edges = pair(name)
    want = plain(x, edges)
    for other in copies_of(ours):
        close(other(x, edges), want)
        assert len(interop.report(other).accelerated) == 2
        assert type(other.first).__name__ == type(plain.first).__name__
        assert isinstance(other.first, type(plain.first))
    plain.load_state_dict(ours.state_dict())
    ours.load_state_dict(plain.state_dict())
    assert str(ours) == str(plain)
    assert type(ours.first) is not type(plain.first)
    assert interop.restore(ours) is ours
    assert type(ours.first) is type(plain.first)
    assert set(vars(ours.first)) == set(vars(plain.first))
    assert torch.equal(ours(x, edges), want)


@EVERY
def test_backend(name: str) -> None:
    plain, _, x, edges = pair(name)
    kind, want = type(plain.first), plain(x, edges)
    with pytest.raises(RuntimeError, match="stop"), interop.backend(convert="always"):  # noqa: PT012
        with interop.backend("fp16", convert="always"):
            assert (plain(x, edges) - want).abs().max() < 0.1
            assert any("fp16" in what for what in used(plain))
        close(plain(x, edges), want)
        assert type(plain.first) is not kind
        raise RuntimeError("stop")
    assert type(plain.first) is kind
    assert "__call__" not in vars(pyg.MessagePassing)
    assert torch.equal(plain(x, edges), want)


@pytest.mark.parametrize(
    ("name", "backend"),
    [
        *((name, "aot_eager") for name in LAYERS),
        pytest.param("sage and gat", "inductor", marks=pytest.mark.slow),
    ],
)
def test_torch_compile(name: str, backend: str, device: str) -> None:
    plain, ours, x, edges = pair(name, device)
    torch._dynamo.reset()
    compiled = torch.compile(ours, fullgraph=True, backend=backend)
    for model in (plain, compiled):
        model(x, edges).square().sum().backward()
    close(compiled(x, edges), plain(x, edges))
    others = dict(ours.named_parameters())
    for key, parameter in plain.named_parameters():
        assert (parameter.grad is None) == (others[key].grad is None)
        if parameter.grad is not None:
            close(others[key].grad, parameter.grad)
    other = edges_of(5, device=device)
    close(compiled(x, other), plain(x, other))


@EVERY
def test_traced_and_scripted(name: str) -> None:
    """What TensorBoard draws is a trace; both are PyG's own computation."""
    plain, ours, x, edges = pair(name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        traced = torch.jit.trace(ours, (x, edges), check_trace=False)
    other = edges_of(3)
    close(traced(x, other), plain(x, other))


@EVERY
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_autocast(name: str, dtype: torch.dtype, device: str) -> None:
    plain, ours, x, edges = pair(name, device)
    with torch.autocast(device, dtype):
        got, want = ours(x, edges), plain(x, edges)
    assert (got.float() - want.float()).norm() < 0.03 * want.float().norm()
    assert used(ours)
    assert all({torch.float16: "fp16", torch.bfloat16: "bf16"}[dtype] in what for what in used(ours))
    got.float().sum().backward()


@EVERY
def test_half_features(name: str) -> None:
    plain, ours, x, edges = pair(name)
    ours = ours.bfloat16()
    out = ours(x.bfloat16(), edges)
    assert out.dtype == torch.bfloat16
    assert all("bf16" in what for what in used(ours))
    assert (out.float() - plain(x, edges)).norm() < 0.05 * plain(x, edges).norm()
    ours = ours.double()  # of the rounded parameters
    want = interop.restore(copy.deepcopy(ours))(x.double(), edges)
    close(ours(x.double(), edges), want)
    assert "float64" in left(ours)


@pytest.mark.parametrize("part", ["propagate", "message", "aggregate"])
@EVERY
def test_hooks(name: str, part: str) -> None:
    """Hooks that are registered later see what PyG computes, and go on doing what they did."""
    plain, ours, x, edges = pair(name)
    ours(x, edges)
    seen: list[Any] = []

    def hook(layer: Any, inputs: Any, out: torch.Tensor) -> torch.Tensor:
        seen.append(out.shape)
        return out * 2

    handles = [getattr(m.first, f"register_{part}_forward_hook")(hook) for m in (plain, ours)]
    close(ours(x, edges), plain(x, edges))
    assert len(seen) == 2
    assert seen[0] == seen[1]
    assert "hooks are registered" in left(ours)
    for handle in handles:
        handle.remove()
    close(ours(x, edges), plain(x, edges))


@EVERY
def test_explainer(name: str) -> None:
    from torch_geometric.explain import Explainer, GNNExplainer

    plain, ours, x, edges = pair(name)
    masks = []
    for model in (plain, ours):
        torch.manual_seed(0)
        explainer = Explainer(
            model, GNNExplainer(epochs=3), "model", edge_mask_type="object",
            model_config={"mode": "regression", "task_level": "node", "return_type": "raw"},
        )  # fmt: skip
        masks.append(explainer(x, edges).edge_mask)
    close(masks[0], masks[1])
    close(ours(x, edges), plain(x, edges))
    interop.restore(ours)
    assert torch.equal(ours(x, edges), plain(x, edges))


def test_other_forms_of_edges() -> None:
    from torch_geometric import EdgeIndex

    for name in ("gcn", "sage", "gat", "transformer"):
        plain, ours, x, edges = pair(name)
        edges = edges.unique(dim=1).contiguous()
        close(ours(x, EdgeIndex(edges, sparse_size=(NODES, NODES))), plain(x, edges))
    plain, ours = both(pyg.GraphConv((WIDTH, WIDTH), 4))
    sources, targets = torch.randn(30, WIDTH), torch.randn(20, WIDTH)
    apart = torch.stack([torch.randint(0, 30, (90,)), torch.randint(0, 20, (90,))])
    close(ours((sources, targets), apart), plain((sources, targets), apart))
    close(ours((sources, None), apart, size=(30, 20)), plain((sources, None), apart, size=(30, 20)))


def test_weights_with_gradients() -> None:
    x, edges = torch.randn(NODES, WIDTH), edges_of()
    found = []
    for layer in both(pyg.GraphConv(WIDTH, 4)):
        weight = torch.linspace(0.1, 1, edges.shape[1]).requires_grad_()
        found.append(torch.autograd.grad(layer(x, edges, weight).square().sum(), weight)[0])
    close(*found)


def test_attention_weights() -> None:
    for name in ("gat", "gatv2", "transformer"):
        plain, ours, x, edges = pair(name)
        want, got = (m.first(x, edges, return_attention_weights=True) for m in (plain, ours))
        close(got[0], want[0])
        close(got[1][1], want[1][1])
        assert torch.equal(got[1][0], want[1][0])


class Own(pyg.MessagePassing):
    """A layer of a user."""

    def __init__(self, kind: str, **options: Any) -> None:
        super().__init__(**options)
        self.kind, self.scale = kind, 1.0

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return self.propagate(edge_index, x=x, w=w)

    def message(self, x_j: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        if self.kind == "product":
            return torch.mul(w[:, None], x_j)
        if self.kind == "kept":
            self.seen = x_j
            return w.view(-1, 1) * x_j
        if self.kind == "sum":
            return w.view(-1, 1) + x_j
        if self.kind == "broadcast":
            return w * x_j
        return x_j


@pytest.mark.parametrize(
    ("kind", "options", "fused"),
    [("plain", {}, True), ("product", {"aggr": "mean"}, True), ("sum", {}, True), ("broadcast", {}, False),
     ("kept", {}, False), ("plain", {"aggr": "mul"}, False), ("plain", {"flow": "target_to_source"}, False),
     ("product", {"aggr": "max"}, True)],
)  # fmt: skip
def test_layers_of_users(kind: str, options: dict[str, Any], fused: bool) -> None:
    """A weight [edges] that broadcasts along the features is not one of the edges, though the sizes agree."""
    layer = Own(kind, **options)
    edges = edges_of(count=WIDTH).unique(dim=1)[:, :WIDTH]
    w, x = torch.rand(edges.shape[1]), torch.randn(NODES, edges.shape[1])
    want = layer(x, edges, w)
    interop.accelerate(layer, convert="always")
    close(layer(x, edges, w), want)
    assert bool(used(layer)) == fused
    if kind == "kept":
        assert isinstance(layer.seen, torch.Tensor)


def test_hetero_models() -> None:
    metadata = (["a", "b"], [("a", "to", "b"), ("b", "back", "a"), ("a", "self", "a")])
    x = {"a": torch.randn(NODES, WIDTH), "b": torch.randn(NODES, WIDTH)}
    index = {relation: edges_of(i) for i, relation in enumerate(metadata[1])}
    for make in (lambda: pyg.SAGEConv((-1, -1), 4), lambda: pyg.GATConv((-1, -1), 4, add_self_loops=False)):
        model = pyg.to_hetero(Net(make), metadata)
        want = model(x, index)
        interop.accelerate(model, convert="always")
        got = model(x, index)
        for kind in want:
            close(got[kind], want[kind])
        assert used(model)


def test_lazy_layers() -> None:
    for kind in (pyg.GATConv, pyg.SAGEConv, pyg.TransformerConv):
        model = interop.accelerate(kind(-1, 4), convert="always")
        x, edges = torch.randn(NODES, WIDTH), edges_of()
        out = model(x, edges)
        close(model(x, edges), out)
        close(interop.restore(model)(x, edges), out)


def test_bad_arguments() -> None:
    model = pyg.GCNConv(4, 4)
    for argument, value in {"precision": "fp7", "reorder": "best", "convert": "never"}.items():
        with pytest.raises(ValueError, match=argument):
            interop.accelerate(model, **{argument: value})
    with pytest.raises(TypeError, match="model"):
        interop.accelerate([model])
    with pytest.raises(TypeError, match="cache"):
        interop.accelerate(model, cache="yes")
    interop.accelerate(model, convert="always")
    with pytest.raises(IndexError, match=r"larger|out of bounds"):  # as PyG
        model(torch.randn(3, 4), torch.tensor([[0, 5], [1, 1]]))


class Bound(torch.nn.Module):
    """A model with its graph."""

    def __init__(self, model: Any, edges: torch.Tensor) -> None:
        super().__init__()
        self.model, self.edges = model, edges

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.model(x, self.edges)


@pytest.mark.gpu
# torch's: a thread's first backward pass has no context yet, and streams differ where graphs are captured.
@pytest.mark.filterwarnings("ignore:Attempting to run cuBLAS:UserWarning")
@pytest.mark.filterwarnings("ignore:The AccumulateGrad node's stream:UserWarning")
@EVERY
def test_cuda_graphs(name: str) -> None:
    plain, ours, x, edges = pair(name, "cuda")
    x.requires_grad_()
    for _ in range(6):  # the graph is prepared in full
        ours(x, edges).sum().backward()
    replayed = torch.cuda.make_graphed_callables(Bound(ours, edges), (x.detach().clone().requires_grad_(),))
    for scale in (1.0, 2.0):
        inputs = [(x.detach() * scale).requires_grad_() for _ in range(2)]
        found = []
        for model, leaf in zip((replayed, Bound(plain, edges)), inputs, strict=True):
            out = model(leaf)
            out.square().sum().backward()
            found.append((out.detach().clone(), leaf.grad.clone()))  # the next replay writes where these lie
        for ours_found, theirs_found in zip(*found, strict=True):
            close(ours_found, theirs_found)


@pytest.mark.parametrize("options", [{}, {"beta": True}, {"bias": False}, {"root_weight": False}], ids=str)
def test_the_maps_of_a_transformer_layer_are_one_product(
    device: str, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    """Unless something watches one of them."""
    plain, ours = both(pyg.TransformerConv(12, 8, heads=2, **options).to(device))
    x, edges = torch.randn(30, 12, device=device), torch.randint(0, 30, (2, 90), device=device)
    widths = []
    linear = torch.nn.functional.linear

    def spy(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        widths.append(len(weight))
        return linear(x, weight, bias)

    monkeypatch.setattr(torch.nn.functional, "linear", spy)
    found = ours(x, edges)
    parts = 3 if options.get("root_weight") is False else 4
    assert widths[0] == parts * 16
    assert len(widths) == 1 + bool(options.get("beta"))
    close(found, plain(x, edges))
    seen = []
    ours.lin_value.register_forward_hook(lambda *_: seen.append(True))
    close(ours(x, edges), plain(x, edges))
    assert seen


# In several processes, and exported.


def _train(rank: int, folder: str) -> None:
    model, xs = torch.load(f"{folder}/given.pt", weights_only=False)
    parallel = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(parallel.parameters(), lr=0.1)
    for step in range(3):
        optimizer.zero_grad()
        parallel(xs[rank], edges_of(10 * step + rank)).square().mean().backward()
        optimizer.step()
    torch.save(model.state_dict(), f"{folder}/found{rank}.pt")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_two_processes_train_one_model(tmp_path: Path) -> None:
    """Each process has graphs of its own; the gradient is the mean of theirs."""
    plain, ours, *_ = pair("sage and gat")
    xs = [torch.randn(NODES, WIDTH), torch.randn(NODES, WIDTH)]
    torch.save((ours, xs), tmp_path / "given.pt")
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


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("name", "strict"),
    [("gcn and gat", False), ("sage", False), ("gin", False), ("gatv2", False), ("sage and gat", True)],
)
def test_exported_programs_take_any_edges(name: str, strict: bool, tmp_path: Path) -> None:
    """Read from a file, and one of them as a package of AOTInductor."""
    plain, ours, x, edges = pair(name)
    kinds = {"pyg_attention" if kind.startswith("gat") else "pyg_aggregate" for kind in name.split(" and ")}
    with torch.no_grad():
        program = torch.export.export(ours.eval(), (x, edges), strict=strict)
        assert operators(program) == {f"gnnsparse.{kind}.default" for kind in kinds}
        file = str(tmp_path / "program.pt2")
        torch.export.save(program, file)
        modules = [torch.export.load(file).module()]
        if name == "gcn and gat":
            file = str(tmp_path / "package.pt2")
            package = torch._inductor.aoti_compile_and_package(program, package_path=file)
            modules.append(torch._inductor.aoti_load_package(package))
        for module in modules:
            for seed in (0, 5):
                close(module(x, edges_of(seed)), plain(x, edges_of(seed)))


def _operators(model: torch.nn.Module) -> tuple[Any, list[str]]:
    """Return a compiled model, and the operators that it runs, once it was called."""
    found: list[str] = []

    def backend(module: torch.fx.GraphModule, _: Any) -> Any:
        found.extend(str(node.target) for node in module.graph.nodes if node.op == "call_function")
        return module

    torch._dynamo.reset()
    return torch.compile(model, fullgraph=True, backend=backend), found


@pytest.mark.parametrize(
    "make",
    [
        lambda: pyg.TransformerConv(WIDTH, 8, heads=2, dropout=0.5, root_weight=False, bias=False),
        lambda: pyg.GATConv(WIDTH, 8, heads=2, dropout=0.5, bias=False),
        lambda: pyg.GATv2Conv(WIDTH, 8, heads=2, dropout=0.5, bias=False),
    ],
)
def test_compiled_dropout_of_attention(make: Any, device: str) -> None:
    """Is right in the mean, follows torch's seed, and is the same in the backward pass."""
    torch.manual_seed(0)
    layer = interop.accelerate(make(), convert="always").to(device)
    edges = edges_of(3, 60, device=device)
    x = torch.randn(NODES, WIDTH, device=device, requires_grad=True)
    compiled, found = _operators(layer)

    def run(seed: int, x: torch.Tensor = x) -> torch.Tensor:
        torch.manual_seed(seed)
        return compiled(x, edges)

    assert torch.equal(run(1), run(1))
    assert not torch.equal(run(1), run(2))
    assert any("pyg_attention" in name for name in found)
    probe = torch.randn(NODES, 16, device=device)
    (grad,) = torch.autograd.grad((run(7) * probe).sum(), x)
    step = 1e-2 * torch.randn_like(x)
    with torch.no_grad():
        change = ((run(7, x + step) - run(7, x - step)) * probe).sum() / 2
        torch.testing.assert_close(change, (grad * step).sum(), atol=1e-3, rtol=2e-2)
        mean = sum(run(seed) for seed in range(400)) / 400
        torch.testing.assert_close(mean, layer.eval()(x, edges), atol=0.3, rtol=0)


def test_what_a_compiled_model_leaves_to_pyg_is_reported() -> None:
    layer = interop.accelerate(pyg.GATConv(WIDTH, 4), convert="always")
    compiled, found = _operators(layer)
    x, edges = torch.randn(NODES, WIDTH), edges_of(3, 60)
    out, (_, weights) = compiled(x, edges, return_attention_weights=True)
    assert "torch.compile traces attention whose weights are returned" in left(layer)
    want, (_, others) = interop.restore(layer)(x, edges, return_attention_weights=True)
    close(out, want)
    close(weights, others)
    assert not any("pyg_attention" in name for name in found)
