"""The figures of the benchmarks."""

from __future__ import annotations

from pathlib import Path

import pytest
from matplotlib.colors import same_color
from matplotlib.figure import Figure

from gnnsparse.bench.figures import latency_panels, plot, ratio_panels
from gnnsparse.bench.kernels_command import add_ratios
from gnnsparse.bench.latency_tasks import MODELS
from tests.bench.runs import latency_row, row


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """The figures that are saved."""
    figures: list[Figure] = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: figures.append(figure))
    return figures


def test_figures_are_written(tmp_path: Path) -> None:
    rows = [row(k, ms, graph=g) for g in ("a", "b") for k, ms in (("cusparse", 2.0), ("auto", 1.0))]
    add_ratios(rows, "cuda")
    file = tmp_path / "new" / "ratios.png"
    plot(ratio_panels(rows), file)
    assert file.read_bytes().startswith(b"\x89PNG")
    plot([], tmp_path / "empty.svg")


def test_latencies_have_a_panel_for_each_model(drawn: list[Figure], tmp_path: Path) -> None:
    rows = [
        latency_row(b, ms, p99_ms=2 * ms, model=m)
        for b, ms in (("gnnsparse", 1.0), ("pyg", 3.0))
        for m in MODELS
    ]
    rows += [latency_row("dense", 9.0, ok=False), latency_row("pyg", 9.0, p99_ms=9.0, cache="cold")]
    plot(latency_panels(rows), tmp_path / "latency.png")
    assert [axes.get_title() for axes in drawn[0].axes] == list(MODELS)
    for axes in drawn[0].axes:
        assert [line.get_ydata().tolist() for line in axes.lines] == [[1.0], [3.0]]
        assert [lines.get_segments()[0][:, 1].tolist() for lines in axes.collections] == [[1, 2], [3, 6]]


def test_a_plot_has_one_color_for_a_kernel_and_no_empty_columns(drawn: list[Figure], tmp_path: Path) -> None:
    rows = [
        row(kernel, 1.0, graph=graph, op=op, over_baseline=speed, baseline="cusparse fp16")
        for op, graphs in (("spmm", "abc"), ("sddmm", "d"))
        for graph in graphs
        for kernel, speed in (("cusparse", 1.0), ("auto", 2.0), ("csr", 1.5), ("pyg", None))
        if (op, kernel) != ("sddmm", "auto")
    ]
    plot(ratio_panels([*rows, {**rows[0], "graph": "e", "ok": False}]), tmp_path / "ratios.png")
    spmm, sddmm = drawn[0].axes
    assert [len(axes.get_xticks()) for axes in (spmm, sddmm)] == [3, 1]
    colors = [{line.get_label(): line.get_color() for line in axes.lines[:-1]} for axes in (spmm, sddmm)]
    assert set(colors[0]) == {"cusparse", "auto", "csr"}
    assert all(same_color(colors[0][name], color) for name, color in colors[1].items())
    assert len(set(colors[0].values())) == 3
