"""What the choice among kernels makes of widths whose rows are no whole sectors or vectors."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gnnsparse.plan import CsrPlan, PanelPlan, Problem, choose_plan
from gnnsparse.plan.csr import CSR
from gnnsparse.plan.gpu_records.model import pass_us
from gnnsparse.plan.panel import PANELS
from gnnsparse.precision import Precision
from gnnsparse.runtime.device import Device
from tests.gpu_paths import H200
from tests.helpers import panel_counts

H100 = Device("cuda", (9, 0), 132, 80 * 2**30, "NVIDIA H100 80GB HBM3", 50 * 2**20)


def like_arxiv(width: int, precision: Precision, device: Device = H100) -> Problem:
    """15 nonzeros a row, 38 % of them near the diagonal; a column slot of a panel has about one."""
    return Problem(
        "spmm", device, precision, 169_343, 169_343, 2_500_307, width, near=957_181,
        panels=panel_counts(2_492_416, 2_305_344),
    )  # fmt: skip


@pytest.mark.parametrize("device", [H100, H200], ids=lambda device: device.name)
@pytest.mark.parametrize(
    ("precision", "width", "passes"),
    [
        (Precision.FP16, 16, (0, 0)), (Precision.FP16, 41, (2, 2)), (Precision.FP16, 64, (0, 0)),
        (Precision.FP16, 600, (0, 2)), (Precision.FP16, 602, (2, 2)), (Precision.FP16, 608, (0, 0)),
        (Precision.FP32, 100, (0, 2)), (Precision.FP32, 130, (2, 2)), (Precision.TF32, 600, (0, 0)),
    ],
)  # fmt: skip
def test_the_model_adds_two_passes_where_a_kernel_cannot_take_rows_as_they_are(
    device: Device, precision: Precision, width: int, passes: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The csr kernel takes rows that are multiples of 16 bytes, the panel kernels those of 32 bytes."""
    of = like_arxiv(width, precision, device)
    each = pass_us(of.record.memory, of.cols * of.row_bytes)
    extra = [of.odd_rows_us(unit) for unit in (16, 32)]
    assert extra == pytest.approx([count * each for count in passes])
    plans = {kernel: kernel.default(of) for kernel in (CSR, PANELS[16])}
    times = [kernel.time_us(of, plan) for kernel, plan in plans.items()]
    monkeypatch.setattr(Problem, "odd_rows_us", lambda self, unit: 0.0)
    regular = [kernel.time_us(of, plan) for kernel, plan in plans.items()]
    assert times == pytest.approx([us + more for us, more in zip(regular, extra, strict=True)])


@pytest.mark.parametrize("change", [{"op": "sddmm"}, {"quantization": Precision.INT8}, {"width": 7}])
def test_it_adds_nothing_for_sddmm_an_x_of_eight_bits_and_short_rows(change: dict[str, object]) -> None:
    assert replace(like_arxiv(41, Precision.FP32), **change).odd_rows_us(32) == 0  # type: ignore[arg-type]


@pytest.mark.parametrize("precision", [Precision.TF32, Precision.FP32])
def test_the_csr_kernel_is_chosen_where_panels_would_shift_their_results(precision: Precision) -> None:
    """100 and 500 columns are whole vectors, which the csr kernel writes as they are.

    On an H100 it takes .70 and .76 of the time of panels, which were chosen before.
    """
    for width in (100, 500):
        assert isinstance(choose_plan(like_arxiv(width, precision)), CsrPlan)
        assert isinstance(choose_plan(like_arxiv(width // 32 * 32, Precision.FP16)), PanelPlan)
