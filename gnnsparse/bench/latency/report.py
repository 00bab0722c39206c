"""The report of `gnnsparse bench latency`: ratios to the fastest peer, break-even, and where we lose."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from gnnsparse.bench.latency.run import LatencyBench, SkippedLatency
from gnnsparse.bench.noise import SPREAD_LIMIT, noise_lines
from gnnsparse.bench.report import no_losses
from gnnsparse.runtime.environment import describe_environment

__all__ = ["LOSS", "add_ratios", "as_json", "break_even", "lost_cases", "print_report"]

#: A case is lost if our speed is below this fraction of the fastest peer's.
LOSS = 0.97

Row = dict[str, Any]


def _case(row: Row) -> tuple[Any, ...]:
    return row["model"], row["dataset"], row["batch"], row["cache"]


def _competes(peer: Row, row: Row) -> bool:
    """Returns whether a right row of a peer is compared with `row`.

    A peer may run in fp32 in place of the precision. What is launched from Python is compared with what is
    launched from Python; what is captured in a CUDA graph, with everything.
    """
    right = not peer["ours"] and peer["ok"] and _case(peer) == _case(row)
    precise = peer["precision"] in (row["precision"], "fp32")
    return right and precise and (row["mode"] == "captured" or peer["mode"] == "eager")


def break_even(ours: Row, peer: Row) -> int | None:
    """Returns after how many inferences ours has taken less time than a peer, preprocessing included.

    Args:
        ours, peer: rows with `preprocess_ms` and `p50_ms`.

    Returns:
        1 or more; None if that never happens.
    """
    ahead = ours["preprocess_ms"] - peer["preprocess_ms"]
    gain = peer["p50_ms"] - ours["p50_ms"]
    if gain <= 0:
        # A head start that every inference makes smaller: it counts while it lasts for one inference.
        return 1 if ahead < gain else None
    return max(1, math.floor(ahead / gain) + 1)


def add_ratios(rows: list[Row]) -> None:
    """Adds to each row its speed relative to peers: above 1 is faster. Wrong results are never compared.

    The keys are `baseline`, the name of the fastest right peer, `over_baseline`, `over_pyg` (PyG with an
    edge_index, not captured, in the row's precision if it is right there, else in fp32), and `break_even`,
    the number of inferences after which a row of ours has made up for its preprocessing, beside the
    baseline's. All are None if there is no such peer, or if the row itself is wrong.
    """
    for row in rows:
        row |= {"baseline": None, "over_baseline": None, "over_pyg": None, "break_even": None}
        if not row["ok"]:
            continue
        peers = [peer for peer in rows if _competes(peer, row)]
        if best := min(peers, key=lambda peer: peer["p50_ms"], default=None):
            row["baseline"], row["over_baseline"] = _name(best), best["p50_ms"] / row["p50_ms"]
            row["break_even"] = break_even(row, best) if row["ours"] else None
        plain = [peer for peer in peers if (peer["backend"], peer["mode"]) == ("pyg", "eager")]
        if found := min(plain, key=lambda peer: peer["precision"] != row["precision"], default=None):
            row["over_pyg"] = found["p50_ms"] / row["p50_ms"]


def _name(row: Row) -> str:
    return f"{row['backend']} {row['precision']} {row['mode']}"


def lost_cases(rows: list[Row], drift: float = 0.0) -> list[Row]:
    """Finds right rows of ours that are slower than LOSS times their baseline, worst first.

    Args:
        rows: the measurements.
        drift: how far the reference changed while they were made (`NoiseMeter.drift`).
    """
    keys = ("model", "dataset", "batch", "precision", "mode", "cache", "p50_ms", "baseline")
    lost = [
        {key: row[key] for key in keys}
        | {
            "speed": row["over_baseline"],
            "noisy": row["spread"] > SPREAD_LIMIT or (1 + drift) * row["over_baseline"] >= 1,
        }
        for row in rows
        if row["ours"] and row["over_baseline"] is not None and row["over_baseline"] < LOSS
    ]
    return sorted(lost, key=lambda case: case["speed"])


def as_json(bench: LatencyBench) -> dict[str, Any]:
    """Returns the content of the JSON file: environment, settings, rows, what was skipped, losses, noise."""
    add_ratios(bench.rows)
    settings = asdict(bench.settings)
    del settings["root"]  # a path of this machine
    return {
        **describe_environment(bench.settings.device),
        "settings": settings,
        "rows": bench.rows,
        "skipped": [asdict(skipped) for skipped in bench.skipped],
        "lost": lost_cases(bench.rows, bench.noise.drift),
        "noise": bench.noise.summary([row["spread"] for row in bench.rows]),
    }


def _ms(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.3f}" if value < 10 else f"{value:.1f}" if value < 1e3 else f"{value:.0f}"


def _ratio(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _table(rows: list[Row]) -> Table:
    first = rows[0]
    batch = f", batch {first['batch']}" if first["model"] == "transformer" else ""
    about = f"{first['model']}, {first['dataset']}{batch}: {first['layers']} layers, hidden {first['hidden']}"
    table = Table(title=escape(about))
    for name in ("backend", "precision", "mode", "cache"):
        table.add_column(name, overflow="fold")
    for name in (
        "p50, ms", "p90", "p99", "max", "calls", "GPU, ms", "samples/s", "first, ms", "prep., ms",
        "even after", "MB", "x best peer", "x PyG", "error",
    ):  # fmt: skip
        table.add_column(name, justify="right", no_wrap=True)
    for r in rows:
        name = f"{r['backend']} ({r['variant']})" if r["variant"] and not r["ours"] else r["backend"]
        peak = "" if r["peak_bytes"] is None else f"{r['peak_bytes'] / 1e6:.1f}"
        error = "-" if r["error"] is None else f"{r['error']:.1e}"
        noisy = "~" if r["spread"] > SPREAD_LIMIT else ""
        table.add_row(
            escape(name), r["precision"], r["mode"], r["cache"], _ms(r["p50_ms"]) + noisy, _ms(r["p90_ms"]),
            _ms(r["p99_ms"]), _ms(r["max_ms"]), str(r["calls"]), _ms(r["gpu_ms"]),
            "" if r["samples_per_s"] is None else f"{r['samples_per_s']:.0f}", _ms(r["first_result_ms"]),
            _ms(r["preprocess_ms"]), "" if r["break_even"] is None else str(r["break_even"]), peak,
            _ratio(r["over_baseline"]), _ratio(r["over_pyg"]),
            error if r["ok"] else f"[red]WRONG[/red] {error}",
            style=None if r["ours"] else "dim",
        )  # fmt: skip
    return table


def print_report(bench: LatencyBench, console: Console) -> None:
    """Prints the tables, what is wrong or was skipped, the noise, and where we lose."""

    def say(text: str) -> None:
        console.print(escape(text), soft_wrap=True, highlight=False)

    add_ratios(bench.rows)
    tables: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
    for row in bench.rows:
        tables[row["model"], row["dataset"], row["batch"]].append(row)
    for rows in tables.values():
        console.print(_table(rows))
    if bench.rows:
        say(
            "p50 to p99: one call after the other (single stream of MLPerf Inference, which counts p90); "
            "samples/s: calls that do not wait for each other (offline of MLPerf Inference)"
        )
    for row in bench.rows:
        if not row["ok"]:
            say(f"WRONG, and not compared: {_where(row)}, {row['backend']}: {row['problem']}")
    for line in [*_call_lines(bench), *_skipped_lines(bench.skipped)]:
        say(line)
    for line in noise_lines(bench.noise.summary([row["spread"] for row in bench.rows])):
        say(line)
    say("Where we lose:")
    for case in (cases := lost_cases(bench.rows, bench.noise.drift)):
        noisy = ", not larger than the measured noise" if case["noisy"] else ""
        speed = f"{case['p50_ms']:.3f} ms, {case['speed']:.2f}x {case['baseline']}"
        say(f"  {_where(case)}: {speed}{noisy}")
    if not cases:
        compared = sum(row["ours"] and row["over_baseline"] is not None for row in bench.rows)
        say(f"  {no_losses(len(bench.rows), compared)}")


def _where(row: Row) -> str:
    batch = f", batch {row['batch']}" if row["model"] == "transformer" else ""
    return f"{row['model']}, {row['dataset']}{batch}, {row['precision']}, {row['mode']}, {row['cache']}"


def _call_lines(bench: LatencyBench) -> list[str]:
    """Returns lines of the rows with fewer calls than asked for, and of those that did not become stable."""
    lines = []
    few = [row for row in bench.rows if row["calls"] < bench.settings.calls]
    if few:
        least = min(row["calls"] for row in few)
        lines.append(
            f"{len(few)} of {len(bench.rows)} rows have fewer than {bench.settings.calls} calls, {least} at "
            f"the least, because they took more than {bench.settings.seconds:g} s"
        )
    if unstable := sum(not row["stable"] for row in bench.rows):
        lines.append(
            f"{unstable} of {len(bench.rows)} rows were not stable within 2 % when the warm-up ended"
        )
    return lines


def _skipped_lines(skipped: list[SkippedLatency]) -> list[str]:
    """Returns a line for each backend and reason for which it was skipped."""
    groups: dict[tuple[str, str, bool], list[SkippedLatency]] = defaultdict(list)
    for case in skipped:
        groups[case.backend, case.reason, case.failed].append(case)
    lines = []
    for (name, reason, failed), cases in groups.items():
        parts = ([c.model for c in cases], [c.dataset for c in cases], [c.precision for c in cases])
        where = "; ".join(filter(None, (", ".join(dict.fromkeys(filter(None, part))) for part in parts)))
        lines.append(f"{'failed' if failed else 'skipped'}: {name + ' in ' if name else ''}{where}: {reason}")
    return lines
