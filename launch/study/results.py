"""The results of a study: a row for each model, data set and variant, with its comparison with fp32."""

from __future__ import annotations

import dataclasses
import itertools
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from gnnsparse.train.statistics import LEAST_PAIRS, compare_paired, holm, smallest_p_value, summarize
from launch.study.options import REFERENCE, StudyOptions
from launch.study.peers import PEERS
from launch.study.store import Run

__all__ = ["LEVEL", "Row", "exceptions", "families", "paper_rows", "rows_of", "too_few_seeds"]

#: A corrected p-value below this is called a difference.
LEVEL = 0.05

Row = dict[str, Any]


def rows_of(results: Mapping[Run, dict[str, Any]]) -> list[Row]:
    """Makes a row of the finished runs of each (data set, model, variant).

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
    """Returns the rows that are compared with REFERENCE: those of the precisions, and those of the peers."""
    compared = [row for row in rows if row["compared_seeds"]]
    peers = [row for row in compared if row["variant"] in PEERS]
    return [row for row in compared if row["variant"] not in PEERS], peers


def too_few_seeds(family: list[Row]) -> list[str]:
    """Returns what can't be said of the significance of differences, whatever the scores are; one line each.

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
    """Returns the precisions whose mean is further from fp32's than one standard deviation of fp32."""
    return [row for row in rows if row["variant"] not in PEERS and row["within_deviation"] is False]


def paper_rows(study: StudyOptions, rows: Iterable[Row]) -> list[Row]:
    """Sets the scores of a paper beside those of the study.

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
