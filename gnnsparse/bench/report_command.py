"""The command `gnnsparse report`: one page, and Markdown, of all results in JSON files."""

from __future__ import annotations

import argparse
import datetime
import re
import statistics
from collections import defaultdict
from pathlib import Path
from typing import Any

from rich.console import Console

import gnnsparse
from gnnsparse.bench.render import (
    ENVIRONMENT,
    LOST,
    OURS,
    PEER,
    Bar,
    Bars,
    Comparison,
    Part,
    Report,
    ResultFile,
    as_html,
    as_markdown,
    is_number,
    losses_text,
    read_results,
    row_lists,
    shown_number,
    table_of,
)
from gnnsparse.bench.runs import compared, is_run, show_runs
from gnnsparse.bench.session import Row, printer, progress
from gnnsparse.errors import bad_value
from gnnsparse.runtime.environment import write_text
from gnnsparse.runtime.profiler import wide_console
from gnnsparse_cli import file_option

Case = tuple[tuple[str, Any], ...]

#: For each benchmark of `gnnsparse bench` the section of its results, the keys by which its rows are known,
#: and the key of the times that are compared.
_BENCHMARKS = (
    ("kernels", ("graph", "op", "width", "precision", "kernel", "ours", "ok"), "ms"),
    ("latency", ("model", "dataset", "backend", "precision", "mode", "ours", "ok"), "p50_ms"),
)
#: Keys that name what was timed, the first that a row has.
_NAMES = ("backend", "name", "kernel", "variant")
#: Keys that say what was computed; rows that agree in them are compared.
_CASES = (
    "model", "dataset", "graph", "layer", "pattern", "score", "features", "op", "values", "precision",
    "batch", "batch_size", "heads", "width", "hidden", "layers", "length", "sparsity", "cache", "device",
)  # fmt: skip
#: Times that tell how much a measurement scatters, or that are no times of what was computed.
_STATISTICS = re.compile(
    r"fastest|slowest|quartile|floor|epoch|preprocess|prepare|warmup|p90|p95|p99|max_|_max|min_|_min|first|baseline"
)
#: Names of what is not ours. "sparse" and "fp16" alone are ours.
_PEERS = re.compile(
    r"pyg|dgl|dense|cudnn|flex|cusparse|sparse_mm|torch|gather|sampled|eager|compile|efficient|math|flash"
)
#: A word in the names of what is replayed as a CUDA graph, in which nothing waits for Python.
_CAPTURED = "captured"
#: What is shown of each row of `gnnsparse bench`, whose files have more.
_COLUMNS = (
    *_CASES, "kernel", "backend", "variant", "mode", "ms", "p50_ms", "p90_ms", "p99_ms", "max_ms", "gpu_ms",
    "samples_per_s", "first_result_ms", "preprocess_ms", "break_even", "peak_bytes", "of_floor", "error",
)  # fmt: skip
#: Keys of a time of ours and of PyG's in one row, and the names of what they time.
_PAIR = {"accelerated_ms": "accelerated", "pyg_ms": "pyg"}
#: Cases of a file whose times are drawn, bars of a chart, and speeds that have a bar each.
_CASES_DRAWN, _BARS, _NAMED = 40, 14, 12


def benchmark_of(rows: list[Row]) -> tuple[str, str] | None:
    """Return the section and the key of times of rows of `gnnsparse bench`, or None; errors if mixed."""
    for section, keys, time in _BENCHMARKS:
        if not any({*keys, time} <= row.keys() for row in rows):
            continue
        for number, row in enumerate(rows):
            if missing := [key for key in (*keys, time) if key not in row]:
                raise KeyError(f"row {number} lacks {', '.join(missing)}")
            if not is_number(row[time]) or row[time] <= 0:
                raise ValueError(f"{time}: got {row[time]!r}; accepted: a number above 0")
        return section, time
    return None


def _label_key(rows: list[Row]) -> str | None:
    return next((key for key in _NAMES if all(isinstance(row.get(key), str) for row in rows)), None)


def _time_keys(rows: list[Row]) -> list[str]:
    """Return the keys of the times that rows are compared by, such as "ms" or "forward_ms"."""
    keys = dict.fromkeys(key for row in rows for key in row)
    timed = [key for key in keys if key == "ms" or key.endswith(("_ms", "_milliseconds"))]
    return [
        key for key in timed
        if not _STATISTICS.search(key) and any(is_number(row.get(key)) for row in rows)
    ]  # fmt: skip


def _are_pairs(rows: list[Row]) -> bool:
    return all(is_number(row.get(key)) and row[key] > 0 for row in rows for key in _PAIR)


def _kind_of(name: str) -> str:
    return PEER if not name.startswith("gnnsparse") and _PEERS.search(name.lower()) else OURS


class _Timed:
    """A row with times: whose it is, its name, and whether it may be compared."""

    def __init__(self, row: Row, label: str) -> None:
        self.row = row
        self.kind = (OURS if row["ours"] else PEER) if "ours" in row else _kind_of(row[label])
        words = (str(row.get(key) or "") for key in ("precision", "mode"))
        self.name = " ".join([row[label], *(word for word in words if word not in row[label])])
        self.right = row.get("ok") is not False and row.get("accurate") is not False
        # Beside the plan's choice, kernels that are forced are not what users get.
        self.forced = self.kind == OURS and "kernel" in row and "plan" in row and row["kernel"] != "auto"
        self.case: Case = tuple(
            (key, tuple(row[key]) if isinstance(row[key], list) else row[key])
            for key in _CASES
            if key != label and row.get(key) is not None
        )

    def joins(self, case: Case) -> bool:
        """Return whether it is compared in a case: a peer also if it is dense, or in fp32."""
        if self.case == case:
            return True
        mine = dict(self.case)
        return self.kind == PEER and all(
            mine.get(key) == value
            or mine.get(key) in (None, "dense")
            or (key, mine[key]) in (("precision", "fp32"), ("sparsity", 0))
            for key, value in case
        )

    def bar(self, key: str) -> Bar:
        """Return the bar of a time; without one it says what is wrong."""
        value: Any = self.row.get(key)
        if not self.right:
            return Bar(self.name, None, f"WRONG: {self.row.get('problem', '')}", self.kind)
        if not is_number(value):
            return Bar(self.name, None, str(self.row.get("error")), self.kind)
        ends = {"ms": ("fastest_ms", "slowest_ms"), "p50_ms": ("p50_ms", "p99_ms")}.get(key, ("", ""))
        low, high = (self.row.get(end) for end in ends)
        if not (is_number(low) and is_number(high)):
            low = high = None
        return Bar(self.name, value, shown_number(float(value)), self.kind, low, high)


def _words_of(case: Case) -> str:
    return ", ".join(
        value if isinstance(value, str) else f"{key.replace('_', ' ')} {value}" for key, value in case
    )


def _groups(timed: list[_Timed]) -> dict[Case, list[_Timed]]:
    """Group what was timed by what was computed: by the cases of ours, if there are some."""
    groups: dict[Case, list[_Timed]] = {
        one.case: [] for one in [one for one in timed if one.kind == OURS] or timed
    }
    for one in timed:
        for case in groups if one.kind == PEER else (one.case,):
            if one.joins(case):
                groups[case].append(one)
    return groups


def show_times(
    file: str, rows: list[Row], section: str, time: str = "", about: str = ""
) -> tuple[list[Part], list[Comparison]]:
    """Return charts and tables of timed rows, and comparisons of ours with the fastest right one of others.

    A peer counts in the same precision or in fp32. What Python launches is compared with what Python
    launches, what is captured in a CUDA graph with everything.
    """
    if _are_pairs(rows):
        timed = [
            _Timed({**row, "backend": name, "ms": float(row[key])}, "backend")
            for row in rows
            for key, name in _PAIR.items()
        ]
        keys = ["ms"]
    else:
        label = _label_key(rows)
        assert label is not None
        timed, keys = [_Timed(row, label) for row in rows], [time] if time else _time_keys(rows)
    groups = _groups(timed)
    charts: list[Part] = []
    compared: dict[str, list[Comparison]] = defaultdict(list)
    for key in keys:
        what = "" if key in ("ms", "milliseconds", "p50_ms") else key.rpartition("_")[0].replace("_", " ")
        for case, group in groups.items():
            words = ", ".join(filter(None, (about, _words_of(case), what)))
            of = dict(case)
            name = ", ".join(str(word) for word in (of.get("op"), of.get("precision"), what) if word)
            compared[name] += _compared(file, group, key, words, section)
            bars = tuple(one.bar(key) for one in group)
            bars = tuple(bar for bar in bars if bar.value is not None or bar.text != "None")
            if 1 < len(bars) <= _BARS and len(keys) * len(groups) <= _CASES_DRAWN:
                charts.append(Bars(f"{words or file}, ms", bars))
    comparisons = [found for group in compared.values() for found in group]
    shown = ("case", "ours", "ours_ms", "best other", "other_ms", "speed")
    beside = [{key: found[key] for key in shown} for found in comparisons]
    wrong = [
        {"case": _words_of(one.case), "name": one.name, "error": f"WRONG: {one.row.get('problem', '')}"}
        for one in timed
        if not one.right
    ]
    all_rows = [{key: row.get(key) for key in _COLUMNS} for row in rows] if time else rows
    tables = [
        table_of("Beside the fastest other", beside),
        table_of("Wrong results", wrong),
        table_of("Measurements" + (f": {about}" if about else ""), all_rows),
    ]
    return [*_speeds(compared), *charts, *(table for table in tables if table.rows)], comparisons


def _compared(file: str, group: list[_Timed], key: str, words: str, section: str) -> list[Comparison]:
    right = [one for one in group if one.right and is_number(one.row.get(key))]
    times = {one: float(one.row[key]) for one in right if one.row[key] > 0}
    ours = {one: ms for one, ms in times.items() if one.kind == OURS}
    found = []
    for one, ms in ours.items():
        captured = _CAPTURED in one.name
        rivals = [peer for peer in times if peer.kind == PEER and (captured or _CAPTURED not in peer.name)]
        if rivals and not one.forced:
            best = min(rivals, key=times.__getitem__)
            found.append({
                "section": section, "case": words, "ours": one.name, "ours_ms": ms, "best other": best.name,
                "other_ms": times[best], "speed": times[best] / ms, "fastest of ours_ms": min(ours.values()),
                "file": file,
            })  # fmt: skip
    return found


def _speeds(compared: dict[str, list[Comparison]]) -> list[Part]:
    """Return charts of the speeds of each group of a few cases, and one of the means of all groups."""
    title = "speed in units of the best other's"
    charts, means = list[Part](), list[Bar]()
    for name, group in compared.items():
        ordered = sorted(group, key=lambda found: found["speed"])
        if 0 < len(group) <= _NAMED:
            bars = (
                Bar(of["case"], of["speed"], f"{of['speed']:.2f}x, {shown_number(of['ours_ms'])} ms")
                for of in ordered
            )
            charts.append(Bars(f"{name}: {title}" if name else title, tuple(bars), line=1.0))
        if len(group) > 1:
            speeds = [found["speed"] for found in ordered]
            mean, low, high = statistics.geometric_mean(speeds), speeds[0], speeds[-1]
            text = f"{mean:.2f}x ({low:.2f} to {high:.2f}, {len(group)} cases)"
            means.append(Bar(name or "all", mean, text, OURS, low, high))
    return [Bars(f"Mean {title}, least and largest", tuple(means), line=1.0), *charts] if means else charts


# Which view shows a list of rows, and in which section.

#: Words in keys of rows by which a section is found; the first that fits.
_WORDS = (
    ("precision", {"standard_deviation", "std", "deviation", "losses"}),
    ("kernels", {"pattern", "gflops"}),
    ("latency", {"p50_ms", "p90_ms", "p99_ms", "throughput", "samples_per_s", "sparsity"}),
    ("preprocessing", {"preprocess_seconds", "preprocess_ms", "prepare_ms", "prepare_seconds", "cache_hit"}),
    (
        "training",
        {"first_loss", "loss", "peak_bytes", "backward_ms", "accelerated_ms", "fit_milliseconds", "epochs"},
    ),
    ("precision", {"error", "relative_error", "mean", "accuracy", "half", "magnitude", "infinite", "p"}),
    ("kernels", {"both_ms", "forward_ms"}),
)
#: Lists in files of benchmarks that stand beside the measurements, and their titles.
_BESIDE = {
    "skipped": "Not measured",
    "means": "Means over the matrices",
    LOST: "By the benchmark's own rule, where other kernels of ours count too",
}


def assemble(files: list[ResultFile], problems: list[str], made: str) -> Report:
    """Make the report of files; `problems` are lines about files that are none, `made` says when and how."""
    report = Report(files, list(problems), made)
    if runs := [file for file in files if is_run(file.content)]:
        parts = show_runs(runs, report.problems)
        report.sections["training"] = [("Runs of train.py", part) for part in parts]
    for file in files:
        if not is_run(file.content):
            _add(report, file)
    return report


def _add(report: Report, file: ResultFile) -> None:
    content, lists = file.content, dict(row_lists(file.content))
    shown: list[tuple[str, list[Part]]] = []
    about = _about(content)
    for place, rows in lists.items():
        try:
            section, parts, comparisons = _view(file.name, place, rows, about)
        except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
            what = f"{place or 'its rows'} could not be read as expected ({type(error).__name__}: {error})"
            report.problems.append(f"{file.name}: {what}, and are shown as they are")
            section, parts, comparisons = "other", [_as_it_is(place, rows)], []
        shown.append((section, parts))
        report.comparisons += comparisons
    if not shown:
        report.problems.append(f"{file.name}: has no list of results; its values are shown as they are")
    noise = content.get("noise")
    if isinstance(noise, dict) and noise.get("noisy") is True:
        noisy = "the machine was noisy when it was measured: small differences mean nothing"
        report.problems.append(f"{file.name}: {noisy}")
    if further := {} if "" in lists else _without(content, set(lists)):
        table = table_of("Settings and further values", [further], folded=True)
        shown.append(("", [table] if table.header else []))
    first = next((section for section, _ in shown if section not in ("", LOST)), "other")
    for section, parts in shown:
        report.sections.setdefault(section or first, []).extend((file.name, part) for part in parts)


def _without(content: Row, listed: set[str], at: str = "") -> Row:
    """Return a copy of an object without the lists at the given places, and without the environment."""
    left = {}
    for key, value in content.items():
        place = f"{at}.{key}" if at else str(key)
        if place in listed or (not at and key in ENVIRONMENT) or value in ([], {}):
            continue
        left[key] = _without(value, listed, place) if isinstance(value, dict) else value
    return left


def _about(content: Row) -> str:
    """Return what all results of a file have in common, such as "gcn, reddit_like, 5 layers, hidden 128"."""
    found = []
    for key in ("model", "graph", "dataset", "precision", "layers", "hidden"):
        value = content.get(key)
        if isinstance(value, str):
            found.append(value)
        elif isinstance(value, int):
            found.append(f"{value} {key}" if key == "layers" else f"{key} {value}")
    return ", ".join(found)


def _view(file: str, place: str, rows: list[Row], about: str) -> tuple[str, list[Part], list[Comparison]]:
    """Return what a list of rows is shown as: the section, "" for that of the file, and the parts of it."""
    last = place.rpartition(".")[2]
    if benchmark := benchmark_of(rows):
        return benchmark[0], *show_times(file, rows, *benchmark)
    if last in _BESIDE:
        return LOST if last == LOST else "", [table_of(_BESIDE[last], rows, folded=last != LOST)], []
    keys = {key for row in rows for key in row} - set(ENVIRONMENT)
    section = next((name for name, words in _WORDS if keys & words), "other")
    if _are_pairs(rows) or (_label_key(rows) is not None and _time_keys(rows)):
        section = "kernels" if section == "precision" else section
        return section, *show_times(file, rows, section, about=about)
    return section, [_as_it_is(place, rows)], []


def _as_it_is(place: str, rows: list[Row]) -> Part:
    left = [{key: value for key, value in row.items() if key not in ENVIRONMENT} for row in rows]
    return table_of(place or "Results", left)


DESCRIPTION = """\
Makes one page of all results. Runs of train.py stand in one table, with scores, time and memory, and their
curves in one picture. Benchmarks show what was measured where, by which versions, how fast, how exact, and
where others are faster. The page needs no network and no script.
"""
#: The folder that is read if none is named, below the current one.
DEFAULT_FOLDER = Path("benchmarks/results")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `gnnsparse report`."""
    parser.add_argument(
        "files", nargs="*", type=Path, metavar="RUN",
        help="folders of runs and sweeps of train.py, JSON files of results, and folders that are searched "
        f"for them; default: {DEFAULT_FOLDER}",
    )  # fmt: skip
    parser.add_argument("--out", type=file_option, metavar="FILE.html", help="the page; default: report.html")
    parser.add_argument("--markdown", type=file_option, metavar="FILE.md", help="the report in Markdown too")


def run(options: argparse.Namespace) -> int:
    """Read results, and write the report; the status is 1 if there is no result, and nothing was written.

    Files that are no results are named on stderr and in the report.
    """
    tell, say = progress(), printer(Console())
    if not options.files and not DEFAULT_FOLDER.is_dir():
        accepted = "folders of runs of train.py, such as outputs, and files of results"
        bad_value("RUN", f"none is given, and there is no folder {DEFAULT_FOLDER}; accepted: {accepted}")
    files, damaged = read_results(options.files or [DEFAULT_FOLDER])
    now = datetime.datetime.now(datetime.timezone.utc).isoformat(" ", "minutes").removesuffix("+00:00")
    count = "1 file" if len(files) == 1 else f"{len(files)} files"
    made = f"Made from {count} of results by gnnsparse {gnnsparse.__version__}, {now} UTC."
    report = assemble(files, damaged, made)
    for problem in report.problems:
        tell(f"gnnsparse report: {problem}")
    if not files:
        tell("gnnsparse report: there is no result; nothing is written")
        return 1
    if runs := [file for file in files if is_run(file.content)]:
        wide_console(160).print(compared(runs))
    out = options.out or (None if options.markdown else Path("report.html"))
    if out is not None:
        write_text(out, as_html(report))
        say(f"{out}: {out.stat().st_size / 1e3:,.0f} kB; open it in a browser")
    if options.markdown is not None:
        write_text(options.markdown, as_markdown(report))
        say(f"{options.markdown}")
    if report.comparisons:
        say(losses_text(report.comparisons))
    return 0
