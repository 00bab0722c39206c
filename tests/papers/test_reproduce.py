"""`python -m papers`: its registry, what it says of what is not there, and its rows on small matrices."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gnnsparse.data import DATASETS, GENERATED_GRAPHS
from gnnsparse.formats.csr import Csr
from gnnsparse.sparse.graph import SparseGraph
from papers import __main__ as cli
from papers import session, training
from papers.__main__ import reproduce
from papers.figures import PAPERS, Figure, Missing, Outcome, Paper, Row
from papers.session import KNOWN, Found, Library, Session
from papers.speed import FormatCase, compare_cases, over_peer
from tests.papers.test_analysis import csr_of

EVERY = [(paper, figure) for paper in PAPERS for figure in PAPERS[paper].figures]


def pattern(rows: int, cols: int, density: float, seed: int = 0) -> Csr:
    return csr_of(np.random.default_rng(seed).random((rows, cols)) < density)


def write_npz(path: Path, csr: Csr) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, num_nodes=csr.rows, indptr=csr.indptr.numpy(), indices=csr.indices.numpy())


def write_smtx(path: Path, csr: Csr) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [f"{csr.rows}, {csr.cols}, {csr.nnz}"]
    lines += [" ".join(map(str, part.tolist())) for part in (csr.indptr, csr.indices)]
    with gzip.open(path, "wt") as file:
        file.write("\n".join(lines) + "\n")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Small matrices under the names of some of the papers'."""
    folder = tmp_path / "matrices"
    for number, name in enumerate(("github_musae", "DD", "PROTEINS", "ogbl_ddi", "notredame_www")):
        write_npz(folder / "graphs" / f"{name}.npz", pattern(120, 120, 0.03, number))
    for sparsity in ("0.5", "0.9"):
        for number in range(2):
            csr = pattern(64, 48, 1 - float(sparsity), number)
            write_smtx(
                folder / "dlmc" / "transformer" / "random_pruning" / sparsity / f"m{number}.smtx.gz", csr
            )
    return folder


@pytest.mark.parametrize(("paper", "figure"), EVERY)
def test_without_matrices_and_gpu_every_figure_says_what_is_missing(
    paper: str, figure: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "train.py").write_text("import sys\nsys.exit('train.py: no such data')\n")
    monkeypatch.setattr(training, "ROOT", tmp_path)
    (outcome,) = reproduce(paper, [figure], Session()).values()
    assert outcome.missing
    assert all(missing.what and missing.how for missing in outcome.missing)
    if (paper, figure) in (("flashsparse", "table-8"), ("rsh-spmm", "figure-17")):  # by train.py
        assert outcome.missing[0].how == "train.py: no such data"
    # What is computed without matrices is an example from the paper's text.
    assert {row.origin for row in outcome.rows} <= {"example"}


@pytest.mark.parametrize(
    ("paper", "figure"), [(p, f) for p, f in EVERY if PAPERS[p].figures[f].needs == "cpu"]
)
def test_counts_of_small_matrices(paper: str, figure: str, data: Path) -> None:
    (outcome,) = reproduce(paper, [figure], Session(data)).values()
    assert outcome.rows or figure in ("table-2", "table-3"), outcome.missing
    assert all(np.isfinite(row.ours) for row in outcome.rows)
    assert len(set(outcome.missing)) == len(outcome.missing)


def test_a_stand_in_is_named_as_one(data: Path) -> None:
    write_npz(data / "graphs" / "cnr_2000.npz", pattern(50, 50, 0.1))
    outcome = Outcome()
    (found,) = Session(data).each(["web-BerkStan"], outcome)
    assert (found.name, found.origin) == ("cnr-2000 for web-BerkStan", "stand-in")
    assert [missing.what for missing in outcome.missing] == ["web-BerkStan"]
    assert not list(Session(data).each(["web-BerkStan"], Outcome(), stand_ins=False))


def test_matrices_are_found_by_any_of_their_names_with_the_self_loops_of_the_papers(
    data: Path, tmp_path: Path
) -> None:
    library = Library(data)
    github, dd = library.find("GitHub"), library.find("DD")
    assert github is not None
    assert dd is not None
    assert bool((github.indices == github.row_index()).sum() == github.rows)
    assert dd.nnz == pattern(120, 120, 0.03, 1).nnz
    deep = tmp_path / "other" / "deep"
    write_npz(deep / "er" / "GITHUB.npz", pattern(20, 20, 0.2))
    (deep / "cage.npz.txt").write_text("")
    assert Library(tmp_path / "other").find("GitHub") is not None
    assert Library(tmp_path / "other").find("DD") is None


def test_stand_ins_are_known_or_generated() -> None:
    for known in KNOWN.values():
        assert not known.stand_in or known.stand_in in {*KNOWN, *GENERATED_GRAPHS}
        assert not known.dataset or known.dataset in DATASETS
        assert known.stems or known.dataset


def test_a_generated_stand_in_is_made_once(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []

    def generate(name: str, device: str) -> SparseGraph:
        made.append(name)
        return SparseGraph(pattern(30, 30, 0.1))

    monkeypatch.setattr(session, "graph_like", generate)
    library = Library(data)
    for _ in range(2):
        assert library.get("Reddit", generate=True)[0] is not None
    # Two matrices of one stand-in are measured once.
    found = list(Session(data, generate=True).each(["Amazon", "amazon0505"], Outcome()))
    assert [one.name for one in found] == ["amazon_like for Amazon"]
    assert made == ["reddit_like", "amazon_like"]
    assert library.get("Reddit")[0] is None


def test_each_figure_is_written_before_the_next_begins(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, run = tmp_path / "out.json", cli._run
    seen: list[list[str]] = []

    def watched(figure: Figure, session: Session) -> Outcome:
        seen.append(list(json.loads(out.read_text())["figures"]) if out.exists() else [])
        return run(figure, session)

    monkeypatch.setattr(cli, "_run", watched)
    assert cli.main(["flashsparse", "--device", "cpu", "--data", str(data), "--figure", "figure-1", "table-4",
                     "--json", str(out)]) == 0  # fmt: skip
    assert seen == [[], ["table-4"]]
    assert list(json.loads(out.read_text())["figures"]) == ["table-4", "figure-1"]


def test_speeds_are_geometric_means_beside_the_papers(monkeypatch: pytest.MonkeyPatch) -> None:
    outcome = Outcome()
    matrices = [Found("a", pattern(60, 60, 0.1), "subset"), Found("b", pattern(80, 80, 0.1, 1), "stand-in")]
    cases = (FormatCase("me-bcrs", "me"), FormatCase("cvse", "cvse"))
    compare_cases(Session(repeats=2), outcome, matrices, cases, 1.5, width=16)
    assert [(row.matrix, row.origin) for row in outcome.rows] == [
        ("a", "subset"), ("b", "stand-in"), ("2 matrices", "subset"),
    ]  # fmt: skip
    *each, mean = outcome.rows
    assert mean.paper == 1.5
    assert mean.ours == pytest.approx(float(np.prod([row.ours for row in each])) ** 0.5)
    rows = over_peer(
        Session(repeats=2), outcome, matrices, "hrpb", 2.0, peer="sparse_mm", label="torch",
        peers=("sparse_mm",), width=16, precision="tf32",
    )  # fmt: skip
    assert {row["kernel"] for row in rows} == {"sparse_mm", "hrpb"}
    assert outcome.rows[-1].quantity == "tf32: speed over torch, mean"
    assert outcome.rows[-1].paper == 2.0


def test_what_could_not_be_measured_is_listed() -> None:
    outcome = Outcome()
    case = FormatCase("hrpb", "tall", panel=64)
    compare_cases(
        Session(repeats=1), outcome, [Found("a", pattern(20, 20, 0.2))], (case, case), precision="tf32"
    )
    assert not outcome.rows
    assert "tall on a" in outcome.missing[0].what
    assert "panel: got 64" in outcome.missing[0].how


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("paper", "figure"), [(p, f) for p, f in EVERY if PAPERS[p].figures[f].needs == "gpu"]
)
def test_figures_of_speed_run_on_a_gpu(paper: str, figure: str, data: Path) -> None:
    (outcome,) = reproduce(paper, [figure], Session(data, "cuda", repeats=2)).values()
    assert outcome.rows, outcome.missing
    assert not any(note.startswith("WRONG") for note in outcome.notes)


def results(path: Path, *rows: dict[str, Any]) -> Path:
    path.write_text(json.dumps({"rows": [{"ok": True, "ms": 1.0, **row} for row in rows]}))
    return path


def test_intensity_is_compared_with_measured_speeds_by_file(data: Path, tmp_path: Path) -> None:
    about = {"kernel": "hrpb", "precision": "tf32", "width": 128}
    folder = "transformer/random_pruning"
    rows = [
        {**about, "graph": f"{folder}/0.5/m0.smtx.gz", "gflops": 9.0},
        {**about, "graph": f"{folder}/0.9/m0.smtx.gz", "gflops": 3.0},
        {**about, "graph": "DD.npz", "gflops": 1.0},
        {**about, "graph": "elsewhere.mtx", "gflops": 99.0},
        {**about, "graph": "DD.npz", "gflops": 99.0, "ok": False},
        {**about, "graph": "DD.npz", "gflops": 99.0, "kernel": "cvse"},
    ]
    session = Session(data, results=results(tmp_path / "r.json", *rows))
    (outcome,) = reproduce("cutespmm", ["figure-7"], session).values()
    (row,) = [row for row in outcome.rows if "measured speed" in row.quantity]
    assert row.quantity == "rank correlation with measured speed, tf32, N = 128"
    assert row.matrix == "3 matrices"
    assert row.ours == pytest.approx(1.0)
    (tmp_path / "r.json").write_text('{"rows": [1]}')
    with pytest.raises(ValueError, match=r"results: r.json is no file of `gnnsparse bench kernels`"):
        reproduce("cutespmm", ["figure-7"], Session(data, results=tmp_path / "r.json"))


STUDY = {
    "rows": [{"dataset": "cora", "variant": "fp16", "metric": "accuracy", "mean": 78.5, "seeds": [0, 1],
              "standard_deviation": 0.5}],
    "paper": {"scores": {"cora": {"fp16": 75.1}, "ELL": {"fp16": 95.18}}, "notes": ["One number each."]},
}  # fmt: skip


def test_a_study_is_run_and_its_scores_stand_beside_the_papers(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "train.py").write_text(
        "import json, pathlib, sys\n"
        "options = dict(word.split('=', 1) for word in sys.argv[1:])\n"
        "folder = pathlib.Path(options['hydra.run.dir'])\n"
        "folder.mkdir(parents=True)\n"
        f"(folder / 'study.json').write_text(json.dumps({STUDY!r}))\n"
        "(folder / 'options.json').write_text(json.dumps(options))\n"
    )
    monkeypatch.setattr(training, "ROOT", tmp_path)
    (outcome,) = reproduce("flashsparse", ["table-8"], Session(data, seeds=2)).values()
    (row,) = outcome.rows
    assert row == Row(
        "fp16: test accuracy", "cora", "paper's", 78.5, 75.1, "%", "mean of 2 seeds, deviation 0.50"
    )
    assert outcome.missing == [Missing("ELL", "no data set of this project")]
    assert outcome.notes == ["One number each."]
    (options,) = (tmp_path / "outputs").glob("*/options.json")
    given = json.loads(options.read_text())
    assert given["experiment"] == "flashsparse_table8"
    assert (given["data"], given["seeds"]) == (str(data), "2")


def test_the_command_prints_and_writes_rows(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.json"
    words = ["flashsparse", "--device", "cpu", "--data", str(data), "--json", str(out)]
    assert cli.main([*words, "--figure", "figure-1", "table-4"]) == 0
    printed = capsys.readouterr().out
    assert "fewer instructions, mean" in printed
    assert "the paper's" in printed
    assert "615,706" in printed
    assert "GEMSEC" in printed  # how to get what is missing
    content = json.loads(out.read_text())
    assert content["paper"] == "flashsparse"
    assert set(content["figures"]) == {"figure-1", "table-4"}
    assert {row["paper"] for row in content["figures"]["figure-1"]["rows"]} == {None, 43.0}
    assert "versions" in content


def test_without_a_figure_the_quick_ones_run_and_others_fail_where_nothing_can_be_computed(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["sspmm", "--device", "cpu", "--data", str(data)]) == 0
    printed = capsys.readouterr().out
    assert "figure-13: storage of CVSE" in printed
    assert "figure-9: SpMM of DLMC, N = 512, beside cuSPARSE and cuBLAS, on a GPU" in printed
    assert cli.main(["sspmm", "--device", "cpu", "--figure", "figure-9"]) == 1
    assert "a GPU: run it on a machine with an NVIDIA GPU" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["dtc"], "invalid choice: 'dtc'"),
        (["sspmm", "--figure", "figure-1"], "argument --figure: got 'figure-1' of sspmm; accepted: table-3"),
        (["sspmm", "--figure", "all", "figure-9"], "argument --figure: got 'all' of sspmm"),
        (["sspmm", "--data", "/no/such"], "there is no folder '/no/such'"),
        (["sspmm", "--results", "/no/such"], "there is no file '/no/such'"),
        (["sspmm", "--repeats", "0"], "got '0'; accepted: an integer from 1 on"),
    ],
)
def test_bad_options_are_refused(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        cli.main(words)
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err


def test_all_five_papers_are_registered_and_what_is_taken_or_unknown_is_refused() -> None:
    assert set(PAPERS) == {"flashsparse", "sspmm", "tiled-csr", "cutespmm", "rsh-spmm"}
    assert all(len(PAPERS[paper].figures) >= 4 for paper in PAPERS)
    paper = Paper("p", "t")
    paper.figure("figure-1", "x")(lambda session: Outcome())
    with pytest.raises(ValueError, match="figure: got 'figure-1' to register"):
        paper.figure("figure-1", "y")(lambda session: Outcome())
    with pytest.raises(ValueError, match="needs: got 'tpu'"):
        paper.figure("figure-2", "y", needs="tpu")
    with pytest.raises(ValueError, match="origin: got 'mine'"):
        Row("q", "m", "mine", 1.0)
