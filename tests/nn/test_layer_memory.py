"""What layers remember of edges and of edge weights ends when the contents change, however they do."""

from __future__ import annotations

import ctypes
import multiprocessing
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from gnnsparse.nn import AGNNConv, GATConv, GATv2Conv, GCNConv, GINConv, GraphConv, SAGEConv, TransformerConv
from gnnsparse.nn.adjacency import Fingerprint
from tests.nn.test_graph_layers import NODES, edges
from tests.together import run_together

LAYERS = [
    GCNConv(4, 4), AGNNConv(), SAGEConv(4, 4), GraphConv(4, 4), GINConv(torch.nn.Linear(4, 4)), GATConv(4, 4),
    GATv2Conv(4, 4), TransformerConv(4, 4),
]  # fmt: skip


def takes_weights(layer: torch.nn.Module) -> bool:
    return isinstance(layer, (GCNConv, GraphConv))


def through_numpy(tensor: torch.Tensor, value: Any) -> None:
    tensor.numpy().flat[0] = value


def through_the_storage(tensor: torch.Tensor, value: Any) -> None:
    np.frombuffer(
        (ctypes.c_char * tensor.nbytes).from_address(tensor.untyped_storage().data_ptr()),
        dtype=str(tensor.dtype).removeprefix("torch."),
    )[0] = value


def by_another_process(tensor: torch.Tensor, value: Any) -> None:
    tensor.share_memory_()
    child = multiprocessing.get_context("fork").Process(target=through_numpy, args=(tensor, value))
    child.start()
    child.join()
    assert child.exitcode == 0


def by_set(tensor: torch.Tensor, value: Any) -> None:
    other = tensor.clone()
    other.view(-1)[0] = value
    tensor.data = other


@torch.no_grad()
def on_a_detached_alias(tensor: torch.Tensor, value: Any) -> None:
    tensor.detach().view(-1)[0] = value


#: Changes of element [0, 0] or [0] of a tensor, most of which torch's version counter does not count.
CHANGES: dict[str, Callable[[torch.Tensor, Any], Any]] = {
    "through_numpy": through_numpy,
    "through_data": lambda tensor, value: tensor.data.view(-1)[:1].fill_(value),
    "through_dlpack": lambda tensor, value: torch.from_dlpack(tensor).view(-1)[:1].fill_(value),
    "through_the_storage": through_the_storage,
    "by_another_process": by_another_process,
    "by_set": by_set,
    "on_a_detached_alias": on_a_detached_alias,
    "on_a_view": lambda tensor, value: tensor[:].view(-1).fill_(value),
}


@pytest.fixture(params=["torch's", "NumPy's"])
def own(request: pytest.FixtureRequest) -> Callable[[torch.Tensor], torch.Tensor]:
    """Moves a tensor to memory of torch or of NumPy."""
    return (
        torch.clone if request.param == "torch's" else lambda tensor: torch.from_numpy(tensor.numpy().copy())
    )


@pytest.mark.parametrize(
    ("layer", "weighted"),
    [(layer, False) for layer in LAYERS] + [(layer, True) for layer in LAYERS if takes_weights(layer)],
    ids=lambda value: type(value).__name__,
)
@pytest.mark.parametrize("name", CHANGES)
def test_a_change_of_edges_or_weights_is_seen(
    name: str, layer: torch.nn.Module, weighted: bool, own: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    x, given = torch.randn(NODES, 4), [own(edges()), *([own(torch.rand(120))] if weighted else [])]
    before = layer(x, *given)
    CHANGES[name](given[-1], 7)
    assert given[-1].flatten()[0] == 7
    after = layer(x, *given)
    assert torch.equal(after, layer(x, *(tensor.clone() for tensor in given)))
    assert not torch.equal(after, before)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_weights_of_every_dtype(dtype: torch.dtype) -> None:
    layer, index, x = GCNConv(4, 4), edges(), torch.randn(NODES, 4)
    weight = torch.rand(120).to(dtype)
    before = layer(x, index, weight)
    assert torch.equal(layer(x, index, weight), before)
    weight.data[3] = 4
    assert not torch.equal(layer(x, index, weight), before)


@pytest.mark.parametrize("view", [lambda t: t[:, :], lambda t: t.t().contiguous().t(), lambda t: t[:, ::2]])
def test_a_view_made_for_each_call(view: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Its contents are compared, and neither its identity nor its strides."""
    layer, index, x = GCNConv(4, 4), torch.from_numpy(edges().numpy()), torch.randn(NODES, 4)
    before = layer(x, view(index))
    kept = layer._memo._entry
    assert torch.equal(layer(x, view(index)), before)
    assert layer._memo._entry is kept
    index.numpy()[1, 0] = (index[1, 0] + 1) % NODES
    after = layer(x, view(index))
    assert not torch.equal(after, before)
    assert torch.equal(after, GCNConv.forward(layer, x, view(index).clone()))


def test_the_same_bytes_in_another_order_or_dtype() -> None:
    """[2, 3] and its transpose's memory hold the same bytes, as do int64 [2, 2] and int32 [2, 4]."""
    one = torch.arange(4).reshape(2, 2)
    assert not Fingerprint(one).equals(Fingerprint(one.t()))
    assert not Fingerprint(one).equals(Fingerprint(one.view(torch.int32)))
    assert not Fingerprint(one).equals(Fingerprint(one.reshape(4)))
    assert not Fingerprint(one).equals(Fingerprint(None))
    assert not Fingerprint(None).equals(Fingerprint(one))
    assert Fingerprint(None).equals(Fingerprint(None))
    assert Fingerprint(one).equals(Fingerprint(one.clone()))


def test_what_is_compared_where_contents_are_not() -> None:
    """Tensors on a GPU, for which meta tensors stand: the object, its version, its place."""
    tensor = torch.empty(2, 9, device="meta", dtype=torch.int64)
    seen = Fingerprint(tensor)
    assert seen.equals(Fingerprint(tensor))
    assert not seen.equals(Fingerprint(tensor.clone()))
    tensor.data = tensor[:, :5]
    assert not seen.equals(Fingerprint(tensor))
    seen = Fingerprint(tensor)
    tensor[0] = 1
    assert not seen.equals(Fingerprint(tensor))
    with torch.inference_mode():
        made = torch.empty(3, device="meta")
        assert not Fingerprint(made).equals(Fingerprint(made))
    lost = Fingerprint(torch.empty(2, 9, device="meta"))
    assert not lost.equals(lost)


@pytest.mark.parametrize("layer", LAYERS, ids=lambda layer: type(layer).__name__)
def test_one_layer_in_several_threads(layer: torch.nn.Module) -> None:
    """Each call has the edges and the weights that it was given, whatever the others leave behind."""
    weighted = takes_weights(layer)
    x = torch.randn(NODES, 4)
    inputs = [(edges(seed), *([torch.rand(120) + seed] if weighted else [])) for seed in range(4)]
    with torch.no_grad():
        want = [layer(x, *given) for given in inputs]

    def work(number: int, barrier: threading.Barrier) -> None:
        barrier.wait()
        with torch.no_grad():
            for step in range(300 if weighted else 20):
                which = (number + step) % 4
                assert torch.equal(layer(x, *inputs[which]), want[which])

    run_together(4, work)
