"""The tables of the README and of docs/: what the headline says, and that stale tables are noticed."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from types import ModuleType
from typing import Any
from xml.etree import ElementTree

import pytest

from tests.scripts import load_script

ROOT = Path(__file__).resolve().parents[2]
#: What the headline's row of the published matrices contains.
PUBLISHED = "published matrices"


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
