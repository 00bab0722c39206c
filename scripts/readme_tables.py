"""Writes the tables of the README, docs/ and notes/, and a figure, from the files in benchmarks/results.

    python scripts/readme_tables.py            rewrite the tables; `make results` does it
    python scripts/readme_tables.py --check    exit with 1 if they are not up to date

A table stands between `<!-- table NAME -->` and `<!-- end -->`, in docs/results.md or on the page that
PAGE_OF names, and those in IN_README in the README, too.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import headline
import paper_tables
import precision_tables
import product_tables
from markdown_tables import measured, pivot

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
README, RESULTS_PAGE = ROOT / "README.md", ROOT / "docs" / "results.md"
#: The figure of the README's first screen.
FIGURE = ROOT / "docs" / "speed.svg"
#: The pages of the tables that are not in docs/results.md.
PAGE_OF = {
    "glance": README,
    "precision-operations": ROOT / "docs" / "numerics.md",
    **dict.fromkeys(
        ("papers-mechanisms", "papers-numbers", "papers-presets", "papers-sparsities"),
        ROOT / "notes" / "papers.md",
    ),
    **dict.fromkeys(
        (
            "accelerated", "accuracy-accelerated", "accuracy-agnn", "accuracy-agnn-trained", "agnn-layer",
            "accuracy-layers", "accuracy-sampled", "agnn-step",
            "cusparse-best", "encoder", "host", "latency", "layer-steps", "precision-8bit",
            "precision-scaling",
            "precision-study", "precision-sums", "precision-table8", "published-levels", "real", "scaling",
            "spmm-8bit", "train-epochs", "typed",
             "widths", "widths-cusparse", "widths-cusparse-h100", "widths-h100",
        ),
        ROOT / "notes" / "measurements.md",
    ),
}  # fmt: skip
#: The tables that the README has, too.
IN_README = ("headline",)


def pages_of(name: str) -> list[Path]:
    """Return the pages that have a table."""
    return [PAGE_OF.get(name, RESULTS_PAGE), *([README] if name in IN_README else [])]


#: The file of the tables of numbers by precision.
_OPERATIONS = "accuracy_operations_h200.json"


def load(name: str) -> dict[str, Any]:
    return json.loads((RESULTS / name).read_text())


def load_if_there(name: str) -> dict[str, Any] | None:
    """Return the content of a file of results; None if it is not there."""
    return load(name) if (RESULTS / name).is_file() else None


def epochs_table() -> str:
    """Make the table of epochs by train.py."""
    data = load("train_epochs.json")
    rows = [
        [
            f"{r['model']} {r['dataset']}",
            r["precision"],
            next(o.partition("=")[2] for o in r["options"] if o.startswith("trainer.val_every=")),
            f"{r['epoch_milliseconds']:.3f}",
            f"{100 * r['metrics']['test']['accuracy']:.2f} %",
            f"{r['peak_memory_bytes'] / 1e9:.2f}",
        ]
        for r in data["rows"]
    ]
    header = ["run", "precision", "epochs to a validation", "ms an epoch", "test accuracy", "peak GB"]
    return measured(header, rows, data)


def typed_table() -> str:
    """Make the table of training steps on graphs with types, whole and sampled."""
    rows = []
    steps = [load(name) for name in ("typed_layers_quarter.json", "typed_layers.json")]
    for data in steps:
        for (layer,), kinds in pivot(data["steps"], ("layer",), "name").items():
            of = [kinds.get(kind, {}) for kind in ("pyg", "fp32", "fp16 captured")]
            cells = [
                f"{r['ms']:.4g} ({r['peak_gb']:.1f})" if r.get("ms") else "no memory" if r else "" for r in of
            ]
            rows.append([f"{layer}, scale {data['scale']:g}", *cells, *_times_as_fast(of)])
    sampled = load("typed_epoch.json")
    of = [
        {r["name"]: r for r in sampled["rows"]}.get(kind, {})
        for kind in ("pyg", "fp32_captured", "fp16_captured")
    ]
    cells = [f"{r['ms']:.4g}" if r else "" for r in of]
    rows.append([f"HGT, captured samples, scale {sampled['scale']:g}", *cells, *_times_as_fast(of)])
    header = ["step", "PyG, ms (GB)", "gnnsparse fp32", "fp16, captured", "speed"]
    return measured(header, rows, *steps, sampled)


def _times_as_fast(of: list[dict[str, Any]]) -> list[str]:
    """Return how many times as fast as the first of some results the others are, as one cell."""
    first, *others = (r.get("ms") for r in of)
    return ["/".join(f"{first / ms:.1f}x" for ms in others if ms) if first else ""]


def attention_peers_table() -> str:
    """Make the table of attention by all libraries, with and without gradients, and of their problems."""
    data = load("attention_peers.json")
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for r in data["rows"]:
        found.setdefault((r["work"], r["precision"]), {})[r["peer"]] = r
    peers = [name for name in data["peers"] if name != "gnnsparse tiles"]  # which the plan takes
    rows, problems = [], {}
    for (work, precision), cells in found.items():
        is_compared = any("forward_ms" in r for name, r in cells.items() if not name.startswith("gnnsparse"))
        if precision == "bf16" or (precision == "fp32" and not is_compared):
            continue
        # Vectors are no pattern of the others: beside them stands their dense attention.
        others = found.get(("dense", precision), {}) if work.startswith("vector-wise") else cells
        speeds = []
        for key in ("forward_ms", "both_ms"):
            theirs = [r[key] for name, r in others.items() if not name.startswith("gnnsparse") and key in r]
            ours = cells.get("gnnsparse", {}).get(key)
            speeds.append(f"{min(theirs) / ours:.2f}x" if theirs and ours else "")
        line = [f"{work}, {precision}"]
        for name in peers:
            r = cells.get(name, {})
            times = " / ".join(f"{r[key]:.3g}" for key in ("forward_ms", "both_ms") if key in r)
            problem = r.get("problem", "")
            missing = problem.startswith("can't be imported")
            line.append("missing" if missing else times or problem.partition(":")[0])
            if problem:
                problems.setdefault(f"{name}: {problem}", []).extend([] if missing else [line[0]])
        rows.append([*line, " / ".join(filter(None, speeds))])
    header = ["work, forward / with gradients, ms", *peers, "speed beside the best"]
    said = (f"{why} ({'; '.join(of)})." if of else f"{why}." for why, of in problems.items())
    text, of = measured(header, rows, data).split("\n\n")
    return "\n\n".join([text, *said, of])


def layer_steps_table() -> str:
    """Make the table of training steps of graph attention layers beside PyG's."""
    data = load("graph_attention.json")
    rows = []
    for (name,), found in pivot(data["steps"], ("layer",), "name").items():
        peer = found["pyg"]
        cells = [
            f"{r['ms']:.2f} ({peer['ms'] / r['ms']:.1f}x), {r['peak_gb']:.2f} GB"
            for r in (found[kind] for kind in ("fp32", "fp16", "fp16 captured"))
        ]
        rows.append([name, f"{peer['ms']:.1f}, {peer['peak_gb']:.1f} GB", *cells])
    head = ["layer", "PyG fp32, ms", "fp32, ms", "fp16, ms", "fp16 in a CUDA graph, ms"]
    return measured(head, rows, data)


def accelerated_table() -> str:
    """Make the table of training steps of accelerated PyG models beside PyG's, eager and compiled."""
    data = load("interop_pyg.json")
    rows = []
    for key, steps in pivot(data["steps"], ("graph", "layer"), "name").items():
        found = {name: step["ms"] for name, step in steps.items()}
        peers = [
            f"{found[kind]:.2f}" if found[kind] is not None else "can't be"
            for kind in ("pyg", "pyg compiled", "pyg captured")
        ]
        ours = [
            f"{found[kind]:.2f} ({found['pyg'] / found[kind]:.1f}x)"
            for kind in ("fp32", "fp16", "fp32 captured", "fp16 captured")
        ]
        rows.append([*key, *peers, *ours])
    head = ["graph", "layers", "PyG, ms", "compiled", "in a CUDA graph", "accelerated fp32", "fp16"]
    head += ["fp32 in a CUDA graph", "fp16 in a CUDA graph"]
    return measured(head, rows, data)


def training_table() -> str:
    """Make the table of training steps of a GCN: forward, backward and Adam."""
    data = load("train_step.json")
    base = next(r["ms"] for r in data["rows"] if r["name"] == "pyg csr fp32")
    rows = [
        [r["name"], f"{r['ms']:.1f}", f"{base / r['ms']:.2f}x", f"{r['peak_bytes'] / 1e9:.1f}"]
        for r in data["rows"]
    ]
    header = ["5 layers, hidden 128, reddit_like", "ms a step", "speed", "peak memory, GB"]
    return measured(header, rows, data)


def agnn_step_table() -> str:
    """Make the table of training steps of the AGNN on two graphs."""
    results = [load(f"agnn_step_{name}.json") for name in ("arxiv_like", "reddit_like")]
    header, rows = ["4 layers, hidden 32"], {}
    for data in results:
        header += [f"{data['graph']}, ms a step", "peak memory, GB"]
        for r in data["rows"]:
            cells = ["out of memory", ""]
            if r["ms"] is not None:
                base = data["rows"][0]["ms"]
                speed = f" ({base / r['ms']:.2f}x)" if base is not None else ""
                cells = [f"{r['ms']:.2f}{speed}", f"{r['peak_bytes'] / 1e9:.2f}"]
            rows.setdefault(r["name"], [r["name"]]).extend(cells)
    return measured(header, list(rows.values()), results[0])


def encoder_table() -> str:
    """Make the table of a Transformer encoder's forward pass at L = 8192, sparse and dense."""
    data = load("encoder.json")
    rows: dict[tuple[int, int], list[str]] = {}
    for r in data["rows"]:
        if r["length"] != 8192:
            continue
        key = r["batch"], r["heads"]
        cells = rows.setdefault(key, [f"batch {r['batch']}, heads {r['heads']}", ""])
        if r["name"] == "sparse":
            cells.append(f"{r['ms']:.2f} ({r['speed']:.2f}x)")
        elif r["speed"] == 1.0:
            cells[1] = f"{r['ms']:.2f} ({r['name'].removeprefix('dense ')})"
    header = ["4 layers, L = 8192", "dense, ms", "90 %", "95 %", "98 %"]
    return measured(header, [rows[key] for key in sorted(rows)], data)


def accuracy_table(file: str) -> str:
    """Make the table of test accuracies, mean and deviation over the seeds, with PyG's."""
    data = load(file)
    precisions = list(dict.fromkeys(r["precision"] for r in data["rows"]))
    rows = []
    for (name,), mine in pivot(data["rows"], ("dataset",), "precision").items():
        cells = [f"{mine[p]['mean']:.2f} ± {mine[p]['standard_deviation']:.2f}" for p in precisions]
        rows.append([name, *cells, f"{mine[precisions[0]]['baseline']:.2f}"])
    return measured(["data set", *precisions, "PyG fp32"], rows, data)


def sampled_accuracy_table(file: str) -> str:
    """Make the table of test accuracies after training on samples, beside PyG's layers on samples of DGL."""
    data = load(file)
    rows = []
    for r in data["rows"]:
        scores = (f"{r[kind]['mean']:.2f} ± {r[kind]['standard_deviation']:.2f}" for kind in ("ours", "peer"))
        rows.append([r["dataset"], str(r["seeds"]), *scores])
    head = ["data set", "seeds", "gnnsparse fp32", "PyG's layers on samples of DGL"]
    return measured(head, rows, data)


def layers_accuracy_table(*files: str) -> str:
    """Make the table of test scores of several models, mean and deviation over the seeds, with PyG's."""
    results = [load(file) for file in files]
    all_rows = [row for data in results for row in data["rows"]]
    precisions = list(dict.fromkeys(r["precision"] for r in all_rows))
    rows = []
    for key, mine in pivot(all_rows, ("model", "dataset"), "precision").items():
        cells = [f"{r['mean']:.2f} ± {r['standard_deviation']:.2f}" for r in map(mine.get, precisions) if r]
        first = next(iter(mine.values()))
        peer = f"{first['baseline']:.2f} ± {first['baseline_standard_deviation']:.2f}"
        rows.append([*key, *cells, *[""] * (len(precisions) - len(cells)), peer])
    return measured(["model", "data set", *precisions, "PyG fp32"], rows, *results)


def examples_table(*files: str) -> str:
    """Make the table of models that are trained as PyG's examples are, plain and accelerated."""
    results = [load(name) for name in files]
    rows = [
        [row["model"], row["dataset"]]
        + [f"{row[f'{kind}_mean']:.2f} ± {row[f'{kind}_deviation']:.2f}" for kind in ("pyg", "accelerated")]
        for data in results
        for row in data["rows"]
    ]
    header = ["model", "data set", "PyG", "accelerated"]
    return measured(header, rows, *results)


def agnn_layer_table() -> str:
    """Make the table of one AGNNConv's forward and backward pass on a CPU, with PyG's."""
    data = load("agnn_layer_cpu.json")
    rows = []
    for (graph, width), found in pivot(data["rows"], ("graph", "width"), "name").items():
        peer, ours = found["pyg fp32"], found["gnnsparse fp32"]
        times = [f"{r['forward_ms'] + r['backward_ms']:.1f}" for r in (peer, ours)]
        rows.append([graph, str(width), *times, f"{ours['speed']:.1f}x"])
    header = ["graph", "features", "PyG, ms", "gnnsparse fp32, ms", "speed"]
    return measured(header, rows, data)


def latency_table() -> str:
    """Make the table of latencies: p50 with a warm cache, ours eager and captured, and a peer's."""
    results = [load(file.name) for file in LATENCY_FILES]
    cases: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for data in results:
        for r in data["rows"]:
            if r["cache"] == "warm" and r["ok"]:
                batch = f", batch {r['batch']}" if r["model"] == "transformer" else ""
                key = f"{r['model']} {r['layers']} x {r['hidden']}", r["dataset"] + batch, r["precision"]
                cases.setdefault(key, []).append(r)
    rows = []
    for key, found in cases.items():
        ours = {r["mode"]: r for r in found if r["ours"]}
        if not ours:
            continue
        cells = []
        for mode in ("eager", "captured"):
            r = ours.get(mode)
            speed = f" ({r['over_baseline']:.2f}x)" if r and r["over_baseline"] else ""
            cells.append(f"{r['p50_ms']:.3f}{speed}" if r else "")
        best = ours.get("captured", ours.get("eager", {}))
        peer = best["baseline"] or ""
        plain = f"{best['over_pyg'] * best['p50_ms']:.3f}" if best["over_pyg"] else ""
        theirs = f"{best['over_baseline'] * best['p50_ms']:.3f} ({peer})" if peer else ""
        rows.append([*key, *cells, theirs, plain])
    head = ["model", "input", "precision", "eager, ms", "captured, ms", "fastest peer, ms", "PyG eager, ms"]
    return measured(head, rows, *results)


def scaling_table() -> str:
    """Make the table of training steps on one and on several GPUs, captured where they can be.

    Cases that failed, or have no row of one GPU, are left out.
    """
    data = load("scaling.json")
    measured_rows = [r for r in data["rows"] if r["way_asked"] == "auto" and "error" not in r]
    rows = []
    for case, found in pivot(measured_rows, ("model", "graph", "precision"), "gpus").items():
        one = found.pop(1, None)
        for gpus, r in found.items() if one is not None else ():
            alone, ours = (f"{row.get('captured_ms', row['ms']):.1f}" for row in (one, r))
            memory = f"{r['memory_ratio']:.2f}" if "memory_ratio" in r else ""
            waits = f"{r['unhidden_ms']:.1f}"
            speed = f"{r['speedup']:.2f}x"
            estimated = f"{r['predicted_ms']:.1f}" if "predicted_ms" in r else ""
            rows.append([*case, alone, str(gpus), ours, estimated, speed, waits, memory])
    head = [
        "model", "graph", "precision", "one GPU, ms", "GPUs", "ms", "estimated, ms", "speed", "waits, ms",
        "memory",
    ]  # fmt: skip
    return measured(head, rows, data)


def published_levels_table() -> str:
    """Make the table of scores beside published ones."""
    rows, data = [], load("published_levels.json")["rows"]
    for r in data:
        model, dataset = (option.partition("=")[2] for option in r["options"][:2])
        protocol = "best mean epoch" if "epoch" in r else "epoch by other graphs"
        if not any(option.startswith("dataset.validation=") for option in r["options"]):
            protocol = "ten seeds"
        own = f"{r['mean']:.1f} ± {r['standard_deviation']:.1f}"
        published = f"{r['published_mean']} ± {r['published_standard_deviation']}, {r['source']}"
        rows.append([f"{model} on {dataset}", protocol, r["metric"], own, published])
    head = ["runs", "protocol", "score", "in tests, %", "published, %"]
    return measured(head, rows, *data)


_STUDIED_IN_8_BITS = ("cora", "pubmed", "amazon_photo", "minesweeper", "tolokers")
#: Results of `gnnsparse bench latency`; there is a table of them where there are some.
LATENCY_FILES = sorted(RESULTS.glob("latency*.json"))

TABLES: dict[str, Callable[[], str]] = {
    **({"latency": latency_table} if LATENCY_FILES else {}),
    "peers": lambda: product_tables.beside_peers(load("peers.json")),
    "glance": lambda: headline.at_a_glance(load),
    "headline": lambda: headline.as_table(load),
    "cusparse-best": lambda: product_tables.users(load("spmm_cusparse.json")),
    "spmm-8bit": lambda: product_tables.eight_bits(*map(load, ("spmm_8bit.json", "spmm_8bit_h100.json"))),
    "widths": lambda: product_tables.widths(*map(load, ("widths.json", "widths_large.json"))),
    "widths-h100": lambda: product_tables.widths(load("widths_h100.json")),
    "widths-cusparse": lambda: product_tables.widths_beside_cusparse(
        *map(load, ("widths_cusparse.json", "widths_cusparse_large.json"))
    ),
    "widths-cusparse-h100": lambda: product_tables.widths_beside_cusparse(
        *map(load, ("widths_cusparse_h100.json", "widths_cusparse_large_h100.json"))
    ),
    "host": lambda: product_tables.host(load("host_path.json")),
    "train-epochs": epochs_table,
    "real": lambda: product_tables.published(load("spmm_real.json")),
    "training": training_table,
    "typed": typed_table,
    "accuracy": lambda: accuracy_table("accuracy_cpu.json"),
    "accuracy-agnn": lambda: accuracy_table("accuracy_agnn_cpu.json"),
    "accuracy-agnn-trained": lambda: layers_accuracy_table("accuracy_agnn_trained_cpu.json"),
    "accuracy-layers": lambda: layers_accuracy_table(
        "accuracy_layers.json", "accuracy_tolokers.json", "accuracy_tolokers_transformer.json"
    ),
    "accuracy-sampled": lambda: sampled_accuracy_table("sampled_accuracy.json"),
    "accuracy-accelerated": lambda: examples_table("pyg_examples.json", "pyg_examples_cpu.json"),
    "precision-study": lambda: precision_tables.study(load("precision_h200.json")),
    "precision-table8": lambda: precision_tables.study(
        *map(load, ("precision_table8_h200.json", "precision_table8_cpu.json"))
    ),
    "precision-8bit": lambda: precision_tables.eight_bits(
        *(load(f"precision_8bit_{name}.json") for name in _STUDIED_IN_8_BITS)
    ),
    "precision-operations": lambda: precision_tables.operations(load(_OPERATIONS)),
    "precision-sums": lambda: precision_tables.sums(load(_OPERATIONS)),
    "precision-scaling": lambda: precision_tables.scaling(load(_OPERATIONS)),
    "papers-mechanisms": lambda: paper_tables.mechanisms(load_if_there),
    "papers-numbers": lambda: paper_tables.numbers(load_if_there),
    "papers-presets": lambda: paper_tables.presets(load_if_there),
    "papers-sparsities": lambda: paper_tables.sparsities(load_if_there),
    "agnn-layer": agnn_layer_table,
    "agnn-step": agnn_step_table,
    "attention-peers": attention_peers_table,
    "layer-steps": layer_steps_table,
    "accelerated": accelerated_table,
    "encoder": encoder_table,
    "scaling": scaling_table,
    "published-levels": published_levels_table,
}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    texts = {page: page.read_text() for page in (README, RESULTS_PAGE, *PAGE_OF.values())}
    for name, make in TABLES.items():
        pattern = re.compile(rf"(<!-- table {name} -->\n).*?(<!-- end -->)", re.DOTALL)
        made = make()
        for page in pages_of(name):
            text = texts[page]
            found = pattern.search(text)
            if found is None:
                print(f"{page.relative_to(ROOT)} has no table {name!r}", file=sys.stderr)
                return 1
            texts[page] = text.replace(found[0], f"{found[1]}{made}\n{found[2]}")
    texts[FIGURE] = headline.as_figure(load)
    for page, text in texts.items():
        if page.exists() and text == page.read_text():
            continue
        if options.check:
            name = page.relative_to(ROOT)
            print(f"{name}: tables are out of date; run make results", file=sys.stderr)
            return 1
        page.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
