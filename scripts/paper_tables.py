"""The tables of notes/papers.md: the papers' numbers, mechanisms and formats, from files of results.

A cell whose file is not there is empty, and a table whose file is not there says how to measure it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

from markdown_tables import origins

from gnnsparse.bench.render import markdown_table as table
from papers.speed import PAPER_FORMATS

__all__ = ["FIGURES", "FILES", "SWITCHES", "mechanisms", "numbers", "presets", "sparsities"]

Content = dict[str, Any]
#: Returns the content of a file of results; None if it is not there.
Load = Callable[[str], Content | None]

PAPERS = {
    "flashsparse": "FlashSparse", "sspmm": "SSpMM", "tiled-csr": "Tiled-CSR", "cutespmm": "cuTeSpMM",
    "rsh-spmm": "RSH-SpMM",
}  # fmt: skip
GRAPHS, DLMC, SPARSITY, POLICIES = (
    f"presets_{name}.json" for name in ("graphs", "dlmc", "sparsity", "policies")
)
#: All matrices of DLMC in fp16, with every format at N = 128, and beside cuSPARSE and cuBLAS at N = 512.
DLMC_FP16, DLMC_WIDE = "presets_dlmc_fp16.json", "dlmc_n512.json"
#: The figures that effects are taken from.
FIGURES: dict[str, set[str]] = {paper: set() for paper in PAPERS}
#: The rows of the file of policies that effects are taken from.
SWITCHES: set[str] = set()
#: The files of `python -m papers`, by the device; the figures of later ones count.
_WHERE = ("cpu", "cuda")
#: Every file that the tables are made of.
FILES = (
    GRAPHS, DLMC, SPARSITY, POLICIES, DLMC_FP16, DLMC_WIDE,
    *(f"reproduce_{paper.replace('-', '_')}_{where}.json" for paper in PAPERS for where in _WHERE),
)  # fmt: skip


def _mean(ratios: Iterable[float]) -> float | None:
    logs = [math.log(ratio) for ratio in ratios]
    return math.exp(sum(logs) / len(logs)) if logs else None


def _times(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}x"


def _figures(load: Load, paper: str) -> dict[str, Content]:
    """Return the figures of a paper that are in files, those of the GPU over those of the CPU."""
    found: dict[str, Content] = {}
    for where in _WHERE:
        content = load(f"reproduce_{paper.replace('-', '_')}_{where}.json")
        for name, figure in (content or {"figures": {}})["figures"].items():
            if figure["rows"] or name not in found:
                found[name] = figure
    return found


def _value(row: Content, key: str) -> str:
    value, unit = row[key], row["unit"]
    if value is None:
        return ""
    text = f"{value:,.0f}" if float(value).is_integer() or abs(value) >= 1000 else f"{value:.3g}"
    return f"{text} {unit}".strip() if unit in ("%", "s", "GFLOP/s") else f"{text}{unit}"


def _row(load: Load, paper: str, figure: str, quantity: str, matrix: str = "") -> Content | None:
    rows = _figures(load, paper).get(figure, {"rows": []})["rows"]
    return next((r for r in rows if r["quantity"] == quantity and matrix in r["matrix"]), None)


def _count(paper: str, figure: str, quantity: str, text: str, matrix: str = "") -> Callable[[Load], str]:
    """Make an effect of a row of `python -m papers`, such as "43.1 % fewer instructions (paper 43 %)"."""
    FIGURES[paper].add(figure)

    def effect(load: Load) -> str:
        row = _row(load, paper, figure, quantity, matrix)
        if row is None:
            return ""
        published = f" (paper {_value(row, 'paper')})" if row["paper"] is not None else ""
        return f"{_value(row, 'ours')} {text}{published}"

    return effect


def _switch(with_it: str, without: str) -> Callable[[Load], str]:
    """Make an effect of two rows of the file of policies: the speed of SpMM by one over the other."""
    SWITCHES.update((with_it, without))

    def effect(load: Load) -> str:
        content = load(POLICIES)
        if content is None:
            return ""
        of = {(r["graph"], r["kernel"]): r["ms"] for r in content["rows"] if r["ok"] and r["op"] == "spmm"}
        pairs = {graph: (of[graph, with_it], of[graph, without]) for graph, kernel in of
                 if kernel == with_it and (graph, without) in of}  # fmt: skip
        mean = _mean(slow / fast for fast, slow in pairs.values())
        return "" if mean is None else f"{mean:.2f}x ({', '.join(pairs)})"

    return effect


Effect = Callable[[Load], str]
#: (paper, mechanism, where it lives, its effects).
_MECHANISMS: tuple[tuple[str, str, str, tuple[Effect, ...]], ...] = (
    ("FlashSparse", "swap-and-transpose: vectors of 8 rows (3.2)", "`WindowPolicy.swapped`; `panel=` 8, 16",
     (_count("flashsparse", "figure-1", "fewer instructions, mean", "fewer instructions"),
      _switch("me-bcrs", "me-bcrs panel=16 swapped=False"))),
    ("FlashSparse", "coalesced thread mapping (3.3)", '`WindowPolicy.x_load="coalesced"`',
     (_switch("me-bcrs", "me-bcrs x_load=plain"),)),
    ("FlashSparse", "ME-BCRS (3.5)", '`format="me-bcrs"`',
     (_count("flashsparse", "table-7", "smaller than SR-BCRS, mean", "less than SR-BCRS"),)),
    ("FlashSparse", "SDDMM into SpMM's sub-blocks (3.4)", '`sddmm` of `format="me-bcrs"`', ()),
    ("SSpMM", "Sparse Vector Compression (V-A)", '`format="cvse"`',
     (_count("sspmm", "figure-13", "V = 8: bytes over CSR, mean", "CSR's bytes at V = 8"),
      _count("sspmm", "figure-13", "V = 16: bytes over CSR, mean", "at V = 16"))),
    ("SSpMM", "V by sparsity (V-B)", '`panel=8` or `16` with `format="cvse"`; by density without', ()),
    ("SSpMM", "Transpose Mapping (III)", "`WindowPolicy.swapped`", ()),
    ("SSpMM", "Register Shuffle and 128-bit loads (IV)", '`WindowPolicy.shuffle`, `x_load="vector"`',
     (_switch("cvse", "cvse shuffle=False"),)),
    ("SSpMM", "A double-buffered in shared memory (algorithm 2)", '`WindowPolicy.stage_a="double"`',
     (_switch("cvse", "cvse stage_a=none"), _switch("cvse", "cvse stage_a=single"))),
    ("Tiled-CSR", "tiles of 8 x 16 with a Zero Index (III-A)", '`format="tiled-csr"`',
     (_count("tiled-csr", "figure-9", "over SR-BCRS, rows as given, mean", "SR-BCRS's utilisation"),)),
    ("Tiled-CSR", "row shuffle (III-B, III-C)", '`reorder="row-shuffle"`',
     (_count("tiled-csr", "figure-9", "over SR-BCRS, rows shuffled, mean", "SR-BCRS's utilisation"),)),
    ("Tiled-CSR", "adaptive memory access (IV-A)", '`WindowPolicy.stage_a="single"`, `x_load="plain"`',
     (_switch("tiled-csr", "tiled-csr stage_a=none"),)),
    ("Tiled-CSR", "3D grid (IV-B)", '`WindowPolicy.grid="3d"`',
     (_switch("tiled-csr", "tiled-csr grid=flat"),)),
    ("cuTeSpMM", "HRPB: bricks behind bits (3.2)", '`format="hrpb"`, `panel=16` or `32`',
     (_count("cutespmm", "figure-1", "density with columns packed", "of the elements of NotreDame's bricks",
             "NotreDame_www"),)),
    ("cuTeSpMM", "wave-aware division (5, equations 6 and 7)", '`balance="wave"`',
     (_count("cutespmm", "section-5", "segments", "segments of the paper's 991 panels", "991"),)),
    ("cuTeSpMM", "synergy and operational intensity (4, 6.4)", "`papers.analysis.count_bricks`",
     (_count("cutespmm", "figure-7", "rank correlation with measured speed, tf32, N = 128",
             "rank correlation with our speed"),
      _count("cutespmm", "figure-7", "rank correlation with the paper's speed on an A100, N = 128",
             "with the paper's on an A100"))),
    ("RSH-SpMM", "RS-Tile (3.2)", '`format="rs-tile"`',
     (_count("rsh-spmm", "figure-13", "rs-tile, of COO, mean", "of COO's metadata"),)),
    ("RSH-SpMM", "algorithm 1 and its threshold (3.3.1)", '`format_options={"threshold": 4}`',
     (_count("rsh-spmm", "figure-14", "algorithm, threshold 4: block over threshold 0",
             "nonzeros a block at threshold 4"),)),
    ("RSH-SpMM", "locality-aware reordering (3.4)", '`reorder="jaccard"`',
     (_count("rsh-spmm", "figure-16", "jaccard: fewer blocks", "fewer blocks on ddi", "ddi"),
      _count("rsh-spmm", "figure-16-speed", "spmm: speed of jaccard over none, mean", "speed"))),
    ("RSH-SpMM", "adaptive division of super-long rows (3.3.3)", '`balance="adaptive"`', ()),
)  # fmt: skip


def mechanisms(load: Load) -> str:
    """Make the table of mechanisms, with what each was measured to be worth."""
    rows = []
    for paper, what, where, effects in _MECHANISMS:
        found = [effect(load) for effect in effects]
        rows.append([paper, what, where, "; ".join(filter(None, found))])
    return table(["paper", "mechanism", "where", "measured effect"], rows)


def numbers(load: Load) -> str:
    """Make the table of the papers' numbers beside ours."""
    rows, contents = [], []
    for paper, title in PAPERS.items():
        for where in _WHERE:
            if (content := load(f"reproduce_{paper.replace('-', '_')}_{where}.json")) is not None:
                contents.append(content)
        for name, figure in _figures(load, paper).items():
            for row in figure["rows"]:
                if row["paper"] is not None:
                    cells = [row["quantity"], row["matrix"], _value(row, "paper"), _value(row, "ours")]
                    is_what = {"paper's": "the paper's", "stand-in": "a stand-in", "example": "an example"}
                    rows.append([title, name, *cells, is_what.get(row["origin"], "a subset")])
    if not rows:
        return "Not computed yet: `python -m papers PAPER --data FOLDER --json FILE` does it."
    header = ["paper", "figure", "quantity", "matrix", "paper", "ours", "matrix is"]
    return table(header, rows) + "\n\n" + origins(contents)


def _right(content: Content) -> dict[str, dict[str, tuple[Content, Content | None]]]:
    """Return for each operand and matrix its right row of SpMM, and that of auto in the same precision.

    A format has the row of its first precision, of fp16 and then tf32.
    """
    rows = [r for r in content["rows"] if r["ok"] and r["op"] == "spmm" and r["ours"]]
    auto = {(r["graph"], r["precision"]): r for r in rows if r["kernel"] == "auto"}
    found: dict[str, dict[str, tuple[Content, Content | None]]] = {}
    for name in (*PAPER_FORMATS, "auto"):
        mine = [r for r in rows if r["kernel"] == name]
        precision = min((r["precision"] for r in mine), default="")  # "fp16" < "tf32"
        chosen = [r for r in mine if r["precision"] == precision]
        found[name] = {r["graph"]: (r, auto.get((r["graph"], precision))) for r in chosen}
    return found


def _speed_rows(content: Content, where: str) -> list[list[str]]:
    """Return rows of the speeds of each format and of auto."""
    rows = []
    for name, of_graph in _right(content).items():
        mine = [row for row, _ in of_graph.values()]
        if not mine:
            continue
        best = [row["over_baseline"] for row in mine if row["over_baseline"]]
        plain = [row["over_torch"] for row in mine if row["over_torch"]]
        cells = [where, str(len(mine)), f"`{name}`", mine[0]["precision"]]
        rows.append([*cells, _times(_mean(best)), _times(min(best, default=None)), _times(_mean(plain))])
    return rows


def _auto_beside(content: Content, where: str) -> str:
    """Return how auto compares with the fastest format of each matrix, and with the best single format."""
    faster: dict[str, dict[str, float]] = {}
    for name, of_graph in _right(content).items():
        for graph, (row, auto) in of_graph.items():
            if name != "auto" and auto is not None:
                faster.setdefault(graph, {})[name] = row["ms"] / auto["ms"]
    if not faster:
        return ""
    fastest = [min(speeds.values()) for speeds in faster.values()]
    single = {name: _mean(s[name] for s in faster.values() if name in s) for name in PAPER_FORMATS}
    best = min((mean, name) for name, mean in single.items() if mean is not None)
    return (
        f"On {where}, each format is compared with `auto` in the format's own precision. `auto` is "
        f"{_mean(fastest):.2f} times as fast as the format that comes closest to it on the matrix (least "
        f"{min(fastest):.2f}). If one format has to do for all these matrices, `{best[1]}` comes closest, "
        f"and `auto` is {best[0]:.2f} times as fast as it. The means are geometric."
    )


def presets(load: Load) -> str:
    """Make the table of the speeds of every format and of auto."""
    files = {GRAPHS: "the five large graphs", DLMC: "DLMC", DLMC_FP16: "DLMC, all files here"}
    found = {where: content for name, where in files.items() if (content := load(name)) is not None}
    if not found:
        return (
            "Not measured yet: `python benchmarks/presets.py graphs --out "
            "benchmarks/results/presets_graphs.json` on a GPU does it."
        )
    rows = [row for where, content in found.items() for row in _speed_rows(content, where)]
    header = ["on", "matrices", "operand", "precision", "over cuSPARSE at its best", "least", "over torch's"]
    texts = [text for where, content in found.items() if (text := _auto_beside(content, where))]
    return "\n\n".join([table(header, rows), *texts, origins(found.values())])


def _times_by_kernel(content: Content) -> dict[tuple[str, str], float]:
    """Return the milliseconds of the right products in fp16, by matrix and kernel."""
    return {
        (row["graph"], row["kernel"]): row["ms"]
        for row in content["rows"]
        if row["ok"] and row["precision"] == "fp16"
    }


def sparsities(load: Load) -> str:
    """Make the table of DLMC by sparsity: auto beside cuSPARSE and cuBLAS, and beside the fastest format."""
    contents = [content for name in (DLMC_WIDE, SPARSITY) if (content := load(name)) is not None]
    if not contents:
        return (
            "Not measured yet: `python benchmarks/presets.py sparsity --data FOLDER --out "
            "benchmarks/results/presets_sparsity.json` on a GPU does it."
        )
    of, of_formats = _times_by_kernel(contents[0]), _times_by_kernel(contents[-1])
    groups: dict[float, list[str]] = {}
    for graph in dict.fromkeys(graph for graph, _ in of):
        groups.setdefault(float(graph.split("/")[-2]), []).append(graph)
    rows = []
    for sparsity, graphs in sorted(groups.items()):
        cells = [f"{sparsity:g}", str(len(graphs))]
        for peer in ("cusparse-best", "cublas"):
            pairs = [(of[g, peer], of[g, "auto"]) for g in graphs if (g, peer) in of and (g, "auto") in of]
            speeds = [theirs / ours for theirs, ours in pairs]
            cells += [_times(_mean(speeds)), _times(min(speeds, default=None))]
        best = []
        for graph in graphs:
            formats = [of_formats[graph, name] for name in PAPER_FORMATS if (graph, name) in of_formats]
            if formats and (graph, "auto") in of_formats:
                best.append(min(formats) / of_formats[graph, "auto"])
        rows.append([*cells, _times(_mean(best))])
    header = ["sparsity", "matrices", "`auto` over cuSPARSE", "least", "over cuBLAS, dense", "least",
              "over the fastest format"]  # fmt: skip
    faster = [row[0] for row in rows if row[4] and float(row[4].rstrip("x")) > 1]
    text = (
        f"`auto` is faster than cuBLAS's dense product from a sparsity of {faster[0]} on." if faster else ""
    )
    return "\n\n".join(filter(None, [table(header, rows), text, origins(contents)]))
