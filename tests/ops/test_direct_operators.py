"""torch.ops.gnnsparse.* called directly: an error that names the argument, and no read past the end."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from gnnsparse import SparseOperand
from gnnsparse.testing import random_graph
from tests.helpers import make

OPS = torch.ops.gnnsparse
ROWS, COLS, WIDTH = 20, 30, 8


@pytest.fixture
def a(device: str) -> SparseOperand:
    return make(random_graph(ROWS, COLS, 0.2, seed=1), device, precision="fp16")


def arguments(name: str, a: SparseOperand) -> dict[str, Any]:
    """Arguments that the operator takes."""

    def of(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, device=a.device)

    edges, q, k, by_head = of(a.nnz), of(ROWS, 3, WIDTH), of(COLS, 3, WIDTH), of(a.nnz, 3)
    argmax = torch.zeros(q.shape, dtype=torch.int32, device=a.device)
    attention = {
        "q": of(2, 3, ROWS, WIDTH), "k": of(2, 3, COLS, WIDTH), "v": of(2, 3, COLS, 5),
        "bias": of(1, 3, a.nnz), "seed": torch.tensor([7], device=a.device), "operand": a.handle,
        "scale": 0.5, "dropout_p": 0.25, "is_causal": False,
    }  # fmt: skip
    if name == "attention_grad":
        out, stats = OPS.attention(**attention)
        attention |= {"out": out, "stats": stats, "grad": torch.ones_like(out), "needs": [True] * 4}
    given: dict[str, dict[str, Any]] = {
        "spmm": {"x": of(COLS, WIDTH), "values": None},
        "spmm with values": {"x": of(COLS, WIDTH), "values": edges},
        "spmm_max": {"x": of(COLS, WIDTH), "values": None, "largest": False},
        "spmm_max_grad": {"grad": of(ROWS, WIDTH), "argmax": argmax[:, 0].contiguous(), "values": None},
        "sddmm": {"q": of(ROWS, WIDTH), "k": of(COLS, WIDTH)},
        "edge_softmax": {"scores": edges},
        "edge_softmax_grad": {"weights": edges.softmax(0), "grad": edges},
        "transpose_values": {"values": edges},
        "attention": attention,
        "attention_grad": attention,
        "spmm of heads": {"x": k, "values": by_head, "mean": True},
        "spmm_max of heads": {"x": k, "values": by_head, "largest": True},
        "spmm_max_grad of heads": {"grad": q, "argmax": argmax, "values": by_head},
        "spmm_max_values_grad of heads": {"grad": q, "x": k, "argmax": argmax},
        "divide_by_counts of heads": {"x": q},
        "sddmm of heads": {"q": q, "k": k},
        "edge_softmax of heads": {"scores": by_head},
        "edge_softmax_grad of heads": {"weights": by_head.softmax(0), "grad": by_head},
    }
    return given[name] | {"operand": a.handle}


def call(name: str, given: dict[str, Any]) -> Any:
    return getattr(OPS, name.split()[0])(**given)


NAMES = [
    "spmm", "spmm with values", "sddmm", "edge_softmax", "edge_softmax_grad", "transpose_values", "attention",
    "attention_grad", "spmm of heads", "spmm_max of heads", "spmm_max_grad of heads",
    "spmm_max_values_grad of heads", "divide_by_counts of heads", "sddmm of heads", "edge_softmax of heads",
    "edge_softmax_grad of heads",
]  # fmt: skip


@pytest.fixture(params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.mark.filterwarnings("ignore")  # torch's own tools warn about themselves
@pytest.mark.parametrize(
    "name", ["spmm_max", "spmm_max_grad", *(name for name in NAMES if not name.startswith("attention"))]
)
def test_opcheck(a: SparseOperand, name: str) -> None:
    """Those of attention are in its tests."""
    given, has_gradient = arguments(name, a), "_grad" not in name
    for tensor in given.values():
        if isinstance(tensor, torch.Tensor) and tensor.is_floating_point():
            tensor.requires_grad_(has_gradient)
    torch.library.opcheck(getattr(OPS, name.split()[0]).default, (), given)


def shapes_of(name: str, tensor: torch.Tensor) -> list[torch.Tensor]:
    """The tensor with each size smaller and larger by one, and with a dimension more and one less."""
    changed = [tensor[0], tensor[None]] if tensor.dim() else []
    for dim in range(tensor.dim()):
        fewer = tensor.narrow(dim, 0, tensor.shape[dim] - 1).contiguous()
        changed += [fewer, torch.cat([tensor, tensor.narrow(dim, 0, 1)], dim)]
    return changed


#: Sizes that are free: any width of X is right, for example, if nothing else has that width.
FREE = {
    ("spmm", "x", 1), ("spmm with values", "x", 1), ("attention", "v", 3), ("attention", "bias", 0),
    ("attention_grad", "bias", 0), ("spmm of heads", "x", 2), ("spmm_max of heads", "x", 2),
    ("divide_by_counts of heads", "x", 1), ("divide_by_counts of heads", "x", 2),
    ("edge_softmax of heads", "scores", 1),
}  # fmt: skip


def test_every_wrong_shape_is_refused(a: SparseOperand, name: str) -> None:
    given = arguments(name, a)
    for argument, value in given.items():
        if not isinstance(value, torch.Tensor):
            continue
        for wrong in shapes_of(name, value):
            if wrong.dim() == value.dim():
                (dim,) = [d for d in range(value.dim()) if wrong.shape[d] != value.shape[d]]
                if (name, argument, dim) in FREE and wrong.shape[dim] > 0:
                    continue
            with pytest.raises((ValueError, TypeError), match=r"^\w+: (has|got) .*; accepted: "):
                call(name, {**given, argument: wrong})


@pytest.mark.parametrize("dtype", [torch.float64, torch.int64, torch.bool, torch.complex64])
def test_every_wrong_dtype_is_refused(a: SparseOperand, name: str, dtype: torch.dtype) -> None:
    if name == "transpose_values":
        pytest.skip("values of any dtype are reordered")
    given = arguments(name, a)
    for argument, value in given.items():
        if isinstance(value, torch.Tensor) and value.dtype != dtype:
            with pytest.raises(TypeError, match=rf"^{argument}: got .*; accepted: "):
                call(name, {**given, argument: value.to(dtype)})


@pytest.mark.gpu
def test_every_wrong_device_is_refused(name: str) -> None:
    a = make(random_graph(ROWS, COLS, 0.2, seed=1), "cuda", precision="fp16")
    given = arguments(name, a)
    for argument, value in given.items():
        if isinstance(value, torch.Tensor):
            with pytest.raises(ValueError, match=r"is on cpu; accepted: cuda:0"):
                call(name, {**given, argument: value.cpu()})


def test_handles_of_no_operand_and_of_another_size(a: SparseOperand, name: str) -> None:
    given = arguments(name, a)
    dead = make(random_graph(ROWS, COLS, 0.2), str(a.device)).handle
    for handle in (dead, 10**9, -1, 2**62):
        with pytest.raises(RuntimeError, match=f"operand {handle} no longer exists"):
            call(name, {**given, "operand": handle})
    other = make(random_graph(ROWS + 1, COLS + 2, 0.3), str(a.device))
    with pytest.raises(ValueError, match=r"^\w+: has .*; accepted: "):
        call(name, {**given, "operand": other.handle})


def test_shapes_are_checked_while_torch_traces(a: SparseOperand, name: str) -> None:
    """The fake results of wrong arguments would be wrong as well."""
    if name.startswith("divide_by_counts"):
        pytest.skip("rows of any shape are divided")
    given = arguments(name, a)
    meta = {k: v.to("meta") if isinstance(v, torch.Tensor) else v for k, v in given.items()}
    call(name, meta)
    argument = next(iter(given))
    with pytest.raises(
        (ValueError, TypeError, RuntimeError), match=r"has shape|has \d+ (elements|dimensions)"
    ):
        call(name, {**meta, argument: meta[argument][..., :-1, None]})


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"seed": None}, "seed: got"),
        ({"dropout_p": 0.0}, "seed: got"),
        ({"dropout_p": 1.0}, "dropout_p: "),
        ({"dropout_p": -0.1}, "dropout_p: "),
        ({"dropout_p": float("nan")}, "dropout_p: "),
        ({"bias": None}, "needs: got True for the bias"),
    ],
)
def test_options_of_attention(a: SparseOperand, changed: dict[str, Any], message: str) -> None:
    for name in ("attention", "attention_grad"):
        if name == "attention" and "bias" in changed:
            continue
        with pytest.raises((ValueError, TypeError), match=f"^{message}"):
            call(name, {**arguments(name, a), **changed})
