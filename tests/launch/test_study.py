"""Studies: their options, folder, results and peers; tests/e2e/test_studies.py has whole ones."""

from __future__ import annotations

import csv
import io
import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from gnnsparse import prepare
from gnnsparse.data import load_dataset
from gnnsparse.train.folders import RunFolderError
from launch.study.report import as_csv, as_markdown, conclusions, draw, exceptions, paper_rows, rows_of
from launch.study.settings import PEERS, Run, Store, check_peers, experiments, peer_problem, read_options
from launch.study.training import LAYERS, PeerData, find_root, with_dgl_layers
from launch.words import names_experiment
from models import AGNN, GAT, GCN
from tests.data_folder import data_file, requires_data

ENVIRONMENT = {
    "device_name": "a processor", "threads": 1, "versions": {"torch": "2"}, "commit": "c",
    "date": "2026-01-01",
}  # fmt: skip


def test_the_options_of_the_issue() -> None:
    study = read_options(
        ["experiment=precision", "dataset=cora,pubmed", "model=gcn,agnn", "precision=fp16,fp32", "seeds=3",
         "optimizer.lr=0.02", "+pattern.width=3"]
    )  # fmt: skip
    assert (study.datasets, study.models, study.variants) == (
        ("cora", "pubmed"), ("gcn", "agnn"), ("fp16", "fp32"),
    )  # fmt: skip
    assert (study.seeds, study.peers, study.metric, study.data, study.folder) == (3, (), None, None, None)
    assert study.options == ("optimizer.lr=0.02", "+pattern.width=3")


def test_the_short_forms_have_defaults() -> None:
    study = read_options(["experiment=precision"])
    assert (study.datasets, study.models) == (("cora", "pubmed", "minesweeper"), ("gcn", "agnn", "gat"))
    assert (study.precisions, study.seeds) == (("fp32", "tf32", "fp16", "bf16"), 10)
    table = read_options(["experiment=flashsparse_table8", "seeds=2", "peers=none"])
    assert (table.models, table.peers, table.metric) == (("gcn",), (), "accuracy")
    assert {"model.num_layers=5", "model.hidden_channels=128", "trainer.max_epochs=300"} <= set(table.options)
    assert table.paper is not None
    assert read_options(["experiment=flashsparse_table8"]).peers == ("pyg", "dgl")
    assert set(experiments()) == {"precision", "flashsparse_table8"}
    assert names_experiment(["seed=1", "experiment=precision"])
    assert not names_experiment(["seed=1", "hydra.run.dir=experiment=1"])


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("experiment=speed", "experiment: got 'speed'; accepted: flashsparse_table8, precision"),
        ("precision=fp16,tf32", "precision: got fp16, tf32; accepted: a list with fp32"),
        ("precision=fp32,fp7", "precision: got 'fp7'; accepted: fp32, tf32, fp16, bf16"),
        ("precision=none", "precision: got nothing; accepted: at least a precision"),
        ("peers=jax", "peers: got 'jax'; accepted: pyg, dgl"),
        ("seeds=0", "seeds: got 0; accepted: a number of seeds, from 1 to 10000"),
        ("seeds=ten", "seeds: "),
        ("seeds=1,2", "seeds: got 1,2; accepted: one value"),
        ("seeds=1 seeds=2", "seeds: is given twice"),
        ("seed=1", "seed: a study sets it itself; accepted: seeds=N"),
        ("resume=a.ckpt", "resume: a study sets it itself"),
        ("dataset.root=x", "dataset.root: a study sets it itself; accepted: data=DIR"),
        ("data=/no/such/folder", "data: there is no folder /no/such/folder"),
        ("metric=loss", "metric: got 'loss'; accepted: accuracy, macro_f1, roc_auc, micro_f1"),
        ("optimizer.lr=0.1,0.2", "optimizer.lr: got 0.1,0.2; accepted: one value; lists are for dataset"),
        ("dataset=range(1,3)", "dataset: got dataset=range(1,3); accepted: names"),
        ("-m", "-m: a study takes no flags"),
        ("seed", "options: "),
        ("options=[a]", "options: is for files in configs/experiment"),
    ],
)  # fmt: skip
def test_bad_options(options: str, says: str) -> None:
    given = [options] if options.startswith("experiment") else ["experiment=precision", *options.split()]
    with pytest.raises(ValueError, match="^" + re.escape(says)):
        read_options(given)


def test_the_folder_depends_on_the_options_and_not_on_the_lists() -> None:
    base = read_options(["experiment=precision"]).default_folder()
    assert base.parent == Path("outputs/studies")
    same = ("seeds=3", "dataset=digits", "model=gcn", "precision=fp32", "peers=pyg")
    assert all(read_options(["experiment=precision", o]).default_folder() == base for o in same)
    for other in ("optimizer.lr=0.02", "metric=accuracy", "trainer.max_epochs=5"):
        assert read_options(["experiment=precision", other]).default_folder() != base


def result(score: float, **more: Any) -> dict[str, Any]:
    metrics = {part: {"accuracy": score, "roc_auc": score / 2} for part in ("train", "val", "test")}
    return {
        "metrics": metrics, "score": "accuracy", "device": "cpu", "epochs": 5, "best_epoch": 3,
        "epoch_milliseconds": 10.0, "fit_seconds": 1.0, "peak_memory_bytes": 2**20, "parameters": 7, **more,
    }  # fmt: skip


RUN = Run("digits", "gcn", "fp16", 4)


def test_a_finished_run_is_kept(tmp_path: Path) -> None:
    folder = tmp_path / "study"
    options = {"model": {"name": "gcn", "num_layers": 2}, "variant": "fp16"}
    with Store(folder, ENVIRONMENT) as store:
        assert store.finished(RUN, options) is None
        store.keep(RUN, options, result(0.5))
    with Store(folder, ENVIRONMENT) as store:
        kept = store.finished(RUN, options)
        assert kept is not None
        assert kept["metrics"]["test"]["accuracy"] == 0.5
        assert (kept["commit"], kept["device_name"]) == ("c", "a processor")
        assert store.finished(Run("digits", "gcn", "fp16", 5), options) is None
        changed = {**options, "model": {"name": "gcn", "num_layers": 3}}
        with pytest.raises(RunFolderError, match=r"model.num_layers = 2, and this study has 3"):
            store.finished(RUN, changed)
    says = "device_name = a processor, and this study has another"
    with (
        Store(folder, {**ENVIRONMENT, "device_name": "another"}) as store,
        pytest.raises(RunFolderError, match=says),
    ):
        store.finished(RUN, options)
    with Store(folder, {**ENVIRONMENT, "commit": "d"}) as store:
        assert store.finished(RUN, options) is not None
    assert not list(folder.rglob("*.part"))


def test_a_study_has_its_folder_alone(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "result.json").write_text("{}")
    with pytest.raises(RunFolderError, match="has files of something else"):
        Store(other, ENVIRONMENT)
    study = tmp_path / "study"
    with Store(study, ENVIRONMENT), pytest.raises(RunFolderError, match="a run is writing to"):
        Store(study, ENVIRONMENT)


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"options": 3, "device_name": 1}'])
def test_a_damaged_file_is_refused_by_name(text: str, tmp_path: Path) -> None:
    with Store(tmp_path, ENVIRONMENT) as store:
        store.keep(RUN, {}, result(0.5))
        file = tmp_path / "runs" / f"{RUN.key}.json"
        file.write_text(text)
        with pytest.raises(RunFolderError, match=f"{RUN.key}.json can't be read"):
            store.finished(RUN, {})


SCORES = {
    "fp32": [0.80, 0.82, 0.84, 0.82, 0.82, 0.82, 0.82], "fp16": [0.80, 0.82, 0.84, 0.82, 0.82, 0.82, 0.82],
    "bf16": [0.70, 0.725, 0.74, 0.72, 0.72, 0.72, 0.72], "tf32": [0.81, 0.83],
    "pyg": [0.81, 0.82, 0.85, 0.82, 0.82, 0.82, 0.82],
}  # fmt: skip


def results(**scores: list[float]) -> dict[Run, dict[str, Any]]:
    """fp16 equals fp32, bf16 is far below it, tf32 has two seeds, PyG is a little better."""
    return {
        Run("digits", "gcn", variant, seed): result(score, epoch_milliseconds=10.0 + seed)
        for variant, of in (scores or SCORES).items()
        for seed, score in enumerate(of)
    }


def test_rows_and_their_comparison() -> None:
    rows = {row["variant"]: row for row in rows_of(results())}
    assert list(rows) == ["fp32", "fp16", "bf16", "tf32", "pyg"]
    assert rows["fp32"]["mean"] == pytest.approx(82.0)
    assert rows["fp32"]["standard_deviation"] == pytest.approx(math.sqrt(8 / 6))
    assert (rows["fp32"]["difference"], rows["fp32"]["p_value"], rows["fp32"]["p_corrected"]) == (None,) * 3
    assert (rows["fp16"]["difference"], rows["fp16"]["p_value"]) == (0.0, 1.0)
    assert rows["bf16"]["difference"] == pytest.approx(-69.5 / 7)
    assert rows["bf16"]["p_value"] == 2 / 2**7
    assert rows["tf32"]["compared_seeds"] == 2
    assert rows["tf32"]["difference"] == pytest.approx(1.0)
    assert rows["tf32"]["p_value"] is None
    assert rows["fp32"]["epoch_milliseconds"] == 13.0
    # The precisions are one family, of which two are tested, and the peer is another.
    assert rows["bf16"]["p_corrected"] == 2 * rows["bf16"]["p_value"]
    assert rows["pyg"]["p_corrected"] == rows["pyg"]["p_value"] == 2 / 2**2
    assert [row["variant"] for row in exceptions(rows.values())] == ["bf16"]


def significance(**scores: list[float]) -> list[str]:
    """What the conclusions say of significance."""
    lines = conclusions({**content(), "rows": rows_of(results(**scores)), "paper": None, "paper_rows": []})
    return [line for line in lines if "standard deviation" not in line]


def test_what_can_not_be_significant_is_said() -> None:
    """All differences of few seeds are of one sign, or equal, and still too few for three comparisons."""
    # As a study leaves them that was interrupted.
    assert significance(fp32=[0.80, 0.82, 0.84], fp16=[0.81, 0.83]) == [
        "Nothing is said of the significance of differences of fewer than 5 seeds (1 of 1): with one "
        "comparison it takes 6 seeds for a corrected p below 0.05."
    ]
    too_few = (
        "No difference can be significant, whatever the scores are: with 3 comparisons it takes 7 seeds for "
        "a corrected p below 0.05."
    )
    differs = "Differs from fp32 (p = 0.047, corrected): gcn on digits, fp16."
    for seeds, count, first in ((5, 1, too_few), (6, 1, too_few), (7, 3, differs)):
        high, low = [0.9] * seeds, [0.1] * seeds
        found = significance(fp32=low, fp16=high, bf16=high, tf32=high)
        assert (len(found), found[0]) == (count, first)


def content(**more: Any) -> dict[str, Any]:
    rows = rows_of(results())
    paper = {"title": "A paper", "scores": {"digits": {"fp16": 82.5, "bf16": 90.0}, "other": {"pyg": 1.0}},
             "notes": ["It has no seeds."]}  # fmt: skip
    study = read_options(["experiment=precision", "dataset=digits", "model=gcn"])
    object.__setattr__(study, "paper", paper)
    return {
        **ENVIRONMENT, "commits": ["c"], "experiment": "precision", "rows": rows, "paper": paper,
        "paper_rows": paper_rows(study, rows), "skipped": [], "failed": [], "unfinished": 0, **more,
    }  # fmt: skip


def test_conclusions_and_the_paper_beside_the_study() -> None:
    found = content()["paper_rows"]
    assert [(row["dataset"], row["variant"], row["differs"]) for row in found] == [
        ("digits", "fp16", False), ("digits", "bf16", True), ("other", "pyg", None),
    ]  # fmt: skip
    assert found[0]["difference"] == pytest.approx(-0.5)
    failed = [{"run": "gat on cora, fp16, seed 1", "reason": "FloatingPointError: training diverged"}]
    lines = conclusions(content(failed=failed, skipped=["DGL is not installed"], unfinished=2))
    assert lines[0] == "2 of 3 scores of other precisions are within one standard deviation of fp32."
    assert lines[1].startswith("Not within one standard deviation of fp32: gcn on digits, bf16: -9.93 [")
    assert lines[2] == "Differs from fp32 (p = 0.031, corrected): gcn on digits, bf16."
    assert "A paper, digits, bf16: 90 in the paper, 72.07 ± 1.17 here: -17.93." in lines
    assert "A paper, other, PyG fp32: 1 in the paper, not measured here." in lines
    assert "A paper: It has no seeds." in lines
    assert not any("digits, fp16: 82.5" in line for line in lines)
    assert lines[-3:] == [
        "Skipped: DGL is not installed.", "Unfinished: 2 runs.",
        "FAILED: gat on cora, fp16, seed 1: FloatingPointError: training diverged",
    ]  # fmt: skip


def test_files(tmp_path: Path) -> None:
    made = content()
    table = [line for line in as_markdown(made).splitlines() if line.startswith("|")]
    assert len(table) == 2 + len(made["rows"])
    assert len({line.count("|") for line in table}) == 1
    assert "82.00 ± 1.15" in table[2]
    read = list(csv.DictReader(io.StringIO(as_csv(made["rows"]))))
    assert [row["variant"] for row in read] == [row["variant"] for row in made["rows"]]
    assert [float(x) for x in read[0]["scores"].split()] == made["rows"][0]["scores"]
    assert float(read[2]["mean"]) == made["rows"][2]["mean"]
    pytest.importorskip("matplotlib")
    draw(made, tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    assert [file.name for file in tmp_path.iterdir()] == ["a.png"]
    json.dumps(made, allow_nan=False)


def test_places_of_raw_files(tmp_path: Path) -> None:
    for folder in ("a/minesweeper", "b", "flickr", "my/Yelp/raw"):
        (tmp_path / folder).mkdir(parents=True)
    assert find_root("digits", tmp_path) is None
    with pytest.raises(ValueError, match=r"data: no folder in .* has all raw files of minesweeper"):
        find_root("minesweeper", tmp_path)
    (tmp_path / "b" / "minesweeper.npz").touch()
    assert find_root("minesweeper", tmp_path) == tmp_path / "b"
    for folder in ("flickr", "my/Yelp/raw"):
        for name in ("adj_full.npz", "feats.npy", "class_map.json", "role.json"):
            (tmp_path / folder / name).touch()
    assert find_root("flickr", tmp_path) == tmp_path / "flickr"
    (tmp_path / "a" / "minesweeper.npz").touch()
    with pytest.raises(ValueError, match="several folders have the files of minesweeper"):
        find_root("minesweeper", tmp_path)


@requires_data
@pytest.mark.parametrize("name", ["cora", "citeseer", "pubmed", "minesweeper", "tolokers", "amazon_photo"])
def test_places_in_the_shared_folder(name: str) -> None:
    root = find_root(name, data_file())
    assert root is not None
    if name in ("cora", "minesweeper"):
        assert load_dataset(name, root=root, download=False).num_nodes > 0


def test_a_peer_lacks_layers_and_dgl_draws_no_random_numbers() -> None:
    check_peers(["pyg", "dgl"], ["gcn", "agnn", "gat"])
    with pytest.raises(ValueError, match=r"peers: got 'dgl' for the model gin; accepted with dgl: gcn"):
        check_peers(["pyg", "dgl"], ["gcn", "gin"])
    if problem := peer_problem("dgl"):
        pytest.skip(problem)
    model = GCN(4, 8, 2)
    before = torch.get_rng_state()
    with_dgl_layers(model)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")  # PyG's imports
@pytest.mark.parametrize("peer", PEERS)
@pytest.mark.parametrize("kind", [GCN, AGNN, GAT])
def test_peers_compute_the_same_model(peer: str, kind: Any) -> None:
    """From the same parameters the model has the same logits with the layers of a peer, and the same loss."""
    if problem := peer_problem(peer):
        pytest.skip(problem)
    dataset = load_dataset("digits")
    make_graph, with_layers = LAYERS[peer]
    torch.manual_seed(0)
    model = kind(dataset.num_features, 16, dataset.num_classes).eval()
    expected = model(dataset.x, prepare(dataset.graph, values="gcn", cache=False))
    count = sum(p.numel() for p in model.parameters())
    model = with_layers(model).eval()
    data = PeerData(dataset, "cpu", make_graph)
    torch.testing.assert_close(model(data.batch.x, data.batch.adj), expected, rtol=1e-4, atol=1e-5)
    assert sum(p.numel() for p in model.parameters()) == count
