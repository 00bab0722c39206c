"""Attention by FlashAttention-4, for which a stand-in computes, and by FlexAttention as it is."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from types import ModuleType
from typing import Any, NamedTuple

import pytest
import torch
from torch.nn.attention.flex_attention import create_block_mask

import gnnsparse
from gnnsparse import SparseGraph, SparseOperand, masks
from gnnsparse.formats.tiles import count_tiles
from gnnsparse.ops.attention import libraries, schema
from gnnsparse.ops.attention.api import _named_plan
from gnnsparse.plan import AttentionGradPlan, AttentionPlan, BlockAttentionPlan, FlashPlan, FlexPlan
from gnnsparse.plan import attention as plans
from gnnsparse.plan.gpu_records.record import GpuRecord, TileRates, record_for, using
from gnnsparse.runtime import device as device_module
from gnnsparse.testing import random_graph
from tests import emulated
from tests.gpu_paths import H200, StandInPath
from tests.helpers import make
from tests.ops.attention_oracle import exact, make_case, run

pytestmark = pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")

KEPT = torch.tensor([[1, 0, 1, 1], [0, 0, 0, 0], [1, 1, 0, 1]]) != 0
SQUARE = lambda: masks.block(KEPT[:, :3], 128)  # noqa: E731
TILES = {
    "blocks": lambda: masks.block(torch.nn.functional.pad(KEPT, (0, 1)), 128),
    "window": lambda: masks.window(300, 70),
    "causal": lambda: masks.causal(200),
    "full": lambda: masks.full(130),
}
OTHERS = {
    "graph": lambda: random_graph(300, 270, 0.1, hubs=2, empty_rows=0.2),
    "cut blocks": lambda: masks.block(KEPT, 128, 300, 500),
    "no edge": lambda: SparseGraph.from_edge_index(torch.empty(2, 0, dtype=torch.int64), (5, 5)),
}


class BlockSparseTensorsTorch(NamedTuple):
    """The fields of FlashAttention-4's class of that name that are given."""

    mask_block_cnt: torch.Tensor
    mask_block_idx: torch.Tensor
    full_block_cnt: torch.Tensor
    full_block_idx: torch.Tensor
    block_size: tuple[int, int]


class Flash:
    """FlashAttention-4 in float64; `wrong` is what it adds to the gradient of k, `calls` the patterns."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.wrong = 0.0

    def _scores(
        self, q: torch.Tensor, k: torch.Tensor, scale: float, transposed: bool,
        blocks: BlockSparseTensorsTorch | None = None, left: int | None = None, right: int | None = None,
    ) -> torch.Tensor:  # fmt: skip
        self.calls.append("band" if blocks is None else "blocks")
        rows, cols = q.shape[1], k.shape[1]
        if blocks is None:
            far = torch.arange(cols) - torch.arange(rows)[:, None] - (cols - rows)
            seen = (far >= -(rows if left is None else left)) & (far <= (cols if right is None else right))
        else:
            assert blocks.block_size == (128, 128)
            assert not blocks.mask_block_cnt.any()
            count, most = blocks.full_block_idx.shape[2:]
            assert blocks.full_block_cnt.shape == (1, 1, count)
            kept = torch.zeros(count, (rows if transposed else cols) // 128, dtype=torch.bool)
            for i, number in enumerate(blocks.full_block_cnt[0, 0].tolist()):
                assert number <= most
                kept[i, blocks.full_block_idx[0, 0, i, :number].long()] = True
            kept = kept.T if transposed else kept
            seen = kept.repeat_interleave(128, 0).repeat_interleave(128, 1)
        scores = torch.einsum("bihd,bjhd->bhij", q.double(), k.double()) * scale
        return scores.masked_fill(~seen, -torch.inf)

    def forward(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, softmax_scale: float, out: torch.Tensor,
        lse: torch.Tensor, return_lse: bool, window_size_left: int | None = None,
        window_size_right: int | None = None, block_sparse_tensors: Any = None,
    ) -> None:  # fmt: skip
        assert return_lse
        assert q.dtype == k.dtype == v.dtype == out.dtype
        scores = self._scores(
            q, k, softmax_scale, False, block_sparse_tensors, window_size_left, window_size_right
        )
        lse.copy_(scores.logsumexp(-1))
        # Rows without edges are NaN.
        out.copy_(torch.einsum("bhij,bjhd->bihd", scores.softmax(-1), v.double()))

    def backward(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor, grad: torch.Tensor,
        lse: torch.Tensor, *, softmax_scale: float, dq: torch.Tensor, dk: torch.Tensor,
        dv: torch.Tensor, deterministic: bool = False, window_size_left: int | None = None,
        window_size_right: int | None = None, block_sparse_tensors: Any = None,
    ) -> None:  # fmt: skip
        assert block_sparse_tensors is None or not deterministic
        scores = self._scores(
            q, k, softmax_scale, True, block_sparse_tensors, window_size_left, window_size_right
        )
        weights = (scores - lse.double()[..., None]).exp().nan_to_num()  # of rows without edges
        g = grad.double()
        delta = (g * out.double()).sum(-1).transpose(1, 2)[..., None]
        inner = weights * (torch.einsum("bihd,bjhd->bhij", g, v.double()) - delta) * softmax_scale
        dq.copy_(torch.einsum("bhij,bjhd->bihd", inner, k.double()))
        dk.copy_(torch.einsum("bhij,bihd->bjhd", inner, q.double()) + self.wrong)
        dv.copy_(torch.einsum("bhij,bihd->bjhd", weights, g))


@pytest.fixture
def flash(monkeypatch: pytest.MonkeyPatch) -> Iterator[Flash]:
    """The stand-in in place of the package, and no comparison made before."""
    stand_in = Flash()
    parts = {name: ModuleType(f"flash_attn.cute.{name}") for name in ("interface", "block_sparsity")}
    parts["interface"]._flash_attn_fwd = stand_in.forward  # type: ignore[attr-defined]
    parts["interface"]._flash_attn_bwd = stand_in.backward  # type: ignore[attr-defined]
    parts["block_sparsity"].BlockSparseTensorsTorch = BlockSparseTensorsTorch  # type: ignore[attr-defined]
    for name, module in parts.items():
        monkeypatch.setitem(sys.modules, f"flash_attn.cute.{name}", module)
    monkeypatch.setattr(plans, "TILE_FAULTS", {})
    monkeypatch.setattr(libraries, "TILE_FAULTS", plans.TILE_FAULTS)
    plans.import_problem.cache_clear()
    yield stand_in
    plans.import_problem.cache_clear()


@pytest.fixture(autouse=True)
def gpu() -> Iterator[None]:
    """Operands on the CPU take a GPU's path, on which no kernel of this package runs."""
    with device_module.use(StandInPath(None)):
        yield


def on_gpu(graph: SparseGraph, **options: Any) -> SparseOperand:
    return make(graph, "cpu", **{"precision": "fp16", "reorder": "none", **options})


def check(a: SparseOperand, impl: str, **options: Any) -> None:
    sizes = options.pop("sizes", (16, 24))
    case = make_case(a, *sizes, lead=(2, 2), **options)
    bound = 8 * torch.finfo(a.precision.storage).eps
    for found, want in zip(run(a, case, impl=impl), exact(a, case), strict=True):
        assert found.dtype == case.q.dtype
        assert float((found.double() - want).norm()) <= bound * float(want.norm())


@pytest.mark.parametrize("pattern", TILES)
@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_flash_attention_is_exact(
    flash: Flash, pattern: str, precision: str, caplog: pytest.LogCaptureFixture
) -> None:
    a = on_gpu(TILES[pattern](), precision=precision)
    check(a, "fa4", scale=None if precision == "fp16" else 0.7)
    assert set(flash.calls) == {"blocks" if pattern == "blocks" else "band"}
    assert [line.getMessage().split(":")[0] for line in caplog.records] == ["attention by fa4"]


def test_a_plan_of_a_library_runs_where_no_record_has_its_rates(flash: Flash) -> None:
    a, x = on_gpu(SQUARE()), torch.randn(384, 16)
    named = gnnsparse.attention(a, x, x, x, impl="fa4")
    assert torch.equal(gnnsparse.attention(a, x, x, x, plan=FlashPlan()), named)
    with pytest.raises(ValueError, match="fa4 can't run here: no bias"):
        gnnsparse.attention(a, x, x, x, plan=FlashPlan(), is_causal=True)


def test_after_an_error_flash_attention_is_not_called_again(
    flash: Flash, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def fail(*_: Any, **__: Any) -> None:
        calls.append(1)
        raise RuntimeError("Got Cuda Runtime Error")

    monkeypatch.setattr(sys.modules["flash_attn.cute.interface"], "_flash_attn_fwd", fail)
    x, said = torch.randn(384, 16), "it raised RuntimeError: Got Cuda"
    with pytest.warns(RuntimeWarning, match=said), pytest.raises(ValueError, match=said):
        gnnsparse.attention(on_gpu(SQUARE()), x, x, x, impl="fa4")
    for a in (on_gpu(SQUARE(), precision="bf16"), on_gpu(masks.window(384, 100))):
        with pytest.raises(ValueError, match=said):
            gnnsparse.attention(a, x, x, x, impl="fa4")
    assert calls == [1]


def dense(a: SparseOperand) -> torch.Tensor:
    return a.to_dense() != 0


@pytest.mark.parametrize("pattern", [*TILES, "graph", "cut blocks"])
def test_flex_attention_is_exact(pattern: str) -> None:
    """On a CPU it has no gradients, and reads the pattern alone, not the lists of tiles."""
    a = on_gpu({**TILES, **OTHERS}[pattern]())
    case = make_case(a, 16, 24, lead=(1, 2), scale=-0.4 if pattern == "graph" else None, dtype=torch.float16)
    out, sums = libraries._flex_forward(a.kernels, (case.q, case.k, case.v), case.factor)
    scores = (case.q.double() @ case.k.double().mT * case.factor).masked_fill(~dense(a), -torch.inf)
    want = exact(a, case)[0]
    assert float((out.double() - want).norm()) <= 0.002 * float(want.norm())
    assert torch.allclose(sums.double(), scores.logsumexp(-1), atol=1e-3)


@pytest.mark.parametrize("pattern", [*TILES, "graph", "cut blocks"])
def test_tiles_of_flex_attention(pattern: str) -> None:
    """Its own lists, made from the dense pattern, are the same."""
    a = on_gpu({**TILES, **OTHERS}[pattern]())
    found, pattern_of = libraries._block_mask(a.kernels), dense(a)

    def has_edge(batch: Any, head: Any, row: torch.Tensor, column: torch.Tensor) -> torch.Tensor:
        return pattern_of[row, column]

    want = create_block_mask(has_edge, None, None, *a.shape, device="cpu", BLOCK_SIZE=128)
    assert found.shape == want.shape
    assert torch.equal(found.to_dense(), want.to_dense())
    for name in ("kv_num_blocks", "full_kv_num_blocks", "q_num_blocks", "full_q_num_blocks"):
        assert torch.equal(getattr(found, name), getattr(want, name)), name


@pytest.mark.parametrize("pattern", [*TILES, "graph", "cut blocks"])
def test_gradients_by_flex_attention(monkeypatch: pytest.MonkeyPatch, flash: Flash, pattern: str) -> None:
    def flex(
        q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, block_mask: Any, scale: float, lse: bool
    ) -> tuple[torch.Tensor, torch.Tensor]:
        rows, cols = torch.meshgrid(torch.arange(q.shape[2]), torch.arange(k.shape[2]), indexing="ij")
        seen = block_mask.mask_mod(0, 0, rows, cols)
        scores = (q.double() @ k.double().mT * scale).masked_fill(~seen, -1e300)
        out = scores.softmax(-1).masked_fill(~seen, 0) @ v.double()
        return out.to(q.dtype), scores.logsumexp(-1).float()

    monkeypatch.setattr(libraries, "_flex", lambda compiled: (flex, {"lse": True}))
    check(on_gpu({**TILES, **OTHERS}[pattern](), precision="bf16"), "flex")
    assert not flash.calls


def test_what_the_libraries_do_not_take(flash: Flash) -> None:
    x = torch.randn(384, 16)
    a = on_gpu(SQUARE())

    def refused(a: SparseOperand, match: str, impl: str = "fa4", **options: Any) -> None:
        with pytest.raises(ValueError, match=match):
            gnnsparse.attention(a, options.pop("x", x), x, x, impl=impl, **options)

    refused(a, "impl: 'fa4' can't run: no bias, dropout or causal mask over tiles", is_causal=True)
    refused(a, "'flex' can't run: no bias, dropout", impl="flex", dropout_p=0.5)
    refused(a, "'fa4' stores no weights", return_weights=True)
    refused(a, "'flex' stores no weights, has no fused=False", impl="flex", fused=False)
    refused(a, "plan: got one with impl='fa4'", plan=AttentionPlan())
    refused(a, "it takes scales above 0", scale=-1.0)
    refused(
        a, "impl: got 'fa5'; accepted: auto, cuda, cpu, reference, panels, csr, blocks, flex, fa4", impl="fa5"
    )
    refused(on_gpu(SQUARE(), precision="tf32"), "no tf32 over tiles")
    refused(on_gpu(SQUARE(), precision="int8"), "stored in 8 bits")
    refused(on_gpu(masks.dilated(384, 300, 2)), r"\d tiles are partial, and the pattern is no band")
    scattered = on_gpu(SQUARE(), reorder="degree")
    refused(scattered, "rows were reordered")
    with pytest.raises(ValueError, match="features are a multiple of 8"):
        gnnsparse.attention(a, x[:, :12], x[:, :12], x, impl="fa4")
    assert not flash.calls


def test_kernels_of_a_gpu_do_not_run_on_a_cpu() -> None:
    x = torch.randn(200, 16)
    with device_module.use(device_module.CudaPath()), pytest.raises(ValueError, match="operand is on cpu"):
        gnnsparse.attention(on_gpu(masks.causal(200)), x, x, x, impl="panels")


def test_a_package_that_is_not_there(monkeypatch: pytest.MonkeyPatch, flash: Flash) -> None:
    monkeypatch.setitem(sys.modules, "flash_attn.cute.interface", None)
    x = torch.randn(200, 16)
    with pytest.raises(ValueError, match=r"flash_attn\.cute\.interface can't be imported \(ModuleNotFound"):
        gnnsparse.attention(on_gpu(masks.causal(200)), x, x, x, impl="fa4")


RATES = {
    "panels": TileRates((4.0, 1.0), (4.0, 1.0)),
    "blocks": TileRates((3.0, 3.0), (3.0, 3.0)),
    "fa4": TileRates((2.0, 2.0), (2.0, 2.0)),
}


def record(**rates: TileRates) -> GpuRecord:
    known = record_for(H200)
    return replace(known, attention=replace(known.attention, tiles={**RATES, **rates}))


def without_rates() -> GpuRecord:
    known = record_for(H200)
    return replace(known, attention=replace(known.attention, tiles={}))


def plan_of(a: SparseOperand, **options: Any) -> Any:
    return a.plan(64, **{"op": "attention", "heads": 4, **options})


def test_the_fastest_by_the_record_is_planned(flash: Flash) -> None:
    with using(record()):
        blocks = on_gpu(TILES["blocks"]())
        assert isinstance(plan_of(blocks), FlashPlan)
        assert plan_of(blocks).reasons[0] == "by the record: panels 96 us, blocks 72 us, fa4 48 us"
        assert isinstance(plan_of(blocks, op="attention_grad"), FlashPlan)
        assert isinstance(plan_of(on_gpu(masks.window(900, 300))), FlashPlan)
        assert isinstance(plan_of(on_gpu(masks.window(900, 40))), AttentionPlan)  # of partial tiles alone
        assert isinstance(plan_of(blocks, has_score_terms=True), AttentionPlan)
        cut = on_gpu(masks.block(torch.ones(4, 4) != 0, 96))
        assert isinstance(plan_of(cut), FlashPlan)  # full, so a band
        whole = on_gpu(TILES["blocks"](), reorder="degree")
        assert isinstance(plan_of(whole), BlockAttentionPlan)
        assert "; no fa4: the operand's rows were reordered" in plan_of(whole).reasons[0]
    with using(record(flex=TileRates((1.0, 1.0), (1.0, 1.0)))):
        assert isinstance(plan_of(on_gpu(TILES["blocks"]())), FlexPlan)
        # Gradients of blocks, too, on Hopper alone.
        reordered = on_gpu(TILES["blocks"](), reorder="degree")
        assert isinstance(plan_of(reordered, op="attention_grad"), BlockAttentionPlan)
    with using(record()), device_module.use(StandInPath(None, device=replace(H200, capability=(10, 0)))):
        reordered = on_gpu(TILES["blocks"](), reorder="degree")
        assert isinstance(plan_of(reordered), BlockAttentionPlan)
        assert isinstance(plan_of(reordered, op="attention_grad"), AttentionGradPlan)
    with using(without_rates()):
        assert isinstance(plan_of(on_gpu(TILES["blocks"]())), AttentionPlan)


@pytest.mark.parametrize(("impl", "name"), [("auto", "blocks"), ("blocks", "blocks"), ("panels", "panel")])
def test_the_planned_kernel_runs_and_its_gradients(module: ModuleType, impl: str, name: str) -> None:
    with emulated.running(module) as native, using(record(fa4=TileRates((9.0, 9.0), (9.0, 9.0)))):
        check(on_gpu(SQUARE()), impl)
    assert native.called
    assert all(
        called.startswith(f"cuda_attention_{name}") for called in native.called if "attention_" in called
    )


def test_libraries_without_rates_are_not_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(module: str) -> str:
        raise AssertionError(module)

    monkeypatch.setattr(plans, "import_problem", fail)
    known = record_for(H200)
    own = {name: RATES[name] for name in ("panels", "blocks")}
    with using(replace(known, attention=replace(known.attention, tiles=own))):
        for op in ("attention", "attention_grad"):
            assert isinstance(plan_of(on_gpu(TILES["blocks"]()), op=op), BlockAttentionPlan)


def test_tiles_are_not_counted_without_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(csr: Any) -> Any:
        raise AssertionError("counted")

    monkeypatch.setattr("gnnsparse.sparse.kernel_cache.count_tiles", fail)
    with using(without_rates()):
        plan = plan_of(on_gpu(TILES["blocks"]()))
    assert isinstance(plan, AttentionPlan)
    assert not any(name in str(plan) for name in ("blocks", "fa4", "flex"))
    with using(record()):  # of a graph, whose tiles would be nearly empty
        assert isinstance(plan_of(on_gpu(random_graph(300, 300, 0.05))), AttentionPlan)
        strips = on_gpu(masks.vector_wise(512, 0.9, 16, seed=0))
        with pytest.raises(AssertionError, match="counted"):
            plan_of(strips)
        monkeypatch.setattr("gnnsparse.sparse.kernel_cache.count_tiles", count_tiles)
        assert "by the record" not in str(plan_of(strips))  # all of its tiles are partial, and a tenth full
        monkeypatch.setattr("gnnsparse.sparse.kernel_cache.count_tiles", fail)
        with pytest.raises(AssertionError, match="counted"):
            plan_of(on_gpu(TILES["blocks"]()))


def test_wrong_gradients_are_refused(flash: Flash) -> None:
    flash.wrong = 0.5
    a, x = on_gpu(SQUARE()), torch.randn(384, 64)
    with using(record()):
        assert isinstance(plan_of(a), FlashPlan)
        call = libraries.AttentionCall(a, *3 * [x.expand(1, 4, -1, -1)], None, None, 0.1, 0.0, False)
        for op in ("attention", "attention_grad"):
            kernels = a.kernels.plan_of(call.product(op), a.T.kernels if op == "attention_grad" else None)
            assert isinstance(kernels, FlashPlan)
    with using(record()), pytest.warns(RuntimeWarning, match="fa4: its gradients of k are wrong by"):
        other = libraries.settled(call, FlashPlan(), "attention")
    assert isinstance(other, BlockAttentionPlan)
    assert "blocks 48 us; no fa4: its gradients of k are wrong by" in other.reasons[0]
    calls = len(flash.calls)
    with using(record()):  # once alone, and without a warning
        assert not isinstance(libraries.settled(call, FlashPlan(), "attention_grad"), FlashPlan)
        assert isinstance(plan_of(on_gpu(TILES["blocks"]())), BlockAttentionPlan)
        with pytest.raises(ValueError, match="'fa4' can't run: its gradients of k are wrong"):
            gnnsparse.attention(a, x, x, x, impl="fa4")
    assert len(flash.calls) == calls


def test_a_call_that_raises_is_refused(flash: Flash, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(sys.modules["flash_attn.cute.block_sparsity"], "BlockSparseTensorsTorch")
    a, x = on_gpu(SQUARE()), torch.randn(384, 16)
    with (
        pytest.warns(RuntimeWarning, match="raised AttributeError"),
        pytest.raises(ValueError, match="raised"),
    ):
        gnnsparse.attention(a, x, x, x, impl="fa4")


def test_results_that_must_repeat(flash: Flash, monkeypatch: pytest.MonkeyPatch) -> None:
    a, x = on_gpu(SQUARE()), torch.randn(1, 1, 384, 16)
    call = libraries.AttentionCall(a, x, x, x, None, None, 0.1, 0.0, False)
    window = replace(call, operand=on_gpu(masks.window(384, 100)))
    monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: True)
    assert not libraries.why_not(window, FlashPlan(), backward=True)
    assert "not the same bits" in libraries.why_not(call, FlashPlan(), backward=True)
    assert not libraries.why_not(call, FlashPlan())


def test_gradients_of_a_named_kernel_are_its_own(flash: Flash) -> None:
    a, x = on_gpu(SQUARE()), torch.randn(1, 4, 384, 64)
    call = libraries.AttentionCall(a, x, x, x, None, None, 0.1, 0.0, False)
    with using(record()):
        plan = _named_plan(call, "panels", None, as_unfused=False)
        assert isinstance(schema._grad_plan(call, plan), AttentionGradPlan)
        assert isinstance(
            schema._grad_plan(call, _named_plan(call, "fa4", None, as_unfused=False)), FlashPlan
        )
        assert isinstance(schema._grad_plan(call, None), FlashPlan)


@pytest.mark.parametrize("pattern", ["blocks", "causal"])
def test_gradients_of_panels_after_results_of_a_library(
    module: ModuleType, flash: Flash, pattern: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The statistics mean the same to both, and second derivatives are those of the three operations."""
    a = on_gpu({"blocks": SQUARE, "causal": lambda: masks.causal(150)}[pattern]())
    real = libraries.why_not
    refuse = lambda call, plan, backward=False: "no" if backward else real(call, plan)  # noqa: E731
    monkeypatch.setattr(libraries, "why_not", refuse)
    with emulated.running(module) as native, using(without_rates()):
        check(a, "fa4")
        assert any("panel" in name for name in native.called)
        q, k, v = (torch.randn(1, 1, a.shape[0], 8, requires_grad=True) for _ in range(3))
        found = []
        for impl in ("fa4", "reference"):
            (dq,) = torch.autograd.grad(
                gnnsparse.attention(a, q, k, v, impl=impl).sin().sum(), q, create_graph=True
            )
            found.append(torch.autograd.grad(dq.square().sum(), k)[0])
    assert float((found[0] - found[1]).norm()) <= 0.01 * float(found[1].norm())


@pytest.mark.parametrize("pattern", [*TILES, *OTHERS])
def test_bands(pattern: str) -> None:
    bands = {"window": (70, 70), "causal": (199, 0), "full": (129, 129)}
    assert on_gpu({**TILES, **OTHERS}[pattern]()).kernels.band == bands.get(pattern)
    assert on_gpu(masks.window(50, 3, dilation=2)).kernels.band is None
