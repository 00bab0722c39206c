"""Tables of the README, of docs/ and of notes/papers.md: what they say, and that stale ones are noticed."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any
from xml.etree import ElementTree

import pytest

from gnnsparse.bench.kernels import has_tall
from gnnsparse.formats import PRESETS
from gnnsparse.formats.policy import policy_changes
from gnnsparse.precision import Precision
from papers import cutespmm, flashsparse, rsh_spmm, sspmm, tiled_csr
from papers.figures import PAPERS
from tests.bench.runs import row as kernel_row
from tests.scripts import load_script

ROOT = Path(__file__).resolve().parents[2]
#: What the headline's row of the published matrices contains.
PUBLISHED = "published matrices"
paper_tables = load_script("readme_tables").paper_tables
presets = load_script("../benchmarks/presets")


@pytest.fixture
def tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script on copies of the results and of the pages."""
    module = load_script("readme_tables")
    shutil.copytree(ROOT / "benchmarks" / "results", tmp_path / "results")
    monkeypatch.setattr(module, "RESULTS", tmp_path / "results")
    pages = {module.README, module.RESULTS_PAGE, module.FIGURE, *module.PAGE_OF.values()}
    copies = {page: tmp_path / str(page.relative_to(ROOT)) for page in pages}
    for page, copy in copies.items():
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(page, copy)
    monkeypatch.setattr(module, "ROOT", tmp_path)
    for name in ("README", "RESULTS_PAGE", "FIGURE"):
        monkeypatch.setattr(module, name, copies[getattr(module, name)])
    monkeypatch.setattr(module, "PAGE_OF", {name: copies[page] for name, page in module.PAGE_OF.items()})
    return module


def change(module: ModuleType, name: str, edit: Any) -> None:
    file = module.RESULTS / name
    content = json.loads(file.read_text())
    edit(content)
    file.write_text(json.dumps(content))


def row_of(module: ModuleType, what: str) -> list[str]:
    (row,) = [line for line in module.headline.as_table(module.load).splitlines() if what in line]
    return [cell.strip() for cell in row.strip("|").split("|")]


def test_the_headline_has_means_of_speeds_and_largest_errors(tables: ModuleType) -> None:
    def edit(content: dict[str, Any]) -> None:
        about = {"op": "spmm", "width": 128, "values": "gcn", "precision": "fp16", "ok": True}
        content["rows"] = [
            {**about, "graph": graph, "kernel": kernel, "ms": ms, "nnz": nnz, "error": error}
            for graph, kernel, ms, nnz, error in (
                ("a", "auto", 1.0, 10**6, 1e-4), ("a", "cusparse", 2.0, 10**6, 5e-4),
                ("b", "auto", 1.0, 7 * 10**6, 3e-4), ("b", "cusparse", 8.0, 7 * 10**6, 4e-4),
            )
        ]  # fmt: skip
        # Of other widths, precisions and wrong results nothing is taken.
        content["rows"] += [{**content["rows"][1], "ms": 99.0, **other} for other in (
            {"width": 64}, {"precision": "bf16"}, {"ok": False}, {"op": "sddmm"}, {"values": "random"},
        )]  # fmt: skip

    change(tables, "spmm_real.json", edit)
    what, beside, faster, exact = row_of(tables, PUBLISHED)
    assert what.endswith("2 published matrices of up to 7 M nonzeros")
    assert beside == "cuSPARSE through torch"
    assert faster == "**4.0x** (2.0 to 8.0)"
    assert exact == "error 3e-04, cuSPARSE 5e-04"


def test_the_headline_is_beside_the_best_of_cusparse_where_it_was_measured(tables: ModuleType) -> None:
    def without(content: dict[str, Any]) -> None:
        content["rows"] = [row for row in content["rows"] if row["kernel"] != "cusparse-best"]

    def halved(content: dict[str, Any]) -> None:
        peers = [row for row in content["rows"] if row["kernel"] == "cusparse"]
        content["rows"] += [{**row, "kernel": "cusparse-best", "ms": row["ms"] / 2} for row in peers]

    change(tables, "spmm_real.json", without)
    _, beside, faster, _ = row_of(tables, PUBLISHED)
    assert beside == "cuSPARSE through torch"
    before = float(faster.split("x")[0].strip("*"))
    change(tables, "spmm_real.json", halved)
    _, beside, faster, _ = row_of(tables, PUBLISHED)
    assert beside == "cuSPARSE at its best"
    assert float(faster.split("x")[0].strip("*")) == pytest.approx(before / 2, abs=0.1)


def test_the_headline_has_the_speed_of_a_step_and_the_accuracy(tables: ModuleType) -> None:
    def edit(content: dict[str, Any]) -> None:
        for row in content["rows"]:
            row["ms"] = {"pyg csr fp32": 30.0, "gnnsparse fp16": 2.0, "gnnsparse fp32": 10.0}.get(
                row["name"], 1.0
            )

    change(tables, "train_step.json", edit)
    _, beside, faster, exact = row_of(tables, "training step, GCN 5 x 128, reddit_like")
    assert (beside, faster) == ("PyG with a CSR adjacency", "**15.0x** in fp16, 3.0x in fp32")
    assert exact.startswith("test accuracy on cora ")


def test_the_figure_has_a_bar_for_each_row(tables: ModuleType) -> None:
    rows = tables.headline.as_table(tables.load).split("\n\n")[0].splitlines()[2:]
    figure = ElementTree.fromstring(tables.headline.as_figure(tables.load))
    bars = [element for element in figure.iter() if element.tag.endswith("rect")]
    assert len(bars) == len(rows)
    titles = [element.text for element in figure.iter() if element.tag.endswith("title")]
    for row, title in zip(rows, titles, strict=True):
        assert title.rpartition(": ")[2].split(" ")[0] in row


def test_no_label_of_the_figure_is_cut(tables: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    figure = ElementTree.parse(tables.FIGURE)
    texts = [element.text or "" for element in figure.iter() if element.tag.endswith("text")]
    titles = [element.text for element in figure.iter() if element.tag.endswith("title")]
    assert [f"{label}: {value}" for label, value in zip(texts[::2], texts[1::2], strict=True)] == titles
    claims = tables.headline._claims(tables.load)
    long = [
        replace(claims[0], label="a label that is much too long for the room beside its value"),
        *claims[1:],
    ]
    monkeypatch.setattr(tables.headline, "_claims", lambda load: long)
    with pytest.raises(ValueError, match=r"much too long.*accepted: labels that fit"):
        tables.headline.as_figure(tables.load)


def test_the_first_table_has_times_alone_on_a_cpu_and_on_a_gpu(tables: ModuleType) -> None:
    def set_epochs(content: dict[str, Any]) -> None:
        times = {("gnnsparse", 0): 2.04, ("gnnsparse", 1): 90.0, ("pyg", 0): 50.0, ("pyg", 1): 80.0}
        content["threads"] = 3
        for row in content["rows"]:
            row["milliseconds"] = times.get((row["trainer"], row["busy"]), 1.0)

    def set_steps(content: dict[str, Any]) -> None:
        for row in content["rows"]:
            row["ms"] = {"pyg csr fp32": 30.0, "gnnsparse fp16": 4.0}.get(row["name"], 1.0)

    change(tables, "cpu_epochs.json", set_epochs)
    change(tables, "train_step.json", set_steps)
    table = tables.headline.at_a_glance(tables.load)
    assert cells(table, "3 cores of a CPU")[1:] == ["**2.0 ms**", "50.0 ms"]
    assert cells(table, "one NVIDIA H200")[1:] == ["**4.0 ms**", "30.0 ms"]


def test_stale_tables_are_noticed_and_rewritten_and_a_missing_one_is_named(
    tables: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def edit(content: dict[str, Any]) -> None:
        for row in content["rows"]:
            row["ms"] *= 3

    def run(*options: str) -> int:
        monkeypatch.setattr("sys.argv", ["readme_tables.py", *options])
        return tables.main()

    assert run("--check") == 0, "the pages of the repository are up to date"
    change(tables, "train_step.json", edit)
    assert run("--check") == 1
    assert "tables are out of date; run make results" in capsys.readouterr().err
    assert run() == 0
    assert run("--check") == 0
    page = tables.RESULTS_PAGE
    page.write_text(page.read_text().replace("<!-- table headline -->", ""))
    assert run("--check") == 1
    assert "docs/results.md has no table 'headline'" in capsys.readouterr().err


def test_the_page_on_pyg_names_the_layers_that_are_accelerated() -> None:
    """The table in notes/ is what tests/interop finds."""
    rows = re.findall(
        r"^\| `(\w+)` \| ([^|]+) \|", (ROOT / "notes" / "pyg-layers.md").read_text(), re.MULTILINE
    )
    page = (ROOT / "docs" / "howto" / "accelerate-pyg.md").read_text()
    names = page.partition("These classes of PyG are accelerated:")[2].partition("The others")[0]
    assert re.findall(r"`(\w+)`", names) == [name for name, runs_on in rows if runs_on != "PyG"]


def test_every_file_of_results_is_named() -> None:
    files = {path.name for path in (ROOT / "benchmarks" / "results").glob("*.json")}
    # The study's own file, whatever it is called later, and what a run leaves.
    others = {"study.json", "result.json"}
    page = (ROOT / "notes" / "reproducibility.md").read_text()
    assert set(re.findall(r"\b(\w+\.json)\b", page)) - others == files


# The tables of notes/papers.md, with files of results and without them

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
    speed = {"quantity": "spmm: speed of 8x1 over 16x1, mean", "matrix": "6 matrices", "origin": "subset",
             "ours": 1.5, "paper": 1.89, "unit": "x", "note": ""}  # fmt: skip
    contents = {
        "reproduce_flashsparse_cpu.json": {
            **ORIGIN, "figures": {"figure-1": figure, "figure-14": {"title": "t", "rows": []}},
        },
        "reproduce_flashsparse_cuda.json": {
            **ORIGIN, "device_name": "a GPU", "figures": {"figure-14": {"title": "t", "rows": [speed]}},
        },
    }  # fmt: skip
    load = contents.get
    made = paper_tables.numbers(load)
    assert (
        "| FlashSparse | figure-14 | spmm: speed of 8x1 over 16x1, mean | 6 matrices | 1.89x | 1.5x |" in made
    )
    assert "a GPU, torch" in made
    assert cells(made, "FlashSparse | figure-1 |")[1:] == [
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


def test_attention_beside_other_libraries_prints_losses_and_problems(tables: ModuleType) -> None:
    def row(work: str, peer: str, *ms: float, problem: str = "") -> dict[str, Any]:
        times = dict(zip(("forward_ms", "both_ms"), ms, strict=False))
        return {
            "work": work,
            "precision": "fp16",
            "peer": peer,
            **times,
            **({"problem": problem} if problem else {}),
        }

    measured = json.loads((tables.RESULTS / "attention.json").read_text())
    measured["peers"] = {name: {} for name in ("gnnsparse", "gnnsparse tiles", "FA4", "cuDNN", "turbo-gnn")}
    measured["rows"] = [
        row("dense", "FA4", 2.0, 7.0), row("dense", "cuDNN", 2.2, 6.0),
        row("blocks", "gnnsparse", 0.4, 2.0), row("blocks", "gnnsparse tiles", 0.1, 0.1),
        row("blocks", "FA4", 0.3, 1.0), row("band", "FA4", 0.2, problem="gradients: crashed"),
        row("vector-wise 90 %", "gnnsparse", 1.0, 12.0),
        row("dot 4 x 32", "gnnsparse", 0.25, 1.0), row("dot 4 x 32", "turbo-gnn", problem="crashed: SIGSEGV"),
        row("GAT 8 x 16", "gnnsparse", 0.25, 1.0), row("GAT 8 x 16", "turbo-gnn", 0.5),
        row("window", "cuDNN", problem="can't be imported: no module"),
    ]  # fmt: skip
    (tables.RESULTS / "attention_peers.json").write_text(json.dumps(measured))
    text = tables.attention_peers_table()
    cells = {
        line.split(" | ")[0].strip("| "): [cell.strip() for cell in line.strip("|").split("|")][1:]
        for line in text.splitlines() if line.startswith("| ")
    }  # fmt: skip
    assert cells["dense, fp16"] == ["", "2 / 7", "2.2 / 6", "", ""]
    assert cells["blocks, fp16"] == ["0.4 / 2", "0.3 / 1", "", "", "0.75x / 0.50x"]
    assert cells["band, fp16"] == ["", "0.2", "", "", ""]
    assert "FA4: gradients: crashed (band, fp16)." in text
    assert cells["vector-wise 90 %, fp16"] == ["1 / 12", "", "", "", "2.00x / 0.50x"]
    assert cells["dot 4 x 32, fp16"] == ["0.25 / 1", "", "", "crashed", ""]
    assert cells["GAT 8 x 16, fp16"] == ["0.25 / 1", "", "", "0.5", "2.00x"]
    assert cells["window, fp16"] == ["", "", "missing", "", ""]
    assert "turbo-gnn: crashed: SIGSEGV (dot 4 x 32, fp16)." in text
    assert "cuDNN: can't be imported: no module.\n" in text


def test_products_beside_other_libraries_print_losses_and_reasons(tables: ModuleType) -> None:
    def of(kernel: str, precision: str, ms: float, **more: Any) -> dict[str, Any]:
        about = {"graph": "a", "width": 128, "ok": True, "error": 1e-4, "problem": "", "timing_problem": None}
        return {**about, "kernel": kernel, "precision": precision, "ms": ms, **more}

    def skipped(name: str, precision: str, reason: str, failed: bool = False) -> dict[str, Any]:
        return {"graph": "a", "width": 128, "name": name, "precision": precision, "reason": reason,
                "failed": failed}  # fmt: skip

    measured = json.loads((tables.RESULTS / "attention.json").read_text())
    measured["settings"] = {"peers": ["cusparse-best", "pyg", "R", "T", "absent"],
                            "precisions": ["fp16", "tf32", "fp32"]}  # fmt: skip
    measured["rivals"] = {"absent": {"problem": "is not built"}, "R": {"problem": None}}
    measured["rows"] = [
        of("auto", "fp16", 1.0), of("auto", "tf32", 2.0), of("auto", "fp32", 3.0),
        of("auto", "fp16", 1.0, width=256),
        of("cusparse-best", "fp16", 2.0), of("cusparse-best", "fp32", 2.4),
        of("pyg", "fp16", 0.1, ok=False, error=0.5, problem="error 0.5, accepted 0.1"),
        of("T", "tf32", 1.5, timing_problem="runs on the default stream"),
    ]  # fmt: skip
    measured["skipped"] = [
        skipped("R", "fp32", "RuntimeError: took more than 150 s", failed=True),
        skipped("T", "fp32", "has no fp32"), skipped("R", "fp16", "128 columns; accepted: 256"),
    ]  # fmt: skip
    (tables.RESULTS / "peers.json").write_text(json.dumps(measured))
    table, *said = tables.TABLES["peers"]().split("\n\n")
    head, _, *rows = table.splitlines()
    assert [cell.strip() for cell in head.strip("|").split("|")] == [
        "graph", "columns", "gnnsparse fp16/tf32/fp32", "cuSPARSE's best fp16/fp32", "PyG fp16", "R fp32",
        "T tf32", "speed beside the best",
    ]  # fmt: skip
    # tf32 loses to T, fp32 to cuSPARSE; what is wrong is no rival, and nothing stands beside 256 columns.
    assert [[cell.strip() for cell in row.strip("|").split("|")] for row in rows] == [
        ["a", "128", "1/2/3", "2/2.4", "wrong", "failed", "1.5", "2.00x/0.75x/0.80x"],
        ["a", "256", "1/-/-", "-/-", "-", "-", "-", "-/-/-"],
    ]
    assert said[:-1] == [
        "R: RuntimeError: took more than 150 s (a).",
        "R: 128 columns; accepted: 256 (a).",
        "PyG, fp16: wrong in 1 of 1, such as error 0.5, accepted 0.1.",
        "absent: is not built.",
        "Timed with their launches, as no CUDA graph has their stream: T.",
    ]
