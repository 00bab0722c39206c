"""What layers remember of edges and of edge weights ends when the contents change, however they do."""

from __future__ import annotations

import ctypes
import gc
import multiprocessing
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from gnnsparse.nn import (
    AGNNConv,
    GATConv,
    GATv2Conv,
    GCNConv,
    GINConv,
    GraphConv,
    SAGEConv,
    TransformerConv,
)
from gnnsparse.nn.adjacency import Fingerprint
from tests.helpers import needs_installed_module

NODES = 30
LAYERS = [
    GCNConv(4, 4), AGNNConv(), SAGEConv(4, 4), GraphConv(4, 4), GINConv(torch.nn.Linear(4, 4)), GATConv(4, 4),
    GATv2Conv(4, 4), TransformerConv(4, 4),
]  # fmt: skip

#: Changes that torch's version counter does not count, of element [0, 0] or [0] of a tensor.
CHANGES: dict[str, Callable[[torch.Tensor, Any], None]] = {}


def change(function: Callable[[torch.Tensor, Any], None]) -> Callable[[torch.Tensor, Any], None]:
    CHANGES[function.__name__] = function
    return function


@change
def through_numpy(tensor: torch.Tensor, value: Any) -> None:
    tensor.numpy().flat[0] = value


@change
def through_data(tensor: torch.Tensor, value: Any) -> None:
    tensor.data.view(-1)[0] = value


@change
def through_a_view_of_data(tensor: torch.Tensor, value: Any) -> None:
    tensor.data[:].reshape(-1)[:1] = value


@change
def through_dlpack(tensor: torch.Tensor, value: Any) -> None:
    torch.from_dlpack(tensor).view(-1)[0] = value


@change
def through_the_storage(tensor: torch.Tensor, value: Any) -> None:
    np.frombuffer(
        (ctypes.c_char * tensor.nbytes).from_address(tensor.untyped_storage().data_ptr()),
        dtype=str(tensor.dtype).removeprefix("torch."),
    )[0] = value


@change
def by_another_process(tensor: torch.Tensor, value: Any) -> None:
    tensor.share_memory_()
    child = multiprocessing.get_context("fork").Process(target=through_numpy, args=(tensor, value))
    child.start()
    child.join()
    assert child.exitcode == 0


@change
def by_set(tensor: torch.Tensor, value: Any) -> None:
    other = tensor.clone()
    other.view(-1)[0] = value
    tensor.data = other


@change
def on_a_detached_alias(tensor: torch.Tensor, value: Any) -> None:
    with torch.no_grad():
        tensor.detach().view(-1)[0] = value


@change
def on_a_view(tensor: torch.Tensor, value: Any) -> None:
    tensor[:].view(-1).fill_(value)


def edges(seed: int = 0) -> torch.Tensor:
    return torch.randint(0, NODES, (2, 120), generator=torch.Generator().manual_seed(seed))


@pytest.fixture(params=["torch's", "NumPy's"])
def own(request: pytest.FixtureRequest) -> Callable[[torch.Tensor], torch.Tensor]:
    """Moves a tensor to memory of torch or of NumPy."""
    return (
        torch.clone if request.param == "torch's" else lambda tensor: torch.from_numpy(tensor.numpy().copy())
    )


@pytest.mark.parametrize("layer", LAYERS, ids=lambda layer: type(layer).__name__)
@pytest.mark.parametrize("name", CHANGES)
def test_a_change_of_the_edges_is_seen(
    name: str, layer: torch.nn.Module, own: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    index, x = own(edges()), torch.randn(NODES, 4)
    before = layer(x, index)
    CHANGES[name](index, 7)
    assert index[0, 0] == 7
    after = layer(x, index)
    assert torch.equal(after, layer(x, index.clone()))
    assert not torch.equal(after, before)


@pytest.mark.parametrize("layer", [GCNConv(4, 4), GraphConv(4, 4)], ids=lambda layer: type(layer).__name__)
@pytest.mark.parametrize("name", CHANGES)
def test_a_change_of_the_weights_is_seen(
    name: str, layer: torch.nn.Module, own: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    index, x = edges(), torch.randn(NODES, 4)
    weight = own(torch.rand(120))
    before = layer(x, index, weight)
    CHANGES[name](weight, 5.0)
    after = layer(x, index, weight)
    assert torch.equal(after, layer(x, index, weight.clone()))
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


@needs_installed_module
def test_ids_and_addresses_that_are_used_again() -> None:
    layer, x, used = GCNConv(4, 4), torch.randn(NODES, 4), []
    for seed in range(60):
        index = edges(seed)
        used.append((id(index), index.data_ptr()))
        want = layer(x, index.clone())
        assert torch.equal(layer(x, index), want)
        del index
        gc.collect()
    assert len(set(used)) < 60, "no id was used again, and nothing was tested"


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
def test_one_layer_and_edges_in_several_threads(layer: torch.nn.Module) -> None:
    """Each call has the edges that it was given, whatever the others leave behind."""
    x = torch.randn(NODES, 4)
    inputs = [edges(seed) for seed in range(4)]
    with torch.no_grad():
        want = [layer(x, index) for index in inputs]
    wrong: list[int] = []

    def work(number: int) -> None:
        with torch.no_grad():
            for step in range(20):
                which = (number + step) % 4
                if not torch.equal(layer(x, inputs[which]), want[which]):
                    wrong.append(which)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_one_layer_in_several_threads() -> None:
    """Each call has the edges and the weights that it was given, whatever the others leave behind."""
    layer, x = GCNConv(4, 4).requires_grad_(False), torch.randn(NODES, 4)
    inputs = [(edges(seed), torch.rand(120) + seed) for seed in range(4)]
    want = [GCNConv.forward(layer, x, *pair) for pair in inputs]
    wrong: list[int] = []

    def work(number: int) -> None:
        for step in range(300):
            which = (number + step) % 4
            if not torch.equal(layer(x, *inputs[which]), want[which]):
                wrong.append(which)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
