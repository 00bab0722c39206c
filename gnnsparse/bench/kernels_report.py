"""The report of a benchmark: ratios to a baseline, means over matrices, and lost cases."""

from __future__ import annotations

import statistics
from collections import defaultdict
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from gnnsparse.bench.kernels import Bench
from gnnsparse.bench.noise import SPREAD_LIMIT, is_noise
from gnnsparse.bench.peers import BASELINES, peer_precision
from gnnsparse.bench.session import LOSS, Row, new_table, no_losses, printer, shown_error, skipped_lines
from gnnsparse.precision import Precision

__all__ = ["add_ratios", "as_json", "lost_cases", "means_of_auto", "print_report"]


def _case(row: Row) -> tuple[Any, ...]:
    return row["graph"], row["op"], row["values"], row["width"]


def _in_precision(row: Row) -> tuple[Any, ...]:
    return *_case(row), row["precision"], _variant_of(row)


def _variant_of(row: Row) -> str:
    """Return the variant of a kernel of ours: each is compared by itself. Peers' fastest one is in rows."""
    return str(row.get("variant", "")) if row["ours"] else ""


def add_ratios(rows: list[Row], device: str) -> None:
    """Add to each row its speed relative to the baseline's, above 1 is faster; None if there is no baseline.

    The baseline is the first of BASELINES that was measured and is right, in the row's precision or else in
    fp32; notes/benchmarks.md lists the keys.
    """
    right = {(*_case(r), r["kernel"], r["precision"]): r for r in rows if not r["ours"] and r["ok"]}
    for row in rows:
        peers = BASELINES[row["op"], device]
        base, torchs = _baseline(row, peers, right), _baseline(row, peers[-1:], right)
        ratio = None if base is None else base["ms"] / row["ms"]
        row["baseline"] = None if base is None else f"{base['kernel']} {base['precision']}"
        row["baseline_variant"] = None if base is None else base.get("variant", "")
        row["over_baseline"] = ratio
        row["over_cusparse"] = ratio if device == "cuda" else None
        row["over_torch"] = None if torchs is None else torchs["ms"] / row["ms"]


def _baseline(row: Row, peers: tuple[str, ...], right: dict[tuple[Any, ...], Row]) -> Row | None:
    """Return the right row of the first peer that has one for the case of `row`; None if none has."""
    for peer in peers:
        for precision in (peer_precision(peer, Precision(row["precision"])), Precision.FP32):
            if found := right.get((*_case(row), peer, precision.value)):
                return found
    return None


def means_of_auto(rows: list[Row]) -> list[Row]:
    """Compute the geometric means of the ratios of `auto`, over matrices, widths and values.

    Wrong results and cases without a baseline are left out.
    """
    groups: dict[tuple[str, str, str, str], list[Row]] = defaultdict(list)
    for row in rows:
        if row["kernel"] == "auto" and row["ok"] and row["over_baseline"] is not None:
            groups[row["op"], row["precision"], _variant_of(row), row["baseline"]].append(row)
    return [
        {
            "op": op, "precision": precision, "variant": variant, "baseline": baseline, "cases": len(group),
            "matrices": len({row["graph"] for row in group}),
            "mean": statistics.geometric_mean(row["over_baseline"] for row in group),
        }
        for (op, precision, variant, baseline), group in groups.items()
    ]  # fmt: skip


def lost_cases(rows: list[Row], drift: float = 0.0) -> list[Row]:
    """Find cases where `auto` is slower than LOSS times the best of the peers and of our forced kernels.

    Plans and kernels are judged by these cases, the worst first. Wrong results are left out. "noisy" is
    whether the two differ by no more than the measured noise.
    """
    lost = []
    for row, best in _compared(rows):
        if best["ms"] >= LOSS * row["ms"]:
            continue
        keys = ("graph", "op", "values", "precision", "width", "ms")
        lost.append({
            **{key: row[key] for key in keys}, "variant": _variant_of(row), "best": _full_name(best),
            "best_ms": best["ms"], "best_is_ours": best["ours"], "speed": best["ms"] / row["ms"],
            "noisy": is_noise(row, best, drift),
        })  # fmt: skip
    return sorted(lost, key=lambda case: case["speed"])


def _compared(rows: list[Row]) -> list[tuple[Row, Row]]:
    """Return the right rows of `auto` that have rivals, each with the fastest of them."""
    rivals: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
    for row in rows:
        if row["ok"] and row["kernel"] != "auto":
            rivals[_case(row)].append(row)
    found = []
    for row in (row for row in rows if row["ok"] and row["kernel"] == "auto"):
        if against := [rival for rival in rivals[_case(row)] if _competes(rival, row)]:
            found.append((row, min(against, key=lambda rival: rival["ms"])))
    return found


def _competes(rival: Row, row: Row) -> bool:
    """Return whether a candidate's row is in the precision that rows like `row` are compared with."""
    precision = Precision(row["precision"])
    if rival["ours"]:
        return rival["precision"] == row["precision"] and _variant_of(rival) == _variant_of(row)
    wanted = peer_precision(rival["kernel"], precision)
    return rival["precision"] == wanted.value or _is_baseline_of(rival, row)


def _is_baseline_of(rival: Row, row: Row) -> bool:
    return row.get("baseline") == f"{rival['kernel']} {rival['precision']}"


def _full_name(row: Row) -> str:
    if row["ours"]:
        return row["kernel"]
    variant = f" ({row['variant']})" if row.get("variant") else ""
    return f"{row['kernel']} {row['precision']}{variant}"


def as_json(bench: Bench) -> Row:
    """Return the content of the JSON file: environment, settings, rows, what was skipped, summary."""
    names = [*(row["graph"] for row in bench.rows), *(spec.name for spec in bench.settings.matrices)]
    # With the matrices of a file that the run went on with.
    settings = {**asdict(bench.settings), "matrices": list(dict.fromkeys(names))}
    means, lost = means_of_auto(bench.rows), lost_cases(bench.rows, bench.noise.drift)
    content = bench.content(settings, means=means, lost=lost)
    return {**content, "commits": list(dict.fromkeys([*bench.commits, content["commit"]]))}


def _table(op: str, rows: list[Row]) -> Table:
    numbers = ("ms", "quartiles", "GFLOP/s", "floor, ms", "of floor", "x baseline", "x torch", "error")
    table = new_table(op, ("matrix", "values", "N", "precision", "kernel"), numbers)
    # Sorted by case, since peers of one precision may be measured long before kernels of another.
    order = {case: number for number, case in enumerate(dict.fromkeys(map(_case, rows)))}
    for r in sorted(rows, key=lambda row: order[_case(row)]):
        table.add_row(
            escape(r["graph"]), r["values"], str(r["width"]), r["precision"],
            _kernel_name(r), f"{r['ms']:.3f}" + ("~" if r["spread"] > SPREAD_LIMIT else ""),
            f"{r['lower_quartile_ms']:.3f}..{r['upper_quartile_ms']:.3f}", f"{r['gflops']:.0f}",
            _number(r["floor_measured_ms"], 3), _number(r["of_floor"]), _number(r["over_baseline"]),
            _number(r["over_torch"]), shown_error(r),
            style=None if r["ours"] else "dim",
        )  # fmt: skip
    return table


def _ablation_table(rows: list[Row]) -> Table:
    """Rows of formats: the time beside that of the paper's policy, and of the baseline."""
    texts = ("matrix", "values", "N", "precision", "format and change")
    table = new_table("policies of formats", texts, ("ms", "x its policy", "x baseline"))
    own = {(*_in_precision(r), r["kernel"]): r["ms"] for r in rows}
    for r in rows:
        ms = own.get((*_in_precision(r), r["format"]))
        table.add_row(
            escape(r["graph"]), r["values"], str(r["width"]), r["precision"], r["kernel"], f"{r['ms']:.3f}",
            "" if ms is None else f"{ms / r['ms']:.2f}", _number(r["over_baseline"]),
        )  # fmt: skip
    return table


def _kernel_name(row: Row) -> str:
    if row["same_as"]:
        return f"{row['kernel']} = {row['same_as']}"
    return f"{row['kernel']} ({row['variant']})" if row["variant"] else row["kernel"]


def _number(value: float | None, digits: int = 2) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def print_report(bench: Bench, console: Console) -> None:
    """Print the tables, what is wrong or was skipped, means of `auto`, the noise, and where we lose."""
    say = printer(console)
    for op in bench.settings.ops:
        rows = [row for row in bench.rows if row["op"] == op]
        if rows:
            console.print(_table(op, rows))
            say(f"baseline of {op}: {_baseline_names(rows)}")
    if formats := [row for row in bench.rows if row.get("format")]:
        console.print(_ablation_table(formats))
    for row in bench.rows:
        if not row["ok"]:
            say(f"WRONG: {row['kernel']}, {_where(row)}: {row['problem']}")
    uncaptured = dict.fromkeys((r["kernel"], r["timing_problem"]) for r in bench.rows if r["timing_problem"])
    lines = [f"timed without a CUDA graph: {name}: {problem}" for name, problem in uncaptured]
    lines += skipped_lines(bench.skipped, "name", ("graph", "op", "precision"))
    for mean in means_of_auto(bench.rows):
        if mean["matrices"] > 1:
            about = f"{mean['cases']} cases of {mean['matrices']} matrices"
            which = f"{mean['op']} {mean['precision']}" + (f" ({mean['variant']})" if mean["variant"] else "")
            lines.append(f"auto, {which}: {mean['mean']:.2f} x {mean['baseline']} ({about})")
    bench.say_end(say, lines)
    cases = lost_cases(bench.rows, bench.noise.drift)
    clear = [case for case in cases if not case["noisy"]]
    for case in clear:
        best = f"{case['best']} takes {case['best_ms']:.3f} ms"
        say(f"  auto loses: {_where(case)}: {case['ms']:.3f} ms, {best} ({case['speed']:.2f}x)")
    if not clear:
        say(f"  {no_losses(len(bench.rows), len(_compared(bench.rows)))}")
    if noise := len(cases) - len(clear):
        say(f"  noise: {noise} more, in which the difference is not larger than the measured noise")


def _baseline_names(rows: list[Row]) -> str:
    """Return the baselines of some rows with the algorithms that they ran, or that there is none."""
    found: dict[str, dict[str, None]] = defaultdict(dict)
    for row in rows:
        if row["baseline"] is not None:
            found[row["baseline"]][row["baseline_variant"]] = None
    names = [name + (f" ({', '.join(v)})" if any(v) else "") for name, v in found.items()]
    return "; ".join(names) or "none was measured and is right"


def _where(row: Row) -> str:
    variant = f", {row['variant']}" if row.get("variant") else ""
    case = f"{row['graph']}, {row['op']}, values {row['values']}, {row['precision']}, N = {row['width']}"
    return case + variant
