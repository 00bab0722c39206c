"""What follows from the native table of precisions."""

from __future__ import annotations

import pytest
import torch

from gnnsparse import Precision, _native
from gnnsparse.plan import KERNELS, AttentionProblem, Plan, Problem, choose_plan
from gnnsparse.precision import ROUNDED_PRECISIONS
from tests.gpu_paths import H200
from tests.helpers import panel_counts


def test_python_has_the_precisions_of_the_native_module() -> None:
    rounded = [precision.value for precision in ROUNDED_PRECISIONS]
    assert list(_native.PRECISIONS) == sorted(rounded, key=lambda name: Precision(name).code)
    assert set(_native.PRECISIONS) == set(rounded)
    storage = {precision.value: precision.storage for precision in ROUNDED_PRECISIONS}
    half = {"fp16": torch.float16, "bf16": torch.bfloat16}
    assert storage == {"fp32": torch.float32, "tf32": torch.float32, **half}


@pytest.mark.parametrize("precision", [Precision.INT8, Precision.FP8])
def test_precisions_of_eight_bits_are_float16_but_for_x(precision: Precision) -> None:
    assert precision.quantizes
    assert precision.rounded is Precision.FP16
    assert (precision.storage, precision.code) == (torch.float16, Precision.FP16.code)
    assert precision not in ROUNDED_PRECISIONS


def test_tensor_core_kernels_refuse_what_they_would_have_to_convert(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them with one reason, also as a given plan; the csr kernels run products and attention."""
    traits = {**_native.PRECISIONS["fp16"], "operands_are_stored": False}
    monkeypatch.setitem(_native.PRECISIONS, "fp16", traits)
    reason = "Tensor Core kernels do not convert float16, which fp16 stores"
    for op, kind in (("spmm", Problem), ("sddmm", Problem), ("attention", AttentionProblem)):
        more = {"value_width": 64} if kind is AttentionProblem else {}
        sizes, panels = (1000, 1000, 50_000, 64, "window", 20_000), panel_counts(30_000, 25_000)
        problem = kind(op, H200, Precision.FP16, *sizes, panels=panels, **more)
        kernels = [kernel for kernel in KERNELS[op] if not kernel.for_formats]
        refused = {kernel.name: kernel.can_run(problem).problem for kernel in kernels}
        able = {"csr"} if op != "attention" else {"attention_csr", "rows", "unfused"}
        assert {name for name, why in refused.items() if not why} == able
        assert {why for name, why in refused.items() if name not in able} == {reason}
        plan = choose_plan(problem)
        assert plan.kernel == ("csr" if op != "attention" else "attention_csr")
        assert reason in str(plan)
    panels = next(kernel for kernel in kernels if kernel.name == "attention")
    with pytest.raises(ValueError, match=f"^plan: attention 16 can't run here: {reason}"):
        panels.check(problem, Plan("attention"))
