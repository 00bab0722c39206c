"""Run folders of train.py: no run loses a file to another one, whatever starts when."""

from __future__ import annotations

import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests import warm
from tests.e2e.started import Run

QUICK = ("trainer.max_epochs=2", "trainer.logger=csv")


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def at_once(start: Callable[[int], Run], count: int = 4) -> list[Run]:
    warm.folder()  # is made by one thread
    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(start, range(count)))


def test_runs_that_start_in_one_second(train: Callable[..., Run], tmp_path: Path) -> None:
    """Each has a folder, with its own results in it: those of its learning rate."""
    when = "hydra.job.name=x"  # no folder is given
    runs = at_once(
        lambda n: train(when, *QUICK, f"optimizer.lr={n + 1}e-2", own_folder=True, folder=tmp_path)
    )
    assert [(run.status, run.errors) for run in runs] == [(0, "")] * 4
    folders = [path.parent for path in tmp_path.glob("outputs/*/*/result.json")]
    assert len(folders) == 4
    place = r"\d{4}-\d\d-\d\d/\d\d-\d\d-\d\d-gcn-digits-fp32-seed0(-\d)?"
    rates = set()
    for folder in folders:
        assert re.fullmatch(place, str(folder.relative_to(tmp_path / "outputs")))
        rates |= {
            line for line in (folder / ".hydra/overrides.yaml").read_text().splitlines() if "lr" in line
        }
        assert len(list(folder.glob("logs/csv/*/metrics.csv"))) == 1
    assert len(rates) == 4


def test_a_second_run_is_refused_and_a_resumed_one_keeps_the_files(
    train: Callable[..., Run], tmp_path: Path
) -> None:
    assert train(*QUICK, folder=tmp_path).status == 0
    before = contents(tmp_path)
    again = train(*QUICK, folder=tmp_path)
    assert (again.status, again.output) == (2, "")
    assert again.errors.startswith(f"train.py: hydra.run.dir: {tmp_path} is the folder of another run")
    assert contents(tmp_path) == before
    last = tmp_path / "checkpoints" / "last.ckpt"
    wrong = train("trainer.max_epochs=1", f"resume={last}", folder=tmp_path)
    assert "trainer.max_epochs: got 1; accepted: at least 2" in wrong.errors
    assert {name: contents(tmp_path)[name] for name in before if name != "run.lock"} == {
        name: content for name, content in before.items() if name != "run.lock"
    }
    resumed = train("trainer.max_epochs=4", f"resume={last}", folder=tmp_path)
    assert resumed.result["epochs"] == 4
    after = contents(tmp_path)
    assert after["result-1.json"] == before["result.json"]
    kept = [name for name in before if name.startswith(".hydra/")]
    assert len(kept) == 3
    assert all(after[name] == before[name] for name in kept)
    (log,) = (name for name in before if name.startswith("logs/"))
    assert after[log].startswith(before[log])
    assert after[log].count(b"\n") == 5
    assert any(name.startswith(".hydra-") for name in after)


def test_sweeps(train: Callable[..., Run], tmp_path: Path) -> None:
    """Those that start in one second have folders of their own; a given one is refused the second time."""
    sweep = ("-m", "seed=0,1", *QUICK)
    runs = at_once(lambda _: train(*sweep, folder=tmp_path), 2)
    assert [run.status for run in runs] == [0, 0]
    results = list(tmp_path.glob("outputs/*/*-sweep*/*/result.json"))
    assert len(results) == 4
    assert len({path.parents[1] for path in results}) == 2
    given = f"hydra.sweep.dir={tmp_path / 'given'}"
    assert train(*sweep, given, folder=tmp_path).status == 0
    names = {path.parent.name for path in tmp_path.glob("given/*/result.json")}
    assert names == {"0-gcn-digits-fp32-seed0", "1-gcn-digits-fp32-seed1"}
    before = contents(tmp_path / "given")
    again = train(*sweep, given, folder=tmp_path)
    assert (again.status, again.output) == (2, "")
    assert again.errors.startswith(
        f"train.py: hydra.sweep.dir: {tmp_path / 'given'} is the folder of another"
    )
    assert contents(tmp_path / "given") == before


@pytest.mark.parametrize("where", ["file", "file/run"])
def test_a_folder_that_can_not_be_made(train: Callable[..., Run], tmp_path: Path, where: str) -> None:
    (tmp_path / "file").write_text("mine")
    run = train(f"hydra.run.dir={tmp_path / where}", own_folder=True, folder=tmp_path)
    assert (run.status, run.output, run.errors.count("\n")) == (2, "", 1)
    assert run.errors.startswith(f"train.py: hydra.run.dir: {tmp_path / where} can't be written to (")
    sweep = train("-m", "seed=0,1", f"hydra.sweep.dir={tmp_path / where}", folder=tmp_path)
    assert (sweep.status, sweep.output, sweep.errors.count("\n")) == (2, "", 1)
    assert (tmp_path / "file").read_text() == "mine"
