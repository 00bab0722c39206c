"""`gnnsparse report`: which files it reads, what it says about them, and that no file brings markup."""

from __future__ import annotations

import json
import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnnsparse.bench import render
from gnnsparse.bench.render import OURS, PEER, Bar, Bars, Report, as_html, as_markdown, draw, read_results
from gnnsparse.bench.report_command import assemble
from gnnsparse.cli.main import main
from tests.bench.runs import latency_row as latency
from tests.bench.runs import row as kernel

RESULTS = Path(__file__).resolve().parents[2] / "benchmarks" / "results"
WHERE = {
    "device": "cuda", "device_name": "NVIDIA H200", "threads": 16, "commit": "4ff54b0754978ea0244cdc91c2",
    "versions": {"torch": "2.11.0", "cuda": "13.0", "python": "3.12.3"}, "date": "2026-11-22T15:54:19+00:00",
}  # fmt: skip
EVIL = "<script>alert('x')</script>|`*_[a](http://b)&amp;"


AUTO_AND_PEER = [kernel("auto", 1.0), kernel("cusparse", 2.0)]


def report_of(tmp_path: Path, **content: Any) -> Report:
    """The report of a file a.json."""
    (tmp_path / "a.json").write_text(json.dumps({**WHERE, **content}))
    results, problems = read_results([tmp_path / "a.json"])
    return assemble(results, problems, "made by a test")


class Page(HTMLParser):
    """Collects the elements of a page, and checks that they are closed in their order."""

    VOID = ("meta", "line", "rect", "circle", "polyline")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.values: list[tuple[str, str | None]] = []
        self.texts: list[str] = []
        self.handle_data = self.texts.append  # type: ignore[method-assign]
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_startendtag(tag, attrs)
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.values += attrs

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_committed_results_make_a_page_without_a_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(RESULTS.parents[1])
    html, markdown = tmp_path / "deep" / "report.html", tmp_path / "report.md"
    assert main(["report", "--out", str(html), "--markdown", str(markdown)]) == 0
    assert capsys.readouterr().err == ""
    page, text = Page(html.read_text()), markdown.read_text()
    for file in RESULTS.glob("*.json"):
        assert file.name in page.texts
        assert file.name.replace("_", "\\_") in text
    for title in ("Kernels", "Training", "Precision and accuracy", "Where we lose", "Files"):
        assert title in page.texts
        assert f"## {title}\n" in text
    assert page.tags.count("svg") > 50


def test_a_page_loads_nothing_and_runs_nothing(tmp_path: Path) -> None:
    page = Page(as_html(report_of(tmp_path, rows=AUTO_AND_PEER)))
    assert not {"script", "link", "img", "iframe", "object", "a:script"} & set(page.tags)
    assert all(name not in ("src", "srcset", "onload", "onclick") for name, _ in page.values)
    links = [value for name, value in page.values if name in ("href", "xlink:href")]
    assert links
    assert {str(value) for value in links} == {f"#{value}" for name, value in page.values if name == "id"}
    style = "".join(page.texts)
    assert "url(" not in style
    assert "@import" not in style
    assert ("content", "default-src 'none'; style-src 'unsafe-inline'") in page.values
    assert "prefers-color-scheme: dark" in style


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b'{"rows": [1,', "Expecting value"),
        (b"", "Expecting value"),
        (b"\xff\xfe\x00", "utf"),
        (b"[" * 100_000, "is damaged"),
        (b"[1, 2]", "is no result of gnnsparse"),
        (b"3", "is no result of gnnsparse"),
        (b'{"name": "a package"}', "it lacks device_name, versions, date"),
        (json.dumps({**WHERE, "versions": 3}).encode(), "is no result of gnnsparse"),
    ],
)
def test_what_is_no_result_is_named(
    content: bytes, reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bad.json").write_bytes(content)
    (tmp_path / "good.json").write_text(json.dumps({**WHERE, "rows": [kernel("auto", 1.0)]}))
    out = tmp_path / "page.html"
    assert main(["report", str(tmp_path), "--out", str(out)]) == 0
    printed = capsys.readouterr().err
    assert "gnnsparse report: bad.json: " in printed
    assert reason in printed
    assert str(tmp_path) not in printed
    assert str(tmp_path) not in out.read_text()  # the page may be published
    assert any(text.startswith("bad.json: ") for text in Page(out.read_text()).texts)


def test_without_a_result_or_a_place_for_the_page_nothing_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").mkdir()
    out = tmp_path / "page.html"
    assert main(["report", str(tmp_path / "empty"), "--out", str(out)]) == 1
    printed = capsys.readouterr().err
    assert "empty: the folder has no file .json" in printed
    assert "there is no result; nothing is written" in printed
    assert not out.exists()
    report_of(tmp_path, rows=AUTO_AND_PEER)
    with pytest.raises(SystemExit) as ended:
        main(["report", str(tmp_path / "a.json"), "--out", str(tmp_path / "a.json" / "page.html")])
    assert ended.value.code == 2
    assert "a.json" in capsys.readouterr().err


def test_a_file_that_is_named_twice_is_shown_once(tmp_path: Path) -> None:
    report_of(tmp_path, rows=AUTO_AND_PEER)
    files, problems = read_results([tmp_path / "a.json", tmp_path])
    assert ([file.name for file in files], problems) == (["a.json"], [])


def test_files_with_a_result_for_each_part_are_lists() -> None:
    parts = {"one": {**WHERE, "calls": 3}, "two": {**WHERE, "calls": 4}}
    ((place, rows),) = render.row_lists(parts)
    assert (place, [(row["name"], row["calls"]) for row in rows]) == ("", [("one", 3), ("two", 4)])


@pytest.mark.parametrize("unknown", [False, True])
def test_markup_in_files_is_text(unknown: bool, tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [kernel("auto", 1.0, graph=EVIL), kernel("cusparse", 2.0, graph=EVIL)]
    if unknown:
        rows = [{EVIL: EVIL, "nested": {EVIL: [EVIL]}}]
    content = {"rows": rows, "device_name": EVIL, "commit": EVIL, "settings": {EVIL: EVIL}}
    report = report_of(tmp_path, **content)
    page = Page(as_html(report))
    assert "script" not in page.tags
    assert any("<script>" in text for text in page.texts)
    for line in as_markdown(report).splitlines():
        assert not re.search(r"(?<!\\)<script", line)
        if line.startswith("|"):
            assert "](http" not in line.replace("\\]", "")


@given(
    st.text(max_size=30),
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=200)),
)
def test_every_name_and_value_makes_a_well_formed_page(key: str, value: Any) -> None:
    content = {**WHERE, "rows": [{key: value, "name": str(value), "ms": value}], "device_name": key}
    found = json.loads(json.dumps(content))
    report = assemble([render.ResultFile(key, found, (WHERE,))], [], "")
    Page(as_html(report))
    assert as_markdown(report)


WRONG: dict[str, Any] = {"ok": False, "problem": "relative error 3.0"}
#: Rows, and for each comparison of them: ours, its time, the best other, its time.
COMPARED: dict[str, tuple[list[dict[str, Any]], list[tuple[str, float, str, float]]]] = {
    "the best right peer, in the same precision or in fp32": (
        [
            kernel("auto", 2.0), kernel("csr", 1.0), kernel("cusparse", 6.0),
            kernel("pyg", 4.0, precision="fp32"), kernel("dgl", 0.1, **WRONG),
            kernel("cusparse", 0.2, width=128),
        ],
        [("auto fp16", 2.0, "pyg fp32", 4.0)],
    ),
    "a dense peer joins the cases of ours": (
        [
            {"name": name, "pattern": pattern, "sparsity": sparsity, "precision": precision, "ms": ms}
            for name, pattern, sparsity, precision, ms in (
                ("gnnsparse", "window", 0.9, "fp16", 2.0), ("gnnsparse", "random", 0.9, "fp16", 1.0),
                ("cudnn", "dense", 0, "fp32", 4.0), ("flex", "random", 0.9, "fp16", 3.0),
                ("flex", "window", 0.9, "bf16", 0.1),
            )
        ],
        [("gnnsparse fp16", 2.0, "cudnn fp32", 4.0), ("gnnsparse fp16", 1.0, "flex fp16", 3.0)],
    ),
    "what is captured is no rival of what Python launches": (
        [
            latency("gnnsparse", 2.0), latency("gnnsparse", 0.5, mode="captured"), latency("pyg", 3.0),
            latency("pyg-compile", 1.0, mode="captured"), latency("dense", 0.1, **WRONG),
            latency("pyg-csr", 0.2, precision="fp16"), latency("pyg-csr", 0.2, batch=8),
        ],
        [
            ("gnnsparse fp32 eager", 2.0, "pyg fp32 eager", 3.0),
            ("gnnsparse fp32 captured", 0.5, "pyg-compile fp32 captured", 1.0),
        ],
    ),
    "neither are steps of training": (
        [
            {"layer": "GCN", "name": name, "ms": ms, "loss": 1.0}
            for name, ms in (("pyg", 3.0), ("pyg captured", 0.5), ("fp32", 2.0), ("fp32 captured", 0.25))
        ],
        [("fp32", 2.0, "pyg", 3.0), ("fp32 captured", 0.25, "pyg captured", 0.5)],
    ),
    "both times in a row": (
        [{"layer": "GCN", "nodes": 9, "pyg_ms": 3.0, "accelerated_ms": 6.0, "ratio": 0.5}],
        [("accelerated", 6.0, "pyg", 3.0)],
    ),
    "a wrong result": ([kernel("auto", 1.0, **WRONG), kernel("cusparse", 2.0)], []),
}  # fmt: skip


@pytest.mark.parametrize("name", COMPARED)
def test_what_is_compared_with_what(name: str, tmp_path: Path) -> None:
    rows, wanted = COMPARED[name]
    found = report_of(tmp_path, rows=rows).comparisons
    assert [tuple(c[key] for key in ("ours", "ours_ms", "best other", "other_ms")) for c in found] == wanted
    assert [c["speed"] for c in found] == [theirs / ours for _, ours, _, theirs in wanted]
    if name == "the best right peer, in the same precision or in fp32":  # one that is forced is named alone
        assert (found[0]["fastest of ours_ms"], found[0]["case"]) == (1.0, "g, spmm, gcn, fp16, width 64")


def test_losses_are_listed_worst_first(tmp_path: Path) -> None:
    rows = [
        kernel("auto", 2.0), kernel("cusparse", 1.0), kernel("auto", 1.0, width=128),
        kernel("cusparse", 0.1, width=128), kernel("auto", 1.0, width=32), kernel("cusparse", 3.0, width=32),
    ]  # fmt: skip
    text = as_markdown(report_of(tmp_path, rows=rows))
    assert "3 times of ours were compared" in text
    assert "2 of them are slower" in text
    none = as_markdown(report_of(tmp_path, rows=AUTO_AND_PEER))
    assert "1 times of ours were compared with the fastest other result of the same case; none of" in none
    lost = text.partition("## Where we lose")[2].partition("## Files")[0]
    cases = [line.split(" | ") for line in lost.splitlines() if "width" in line]
    assert [(cells[1].split(", ")[4], cells[6]) for cells in cases] == [
        ("width 128", "0.1000"),
        ("width 64", "0.5000"),
    ]


def test_a_comparison_of_nothing_shows_no_losses(tmp_path: Path) -> None:
    for rows in ([kernel("auto", 1.0)], [kernel("auto", 1.0, ok=False), kernel("cusparse", 2.0)]):
        report = report_of(tmp_path, rows=rows)
        for text in (as_markdown(report), as_html(report)):
            for words in ("Where we lose", "compared", "another", "ours</p>"):
                assert words not in text


def test_wrong_results_latencies_reasons_and_scores_are_shown(tmp_path: Path) -> None:
    wrong = report_of(tmp_path, rows=[kernel("auto", 1.0, **WRONG), kernel("cusparse", 2.0)])
    assert "WRONG: relative error 3.0" in as_markdown(wrong)
    report = report_of(tmp_path, rows=[latency("gnnsparse", 2.0), latency("pyg", 3.0)])
    assert set(report.sections) == {"latency"}
    assert "break even" in as_html(report)
    failed = {"name": "pyg", "ms": None, "error": "out of memory"}
    report = report_of(tmp_path, rows=[failed, {"name": "gnnsparse", "ms": 1.0, "loss": 2.0}], model="gcn")
    assert "| pyg | out of memory |" in as_markdown(report)
    row = {"model": "gcn", "dataset": "cora", "precision": "fp16", "mean": 81.92, "standard_deviation": 0.57}
    report = report_of(tmp_path, rows=[{**row, "baseline": 81.64, "baseline_standard_deviation": 0.9}])
    assert set(report.sections) == {"precision"}
    assert "| gcn | cora | fp16 | 81.92 | 0.5700 | 81.64 | 0.9000 |" in as_markdown(report)


RUN = {
    "model": "gcn", "dataset": "cora", "precision": "fp32", "seed": 0, "epochs": 200, "best_epoch": 9,
    "metrics": {"val": {"accuracy": 0.75}, "test": {"accuracy": 0.81}}, "epoch_milliseconds": 2.5,
    "fit_seconds": 1.0, "peak_memory_bytes": 2**30, "parameters": 10, "preprocess_seconds": 0.25,
    "cache_hit": True, "classes": [{"class": "law", "f1": 0.625, "count": 7}],
}  # fmt: skip
LOG = "epoch,step,train/loss,val/accuracy,val/loss\n1,1,2.5,,\n2,2,1.5,0.5,nan\n3,3,,0.75,1.25\n"


def write_run(folder: Path, log: str | None = LOG, **changed: Any) -> None:
    """Writes a folder as a run leaves it, with a trace, and with the result before it was resumed."""
    (folder / "logs/csv/version_0").mkdir(parents=True)
    for name in ("result.json", "result-1.json"):
        (folder / name).write_text(json.dumps({**WHERE, **RUN, **changed}))
    (folder / "trace.json").write_text("{}")
    if log is not None:
        (folder / "logs/csv/version_0/metrics.csv").write_text(log)


def runs_in(*folders: Path) -> Report:
    return assemble(*read_results(folders), "made by a test")


def test_runs_stand_in_one_table_with_their_curves_in_one_picture(tmp_path: Path) -> None:
    """One line for each of a few, by what tells them apart; beside them nothing is said about losing."""
    for number, changed in enumerate(({"precision": "bf16"}, {"seed": 10}, {"seed": 2}, {"model": EVIL})):
        write_run(tmp_path / "sweep" / str(number), **changed)
    report = runs_in(tmp_path / "sweep", tmp_path / "sweep" / "2")
    assert report.problems == []
    assert set(report.sections) == {"training"}
    text, page = as_markdown(report), Page(as_html(report))
    rows = [line.split(" | ") for line in text.splitlines() if " 0.8100 " in line]
    assert [row[0] for row in rows] == ["| 3", "| 2", "| 1", "| 0"]
    wanted = [
        "cora",
        "gcn",
        "fp32",
        "2",
        "0.8100",
        "0.7500",
        "9",
        "200",
        "2.500",
        "1.000",
        "1.00 GiB",
        "10 |",
    ]
    assert rows[1][1:] == wanted
    for shown in ("law", "0.6250", "preprocess, s", "yes", "gcn, bf16, seed 0", "gcn, fp32, seed 10"):
        assert shown in page.texts, shown
    assert "script" not in page.tags
    assert page.texts.count("validation accuracy") == 1
    assert "Where we lose" not in page.texts + text.split("\n")


def test_curves_are_those_of_the_logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers that are missing or not finite are left out; what can't be drawn is said."""
    from matplotlib.axes import Axes

    drawn: list[Any] = []
    plot = Axes.plot
    monkeypatch.setattr(Axes, "plot", lambda *given, **more: drawn.append(given[1:4]) or plot(*given, **more))
    write_run(tmp_path / "a" / "run")
    assert runs_in(tmp_path / "a" / "run").files[0].name == "run/result.json"
    found = [([*map(float, x)], [*map(float, y)], style) for x, y, style in drawn]
    assert found == [([3], [1.25], "."), ([1, 2], [2.5, 1.5], "--"), ([2, 3], [0.5, 0.75], "-")]
    write_run(tmp_path / "b" / "run", log="epoch,val/loss\n1,much\n")
    report = runs_in(tmp_path / "a" / "run", tmp_path / "b" / "run")
    assert [file.name for file in report.files] == ["a/run/result.json", "b/run/result.json"]
    (problem,) = report.problems
    assert problem.startswith("b/run/result.json: its curves can't be read (could not convert string")
    write_run(tmp_path / "c", log=None)
    assert "there is no logs/csv/*/metrics.csv beside" in runs_in(tmp_path / "c").problems[0]
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert "matplotlib is missing" in runs_in(tmp_path / "a").problems[0]


def test_many_runs_share_a_color_by_all_but_the_seed(tmp_path: Path) -> None:
    for seed in range(12):
        write_run(tmp_path / str(seed), seed=seed, precision=("fp32", "fp16")[seed % 2])
    texts = Page(as_html(runs_in(tmp_path))).texts
    assert [texts.count(name) for name in ("fp32", "fp16")] == [7, 7]  # a cell of each run, and the legend


def test_unknown_rows_and_values_beside_them_are_shown(tmp_path: Path) -> None:
    rows = [{"temperature": 3, "deep": {"inner": "word"}, "list": [1, 2]}, {"other": True}]
    study = {"found": rows, "note": "beside", "deep": {"x": 7.5}}
    page = Page(as_html(report_of(tmp_path, study=study, summary={"total": 12}))).texts
    named = "study.found", "temperature", "deep.inner", "word", "1, 2", "yes", "summary.total", "12"
    for text in (*named, "study.note", "beside", "study.deep.x", "7.500"):
        assert text in page


def test_a_noisy_machine_and_a_file_without_rows_are_named(tmp_path: Path) -> None:
    rows = [kernel("auto", 1.0)]
    assert report_of(tmp_path, rows=rows, noise={"noisy": False}).problems == []
    (problem,) = report_of(tmp_path, rows=rows, noise={"noisy": True}).problems
    assert problem.startswith("a.json: the machine was noisy")
    report = report_of(tmp_path, answer=42)
    (problem,) = report.problems
    assert problem.startswith("a.json: ")
    assert "42" in as_html(report)


def test_damaged_rows_are_named_and_shown(tmp_path: Path) -> None:
    for key in ("ms", "ok", "graph"):
        damaged = kernel("auto", 1.0)
        del damaged[key]
        report = report_of(tmp_path, rows=[kernel("auto", 1.5), damaged])
        assert f"row 1 lacks {key}" in report.problems[0]
        assert "1.500" in as_html(report)
    for ms in (None, "fast", [1], -1, 0):
        rows = [{**kernel("auto", 1.0), "ms": ms}, kernel("cusparse", 2.0)]
        report = report_of(tmp_path, rows=rows)
        assert [problem.partition(":")[0] for problem in report.problems] == ["a.json"]
        Page(as_html(report))


def test_the_origin_of_each_file_is_shown(tmp_path: Path) -> None:
    report = report_of(tmp_path, rows=[kernel("auto", 1.0)], commit="1234567890-dirty")
    row = as_markdown(report).rstrip().splitlines()[-1]
    for text in ("a.json", "NVIDIA H200", "2.11.0", "13.0", "3.12.3", "1234567-dirty", "2026-11-22"):
        assert text in row


def test_numbers_have_four_digits_and_cells_units() -> None:
    for value, text in (
        (0.00123456, "0.001235"), (0.5, "0.5000"), (12.3456, "12.35"), (1234.56, "1,235"), (1e-7, "1e-07"),
        (3.2e9, "3.2e+09"), (1234567, "1,234,567"), (0.0, "0"), (-2.5, "-2.500"), (float("inf"), "inf"),
    ):  # fmt: skip
        assert render.shown_number(value) == text
    assert render.shown_cell("peak_bytes", 3 * 2**30) == "3.00 GiB"
    assert render.shown_cell("peak_bytes", 5 * 2**20) == "5.0 MiB"
    assert render.shown_cell("flag", True) == "yes"
    assert render.shown_cell("x", None) == ""
    assert render.shown_cell("losses", [0.5] * 1000).startswith("1000 values: 0.5000, 0.5000")
    assert render.column_name("forward_ms") == "forward, ms"
    assert render.column_name("peak_bytes") == "peak"


def test_bars_are_as_long_as_their_values() -> None:
    bars = (Bar("a", 1.0, "1"), Bar("b", 4.0, "4"), Bar("c", None, "out of memory"))
    svg = draw(Bars("times", bars, line=2.0))
    widths = [float(width) for width in re.findall(r'<rect [^>]*width="([\d.]+)"', svg)]
    assert widths[1] == pytest.approx(4 * widths[0])
    assert svg.count('class="mark"') == 2
    assert "out of memory" in svg


@given(st.lists(st.floats(), max_size=6), st.booleans())
def test_charts_of_any_numbers_are_well_formed(values: list[float], lined: bool) -> None:
    bars = tuple(Bar(f"<{n}>", value, "t", low=value, high=value) for n, value in enumerate(values))
    svg = draw(Bars("t", bars, line=1.0 if lined else None))
    assert not re.search(r'="(nan|-?inf)', svg)
    Page(svg)


def kinds(chart: Bars) -> list[str]:
    """The classes of the bars, from the top."""
    return re.findall(r'<rect [^>]*class="(\w+)"', draw(chart))


def test_times_where_another_is_faster_and_speeds_below_the_line_are_marked() -> None:
    for times, marked in (
        ([(OURS, 1.0), (PEER, 2.0)], []),
        ([(OURS, 3.0), (PEER, 2.0)], [0]),
        ([(OURS, 3.0), (OURS, 2.5), (PEER, 2.0), (PEER, 9.0)], [1]),  # the fastest of ours
        ([(OURS, 3.0), (PEER, None)], []),
        ([(OURS, None), (PEER, 2.0)], []),
        ([(OURS, 3.0), (OURS, 1.0)], []),
    ):
        bars = tuple(Bar(f"case {n}", value, str(value), kind) for n, (kind, value) in enumerate(times))
        drawn = [number for number, (_, value) in enumerate(times) if value is not None]
        found = dict(zip(drawn, kinds(Bars("times, ms", bars)), strict=True))
        assert [number for number in drawn if found[number] == "lost"] == marked
    bars = tuple(Bar(str(speed), speed, str(speed)) for speed in (0.5, 1.0, 2.0))
    assert kinds(Bars("speed", bars, line=1.0)) == ["lost", OURS, OURS]
