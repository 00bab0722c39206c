"""The results of a study, each compared with fp32: on the terminal, and as Markdown, CSV and a plot."""

from __future__ import annotations

import csv
import dataclasses
import io
import itertools
import os
import statistics
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from gnnsparse.train.statistics import LEAST_PAIRS, compare_paired, holm, smallest_p_value, summarize
from launch.study.settings import PEERS, REFERENCE, Run, StudyOptions

__all__ = [
    "Row", "as_csv", "as_markdown", "conclusions", "draw", "exceptions", "families", "paper_rows",
    "print_report", "rows_of", "write_text",
]  # fmt: skip

#: A corrected p-value below this is called a difference.
LEVEL = 0.05

Row = dict[str, Any]


def rows_of(results: Mapping[Run, dict[str, Any]]) -> list[Row]:
    """Make a row of the finished runs of each (data set, model, variant).

    Scores are those of the test part, in per cent. Each variant is compared with REFERENCE over the seeds
    that both have; the p-values of each of `families` are corrected by Holm's method.
    """
    groups: dict[tuple[str, str, str], dict[int, dict[str, Any]]] = defaultdict(dict)
    for run, result in results.items():
        groups[run.dataset, run.model, run.variant][run.seed] = result
    rows = []
    for (dataset, model, variant), by_seed in groups.items():
        rows.append(_row(dataset, model, variant, by_seed))
        reference = groups.get((dataset, model, REFERENCE), {})
        rows[-1] |= _comparison(by_seed, {} if variant == REFERENCE else reference)
    for family in families(rows):
        tested = [row for row in family if row["p_value"] is not None]
        for row, p_value in zip(tested, holm([row["p_value"] for row in tested]), strict=True):
            row["p_corrected"] = p_value
    return rows


def families(rows: Iterable[Row]) -> tuple[list[Row], list[Row]]:
    """Return the rows that are compared with REFERENCE: those of the precisions, and those of the peers."""
    compared = [row for row in rows if row["compared_seeds"]]
    peers = [row for row in compared if row["variant"] in PEERS]
    return [row for row in compared if row["variant"] not in PEERS], peers


def too_few_seeds(family: list[Row]) -> list[str]:
    """Return what can't be said of the significance of differences, whatever the scores are; one line each.

    Args:
        family: one of `families`.
    """
    if not family:
        return []
    count, lines = len(family), []
    needed = next(n for n in itertools.count(LEAST_PAIRS) if count * smallest_p_value(n) < LEVEL)
    comparisons = "one comparison" if count == 1 else f"{count} comparisons"
    needs = f"with {comparisons} it takes {needed} seeds for a corrected p below {LEVEL}"
    if few := sum(row["compared_seeds"] < LEAST_PAIRS for row in family):
        lines.append(
            f"Nothing is said of the significance of differences of fewer than {LEAST_PAIRS} seeds ({few} of "
            f"{count}): {needs}."
        )
    tested = [smallest_p_value(row["compared_seeds"]) for row in family if row["p_value"] is not None]
    if tested and len(tested) * min(tested) >= LEVEL:
        lines.append(f"No difference can be significant, whatever the scores are: {needs}.")
    return lines


def _score(result: dict[str, Any]) -> float:
    return 100.0 * float(result["metrics"]["test"][result["score"]])


def _row(dataset: str, model: str, variant: str, by_seed: Mapping[int, dict[str, Any]]) -> Row:
    results = [by_seed[seed] for seed in sorted(by_seed)]
    scores = [_score(result) for result in results]
    times = [result["epoch_milliseconds"] for result in results if result["epoch_milliseconds"] is not None]
    summary = summarize(scores)
    return {
        "dataset": dataset,
        "model": model,
        "variant": variant,
        "device": results[0]["device"],
        "metric": results[0]["score"],
        "epochs": results[0]["epochs"],
        "seeds": sorted(by_seed),
        "scores": scores,
        "mean": summary.mean,
        "standard_deviation": summary.standard_deviation,
        "best_epochs": [result["best_epoch"] for result in results],
        "epoch_milliseconds": statistics.median(times) if times else None,
        "fit_seconds": sum(result["fit_seconds"] for result in results),
        "peak_memory_bytes": max(result["peak_memory_bytes"] for result in results),
        "parameters": results[0]["parameters"],
    }


def _comparison(by_seed: Mapping[int, dict[str, Any]], reference: Mapping[int, dict[str, Any]]) -> Row:
    names = ("difference", "interval", "p_value", "within_deviation")
    shared = sorted(by_seed.keys() & reference.keys())
    if not shared:
        return {**dict.fromkeys(names), "compared_seeds": 0, "p_corrected": None}
    found = compare_paired(*([_score(of[seed]) for seed in shared] for of in (by_seed, reference)))
    values = dataclasses.asdict(found)
    return {**{name: values[name] for name in names}, "compared_seeds": found.count, "p_corrected": None}


def exceptions(rows: Iterable[Row]) -> list[Row]:
    """Return the precisions whose mean is further from fp32's than one standard deviation of fp32."""
    return [row for row in rows if row["variant"] not in PEERS and row["within_deviation"] is False]


def paper_rows(study: StudyOptions, rows: Iterable[Row]) -> list[Row]:
    """Set the scores of a paper beside those of the study.

    Returns:
        A dict with keys "dataset", "variant", "paper", "mean", "standard_deviation", "difference" and
        "differs" for each score of the paper, in its order; all but the first three are None where the study
        has no such score. "differs": the paper's one number is further from the mean than two standard
        deviations, in which 95 % of single runs are, and than 0.1.
    """
    if not study.paper:
        return []
    ours = {(row["dataset"], row["variant"]): row for row in rows if row["model"] == study.models[0]}
    found = []
    for dataset, scores in study.paper["scores"].items():
        for variant, score in scores.items():
            row = {"dataset": dataset, "variant": variant, "paper": float(score)}
            mine = ours.get((dataset, variant))
            if mine is None:
                more: Row = dict.fromkeys(("mean", "standard_deviation", "difference", "differs"))
            else:
                difference, spread = mine["mean"] - float(score), mine["standard_deviation"]
                differs = None if spread is None else abs(difference) > max(2 * spread, 0.1)
                more = {
                    "mean": mine["mean"], "standard_deviation": spread, "difference": difference,
                    "differs": differs,
                }  # fmt: skip
            found.append(row | more)
    return found


_HEADER = (
    "data set", "model", "variant", "score", "seeds", "mean ± deviation", "minus fp32 [95 %]", "p",
    "p (Holm)", "ms an epoch", "peak MiB",
)  # fmt: skip
#: The columns before this are texts.
_TEXTS = 4


def _title(row: Row) -> str:
    """The precision, or a peer's name and precision."""
    variant = row["variant"]
    return f"{PEERS[variant].title} fp32" if variant in PEERS else variant


def _number(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def _spread(row: Row) -> str:
    deviation = row["standard_deviation"]
    return f"{row['mean']:.2f}" + ("" if deviation is None else f" ± {deviation:.2f}")


def _difference(row: Row) -> str:
    if row["difference"] is None:
        return ""
    interval = row["interval"]
    ends = "" if interval is None else f" [{interval[0]:+.2f}, {interval[1]:+.2f}]"
    return f"{row['difference']:+.2f}{ends}"


def _cells(row: Row) -> tuple[str, ...]:
    return (
        row["dataset"], row["model"], _title(row), row["metric"], str(len(row["seeds"])), _spread(row),
        _difference(row), _number(row["p_value"], ".3f"), _number(row["p_corrected"], ".3f"),
        _number(row["epoch_milliseconds"], ".2f"), f"{row['peak_memory_bytes'] / 2**20:.0f}",
    )  # fmt: skip


def _where(row: Row) -> str:
    return f"{row['model']} on {row['dataset']}, {_title(row)}"


def _failures(failed: Sequence[dict[str, str]]) -> list[str]:
    """Return a line for each reason: a data set that is missing has one for all of its runs."""
    runs: dict[str, list[str]] = {}
    for entry in failed:
        runs.setdefault(entry["reason"], []).append(entry["run"])
    counts = {reason: f" and {len(of) - 1} more" if len(of) > 1 else "" for reason, of in runs.items()}
    return [f"FAILED: {of[0]}{counts[reason]}: {reason}" for reason, of in runs.items()]


def conclusions(content: dict[str, Any]) -> list[str]:
    """Return what the results of a study say, one line each, for people."""
    rows: list[Row] = content["rows"]
    compared = [row for row in rows if row["within_deviation"] is not None and row["variant"] not in PEERS]
    lines = []
    if compared:
        apart = exceptions(rows)
        within = f"{len(compared) - len(apart)} of {len(compared)} scores of other precisions"
        lines.append(f"{within} are within one standard deviation of fp32.")
        for row in apart:
            lines.append(
                f"Not within one standard deviation of fp32: {_where(row)}: {_difference(row)} points."
            )
    for row in rows:
        if row["p_corrected"] is not None and row["p_corrected"] < LEVEL:
            lines.append(f"Differs from fp32 (p = {row['p_corrected']:.2g}, corrected): {_where(row)}.")
    lines += [line for family in families(rows) for line in too_few_seeds(family)]
    title = (content["paper"] or {}).get("title", "")
    for found in content["paper_rows"]:
        name = f"{title}, {found['dataset']}, {_title(found)}: {found['paper']:g} in the paper"
        if found["mean"] is None:
            lines.append(f"{name}, not measured here.")
        elif found["differs"]:
            lines.append(f"{name}, {_spread(found)} here: {found['difference']:+.2f}.")
    lines += [f"{title}: {note}" for note in (content["paper"] or {}).get("notes", [])]
    lines += [f"Skipped: {skipped}." for skipped in content["skipped"]]
    if content["unfinished"]:
        lines.append(f"Unfinished: {content['unfinished']} runs.")
    return lines + _failures(content["failed"])


def print_report(content: dict[str, Any], console: Console) -> None:
    """Print the table and the conclusions."""
    table = Table(title=f"Test scores in per cent, {content['device_name']}", title_justify="left")
    for number, name in enumerate(_HEADER):
        table.add_column(name, justify="left" if number < _TEXTS else "right")
    before = None
    for row in content["rows"]:
        group = row["dataset"], row["model"]
        if before not in (None, group):
            table.add_section()
        before = group
        table.add_row(*(Text(cell) for cell in _cells(row)))
    if content["rows"]:
        console.print(table)
    for line in conclusions(content):
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def as_markdown(content: dict[str, Any]) -> str:
    """Return the table and the conclusions as Markdown."""
    lines = [_HEADER, ["---"] * len(_HEADER), *map(_cells, content["rows"])]
    table = "\n".join("| " + " | ".join(line) + " |" for line in lines)
    versions = ", ".join(f"{name} {version}" for name, version in content["versions"].items() if version)
    commits = ", ".join(str(commit)[:7] for commit in content["commits"] if commit)
    commit = f", commit {commits}" if commits else ""
    origin = f"{content['device_name']}, {versions}, {content['date'][:10]}{commit}."
    notes = "\n".join(f"- {line}" for line in conclusions(content))
    return f"# Study {content['experiment']}\n\n{table}\n\n{notes}\n\n{origin}\n"


_CSV = (
    "dataset", "model", "variant", "device", "metric", "epochs", "mean", "standard_deviation", "difference",
    "p_value", "p_corrected", "within_deviation", "epoch_milliseconds", "fit_seconds", "peak_memory_bytes",
    "parameters",
)  # fmt: skip


def as_csv(rows: Sequence[Row]) -> str:
    """Return the rows as CSV, the scores of all seeds in one column, with spaces between them."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*_CSV, "interval_low", "interval_high", "seeds", "scores"])
    for row in rows:
        lists = (" ".join(map(str, row[name])) for name in ("seeds", "scores"))
        writer.writerow([*(row[name] for name in _CSV), *(row["interval"] or ("", "")), *lists])
    return text.getvalue()


def draw(content: dict[str, Any], file: Path) -> None:
    """Draw all scores, with mean and standard deviation of each variant, in a diagram for each data set.

    Raises:
        ImportError: matplotlib is not installed.
        OSError: the file can't be written.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rows: list[Row] = content["rows"]
    datasets = list(dict.fromkeys(row["dataset"] for row in rows))
    models = list(dict.fromkeys(row["model"] for row in rows))
    variants = list(dict.fromkeys(row["variant"] for row in rows))
    widths = (max(3.0, 0.5 * len(models) * len(variants)) + 1.5) * len(datasets)
    figure = Figure(figsize=(widths, 4.0), layout="constrained")
    FigureCanvasAgg(figure)  # pyplot would choose a backend that may need a display
    for number, dataset in enumerate(datasets):
        axes = figure.add_subplot(1, len(datasets), number + 1)
        for row in (row for row in rows if row["dataset"] == dataset):
            place = models.index(row["model"]) * (len(variants) + 1) + variants.index(row["variant"])
            color = f"C{variants.index(row['variant'])}"
            axes.plot([place] * len(row["scores"]), row["scores"], ".", color=color, alpha=0.4)
            axes.errorbar(
                place, row["mean"], row["standard_deviation"] or 0.0, fmt="o", color=color, capsize=4,
                label=_title(row) if row["model"] == models[0] else None,
            )  # fmt: skip
        middles = [index * (len(variants) + 1) + (len(variants) - 1) / 2 for index in range(len(models))]
        axes.set_xticks(middles, models)
        metric = next(row["metric"] for row in rows if row["dataset"] == dataset)
        axes.set(title=dataset, ylabel=f"test {metric}, per cent")
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside right upper", fontsize="small")
    with tempfile.TemporaryDirectory(dir=file.parent) as folder:  # the file appears whole
        made = Path(folder) / file.name
        figure.savefig(made, dpi=150)
        os.replace(made, file)


def write_text(file: Path, text: str) -> None:
    """Write a text file, which appears whole or not at all."""
    with tempfile.TemporaryDirectory(dir=file.parent) as folder:
        made = Path(folder) / file.name
        made.write_text(text)
        os.replace(made, file)
