"""Tables of results of `gnnsparse bench kernels`."""

from __future__ import annotations

from typing import Any

from markdown_tables import measured, pivot

#: What cuSPARSE at its best is called where it was measured. Ratios are to it, and to torch's call second.
CUSPARSE_BEST = "cuSPARSE at its best,"


def users(data: dict[str, Any]) -> str:
    """Make the table of SpMM beside cuSPARSE's fastest algorithm, by width, weights and precision."""
    right = [r for r in data["rows"] if r["ok"]]
    of = pivot(right, ("graph", "values", "width", "precision"), "kernel")
    rows = []
    for graph, values, width in dict.fromkeys((r["graph"], r["values"], r["width"]) for r in data["rows"]):
        cells = [graph, values, str(width)]
        for precision in ("fp16", "fp32"):
            found = of[graph, values, width, precision]
            ours, best, torchs = map(found.get, ("auto", "cusparse-best", "cusparse"))
            ms = ours["ms"]
            cells += [f"{ms:.3f}", f"{best['ms']:.3f} ({best['variant']})", f"{best['ms'] / ms:.2f}x"]
            cells.append("wrong" if torchs is None else f"{torchs['ms'] / ms:.2f}x")
        rows.append(cells)
    columns = ["ours, ms", "cuSPARSE's best, ms", "speed", "beside torch's call"]
    header = ["graph", "weights", "columns", *(f"{p}: {name}" for p in ("fp16", "fp32") for name in columns)]
    return measured(header, rows, data)


def published(data: dict[str, Any]) -> str:
    """Make the table of SpMM on published graphs: 128 columns, fp16, by the plan and by cuSPARSE."""

    def is_shown(r: dict[str, Any]) -> bool:
        return (r["width"], r.get("values", "gcn"), r["precision"]) == (128, "gcn", "fp16")

    of = pivot(filter(is_shown, data["rows"]), ("graph",), "kernel")
    best = any("cusparse-best" in found for found in of.values())
    rows = []
    for (graph,), found in of.items():
        if not graph.endswith(".npz"):
            continue
        ours, peers = found["auto"], [found["cusparse"]]
        if best:
            peers.insert(0, found["cusparse-best"])
        times = [f"{r['ms']:.3f}" for r in (peers[0], ours)]
        speeds = ", ".join(f"{peer['ms'] / ours['ms']:.2f}x" for peer in peers)
        rows.append([graph.removesuffix(".npz"), f"{ours['nnz'] / 1e6:.2f} M", *times, speeds])
    peer = CUSPARSE_BEST if best else "cuSPARSE"
    header = ["graph", "nonzeros", f"{peer} fp16, ms", "gnnsparse fp16, ms", "speed"]
    return measured(header, rows, data)


def eight_bits(*results: dict[str, Any]) -> str:
    """Make the table of SpMM with 0/1 weights in 8 bits, beside fp16: milliseconds, and the ratio."""
    parts = []
    for data in results:
        of = {
            (r["graph"], r["precision"], r["variant"]): r["ms"] for r in data["rows"] if r["values"] == "none"
        }
        variants = [
            (p, v) for p in ("int8", "fp8") for v in dict.fromkeys(key[2] for key in of if key[1] == p)
        ]
        rows = []
        for graph in dict.fromkeys(r["graph"] for r in data["rows"]):
            half = of[graph, "fp16", ""]
            times = [of[(graph, *variant)] for variant in variants]
            rows.append([graph, f"{half:.3f}", *(f"{ms:.3f} ({half / ms:.2f}x)" for ms in times)])
        header = ["graph", "fp16, ms", *(f"{p}, {v}" for p, v in variants)]
        parts.append(measured(header, rows, data))
    return "\n\n".join(parts)


def widths(*results: dict[str, Any]) -> str:
    """Make the table of widths: the time of each over that of the next multiple of 64 columns."""
    parts = []
    for data in results:
        of = {(r["graph"], r["precision"], r["width"]): r["ms"] for r in data["rows"]}
        counts = [w for w in sorted({key[2] for key in of}) if w % 64]
        rows = []
        for graph, precision in dict.fromkeys(key[:2] for key in of):
            ratios = (of[graph, precision, w] / of[graph, precision, -(-w // 64) * 64] for w in counts)
            rows.append([graph, precision, *(f"{ratio:.2f}" for ratio in ratios)])
        header = ["graph", "precision", *map(str, counts)]
        parts.append(measured(header, rows, data))
    return "\n\n".join(parts)


def widths_beside_cusparse(*results: dict[str, Any]) -> str:
    """Make the table of ratios to cuSPARSE at its best, the less of rank-1 and of stored weights.

    tf32 stands beside cuSPARSE in fp32, which is measured with it.
    """
    parts = []
    for data in results:
        times: dict[bool, dict[tuple[Any, ...], float]] = {True: {}, False: {}}
        for r in data["rows"]:
            times[r["ours"]][r["graph"], r["precision"], r["width"], r["values"]] = r["ms"]
        ratios: dict[tuple[str, str, int], list[float]] = {}
        for (graph, precision, width, values), ms in times[True].items():
            peer = graph, "fp32" if precision == "tf32" else precision, width, values
            ratios.setdefault((graph, precision, width), []).append(times[False][peer] / ms)
        counts = sorted({key[2] for key in ratios})
        rows = [
            [graph, precision, *(f"{min(ratios[graph, precision, width]):.2f}" for width in counts)]
            for graph, precision in dict.fromkeys(key[:2] for key in ratios)
        ]
        parts.append(measured(["graph", "precision", *map(str, counts)], rows, data))
    return "\n\n".join(parts)


def host(data: dict[str, Any]) -> str:
    """Make the table of the host's time of calls on a graph of Cora's size, in microseconds."""
    of = {(r["call"], r["width"], r["precision"]): r["microseconds"] for r in data["rows"]}
    rows = []
    for call, width in dict.fromkeys(key[:2] for key in of):
        found = (of.get((call, width, precision)) for precision in ("fp16", "fp32"))
        cells = ("" if us is None else f"{us['median']:.1f}, {us['fastest']:.1f}" for us in found)
        rows.append([call, str(width), *cells])
    header = ["call", "columns", "fp16: median, fastest", "fp32: median, fastest"]
    return measured(header, rows, data)


#: Names of peers in tables.
_PEERS = {
    "auto": "gnnsparse", "cusparse-best": "cuSPARSE's best", "cusparse": "torch", "pyg": "PyG",
    "cusparse-new": "newest cuSPARSE",
}  # fmt: skip


def _name(peer: str) -> str:
    return _PEERS.get(peer, peer)


def beside_peers(data: dict[str, Any]) -> str:
    """Make the table of SpMM beside every other library, and list below it what is wrong or can't run.

    A cell has a time for each precision that the library has. tf32 is compared with fp32 of the others, too.
    """
    cells: dict[tuple[str, str, str, int], Any] = {}
    for r in data["skipped"]:
        if r["failed"]:
            cells[r["name"], r["precision"], r["graph"], r["width"]] = "failed"
    for r in data["rows"]:
        cells[r["kernel"], r["precision"], r["graph"], r["width"]] = r["ms"] if r["ok"] else "wrong"
    has: dict[str, list[str]] = {}
    for name, precision in (
        (n, p) for n in ("auto", *data["settings"]["peers"]) for p in data["settings"]["precisions"]
    ):
        if any(key[:2] == (name, precision) for key in cells):
            has.setdefault(name, []).append(precision)
    rows = []
    for case in dict.fromkeys((r["graph"], r["width"]) for r in data["rows"]):
        line, speeds = [case[0], str(case[1])], []
        for name, precisions in has.items():
            found = (cells.get((name, p, *case), "-") for p in precisions)
            line.append("/".join(ms if isinstance(ms, str) else f"{ms:.3g}" for ms in found))
        for precision in has["auto"]:
            asked = ("tf32", "fp32") if precision == "tf32" else (precision,)
            others = (cells.get((name, p, *case)) for name in has if name != "auto" for p in asked)
            times, ours = (
                [ms for ms in others if isinstance(ms, float)],
                cells.get(("auto", precision, *case)),
            )
            speeds.append(f"{min(times) / ours:.2f}x" if times and isinstance(ours, float) else "-")
        rows.append([*line, "/".join(speeds)])
    titles = [f"{_name(name)} {'/'.join(precisions)}" for name, precisions in has.items()]
    table, origin = measured(["graph", "columns", *titles, "speed beside the best"], rows, data).split("\n\n")
    return "\n\n".join([table, *_remarks(data), origin])


def _remarks(data: dict[str, Any]) -> list[str]:
    """Return sentences on what failed, is wrong or is not there, and on what is timed with its launch."""
    reasons: dict[str, list[str]] = {}
    for r in data["skipped"]:
        if not r["reason"].startswith("has no "):
            reasons.setdefault(f"{_name(r['name'])}: {r['reason']}", []).append(r["graph"])
    said = [f"{why} ({', '.join(dict.fromkeys(graphs))})." for why, graphs in reasons.items()]
    by_peer: dict[str, list[dict[str, Any]]] = {}
    for r in data["rows"]:
        by_peer.setdefault(f"{_name(r['kernel'])}, {r['precision']}", []).append(r)
    for name, found in by_peer.items():
        wrong = sorted((r for r in found if not r["ok"]), key=lambda r: r["error"] or 0.0)
        if wrong:
            said.append(f"{name}: wrong in {len(wrong)} of {len(found)}, such as {wrong[-1]['problem']}.")
    for name, about in data["rivals"].items():
        if about["problem"] or about.get("version"):
            said.append(f"{_name(name)}: {about['problem'] or about['version']}.")
    launched = dict.fromkeys(_name(r["kernel"]) for r in data["rows"] if r["timing_problem"])
    if launched:
        said.append(f"Timed with their launches, as no CUDA graph has their stream: {', '.join(launched)}.")
    return said
