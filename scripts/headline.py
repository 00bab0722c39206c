"""The README's figure and tables: how much faster, on what, how exact."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from markdown_tables import origins

from gnnsparse.bench.render import Bar, Bars, draw
from gnnsparse.bench.render import markdown_table as table

#: Reads a file of results by its name.
Load = Callable[[str], dict[str, Any]]

_PRODUCTS, _PUBLISHED, _STEP = "spmm.json", "spmm_real.json", "train_step.json"
_ACCELERATED = "interop_pyg.json"
_ENCODERS = "latency_encoder4.json", "latency_encoder.json"
_SCORES, _EPOCHS = "accuracy_cpu.json", "cpu_epochs.json"
#: Colours that are read on light and on dark pages.
_STYLE = (
    "text{font:11px sans-serif;fill:#24292f}.value{font-weight:600}.ours{fill:#2f7d32}.lost{fill:#b3541e}"
    ".mark{stroke:#24292f;stroke-width:1.5}.whisker{stroke:#24292f;stroke-width:1}"
    "@media (prefers-color-scheme:dark){text{fill:#e6edf3}.ours{fill:#58b85c}.lost{fill:#e08a4a}"
    ".mark,.whisker{stroke:#e6edf3}}"
)


@dataclass(frozen=True)
class Claim:
    """A row of the table and a bar of the figure.

    Attributes:
        what, beside: what was measured, and beside what.
        speeds: how many times faster in each case.
        faster: the speeds as text; "": their geometric mean, with the least and the largest.
        exact: how exact the results are.
        label: what and beside what, in few words.
    """

    what: str
    beside: str
    speeds: tuple[float, ...]
    exact: str
    label: str
    faster: str = ""

    @property
    def mean(self) -> float:
        """The geometric mean of the speeds."""
        return math.exp(sum(map(math.log, self.speeds)) / len(self.speeds))

    @property
    def spread(self) -> str:
        """The mean, and the least and the largest speed if there are several."""
        several = f" ({min(self.speeds):.1f} to {max(self.speeds):.1f})" if len(self.speeds) > 1 else ""
        return f"{self.mean:.1f}x{several}"


def as_table(load: Load) -> str:
    """Make the table."""
    rows = []
    for claim in _claims(load):
        mean, _, spread = claim.spread.partition(" ")
        faster = claim.faster or f"**{mean}** {spread}".rstrip()
        rows.append([claim.what, claim.beside, faster, claim.exact])
    files = (_PRODUCTS, _PUBLISHED, _STEP, _ACCELERATED, *_ENCODERS, _SCORES)
    return table(["what", "beside", "faster", "how exact"], rows) + "\n\n" + origins(map(load, files))


def as_figure(load: Load) -> str:
    """Make the figure, an SVG file: mean speeds, with the least and the largest of several cases.

    Raises:
        ValueError: a label is too long to stand beside its value, so that it would be cut.
    """
    bars = [
        Bar(claim.label, claim.mean, claim.spread, low=min(claim.speeds), high=max(claim.speeds))
        for claim in _claims(load)
    ]
    chart = Bars("How many times faster than others, in fp16 on one H200", tuple(bars), line=1.0)
    figure = draw(chart, width=520, style=_STYLE) + "\n"
    if cut := [bar.label for bar in bars if f">{bar.label}</text>" not in figure]:
        raise ValueError(
            f"the labels {cut} are too long for the figure; accepted: labels that fit beside their value"
        )
    return figure


def at_a_glance(load: Load) -> str:
    """Make the README's first table: one time on a CPU and one on a GPU, each beside PyG."""
    epochs, steps = load(_EPOCHS), load(_STEP)
    alone = {
        r["trainer"]: r["milliseconds"] for r in epochs["rows"] if (r["dataset"], r["busy"]) == ("cora", 0)
    }
    gpu = {r["name"]: r["ms"] for r in steps["rows"]}
    cases = [
        (f"{epochs['threads']} cores of a CPU: an epoch of a GCN on Cora", alone["gnnsparse"], alone["pyg"]),
        (
            f"one {steps['device_name']}: a training step of a GCN on {steps['graph']}, fp16",
            gpu["gnnsparse fp16"],
            gpu["pyg csr fp32"],
        ),
    ]
    rows = [[what, f"**{ours:.1f} ms**", f"{pyg:.1f} ms"] for what, ours, pyg in cases]
    return table(["on", "gnnsparse", "PyG in fp32"], rows)


def _claims(load: Load) -> list[Claim]:
    return [
        _product(load(_PRODUCTS), "generated graphs", "SpMM, large graphs, vs"),
        _product(load(_PUBLISHED), "published matrices", "SpMM, published matrices, vs"),
        _step(load(_STEP), load(_SCORES)),
        _accelerated(load(_ACCELERATED)),
        _encoder(*map(load, _ENCODERS)),
    ]


def _product(data: dict[str, Any], what: str, label: str) -> Claim:
    """SpMM in fp16 with GCN weights and 128 columns: speeds of all graphs, largest errors."""
    shown = {
        (r["graph"], r["kernel"]): r
        for r in data["rows"]
        if (r["op"], r["width"], r.get("values", "gcn"), r["precision"]) == ("spmm", 128, "gcn", "fp16")
        and r["ok"]
    }
    best = any(kernel == "cusparse-best" for _, kernel in shown)
    peer, name = ("cusparse-best", "cuSPARSE at its best") if best else ("cusparse", "cuSPARSE through torch")
    pairs = [
        (r, shown[graph, peer])
        for (graph, kernel), r in shown.items()
        if kernel == "auto" and (graph, peer) in shown
    ]
    errors = [max(pair[side]["error"] for pair in pairs) for side in (0, 1)]
    largest = max(ours["nnz"] for ours, _ in pairs) / 1e6
    return Claim(
        f"sparse x dense, fp16, {len(pairs)} {what} of up to {largest:.0f} M nonzeros",
        name,
        tuple(other["ms"] / ours["ms"] for ours, other in pairs),
        f"error {errors[0]:.0e}, cuSPARSE {errors[1]:.0e}",
        f"{label} {name.split()[0]}",
    )


def _step(data: dict[str, Any], scores: dict[str, Any]) -> Claim:
    """A training step of a GCN in fp16 and fp32, and its accuracy on Cora in fp16."""
    ms = {r["name"]: r["ms"] for r in data["rows"]}
    half, single = (ms["pyg csr fp32"] / ms[f"gnnsparse {p}"] for p in ("fp16", "fp32"))
    row = next(r for r in scores["rows"] if (r["dataset"], r["precision"]) == ("cora", "fp16"))
    score = f"{row['mean']:.1f} ± {row['standard_deviation']:.1f} %, PyG {row['baseline']:.1f} %"
    return Claim(
        f"training step, {data['model'].upper()} {data['layers']} x {data['hidden']}, {data['graph']}",
        "PyG with a CSR adjacency",
        (half,),
        f"test accuracy on cora {score}",
        "training step of a GCN, vs PyG",
        f"**{half:.1f}x** in fp16, {single:.1f}x in fp32",
    )


def _accelerated(data: dict[str, Any]) -> Claim:
    """Training steps of PyG's own models on arxiv_like, accelerated, in fp16 and a CUDA graph."""
    found = {(r["layer"], r["name"]): r["ms"] for r in data["steps"] if r["graph"] == "arxiv_like"}
    layers = list(dict.fromkeys(layer for layer, _ in found))
    ours = {layer: found[layer, "fp16 captured"] for layer in layers}
    eager = tuple(found[layer, "pyg"] / ours[layer] for layer in layers)
    compiled = tuple(found[layer, "pyg compiled"] / ours[layer] for layer in layers)
    names = f"{', '.join(layers[:-1])} and {layers[-1]}"
    claim = Claim(
        f"training step, PyG's own {names}, accelerated by one line, arxiv_like, fp16",
        "the same models in PyG",
        eager,
        "the same parameters and scores",
        "PyG models, accelerated, vs PyG",
    )
    faster = (
        f"**{claim.spread.replace(' ', '** ', 1)} eager, {replace(claim, speeds=compiled).spread} compiled"
    )
    return replace(claim, faster=faster)


def _encoder(*results: dict[str, Any]) -> Claim:
    """The sparse encoder at 95 % and 8192 tokens in CUDA graphs, over the batch sizes and heads."""
    sparse = [r for data in results for r in data["rows"] if r["ours"] and r["mode"] == "captured"]
    return Claim(
        "sparse Transformer encoder, fp16, 95 % left out, 8192 tokens",
        "the dense encoder with torch's fastest attention",
        tuple(r["over_baseline"] for r in sparse),
        f"error {max(r['error'] for r in sparse):.0e}",
        "encoder, 95 % sparse, vs the dense one",
    )
