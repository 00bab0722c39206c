"""The tables of notes/papers.md: what they say with files of results and without them."""

from __future__ import annotations

from typing import Any

from gnnsparse.bench.kernels import has_tall
from gnnsparse.formats import PRESETS
from gnnsparse.formats.policy import policy_changes
from gnnsparse.precision import Precision
from papers import cutespmm, flashsparse, rsh_spmm, sspmm, tiled_csr
from papers.figures import PAPERS
from papers.speed import PAPER_FORMATS
from tests.bench.runs import row as kernel_row
from tests.scripts import load_script

paper_tables = load_script("readme_tables").paper_tables
presets = load_script("../benchmarks/presets")

ORIGIN = {"device_name": "GPU", "versions": {"torch": "2", "cuda": "13"}, "date": "2026-11-23T00:00:00",
          "commit": "0123456789"}  # fmt: skip


def row(graph: str, kernel: str, ms: float, **more: Any) -> dict[str, Any]:
    about = {
        "ours": kernel not in ("cusparse-best", "cublas"),
        "over_baseline": 8 / ms,
        "over_torch": 16 / ms,
    }
    return kernel_row(kernel, ms, graph=graph, **{**about, **more})


def loader(**files: list[dict[str, Any]]) -> Any:
    return lambda name: {**ORIGIN, "rows": files[name]} if name in files else None


def cells(table: str, first: str) -> list[str]:
    (line,) = [line for line in table.splitlines() if line.startswith(f"| {first}")]
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_without_files_the_tables_say_how_to_measure() -> None:
    nothing = loader()
    assert "presets.py graphs" in paper_tables.presets(nothing)
    assert "presets.py sparsity" in paper_tables.sparsities(nothing)
    assert "python -m papers" in paper_tables.numbers(nothing)
    lines = paper_tables.mechanisms(nothing).splitlines()[2:]
    assert len(lines) >= 15
    assert all(line.endswith("|  |") for line in lines)


def test_every_paper_and_format_is_in_the_tables() -> None:
    assert set(paper_tables.PAPERS) == set(PAPERS)
    assert paper_tables.FORMATS == PAPER_FORMATS
    assert {row[0] for row in paper_tables._MECHANISMS} == set(paper_tables.PAPERS.values())


def test_speeds_of_formats_are_geometric_means() -> None:
    rows = [row("a", "auto", 1.0), row("a", "cvse", 2.0), row("a", "me-bcrs", 4.0),
            row("b", "auto", 2.0), row("b", "cvse", 8.0), row("b", "me-bcrs", 2.0),
            row("b", "hrpb", 0.1, ok=False), row("a", "cusparse-best", 8.0)]  # fmt: skip
    made = paper_tables.presets(loader(**{"presets_graphs.json": rows}))
    assert cells(made, "the five large graphs | 2 | `cvse`")[3:] == ["fp16", "2.00x", "1.00x", "4.00x"]
    assert cells(made, "the five large graphs | 2 | `auto`")[3:] == ["fp16", "5.66x", "4.00x", "11.31x"]
    assert "`hrpb`" not in made  # wrong results are no speeds
    # Of a: 2 beside cvse; of b: 1 beside me-bcrs. In the mean me-bcrs has 2, cvse 2.83.
    assert "1.41 times as fast as the format that comes closest to it on the matrix (least 1.00)" in made
    assert "`me-bcrs` comes closest, and `auto` is 2.00 times as fast as it" in made


def test_a_format_without_fp16_is_compared_in_tf32() -> None:
    slow = {"precision": "tf32"}
    rows = [row("a", "auto", 1.0), row("a", "auto", 2.0, **slow), row("a", "hrpb", 4.0, **slow),
            row("a", "cvse", 3.0), row("a", "cvse", 0.5, **slow)]  # fmt: skip
    made = paper_tables.presets(loader(**{"presets_dlmc.json": rows}))
    assert cells(made, "DLMC | 1 | `hrpb`")[3:5] == ["tf32", "2.00x"]
    assert cells(made, "DLMC | 1 | `cvse`")[3:5] == ["fp16", "2.67x"]
    # hrpb: 4.0 beside 2.0; cvse: 3.0 beside 1.0
    assert "2.00 times as fast as the format that comes closest" in made


def test_the_sparsity_from_which_the_sparse_product_is_faster() -> None:
    rows = []
    for sparsity, auto in (("0.7", 4.0), ("0.9", 1.0)):
        graph = f"transformer/random_pruning/{sparsity}/x.smtx.gz"
        rows += [row(graph, "auto", auto), row(graph, "cvse", 2 * auto), row(graph, "cusparse-best", 8.0),
                 row(graph, "cublas", 2.0)]  # fmt: skip
    made = paper_tables.sparsities(loader(**{"presets_sparsity.json": rows}))
    assert cells(made, "0.7") == ["0.7", "1", "2.00x", "2.00x", "0.50x", "0.50x", "2.00x"]
    assert cells(made, "0.9") == ["0.9", "1", "8.00x", "8.00x", "2.00x", "2.00x", "2.00x"]
    assert "from a sparsity of 0.9 on" in made


def test_effects_of_switches_are_named_with_their_matrices() -> None:
    rows = [row("a", "me-bcrs", 1.0), row("a", "me-bcrs x_load=plain", 2.0), row("b", "me-bcrs", 9.0),
            row("a", "me-bcrs panel=16 swapped=False", 3.0, ok=False)]  # fmt: skip
    made = paper_tables.mechanisms(loader(**{"presets_policies.json": rows}))
    assert cells(made, "FlashSparse | coalesced")[-1] == "2.00x (a)"
    assert cells(made, "FlashSparse | swap")[-1] == ""


def test_numbers_stand_beside_the_papers() -> None:
    figure = {"title": "t", "rows": [
        {"quantity": "fewer instructions, mean", "matrix": "5 matrices", "origin": "subset", "ours": 42.04,
         "paper": 43.0, "unit": "%", "note": ""},
        {"quantity": "fewer instructions", "matrix": "DD", "origin": "paper's", "ours": 1.0, "paper": None,
         "unit": "%", "note": ""},
    ]}  # fmt: skip
    content = {**ORIGIN, "figures": {"figure-1": figure}}

    def load(name: str) -> dict[str, Any] | None:
        return content if name == "reproduce_flashsparse_cpu.json" else None

    made = paper_tables.numbers(load)
    assert cells(made, "FlashSparse")[1:] == [
        "figure-1", "fewer instructions, mean", "5 matrices", "43 %", "42 %", "a subset",
    ]  # fmt: skip
    assert "| DD |" not in made  # the paper has no number for it
    effect = cells(paper_tables.mechanisms(load), "FlashSparse | swap")[-1]
    assert effect == "42 % fewer instructions (paper 43 %)"


def test_the_switches_are_those_that_the_benchmark_changes() -> None:
    """So that a switch that is renamed does not silently empty a cell."""
    changed = set()
    for name in presets.POLICY_FORMATS:
        policy, window = PRESETS[name].policy_for(Precision.FP16), PRESETS[name].spec.window
        changed |= {name, *(f"{name} {change}" for change in policy_changes(policy, Precision.FP16, window))}
    assert paper_tables.SWITCHES - changed == {"me-bcrs panel=16 swapped=False"}
    assert has_tall("me-bcrs")


def test_the_effects_are_of_figures_that_there_are() -> None:
    papers = {"flashsparse": flashsparse, "sspmm": sspmm, "tiled-csr": tiled_csr, "cutespmm": cutespmm,
              "rsh-spmm": rsh_spmm}  # fmt: skip
    for name, module in papers.items():
        asked = paper_tables.FIGURES[name]
        assert asked <= set(module.PAPER.figures), name
