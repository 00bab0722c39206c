"""Tables of results of `gnnsparse bench accuracy` and of the study of precisions."""

from __future__ import annotations

import math
from typing import Any

from markdown_tables import measured, pivot


def operations(data: dict[str, Any]) -> str:
    """Make the table of errors of SpMM and attention against float64, by the range of the operands."""
    of = {(r["op"], r["range"], r["precision"], r["output"]): r for r in data["operations"]}
    rows = []
    for precision, output in dict.fromkeys((r["precision"], r["output"]) for r in data["operations"]):
        name = precision if output == "float32" else f"{precision}, {output} result"
        spmm = {kind: of["spmm", kind, precision, output] for kind in data["settings"]["ranges"]}
        wide, attention = spmm["wide"], of["attention", "normal", precision, output]
        errors = [spmm["normal"]["error"], wide["elements"], spmm["degree"]["error"]]
        errors += [spmm["cancellation"]["error"], attention["error"]]
        rounding = f"2^{math.log2(data['rounding'][precision]):g}"
        rows.append([name, rounding, *(f"{error:.1e}" for error in errors)])
    header = [
        "precision",
        "one rounding",
        "SpMM, normal",
        "wide",
        "degree",
        "cancellation",
        "attention, normal",
    ]
    return measured(header, rows, data)


def sums(data: dict[str, Any]) -> str:
    """Make the table of sums of float16 products, by the accumulator."""
    rows = [
        [r["series"], str(r["terms"]), *(f"{r[name]:.1e}" for name in ("kernel", "half_blocks", "half"))]
        for r in data["accumulation"]
    ]
    header = ["terms", "count", "float32, our kernels", "float16, blocks of 16", "float16, term by term"]
    return measured(header, rows, data)


def scaling(data: dict[str, Any]) -> str:
    """Make the table of gradients by their size and the scaling of the loss."""
    of = {(r["precision"], r["way"], r["magnitude"]): r for r in data["scaling"]}
    ways = list(dict.fromkeys((r["precision"], r["way"]) for r in data["scaling"]))

    def cell(row: dict[str, Any]) -> str:
        error = "overflow" if row["error"] is None else f"{row['error']:.1e}"
        lost = (
            ", all lost" if row["lost"] == 1 else f", {100 * row['lost']:.2g} % lost" if row["lost"] else ""
        )
        return error + lost + (f", 2^{math.log2(row['scale']):g}" if row["way"] == "dynamic" else "")

    rows = [
        [f"2^{magnitude}", *(cell(of[precision, way, magnitude]) for precision, way in ways)]
        for magnitude in dict.fromkeys(r["magnitude"] for r in data["scaling"])
    ]
    names = {"unscaled": "no scaling", "scaled": "times 2^16", "dynamic": "the scaler's factor"}
    header = ["size of the gradient", *(f"{precision}, {names[way]}" for precision, way in ways)]
    return measured(header, rows, data)


def study(*results: dict[str, Any]) -> str:
    """Make the tables of studies: scores by precision, beside those of PyG, of DGL and of a paper."""
    return "\n\n".join(map(_study, results))


def eight_bits(*results: dict[str, Any]) -> str:
    """Make the table of scores with X in 8 bits and in fp32, of variants that ran with all seeds."""
    rows, variants = [], ("fp32", "int8", "fp8")
    for data in results:
        whole = [r for r in data["rows"] if len(r["seeds"]) == data["settings"]["seeds"]]
        for (dataset, model), found in pivot(whole, ("dataset", "model"), "variant").items():
            if "fp32" in found and len(found) > 1:
                rows.append(
                    [model, dataset, found["fp32"]["metric"], *map(_with_gap, map(found.get, variants))]
                )
    return measured(["model", "data set", "score", *variants], rows, *results)


def _with_gap(row: dict[str, Any] | None) -> str:
    """Return the mean, the deviation, and the difference from fp32."""
    if row is None:
        return ""
    gap = "" if row["difference"] is None else f" ({row['difference']:+.2f})"
    return f"{row['mean']:.2f} ± {row['standard_deviation']:.2f}{gap}"


def _study(data: dict[str, Any]) -> str:
    paper = {(r["dataset"], r["variant"]): f"{r['paper']:g}" for r in data["paper_rows"]}
    several = len(data["settings"]["models"]) > 1
    rows = []
    for r in data["rows"]:
        name = {"pyg": "PyG fp32", "dgl": "DGL fp32"}.get(r["variant"], r["variant"])
        spread = "" if r["standard_deviation"] is None else f" ± {r['standard_deviation']:.2f}"
        ends = "" if r["interval"] is None else " [{:+.2f}, {:+.2f}]".format(*r["interval"])
        difference = "" if r["difference"] is None else f"{r['difference']:+.2f}{ends}"
        p_value = "" if r["p_corrected"] is None else f"{r['p_corrected']:.2f}"
        what = [r["dataset"], *([r["model"]] if several else []), name]
        cells = [*what, str(len(r["seeds"])), f"{r['mean']:.2f}{spread}", difference, p_value]
        rows.append([*cells, *([paper.get((r["dataset"], r["variant"]), "")] if paper else [])])
    what = ["data set", *(["model"] if several else []), "precision", "seeds"]
    score = "score" if len({r["metric"] for r in data["rows"]}) > 1 else data["rows"][0]["metric"]
    header = [*what, score, "minus fp32 [95 %]", "p (Holm)", *(["in the paper"] if paper else [])]
    return measured(header, rows, data)
