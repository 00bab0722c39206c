"""Trains the models of published scores by their protocols, and compares the scores.

    python -m benchmarks.published_levels --data DATA --runs RUNS [--cases gin-dd ...] [--jobs 10]
        [--device auto] [--out benchmarks/results/published_levels.json]

A case is ten runs of train.py, the folds of a cross-validation or ten seeds, of which --jobs run at a time,
each in a process of its own. DATA is the folder of published files, with `tu` and `graphs`. Runs have their
folders in RUNS and are not repeated if they are there and have ended, and rows of other cases in the file of
--out are kept, so that a long measurement can be divided. Each row says on which machine its runs were.

- gin-proteins-xu: the protocol of Xu et al. (2019): nine folds are trained on, and the epoch with the best
  mean accuracy over the tested folds is reported. The published score is of their table 1.
- gin-proteins, gin-enzymes, gin-dd: a tenth of the other folds chooses the epoch, and the tested fold is seen
  once, as Errica et al. (2020) do, whose table 3 has the published scores. They choose the options of the
  model, too, and have 18 attributes of the nodes for ENZYMES, which the files here do not.
- sage-ddi: GraphSAGE on ogbl-ddi, hits@20 of the test edges over ten seeds, as in table 14 of Hu et al.
  (2020).
"""

from __future__ import annotations

import csv
import json
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.script import ROOT, script_parser
from gnnsparse.bench.render import ENVIRONMENT
from gnnsparse.runtime.environment import write_json
from gnnsparse.train.statistics import cross_validated, summarize

RUNS = 10


@dataclass(frozen=True)
class Case:
    """A published score.

    Attributes:
        options: options of train.py.
        varied: the option whose values are 0 to RUNS - 1.
        folder: the folder of the data set's file in the published data.
        metric: the score.
        source: who published it.
        mean, deviation: the published mean and standard deviation in per cent.
        best_mean: whether the epoch is that of the best mean over the runs, by their validation scores.
    """

    options: tuple[str, ...]
    varied: str
    folder: str
    metric: str
    source: str
    mean: float
    deviation: float
    best_mean: bool = False


def _gin(dataset: str, source: str, mean: float, deviation: float, *, best_mean: bool = False) -> Case:
    validation = "fold" if best_mean else "holdout"
    options = ("model=gin", f"dataset={dataset}", f"dataset.validation={validation}")
    return Case(options, "dataset.fold", "tu", "accuracy", source, mean, deviation, best_mean)


_DDI = ("model=graphsage", "dataset=ogbl_ddi")
CASES = {
    "gin-proteins-xu": _gin("proteins", "Xu et al. 2019", 76.2, 2.8, best_mean=True),
    "gin-proteins": _gin("proteins", "Errica et al. 2020", 73.3, 4.0),
    "gin-enzymes": _gin("enzymes", "Errica et al. 2020", 59.6, 4.5),
    "gin-dd": _gin("dd", "Errica et al. 2020", 75.3, 2.9),
    "sage-ddi": Case(_DDI, "seed", "graphs", "hits@20", "Hu et al. 2020", 53.90, 4.74),
}


def run_once(command: list[str], folder: Path) -> dict[str, Any]:
    """Run train.py unless it has been run, and return its result.json."""
    run = folder / "run"
    if not (run / "result.json").exists():
        folder.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(run, ignore_errors=True)  # of one that was interrupted, whose curve would be there, too
        environment = {"OMP_NUM_THREADS": "1", **os.environ}
        with open(folder / "output.txt", "w") as output:
            done = subprocess.run(
                [*command, f"hydra.run.dir={run}"], stdout=output, stderr=subprocess.STDOUT, env=environment
            )
        if done.returncode:
            raise RuntimeError(f"{folder / 'output.txt'}: train.py ended with status {done.returncode}")
    return json.loads((run / "result.json").read_text())


def curve_of(folder: Path, metric: str) -> list[float]:
    """Return a run's validation score of each epoch."""
    (log,) = folder.rglob("metrics.csv")
    column = f"val/{metric}"
    with open(log) as rows:
        return [float(row[column]) for row in csv.DictReader(rows) if row[column]]


def commands_of(case: Case, data: Path, device: str) -> list[list[str]]:
    """Return the command of each run of a case."""
    quiet = "trainer.plots=false", "trainer.progress=false", "trainer.logger=csv", "trainer.checkpoint=false"
    every = ("trainer.val_every=1",) if case.best_mean else ()
    root = f"dataset.root={(data / case.folder).absolute()}"
    common = [sys.executable, str(ROOT / "train.py"), *case.options, root, f"device={device}", *quiet, *every]
    return [[*common, f"{case.varied}={value}"] for value in range(RUNS)]


def row_of(name: str, case: Case, results: list[dict[str, Any]], folders: list[Path]) -> dict[str, Any]:
    """Return the scores of a case's runs beside the published one, in per cent."""
    row: dict[str, Any] = {"case": name, "options": list(case.options), "metric": case.metric}
    scores = [result["metrics"]["test"][case.metric] for result in results]
    if case.best_mean:
        curves = [curve_of(folder, case.metric) for folder in folders]
        epoch, found = cross_validated(curves)
        row["epoch"], scores = epoch, [curve[epoch - 1] for curve in curves]
    else:
        found = summarize(scores)
    deviation = 100 * (found.standard_deviation or 0.0)
    return row | {
        "scores": [100 * score for score in scores],
        "mean": 100 * found.mean,
        "standard_deviation": deviation,
        "published_mean": case.mean,
        "published_standard_deviation": case.deviation,
        "source": case.source,
        "within_deviation": abs(100 * found.mean - case.mean) <= case.deviation,
        "seconds": [result["fit_seconds"] for result in results],
        **{name: results[0][name] for name in ENVIRONMENT},
    }


def kept_rows(file: Path | None, cases: list[str]) -> list[dict[str, Any]]:
    """Return the rows of a file that are of other cases."""
    if file is None or not file.exists():
        return []
    return [row for row in json.loads(file.read_text())["rows"] if row["case"] not in cases]


def table_of(rows: list[dict[str, Any]]) -> Table:
    table = Table(title="Scores in per cent over ten folds or seeds", title_justify="left")
    for column in ("case", "score", "mean ± deviation", "published", "within one deviation"):
        table.add_column(column)
    for row in rows:
        own = f"{row['mean']:.2f} ± {row['standard_deviation']:.2f}"
        published = f"{row['published_mean']} ± {row['published_standard_deviation']} ({row['source']})"
        within = "yes" if row["within_deviation"] else "no"
        table.add_row(row["case"], row["metric"], own, published, within)
    return table


def main() -> None:
    parser = script_parser(__doc__, device="auto")
    parser.add_argument("--data", type=Path, required=True, help="folder of published files")
    parser.add_argument("--runs", type=Path, required=True, help="folder for the runs of train.py")
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=list(CASES))
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    given = parser.parse_args()
    rows = kept_rows(given.out, given.cases)
    with ThreadPoolExecutor(given.jobs) as pool:
        # All are queued at once, so that the runs of the next case fill what the last of a case leaves free.
        queued = {}
        for name in given.cases:
            commands = commands_of(CASES[name], given.data, given.device)
            folders = [given.runs / f"{name}-{value}" for value in range(RUNS)]
            jobs = [pool.submit(run_once, *run) for run in zip(commands, folders, strict=True)]
            queued[name] = folders, jobs
        for name, (folders, jobs) in queued.items():
            results = [job.result() for job in jobs]
            rows.append(row_of(name, CASES[name], results, folders))
            if given.out is not None:  # after each case, because all of them take long
                in_order = sorted(rows, key=lambda row: list(CASES).index(row["case"]))
                write_json(given.out, {**{name: results[0][name] for name in ENVIRONMENT}, "rows": in_order})
    Console().print(table_of(rows))


if __name__ == "__main__":
    main()
