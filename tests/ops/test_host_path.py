"""What is checked or made ready once between `A @ x` and the kernel; native functions are recorded."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

import gnnsparse
from gnnsparse.plan import Plan, WindowPlan
from gnnsparse.testing import random_graph
from tests.gpu_paths import RecordingPath, View


def operand(**options: Any) -> gnnsparse.SparseOperand:
    graph = random_graph(200, 200, 0.05, weighted=False)
    return gnnsparse.prepare(graph, cache=False, **{"values": "gcn", "precision": "fp16", **options})


@pytest.mark.parametrize("kernel", ["panel", "window", "csr"])
def test_every_call_hands_over_its_own_memory(kernel: str, recorded: RecordingPath) -> None:
    a, plan = operand(), Plan(kernel)
    if not isinstance(plan, WindowPlan):
        plan = replace(plan, prescale=False)
    xs = [torch.randn(200, 64).half() for _ in range(3)]
    ys = [gnnsparse.spmm(a, x, plan=plan) for x in xs]
    assert recorded.names() == [f"cuda_spmm_{kernel}"] * 3
    views = recorded.views()
    assert [v.memory for v in views[0::2]] == [(x.data_ptr(), 64, torch.float16) for x in xs]
    assert [v.memory for v in views[1::2]] == [(y.data_ptr(), 64, torch.float16) for y in ys]
    assert all(77 in arguments for _, arguments in recorded.calls)
    assert {(y.shape, y.dtype) for y in ys} == {(torch.Size([200, 64]), torch.float16)}


def test_cut_rows_get_a_workspace_of_their_own(recorded: RecordingPath) -> None:
    graph = random_graph(200, 200, 0.3, weighted=False)
    a, plan = gnnsparse.prepare(graph, precision="fp16", cache=False), Plan("csr", row_limit=8)
    x = torch.randn(200, 64).half()
    made: list[torch.Tensor] = []
    empty = torch.empty
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "empty", lambda *s, **o: (made.append(empty(*s, **o)), made[-1])[1])
        for _ in range(2):
            gnnsparse.spmm(a, x, plan=plan)
    workspaces = [t for t in made if t.dtype == torch.float32]
    assert len(workspaces) == 2
    for (_, arguments), workspace in zip(recorded.calls, workspaces, strict=True):
        assert arguments[-3].data_ptr() == workspace.data_ptr()


@pytest.mark.parametrize("odd", ["float32", "transposed", "offset", "narrow", "wide"])
def test_operands_that_are_not_ready_are_packed(odd: str, recorded: RecordingPath) -> None:
    x = {
        "float32": lambda: torch.randn(200, 64),
        "transposed": lambda: torch.randn(64, 200).half().T,
        "offset": lambda: torch.randn(200 * 64 + 1).half()[1:].view(200, 64),
        "narrow": lambda: torch.randn(200, 61).half(),
        "wide": lambda: torch.randn(200, 101).half(),
    }[odd]()
    a, width = operand(), x.shape[1]
    _ = a @ torch.randn(200, width).half()[:, :64]  # what is ready in one call says nothing of the next
    recorded.calls.clear()
    for _ in range(2):
        y = a @ x
        assert y.dtype == x.dtype
    assert recorded.names() == ["cuda_pack", recorded.names()[1]] * 2
    (_, pack), (_, product) = recorded.calls[-2:]
    assert (pack[0].data_ptr(), pack[0].dtype, pack[0].stride()) == (x.data_ptr(), x.dtype, x.stride())
    packed = next(v for v in pack if isinstance(v, View))
    address, stride, _ = packed.memory
    # Rows of several slices are whole sectors of 32 bytes, others whole vectors of 16.
    assert stride == {61: 64, 64: 64, 101: 112}[width]
    assert address % 16 == 0
    assert packed in product


@pytest.mark.parametrize(("width", "copied"), [(56, False), (136, True), (144, False)])
def test_half_sectors_are_copied_where_rows_are_read_often(
    width: int, copied: bool, recorded: RecordingPath
) -> None:
    """Rows of one slice touch no more sectors, rows of 144 elements are whole sectors."""
    dense = gnnsparse.prepare(random_graph(2400, 32, 0.9), precision="fp16", cache=False)
    thin = gnnsparse.prepare(random_graph(2000, 32, 0.9), precision="fp16", cache=False)
    x, plan = torch.randn(32, width).half(), Plan("panel", height=32)
    for a, packs in ((dense, copied), (thin, False)):
        recorded.calls.clear()
        _ = gnnsparse.spmm(a, x, plan=plan)
        assert recorded.names() == ["cuda_pack"] * packs + ["cuda_spmm_panel"]
    recorded.calls.clear()
    _ = gnnsparse.spmm(dense, torch.empty(32, 144).half()[:, :width], plan=plan)
    assert "cuda_pack" not in recorded.names()


@pytest.mark.parametrize("prescale", [True, False])
@pytest.mark.parametrize("weights", ["gcn", None])
def test_tf32_is_rounded_once_where_the_plan_says_so(
    prescale: bool, weights: str | None, recorded: RecordingPath
) -> None:
    """By the pass over X that panels are given then; otherwise they round what they read."""
    a = operand(precision="tf32", values=weights)
    _ = gnnsparse.spmm(a, torch.randn(200, 64), plan=Plan("panel", prescale=prescale))
    assert recorded.names() == ["cuda_pack"] * prescale + ["cuda_spmm_panel"]
    product = recorded.calls[-1][1]
    assert [v.rounded for v in product if isinstance(v, View)] == [prescale, False]


def test_the_device_of_the_operand_becomes_the_current_one(recorded: RecordingPath) -> None:
    a, x = operand(), torch.randn(200, 64).half()
    _ = a @ x
    assert recorded.switched == []
    recorded.current_index = 1
    _ = a @ x
    assert recorded.switched == [x.device]


@pytest.mark.parametrize("kernel", ["panel", "window", "csr"])
def test_sddmm(kernel: str, recorded: RecordingPath) -> None:
    a, plan = operand(), Plan(kernel, height=16) if kernel == "panel" else Plan(kernel)
    q, k = torch.randn(200, 64).half(), torch.randn(200, 64)
    out = gnnsparse.sddmm(a, q, k, plan=plan)
    assert recorded.names() == ["cuda_pack", f"cuda_sddmm_{kernel}"]
    assert out.data_ptr() in recorded.addresses()
    assert q.data_ptr() in [view.memory[0] for view in recorded.views()]


def test_edge_values_take_the_place_of_the_weights(recorded: RecordingPath) -> None:
    a, x = operand(), torch.randn(200, 64).half()
    values = torch.randn(a.nnz).half()
    for _ in range(2):
        gnnsparse.spmm(a, x, values)
        assert recorded.names()[-1] in ("cuda_spmm_csr", "cuda_spmm_window")
        assert values.data_ptr() in recorded.addresses()
    with pytest.raises(ValueError, match="panels hold no place for edge values"):
        gnnsparse.spmm(a, x, values, plan=Plan("panel"))


# The checks, on the CPU
