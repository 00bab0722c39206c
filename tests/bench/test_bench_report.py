"""The arithmetic of the report of `gnnsparse bench kernels`, timing, and arguments that name matrices."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from matplotlib.colors import same_color
from matplotlib.figure import Figure

from gnnsparse.bench import session
from gnnsparse.bench.arguments import MatrixSpec, parse_matrix, unique_names
from gnnsparse.bench.candidates import X_ROUNDED, X_STORED, peer_precision
from gnnsparse.bench.figures import latency_panels, plot, ratio_panels
from gnnsparse.bench.kernels import SKIPPED
from gnnsparse.bench.kernels_command import add_ratios, lost_cases, means_of_auto
from gnnsparse.bench.latency_tasks import MODELS
from gnnsparse.bench.session import NoiseMeter, is_noise, no_losses, noise_lines, skipped_lines, spread_of
from gnnsparse.precision import Precision
from gnnsparse.runtime.timing import Timing, cache_flusher, measure
from tests.bench.runs import latency_row, row
from tests.bench.test_bench import MTX


def test_ratios_are_to_the_peer_of_the_same_case() -> None:
    rows = [
        row("cusparse", 4.0), row("cusparse", 6.0, precision="fp32"), row("cusparse", 1.0, graph="other"),
        row("auto", 2.0), row("csr", 8.0), row("auto", 3.0, precision="tf32"),
        row("auto", 1.0, precision="bf16"),
    ]  # fmt: skip
    add_ratios(rows, "cuda")
    # Where a peer was not measured in the precision, its result in fp32 is the baseline.
    assert [r["over_cusparse"] for r in rows] == [1.0, 1.0, 1.0, 2.0, 0.5, 2.0, 6.0]
    assert rows[3]["baseline"] == "cusparse fp16"
    assert rows[5]["baseline"] == "cusparse fp32"
    assert [peer_precision(*case) for case in (
        ("cusparse", Precision.BF16), ("cusparse", Precision.TF32), ("sparse_mm", Precision.FP16),
        ("sampled_addmm", Precision.FP16),
    )] == [Precision.BF16, *[Precision.FP32] * 3]  # fmt: skip
    add_ratios(wrong := [row("cusparse", 4.0, ok=False), row("auto", 2.0)], "cuda")
    assert wrong[1]["over_cusparse"] is None


def test_ratios_are_to_cusparse_at_its_best_first_and_to_torchs_second() -> None:
    rows = [row("cusparse", 8.0), row("cusparse-best", 6.0, variant="CSR_ALG3"), row("auto", 2.0)]
    add_ratios(rows, "cuda")
    ours = rows[2]
    assert (ours["baseline"], ours["baseline_variant"]) == ("cusparse-best fp16", "CSR_ALG3")
    assert (ours["over_baseline"], ours["over_cusparse"], ours["over_torch"]) == (3.0, 3.0, 4.0)
    add_ratios(rows := [row("cusparse", 8.0), row("cusparse-best", 6.0, ok=False), row("auto", 2.0)], "cuda")
    assert (rows[2]["baseline"], rows[2]["over_baseline"]) == ("cusparse fp16", 4.0)
    fp32 = {"op": "sddmm", "precision": "fp32"}
    rows = [row(peer, ms, **fp32) for peer, ms in (("cusparse-best", 6.0), ("sampled_addmm", 9.0))]
    rows.append(row("auto", 3.0, op="sddmm"))
    add_ratios(rows, "cuda")
    assert (rows[2]["baseline"], rows[2]["over_baseline"]) == ("cusparse-best fp32", 2.0)
    assert rows[2]["over_torch"] == 3.0


def test_means_leave_out_what_is_wrong() -> None:
    rows = [row("cusparse", 4.0, graph=g) for g in "abc"]
    rows += [row("auto", 2.0, graph="a"), row("auto", 0.5, graph="b"), row("auto", 0.1, graph="c", ok=False)]
    add_ratios(rows, "cuda")
    (mean,) = means_of_auto(rows)
    assert (mean["matrices"], mean["cases"]) == (2, 2)
    assert mean["mean"] == pytest.approx(4.0)


def test_variants_of_ours_are_compared_each_by_itself() -> None:
    before, within = {"variant": X_STORED}, {"variant": X_ROUNDED}
    int8 = {"precision": "int8"}
    rows = [
        row("cusparse", 4.0), row("auto", 2.0, **int8, **before), row("csr", 1.5, **int8, **before),
        row("auto", 3.0, **int8, **within), row("csr", 5.0, **int8, **within),
    ]  # fmt: skip
    add_ratios(rows, "cuda")
    assert [(m["variant"], m["mean"]) for m in means_of_auto(rows)] == [
        (X_STORED, pytest.approx(2.0)), (X_ROUNDED, pytest.approx(4 / 3)),
    ]  # fmt: skip
    (lost,) = lost_cases(rows)
    assert (lost["variant"], lost["best_ms"]) == (X_STORED, 1.5)


def test_lost_cases() -> None:
    rows = [
        row("cusparse", 4.0), row("auto", 1.0), row("csr", 0.98), row("window", 1.5),  # within 3 %
        row("cusparse", 4.0, width=8), row("auto", 2.0, width=8), row("csr", 1.0, width=8),
        row("cusparse", 1.5, graph="b"), row("auto", 2.0, graph="b"), row("csr", 0.1, graph="b", ok=False),
        row("auto", 1.0, graph="c", upper_quartile_ms=1.3), row("pyg", 0.1, graph="c"),
        row("pyg", 0.01, graph="c", ok=False),
        row("cusparse-best", 0.8, graph="d", variant="CSR_ALG2"), row("auto", 1.0, graph="d"),
        row("cusparse", 0.1, graph="d", precision="fp32"),  # of fp32, where there is a peer in fp16
    ]  # fmt: skip
    add_ratios(rows, "cuda")
    lost = lost_cases(rows)
    assert [(c["graph"], c["width"], c["best"], c["best_is_ours"]) for c in lost] == [
        ("c", 64, "pyg fp16", False),
        ("g", 8, "csr", True),
        ("b", 64, "cusparse fp16", False),
        ("d", 64, "cusparse-best fp16 (CSR_ALG2)", False),
    ]
    assert [c["speed"] for c in lost] == pytest.approx([0.1, 0.5, 0.75, 0.8])
    assert [c["noisy"] for c in lost] == [True, False, False, False]
    assert [c["noisy"] for c in lost_cases(rows, drift=0.4)] == [True, False, True, True]


def test_a_difference_within_the_noise_is_no_loss() -> None:
    assert lost_cases([row("auto", 2.0, ok=False), row("cusparse", 1.0)]) == []  # a wrong result is none
    assert no_losses(0, 0) == "nothing was measured"
    assert no_losses(2, 0) == "nothing was compared: no right results stand side by side"
    assert no_losses(2, 1) == "nowhere among 1 compared cases"
    slow, fast = row("auto", 1.0), row("csr", 0.9)
    assert not is_noise(slow, fast, 0.0)
    assert is_noise(slow, fast, 0.12), "the reference has changed by more"
    assert not is_noise(slow, fast, 0.05)
    close = row("csr", 0.9, upper_quartile_ms=0.99)
    assert is_noise(slow, close, 0.0), "the quartiles overlap"
    assert is_noise(close, slow, 0.0)
    assert is_noise(slow, row("csr", 0.1, upper_quartile_ms=0.2), 0.0), "its repeats lie far apart"


def test_skipped_cases_are_told_by_candidate_and_reason() -> None:
    graphs = [
        {**SKIPPED, "name": "pyg", "graph": name, "op": "spmm", "reason": "no room"} for name in "abcdef"
    ]
    lines = skipped_lines([*graphs, {**SKIPPED, "graph": "g", "reason": "damaged", "failed": True}], "name",
                          ("graph", "op", "precision"))  # fmt: skip
    assert lines == ["skipped: pyg in 6 cases of a, b, c, d, and 2 more; spmm: no room", "failed: g: damaged"]


def test_a_noisy_machine_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert spread_of(1.0, 2.0, 4.0) == 1.5
    meter = NoiseMeter("cpu")
    meter.read()
    assert meter.medians[0] > 0
    meter = NoiseMeter("cpu")
    assert meter.summary([])["drift"] == 0.0

    def read(*ms: float) -> None:
        monkeypatch.setattr(session, "measure", lambda call, device, repeats: Timing.of([*ms]))
        meter.read()

    read(1.0)
    read(1.04)
    quiet = meter.summary([{"spread": 0.05}, {"spread": 0.1}])
    assert (quiet["noisy"], quiet["noisy_rows"]) == (False, 0)
    assert noise_lines(quiet) == []
    read(1.2)
    drifted = meter.summary([{"spread": 0.05}, {"spread": 0.2}])
    assert drifted["drift"] == pytest.approx(0.2)
    assert (drifted["noisy"], drifted["noisy_rows"]) == (True, 1)
    changed, rows = noise_lines(drifted)
    assert "changed by 20%" in changed
    assert "1 of 2 rows" in rows
    meter = NoiseMeter("cpu")
    read(0.5, 1.0, 1.5)
    read(1.0)
    assert meter.summary([])["noisy"]


def test_timing() -> None:
    timing = Timing.of([5.0, 1.0, 2.0, 3.0, 4.0])
    assert (timing.fastest, timing.lower_quartile, timing.median) == (1.0, 2.0, 3.0)
    assert (timing.upper_quartile, timing.slowest, timing.repeats) == (4.0, 5.0, 5)
    assert Timing.of([2.0]) == Timing(2.0, 2.0, 2.0, 1, 2.0, 2.0)
    order: list[str] = []
    measure(lambda: order.append("call"), "cpu", warmup=1, repeats=2, before=lambda: order.append("flush"))
    assert order == ["call", "flush", "call", "flush", "call"]
    slow = measure(lambda: time.sleep(0.01), "cpu", repeats=50, seconds=0.05)
    assert 3 <= slow.repeats <= 5
    assert measure(lambda: time.sleep(0.01), "cpu", repeats=2, seconds=0.0).repeats == 2
    with pytest.raises(ValueError, match="repeats"):
        measure(lambda: None, "cpu", repeats=0)
    cache_flusher("cpu")()


def test_matrix_arguments_and_their_unique_names(tmp_path: Path) -> None:
    assert parse_matrix("reddit_like") == [MatrixSpec("reddit_like", "reddit_like")]
    (spec,) = parse_matrix("dd_like:scale=0.01:shuffled:seed=3")
    assert (spec.generator, spec.scale, spec.shuffled, spec.seed) == ("dd_like", 0.01, True, 3)
    assert spec.load("cpu").num_rows == 3349
    file = tmp_path / "a:b.mtx"
    file.write_text(MTX)
    (spec,) = parse_matrix(str(file))
    assert spec == MatrixSpec("a:b.mtx", path=file)
    graph = spec.load("cpu")
    assert (graph.num_rows, graph.num_cols, graph.nnz, graph.values) == (4, 6, 5, None)
    specs = [MatrixSpec("a.mtx", path=Path(f)) for f in ("x/a.mtx", "y/a.mtx", "x/a.mtx")]
    assert [s.name for s in unique_names(specs)] == ["a.mtx", "a.mtx#2"]


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
    rows = [latency_row(b, ms, model=m) for b, ms in (("gnnsparse", 1.0), ("pyg", 3.0)) for m in MODELS]
    rows += [latency_row("dense", 9.0, ok=False), latency_row("pyg", 9.0, cache="cold")]
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
